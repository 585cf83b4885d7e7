//! The CUDA backend on the simulated driver: the same conformance, promises, cases and random programs as the CPU, and what
//! only a CUDA device does. Needs a C++ compiler; without one, every test here says that it was skipped.

#![allow(clippy::eq_op, clippy::needless_range_loop)]

#[path = "../harness/mod.rs"]
#[macro_use]
mod harness;

mod simulated;
use simulated::ready;

mod basics;

#[path = "../promises/aliasing.rs"]
mod aliasing;
#[path = "../promises/autograd.rs"]
mod autograd;
#[path = "../promises/bounds.rs"]
mod bounds;
#[path = "../promises/custom.rs"]
mod custom;
#[path = "../promises/dtypes.rs"]
mod dtypes;
#[path = "../promises/explained.rs"]
mod explained;
#[path = "../promises/failures.rs"]
mod failures;
#[path = "../promises/freezing.rs"]
mod freezing;
#[path = "../promises/gradients.rs"]
mod gradients;
#[path = "../promises/held.rs"]
mod held;
#[path = "../promises/host_code.rs"]
mod host_code;
#[path = "../promises/random.rs"]
mod random;
#[path = "../promises/reads.rs"]
mod reads;
#[path = "../promises/state.rs"]
mod state;
#[path = "../promises/structure.rs"]
mod structure;
#[path = "../promises/threads.rs"]
mod threads;
