//! The model: GPT-2's architecture (Radford et al. 2019) without biases in its linear maps.

use stepgraph::nn::{self, Attention, Dropout, Embedding, LayerNorm, Linear};
use stepgraph::{Device, Error, Result, Rng, Tensor};

/// What the model is made for.
#[derive(Clone, Copy)]
pub struct Shape {
    pub vocabulary: usize,
    /// Tokens of a sequence.
    pub length: usize,
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
}

struct Block {
    attention_norm: LayerNorm,
    qkv: Linear,
    projection: Linear,
    hidden_norm: LayerNorm,
    hidden: Linear,
    output: Linear,
    dropout: Dropout,
    heads: usize,
}
nn::impl_module!(Block { attention_norm, qkv, projection, hidden_norm, hidden, output, dropout });

impl Block {
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let [batch, length, width] = *x.dims() else { unreachable!("[batch, length, width]") };
        let size = width / self.heads;
        let heads = |t: &Tensor| t.squeeze(2)?.permute(&[0, 2, 1, 3]);
        let parts = self.qkv.forward(x)?.reshape([batch, length, 3, self.heads, size])?.chunk(2, 3)?;
        let (q, k, v) = (heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?);
        let dropout = self.dropout.mode.is_training().then_some((self.dropout.p, &self.dropout.rng));
        let options = Attention { causal: true, dropout, ..Attention::default() };
        let mixed = q.scaled_dot_product_attention(&k, &v, &options)?;
        self.projection.forward(&mixed.permute(&[0, 2, 1, 3])?.reshape([batch, length, width])?)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let attended = self.attention(&self.attention_norm.forward(x)?)?;
        let x = x.add(self.dropout.forward(&attended)?)?;
        let hidden = self.hidden.forward(&self.hidden_norm.forward(&x)?)?.gelu_tanh()?;
        x.add(self.dropout.forward(&self.output.forward(&hidden)?)?)
    }
}

pub struct Gpt {
    pub shape: Shape,
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}
nn::impl_module!(Gpt { tokens, positions, dropout, blocks, norm, head });

impl Gpt {
    pub fn new(shape: Shape, dropout: f64, rng: &Rng, device: &Device) -> Result<Gpt> {
        let Shape { vocabulary, length, layers, heads, width } = shape;
        if !width.is_multiple_of(heads) {
            return Err(Error::argument("--width", format!("a multiple of the {heads} heads"), width.to_string()));
        }
        // Small normal weights; those that end a branch smaller still, as the sum over branches grows with their number.
        let linear = |inputs, outputs, std: f64| -> Result<Linear> {
            let layer = Linear::without_bias(inputs, outputs, rng, device)?;
            layer.weight.set(&nn::init::normal([inputs, outputs], std, rng, device)?)?;
            Ok(layer)
        };
        let embedding = |entries| -> Result<Embedding> {
            let layer = Embedding::new(entries, width, rng, device)?;
            layer.weight.set(&nn::init::normal([entries, width], 0.02, rng, device)?)?;
            Ok(layer)
        };
        let end = 0.02 / (2.0 * layers as f64).sqrt();
        let block = |_| -> Result<Block> {
            Ok(Block {
                attention_norm: LayerNorm::new([width], device)?,
                qkv: linear(width, 3 * width, 0.02)?,
                projection: linear(width, width, end)?,
                hidden_norm: LayerNorm::new([width], device)?,
                hidden: linear(width, 4 * width, 0.02)?,
                output: linear(4 * width, width, end)?,
                dropout: Dropout::new(dropout, rng),
                heads,
            })
        };
        Ok(Gpt {
            shape,
            tokens: embedding(vocabulary)?,
            positions: embedding(length)?,
            dropout: Dropout::new(dropout, rng),
            blocks: (0..layers).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new([width], device)?,
            head: linear(width, vocabulary, 0.02)?,
        })
    }

    /// Scores `[batch * length, vocabulary]` of what follows each token of i64 `[batch, length]`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let embedded = self.tokens.forward(tokens)?.add(self.positions.weight.get())?;
        let mut x = self.dropout.forward(&embedded)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        let scores = self.head.forward(&self.norm.forward(&x)?)?;
        scores.reshape([scores.numel() / self.shape.vocabulary, self.shape.vocabulary])
    }
}
