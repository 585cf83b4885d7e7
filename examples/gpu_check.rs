//! One program to carry to a machine with an NVIDIA GPU, where no Rust is needed: it says what is there, checks that the GPU
//! computes what the reference does and keeps the promises, and measures.
//!
//! ```sh
//! cargo build --release --example gpu_check        # on any machine with the same or an older C library
//! ./gpu_check > lines.jsonl                        # JSON lines on stdout, text for people on stderr
//! ./gpu_check --only conformance,promises --quick
//! ./gpu_check --record calls.log                   # what the driver was asked by a fixed program, and what it returned
//! cargo run --example gpu_check -- --simulated     # tiny sizes on the simulated driver: checks this program
//! ```
//!
//! The driver, NVRTC and cuBLASLt are found as the README says. It ends with 1 if anything did not hold.

#![allow(clippy::eq_op, clippy::needless_range_loop)] // the promises' sources

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::{Parser, ValueEnum};
use output::Output;
use stepgraph::backend::cuda::{self, CudaBackend, sys};
use stepgraph::base::{HostValue, Result};
use stepgraph::ir::Graph;
use stepgraph::{CudaOptions, Device, KernelCache};

#[path = "gpu_check/ceilings.rs"]
mod ceilings;
#[path = "gpu_check/conformance.rs"]
mod conformance;
#[path = "../tests/conformance/device.rs"]
mod device;
#[path = "workloads/gpt.rs"]
mod gpt;
#[path = "../tests/conformance/graphs.rs"]
#[allow(dead_code)]
mod graphs;
#[path = "../tests/harness/mod.rs"]
#[macro_use]
mod harness;
#[path = "workloads/items.rs"]
#[allow(dead_code)]
mod items;
#[path = "gpu_check/latency.rs"]
mod latency;
#[path = "gpu_check/output.rs"]
mod output;
#[path = "../tests/conformance/plan.rs"]
#[allow(dead_code)]
mod plan;
#[path = "gpu_check/promises.rs"]
mod promises;
#[path = "gpu_check/record.rs"]
#[allow(dead_code)]
mod record;
#[path = "gpu_check/workloads.rs"]
mod workloads;

/// What the conformance graphs are run by.
type Run<'a> = dyn Fn(&Graph, &[HostValue], &[u64]) -> Result<Vec<HostValue>> + 'a;

/// Checks and measures stepgraph on this machine's first CUDA device; prints JSON lines.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Section>,
    /// Only these groups of workloads, e.g. W3,W4
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Fewer cases, smaller sizes, shorter measurements
    #[arg(long)]
    quick: bool,
    /// On the simulated driver (needs a C++ compiler), a few cases and tiny sizes: its times say nothing
    #[arg(long)]
    simulated: bool,
    /// Write the driver calls of a fixed program, and what they returned, to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Every operation against the reference evaluator
    Conformance,
    /// The scenarios of the five promises
    Promises,
    /// W1 to W7 of benches/peers: eager, traced and frozen
    Workloads,
    /// What memory and matrix units can do
    Ceilings,
    /// Graphs of 1 to 1000 nodes
    Latency,
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Size {
    Tiny,
    Quick,
    Full,
}

impl Args {
    fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    fn size(&self) -> Size {
        match (self.simulated, self.quick) {
            (true, _) => Size::Tiny,
            (_, true) => Size::Quick,
            _ => Size::Full,
        }
    }
}

/// Whether the driver is the simulated one, whose kernels are of no use to a later run.
static SIMULATED: AtomicBool = AtomicBool::new(false);

fn kernel_cache() -> KernelCache {
    if SIMULATED.load(Relaxed) { KernelCache::Off } else { KernelCache::default() }
}

fn open(tf32: bool) -> Result<Device> {
    Device::cuda_with(&CudaOptions { kernel_cache: kernel_cache(), tf32, ..CudaOptions::default() })
}

/// The backend alone, for graphs that are not made of tensors.
fn backend() -> Result<Arc<CudaBackend>> {
    CudaBackend::new(cuda::Options { kernel_cache: kernel_cache(), ..cuda::Options::default() })
}

fn all(args: &Args, out: &mut Output) -> Result<()> {
    let backend = backend()?;
    let (facts, nvrtc) = (backend.facts(), sys::module::nvrtc_version());
    let nvrtc = nvrtc.map_or_else(|e| e.to_string(), |(major, minor)| format!("{major}.{minor}"));
    let driver = format!("{}.{}", facts.driver / 1000, facts.driver % 1000 / 10);
    let capability = format!("{}.{}", facts.capability.0, facts.capability.1);
    out.title(&format!(
        "{}, compute capability {capability}, {} multiprocessors; driver for CUDA {driver}; NVRTC {nvrtc} ({})",
        facts.name,
        facts.multiprocessors,
        sys::load::nvrtc_path()
    ));
    out.line(serde_json::json!({
        "section": "device", "name": facts.name, "capability": capability, "multiprocessors": facts.multiprocessors,
        "shared_bytes": facts.shared_bytes, "free_bytes": backend.device_free(), "driver": driver, "nvrtc": nvrtc,
        "nvrtc_path": sys::load::nvrtc_path(), "simulated": args.simulated, "stepgraph": env!("CARGO_PKG_VERSION"),
    }));
    let (size, title) = (args.size(), facts.name.clone());
    if let Some(file) = &args.record {
        let log = record::make()?;
        let header = format!("{title}, compute capability {capability}, driver {driver}, NVRTC {nvrtc}");
        let text = log.text(&header);
        let written = std::fs::write(file, text).map_err(|e| e.to_string());
        out.check("record", &file.display().to_string(), written);
    }
    if args.wants(Section::Conformance) {
        conformance::run(&*backend, size, out);
    }
    if args.wants(Section::Promises) {
        promises::run(size, out);
    }
    if args.wants(Section::Workloads) {
        workloads::run(&open(false)?, &args.workloads, size, out);
    }
    if args.wants(Section::Ceilings) {
        ceilings::run(&backend, size, out);
    }
    if args.wants(Section::Latency) {
        latency::run(&*backend, size, out);
    }
    Ok(())
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::from_env("STEPGRAPH_LOG");
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    if args.simulated {
        if let Err(e) = cuda_sim::install() {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
        cuda_sim::set_batching(true);
        SIMULATED.store(true, Relaxed);
    }
    let mut out = Output::default();
    if let Err(e) = all(&args, &mut out) {
        out.check("device", "cuda:0", Err(e.to_string()));
    }
    out.end()
}
