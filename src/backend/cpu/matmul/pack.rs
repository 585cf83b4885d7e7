//! Packing: copying one panel of an operand into the order in which the tile reads it.

use super::isa::Number;

/// Steps handled together: a cache line of each source column, and few enough target rows for L1.
const GROUP: usize = 16;

/// Transposes eight columns, each contiguous in `src`, over `steps` steps:
/// `dst[p * stride + j] = src[p + j * across]`.
///
/// # Safety
/// Those elements must be valid; the instruction set that it was compiled for must be available.
pub type Transpose<T> = unsafe fn(steps: usize, src: *const T, across: isize, dst: *mut T, stride: usize);

/// Copies `steps x width` elements, `(p, j)` from `src[p * step + j * across]` to
/// `dst[p * stride + j]`, and fills columns `width..stride` with zero.
///
/// # Safety
/// Those elements of `src` must be valid for reading, `steps * stride` elements of `dst` for
/// writing, without overlap; `width <= stride`; `transpose` must be callable.
pub(super) unsafe fn pack<T: Number>(
    transpose: Transpose<T>,
    (steps, width): (usize, usize),
    src: *const T,
    (step, across): (isize, isize),
    dst: *mut T,
    stride: usize,
) {
    // SAFETY: every access is to a (p, j) with p < steps, and j < width in `src` or j < stride in
    // `dst`, for which the caller vouches.
    unsafe {
        if width < stride {
            for p in 0..steps {
                (width..stride).for_each(|j| *dst.add(p * stride + j) = T::ZERO);
            }
        }
        if across == 1 {
            for p in 0..steps {
                std::ptr::copy_nonoverlapping(src.wrapping_offset(p as isize * step), dst.add(p * stride), width);
            }
            return;
        }
        let whole = if step == 1 { width / 8 * 8 } else { 0 };
        for first in (0..steps).step_by(GROUP) {
            let last = steps.min(first + GROUP);
            for j in (0..whole).step_by(8) {
                let from = src.wrapping_offset(first as isize + j as isize * across);
                transpose(last - first, from, across, dst.add(first * stride + j), stride);
            }
            for j in whole..width {
                for p in first..last {
                    *dst.add(p * stride + j) = *src.wrapping_offset(p as isize * step + j as isize * across);
                }
            }
        }
    }
}

/// The transpose for any target.
///
/// # Safety
/// As for [`Transpose`].
pub(super) unsafe fn transpose_portable<T: Copy>(
    steps: usize,
    src: *const T,
    across: isize,
    dst: *mut T,
    stride: usize,
) {
    for j in 0..8 {
        for p in 0..steps {
            // SAFETY: p < steps and j < 8, see the contract.
            unsafe { *dst.add(p * stride + j) = *src.wrapping_offset(p as isize + j as isize * across) };
        }
    }
}

/// The transpose with 256-bit vectors.
///
/// # Safety
/// As for [`Transpose`]; needs AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
pub(super) unsafe fn transpose_avx(steps: usize, src: *const f32, across: isize, dst: *mut f32, stride: usize) {
    let whole = steps / 4 * 4;
    for p in (0..whole).step_by(4) {
        // SAFETY: steps p..p + 4 are below `steps`.
        let rows = unsafe { transpose_4x8(src.wrapping_add(p), across) };
        for (i, row) in rows.into_iter().enumerate() {
            // SAFETY: eight elements of step p + i.
            unsafe { std::arch::x86_64::_mm256_storeu_ps(dst.add((p + i) * stride), row) };
        }
    }
    // SAFETY: the remaining steps, under the same contract.
    unsafe { transpose_portable(steps - whole, src.wrapping_add(whole), across, dst.add(whole * stride), stride) };
}

/// Four steps of eight columns: lane j of the i-th vector is `src[i + j * across]`.
///
/// # Safety
/// Those elements must be valid; needs AVX.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
pub(super) unsafe fn transpose_4x8(src: *const f32, across: isize) -> [std::arch::x86_64::__m256; 4] {
    use std::arch::x86_64::*;
    // Columns j and j + 4 share a register, half each: the loads do what would be four shuffles.
    let pair = |j: isize| {
        let at = src.wrapping_offset(j * across);
        // SAFETY: four steps of columns j and j + 4.
        unsafe {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(at));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(at.wrapping_offset(4 * across)))
        }
    };
    let (c0, c1, c2, c3) = (pair(0), pair(1), pair(2), pair(3));
    let (t0, t1) = (_mm256_unpacklo_ps(c0, c1), _mm256_unpackhi_ps(c0, c1));
    let (t2, t3) = (_mm256_unpacklo_ps(c2, c3), _mm256_unpackhi_ps(c2, c3));
    [
        _mm256_shuffle_ps::<0x44>(t0, t2),
        _mm256_shuffle_ps::<0xEE>(t0, t2),
        _mm256_shuffle_ps::<0x44>(t1, t3),
        _mm256_shuffle_ps::<0xEE>(t1, t3),
    ]
}

/// Scratch memory for packed panels, kept by each thread and grown as needed.
pub(super) struct Scratch {
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its size and alignment are used")] [u8; LINE]);

const LINE: usize = 64;

impl Scratch {
    pub(super) const fn new() -> Scratch {
        Scratch { lines: Vec::new() }
    }

    /// At least `len` elements, aligned to a cache line; the contents are arbitrary.
    pub(super) fn get<T: Number>(&mut self, len: usize) -> *mut T {
        let lines = (len * size_of::<T>()).div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines = vec![Line([0; LINE]); lines];
        }
        self.lines.as_mut_ptr().cast()
    }
}
