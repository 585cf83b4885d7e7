//! The tile compiled for each instruction set. All give the same bits: lanes are independent, and
//! a fused multiply-add is one correctly rounded operation everywhere.

use std::marker::PhantomData;

use super::Isa;
use super::kernel::{Kernels, Simd, Tile, tables, tile};
use super::pack::transpose_portable;

/// `a * b + c`, rounded once, for code compiled for the target's baseline. On x86-64 that has no
/// fused multiply-add and `mul_add` would be a call of a library, so it is made of double arithmetic:
/// the product is exact there, and so is the sum after it is rounded to odd (to the neighbour whose
/// last bit is set, unless it is exact), which the second rounding, to `f32`, cannot tell from the
/// exact sum. No branches, so it vectorises.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(not(target_arch = "x86_64"), target_feature = "fma")) {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // The exact error of the sum (Knuth); NaN if the sum is infinite or NaN.
    let virtual_c = sum - product;
    let error = (product - (sum - virtual_c)) + (c - virtual_c);
    let bits = sum.to_bits();
    // One step towards the error, away from zero or towards it.
    let away = 1i64 - 2 * ((bits ^ error.to_bits()) >> 63) as i64;
    let inexact = i64::from(error < 0.0) | i64::from(error > 0.0);
    let step = away * (inexact & !(bits as i64) & 1);
    f64::from_bits(bits.wrapping_add(step as u64)) as f32
}

/// What a type of element brings along; `Element` to the outside.
pub trait Number: Copy + std::ops::Add<Output = Self> + Send + Sync + 'static {
    const ZERO: Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The same by the standard library, for the oracle.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// The kernels of an instruction set that this machine has.
    fn kernels(isa: Isa) -> &'static Kernels<Self>;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn fma(self, b: f32, c: f32) -> f32 {
        fma(self, b, c)
    }

    fn mul_add(self, b: f32, c: f32) -> f32 {
        f32::mul_add(self, b, c)
    }

    fn kernels(isa: Isa) -> &'static Kernels<f32> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &x86::AVX512_F32,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2_F32,
            _ => &PORTABLE_F32,
        }
    }
}

impl Number for f64 {
    const ZERO: f64 = 0.0;

    #[inline(always)]
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }

    fn mul_add(self, b: f64, c: f64) -> f64 {
        f64::mul_add(self, b, c)
    }

    fn kernels(isa: Isa) -> &'static Kernels<f64> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &x86::AVX512_F64,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2_F64,
            _ => &PORTABLE_F64,
        }
    }
}

/// Plain arrays, for any target.
struct Portable<T>(PhantomData<T>);

/// Lanes of a portable vector.
const LANES: usize = 8;

impl<T: Number> Simd for Portable<T> {
    type Elem = T;
    type Vec = [T; LANES];
    type Mask = usize;
    const LANES: usize = LANES;

    #[inline(always)]
    unsafe fn mask(count: usize) -> usize {
        count
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Vec {
        [T::ZERO; LANES]
    }

    #[inline(always)]
    unsafe fn splat(from: *const T) -> Self::Vec {
        // SAFETY: the caller vouches for one element.
        [unsafe { *from }; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self::Vec {
        // SAFETY: the caller vouches for all lanes.
        unsafe { from.cast::<Self::Vec>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_masked(from: *const T, mask: usize) -> Self::Vec {
        let mut v = [T::ZERO; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(mask) {
            // SAFETY: the caller vouches for the first `mask` lanes.
            *lane = unsafe { *from.add(i) };
        }
        v
    }

    #[inline(always)]
    unsafe fn store(to: *mut T, v: Self::Vec) {
        // SAFETY: the caller vouches for all lanes.
        unsafe { to.cast::<Self::Vec>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_first(to: *mut T, v: Self::Vec, count: usize) {
        for (i, lane) in v.into_iter().enumerate().take(count) {
            // SAFETY: the caller vouches for the first `count` lanes.
            unsafe { *to.add(i) = lane };
        }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::Vec, b: Self::Vec, c: Self::Vec) -> Self::Vec {
        std::array::from_fn(|i| a[i].fma(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn add(a: Self::Vec, b: Self::Vec) -> Self::Vec {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const T) {}
}

/// # Safety
/// As for `Kernel`.
unsafe fn portable<T: Number, const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<T>) {
    // SAFETY: the caller's promise is `tile`'s; no instruction set is needed.
    unsafe { tile::<Portable<T>, ROWS, VECS, UNIT>(t) }
}

static PORTABLE_F32: Kernels<f32> = Kernels {
    lanes: LANES,
    tables: tables!(portable, f32: 1 => [1 2 3 4], 2 => [], 4 => [], 8 => []),
    main: 0,
    transpose: transpose_portable,
    dots: None,
    rate: 1,
};

static PORTABLE_F64: Kernels<f64> = Kernels {
    lanes: LANES,
    tables: tables!(portable, f64: 1 => [1 2 3 4], 2 => [], 4 => [], 8 => []),
    main: 0,
    transpose: transpose_portable,
    dots: None,
    rate: 1,
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::dots::dots_avx2;
    use super::super::pack::transpose_avx;
    use super::*;
    use std::arch::x86_64::*;

    /// An instruction set's vectors, from the names of its intrinsics.
    macro_rules! simd {
        (
            $(#[$doc:meta])* $name:ident: [$elem:ty; $lanes:literal] in $vec:ty, masks $mask:ty,
            $zero:ident $splat:ident $load:ident $load_masked:ident $store:ident $fma:ident $add:ident,
            mask: $make_mask:expr, store_first: $store_first:expr
        ) => {
            $(#[$doc])*
            struct $name;

            // SAFETY of all blocks below: the trait's contract gives the instruction set, and valid
            // memory for the lanes touched; lanes masked off are not accessed.
            impl Simd for $name {
                type Elem = $elem;
                type Vec = $vec;
                type Mask = $mask;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn mask(count: usize) -> $mask {
                    $make_mask(count)
                }

                #[inline(always)]
                unsafe fn zero() -> $vec {
                    // SAFETY: see above.
                    unsafe { $zero() }
                }

                #[inline(always)]
                unsafe fn splat(from: *const $elem) -> $vec {
                    // SAFETY: see above.
                    unsafe { $splat(*from) }
                }

                #[inline(always)]
                unsafe fn load(from: *const $elem) -> $vec {
                    // SAFETY: see above.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn load_masked(from: *const $elem, mask: $mask) -> $vec {
                    // SAFETY: see above.
                    unsafe { $load_masked(mask, from) }
                }

                #[inline(always)]
                unsafe fn store(to: *mut $elem, v: $vec) {
                    // SAFETY: see above.
                    unsafe { $store(to, v) }
                }

                #[inline(always)]
                unsafe fn store_first(to: *mut $elem, v: $vec, count: usize) {
                    // SAFETY: see above.
                    unsafe { $store_first(to, v, count) }
                }

                #[inline(always)]
                unsafe fn fma(a: $vec, b: $vec, c: $vec) -> $vec {
                    // SAFETY: see above.
                    unsafe { $fma(a, b, c) }
                }

                #[inline(always)]
                unsafe fn add(a: $vec, b: $vec) -> $vec {
                    // SAFETY: see above.
                    unsafe { $add(a, b) }
                }

                #[inline(always)]
                unsafe fn prefetch(at: *const $elem) {
                    // SAFETY: a hint, which may name any address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
            }
        };
    }

    simd!(
        /// AVX-512F.
        Avx512F32: [f32; 16] in __m512, masks __mmask16,
        _mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_maskz_loadu_ps _mm512_storeu_ps _mm512_fmadd_ps _mm512_add_ps,
        mask: (|count| (u32::MAX >> (32 - count as u32)) as __mmask16),
        store_first: (|to, v, count| _mm512_mask_storeu_ps(to, Self::mask(count), v))
    );

    simd!(
        /// AVX-512F.
        Avx512F64: [f64; 8] in __m512d, masks __mmask8,
        _mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_maskz_loadu_pd _mm512_storeu_pd _mm512_fmadd_pd _mm512_add_pd,
        mask: (|count| (u32::MAX >> (32 - count as u32)) as __mmask8),
        store_first: (|to, v, count| _mm512_mask_storeu_pd(to, Self::mask(count), v))
    );

    simd!(
        /// AVX2 and FMA.
        Avx2F32: [f32; 8] in __m256, masks __m256i,
        _mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps load_masked_f32 _mm256_storeu_ps _mm256_fmadd_ps _mm256_add_ps,
        // SAFETY: `count` is at most LANES, so the window is inside the table.
        mask: (|count| unsafe { _mm256_loadu_si256(LANE_MASKS.as_ptr().add(8 - count).cast()) }),
        store_first: store_first_f32
    );

    simd!(
        /// AVX2 and FMA.
        Avx2F64: [f64; 4] in __m256d, masks __m256i,
        _mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd load_masked_f64 _mm256_storeu_pd _mm256_fmadd_pd _mm256_add_pd,
        // SAFETY: `count` is at most LANES, so the window is inside the table.
        mask: (|count| unsafe { _mm256_loadu_si256(LANE_MASKS.as_ptr().add(8 - 2 * count).cast()) }),
        store_first: store_first_f64
    );

    /// A window that starts `n` before the middle selects the first `n` 32-bit lanes.
    static LANE_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The loads' arguments in AVX-512's order, and stores by way of the stack: a masked store is
    /// microcoded on some processors.
    macro_rules! avx2_tails {
        ($elem:ty; $lanes:literal, $vec:ty, $load:ident, $store:ident, $load_name:ident, $store_name:ident) => {
            /// # Safety
            /// Needs AVX2; the selected lanes must be valid.
            #[inline(always)]
            unsafe fn $load_name(mask: __m256i, from: *const $elem) -> $vec {
                // SAFETY: the caller's promise.
                unsafe { $load(from, mask) }
            }

            /// # Safety
            /// Needs AVX2; the first `count` lanes must be valid.
            #[inline(always)]
            unsafe fn $store_name(to: *mut $elem, v: $vec, count: usize) {
                let mut lanes: [$elem; $lanes] = [0.0; $lanes];
                // SAFETY: `lanes` holds a whole vector; the caller vouches for `count` lanes.
                unsafe {
                    $store(lanes.as_mut_ptr(), v);
                    for (i, lane) in lanes.into_iter().enumerate().take(count) {
                        *to.add(i) = lane;
                    }
                }
            }
        };
    }
    avx2_tails!(f32; 8, __m256, _mm256_maskload_ps, _mm256_storeu_ps, load_masked_f32, store_first_f32);
    avx2_tails!(f64; 4, __m256d, _mm256_maskload_pd, _mm256_storeu_pd, load_masked_f64, store_first_f64);

    /// # Safety
    /// As for `Kernel`; needs AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<S: Simd, const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<S::Elem>) {
        // SAFETY: the caller's promise is `tile`'s, and the instruction set is enabled here.
        unsafe { tile::<S, ROWS, VECS, UNIT>(t) }
    }

    /// # Safety
    /// As for `Kernel`; needs AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<S: Simd, const ROWS: usize, const VECS: usize, const UNIT: bool>(t: &Tile<S::Elem>) {
        // SAFETY: the caller's promise is `tile`'s, and the instruction set is enabled here.
        unsafe { tile::<S, ROWS, VECS, UNIT>(t) }
    }

    // Accumulators, operands and one broadcast must fit the registers: 32 with AVX-512, 16 with AVX2.
    pub(super) static AVX512_F32: Kernels<f32> = Kernels {
        lanes: 16,
        tables: tables!(avx512, Avx512F32:
            1 => [1 2 3 4 5 6 7 8 9 10 11 12],
            2 => [1 2 3 4 5 6 7 8 9 10 11 12],
            4 => [1 2 3 4 5 6],
            8 => [1 2 3]),
        main: 2,
        transpose: transpose_avx,
        dots: Some(dots_avx2),
        rate: 50,
    };

    pub(super) static AVX2_F32: Kernels<f32> = Kernels {
        lanes: 8,
        tables: tables!(avx2, Avx2F32:
            1 => [1 2 3 4 5 6 7 8 9 10 11 12],
            2 => [1 2 3 4 5 6],
            4 => [1 2 3],
            8 => [1]),
        main: 1,
        transpose: transpose_avx,
        dots: Some(dots_avx2),
        rate: 40,
    };

    pub(super) static AVX512_F64: Kernels<f64> = Kernels {
        lanes: 8,
        tables: tables!(avx512, Avx512F64: 1 => [1 2 3 4 5 6], 2 => [1 2 3 4 5 6], 4 => [1 2 3 4 5 6], 8 => []),
        main: 2,
        transpose: transpose_portable,
        dots: None,
        rate: 25,
    };

    pub(super) static AVX2_F64: Kernels<f64> = Kernels {
        lanes: 4,
        tables: tables!(avx2, Avx2F64: 1 => [1 2 3 4 5 6], 2 => [1 2 3 4 5 6], 4 => [1 2 3], 8 => []),
        main: 1,
        transpose: transpose_portable,
        dots: None,
        rate: 20,
    };
}
