//! Driver calls per step: the network of the digits, W3, W4 and W5 of `benches/`, eager, traced and frozen, each once it is
//! warm. On the simulated driver, which counts them (it needs a C++ compiler), or with `--gpu` on the first CUDA device.
//!
//! ```sh
//! cargo run --release --example launches             # a table
//! cargo run --release --example launches -- --json   # {"workload": …, "mode": …, "calls": {"cuGraphLaunch": 1, …}}
//! ```

use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measure::{Calls, Counter, Mode, WORKLOADS};
use stepgraph::{CudaOptions, Device, KernelCache, Result};

#[path = "digits/model.rs"]
#[allow(dead_code)]
mod digits;
#[path = "workloads/gpt.rs"]
#[allow(dead_code)]
mod gpt;
#[path = "workloads/items.rs"]
#[allow(dead_code)]
mod items;
#[path = "launches/measure.rs"]
mod measure;

/// Which calls of the CUDA driver a step makes.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Print lines of JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Only workloads whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// On the machine's first CUDA device instead of the simulated driver
    #[arg(long)]
    gpu: bool,
}

/// The table's columns, and the calls that belong to each; what is in none of them is in the last.
const COLUMNS: [(&str, &[&str]); 7] = [
    ("graph launches", &["cuGraphLaunch"]),
    ("kernel launches", &["cuLaunchKernel"]),
    ("library calls", &["cublasLtMatmul"]),
    ("allocations", &["cuMemAllocAsync", "cuMemFreeAsync"]),
    ("copies to device", &["cuMemcpyHtoDAsync_v2"]),
    ("waits", &["cuStreamSynchronize", "cuEventSynchronize"]),
    ("all else", &[]),
];

fn table(rows: &[(&str, Mode, Calls)]) {
    println!();
    print!("  {:<25}", "calls per step");
    COLUMNS.iter().for_each(|(title, _)| print!("  {title}"));
    println!();
    for (i, (workload, mode, calls)) in rows.iter().enumerate() {
        let first = i == 0 || rows[i - 1].0 != *workload;
        print!("  {:<17} {:<7}", if first { workload } else { "" }, mode.name());
        let mut left: u64 = calls.values().sum();
        for (title, names) in COLUMNS {
            let n = match names {
                [] => left,
                _ => names.iter().filter_map(|n| calls.get(*n)).sum(),
            };
            left -= n;
            print!("  {n:>width$}", width = title.len());
        }
        println!();
    }
    println!();
    println!(
        "  all else: making the context current, asking events, one copy within the device for each old value that is held"
    );
}

fn device(gpu: bool) -> Result<Device, String> {
    if !gpu {
        cuda_sim::install().map_err(|e| e.to_string())?;
        // Programs are compiled together: far fewer runs of the C++ compiler.
        cuda_sim::set_batching(true);
    }
    // `STEPGRAPH_KERNELS` names a folder where the kernels' sources are left, for a check by the real compiler.
    let kernel_cache = match std::env::var_os("STEPGRAPH_KERNELS") {
        Some(folder) => KernelCache::At(folder.into()),
        None if gpu => KernelCache::default(),
        None => KernelCache::Off,
    };
    Device::cuda_with(&CudaOptions { kernel_cache, ..CudaOptions::default() }).map_err(|e| e.to_string())
}

fn run(args: &Args) -> Result<(), String> {
    let device = device(args.gpu)?;
    let counter = if args.gpu { Counter::Log } else { Counter::Driver };
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|o| name.contains(o.as_str()));
    let workloads: Vec<_> = WORKLOADS.iter().filter(|w| wanted(w.name)).collect();
    let target = if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(3 * workloads.len() as u64), target);
    let template = "  {pos:>2}/{len} [{bar:30.cyan/blue}] {elapsed:>3}  {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = bar.with_style(style);
    let mut rows = Vec::new();
    for workload in workloads {
        for mode in Mode::ALL {
            bar.set_message(format!("{}, {}: kernels are compiled, steps run", workload.name, mode.name()));
            let calls = workload.calls(mode, &device, counter).map_err(|e| format!("{}: {e}", workload.name))?;
            if args.json {
                println!("{}", serde_json::json!({ "workload": workload.name, "mode": mode.name(), "calls": calls }));
            }
            rows.push((workload.name, mode, calls));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if !args.json {
        table(&rows);
    }
    Ok(())
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::from_env("STEPGRAPH_LOG");
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
