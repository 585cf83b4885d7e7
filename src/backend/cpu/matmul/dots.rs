//! One row times a matrix whose columns are contiguous: many dot products with one vector.
//!
//! The chain of each product must run in k order, so the lanes are different columns, and the columns
//! are transposed on the way; in registers, because each element is used only once.

/// Columns handled together: enough chains to hide the latency of a multiply-add.
pub(super) const COLS: usize = 32;

/// One slice of [`COLS`] dot products: `out[j]` is the chain over `p < k` of
/// `a[p * a_col] * b[p + j * b_col]`, from +0.
///
/// # Safety
/// Those elements must be valid; the instruction set that it was compiled for must be available.
pub type Dots<T> = unsafe fn(k: usize, a: *const T, a_col: isize, b: *const T, b_col: isize, out: *mut T);

/// # Safety
/// As for [`Dots`]; needs AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn dots_avx2(k: usize, a: *const f32, a_col: isize, b: *const f32, b_col: isize, out: *mut f32) {
    use super::pack::transpose_4x8;
    use std::arch::x86_64::*;
    const GROUPS: usize = COLS / 8;
    let mut acc = [_mm256_setzero_ps(); GROUPS];
    let whole = k / 4 * 4;
    for p in (0..whole).step_by(4) {
        // SAFETY: steps p..p + 4 are below k.
        let av: [__m256; 4] =
            std::array::from_fn(|i| unsafe { _mm256_set1_ps(*a.wrapping_offset((p + i) as isize * a_col)) });
        for (g, sum) in acc.iter_mut().enumerate() {
            // SAFETY: those steps of eight of the columns.
            let rows = unsafe { transpose_4x8(b.wrapping_offset(p as isize + 8 * g as isize * b_col), b_col) };
            for (x, row) in av.into_iter().zip(rows) {
                *sum = _mm256_fmadd_ps(x, row, *sum);
            }
        }
    }
    for p in whole..k {
        // SAFETY: a step below k.
        let x = unsafe { _mm256_set1_ps(*a.wrapping_offset(p as isize * a_col)) };
        for (g, sum) in acc.iter_mut().enumerate() {
            // SAFETY: that step of eight of the columns.
            let row: [f32; 8] =
                std::array::from_fn(|j| unsafe { *b.wrapping_offset(p as isize + (8 * g + j) as isize * b_col) });
            // SAFETY: the array has eight elements.
            *sum = _mm256_fmadd_ps(x, unsafe { _mm256_loadu_ps(row.as_ptr()) }, *sum);
        }
    }
    for (g, sum) in acc.into_iter().enumerate() {
        // SAFETY: `out` has COLS elements.
        unsafe { _mm256_storeu_ps(out.add(8 * g), sum) };
    }
}
