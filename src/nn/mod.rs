//! Floor 9: layers. Parameters are [`crate::Var`]s; `forward` is ordinary eager code over tensors.
//!
//! May rely on floors 0 to 8. Guarantees: a layer's numbers are those of the tensor operations it is made of; its
//! parameters and buffers have dotted names ([`Module`]), in the order of its fields.

pub mod init;
mod linear;
mod module;

pub use crate::tensor::composite::{BatchNormOptions, CrossEntropy, Reduction};
pub use linear::Linear;
pub use module::{Buffer, Held, Mode, Module, Visitor, impl_module, module};
