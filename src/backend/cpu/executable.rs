//! A compiled plan of the CPU backend.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::cpu::threads::FpGuard;
use crate::backend::cpu::{Inner, kernel, library};
use crate::backend::dispatch::{Dispatcher, Host, Mode, Script};
use crate::backend::{Buffer, Executable, Launch, LaunchResult, Memory, Storage};
use crate::base::Result;
use crate::plan::StepKind;
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
        let mut calls = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            // SAFETY: the plan was checked: each argument is a slot that is large enough.
            calls.push(unsafe {
                match &step.kind {
                    StepKind::Kernel(k) => kernel::call(k, &step.args, &step.params, inner.isa, &inner.threads)?,
                    StepKind::Library(l) => library::call(l, &step.args, inner.isa, &inner.threads)?,
                }
            });
        }
        let dispatcher = Dispatcher::new(Script::new(plan, calls)?, mode);
        inner.arena.enter(plan.arena_bytes);
        Ok(CpuExecutable { dispatcher, arena_bytes: plan.arena_bytes, role, inner })
    }
}

impl Drop for CpuExecutable {
    fn drop(&mut self) {
        self.inner.arena.leave(self.arena_bytes);
    }
}

impl Executable for CpuExecutable {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        let inner = &*self.inner;
        let _fp = FpGuard::new();
        let arena = inner.arena.lease(self.arena_bytes).map_err(Inner::out_of_memory)?;
        // SAFETY: the lease is ours until the end of the launch; `Inner` gives out addresses of whole blocks.
        let result = unsafe { self.dispatcher.launch(inner, arena.ptr(), launch) }?;
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

impl Host for Inner {
    #[inline]
    fn address(&self, buffer: &Buffer) -> Option<*mut u8> {
        match &buffer.memory {
            Memory::Host(block) => Some(block.ptr()),
            Memory::Null => None,
        }
    }

    #[inline]
    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)> {
        let block = self.pool.alloc(bytes).map_err(Inner::out_of_memory)?;
        let address = block.ptr();
        Ok((Arc::new(Storage::new(Memory::Host(block), bytes)), address))
    }
}
