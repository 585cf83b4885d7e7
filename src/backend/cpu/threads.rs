//! A fork-join pool for kernels that are split into a few parts.
//!
//! [`Pool::run`] calls a function for every index below `parts`; the calling thread takes part. It
//! is built for jobs of a few microseconds: workers spin for a short while after a job and only
//! then park, and they are pinned to processors other than the caller's, because a worker that
//! shares the caller's processor makes a short job slower, not faster.
//!
//! Relies on nothing else in the crate. Guarantees:
//! - `run` returns only when every part has run (or one has panicked), and a worker never touches
//!   the caller's function after that.
//! - `run` never deadlocks: if the workers are taken by another caller, or `run` is called from a
//!   part of a job, the parts run in order on the calling thread.
//! - a panic in a part is resumed on the caller; the pool stays usable.
//! - every part runs with the default floating-point control word ([`FpGuard`]), on whichever
//!   thread; the caller's own word is restored afterwards.
//! - the affinity of the calling thread is never changed.

mod affinity;
mod control_word;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use control_word::FpGuard;

/// How long a worker spins for the next job before it parks.
const SPIN: Duration = Duration::from_micros(40);
/// How long a caller spins for the last parts before it offers its processor to others.
const PATIENCE: Duration = Duration::from_micros(50);
/// Width of the index field in [`HandOff::claim`]; the rest counts jobs, so that a thread held up
/// between reading and claiming cannot take an index of a later job (2^48 jobs are centuries).
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Most parts handed out one by one; larger jobs are handed out in runs of several.
const MAX_CHUNKS: usize = INDEX_MASK as usize;

type Panic = Box<dyn Any + Send>;

thread_local! {
    /// Set on workers, and on a caller while it runs parts: a nested `run` is serial.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A pool of worker threads; see the module documentation.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    pins: Mutex<Pins>,
    /// The caller's processor when the workers were last pinned (`usize::MAX`: never).
    pinned_for: AtomicUsize,
}

struct Worker {
    thread: Thread,
    join: Option<JoinHandle<()>>,
    state: Arc<WorkerState>,
}

/// On a line of its own: the worker writes it, callers poll it.
#[repr(align(128))]
#[derive(Default)]
struct WorkerState {
    parked: AtomicBool,
    /// Kernel thread id, 0 until the worker has started.
    tid: AtomicUsize,
}

struct Shared {
    hand_off: HandOff,
    /// Taken by the caller whose job is running.
    busy: AtomicBool,
    panic: Mutex<Option<Panic>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// False when there are more threads than processors: spinning would only keep others away.
    spin: AtomicBool,
}

/// All that passes between caller and workers in one job, in one cache line: moving a line to
/// another processor is most of what a small job costs.
#[repr(align(128))]
struct HandOff {
    /// `job number << INDEX_BITS | chunks left`. A chunk belongs to whoever lowers the count.
    claim: AtomicU64,
    /// Chunks of the current job not finished yet.
    unfinished: AtomicUsize,
    /// The current job. Written by the owner of `busy` while no chunk is left and none unfinished;
    /// read only between a successful claim and the matching decrement of `unfinished`.
    job: UnsafeCell<Job>,
}

#[derive(Clone, Copy)]
struct Job {
    /// Lifetime erased: valid while `unfinished > 0`.
    function: Option<*const (dyn Fn(usize) + Sync)>,
    parts: usize,
    /// Parts per chunk.
    grain: usize,
    chunks: usize,
}

// SAFETY: `hand_off.job` is the only field that is not `Sync` by itself. It is written by the one thread that
// holds `busy`, before the Release store that opens `claim`; it is read after an Acquire claim of a
// chunk, and not written again before `unfinished` has dropped to zero, which is after those reads.
unsafe impl Sync for Shared {}
// SAFETY: as above; the function that `job` points to is `Sync`, so any thread may call it.
unsafe impl Send for Shared {}

/// The pool had already started when its size was to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyStarted {
    /// The number of threads that it runs with.
    pub threads: usize,
}

impl std::fmt::Display for AlreadyStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.threads;
        write!(f, "the thread pool already runs with {n} threads; set its size before the first tensor operation")
    }
}

impl std::error::Error for AlreadyStarted {}

static GLOBAL: OnceLock<Pool> = OnceLock::new();
static GLOBAL_THREADS: AtomicUsize = AtomicUsize::new(0);

impl Pool {
    /// A pool of `threads` threads, the caller of each job counted (so `threads - 1` workers).
    /// 0 is taken as 1. If the system refuses a thread, the pool is smaller.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            hand_off: HandOff {
                claim: AtomicU64::new(0),
                unfinished: AtomicUsize::new(0),
                job: UnsafeCell::new(Job { function: None, parts: 0, grain: 1, chunks: 0 }),
            },
            busy: AtomicBool::new(false),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spin: AtomicBool::new(affinity::allowed().len() >= threads),
        });
        let mut workers = Vec::new();
        for index in 1..threads.max(1) {
            let state = Arc::new(WorkerState::default());
            let (for_thread, for_state) = (shared.clone(), state.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("stepgraph-cpu-{index}"))
                .spawn(move || for_thread.work(&for_state));
            let Ok(join) = spawned else { break };
            workers.push(Worker { thread: join.thread().clone(), join: Some(join), state });
        }
        let pins = Mutex::new(Pins { cpu_of: vec![None; workers.len()] });
        Pool { shared, workers, pins, pinned_for: AtomicUsize::new(usize::MAX) }
    }

    /// The pool of the process: as many threads as the process may use processors, unless
    /// [`Pool::set_global_threads`] said otherwise. Starts on first use, never ends.
    pub fn global() -> &'static Pool {
        GLOBAL.get_or_init(|| {
            let set = GLOBAL_THREADS.load(Ordering::Acquire);
            let threads = if set > 0 { set } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
            Pool::new(threads)
        })
    }

    /// Sets the size of the global pool; possible until its first use.
    pub fn set_global_threads(threads: usize) -> Result<(), AlreadyStarted> {
        let threads = threads.max(1);
        GLOBAL_THREADS.store(threads, Ordering::Release);
        match GLOBAL.get() {
            Some(pool) if pool.threads() != threads => Err(AlreadyStarted { threads: pool.threads() }),
            _ => Ok(()),
        }
    }

    /// How many threads a job can use, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)`, …, `f(parts - 1)`, each once, in any order and on any thread of the pool, the
    /// caller among them. Returns when all are done.
    ///
    /// # Panics
    /// Resumes the first panic of `f`; parts not yet begun are then skipped.
    pub fn run(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) {
        let _fp = FpGuard::new();
        if parts <= 1 || self.workers.is_empty() || INSIDE.get() || !self.shared.take() {
            for part in 0..parts {
                f(part);
            }
            return;
        }
        self.pin();
        let chunks = parts.min(MAX_CHUNKS);
        let grain = parts.div_ceil(chunks);
        let chunks = parts.div_ceil(grain);
        self.shared.publish(Job { function: Some(erase(f)), parts, grain, chunks });
        self.wake(chunks - 1);

        INSIDE.set(true);
        while self.shared.work_one() {}
        INSIDE.set(false);
        self.shared.wait();

        let panic = match self.shared.panicked.load(Ordering::Relaxed) {
            true => {
                self.shared.panicked.store(false, Ordering::Relaxed);
                self.shared.panic.lock().take()
            }
            false => None,
        };
        self.shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn wake(&self, wanted: usize) {
        for worker in self.workers.iter().take(wanted) {
            // Read after the SeqCst publication of the job, and set by the worker before its last
            // look at `claim`: one of the two sees the other.
            if worker.state.parked.load(Ordering::SeqCst) && worker.state.parked.swap(false, Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
    }

    /// Keeps the workers off the caller's processor. Costs a look at the processor number unless
    /// the caller has moved.
    fn pin(&self) {
        let Some(cpu) = affinity::current() else { return };
        if self.pinned_for.load(Ordering::Relaxed) == cpu {
            return;
        }
        let allowed = affinity::allowed();
        self.shared.spin.store(allowed.len() >= self.threads(), Ordering::Relaxed);
        if self.pins.lock().place(cpu, &allowed, &self.workers) {
            self.pinned_for.store(cpu, Ordering::Relaxed);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(join) = worker.join.take() {
                // A worker catches every panic of a part, so there is none to report here.
                let _ = join.join();
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

fn erase<'a>(f: &'a (dyn Fn(usize) + Sync + 'a)) -> *const (dyn Fn(usize) + Sync + 'static) {
    // SAFETY: only the lifetime changes. `run` does not return before `unfinished` is zero, and
    // nothing calls the pointer after that.
    unsafe { std::mem::transmute::<&'a (dyn Fn(usize) + Sync + 'a), *const (dyn Fn(usize) + Sync + 'static)>(f) }
}

impl Shared {
    fn take(&self) -> bool {
        let busy = &self.busy;
        !busy.load(Ordering::Relaxed)
            && busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn publish(&self, job: Job) {
        // SAFETY: this thread holds `busy`, no chunk is left and none unfinished (the last owner
        // waited for that), so nobody reads `job` now.
        unsafe { *self.hand_off.job.get() = job };
        self.hand_off.unfinished.store(job.chunks, Ordering::Relaxed);
        let number = (self.hand_off.claim.load(Ordering::Relaxed) >> INDEX_BITS).wrapping_add(1);
        self.hand_off.claim.store(number << INDEX_BITS | job.chunks as u64, Ordering::SeqCst);
    }

    /// Claims and runs one chunk; false when none is left.
    fn work_one(&self) -> bool {
        let mut claim = self.hand_off.claim.load(Ordering::Acquire);
        let left = loop {
            let left = claim & INDEX_MASK;
            if left == 0 {
                return false;
            }
            match self.hand_off.claim.compare_exchange_weak(claim, claim - 1, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => break left as usize,
                Err(now) => claim = now,
            }
        };
        // SAFETY: this thread claimed a chunk of the job, which stays in place until `unfinished`
        // has been lowered for it, below.
        let job = unsafe { *self.hand_off.job.get() };
        let first = (job.chunks - left) * job.grain;
        if let Some(function) = job.function
            && !self.panicked.load(Ordering::Relaxed)
        {
            let result = catch_unwind(AssertUnwindSafe(|| {
                for part in first..job.parts.min(first + job.grain) {
                    // SAFETY: `run` keeps the function borrowed until `unfinished` is zero.
                    unsafe { (*function)(part) };
                }
            }));
            if let Err(panic) = result {
                let mut first = self.panic.lock();
                match *first {
                    None => *first = Some(panic),
                    // Dropping it could panic again, here where nobody would catch it.
                    Some(_) => std::mem::forget(panic),
                }
                drop(first);
                self.panicked.store(true, Ordering::Relaxed);
            }
        }
        self.hand_off.unfinished.fetch_sub(1, Ordering::Release);
        true
    }

    /// Waits until all claimed chunks are finished.
    fn wait(&self) {
        if self.spin.load(Ordering::Relaxed)
            && spin_until(PATIENCE, || self.hand_off.unfinished.load(Ordering::Acquire) == 0)
        {
            return;
        }
        while self.hand_off.unfinished.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }

    /// A worker's life.
    fn work(&self, state: &WorkerState) {
        state.tid.store(affinity::thread_id(), Ordering::Release);
        INSIDE.set(true);
        let _fp = FpGuard::new();
        let open =
            || self.hand_off.claim.load(Ordering::Acquire) & INDEX_MASK != 0 || self.stop.load(Ordering::Relaxed);
        loop {
            while self.work_one() {
                // A part may have changed this thread's control word for itself.
                FpGuard::set_default();
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.spin.load(Ordering::Relaxed) && spin_until(SPIN, open) {
                continue;
            }
            state.parked.store(true, Ordering::SeqCst);
            // The last look, after `parked` is visible: see `wake`.
            if self.hand_off.claim.load(Ordering::SeqCst) & INDEX_MASK == 0 && !self.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            state.parked.store(false, Ordering::SeqCst);
        }
    }
}

/// Spins until `ready` or until the time is up; true if ready.
fn spin_until(limit: Duration, ready: impl Fn() -> bool) -> bool {
    // The clock costs more than a look, so it is read once in a while.
    const LOOKS: u32 = 64;
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let start = start.get_or_insert_with(Instant::now);
        if start.elapsed() >= limit {
            return false;
        }
    }
}

/// Where each worker is pinned.
struct Pins {
    cpu_of: Vec<Option<usize>>,
}

impl Pins {
    /// Moves workers so that none is on `caller`'s processor and they spread over the `allowed`
    /// ones. False if it should be tried again (a worker has not started yet).
    fn place(&mut self, caller: usize, allowed: &[usize], workers: &[Worker]) -> bool {
        let free: Vec<usize> = allowed.iter().copied().filter(|&cpu| cpu != caller).collect();
        if free.is_empty() {
            return true;
        }
        let mut load = vec![0usize; free.len()];
        let share = workers.len().div_ceil(free.len());
        // Workers that are well placed stay: moving one costs a system call and its caches.
        for slot in &mut self.cpu_of {
            match slot.and_then(|cpu| free.iter().position(|&f| f == cpu)) {
                Some(at) if load[at] < share => load[at] += 1,
                _ => *slot = None,
            }
        }
        let mut all = true;
        for (slot, worker) in self.cpu_of.iter_mut().zip(workers) {
            if slot.is_some() {
                continue;
            }
            let Some(at) = (0..free.len()).min_by_key(|&i| load[i]) else { return true };
            let tid = worker.state.tid.load(Ordering::Acquire);
            if tid == 0 {
                all = false;
                continue;
            }
            load[at] += 1;
            // If the system refuses, the worker runs where it is: slower, never wrong.
            affinity::pin(tid, free[at]);
            *slot = Some(free[at]);
        }
        all
    }
}

#[cfg(test)]
mod tests;
