//! Device memory for tensors and plans: blocks, pooled.
//!
//! Everything runs on one stream, so a freed block may be handed out again at once: what still uses it was enqueued
//! before whatever uses it next. A request that the free lists serve makes no driver call. Sizes are rounded up to a
//! quarter of a power of two, as on the CPU. When the device has no more, free blocks are given back and the request is
//! made once more; then it is an error that says what holds most.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::backend::MemoryUse;
use crate::backend::cuda::sys::context::{Context, Stream};
use crate::backend::cuda::sys::memory::{self, Address};
use crate::base::{Error, ErrorKind, Result};

/// Alignment of every block, in bytes: what the driver gives.
pub const ALIGN: usize = 256;

/// A pool of one device's memory.
#[derive(Debug)]
pub struct Pool {
    context: Arc<Context>,
    stream: Arc<Stream>,
    state: Mutex<State>,
    limit: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    classes: BTreeMap<usize, Class>,
    live: usize,
    cached: usize,
}

/// Blocks of one size.
#[derive(Debug, Default)]
struct Class {
    free: Vec<Address>,
    live: usize,
}

/// A block of device memory. Dropping it gives it back to the pool, in stream order.
#[derive(Debug)]
pub struct Block {
    /// Changed only under the device's lock, by [`Block::exchange`].
    address: AtomicU64,
    size: usize,
    pool: Arc<Pool>,
}

impl Block {
    /// The address; to be read under the device's lock if the block belongs to a tensor.
    #[inline]
    pub fn address(&self) -> Address {
        self.address.load(Relaxed)
    }

    /// Whether it is memory of this pool.
    #[inline]
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Swaps the memory of two blocks of the same size, under the device's lock.
    pub fn exchange(&self, other: &Block) {
        debug_assert_eq!(self.size, other.size);
        let mine = self.address.swap(other.address(), Relaxed);
        other.address.store(mine, Relaxed);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.live -= self.size;
        state.cached += self.size;
        let class = state.classes.entry(self.size).or_default();
        class.live -= 1;
        class.free.push(*self.address.get_mut());
    }
}

/// `bytes` rounded up: to 256 bytes, and to a quarter of a power of two.
fn rounded(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
    let step = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.checked_next_multiple_of(step)
}

impl Pool {
    /// An empty pool that may hold up to `limit` bytes.
    pub fn new(context: Arc<Context>, stream: Arc<Stream>, limit: Option<usize>) -> Arc<Pool> {
        Arc::new(Pool { context, stream, state: Mutex::default(), limit })
    }

    /// A block of at least `bytes` bytes, its contents undefined. The context must be current.
    pub fn alloc(self: &Arc<Pool>, bytes: usize) -> Result<Block> {
        let size = rounded(bytes).ok_or_else(|| self.exhausted(bytes, &State::default()))?;
        let mut state = self.state.lock();
        let mut address = state.classes.get_mut(&size).and_then(|c| c.free.pop());
        if address.is_some() {
            state.cached -= size;
        } else {
            if self.limit.is_some_and(|l| state.live + state.cached + size > l) {
                self.give_back(&mut state)?;
                if self.limit.is_some_and(|l| state.live + size > l) {
                    return Err(self.exhausted(bytes, &state));
                }
            }
            address = match memory::alloc(&self.stream, size) {
                Ok(address) => Some(address),
                Err(e) if e.is_out_of_memory() => {
                    tracing::warn!(bytes = size, cached = state.cached, "device memory ran out: dropping free blocks");
                    self.give_back(&mut state)?;
                    match memory::alloc(&self.stream, size) {
                        Err(e) if e.is_out_of_memory() => return Err(self.exhausted(bytes, &state)),
                        other => Some(other?),
                    }
                }
                Err(e) => return Err(e.into()),
            };
        }
        state.live += size;
        state.classes.entry(size).or_default().live += 1;
        drop(state);
        Ok(Block { address: address.unwrap_or_default().into(), size, pool: self.clone() })
    }

    /// Gives all free blocks back to the device.
    fn give_back(&self, state: &mut State) -> Result<()> {
        for (&size, class) in &mut state.classes {
            while let Some(&address) = class.free.last() {
                // What the driver does not take back stays ours.
                memory::free(&self.stream, address)?;
                class.free.pop();
                state.cached -= size;
            }
        }
        state.classes.retain(|_, c| c.live > 0);
        self.stream.synchronize()?;
        self.context.trim()?;
        Ok(())
    }

    /// As [`crate::backend::Backend::trim`].
    pub fn trim(&self) -> Result<()> {
        self.give_back(&mut self.state.lock())
    }

    /// What the pool holds.
    pub fn stats(&self) -> MemoryUse {
        let state = self.state.lock();
        MemoryUse { live: state.live, cached: state.cached }
    }

    /// Blocks in use, largest total first: (size of one, number).
    pub fn holders(&self) -> Vec<(usize, usize)> {
        let state = self.state.lock();
        holders(&state)
    }

    /// Free bytes of the device, if it says.
    pub fn device_free(&self) -> Option<usize> {
        self.context.memory().ok().map(|(free, _)| free)
    }

    fn exhausted(&self, need: usize, state: &State) -> Error {
        let holders = holders(state).into_iter().take(3).map(|(size, n)| format!("{n} of {size} bytes"));
        Error::new(ErrorKind::OutOfMemory {
            need,
            live: state.live,
            limit: self.limit,
            free: self.device_free(),
            holders: holders.collect(),
        })
    }
}

fn holders(state: &State) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> =
        state.classes.iter().filter(|(_, c)| c.live > 0).map(|(&size, c)| (size, c.live)).collect();
    out.sort_by_key(|&(size, n)| std::cmp::Reverse(size * n));
    out
}

impl Drop for Pool {
    fn drop(&mut self) {
        // All blocks are back: each keeps the pool alive.
        let _ = self.context.enter();
        for class in self.state.get_mut().classes.values_mut() {
            for address in class.free.drain(..) {
                let _ = memory::free(&self.stream, address);
            }
        }
        let _ = self.stream.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn a_fifth_of_slack_at_most() {
        assert_eq!(rounded(0), Some(256));
        assert_eq!(rounded(257), Some(512));
        assert_eq!(rounded(usize::MAX), None);
        for bytes in (4096..10_000_000usize).step_by(997) {
            let size = rounded(bytes).unwrap();
            assert!(size >= bytes && size <= bytes + bytes / 4 + 256, "{bytes}: {size}");
            assert_eq!(size % 256, 0);
            assert_eq!(rounded(size), Some(size));
        }
    }
}
