//! Executable memory for dispatch code.
//!
//! Each piece of code gets fresh pages of its own: they are filled while writable, then made executable and
//! never written again; they are unmapped when the code is dropped. So no page is ever
//! writable and executable at once, and none that may be executing turns writable. Pages are sought within
//! 2 GB of the crate's own text, so that calls into it can be direct; where there is no room, [`Pages::is_near`] says so.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::base::{Error, ErrorKind, Result};

/// How far a 32-bit displacement reaches, less a margin for the code's own length.
const REACH: usize = (1 << 31) - (1 << 24);
/// Distance of the places where room is sought.
const STRIDE: usize = 16 << 20;

/// Bytes of executable memory mapped now.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Where room was last found.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Bytes of executable memory that live code takes, in whole pages.
pub fn bytes_in_use() -> usize {
    IN_USE.load(Relaxed)
}

/// Fresh writable pages, to be filled and then sealed.
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value and tied to no thread.
unsafe impl Send for Pages {}
// SAFETY: shared access gives out the address and length only.
unsafe impl Sync for Pages {}

/// Pages that are executable and no longer writable.
pub struct Sealed(Pages);

impl Pages {
    /// Room for `bytes` bytes, near `text` if there is any.
    pub fn near(text: usize, bytes: usize) -> Result<Pages> {
        // SAFETY: `sysconf` has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let len = bytes.max(1).next_multiple_of(page);
        let last = LAST.load(Relaxed);
        let steps = REACH / STRIDE;
        // Below the text first: the heap grows above it.
        let below = (1..steps).filter_map(|i| text.checked_sub(i * STRIDE));
        let above = (1..steps).filter_map(|i| text.checked_add(i * STRIDE));
        for hint in std::iter::once(last).chain(below).chain(above) {
            let hint = hint & !(page - 1);
            if hint == 0 || !reaches(hint, len, text) {
                continue;
            }
            let pages = Pages::map(hint, len)?;
            if pages.is_near(text) {
                // The next piece just below this one, as the system is likely to grant.
                LAST.store(pages.address().saturating_sub(len), Relaxed);
                return Ok(pages);
            }
        }
        Pages::map(0, len)
    }

    fn map(hint: usize, len: usize) -> Result<Pages> {
        // SAFETY: a new private mapping; without MAP_FIXED the hint can displace nothing.
        let at = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::without_provenance_mut(hint), len, prot, flags, -1, 0)
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(start) if at != libc::MAP_FAILED => {
                IN_USE.fetch_add(len, Relaxed);
                Ok(Pages { start, len })
            }
            _ => Err(failed("mmap")),
        }
    }

    /// The first byte's address.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Whether a direct call reaches `target` from anywhere in these pages.
    pub fn is_near(&self, target: usize) -> bool {
        reaches(self.address(), self.len, target)
    }

    /// Writes `code` at the start and makes the pages executable.
    pub fn seal(self, code: &[u8]) -> Result<Sealed> {
        if code.len() > self.len {
            return Err(Error::bug("dispatch", format!("{} bytes of code for {} of pages", code.len(), self.len)));
        }
        // SAFETY: the pages are ours, writable and long enough; afterwards nothing writes them.
        let rc = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.start.as_ptr(), code.len());
            libc::mprotect(self.start.as_ptr().cast(), self.len, libc::PROT_READ | libc::PROT_EXEC)
        };
        if rc == 0 { Ok(Sealed(self)) } else { Err(failed("mprotect")) }
    }
}

impl Sealed {
    /// The first byte of the code.
    pub fn start(&self) -> NonNull<u8> {
        self.0.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is exactly this range, and its owner is gone, so nobody runs code in it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        IN_USE.fetch_sub(self.len, Relaxed);
    }
}

fn reaches(start: usize, len: usize, target: usize) -> bool {
    start.abs_diff(target) < REACH && start.saturating_add(len).abs_diff(target) < REACH
}

fn failed(call: &str) -> Error {
    let code = std::io::Error::last_os_error().to_string();
    Error::new(ErrorKind::Driver { call: call.into(), code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_near_the_text_and_apart() {
        let text = bytes_in_use as *const () as usize;
        let pages: Vec<Pages> = (0..50).map(|i| Pages::near(text, 1 + i * 500).unwrap()).collect();
        assert!(pages.iter().all(|p| p.is_near(text)));
        let mut ranges: Vec<(usize, usize)> = pages.iter().map(|p| (p.address(), p.address() + p.len)).collect();
        ranges.sort();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
    }

    #[test]
    fn sealed_code_runs_and_is_not_writable() {
        let text = bytes_in_use as *const () as usize;
        // mov eax, 42; ret
        let code = [0xB8, 42, 0, 0, 0, 0xC3];
        let sealed = Pages::near(text, code.len()).unwrap().seal(&code).unwrap();
        // SAFETY: the bytes are a function of this type.
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(sealed.start()) };
        assert_eq!(function(), 42);
        let line = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let start = format!("{:x}-", sealed.start().addr());
        if let Some(line) = line.lines().find(|l| l.starts_with(&start)) {
            assert!(line.contains("r-xp"), "{line}");
        }
    }

    #[test]
    fn far_targets_are_known_to_be_far() {
        assert!(!reaches(1 << 40, 4096, 1 << 20));
        assert!(!reaches(0, 4096, 1 << 31));
        assert!(reaches(1 << 30, 4096, 1 << 31));
    }

    #[test]
    fn too_much_code_is_refused() {
        let before = Pages::near(0, 1).unwrap();
        assert!(before.seal(&[0; 100_000]).is_err());
    }
}
