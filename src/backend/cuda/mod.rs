//! The CUDA backend: rendered kernels, cuBLASLt, and a whole plan as one graph launch.
//!
//! Nothing of CUDA is needed to build: the driver, NVRTC and cuBLASLt are loaded at run time, and a machine without them has
//! no CUDA device, which is an error that says what is missing. All work of a device goes to one stream, under one
//! lock; eager plans enqueue their steps, a step's plan is built into a graph and launched as a whole.
//!
//! Guarantees: any number of threads may launch, upload and download at a time; nothing here waits for the device but
//! [`Backend::download`], [`Backend::synchronize`] and running out of memory or of pinned slots; every failed call is an error that
//! names it.

mod compile;
mod core;
pub mod cubins;
mod executable;
mod flags;
mod graph;
mod matmul;
pub(in crate::backend) mod pool;
pub mod render;
mod ring;
mod split;
pub mod sys;
mod work;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::backend::dispatch::Mode;
use crate::backend::{Backend, Buffer, Counters, Executable, Memory, MemoryUse, Raised, Storage};
use crate::base::config::config;
use crate::base::{Error, ErrorKind, Result};
use crate::plan::check::Checked;
use compile::Compiler;
use core::Core;
use cubins::KernelCache;
use executable::{EagerExecutable, StepExecutable};
use sys::context::{self, Context, Event, Facts, ForeignStream, Stream};
use sys::memory;

/// How to make a [`CudaBackend`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which of the machine's devices.
    pub ordinal: u32,
    /// Most bytes of memory to hold.
    pub memory_limit: Option<usize>,
    /// Lets products of f32 matrices round operands to TF32.
    pub tf32: bool,
    /// Where compiled kernels are kept.
    pub kernel_cache: KernelCache,
    /// A stream to adopt.
    pub stream: Option<ForeignStream>,
    /// Dispatch by machine code (`true`) or by a loop.
    pub compiled_dispatch: Option<bool>,
}

/// A CUDA device.
pub struct CudaBackend {
    core: Arc<Core>,
    mode: Mode,
}

impl CudaBackend {
    /// Opens a device. The error names what is missing and what to install.
    pub fn new(options: Options) -> Result<Arc<CudaBackend>> {
        let name = format!("cuda:{}", options.ordinal);
        let unavailable = |detail: String| Error::new(ErrorKind::Unavailable { device: name.clone(), detail });
        sys::load::ready().map_err(unavailable)?;
        let failed = |f: sys::Failure| unavailable(format!("{} failed with {f}", f.call));
        let (version, count) = context::init().map_err(failed)?;
        if count == 0 {
            return Err(unavailable("the driver sees no device".to_string()));
        }
        if options.ordinal >= count {
            return Err(unavailable(format!("the driver sees {count} devices, numbered from 0")));
        }
        let context = Context::new(options.ordinal).map_err(failed)?;
        let facts = context.facts(version).map_err(failed)?;
        let compiler = Compiler::new(&context, &facts, &options.kernel_cache).map_err(unavailable)?;
        let stream = match options.stream {
            Some(stream) => Stream::adopt(stream, &context),
            None => Stream::new(&context)?,
        };
        let compiled = options.compiled_dispatch.unwrap_or(!config().dispatch_loop);
        let core = Core::new(name, facts, context, stream, compiler, options.memory_limit, options.tf32)?;
        Ok(Arc::new(CudaBackend { core: Arc::new(core), mode: if compiled { Mode::Compiled } else { Mode::Loop } }))
    }

    /// What the device is.
    pub fn facts(&self) -> &Facts {
        &self.core.facts
    }

    /// Values that somebody held and that were copied away so that a `Var` could be written in place.
    pub fn moves(&self) -> u64 {
        self.core.moves.load(Relaxed)
    }

    /// Launches that waited because too many parameter blocks were under way.
    pub fn waits(&self) -> u64 {
        self.core.ring.waits()
    }

    /// Device time of a copy of `bytes` bytes by the driver from one place in the device's memory to another: a ceiling for
    /// kernels that read and write as much.
    pub fn copy_time(&self, bytes: usize) -> Result<Duration> {
        let core = &*self.core;
        core.entered(|| {
            let (from, to) = (core.pool.alloc(bytes)?, core.pool.alloc(bytes)?);
            let copy = || core.locked(|| Ok(memory::copy(&core.stream, to.address(), from.address(), bytes)?));
            copy()?;
            self.timed(&mut || copy())
        })
    }

    /// Blocks in use, largest total first: (size of one, number).
    pub fn holders(&self) -> Vec<(usize, usize)> {
        self.core.pool.holders()
    }

    /// Free bytes of the device as the driver counts them.
    pub fn device_free(&self) -> Option<usize> {
        self.core.entered(|| Ok(self.core.pool.device_free())).ok().flatten()
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let core = &*self.core;
        core.locked(|| Ok(Arc::new(Storage::new(Memory::Cuda(core.pool.alloc(bytes)?), bytes))))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let core = &*self.core;
        core.locked(|| {
            let block = core.pool.alloc(bytes.len())?;
            memory::upload(&core.stream, block.address(), bytes)?;
            core.counters.uploads.fetch_add(1, Relaxed);
            Ok(Arc::new(Storage::new(Memory::Cuda(block), bytes.len())))
        })
    }

    fn download(&self, buffer: &Buffer, offset: usize, out: &mut [u8]) -> Result<()> {
        let core = &*self.core;
        let block = match &buffer.memory {
            Memory::Cuda(block) if block.is_of(&core.pool) => block,
            _ => return Err(Error::argument("download", "a buffer of this device", "a buffer of another device")),
        };
        if offset.checked_add(out.len()).is_none_or(|end| end > buffer.bytes()) {
            let given = format!("bytes {offset}..{} of {}", offset.saturating_add(out.len()), buffer.bytes());
            return Err(Error::argument("download", "a range within the buffer", given));
        }
        core.locked(|| {
            memory::download(&core.stream, block.address() + offset as u64, out)?;
            core.flags.settle_to(core.flags.issued());
            core.counters.downloads.fetch_add(1, Relaxed);
            Ok(())
        })
    }

    fn compile(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        let executable = StepExecutable::new(&plan, &self.core, self.mode)?;
        self.core.counters.compiles.fetch_add(1, Relaxed);
        Ok(Arc::new(executable))
    }

    fn compile_eager(&self, plan: Checked) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(EagerExecutable::new(&plan, &self.core)?))
    }

    fn counters(&self) -> &Counters {
        &self.core.counters
    }

    fn memory(&self) -> MemoryUse {
        self.core.pool.stats()
    }

    fn trim(&self) {
        let core = &*self.core;
        let trimmed = core.locked(|| {
            core.pool.trim()?;
            core.compiler.trim();
            Ok(())
        });
        if let Err(e) = trimmed {
            tracing::warn!(error = %e, "memory could not be given back");
        }
    }

    fn synchronize(&self) -> Result<()> {
        let core = &*self.core;
        core.entered(|| {
            let issued = core.flags.issued();
            core.stream.synchronize()?;
            core.flags.settle_to(issued);
            Ok(())
        })
    }

    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let core = &*self.core;
        let (from, to) = core.locked(|| {
            let (from, to) = (Event::new(&core.context, true)?, Event::new(&core.context, true)?);
            from.record(&core.stream)?;
            Ok((from, to))
        })?;
        work()?;
        core.locked(|| Ok(to.record(&core.stream)?))?;
        core.entered(|| {
            to.wait()?;
            Ok(Duration::from_secs_f64(to.since(&from)? as f64 / 1e3))
        })
    }

    fn take_raised(&self) -> Raised {
        self.core.flags.take_raised()
    }
}
