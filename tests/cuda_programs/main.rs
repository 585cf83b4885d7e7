//! Random programs on the simulated CUDA device: eager, traced and frozen alike, bit for bit, as on the CPU.
//!
//! `STEPGRAPH_CUDA_PROGRAMS` and `STEPGRAPH_SEED` say how many (default 100) and from which number on. Needs a C++
//! compiler; without one it says that it was skipped.

// Failing programs are shrunk on the CPU.
#[allow(dead_code)]
#[path = "../random_programs/check.rs"]
mod check;
#[path = "../random_programs/generate.rs"]
mod generate;
#[path = "../random_programs/ops.rs"]
mod ops;
#[path = "../random_programs/program.rs"]
mod program;
#[path = "../random_programs/world.rs"]
mod world;

use stepgraph::{CudaOptions, Device, KernelCache};

fn device(memory_limit: Option<usize>) -> Device {
    let options = CudaOptions { memory_limit, kernel_cache: KernelCache::Off, ..CudaOptions::default() };
    Device::cuda_with(&options).expect("a simulated device")
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn programs_are_the_same_eager_traced_and_frozen() {
    if let Err(why) = cuda_sim::install() {
        println!("SKIPPED: no simulated CUDA driver: {why}");
        return;
    }
    check::make_devices_with(device);
    let (count, first) = (number("STEPGRAPH_CUDA_PROGRAMS", 100), number("STEPGRAPH_SEED", 0));
    let mut total = check::Figures::default();
    let mut failures = Vec::new();
    for k in first..first + count {
        let p = generate::program(k, &check::device(0), &check::device(5));
        match check::run(&p) {
            Ok(figures) => total += figures,
            Err(why) => failures.push(format!("// Program {k}: {why}\n{p}")),
        }
        if failures.len() >= 3 {
            break;
        }
    }
    println!("{total:?}, {} fail", failures.len());
    assert!(failures.is_empty(), "{} programs fail:\n{}", failures.len(), failures.join("\n"));
    assert!(count < 100 || total.replayed > total.recorded / 2, "{total:?}");
}
