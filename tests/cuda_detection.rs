//! Which CUDA device there is, where libraries, symbols or devices lack, and what users are told then.
//!
//! What is loaded is one choice per process, so each case is this test binary run again. Needs a C++ compiler but for the first
//! case; without one, every other says that it was skipped.

use std::ffi::{CString, c_void};
use std::process::{Command, Output, Stdio};

use stepgraph::{CudaOptions, Device, ErrorKind, ForeignStream, Result, Tensor, Var, jit};

/// Names the case, in the processes that run one.
const CASE: &str = "STEPGRAPH_DETECTION_CASE";

/// A process of its own for a case.
fn process(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_case_of_this_process", "--exact", "--nocapture"]).env(CASE, case).env("STEPGRAPH_CACHE", "off");
    for name in ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "STEPGRAPH_CUDA_LIBS"] {
        command.env_remove(name);
    }
    command
}

/// Runs a case.
#[track_caller]
fn run(case: &str) {
    ended(case, process(case).output().unwrap());
}

#[track_caller]
fn ended(case: &str, output: Output) {
    let text = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned()).concat();
    for line in text.lines().filter(|l| l.contains("SKIPPED")) {
        println!("{line}");
    }
    assert!(output.status.success(), "{case}: {text}");
    assert!(text.contains("1 passed"), "{case} ran: {text}");
}

#[test]
fn the_case_of_this_process() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (_, run) = CASES.iter().find(|c| c.0 == case).expect("a case");
    run();
}

const CASES: &[(&str, fn())] = &[
    ("nothing", nothing),
    ("no driver", no_driver),
    ("no compiler", no_compiler),
    ("no cublaslt", no_cublaslt),
    ("old libraries", old_libraries),
    ("new compiler", new_compiler),
    ("no devices", no_devices),
    ("a driver that does not start", a_driver_that_does_not_start),
    ("a folder", a_folder),
    ("two devices", two_devices),
    ("a stream", a_stream),
    ("kernels are made", kernels_are_made),
    ("kernels are found", kernels_are_found),
];

#[test]
fn whatever_is_missing_is_named() {
    for (case, _) in &CASES[..8] {
        run(case);
    }
}

#[test]
fn libraries_in_a_folder_are_found() {
    if install(&cuda_sim::Options::default()) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.lines().find_map(|l| l.find('/').map(|i| &l[i..]).filter(|p| p.ends_with("/libcusim.so")));
        let folder = path.unwrap().trim_end_matches("/libcusim.so");
        ended("a folder", process("a folder").env("STEPGRAPH_CUDA_LIBS", folder).output().unwrap());
    }
}

#[test]
fn several_devices_and_a_stream_of_the_callers() {
    run("two devices");
    run("a stream");
}

/// Processes that start at the same time share the folder of compiled kernels; a later one compiles nothing.
#[test]
fn processes_share_compiled_kernels() {
    let folder = std::env::temp_dir().join(format!("stepgraph-detection-{}", std::process::id()));
    let kept = |case: &str| {
        let mut process = process(case);
        process.env("STEPGRAPH_CACHE", &folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        process.spawn().unwrap()
    };
    for child in [kept("kernels are made"), kept("kernels are made")] {
        ended("kernels are made", child.wait_with_output().unwrap());
    }
    ended("kernels are found", kept("kernels are found").wait_with_output().unwrap());
    let _ = std::fs::remove_dir_all(folder);
}

/// The simulated driver with these options; `false`, said aloud, where there is none.
fn install(options: &cuda_sim::Options) -> bool {
    match cuda_sim::install_with(options) {
        Ok(()) => true,
        Err(why @ cuda_sim::Missing::Compiler) => {
            println!("SKIPPED: no simulated CUDA driver: {why}");
            false
        }
        Err(why) => panic!("{why}"),
    }
}

/// Whether this machine has a library itself.
fn opens(name: &str) -> bool {
    let name = CString::new(name).unwrap();
    // SAFETY: the name ends in NUL; initialisers of NVIDIA's libraries and of the stand-ins may run at any time.
    let by_name = unsafe { !libc::dlopen(name.as_ptr(), libc::RTLD_LAZY).is_null() };
    by_name || std::path::Path::new("/usr/local/cuda/lib64").join(name.to_str().unwrap()).exists()
}

/// Whether any of these is a real one here, which would be found instead; said aloud.
fn real(names: &[&str]) -> bool {
    let found = names.iter().find(|n| opens(n));
    found.inspect(|n| println!("SKIPPED: this machine has a {n} of its own")).is_some()
}

const DRIVER: &[&str] = &["libcuda.so", "libcuda.so.1"];
const NVRTC: &[&str] = &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];
const CUBLASLT: &[&str] = &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"];

/// There is no device; the error has all these words, the best device is the CPU, and it computes.
#[track_caller]
fn unavailable(words: &[&str]) {
    for ordinal in [0, 0, 1] {
        let e = Device::cuda(ordinal).expect_err("no device");
        let ErrorKind::Unavailable { device, detail } = e.kind() else { panic!("{e}") };
        assert_eq!(*device, format!("cuda:{ordinal}"));
        for word in words {
            assert!(detail.contains(word), "`{word}` is not in: {detail}");
        }
    }
    let best = Device::best();
    assert_eq!(best.name(), "cpu");
    assert_eq!(Tensor::new([1.0f32, 2.0], &best).unwrap().mul(2.0).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0]);
}

fn nothing() {
    if !real(DRIVER) {
        unavailable(&["the NVIDIA driver's library (libcuda.so.1) was not found", "install the NVIDIA driver"]);
    }
}

fn no_driver() {
    if !real(DRIVER) && install(&cuda_sim::Options { no_cuda: true, ..Default::default() }) {
        unavailable(&["libcuda.so.1", "install the NVIDIA driver"]);
    }
}

fn no_compiler() {
    if !real(NVRTC) && install(&cuda_sim::Options { no_nvrtc: true, ..Default::default() }) {
        unavailable(&["NVRTC", "libnvrtc.so.13", "pip install nvidia-cuda-nvrtc", "STEPGRAPH_CUDA_LIBS"]);
    }
}

fn no_cublaslt() {
    if !real(CUBLASLT) && install(&cuda_sim::Options { no_cublaslt: true, ..Default::default() }) {
        unavailable(&["cuBLASLt", "libcublasLt.so.13", "pip install nvidia-cublas", "STEPGRAPH_CUDA_LIBS"]);
    }
}

fn old_libraries() {
    // The choice of tests/cuda-sim/tests/absent.rs, so that it is built once.
    let without = vec!["cuGraphUpload".into(), "nvrtcGetCUBIN".into()];
    if install(&cuda_sim::Options { without, no_cublaslt: true, ..Default::default() }) {
        unavailable(&["libcuda.so.1", "has no cuGraphUpload", "too old", "update"]);
    }
}

fn new_compiler() {
    if install(&cuda_sim::Options::default()) {
        cuda_sim::set_version(cuda_sim::Versioned::Driver, 12, 4);
        unavailable(&[
            "CUDA 12.4",
            "NVRTC",
            "13.0",
            "update the driver",
            "nvidia-cuda-nvrtc-cu12",
            "STEPGRAPH_CUDA_LIBS",
        ]);
        // Once it is mended, the device is there.
        cuda_sim::set_version(cuda_sim::Versioned::Nvrtc, 12, 1);
        assert_eq!(Device::best().name(), "cuda:0");
    }
}

fn no_devices() {
    if install(&cuda_sim::Options::default()) {
        cuda_sim::set_device_count(0);
        unavailable(&["no device"]);
        cuda_sim::set_device_count(2);
        for ordinal in [2, 7, u32::MAX] {
            let e = Device::cuda(ordinal).expect_err("no such device");
            assert!(e.to_string().contains("2 devices, numbered from 0"), "{e}");
        }
        assert_eq!(Device::cuda(1).unwrap().name(), "cuda:1");
    }
}

fn a_driver_that_does_not_start() {
    if install(&cuda_sim::Options::default()) {
        for (code, name) in [(100, "CUDA_ERROR_NO_DEVICE"), (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")] {
            // Each of the four attempts, the next one at a time.
            for _ in 0..4 {
                cuda_sim::fail("cuInit", 1, code);
            }
            unavailable(&["cuInit", name]);
        }
        assert_eq!(Device::best().name(), "cuda:0");
    }
}

fn a_folder() {
    let all = cuda_sim::Options { no_cuda: true, no_nvrtc: true, no_cublaslt: true, ..Default::default() };
    if !real(&[DRIVER, NVRTC, CUBLASLT].concat()) && install(&all) {
        let d = Device::cuda(0).unwrap();
        assert_eq!(Tensor::new([1.0f32, 2.0], &d).unwrap().mul(2.0).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0]);
        assert!(Device::best() == d);
    }
}

fn two_devices() {
    if !install(&cuda_sim::Options::default()) {
        return;
    }
    let (a, b) = (Device::cuda(0).unwrap(), Device::cuda(1).unwrap());
    assert!(a != b && a == Device::cuda(0).unwrap() && b == Device::cuda(1).unwrap());
    assert!(a != Device::cuda_with(&CudaOptions::default()).unwrap(), "a device of its own");
    assert_eq!((a.name(), b.name()), ("cuda:0", "cuda:1"));
    let x = Tensor::new([1.0f32, -2.0, 3.0], &a).unwrap();
    let y = x.to_device(&b).unwrap();
    assert!(y.device() == &b);
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, -2.0, 3.0]);
    let e = (&x + &y).expect_err("two devices");
    assert!(matches!(e.kind(), ErrorKind::Device { .. }) && e.to_string().contains("to_device"), "{e}");
    // A step lives on the one that it meets first; what it computes elsewhere is computed in its place.
    let w = Var::new(&x).unwrap();
    let mut step = jit::Step::new();
    for k in 0..5 {
        let (one, other) = (a.counts(), b.counts());
        let z = step
            .run(|| {
                let twice = w.get().mul(2.0)?;
                let there = y.mul(2.0)?.to_device(&a)?;
                w.set(&twice.sub(w.get())?.add(&there)?)?;
                w.get().sum(())
            })
            .unwrap();
        assert_eq!(z.item::<f32>().unwrap(), 2.0 + 4.0 * (k + 1) as f32);
        let (one, other) = (a.counts() - one, b.counts() - other);
        assert_eq!((other.launches, other.eager_kernels), (0, 1), "call {k}");
        assert_eq!(one.launches, (k > 0) as u64, "call {k}");
    }
    assert_eq!(w.get().to_vec::<f32>().unwrap(), [11.0, -22.0, 33.0]);
}

fn kernels_are_made() {
    if install(&cuda_sim::Options::default()) {
        let d = Device::cuda(0).unwrap();
        let w = Var::new(&Tensor::new([[0.5f32, 1.0], [-0.25, 2.0]], &d).unwrap()).unwrap();
        let v = Var::new(&w.get()).unwrap();
        let body = |w: &Var| -> Result<()> { w.set(&w.get().matmul(&w.get())?.sin()?.softmax(1)?) };
        let mut step = jit::Step::new();
        for _ in 0..4 {
            step.run(|| body(&w)).unwrap();
            body(&v).unwrap();
        }
        assert_eq!(w.get().to_vec::<f32>().unwrap(), v.get().to_vec::<f32>().unwrap());
    }
}

fn kernels_are_found() {
    kernels_are_made();
    let compiled = cuda_sim::counts().get("nvrtcCompileProgram").copied();
    assert_eq!(compiled, None, "they were on the disk");
}

/// A function of the simulated driver.
macro_rules! driver {
    ($name:ident($($arg:expr => $ty:ty),*)) => {{
        let at = cuda_sim::symbol(stringify!($name));
        assert!(!at.is_null(), "the simulated driver has {}", stringify!($name));
        // SAFETY: the function has this signature in every version of the driver's API.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> i32>(at)($($arg),*) }
    }};
}

fn a_stream() {
    if !install(&cuda_sim::Options::default()) {
        return;
    }
    let (mut context, mut stream): (*mut c_void, *mut c_void) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(driver!(cuInit(0 => u32)), 0);
    assert_eq!(driver!(cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => i32)), 0);
    assert_eq!(driver!(cuCtxSetCurrent(context => *mut c_void)), 0);
    assert_eq!(driver!(cuStreamCreate(&mut stream => *mut *mut c_void, 1 => u32)), 0);
    let streams = || cuda_sim::counts()["cuStreamCreate"];
    let before = streams();
    // SAFETY: it is a stream of the device's primary context, destroyed below, when all that was made with it is gone.
    let adopted = unsafe { ForeignStream::from_raw(stream) };
    let d = Device::cuda_with(&CudaOptions { stream: Some(adopted), ..CudaOptions::default() }).unwrap();
    assert_eq!(streams() - before, 1, "one for captures, none to work on");
    let body = |w: &Var| -> Result<()> { w.set(&w.get().matmul(&w.get())?.tanh()?) };
    let (w, v) = (Tensor::new([[0.5f32, 1.0], [-0.25, 2.0]], &d).unwrap(), Device::cuda(0).unwrap());
    let (w, v) = (Var::new(&w).unwrap(), Var::new(&w.to_device(&v).unwrap()).unwrap());
    let mut step = jit::Step::new();
    for _ in 0..4 {
        step.run(|| body(&w)).unwrap();
        body(&v).unwrap();
        assert_eq!(w.get().to_vec::<f32>().unwrap(), v.get().to_vec::<f32>().unwrap());
    }
    // Work on the stream is the caller's to wait for, too.
    step.run(|| body(&w)).unwrap();
    assert_eq!(driver!(cuStreamSynchronize(stream => *mut c_void)), 0);
    assert_eq!(driver!(cuStreamQuery(stream => *mut c_void)), 0);
    drop((step, w, d));
    assert_eq!(driver!(cuStreamDestroy_v2(stream => *mut c_void)), 0, "it was not destroyed");
}
