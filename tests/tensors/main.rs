//! Tensors and the host: printing, conversions.

#[path = "../harness/mod.rs"]
mod harness;

mod conversions;
mod printing;
