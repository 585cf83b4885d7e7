//! The CPU backend: host memory, vector-machine kernels, matrix products, a thread pool.
//!
//! [`CpuBackend`] compiles each kernel of a plan and lets [`dispatch`](crate::backend::dispatch) tie them into one
//! native call. A launch runs on the calling thread, kernels that pay are split over the pool. Eager
//! plans go the same way without machine code of their own, so both give the same bits.
//!
//! Guarantees: any number of threads may launch, upload and download at a time; running out of memory is an error
//! that leaves everything usable.

mod executable;
mod library;
#[allow(unsafe_code)]
pub mod matmul;
#[allow(unsafe_code)]
pub mod memory;
#[allow(unsafe_code)]
pub mod threads;
pub mod vm;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::dispatch::{Host, Mode};
use crate::backend::{Backend, Buffer, Counters, Executable, Memory, MemoryUse};
use crate::base::config::config;
use crate::base::{Error, Result};
use crate::plan::check::Checked;
use executable::{CpuExecutable, Role};
use memory::{HostMemory, PoolStats};
use threads::Pool;
pub use vm::Isa;

/// How to make a [`CpuBackend`]; what is `None` follows the configuration ([`crate::base::config`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Threads that a kernel may use, the caller among them.
    pub threads: Option<usize>,
    /// The instruction set; what the machine has not got is an error.
    pub isa: Option<Isa>,
    /// Most bytes of memory to hold.
    pub memory_limit: Option<usize>,
    /// Dispatch by machine code (`true`) or by a loop.
    pub compiled_dispatch: Option<bool>,
}

/// The CPU as a device.
pub struct CpuBackend {
    inner: Arc<Inner>,
    mode: Mode,
}

/// What executables keep alive.
pub(in crate::backend::cpu) struct Inner {
    memory: HostMemory,
    threads: Arc<Pool>,
    isa: Isa,
    counters: Counters,
}

impl CpuBackend {
    /// A backend with memory and threads of its own.
    pub fn new(options: Options) -> Result<Arc<CpuBackend>> {
        let isa = match (options.isa, &config().isa) {
            (Some(isa), _) => isa,
            (None, Some(name)) => Isa::from_name(name)?,
            (None, None) => Isa::best(),
        };
        if !isa.available() {
            return Err(Error::argument("cpu", "an instruction set of this machine", isa.name()));
        }
        Ok(CpuBackend::with_isa(options, isa))
    }

    /// As [`CpuBackend::new`] with the portable instruction set, which every machine has.
    pub fn portable(options: Options) -> Arc<CpuBackend> {
        CpuBackend::with_isa(options, Isa::Portable)
    }

    /// `isa` must be available.
    fn with_isa(options: Options, isa: Isa) -> Arc<CpuBackend> {
        let compiled = options.compiled_dispatch.unwrap_or(!config().dispatch_loop);
        let threads = options
            .threads
            .or(config().threads)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        Arc::new(CpuBackend {
            inner: Arc::new(Inner {
                memory: HostMemory::new(options.memory_limit),
                threads: Arc::new(Pool::new(threads)),
                isa,
                counters: Counters::default(),
            }),
            mode: if compiled { Mode::Compiled } else { Mode::Loop },
        })
    }

    /// What its memory pool holds.
    pub fn memory(&self) -> PoolStats {
        self.inner.memory.pool.stats()
    }

    /// Sets or lifts the memory limit.
    pub fn set_memory_limit(&self, limit: Option<usize>) {
        self.inner.memory.pool.set_limit(limit);
    }

    /// Gives cached memory back to the system.
    pub fn trim(&self) {
        self.inner.memory.pool.trim();
    }

    /// Threads that a kernel may use.
    pub fn threads(&self) -> usize {
        self.inner.threads.threads()
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.inner.isa
    }
}

impl Isa {
    /// The instruction set called `name` (as `STEPGRAPH_ISA` spells it).
    pub fn from_name(name: &str) -> Result<Isa> {
        let found = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        found.ok_or_else(|| Error::argument("instruction set", "avx512, avx2 or portable", name))
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.inner.memory.alloc(bytes)?.0)
    }

    fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut block = self.inner.memory.pool.alloc(bytes.len())?;
        block.write(bytes);
        self.inner.counters.uploads.fetch_add(1, Relaxed);
        Ok(Arc::new(crate::backend::Storage::new(Memory::Host(block), bytes.len())))
    }

    fn download(&self, buffer: &Buffer, offset: usize, out: &mut [u8]) -> Result<()> {
        let Memory::Host(block) = &buffer.memory else {
            return Err(Error::argument("download", "a buffer of the cpu", "a buffer of another device"));
        };
        if !block.read(offset, out) {
            let given = format!("bytes {offset}..{} of {}", offset.saturating_add(out.len()), buffer.bytes());
            return Err(Error::argument("download", "a range within the buffer", given));
        }
        self.inner.counters.downloads.fetch_add(1, Relaxed);
        Ok(())
    }

    fn compile(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        let executable = CpuExecutable::new(&plan, Role::Step, self.mode, self.inner.clone())?;
        self.inner.counters.compiles.fetch_add(1, Relaxed);
        Ok(Arc::new(executable))
    }

    fn compile_eager(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(CpuExecutable::new(&plan, Role::Eager, Mode::Loop, self.inner.clone())?))
    }

    fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    fn memory(&self) -> MemoryUse {
        let stats = self.inner.memory.pool.stats();
        MemoryUse { live: stats.live_bytes, cached: stats.cached_bytes }
    }

    fn trim(&self) {
        CpuBackend::trim(self);
    }
}
