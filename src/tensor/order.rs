//! Where extremes are, and order along an axis.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, Scalar};
use crate::op::{Op, ReduceKind};
use crate::tensor::arith::Operand;
use crate::tensor::recorder::{emit, emit_on, here};
use crate::tensor::reduce::Axes;
use crate::tensor::{At, Tensor};

impl Tensor {
    /// i64: where along `axes` the largest element is: its row-major index among them (with one axis: its coordinate; with
    /// `()`: its index in the flattened tensor). The first of equal ones; NaN counts as the largest. The axes disappear.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 5.0, 2.0, 7.0, 7.0, 0.0], [2, 3], &Device::cpu())?;
    /// assert_eq!(x.argmax(1)?.to_vec::<i64>()?, [1, 0]);
    /// assert_eq!(x.argmax(())?.item::<i64>()?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: no elements along the axes; a bool tensor.
    #[track_caller]
    pub fn argmax(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.extreme("argmax", ReduceKind::Max, axes, false, here())
    }

    /// As [`Tensor::argmax`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.argmax_keepdim(1)?.to_string(), "[[2]\n [2]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn argmax_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.extreme("argmax", ReduceKind::Max, axes, true, here())
    }

    /// As [`Tensor::argmax`], of the smallest element; NaN counts as the smallest.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.argmin(0)?.to_string(), "[0 0 0]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn argmin(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.extreme("argmin", ReduceKind::Min, axes, false, here())
    }

    /// As [`Tensor::argmin`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.argmin_keepdim(1)?.to_string(), "[[0]\n [0]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn argmin_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.extreme("argmin", ReduceKind::Min, axes, true, here())
    }

    /// The extremum, then the smallest place that equals it: reductions of one row, so one kernel.
    fn extreme(&self, op: &'static str, kind: ReduceKind, axes: impl Axes, keepdim: bool, at: At) -> Result<Tensor> {
        let mask = self.axis_mask(op, &axes).map_err(|e| e.at(Loc::resolve(at)))?;
        let count = self.reduced_count(mask);
        if count == 0 {
            let given = format!("shape {}", self.shape());
            return Err(Error::shape(op, "at least one element along the reduced axes", given).at(Loc::resolve(at)));
        }
        let extremum = emit(&Op::Reduce { kind, axes: mask, keepdim: true }, &[self], at)?;
        let mut hit = self.eq(&extremum)?;
        if self.dtype().is_float() {
            hit = hit.or(&self.ne(self)?)?;
        }
        let places = emit_on(self.device(), &Op::Iota { shape: self.shape(), axes: mask }, &[], at)?;
        let beyond = Operand::Scalar(Scalar::i64(count as i64).constant());
        let candidates = hit.select(&places, beyond)?;
        emit(&Op::Reduce { kind: ReduceKind::Min, axes: mask, keepdim }, &[&candidates], at)
    }

    /// i64: the positions along `axis` that put its elements in ascending order, or descending. Stable: equal elements
    /// keep their order either way. NaN is above all numbers: last when ascending, first when descending.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![3.0f32, 1.0, f32::NAN, 1.0], [4], &Device::cpu())?;
    /// assert_eq!(x.argsort(0, false)?.to_vec::<i64>()?, [1, 3, 0, 2]);
    /// assert_eq!(x.argsort(0, true)?.to_vec::<i64>()?, [2, 0, 1, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn argsort(&self, axis: isize, descending: bool) -> Result<Tensor> {
        let at = here();
        let axis = self.axis("argsort", axis).map_err(|e| e.at(Loc::resolve(at)))? as u8;
        emit(&Op::Argsort { axis, descending }, &[self], at)
    }

    /// The elements along `axis` in order, and their positions ([`Tensor::argsort`]). Gradients flow to where the
    /// elements came from.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([3i64, 1, 2], device)?;
    /// let (values, indices) = x.sort(0, false)?;
    /// assert_eq!((values.to_string(), indices.to_string()), ("[1 2 3]".into(), "[1 2 0]".into()));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        let at = here();
        let _scope = Scope::enter();
        let axis = self.axis("sort", axis).map_err(|e| e.at(Loc::resolve(at)))? as u8;
        let order = emit(&Op::Argsort { axis, descending }, &[self], at)?;
        Ok((emit(&Op::Gather { axis }, &[self, &order], at)?, order))
    }

    /// The `k` largest elements along `axis` (or the smallest), in order, and their positions. Of equal ones the earlier
    /// comes first; NaN is the largest.
    ///
    /// Errors: `k` above the axis's length.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([3i64, 1, 2], device)?;
    /// let (values, indices) = x.topk(0, 2, true)?;
    /// assert_eq!((values.to_string(), indices.to_string()), ("[3 2]".into(), "[0 2]".into()));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn topk(&self, axis: isize, k: usize, largest: bool) -> Result<(Tensor, Tensor)> {
        let at = here();
        let _scope = Scope::enter();
        let check = || {
            let axis = self.axis("topk", axis)?;
            if k > self.dims()[axis] {
                let want = format!("a number up to {}, the length of axis {axis}", self.dims()[axis]);
                return Err(Error::argument("topk", want, k.to_string()));
            }
            Ok(axis as u8)
        };
        let axis = check().map_err(|e| e.at(Loc::resolve(at)))?;
        let order = emit(&Op::Argsort { axis, descending: largest }, &[self], at)?;
        let first = order.part(axis as usize, 0, k, 1, at)?;
        Ok((emit(&Op::Gather { axis }, &[self, &first], at)?, first))
    }
}
