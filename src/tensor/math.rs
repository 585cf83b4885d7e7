//! Elementwise functions: transcendental ones, rounding, remainders, bits.
//!
//! Float functions compute in f32 by the crate's own formulas: each says how far it may be from the exact value, in
//! units of the last place (ulp), over all arguments; they are right at zeros of both signs, infinities and NaN, which
//! stays NaN unless it is said, and take and give denormals.

use crate::base::{DType, Result};
use crate::op::elementwise::{integers, logic, math, rounding, trigonometry};
use crate::tensor::Tensor;
use crate::tensor::arith::{Operand, binary, binary_methods, unary, unary_methods};

unary_methods! {
    /// `e^x`; at most 1 ulp.
    exp = math::EXP;
    /// `2^x`; at most 1 ulp, exact for whole numbers.
    exp2 = math::EXP2;
    /// `e^x - 1`, without cancellation near 0; at most 2 ulp.
    expm1 = math::EXPM1;
    /// Natural logarithm; -inf at 0, NaN below; at most 1 ulp.
    log = math::LOG;
    /// Logarithm to base 2; -inf at 0, NaN below; at most 2 ulp, exact for powers of two.
    log2 = math::LOG2;
    /// `log(1 + x)`, without cancellation near 0; -inf at -1, NaN below; at most 1 ulp.
    log1p = math::LOG1P;
    /// Square root, correctly rounded; NaN below 0.
    sqrt = math::SQRT;
    /// `1 / √x`; infinity with the sign of a zero, NaN below; at most 1.5 ulp.
    rsqrt = math::RSQRT;
    /// `1 / (1 + e^-x)`; at most 2.5 ulp.
    sigmoid = math::SIGMOID;
    /// The error function; at most 1.5 ulp.
    erf = math::ERF;
    /// Sine of radians; NaN at infinities; at most 2.1 ulp.
    sin = trigonometry::SIN;
    /// Cosine of radians; NaN at infinities; at most 2.1 ulp.
    cos = trigonometry::COS;
    /// Hyperbolic tangent; at most 1.5 ulp.
    tanh = trigonometry::TANH;
    /// The largest whole number not above `x`; zeros keep their sign, integers are their own result. Its gradient is 0.
    floor = rounding::FLOOR;
    /// The smallest whole number not below `x` (so -0.5 gives -0); integers are their own result. Its gradient is 0.
    ceil = rounding::CEIL;
    /// To the nearest whole number, ties to even (so 2.5 gives 2, -0.5 gives -0); integers are their own result. Its
    /// gradient is 0.
    round = rounding::ROUND;
    /// Without the fraction (so -0.5 gives -0); integers are their own result. Its gradient is 0.
    trunc = rounding::TRUNC;
    /// -1 or 1; zeros of both signs and NaN are their own result. Its gradient is 0.
    sign = rounding::SIGN;
    /// Whether an element is NaN, as bool; never for integers and truth values.
    is_nan = rounding::IS_NAN;
    /// Whether an element is an infinity of either sign, as bool; never for integers and truth values.
    is_inf = rounding::IS_INF;
    /// Whether an element is neither an infinity nor NaN, as bool; always for integers and truth values.
    is_finite = rounding::IS_FINITE;
}

binary_methods! {
    /// `self` but at least `lo`; NaN if either is NaN. The gradient passes where `self >= lo`, else it goes to `lo`.
    clamp_min = rounding::CLAMP_MIN;
    /// `self` but at most `hi`; NaN if either is NaN. The gradient passes where `self <= hi`, else it goes to `hi`.
    clamp_max = rounding::CLAMP_MAX;
    /// The remainder with the sign of the divisor, as Python's `%` and PyTorch's `remainder`: -9 and 4 give 3.
    ///
    /// Of floats it is `fmod`, to which the divisor is added (with one rounding) if it is not 0 and has the other sign: NaN for a zero
    /// divisor or an infinite dividend; for an infinite divisor `self` or, if the signs differ, the divisor; a
    /// zero has the sign of the dividend. Of integers: 0 for a zero divisor.
    ///
    /// The gradient of the divisor is `-floor(self / rhs)`.
    rem = integers::REM;
    /// The remainder with the sign of the dividend, as C's and PyTorch's `fmod` and Rust's `%`: -9 and 4 give -1.
    ///
    /// Of floats exact; NaN for a zero divisor or an infinite dividend; `self` for an infinite divisor. Of integers: it goes
    /// with [`Tensor::div`]; 0 for a zero divisor.
    ///
    /// The gradient of the divisor is `-trunc(self / rhs)`.
    fmod = integers::FMOD;
    /// Integers shifted left; what leaves the dtype's width is lost. Counts that are negative, or the width and more, give 0.
    shl = integers::SHL;
    /// Integers shifted right, the sign moving in. Counts that are negative, or the width and more, give the sign: 0 or -1.
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
        binary(self.power_row(), self, rhs.into())
    }

    /// `self` to a whole power: up to the fourth as products (at most 1.5 ulp of floats), else as [`Tensor::pow`].
    ///
    /// Inside a step 1, 2, 3, 4 and all others are five different paths.
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
            _ => binary(self.power_row(), self, exponent.into()),
        }
    }

    fn power_row(&self) -> &'static crate::op::Row {
        if self.dtype().is_float() || self.dtype() == DType::Bool { &math::POW } else { &integers::IPOW }
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

    /// "Not" of a bool tensor; of integers bit by bit, `-1 - x`.
    #[track_caller]
    pub fn not(&self) -> Result<Tensor> {
        if self.dtype() == DType::Bool || self.dtype().is_float() {
            return unary(&logic::NOT, self);
        }
        binary(&logic::XOR, self, (-1i64).into())
    }
}
