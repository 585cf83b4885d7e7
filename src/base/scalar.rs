//! Host scalars: a number of one dtype, with where it came from.

use crate::base::dtype::DType;

/// A host number handed to an op (a learning rate, a slice start, an RNG counter).
///
/// Inside a step scalars are parameters: their value is collected at every call and never
/// compared, so a changed one is never stale.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    /// The value, in the low bits: `f32::to_bits`, an `i64`, or 0/1.
    pub bits: u64,
    /// Its type.
    pub dtype: DType,
    /// Which parameter of the trace it repeats: set on the scalars that gradient rules see,
    /// so that a `backward` can be replayed as one event.
    pub origin: Origin,
}

/// Where a scalar's value comes from.
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
    /// An `f32`.
    pub fn f32(v: f32) -> Scalar {
        Scalar { bits: v.to_bits() as u64, dtype: DType::F32, origin: Origin::Host }
    }

    /// An `i64`.
    pub fn i64(v: i64) -> Scalar {
        Scalar { bits: v as u64, dtype: DType::I64, origin: Origin::Host }
    }

    /// A `bool`.
    pub fn bool(v: bool) -> Scalar {
        Scalar { bits: v as u64, dtype: DType::Bool, origin: Origin::Host }
    }

    /// The same value, marked as a fixed number of the library's.
    pub fn constant(self) -> Scalar {
        Scalar { origin: Origin::Constant, ..self }
    }

    /// The value as `dtype`: floats round to nearest, integers from floats truncate and saturate
    /// (NaN is 0), `bool` is "not zero".
    pub fn cast(self, dtype: DType) -> Scalar {
        if dtype == self.dtype {
            return self;
        }
        let bits = match dtype {
            DType::F32 => match self.dtype {
                DType::I64 => (self.bits as i64 as f32).to_bits() as u64,
                _ => (self.as_f64() as f32).to_bits() as u64,
            },
            DType::I64 => match self.dtype {
                DType::F32 => f32::from_bits(self.bits as u32) as i64 as u64,
                _ => self.bits,
            },
            DType::Bool => match self.dtype {
                DType::F32 => (f32::from_bits(self.bits as u32) != 0.0) as u64,
                _ => (self.bits != 0) as u64,
            },
        };
        Scalar { bits, dtype, origin: self.origin }
    }

    /// The value as `f64` (exact for `f32` and `bool`; rounded beyond 2^53 for `i64`).
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::F32 => f32::from_bits(self.bits as u32) as f64,
            DType::I64 => self.bits as i64 as f64,
            DType::Bool => self.bits as f64,
        }
    }

    /// The value as `i64`, by [`Scalar::cast`].
    pub fn as_i64(self) -> i64 {
        self.cast(DType::I64).bits as i64
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.dtype {
            // `{:?}` prints the shortest text that reads back to the same bits.
            DType::F32 => write!(f, "{:?}", f32::from_bits(self.bits as u32)),
            DType::I64 => write!(f, "{}", self.bits as i64),
            DType::Bool => write!(f, "{}", self.bits != 0),
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
from!(f32 => f32 as f32, i64 => i64 as i64, i32 => i64 as i64, usize => i64 as i64);

/// Kept as the nearest `f32` (float tensors are `f32`).
impl From<f64> for Scalar {
    fn from(v: f64) -> Scalar {
        Scalar::f32(v as f32)
    }
}

impl From<bool> for Scalar {
    fn from(v: bool) -> Scalar {
        Scalar::bool(v)
    }
}
