//! Scaled dot-product attention.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Shape};
use crate::op::Op;
use crate::tensor::composite::{fixed, narrow, need_float, wide};
use crate::tensor::recorder::{emit_on, here};
use crate::tensor::{Rng, Tensor};

/// How [`Tensor::scaled_dot_product_attention`] goes about it; by default without masks, scaled by 1/√width.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Attention;
/// let q = Tensor::ones([1, 4, 8], DType::F32, device)?; // one head of 4 positions
/// let causal = Attention { causal: true, ..Attention::default() };
/// assert_eq!(q.scaled_dot_product_attention(&q, &q, &causal)?.dims(), [1, 4, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'a> {
    /// Of bool: true where a query may look; of floats: added to the scaled products. Broadcasts to `[.., queries, keys]`.
    pub mask: Option<&'a Tensor>,
    /// Query i looks at keys 0 to i only.
    pub causal: bool,
    /// Factor of the products; `None`: 1/√width.
    pub scale: Option<f64>,
    /// Dropout of the weights: a probability, and where masks are drawn. For training only.
    pub dropout: Option<(f64, &'a Rng)>,
}

impl Tensor {
    /// Attention (Vaswani et al. 2017) of these queries, `[.., queries, width]`, to `keys`, `[.., keys, width]`, with `values`,
    /// `[.., keys, value width]`: `softmax(q kᵀ · scale + mask) v`, `[.., queries, value width]`. Leading axes broadcast.
    ///
    /// A query that may look at no key (masked by false or -inf everywhere) gets zeros, and nothing flows back
    /// through it: no NaN spoils the gradients of the other queries.
    ///
    /// ```
    /// use stepgraph::nn::Attention;
    /// # use stepgraph::{DType, Device, Result, Rng, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// let q = Rng::seed_from(0).uniform([2, 3, 4], &d)?;
    /// let v = Tensor::from_vec(vec![1.0f32, 10.0, 100.0], [3, 1], &d)?;
    /// let y = q.scaled_dot_product_attention(&q, &v, &Attention { causal: true, ..Attention::default() })?;
    /// assert_eq!((y.dims(), y.to_vec::<f32>()?[0]), (&[2, 3, 1][..], 1.0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: operands that are no floats, have fewer than 2 axes or lengths that do not fit; a mask that does not broadcast; no
    /// keys; a dropout probability outside of 0 to 1.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        keys: &Tensor,
        values: &Tensor,
        options: &Attention<'_>,
    ) -> Result<Tensor> {
        const OP: &str = "scaled_dot_product_attention";
        let at = here();
        let _scope = Scope::enter();
        let fail = |expected: String, given: String| Err(Error::shape(OP, expected, given).at(Loc::caller()));
        need_float(OP, &[self, keys, values])?;
        let ([.., queries, width], [.., count, key_width], [.., values_count, _]) =
            (self.dims(), keys.dims(), values.dims())
        else {
            let given = format!("{}, {} and {}", self.ty(), keys.ty(), values.ty());
            return fail("queries, keys and values of at least 2 axes".into(), given);
        };
        if width != key_width || count != values_count || *count == 0 {
            let expected = format!("keys [.., n, {width}] and values [.., n, m] for queries {}, n above 0", self.ty());
            return fail(expected, format!("{} and {}", keys.ty(), values.ty()));
        }
        let scale = options.scale.unwrap_or(1.0 / (*width as f64).sqrt());
        let mut scores = wide(&self.matmul(&keys.t()?)?)?.mul(scale)?;
        if let Some(mask) = options.mask
            && Shape::broadcast(&mask.shape(), &scores.shape()) != Some(scores.shape())
        {
            return fail(format!("a mask that broadcasts to {}", scores.shape()), mask.ty().to_string());
        }
        // What a query may not look at becomes -inf; a row of nothing else has a softmax of zeros.
        let mut visible = None;
        match options.mask {
            Some(mask) if mask.dtype() == DType::Bool => visible = Some(mask.clone()),
            Some(mask) => {
                need_float(OP, &[mask])?;
                scores = scores.add(&wide(mask)?)?;
            }
            None => {}
        }
        if options.causal {
            let shape = Shape::new(&[*queries, *count])?;
            let place = |axes| emit_on(self.device(), &Op::Iota { shape, axes }, &[], at);
            let before = place(0b10)?.le(&place(0b01)?)?;
            visible = Some(match visible {
                Some(mask) => mask.and(&before)?,
                None => before,
            });
        }
        if let Some(visible) = visible {
            scores = visible.select(&scores, fixed(f64::NEG_INFINITY))?;
        }
        let mut weights = scores.softmax(-1)?;
        if let Some((p, rng)) = options.dropout {
            weights = weights.dropout(p, rng)?;
        }
        narrow(weights, self.dtype())?.matmul(values)
    }
}
