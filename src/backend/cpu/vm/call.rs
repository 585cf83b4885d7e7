//! Kernels of a plan as calls of the dispatcher: vector-machine programs, whole or split over the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::backend::cpu::threads::Pool;
use crate::backend::cpu::vm::{Isa, Program, run_program};
use crate::backend::dispatch::Call;
use crate::base::{Error, Result};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// A program that pays on several threads.
struct Split {
    program: Program,
    pool: Arc<Pool>,
    parts: usize,
}

/// The call of a step that is a kernel.
pub(in crate::backend::cpu) fn kernel(plan: &Checked, step: usize, isa: Isa, pool: &Arc<Pool>) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let StepKind::Kernel(kernel) = &step.kind else { return Err(Error::bug("cpu", "not a kernel")) };
    let mut program = Program::compile(kernel, isa)?;
    program.bind(&step.args, &step.params);
    let parts = program.parts(pool.threads());
    // SAFETY: the plan was checked: the slots hold the arguments; and the guards keep the parameters in range.
    Ok(unsafe {
        if parts > 1 {
            Call::new("run_split", run_split, Split { program, pool: pool.clone(), parts })
        } else {
            Call::new("run_program", run_program, program)
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
