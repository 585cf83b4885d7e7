//! Devices: where tensors live and ops run.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::cpu::{self, CpuBackend, Isa};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, CudaBackend, cubins::KernelCache, sys::context::ForeignStream};
use crate::backend::{Backend, Counts, MemoryUse, Raised, Ticket, null::NullBackend};
use crate::base::{Error, Result};
use crate::tensor::eager::{EagerCache, Flag};

#[cfg(not(feature = "cuda"))]
use crate::base::ErrorKind;

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
    /// Those of which the device has not told yet.
    pending: Mutex<Pending>,
    #[cfg(feature = "cuda")]
    cuda: Option<Arc<CudaBackend>>,
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

/// How a CUDA device runs.
///
/// ```
/// # use stepgraph::*;
/// let second = CudaOptions { ordinal: 1, ..CudaOptions::default() };
/// assert!(!second.tf32); // f32 products are of full precision unless asked otherwise
/// ```
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which of the machine's devices, numbered from 0.
    pub ordinal: u32,
    /// Bytes that tensors, arenas and free blocks may take together; `None`: what the device has.
    pub memory_limit: Option<usize>,
    /// Lets matrix products round f32 operands to TF32 (10 bits of mantissa), which tensor cores multiply several times
    /// faster.
    pub tf32: bool,
    /// Where compiled kernels are kept between runs of a program.
    #[cfg(feature = "cuda")]
    pub kernel_cache: KernelCache,
    /// A stream of the caller's to put all work on, instead of one of the device's own.
    #[cfg(feature = "cuda")]
    pub stream: Option<ForeignStream>,
}

/// What a device's memory is used for: see [`Device::memory_report`].
///
/// ```
/// # use stepgraph::*;
/// let report: MemoryReport = Device::cpu().memory_report();
/// assert!(report.to_string().starts_with("cpu: "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// The device's name.
    pub device: String,
    /// Bytes of tensors and arenas, and of free blocks.
    pub used: MemoryUse,
    /// Free bytes of the device, where it says.
    pub free: Option<usize>,
    /// Blocks in use, largest total first: the size of one in bytes, and their number. Empty where the device does not say.
    pub holders: Vec<(usize, usize)>,
}

impl std::fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} bytes live, {} cached", self.device, self.used.live, self.used.cached)?;
        if let Some(free) = self.free {
            write!(f, ", {free} free on the device")?;
        }
        for (size, count) in self.holders.iter().take(10) {
            write!(f, "\n  {count} of {size} bytes")?;
        }
        Ok(())
    }
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
        match Device::cuda(0) {
            Ok(device) => {
                tracing::info!(device = device.name(), "using the first CUDA device");
                device
            }
            Err(e) => {
                tracing::info!(reason = %e, "no CUDA device: using the CPU");
                Device::cpu()
            }
        }
    }

    /// A CUDA device of this machine, numbered from 0 as the driver numbers them. It is opened once in a process: every call
    /// gives the same device. What is needed of CUDA (the driver, NVRTC, cuBLASLt) is looked for when the first one is opened.
    ///
    /// Errors: [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), which names what is missing and what to install.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// match Device::cuda(0) {
    ///     Ok(device) => println!("{device}"),
    ///     Err(e) => println!("{e}"), // cuda:0 is not available: the NVIDIA driver's library (libcuda.so.1) was not found; …
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cuda(ordinal: u32) -> Result<Device> {
        static OPEN: Mutex<Vec<(u32, Device)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock();
        if let Some((_, device)) = open.iter().find(|d| d.0 == ordinal) {
            return Ok(device.clone());
        }
        let device = Device::cuda_with(&CudaOptions { ordinal, ..CudaOptions::default() })?;
        open.push((ordinal, device.clone()));
        Ok(device)
    }

    /// A CUDA device with a stream, memory and counters of its own.
    ///
    /// Errors: as [`Device::cuda`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// let options = CudaOptions { memory_limit: Some(8 << 30), ..CudaOptions::default() };
    /// if let Ok(device) = Device::cuda_with(&options) {
    ///     assert_eq!(device.name(), "cuda:0");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cuda_with(options: &CudaOptions) -> Result<Device> {
        #[cfg(feature = "cuda")]
        {
            let CudaOptions { ordinal, memory_limit, tf32, kernel_cache, stream } = options.clone();
            let options = cuda::Options { ordinal, memory_limit, tf32, kernel_cache, stream, compiled_dispatch: None };
            let backend = CudaBackend::new(options)?;
            let mut device = Device::with_backend(backend.clone());
            if let Some(inner) = Arc::get_mut(&mut device.0) {
                inner.cuda = Some(backend);
            }
            Ok(device)
        }
        #[cfg(not(feature = "cuda"))]
        {
            let detail = "this build of stepgraph has no CUDA backend; enable its feature `cuda`".to_string();
            Err(ErrorKind::Unavailable { device: format!("cuda:{}", options.ordinal), detail }.into())
        }
    }

    /// Waits for all work that was given to the device, and tells what this thread's work there found: an index that was
    /// out of range, or that the device is lost. The CPU has nothing to wait for.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([2, 3], DType::F32, device)?.exp()?;
    /// device.synchronize()?;
    /// # drop(x);
    /// # Ok(())
    /// # }
    /// ```
    pub fn synchronize(&self) -> Result<()> {
        self.backend().synchronize()?;
        self.settle();
        self.take_flag()
    }

    /// Runs `work` and says how long what it launched took on the device: from the end of what was launched before to the
    /// end of `work`'s own, by the device's clock. It waits for that end. Where `work` launches slower than the device
    /// runs, the time is that of launching. On the CPU it is the host's time.
    ///
    /// Errors: those of `work`, and of earlier work that failed on the device.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([1000], DType::F32, device)?;
    /// let (sum, time) = device.time(|| x.exp()?.sum(()))?;
    /// println!("{sum} after {time:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn time<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
        let (mut work, mut result) = (Some(work), None);
        let time = self.backend().timed(&mut || {
            result = work.take().map(|work| work()).transpose()?;
            Ok(())
        })?;
        let result = result.ok_or_else(|| Error::bug("time", "the work was not run"))?;
        Ok((result, time))
    }

    /// What the device's memory is used for.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::ones([1000], DType::F32, device)?;
    /// let report = device.memory_report();
    /// assert!(report.used.live >= 4000);
    /// println!("{report}");
    /// # drop(x);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_report(&self) -> MemoryReport {
        #[cfg(feature = "cuda")]
        let (free, holders) = self.0.cuda.as_ref().map_or((None, Vec::new()), |c| (c.device_free(), c.holders()));
        #[cfg(not(feature = "cuda"))]
        let (free, holders) = (None, Vec::new());
        MemoryReport { device: self.name().to_string(), used: self.memory(), free, holders }
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
            pending: Mutex::default(),
            #[cfg(feature = "cuda")]
            cuda: None,
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

    /// Keeps an error for this thread's next host read; a thread's first one is told.
    pub(crate) fn flag(&self, flag: Flag) {
        let (me, Flag { error, ticket }) = (thread::current().id(), flag);
        let Some(ticket) = ticket else { return self.keep(me, error) };
        let mut pending = self.0.pending.lock();
        if let Some(i) = pending.orphans.iter().position(|&t| t == ticket) {
            // The device was faster.
            pending.orphans.swap_remove(i);
            drop(pending);
            return self.keep(me, error);
        }
        pending.flags.push((me, ticket, error));
        let many = pending.flags.len() >= PENDING;
        drop(pending);
        if many {
            // Nobody reads anything: the list must not grow for ever. What fails here is told by whatever comes next.
            let _ = self.backend().synchronize();
            self.settle();
        }
    }

    /// After the device was waited for: errors that it has found move to the threads that they belong to.
    pub(crate) fn settle(&self) {
        let Raised { tickets, settled } = self.backend().take_raised();
        if settled == 0 {
            return;
        }
        let mut pending = self.0.pending.lock();
        let mut found = Vec::new();
        for ticket in tickets {
            match pending.flags.iter().position(|f| f.1 == ticket) {
                Some(i) => found.push(pending.flags.swap_remove(i)),
                None => pending.orphans.push(ticket),
            }
        }
        pending.flags.retain(|f| f.1 > settled);
        drop(pending);
        found.into_iter().for_each(|(thread, _, error)| self.keep(thread, error));
    }

    /// Waits for the device and gives the first of these errors that it found.
    pub(crate) fn settled(&self, flags: Vec<Flag>) -> Result<Option<Error>> {
        self.backend().synchronize()?;
        self.settle();
        let mut pending = self.0.pending.lock();
        let mut first = None;
        for Flag { error, ticket } in flags {
            let raised = ticket.and_then(|t| pending.orphans.iter().position(|&o| o == t));
            if let Some(i) = raised {
                pending.orphans.swap_remove(i);
                first.get_or_insert(error);
            }
        }
        Ok(first)
    }

    fn keep(&self, me: ThreadId, error: Error) {
        let mut flags = self.0.flags.lock();
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

/// Launches whose flag the device has not told, at most.
const PENDING: usize = 4096;

/// What the device will tell.
#[derive(Default)]
struct Pending {
    /// The thread that launched, the launch's ticket, and the error if it found an index out of range.
    flags: Vec<(ThreadId, Ticket, Error)>,
    /// Tickets that were raised before anybody asked about them.
    orphans: Vec<Ticket>,
}

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
