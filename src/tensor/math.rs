//! Elementwise functions: transcendental ones, rounding, remainders, bits.
//!
//! Float functions compute f32 by the crate's own formulas. Each says how far it may be from the exact value, in units of the
//! last place (ulp); `examples/math_ulp.rs` measures it. They are right at zeros of both signs, infinities and NaN, which stays NaN
//! unless it is said, and take and give denormals. 16-bit floats are computed in f32 and rounded; f64 is that of crate `libm`.
//! Integers are refused by what is for floats only; cast them first.

use crate::base::{DType, Result};
use crate::op::Row;
use crate::op::elementwise::{integers, logic, math, rounding, trigonometry};
use crate::tensor::arith::{Operand, binary, binary_methods, unary, unary_methods};
use crate::tensor::{Tensor, promote};

unary_methods! {
    /// `e^x`; at most 1 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.exp()?), "[1.    2.718]");
    /// # Ok(())
    /// # }
    /// ```
    exp = math::EXP;
    /// `2^x`; at most 1 ulp, exact for whole numbers.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([3.0f32, -1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.exp2()?), "[8.  0.5]");
    /// # Ok(())
    /// # }
    /// ```
    exp2 = math::EXP2;
    /// `e^x - 1`, without cancellation near 0; at most 2 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.expm1()?), "[0.    1.718]");
    /// # Ok(())
    /// # }
    /// ```
    expm1 = math::EXPM1;
    /// Natural logarithm; -inf at 0, NaN below; at most 1 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 10.0], device)?;
    /// assert_eq!(format!("{:.3}", x.log()?), "[0.    2.303]");
    /// # Ok(())
    /// # }
    /// ```
    log = math::LOG;
    /// Logarithm to base 2; -inf at 0, NaN below; at most 2 ulp, exact for powers of two.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([8.0f32, 0.5], device)?;
    /// assert_eq!(format!("{:.3}", x.log2()?), "[ 3. -1.]");
    /// # Ok(())
    /// # }
    /// ```
    log2 = math::LOG2;
    /// Logarithm to base 10; -inf at 0, NaN below; at most 2 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1000.0f32, 0.1], device)?;
    /// assert_eq!(format!("{:.3}", x.log10()?), "[ 3. -1.]");
    /// # Ok(())
    /// # }
    /// ```
    log10 = math::LOG10;
    /// `log(1 + x)`, without cancellation near 0; -inf at -1, NaN below; at most 1 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.log1p()?), "[0.    0.693]");
    /// # Ok(())
    /// # }
    /// ```
    log1p = math::LOG1P;
    /// Square root, correctly rounded; NaN below 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([4.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.sqrt()?), "[2.    1.414]");
    /// # Ok(())
    /// # }
    /// ```
    sqrt = math::SQRT;
    /// `1 / √x`; infinity with the sign of a zero, NaN below; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([4.0f32, 0.25], device)?;
    /// assert_eq!(format!("{:.3}", x.rsqrt()?), "[0.5 2. ]");
    /// # Ok(())
    /// # }
    /// ```
    rsqrt = math::RSQRT;
    /// `1 / (1 + e^-x)`; at most 2 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.sigmoid()?), "[0.5   0.881]");
    /// # Ok(())
    /// # }
    /// ```
    sigmoid = math::SIGMOID;
    /// The error function; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 0.5], device)?;
    /// assert_eq!(format!("{:.3}", x.erf()?), "[0.   0.52]");
    /// # Ok(())
    /// # }
    /// ```
    erf = math::ERF;
    /// `1 - erf(x)`, without cancellation; at most 2 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 0.5], device)?;
    /// assert_eq!(format!("{:.3}", x.erfc()?), "[1.   0.48]");
    /// # Ok(())
    /// # }
    /// ```
    erfc = math::ERFC;
    /// Sine of radians; NaN at infinities; at most 2.1 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.sin()?), "[0.    0.841]");
    /// # Ok(())
    /// # }
    /// ```
    sin = trigonometry::SIN;
    /// Cosine of radians; NaN at infinities; at most 2.1 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.cos()?), "[1.   0.54]");
    /// # Ok(())
    /// # }
    /// ```
    cos = trigonometry::COS;
    /// Tangent of radians; NaN at infinities; at most 2.2 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.tan()?), "[0.    1.557]");
    /// # Ok(())
    /// # }
    /// ```
    tan = trigonometry::TAN;
    /// Arc sine, in -π/2..=π/2; NaN outside -1..=1; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 0.5], device)?;
    /// assert_eq!(format!("{:.3}", x.asin()?), "[0.    0.524]");
    /// # Ok(())
    /// # }
    /// ```
    asin = trigonometry::ASIN;
    /// Arc cosine, in 0..=π; NaN outside -1..=1; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 0.5], device)?;
    /// assert_eq!(format!("{:.3}", x.acos()?), "[0.    1.047]");
    /// # Ok(())
    /// # }
    /// ```
    acos = trigonometry::ACOS;
    /// Arc tangent, in -π/2..=π/2; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.atan()?), "[0.    0.785]");
    /// # Ok(())
    /// # }
    /// ```
    atan = trigonometry::ATAN;
    /// Hyperbolic sine; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.sinh()?), "[0.    1.175]");
    /// # Ok(())
    /// # }
    /// ```
    sinh = trigonometry::SINH;
    /// Hyperbolic cosine; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.cosh()?), "[1.    1.543]");
    /// # Ok(())
    /// # }
    /// ```
    cosh = trigonometry::COSH;
    /// Hyperbolic tangent; at most 1.5 ulp.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([0.0f32, 1.0], device)?;
    /// assert_eq!(format!("{:.3}", x.tanh()?), "[0.    0.762]");
    /// # Ok(())
    /// # }
    /// ```
    tanh = trigonometry::TANH;
    /// The largest whole number not above `x`; zeros keep their sign, integers are their own result. Its gradient is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.5f32, -1.5], device)?;
    /// assert_eq!(format!("{:.3}", x.floor()?), "[ 1. -2.]");
    /// # Ok(())
    /// # }
    /// ```
    floor = rounding::FLOOR;
    /// The smallest whole number not below `x` (so -0.5 gives -0); integers are their own result. Its gradient is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.5f32, -1.5], device)?;
    /// assert_eq!(format!("{:.3}", x.ceil()?), "[ 2. -1.]");
    /// # Ok(())
    /// # }
    /// ```
    ceil = rounding::CEIL;
    /// To the nearest whole number, ties to even (so 2.5 gives 2, -0.5 gives -0); integers are their own result. Its
    /// gradient is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.5f32, 2.5, -1.2], device)?;
    /// assert_eq!(format!("{:.3}", x.round()?), "[ 2.  2. -1.]");
    /// # Ok(())
    /// # }
    /// ```
    round = rounding::ROUND;
    /// Without the fraction (so -0.5 gives -0); integers are their own result. Its gradient is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.5f32, -1.5], device)?;
    /// assert_eq!(format!("{:.3}", x.trunc()?), "[ 1. -1.]");
    /// # Ok(())
    /// # }
    /// ```
    trunc = rounding::TRUNC;
    /// -1 or 1; zeros of both signs and NaN are their own result. Its gradient is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([3.0f32, -0.5, 0.0], device)?;
    /// assert_eq!(format!("{:.3}", x.sign()?), "[ 1. -1.  0.]");
    /// # Ok(())
    /// # }
    /// ```
    sign = rounding::SIGN;
    /// Whether an element is NaN, as bool; never for integers and truth values.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, f32::NAN], device)?;
    /// assert_eq!(format!("{:.3}", x.is_nan()?), "[False  True]");
    /// # Ok(())
    /// # }
    /// ```
    is_nan = rounding::IS_NAN;
    /// Whether an element is an infinity of either sign, as bool; never for integers and truth values.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, f32::INFINITY], device)?;
    /// assert_eq!(format!("{:.3}", x.is_inf()?), "[False  True]");
    /// # Ok(())
    /// # }
    /// ```
    is_inf = rounding::IS_INF;
    /// Whether an element is neither an infinity nor NaN, as bool; always for integers and truth values.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, f32::NAN], device)?;
    /// assert_eq!(format!("{:.3}", x.is_finite()?), "[ True False]");
    /// # Ok(())
    /// # }
    /// ```
    is_finite = rounding::IS_FINITE;
}

binary_methods! {
    /// The angle of the point with ordinate `self` and abscissa `rhs`, in -π..=π, with the special cases of IEEE 754 (by the
    /// signs of zeros: 0 and -0 give π); at most 2 ulp where tested. Its gradients at the origin are NaN.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, -1.0], device)?, Tensor::new([1.0f32, -1.0], device)?);
    /// assert_eq!(format!("{:.3}", a.atan2(&b)?), "[ 0.785 -2.356]");
    /// # Ok(())
    /// # }
    /// ```
    atan2 = trigonometry::ATAN2;
    /// `self` but at least `lo`; NaN if either is NaN. The gradient passes where `self >= lo`, else it goes to `lo`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(x.clamp_min(0.5)?.to_string(), "[0.5 2. ]");
    /// # Ok(())
    /// # }
    /// ```
    clamp_min = rounding::CLAMP_MIN;
    /// `self` but at most `hi`; NaN if either is NaN. The gradient passes where `self <= hi`, else it goes to `hi`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(x.clamp_max(0.5)?.to_string(), "[-1.   0.5]");
    /// # Ok(())
    /// # }
    /// ```
    clamp_max = rounding::CLAMP_MAX;
    /// The remainder with the sign of the divisor, as Python's `%` and PyTorch's `remainder`: -9 and 4 give 3.
    ///
    /// Of floats it is `fmod`, to which the divisor is added (with one rounding) if it is not 0 and has the other sign: NaN for a zero
    /// divisor or an infinite dividend; for an infinite divisor `self` or, if the signs differ, the divisor; a
    /// zero has the sign of the dividend. Of integers: 0 for a zero divisor.
    ///
    /// The gradient of the divisor is `-floor(self / rhs)`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([5i64, -5], device)?;
    /// assert_eq!(x.rem(3i64)?.to_string(), "[2 1]"); // with the sign of the divisor
    /// # Ok(())
    /// # }
    /// ```
    rem = integers::REM;
    /// The remainder with the sign of the dividend, as C's and PyTorch's `fmod` and Rust's `%`: -9 and 4 give -1.
    ///
    /// Of floats exact; NaN for a zero divisor or an infinite dividend; `self` for an infinite divisor. Of integers: it goes
    /// with [`Tensor::div`]; 0 for a zero divisor.
    ///
    /// The gradient of the divisor is `-trunc(self / rhs)`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([5i64, -5], device)?;
    /// assert_eq!(x.fmod(3i64)?.to_string(), "[ 2 -2]"); // with the sign of the dividend
    /// # Ok(())
    /// # }
    /// ```
    fmod = integers::FMOD;
    /// Integers shifted left; what leaves the dtype's width is lost. Counts that are negative, or the width and more, give 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1i64, 3], device)?;
    /// assert_eq!(x.shl(2i64)?.to_string(), "[ 4 12]");
    /// # Ok(())
    /// # }
    /// ```
    shl = integers::SHL;
    /// Integers shifted right, the sign moving in. Counts that are negative, or the width and more, give the sign: 0 or -1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([8i64, -8], device)?;
    /// assert_eq!(x.shr(2i64)?.to_string(), "[ 2 -2]");
    /// # Ok(())
    /// # }
    /// ```
    shr = integers::SHR;
}

impl Tensor {
    /// `self` to the power `rhs`.
    ///
    /// Floats: with the special cases of IEEE 754 `pow` (NaN for a negative base with a fraction as exponent; anything to the power 0
    /// and 1 to any power are 1, even with NaN); at most 1 ulp where tested. Gradients: 0 for the base where the
    /// exponent is 0; 0 for the exponent where the base is 0 and the exponent not negative; NaN for the exponent of a negative base.
    ///
    /// Integers: products wrap; a negative exponent gives the reciprocal cut to a whole number (1 for 1, ±1 for -1, else 0).
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 4.0], [3], &Device::cpu())?;
    /// assert_eq!(x.pow(0.5)?.to_vec::<f32>()?, [1.0, 1.4142135, 2.0]);
    /// assert_eq!(x.pow(&x)?.to_vec::<f32>()?, [1.0, 4.0, 256.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pow<'a>(&self, rhs: impl Into<Operand<'a>>) -> Result<Tensor> {
        let rhs = rhs.into();
        binary(power_row(promote::with(self, &rhs)), self, rhs)
    }

    /// `self` to a whole power: up to the fourth as products (at most 1.5 ulp of floats), else as [`Tensor::pow`].
    ///
    /// Inside a step 1, 2, 3, 4 and all others are five different paths.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([2.0f32, -2.0], device)?;
    /// assert_eq!(x.powi(3)?.to_string(), "[ 8. -8.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn powi(&self, exponent: i32) -> Result<Tensor> {
        match exponent {
            1 => Ok(self.clone()),
            2 => self.mul(self),
            3 => self.mul(self)?.mul(self),
            4 => {
                let square = self.mul(self)?;
                square.mul(&square)
            }
            _ => self.pow(exponent),
        }
    }

    /// `self` brought into `lo..=hi`, tensors or host numbers: the lesser of `hi` and the greater of `self` and `lo`, so
    /// `hi` wherever `lo > hi`; NaN if any is NaN.
    ///
    /// The gradient passes where `lo <= self <= hi`, bounds included; elsewhere it goes to the bound that was taken.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![-2.0f32, 0.25, 3.0], [3], &Device::cpu())?;
    /// assert_eq!(x.clamp(0.0, 1.0)?.to_vec::<f32>()?, [0.0, 0.25, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn clamp<'a, 'b>(&self, lo: impl Into<Operand<'a>>, hi: impl Into<Operand<'b>>) -> Result<Tensor> {
        binary(&rounding::CLAMP_MAX, &binary(&rounding::CLAMP_MIN, self, lo.into())?, hi.into())
    }

    /// "Not" of a bool tensor; of integers bit by bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([true, false], device)?;
    /// assert_eq!(x.not()?.to_string(), "[False  True]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn not(&self) -> Result<Tensor> {
        match self.dtype().int_range() {
            // All bits of the dtype.
            Some((lo, hi)) => binary(&logic::XOR, self, if lo == 0 { hi } else { -1 }.into()),
            None => unary(&logic::NOT, self),
        }
    }
}

/// The power of a dtype.
fn power_row(dtype: DType) -> &'static Row {
    if dtype.is_int() { &integers::IPOW } else { &math::POW }
}
