//! What goes wrong on a CUDA device, and what must not: calls that fail, missing edges, little memory, many threads.
//!
//! On the simulated driver, whose failures, order and memory are one setting per process: so this is a test binary of its own,
//! and its tests take turns. Needs a C++ compiler; without one, every test here says that it was skipped.

#![allow(clippy::eq_op, clippy::needless_range_loop)]

#[path = "../harness/mod.rs"]
mod harness;

mod calls;
mod edges;
mod memory;
mod model;
mod order;
mod threads;

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepgraph::{CudaOptions, Device, KernelCache, Result};

/// The simulated driver, for one test at a time, as it is at first; `None`, said aloud, where there is none.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match cuda_sim::install() {
        Ok(()) => {}
        Err(why @ cuda_sim::Missing::Compiler) => {
            println!("SKIPPED: no simulated CUDA driver: {why}");
            return None;
        }
        Err(why) => panic!("{why}"),
    }
    cuda_sim::clear_failures();
    cuda_sim::drop_edge(-1);
    cuda_sim::reverse_fibers(false);
    cuda_sim::set_order_seed(1);
    cuda_sim::set_memory_limit(8 << 30);
    Some(turn)
}

/// A simulated device of its own, its kernels kept nowhere.
fn open(ordinal: u32, memory_limit: Option<usize>) -> Result<Device> {
    let kernel_cache = KernelCache::Off;
    Device::cuda_with(&CudaOptions { ordinal, memory_limit, kernel_cache, ..CudaOptions::default() })
}

/// The first device.
#[track_caller]
fn device() -> Device {
    open(0, None).expect("a simulated device")
}

/// Calls a function of the simulated driver.
macro_rules! driver {
    ($name:ident($($arg:expr => $ty:ty),*)) => {{
        let at = cuda_sim::symbol(stringify!($name));
        assert!(!at.is_null(), "the simulated driver has {}", stringify!($name));
        // SAFETY: the function has this signature in every version of the driver's API.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> i32>(at)($($arg),*) }
    }};
}

/// Keeps the first device's primary context alive beside whoever else does.
fn retain() {
    let mut context: *mut c_void = std::ptr::null_mut();
    assert_eq!(driver!(cuInit(0 => u32)), 0);
    assert_eq!(driver!(cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => i32)), 0);
}

/// Takes [`retain`] back.
fn release() {
    assert_eq!(driver!(cuDevicePrimaryCtxRelease_v2(0 => i32)), 0);
}
