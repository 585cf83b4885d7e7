//! Dropout and embedding.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Scalar};
use crate::tensor::arith::Operand;
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
        self.rows(&self.ids(ids)?)
    }

    /// As [`Tensor::embedding`], of ids among which `padding` stands for no entry: nothing flows back to that row (PyTorch's `padding_idx`),
    /// so an optimizer leaves it as it is, usually zeros.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let table = Var::new(&Tensor::new([[0.0f32, 0.0], [3.0, 4.0]], device)?)?;
    /// let y = table.get().embedding_padded(&Tensor::new([1i64, 0, 0], device)?, 0)?;
    /// assert_eq!(y.to_string(), "[[3. 4.]\n [0. 0.]\n [0. 0.]]");
    /// let gradient = y.sum(())?.backward()?.get(&table).expect("a gradient");
    /// assert_eq!(gradient.to_string(), "[[0. 0.]\n [1. 1.]]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: as [`Tensor::embedding`]; a padding that is no row of the table.
    #[track_caller]
    pub fn embedding_padded(&self, ids: &Tensor, padding: usize) -> Result<Tensor> {
        let _scope = Scope::enter();
        let ids = self.ids(ids)?;
        if padding >= self.dims()[0] {
            let expected = format!("a padding below {}, the number of entries", self.dims()[0]);
            return Err(Error::argument("embedding", expected, padding.to_string()).at(Loc::caller()));
        }
        let rows = self.rows(&ids)?;
        let mut dims = ids.dims().to_vec();
        dims.resize(rows.rank(), 1);
        let nothing = ids.eq(Operand::Scalar(Scalar::i64(padding as i64).constant()))?.reshape(dims)?;
        nothing.select(&rows.detach()?, &rows)
    }

    /// `ids` as i64, checked with this table.
    #[track_caller]
    fn ids(&self, ids: &Tensor) -> Result<Tensor> {
        if self.rank() == 0 {
            let given = self.ty().to_string();
            return Err(Error::shape("embedding", "a table of at least 1 axis", given).at(Loc::caller()));
        }
        match ids.dtype() {
            d if !d.is_int() => Err(Error::dtype("embedding", "integer ids", d).at(Loc::caller())),
            DType::I64 => Ok(ids.clone()),
            _ => ids.to_dtype(DType::I64),
        }
    }

    /// The rows of this table that `ids` name.
    fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        let dims = [ids.dims(), &self.dims()[1..]].concat();
        self.index_select(0, &ids.flatten()?)?.reshape(dims)
    }
}
