//! Pieces: joined, cut, turned, padded, repeated.
//!
//! Where pieces begin follows from shapes, which are part of a step's structure; so lengths, paddings and shifts are, too:
//! another one records another path.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, Scalar};
use crate::op::Op;
use crate::tensor::recorder::{emit, here};
use crate::tensor::reduce::Axes;
use crate::tensor::{At, Tensor};

impl Tensor {
    /// Equal shapes side by side along a new axis before `axis` (negative: counted from the end of the result).
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
    /// let y = Tensor::from_vec(vec![3.0f32, 4.0], [2], &Device::cpu())?;
    /// assert_eq!(Tensor::stack(&[&x, &y], 1)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: no tensors; different shapes or dtypes.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let Some(first) = tensors.first() else {
            return Err(Error::argument("stack", "at least one tensor", "none").at(Loc::resolve(at)));
        };
        if let Some(other) = tensors.iter().find(|t| t.shape() != first.shape()) {
            let want = format!("tensors of one shape, {} like the first", first.shape());
            return Err(Error::shape("stack", want, other.shape().to_string()).at(Loc::resolve(at)));
        }
        let wider: Vec<Tensor> = tensors.iter().map(|t| t.unsqueeze(axis)).collect::<Result<_>>()?;
        let axis = if axis < 0 { axis + first.rank() as isize + 1 } else { axis };
        Tensor::concat(&wider.iter().collect::<Vec<_>>(), axis)
    }

    /// Pieces of `size` elements of `axis`, in order; the last one may be shorter. Views.
    ///
    /// Errors: a size of 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// let parts = x.split(0, 2)?;
    /// assert_eq!(parts.iter().map(|p| p.to_string()).collect::<Vec<_>>(), ["[1 2]", "[3 4]", "[5]"]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn split(&self, axis: isize, size: usize) -> Result<Vec<Tensor>> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("split", axis, at)?;
        if size == 0 {
            return Err(Error::argument("split", "pieces of at least one element", "0").at(Loc::resolve(at)));
        }
        let count = have.div_ceil(size).max(1);
        let sizes: Vec<usize> = (0..count).map(|i| size.min(have - i * size)).collect();
        self.split_sizes(axis, &sizes)
    }

    /// Pieces of these sizes of `axis`, in order. Views.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &Device::cpu())?;
    /// let parts = x.split_sizes(0, &[1, 2])?;
    /// assert_eq!(parts[1].to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: sizes that do not add up to the axis's length.
    #[track_caller]
    pub fn split_sizes(&self, axis: isize, sizes: &[usize]) -> Result<Vec<Tensor>> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("split", axis, at)?;
        if sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) != Some(have) {
            let want = format!("sizes that add up to {have}, the length of axis {axis}");
            return Err(Error::argument("split", want, format!("{sizes:?}")).at(Loc::resolve(at)));
        }
        let axis = self.axis("split", axis)?;
        let mut start = 0;
        let piece = |&len: &usize| {
            start += len;
            self.part(axis, start - len, len, 1, at)
        };
        sizes.iter().map(piece).collect()
    }

    /// At most `count` pieces of `axis` of equal size, the last one perhaps shorter: the size is that of the axis over `count`,
    /// rounded up. Views.
    ///
    /// Errors: a count of 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.chunk(0, 2)?.iter().map(|p| p.to_string()).collect::<Vec<_>>(), ["[1 2 3]", "[4 5]"]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn chunk(&self, axis: isize, count: usize) -> Result<Vec<Tensor>> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("chunk", axis, at)?;
        if count == 0 {
            return Err(Error::argument("chunk", "at least one piece", "0").at(Loc::resolve(at)));
        }
        self.split(axis, have.div_ceil(count).max(1))
    }

    /// Length of an axis that must be there.
    fn checked_len(&self, op: &'static str, axis: isize, at: At) -> Result<usize> {
        self.axis(op, axis).map(|a| self.dims()[a]).map_err(|e| e.at(Loc::resolve(at)))
    }

    /// The elements along each of `axes` in reverse order. A view.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.flip(1)?.to_string(), "[[3 2 1]\n [6 5 4]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn flip(&self, axes: impl Axes) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let mask = self.axis_mask("flip", &axes).map_err(|e| e.at(Loc::resolve(at)))?;
        let mut out = self.clone();
        for axis in (0..self.rank()).filter(|a| mask >> a & 1 == 1) {
            out = out.part(axis, 0, self.dims()[axis], -1, at)?;
        }
        Ok(out)
    }

    /// The elements moved along `axis` by `shift` places towards higher indices (below zero: lower ones), those that leave
    /// at one end coming in at the other. The shift is part of a step's structure.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.roll(0, 2)?.to_string(), "[4 5 1 2 3]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn roll(&self, axis: isize, shift: isize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("roll", axis, at)?;
        let by = if have == 0 { 0 } else { shift.rem_euclid(have as isize) as usize };
        if by == 0 {
            return Ok(self.clone());
        }
        let a = self.axis("roll", axis)?;
        let (back, front) = (self.part(a, have - by, by, 1, at)?, self.part(a, 0, have - by, 1, at)?);
        emit(&Op::Concat { axis: a as u8 }, &[&back, &front], at)
    }

    /// `before` and `after` further elements at the ends of `axis`, all of them `value` (a host number).
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
    /// assert_eq!(x.pad(0, 1, 2, 9.0)?.to_vec::<f32>()?, [9.0, 1.0, 2.0, 9.0, 9.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a number that the dtype cannot hold: a float for integers, one out of their range.
    #[track_caller]
    pub fn pad(&self, axis: isize, before: usize, after: usize, value: impl Into<Scalar>) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        self.checked_len("pad", axis, at)?;
        let a = self.axis("pad", axis)?;
        let value: Scalar = value.into();
        if !value.fits(self.dtype()) {
            let want = format!("a host number that {} can hold", self.dtype());
            return Err(Error::argument("pad", want, value.to_string()).at(Loc::resolve(at)));
        }
        let side = |len: usize| -> Result<Option<Tensor>> {
            let mut dims = self.dims().to_vec();
            dims[a] = len;
            if len == 0 {
                Ok(None)
            } else {
                Tensor::full_at(dims, value.cast(self.dtype()), self.device(), at).map(Some)
            }
        };
        self.between(a, side(before)?, side(after)?, at)
    }

    /// `before` and `after` further elements at the ends of `axis`, each the nearest element of the axis.
    ///
    /// Errors: an axis of no elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.pad_replicate(0, 1, 2)?.to_string(), "[1 1 2 3 4 5 5 5]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pad_replicate(&self, axis: isize, before: usize, after: usize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("pad_replicate", axis, at)?;
        if have == 0 {
            let given = format!("shape {}", self.shape());
            return Err(Error::shape("pad_replicate", "an axis that has elements", given).at(Loc::resolve(at)));
        }
        let a = self.axis("pad_replicate", axis)?;
        let side = |len: usize, from: usize| -> Result<Option<Tensor>> {
            let mut dims = self.dims().to_vec();
            dims[a] = len;
            if len == 0 { Ok(None) } else { self.part(a, from, 1, 1, at)?.expand(dims).map(Some) }
        };
        self.between(a, side(before, 0)?, side(after, have - 1)?, at)
    }

    /// `before` and `after` further elements at the ends of `axis`, mirrored at the first and the last element, which are not
    /// repeated.
    ///
    /// Errors: as many further elements as the axis has, or more.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 2, 3, 4, 5], device)?;
    /// assert_eq!(x.pad_reflect(0, 1, 2)?.to_string(), "[2 1 2 3 4 5 4 3]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pad_reflect(&self, axis: isize, before: usize, after: usize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let have = self.checked_len("pad_reflect", axis, at)?;
        if before.max(after) >= have.max(1) {
            let want = format!("paddings below {have}, the length of axis {axis}");
            let given = format!("{before} and {after}");
            return Err(Error::argument("pad_reflect", want, given).at(Loc::resolve(at)));
        }
        let a = self.axis("pad_reflect", axis)?;
        let side = |len: usize, from: usize| -> Result<Option<Tensor>> {
            if len == 0 { Ok(None) } else { self.part(a, from, len, -1, at).map(Some) }
        };
        let right = (have - 1).saturating_sub(after);
        self.between(a, side(before, 1)?, side(after, right)?, at)
    }

    /// Joined with what is before and after.
    fn between(&self, axis: usize, before: Option<Tensor>, after: Option<Tensor>, at: At) -> Result<Tensor> {
        let parts: Vec<&Tensor> = before.iter().chain([self]).chain(&after).collect();
        if parts.len() == 1 { Ok(self.clone()) } else { emit(&Op::Concat { axis: axis as u8 }, &parts, at) }
    }

    /// The whole tensor repeated, so many times along each axis; further counts stand for axes in front.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
    /// assert_eq!(x.repeat(&[2, 2])?.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    /// assert_eq!(x.repeat_interleave(0, 2)?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: fewer counts than axes.
    #[track_caller]
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        if counts.len() < self.rank() {
            let want = format!("at least {} counts, one for each axis of {}", self.rank(), self.shape());
            return Err(Error::argument("repeat", want, format!("{counts:?}")).at(Loc::resolve(at)));
        }
        let front = counts.len() - self.rank();
        let mut out = self.reshape([vec![1; front], self.dims().to_vec()].concat())?;
        for (axis, &count) in counts.iter().enumerate().rev() {
            out = out.interleaved(axis, axis, count)?;
        }
        Ok(out)
    }

    /// Each element of `axis` repeated `count` times in a row.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.repeat_interleave(1, 2)?.to_string(), "[[1 1 2 2 3 3]\n [4 4 5 5 6 6]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, axis: isize, count: usize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        self.checked_len("repeat_interleave", axis, at)?;
        let axis = self.axis("repeat_interleave", axis)?;
        self.interleaved(axis, axis + 1, count)
    }

    /// A new axis of length `count` at `new`, which is `axis` or behind it, merged with `axis`.
    fn interleaved(&self, axis: usize, new: usize, count: usize) -> Result<Tensor> {
        if count == 1 {
            return Ok(self.clone());
        }
        let mut dims = self.dims().to_vec();
        if dims[axis] == 1 {
            dims[axis] = count;
            return self.expand(dims);
        }
        dims.insert(new, 1);
        let single = self.reshape(dims.clone())?;
        dims[new] = count;
        let wide = single.expand(dims)?;
        let mut dims = self.dims().to_vec();
        dims[axis] *= count;
        wide.reshape(dims)
    }

    /// The axis `from` moved to position `to`, the others in their order.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, device)?;
    /// assert_eq!(x.movedim(0, -1)?.dims(), [3, 4, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: isize, to: isize) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        self.checked_len("movedim", from, at)?;
        self.checked_len("movedim", to, at)?;
        let (from, to) = (self.axis("movedim", from)?, self.axis("movedim", to)?);
        let mut order: Vec<usize> = (0..self.rank()).filter(|&a| a != from).collect();
        order.insert(to, from);
        self.permute(&order)
    }
}
