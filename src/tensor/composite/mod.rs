//! Operations composed of others, by family. Nothing below this folder knows their names: what becomes one kernel does so
//! by the rules of fusion, and the gradients are those of the operations that each is made of.

mod activation;
mod convolution;
mod dropout;
mod loss;
mod normalization;
mod pooling;
mod softmax;

use crate::base::{Error, Loc, Result};
use crate::tensor::Tensor;

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
