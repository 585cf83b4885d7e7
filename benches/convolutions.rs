//! Convolutions and pooling, forward and backward, in traced steps.
//!
//! `cargo bench --bench convolutions`. Prints a table; all rows take turns in one run, and the fastest of 30 calls counts, which other work on the
//! machine disturbs least.

use std::time::Instant;

use stepgraph::nn::{Convolution, Pooling};
use stepgraph::{Device, Result, Rng, Tensor, Var, jit};

fn fastest(times: Vec<f64>) -> f64 {
    times.into_iter().fold(f64::INFINITY, f64::min)
}

type Layer = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

/// An input, a weight (nothing, of a pool) and the layer.
struct Row {
    name: &'static str,
    x: Var,
    weight: Var,
    layer: Layer,
    /// Multiplications and additions of the forward pass.
    flops: f64,
    forward: jit::Step,
    whole: jit::Step,
}

impl Row {
    fn new(name: &'static str, x: &[usize], weight: &[usize], layer: Layer, device: &Device) -> Result<Row> {
        let rng = Rng::seed_from(1);
        let draw = |dims: &[usize]| Var::new(&rng.uniform(dims, device)?.sub(0.5)?);
        let (x, weight) = (draw(x)?, draw(weight)?);
        let y = layer(&x.get(), &weight.get())?;
        // Each element of the result is a sum of as many products as a weight has for one output.
        let products: usize = weight.shape().dims().iter().skip(1).product();
        let flops = if weight.shape().rank() == 1 { 0.0 } else { 2.0 * (products * y.numel()) as f64 };
        Ok(Row { name, x, weight, layer, flops, forward: jit::Step::new(), whole: jit::Step::new() })
    }

    /// One call without gradients and one with those of the input and the weight; seconds.
    fn run(&mut self) -> Result<(f64, f64)> {
        let start = Instant::now();
        self.forward.run(|| (self.layer)(&self.x.get(), &self.weight.get()))?;
        let forward = start.elapsed().as_secs_f64();
        let start = Instant::now();
        self.whole.run(|| {
            let y = (self.layer)(&self.x.get(), &self.weight.get())?;
            let gradients = y.mul(&y)?.sum(())?.backward()?;
            Ok((gradients.get(&self.x), gradients.get(&self.weight)))
        })?;
        Ok((forward, start.elapsed().as_secs_f64()))
    }
}

fn conv(stride: usize, padding: usize, groups: usize) -> Layer {
    let options = Convolution { stride: [stride; 2], padding: [padding; 2], groups, ..Convolution::default() };
    Box::new(move |x, w| x.conv2d(w, None, &options))
}

fn rows(device: &Device) -> Result<Vec<Row>> {
    let pool =
        |size, stride, padding| Pooling { stride: [stride; 2], padding: [padding; 2], ..Pooling::new([size; 2]) };
    let (two, three) = (pool(2, 2, 0), pool(3, 2, 1));
    let row = |name, x: &[usize], w: &[usize], layer| Row::new(name, x, w, layer, device);
    Ok(vec![
        row("3x3, 16 to 32 channels, 32 x 28 x 28", &[32, 16, 28, 28], &[32, 16, 3, 3], conv(1, 1, 1))?,
        row("3x3, 64 to 64 channels, 8 x 28 x 28", &[8, 64, 28, 28], &[64, 64, 3, 3], conv(1, 1, 1))?,
        row("1x1, 64 to 128 channels, 8 x 28 x 28", &[8, 64, 28, 28], &[128, 64, 1, 1], conv(1, 0, 1))?,
        row("3x3 stride 2, 32 to 64 channels, 8 x 28 x 28", &[8, 32, 28, 28], &[64, 32, 3, 3], conv(2, 1, 1))?,
        row("7x7 stride 2, 3 to 32 channels, 4 x 112 x 112", &[4, 3, 112, 112], &[32, 3, 7, 7], conv(2, 3, 1))?,
        row("3x3 depthwise, 64 channels, 8 x 28 x 28", &[8, 64, 28, 28], &[64, 1, 3, 3], conv(1, 1, 64))?,
        row(
            "max pool 2x2, 32 channels, 32 x 28 x 28",
            &[32, 32, 28, 28],
            &[1],
            Box::new(move |x, _| x.max_pool2d(&two)),
        )?,
        row(
            "max pool 3x3 stride 2, 32 x 32 x 28 x 28",
            &[32, 32, 28, 28],
            &[1],
            Box::new(move |x, _| x.max_pool2d(&three)),
        )?,
        row(
            "avg pool 3x3 stride 2, 32 x 32 x 28 x 28",
            &[32, 32, 28, 28],
            &[1],
            Box::new(move |x, _| x.avg_pool2d(&three)),
        )?,
    ])
}

fn main() -> Result<()> {
    let mut rows = rows(&Device::cpu())?;
    let mut times = vec![(Vec::new(), Vec::new()); rows.len()];
    for k in 0..33 {
        for (row, times) in rows.iter_mut().zip(&mut times) {
            let (forward, whole) = row.run()?;
            // The first calls record and compile.
            if k > 2 {
                times.0.push(forward * 1e3);
                times.1.push(whole * 1e3);
            }
        }
    }
    println!("| | forward, ms | GFLOP/s | forward and backward, ms | kernels |\n|---|---|---|---|---|");
    for (row, (forward, whole)) in rows.iter().zip(times) {
        let (forward, whole) = (fastest(forward), fastest(whole));
        let rate = if row.flops > 0.0 { format!("{:.0}", row.flops / forward / 1e6) } else { String::new() };
        let kernels = (row.forward.report().kernels, row.whole.report().kernels);
        println!("| {} | {forward:.2} | {rate} | {whole:.2} | {}, {} |", row.name, kernels.0, kernels.1);
    }
    Ok(())
}
