//! Floor 7: what runs plans.
//!
//! A [`Backend`] owns memory and turns a checked plan into an [`Executable`]. The tracer and the
//! tensors above know only these traits. May rely on floors 0 to 6.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dispatch;
pub mod null;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::base::{DType, Layout, Result};
use crate::plan::check::Checked;

/// Memory of one device, shared by the tensors that view it.
pub type Buffer = Arc<Storage>;

/// A block of a device's memory, returned to its pool when the last holder drops it.
pub struct Storage {
    pub(in crate::backend) memory: Memory,
    bytes: usize,
}

/// Whose memory a [`Storage`] is.
pub(in crate::backend) enum Memory {
    /// Host memory of the CPU backend.
    Host(cpu::memory::Block),
    /// Device memory of a CUDA backend.
    #[cfg(feature = "cuda")]
    Cuda(cuda::pool::Block),
    /// None: the null backend computes nothing.
    Null,
}

impl Storage {
    pub(in crate::backend) fn new(memory: Memory, bytes: usize) -> Storage {
        Storage { memory, bytes }
    }

    /// Usable bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One input of a launch.
#[derive(Clone, Copy)]
pub struct InputBinding<'a> {
    pub buffer: &'a Buffer,
    pub layout: &'a Layout,
    pub dtype: DType,
    /// Nobody but the `Var` (whose lock the launcher holds) or the launcher itself holds the
    /// buffer: an output may overwrite it in place.
    pub exclusive: bool,
}

/// What a launch is given, and what it gives back.
pub struct Launch<'a> {
    pub inputs: &'a [InputBinding<'a>],
    /// One word per parameter of the plan.
    pub params: &'a [u64],
    /// Filled by the launch: one buffer per output that owns its storage (`None` for views);
    /// equal to an input's buffer when it was written in place.
    pub outputs: &'a mut Vec<Option<Buffer>>,
}

/// What a launch reports besides its outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchResult {
    /// An index was out of range in some gather or scatter, or a user's kernel failed.
    pub index_flag: bool,
    /// A user's kernel failed: [`crate::kernel::custom::take_failure`] says how, on this thread.
    pub kernel_failed: bool,
    /// Outputs written in place.
    pub in_place: u32,
    /// Of these, outputs whose old value somebody held, so that it was copied away first.
    pub moved: u32,
    /// Whether an index was out of range is not known yet: [`Backend::take_raised`] tells once this launch has ended. Then
    /// outputs written in place hold the new values or, with a bad index, the old ones; others that are to replace a
    /// `Var`'s value must wait for the answer.
    pub pending: Option<Ticket>,
}

/// The number of a launch whose index flag is told later.
pub type Ticket = u64;

/// What a device tells of launches with a [`Ticket`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raised {
    /// Those that found an index out of range.
    pub tickets: Vec<Ticket>,
    /// Nothing more will be told of this one and those before.
    pub settled: Ticket,
}

/// A compiled plan.
pub trait Executable: Send + Sync {
    /// Runs the plan once. Safe for any inputs: what does not match the plan is an error, before
    /// anything ran.
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult>;
    /// As [`Executable::launch`], with the label and the time of each kernel and library call, in order. Nothing is
    /// pushed where calls cannot be told apart.
    fn launch_timed(&self, launch: &mut Launch<'_>, times: &mut Vec<(String, Duration)>) -> Result<LaunchResult> {
        let _ = times;
        self.launch(launch)
    }
    /// Number of kernels and library calls of a launch.
    fn kernels(&self) -> usize;
    /// Bytes of the arena it needs.
    fn arena_bytes(&self) -> usize;
    /// The host code as text (machine code for fixed flags, callees by name), for dumps.
    fn listing(&self) -> String;
}

/// A device's memory and compiler.
pub trait Backend: Send + Sync {
    /// `cpu`, `cuda:0`, …
    fn name(&self) -> &str;
    /// Uninitialised memory.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;
    /// Copies host bytes into a new buffer.
    fn upload(&self, bytes: &[u8]) -> Result<Buffer>;
    /// Copies `out.len()` bytes from byte `offset` of a buffer to the host, waiting for what is under way.
    fn download(&self, buffer: &Buffer, offset: usize, out: &mut [u8]) -> Result<()>;
    /// Compiles the plan of a step's segment.
    fn compile(&self, plan: Checked) -> Result<Arc<dyn Executable>>;
    /// Compiles a plan of one op, run eagerly: cheap to make and to launch, the same bits.
    fn compile_eager(&self, plan: Checked) -> Result<Arc<dyn Executable>>;
    /// What was done so far.
    fn counters(&self) -> &Counters;
    /// What its memory holds.
    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }
    /// Gives free memory back to the system.
    fn trim(&self) {}
    /// Waits for all that was launched.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    /// How long what `work` launches takes on the device, waiting for it; where the device keeps no time of its own, on the
    /// host.
    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let start = Instant::now();
        work()?;
        self.synchronize()?;
        Ok(start.elapsed())
    }
    /// Which launches found an index out of range, among those that have ended; each is given once.
    fn take_raised(&self) -> Raised {
        Raised::default()
    }
}

/// Memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of tensors and arenas.
    pub live: usize,
    /// Free bytes kept for later requests.
    pub cached: usize,
}

/// Counts kept by the backend itself; tests read them to know that replays were replays.
#[derive(Default, Debug)]
pub struct Counters {
    /// Launches of compiled step plans.
    pub launches: AtomicU64,
    /// Kernels and library calls run eagerly, one op at a time.
    pub eager_kernels: AtomicU64,
    /// Kernels and library calls run inside launches.
    pub kernels: AtomicU64,
    /// Plans compiled (steps, not eager ops).
    pub compiles: AtomicU64,
    /// Copies from host to device (`upload`).
    pub uploads: AtomicU64,
    /// Copies from device to host (`download`).
    pub downloads: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub launches: u64,
    pub eager_kernels: u64,
    pub kernels: u64,
    pub compiles: u64,
    pub uploads: u64,
    pub downloads: u64,
}

impl Counters {
    /// The present values.
    pub fn read(&self) -> Counts {
        Counts {
            launches: self.launches.load(Relaxed),
            eager_kernels: self.eager_kernels.load(Relaxed),
            kernels: self.kernels.load(Relaxed),
            compiles: self.compiles.load(Relaxed),
            uploads: self.uploads.load(Relaxed),
            downloads: self.downloads.load(Relaxed),
        }
    }
}

impl std::ops::Sub for Counts {
    type Output = Counts;
    fn sub(self, o: Counts) -> Counts {
        Counts {
            launches: self.launches - o.launches,
            eager_kernels: self.eager_kernels - o.eager_kernels,
            kernels: self.kernels - o.kernels,
            compiles: self.compiles - o.compiles,
            uploads: self.uploads - o.uploads,
            downloads: self.downloads - o.downloads,
        }
    }
}
