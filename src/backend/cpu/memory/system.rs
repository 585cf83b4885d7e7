//! Memory from the system: the allocator's for small blocks, mapped pages for large ones.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use super::{ALIGN, LARGE};

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
