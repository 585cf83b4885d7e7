//! Operations composed of others. Nothing below this file knows their names.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::tensor::Tensor;
use crate::tensor::recorder::here;

impl Tensor {
    /// `exp(x - max) / sum(exp(x - max))` along `axis`.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        let shifted = self.sub(&self.max_keepdim(axis)?.detach()?)?;
        let exp = shifted.exp()?;
        exp.div(&exp.sum_keepdim(axis)?)
    }

    /// `x - max - log(sum(exp(x - max)))` along `axis`.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        let shifted = self.sub(&self.max_keepdim(axis)?.detach()?)?;
        shifted.sub(&shifted.exp()?.sum_keepdim(axis)?.log()?)
    }

    /// Mean cross entropy of logits `[n, classes]` against i64 class labels `[n]`: a 0-d tensor.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        if self.rank() != 2 || labels.shape().dims() != &self.dims()[..1] || labels.dtype() != DType::I64 {
            let given = format!("{} and {}", self.ty(), labels.ty());
            return Err(
                Error::shape("cross_entropy", "logits f32[n,classes] and labels i64[n]", given).at(Loc::resolve(at))
            );
        }
        let picked = self.log_softmax(1)?.gather(1, &labels.unsqueeze(1)?)?;
        picked.mean(())?.neg()
    }

    /// Mean of the squared differences: a 0-d tensor.
    #[track_caller]
    pub fn mse(&self, target: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let d = self.sub(target)?;
        d.mul(&d)?.mean(())
    }
}
