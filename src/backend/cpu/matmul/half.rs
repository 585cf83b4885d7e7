//! Products of 16-bit floats: both operands widened to f32, multiplied there, the product rounded once.
//!
//! The copies keep the operand's contiguous dimension, so that both sides of a copy are streams; one that repeats over the
//! batch is copied once. Scratch memory is kept per thread.

use std::cell::RefCell;

use super::{Isa, Matmul, Strides};
use crate::backend::cpu::threads::Pool;
use crate::base::dtype::{bf16, f16};
use half::slice::HalfFloatSliceExt;

/// A 16-bit float.
pub(super) trait Half: Copy + Sync {
    fn widen(self) -> f32;
    fn round(v: f32) -> Self;
    /// [`Half::widen`] of contiguous elements.
    fn widen_all(from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(t, f)| *t = f.widen());
    }
    /// [`Half::round`] of contiguous elements.
    fn round_all(from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(t, f)| *t = Self::round(*f));
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    /// To nearest even without branches, so that it vectorises; NaN stays NaN.
    #[inline(always)]
    fn round(v: f32) -> bf16 {
        let bits = v.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        bf16::from_bits((if v.is_nan() { bits | 0x0040_0000 } else { rounded } >> 16) as u16)
    }
}

impl Half for f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn round(v: f32) -> f16 {
        f16::from_f32(v)
    }
    // By the instructions for it, where there are.
    fn widen_all(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn round_all(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

thread_local! {
    /// Operands in f32, and the product before it is rounded.
    static WIDE: RefCell<[Vec<f32>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
}

/// From this many elements on a copy is split over the pool.
const SPLIT: usize = 1 << 16;

/// A batch of matrices as lines along its contiguous dimension.
#[derive(Clone, Copy)]
struct Lines {
    /// Distinct matrices, lines of each, and elements of a line.
    batch: usize,
    lines: usize,
    len: usize,
    /// In the 16-bit operand: from matrix to matrix, line to line, element to element.
    strides: [isize; 3],
    by_columns: bool,
}

impl Lines {
    fn new(batch: usize, rows: usize, cols: usize, s: Strides) -> Lines {
        let by_columns = s.row.unsigned_abs() < s.col.unsigned_abs() && rows > 1 || cols == 1;
        let batch = if s.batch == 0 { batch.min(1) } else { batch };
        if by_columns {
            Lines { batch, lines: cols, len: rows, strides: [s.batch, s.col, s.row], by_columns }
        } else {
            Lines { batch, lines: rows, len: cols, strides: [s.batch, s.row, s.col], by_columns }
        }
    }

    fn count(&self) -> usize {
        self.batch * self.lines * self.len
    }

    /// Strides of the f32 copy.
    fn wide(&self) -> Strides {
        let batch = if self.strides[0] == 0 { 0 } else { (self.lines * self.len) as isize };
        let (line, one) = (self.len as isize, 1);
        if self.by_columns { Strides { batch, row: one, col: line } } else { Strides { batch, row: line, col: one } }
    }

    /// Calls `each` with the number and the 16-bit place of every line, split over the pool if that pays.
    fn for_each(&self, pool: &Pool, each: &(dyn Fn(usize, isize) + Sync)) {
        if self.count() == 0 {
            return;
        }
        let total = self.batch * self.lines;
        let parts = if self.count() < SPLIT { 1 } else { pool.threads().min(total) };
        pool.run(parts, &|part| {
            for line in total * part / parts..total * (part + 1) / parts {
                let (matrix, line_of) = (line / self.lines, line % self.lines);
                each(line, matrix as isize * self.strides[0] + line_of as isize * self.strides[1]);
            }
        });
    }
}

/// A pointer that parts share.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: parts touch different lines.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(&self, i: isize) -> *mut T {
        self.0.wrapping_offset(i)
    }
}

/// The copy of an operand in `into`.
///
/// # Safety
/// `from` is valid for reading the elements of `lines`.
unsafe fn widen<T: Half>(lines: Lines, from: *const T, into: &mut Vec<f32>, pool: &Pool) {
    into.clear();
    into.resize(lines.count(), 0.0);
    let (from, to) = (Shared(from.cast_mut()), Shared(into.as_mut_ptr()));
    let (from, to) = (&from, &to);
    lines.for_each(pool, &|line, at| {
        let src = from.at(at).cast_const();
        // SAFETY: each line is the caller's in the operand, and one of its own in the copy.
        unsafe {
            let dst = std::slice::from_raw_parts_mut(to.at((line * lines.len) as isize), lines.len);
            if lines.strides[2] == 1 {
                T::widen_all(std::slice::from_raw_parts(src, lines.len), dst);
            } else {
                let element = |i: usize| (*src.wrapping_offset(i as isize * lines.strides[2])).widen();
                dst.iter_mut().enumerate().for_each(|(i, d)| *d = element(i));
            }
        }
    });
}

/// Rounds the product into the result.
///
/// # Safety
/// `to` is valid for writing the elements of `lines`, which are distinct.
unsafe fn round<T: Half>(lines: Lines, from: &[f32], to: *mut T, pool: &Pool) {
    let to = Shared(to);
    let to = &to;
    lines.for_each(pool, &|line, at| {
        let src = &from[line * lines.len..(line + 1) * lines.len];
        let dst = to.at(at);
        // SAFETY: each line is one of the caller's, written by one part.
        unsafe {
            if lines.strides[2] == 1 {
                T::round_all(src, std::slice::from_raw_parts_mut(dst, lines.len));
            } else {
                let stride = lines.strides[2];
                src.iter().enumerate().for_each(|(i, &v)| *dst.wrapping_offset(i as isize * stride) = T::round(v));
            }
        }
    });
}

impl Matmul {
    /// Computes C from 16-bit operands, on the pool if that pays.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub(super) unsafe fn run_halves<T: Half>(&self, isa: Isa, pool: &Pool, a: *const T, b: *const T, c: *mut T) {
        WIDE.with_borrow_mut(|[wide_a, wide_b, wide_c]| {
            let lines_a = Lines::new(self.batch, self.m, self.k, self.a);
            let lines_b = Lines::new(self.batch, self.k, self.n, self.b);
            let lines_c = Lines::new(self.batch, self.m, self.n, self.c);
            let wide = Matmul { a: lines_a.wide(), b: lines_b.wide(), c: lines_c.wide(), ..self.clone() };
            // SAFETY: the caller's promise; the copies hold what their strides name.
            unsafe {
                widen(lines_a, a, wide_a, pool);
                widen(lines_b, b, wide_b, pool);
                wide_c.clear();
                wide_c.resize(lines_c.count(), 0.0);
                wide.run(isa, pool, wide_a.as_ptr(), wide_b.as_ptr(), wide_c.as_mut_ptr());
                round(lines_c, wide_c, c, pool);
            }
        });
    }
}
