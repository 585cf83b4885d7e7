//! Failures that users of comparable systems reported, each as a scenario with the right answer: none
//! can happen here. One file per section of the catalogue, each test named by its entry.

// x - x and x / x are what some cases are about; indices name the element a case speaks of.
#![allow(clippy::eq_op, clippy::needless_range_loop)]

#[path = "../harness/mod.rs"]
#[macro_use]
mod harness;

/// Every scenario runs on the CPU.
fn ready() -> bool {
    true
}

mod a_host_values;
mod b_random;
mod c_buffers;
mod d_aliasing;
mod e_numerics;
mod f_scale;
mod g_concurrency;
mod h_training_loops;
mod table;
