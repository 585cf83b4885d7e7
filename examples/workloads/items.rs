//! The workloads but W5 of `benches/peers/README.md`: shapes, data and steps.
//! Shared by `examples/workloads.rs` and the benchmarks.

use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig};
use stepgraph::{Device, Result, Tensor, Var};

pub const W1_SIZES: [usize; 4] = [1 << 10, 1 << 16, 1 << 20, 1 << 24];
pub const W2_SIZES: [usize; 2] = [1 << 20, 1 << 24];
pub const W2_REPEATS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
pub const W3_N: usize = 1024;
pub const W3_OPS: usize = 50;
pub const W3_TINY: usize = 16;
pub const W4_BATCHES: [usize; 3] = [1, 32, 512];
pub const W6_SHAPE: [usize; 2] = [4096, 1024];
pub const W7_SHAPES: [[usize; 3]; 4] = [[512, 512, 512], [1024, 1024, 1024], [2048, 2048, 2048], [32, 784, 128]];

/// splitmix64(seed * 2^32 + i) mapped to [-1, 1), times `scale` plus `shift`: the peers' generator.
pub fn uniform(seed: u64, n: usize, scale: f32, shift: f32) -> Vec<f32> {
    const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
    let draw = |i: u64| {
        let mut z = (i + (seed << 32)).wrapping_mul(GAMMA).wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 40) as f32 / 8_388_608.0 - 1.0) * scale + shift
    };
    (0..n as u64).map(draw).collect()
}

/// Integers below `limit`, from the same generator.
pub fn integers(seed: u64, n: usize, limit: i64) -> Vec<i64> {
    let scaled = |u: f32| (((u + 1.0) * 0.5 * limit as f32) as i64).min(limit - 1);
    uniform(seed, n, 1.0, 0.0).into_iter().map(scaled).collect()
}

/// W1: `cos(cos(x))`.
pub struct CosCos(Tensor);

impl CosCos {
    pub fn new(n: usize, device: &Device) -> Result<CosCos> {
        Ok(CosCos(Tensor::from_vec(uniform(1, n, 1.0, 0.0), [n], device)?))
    }

    pub fn run(&self) -> Result<Tensor> {
        self.0.cos()?.cos()
    }
}

/// W2: `x * 2`, `repeats` times.
pub struct Doubling {
    x: Tensor,
    repeats: usize,
}

impl Doubling {
    pub fn new(n: usize, repeats: usize, device: &Device) -> Result<Doubling> {
        Ok(Doubling { x: Tensor::from_vec(uniform(1, n, 1.0, 0.0), [n], device)?, repeats })
    }

    pub fn run(&self) -> Result<Tensor> {
        let mut z = self.x.clone();
        for _ in 0..self.repeats {
            z = z.mul(2.0f32)?;
        }
        Ok(z)
    }
}

/// W3: a chain of pointwise operations on a small tensor.
pub struct Chain {
    x: Tensor,
    y: Tensor,
    only_add: bool,
    ops: usize,
}

impl Chain {
    /// W3_chain50: `+ y`, `* y`, `tanh`, `relu` in turn.
    pub fn mixed(n: usize, device: &Device) -> Result<Chain> {
        let x = Tensor::from_vec(uniform(1, n, 1.0, 0.0), [n], device)?;
        let y = Tensor::from_vec(uniform(2, n, 0.5, 1.0), [n], device)?;
        Ok(Chain { x, y, only_add: false, ops: W3_OPS })
    }

    /// W3_add50 for `ops` = 50: `+ y`, `ops` times.
    pub fn adds(n: usize, ops: usize, device: &Device) -> Result<Chain> {
        let x = Tensor::from_vec(uniform(1, n, 1.0, 0.0), [n], device)?;
        let y = Tensor::from_vec(uniform(2, n, 1.0, 0.0), [n], device)?;
        Ok(Chain { x, y, only_add: true, ops })
    }

    pub fn run(&self) -> Result<Tensor> {
        let mut z = self.x.clone();
        for i in 0..self.ops {
            z = match i % 4 {
                _ if self.only_add => z.add(&self.y),
                0 => z.add(&self.y),
                1 => z.mul(&self.y),
                2 => z.tanh(),
                _ => z.relu(),
            }?;
        }
        Ok(z)
    }
}

/// W4: one training step of a 784-128-10 network with Adam on a resident batch.
pub struct Training {
    x: Tensor,
    y: Tensor,
    hidden: Linear,
    output: Linear,
    adam: Adam,
    /// Parameters and the optimizer's state.
    pub vars: Vec<Var>,
}

impl Training {
    pub fn new(batch: usize, device: &Device) -> Result<Training> {
        let layer = |seed, inputs: usize, outputs: usize| {
            let bound = 1.0 / (inputs as f32).sqrt();
            let var = |seed, shape: &[usize]| {
                let values = uniform(seed, shape.iter().product(), bound, 0.0);
                Var::new(&Tensor::from_vec(values, shape, device)?)
            };
            Ok::<_, stepgraph::Error>(Linear {
                weight: var(seed, &[inputs, outputs])?,
                bias: Some(var(seed + 1, &[outputs])?),
            })
        };
        let (hidden, output) = (layer(11, 784, 128)?, layer(13, 128, 10)?);
        let parameters = [hidden.parameters(), output.parameters()].concat();
        let adam = Adam::new(parameters.clone(), AdamConfig::default())?;
        Ok(Training {
            x: Tensor::from_vec(uniform(1, batch * 784, 1.0, 0.0), [batch, 784], device)?,
            y: Tensor::from_vec(integers(2, batch, 10), [batch], device)?,
            vars: parameters.into_iter().chain(adam.state()).collect(),
            hidden,
            output,
            adam,
        })
    }

    /// One step; the loss.
    pub fn run(&mut self) -> Result<Tensor> {
        let hidden = self.hidden.forward(&self.x)?.relu()?;
        let loss = self.output.forward(&hidden)?.cross_entropy(&self.y)?;
        self.adam.step(&loss.backward()?)?;
        Ok(loss)
    }
}

/// W6: `x + gelu(layernorm(x))`.
pub struct NormGelu {
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
}

impl NormGelu {
    pub fn new([m, n]: [usize; 2], device: &Device) -> Result<NormGelu> {
        Ok(NormGelu {
            x: Tensor::from_vec(uniform(1, m * n, 1.0, 0.0), [m, n], device)?,
            gain: Tensor::from_vec(uniform(2, n, 0.1, 1.0), [n], device)?,
            bias: Tensor::from_vec(uniform(3, n, 0.1, 0.0), [n], device)?,
        })
    }

    pub fn run(&self) -> Result<Tensor> {
        let normed = self.x.layer_norm(-1, Some(&self.gain), Some(&self.bias), 1e-5)?;
        self.x.add(&normed.gelu_tanh()?)
    }
}

/// W6: softmax over the last axis.
pub struct Softmax(Tensor);

impl Softmax {
    pub fn new([m, n]: [usize; 2], device: &Device) -> Result<Softmax> {
        Ok(Softmax(Tensor::from_vec(uniform(1, m * n, 1.0, 0.0), [m, n], device)?))
    }

    pub fn run(&self) -> Result<Tensor> {
        self.0.softmax(-1)
    }
}

/// W7: a product of matrices, m x k by k x n.
pub struct Product {
    a: Tensor,
    b: Tensor,
}

impl Product {
    pub fn new([m, k, n]: [usize; 3], device: &Device) -> Result<Product> {
        Ok(Product {
            a: Tensor::from_vec(uniform(1, m * k, 1.0, 0.0), [m, k], device)?,
            b: Tensor::from_vec(uniform(2, k * n, 1.0, 0.0), [k, n], device)?,
        })
    }

    pub fn run(&self) -> Result<Tensor> {
        self.a.matmul(&self.b)
    }
}

/// Calls `step` until it can be frozen.
pub fn freeze<R>(
    step: &mut stepgraph::jit::Step,
    mut run: impl FnMut() -> Result<R>,
) -> Result<stepgraph::jit::Frozen> {
    for _ in 0..3 {
        step.run(&mut run)?;
    }
    step.freeze().or_else(|_| {
        step.run(&mut run)?;
        step.freeze()
    })
}
