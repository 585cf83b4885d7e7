//! What leaving a recorded path costs, what many paths cost in the long run, and how long it takes to record and compile many ops.
//!
//! `cargo bench --bench tracer`. Prints a table; both sides of a ratio take turns in one run.

use std::time::Instant;

use stepgraph::{DType, Device, Result, Rng, Tensor, Var, jit, optim};

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A training step of 64-128-10 on `rows` rows; `extra` ops of a kind never seen before at its end.
struct Item {
    weights: Vec<Var>,
    adam: optim::Adam,
    x: Tensor,
    y: Tensor,
}

impl Item {
    fn new(rows: usize, device: &Device) -> Result<Item> {
        let rng = Rng::seed_from(1);
        let uniform = |shape: &[usize]| rng.uniform(shape, device)?.sub(0.5)?.mul(0.2);
        let shapes: [&[usize]; 4] = [&[64, 128], &[128], &[128, 10], &[10]];
        let weights = shapes.iter().map(|s| Var::new(&uniform(s)?)).collect::<Result<Vec<_>>>()?;
        Ok(Item {
            adam: optim::Adam::new(weights.clone(), optim::AdamConfig::default())?,
            weights,
            x: uniform(&[rows, 64])?,
            y: Tensor::zeros([rows], DType::I64, device)?,
        })
    }

    fn step(&mut self, new_shape: Option<usize>) -> Result<Tensor> {
        let w: Vec<Tensor> = self.weights.iter().map(|w| w.get()).collect();
        let hidden = self.x.matmul(&w[0])?.add(&w[1])?.relu()?;
        let loss = hidden.matmul(&w[2])?.add(&w[3])?.cross_entropy(&self.y)?;
        self.adam.step(&loss.backward()?)?;
        match new_shape {
            Some(n) => loss.expand([n])?.sum(()),
            None => Ok(loss),
        }
    }
}

/// The time of a call that leaves its path at the last op, against the same call run eagerly.
fn divergence() -> Result<()> {
    let device = Device::cpu();
    let (mut eager, mut traced) = (Item::new(64, &device)?, Item::new(64, &device)?);
    let mut step = jit::Step::new();
    let (mut left, mut plain) = (Vec::new(), Vec::new());
    for k in 0..400 {
        // Mostly replays, so that the step does not take it for a storm.
        let new = (k % 4 == 3).then_some(k + 2);
        let start = Instant::now();
        let loss = step.run(|| traced.step(new))?;
        let took = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let same = eager.step(new)?;
        if new.is_some() {
            left.push(took);
            plain.push(start.elapsed().as_secs_f64());
        }
        assert_eq!(loss.item::<f32>()?.to_bits(), same.item::<f32>()?.to_bits());
    }
    let (left, plain) = (median(left) * 1e6, median(plain) * 1e6);
    println!("divergence at the last op: {left:.1} µs, eager {plain:.1} µs, ratio {:.2}", left / plain);
    Ok(())
}

/// Resident memory of the process in KiB; 0 where the system does not tell.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// 100,000 calls over 50 shapes in turn.
fn rotation() -> Result<()> {
    let device = Device::cpu();
    let inputs = (1..=50).map(|n| Tensor::ones([n, 16], DType::F32, &device)).collect::<Result<Vec<_>>>()?;
    let weight = Var::new(&Tensor::full([16, 4], 0.01, &device)?)?;
    let mut step = jit::Step::new();
    let mut before = 0.0;
    let start = Instant::now();
    for k in 0..100_000 {
        let x = &inputs[k % 50];
        step.run(|| {
            let loss = x.matmul(&weight.get())?.tanh()?.mean(())?;
            let grads = loss.backward()?;
            match grads.get(&weight) {
                Some(g) => weight.set(&weight.get().sub(&g.mul(1e-3)?)?),
                None => Ok(()),
            }
        })?;
        if k + 1 == 10_000 {
            before = resident();
        }
    }
    let (after, took) = (resident(), start.elapsed().as_secs_f64());
    let report = step.report();
    println!(
        "100,000 calls over 50 shapes: {:.2} µs a call, {} recorded, {} eager, {} plans compiled, {} evicted",
        took * 10.0,
        report.recorded,
        report.eager,
        report.compiles,
        report.evicted
    );
    println!("resident memory after 10,000 calls {before} KiB, after 100,000 {after} KiB, ratio {:.4}", after / before);
    Ok(())
}

/// Recording and compiling one chain of so many ops, each the fastest of seven steps that take turns.
fn depth() -> Result<()> {
    let device = Device::cpu();
    let x = Tensor::ones([64], DType::F32, &device)?;
    let sizes = [5_000, 10_000, 20_000];
    let mut times = vec![(Vec::new(), Vec::new(), Vec::new()); sizes.len()];
    let mut kernels = 0;
    for _ in 0..7 {
        for (ops, (record, second, compile)) in sizes.iter().zip(&mut times) {
            let chain = || (0..ops / 2).try_fold(x.clone(), |y, _| y.mul(0.999)?.add(0.001));
            let mut step = jit::Step::new();
            let mut call = || -> Result<f64> {
                let start = Instant::now();
                step.run(chain)?;
                Ok(start.elapsed().as_secs_f64())
            };
            record.push(call()?);
            second.push(call()?);
            compile.push(step.report().compile_time.as_secs_f64());
            kernels = step.report().kernels;
        }
    }
    let mut before = None;
    for (ops, (record, second, compile)) in sizes.iter().zip(times) {
        let [record, second, compile] =
            [record, second, compile].map(|t: Vec<f64>| t.into_iter().fold(f64::INFINITY, f64::min) * 1e3);
        let whole = record + second;
        let ratio = before.replace(whole).map_or(String::new(), |b: f64| format!(", {:.2} times the half", whole / b));
        println!("chain of {ops} ops: first call {record:.1} ms, second {second:.1} (compilation {compile:.1}){ratio}");
    }
    println!("the longest: {kernels} kernels");
    Ok(())
}

fn main() -> Result<()> {
    divergence()?;
    depth()?;
    rotation()
}
