//! Operations composed of others, by family. Nothing below this folder knows their names: what becomes one kernel does so
//! by the rules of fusion, and the gradients are those of the operations that each is made of.
//!
//! Of 16-bit floats they are computed in f32, and the result is rounded once.

mod activation;
mod attention;
mod convolution;
mod dropout;
mod loss;
mod normalization;
mod pooling;
mod softmax;

use crate::base::{DType, Error, Loc, Result, Scalar};
use crate::tensor::Tensor;
use crate::tensor::arith::Operand;

pub use attention::Attention;
pub use convolution::Convolution;
pub use loss::{CrossEntropy, Reduction};
pub use normalization::BatchNormOptions;
pub use pooling::Pooling;

/// Refuses tensors that hold no floats. Called inside the method's scope, whose place the error has.
#[track_caller]
fn need_float(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().find(|t| !t.dtype().is_float()) {
        Some(t) => Err(Error::dtype(op, "a float tensor", t.dtype()).at(Loc::caller())),
        None => Ok(()),
    }
}

/// A fixed number of the library's own, of the tensor's dtype: the same at every call.
fn fixed(v: f64) -> Operand<'static> {
    Operand::Scalar(Scalar::f64(v).constant())
}

/// 16-bit floats as f32, other tensors as they are.
fn wide(t: &Tensor) -> Result<Tensor> {
    if t.dtype().is_half() { t.to_dtype(DType::F32) } else { Ok(t.clone()) }
}

/// The same of an operand that may be missing.
fn wide_if(t: Option<&Tensor>) -> Result<Option<Tensor>> {
    t.map(wide).transpose()
}

/// What was computed from a [`wide`] operand of `dtype`, rounded to it.
fn narrow(y: Tensor, dtype: DType) -> Result<Tensor> {
    if dtype.is_half() && y.dtype() != dtype { y.to_dtype(dtype) } else { Ok(y) }
}
