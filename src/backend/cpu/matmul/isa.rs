//! The tile compiled for each instruction set. All give the same bits: lanes are independent, and
//! a fused multiply-add is one correctly rounded operation everywhere.

use super::kernel::{Kernel, Kernels, Simd, Tile, tables, tile};

/// Plain arrays, for any target. Without a hardware fused multiply-add in the target's baseline
/// `mul_add` is a library call: right, but slow.
struct Portable;

impl Simd for Portable {
    type Elem = f32;
    type Vec = [f32; 8];
    type Mask = usize;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn mask(count: usize) -> usize {
        count
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Vec {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self::Vec {
        // SAFETY: the caller vouches for one element.
        [unsafe { *from }; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Vec {
        // SAFETY: the caller vouches for eight elements.
        unsafe { from.cast::<Self::Vec>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_masked(from: *const f32, mask: usize) -> Self::Vec {
        let mut v = [0.0; 8];
        for (i, lane) in v.iter_mut().enumerate().take(mask) {
            // SAFETY: the caller vouches for `mask` elements.
            *lane = unsafe { *from.add(i) };
        }
        v
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::Vec) {
        // SAFETY: the caller vouches for eight elements.
        unsafe { to.cast::<Self::Vec>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::Vec, count: usize) {
        for (i, lane) in v.into_iter().enumerate().take(count) {
            // SAFETY: the caller vouches for `count` elements.
            unsafe { *to.add(i) = lane };
        }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::Vec, b: Self::Vec, c: Self::Vec) -> Self::Vec {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn add(a: Self::Vec, b: Self::Vec) -> Self::Vec {
        std::array::from_fn(|i| a[i] + b[i])
    }
}

/// # Safety
/// As for [`Kernel`].
unsafe fn portable<const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<f32>) {
    // SAFETY: the caller's promise is `tile`'s; no instruction set is needed.
    unsafe { tile::<Portable, ROWS, VECS, UNIT>(t) }
}

const NONE: &[Kernel<f32>] = &[];

pub(super) static PORTABLE: Kernels<f32> = Kernels {
    lanes: 8,
    tables: [
        [
            &[portable::<1, 1, false>, portable::<2, 1, false>, portable::<3, 1, false>, portable::<4, 1, false>],
            NONE,
            NONE,
            NONE,
        ],
        [
            &[portable::<1, 1, true>, portable::<2, 1, true>, portable::<3, 1, true>, portable::<4, 1, true>],
            NONE,
            NONE,
            NONE,
        ],
    ],
    main: 0,
    rate: 1,
};

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{AVX2, AVX512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    struct Avx512;

    // SAFETY (all methods): the trait's contract gives the instruction set (AVX-512F) and valid
    // memory for the lanes touched; masked-off lanes are not accessed.
    impl Simd for Avx512 {
        type Elem = f32;
        type Vec = __m512;
        type Mask = __mmask16;
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn mask(count: usize) -> __mmask16 {
            (u32::MAX >> (32 - count as u32)) as __mmask16
        }

        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn splat(from: *const f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(*from) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __mmask16) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_maskz_loadu_ps(mask, from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: __m512) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, v) }
        }

        #[inline(always)]
        unsafe fn store_first(to: *mut f32, v: __m512, count: usize) {
            // SAFETY: see above.
            unsafe { _mm512_mask_storeu_ps(to, Self::mask(count), v) }
        }

        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }
    }

    struct Avx2;

    /// A window of eight entries starting at `8 - count` selects the first `count` lanes.
    static LANE_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    // SAFETY (all methods): the trait's contract gives the instruction set (AVX2 and FMA) and
    // valid memory for the lanes touched; masked-off lanes are not accessed.
    impl Simd for Avx2 {
        type Elem = f32;
        type Vec = __m256;
        type Mask = __m256i;
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn mask(count: usize) -> __m256i {
            // SAFETY: `count` is 1..=8, so the window is inside the table.
            unsafe { _mm256_loadu_si256(LANE_MASKS.as_ptr().add(8 - count).cast()) }
        }

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn splat(from: *const f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_broadcast_ss(&*from) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __m256i) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_maskload_ps(from, mask) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: __m256) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to, v) }
        }

        #[inline(always)]
        unsafe fn store_first(to: *mut f32, v: __m256, count: usize) {
            // A masked store is microcoded on some processors, so copy from the stack.
            let mut lanes = [0.0f32; 8];
            // SAFETY: `lanes` has eight elements, `to` has `count` by the contract.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), v);
                for (i, lane) in lanes.into_iter().enumerate().take(count) {
                    *to.add(i) = lane;
                }
            }
        }

        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_add_ps(a, b) }
        }
    }

    /// # Safety
    /// As for [`Kernel`]; needs AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<f32>) {
        // SAFETY: the caller's promise is `tile`'s, and the instruction set is enabled here.
        unsafe { tile::<Avx512, ROWS, VECS, UNIT>(t) }
    }

    /// # Safety
    /// As for [`Kernel`]; needs AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<f32>) {
        // SAFETY: the caller's promise is `tile`'s, and the instruction set is enabled here.
        unsafe { tile::<Avx2, ROWS, VECS, UNIT>(t) }
    }

    // Accumulators, operands and one broadcast must fit the registers: 32 with AVX-512, 16 with AVX2.
    pub(in super::super) static AVX512: Kernels<f32> = Kernels {
        lanes: 16,
        tables: tables!(avx512:
            1 => [1 2 3 4 5 6 7 8 9 10 11 12],
            2 => [1 2 3 4 5 6 7 8 9 10 11 12],
            4 => [1 2 3 4 5 6],
            8 => [1 2 3]),
        main: 1,
        rate: 50,
    };

    pub(in super::super) static AVX2: Kernels<f32> = Kernels {
        lanes: 8,
        tables: tables!(avx2:
            1 => [1 2 3 4 5 6 7 8 9 10 11 12],
            2 => [1 2 3 4 5 6],
            4 => [1 2 3],
            8 => [1]),
        main: 1,
        rate: 25,
    };
}
