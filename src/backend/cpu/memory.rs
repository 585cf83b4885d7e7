//! Host memory for tensors: aligned blocks, pooled.
//!
//! A training step asks for the same sizes again and again, and fresh pages are dear (the system
//! clears them). So a freed [`Block`] goes to a free list of its size class and the next request of
//! that class takes it from there, without a system call and without touching the payload. Classes
//! are a quarter of a power of two apart: at most a fifth of a block is slack. Blocks of 2 MiB and
//! more are mapped on their own, aligned to and advised for huge pages, which is worth up to 2x where
//! memory is the bottleneck.
//!
//! Relies on nothing else in the crate. Guarantees:
//! - a block is aligned to [`ALIGN`] bytes and belongs to one owner; it may be freed on any thread,
//!   and keeps its pool alive;
//! - cached memory is bounded: by the larger of 64 MiB and half of the most that was ever live;
//! - running out of memory, or over the limit, is an error after the caches have been given back.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

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
    classes: [Class; CLASSES],
    /// Bytes (of whole blocks) that users hold.
    live: AtomicUsize,
    /// Bytes held from the system: live and cached. Changes only when the system is asked.
    held: AtomicUsize,
    high_water: AtomicUsize,
    /// `usize::MAX`: none.
    limit: AtomicUsize,
    poison: AtomicBool,
    /// Counts requests that reached the system; dates the use of classes for eviction.
    clock: AtomicU64,
}

/// Blocks of one size. On a line of its own, so that threads that use different sizes don't meet.
#[repr(align(128))]
struct Class {
    free: Mutex<FreeList>,
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
    home: Option<Home>,
}

struct Home {
    pool: Arc<HostPool>,
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

    /// Bytes that may be used: `len()` and the slack.
    pub fn capacity(&self) -> usize {
        self.home.as_ref().map_or(0, |home| size_of_class(home.class))
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.pool.give_back(self.ptr, home.class);
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
        Arc::new(HostPool {
            classes: std::array::from_fn(|_| Class { free: Mutex::default() }),
            live: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            high_water: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit.unwrap_or(usize::MAX)),
            poison: AtomicBool::new(false),
            clock: AtomicU64::new(1),
        })
    }

    /// A block of at least `bytes` bytes, with arbitrary contents. 0 bytes are a valid request.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Block, OutOfMemory> {
        if bytes == 0 {
            let ptr = NonNull::without_provenance(const { std::num::NonZero::new(ALIGN).unwrap() });
            return Ok(Block { ptr, len: 0, home: None });
        }
        let class = class_of(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        let size = size_of_class(class);
        let live = self.live.fetch_add(size, Relaxed).saturating_add(size);
        if live > self.limit.load(Relaxed) {
            self.live.fetch_sub(size, Relaxed);
            return Err(self.out_of_memory(bytes));
        }
        let found = self.classes[class].free.lock().take(self.clock.load(Relaxed));
        let ptr = match found {
            Some(ptr) => ptr,
            None => self
                .grow(class, size)
                .inspect_err(|_| {
                    self.live.fetch_sub(size, Relaxed);
                })
                .map_err(|()| self.out_of_memory(bytes))?,
        };
        if live > self.high_water.load(Relaxed) {
            self.high_water.fetch_max(live, Relaxed);
        }
        if self.poison.load(Relaxed) {
            // SAFETY: the block has `size` bytes, a multiple of four, and nobody else has it.
            unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr().cast::<std::mem::MaybeUninit<u32>>(), size / 4) }
                .fill(std::mem::MaybeUninit::new(POISON));
        }
        Ok(Block { ptr, len: bytes, home: Some(Home { pool: self.clone(), class }) })
    }

    /// What the pool holds now. Exact when no other thread is using it.
    pub fn stats(&self) -> PoolStats {
        let (live_bytes, held) = (self.live.load(Relaxed), self.held.load(Relaxed));
        let mut stats = PoolStats {
            live_bytes,
            cached_bytes: held.saturating_sub(live_bytes),
            high_water: self.high_water.load(Relaxed),
            ..PoolStats::default()
        };
        for class in &self.classes {
            let list = class.free.lock();
            stats.live_blocks += list.live;
            stats.hits += list.hits;
            stats.misses += list.misses;
        }
        stats
    }

    /// Gives all cached memory back to the system.
    pub fn trim(&self) {
        for class in 0..CLASSES {
            self.release(class, usize::MAX);
        }
    }

    /// Sets or lifts the limit; memory cached beyond it is given back. Blocks in use stay.
    pub fn set_limit(&self, limit: Option<usize>) {
        let limit = limit.unwrap_or(usize::MAX);
        self.limit.store(limit, Relaxed);
        if self.held.load(Relaxed) > limit {
            self.trim();
        }
    }

    /// Fills each block with a recognisable NaN (`0x7FC0DEAD`) when it is handed out, so that reading
    /// before writing shows. Off to begin with.
    pub fn set_poison(&self, on: bool) {
        self.poison.store(on, Relaxed);
    }

    fn out_of_memory(&self, need: usize) -> OutOfMemory {
        let limit = self.limit.load(Relaxed);
        OutOfMemory { need, live: self.live.load(Relaxed), limit: (limit != usize::MAX).then_some(limit) }
    }

    /// A new block from the system; the caches are given back first if there is no room otherwise.
    #[cold]
    fn grow(&self, class: usize, size: usize) -> Result<NonNull<u8>, ()> {
        let reserve = || {
            let limit = self.limit.load(Relaxed);
            self.held.fetch_update(Relaxed, Relaxed, |held| held.checked_add(size).filter(|&sum| sum <= limit))
        };
        if reserve().is_err() {
            self.trim();
            reserve().map_err(|_| ())?;
        }
        let ptr = system::get(size).or_else(|| {
            self.trim();
            system::get(size)
        });
        let Some(ptr) = ptr else {
            self.held.fetch_sub(size, Relaxed);
            return Err(());
        };
        let now = self.clock.fetch_add(1, Relaxed);
        let mut list = self.classes[class].free.lock();
        list.live += 1;
        list.misses += 1;
        list.used = now;
        Ok(ptr)
    }

    #[inline]
    fn give_back(&self, ptr: NonNull<u8>, class: usize) {
        self.classes[class].free.lock().put(ptr, self.clock.load(Relaxed));
        let size = size_of_class(class);
        let live = self.live.fetch_sub(size, Relaxed) - size;
        if self.held.load(Relaxed).saturating_sub(live) > CACHE_FLOOR {
            self.evict();
        }
    }

    /// Brings the cache under its bound, from the classes used longest ago.
    #[cold]
    fn evict(&self) {
        let bound = CACHE_FLOOR.max(self.high_water.load(Relaxed) / 2);
        let cached = || self.held.load(Relaxed).saturating_sub(self.live.load(Relaxed));
        if cached() <= bound {
            return;
        }
        // A little further than the bound, so that the next free does not come here again.
        let goal = bound - bound / 8;
        for _ in 0..CLASSES {
            let excess = cached().saturating_sub(goal);
            let dated = (0..CLASSES).filter_map(|class| {
                let list = self.classes[class].free.lock();
                (list.cached > 0).then_some((list.used, class))
            });
            let Some((_, class)) = dated.min().filter(|_| excess > 0) else { return };
            self.release(class, excess.div_ceil(size_of_class(class)));
        }
    }

    /// Gives up to `count` free blocks of a class back to the system.
    fn release(&self, class: usize, count: usize) {
        let size = size_of_class(class);
        for _ in 0..count {
            // The lock is not held over the system call.
            let Some(ptr) = self.classes[class].free.lock().pop() else { return };
            // SAFETY: the block came from `system::get(size)` and was just taken off its list, so
            // nobody else has it.
            unsafe { system::put(ptr, size) };
            self.held.fetch_sub(size, Relaxed);
        }
    }
}

impl Drop for HostPool {
    fn drop(&mut self) {
        // Every block keeps the pool alive, so all memory is in the lists by now.
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

/// Memory from the system.
mod system {
    use super::*;

    pub(super) fn get(size: usize) -> Option<NonNull<u8>> {
        #[cfg(target_os = "linux")]
        if size >= LARGE {
            return map(size);
        }
        let layout = Layout::from_size_align(size, align(size)).ok()?;
        // SAFETY: `size` is not zero.
        NonNull::new(unsafe { alloc(layout) })
    }

    /// # Safety
    /// `ptr` must come from `get(size)` and must not be used any more.
    pub(super) unsafe fn put(ptr: NonNull<u8>, size: usize) {
        #[cfg(target_os = "linux")]
        if size >= LARGE {
            // SAFETY: `map` left exactly this range mapped.
            unsafe { libc::munmap(ptr.as_ptr().cast(), size) };
            return;
        }
        // SAFETY: `get` allocated with this layout, so it is valid.
        unsafe { dealloc(ptr.as_ptr(), Layout::from_size_align_unchecked(size, align(size))) };
    }

    fn align(size: usize) -> usize {
        if size >= LARGE { LARGE } else { ALIGN }
    }

    /// `size` bytes of fresh pages, aligned to a huge page. `size` is a multiple of the page size:
    /// classes from 2 MiB on are half a MiB apart, or more.
    #[cfg(target_os = "linux")]
    fn map(size: usize) -> Option<NonNull<u8>> {
        let reserved = size.checked_add(LARGE)?;
        // SAFETY: a new private mapping, wherever the system likes, disturbs nothing.
        let base = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), reserved, prot, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let head = base.align_offset(LARGE);
        // SAFETY: the ends before and after the aligned block are inside the mapping just made and
        // are not used. Whether the advice is taken does not matter.
        unsafe {
            let start = base.add(head);
            if head > 0 {
                libc::munmap(base.cast(), head);
            }
            if head < LARGE {
                libc::munmap(start.add(size).cast(), LARGE - head);
            }
            libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE);
            NonNull::new(start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 16] =
        [1, 4, 63, 64, 65, 200, 256, 257, 320, 321, 1000, 4096, 65_537, LARGE - 1, LARGE, 5 * LARGE + 3];

    fn fill(block: &Block, value: u8) {
        // SAFETY: the block is ours and has that many bytes.
        unsafe { block.ptr().write_bytes(value, block.len()) };
    }

    fn all(block: &Block, value: u8) -> bool {
        // SAFETY: `fill` has initialised these bytes.
        unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) }.iter().all(|&x| x == value)
    }

    #[test]
    fn classes_fit_tightly() {
        for class in 0..CLASSES {
            let size = size_of_class(class);
            assert_eq!(class_of(size), Some(class));
            assert_eq!(class_of(size + 1), (class + 1 < CLASSES).then_some(class + 1));
            assert!(size.is_multiple_of(64));
        }
        for bytes in (257..100_000).chain([LARGE + 1, 3 * LARGE + 1]) {
            let size = size_of_class(class_of(bytes).unwrap());
            assert!(size >= bytes && (size - bytes) * 4 <= size, "{bytes} in {size}");
        }
    }

    #[test]
    fn blocks_are_aligned_and_apart() {
        let pool = HostPool::new(None);
        let blocks: Vec<Block> = SIZES.iter().chain(&SIZES).map(|&bytes| pool.alloc(bytes).unwrap()).collect();
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.ptr().addr().is_multiple_of(ALIGN));
            assert!(block.len() < LARGE || block.ptr().addr().is_multiple_of(LARGE));
            assert!(block.capacity() >= block.len());
            fill(block, i as u8);
        }
        assert!(blocks.iter().enumerate().all(|(i, block)| all(block, i as u8)));
        assert_eq!(pool.stats().live_blocks, blocks.len());
        drop(blocks);
        assert_eq!((pool.stats().live_blocks, pool.stats().live_bytes), (0, 0));
    }

    #[test]
    fn freed_blocks_are_used_again() {
        let pool = HostPool::new(None);
        for bytes in SIZES {
            let first = pool.alloc(bytes).unwrap().ptr();
            assert_eq!(pool.alloc(bytes).unwrap().ptr(), first, "{bytes}");
        }
        let stats = pool.stats();
        assert!(stats.hits >= SIZES.len() as u64);
        assert_eq!(stats.misses + stats.hits, 2 * SIZES.len() as u64);
        assert!(stats.cached_bytes > 0);
        pool.trim();
        assert_eq!(pool.stats().cached_bytes, 0);
    }

    #[test]
    fn an_empty_block() {
        let pool = HostPool::new(Some(0));
        let block = pool.alloc(0).unwrap();
        assert!(block.is_empty() && block.ptr().addr().is_multiple_of(ALIGN) && block.capacity() == 0);
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn blocks_outlive_the_callers_pool_and_cross_threads() {
        let pool = HostPool::new(None);
        let blocks: Vec<Block> = SIZES.iter().map(|&bytes| pool.alloc(bytes).unwrap()).collect();
        let weak = Arc::downgrade(&pool);
        drop(pool);
        assert!(weak.upgrade().is_some());
        std::thread::spawn(move || drop(blocks)).join().unwrap();
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn many_threads() {
        let pool = HostPool::new(None);
        let (give, take) = std::sync::mpsc::sync_channel::<(Block, u8)>(16);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let (pool, give) = (&pool, give.clone());
                scope.spawn(move || {
                    for i in 0..3000usize {
                        let block = pool.alloc(1 + (i * 97) % 3000).unwrap();
                        fill(&block, thread);
                        give.send((block, thread)).unwrap();
                    }
                });
            }
            drop(give);
            scope.spawn(move || take.into_iter().for_each(|(block, value)| assert!(all(&block, value))));
        });
        let stats = pool.stats();
        assert_eq!((stats.live_bytes, stats.live_blocks, stats.hits + stats.misses), (0, 0, 9000));
    }

    #[test]
    fn the_limit_holds() {
        let pool = HostPool::new(Some(10_000));
        let held = pool.alloc(4096).unwrap();
        assert_eq!(pool.alloc(8192).unwrap_err(), OutOfMemory { need: 8192, live: 4096, limit: Some(10_000) });
        drop(pool.alloc(5000).unwrap());
        // 5120 bytes are cached now; they make room for another class.
        assert_eq!(pool.stats().cached_bytes, 5120);
        let other = pool.alloc(2048).unwrap();
        assert_eq!(pool.stats().cached_bytes, 0);
        drop((held, other));
        pool.set_limit(Some(100));
        assert_eq!(pool.stats().cached_bytes, 0);
        assert!(pool.alloc(200).is_err());
        pool.set_limit(None);
        assert!(pool.alloc(200).is_ok());
        assert_eq!(pool.stats().high_water, 9216);
    }

    #[test]
    fn what_no_system_has_is_an_error() {
        let pool = HostPool::new(None);
        for bytes in [usize::MAX, 1 << 62, (1 << MAX_LOG) + 1, 1 << MAX_LOG] {
            assert_eq!(pool.alloc(bytes).unwrap_err(), OutOfMemory { need: bytes, live: 0, limit: None });
        }
        assert_eq!(pool.stats(), PoolStats::default());
    }

    #[test]
    fn the_cache_is_bounded() {
        let pool = HostPool::new(None);
        // Distinct classes, so that nothing is used again.
        let sizes = [8, 9, 11, 13, 16, 18, 22, 26, 30].map(|mib| mib << 20);
        sizes.iter().for_each(|&bytes| drop(pool.alloc(bytes).unwrap()));
        assert!(pool.stats().cached_bytes <= CACHE_FLOOR);
        // The class used last survived.
        let before = pool.stats().hits;
        drop(pool.alloc(30 << 20).unwrap());
        assert_eq!(pool.stats().hits, before + 1);
    }

    #[test]
    fn poison_shows() {
        let pool = HostPool::new(None);
        pool.set_poison(true);
        for bytes in [4, 1000, LARGE] {
            for _ in 0..2 {
                let block = pool.alloc(bytes).unwrap();
                // SAFETY: poisoned blocks are initialised in whole words.
                let words = unsafe { std::slice::from_raw_parts(block.ptr().cast::<u32>(), bytes / 4) };
                assert!(words.iter().all(|&word| word == POISON) && f32::from_bits(words[0]).is_nan());
                fill(&block, 0);
            }
        }
    }
}
