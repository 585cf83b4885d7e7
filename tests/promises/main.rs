//! The promises, each as scenarios run eagerly, traced and frozen: same numbers, never stale, one launch, says why.

#[path = "../harness/mod.rs"]
#[macro_use]
mod harness;

/// Every scenario runs on the CPU.
fn ready() -> bool {
    true
}

mod aliasing;
mod autograd;
mod bounds;
mod custom;
mod dtypes;
mod explained;
mod failures;
mod freezing;
mod gradients;
mod held;
mod host_code;
mod random;
mod reads;
mod state;
mod structure;
mod threads;
