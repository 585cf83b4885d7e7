//! The CPU backend.

pub mod vm;
