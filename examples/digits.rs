//! Trains a small network on handwritten digits in three ways at once, from the same start: eagerly, traced by
//! `jit::Step`, and frozen. After every step the loss and every `Var` of the three are compared bit for bit.
//!
//! ```sh
//! cargo run --release --example digits             # a table for people
//! cargo run --release --example digits -- --json   # one line for programs
//! STEPGRAPH_LOG=info cargo run --release --example digits
//! ```

use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model::{Digits, Trainer};
use stepgraph::backend::Counts;
use stepgraph::{CpuOptions, Device, Error, Result, Tensor, jit};

#[path = "digits/model.rs"]
mod model;

/// 64-128-10 network on 1797 digits of 8 x 8 pixels: eager, traced and frozen, bit for bit the same.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Times through the training digits
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Digits per step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    batch: u64,
    /// CPU threads a kernel may use [default: all that the process may run on]
    #[arg(long)]
    threads: Option<usize>,
    /// Print one line of JSON instead of the table
    #[arg(long)]
    json: bool,
}

#[allow(clippy::large_enum_variant)] // one of each
enum Mode {
    Eager,
    Traced(jit::Step),
    /// Traced until it can be frozen; the shorter last batch of an epoch stays traced.
    Frozen(jit::Step, Option<jit::Frozen>),
}

/// One way of training, and what was measured of it.
struct Run {
    mode: Mode,
    trainer: Trainer,
    /// Microseconds of each step with a full batch.
    times: Vec<f64>,
    /// What the device did in the last such step.
    work: Counts,
    /// The traced step's report after it.
    report: Option<stepgraph::diag::report::Report>,
}

impl Run {
    fn new(mode: Mode, device: &Device) -> Result<Run> {
        let trainer = Trainer::new(device)?;
        Ok(Run { mode, trainer, times: Vec::new(), work: Counts::default(), report: None })
    }

    /// One step, and the loss on the host.
    fn step(&mut self, x: &Tensor, y: &Tensor, full: bool) -> Result<f32> {
        let Run { mode, trainer, .. } = self;
        match mode {
            Mode::Eager => trainer.step(x, y)?.item(),
            Mode::Traced(step) => step.run(|| trainer.step(x, y))?.item(),
            Mode::Frozen(_, Some(frozen)) if full => {
                frozen.set_input(0, x)?;
                frozen.set_input(1, y)?;
                frozen.replay()?[0].item()
            }
            Mode::Frozen(step, frozen) => {
                let loss = step.run(|| trainer.step(x, y))?.item()?;
                if frozen.is_none() {
                    *frozen = step.freeze().ok();
                }
                Ok(loss)
            }
        }
    }

    /// The steps of an epoch; after each, the bits of the loss and of every `Var`.
    fn epoch(&mut self, batches: &[(Tensor, Tensor)], batch: usize, device: &Device) -> Result<Vec<Trail>> {
        let mut trail = Vec::with_capacity(batches.len());
        for (x, y) in batches {
            let full = x.dims()[0] == batch;
            let warming_up = matches!(self.mode, Mode::Frozen(_, None));
            let before = device.counts();
            let start = Instant::now();
            let loss = self.step(x, y, full)?;
            let time = start.elapsed().as_secs_f64() * 1e6;
            if full && !warming_up {
                self.times.push(time);
                self.work = difference(&device.counts(), &before);
                if let Mode::Traced(step) = &self.mode {
                    self.report = Some(step.report());
                }
            }
            trail.push(Trail { loss: loss.to_bits(), vars: self.trainer.bits()? });
        }
        Ok(trail)
    }

    fn median(&self) -> Result<f64> {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let too_few = || Error::argument("digits", "enough steps to freeze and time; raise --epochs", "too few");
        times.get(times.len() / 2).copied().ok_or_else(too_few)
    }
}

/// The state after a step, bit for bit.
#[derive(PartialEq)]
struct Trail {
    loss: u32,
    vars: Vec<Vec<u8>>,
}

fn difference(after: &Counts, before: &Counts) -> Counts {
    Counts {
        launches: after.launches - before.launches,
        kernels: after.kernels - before.kernels,
        eager_kernels: after.eager_kernels - before.eager_kernels,
        ..Counts::default()
    }
}

/// Shuffles in place (Fisher and Yates) with a xorshift generator.
fn shuffle(rows: &mut [usize], state: &mut u64) {
    for i in (1..rows.len()).rev() {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        rows.swap(i, (*state % (i as u64 + 1)) as usize);
    }
}

fn progress(args: &Args) -> ProgressBar {
    let target = if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(args.epochs), target);
    let template = "  epoch {pos:>3}/{len} [{bar:40.cyan/blue}] {elapsed:>3}  {msg}";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn main() -> Result<()> {
    let log = tracing_subscriber::EnvFilter::from_env("STEPGRAPH_LOG");
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let args = Args::parse();
    let device = match args.threads {
        Some(n) => Device::cpu_with(&CpuOptions { threads: Some(n), ..CpuOptions::default() })?,
        None => Device::best(),
    };

    let (train, held_out) = Digits::load();
    let all: Vec<usize> = (0..held_out.labels.len()).collect();
    let (test_x, _) = held_out.tensors(&all, &device)?;
    let mut runs = [
        Run::new(Mode::Eager, &device)?,
        Run::new(Mode::Traced(jit::Step::new()), &device)?,
        Run::new(Mode::Frozen(jit::Step::new(), None), &device)?,
    ];

    let batch = args.batch as usize;
    let mut rows: Vec<usize> = (0..train.labels.len()).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let mut bit_identical = runs[1..]
        .iter()
        .try_fold(true, |same, r| Ok::<_, Error>(same && r.trainer.bits()? == runs[0].trainer.bits()?))?;
    let (mut steps, mut accuracy) = (0, 0.0);
    let bar = progress(&args);
    for epoch in 0..args.epochs as usize {
        shuffle(&mut rows, &mut state);
        let batches = rows.chunks(batch).map(|b| train.tensors(b, &device)).collect::<Result<Vec<_>>>()?;
        // The modes take turns, another one first in each epoch, so that a busy machine is unfair to none.
        let mut trails = [Vec::new(), Vec::new(), Vec::new()];
        for turn in 0..runs.len() {
            let k = (epoch + turn) % runs.len();
            trails[k] = runs[k].epoch(&batches, batch, &device)?;
        }
        bit_identical &= trails[0] == trails[1] && trails[0] == trails[2];
        steps += batches.len();
        accuracy = runs[1].trainer.accuracy(&test_x, &held_out.labels)?;
        let loss = f32::from_bits(trails[1].last().map_or(0, |t| t.loss));
        bar.set_message(format!("loss {loss:.4}  held-out accuracy {:.1} %", accuracy * 100.0));
        bar.inc(1);
    }
    bar.finish();

    let [eager, traced, frozen] = &runs;
    let report = traced.report.clone().unwrap_or_default();
    let (eager_us, traced_us, frozen_us) = (eager.median()?, traced.median()?, frozen.median()?);
    let compile_ms = report.compile_time.as_secs_f64() * 1e3;
    if args.json {
        let round = |v: f64| (v * 1e3).round() / 1e3;
        let line = serde_json::json!({
            "accuracy": (accuracy * 1e4).round() / 1e4,
            "eager_us": round(eager_us),
            "traced_us": round(traced_us),
            "frozen_us": round(frozen_us),
            "speedup_traced": round(eager_us / traced_us),
            "speedup_frozen": round(eager_us / frozen_us),
            "ops_per_step": report.ops,
            "kernels_per_step": traced.work.kernels,
            "launches_per_step": traced.work.launches,
            "compile_ms": round(compile_ms),
            "bit_identical": bit_identical,
        });
        println!("{line}");
        return Ok(());
    }

    let known = (accuracy * all.len() as f64).round();
    println!();
    println!("  64-128-10 network, Adam, {} digits in batches of {batch}, on {device}", train.labels.len());
    println!("  held-out accuracy  {:.1} %  ({known} of {} digits)", accuracy * 100.0, all.len());
    let vars = traced.trainer.bits()?.len();
    let verdict = if bit_identical { "yes: " } else { "NO: differences in " };
    println!("  bit-identical      {verdict}the loss and {vars} Vars, compared after each of {steps} steps");
    println!();
    let slowest = eager_us.max(traced_us).max(frozen_us);
    for (name, us, work) in
        [("eager", eager_us, eager.work), ("traced", traced_us, traced.work), ("frozen", frozen_us, frozen.work)]
    {
        let bar = "█".repeat((us / slowest * 30.0).round().max(1.0) as usize);
        let kernels = work.kernels + work.eager_kernels;
        let launches = match work.launches {
            0 => "one by one".to_string(),
            1 => "in 1 launch".to_string(),
            n => format!("in {n} launches"),
        };
        let ratio = eager_us / us;
        println!("  {name:<7} {us:>7.1} µs a step  {bar:<30}  {ratio:>4.1}x  {kernels} kernels {launches}");
    }
    println!();
    println!("  the traced step's report:");
    for line in report.to_string().lines() {
        println!("    {line}");
    }
    Ok(())
}
