//! A small convolutional network on the committed handwritten digits.
//!
//! ```sh
//! cargo run --release --example convnet            # a progress bar, then the accuracy on digits it has not seen
//! cargo run --release --example convnet -- --json  # one line for programs
//! ```
//!
//! Training is one `jit::Step`, evaluation another. Batch norm keeps its running statistics in `Var`s, dropout draws a new
//! mask at every call, and each training digit is shifted by up to a pixel on the host: all of it with one launch per step.

use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stepgraph::nn::{BatchNorm2d, Conv2d, Convolution, Dropout, Function, Linear, Module, Pooling, Relu, Sequential};
use stepgraph::optim::{AdamW, AdamWConfig, Schedule};
use stepgraph::{CpuOptions, Device, Error, Result, Rng, Tensor, jit};

/// Three convolutions, pooling and a linear layer on 1797 digits of 8 x 8 pixels.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Times through the training digits
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Digits per step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    batch: u64,
    #[arg(long, default_value_t = 5e-3)]
    lr: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPU threads a kernel may use [default: all that the process may run on]
    #[arg(long)]
    threads: Option<usize>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;

/// `[n, 1, 8, 8]` to scores `[n, 10]`.
fn network(rng: &Rng, device: &Device) -> Result<Sequential> {
    let same = Convolution { padding: [1, 1], ..Convolution::default() };
    let pool = || Function(|x: &Tensor| x.max_pool2d(&Pooling::new([2, 2])));
    Ok(Sequential::new()
        .then(Conv2d::new(1, 16, [3, 3], same, rng, device)?)
        .then(BatchNorm2d::new(16, device)?)
        .then(Relu)
        .then(Conv2d::new(16, 32, [3, 3], same, rng, device)?)
        .then(BatchNorm2d::new(32, device)?)
        .then(Relu)
        .then(pool())
        .then(Conv2d::new(32, 64, [3, 3], same, rng, device)?)
        .then(BatchNorm2d::new(64, device)?)
        .then(Relu)
        .then(pool())
        .then(Function(|x: &Tensor| x.reshape([x.dims()[0], 64 * PIXELS / 16])))
        .then(Dropout::new(0.3, rng))
        .then(Linear::new(64 * PIXELS / 16, CLASSES, rng, device)?))
}

/// Pixels from 0 to 1, and labels.
#[derive(Default)]
struct Digits {
    pixels: Vec<[f32; PIXELS]>,
    labels: Vec<i64>,
}

impl Digits {
    /// (training digits, held-out digits): every fifth is held out.
    fn load() -> (Digits, Digits) {
        let (mut train, mut held_out) = (Digits::default(), Digits::default());
        for (i, line) in include_str!("data/digits.csv").lines().enumerate() {
            let part = if i % 5 == 0 { &mut held_out } else { &mut train };
            let row: Vec<i64> = line.split(',').filter_map(|v| v.trim().parse().ok()).collect();
            part.pixels.push(std::array::from_fn(|p| row.get(p).map_or(0.0, |&v| v as f32 / 16.0)));
            part.labels.extend(row.last());
        }
        (train, held_out)
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    /// Some digits, each shifted by `shift` pixels across and down.
    fn tensors(
        &self,
        rows: &[usize],
        mut shift: impl FnMut() -> [isize; 2],
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let mut pixels = Vec::with_capacity(rows.len() * PIXELS);
        for &r in rows {
            let [dx, dy] = shift();
            for p in 0..PIXELS {
                let (x, y) = ((p % SIDE).wrapping_add_signed(-dx), (p / SIDE).wrapping_add_signed(-dy));
                let inside = x < SIDE && y < SIDE;
                pixels.push(if inside { self.pixels[r][y * SIDE + x] } else { 0.0 });
            }
        }
        let labels = rows.iter().map(|&r| self.labels[r]).collect();
        let x = Tensor::from_vec(pixels, [rows.len(), 1, SIDE, SIDE], device)?;
        Ok((x, Tensor::from_vec(labels, [rows.len()], device)?))
    }
}

/// xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Share of the digits that the network knows.
fn accuracy(model: &Sequential, step: &mut jit::Step, digits: &Digits, device: &Device) -> Result<f64> {
    let all: Vec<usize> = (0..digits.len()).collect();
    let (x, y) = digits.tensors(&all, || [0, 0], device)?;
    model.eval();
    let known = step.run(|| model.forward(&x)?.argmax(1)?.eq(&y)?.sum(()))?.item::<i64>()?;
    model.train();
    Ok(known as f64 / digits.len() as f64)
}

fn progress(args: &Args) -> ProgressBar {
    let target = if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(args.epochs), target);
    let template = "  epoch {pos:>3}/{len} [{bar:40.cyan/blue}] {elapsed:>4} of {duration}  {msg}";
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
    let batch = args.batch as usize;
    let steps = train.len().div_ceil(batch) as u64;
    let model = network(&Rng::seed_from(args.seed), &device)?;
    let mut adam = AdamW::new(model.parameters(), AdamWConfig { weight_decay: 0.05, ..AdamWConfig::default() })?;
    let schedule = Schedule::one_cycle(args.lr, args.epochs * steps);
    let (mut training, mut evaluation) = (jit::Step::new(), jit::Step::new());
    let mut random = Random(args.seed.max(1));
    let mut order: Vec<usize> = (0..train.len()).collect();
    let (mut t, mut times, mut loss) = (0, Vec::new(), f32::NAN);

    let bar = progress(&args);
    for _ in 0..args.epochs {
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        for rows in order.chunks(batch) {
            let mut shift = || [random.below(3) as isize - 1, random.below(3) as isize - 1];
            let (x, y) = train.tensors(rows, &mut shift, &device)?;
            let start = Instant::now();
            let value = training.run(|| {
                adam.set_lr(schedule.at(t));
                let loss = model.forward(&x)?.cross_entropy(&y)?;
                adam.step(&loss.backward()?)?;
                Ok(loss)
            })?;
            loss = value.item()?;
            if rows.len() == batch {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            t += 1;
        }
        let known = accuracy(&model, &mut evaluation, &held_out, &device)?;
        bar.set_message(format!("loss {loss:.3}, held out {:.1} %", 100.0 * known));
        bar.inc(1);
    }
    bar.finish_and_clear();

    let known = accuracy(&model, &mut evaluation, &held_out, &device)?;
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied();
    let median = median
        .ok_or_else(|| Error::argument("convnet", "a batch of at most the training digits", batch.to_string()))?;
    let report = training.report();
    let parameters: usize = model.parameters().iter().map(|p| p.shape().numel()).sum();
    if args.json {
        let line = serde_json::json!({
            "accuracy": known, "loss": loss, "parameters": parameters, "steps": t, "step_ms": median,
            "ops": report.ops, "kernels": report.kernels, "launches": report.launches_per_call,
            "recorded": report.recorded, "compile_ms": report.compile_time.as_secs_f64() * 1e3,
        });
        println!("{line}");
    } else {
        println!("{parameters} parameters, {t} steps of {median:.2} ms");
        println!("{:.2} % of {} held-out digits known\n", 100.0 * known, held_out.len());
        println!("{report}");
    }
    Ok(())
}
