//! Library calls of a plan as calls of the dispatcher: they find their operands in the slots.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::backend::cpu::matmul::{self, Matmul, Strides};
use crate::backend::cpu::threads::Pool;
use crate::backend::cpu::vm::Isa;
use crate::backend::dispatch::Call;
use crate::base::{DType, Error, ErrorKind, Result};
use crate::kernel::library::{self, Library, ScatterAdd};

/// The call of `library` on the slots `args`.
///
/// # Safety
/// `args` must name slots of the plan that are large enough for the operands, as a checked plan's are.
pub(super) unsafe fn call(library: &Library, args: &[u32], isa: Isa, pool: &Arc<Pool>) -> Result<Call> {
    let &[first, second, out] = args else {
        return Err(Error::bug("cpu", format!("a library call with {} arguments", args.len())));
    };
    let slots = [first, second, out];
    match library {
        Library::Matmul(product) => {
            let call = MatmulCall::new(product, slots, isa, pool.clone())?;
            // SAFETY: the slots hold the operands, by the caller's promise; the call is shared read-only.
            Ok(unsafe { Call::new("run_matmul", run_matmul, call) })
        }
        Library::ScatterAdd(scatter) if scatter.dtype != DType::Bool => {
            let call = ScatterAddCall { scatter: scatter.clone(), slots };
            // SAFETY: as above.
            Ok(unsafe { Call::new("run_scatter_add", run_scatter_add, call) })
        }
        Library::ScatterAdd(scatter) => Err(unsupported("scatter_add", scatter.dtype)),
    }
}

fn unsupported(op: &str, dtype: DType) -> Error {
    Error::new(ErrorKind::Unsupported { op: op.into(), device: "cpu".into(), detail: format!("dtype {dtype}") })
}

/// A matmul with any number of batch axes: the inner ones merged into one, a walk over the others.
struct MatmulCall {
    product: Matmul,
    /// Lengths and strides (of a, b, c) of the outer batch axes, outermost first.
    outer: Vec<(usize, [isize; 3])>,
    /// Elements before the first one of each operand.
    offsets: [isize; 3],
    slots: [u32; 3],
    isa: matmul::Isa,
    pool: Arc<Pool>,
}

impl MatmulCall {
    fn new(call: &library::Matmul, slots: [u32; 3], isa: Isa, pool: Arc<Pool>) -> Result<MatmulCall> {
        if call.dtype != DType::F32 {
            return Err(unsupported("matmul", call.dtype));
        }
        let operands = [&call.a, &call.b, &call.c];
        let mut axes: Vec<(usize, [isize; 3])> = Vec::new();
        for (axis, &len) in call.batch.iter().enumerate() {
            let strides = operands.map(|o| o.batch[axis] as isize);
            match axes.last_mut() {
                _ if len == 1 => {}
                // Evenly spaced with the axis before: one axis.
                Some((outer, before)) if (0..3).all(|o| before[o] == strides[o] * len as isize) => {
                    *outer *= len;
                    *before = strides;
                }
                _ => axes.push((len, strides)),
            }
        }
        let isa = match isa {
            Isa::Avx512 => matmul::Isa::Avx512,
            Isa::Avx2 => matmul::Isa::Avx2,
            Isa::Portable => matmul::Isa::Portable,
        };
        let (batch, step) = axes.pop().unwrap_or((1, [0; 3]));
        let strides =
            |o: usize| Strides { batch: step[o], row: operands[o].row as isize, col: operands[o].col as isize };
        let (a, b, c) = (strides(0), strides(1), strides(2));
        let product = Matmul { batch, m: call.m, k: call.k, n: call.n, a, b, c };
        Ok(MatmulCall { product, outer: axes, offsets: operands.map(|o| o.offset as isize), slots, isa, pool })
    }
}

unsafe extern "C" fn run_matmul(call: *const MatmulCall, slots: *const *mut u8, _params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot.
    let (call, base) = unsafe {
        let call = &*call;
        (call, call.slots.map(|s| (*slots.add(s as usize)).cast::<f32>()))
    };
    let outer: usize = call.outer.iter().map(|&(len, _)| len).product();
    for index in 0..outer {
        let mut at = call.offsets;
        let mut left = index;
        for &(len, strides) in call.outer.iter().rev() {
            for (at, stride) in at.iter_mut().zip(strides) {
                *at += (left % len) as isize * stride;
            }
            left /= len;
        }
        let [a, b, c] = [0, 1, 2].map(|o| base[o].wrapping_offset(at[o]));
        // SAFETY: a checked plan's operands lie within their slots, and the output apart from the others.
        unsafe { call.product.run(call.isa, &call.pool, a, b, c) };
    }
    0
}

struct ScatterAddCall {
    scatter: ScatterAdd,
    slots: [u32; 3],
}

unsafe extern "C" fn run_scatter_add(call: *const ScatterAddCall, slots: *const *mut u8, _params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot;
    // a checked plan's operands lie within their slots, the output apart from the others.
    unsafe {
        let call = &*call;
        let [index, src, out] = call.slots.map(|s| *slots.add(s as usize));
        let s = &call.scatter;
        let flag = match s.dtype {
            DType::I64 => scatter_add::<i64>(s, index.cast(), src.cast(), out.cast(), i64::wrapping_add),
            _ => scatter_add::<f32>(s, index.cast(), src.cast(), out.cast(), |a, b| a + b),
        };
        flag as u32
    }
}

/// Returns whether an index was out of range.
///
/// # Safety
/// `index`, `src` and `out` must be valid for the elements that the strides name, `out` for writing and apart.
unsafe fn scatter_add<T: Copy + Default>(
    s: &ScatterAdd,
    index: *const i64,
    src: *const T,
    out: *mut T,
    add: impl Fn(T, T) -> T,
) -> bool {
    let mut flag = false;
    // SAFETY: every element is named by the strides or lies in the contiguous output (indices are clamped).
    unsafe {
        for i in 0..s.outer * s.len * s.inner {
            out.add(i).write(T::default());
        }
        if s.len == 0 {
            return s.outer * s.count * s.inner > 0;
        }
        for o in 0..s.outer {
            for j in 0..s.count {
                let index = index.offset(o as isize * s.index[0] as isize + j as isize * s.index[1] as isize);
                let src = src.offset(o as isize * s.src[0] as isize + j as isize * s.src[1] as isize);
                let row = |at: i64| out.add((o * s.len + at.clamp(0, s.len as i64 - 1) as usize) * s.inner);
                if s.index[2] == 0 && s.inner > 0 {
                    // One index for the whole row (an embedding's gradient).
                    let at = *index;
                    flag |= !(0..s.len as i64).contains(&at);
                    let to = row(at);
                    for i in 0..s.inner {
                        *to.add(i) = add(*to.add(i), *src.offset(i as isize * s.src[2] as isize));
                    }
                } else {
                    for i in 0..s.inner {
                        let at = *index.offset(i as isize * s.index[2] as isize);
                        flag |= !(0..s.len as i64).contains(&at);
                        let to = row(at).add(i);
                        *to = add(*to, *src.offset(i as isize * s.src[2] as isize));
                    }
                }
            }
        }
    }
    flag
}
