//! What tests ask of the simulated driver, and see of it. Before [`crate::install`] these do nothing.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};

use crate::build::core_symbol;

/// Calls a function of the core library, if it is loaded.
macro_rules! core {
    ($name:literal, fn($($ty:ty),*) $(-> $ret:ty)?, ($($arg:expr),*)) => {{
        let at = core_symbol($name);
        // SAFETY: the core library was built from sources that define the function with this signature.
        (!at.is_null()).then(|| unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) $(-> $ret)?>(at)($($arg),*)
        })
    }};
}

fn text_of(given: Option<*mut c_char>) -> String {
    let Some(at) = given.filter(|at| !at.is_null()) else { return String::new() };
    // SAFETY: the core library gives a text that ends in NUL, ours until freed.
    let text = unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned();
    core!("cusim_free", fn(*mut c_char), (at));
    text
}

pub(crate) fn set_path(what: &str, path: &str) {
    let (what, path) = (CString::new(what).unwrap(), CString::new(path).unwrap());
    core!("cusim_set_path", fn(*const c_char, *const c_char), (what.as_ptr(), path.as_ptr()));
}

/// How often each function was called since [`reset_counts`]; those that were not are not listed.
pub fn counts() -> BTreeMap<String, u64> {
    let text = text_of(core!("cusim_counts", fn() -> *mut c_char, ()));
    text.lines().filter_map(|l| l.rsplit_once(' ')).map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect()
}

/// Starts counting anew.
pub fn reset_counts() {
    core!("cusim_reset_counts", fn(), ());
}

/// The `nth` next call (1: the next) of a function does nothing and returns `code`. The codes 700, 716 and 719 stay: all
/// later calls on the context return them, until [`reset_device`].
pub fn fail(call: &str, nth: u64, code: i32) {
    assert!(crate::calls().contains(&call), "no simulated function is called {call}");
    assert!(nth > 0, "calls are counted from 1");
    let call = CString::new(call).unwrap();
    core!("cusim_fail", fn(*const c_char, u64, c_int), (call.as_ptr(), nth, code));
}

/// Forgets the failures that were asked for and have not come yet.
pub fn clear_failures() {
    core!("cusim_clear_failures", fn(), ());
}

/// What exists and was not given back: `memory 0x7f.. 1024 bytes`, `stream ..`, `module ..`.
pub fn outstanding() -> Vec<String> {
    text_of(core!("cusim_outstanding", fn() -> *mut c_char, ())).lines().map(String::from).collect()
}

/// What the simulated driver had to say about errors since the last time it was asked.
pub fn diagnostics() -> String {
    text_of(core!("cusim_diagnostics", fn() -> *mut c_char, ()))
}

/// Seeds the order in which unordered work runs.
pub fn set_order_seed(seed: u64) {
    core!("cusim_set_order_seed", fn(u64), (seed));
}

/// Runs threads and blocks in reverse order, which shows races.
pub fn reverse_fibers(on: bool) {
    core!("cusim_reverse_fibers", fn(c_int), (on.into()));
}

/// The memory of each device, in bytes (at first 8 GiB).
pub fn set_memory_limit(bytes: u64) {
    core!("cusim_set_memory_limit", fn(u64), (bytes));
}

/// Whether programs are only queued when compiled, and compiled together when the first of them is needed. Then errors
/// that a C++ compiler finds show at the first launch (code 300, log in [`diagnostics`]).
pub fn set_batching(on: bool) {
    core!("cusim_set_batching", fn(c_int), (on.into()));
}

/// What has a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Versioned {
    /// `cuDriverGetVersion` (at first 13.0).
    Driver,
    /// `nvrtcVersion` (at first 13.0).
    Nvrtc,
    /// The compute capability of both devices (at first 9.0).
    Compute,
    /// `cublasLtGetVersion` (at first 13.0).
    CublasLt,
}

/// Sets a version.
pub fn set_version(of: Versioned, major: i32, minor: i32) {
    let of = match of {
        Versioned::Driver => c"driver",
        Versioned::Nvrtc => c"nvrtc",
        Versioned::Compute => c"compute",
        Versioned::CublasLt => c"cublaslt",
    };
    core!("cusim_set_version", fn(*const c_char, c_int, c_int), (of.as_ptr(), major, minor));
}

/// Sets what `cuDeviceGetAttribute` says of an attribute.
pub fn set_attribute(attribute: i32, value: i32) {
    core!("cusim_set_attribute", fn(c_int, c_int), (attribute, value));
}

/// Graph nodes added from here on lack the dependency that comes at this position among all of them (-1: none); for
/// tests that a missing edge is noticed.
pub fn drop_edge(position: i64) {
    core!("cusim_drop_edge", fn(i64), (position));
}

/// How many dependencies graph nodes were given since [`drop_edge`].
pub fn edges_seen() -> u64 {
    core!("cusim_edges_seen", fn() -> u64, ()).unwrap_or(0)
}

/// How many devices there are: 0, 1 or 2 (at first).
pub fn set_device_count(count: u32) {
    core!("cusim_set_device_count", fn(c_int), (count.min(2) as c_int));
}

/// A real libnvrtc that shall compile each source too (empty: none); a source that it refuses is refused.
pub fn real_nvrtc(path: &str) {
    set_path("nvrtc", path);
}

/// Ends a sticky error: everything that lived in the contexts it broke is gone.
pub fn reset_device() {
    core!("cusim_reset_device", fn(), ());
}

/// A node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `kernel`, `memcpy`, `memset`, `child` or `empty`.
    pub kind: String,
    /// The kernel's function.
    pub name: Option<String>,
    /// Positions of the nodes it depends on.
    pub deps: Vec<usize>,
    /// The nodes of a child graph.
    pub inner: Vec<Node>,
}

/// The nodes of the graph that was instantiated last.
pub fn last_graph() -> Vec<Node> {
    let text = text_of(core!("cusim_graph", fn() -> *mut c_char, ()));
    let mut lines = text.lines().peekable();
    nodes(&mut lines, 0)
}

/// Its edges: (depended on, depending), of the outermost level.
pub fn graph_edges() -> Vec<(usize, usize)> {
    last_graph().iter().enumerate().flat_map(|(to, n)| n.deps.iter().map(move |&from| (from, to))).collect()
}

fn nodes<'a>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>, depth: usize) -> Vec<Node> {
    let mut out = Vec::new();
    while let Some(line) = lines.next_if(|l| l.split(' ').next() == Some(&depth.to_string())) {
        let mut words = line.split(' ').skip(1);
        let kind = words.next().unwrap().to_string();
        let name = words.next().filter(|name| *name != "-").map(String::from);
        let deps = words.map(|w| w.parse().unwrap()).collect();
        let inner = nodes(lines, depth + 1);
        out.push(Node { kind, name, deps, inner });
    }
    out
}
