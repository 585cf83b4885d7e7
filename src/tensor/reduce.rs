//! Reductions over axes.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::op::{Op, ReduceKind};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{At, Tensor, promote};

/// Which axes a reduction runs over: `()` for all, one axis, or several; negative ones count from the end.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
/// // All axes, one (negative: from the end), or several.
/// assert_eq!(x.sum(())?.to_string(), "24.0");
/// assert_eq!(x.sum(-1)?.to_string(), "[ 6. 18.]");
/// assert_eq!(x.sum([0, 1])?.to_string(), "24.0");
/// # Ok(())
/// # }
/// ```
pub trait Axes {
    /// The axes, or `None` for all.
    fn axes(&self) -> Option<Vec<isize>>;
}

impl Axes for () {
    fn axes(&self) -> Option<Vec<isize>> {
        None
    }
}
impl Axes for isize {
    fn axes(&self) -> Option<Vec<isize>> {
        Some(vec![*self])
    }
}
impl Axes for i32 {
    fn axes(&self) -> Option<Vec<isize>> {
        Some(vec![*self as isize])
    }
}
impl<const N: usize> Axes for [isize; N] {
    fn axes(&self) -> Option<Vec<isize>> {
        Some(self.to_vec())
    }
}
impl<const N: usize> Axes for [i32; N] {
    fn axes(&self) -> Option<Vec<isize>> {
        Some(self.iter().map(|&a| a as isize).collect())
    }
}
impl Axes for &[isize] {
    fn axes(&self) -> Option<Vec<isize>> {
        Some(self.to_vec())
    }
}

impl Tensor {
    pub(crate) fn axis_mask(&self, op: &'static str, axes: &impl Axes) -> Result<u8> {
        let Some(list) = axes.axes() else {
            return Ok(((1u16 << self.rank()) - 1) as u8);
        };
        let mut mask = 0u8;
        for a in list {
            let bit = 1 << self.axis(op, a)?;
            if mask & bit != 0 {
                return Err(Error::argument(op, "each axis once", format!("axis {a} twice")));
            }
            mask |= bit;
        }
        Ok(mask)
    }

    /// Number of elements combined in each result over the axes of `mask`.
    pub(crate) fn reduced_count(&self, mask: u8) -> usize {
        (0..self.rank()).filter(|a| mask >> a & 1 == 1).map(|a| self.dims()[a]).product()
    }

    fn reduce(&self, name: &'static str, kind: ReduceKind, axes: impl Axes, keepdim: bool, at: At) -> Result<Tensor> {
        let axes = self.axis_mask(name, &axes).map_err(|e| e.at(Loc::resolve(at)))?;
        emit(&Op::Reduce { kind, axes, keepdim }, &[self], at)
    }

    /// Sum over `axes`, which disappear. Of integers and truth values i64 (wrapping); 16-bit floats add up in f32 and are
    /// rounded once. In a fixed order: the same bits on every device, instruction
    /// set and number of threads. Over no elements: 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.sum(1)?.to_string(), "[ 6. 18.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn sum(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("sum", ReduceKind::Sum, axes, false, here())
    }

    /// As [`Tensor::sum`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.sum_keepdim(1)?.to_string(), "[[ 6.]\n [18.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn sum_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("sum", ReduceKind::Sum, axes, true, here())
    }

    /// Largest element over `axes`; NaN if any is NaN; ties share the gradient. An error over no elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.max(1)?.to_string(), "[3. 9.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn max(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("max", ReduceKind::Max, axes, false, here())
    }

    /// As [`Tensor::max`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.max_keepdim(1)?.to_string(), "[[3.]\n [9.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn max_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("max", ReduceKind::Max, axes, true, here())
    }

    /// Smallest element over `axes`; NaN if any is NaN; ties share the gradient. An error over no elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.min(1)?.to_string(), "[1. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn min(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("min", ReduceKind::Min, axes, false, here())
    }

    /// As [`Tensor::min`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.min_keepdim(1)?.to_string(), "[[1.]\n [4.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn min_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("min", ReduceKind::Min, axes, true, here())
    }

    /// Product over `axes`, which disappear. Of integers and truth values i64 (wrapping); 16-bit floats are multiplied in f32
    /// and rounded once. In a fixed order, as [`Tensor::sum`]. Over no elements: 1. Its gradient is right at zeros, too.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.prod(1)?.to_vec::<f32>()?, [2.0, 12.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn prod(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("prod", ReduceKind::Prod, axes, false, here())
    }

    /// As [`Tensor::prod`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.prod_keepdim(1)?.to_string(), "[[  6.]\n [180.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn prod_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        self.reduce("prod", ReduceKind::Prod, axes, true, here())
    }

    /// Whether any element along `axes` is true, or not zero. Over no elements: false.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[true, false], [false, false]], device)?;
    /// assert_eq!(x.any(1)?.to_string(), "[ True False]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn any(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.truths()?.reduce("any", ReduceKind::Any, axes, false, here())
    }

    /// As [`Tensor::any`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[true, false], [false, false]], device)?;
    /// assert_eq!(x.any_keepdim(1)?.dims(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn any_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.truths()?.reduce("any", ReduceKind::Any, axes, true, here())
    }

    /// Whether all elements along `axes` are true, or not zero. Over no elements: true.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[true, false], [false, false]], device)?;
    /// assert_eq!(x.all(0)?.to_string(), "[False False]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn all(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.truths()?.reduce("all", ReduceKind::All, axes, false, here())
    }

    /// As [`Tensor::all`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[true, false], [false, false]], device)?;
    /// assert_eq!(x.all_keepdim(0)?.dims(), [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn all_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.truths()?.reduce("all", ReduceKind::All, axes, true, here())
    }

    /// "Is not zero".
    fn truths(&self) -> Result<Tensor> {
        if self.dtype() == DType::Bool { Ok(self.clone()) } else { self.to_dtype(DType::Bool) }
    }

    /// Mean over `axes`, which disappear: the sum divided by the number of elements (over none: NaN). Of 16-bit floats it
    /// is made in f32 and rounded once. An error for integers and truth values.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.mean(1)?.to_string(), "[2. 6.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.mean_of(axes, false, here())
    }

    /// As [`Tensor::mean`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.mean_keepdim(1)?.to_string(), "[[2.]\n [6.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn mean_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.mean_of(axes, true, here())
    }

    fn mean_of(&self, axes: impl Axes, keepdim: bool, at: At) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Err(Error::dtype("mean", "a float tensor", self.dtype()).at(Loc::resolve(at)));
        }
        let mask = self.axis_mask("mean", &axes).map_err(|e| e.at(Loc::resolve(at)))?;
        let count = self.reduced_count(mask);
        // A 16-bit sum may overflow where the mean does not: both steps in f32.
        let wide = promote::to(self, if self.dtype().is_half() { DType::F32 } else { self.dtype() }, at)?;
        let sum = emit(&Op::Reduce { kind: ReduceKind::Sum, axes: mask, keepdim }, &[&wide], at)?;
        let mean = sum.div(count as f64)?;
        Ok(promote::to(&mean, self.dtype(), at)?.into_owned())
    }
}
