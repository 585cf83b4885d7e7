//! Launches without work: guards, slots and outputs are those of the plan, the calls do nothing.

use std::sync::Arc;

use super::{Call, Dispatcher, Host, Lease, Mode, Script};
use crate::backend::{Buffer, Launch, LaunchResult, Memory, Storage};
use crate::base::Result;
use crate::plan::Plan;

/// A dispatcher whose calls do nothing, on buffers that hold nothing.
pub struct Rehearsal(Dispatcher);

impl Rehearsal {
    /// The rehearsal of `plan`.
    pub fn new(plan: &Plan, mode: Mode) -> Result<Rehearsal> {
        // SAFETY: the entry looks at nothing.
        let calls = plan.steps.iter().map(|_| unsafe { Call::new("run_nothing", run_nothing, ()) }).collect();
        Ok(Rehearsal(Dispatcher::new(Script::new(plan, calls)?, mode)))
    }

    /// The dispatcher.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.0
    }

    /// One launch; outputs are new buffers without memory, or the inputs' buffers.
    pub fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        self.0.launch(&Nowhere, launch)
    }
}

unsafe extern "C" fn run_nothing(_: *const (), _: *const *mut u8, _: *const u64) -> u32 {
    0
}

struct Nowhere;

// SAFETY: no call touches any memory.
unsafe impl Host for Nowhere {
    type Lease<'a> = Nowhere;

    fn address(&self, buffer: &Buffer) -> Option<*mut u8> {
        matches!(buffer.memory, Memory::Null).then_some(std::ptr::dangling_mut())
    }

    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)> {
        Ok((Arc::new(Storage::new(Memory::Null, bytes)), std::ptr::dangling_mut()))
    }

    fn arena(&self, _bytes: usize) -> Result<Nowhere> {
        Ok(Nowhere)
    }
}

impl Lease for Nowhere {
    fn start(&self) -> *mut u8 {
        std::ptr::dangling_mut()
    }
}
