//! Floor 9: layers. Parameters are [`crate::Var`]s; `forward` is ordinary eager code over tensors.
//!
//! May rely on floors 0 to 8. Guarantees: a layer's numbers are those of the tensor operations it is made of; its
//! parameters and buffers have dotted names ([`Module`]), in the order of its fields.

mod attention;
mod convolution;
pub mod init;
mod linear;
mod module;
mod norm;
mod recurrent;
mod regular;
mod sequential;

pub use crate::tensor::composite::{Attention, BatchNormOptions, Convolution, CrossEntropy, Pooling, Reduction};
pub use attention::MultiHeadAttention;
pub use convolution::{Conv1d, Conv2d, ConvTranspose2d};
pub use linear::Linear;
pub use module::{Buffer, Held, Mode, Module, Visitor, impl_module, module};
pub use norm::{BatchNorm1d, BatchNorm2d, LayerNorm, RmsNorm};
pub use recurrent::{GruCell, LstmCell};
pub use regular::{Dropout, Embedding};
pub use sequential::{
    Elu, Function, Gelu, GeluTanh, Layer, LeakyRelu, Relu, Sequential, Sigmoid, Silu, Softmax, Softplus, Tanh,
};
