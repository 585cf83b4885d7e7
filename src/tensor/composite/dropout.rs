//! Dropout and embedding.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::tensor::composite::{fixed, need_float};
use crate::tensor::{Rng, Tensor};

impl Tensor {
    /// Dropout (Srivastava et al. 2014): each element is 0 with probability `p`, else it is multiplied by `1 / (1 - p)`. Takes one draw of
    /// `rng`. `p` 1 gives zeros, with zero gradients. Inside a step `p` is a host scalar: it may change from call to call.
    ///
    /// Only for training; [`crate::nn::Dropout`] has a flag.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Rng, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::ones([1000], DType::F32, &Device::cpu())?;
    /// let y = x.dropout(0.75, &Rng::seed_from(1))?.to_vec::<f32>()?;
    /// assert!(y.iter().all(|&v| v == 0.0 || v == 4.0));
    /// assert!((150..350).contains(&y.iter().filter(|&&v| v != 0.0).count()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a `p` outside of 0 to 1; not a float tensor.
    #[track_caller]
    pub fn dropout(&self, p: f64, rng: &Rng) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("dropout", &[self])?;
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument("dropout", "a probability from 0 to 1", p.to_string()).at(Loc::caller()));
        }
        // For p = 1 nothing is kept, whatever it would be multiplied by.
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        let kept = rng.uniform(self.shape(), self.device())?.ge(p)?;
        kept.select(self, fixed(0.0))?.mul(scale)
    }

    /// Rows of this table `[entries, ..]` chosen by the integers `ids`, of any shape: the result is of shape `[ids.., ..]`. Ids as the indices of
    /// [`Tensor::gather`]. Gradients of a row that is chosen several times add up.
    ///
    /// Errors: a 0-d table; ids that are no integers; more axes than a tensor can have.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let table = Tensor::new([[1i64, 2], [3, 4], [5, 6]], device)?;
    /// let ids = Tensor::new([2i64, 0], device)?;
    /// assert_eq!(table.embedding(&ids)?.to_string(), "[[5 6]\n [1 2]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        if self.rank() == 0 {
            let given = self.ty().to_string();
            return Err(Error::shape("embedding", "a table of at least 1 axis", given).at(Loc::caller()));
        }
        let ids_i64 = match ids.dtype() {
            d if !d.is_int() => {
                return Err(Error::dtype("embedding", "integer ids", d).at(Loc::caller()));
            }
            crate::base::DType::I64 => ids.clone(),
            _ => ids.to_dtype(crate::base::DType::I64)?,
        };
        let dims = [ids.dims(), &self.dims()[1..]].concat();
        self.index_select(0, &ids_i64.flatten()?)?.reshape(dims)
    }
}
