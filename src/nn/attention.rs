//! Attention layers.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::nn::{Dropout, Linear, impl_module, init};
use crate::tensor::composite::Attention;
use crate::tensor::{Device, Rng, Tensor, Var};

/// Self attention with several heads (Vaswani et al. 2017): [`Tensor::scaled_dot_product_attention`] of each head, between two linear maps.
///
/// ```
/// use stepgraph::nn::MultiHeadAttention;
/// # use stepgraph::{Device, Result, Rng};
/// # fn main() -> Result<()> {
/// let (rng, device) = (Rng::seed_from(0), Device::cpu());
/// let mut layer = MultiHeadAttention::new(8, 2, &rng, &device)?;
/// layer.causal = true;
/// assert_eq!(layer.forward(&rng.normal([3, 5, 8], &device)?, None)?.dims(), [3, 5, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// `[width, 3 width]`: queries, keys and values, each of all heads in order.
    pub input: Linear,
    /// `[width, width]`.
    pub output: Linear,
    /// Of the attention weights; by default none.
    pub dropout: Dropout,
    /// Heads, each of `width / heads`.
    pub heads: usize,
    /// A place looks only at itself and those before.
    pub causal: bool,
}
impl_module!(MultiHeadAttention { input, output, dropout });

impl MultiHeadAttention {
    /// PyTorch's defaults: input weights of Xavier's uniform distribution, output weights as [`Linear::new`], biases 0; no dropout, not
    /// causal. f32.
    ///
    /// Errors: a width that is no multiple of the heads.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let attention = nn::MultiHeadAttention::new(8, 2, &rng, device)?;
    /// assert_eq!(attention.heads, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(width: usize, heads: usize, rng: &Rng, device: &Device) -> Result<MultiHeadAttention> {
        let _scope = Scope::enter();
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            let expected = "a width that is a multiple of the heads, both above 0";
            let given = format!("a width of {width} and {heads} heads");
            return Err(Error::argument("MultiHeadAttention::new", expected, given).at(Loc::caller()));
        }
        let zeros = |n: usize| Var::new(&Tensor::zeros([n], DType::F32, device)?).map(Some);
        let weight = Var::new(&init::xavier_uniform([width, 3 * width], width, 3 * width, rng, device)?)?;
        let output = Linear { bias: zeros(width)?, ..Linear::without_bias(width, width, rng, device)? };
        Ok(MultiHeadAttention {
            input: Linear { weight, bias: zeros(3 * width)? },
            output,
            dropout: Dropout::new(0.0, rng),
            heads,
            causal: false,
        })
    }

    /// `x` is `[n, length, width]`, as is the result; `mask` as in [`Attention::mask`], of `[n, heads, length, length]`.
    ///
    /// Errors: an input of another shape; a mask that does not broadcast.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let attention = nn::MultiHeadAttention::new(8, 2, &rng, device)?;
    /// let x = rng.normal([3, 5, 8], device)?;
    /// assert_eq!(attention.forward(&x, None)?.dims(), [3, 5, 8]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let _scope = Scope::enter();
        let width = self.output.weight.shape()[0];
        let &[n, length, given] = x.dims() else {
            return Err(self.wrong(x, width));
        };
        if given != width || self.heads == 0 || !width.is_multiple_of(self.heads) {
            return Err(self.wrong(x, width));
        }
        // [3, n, heads, length, width of a head]
        let parts = self.input.forward(x)?.reshape([n, length, 3, self.heads, width / self.heads])?;
        let parts = parts.permute(&[2, 0, 3, 1, 4])?;
        let parts: [Tensor; 3] = parts.split(0, 1)?.try_into().map_err(|_| Error::bug("nn", "not three parts"))?;
        let [q, k, v] = parts;
        let (q, k, v) = (q.squeeze(0)?, k.squeeze(0)?, v.squeeze(0)?);
        let (p, rng) = (self.dropout.p, &self.dropout.rng);
        let dropout = (self.dropout.mode.is_training() && p > 0.0).then_some((p, rng));
        let options = Attention { mask, causal: self.causal, dropout, ..Attention::default() };
        let y = q.scaled_dot_product_attention(&k, &v, &options)?;
        self.output.forward(&y.permute(&[0, 2, 1, 3])?.reshape([n, length, width])?)
    }

    #[track_caller]
    fn wrong(&self, x: &Tensor, width: usize) -> Error {
        let expected = format!("[n, length, {width}], a width that goes into {} heads", self.heads);
        Error::shape("MultiHeadAttention", expected, x.ty().to_string()).at(Loc::caller())
    }
}
