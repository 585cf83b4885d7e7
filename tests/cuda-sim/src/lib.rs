//! A simulated CUDA driver: stand-ins for libcuda, libnvrtc and libcublasLt that run kernels on the CPU.
//!
//! [`install`] builds them with the machine's C++ compiler and loads them under the names `libcuda.so`, `libnvrtc.so`
//! and `libcublasLt.so`, so that whoever opens a library of that name later (stepgraph, cudarc) gets the stand-in. That
//! is one choice per process: tests on a real GPU live in another test binary.
//!
//! Two devices are visible. Kernels are compiled by the machine's C++ compiler and run when somebody waits, in a seeded
//! arbitrary order that streams, events and graph edges allow; memory is poisoned and guarded; every call is counted
//! and can be made to fail. `RULES.md` lists which rules of the driver are held, and by which test.
//!
//! ```no_run
//! cuda_sim::install().unwrap();
//! cuda_sim::fail("cuMemAllocAsync", 3, 2); // the third allocation from here: out of memory
//! // ... use stepgraph ...
//! assert_eq!(cuda_sim::counts().get("cuGraphLaunch"), Some(&1));
//! assert!(cuda_sim::outstanding().is_empty());
//! ```

mod build;
mod control;
mod symbols;

pub use build::{Missing, Options, install, install_with};
pub use control::*;
pub use symbols::{calls, symbol};
