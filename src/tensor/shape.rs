//! Movement, joining, indexing, matrix products.

use std::borrow::Cow;

use crate::base::location::Scope;
use crate::base::shape::IntoShape;
use crate::base::{Error, Loc, Result, Scalar, Shape, Type};
use crate::op::{AxisList, Op};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{At, Tensor, autocast, promote};

/// The error at the caller's line.
fn located<T>(result: Result<T>, at: At) -> Result<T> {
    result.map_err(|e| e.at(Loc::resolve(at)))
}

impl Tensor {
    /// The same elements, row-major, as `shape`. A view where strides allow it, else a copy.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.reshape([3, 2])?.to_string(), "[[1 2]\n [3 4]\n [5 6]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Tensor> {
        let at = here();
        let shape = located(shape.into_shape(), at)?;
        emit(&Op::Reshape { shape }, &[self], at)
    }

    /// All axes in one.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.flatten()?.to_string(), "[1 2 3 4 5 6]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn flatten(&self) -> Result<Tensor> {
        let at = here();
        let shape = located(Shape::new(&[self.numel()]), at)?;
        emit(&Op::Reshape { shape }, &[self], at)
    }

    /// Axes reordered: axis `a` of the result is axis `order[a]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, device)?;
    /// assert_eq!(x.permute(&[2, 0, 1])?.dims(), [4, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.t()?.to_string(), "[[1 4]\n [2 5]\n [3 6]]");
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, device)?;
    /// assert_eq!(x.transpose(0, -1)?.dims(), [4, 3, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let at = here();
        let (a, b) = (located(self.axis("transpose", a), at)?, located(self.axis("transpose", b), at)?);
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        emit(&Op::Permute { order: AxisList::new(&order) }, &[self], at)
    }

    /// Broadcast to `shape`: trailing axes aligned, length 1 stretched. A view.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64], [2]], device)?;
    /// assert_eq!(x.expand([2, 3])?.to_string(), "[[1 1 1]\n [2 2 2]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor> {
        let at = here();
        let shape = located(shape.into_shape(), at)?;
        emit(&Op::Expand { shape }, &[self], at)
    }

    /// `len` elements of `axis` from `start`. A view. Inside a step `start` may change from call to call
    /// (it is a host scalar); `len` is part of the shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.slice(0, 1, 3)?.to_string(), "[2 3 4]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn slice(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        self.slice_step(axis, start, len, 1)
    }

    /// A slice whose place follows from shapes alone: its start is fixed, not a host scalar.
    pub(crate) fn part(&self, axis: usize, start: usize, len: usize, step: isize, at: At) -> Result<Tensor> {
        let start = Scalar::i64(start as i64).constant();
        emit(&Op::Slice { axis: axis as u8, start, len, step }, &[self], at)
    }

    /// As [`Tensor::slice`], every `step`-th element from `start` on; with a step below zero towards the axis's beginning.
    /// A view, too.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![0.0f32, 1.0, 2.0, 3.0, 4.0], [5], &Device::cpu())?;
    /// assert_eq!(x.slice_step(0, 4, 3, -2)?.to_vec::<f32>()?, [4.0, 2.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a step of 0; elements outside of the axis.
    #[track_caller]
    pub fn slice_step(&self, axis: isize, start: usize, len: usize, step: isize) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("slice", axis), at)?;
        let have = self.dims()[axis];
        // A step says nothing about a single element.
        let step = if len <= 1 { step.signum() } else { step };
        let reach = step.unsigned_abs().checked_mul(len.saturating_sub(1));
        // The lowest index, if all are in range.
        let lowest = reach.and_then(|r| match step {
            0 => None,
            _ if len == 0 => (start <= have).then_some(start),
            s if s > 0 => start.checked_add(r).filter(|&last| last < have).map(|_| start),
            _ => start.checked_sub(r).filter(|_| start < have),
        });
        let Some(lowest) = lowest else {
            let expected = format!("a range within the {have} elements of axis {axis}, its step not 0");
            let given = format!("{len} from {start} in steps of {step}");
            return Err(Error::argument("slice", expected, given).at(Loc::resolve(at)));
        };
        let start = Scalar::i64(lowest as i64);
        emit(&Op::Slice { axis: axis as u8, start, len, step }, &[self], at)
    }

    /// A new axis of length 1 before `axis` (negative: counted from the end of the result).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!((x.unsqueeze(0)?.dims(), x.unsqueeze(-1)?.dims()), (&[1, 5][..], &[5, 1][..]));
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::zeros([2, 1, 3], DType::F32, device)?;
    /// assert_eq!(x.squeeze(1)?.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([[1i64, 2]], device)?, Tensor::new([[3i64, 4]], device)?);
    /// assert_eq!(Tensor::concat(&[&a, &b], 0)?.to_string(), "[[1 2]\n [3 4]]");
    /// # Ok(())
    /// # }
    /// ```
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

    /// Matrix product of the last two axes: `[.., m, k] x [.., k, n]`; leading axes broadcast. A vector on the left is a row,
    /// one on the right a column, and the result has no axis for it: two vectors give their dot product. Transposed and
    /// broadcast operands are read where they lie.
    ///
    /// Numbers: each output element sums slices of 512 along k; within a slice one chain of fused
    /// multiply-adds in k order from +0; the slices in order.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let a = Tensor::new([[1.0f32, 2.0], [3.0, 4.0]], device)?;
    /// let b = Tensor::new([[1.0f32, 0.0, 1.0], [0.0, 1.0, 1.0]], device)?;
    /// assert_eq!(a.matmul(&b)?.to_string(), "[[1. 2. 3.]\n [3. 4. 7.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let at = here();
        if let Some(product) = autocast::matmul(self, rhs, at)? {
            return Ok(product);
        }
        if self.rank() >= 2 && rhs.rank() >= 2 {
            return emit(&Op::Matmul, &[self, rhs], at);
        }
        let _scope = Scope::enter();
        if self.rank() == 0 || rhs.rank() == 0 {
            let given = format!("{} and {}", self.ty(), rhs.ty());
            let want = "vectors or matrices (multiply by a number with `mul`)";
            return Err(Error::shape("matmul", want, given).at(Loc::resolve(at)));
        }
        let (row, column) = (self.rank() == 1, rhs.rank() == 1);
        // Before anything is emitted: a call that fails leaves nothing behind.
        let matrix = |t: &Tensor, axis: usize| -> Result<Type> {
            let mut dims = t.dims().to_vec();
            dims.insert(axis.min(dims.len()), 1);
            Ok(Type::new(t.dtype(), Shape::new(&dims)?))
        };
        let types = [
            if row { located(matrix(self, 0), at)? } else { self.ty() },
            if column { located(matrix(rhs, 1), at)? } else { rhs.ty() },
        ];
        located(Op::Matmul.rules().infer(&types).map(|_| ()), at)?;
        let a = if row { self.unsqueeze(0)? } else { self.clone() };
        let b = if column { rhs.unsqueeze(1)? } else { rhs.clone() };
        let product = emit(&Op::Matmul, &[&a, &b], at)?;
        let mask = (column as u8) << (product.rank() - 1) | (row as u8) << (product.rank() - 2);
        product.reshape(product.shape().reduce(mask, false))
    }

    /// `out[.., j, ..] = self[.., index[.., j, ..], ..]` along `axis`. `index` holds integers (i64, or cast to it), is of the same rank,
    /// with the same lengths on the other axes.
    ///
    /// Whether indices are in range is known only when the kernel has run: an index out of range is
    /// clamped and reported as [`crate::ErrorKind::Index`] at the step's end, or in plain eager code at the thread's next host read.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// let index = Tensor::new([[2i64, 0], [1, 1]], device)?;
    /// assert_eq!(x.gather(1, &index)?.to_string(), "[[3 1]\n [5 5]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let at = here();
        let axis = located(self.axis("gather", axis), at)? as u8;
        let index = index.indices(at)?;
        emit(&Op::Gather { axis }, &[self, &index], at)
    }

    /// Slices of `axis` chosen by an `index` of integers of any shape, whose axes stand in the result where `axis` was: an embedding
    /// lookup for `axis` 0. Indices as in [`Tensor::gather`].
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let table = Tensor::from_vec(vec![0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0], [3, 2], &Device::cpu())?;
    /// let ids = Tensor::from_vec(vec![2i64, 0, 0, 1], [2, 2], &Device::cpu())?;
    /// assert_eq!(table.index_select(0, &ids)?.dims(), [2, 2, 2]);
    /// assert_eq!(table.index_select(0, &ids)?.flatten()?.to_vec::<f32>()?, [20.0, 21.0, 0.0, 1.0, 0.0, 1.0, 10.0, 11.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let axis = located(self.axis("index_select", axis), at)?;
        let mut dims = vec![1; self.rank()];
        dims[axis] = index.numel();
        let column = index.indices(at)?.reshape(dims)?;
        let mut dims = self.dims().to_vec();
        dims[axis] = index.numel();
        let chosen = emit(&Op::Gather { axis: axis as u8 }, &[self, &column.expand(dims)?], at)?;
        if index.rank() == 1 {
            return Ok(chosen);
        }
        let dims = [&self.dims()[..axis], index.dims(), &self.dims()[axis + 1..]].concat();
        chosen.reshape(dims)
    }

    /// `self` plus `src` added at `index` along `axis`: the reverse of [`Tensor::gather`]. Repeated
    /// indices add up in order, so the result is the same in every run.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, index) = (Tensor::zeros([3], DType::I64, device)?, Tensor::new([0i64, 2, 2], device)?);
    /// assert_eq!(x.scatter_add(0, &index, &Tensor::new([1i64, 10, 100], device)?)?.to_string(), "[  1   0 110]");
    /// # Ok(())
    /// # }
    /// ```
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
        let index = index.indices(at)?;
        let added = emit(&op, &[&index, src], at)?;
        self.add(&added)
    }
}
