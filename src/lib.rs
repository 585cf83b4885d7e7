//! stepgraph: record one run of an eager training step, fuse it, compile it, replay it in one launch.

#![deny(unsafe_code)]

pub mod backend;
pub mod base;
pub mod diag;
pub mod interp;
pub mod ir;
pub mod jit;
pub mod kernel;
pub mod nn;
pub mod op;
pub mod optim;
pub mod pass;
pub mod plan;
pub mod tensor;
mod trace;

pub use base::dtype::Element;
pub use base::{DType, Error, ErrorKind, Result, Scalar, Shape};
pub use tensor::{CpuOptions, Device, Gradients, Rng, Tensor, Var};
