//! Floor 0: facts that every other module stands on.
//!
//! Errors, dtypes, shapes, strided layouts, host values, source locations and the
//! one reader of environment variables. It imports nothing of the crate.

pub mod config;
pub mod dtype;
pub mod error;
pub mod host;
pub mod layout;
pub mod location;
pub mod scalar;
pub mod shape;
pub mod text;

pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use host::HostValue;
pub use layout::Layout;
pub use location::Loc;
pub use scalar::Scalar;
pub use shape::{MAX_RANK, Shape};

/// dtype and shape: what the graph knows of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    pub dtype: DType,
    pub shape: Shape,
}

impl Type {
    /// A type of `dtype` and `shape`.
    pub const fn new(dtype: DType, shape: Shape) -> Self {
        Type { dtype, shape }
    }

    /// Bytes of a contiguous buffer of this type.
    pub fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }
}

/// Prints as `f32[32,784]`, the notation of the text form.
impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl std::fmt::Debug for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
