//! Trains a small GPT on the characters of a text and writes some of its own.
//!
//! ```sh
//! cargo run --release --example char_gpt                                   # on this crate's sources
//! cargo run --release --example char_gpt -- --text book.txt --steps 2000
//! cargo run --release --example char_gpt -- --steps 200 --mode eager       # the same numbers, slower
//! ```
//!
//! Training is one `jit::Step`, evaluation (without dropout) another, sampling a third: each records its closure once and
//! replays it. The learning rate warms up and follows a cosine; it is host code that runs at every step.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model::{Gpt, Shape};
use stepgraph::nn::Module;
use stepgraph::optim::{AdamW, AdamWConfig, Schedule, clip_grad_norm};
use stepgraph::{CpuOptions, Device, Error, Result, Rng, Tensor, jit};
use text::{Random, Text};

#[path = "char_gpt/model.rs"]
mod model;
#[path = "char_gpt/text.rs"]
mod text;

/// A decoder-only transformer on the characters of a text, from scratch.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The text [default: this crate's own sources]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Training steps
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Eager or traced: the numbers are the same
    #[arg(long, value_enum, default_value_t = Mode::Traced)]
    mode: Mode,
    /// Sequences per step
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Characters that the model sees at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=2048))]
    length: u32,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    layers: u32,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    heads: u32,
    /// Length of a character's vector, a multiple of the heads
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    width: u32,
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// The highest learning rate; it ends at a tenth of it
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Steps from one evaluation to the next [default: a tenth of the steps, at least 50]
    #[arg(long)]
    eval_every: Option<u64>,
    /// Characters to write at the end
    #[arg(long, default_value_t = 400)]
    sample: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPU threads a kernel may use [default: all that the process may run on]
    #[arg(long)]
    threads: Option<usize>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Mode {
    Eager,
    Traced,
}

/// A closure's runner: a step, or nothing but the call.
struct Runner(Option<jit::Step>);

impl Runner {
    fn new(mode: Mode) -> Runner {
        Runner((mode == Mode::Traced).then(jit::Step::new))
    }

    fn run<R>(&mut self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        match &mut self.0 {
            Some(step) => step.run(f),
            None => f(),
        }
    }
}

struct Trainer {
    model: Gpt,
    optimizer: AdamW,
    schedule: Schedule,
    device: Device,
    text: Text,
    random: Random,
    batch: usize,
    training: Runner,
    evaluation: Runner,
    sampling: Runner,
}

impl Trainer {
    fn new(args: &Args, text: Text, device: &Device) -> Result<Trainer> {
        let shape = Shape {
            vocabulary: text.vocabulary(),
            length: args.length as usize,
            layers: args.layers as usize,
            heads: args.heads as usize,
            width: args.width as usize,
        };
        let model = Gpt::new(shape, args.dropout, &Rng::seed_from(args.seed), device)?;
        let config = AdamWConfig { lr: args.lr, beta2: 0.99, weight_decay: 0.1, ..AdamWConfig::default() };
        let warm_up = (args.steps / 10).min(100);
        Ok(Trainer {
            optimizer: AdamW::new(model.parameters(), config)?,
            model,
            schedule: Schedule::cosine(args.lr, args.lr / 10.0, args.steps - warm_up).warm_up(warm_up),
            device: device.clone(),
            text,
            random: Random(args.seed),
            batch: args.batch as usize,
            training: Runner::new(args.mode),
            evaluation: Runner::new(args.mode),
            sampling: Runner::new(args.mode),
        })
    }

    /// Tokens that begin at `starts`, and the ones that follow them.
    fn tensors(&self, part: &[i64], starts: &[usize]) -> Result<(Tensor, Tensor)> {
        let length = self.model.shape.length;
        let take = |from: usize| starts.iter().flat_map(|s| &part[s + from..s + from + length]).copied().collect();
        let x = Tensor::from_vec(take(0), [starts.len(), length], &self.device)?;
        Ok((x, Tensor::from_vec(take(1), [starts.len() * length], &self.device)?))
    }

    /// One training step; the loss.
    fn step(&mut self, t: u64) -> Result<f32> {
        let room = self.text.training().len() - self.model.shape.length;
        let starts: Vec<usize> = (0..self.batch).map(|_| self.random.below(room)).collect();
        let (x, y) = self.tensors(self.text.training(), &starts)?;
        let Trainer { model, optimizer, schedule, training, .. } = self;
        let loss = training.run(|| {
            optimizer.set_lr(schedule.at(t)); // host code: runs at every step
            let loss = model.forward(&x)?.cross_entropy(&y)?;
            let (gradients, _norm) = clip_grad_norm(&loss.backward()?, 1.0)?;
            optimizer.step(&gradients)?;
            Ok(loss)
        })?;
        loss.item()
    }

    /// The mean loss over evenly spaced sequences of the held-out text.
    fn evaluate(&mut self) -> Result<f32> {
        const BATCHES: usize = 20;
        self.model.eval();
        let room = self.text.held_out().len() - self.model.shape.length;
        let mut sum = 0.0;
        for b in 0..BATCHES {
            let places = (0..self.batch).map(|i| (b * self.batch + i) * (room - 1) / (BATCHES * self.batch));
            let (x, y) = self.tensors(self.text.held_out(), &places.collect::<Vec<_>>())?;
            let Trainer { model, evaluation, .. } = &mut *self;
            sum += evaluation.run(|| model.forward(&x)?.cross_entropy(&y))?.item::<f32>()?;
        }
        self.model.train();
        Ok(sum / BATCHES as f32)
    }

    /// `count` characters that the model writes after the beginning of the held-out text.
    fn sample(&mut self, count: usize) -> Result<String> {
        const TEMPERATURE: f32 = 0.8;
        self.model.eval();
        let length = self.model.shape.length;
        let mut window: Vec<i64> = self.text.held_out()[..length].to_vec();
        let mut written = Vec::with_capacity(count);
        for _ in 0..count {
            let x = Tensor::from_vec(window.clone(), [1, length], &self.device)?;
            let Trainer { model, sampling, .. } = &mut *self;
            let scores = sampling.run(|| model.forward(&x)?.slice(0, length - 1, 1))?.to_vec::<f32>()?;
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| ((s - top) / TEMPERATURE).exp()).collect();
            let next = self.random.choose(&weights) as i64;
            written.push(next);
            window.rotate_left(1);
            window[length - 1] = next;
        }
        self.model.train();
        Ok(self.text.decode(&written))
    }
}

fn progress(args: &Args) -> ProgressBar {
    let target = if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(args.steps), target);
    let template = "  step {pos:>5}/{len} [{bar:40.cyan/blue}] {elapsed:>4} of {duration}  {msg}";
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
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let path = args.text.as_deref().unwrap_or(&sources);
    let text = Text::read(path).map_err(|e| Error::argument("--text", "a readable text", format!("{path:?}: {e}")))?;
    let shortest = 2 * args.length as usize + 2;
    if text.held_out().len() < shortest {
        let given = format!("{} held-out characters", text.held_out().len());
        return Err(Error::argument("--text", format!("at least {} characters", 10 * shortest), given));
    }
    let (characters, vocabulary) = (text.len(), text.vocabulary());
    let mut trainer = Trainer::new(&args, text, &device)?;
    let parameters: usize = trainer.model.parameters().iter().map(|p| p.shape().numel()).sum();
    if !args.json {
        println!("{characters} characters, {vocabulary} different ones; {parameters} parameters");
    }

    let every = args.eval_every.unwrap_or((args.steps / 10).max(50)).max(1);
    let bar = progress(&args);
    let (mut losses, mut times, mut held_out) = (Vec::new(), Vec::new(), f32::NAN);
    for t in 0..args.steps {
        let start = Instant::now();
        losses.push(trainer.step(t)?);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let recent = &losses[losses.len().saturating_sub(20)..];
        let mean = recent.iter().sum::<f32>() / recent.len() as f32;
        if (t + 1) % every == 0 || t + 1 == args.steps {
            held_out = trainer.evaluate()?;
            bar.println(format!("  step {:>5}: loss {mean:.3}, held out {held_out:.3}", t + 1));
        }
        bar.set_message(format!("loss {mean:.3}, {:.1} ms", times[times.len() - 1]));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let written = trainer.sample(args.sample)?;

    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let last = &losses[losses.len().saturating_sub(20)..];
    let loss = last.iter().sum::<f32>() / last.len() as f32;
    let report = trainer.training.0.as_ref().map(jit::Step::report).unwrap_or_default();
    if args.json {
        let line = serde_json::json!({
            "mode": format!("{:?}", args.mode).to_lowercase(), "steps": args.steps, "parameters": parameters,
            "characters": characters, "vocabulary": vocabulary, "first_loss": losses[0], "loss": loss,
            "held_out_loss": held_out, "step_ms": median, "recorded": report.recorded, "replayed": report.replayed,
            "ops": report.ops, "kernels": report.kernels, "launches": report.launches_per_call,
            "compile_ms": report.compile_time.as_secs_f64() * 1e3, "sample": written,
        });
        println!("{line}");
        return Ok(());
    }
    println!("loss {loss:.3}, held out {held_out:.3}; {median:.1} ms a step\n\n{written}\n");
    if args.mode == Mode::Traced {
        println!("{report}");
    }
    Ok(())
}
