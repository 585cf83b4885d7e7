//! Host memory for tensors: aligned blocks, pooled.
//!
//! A training step asks for the same sizes again and again, and fresh pages are dear (the system
//! clears them). So a freed [`Block`] goes to a free list of its size class and the next request of
//! that class takes it from there, without a system call and without touching the payload. Classes
//! are a quarter of a power of two apart: at most a fifth of a block is slack. Blocks of 2 MiB and
//! more are mapped on their own, aligned to and advised for huge pages, which is worth up to 2x where
//! memory is the bottleneck.
//!
//! [`arena`] lends memory for one launch, [`host`] shows it all to dispatch. The pool itself relies on nothing else in
//! the crate. Guarantees:
//! - a block is aligned to [`ALIGN`] bytes and belongs to one owner; it may be freed on any thread,
//!   and keeps its pool alive;
//! - cached memory is bounded: by the larger of 64 MiB and half of the most that was ever live;
//! - running out of memory, or over the limit, is an error after the caches have been given back.

mod arena;
mod host;
mod system;

pub(in crate::backend::cpu) use host::HostMemory;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Alignment of every block: a cache line, and the widest vector.
pub const ALIGN: usize = 64;
/// Blocks from this size on are mapped on their own. Also the size of a huge page.
const LARGE: usize = 2 << 20;
/// Cached memory may always grow to this.
const CACHE_FLOOR: usize = 64 << 20;
/// Log2 of the largest block; more than any address space in use.
const MAX_LOG: u32 = 47;
const CLASSES: usize = 4 + 4 * (MAX_LOG as usize - 8);
/// A quiet NaN that is easy to recognise, also as an integer or a pair of 16-bit floats.
const POISON: u32 = 0x7FC0_DEAD;

/// A pool of host memory; see the module documentation.
pub struct HostPool {
    core: NonNull<Core>,
}

// SAFETY: the core's fields are atomics and locked lists, and `users` keeps it alive.
unsafe impl Send for HostPool {}
// SAFETY: as above.
unsafe impl Sync for HostPool {}

/// The pool proper. It lives until both the `HostPool` and the last block are gone; `users` knows,
/// so that a block costs no reference count of its own.
struct Core {
    classes: [Class; CLASSES],
    /// Bytes (of whole blocks) that users hold, plus [`HANDLE`] while the `HostPool` lives. Whoever
    /// brings it to zero frees the core.
    users: AtomicUsize,
    /// Bytes held from the system: live and cached. Changes only when the system is asked.
    held: AtomicUsize,
    high_water: AtomicUsize,
    /// `usize::MAX`: none.
    limit: AtomicUsize,
    poison: AtomicBool,
    /// Counts requests that reached the system; dates the use of classes for eviction.
    clock: AtomicU64,
    /// Lets a test see when the core goes.
    #[cfg(test)]
    alive: Arc<()>,
}

/// More than all live bytes together can be.
const HANDLE: usize = 1 << (usize::BITS - 1);

/// Blocks of one size. On a line of its own, so that threads that use different sizes don't meet.
#[repr(align(128))]
struct Class {
    locked: AtomicBool,
    free: UnsafeCell<FreeList>,
}

// SAFETY: `free` is touched only while `locked` is held, by whichever thread.
unsafe impl Sync for Class {}

impl Class {
    /// Runs `f` with the list to itself. A spin lock: it is held for a few instructions, and costs
    /// half of a mutex, which must look for waiters when it is released. `f` must not panic.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut FreeList) -> R) -> R {
        while self.locked.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            self.wait();
        }
        // SAFETY: this thread holds the lock, and `f` cannot reach this class again.
        let result = f(unsafe { &mut *self.free.get() });
        self.locked.store(false, Release);
        result
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if !self.locked.load(Relaxed) {
                return;
            }
            std::hint::spin_loop();
        }
        // The holder has lost its processor; perhaps it needs this one.
        std::thread::yield_now();
    }
}

#[derive(Default)]
struct FreeList {
    /// The free blocks, linked through their first bytes.
    first: Option<NonNull<Link>>,
    cached: usize,
    live: usize,
    hits: u64,
    misses: u64,
    /// The pool's clock when a block was last taken or given back.
    used: u64,
}

struct Link {
    next: Option<NonNull<Link>>,
}

// SAFETY: the linked blocks are memory that the list owns; it is tied to no thread.
unsafe impl Send for FreeList {}

/// What a pool holds, and how it fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in blocks that users hold, slack included.
    pub live_bytes: usize,
    pub live_blocks: usize,
    /// Bytes in free blocks.
    pub cached_bytes: usize,
    /// Requests served from the free lists.
    pub hits: u64,
    /// Requests served by the system.
    pub misses: u64,
    /// Most `live_bytes` so far.
    pub high_water: usize,
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub need: usize,
    /// Bytes in use at that time.
    pub live: usize,
    /// The pool's limit, if one is set.
    pub limit: Option<usize>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OutOfMemory { need, live, limit } = *self;
        match limit {
            Some(limit) => write!(f, "{need} bytes of host memory needed, {live} in use, limit {limit}"),
            None => write!(f, "{need} bytes of host memory needed, {live} in use, and the system has no more"),
        }
    }
}

impl std::error::Error for OutOfMemory {}

/// Uniquely owned memory; goes back to its pool when dropped. The contents start out arbitrary.
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    /// `None` for an empty block, which takes no memory.
    home: Option<NonNull<Core>>,
    class: usize,
}

// SAFETY: a block owns its memory alone, and the pool's lists may be used from any thread.
unsafe impl Send for Block {}
// SAFETY: a shared block gives out its address and length only.
unsafe impl Sync for Block {}

impl Block {
    /// The first byte, aligned to [`ALIGN`].
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes asked for.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that may be used: `len()` and the slack.
    pub fn capacity(&self) -> usize {
        if self.home.is_some() { size_of_class(self.class) } else { 0 }
    }

    /// Fills the block's first bytes with `bytes`, as many as fit.
    pub fn write(&mut self, bytes: &[u8]) {
        // SAFETY: the block has `len` bytes and is borrowed for writing; it overlaps no other object.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr(), bytes.len().min(self.len)) };
    }

    /// Copies `out.len()` bytes from byte `offset` on; false (and nothing done) if they are not all in the block.
    /// Bytes never written are arbitrary. The caller sees to it that no launch is writing them.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range is inside the block, which overlaps no other object; the memory was given by the
        // system, so any byte has some value.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr().add(offset), out.as_mut_ptr(), out.len()) };
        true
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.home {
            // SAFETY: the block's bytes are still counted in `users`, so the core is there; they
            // are let go once, here, and the memory is the class's and not used any more.
            unsafe {
                core.as_ref().give_back(self.ptr, self.class);
                Core::leave(core, size_of_class(self.class));
            }
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("ptr", &self.ptr).field("len", &self.len).finish()
    }
}

/// Sizes up to 256 in steps of 64, then four steps per power of two.
fn class_of(bytes: usize) -> Option<usize> {
    if bytes <= 256 {
        return Some(bytes.max(1).div_ceil(64) - 1);
    }
    let log = (bytes - 1).ilog2();
    if log >= MAX_LOG {
        return None;
    }
    let quarter = (bytes - 1 - (1 << log)) >> (log - 2);
    Some(4 + 4 * (log as usize - 8) + quarter)
}

fn size_of_class(class: usize) -> usize {
    if class < 4 {
        return 64 * (class + 1);
    }
    let log = (class - 4) / 4 + 8;
    (1 << log) + (((class - 4) % 4 + 1) << (log - 2))
}

impl HostPool {
    /// An empty pool. With a limit, live bytes and cached bytes together stay within it.
    pub fn new(limit: Option<usize>) -> Arc<HostPool> {
        let core = Box::new(Core {
            classes: std::array::from_fn(|_| Class { locked: AtomicBool::new(false), free: UnsafeCell::default() }),
            users: AtomicUsize::new(HANDLE),
            held: AtomicUsize::new(0),
            high_water: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit.unwrap_or(usize::MAX)),
            poison: AtomicBool::new(false),
            clock: AtomicU64::new(1),
            #[cfg(test)]
            alive: Arc::new(()),
        });
        Arc::new(HostPool { core: NonNull::from(Box::leak(core)) })
    }

    fn core(&self) -> &Core {
        // SAFETY: the handle is counted in `users` until it is dropped.
        unsafe { self.core.as_ref() }
    }

    /// A block of at least `bytes` bytes, with arbitrary contents. 0 bytes are a valid request.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Block, OutOfMemory> {
        if bytes == 0 {
            let ptr = NonNull::without_provenance(const { std::num::NonZero::new(ALIGN).unwrap() });
            return Ok(Block { ptr, len: 0, home: None, class: 0 });
        }
        let (ptr, class) = self.core().alloc(bytes)?;
        Ok(Block { ptr, len: bytes, home: Some(self.core), class })
    }

    /// What the pool holds now. Exact when no other thread is using it.
    pub fn stats(&self) -> PoolStats {
        let core = self.core();
        let live_bytes = core.live();
        let mut stats = PoolStats {
            live_bytes,
            cached_bytes: core.held.load(Relaxed).saturating_sub(live_bytes),
            high_water: core.high_water.load(Relaxed),
            ..PoolStats::default()
        };
        for class in &core.classes {
            class.with(|list| {
                stats.live_blocks += list.live;
                stats.hits += list.hits;
                stats.misses += list.misses;
            });
        }
        stats
    }

    /// Gives all cached memory back to the system.
    pub fn trim(&self) {
        self.core().trim();
    }

    /// Sets or lifts the limit; memory cached beyond it is given back. Blocks in use stay.
    pub fn set_limit(&self, limit: Option<usize>) {
        let limit = limit.unwrap_or(usize::MAX);
        self.core().limit.store(limit, Relaxed);
        if self.core().held.load(Relaxed) > limit {
            self.trim();
        }
    }

    /// Fills each block with a recognisable NaN (`0x7FC0DEAD`) when it is handed out, so that
    /// reading before writing shows. Off to begin with.
    pub fn set_poison(&self, on: bool) {
        self.core().poison.store(on, Relaxed);
    }
}

impl Drop for HostPool {
    fn drop(&mut self) {
        // Blocks still out keep the core, but nobody will ask it for another.
        self.trim();
        // SAFETY: the handle's share is let go once, here.
        unsafe { Core::leave(self.core, HANDLE) };
    }
}

impl Core {
    fn live(&self) -> usize {
        self.users.load(Relaxed) & !HANDLE
    }

    fn alloc(&self, bytes: usize) -> Result<(NonNull<u8>, usize), OutOfMemory> {
        let class = class_of(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        let size = size_of_class(class);
        let live = (self.users.fetch_add(size, Relaxed) & !HANDLE) + size;
        let found = if live > self.limit.load(Relaxed) {
            None
        } else {
            let now = self.clock.load(Relaxed);
            self.classes[class].with(|list| list.take(now)).or_else(|| self.grow(class, size))
        };
        let Some(ptr) = found else {
            // The handle is borrowed, so this cannot be the last share.
            self.users.fetch_sub(size, Relaxed);
            return Err(self.out_of_memory(bytes));
        };
        if live > self.high_water.load(Relaxed) {
            self.high_water.fetch_max(live, Relaxed);
        }
        if self.poison.load(Relaxed) {
            // SAFETY: the block has `size` bytes, a multiple of four, and nobody else has it.
            unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr().cast::<MaybeUninit<u32>>(), size / 4) }
                .fill(MaybeUninit::new(POISON));
        }
        Ok((ptr, class))
    }

    /// Lets go of a share of the core: a block's size, or the handle.
    ///
    /// # Safety
    /// The share was counted in `users` and is let go once; `core` is not used after it.
    #[inline]
    unsafe fn leave(core: NonNull<Core>, share: usize) {
        // SAFETY: the share keeps the core alive up to the subtraction.
        let before = unsafe { core.as_ref() }.users.fetch_sub(share, AcqRel);
        if before == share {
            // SAFETY: this was the last share, and AcqRel orders all uses by others before this.
            drop(unsafe { Box::from_raw(core.as_ptr()) });
        }
    }

    fn out_of_memory(&self, need: usize) -> OutOfMemory {
        let limit = self.limit.load(Relaxed);
        OutOfMemory { need, live: self.live(), limit: (limit != usize::MAX).then_some(limit) }
    }

    /// A new block from the system; the caches are given back first if there is no room otherwise.
    #[cold]
    fn grow(&self, class: usize, size: usize) -> Option<NonNull<u8>> {
        let reserve = || {
            let limit = self.limit.load(Relaxed);
            self.held.fetch_update(Relaxed, Relaxed, |held| held.checked_add(size).filter(|&sum| sum <= limit)).ok()
        };
        reserve().or_else(|| {
            self.trim();
            reserve()
        })?;
        let ptr = system::get(size).or_else(|| {
            self.trim();
            system::get(size)
        });
        let Some(ptr) = ptr else {
            self.held.fetch_sub(size, Relaxed);
            return None;
        };
        let now = self.clock.fetch_add(1, Relaxed);
        self.classes[class].with(|list| {
            list.live += 1;
            list.misses += 1;
            list.used = now;
        });
        Some(ptr)
    }

    /// Takes a block's memory back. Its bytes stay counted as live until [`Core::leave`].
    ///
    /// # Safety
    /// `ptr` is a block of this class of this pool, and is not used any more.
    #[inline]
    unsafe fn give_back(&self, ptr: NonNull<u8>, class: usize) {
        let now = self.clock.load(Relaxed);
        self.classes[class].with(|list| list.put(ptr, now));
        let live = self.live().saturating_sub(size_of_class(class));
        if self.held.load(Relaxed).saturating_sub(live) > CACHE_FLOOR {
            self.evict(live);
        }
    }

    /// Gives all cached memory back to the system.
    fn trim(&self) {
        for class in 0..CLASSES {
            self.release(class, usize::MAX);
        }
    }

    /// Brings the cache under its bound, from the classes used longest ago.
    #[cold]
    fn evict(&self, live: usize) {
        let bound = CACHE_FLOOR.max(self.high_water.load(Relaxed) / 2);
        let cached = || self.held.load(Relaxed).saturating_sub(live);
        if cached() <= bound {
            return;
        }
        // A little further than the bound, so that the next free does not come here again.
        let goal = bound - bound / 8;
        for _ in 0..CLASSES {
            let excess = cached().saturating_sub(goal);
            let dated = (0..CLASSES)
                .filter_map(|class| self.classes[class].with(|list| (list.cached > 0).then_some((list.used, class))));
            let Some((_, class)) = dated.min().filter(|_| excess > 0) else { return };
            self.release(class, excess.div_ceil(size_of_class(class)));
        }
    }

    /// Gives up to `count` free blocks of a class back to the system.
    fn release(&self, class: usize, count: usize) {
        let size = size_of_class(class);
        for _ in 0..count {
            // The lock is not held over the system call.
            let Some(ptr) = self.classes[class].with(FreeList::pop) else { return };
            // SAFETY: the block came from `system::get(size)` and was just taken off its list, so
            // nobody else has it.
            unsafe { system::put(ptr, size) };
            self.held.fetch_sub(size, Relaxed);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // No handle and no block is left, so all memory is in the lists.
        self.trim();
    }
}

impl std::fmt::Debug for HostPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostPool").field("stats", &self.stats()).finish()
    }
}

impl FreeList {
    #[inline]
    fn pop(&mut self) -> Option<NonNull<u8>> {
        let link = self.first?;
        // SAFETY: a listed block is owned by the list and starts with the link that `put` wrote.
        self.first = unsafe { link.read() }.next;
        self.cached -= 1;
        Some(link.cast())
    }

    #[inline]
    fn take(&mut self, now: u64) -> Option<NonNull<u8>> {
        let ptr = self.pop()?;
        self.live += 1;
        self.hits += 1;
        self.used = now;
        Some(ptr)
    }

    #[inline]
    fn put(&mut self, ptr: NonNull<u8>, now: u64) {
        let link = ptr.cast::<Link>();
        // SAFETY: the block's owner gave it up; it is aligned and larger than a link.
        unsafe { link.write(Link { next: self.first }) };
        self.first = Some(link);
        self.cached += 1;
        self.live -= 1;
        self.used = now;
    }
}

#[cfg(test)]
mod tests;
