//! Elementwise methods and operators.
//!
//! Operands broadcast by NumPy's rule, and are cast to one dtype first: see [`DType::promote`] and [`DType::common`].
//! A host number may stand for one operand; inside a step its value is taken anew at every call. It takes the tensor's
//! dtype if that holds numbers of its kind (an integer dtype refuses one out of its range); else the tensor is
//! cast: an integer tensor with a host float is computed in f32.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::base::dtype::{bf16, f16};
use crate::base::{DType, Loc, Result, Scalar};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, Row, arith, compare, logic};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{Tensor, promote};

/// The right-hand side of a binary operation: a tensor, or a host number.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// // A tensor by reference or value, or a host number.
/// let sums = [x.add(&x)?, x.add(x.clone())?, x.add(1.0)?];
/// assert_eq!(sums.map(|s| s.to_string()), ["[2. 4.]", "[2. 4.]", "[2. 3.]"]);
/// # Ok(())
/// # }
/// ```
pub enum Operand<'a> {
    Tensor(&'a Tensor),
    Owned(Tensor),
    Scalar(Scalar),
}

impl Operand<'_> {
    pub(super) fn tensor(&self) -> Option<&Tensor> {
        match self {
            Operand::Tensor(t) => Some(t),
            Operand::Owned(t) => Some(t),
            Operand::Scalar(_) => None,
        }
    }

    pub(super) fn number(&self) -> Option<Scalar> {
        if let Operand::Scalar(s) = self { Some(*s) } else { None }
    }
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(t: &'a Tensor) -> Self {
        Operand::Tensor(t)
    }
}
impl From<Tensor> for Operand<'_> {
    fn from(t: Tensor) -> Self {
        Operand::Owned(t)
    }
}
macro_rules! scalar_operand {
    ($($t:ty),*) => { $(impl From<$t> for Operand<'_> {
        fn from(v: $t) -> Self { Operand::Scalar(v.into()) }
    })* };
}
scalar_operand!(f32, f64, f16, bf16, i64, i32, i8, u8, usize, bool);

#[track_caller]
pub(super) fn unary(row: &'static Row, x: &Tensor) -> Result<Tensor> {
    emit(&Op::Elementwise(Elementwise { row, scalar: None }), &[x], here())
}

#[track_caller]
pub(super) fn binary(row: &'static Row, a: &Tensor, b: Operand<'_>) -> Result<Tensor> {
    promote::binary(row, a, &b, false, here())
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident = $row:path;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> { $crate::tensor::arith::unary(&$row, self) }
        )* }
    };
}
pub(super) use unary_methods;

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident = $row:path;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(&self, rhs: impl Into<$crate::tensor::arith::Operand<'a>>) -> Result<Tensor> {
                $crate::tensor::arith::binary(&$row, self, rhs.into())
            }
        )* }
    };
}
pub(super) use binary_methods;

unary_methods! {
    /// `-x`, elementwise.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, -2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.neg()?), "[-1.  2.]");
    /// # Ok(())
    /// # }
    /// ```
    neg = arith::NEG;
    /// Absolute value; its gradient at 0 is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, -2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.abs()?), "[1. 2.]");
    /// # Ok(())
    /// # }
    /// ```
    abs = arith::ABS;
    /// `1 / x`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([4.0f32, -2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.recip()?), "[ 0.25 -0.5 ]");
    /// # Ok(())
    /// # }
    /// ```
    recip = arith::RECIP;
    /// `max(x, 0)`; NaN stays NaN; the gradient at 0 is 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.relu()?), "[0. 2.]");
    /// # Ok(())
    /// # }
    /// ```
    relu = arith::RELU;
    /// The same values, through which no gradient flows.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new(3.0f32, device)?)?;
    /// // The gradient of x·detach(x) is x.
    /// let loss = w.get().mul(w.get().detach()?)?;
    /// assert_eq!(loss.backward()?.get(&w).unwrap().item::<f32>()?, 3.0);
    /// # Ok(())
    /// # }
    /// ```
    detach = arith::DETACH;
}

binary_methods! {
    /// `self + rhs`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.add(&b)?.to_string(), "[ 3.  8. 12.]");
    /// assert_eq!(a.add(0.5)?.to_string(), "[1.5 4.5 9.5]"); // host numbers, too
    /// assert_eq!((&a + &b)?.to_string(), a.add(&b)?.to_string());
    /// # Ok(())
    /// # }
    /// ```
    add = arith::ADD;
    /// `self - rhs`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.sub(&b)?.to_string(), "[-1.  0.  6.]");
    /// # Ok(())
    /// # }
    /// ```
    sub = arith::SUB;
    /// `self * rhs`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.mul(&b)?.to_string(), "[ 2. 16. 27.]");
    /// # Ok(())
    /// # }
    /// ```
    mul = arith::MUL;
    /// `self / rhs`; integers by integers: towards zero, 0 for a zero divisor (PyTorch's `div` gives floats there).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.div(&b)?.to_string(), "[0.5 1.  3. ]");
    /// # Ok(())
    /// # }
    /// ```
    div = arith::DIV;
    /// The larger; NaN if either is NaN; at ties half of the gradient goes to each.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.maximum(&b)?.to_string(), "[2. 4. 9.]");
    /// # Ok(())
    /// # }
    /// ```
    maximum = arith::MAXIMUM;
    /// The smaller; NaN if either is NaN; at ties half of the gradient goes to each.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.minimum(&b)?.to_string(), "[1. 4. 3.]");
    /// # Ok(())
    /// # }
    /// ```
    minimum = arith::MINIMUM;
    /// `self == rhs`, as bool.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.eq(&b)?.to_string(), "[False  True False]");
    /// # Ok(())
    /// # }
    /// ```
    eq = compare::EQ;
    /// `self != rhs`, as bool (true with NaN).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.ne(&b)?.to_string(), "[ True False  True]");
    /// # Ok(())
    /// # }
    /// ```
    ne = compare::NE;
    /// `self < rhs`, as bool.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.lt(&b)?.to_string(), "[ True False False]");
    /// # Ok(())
    /// # }
    /// ```
    lt = compare::LT;
    /// `self <= rhs`, as bool.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.le(&b)?.to_string(), "[ True  True False]");
    /// # Ok(())
    /// # }
    /// ```
    le = compare::LE;
    /// `self > rhs`, as bool.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.gt(&b)?.to_string(), "[False False  True]");
    /// # Ok(())
    /// # }
    /// ```
    gt = compare::GT;
    /// `self >= rhs`, as bool.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([1.0f32, 4.0, 9.0], device)?, Tensor::new([2.0f32, 4.0, 3.0], device)?);
    /// assert_eq!(a.ge(&b)?.to_string(), "[False  True  True]");
    /// # Ok(())
    /// # }
    /// ```
    ge = compare::GE;
    /// "And" of bool tensors; of integers bit by bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([true, true, false], device)?, Tensor::new([true, false, false], device)?);
    /// assert_eq!(a.and(&b)?.to_string(), "[ True False False]");
    /// # Ok(())
    /// # }
    /// ```
    and = logic::AND;
    /// "Or" of bool tensors; of integers bit by bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([true, true, false], device)?, Tensor::new([true, false, false], device)?);
    /// assert_eq!(a.or(&b)?.to_string(), "[ True  True False]");
    /// # Ok(())
    /// # }
    /// ```
    or = logic::OR;
    /// "Exclusive or" of bool tensors; of integers bit by bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Tensor::new([true, true, false], device)?, Tensor::new([true, false, false], device)?);
    /// assert_eq!(a.xor(&b)?.to_string(), "[False  True False]");
    /// # Ok(())
    /// # }
    /// ```
    xor = logic::XOR;
}

impl Tensor {
    /// Where this bool tensor is true `a`, elsewhere `b`: tensors or host numbers; all broadcast. The result's dtype is
    /// that of `a` and `b` computed together ([`DType::common`]).
    ///
    /// A gradient flows only to the chosen elements; a NaN in the other branch does not leak.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, -4.0], device)?;
    /// assert_eq!(x.lt(0.0)?.select(0.0, &x)?.to_string(), "[1. 0.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn select<'a, 'b>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'b>>) -> Result<Tensor> {
        let at = here();
        let (a, b): (Operand<'a>, Operand<'b>) = (a.into(), b.into());
        let tensors: SmallVec<[&Tensor; 2]> = a.tensor().into_iter().chain(b.tensor()).collect();
        let numbers: SmallVec<[Scalar; 2]> = [&a, &b].into_iter().filter_map(Operand::number).collect();
        let dtype = promote::common(&tensors, &numbers);
        let mut operands: SmallVec<[Cow<'_, Tensor>; 3]> = SmallVec::new();
        operands.push(Cow::Borrowed(self));
        let mut scalar = None;
        for (p, x) in [(1, &a), (2, &b)] {
            match (x.tensor(), x.number()) {
                (Some(t), _) => operands.push(promote::to(t, dtype, at)?),
                // Of two host numbers the first becomes a tensor.
                (None, Some(s)) if p == 1 && b.tensor().is_none() => {
                    operands.push(Cow::Owned(Tensor::full_at((), s.cast(dtype), self.device(), at)?));
                }
                (None, number) => scalar = number.map(|s| (p, s)),
            }
        }
        let op = Op::Elementwise(Elementwise { row: &logic::SELECT, scalar });
        let operands: SmallVec<[&Tensor; 3]> = operands.iter().map(|t| &**t).collect();
        emit(&op, &operands, at)
    }

    /// The values as `dtype`: to a float to the nearest (f64 and i64 go to 16 bits by way of f32); floats to integers
    /// towards zero, saturating, NaN to 0; integers to narrower ones wrap; to bool "is not zero" (NaN is true);
    /// bool to 0 and 1. Gradients flow between float dtypes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.7f32, -2.5, f32::NAN], device)?;
    /// assert_eq!(x.to_dtype(DType::I64)?.to_string(), "[ 1 -2  0]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        emit(&Op::Cast(dtype), &[self], here())
    }

    /// The same values on `device`: a host read of the source, and an input there.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let other = Device::cpu_with(&CpuOptions::default())?;
    /// let x = Tensor::new([1i64, 2], device)?.to_device(&other)?;
    /// assert!(x.device() == &other);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_device(&self, device: &crate::tensor::Device) -> Result<Tensor> {
        let at = here();
        if self.device() == device {
            return Ok(self.clone());
        }
        let bytes = self.host_bytes(at).map_err(|e| e.at(Loc::resolve(at)))?;
        Tensor::from_bytes(self.ty(), &bytes, device, at)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $row:path) => {
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                binary(&$row, self, Operand::Tensor(rhs))
            }
        }
        impl std::ops::$trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                binary(&$row, self, Operand::Tensor(&rhs))
            }
        }
        impl std::ops::$trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                binary(&$row, &self, Operand::Tensor(rhs))
            }
        }
        impl std::ops::$trait<Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                binary(&$row, &self, Operand::Tensor(&rhs))
            }
        }
        impl std::ops::$trait<Result<Tensor>> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Result<Tensor>) -> Result<Tensor> {
                binary(&$row, self, Operand::Tensor(&rhs?))
            }
        }
        impl std::ops::$trait<Result<Tensor>> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Result<Tensor>) -> Result<Tensor> {
                binary(&$row, &self, Operand::Tensor(&rhs?))
            }
        }
        // One float and one integer type, so that literals infer.
        operator!(@scalar $trait, $method, $row; f64, i64);
    };
    (@scalar $trait:ident, $method:ident, $row:path; $($t:ty),*) => { $(
        impl std::ops::$trait<$t> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: $t) -> Result<Tensor> {
                binary(&$row, self, Operand::Scalar(rhs.into()))
            }
        }
        impl std::ops::$trait<$t> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: $t) -> Result<Tensor> {
                binary(&$row, &self, Operand::Scalar(rhs.into()))
            }
        }
        impl std::ops::$trait<&Tensor> for $t {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                promote::binary(&$row, rhs, &self.into(), true, here())
            }
        }
        impl std::ops::$trait<Tensor> for $t {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                promote::binary(&$row, &rhs, &self.into(), true, here())
            }
        }
    )* };
}
operator!(Add, add, arith::ADD);
operator!(Sub, sub, arith::SUB);
operator!(Mul, mul, arith::MUL);
operator!(Div, div, arith::DIV);

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        unary(&arith::NEG, self)
    }
}
impl std::ops::Neg for Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        unary(&arith::NEG, &self)
    }
}
