//! Exponentials of rows over their sum, and the logarithm of that.

use crate::base::Result;
use crate::base::location::Scope;
use crate::tensor::Tensor;
use crate::tensor::composite::{fixed, narrow, need_float, wide};

/// Between 0, the sum of the exponentials of a row of -inf alone, and 1, the least sum of any other.
const LESS_THAN_ANY_SUM: f64 = 0.5;

impl Tensor {
    /// `exp(x - max) / sum(exp(x - max))` along `axis`.
    ///
    /// A row of nothing but -inf (all of it masked) gives zeros, and zero gradients; PyTorch gives NaN there. A NaN or
    /// +inf in a row makes all of the row NaN.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![0.0f32, 0.0, -f32::INFINITY], [3], &Device::cpu())?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5, 0.5, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: not a float tensor; no such axis; an axis of length 0.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        let (exp, sum) = self.less_maximum("softmax", axis)?.exponentials(axis)?;
        narrow(exp.div(&sum)?, self.dtype())
    }

    /// `x - max - log(sum(exp(x - max)))` along `axis`: the logarithm of [`Tensor::softmax`]. A row of nothing but -inf
    /// stays one, with zero gradients.
    ///
    /// Errors: as [`Tensor::softmax`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 0.0], device)?;
    /// assert_eq!(format!("{:.3}", x.log_softmax(0)?), "[-0.693 -0.693]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        let shifted = self.less_maximum("log_softmax", axis)?;
        let (_, sum) = shifted.exponentials(axis)?;
        narrow(shifted.sub(&sum.log()?)?, self.dtype())
    }

    /// `x` less its maximum along `axis`; less nothing where that is -inf.
    fn less_maximum(&self, op: &'static str, axis: isize) -> Result<Tensor> {
        need_float(op, &[self])?;
        let x = wide(self)?;
        let top = x.max_keepdim(axis)?.detach()?;
        x.sub(&top.eq(fixed(f64::NEG_INFINITY))?.select(fixed(0.0), &top)?)
    }

    /// The exponentials, and their sum along `axis`, which is never 0.
    fn exponentials(&self, axis: isize) -> Result<(Tensor, Tensor)> {
        let exp = self.exp()?;
        let sum = exp.sum_keepdim(axis)?.maximum(fixed(LESS_THAN_ANY_SUM))?;
        Ok((exp, sum))
    }
}
