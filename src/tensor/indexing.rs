//! Writing at indices, masks, choosing.

use std::borrow::Cow;

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Scalar};
use crate::op::Op;
use crate::tensor::arith::Operand;
use crate::tensor::recorder::{emit, emit_on, here};
use crate::tensor::{At, Tensor, promote};

impl Tensor {
    /// `self` with `out[.., index[.., j, ..], ..] = src[.., j, ..]` along `axis`: the reverse of [`Tensor::gather`].
    /// `src` is a tensor of the index's shape, or a host number. Where an index is repeated the last `j` wins, always.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// let x = Tensor::from_vec(vec![0.0f32; 4], [4], &d)?;
    /// let index = Tensor::from_vec(vec![2i64, 0, 2], [3], &d)?;
    /// let src = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &d)?;
    /// assert_eq!(x.scatter(0, &index, &src)?.to_vec::<f32>()?, [2.0, 0.0, 3.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A gradient flows to what is left of `self`, and to the elements of `src` that were written and stayed. Indices out of
    /// range are clamped and reported, as by [`Tensor::gather`].
    ///
    /// Errors: an index of another rank, or of other lengths on the other axes; a source of another shape or dtype.
    #[track_caller]
    pub fn scatter<'a>(&self, axis: isize, index: &Tensor, src: impl Into<Operand<'a>>) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let axis = self.axis("scatter", axis).map_err(|e| e.at(Loc::resolve(at)))?;
        self.check_index("scatter", axis, index, at)?;
        let index = index.indices(at)?;
        let last = emit(&Op::ScatterIndex { axis: axis as u8, len: self.dims()[axis] }, &[&index], at)?;
        let written = last.ge(Operand::Scalar(Scalar::i64(0).constant()))?;
        let src: Operand<'_> = src.into();
        let src = match &src {
            Operand::Scalar(s) => return written.select(Operand::Scalar(*s), self),
            Operand::Tensor(t) => *t,
            Operand::Owned(t) => t,
        };
        if src.shape() != index.shape() || src.dtype() != self.dtype() {
            let want = format!("a source {}{}, of the index's shape", self.dtype(), index.shape());
            return Err(Error::shape("scatter", want, src.ty().to_string()).at(Loc::resolve(at)));
        }
        if src.dims()[axis] == 0 {
            // Nothing to choose from.
            return Ok(self.clone());
        }
        let from = last.maximum(Operand::Scalar(Scalar::i64(0).constant()))?;
        let chosen = emit(&Op::Gather { axis: axis as u8 }, &[src, &from], at)?;
        written.select(&chosen, self)
    }

    /// Integers as the i64 that index ops take; others as they are, to be refused there.
    pub(super) fn indices(&self, at: At) -> Result<Cow<'_, Tensor>> {
        if self.dtype().is_int() { promote::to(self, DType::I64, at) } else { Ok(Cow::Borrowed(self)) }
    }

    /// The index of a scatter into this tensor.
    fn check_index(&self, op: &'static str, axis: usize, index: &Tensor, at: At) -> Result<()> {
        let fits =
            index.rank() == self.rank() && (0..self.rank()).all(|a| a == axis || index.dims()[a] == self.dims()[a]);
        if fits {
            return Ok(());
        }
        let want = format!("an index of shape {} except along axis {axis} (expand it first)", self.shape());
        Err(Error::shape(op, want, index.shape().to_string()).at(Loc::resolve(at)))
    }

    /// `self` plus the slices of `src` added to the slices of `axis` that a 1-d `index` of integers names, in order.
    ///
    /// Errors: an index that is not 1-d; a source whose shape is not this one's with the index's length along `axis`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, index) = (Tensor::new([1i64, 1, 1], device)?, Tensor::new([0i64, 2, 2], device)?);
    /// let added = x.index_add(0, &index, &Tensor::new([10i64, 20, 30], device)?)?;
    /// assert_eq!(added.to_string(), "[11  1 51]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn index_add(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let axis_at = self.axis("index_add", axis).map_err(|e| e.at(Loc::resolve(at)))?;
        let mut dims = self.dims().to_vec();
        if index.rank() == 1 {
            dims[axis_at] = index.numel();
        }
        if index.rank() != 1 || src.dims() != dims {
            let want = format!("a 1-d index, and a source of shape {} except along axis {axis_at}", self.shape());
            let given = format!("{} and {}", index.ty(), src.ty());
            return Err(Error::shape("index_add", want, given).at(Loc::resolve(at)));
        }
        let mut column = vec![1; self.rank()];
        column[axis_at] = index.numel();
        self.scatter_add(axis, &index.reshape(column)?.expand(dims)?, src)
    }

    /// `value` (a tensor that broadcasts, or a host number) where the bool tensor `mask` is true, else `self`.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &Device::cpu())?;
    /// assert_eq!(x.masked_fill(&x.gt(1.5)?, -1.0)?.to_vec::<f32>()?, [1.0, -1.0, -1.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn masked_fill<'a>(&self, mask: &Tensor, value: impl Into<Operand<'a>>) -> Result<Tensor> {
        mask.select(value, self)
    }

    /// [`Tensor::select`] by another name: where this bool tensor is true `a`, elsewhere `b`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mask = Tensor::new([true, false], device)?;
    /// assert_eq!(mask.where_cond(1.0, Tensor::new([8.0f32, 9.0], device)?)?.to_string(), "[1. 9.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn where_cond<'a, 'b>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'b>>) -> Result<Tensor> {
        self.select(a, b)
    }

    /// i64: a last axis of length `classes`, 1 at the class that each element of this integer tensor names and 0 elsewhere. A
    /// class out of range (such as an ignored label -1) gives zeros only.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let labels = Tensor::from_vec(vec![2i64, 0], [2], &Device::cpu())?;
    /// assert_eq!(labels.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a tensor that is not of integers.
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        if !self.dtype().is_int() {
            return Err(Error::dtype("one_hot", "integer labels", self.dtype()).at(Loc::resolve(at)));
        }
        let shape = crate::base::Shape::new(&[classes])?;
        let places = emit_on(self.device(), &Op::Iota { shape, axes: 1 }, &[], at)?;
        self.indices(at)?.unsqueeze(-1)?.eq(&places)?.to_dtype(DType::I64)
    }
}
