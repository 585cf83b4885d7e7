//! The register tile: the one loop that all matrix products run in.
//!
//! A tile is `ROWS x (VECS * LANES)` elements of C, kept in registers over all of one slice of k.
//! Each element is one lane of one accumulator, started from +0 and advanced by one fused
//! multiply-add per step of k: that is the whole of the rule inside a slice, so tile sizes and
//! instruction sets cannot change a bit. Written once, over [`Simd`]; compiled per instruction set.

use super::dots::Dots;
use super::pack::Transpose;

/// The vector operations of one instruction set on one element type.
///
/// # Safety
/// Every method may be called only where the instruction set is available, on pointers valid for
/// the lanes that it touches.
pub(super) trait Simd {
    type Elem: Copy;
    type Vec: Copy;
    type Mask: Copy;
    const LANES: usize;

    /// Selects the first `count` lanes, `1..=LANES`.
    unsafe fn mask(count: usize) -> Self::Mask;
    unsafe fn zero() -> Self::Vec;
    unsafe fn splat(from: *const Self::Elem) -> Self::Vec;
    unsafe fn load(from: *const Self::Elem) -> Self::Vec;
    /// The selected lanes; the others are zero and their memory is not read.
    unsafe fn load_masked(from: *const Self::Elem, mask: Self::Mask) -> Self::Vec;
    unsafe fn store(to: *mut Self::Elem, v: Self::Vec);
    /// Writes the first `count` lanes only.
    unsafe fn store_first(to: *mut Self::Elem, v: Self::Vec, count: usize);
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Vec, b: Self::Vec, c: Self::Vec) -> Self::Vec;
    unsafe fn add(a: Self::Vec, b: Self::Vec) -> Self::Vec;
    /// Hints that the line at `at` will be written; any address will do.
    unsafe fn prefetch(at: *const Self::Elem);
}

/// Operands of one tile. `a(i, p)` is `a[i * a_row + p * a_col]`, `b(p, j)` is `b[p * b_row + j]`,
/// `c(i, j)` is `c[i * c_row + j]`.
pub struct Tile<T> {
    pub k: usize,
    pub a: *const T,
    pub a_row: isize,
    pub a_col: isize,
    pub b: *const T,
    pub b_row: isize,
    pub c: *mut T,
    pub c_row: isize,
    /// Columns in the last vector, `1..=LANES`.
    pub tail: usize,
    /// Add the slice to C (a later slice) instead of storing it (the first).
    pub add: bool,
}

/// Computes one tile.
///
/// # Safety
/// The operands' elements named by [`Tile`] for its rows and columns must be valid, C's for
/// writing; C must not overlap A or B; the instruction set must be available.
pub type Kernel<T> = unsafe fn(&Tile<T>);

/// Tallest tile there is, and most elements in one.
pub(super) const MAX_ROWS: usize = 12;
pub(super) const MAX_TILE: usize = 512;
/// From this many steps on, C's lines are asked for before the loop, to be there after it.
const FAR: usize = 64;

/// The kernels of one instruction set. `tables[UNIT][log2 VECS][ROWS - 1]`, where UNIT is 1 if
/// `a_row` is known to be 1.
pub struct Kernels<T: 'static> {
    pub lanes: usize,
    pub tables: [[&'static [Kernel<T>]; 4]; 2],
    /// log2 VECS of the tile for many rows.
    pub main: usize,
    pub transpose: Transpose<T>,
    /// For one row; without it that is a tile like any other.
    pub dots: Option<Dots<T>>,
    /// Multiply-adds per nanosecond, roughly: decides when splitting pays.
    pub rate: usize,
}

impl<T> Kernels<T> {
    /// Tallest tile of `1 << log_vecs` vectors; 0 if there is none.
    pub fn rows(&self, log_vecs: usize) -> usize {
        self.tables[0][log_vecs].len()
    }
}

/// The body of a tile, to be inlined where the instruction set is enabled.
///
/// # Safety
/// As for [`Kernel`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices name registers; iterators would hide that")]
pub(super) unsafe fn tile<S: Simd, const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<S::Elem>) {
    // SAFETY: the caller vouches for every element of the tile; all accesses below are to
    // a(i, p), b(p, j), c(i, j) with i < ROWS, p < k and j below the columns that `tail` leaves.
    // Pointers that run past the last step of k are computed with wrapping arithmetic only.
    unsafe {
        let mask = S::mask(t.tail);
        if t.k >= FAR {
            for i in 0..ROWS {
                for j in 0..VECS {
                    S::prefetch(t.c.wrapping_offset(i as isize * t.c_row).wrapping_add(j * S::LANES));
                }
            }
        }
        let mut acc = [[S::zero(); VECS]; ROWS];
        // Rows in groups of four: x86 addresses base + {0, 1, 2} * row, and 3 * row is kept. More
        // pointers than that would spill.
        let row = if UNIT { 1 } else { t.a_row };
        let mut groups = [t.a; MAX_ROWS.div_ceil(4)];
        for (g, group) in groups.iter_mut().enumerate() {
            *group = t.a.wrapping_offset(4 * g as isize * row);
        }
        let mut b = t.b;
        for _ in 0..t.k {
            let mut bv = [S::zero(); VECS];
            for j in 0..VECS {
                let from = b.wrapping_add(j * S::LANES);
                bv[j] = if j + 1 == VECS { S::load_masked(from, mask) } else { S::load(from) };
            }
            for i in 0..ROWS {
                let base = if UNIT { groups[0] } else { groups[i / 4] };
                let step = if UNIT { i as isize } else { (i % 4) as isize * row };
                let av = S::splat(base.wrapping_offset(step));
                for j in 0..VECS {
                    acc[i][j] = S::fma(av, bv[j], acc[i][j]);
                }
            }
            for group in &mut groups {
                *group = group.wrapping_offset(t.a_col);
            }
            b = b.wrapping_offset(t.b_row);
        }
        for i in 0..ROWS {
            let c = t.c.wrapping_offset(i as isize * t.c_row);
            for j in 0..VECS {
                let to = c.wrapping_add(j * S::LANES);
                let mut v = acc[i][j];
                if j + 1 < VECS || t.tail == S::LANES {
                    if t.add {
                        v = S::add(S::load(to), v);
                    }
                    S::store(to, v);
                } else {
                    if t.add {
                        v = S::add(S::load_masked(to, mask), v);
                    }
                    S::store_first(to, v, t.tail);
                }
            }
        }
    }
}

/// Builds the tables of one instruction set: `$name` is its generic kernel, `$over` the first
/// parameter of that.
macro_rules! tables {
    ($name:ident, $over:ty: $($vecs:literal => [$($rows:literal)*]),+) => {
        [
            [$(&[$($name::<$over, $rows, $vecs, false>),*]),+],
            [$(&[$($name::<$over, $rows, $vecs, true>),*]),+],
        ]
    };
}
pub(super) use tables;
