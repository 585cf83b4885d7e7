//! stepgraph: record one run of an eager training step, fuse it, compile it, replay it in one launch.

#![deny(unsafe_code)]

pub mod base;
pub mod interp;
pub mod ir;
pub mod kernel;
pub mod op;
pub mod pass;
pub mod plan;
