//! The only module that calls the driver, NVRTC and cuBLASLt.
//!
//! The bindings are cudarc's, loaded at run time. cudarc panics where a library or a symbol is missing, so [`load::ready`] first
//! opens each library itself and looks up every symbol of one list; nothing here is called before that succeeded.
//! What follows are thin owners of driver objects: each call is checked and named in its [`Failure`], each object is
//! freed by its drop, which ignores failures: nobody is left to hear of them. Which object is used when (a freed block still in use by queued work, a graph that points to memory) is
//! the callers' business: they keep alive what queued work touches, all of it on one stream.

#![allow(unsafe_code)]

pub mod blas;
pub mod calls;
pub mod context;
pub mod entry;
pub mod graph;
pub mod host;
pub mod load;
pub mod memory;
pub mod module;

use std::fmt;

use cudarc::driver::sys as cu;

use crate::base::{Error, ErrorKind};

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function's name.
    pub call: &'static str,
    /// Its status, by number and name.
    pub code: u32,
    pub name: String,
}

impl Failure {
    /// Out of device memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.call.starts_with("cu") && !self.call.starts_with("cublas") && self.code == 2
    }

    /// Whether the context is unusable from here on: errors of a kernel that the driver documents as leaving the process
    /// in an inconsistent state (CUDA Driver API, "Data types used by CUDA driver", CUresult).
    pub fn is_sticky(&self) -> bool {
        self.call.starts_with("cu")
            && !self.call.starts_with("cublas")
            && matches!(self.code, 214 | 700 | 702 | 710 | 714..=719)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Error {
        let (call, code) = (f.call.to_string(), f.to_string());
        Error::new(if f.is_sticky() { ErrorKind::DeviceLost { call, code } } else { ErrorKind::Driver { call, code } })
    }
}

/// The result of a call.
pub type Called<T> = std::result::Result<T, Failure>;

/// A driver call's status as a result.
fn driver(call: &'static str, status: cu::CUresult) -> Called<()> {
    calls::note(call, status as u32);
    if status == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Failure { call, code: status as u32, name: format!("{status:?}") })
}

/// `call!(name(arguments))`: calls the driver, checks the status and names the call if it failed.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        $crate::backend::cuda::sys::driver(
            stringify!($name),
            cudarc::driver::sys::$name($($arg),*),
        )
    };
}
use call;
