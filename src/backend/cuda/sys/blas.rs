//! Matrix products by cuBLASLt.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::cublaslt::sys as lt;

use super::context::Stream;
use super::memory::Address;
use super::{Called, Failure, calls};
use crate::base::DType;

fn blas(call: &'static str, status: lt::cublasStatus_t) -> Called<()> {
    calls::note(call, status as u32);
    if status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Failure { call, code: status as u32, name: format!("{status:?}") })
}

/// `lt!(name(arguments))`: calls cuBLASLt and checks the status.
macro_rules! lt {
    ($name:ident($($arg:expr),* $(,)?)) => {
        blas(stringify!($name), lt::$name($($arg),*))
    };
}

/// A matrix in memory, as cuBLASLt sees it: column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    pub rows: u64,
    pub cols: u64,
    /// Elements from one column to the next.
    pub ld: i64,
    /// Elements from one matrix of the batch to the next; 0 repeats it.
    pub batch_stride: i64,
}

/// One call: `c = op(a) * op(b)`, column-major, `batch` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// f32, f64, f16 or bf16; 16-bit matrices accumulate in f32.
    pub dtype: DType,
    /// Lets f32 operands be rounded to TF32 (10 bits of mantissa).
    pub tf32: bool,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub batch: u32,
    /// `a` is the plan's second operand, `b` its first.
    pub swapped: bool,
    /// What the addresses of a, b, c are multiples of, in bytes: a power of two up to [`ALIGNMENT`].
    pub alignment: [u32; 3],
}

/// What an operand's memory starts at a multiple of, in bytes; others must be copied first.
pub const ALIGNMENT: u64 = 16;

/// Most workspace that an algorithm may ask for, in bytes (cuBLAS's own default before Hopper).
const MOST_WORKSPACE: usize = 4 << 20;

/// The library's handle.
#[derive(Debug)]
pub struct Blas(lt::cublasLtHandle_t);

// SAFETY: the handle may be used by several threads at a time (cuBLASLt's documentation, "Thread Safety").
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// An algorithm for a [`Product`], with the descriptors of its call.
#[derive(Clone, Debug)]
pub struct Algorithm {
    algo: lt::cublasLtMatmulAlgo_t,
    call: Arc<Call>,
    /// Device memory for the call, aligned to 256 bytes.
    pub workspace: usize,
}

#[derive(Debug)]
struct Layout(lt::cublasLtMatrixLayout_t);

impl Layout {
    fn new(m: &Matrix, dtype: lt::cudaDataType, batch: u32) -> Called<Layout> {
        let mut raw = null_mut();
        // SAFETY: the pointers are to locals, each attribute has the size that its documentation says.
        unsafe {
            lt!(cublasLtMatrixLayoutCreate(&mut raw, dtype, m.rows, m.cols, m.ld))?;
            let layout = Layout(raw);
            if batch > 1 {
                use lt::cublasLtMatrixLayoutAttribute_t as A;
                let (count, stride) = (batch as i32, m.batch_stride);
                let at = (&raw const count).cast();
                lt!(cublasLtMatrixLayoutSetAttribute(raw, A::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, at, 4))?;
                let at = (&raw const stride).cast();
                lt!(cublasLtMatrixLayoutSetAttribute(raw, A::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, at, 8))?;
            }
            Ok(layout)
        }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        let _ = unsafe { lt!(cublasLtMatrixLayoutDestroy(self.0)) };
    }
}

#[derive(Debug)]
struct Desc(lt::cublasLtMatmulDesc_t);

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made in `Call::new`.
        let _ = unsafe { lt!(cublasLtMatmulDescDestroy(self.0)) };
    }
}

struct Preference(lt::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `algorithm`.
        let _ = unsafe { lt!(cublasLtMatmulPreferenceDestroy(self.0)) };
    }
}

/// The descriptors of one product.
#[derive(Debug)]
struct Call {
    desc: Desc,
    a: Layout,
    b: Layout,
    c: Layout,
}

// SAFETY: descriptors are set in `new` and only read afterwards.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    fn new(p: &Product) -> Called<Call> {
        use lt::cublasComputeType_t as C;
        use lt::cudaDataType_t as D;
        let (data, compute, scale) = match p.dtype {
            DType::F64 => (D::CUDA_R_64F, C::CUBLAS_COMPUTE_64F, D::CUDA_R_64F),
            DType::F16 => (D::CUDA_R_16F, C::CUBLAS_COMPUTE_32F, D::CUDA_R_32F),
            DType::BF16 => (D::CUDA_R_16BF, C::CUBLAS_COMPUTE_32F, D::CUDA_R_32F),
            _ if p.tf32 => (D::CUDA_R_32F, C::CUBLAS_COMPUTE_32F_FAST_TF32, D::CUDA_R_32F),
            _ => (D::CUDA_R_32F, C::CUBLAS_COMPUTE_32F, D::CUDA_R_32F),
        };
        let mut raw = null_mut();
        // SAFETY: the pointers are to locals, each attribute has the size that its documentation says.
        let desc = unsafe {
            lt!(cublasLtMatmulDescCreate(&mut raw, compute, scale))?;
            let desc = Desc(raw);
            use lt::cublasLtMatmulDescAttributes_t as A;
            for (attribute, transpose) in
                [(A::CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a), (A::CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b)]
            {
                let op = transpose as i32; // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1
                lt!(cublasLtMatmulDescSetAttribute(raw, attribute, (&raw const op).cast(), 4))?;
            }
            desc
        };
        let layout = |m: &Matrix| Layout::new(m, data, p.batch);
        Ok(Call { desc, a: layout(&p.a)?, b: layout(&p.b)?, c: layout(&p.c)? })
    }
}

impl Blas {
    /// A new handle for the current context.
    pub fn new() -> Called<Blas> {
        let mut raw = null_mut();
        // SAFETY: the symbols were found (`load::ready`), the pointer is to a local.
        unsafe { lt!(cublasLtCreate(&mut raw))? };
        Ok(Blas(raw))
    }

    /// The first algorithm that the library proposes.
    pub fn algorithm(&self, p: &Product) -> Called<Algorithm> {
        let call = Call::new(p)?;
        let mut raw = null_mut();
        // SAFETY: the pointers are to locals, each attribute has the size that its documentation says; zeros are a
        // valid result to be overwritten.
        unsafe {
            lt!(cublasLtMatmulPreferenceCreate(&mut raw))?;
            let preference = Preference(raw);
            use lt::cublasLtMatmulPreferenceAttributes_t as A;
            let most = MOST_WORKSPACE;
            let attribute = A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            lt!(cublasLtMatmulPreferenceSetAttribute(raw, attribute, (&raw const most).cast(), size_of::<usize>()))?;
            for (attribute, alignment) in [
                (A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignment[0]),
                (A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignment[1]),
                (A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignment[2]),
                (A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignment[2]),
            ] {
                lt!(cublasLtMatmulPreferenceSetAttribute(raw, attribute, (&raw const alignment).cast(), 4))?;
            }
            let mut result: lt::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let mut found = 0;
            lt!(cublasLtMatmulAlgoGetHeuristic(
                self.0,
                call.desc.0,
                call.a.0,
                call.b.0,
                call.c.0,
                call.c.0,
                preference.0,
                1,
                &mut result,
                &mut found,
            ))?;
            if found == 0 {
                let name = "CUBLAS_STATUS_NOT_SUPPORTED".to_string();
                return Err(Failure { call: "cublasLtMatmulAlgoGetHeuristic", code: 15, name });
            }
            Ok(Algorithm { algo: result.algo, call: Arc::new(call), workspace: result.workspaceSize })
        }
    }

    /// Enqueues a product of the matrices at three addresses. They and the workspace must be as large as the product and
    /// the algorithm say: the callers' check.
    pub fn enqueue(
        &self,
        p: &Product,
        algorithm: &Algorithm,
        [a, b, c]: [Address; 3],
        workspace: Address,
        stream: &Stream,
    ) -> Called<()> {
        let call = &*algorithm.call;
        let (one, zero) = (1f32, 0f32);
        let (one_64, zero_64) = (1f64, 0f64);
        let (alpha, beta): (*const c_void, *const c_void) = match p.dtype {
            DType::F64 => ((&raw const one_64).cast(), (&raw const zero_64).cast()),
            _ => ((&raw const one).cast(), (&raw const zero).cast()),
        };
        // SAFETY: the descriptors are alive, the factors are read during the call (pointer mode "host", the default).
        unsafe {
            lt!(cublasLtMatmul(
                self.0,
                call.desc.0,
                alpha,
                a as *const c_void,
                call.a.0,
                b as *const c_void,
                call.b.0,
                beta,
                c as *const c_void,
                call.c.0,
                c as *mut c_void,
                call.c.0,
                &algorithm.algo,
                workspace as *mut c_void,
                algorithm.workspace,
                stream.raw.cast(),
            ))
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        let _ = unsafe { lt!(cublasLtDestroy(self.0)) };
    }
}
