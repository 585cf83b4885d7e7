//! The memory for values that live within one launch, shared by the plans of a backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{ALIGN, Block, HostPool, OutOfMemory};

/// The address of no bytes.
const EMPTY: *mut u8 = std::ptr::without_provenance_mut(ALIGN);

/// One block, as large as the largest plan alive wants. A launch that finds it taken by another
/// thread's gets a block of its own from the pool.
pub(in crate::backend::cpu) struct Arena {
    pool: Arc<HostPool>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(in crate::backend::cpu) struct State {
    block: Option<Block>,
    /// How many plans alive want so many bytes.
    wants: BTreeMap<usize, usize>,
}

/// Arena memory for one launch.
pub(in crate::backend::cpu) enum Lease<'a> {
    Shared(MutexGuard<'a, State>),
    Own(Block),
    Empty,
}

impl Lease<'_> {
    /// The first byte.
    pub fn ptr(&self) -> *mut u8 {
        match self {
            Lease::Shared(state) => state.block.as_ref().map_or(EMPTY, Block::ptr),
            Lease::Own(block) => block.ptr(),
            Lease::Empty => EMPTY,
        }
    }
}

impl Arena {
    pub fn new(pool: Arc<HostPool>) -> Arena {
        Arena { pool, state: Mutex::default() }
    }

    /// A plan that wants `bytes` came to life. Memory is taken at its first launch.
    pub fn enter(&self, bytes: usize) {
        *self.state.lock().wants.entry(bytes).or_default() += 1;
    }

    /// A plan that wanted `bytes` is gone. Memory larger than the others want is given back.
    pub fn leave(&self, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(count) = state.wants.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                state.wants.remove(&bytes);
            }
        }
        let largest = state.wants.keys().next_back().copied().unwrap_or(0);
        if state.block.as_ref().is_some_and(|b| b.len() > largest) {
            state.block = None;
        }
    }

    /// `bytes` bytes for one launch.
    #[inline]
    pub fn lease(&self, bytes: usize) -> Result<Lease<'_>, OutOfMemory> {
        if bytes == 0 {
            return Ok(Lease::Empty);
        }
        let Some(mut state) = self.state.try_lock() else { return Ok(Lease::Own(self.pool.alloc(bytes)?)) };
        if state.block.as_ref().is_none_or(|b| b.len() < bytes) {
            // The old one first: both at once may be more than there is.
            state.block = None;
            state.block = Some(self.pool.alloc(bytes)?);
        }
        Ok(Lease::Shared(state))
    }
}
