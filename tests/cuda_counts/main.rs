//! Which calls of the driver a replay makes, on the simulated driver, whose counters are one for the process: so these
//! tests have a process of their own, and take turns. Needs a C++ compiler; without one, each says that it was skipped.

use parking_lot::{Mutex, MutexGuard};
use stepgraph::{CudaOptions, Device, KernelCache};

#[path = "../../examples/digits/model.rs"]
#[allow(dead_code)]
mod digits;
#[path = "../../examples/workloads/gpt.rs"]
#[allow(dead_code)]
mod gpt;
#[path = "../../examples/workloads/items.rs"]
#[allow(dead_code)]
mod items;
#[path = "../../examples/launches/measure.rs"]
mod measure;
#[path = "../../examples/gpu_check/record.rs"]
mod record;

mod logs;
mod replays;

/// The process's turn, if tests can run here; if not, says why.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock();
    if let Err(why) = cuda_sim::install() {
        println!("SKIPPED: no simulated CUDA driver: {why}");
        return None;
    }
    cuda_sim::set_batching(true);
    Some(turn)
}

fn device() -> Device {
    let options = CudaOptions { kernel_cache: KernelCache::Off, ..CudaOptions::default() };
    Device::cuda_with(&options).unwrap_or_else(|e| panic!("{e}"))
}
