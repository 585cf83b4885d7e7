//! Element types of tensors.

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum DType {
    /// Truth values, one byte each, 0 or 1.
    Bool,
    /// 64-bit signed integers (labels, indices); arithmetic wraps.
    I64,
    /// IEEE 754 binary32.
    F32,
}

impl DType {
    /// All dtypes, in promotion order.
    pub const ALL: [DType; 3] = [DType::Bool, DType::I64, DType::F32];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::I64 => 8,
            DType::F32 => 4,
        }
    }

    /// Whether gradients can flow through values of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32)
    }

    /// The name in the text form and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I64 => "i64",
            DType::F32 => "f32",
        }
    }

    /// The dtype called `name`, if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the element of a tensor.
pub trait Element: Copy + Send + Sync + 'static + PartialEq + std::fmt::Debug {
    /// The dtype it is stored as.
    const DTYPE: DType;
    /// The bytes of `values`, in the tensor's memory format (native endian, `bool` as 0 or 1).
    fn to_bytes(values: &[Self]) -> Vec<u8>;
    /// The values stored in `bytes`; the inverse of [`Element::to_bytes`].
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($ty:ty, $dtype:ident) => {
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|v| v.to_ne_bytes()).collect()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes
                    .chunks_exact(size_of::<$ty>())
                    .map(|c| <$ty>::from_ne_bytes(c.try_into().unwrap_or_default()))
                    .collect()
            }
        }
    };
}
element!(f32, F32);
element!(i64, I64);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_bytes(values: &[Self]) -> Vec<u8> {
        values.iter().map(|&v| v as u8).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}
