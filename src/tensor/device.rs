//! Devices: where tensors live and ops run.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use crate::backend::cpu::{self, CpuBackend, Isa};
use crate::backend::{Backend, Counts, MemoryUse, null::NullBackend};
use crate::base::{Error, Result};
use crate::tensor::eager::EagerCache;

/// A device. Clones are the same device; each call of [`Device::cpu_with`] makes another one.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// assert!(device == &Device::cpu()); // the process has one
/// assert!(device != &Device::cpu_with(&CpuOptions::default())?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    eager: EagerCache,
    /// Indices that were out of range in plain eager code, by the thread whose next host read tells of them.
    flagged: AtomicBool,
    flags: Mutex<Vec<(ThreadId, Error)>>,
}

/// How a CPU device runs.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let one_thread = CpuOptions { threads: Some(1), ..CpuOptions::default() };
/// assert_eq!(Device::cpu_with(&one_thread)?.name(), "cpu");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// CPU threads a kernel may use; `None`: all that the process may run on, or `STEPGRAPH_THREADS`.
    pub threads: Option<usize>,
    /// `avx512`, `avx2` or `portable`; `None`: the best there is, or `STEPGRAPH_ISA`. All give the same bits.
    pub isa: Option<String>,
    /// Bytes that tensors and arenas may take together; `None`: no limit.
    pub memory_limit: Option<usize>,
}

impl Device {
    /// The process's CPU device.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Device::cpu().name(), "cpu");
    /// # Ok(())
    /// # }
    /// ```
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| match CpuBackend::new(cpu::Options::default()) {
            Ok(backend) => Device::with_backend(backend),
            Err(e) => {
                // Only a wrong STEPGRAPH_ISA can do this: the portable code runs everywhere.
                tracing::error!("{e}; using the portable instruction set");
                Device::with_backend(CpuBackend::portable(cpu::Options::default()))
            }
        })
        .clone()
    }

    /// A CPU device of its own, with its own memory pool and counters.
    ///
    /// Errors: an instruction set that this machine lacks.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let portable = CpuOptions { isa: Some("portable".into()), ..CpuOptions::default() };
    /// let x = Tensor::new([1.0f32, 2.0], &Device::cpu_with(&portable)?)?;
    /// assert_eq!(x.exp()?.to_vec::<f32>()?, Tensor::new([1.0f32, 2.0], device)?.exp()?.to_vec::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cpu_with(options: &CpuOptions) -> Result<Device> {
        let isa = options.isa.as_deref().map(Isa::from_name).transpose()?;
        let options =
            cpu::Options { threads: options.threads, isa, memory_limit: options.memory_limit, ..Default::default() };
        Ok(Device::with_backend(CpuBackend::new(options)?))
    }

    /// A CUDA device that answers, else the CPU; a `tracing` event says which and why.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([2], DType::F32, &Device::best())?;
    /// assert_eq!(x.to_string(), "[1. 1.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn best() -> Device {
        tracing::info!("no CUDA backend in this build: using the CPU");
        Device::cpu()
    }

    /// A device that runs the whole pipeline and computes nothing: for measuring host costs.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([2, 3], DType::F32, &Device::null())?;
    /// assert_eq!(x.t()?.dims(), [3, 2]); // of any value
    /// # Ok(())
    /// # }
    /// ```
    pub fn null() -> Device {
        Device::with_backend(NullBackend::new())
    }

    pub(crate) fn with_backend(backend: Arc<dyn Backend>) -> Device {
        Device(Arc::new(Inner {
            backend,
            eager: EagerCache::default(),
            flagged: AtomicBool::new(false),
            flags: Mutex::default(),
        }))
    }

    /// `cpu`, `cuda:0`, …
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(device.name(), "cpu");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// What the device did so far, counted by its backend: launches, kernels, copies.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let device = &Device::cpu_with(&CpuOptions::default())?;
    /// let before = device.counts();
    /// Tensor::ones([2], DType::F32, device)?.add(1.0)?;
    /// assert_eq!((device.counts() - before).eager_kernels, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn counts(&self) -> Counts {
        self.0.backend.counters().read()
    }

    /// What its memory holds now: tensors and the arenas of compiled steps.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([1000], DType::F32, device)?;
    /// assert!(device.memory().live >= 4000);
    /// # drop(x);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory(&self) -> MemoryUse {
        self.0.backend.memory()
    }

    /// Gives the memory that it keeps for later requests back to the system. What tensors and compiled steps hold stays;
    /// this may be called at any time, also while other threads compute.
    ///
    /// ```
    /// use stepgraph::{CpuOptions, DType, Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu_with(&CpuOptions::default())?;
    /// drop(Tensor::zeros([1 << 20], DType::F32, &device)?);
    /// assert!(device.memory().cached > 0);
    /// device.trim();
    /// assert_eq!(device.memory().cached, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn trim(&self) {
        self.0.backend.trim();
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    pub(crate) fn eager_cache(&self) -> &EagerCache {
        &self.0.eager
    }

    /// Keeps `error` for this thread's next host read; a thread's first one is told.
    pub(crate) fn flag(&self, error: Error) {
        let mut flags = self.0.flags.lock();
        let me = thread::current().id();
        if flags.iter().all(|f| f.0 != me) {
            // Threads that ended without reading anything leave theirs behind.
            if flags.len() == FLAGS {
                flags.remove(0);
            }
            flags.push((me, error));
        }
        self.0.flagged.store(true, Relaxed);
    }

    /// The error kept for this thread, once.
    pub(crate) fn take_flag(&self) -> Result<()> {
        if !self.0.flagged.load(Relaxed) {
            return Ok(());
        }
        let mut flags = self.0.flags.lock();
        let me = thread::current().id();
        let found = flags.iter().position(|f| f.0 == me).map(|i| flags.remove(i).1);
        self.0.flagged.store(!flags.is_empty(), Relaxed);
        found.map_or(Ok(()), Err)
    }
}

/// Errors kept for threads that have not read yet.
const FLAGS: usize = 64;

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
