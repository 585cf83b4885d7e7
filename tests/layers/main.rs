//! Composites and layers: values against formulas in double precision written out here, or figures computed
//! by other libraries; gradients against finite differences of these formulas; eager, traced and frozen bit for bit alike.

// Loops over indices follow the formulas.
#![allow(clippy::needless_range_loop, clippy::type_complexity)]

#[path = "../harness/mod.rs"]
mod harness;

mod check;

mod activations;
mod attention;
mod convolutions;
mod dtypes;
mod fusion;
mod losses;
mod models;
mod modules;
mod norms;
mod pooling;
mod recurrent;
mod regular;
