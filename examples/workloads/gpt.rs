//! W5 of `benches/peers/README.md`: a decoder-only transformer of four layers and its AdamW step.

use stepgraph::{DType, Device, Result, Tensor, Var};

use crate::items::{gelu, integers, layer_norm, uniform};

const LAYERS: usize = 4;
const HEADS: usize = 4;
const WIDTH: usize = 128;
const LENGTH: usize = 64;
const BATCH: usize = 12;
const VOCABULARY: usize = 65;

/// Learning rate, decay of the moments, epsilon, weight decay (of every parameter).
const LR: f64 = 1e-3;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.99;
const EPS: f64 = 1e-8;
const DECAY: f64 = 0.1;

/// A gain and a bias over the last axis.
struct Norm {
    gain: Var,
    bias: Var,
}

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.gain.get(), &self.bias.get())
    }
}

struct Layer {
    attention_norm: Norm,
    qkv: Var,
    projection: Var,
    hidden_norm: Norm,
    hidden: Var,
    output: Var,
}

/// W5: one training step on a resident batch.
pub struct Gpt {
    tokens: Tensor,
    targets: Tensor,
    /// True where a position may look: `[LENGTH, LENGTH]`, the lower triangle.
    visible: Tensor,
    embedding: Var,
    positions: Var,
    layers: Vec<Layer>,
    norm: Norm,
    head: Var,
    adam: AdamW,
}

impl Gpt {
    pub fn new(device: &Device) -> Result<Gpt> {
        // Parameters in the order in which the peers number their seeds.
        let mut parameters = Vec::new();
        let mut seed = 100;
        let mut weight = |shape: [usize; 2], parameters: &mut Vec<Var>| {
            seed += 1;
            let scale = 0.02 * 3.0f64.sqrt();
            let values = uniform(seed, shape[0] * shape[1], scale as f32, 0.0);
            let var = Var::new(&Tensor::from_vec(values, shape, device)?)?;
            parameters.push(var.clone());
            Ok::<_, stepgraph::Error>(var)
        };
        let norm = |parameters: &mut Vec<Var>| {
            let gain = Var::new(&Tensor::ones([WIDTH], DType::F32, device)?)?;
            let bias = Var::new(&Tensor::zeros([WIDTH], DType::F32, device)?)?;
            parameters.extend([gain.clone(), bias.clone()]);
            Ok::<_, stepgraph::Error>(Norm { gain, bias })
        };
        let embedding = weight([VOCABULARY, WIDTH], &mut parameters)?;
        let positions = weight([LENGTH, WIDTH], &mut parameters)?;
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            layers.push(Layer {
                attention_norm: norm(&mut parameters)?,
                qkv: weight([WIDTH, 3 * WIDTH], &mut parameters)?,
                projection: weight([WIDTH, WIDTH], &mut parameters)?,
                hidden_norm: norm(&mut parameters)?,
                hidden: weight([WIDTH, 4 * WIDTH], &mut parameters)?,
                output: weight([4 * WIDTH, WIDTH], &mut parameters)?,
            });
        }
        let norm = norm(&mut parameters)?;
        let head = weight([WIDTH, VOCABULARY], &mut parameters)?;

        let drawn = integers(3, BATCH * (LENGTH + 1), VOCABULARY as i64);
        let rows = || drawn.chunks(LENGTH + 1);
        let tokens = rows().flat_map(|r| &r[..LENGTH]).copied().collect();
        let targets = rows().flat_map(|r| &r[1..]).copied().collect();
        let visible = (0..LENGTH).flat_map(|i| (0..LENGTH).map(move |j| j <= i)).collect();
        Ok(Gpt {
            tokens: Tensor::from_vec(tokens, [BATCH * LENGTH], device)?,
            targets: Tensor::from_vec(targets, [BATCH * LENGTH], device)?,
            visible: Tensor::from_vec(visible, [LENGTH, LENGTH], device)?,
            embedding,
            positions,
            layers,
            norm,
            head,
            adam: AdamW::new(parameters, device)?,
        })
    }

    fn attention(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let size = WIDTH / HEADS;
        // [3, BATCH, HEADS, LENGTH, size]
        let qkv = x.matmul(&layer.qkv.get())?.reshape([BATCH, LENGTH, 3, HEADS, size])?.permute(&[2, 0, 3, 1, 4])?;
        let part = |i| qkv.slice(0, i, 1)?.squeeze(0);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = q.matmul(&k.transpose(-1, -2)?)?.mul(1.0 / (size as f64).sqrt())?;
        let weights = self.visible.select(&scores, f32::NEG_INFINITY)?.softmax(-1)?;
        let mixed = weights.matmul(&v)?.permute(&[0, 2, 1, 3])?.reshape([BATCH, LENGTH, WIDTH])?;
        mixed.matmul(&layer.projection.get())
    }

    fn loss(&self) -> Result<Tensor> {
        let tokens = self.embedding.get().index_select(0, &self.tokens)?;
        let mut x = tokens.reshape([BATCH, LENGTH, WIDTH])?.add(self.positions.get())?;
        for layer in &self.layers {
            x = x.add(&self.attention(layer, &layer.attention_norm.forward(&x)?)?)?;
            let hidden = layer.hidden_norm.forward(&x)?.matmul(&layer.hidden.get())?;
            x = x.add(&gelu(&hidden)?.matmul(&layer.output.get())?)?;
        }
        let logits = self.norm.forward(&x)?.matmul(&self.head.get())?;
        logits.reshape([BATCH * LENGTH, VOCABULARY])?.cross_entropy(&self.targets)
    }

    /// One step; the loss.
    pub fn run(&mut self) -> Result<Tensor> {
        let loss = self.loss()?;
        self.adam.step(&loss)?;
        Ok(loss)
    }

    pub fn vars(&self) -> Vec<Var> {
        self.adam.vars()
    }
}

/// AdamW (Loshchilov and Hutter 2019): `p ← p (1 - lr wd) - lr m̂ / (√v̂ + ε)`.
struct AdamW {
    parameters: Vec<Var>,
    first: Vec<Var>,
    second: Vec<Var>,
    beta1_power: Var,
    beta2_power: Var,
}

impl AdamW {
    fn new(parameters: Vec<Var>, device: &Device) -> Result<AdamW> {
        let zeros = || -> Result<Vec<Var>> {
            parameters.iter().map(|p| Var::state(&Tensor::zeros(p.shape(), p.dtype(), device)?)).collect()
        };
        let one = || Var::state(&Tensor::ones((), DType::F32, device)?);
        Ok(AdamW { first: zeros()?, second: zeros()?, beta1_power: one()?, beta2_power: one()?, parameters })
    }

    fn step(&mut self, loss: &Tensor) -> Result<()> {
        let gradients = loss.backward()?;
        let power = |var: &Var, beta: f64| {
            let next = var.get().mul(beta)?;
            var.set(&next)?;
            1.0 - next
        };
        let (c1, c2) = (power(&self.beta1_power, BETA1)?, power(&self.beta2_power, BETA2)?);
        for ((p, m), v) in self.parameters.iter().zip(&self.first).zip(&self.second) {
            let Some(g) = gradients.get(p) else { continue };
            let first = m.get().mul(BETA1)?.add(&g.mul(1.0 - BETA1)?)?;
            let second = v.get().mul(BETA2)?.add(&g.mul(&g)?.mul(1.0 - BETA2)?)?;
            let update = first.div(&c1)?.div(&second.div(&c2)?.sqrt()?.add(EPS)?)?.mul(LR)?;
            p.set(&p.get().mul(1.0 - LR * DECAY)?.sub(&update)?)?;
            m.set(&first)?;
            v.set(&second)?;
        }
        Ok(())
    }

    fn vars(&self) -> Vec<Var> {
        let powers = [&self.beta1_power, &self.beta2_power];
        self.parameters.iter().chain(&self.first).chain(&self.second).chain(powers).cloned().collect()
    }
}
