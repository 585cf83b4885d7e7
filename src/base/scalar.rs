//! Host scalars: a number of one dtype, with where it came from.

use crate::base::dtype::{DType, NumberKind, bf16, f16};

/// A host number handed to an op (a learning rate, a slice start, an RNG counter).
///
/// Inside a step scalars are parameters: their value is collected at every call and never
/// compared, so a changed one is never stale. It keeps its full value until it is cast to the dtype of the
/// tensor beside it.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let scalars = [Scalar::from(1.5f32), Scalar::from(2i64), Scalar::from(true)];
/// assert_eq!(scalars.map(|s| s.as_f64()), [1.5, 2.0, 1.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    /// The value as a lane of its dtype: see [`crate::base::dtype`].
    pub bits: u64,
    /// Its type.
    pub dtype: DType,
    /// Which parameter of the trace it repeats: set on the scalars that gradient rules see,
    /// so that a `backward` can be replayed as one event.
    pub origin: Origin,
}

/// Where a scalar's value comes from.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::base::scalar::Origin;
/// assert_eq!(Scalar::from(1.5).origin, Origin::Host);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Origin {
    /// Given by the caller at this op.
    #[default]
    Host,
    /// A fixed number of the library's own (a gradient rule's 1): the same at every call.
    Constant,
    /// A copy of the trace's parameter with this index.
    Param(u32),
}

impl Scalar {
    /// An `f64`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::f64(0.1).as_f64(), 0.1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn f64(v: f64) -> Scalar {
        Scalar { bits: v.to_bits(), dtype: DType::F64, origin: Origin::Host }
    }

    /// An `f32`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::f32(0.1).as_f64(), 0.1f32 as f64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn f32(v: f32) -> Scalar {
        Scalar { bits: v.to_bits() as u64, dtype: DType::F32, origin: Origin::Host }
    }

    /// An `i64`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::i64(-3).as_i64(), -3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn i64(v: i64) -> Scalar {
        Scalar { bits: v as u64, dtype: DType::I64, origin: Origin::Host }
    }

    /// A `bool`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::bool(true).dtype, DType::Bool);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bool(v: bool) -> Scalar {
        Scalar { bits: v as u64, dtype: DType::Bool, origin: Origin::Host }
    }

    /// The same value, marked as a fixed number of the library's.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// use stepgraph::base::scalar::Origin;
    /// assert_eq!(Scalar::f32(1.0).constant().origin, Origin::Constant);
    /// # Ok(())
    /// # }
    /// ```
    pub fn constant(self) -> Scalar {
        Scalar { origin: Origin::Constant, ..self }
    }

    /// What kind of number it is.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::i64(1).kind(), DType::I32.kind());
    /// # Ok(())
    /// # }
    /// ```
    pub fn kind(self) -> NumberKind {
        self.dtype.kind()
    }

    /// The value as `dtype`: floats round to nearest (to 16 bits by way of `f32`), integers from floats truncate and
    /// saturate (NaN is 0), integers wrap to narrower ones, `bool` is "not zero".
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::f64(2.9).cast(DType::I64).as_i64(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cast(self, dtype: DType) -> Scalar {
        if dtype == self.dtype {
            return self;
        }
        let bits = match (self.number(), dtype) {
            (number, DType::F64) => number.to_f64().to_bits(),
            (number, DType::F32 | DType::F16 | DType::BF16) => {
                let value = match number {
                    Number::Float(v) => v as f32,
                    Number::Int(v) => v as f32,
                };
                dtype.round(value.to_bits() as u64)
            }
            (Number::Float(v), DType::Bool) => (v != 0.0) as u64,
            (Number::Int(v), DType::Bool) => (v != 0) as u64,
            (Number::Float(v), _) => {
                let (lo, hi) = dtype.int_range().unwrap_or((i64::MIN, i64::MAX));
                (v as i64).clamp(lo, hi) as u64
            }
            (Number::Int(v), _) => dtype.round(v as u64),
        };
        Scalar { bits, dtype, origin: self.origin }
    }

    /// Whether an integer dtype can hold this host number: no float, and no integer outside its range.
    /// Any other dtype takes any number.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(Scalar::i64(255).fits(DType::U8) && !Scalar::i64(256).fits(DType::U8));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fits(self, dtype: DType) -> bool {
        match (self.number(), dtype.int_range()) {
            (_, None) => dtype != DType::Bool || self.kind() == NumberKind::Bool,
            (Number::Float(_), Some(_)) => false,
            (Number::Int(v), Some((lo, hi))) => (lo..=hi).contains(&v),
        }
    }

    fn number(self) -> Number {
        match self.dtype {
            DType::F64 => Number::Float(f64::from_bits(self.bits)),
            d if d.is_float() => Number::Float(f32::from_bits(self.bits as u32) as f64),
            _ => Number::Int(self.bits as i64),
        }
    }

    /// The value as `f64` (rounded beyond 2^53 for `i64`, else exact).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::i64(3).as_f64(), 3.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_f64(self) -> f64 {
        self.number().to_f64()
    }

    /// The value as `i64`, by [`Scalar::cast`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Scalar::f64(-2.9).as_i64(), -2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_i64(self) -> i64 {
        self.cast(DType::I64).bits as i64
    }
}

/// A value without its dtype.
#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    fn to_f64(self) -> f64 {
        match self {
            Number::Int(v) => v as f64,
            Number::Float(v) => v,
        }
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.dtype {
            // `{:?}` prints the shortest text that reads back to the same bits.
            DType::F64 => write!(f, "{:?}", f64::from_bits(self.bits)),
            d if d.is_float() => write!(f, "{:?}", f32::from_bits(self.bits as u32)),
            DType::Bool => write!(f, "{}", self.bits != 0),
            _ => write!(f, "{}", self.bits as i64),
        }
    }
}

impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self, self.dtype)
    }
}

macro_rules! from {
    ($($t:ty => $f:ident as $c:ty),*) => { $(impl From<$t> for Scalar {
        fn from(v: $t) -> Scalar { Scalar::$f(v as $c) }
    })* };
}
from!(f64 => f64 as f64, f32 => f32 as f32);
from!(i64 => i64 as i64, i32 => i64 as i64, i8 => i64 as i64, u8 => i64 as i64, usize => i64 as i64);

impl From<f16> for Scalar {
    fn from(v: f16) -> Scalar {
        Scalar::f32(v.to_f32())
    }
}

impl From<bf16> for Scalar {
    fn from(v: bf16) -> Scalar {
        Scalar::f32(v.to_f32())
    }
}

impl From<bool> for Scalar {
    fn from(v: bool) -> Scalar {
        Scalar::bool(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_truncate_saturate_and_wrap() {
        let f = Scalar::f64;
        let int = |s: Scalar, d| s.cast(d).bits as i64;
        assert_eq!(
            [f64::NAN, 3e9, -3e9, -2.9].map(|v| int(f(v), DType::I32)),
            [0, i32::MAX as i64, i32::MIN as i64, -2]
        );
        assert_eq!([-1.0, 300.0, 2.9].map(|v| int(f(v), DType::U8)), [0, 255, 2]);
        assert_eq!(int(f(-1e30), DType::I64), i64::MIN);
        assert_eq!(int(Scalar::i64(1 << 40), DType::I32), 0);
        assert_eq!(int(Scalar::i64(200), DType::I8), -56);
        assert_eq!([0.5, f64::NAN, -0.0].map(|v| f(v).cast(DType::Bool).bits), [1, 1, 0]);
        assert_eq!(f(0.1).cast(DType::F32).bits, 0.1f32.to_bits() as u64);
        assert_eq!(f(0.1).cast(DType::F64), f(0.1));
        assert_eq!(f(0.1).cast(DType::BF16).as_f64(), 0.100_097_656_25);
        // To nearest in one step: by way of f64 it would be a tie.
        assert_eq!(
            Scalar::i64((1 << 60) + (1 << 36) + 1).cast(DType::F32).as_f64(),
            (1i64 << 60) as f64 + 2f64.powi(37)
        );
    }

    #[test]
    fn integer_dtypes_take_what_they_can_hold() {
        assert!(
            Scalar::i64(255).fits(DType::U8) && !Scalar::i64(256).fits(DType::U8) && !Scalar::i64(-1).fits(DType::U8)
        );
        assert!(!Scalar::f64(1.0).fits(DType::I64) && Scalar::i64(1 << 40).fits(DType::F16));
        assert!(Scalar::bool(true).fits(DType::I8) && Scalar::bool(true).fits(DType::Bool));
        assert!(!Scalar::i64(1).fits(DType::Bool));
    }
}
