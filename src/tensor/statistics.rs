//! Reductions composed of others: each is one kernel over rows when it is traced. 16-bit floats are computed in f32 and
//! rounded once.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Scalar};
use crate::tensor::arith::Operand;
use crate::tensor::recorder::here;
use crate::tensor::reduce::Axes;
use crate::tensor::{At, Tensor};

/// A fixed number of the library's own.
fn fixed(v: f64) -> Operand<'static> {
    Operand::Scalar(Scalar::f64(v).constant())
}

/// Axes already checked.
struct Mask(u8);

impl Axes for Mask {
    fn axes(&self) -> Option<Vec<isize>> {
        Some((0..8).filter(|a| self.0 >> a & 1 == 1).collect())
    }
}

impl Tensor {
    /// The mask of `axes`, of a float tensor.
    fn float_axes(&self, op: &'static str, axes: &impl Axes, at: At) -> Result<u8> {
        let check = || {
            if !self.dtype().is_float() {
                return Err(Error::dtype(op, "a float tensor", self.dtype()));
            }
            self.axis_mask(op, axes)
        };
        check().map_err(|e| e.at(Loc::resolve(at)))
    }

    /// `f` of this tensor, 16-bit floats in f32 and the result rounded once.
    fn widely(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        if self.dtype().is_half() { f(&self.to_dtype(DType::F32)?)?.to_dtype(self.dtype()) } else { f(self) }
    }

    /// Without the reduced axes, or with them.
    fn kept(&self, mask: u8, keepdim: bool) -> Result<Tensor> {
        if keepdim { Ok(self.clone()) } else { self.reshape(self.shape().reduce(mask, false)) }
    }

    /// `log(sum(exp(x)))` over `axes`, without overflow: -inf where all elements are, and of no elements; inf where one is.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1000.0f32, 1000.0], [2], &Device::cpu())?;
    /// assert!((x.logsumexp(0)?.item::<f32>()? - (1000.0 + 2f32.ln())).abs() < 1e-3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The gradient is the softmax; zero where all elements are -inf.
    #[track_caller]
    pub fn logsumexp(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.log_sum_exp(axes, false, here())
    }

    /// As [`Tensor::logsumexp`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.logsumexp_keepdim(1)?.dims(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn logsumexp_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.log_sum_exp(axes, true, here())
    }

    fn log_sum_exp(&self, axes: impl Axes, keepdim: bool, at: At) -> Result<Tensor> {
        let mask = self.float_axes("logsumexp", &axes, at)?;
        self.widely(|x| x.log_sum_exp_wide(mask, keepdim, at))
    }

    fn log_sum_exp_wide(&self, mask: u8, keepdim: bool, at: At) -> Result<Tensor> {
        if self.reduced_count(mask) == 0 {
            let value = Scalar::f32(f32::NEG_INFINITY).cast(self.dtype());
            return Tensor::full_at(self.shape().reduce(mask, keepdim), value, self.device(), at);
        }
        // A finite number near the largest element: infinities stay infinite beside it.
        let largest = if self.dtype() == DType::F64 { f64::MAX } else { f32::MAX as f64 };
        let top = self.max_keepdim(Mask(mask))?.detach()?;
        let top = top.maximum(fixed(-largest))?.minimum(fixed(largest))?;
        let sum = self.sub(&top)?.exp()?.sum_keepdim(Mask(mask))?;
        // No element but -inf: no gradient, rather than 0 / 0.
        let nothing = sum.eq(fixed(0.0))?;
        let log = nothing.select(fixed(1.0), &sum)?.log()?.add(&top)?;
        nothing.select(fixed(f64::NEG_INFINITY), &log)?.kept(mask, keepdim)
    }

    /// Variance over `axes`: squared differences from the mean, divided by the number of elements less one (of one
    /// element: NaN). See [`Tensor::var_with`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0, 3.0, 6.0], device)?;
    /// assert!((x.var(())?.item::<f32>()? - 14.0 / 3.0).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn var(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.variance("var", axes, 1.0, false, here())
    }

    /// As [`Tensor::var`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.var_keepdim(1)?.to_string(), "[[1.]\n [7.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn var_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.variance("var", axes, 1.0, true, here())
    }

    /// Variance with another correction: the squared differences' sum is divided by `max(n - correction, 0)`; 0 gives the
    /// variance of a population, 1 the unbiased estimate from a sample.
    ///
    /// In two passes: the mean first, then the differences from it, from which their own mean (the rounding error of the first)
    /// is taken off. So no digits are lost where the mean is large.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [4], &Device::cpu())?;
    /// assert_eq!(x.var_with(0, 0.0, false)?.item::<f32>()?, 1.25);
    /// assert_eq!(x.var_with(0, 2.0, false)?.item::<f32>()?, 2.5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn var_with(&self, axes: impl Axes, correction: f64, keepdim: bool) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.variance("var", axes, correction, keepdim, here())
    }

    /// Standard deviation over `axes`: the square root of [`Tensor::var`]. Its gradient is 0 where all elements are equal.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(format!("{:.3}", x.std(1)?), "[1.    2.646]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn std(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.deviation(axes, 1.0, false, here())
    }

    /// As [`Tensor::std`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(x.std_keepdim(1)?.dims(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn std_keepdim(&self, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.deviation(axes, 1.0, true, here())
    }

    /// Standard deviation with another correction: the square root of [`Tensor::var_with`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 9.0]], device)?;
    /// assert_eq!(format!("{:.3}", x.std_with(1, 0.0, false)?), "[0.816 2.16 ]"); // of a population
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn std_with(&self, axes: impl Axes, correction: f64, keepdim: bool) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.deviation(axes, correction, keepdim, here())
    }

    fn variance(&self, op: &'static str, axes: impl Axes, correction: f64, keepdim: bool, at: At) -> Result<Tensor> {
        let mask = self.float_axes(op, &axes, at)?;
        self.widely(|x| x.spread(mask, correction, keepdim))
    }

    fn deviation(&self, axes: impl Axes, correction: f64, keepdim: bool, at: At) -> Result<Tensor> {
        let mask = self.float_axes("std", &axes, at)?;
        self.widely(|x| x.spread(mask, correction, keepdim)?.root())
    }

    fn spread(&self, mask: u8, correction: f64, keepdim: bool) -> Result<Tensor> {
        let count = self.reduced_count(mask) as f64;
        let rough = self.sub(&self.mean_keepdim(Mask(mask))?)?;
        let differences = rough.sub(&rough.mean_keepdim(Mask(mask))?)?;
        let squares = differences.mul(&differences)?;
        let sum = if keepdim { squares.sum_keepdim(Mask(mask))? } else { squares.sum(Mask(mask))? };
        sum.div((count - correction).max(0.0))
    }

    /// The square root; its gradient at 0 is 0.
    fn root(&self) -> Result<Tensor> {
        let zero = self.eq(fixed(0.0))?;
        zero.select(fixed(0.0), &zero.select(fixed(1.0), self)?.sqrt()?)
    }

    /// The `p`-norm of the elements along `axes`: `sum(|x|^p)^(1/p)`. 1: the sum of absolute values; 2: the Euclidean
    /// length; infinity: the largest absolute value, -infinity: the smallest; 0: the number of elements that are not 0.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![3.0f32, -4.0], [2], &Device::cpu())?;
    /// assert_eq!(x.norm(2.0, ())?.item::<f32>()?, 5.0);
    /// assert_eq!(x.norm(1.0, ())?.item::<f32>()?, 7.0);
    /// assert_eq!(x.norm(f64::INFINITY, ())?.item::<f32>()?, 4.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Gradients at 0 are 0; equal extremes share theirs. Squares beyond the dtype's range overflow.
    ///
    /// Errors: a NaN for `p`; an infinite `p` over no elements.
    #[track_caller]
    pub fn norm(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.p_norm(p, axes, false, here())
    }

    /// As [`Tensor::norm`], the axes kept with length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[3.0f32, 4.0], [6.0, 8.0]], device)?;
    /// assert_eq!(x.norm_keepdim(2.0, 1)?.to_string(), "[[ 5.]\n [10.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn norm_keepdim(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.p_norm(p, axes, true, here())
    }

    fn p_norm(&self, p: f64, axes: impl Axes, keepdim: bool, at: At) -> Result<Tensor> {
        let mask = self.float_axes("norm", &axes, at)?;
        if p.is_nan() {
            return Err(Error::argument("norm", "a number or an infinity for p", "NaN").at(Loc::resolve(at)));
        }
        self.widely(|x| x.p_norm_wide(p, mask, keepdim))
    }

    fn p_norm_wide(&self, p: f64, mask: u8, keepdim: bool) -> Result<Tensor> {
        let sum = |t: &Tensor| if keepdim { t.sum_keepdim(Mask(mask)) } else { t.sum(Mask(mask)) };
        let size = self.abs()?;
        match p {
            f64::INFINITY if keepdim => size.max_keepdim(Mask(mask)),
            f64::INFINITY => size.max(Mask(mask)),
            f64::NEG_INFINITY if keepdim => size.min_keepdim(Mask(mask)),
            f64::NEG_INFINITY => size.min(Mask(mask)),
            0.0 => sum(&self.ne(fixed(0.0))?.to_dtype(self.dtype())?),
            1.0 => sum(&size),
            2.0 => sum(&self.mul(self)?)?.root(),
            _ => sum(&size.raised(p)?)?.raised(1.0 / p),
        }
    }

    /// A number from 0 up to the power `p`; the gradient at 0 is 0.
    fn raised(&self, p: f64) -> Result<Tensor> {
        let zero = self.eq(fixed(0.0))?;
        let at_zero = if p > 0.0 { 0.0 } else { f64::INFINITY };
        zero.select(fixed(at_zero), &zero.select(fixed(1.0), self)?.log()?.mul(p)?.exp()?)
    }
}
