//! The workloads W1 to W7 that `benches/peers` runs on other frameworks, on stepgraph: the same data, shapes, options
//! and JSON lines.
//!
//! ```sh
//! cargo run --release --example workloads -- --threads 2 --workloads W3,W4 --modes traced,frozen
//! ```
//!
//! `eager` runs op by op, `traced` runs the closure in a `jit::Step`, `frozen` replays its launch without the closure:
//! traced calls until the step can be frozen, then the initial `Var`s are set back, then only replays. W4 and W5 read
//! the loss on the host at every step. With `--threads 1` start it under `taskset -c 0`, as the peers.

use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use gpt::Gpt;
use items::{Chain, CosCos, Doubling, NormGelu, Product, Softmax, Training, W1_SIZES, W2_REPEATS, W2_SIZES};
use items::{W3_N, W3_OPS, W3_TINY, W4_BATCHES, W6_SHAPE, W7_SHAPES};
use stepgraph::{CpuOptions, Device, Result, Tensor, Var, jit};

#[path = "workloads/gpt.rs"]
mod gpt;
#[path = "workloads/items.rs"]
mod items;

/// W1 to W7 of benches/peers/README.md on stepgraph; prints JSON lines.
#[derive(Parser)]
struct Args {
    /// CPU threads a kernel may use
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Comma list, e.g. W1,W4
    #[arg(long, value_delimiter = ',', default_value = "W1,W2,W3,W4,W5,W6,W7")]
    workloads: Vec<String>,
    /// Comma list out of eager, traced, frozen
    #[arg(long, value_delimiter = ',', default_value = "eager,traced,frozen")]
    modes: Vec<String>,
    /// Only items whose name contains one of these
    #[arg(long, value_delimiter = ',', default_value = "")]
    sizes: Vec<String>,
    /// Seconds of timing per item
    #[arg(long, default_value_t = 0.5)]
    min_time: f64,
    /// Appended to every mode's name
    #[arg(long, default_value = "")]
    tag: String,
    /// After the mode frozen, print the time of each kernel to stderr
    #[arg(long)]
    profile: bool,
}

impl Args {
    fn wanted(&self, workload: &str, mode: &str) -> bool {
        let group = workload.split('_').next().unwrap_or_default();
        let sizes = self.sizes.iter().filter(|s| !s.is_empty());
        self.workloads.iter().any(|w| w == group)
            && self.modes.iter().any(|m| m == mode)
            && (sizes.clone().count() == 0 || sizes.clone().any(|s| workload.contains(s.as_str())))
    }

    /// Times `f`, which waits for its own result, and prints a JSON line. A step of training gives its loss.
    /// `warm_up` is the time it took to get as far as the first call.
    fn bench(
        &self,
        workload: &str,
        mode: &str,
        device: &Device,
        warm_up: f64,
        mut f: impl FnMut() -> Result<Option<f32>>,
    ) -> Result<()> {
        let start = Instant::now();
        let first_loss = f()?;
        let first_call = warm_up + start.elapsed().as_secs_f64();
        let mut last_loss = first_loss;
        if first_loss.is_some() {
            for _ in 0..19 {
                last_loss = f()?;
            }
        } else {
            let start = Instant::now();
            for i in 0..5000 {
                f()?;
                if i >= 1 && start.elapsed().as_secs_f64() > self.min_time * 0.4 {
                    break;
                }
            }
        }

        let mut times = Vec::new();
        let start = Instant::now();
        loop {
            let before = Instant::now();
            f()?;
            times.push(before.elapsed().as_secs_f64() * 1e6);
            let elapsed = start.elapsed().as_secs_f64();
            let enough = elapsed > self.min_time && times.len() >= 5;
            if enough || times.len() >= 50_000 || elapsed > 12.0 * self.min_time {
                break;
            }
        }
        let before = device.counts();
        f()?;
        let after = device.counts();

        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let round = |v: f64, digits: i32| (v * 10f64.powi(digits)).round() / 10f64.powi(digits);
        let mut line = serde_json::json!({
            "peer": "stepgraph",
            "mode": format!("{mode}{}", self.tag),
            "workload": workload,
            "threads": self.threads,
            "median_us": round(median, 2),
            "min_us": round(times[0], 2),
            "first_call_ms": round(first_call * 1e3, 1),
            "iters": times.len(),
            "notes": concat!("stepgraph ", env!("CARGO_PKG_VERSION")),
            "launches": after.launches - before.launches,
            "kernels": after.kernels - before.kernels + after.eager_kernels - before.eager_kernels,
        });
        if let (Some(first), Some(last)) = (first_loss, last_loss) {
            line["loss1"] = round(first as f64, 5).into();
            line["loss20"] = round(last as f64, 5).into();
            line["loss_bits"] = format!("{:08x},{:08x}", first.to_bits(), last.to_bits()).into();
        }
        println!("{line}");
        Ok(())
    }

    /// An item that is a pure function, in the wanted modes. `make` prepares its data.
    fn function<I>(
        &self,
        workload: &str,
        device: &Device,
        make: impl Fn() -> Result<I>,
        run: impl Fn(&I) -> Result<Tensor>,
    ) -> Result<()> {
        if self.wanted(workload, "eager") {
            let item = make()?;
            self.bench(workload, "eager", device, 0.0, || run(&item).map(ignore))?;
        }
        if self.wanted(workload, "traced") {
            let (item, mut step) = (make()?, jit::Step::new());
            self.bench(workload, "traced", device, 0.0, || step.run(|| run(&item)).map(ignore))?;
        }
        if self.wanted(workload, "frozen") {
            let (item, mut step) = (make()?, jit::Step::new());
            let start = Instant::now();
            let mut frozen = items::freeze(&mut step, || run(&item))?;
            let warm_up = start.elapsed().as_secs_f64();
            self.bench(workload, "frozen", device, warm_up, || {
                black_box(frozen.replay()?);
                Ok(None)
            })?;
            self.profile(&mut frozen)?;
        }
        Ok(())
    }

    /// A training step in the wanted modes.
    fn training<I: Train>(&self, workload: &str, device: &Device, make: impl Fn() -> Result<I>) -> Result<()> {
        if self.wanted(workload, "eager") {
            let mut item = make()?;
            self.bench(workload, "eager", device, 0.0, || item.run()?.item().map(Some))?;
        }
        if self.wanted(workload, "traced") {
            let (mut item, mut step) = (make()?, jit::Step::new());
            self.bench(workload, "traced", device, 0.0, || step.run(|| item.run())?.item().map(Some))?;
            tracing::info!("{workload}\n{}", step.report());
        }
        if self.wanted(workload, "frozen") {
            let (mut item, mut step) = (make()?, jit::Step::new());
            let vars = item.vars();
            let initial: Vec<Tensor> = vars.iter().map(Var::get).collect();
            let start = Instant::now();
            let mut frozen = items::freeze(&mut step, || item.run())?;
            let warm_up = start.elapsed().as_secs_f64();
            vars.iter().zip(&initial).try_for_each(|(var, value)| var.set(value))?;
            drop(initial);
            self.bench(workload, "frozen", device, warm_up, || frozen.replay()?[0].item().map(Some))?;
            self.profile(&mut frozen)?;
        }
        Ok(())
    }

    fn profile(&self, frozen: &mut jit::Frozen) -> Result<()> {
        if self.profile {
            for (kernel, time) in frozen.profile(20)? {
                eprintln!("{:>10.2} us  {kernel}", time.as_secs_f64() * 1e6);
            }
        }
        Ok(())
    }

    fn run(&self, device: &Device) {
        for n in W1_SIZES {
            let make = || CosCos::new(n, device);
            self.guard(&format!("W1_coscos_{n}"), |w| self.function(w, device, make, CosCos::run));
        }
        for n in W2_SIZES {
            for r in W2_REPEATS {
                let make = || Doubling::new(n, r, device);
                self.guard(&format!("W2_mul2_{n}_r{r}"), |w| self.function(w, device, make, Doubling::run));
            }
        }
        self.guard("W3_chain50", |w| self.function(w, device, || Chain::mixed(W3_N, device), Chain::run));
        self.guard("W3_add50", |w| self.function(w, device, || Chain::adds(W3_TINY, W3_OPS, device), Chain::run));
        for batch in W4_BATCHES {
            self.guard(&format!("W4_mlp_b{batch}"), |w| self.training(w, device, || Training::new(batch, device)));
        }
        self.guard("W5_gpt", |w| self.training(w, device, || Gpt::new(device)));
        let make = || NormGelu::new(W6_SHAPE, device);
        self.guard("W6_lngelures", |w| self.function(w, device, make, NormGelu::run));
        self.guard("W6_softmax", |w| self.function(w, device, || Softmax::new(W6_SHAPE, device), Softmax::run));
        for [m, k, n] in W7_SHAPES {
            let make = || Product::new([m, k, n], device);
            self.guard(&format!("W7_gemm_{m}x{k}x{n}"), |w| self.function(w, device, make, Product::run));
        }
    }

    /// A failure becomes a JSON line, not the end of the run.
    fn guard(&self, workload: &str, f: impl FnOnce(&str) -> Result<()>) {
        if let Err(e) = f(workload) {
            let line = serde_json::json!({
                "peer": "stepgraph", "workload": workload, "threads": self.threads, "error": e.to_string(),
            });
            println!("{line}");
        }
    }
}

/// A workload that trains.
trait Train {
    /// One step; the loss.
    fn run(&mut self) -> Result<Tensor>;
    /// Every `Var`, the optimizer's among them.
    fn vars(&self) -> Vec<Var>;
}

impl Train for Training {
    fn run(&mut self) -> Result<Tensor> {
        self.run()
    }

    fn vars(&self) -> Vec<Var> {
        self.vars.clone()
    }
}

impl Train for Gpt {
    fn run(&mut self) -> Result<Tensor> {
        self.run()
    }

    fn vars(&self) -> Vec<Var> {
        self.vars()
    }
}

/// Keeps the compiler from removing the work; drops the result.
fn ignore(result: Tensor) -> Option<f32> {
    black_box(result);
    None
}

fn main() -> Result<()> {
    let log = tracing_subscriber::EnvFilter::from_env("STEPGRAPH_LOG");
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    let device = Device::cpu_with(&CpuOptions { threads: Some(args.threads), ..CpuOptions::default() })?;
    args.run(&device);
    Ok(())
}
