//! Matrix products on the CPU.
//!
//! # The rule
//! Per element of C, each slice of 512 along k is one chain of fused multiply-adds in k order, started
//! from +0, and the results of the slices are added in order: `((s0 + s1) + s2) + …`. With k = 0
//! the element is +0. Payloads of NaNs excepted, that fixes every bit: whatever the operands'
//! layouts, the tiling, the number of threads and the instruction set.
//!
//! The kernels are our own, because a library's are free to cut k where a cache size suggests it.
//! The tile ([`kernel`]) holds a block of C in registers over a whole slice; this file decides which
//! operand runs along the vector, what is packed, and how the product is split over the pool. Products of 16-bit floats
//! are made in f32 and rounded once ([`half`]).
//!
//! Relies on the thread pool and, but for [`call`] (a plan's products), on nothing else in the crate. Allocates nothing in steady state
//! (scratch memory is kept per thread).

mod call;
mod dots;
mod half;
mod isa;
mod kernel;
mod pack;

pub(in crate::backend::cpu) use call::matmul;

use std::cell::RefCell;
use std::mem::MaybeUninit;

use super::threads::Pool;
use dots::Dots;
use isa::Number;
use kernel::{Kernels, MAX_TILE, Tile};
use pack::{Scratch, pack};

/// Length of a slice of k. Part of the numbers: changing it changes results.
pub const SLICE: usize = 512;

/// One batched matrix product `C[b] = A[b] * B[b]`: A is `m x k`, B is `k x n`, C is `m x n`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: Strides,
    pub b: Strides,
    pub c: Strides,
}

/// Strides of one operand, in elements. Of A and B any may be negative or zero (a broadcast); C's
/// elements must not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    pub batch: isize,
    pub row: isize,
    pub col: isize,
}

impl Strides {
    /// Contiguous row-major matrices of `rows x cols`, one after the other.
    pub const fn row_major(rows: usize, cols: usize) -> Strides {
        Strides { batch: (rows * cols) as isize, row: cols as isize, col: 1 }
    }

    /// Contiguous column-major matrices of `rows x cols`, one after the other.
    pub const fn col_major(rows: usize, cols: usize) -> Strides {
        Strides { batch: (rows * cols) as isize, row: 1, col: rows as isize }
    }

    fn transposed(self) -> Strides {
        Strides { row: self.col, col: self.row, ..self }
    }

    fn at(&self, batch: usize, row: usize, col: usize) -> isize {
        batch as isize * self.batch + row as isize * self.row + col as isize * self.col
    }
}

/// A type of element: `f32` or `f64`.
pub trait Element: Number {}

impl Element for f32 {}
impl Element for f64 {}

/// An instruction set to compute with. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    Avx512,
    Avx2,
    Portable,
}

impl Isa {
    /// The fastest that this machine has.
    pub fn detect() -> Isa {
        [Isa::Avx512, Isa::Avx2].into_iter().find(|isa| isa.available()).unwrap_or(Isa::Portable)
    }

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"),
            Isa::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Its kernels; the portable ones if the machine has not got it.
    fn kernels<T: Number>(self) -> &'static Kernels<T> {
        T::kernels(if self.available() { self } else { Isa::Portable })
    }
}

/// Estimated time of one thread below which a second does not pay.
const SPLIT_NS: usize = 2500;
/// Work that is worth handing out as a part.
const PART_NS: usize = 1200;
/// From this time on there are more parts than threads, so that a thread held up does not hold up all.
const BALANCE_NS: usize = 200_000;
/// Columns and rows of C per block: B's block (1 MB) and A's (200 KB) stay in L2 or near it.
const BLOCK_COLS: usize = 512;
const BLOCK_ROWS: usize = 96;
/// From this many rows of C on B is packed even if its rows are contiguous.
const PACK_B_ROWS: usize = 64;
/// From this many columns of C on A is packed.
const PACK_A_COLS: usize = 384;
/// Distance of A's packed rows: a slice, and a line to spread them over the sets of the L1 cache.
const PACKED_ROW: usize = SLICE + 16;
/// An operand below this many elements stays in the L1 cache as it is.
const SMALL: usize = 4096;
/// Multiples of this distance, in elements, fall into the same few sets of a cache.
const ALIASING: usize = 1024;
/// What an element of C (stored) and of B (streamed) costs, in multiply-adds.
const COST_C: usize = 8;
const COST_B: usize = 6;

thread_local! {
    static SCRATCH: RefCell<[Scratch; 2]> = const { RefCell::new([Scratch::new(), Scratch::new()]) };
}

/// Pointers that the parts of a product share.
#[derive(Clone, Copy)]
struct Operands<T> {
    a: *const T,
    b: *const T,
    c: *mut T,
}

// SAFETY: A and B are only read, and each part writes its own elements of C.
unsafe impl<T: Sync> Sync for Operands<T> {}

impl Matmul {
    /// A product of contiguous row-major matrices.
    pub const fn row_major(batch: usize, m: usize, k: usize, n: usize) -> Matmul {
        let (a, b, c) = (Strides::row_major(m, k), Strides::row_major(k, n), Strides::row_major(m, n));
        Matmul { batch, m, k, n, a, b, c }
    }

    /// Computes C, on the pool if that pays.
    ///
    /// # Safety
    /// `a`, `b` and `c` must point to element (0, 0) of batch 0 of memory that is valid for every
    /// element that the strides name, C's for writing (it may be uninitialised); C's elements must
    /// be distinct and overlap neither A's nor B's.
    pub unsafe fn run<T: Element>(&self, isa: Isa, pool: &Pool, a: *const T, b: *const T, c: *mut T) {
        let kernels = isa.kernels();
        let (product, on) = self.oriented(kernels.lanes, Operands { a, b, c });
        let grid = product.grid(kernels, pool.threads());
        if grid.parts() <= 1 {
            // SAFETY: the caller's promise, of which orienting keeps every element.
            unsafe { product.serial(kernels, on) };
            return;
        }
        let on = &on;
        pool.run(grid.parts(), &|index| {
            let (part, at) = grid.part(&product, index, *on);
            // SAFETY: a part names a subset of the product's elements; the parts' elements of C
            // are disjoint.
            unsafe { part.serial(kernels, at) };
        });
    }

    /// Computes C on this thread.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub unsafe fn run_serial<T: Element>(&self, isa: Isa, a: *const T, b: *const T, c: *mut T) {
        let kernels = isa.kernels();
        let (product, on) = self.oriented(kernels.lanes, Operands { a, b, c });
        // SAFETY: the caller's promise.
        unsafe { product.serial(kernels, on) };
    }

    /// The rule, written down: the oracle for every kernel. Element (0, 0) of batch 0 is the first
    /// element of each slice; so strides must not be negative here.
    pub fn reference<T: Element>(&self, a: &[T], b: &[T], c: &mut [T]) {
        for (batch, i, j) in elements(self.batch, self.m, self.n) {
            let chain = |slice: std::ops::Range<usize>| {
                slice.fold(T::ZERO, |sum, p| {
                    a[self.a.at(batch, i, p) as usize].mul_add(b[self.b.at(batch, p, j) as usize], sum)
                })
            };
            let mut sum = chain(0..self.k.min(SLICE));
            for from in (SLICE..self.k).step_by(SLICE) {
                sum = sum + chain(from..self.k.min(from + SLICE));
            }
            c[self.c.at(batch, i, j) as usize] = sum;
        }
    }

    /// The same product in the form that suits the kernels best: few batches, and C's contiguous
    /// dimension along the vector (if need be that of `C^T = B^T A^T`, which has the same bits, as
    /// multiplication commutes).
    fn oriented<T>(&self, lanes: usize, mut on: Operands<T>) -> (Matmul, Operands<T>) {
        let mut p = self.clone();
        let follows = |next: isize, count: usize, stride: isize| next == count as isize * stride;
        if p.batch > 1 && p.b.batch == 0 && follows(p.a.batch, p.m, p.a.row) && follows(p.c.batch, p.m, p.c.row) {
            (p.m, p.batch) = (p.m * p.batch, 1);
        } else if p.batch > 1 && p.a.batch == 0 && follows(p.b.batch, p.n, p.b.col) && follows(p.c.batch, p.n, p.c.col)
        {
            (p.n, p.batch) = (p.n * p.batch, 1);
        }
        // With very few columns most lanes would idle: worth a scattered C.
        let narrow = 4 * p.n <= lanes && p.m >= lanes && p.k >= lanes;
        let swap = p.m > 1 && (p.n == 1 || narrow || p.c.col != 1 && p.c.row == 1);
        if swap {
            (p.m, p.n) = (p.n, p.m);
            (p.a, p.b, p.c) = (p.b.transposed(), p.a.transposed(), p.c.transposed());
            (on.a, on.b) = (on.b, on.a);
        }
        // The stride of a dimension of one element is never used; 1 is the fast case.
        if p.n == 1 {
            (p.b.col, p.c.col) = (1, 1);
        }
        if p.m == 1 {
            p.a.row = 1;
        }
        (p, on)
    }

    /// # Safety
    /// As for [`Matmul::run`]; the kernels' instruction set must be available.
    unsafe fn serial<T: Number>(&self, kernels: &Kernels<T>, on: Operands<T>) {
        if self.batch == 0 || self.m == 0 || self.n == 0 {
            return;
        }
        let whole = self.n - self.n % dots::COLS;
        if let Some(dots) = kernels.dots
            && (self.m, self.b.row) == (1, 1)
            && self.b.col != 1
            && whole > 0
        {
            let rest = Matmul { n: self.n - whole, ..self.clone() };
            // SAFETY: the columns below `whole`, then those from it on, are the product's.
            unsafe {
                self.dot_products(dots, whole, on);
                rest.serial(kernels, self.offset(on, 0, 0, whole));
            }
            return;
        }
        let plan = Blocking::new(self, kernels);
        SCRATCH.with_borrow_mut(|[scratch_a, scratch_b]| {
            let columns = self.n.min(BLOCK_COLS).next_multiple_of(kernels.lanes);
            let depth = self.k.min(SLICE);
            let packed = Operands {
                a: if plan.pack_a { scratch_a.get(PACKED_ROW * self.m.min(BLOCK_ROWS)) } else { std::ptr::null_mut() },
                b: if plan.pack_b { scratch_b.get(depth * columns) } else { std::ptr::null_mut() },
                c: std::ptr::null_mut(),
            };
            for batch in 0..self.batch {
                let at = self.offset(on, batch, 0, 0);
                for j in (0..self.n).step_by(BLOCK_COLS) {
                    // SAFETY: the block's elements are the product's; the scratch is this thread's,
                    // is as long as a block needs, and is used by nothing else meanwhile.
                    unsafe { plan.columns(self, at, j..self.n.min(j + BLOCK_COLS), packed) };
                }
            }
        });
    }

    /// The first `cols` columns of a product with one row, where B's columns are contiguous.
    ///
    /// # Safety
    /// As for [`Matmul::run`]; `cols` is a multiple of [`dots::COLS`] up to `n`.
    unsafe fn dot_products<T: Number>(&self, kernel: Dots<T>, cols: usize, on: Operands<T>) {
        let mut sums = [T::ZERO; dots::COLS];
        for (batch, j) in (0..self.batch).flat_map(|x| (0..cols).step_by(dots::COLS).map(move |j| (x, j))) {
            let at = self.offset(on, batch, 0, j);
            for k0 in (0..self.k.max(1)).step_by(SLICE) {
                let a = at.a.wrapping_offset(k0 as isize * self.a.col);
                // SAFETY: one slice of columns of the product.
                unsafe {
                    kernel(SLICE.min(self.k - k0), a, self.a.col, at.b.wrapping_add(k0), self.b.col, sums.as_mut_ptr());
                    for (i, &sum) in sums.iter().enumerate() {
                        let c = at.c.wrapping_offset(i as isize * self.c.col);
                        *c = if k0 > 0 { *c + sum } else { sum };
                    }
                }
            }
        }
    }

    /// Pointers to the operands' first elements of the part of C that starts at row `i`, column `j`.
    fn offset<T>(&self, on: Operands<T>, batch: usize, i: usize, j: usize) -> Operands<T> {
        Operands {
            a: on.a.wrapping_offset(self.a.at(batch, i, 0)),
            b: on.b.wrapping_offset(self.b.at(batch, 0, j)),
            c: on.c.wrapping_offset(self.c.at(batch, i, j)),
        }
    }

    /// How to split over `threads` threads.
    fn grid<T>(&self, kernels: &Kernels<T>, threads: usize) -> Grid {
        let (m, n, k) = (self.m, self.n, self.k);
        let work = self.batch.saturating_mul((m * n).saturating_mul(k + COST_C) + n * k * COST_B);
        let ns = work / kernels.rate;
        let one = Grid { batches: 1, rows: 1, cols: 1, step: kernels.lanes };
        if threads <= 1 || ns < SPLIT_NS {
            return one;
        }
        let wanted = if ns < BALANCE_NS { threads.min(ns / PART_NS) } else { 2 * threads };
        if self.batch >= wanted {
            return Grid { batches: wanted, ..one };
        }
        let each = wanted.div_ceil(self.batch);
        // Each row part reads all of B, each column part all of A.
        let splits = (1..=each).map(|rows| (rows.min(m), (each / rows).min(n.div_ceil(kernels.lanes))));
        let best = splits.max_by_key(|&(rows, cols)| (rows * cols, std::cmp::Reverse(rows * n + cols * m)));
        let (rows, cols) = best.unwrap_or((1, 1));
        let panel = kernels.lanes << kernels.main;
        let step = if n.div_ceil(panel) >= cols { panel } else { kernels.lanes };
        Grid { batches: self.batch, rows, cols, step }
    }
}

/// The indices of a batch of matrices, row by row.
fn elements(batch: usize, rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..batch).flat_map(move |x| (0..rows).flat_map(move |i| (0..cols).map(move |j| (x, i, j))))
}

/// A product cut into parts, for the pool.
#[derive(Clone, Copy, Debug)]
struct Grid {
    batches: usize,
    rows: usize,
    cols: usize,
    /// Column cuts are at multiples of this.
    step: usize,
}

impl Grid {
    fn parts(&self) -> usize {
        self.batches * self.rows * self.cols
    }

    fn part<T>(&self, of: &Matmul, index: usize, on: Operands<T>) -> (Matmul, Operands<T>) {
        let cut = |len: usize, parts: usize, i: usize| (len * i / parts, len * (i + 1) / parts);
        let (b0, b1) = cut(of.batch, self.batches, index / (self.rows * self.cols));
        let (i0, i1) = cut(of.m, self.rows, index / self.cols % self.rows);
        let (j0, j1) = cut(of.n.div_ceil(self.step), self.cols, index % self.cols);
        let (j0, j1) = ((j0 * self.step).min(of.n), (j1 * self.step).min(of.n));
        let part = Matmul { batch: b1 - b0, m: i1 - i0, n: j1 - j0, ..of.clone() };
        (part, of.offset(on, b0, i0, j0))
    }
}

/// How one thread walks over a product.
struct Blocking<'a, T: 'static> {
    kernels: &'a Kernels<T>,
    /// Panels are `1 << log_vecs` vectors wide, the last ones narrower.
    log_vecs: usize,
    /// Tallest tile.
    rows: usize,
    pack_a: bool,
    pack_b: bool,
}

/// A few columns of C, as wide as a tile.
#[derive(Clone, Copy)]
struct Panel {
    log_vecs: usize,
    cols: usize,
    /// `cols` rounded up to whole vectors.
    width: usize,
}

impl<'a, T: Number> Blocking<'a, T> {
    fn new(p: &Matmul, kernels: &'a Kernels<T>) -> Blocking<'a, T> {
        // Few rows: wide tiles keep as many chains in flight as a tall one would.
        let widest = (kernels.main..4).rev().find(|&log| kernels.rows(log) >= p.m).unwrap_or(kernels.main);
        // But a panel that must be packed first should still fit the L1 cache.
        let widest = if p.b.col == 1 { widest } else { widest.min(kernels.main) };
        let needed = p.n.div_ceil(kernels.lanes).next_power_of_two().ilog2() as usize;
        let log_vecs = widest.min(needed);
        let rows = kernels.rows(log_vecs);
        let (tiles, panels) = (p.m.div_ceil(rows), p.n.div_ceil(kernels.lanes << log_vecs));
        let aliases = |stride: isize| stride != 0 && stride.unsigned_abs().is_multiple_of(ALIASING);
        let (large_a, large_b) = (p.m * p.k > SMALL, p.k * p.n > SMALL);
        let far_a = if p.a.row == 1 { p.a.col } else { p.a.row };
        Blocking {
            kernels,
            log_vecs,
            rows,
            pack_a: large_a && (p.n >= PACK_A_COLS || panels > 1 && aliases(far_a)),
            pack_b: p.b.col != 1 || large_b && (p.m >= PACK_B_ROWS || tiles > 1 && aliases(p.b.row)),
        }
    }

    fn panels(&self, cols: usize) -> impl Iterator<Item = (usize, Panel)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = cols.checked_sub(done).filter(|&left| left > 0)?;
            let lanes = self.kernels.lanes;
            let log_vecs = self.log_vecs.min(left.div_ceil(lanes).ilog2() as usize);
            let width = lanes << log_vecs;
            let panel = Panel { log_vecs, cols: left.min(width), width };
            done += width;
            Some((done - width, panel))
        })
    }

    /// Cuts `rows` rows into tiles of nearly equal heights.
    fn tiles(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let count = rows.div_ceil(self.rows);
        let (height, extra) = (rows / count, rows % count);
        (0..count).map(move |t| (t * height + t.min(extra), height + usize::from(t < extra)))
    }

    /// Computes the given columns of one batch of C.
    ///
    /// # Safety
    /// As for [`Matmul::run`]; `packed` must be valid for a block's panels where packing is chosen.
    unsafe fn columns(&self, p: &Matmul, on: Operands<T>, columns: std::ops::Range<usize>, packed: Operands<T>) {
        let (packed_a, packed_b) = (packed.a.cast_mut(), packed.b.cast_mut());
        let transpose = self.kernels.transpose;
        // One pass even if k = 0: its tiles are chains of no steps, and store +0.
        for k0 in (0..p.k.max(1)).step_by(SLICE) {
            let depth = SLICE.min(p.k - k0);
            let a0 = on.a.wrapping_offset(k0 as isize * p.a.col);
            let b0 = on.b.wrapping_offset(k0 as isize * p.b.row + columns.start as isize * p.b.col);
            let pack_panel = |j: usize, panel: Panel, to: usize| {
                let from = b0.wrapping_offset(j as isize * p.b.col);
                // SAFETY: the panel's elements are B's, and its place is inside the scratch.
                unsafe {
                    pack(transpose, (depth, panel.cols), from, (p.b.row, p.b.col), packed_b.add(to), panel.width)
                };
            };
            // A panel that only one block of rows will read is packed just before, in one place,
            // so that it is read from the nearest cache.
            let just_in_time = p.m <= BLOCK_ROWS;
            if self.pack_b && !just_in_time {
                self.panels(columns.len()).for_each(|(j, panel)| pack_panel(j, panel, j * depth));
            }
            for i0 in (0..p.m).step_by(BLOCK_ROWS) {
                let height = BLOCK_ROWS.min(p.m - i0);
                let a0 = a0.wrapping_offset(i0 as isize * p.a.row);
                if self.pack_a {
                    for (i, rows) in self.tiles(height) {
                        let from = a0.wrapping_offset(i as isize * p.a.row);
                        let to = packed_a.wrapping_add(i * PACKED_ROW);
                        // SAFETY: the tile's elements are A's, and its place is inside the scratch.
                        unsafe {
                            match p.a.col {
                                1 => pack(transpose, (rows, depth), from, (p.a.row, 1), to, PACKED_ROW),
                                col => pack(transpose, (depth, rows), from, (col, p.a.row), to, rows),
                            }
                        };
                    }
                }
                for (j, panel) in self.panels(columns.len()) {
                    let (b, b_row) = if self.pack_b {
                        let at = if just_in_time { 0 } else { j * depth };
                        if just_in_time {
                            pack_panel(j, panel, at);
                        }
                        (packed.b.wrapping_add(at), panel.width as isize)
                    } else {
                        (b0.wrapping_offset(j as isize * p.b.col), p.b.row)
                    };
                    for (i, rows) in self.tiles(height) {
                        let (a, a_row, a_col) = match self.pack_a {
                            true if p.a.col == 1 => (packed.a.wrapping_add(i * PACKED_ROW), PACKED_ROW as isize, 1),
                            true => (packed.a.wrapping_add(i * PACKED_ROW), 1, rows as isize),
                            false => (a0.wrapping_offset(i as isize * p.a.row), p.a.row, p.a.col),
                        };
                        let c = on.c.wrapping_offset(p.c.at(0, i0 + i, columns.start + j));
                        let tail = panel.cols - (panel.width - self.kernels.lanes);
                        let tile = Tile { k: depth, a, a_row, a_col, b, b_row, c, c_row: p.c.row, tail, add: k0 > 0 };
                        // SAFETY: the tile's elements are the product's or the packed copies.
                        unsafe { self.tile(tile, rows, panel, p.c.col) };
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for a kernel, with C's columns `c_col` apart.
    #[inline]
    unsafe fn tile(&self, mut tile: Tile<T>, rows: usize, panel: Panel, c_col: isize) {
        let kernel = self.kernels.tables[usize::from(tile.a_row == 1)][panel.log_vecs][rows - 1];
        if c_col == 1 {
            // SAFETY: the caller's promise.
            unsafe { kernel(&tile) };
            return;
        }
        // C is contiguous along neither dimension: compute aside, then scatter.
        let mut aside = [const { MaybeUninit::<T>::uninit() }; MAX_TILE];
        let (c, add) = (tile.c, tile.add);
        let c_row = std::mem::replace(&mut tile.c_row, panel.width as isize);
        (tile.c, tile.add) = (aside.as_mut_ptr().cast(), false);
        // SAFETY: a tile has at most MAX_TILE elements, and the kernel stores all those read below.
        unsafe {
            kernel(&tile);
            for (i, j) in (0..rows).flat_map(|i| (0..panel.cols).map(move |j| (i, j))) {
                let value = aside[i * panel.width + j].assume_init();
                let to = c.wrapping_offset(i as isize * c_row + j as isize * c_col);
                *to = if add { *to + value } else { value };
            }
        }
    }
}

#[cfg(test)]
mod tests;
