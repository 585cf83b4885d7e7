//! The driver's functions as tests call them, through the C ABI.
#![allow(dead_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

pub type Ptr = *mut c_void;

/// Calls a simulated function: `call!(cuInit(0u32))`.
#[macro_export]
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let at = cuda_sim::symbol(stringify!($name));
        assert!(!at.is_null(), "{} is not simulated", stringify!($name));
        #[allow(clippy::macro_metavars_in_unsafe)]
        // SAFETY: arguments are of the types of the function's declaration in CUDA's headers.
        unsafe { abi::Args(at).call(($($arg,)*)) }
    }};
}

pub struct Args(pub Ptr);

macro_rules! callable {
    ($($trait:ident: $($a:ident),*;)*) => {$(
        impl<$($a),*> Callable<($($a,)*)> for Args {
            #[allow(non_snake_case)]
            unsafe fn call(&self, ($($a,)*): ($($a,)*)) -> i32 {
                // SAFETY: the caller's.
                unsafe { std::mem::transmute::<Ptr, unsafe extern "C" fn($($a),*) -> i32>(self.0)($($a),*) }
            }
        }
    )*};
}
pub trait Callable<A> {
    /// # Safety
    /// The address is that of a function with these parameters.
    unsafe fn call(&self, args: A) -> i32;
}
callable! {
    N0: ;
    N1: A;
    N2: A, B;
    N3: A, B, C;
    N4: A, B, C, D;
    N5: A, B, C, D, E;
    N6: A, B, C, D, E, F;
    N7: A, B, C, D, E, F, G;
    N10: A, B, C, D, E, F, G, H, I, J;
    N11: A, B, C, D, E, F, G, H, I, J, K;
    N16: A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P;
}

/// The simulated driver, alone: tests of one process take turns. None, said so: no C++ compiler.
pub fn sim() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    match cuda_sim::install() {
        Ok(()) => {}
        Err(cuda_sim::Missing::Compiler) => {
            eprintln!("skipped: {}", cuda_sim::Missing::Compiler);
            return None;
        }
        Err(other) => panic!("{other}"),
    }
    cuda_sim::clear_failures();
    cuda_sim::reset_device();
    cuda_sim::diagnostics();
    cuda_sim::set_order_seed(1);
    cuda_sim::reverse_fibers(false);
    cuda_sim::set_batching(false);
    cuda_sim::set_memory_limit(8 << 30);
    cuda_sim::drop_edge(-1);
    cuda_sim::real_nvrtc(&std::env::var("STEPGRAPH_SIM_NVRTC").unwrap_or_default());
    assert_eq!(call!(cuInit(0u32)), 0);
    let mut ctx: Ptr = null_mut();
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut ctx, 0i32)), 0);
    assert_eq!(call!(cuCtxSetCurrent(ctx)), 0);
    Some(turn)
}

use crate::abi;

/// What NVRTC makes of a source: the cubin, or code and log.
pub fn cubin(source: &str, options: &[&str]) -> Result<Vec<u8>, (i32, String)> {
    let mut program: Ptr = null_mut();
    let text = CString::new(source).unwrap();
    let none: *const Ptr = std::ptr::null();
    assert_eq!(call!(nvrtcCreateProgram(&mut program, text.as_ptr(), c"test.cu".as_ptr(), 0i32, none, none)), 0);
    let options: Vec<CString> =
        ["--gpu-architecture=sm_90"].iter().chain(options).map(|o| CString::new(*o).unwrap()).collect();
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let code = call!(nvrtcCompileProgram(program, options.len() as i32, options.as_ptr()));
    let mut bytes = 0usize;
    let out = if code == 0 {
        assert_eq!(call!(nvrtcGetCUBINSize(program, &mut bytes)), 0);
        let mut image = vec![0u8; bytes];
        assert_eq!(call!(nvrtcGetCUBIN(program, image.as_mut_ptr())), 0);
        Ok(image)
    } else {
        assert_eq!(call!(nvrtcGetProgramLogSize(program, &mut bytes)), 0);
        let mut log = vec![0u8; bytes];
        assert_eq!(call!(nvrtcGetProgramLog(program, log.as_mut_ptr())), 0);
        Err((code, CStr::from_bytes_with_nul(&log).unwrap().to_string_lossy().into_owned()))
    };
    assert_eq!(call!(nvrtcDestroyProgram(&mut program)), 0);
    out
}

/// A loaded module.
pub struct Module(pub Ptr);

impl Module {
    pub fn new(source: &str) -> Module {
        let image = cubin(source, &["--fmad=false"]).unwrap_or_else(|(code, log)| panic!("{code}: {log}"));
        let mut module: Ptr = null_mut();
        assert_eq!(call!(cuModuleLoadData(&mut module, image.as_ptr())), 0);
        Module(module)
    }

    pub fn function(&self, name: &str) -> Ptr {
        let mut function: Ptr = null_mut();
        let name = CString::new(name).unwrap();
        assert_eq!(call!(cuModuleGetFunction(&mut function, self.0, name.as_ptr())), 0);
        function
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        call!(cuModuleUnload(self.0));
    }
}

/// Pointers to parameters, as a launch takes them.
#[macro_export]
macro_rules! params {
    ($($p:expr),* $(,)?) => { [$((&raw const $p).cast_mut().cast::<std::ffi::c_void>()),*] };
}

/// A launch along x; its code.
pub fn launch(function: Ptr, grid: u32, block: u32, shared: u32, stream: Ptr, params: &mut [Ptr]) -> i32 {
    let extra: *mut Ptr = null_mut();
    call!(cuLaunchKernel(function, grid, 1u32, 1u32, block, 1u32, 1u32, shared, stream, params.as_mut_ptr(), extra))
}

/// Device memory with these values.
pub struct Buffer {
    pub at: u64,
    pub bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Buffer {
        let mut at = 0u64;
        assert_eq!(call!(cuMemAlloc_v2(&mut at, bytes)), 0);
        Buffer { at, bytes }
    }

    pub fn of<T: Copy>(values: &[T]) -> Buffer {
        let buffer = Buffer::new(std::mem::size_of_val(values));
        assert_eq!(call!(cuMemcpyHtoD_v2(buffer.at, values.as_ptr(), buffer.bytes)), 0);
        buffer
    }

    pub fn read<T: Copy + Default>(&self) -> Vec<T> {
        let mut out = vec![T::default(); self.bytes / size_of::<T>()];
        assert_eq!(call!(cuMemcpyDtoH_v2(out.as_mut_ptr(), self.at, self.bytes)), 0, "{}", cuda_sim::diagnostics());
        out
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        call!(cuMemFree_v2(self.at));
    }
}

/// A stream that the legacy stream does not wait for (or that it does).
pub fn stream(blocking: bool) -> Ptr {
    let mut stream: Ptr = null_mut();
    assert_eq!(call!(cuStreamCreate(&mut stream, u32::from(!blocking))), 0);
    stream
}
