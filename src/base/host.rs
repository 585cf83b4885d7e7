//! Values in host memory: what tests, the reference interpreter and host reads exchange.

use crate::base::dtype::DType;
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
    F32(Vec<f32>),
    I64(Vec<i64>),
    Bool(Vec<bool>),
    /// Not a tensor dtype: references in double precision (conformance, finite differences).
    F64(Vec<f64>),
}

impl HostData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            HostData::F32(v) => v.len(),
            HostData::I64(v) => v.len(),
            HostData::Bool(v) => v.len(),
            HostData::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements stored in `bytes` as `dtype`.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> HostData {
        use crate::base::dtype::Element;
        match dtype {
            DType::F32 => HostData::F32(f32::from_bytes(bytes)),
            DType::I64 => HostData::I64(i64::from_bytes(bytes)),
            DType::Bool => HostData::Bool(bool::from_bytes(bytes)),
        }
    }

    /// The memory format of the elements (`F64` as `f64`).
    pub fn to_bytes(&self) -> Vec<u8> {
        use crate::base::dtype::Element;
        match self {
            HostData::F32(v) => f32::to_bytes(v),
            HostData::I64(v) => i64::to_bytes(v),
            HostData::Bool(v) => bool::to_bytes(v),
            HostData::F64(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        }
    }

    /// Every element as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            HostData::F32(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::I64(v) => v.iter().map(|&x| x as f64).collect(),
            HostData::Bool(v) => v.iter().map(|&x| x as u8 as f64).collect(),
            HostData::F64(v) => v.clone(),
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
