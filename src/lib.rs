#![doc = include_str!("../README.md")]
//!
//! ## The tour
//!
//! - [`Device`], [`Tensor`], [`Var`], [`Rng`], [`Gradients`]: what a program is written with.
//! - [`autograd`]: gradients on request, of gradients too; `no_grad`.
//! - [`nn`] and [`optim`]: layers and optimizers, ordinary eager code over [`Var`]s.
//! - [`checkpoint`]: saving and loading.
//! - [`jit`]: the door: [`jit::Step`], [`jit::trace`], [`jit::Frozen`], [`jit::Options`].
//! - [`diag`]: what a step did and why: [`diag::report::Report`], and explanations.
//!
//! Below the door, in the order in which a step passes through them, open for reading and testing:
//!
//! - [`op`]: what an operation is: one table row or file each.
//! - [`ir`]: the graph of a recorded segment; [`interp`] evaluates it, as the reference.
//! - [`pass`]: the passes; [`kernel`]: the IR of one fused kernel.
//! - [`plan`]: steps, edges and memory, and the checker that proves them right.
//! - [`backend`]: what runs plans, with the compiled host dispatch.
//! - [`base`]: errors, dtypes, shapes; the one reader of environment variables is [`base::config`].

#![deny(unsafe_code)]
// Module docs speak to those who work on the crate, too.
#![allow(rustdoc::private_intra_doc_links)]

pub mod backend;
pub mod base;
pub mod checkpoint;
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

#[cfg(feature = "cuda")]
pub use backend::cuda::{cubins::KernelCache, sys::context::ForeignStream};
pub use base::dtype::{Element, bf16, f16};
pub use base::{DType, Error, ErrorKind, Result, Scalar, Shape};
pub use tensor::{CpuOptions, CudaOptions, Device, Gradients, MemoryReport, Rng, Tensor, Var, autocast, autograd};
