//! Device memory in stream order, pinned host memory, copies.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::{Context, Stream};
use super::{Called, call};

/// The address of device memory; 0 is none.
pub type Address = u64;

/// `bytes` bytes (not 0), valid for work enqueued on the stream from here on.
pub fn alloc(stream: &Stream, bytes: usize) -> Called<Address> {
    let mut address = 0;
    // SAFETY: the pointer is to a local, the stream is alive.
    unsafe { call!(cuMemAllocAsync(&mut address, bytes, stream.raw))? };
    Ok(address)
}

/// Frees memory of [`alloc`] once what was enqueued before has ended.
pub fn free(stream: &Stream, address: Address) -> Called<()> {
    // SAFETY: an address that was not allocated, or freed before, is refused by the driver.
    unsafe { call!(cuMemFreeAsync(address, stream.raw)) }
}

/// Enqueues a copy of host bytes to the device. Returns when `bytes` may change: memory that is not pinned is
/// copied by the driver first.
///
/// The destination must have room: the callers' check.
pub fn upload(stream: &Stream, to: Address, bytes: &[u8]) -> Called<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the source is readable for its length, and pageable memory is copied before the call returns.
    unsafe { call!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.raw)) }
}

/// Copies device bytes to the host: returns once all that was enqueued before and the copy have ended.
pub fn download(stream: &Stream, from: Address, out: &mut [u8]) -> Called<()> {
    if !out.is_empty() {
        // SAFETY: the destination is writable for its length, and stays so until the stream was waited for below.
        unsafe { call!(cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), stream.raw))? };
    }
    stream.synchronize()
}

/// Enqueues a copy within the device.
pub fn copy(stream: &Stream, to: Address, from: Address, bytes: usize) -> Called<()> {
    // SAFETY: ranges that are not allocated are refused by the driver.
    unsafe { call!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw)) }
}

/// Enqueues setting bytes to zero.
pub fn clear(stream: &Stream, address: Address, bytes: usize) -> Called<()> {
    // SAFETY: ranges that are not allocated are refused by the driver.
    unsafe { call!(cuMemsetD8Async(address, 0, bytes, stream.raw)) }
}

/// Pinned host memory that the device sees too, as 64-bit words, zero to begin with.
#[derive(Debug)]
pub struct Pinned {
    words: NonNull<u64>,
    len: usize,
    device: Address,
    context: Arc<Context>,
}

// SAFETY: it is plain memory.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads, by volatile loads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` words (at least 1).
    pub fn new(context: &Arc<Context>, len: usize) -> Called<Pinned> {
        let (mut host, mut device) = (null_mut(), 0);
        const MAPPED: u32 = 2; // CU_MEMHOSTALLOC_DEVICEMAP
        // SAFETY: the pointers are to locals, the context is current.
        unsafe {
            call!(cuMemHostAlloc(&mut host, len * 8, MAPPED))?;
            let mapped = call!(cuMemHostGetDevicePointer_v2(&mut device, host, 0));
            if let Err(e) = mapped {
                let _ = call!(cuMemFreeHost(host));
                return Err(e);
            }
            host.cast::<u64>().write_bytes(0, len);
        }
        let words = NonNull::new(host.cast()).unwrap_or(NonNull::dangling());
        Ok(Pinned { words, len, device, context: context.clone() })
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.len
    }

    /// Where the device sees it.
    pub fn device_address(&self) -> Address {
        self.device
    }

    /// The word at `i`, as the device left it at the last synchronisation.
    pub fn read(&self, i: usize) -> u64 {
        assert!(i < self.len, "word {i} of {}", self.len);
        // SAFETY: in bounds; the device may write at any time, hence volatile.
        unsafe { self.words.as_ptr().add(i).read_volatile() }
    }

    /// Writes words from the start and enqueues their copy to the device. They are read when the copy runs:
    /// the memory must not be written again before an event behind the copy was reached.
    pub fn send(&mut self, words: &[u64], stream: &Stream, to: Address) -> Called<()> {
        assert!(words.len() <= self.len, "{} words into {}", words.len(), self.len);
        // SAFETY: in bounds; nobody else has this memory, but for copies whose end the caller waited for.
        unsafe {
            self.words.as_ptr().copy_from_nonoverlapping(words.as_ptr(), words.len());
            call!(cuMemcpyHtoDAsync_v2(to, self.words.as_ptr().cast(), words.len() * 8, stream.raw))
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`; the driver waits for copies under way.
        let _ = unsafe { call!(cuMemFreeHost(self.words.as_ptr().cast())) };
    }
}
