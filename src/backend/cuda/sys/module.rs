//! Compiling with NVRTC, loading modules, launching their functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use cudarc::driver::sys as cu;
use cudarc::nvrtc::sys as rtc;

use super::context::{Context, Stream};
use super::{Called, Failure, call, calls};

fn nvrtc(call: &'static str, status: rtc::nvrtcResult) -> Called<()> {
    calls::note(call, status as u32);
    if status == rtc::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(Failure { call, code: status as u32, name: format!("{status:?}") })
}

/// The version of NVRTC, `(13, 0)`.
pub fn nvrtc_version() -> Called<(u32, u32)> {
    let (mut major, mut minor) = (0 as c_int, 0 as c_int);
    // SAFETY: the symbols were found (`load::ready`), the pointers are to locals.
    unsafe { nvrtc("nvrtcVersion", rtc::nvrtcVersion(&mut major, &mut minor))? };
    Ok((major.max(0) as u32, minor.max(0) as u32))
}

/// Why a compilation failed.
#[derive(Clone, Debug)]
pub enum CompileFailure {
    /// The compiler refused the source; its log.
    Refused(String),
    /// A call failed.
    Call(Failure),
}

impl From<Failure> for CompileFailure {
    fn from(f: Failure) -> CompileFailure {
        CompileFailure::Call(f)
    }
}

struct Program(rtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`.
        let _ = unsafe { nvrtc("nvrtcDestroyProgram", rtc::nvrtcDestroyProgram(&mut self.0)) };
    }
}

impl Program {
    fn log(&self) -> Called<String> {
        let mut size = 0;
        // SAFETY: the program is alive, the pointer is to a local.
        unsafe { nvrtc("nvrtcGetProgramLogSize", rtc::nvrtcGetProgramLogSize(self.0, &mut size))? };
        let mut log = vec![0u8; size.max(1)];
        // SAFETY: the buffer is as long as the log.
        unsafe { nvrtc("nvrtcGetProgramLog", rtc::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()))? };
        Ok(CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().trim_end().to_string())
    }
}

/// Compiles CUDA C++ to a cubin for the architecture that `options` name.
pub fn compile(source: &str, options: &[String]) -> Result<Vec<u8>, CompileFailure> {
    let text =
        |s: &str| CString::new(s).map_err(|_| CompileFailure::Refused("the source holds a zero byte".to_string()));
    let source = text(source)?;
    let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut raw = null_mut();
    // SAFETY: the strings end in a zero and outlive the calls; there are no headers.
    unsafe {
        let created = rtc::nvrtcCreateProgram(&mut raw, source.as_ptr(), c"stepgraph.cu".as_ptr(), 0, null(), null());
        nvrtc("nvrtcCreateProgram", created)?;
    }
    let program = Program(raw);
    // SAFETY: the program is alive, `pointers` has as many entries as said.
    let status = unsafe { rtc::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    if status == rtc::nvrtcResult::NVRTC_ERROR_COMPILATION {
        calls::note("nvrtcCompileProgram", status as u32);
        return Err(CompileFailure::Refused(program.log()?));
    }
    nvrtc("nvrtcCompileProgram", status)?;
    let mut size = 0;
    // SAFETY: the program is alive, the pointer is to a local.
    unsafe { nvrtc("nvrtcGetCUBINSize", rtc::nvrtcGetCUBINSize(program.0, &mut size))? };
    let mut cubin = vec![0u8; size];
    // SAFETY: the buffer is as long as the image.
    unsafe { nvrtc("nvrtcGetCUBIN", rtc::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()))? };
    Ok(cubin)
}

/// A loaded image.
#[derive(Debug)]
pub struct Module {
    raw: cu::CUmodule,
    context: Arc<Context>,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Called<Arc<Module>> {
        let mut raw = null_mut();
        // SAFETY: the image is whole: the cache has verified it, or it just came from the compiler. The context is current.
        unsafe { call!(cuModuleLoadData(&mut raw, image.as_ptr().cast()))? };
        Ok(Arc::new(Module { raw, context: context.clone() }))
    }

    /// The kernel called `entry`, allowed `shared_bytes` of dynamic shared memory.
    pub fn function(self: &Arc<Module>, entry: &str, shared_bytes: u32) -> Called<Function> {
        let bad = || Failure { call: "cuModuleGetFunction", code: 500, name: "CUDA_ERROR_NOT_FOUND".to_string() };
        let name = CString::new(entry).map_err(|_| bad())?;
        let mut raw = null_mut();
        // SAFETY: the module is alive, the name ends in a zero.
        unsafe { call!(cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()))? };
        if shared_bytes > 48 << 10 {
            let attribute = cu::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is alive.
            unsafe { call!(cuFuncSetAttribute(raw, attribute, shared_bytes as c_int))? };
        }
        Ok(Function { raw, _module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: loaded in `load`; the callers keep it while work of its is under way.
        let _ = unsafe { call!(cuModuleUnload(self.raw)) };
    }
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Function {
    pub(super) raw: cu::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Thread blocks along x.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// Pointers to parameters that are 64-bit words or shorter (little-endian: their first bytes).
pub(super) fn pointers(args: &[u64]) -> smallvec::SmallVec<[*mut c_void; 16]> {
    args.iter().map(|a| (&raw const *a).cast_mut().cast()).collect()
}

impl Function {
    /// Enqueues a launch. `args` has one entry per parameter of the kernel, in its low bytes: the callers' knowledge of the
    /// source.
    pub fn launch(&self, grid: Grid, args: &[u64], stream: &Stream) -> Called<()> {
        let mut pointers = pointers(args);
        // SAFETY: the driver copies the parameters, as many and as long as the kernel's, from `args` during the call.
        unsafe {
            call!(cuLaunchKernel(
                self.raw,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                grid.shared_bytes,
                stream.raw,
                pointers.as_mut_ptr(),
                null_mut(),
            ))
        }
    }
}
