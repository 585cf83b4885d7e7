//! Device memory, as dispatch sees it.

use std::sync::Arc;

use super::memory::Address;
use crate::backend::cuda::pool::{Block, Pool};
use crate::backend::dispatch::{self, Host};
use crate::backend::{Buffer, Memory, Storage};
use crate::base::Result;

/// A device's memory for one launch, made under the device's lock.
pub struct Device<'a> {
    pub pool: &'a Arc<Pool>,
    /// The arena of a plan that has its own; else one is taken from the pool.
    pub arena: Option<Address>,
}

/// Arena memory of a launch.
pub enum Lease {
    Fixed(Address),
    /// Given back in stream order, so after the launch's work.
    Own(Block),
}

// SAFETY: addresses and lengths are those of whole blocks of this device, which live as long as their buffers and are aligned to
// 256 bytes. The arena is used in stream order: work enqueued later starts after this launch's has ended.
unsafe impl Host for Device<'_> {
    type Lease<'a>
        = Lease
    where
        Self: 'a;

    #[inline]
    fn address(&self, buffer: &Buffer) -> Option<*mut u8> {
        match &buffer.memory {
            Memory::Cuda(block) if block.is_of(self.pool) => Some(pointer(block.address())),
            _ => None,
        }
    }

    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)> {
        let block = self.pool.alloc(bytes)?;
        let address = pointer(block.address());
        Ok((Arc::new(Storage::new(Memory::Cuda(block), bytes)), address))
    }

    fn arena(&self, bytes: usize) -> Result<Lease> {
        Ok(match self.arena {
            Some(address) => Lease::Fixed(address),
            None if bytes == 0 => Lease::Fixed(0),
            None => Lease::Own(self.pool.alloc(bytes)?),
        })
    }
}

impl dispatch::Lease for Lease {
    fn start(&self) -> *mut u8 {
        pointer(match self {
            Lease::Fixed(address) => *address,
            Lease::Own(block) => block.address(),
        })
    }
}

/// An address of the device is a number to the host: never read through.
fn pointer(address: Address) -> *mut u8 {
    std::ptr::without_provenance_mut(address as usize)
}
