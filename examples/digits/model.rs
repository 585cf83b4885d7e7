//! The network of `examples/digits.rs`, its training step, and the digits.

use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig};
use stepgraph::{Device, Result, Rng, Tensor};

const PIXELS: usize = 64;
const CLASSES: usize = 10;

pub struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Result<Mlp> {
        let rng = Rng::seed_from(1);
        Ok(Mlp { hidden: Linear::new(PIXELS, 128, &rng, device)?, output: Linear::new(128, CLASSES, &rng, device)? })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.hidden.forward(x)?.relu()?)
    }
}

stepgraph::nn::impl_module!(Mlp { hidden, output });

/// A model with its optimizer.
pub struct Trainer {
    pub model: Mlp,
    pub adam: Adam,
}

impl Trainer {
    pub fn new(device: &Device) -> Result<Trainer> {
        let model = Mlp::new(device)?;
        let adam = Adam::new(model.parameters(), AdamConfig::default())?;
        Ok(Trainer { model, adam })
    }

    /// The training step. The same code runs in all three modes.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.model.forward(x)?.cross_entropy(y)?;
        self.adam.step(&loss.backward()?)?;
        Ok(loss)
    }

    /// The bits of every `Var`: parameters, moments, step count, powers of the betas.
    pub fn bits(&self) -> Result<Vec<Vec<u8>>> {
        let vars = self.model.parameters().into_iter().chain(self.adam.state());
        vars.map(|v| Ok(v.get().to_host()?.data.to_bytes())).collect()
    }

    /// Share of the digits that the model knows.
    pub fn accuracy(&self, x: &Tensor, labels: &[i64]) -> Result<f64> {
        let scores = self.model.forward(x)?.to_vec::<f32>()?;
        let known = scores.chunks(CLASSES).zip(labels).filter(|(row, label)| {
            let best = (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
            best == Some(**label as usize)
        });
        Ok(known.count() as f64 / labels.len() as f64)
    }
}

/// Pixels from 0 to 1, and labels.
#[derive(Default)]
pub struct Digits {
    pub pixels: Vec<f32>,
    pub labels: Vec<i64>,
}

impl Digits {
    /// (training digits, held-out digits): every fifth is held out.
    pub fn load() -> (Digits, Digits) {
        let (mut train, mut held_out) = (Digits::default(), Digits::default());
        for (i, line) in include_str!("../data/digits.csv").lines().enumerate() {
            let part = if i % 5 == 0 { &mut held_out } else { &mut train };
            let mut row: Vec<i64> = line.split(',').filter_map(|v| v.trim().parse().ok()).collect();
            part.labels.extend(row.pop());
            part.pixels.extend(row.iter().map(|&v| v as f32 / 16.0));
        }
        (train, held_out)
    }

    pub fn tensors(&self, rows: &[usize], device: &Device) -> Result<(Tensor, Tensor)> {
        let pixels = rows.iter().flat_map(|r| &self.pixels[r * PIXELS..(r + 1) * PIXELS]).copied().collect();
        let labels = rows.iter().map(|&r| self.labels[r]).collect();
        let x = Tensor::from_vec(pixels, [rows.len(), PIXELS], device)?;
        Ok((x, Tensor::from_vec(labels, [rows.len()], device)?))
    }
}
