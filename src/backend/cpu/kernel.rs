//! Kernels of a plan as calls of the dispatcher: vector-machine programs, whole or split over the pool.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::backend::cpu::threads::Pool;
use crate::backend::cpu::vm::{self, Isa, Program};
use crate::backend::dispatch::Call;
use crate::base::Result;
use crate::kernel::Kernel;

/// A program that pays on several threads.
struct Split {
    program: Program,
    pool: Arc<Pool>,
    parts: usize,
}

/// The call of `kernel` on the slots `args` with the parameter words `params`.
///
/// # Safety
/// `args` and `params` must be a step's of a checked plan, so that the slots are large enough for the kernel's arguments.
pub(super) unsafe fn call(kernel: &Kernel, args: &[u32], params: &[u32], isa: Isa, pool: &Arc<Pool>) -> Result<Call> {
    let mut program = Program::compile(kernel, isa)?;
    program.bind(args, params);
    let parts = program.parts(pool.threads());
    // SAFETY: the slots hold the arguments, by the caller's promise, and the guards keep the parameters in range.
    Ok(unsafe {
        if parts > 1 {
            Call::new("run_split", run_split, Split { program, pool: pool.clone(), parts })
        } else {
            Call::new("run_program", vm::run_program, program)
        }
    })
}

/// Slot addresses and parameters, for all parts.
struct Shared(*const *mut u8, *const u64);

// SAFETY: the parts only read the two tables.
unsafe impl Sync for Shared {}

unsafe extern "C" fn run_split(split: *const Split, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry.
    let split = unsafe { &*split };
    let (flag, shared) = (AtomicBool::new(false), Shared(slots, params));
    let shared = &shared;
    split.pool.run(split.parts, &|part| {
        // SAFETY: the dispatcher's tables are valid for the whole call, and parts write apart from each other.
        if unsafe { split.program.run(shared.0, shared.1, part, split.parts) } {
            flag.store(true, Relaxed);
        }
    });
    flag.into_inner() as u32
}
