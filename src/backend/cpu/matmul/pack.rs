//! Packing: copying one panel of an operand into the order in which the tile reads it.

/// Copies `steps x width` elements, `(p, j)` from `src[p * step + j * across]` to
/// `dst[p * stride + j]`, and fills columns `width..stride` with zero.
///
/// # Safety
/// Those elements of `src` must be valid for reading, `steps * stride` elements of `dst` for
/// writing, without overlap; `width <= stride`.
pub(super) unsafe fn pack(
    steps: usize,
    width: usize,
    src: *const f32,
    step: isize,
    across: isize,
    dst: *mut f32,
    stride: usize,
) {
    // SAFETY: every access is to a (p, j) with p < steps, and j < width in `src` or j < stride in
    // `dst`, for which the caller vouches.
    unsafe {
        if width < stride {
            for p in 0..steps {
                for j in width..stride {
                    *dst.add(p * stride + j) = 0.0;
                }
            }
        }
        if across == 1 {
            for p in 0..steps {
                std::ptr::copy_nonoverlapping(src.wrapping_offset(p as isize * step), dst.add(p * stride), width);
            }
            return;
        }
        let mut done = 0;
        if step == 1 {
            while width - done >= 4 {
                let from = src.wrapping_offset(done as isize * across);
                transpose_columns(steps, from, across, dst.add(done), stride);
                done += 4;
            }
        }
        for p in 0..steps {
            for j in done..width {
                *dst.add(p * stride + j) = *src.wrapping_offset(p as isize * step + j as isize * across);
            }
        }
    }
}

/// Four columns, each contiguous in `src`: `dst[p * stride + j] = src[p + j * across]`.
///
/// # Safety
/// As for [`pack`] with `width = 4` and `step = 1`.
unsafe fn transpose_columns(steps: usize, src: *const f32, across: isize, dst: *mut f32, stride: usize) {
    let mut p = 0;
    // SAFETY: loads are of src(p..p + 4, j) and stores of dst(p..p + 4, 0..4) with p + 4 <= steps;
    // SSE is part of the target's baseline.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::*;
        while p + 4 <= steps {
            let at = |j: isize| _mm_loadu_ps(src.wrapping_offset(p as isize + j * across));
            let (mut r0, mut r1, mut r2, mut r3) = (at(0), at(1), at(2), at(3));
            _MM_TRANSPOSE4_PS(&mut r0, &mut r1, &mut r2, &mut r3);
            for (i, r) in [r0, r1, r2, r3].into_iter().enumerate() {
                _mm_storeu_ps(dst.add((p + i) * stride), r);
            }
            p += 4;
        }
    }
    while p < steps {
        for j in 0..4 {
            // SAFETY: p < steps and j < 4, see the contract.
            unsafe { *dst.add(p * stride + j) = *src.wrapping_offset(p as isize + j as isize * across) };
        }
        p += 1;
    }
}

/// Scratch memory for packed panels, kept by each thread and grown as needed.
pub(super) struct Scratch {
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its size and alignment are used")] [f32; 16]);

impl Scratch {
    pub(super) const fn new() -> Scratch {
        Scratch { lines: Vec::new() }
    }

    /// At least `len` elements, aligned to a cache line; the contents are arbitrary.
    pub(super) fn get(&mut self, len: usize) -> *mut f32 {
        let lines = len.div_ceil(16);
        if self.lines.len() < lines {
            self.lines = vec![Line([0.0; 16]); lines];
        }
        self.lines.as_mut_ptr().cast()
    }
}
