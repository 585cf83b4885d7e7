//! Floor 1: the IR of one fused kernel, shared by every backend.
//!
//! A [`Kernel`] is a loop nest over a *domain* with a straight-line body of scalar
//! instructions; a backend turns it into vector-machine programs or CUDA C++. It is all a
//! backend ever sees of an operation, besides a few [`library::Library`] calls.
//! May rely on floor 0; guarantees: what [`Kernel::verify`] accepts, every backend can run,
//! and its bits are those of [`eval::run`].

pub mod build;
pub mod custom;
pub mod eval;
pub mod instr;
pub mod ir;
pub mod library;
pub mod math;
pub mod meaning;
pub mod order;
pub mod parse;
mod power;
pub mod print;
#[cfg(test)]
pub mod random;
mod trigonometry;
pub mod verify;

pub use build::Builder;
pub use instr::{Instr, Ty};
pub use ir::{Access, Arg, Combine, Dynamic, Guard, Inst, Kernel, Level, Val};
pub use order::Order;
