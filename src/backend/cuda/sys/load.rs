//! Finding the libraries and all of their symbols, before anything is called.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::base::config::config;

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Driver,
    Nvrtc,
    BlasLt,
}

/// Every symbol that this crate calls.
const DRIVER: &[&CStr] = &[
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetName",
    c"cuDeviceGetAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuCtxSetCurrent",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamSynchronize",
    c"cuStreamBeginCapture_v2",
    c"cuStreamEndCapture",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventSynchronize",
    c"cuEventQuery",
    c"cuEventElapsedTime",
    c"cuMemAllocAsync",
    c"cuMemFreeAsync",
    c"cuMemHostAlloc",
    c"cuMemFreeHost",
    c"cuMemHostGetDevicePointer_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyDtoDAsync_v2",
    c"cuMemsetD8Async",
    c"cuMemGetInfo_v2",
    c"cuDeviceGetDefaultMemPool",
    c"cuMemPoolSetAttribute",
    c"cuMemPoolTrimTo",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuModuleGetFunction",
    c"cuFuncSetAttribute",
    c"cuLaunchKernel",
    c"cuGraphCreate",
    c"cuGraphDestroy",
    c"cuGraphAddKernelNode_v2",
    c"cuGraphAddChildGraphNode",
    c"cuGraphAddEmptyNode",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphUpload",
    c"cuGraphLaunch",
    c"cuGraphExecDestroy",
];

const NVRTC: &[&CStr] = &[
    c"nvrtcVersion",
    c"nvrtcCreateProgram",
    c"nvrtcCompileProgram",
    c"nvrtcDestroyProgram",
    c"nvrtcGetCUBINSize",
    c"nvrtcGetCUBIN",
    c"nvrtcGetProgramLogSize",
    c"nvrtcGetProgramLog",
];

const BLAS_LT: &[&CStr] = &[
    c"cublasLtCreate",
    c"cublasLtDestroy",
    c"cublasLtMatmulDescCreate",
    c"cublasLtMatmulDescDestroy",
    c"cublasLtMatmulDescSetAttribute",
    c"cublasLtMatrixLayoutCreate",
    c"cublasLtMatrixLayoutDestroy",
    c"cublasLtMatrixLayoutSetAttribute",
    c"cublasLtMatmulPreferenceCreate",
    c"cublasLtMatmulPreferenceDestroy",
    c"cublasLtMatmulPreferenceSetAttribute",
    c"cublasLtMatmulAlgoGetHeuristic",
    c"cublasLtMatmul",
];

impl Library {
    fn symbols(self) -> &'static [&'static CStr] {
        match self {
            Library::Driver => DRIVER,
            Library::Nvrtc => NVRTC,
            Library::BlasLt => BLAS_LT,
        }
    }

    /// File names to try, in this order: those under which cudarc opens it (which panics if it finds none), given the
    /// version of CUDA that its bindings are for.
    fn names(self) -> Vec<String> {
        let stem = match self {
            Library::Driver => return vec!["libcuda.so".to_string(), "libcuda.so.1".to_string()],
            Library::Nvrtc => "libnvrtc.so",
            Library::BlasLt => "libcublasLt.so",
        };
        let major = cudarc::driver::sys::CUDA_VERSION / 1000;
        let mut names = vec![stem.to_string(), format!("{stem}.{major}")];
        if major != 12 {
            names.push(format!("{stem}.12"));
        }
        names
    }

    fn what(self) -> &'static str {
        match self {
            Library::Driver => "the NVIDIA driver's library (libcuda.so.1)",
            Library::Nvrtc => "NVRTC, the run-time compiler (libnvrtc.so.13 or .12)",
            Library::BlasLt => "cuBLASLt (libcublasLt.so.13 or .12)",
        }
    }

    fn install(self) -> &'static str {
        match self {
            Library::Driver => "install the NVIDIA driver",
            Library::Nvrtc => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` (for a 12.x driver: nvidia-cuda-nvrtc-cu12) \
                 and name its folder in STEPGRAPH_CUDA_LIBS"
            }
            Library::BlasLt => {
                "install the CUDA toolkit, or `pip install nvidia-cublas` (for a 12.x driver: nvidia-cublas-cu12) and name \
                 its folder in STEPGRAPH_CUDA_LIBS"
            }
        }
    }
}

/// An opened library, never closed: work of its may be under way whenever this process ends.
struct Handle(*mut c_void);

// SAFETY: a handle is only used to look symbols up, which may be done on any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    fn open(name: &Path) -> Option<Handle> {
        let name = CString::new(name.as_os_str().as_encoded_bytes()).ok()?;
        // SAFETY: a library's initialisers run, which is what using CUDA means. Its symbols are made global, so that a
        // library found by path is found by name afterwards.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        (!handle.is_null()).then_some(Handle(handle))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// Folders that may hold NVIDIA's libraries where the loader does not look: named ones, toolkits', Python packages'.
fn folders() -> Vec<PathBuf> {
    let mut out = config().cuda_libs.clone();
    for root in config().cuda_homes.iter().map(PathBuf::as_path).chain([Path::new("/usr/local/cuda")]) {
        out.push(root.join("lib64"));
        out.push(root.join("lib"));
    }
    // site-packages/nvidia/*/lib, as NVIDIA's wheels unpack.
    let list = |p: PathBuf| std::fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path());
    for env in &config().python_envs {
        for python in list(env.join("lib")) {
            out.extend(list(python.join("site-packages/nvidia")).map(|package| package.join("lib")));
        }
    }
    out
}

/// Opens a library and looks up all of its symbols; the error says what is missing and what to install.
fn open(library: Library) -> Result<Handle, String> {
    let names = library.names();
    let by_name = names.iter().find_map(|n| Handle::open(Path::new(n)));
    let handle = by_name.or_else(|| {
        folders().iter().find_map(|folder| {
            // NVRTC opens its built-in functions by name: they must be loaded already when the loader does not know the folder.
            let built_in = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so");
            if library == Library::Nvrtc {
                let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
                for e in files.filter(built_in) {
                    let _ = Handle::open(&e.path());
                }
            }
            names.iter().find_map(|n| Handle::open(&folder.join(n)))
        })
    });
    let handle = handle.ok_or_else(|| format!("{} was not found; {}", library.what(), library.install()))?;
    let missing: Vec<String> = library
        .symbols()
        .iter()
        .filter(|s| handle.symbol(s).is_none())
        .map(|s| s.to_string_lossy().into_owned())
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(format!("{} has no {missing}: it is too old; update it (CUDA 12.0 or newer)", library.what()));
    }
    Ok(handle)
}

struct Loaded {
    driver: Handle,
    nvrtc: Handle,
    _blas_lt: Handle,
}

fn loaded() -> &'static Result<Loaded, String> {
    static LOADED: OnceLock<Result<Loaded, String>> = OnceLock::new();
    LOADED.get_or_init(|| {
        Ok(Loaded { driver: open(Library::Driver)?, nvrtc: open(Library::Nvrtc)?, _blas_lt: open(Library::BlasLt)? })
    })
}

/// Whether all three libraries are here with all their symbols; looked up once in a process. The error is for users.
pub fn ready() -> Result<(), String> {
    loaded().as_ref().map(drop).map_err(Clone::clone)
}

/// The file that NVRTC was loaded from.
pub fn nvrtc_path() -> String {
    let symbol = loaded().as_ref().ok().and_then(|l| l.nvrtc.symbol(c"nvrtcVersion"));
    let Some(symbol) = symbol else { return String::new() };
    // SAFETY: zeros are valid for every field; the path that the loader gives lives as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(symbol, &mut info) == 0 || info.dli_fname.is_null() {
            return String::new();
        }
        CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned()
    }
}

/// A driver symbol that cudarc does not bind in every version of its bindings.
pub(super) fn driver_symbol(name: &CStr) -> Option<*mut c_void> {
    loaded().as_ref().ok()?.driver.symbol(name)
}
