//! Running results along an axis.

use crate::base::location::Scope;
use crate::base::{DType, Loc, Result};
use crate::op::{Op, ScanKind};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{At, Tensor};

impl Tensor {
    fn scan(&self, kind: ScanKind, axis: isize, reverse: bool, at: At) -> Result<Tensor> {
        let axis = self.axis(kind.name(), axis).map_err(|e| e.at(Loc::resolve(at)))? as u8;
        let numbers = self.counted(at)?;
        emit(&Op::Scan { kind, axis, reverse }, &[&numbers], at)
    }

    /// Truth values and narrow integers as i64, in which sums and products of integers are computed.
    pub(crate) fn counted(&self, at: At) -> Result<Tensor> {
        if self.dtype().is_float() || self.dtype() == DType::I64 {
            return Ok(self.clone());
        }
        emit(&Op::Cast(DType::I64), &[self], at)
    }

    /// Running sums along `axis`: element `j` of the result is `x[0] + x[1] + … + x[j]`, added in that order. Integers
    /// and truth values give i64.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [4], &Device::cpu())?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 6.0, 10.0]);
    /// assert_eq!(x.cumsum_reverse(0)?.to_vec::<f32>()?, [10.0, 9.0, 7.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.scan(ScanKind::Sum, axis, false, here())
    }

    /// As [`Tensor::cumsum`], from the end of the axis: element `j` is the sum from the last element back to `j`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.cumsum_reverse(0)?.to_string(), "[15 14 12  9  5]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cumsum_reverse(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.scan(ScanKind::Sum, axis, true, here())
    }

    /// Running products along `axis`, multiplied in order. Integers and truth values give i64. Gradients are right at zeros, too.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.cumprod(0)?.to_string(), "[  1   2   6  24 120]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cumprod(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.scan(ScanKind::Product, axis, false, here())
    }

    /// As [`Tensor::cumprod`], from the end of the axis.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.cumprod_reverse(0)?.to_string(), "[120 120  60  20   5]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cumprod_reverse(&self, axis: isize) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.scan(ScanKind::Product, axis, true, here())
    }

    /// The linear recurrence `out[j] = factor[j] * out[j - 1] + x[j]` along `axis`, with `out[0] = x[0]`: running averages,
    /// filters, state-space models. `factor` is of the dtype of `x` and broadcasts to its shape.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 1.0, 1.0], [3], &Device::cpu())?;
    /// let half = Tensor::full([1], 0.5f32, &Device::cpu())?;
    /// assert_eq!(x.recurrence(0, &half)?.to_vec::<f32>()?, [1.0, 1.5, 1.75]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn recurrence(&self, axis: isize, factor: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let axis = self.axis("recurrence", axis).map_err(|e| e.at(Loc::resolve(at)))? as u8;
        let factor = if factor.shape() == self.shape() { factor.clone() } else { factor.expand(self.shape())? };
        emit(&Op::Scan { kind: ScanKind::Recurrence, axis, reverse: false }, &[&factor, self], at)
    }
}
