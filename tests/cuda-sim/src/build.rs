//! Builds the stand-ins with the machine's C++ compiler, into a folder that processes share, and loads them.

use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

/// What to leave out, to see how a user of the driver copes.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Functions that the libraries shall lack.
    pub without: Vec<String>,
    /// No libcuda.
    pub no_cuda: bool,
    /// No libnvrtc.
    pub no_nvrtc: bool,
    /// No libcublasLt.
    pub no_cublaslt: bool,
}

/// Why the simulated driver could not be installed.
#[derive(Clone, Debug)]
pub enum Missing {
    /// No C++ compiler answers: `$CXX`, `g++` and `c++` were tried.
    Compiler,
    /// A compiler is there but failed; its messages.
    Build(String),
    /// Another choice was made in this process before.
    Installed,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missing::Compiler => write!(
                f,
                "the simulated CUDA driver needs GNU C++ 10 or newer: install g++, or set CXX to its path \
                 (tried $CXX, g++ and c++)"
            ),
            Missing::Build(log) => write!(f, "the simulated CUDA driver does not build: {log}"),
            Missing::Installed => write!(f, "the simulated CUDA driver was installed before, with other options"),
        }
    }
}

impl std::error::Error for Missing {}

const CORE: &[(&str, &str)] = &[
    ("state.cpp", include_str!("../cpp/state.cpp")),
    ("memory.cpp", include_str!("../cpp/memory.cpp")),
    ("queue.cpp", include_str!("../cpp/queue.cpp")),
    ("fibers.cpp", include_str!("../cpp/fibers.cpp")),
    ("program.cpp", include_str!("../cpp/program.cpp")),
    ("compile.cpp", include_str!("../cpp/compile.cpp")),
    ("graph.cpp", include_str!("../cpp/graph.cpp")),
];
const CUDA: &[(&str, &str)] = &[
    ("cuda_device.cpp", include_str!("../cpp/cuda_device.cpp")),
    ("cuda_memory.cpp", include_str!("../cpp/cuda_memory.cpp")),
    ("cuda_stream.cpp", include_str!("../cpp/cuda_stream.cpp")),
    ("cuda_launch.cpp", include_str!("../cpp/cuda_launch.cpp")),
    ("cuda_graph.cpp", include_str!("../cpp/cuda_graph.cpp")),
];
const NVRTC: &[(&str, &str)] = &[("nvrtc.cpp", include_str!("../cpp/nvrtc.cpp"))];
const CUBLASLT: &[(&str, &str)] =
    &[("cublaslt.cpp", include_str!("../cpp/cublaslt.cpp")), ("gemm.cpp", include_str!("../cpp/gemm.cpp"))];
const HEADERS: &[(&str, &str)] = &[
    ("sim.h", include_str!("../cpp/sim.h")),
    ("cuda_launch.h", include_str!("../cpp/cuda_launch.h")),
    ("gemm.h", include_str!("../cpp/gemm.h")),
];
const DEVICE: &str = include_str!("../cpp/device.h");

const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O2",
    "-ffp-contract=fast",
    "-march=native",
    "-shared",
    "-fPIC",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-w",
];

static CORE_HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CHOICE: Mutex<Option<String>> = Mutex::new(None);

/// A function of the core library; null before [`install`].
pub(crate) fn core_symbol(name: &str) -> *mut c_void {
    let handle = CORE_HANDLE.load(Ordering::Acquire);
    let name = CString::new(name).unwrap();
    // SAFETY: the handle came from dlopen and is never closed; the name ends in NUL.
    if handle.is_null() { std::ptr::null_mut() } else { unsafe { libc::dlsym(handle, name.as_ptr()) } }
}

/// Builds and loads the stand-ins; again in the same process: nothing more to do.
///
/// Honours `STEPGRAPH_SIM_NVRTC`, the path of a real libnvrtc that shall check each source too, and
/// `STEPGRAPH_SIM_CACHE`, the folder to build in.
///
/// # Errors
/// Without a C++ compiler; if building fails.
pub fn install() -> Result<(), Missing> {
    install_with(&Options::default())
}

/// [`install`] with some functions or libraries lacking.
///
/// # Errors
/// As for [`install`], and if other options were chosen before in this process.
pub fn install_with(options: &Options) -> Result<(), Missing> {
    let mut choice = CHOICE.lock();
    let asked = format!("{options:?}");
    if let Some(made) = &*choice {
        return if *made == asked { Ok(()) } else { Err(Missing::Installed) };
    }
    let (compiler, version) = find_compiler().ok_or(Missing::Compiler)?;
    let failed = |e: std::io::Error| Missing::Build(format!("{}: {e}", cache_root().display()));
    let root = cache_root().join(fingerprint(&[&compiler, &version, &processor()]));
    make_private(&cache_root()).map_err(failed)?;
    // What compiled kernels depend on.
    let kernels = [DEVICE, include_str!("../cpp/compile.cpp"), include_str!("../cpp/program.cpp")];
    let cache = root.join(format!("kernels-{}", fingerprint(&kernels)));
    fs::create_dir_all(&cache).map_err(failed)?;
    let objects: Vec<String> = sources().iter().map(|(_, text)| object_name(text)).collect();
    let key: Vec<&str> = objects.iter().map(String::as_str).chain([asked.as_str()]).collect();
    let folder = root.join(format!("lib-{}", fingerprint(&key)));
    if !folder.exists() || !cache.join("device.h").exists() {
        let _turn = Turn::take(&root).map_err(failed)?;
        put(&cache.join("device.h"), DEVICE).map_err(failed)?;
        fill(&folder, |folder| {
            build_objects(&root, folder, &compiler)?;
            link(folder, &root, &compiler, options)
        })?;
    }
    let core = open(&folder.join("libcusim.so"))?;
    CORE_HANDLE.store(core, Ordering::Release);
    crate::control::set_path("cache", &cache.to_string_lossy());
    crate::control::set_path("compiler", &compiler);
    for (name, left_out) in
        [("libcuda.so", options.no_cuda), ("libnvrtc.so", options.no_nvrtc), ("libcublasLt.so", options.no_cublaslt)]
    {
        if !left_out {
            open(&folder.join(name))?;
        }
    }
    if let Ok(path) = std::env::var("STEPGRAPH_SIM_NVRTC") {
        crate::control::real_nvrtc(&path);
    }
    *choice = Some(asked);
    Ok(())
}

fn open(path: &Path) -> Result<*mut c_void, Missing> {
    let text = CString::new(path.to_string_lossy().as_bytes()).unwrap();
    // SAFETY: the path ends in NUL; the libraries' initialisers only build tables.
    let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: after a failure dlerror gives a text that ends in NUL, valid until the next call.
        let why = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
        return Err(Missing::Build(why.to_string_lossy().into_owned()));
    }
    Ok(handle)
}

/// Holds other processes off while one builds; ends when dropped.
struct Turn(#[allow(dead_code)] fs::File);

impl Turn {
    fn take(folder: &Path) -> std::io::Result<Turn> {
        let file = fs::File::create(folder.join("lock"))?;
        file.lock()?;
        Ok(Turn(file))
    }
}

/// Runs commands, as many at once as there are processors.
fn run_all(commands: Vec<Command>) -> Result<(), Missing> {
    let failed = |e: std::io::Error| Missing::Build(e.to_string());
    let most = std::thread::available_parallelism().map_or(2, usize::from);
    let mut waiting = commands.into_iter();
    let mut running = std::collections::VecDeque::new();
    loop {
        while running.len() < most {
            let Some(mut command) = waiting.next() else { break };
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            running.push_back(command.spawn().map_err(failed)?);
        }
        let Some(child) = running.pop_front() else { return Ok(()) };
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            return Err(Missing::Build(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
    }
}

/// Fills a folder that appears when it is complete.
fn fill(folder: &Path, work: impl FnOnce(&Path) -> Result<(), Missing>) -> Result<(), Missing> {
    let failed = |e: std::io::Error| Missing::Build(format!("{}: {e}", folder.display()));
    if folder.exists() {
        return Ok(());
    }
    let part = folder.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).map_err(failed)?;
    work(&part)?;
    fs::rename(&part, folder).map_err(failed)
}

fn sources() -> Vec<(&'static str, &'static str)> {
    [CORE, CUDA, NVRTC, CUBLASLT].concat()
}

/// Objects are kept by content, so a change compiles only what it touches, whatever is left out when linking.
fn object_name(text: &str) -> String {
    let headers = HEADERS.iter().map(|(_, text)| *text);
    let parts: Vec<&str> = headers.chain(FLAGS.iter().copied()).chain([text]).collect();
    format!("{}.o", fingerprint(&parts))
}

fn build_objects(root: &Path, work: &Path, compiler: &str) -> Result<(), Missing> {
    let failed = |e: std::io::Error| Missing::Build(e.to_string());
    for (name, text) in sources().iter().chain(HEADERS) {
        fs::write(work.join(name), text).map_err(failed)?;
    }
    let missing: Vec<_> = sources().into_iter().filter(|(_, text)| !root.join(object_name(text)).exists()).collect();
    let commands = missing.iter().map(|(name, _)| {
        let mut command = Command::new(compiler);
        command.current_dir(work).args(FLAGS).args(["-c", name]);
        command
    });
    run_all(commands.collect())?;
    for (name, text) in missing {
        fs::rename(work.join(name).with_extension("o"), root.join(object_name(text))).map_err(failed)?;
    }
    Ok(())
}

fn link(folder: &Path, root: &Path, compiler: &str, options: &Options) -> Result<(), Missing> {
    let hidden: String = options.without.iter().map(|name| format!("{name};")).collect();
    let script =
        if hidden.is_empty() { "{ global: *; };".into() } else { format!("{{ global: *; local: {hidden} }};") };
    fs::write(folder.join("exports"), script).map_err(|e| Missing::Build(e.to_string()))?;
    let libraries = [("libcusim.so", CORE), ("libcuda.so", CUDA), ("libnvrtc.so", NVRTC), ("libcublasLt.so", CUBLASLT)];
    let commands = libraries.map(|(library, sources)| {
        let mut command = Command::new(compiler);
        command.current_dir(folder).args(["-shared", "-o", library, "-Wl,--version-script=exports"]);
        command.args(sources.iter().map(|(_, text)| root.join(object_name(text))));
        command.args([&format!("-Wl,-soname,{library}"), "-ldl", "-lpthread"]);
        command
    });
    run_all(commands.into())
}

fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let part = path.with_extension(format!("part{}", std::process::id()));
    fs::write(&part, text)?;
    fs::rename(part, path)
}

fn find_compiler() -> Option<(String, String)> {
    let own = std::env::var("CXX").ok();
    let names = own.iter().map(String::as_str).chain(["g++", "c++"]);
    for name in names {
        let Ok(output) = Command::new(name).arg("--version").output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The sources use what GNU C++ alone has.
        if output.status.success() && (text.contains("Free Software Foundation")) {
            return Some((name.to_string(), text));
        }
    }
    None
}

/// Code for one processor does not run on every other.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("flags") || l.starts_with("Features") || l.starts_with("model"))
        .collect();
    lines.dedup();
    lines.sort();
    lines.dedup();
    lines.join("\n")
}

/// One folder for all that this user builds: checkouts share what is equal.
fn cache_root() -> PathBuf {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let named = std::env::var_os("STEPGRAPH_SIM_CACHE").map(PathBuf::from);
    named.unwrap_or_else(|| std::env::temp_dir().join(format!("cuda-sim-{user}")))
}

/// Nobody else may write what is loaded from here.
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::metadata(folder)?;
    // SAFETY: geteuid has no preconditions.
    if found.uid() != unsafe { libc::geteuid() } || found.mode() & 0o022 != 0 {
        return Err(std::io::Error::other("the folder is another user's, or others may write to it"));
    }
    Ok(())
}

fn fingerprint(parts: &[&str]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}
