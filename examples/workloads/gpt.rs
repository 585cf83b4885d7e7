//! W5 of `benches/peers/README.md`: a decoder-only transformer of four layers and its AdamW step.

use stepgraph::nn::{self, Attention, LayerNorm, Linear, Module};
use stepgraph::optim::{AdamW, AdamWConfig};
use stepgraph::{Device, Result, Tensor, Var};

use crate::items::{integers, uniform};

const LAYERS: usize = 4;
const HEADS: usize = 4;
const WIDTH: usize = 128;
const LENGTH: usize = 64;
const BATCH: usize = 12;
const VOCABULARY: usize = 65;

/// The peers' optimizer; the decay is of every parameter.
const ADAMW: AdamWConfig = AdamWConfig { lr: 1e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };

/// A position looks at itself and at those before it.
const CAUSAL: Attention<'static> = Attention { mask: None, causal: true, scale: None, dropout: None };

nn::module! {
    struct Layer {
        attention_norm: LayerNorm,
        qkv: Linear,
        projection: Linear,
        hidden_norm: LayerNorm,
        hidden: Linear,
        output: Linear,
    }
}

nn::module! {
    /// The parameters.
    struct Model {
        embedding: Var,
        positions: Var,
        layers: Vec<Layer>,
        norm: LayerNorm,
        head: Linear,
    }
}

/// W5: one training step on a resident batch.
pub struct Gpt {
    tokens: Tensor,
    targets: Tensor,
    model: Model,
    adam: AdamW,
}

impl Gpt {
    pub fn new(device: &Device) -> Result<Gpt> {
        let mut seed = 100;
        // In the order in which the peers number their seeds.
        let mut weight = |shape: [usize; 2]| {
            seed += 1;
            let values = uniform(seed, shape[0] * shape[1], (0.02 * 3.0f64.sqrt()) as f32, 0.0);
            Var::new(&Tensor::from_vec(values, shape, device)?)
        };
        let norm = || LayerNorm::new([WIDTH], device);
        let (embedding, positions) = (weight([VOCABULARY, WIDTH])?, weight([LENGTH, WIDTH])?);
        let mut linear =
            |inputs, outputs| -> Result<Linear> { Ok(Linear { weight: weight([inputs, outputs])?, bias: None }) };
        let layer = |_| -> Result<Layer> {
            Ok(Layer {
                attention_norm: norm()?,
                qkv: linear(WIDTH, 3 * WIDTH)?,
                projection: linear(WIDTH, WIDTH)?,
                hidden_norm: norm()?,
                hidden: linear(WIDTH, 4 * WIDTH)?,
                output: linear(4 * WIDTH, WIDTH)?,
            })
        };
        let layers = (0..LAYERS).map(layer).collect::<Result<_>>()?;
        let model = Model { embedding, positions, layers, norm: norm()?, head: linear(WIDTH, VOCABULARY)? };

        let drawn = integers(3, BATCH * (LENGTH + 1), VOCABULARY as i64);
        let rows = || drawn.chunks(LENGTH + 1);
        let tokens = rows().flat_map(|r| &r[..LENGTH]).copied().collect();
        let targets = rows().flat_map(|r| &r[1..]).copied().collect();
        Ok(Gpt {
            tokens: Tensor::from_vec(tokens, [BATCH, LENGTH], device)?,
            targets: Tensor::from_vec(targets, [BATCH * LENGTH], device)?,
            adam: AdamW::new(model.parameters(), ADAMW)?,
            model,
        })
    }

    fn attention(layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let size = WIDTH / HEADS;
        let heads = |t: &Tensor| t.squeeze(2)?.permute(&[0, 2, 1, 3]);
        let parts = layer.qkv.forward(x)?.reshape([BATCH, LENGTH, 3, HEADS, size])?.chunk(2, 3)?;
        let (q, k, v) = (heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?);
        let mixed = q.scaled_dot_product_attention(&k, &v, &CAUSAL)?;
        layer.projection.forward(&mixed.permute(&[0, 2, 1, 3])?.reshape([BATCH, LENGTH, WIDTH])?)
    }

    fn loss(&self) -> Result<Tensor> {
        let model = &self.model;
        let mut x = model.embedding.get().embedding(&self.tokens)?.add(model.positions.get())?;
        for layer in &model.layers {
            x = x.add(&Gpt::attention(layer, &layer.attention_norm.forward(&x)?)?)?;
            let hidden = layer.hidden.forward(&layer.hidden_norm.forward(&x)?)?.gelu_tanh()?;
            x = x.add(&layer.output.forward(&hidden)?)?;
        }
        let logits = model.head.forward(&model.norm.forward(&x)?)?;
        logits.reshape([BATCH * LENGTH, VOCABULARY])?.cross_entropy(&self.targets)
    }

    /// One step; the loss.
    pub fn run(&mut self) -> Result<Tensor> {
        let loss = self.loss()?;
        self.adam.step(&loss.backward()?)?;
        Ok(loss)
    }

    pub fn vars(&self) -> Vec<Var> {
        [self.model.parameters(), self.adam.state()].concat()
    }
}
