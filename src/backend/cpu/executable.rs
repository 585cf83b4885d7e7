//! A compiled plan of the CPU backend.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::backend::cpu::threads::FpGuard;
use crate::backend::cpu::{Inner, library};
use crate::backend::dispatch::{Dispatcher, Mode, Script};
use crate::backend::{Executable, Launch, LaunchResult};
use crate::base::Result;
use crate::plan::check::Checked;

/// Whether a plan is a step's, or one op's run eagerly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Step,
    Eager,
}

pub(super) struct CpuExecutable {
    dispatcher: Dispatcher,
    arena_bytes: usize,
    role: Role,
    inner: Arc<Inner>,
}

impl CpuExecutable {
    pub fn new(checked: &Checked, role: Role, mode: Mode, inner: Arc<Inner>) -> Result<CpuExecutable> {
        let plan = checked.plan();
        let calls = library::calls(checked, inner.isa, &inner.threads)?;
        let dispatcher = Dispatcher::new(Script::new(plan, calls)?, mode);
        inner.memory.arena.enter(plan.arena_bytes);
        Ok(CpuExecutable { dispatcher, arena_bytes: plan.arena_bytes, role, inner })
    }

    fn run(&self, launch: &mut Launch<'_>, times: Option<&mut Vec<(String, Duration)>>) -> Result<LaunchResult> {
        let inner = &*self.inner;
        let _fp = FpGuard::new();
        let result = self.dispatcher.launch_timed(&inner.memory, launch, times)?;
        let kernels = self.kernels() as u64;
        match self.role {
            Role::Step => {
                inner.counters.launches.fetch_add(1, Relaxed);
                inner.counters.kernels.fetch_add(kernels, Relaxed);
            }
            Role::Eager => {
                inner.counters.eager_kernels.fetch_add(kernels, Relaxed);
            }
        }
        Ok(result)
    }
}

impl Drop for CpuExecutable {
    fn drop(&mut self) {
        self.inner.memory.arena.leave(self.arena_bytes);
    }
}

impl Executable for CpuExecutable {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        self.run(launch, None)
    }

    fn launch_timed(&self, launch: &mut Launch<'_>, times: &mut Vec<(String, Duration)>) -> Result<LaunchResult> {
        self.run(launch, Some(times))
    }

    fn kernels(&self) -> usize {
        self.dispatcher.script().calls()
    }

    fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    fn listing(&self) -> String {
        self.dispatcher.listing()
    }
}
