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

#[path = "../cases/a_host_values.rs"]
mod a_host_values;
#[path = "../cases/b_random.rs"]
mod b_random;
#[path = "../cases/c_buffers.rs"]
mod c_buffers;
#[path = "../cases/d_aliasing.rs"]
mod d_aliasing;
#[path = "../cases/e_numerics.rs"]
mod e_numerics;
#[path = "../cases/f_scale.rs"]
mod f_scale;
#[path = "../cases/g_concurrency.rs"]
mod g_concurrency;
#[path = "../cases/h_training_loops.rs"]
mod h_training_loops;
