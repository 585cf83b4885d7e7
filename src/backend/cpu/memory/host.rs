//! The memory of a CPU backend, as dispatch sees it.

use std::sync::Arc;

use super::arena::{Arena, Lease};
use super::{HostPool, OutOfMemory};
use crate::backend::dispatch::{self, Host};
use crate::backend::{Buffer, Memory, Storage};
use crate::base::{Error, ErrorKind, Result};

/// A pool for buffers and the arena of the plans.
pub(in crate::backend::cpu) struct HostMemory {
    pub pool: Arc<HostPool>,
    pub arena: Arena,
}

impl HostMemory {
    /// Empty memory of at most `limit` bytes.
    pub fn new(limit: Option<usize>) -> HostMemory {
        let pool = HostPool::new(limit);
        HostMemory { arena: Arena::new(pool.clone()), pool }
    }
}

impl From<OutOfMemory> for Error {
    fn from(e: OutOfMemory) -> Error {
        let OutOfMemory { need, live, limit } = e;
        Error::new(ErrorKind::OutOfMemory { need, live, limit, free: None, holders: Vec::new() })
    }
}

// SAFETY: addresses and lengths are those of whole blocks, which live as long as their buffers; a lease is
// the only user of its memory.
unsafe impl Host for HostMemory {
    type Lease<'a> = Lease<'a>;

    #[inline]
    fn address(&self, buffer: &Buffer) -> Option<*mut u8> {
        match &buffer.memory {
            Memory::Host(block) => Some(block.ptr()),
            _ => None,
        }
    }

    #[inline]
    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)> {
        let block = self.pool.alloc(bytes)?;
        let address = block.ptr();
        Ok((Arc::new(Storage::new(Memory::Host(block), bytes)), address))
    }

    #[inline]
    fn arena(&self, bytes: usize) -> Result<Lease<'_>> {
        Ok(self.arena.lease(bytes)?)
    }
}

impl dispatch::Lease for Lease<'_> {
    #[inline]
    fn start(&self) -> *mut u8 {
        self.ptr()
    }
}
