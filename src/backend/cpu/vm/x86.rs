//! [`Simd`] for AVX-512 (F, DQ, BW, VL) and AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::simd::Simd;
use crate::kernel::Instr;
use crate::kernel::meaning::{ANGLE_BOUND, INV_PI, PI, ROUNDER};

/// 16 lanes.
pub(super) struct Avx512;

/// 8 lanes.
pub(super) struct Avx2;

/// `_mm512_range_ps` operation: signed comparison's result, 0 minimum, 1 maximum.
const RANGE_MIN: i32 = 0b0100;
const RANGE_MAX: i32 = 0b0101;

#[inline(always)]
unsafe fn i(v: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_castps_si512(v) }
}
#[inline(always)]
unsafe fn f(v: __m512i) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_castsi512_ps(v) }
}
#[inline(always)]
unsafe fn mask16(m: __mmask16) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { f(_mm512_movm_epi32(m)) }
}
/// The lowest `n` of 16 bits.
#[inline(always)]
fn first16(n: isize) -> __mmask16 {
    ((1u32 << n.clamp(0, 16)) - 1) as __mmask16
}

/// The bits of the nearest bf16, ties to even, in the upper half of each lane (the lower half is zero); NaN, made quiet,
/// stays NaN. Integers: the instruction for it flushes denormals.
#[inline(always)]
unsafe fn bf16_bits(a: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let bits = i(a);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        _mm512_and_si512(_mm512_mask_mov_epi32(rounded, nan, quiet), _mm512_set1_epi32(0xffff_0000u32 as i32))
    }
}

/// Rounding of `cvtps_ph`: to nearest, ties to even, whatever the control word says.
const TO_NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// `getmant` sign control: NaN for negative numbers, no sign from -0.
const SIGN_NAN_ELSE_PLUS: i32 = _MM_MANT_SIGN_NAN | _MM_MANT_SIGN_ZERO;

/// `a - q * π`, as [`crate::kernel::meaning`] has it.
#[inline(always)]
unsafe fn subtract_turns(a: __m512, q: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let r = _mm512_fnmadd_ps(q, _mm512_set1_ps(PI[0]), a);
        let r = _mm512_fnmadd_ps(q, _mm512_set1_ps(PI[1]), r);
        _mm512_fnmadd_ps(q, _mm512_set1_ps(PI[2]), r)
    }
}

/// `r`, but lane by lane where an angle is too large for the short reduction.
#[inline(always)]
unsafe fn large(a: __m512, r: __m512, instr: Instr) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(a), _mm512_set1_ps(ANGLE_BOUND));
        if small == 0xffff {
            return r;
        }
        let mut lanes = [0f32; 16];
        _mm512_storeu_ps(lanes.as_mut_ptr(), a);
        patch(&mut lanes, instr);
        _mm512_mask_loadu_ps(r, !small, lanes.as_ptr())
    }
}

#[cold]
#[inline(never)]
fn patch(lanes: &mut [f32; 16], instr: Instr) {
    for lane in lanes {
        *lane = f32::from_bits(instr.eval(&[lane.to_bits() as u64]) as u32);
    }
}

/// A quotient below this is cut to the whole number below or, by its rounding, one above: then the remainder is exact
/// in one fma and one addition. Beyond, and for an infinite divisor, lanes go one by one.
const QUOTIENT_BOUND: f32 = 8388608.0;

#[cold]
#[inline(never)]
fn patch_rem(a: &mut [f32; 16], b: &[f32; 16]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = f32::from_bits(Instr::Rem.eval(&[a.to_bits() as u64, b.to_bits() as u64]) as u32);
    }
}

macro_rules! forward {
    ($($name:ident($($a:ident),*) = $e:expr;)*) => {
        $(#[inline(always)]
        unsafe fn $name($($a: Self::V),*) -> Self::V {
            // SAFETY: the caller has this implementation's CPU features.
            unsafe { $e }
        })*
    };
}

// SAFETY of every block below: the trait's contract gives the CPU features and valid pointers.
impl Simd for Avx512 {
    const N: usize = 16;
    type V = __m512;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: __m512) {
        unsafe { _mm512_storeu_ps(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const u8, n: isize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first16(n), p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut u8, v: __m512, n: isize) {
        unsafe { _mm512_mask_storeu_ps(p.cast(), first16(n), v) }
    }
    #[inline(always)]
    unsafe fn first(a: __m512, b: __m512, n: isize) -> __m512 {
        unsafe { _mm512_mask_mov_ps(b, first16(n), a) }
    }
    #[inline(always)]
    unsafe fn splat(p: *const u8) -> __m512 {
        unsafe { _mm512_set1_ps(p.cast::<f32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn swap<const H: usize>(a: __m512) -> __m512 {
        unsafe {
            match H {
                8 => _mm512_shuffle_f32x4::<0b01_00_11_10>(a, a),
                4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(a, a),
                2 => _mm512_permute_ps::<0b01_00_11_10>(a),
                _ => _mm512_permute_ps::<0b10_11_00_01>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bools(p: *const u8, n: isize) -> __m512 {
        unsafe {
            let bytes = _mm_maskz_loadu_epi8(first16(n), p.cast());
            mask16(_mm_test_epi8_mask(bytes, bytes))
        }
    }
    #[inline(always)]
    unsafe fn store_bools(p: *mut u8, v: __m512, n: isize) {
        unsafe {
            let ones = _mm512_and_si512(i(v), _mm512_set1_epi32(1));
            _mm_mask_storeu_epi8(p.cast(), first16(n), _mm512_cvtepi32_epi8(ones));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8, n: isize) -> __m512 {
        unsafe {
            let halves = _mm256_maskz_loadu_epi16(first16(n), p.cast());
            f(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8, n: isize) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first16(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u8, v: __m512, n: isize) {
        unsafe {
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bf16_bits(v)));
            _mm256_mask_storeu_epi16(p.cast(), first16(n), halves);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: __m512, n: isize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), first16(n), _mm512_cvtps_ph::<TO_NEAREST>(v)) }
    }

    forward! {
        bf16(a) = f(bf16_bits(a));
        f16(a) = _mm512_cvtph_ps(_mm512_cvtps_ph::<TO_NEAREST>(a));
        neg(a) = f(_mm512_xor_si512(i(a), _mm512_set1_epi32(i32::MIN)));
        abs(a) = f(_mm512_and_si512(i(a), _mm512_set1_epi32(i32::MAX)));
        sqrt(a) = _mm512_sqrt_ps(a);
        floor(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a);
        ceil(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(a);
        trunc(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a);
        round(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        not(a) = f(_mm512_ternarylogic_epi32::<0x55>(i(a), i(a), i(a)));
        itof(a) = _mm512_cvtepi32_ps(i(a));
        utof(a) = _mm512_cvtepu32_ps(i(a));
        ftoi(a) = {
            // Out of range converts to i32::MIN: flip it to MAX above, zero it for NaN.
            let high = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, _mm512_set1_ps(2147483648.0));
            let known = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a);
            let r = _mm512_maskz_cvttps_epi32(known, a);
            f(_mm512_mask_mov_epi32(r, high, _mm512_set1_epi32(i32::MAX)))
        };
        btou(a) = f(_mm512_and_si512(i(a), _mm512_set1_epi32(1)));
        // `max` returns its second operand for NaN and for zeros; adding +0 turns -0 into +0.
        relu(a) = _mm512_add_ps(_mm512_max_ps(_mm512_setzero_ps(), a), _mm512_setzero_ps());
        mantissa(a) = _mm512_getmant_ps::<_MM_MANT_NORM_P75_1P5, SIGN_NAN_ELSE_PLUS>(a);
        exponent(a) = {
            let e = _mm512_getexp_ps(a);
            let m = _mm512_getmant_ps::<_MM_MANT_NORM_P75_1P5, _MM_MANT_SIGN_ZERO>(a);
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(m, _mm512_set1_ps(1.0));
            _mm512_mask_add_ps(e, below, e, _mm512_set1_ps(1.0))
        };
        // The instruction gives 0 or inf for NaN with an infinite exponent.
        scale(a, b) = _mm512_mask_scalef_ps(a, _mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a), a, b);
        sin_arg(a) = {
            let t = _mm512_fmadd_ps(a, _mm512_set1_ps(INV_PI), _mm512_set1_ps(ROUNDER));
            let r = subtract_turns(a, _mm512_sub_ps(t, _mm512_set1_ps(ROUNDER)));
            let r = f(_mm512_xor_si512(i(r), _mm512_slli_epi32::<31>(i(t))));
            large(a, r, Instr::SinArg)
        };
        cos_arg(a) = {
            let t = _mm512_fmadd_ps(a, _mm512_set1_ps(INV_PI), _mm512_set1_ps(-0.5));
            let t = _mm512_add_ps(t, _mm512_set1_ps(ROUNDER));
            let q = _mm512_add_ps(_mm512_sub_ps(t, _mm512_set1_ps(ROUNDER)), _mm512_set1_ps(0.5));
            let sign = _mm512_slli_epi32::<31>(_mm512_xor_si512(i(t), _mm512_set1_epi32(-1)));
            large(a, f(_mm512_xor_si512(i(subtract_turns(a, q)), sign)), Instr::CosArg)
        };
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        rem(a, b) = {
            let sign = _mm512_set1_epi32(i32::MIN);
            let q = Self::trunc(_mm512_div_ps(a, b));
            let r = _mm512_fnmadd_ps(q, b, a);
            let (size, toward) = (_mm512_abs_ps(b), _mm512_and_si512(i(a), sign));
            let beyond = _mm512_movepi32_mask(_mm512_xor_si512(i(r), i(a)))
                & _mm512_cmp_ps_mask::<_CMP_NEQ_OQ>(r, _mm512_setzero_ps());
            let r = _mm512_mask_add_ps(r, beyond, r, f(_mm512_or_si512(i(size), toward)));
            let r = f(_mm512_or_si512(i(_mm512_abs_ps(r)), toward));
            let fast = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(q), _mm512_set1_ps(QUOTIENT_BOUND))
                & _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(f32::INFINITY));
            if fast == 0xffff {
                r
            } else {
                let (mut x, mut y) = ([0f32; 16], [0f32; 16]);
                _mm512_storeu_ps(x.as_mut_ptr(), a);
                _mm512_storeu_ps(y.as_mut_ptr(), b);
                patch_rem(&mut x, &y);
                _mm512_mask_loadu_ps(r, !fast, x.as_ptr())
            }
        };
        fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
        // `range` orders signed zeros; NaN operands are patched by a masked add.
        min(a, b) = {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
            _mm512_mask_add_ps(_mm512_range_ps::<RANGE_MIN>(a, b), nan, a, b)
        };
        max(a, b) = {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
            _mm512_mask_add_ps(_mm512_range_ps::<RANGE_MAX>(a, b), nan, a, b)
        };
        min_const(a, b) = _mm512_min_ps(b, a);
        max_const(a, b) = _mm512_max_ps(b, a);
        eq(a, b) = mask16(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b));
        ne(a, b) = mask16(_mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b));
        lt(a, b) = mask16(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b));
        le(a, b) = mask16(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b));
        uadd(a, b) = f(_mm512_add_epi32(i(a), i(b)));
        usub(a, b) = f(_mm512_sub_epi32(i(a), i(b)));
        umul(a, b) = f(_mm512_mullo_epi32(i(a), i(b)));
        umulhi(a, b) = {
            let even = _mm512_srli_epi64::<32>(_mm512_mul_epu32(i(a), i(b)));
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(i(a)), _mm512_srli_epi64::<32>(i(b)));
            f(_mm512_mask_mov_epi32(even, 0xaaaa, odd))
        };
        and(a, b) = f(_mm512_and_si512(i(a), i(b)));
        or(a, b) = f(_mm512_or_si512(i(a), i(b)));
        xor(a, b) = f(_mm512_xor_si512(i(a), i(b)));
        ushl(a, b) = f(_mm512_sllv_epi32(i(a), i(b)));
        ushr(a, b) = f(_mm512_srlv_epi32(i(a), i(b)));
        ishr(a, b) = f(_mm512_srav_epi32(i(a), i(b)));
        ueq(a, b) = mask16(_mm512_cmpeq_epi32_mask(i(a), i(b)));
        ult(a, b) = mask16(_mm512_cmplt_epu32_mask(i(a), i(b)));
        ilt(a, b) = mask16(_mm512_cmplt_epi32_mask(i(a), i(b)));
        select(c, a, b) = f(_mm512_ternarylogic_epi32::<0xca>(i(c), i(a), i(b)));
    }
}

#[inline(always)]
unsafe fn i8(v: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_castps_si256(v) }
}
#[inline(always)]
unsafe fn f8(v: __m256i) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_castsi256_ps(v) }
}
/// All ones in the first `n` of 8 lanes.
#[inline(always)]
unsafe fn first8(n: isize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n.clamp(0, 8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// Mantissa in 3/4..3/2 and exponent (64-bit) of finite numbers other than zero.
#[inline(always)]
unsafe fn split4(a: __m128) -> (__m256d, __m256i) {
    // SAFETY: the caller has AVX2.
    unsafe {
        // An f64 is never denormal here, so its fields tell.
        let bits = _mm256_castpd_si256(_mm256_cvtps_pd(a));
        let bits = _mm256_and_si256(bits, _mm256_set1_epi64x(i64::MAX));
        let fraction = _mm256_and_si256(bits, _mm256_set1_epi64x((1 << 52) - 1));
        let high = _mm256_srli_epi64::<51>(fraction);
        let one = _mm256_set1_epi64x(1023);
        let field = _mm256_slli_epi64::<52>(_mm256_sub_epi64(one, high));
        let e = _mm256_add_epi64(_mm256_sub_epi64(_mm256_srli_epi64::<52>(bits), one), high);
        (_mm256_castsi256_pd(_mm256_or_si256(field, fraction)), e)
    }
}

/// `a * 2^n` for `n` in -300..=300.
#[inline(always)]
unsafe fn scale4(a: __m128, n: __m128i) -> __m128 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let n = _mm256_add_epi64(_mm256_cvtepi32_epi64(n), _mm256_set1_epi64x(1023));
        let factor = _mm256_castsi256_pd(_mm256_slli_epi64::<52>(n));
        _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_cvtps_pd(a), factor))
    }
}

/// `a - q * π`, as [`crate::kernel::meaning`] has it.
#[inline(always)]
unsafe fn subtract_turns8(a: __m256, q: __m256) -> __m256 {
    // SAFETY: the caller has AVX2 and FMA.
    unsafe {
        let r = _mm256_fnmadd_ps(q, _mm256_set1_ps(PI[0]), a);
        let r = _mm256_fnmadd_ps(q, _mm256_set1_ps(PI[1]), r);
        _mm256_fnmadd_ps(q, _mm256_set1_ps(PI[2]), r)
    }
}

/// `r`, but lane by lane where an angle is too large for the short reduction.
#[inline(always)]
unsafe fn large8(a: __m256, r: __m256, instr: Instr) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(ANGLE_BOUND));
        if _mm256_movemask_ps(small) == 0xff {
            return r;
        }
        let mut lanes = [0f32; 16];
        _mm256_storeu_ps(lanes.as_mut_ptr(), a);
        patch(&mut lanes, instr);
        _mm256_blendv_ps(_mm256_loadu_ps(lanes.as_ptr()), r, small)
    }
}

/// As [`bf16_bits`].
#[inline(always)]
unsafe fn bf16_bits8(a: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = i8(a);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = i8(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, nan), _mm256_set1_epi32(0xffff_0000u32 as i32))
    }
}

/// Eight 16-bit elements, zero from the `n`-th on.
#[inline(always)]
unsafe fn load_halves(p: *const u8, n: isize) -> __m128i {
    // SAFETY: the caller has AVX2, and `n` valid elements.
    unsafe {
        if n >= 8 {
            return _mm_loadu_si128(p.cast());
        }
        let mut part = [0u16; 8];
        for (k, e) in part.iter_mut().enumerate().take(n.max(0) as usize) {
            *e = p.cast::<u16>().add(k).read_unaligned();
        }
        _mm_loadu_si128(part.as_ptr().cast())
    }
}

/// Stores the first `n` of eight 16-bit elements.
#[inline(always)]
unsafe fn store_halves(p: *mut u8, v: __m128i, n: isize) {
    // SAFETY: the caller has AVX2, and room for `n` elements.
    unsafe {
        if n >= 8 {
            return _mm_storeu_si128(p.cast(), v);
        }
        let mut part = [0u16; 8];
        _mm_storeu_si128(part.as_mut_ptr().cast(), v);
        for (k, &e) in part.iter().enumerate().take(n.max(0) as usize) {
            p.cast::<u16>().add(k).write_unaligned(e);
        }
    }
}

impl Simd for Avx2 {
    const N: usize = 8;
    type V = __m256;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: __m256) {
        unsafe { _mm256_storeu_ps(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const u8, n: isize) -> __m256 {
        unsafe { _mm256_maskload_ps(p.cast(), first8(n)) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut u8, v: __m256, n: isize) {
        unsafe { _mm256_maskstore_ps(p.cast(), first8(n), v) }
    }
    #[inline(always)]
    unsafe fn first(a: __m256, b: __m256, n: isize) -> __m256 {
        unsafe { _mm256_blendv_ps(b, a, f8(first8(n))) }
    }
    #[inline(always)]
    unsafe fn splat(p: *const u8) -> __m256 {
        unsafe { _mm256_set1_ps(p.cast::<f32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn swap<const H: usize>(a: __m256) -> __m256 {
        unsafe {
            match H {
                4 => _mm256_permute2f128_ps::<1>(a, a),
                2 => _mm256_permute_ps::<0b01_00_11_10>(a),
                _ => _mm256_permute_ps::<0b10_11_00_01>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bools(p: *const u8, n: isize) -> __m256 {
        unsafe {
            let word = if n >= 8 {
                p.cast::<u64>().read_unaligned()
            } else {
                (0..n).fold(0, |w, k| w | (*p.offset(k) as u64) << (8 * k))
            };
            let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(word as i64));
            f8(_mm256_cmpgt_epi32(lanes, _mm256_setzero_si256()))
        }
    }
    #[inline(always)]
    unsafe fn store_bools(p: *mut u8, v: __m256, n: isize) {
        unsafe {
            let bits = _mm256_movemask_ps(v);
            for k in 0..n.min(8) {
                *p.offset(k) = (bits >> k & 1) as u8;
            }
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8, n: isize) -> __m256 {
        unsafe { f8(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_halves(p, n)))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8, n: isize) -> __m256 {
        unsafe { _mm256_cvtph_ps(load_halves(p, n)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u8, v: __m256, n: isize) {
        unsafe {
            let words = _mm256_srli_epi32::<16>(bf16_bits8(v));
            // `packus` keeps values below 2^16 as they are.
            let low = _mm256_castsi256_si128(words);
            store_halves(p, _mm_packus_epi32(low, _mm256_extracti128_si256::<1>(words)), n);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: __m256, n: isize) {
        unsafe { store_halves(p, _mm256_cvtps_ph::<TO_NEAREST>(v), n) }
    }

    forward! {
        bf16(a) = f8(bf16_bits8(a));
        f16(a) = _mm256_cvtph_ps(_mm256_cvtps_ph::<TO_NEAREST>(a));
        neg(a) = _mm256_xor_ps(a, _mm256_set1_ps(-0.0));
        abs(a) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        sqrt(a) = _mm256_sqrt_ps(a);
        floor(a) = _mm256_floor_ps(a);
        ceil(a) = _mm256_ceil_ps(a);
        trunc(a) = _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a);
        round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        not(a) = f8(_mm256_xor_si256(i8(a), _mm256_set1_epi32(-1)));
        itof(a) = _mm256_cvtepi32_ps(i8(a));
        // Both 16-bit halves are exact as f32, so only the addition rounds.
        utof(a) = {
            let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(i8(a)));
            let low = _mm256_cvtepi32_ps(_mm256_and_si256(i8(a), _mm256_set1_epi32(0xffff)));
            _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0)), low)
        };
        ftoi(a) = {
            // Out of range converts to i32::MIN: flip it to MAX above, zero it for NaN.
            let high = _mm256_cmp_ps::<_CMP_GE_OQ>(a, _mm256_set1_ps(2147483648.0));
            let known = _mm256_cmp_ps::<_CMP_ORD_Q>(a, a);
            _mm256_and_ps(_mm256_xor_ps(f8(_mm256_cvttps_epi32(a)), high), known)
        };
        btou(a) = f8(_mm256_srli_epi32::<31>(i8(a)));
        relu(a) = _mm256_add_ps(_mm256_max_ps(_mm256_setzero_ps(), a), _mm256_setzero_ps());
        mantissa(a) = {
            let (low, _) = split4(_mm256_castps256_ps128(a));
            let (high, _) = split4(_mm256_extractf128_ps::<1>(a));
            let m = _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
            let (zero, one) = (_mm256_setzero_ps(), _mm256_set1_ps(1.0));
            let whole = _mm256_or_ps(
                _mm256_cmp_ps::<_CMP_EQ_OQ>(a, zero),
                _mm256_cmp_ps::<_CMP_EQ_OQ>(a, _mm256_set1_ps(f32::INFINITY)),
            );
            let known = _mm256_cmp_ps::<_CMP_GE_OQ>(a, zero);
            _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), _mm256_blendv_ps(m, one, whole), known)
        };
        exponent(a) = {
            let (_, low) = split4(_mm256_castps256_ps128(a));
            let (_, high) = split4(_mm256_extractf128_ps::<1>(a));
            // The low halves of the 64-bit exponents.
            let pick = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
            let low = _mm256_permutevar8x32_epi32(low, pick);
            let high = _mm256_permutevar8x32_epi32(high, pick);
            let e = _mm256_cvtepi32_ps(_mm256_blend_epi32::<0b11110000>(low, high));
            let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
            let zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, _mm256_setzero_ps());
            let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(f32::INFINITY));
            let e = _mm256_blendv_ps(e, _mm256_set1_ps(f32::NEG_INFINITY), zero);
            _mm256_blendv_ps(size, e, finite)
        };
        scale(a, b) = {
            // Exact in f64, rounded once.
            let n = _mm256_min_ps(_mm256_max_ps(_mm256_floor_ps(b), _mm256_set1_ps(-300.0)), _mm256_set1_ps(300.0));
            let n = _mm256_cvtps_epi32(n);
            let low = scale4(_mm256_castps256_ps128(a), _mm256_castsi256_si128(n));
            let high = scale4(_mm256_extractf128_ps::<1>(a), _mm256_extracti128_si256::<1>(n));
            let r = _mm256_set_m128(high, low);
            // The factors +inf, +0 or NaN; `max` returns its second operand for NaN.
            let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), b);
            let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(f32::INFINITY));
            _mm256_blendv_ps(_mm256_mul_ps(a, _mm256_max_ps(_mm256_setzero_ps(), b)), r, finite)
        };
        sin_arg(a) = {
            let t = _mm256_fmadd_ps(a, _mm256_set1_ps(INV_PI), _mm256_set1_ps(ROUNDER));
            let r = subtract_turns8(a, _mm256_sub_ps(t, _mm256_set1_ps(ROUNDER)));
            large8(a, _mm256_xor_ps(r, f8(_mm256_slli_epi32::<31>(i8(t)))), Instr::SinArg)
        };
        cos_arg(a) = {
            let t = _mm256_fmadd_ps(a, _mm256_set1_ps(INV_PI), _mm256_set1_ps(-0.5));
            let t = _mm256_add_ps(t, _mm256_set1_ps(ROUNDER));
            let q = _mm256_add_ps(_mm256_sub_ps(t, _mm256_set1_ps(ROUNDER)), _mm256_set1_ps(0.5));
            let sign = _mm256_slli_epi32::<31>(_mm256_xor_si256(i8(t), _mm256_set1_epi32(-1)));
            large8(a, _mm256_xor_ps(subtract_turns8(a, q), f8(sign)), Instr::CosArg)
        };
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        rem(a, b) = {
            let sign = _mm256_set1_ps(-0.0);
            let q = Self::trunc(_mm256_div_ps(a, b));
            let r = _mm256_fnmadd_ps(q, b, a);
            let (size, toward) = (_mm256_andnot_ps(sign, b), _mm256_and_ps(a, sign));
            let beyond = _mm256_and_ps(_mm256_xor_ps(r, a), _mm256_cmp_ps::<_CMP_NEQ_OQ>(r, _mm256_setzero_ps()));
            let r = _mm256_blendv_ps(r, _mm256_add_ps(r, _mm256_or_ps(size, toward)), beyond);
            let r = _mm256_or_ps(_mm256_andnot_ps(sign, r), toward);
            let small = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_andnot_ps(sign, q), _mm256_set1_ps(QUOTIENT_BOUND));
            let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(f32::INFINITY));
            let fast = _mm256_and_ps(small, finite);
            if _mm256_movemask_ps(fast) == 0xff {
                r
            } else {
                let (mut x, mut y) = ([0f32; 16], [0f32; 16]);
                _mm256_storeu_ps(x.as_mut_ptr(), a);
                _mm256_storeu_ps(y.as_mut_ptr(), b);
                patch_rem(&mut x, &y);
                _mm256_blendv_ps(_mm256_loadu_ps(x.as_ptr()), r, fast)
            }
        };
        fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
        // `min` returns its second operand for NaN and for zeros: or in the other order's sign, patch NaN.
        min(a, b) = {
            let r = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b);
            _mm256_blendv_ps(r, _mm256_add_ps(a, b), nan)
        };
        max(a, b) = {
            let r = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b);
            _mm256_blendv_ps(r, _mm256_add_ps(a, b), nan)
        };
        min_const(a, b) = _mm256_min_ps(b, a);
        max_const(a, b) = _mm256_max_ps(b, a);
        eq(a, b) = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        ne(a, b) = _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b);
        lt(a, b) = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        le(a, b) = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
        uadd(a, b) = f8(_mm256_add_epi32(i8(a), i8(b)));
        usub(a, b) = f8(_mm256_sub_epi32(i8(a), i8(b)));
        umul(a, b) = f8(_mm256_mullo_epi32(i8(a), i8(b)));
        umulhi(a, b) = {
            let even = _mm256_srli_epi64::<32>(_mm256_mul_epu32(i8(a), i8(b)));
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(i8(a)), _mm256_srli_epi64::<32>(i8(b)));
            f8(_mm256_blend_epi32::<0b10101010>(even, odd))
        };
        and(a, b) = _mm256_and_ps(a, b);
        or(a, b) = _mm256_or_ps(a, b);
        xor(a, b) = _mm256_xor_ps(a, b);
        ushl(a, b) = f8(_mm256_sllv_epi32(i8(a), i8(b)));
        ushr(a, b) = f8(_mm256_srlv_epi32(i8(a), i8(b)));
        ishr(a, b) = f8(_mm256_srav_epi32(i8(a), i8(b)));
        ueq(a, b) = f8(_mm256_cmpeq_epi32(i8(a), i8(b)));
        ult(a, b) = {
            let flip = _mm256_set1_epi32(i32::MIN);
            f8(_mm256_cmpgt_epi32(_mm256_xor_si256(i8(b), flip), _mm256_xor_si256(i8(a), flip)))
        };
        ilt(a, b) = f8(_mm256_cmpgt_epi32(i8(b), i8(a)));
        select(c, a, b) = _mm256_blendv_ps(b, a, c);
    }
}
