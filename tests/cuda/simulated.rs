//! The simulated driver, installed once in this process.

use std::sync::OnceLock;

use stepgraph::{CudaOptions, Device, KernelCache};

use crate::harness;

/// Whether tests can run here; if not, says why.
pub fn ready() -> bool {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let installed = READY.get_or_init(|| {
        cuda_sim::install().map_err(|e| e.to_string())?;
        harness::make_devices_with(device);
        Ok(())
    });
    if let Err(why) = installed {
        println!("SKIPPED: no simulated CUDA driver: {why}");
    }
    installed.is_ok()
}

/// A simulated device with memory and counters of its own.
pub fn device() -> Device {
    with_limit(None)
}

/// The same, with a memory limit.
pub fn with_limit(memory_limit: Option<usize>) -> Device {
    let options = CudaOptions { memory_limit, kernel_cache: KernelCache::Off, ..CudaOptions::default() };
    Device::cuda_with(&options).unwrap_or_else(|e| panic!("{e}"))
}
