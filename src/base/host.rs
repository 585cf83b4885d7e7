//! Values in host memory: what tests, the reference interpreter and host reads exchange.

use crate::base::dtype::{DType, Element, bf16, f16};
use crate::base::shape::Shape;

/// A contiguous tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostValue {
    pub shape: Shape,
    pub data: HostData,
}

/// The elements of a [`HostValue`], row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    Bool(Vec<bool>),
    U8(Vec<u8>),
    I8(Vec<i8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Reference values in double precision that stand for elements of a float dtype (conformance, finite
    /// differences): no operation rounds them to it.
    Real(DType, Vec<f64>),
}

/// Applies one expression to the elements, whatever their type.
macro_rules! elements {
    ($data:expr, $v:ident => $e:expr) => {
        match $data {
            HostData::Bool($v) => $e,
            HostData::U8($v) => $e,
            HostData::I8($v) => $e,
            HostData::I32($v) => $e,
            HostData::I64($v) => $e,
            HostData::F16($v) => $e,
            HostData::BF16($v) => $e,
            HostData::F32($v) => $e,
            HostData::F64($v) | HostData::Real(_, $v) => $e,
        }
    };
}

/// The same, making elements of the same type.
macro_rules! each {
    ($data:expr, $v:ident => $e:expr) => {
        match $data {
            HostData::Bool($v) => HostData::Bool($e),
            HostData::U8($v) => HostData::U8($e),
            HostData::I8($v) => HostData::I8($e),
            HostData::I32($v) => HostData::I32($e),
            HostData::I64($v) => HostData::I64($e),
            HostData::F16($v) => HostData::F16($e),
            HostData::BF16($v) => HostData::BF16($e),
            HostData::F32($v) => HostData::F32($e),
            HostData::F64($v) => HostData::F64($e),
            HostData::Real(dtype, $v) => HostData::Real(*dtype, $e),
        }
    };
}

impl HostData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        elements!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dtype that the elements have or stand for.
    pub fn dtype(&self) -> DType {
        match self {
            HostData::Bool(_) => DType::Bool,
            HostData::U8(_) => DType::U8,
            HostData::I8(_) => DType::I8,
            HostData::I32(_) => DType::I32,
            HostData::I64(_) => DType::I64,
            HostData::F16(_) => DType::F16,
            HostData::BF16(_) => DType::BF16,
            HostData::F32(_) => DType::F32,
            HostData::F64(_) => DType::F64,
            HostData::Real(dtype, _) => *dtype,
        }
    }

    /// The elements stored in `bytes` as `dtype`.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> HostData {
        match dtype {
            DType::Bool => HostData::Bool(Element::from_bytes(bytes)),
            DType::U8 => HostData::U8(Element::from_bytes(bytes)),
            DType::I8 => HostData::I8(Element::from_bytes(bytes)),
            DType::I32 => HostData::I32(Element::from_bytes(bytes)),
            DType::I64 => HostData::I64(Element::from_bytes(bytes)),
            DType::F16 => HostData::F16(Element::from_bytes(bytes)),
            DType::BF16 => HostData::BF16(Element::from_bytes(bytes)),
            DType::F32 => HostData::F32(Element::from_bytes(bytes)),
            DType::F64 => HostData::F64(Element::from_bytes(bytes)),
        }
    }

    /// The memory format of the elements (`Real` as `f64`).
    pub fn to_bytes(&self) -> Vec<u8> {
        elements!(self, v => Element::to_bytes(v))
    }

    /// The elements as kernel lanes (see [`crate::base::dtype`]); `Real` rounded to its dtype.
    pub fn lanes(&self) -> Vec<u64> {
        match self {
            HostData::Real(DType::F64, v) => v.iter().map(|x| x.to_bits()).collect(),
            HostData::Real(dtype, v) => v.iter().map(|&x| dtype.round((x as f32).to_bits() as u64)).collect(),
            HostData::F32(v) => v.iter().map(|x| x.to_bits() as u64).collect(),
            HostData::F64(v) => v.iter().map(|x| x.to_bits()).collect(),
            HostData::I64(v) => v.iter().map(|&x| x as u64).collect(),
            HostData::Bool(v) => v.iter().map(|&x| x as u64).collect(),
            other => {
                let dtype = other.dtype();
                other.to_bytes().chunks_exact(dtype.size()).map(|c| dtype.read(c)).collect()
            }
        }
    }

    /// Elements of `dtype` from kernel lanes: the inverse of [`HostData::lanes`]; 16-bit floats round, integers wrap.
    pub fn from_lanes(dtype: DType, lanes: &[u64]) -> HostData {
        match dtype {
            DType::F32 => HostData::F32(lanes.iter().map(|&b| f32::from_bits(b as u32)).collect()),
            DType::F64 => HostData::F64(lanes.iter().map(|&b| f64::from_bits(b)).collect()),
            DType::I64 => HostData::I64(lanes.iter().map(|&b| b as i64).collect()),
            DType::Bool => HostData::Bool(lanes.iter().map(|&b| b != 0).collect()),
            _ => {
                let mut bytes = vec![0; lanes.len() * dtype.size()];
                for (c, &lane) in bytes.chunks_exact_mut(dtype.size()).zip(lanes) {
                    dtype.write(lane, c);
                }
                HostData::from_bytes(dtype, &bytes)
            }
        }
    }

    /// Every element as `f64` (exact but for `i64` beyond 2^53).
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            HostData::Bool(v) => v.iter().map(|&x| x as u8 as f64).collect(),
            HostData::U8(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::I8(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::I32(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::I64(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            HostData::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
            HostData::F32(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::F64(v) | HostData::Real(_, v) => v.clone(),
        }
    }

    /// The first element that differs from `other`'s in a bit (all NaN are alike); 0 if dtype or number of elements do.
    pub fn difference(&self, other: &HostData) -> Option<usize> {
        let real = |d: &HostData| matches!(d, HostData::Real(..));
        if self.dtype() != other.dtype() || self.len() != other.len() || real(self) != real(other) {
            return Some(0);
        }
        let nan = |v: &[f64], i: usize| v[i].is_nan();
        let (a, b) = (self.to_bytes(), other.to_bytes());
        let size = if self.is_empty() { 1 } else { a.len() / self.len() };
        let mut unequal =
            (0..self.len()).filter(|i| a[i * size..(i + 1) * size] != b[i * size..(i + 1) * size]).peekable();
        unequal.peek()?;
        if !self.dtype().is_float() {
            return unequal.next();
        }
        let (x, y) = (self.to_f64(), other.to_f64());
        unequal.find(|&i| !(nan(&x, i) && nan(&y, i)))
    }

    /// Floats as [`HostData::Real`] values; others as they are.
    pub fn widen(self) -> HostData {
        match self {
            HostData::Real(..) => self,
            _ if self.dtype().is_float() => HostData::Real(self.dtype(), self.to_f64()),
            _ => self,
        }
    }

    /// The elements at `positions`, in that order.
    pub fn pick(&self, positions: &[usize]) -> HostData {
        each!(self, v => positions.iter().map(|&p| v[p]).collect())
    }

    /// `n` zeros (false) of the same type.
    pub fn zeros(&self, n: usize) -> HostData {
        each!(self, v => { let _ = v; vec![Default::default(); n] })
    }

    /// Puts the elements of `from`, of the same type (else nothing happens), at `positions`.
    pub fn put(&mut self, positions: &[usize], from: &HostData) {
        macro_rules! pairs {
            ($($kind:ident),*) => {
                match (self, from) {
                    $((HostData::$kind(out), HostData::$kind(v)) => {
                        positions.iter().zip(v).for_each(|(&p, &v)| out[p] = v)
                    })*
                    (HostData::Real(_, out), HostData::Real(_, v)) => {
                        positions.iter().zip(v).for_each(|(&p, &v)| out[p] = v)
                    }
                    _ => {}
                }
            };
        }
        pairs!(Bool, U8, I8, I32, I64, F16, BF16, F32, F64)
    }

    /// Each element as text: floats as short as reads back to the same value, with a decimal point.
    pub fn to_text(&self) -> Vec<String> {
        match self {
            HostData::Bool(v) => v.iter().map(|x| x.to_string()).collect(),
            HostData::U8(v) => v.iter().map(|x| x.to_string()).collect(),
            HostData::I8(v) => v.iter().map(|x| x.to_string()).collect(),
            HostData::I32(v) => v.iter().map(|x| x.to_string()).collect(),
            HostData::I64(v) => v.iter().map(|x| x.to_string()).collect(),
            HostData::F16(v) => v.iter().map(|x| format!("{:?}", x.to_f32())).collect(),
            HostData::BF16(v) => v.iter().map(|x| format!("{:?}", x.to_f32())).collect(),
            HostData::F32(v) => v.iter().map(|x| format!("{x:?}")).collect(),
            HostData::F64(v) | HostData::Real(_, v) => v.iter().map(|x| format!("{x:?}")).collect(),
        }
    }
}

impl HostValue {
    /// `data` as `shape`; lengths must agree (checked in debug builds).
    pub fn new(shape: Shape, data: HostData) -> HostValue {
        debug_assert_eq!(shape.numel(), data.len());
        HostValue { shape, data }
    }
}
