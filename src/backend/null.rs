//! The null device: plans are compiled and launched as on any other, but no kernel runs.
//!
//! It counts, checks its inputs, hands out buffers that hold nothing, and reads as zeros. Tests and
//! measurements of everything around the kernels use it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::dispatch::{Mode, Rehearsal};
use crate::backend::{Backend, Buffer, Counters, Executable, Launch, LaunchResult, Memory, Storage};
use crate::base::config::config;
use crate::base::{Error, Result};
use crate::plan::check::Checked;

/// A device that computes nothing.
pub struct NullBackend {
    counters: Arc<Counters>,
    mode: Mode,
}

impl NullBackend {
    /// A null device.
    pub fn new() -> Arc<NullBackend> {
        let mode = if config().dispatch_loop { Mode::Loop } else { Mode::Compiled };
        Arc::new(NullBackend { counters: Arc::default(), mode })
    }

    fn executable(&self, plan: &Checked, mode: Mode, eager: bool) -> Result<Arc<dyn Executable>> {
        let plan = plan.plan();
        Ok(Arc::new(NullExecutable {
            rehearsal: Rehearsal::new(plan, mode)?,
            arena_bytes: plan.arena_bytes,
            eager,
            counters: self.counters.clone(),
        }))
    }
}

impl Backend for NullBackend {
    fn name(&self) -> &str {
        "null"
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Ok(Arc::new(Storage::new(Memory::Null, bytes)))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        self.counters.uploads.fetch_add(1, Relaxed);
        self.alloc(bytes.len())
    }

    fn download(&self, buffer: &Buffer, offset: usize, out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len()).is_none_or(|end| end > buffer.bytes()) {
            let given = format!("bytes {offset}..{} of {}", offset.saturating_add(out.len()), buffer.bytes());
            return Err(Error::argument("download", "a range within the buffer", given));
        }
        out.fill(0);
        self.counters.downloads.fetch_add(1, Relaxed);
        Ok(())
    }

    fn compile(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        let executable = self.executable(&plan, self.mode, false)?;
        self.counters.compiles.fetch_add(1, Relaxed);
        Ok(executable)
    }

    fn compile_eager(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        self.executable(&plan, Mode::Loop, true)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

struct NullExecutable {
    rehearsal: Rehearsal,
    arena_bytes: usize,
    eager: bool,
    counters: Arc<Counters>,
}

impl Executable for NullExecutable {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        let result = self.rehearsal.launch(launch)?;
        let kernels = self.kernels() as u64;
        if self.eager {
            self.counters.eager_kernels.fetch_add(kernels, Relaxed);
        } else {
            self.counters.launches.fetch_add(1, Relaxed);
            self.counters.kernels.fetch_add(kernels, Relaxed);
        }
        Ok(result)
    }

    fn kernels(&self) -> usize {
        self.rehearsal.dispatcher().script().calls()
    }

    fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    fn listing(&self) -> String {
        self.rehearsal.dispatcher().listing()
    }
}
