//! Movement, joining, indexing, matrix products.

use std::borrow::Cow;

use crate::base::location::Scope;
use crate::base::shape::IntoShape;
use crate::base::{Error, Loc, Result, Scalar, Shape};
use crate::op::{AxisList, Op};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{At, Tensor, promote};

/// The error at the caller's line.
fn located<T>(result: Result<T>, at: At) -> Result<T> {
    result.map_err(|e| e.at(Loc::resolve(at)))
}

impl Tensor {
    /// The same elements, row-major, as `shape`. A view where strides allow it, else a copy.
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Tensor> {
        let at = here();
        let shape = located(shape.into_shape(), at)?;
        emit(&Op::Reshape { shape }, &[self], at)
    }

    /// All axes in one.
    #[track_caller]
    pub fn flatten(&self) -> Result<Tensor> {
        let at = here();
        let shape = located(Shape::new(&[self.numel()]), at)?;
        emit(&Op::Reshape { shape }, &[self], at)
    }

    /// Axes reordered: axis `a` of the result is axis `order[a]`.
    #[track_caller]
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        let at = here();
        if order.len() != self.rank() {
            let expected = format!("{} axes, as shape {} has", self.rank(), self.shape());
            return Err(Error::argument("permute", expected, format!("{order:?}")).at(Loc::resolve(at)));
        }
        if let Some(a) = order.iter().find(|&&a| a >= self.rank()) {
            return Err(
                Error::argument("permute", format!("axes below {}", self.rank()), a.to_string()).at(Loc::resolve(at))
            );
        }
        emit(&Op::Permute { order: AxisList::new(order) }, &[self], at)
    }

    /// The last two axes swapped.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        let at = here();
        let rank = self.rank();
        if rank < 2 {
            return Err(Error::shape("t", "at least 2 axes", self.shape().to_string()).at(Loc::resolve(at)));
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        emit(&Op::Permute { order: AxisList::new(&order) }, &[self], at)
    }

    /// Two axes swapped; negative ones count from the end.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let at = here();
        let (a, b) = (located(self.axis("transpose", a), at)?, located(self.axis("transpose", b), at)?);
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        emit(&Op::Permute { order: AxisList::new(&order) }, &[self], at)
    }

    /// Broadcast to `shape`: trailing axes aligned, length 1 stretched. A view.
    #[track_caller]
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor> {
        let at = here();
        let shape = located(shape.into_shape(), at)?;
        emit(&Op::Expand { shape }, &[self], at)
    }

    /// `len` elements of `axis` from `start`. A view. Inside a step `start` may change from call to call
    /// (it is a host scalar); `len` is part of the shape.
    #[track_caller]
    pub fn slice(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        self.slice_step(axis, start, len, 1)
    }

    /// As [`Tensor::slice`], every `step`-th element.
    #[track_caller]
    pub fn slice_step(&self, axis: isize, start: usize, len: usize, step: usize) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("slice", axis), at)?;
        let have = self.dims()[axis];
        let last = len.checked_sub(1).map_or(Some(start), |n| n.checked_mul(step).and_then(|r| r.checked_add(start)));
        let fits = if len == 0 { start <= have } else { last.is_some_and(|l| l < have) };
        if step == 0 || !fits {
            let expected = format!("a range within the {have} elements of axis {axis}");
            let given = format!("{len} from {start} in steps of {step}");
            return Err(Error::argument("slice", expected, given).at(Loc::resolve(at)));
        }
        let start = Scalar::i64(start as i64);
        emit(&Op::Slice { axis: axis as u8, start, len, step }, &[self], at)
    }

    /// A new axis of length 1 before `axis` (negative: counted from the end of the result).
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        let at = here();
        let rank = self.rank() as isize + 1;
        if axis < -rank || axis >= rank {
            return Err(Error::argument("unsqueeze", format!("an axis in {}..{rank}", -rank), axis.to_string())
                .at(Loc::resolve(at)));
        }
        let axis = (if axis < 0 { axis + rank } else { axis }) as usize;
        let mut dims = self.dims().to_vec();
        dims.insert(axis, 1);
        let shape = located(Shape::new(&dims), at)?;
        emit(&Op::Reshape { shape }, &[self], at)
    }

    /// Without `axis`, whose length must be 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("squeeze", axis), at)?;
        if self.dims()[axis] != 1 {
            return Err(Error::shape("squeeze", format!("axis {axis} of length 1"), self.shape().to_string())
                .at(Loc::resolve(at)));
        }
        emit(&Op::Reshape { shape: self.shape().reduce(1 << axis, false) }, &[self], at)
    }

    /// Tensors joined along `axis`; other lengths must be equal. Dtypes are promoted ([`crate::DType::promote`]).
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let at = here();
        let Some(first) = tensors.first() else {
            return Err(Error::argument("concat", "at least one tensor", "none").at(Loc::resolve(at)));
        };
        let axis = located(first.axis("concat", axis), at)? as u8;
        let dtype = promote::common(tensors, &[]);
        let tensors: Vec<Cow<'_, Tensor>> = tensors.iter().map(|t| promote::to(t, dtype, at)).collect::<Result<_>>()?;
        emit(&Op::Concat { axis }, &tensors.iter().map(|t| &**t).collect::<Vec<_>>(), at)
    }

    /// Matrix product of the last two axes: `[.., m, k] x [.., k, n]`; leading axes broadcast.
    ///
    /// Numbers: each output element sums slices of 512 along k; within a slice one chain of fused
    /// multiply-adds in k order from +0; the slices in order.
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        emit(&Op::Matmul, &[self, rhs], here())
    }

    /// `out[.., j, ..] = self[.., index[.., j, ..], ..]` along `axis`. `index` is i64, of the same rank,
    /// with the same lengths on the other axes.
    ///
    /// Whether indices are in range is known only when the kernel has run: an index out of range is
    /// clamped and reported as [`crate::ErrorKind::Index`] at the step's end or the next host read.
    #[track_caller]
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("gather", axis), at)? as u8;
        emit(&Op::Gather { axis }, &[self, index], at)
    }

    /// Rows of `axis` chosen by a 1-d i64 `index`: an embedding lookup for `axis` 0. Indices as in [`Tensor::gather`].
    #[track_caller]
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let axis = located(self.axis("index_select", axis), at)?;
        if index.rank() != 1 {
            return Err(Error::shape("index_select", "a 1-d index", index.ty().to_string()).at(Loc::resolve(at)));
        }
        let mut dims = vec![1; self.rank()];
        dims[axis] = index.numel();
        let column = index.reshape(dims)?;
        let mut dims = self.dims().to_vec();
        dims[axis] = index.numel();
        let index = column.expand(dims)?;
        emit(&Op::Gather { axis: axis as u8 }, &[self, &index], at)
    }

    /// `self` plus `src` added at `index` along `axis`: the reverse of [`Tensor::gather`]. Repeated
    /// indices add up in order, so the result is the same in every run.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("scatter_add", axis), at)?;
        // Before anything runs: what fails must not find an index out of range first.
        let fits =
            index.rank() == self.rank() && (0..self.rank()).all(|a| a == axis || index.dims()[a] == self.dims()[a]);
        if !fits {
            let want = format!("an index of shape {} except along axis {axis} (expand it first)", self.shape());
            return Err(Error::shape("scatter_add", want, index.shape().to_string()).at(Loc::resolve(at)));
        }
        if src.dtype() != self.dtype() {
            return Err(
                Error::dtype("scatter_add", format!("a source of {}", self.dtype()), src.dtype()).at(Loc::resolve(at))
            );
        }
        let op = Op::ScatterAdd { axis: axis as u8, len: self.dims()[axis] };
        let _scope = Scope::enter();
        let added = emit(&op, &[index, src], at)?;
        self.add(&added)
    }
}
