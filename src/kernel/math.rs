//! exp, log, sin and their like as expansions over the scalar instructions of f32, and Philox.
//!
//! Every backend runs these same instructions, so transcendentals have the same bits everywhere. Each
//! is right at ±0, ±inf and NaN, takes and gives denormals, overflows where the true value does,
//! and is within the number of units in the last place stated at it. `examples/math_ulp.rs` measures that: exp,
//! sin and tan were walked over all 2^32 arguments (0.892, 2.021 and 2.116), the others over every 61st or 255th;
//! `tests/math_accuracy.rs` samples two million and all edges.

use crate::kernel::build::Builder;
use crate::kernel::ir::Val;
use crate::kernel::meaning::ROUNDER;

pub use crate::kernel::power::pow;
pub use crate::kernel::trigonometry::{acos, asin, atan, atan2, cosh, sinh, tan};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 as a sum of two.
const LN_2: [f32; 2] = [std::f32::consts::LN_2, -1.904_654_2e-9];

/// `c[0] + c[1] x + c[2] x² + …`, one fma per power.
pub(super) fn polynomial(b: &mut Builder, x: Val, coefficients: &[f32]) -> Val {
    let mut terms = coefficients.iter().rev();
    let mut sum = b.f32(terms.next().copied().unwrap_or(0.0));
    for &c in terms {
        let c = b.f32(c);
        sum = b.fma(sum, x, c);
    }
    sum
}

/// `x` with NaN kept and the rest brought into `lo..=hi`.
pub(super) fn clamp(b: &mut Builder, x: Val, lo: f32, hi: f32) -> Val {
    let (lo, hi) = (b.f32(lo), b.f32(hi));
    let x = b.max(x, lo);
    b.min(x, hi)
}

/// `x = n ln 2 + r` with a whole n and |r| at most ln 2 / 2 and a little.
pub(super) fn split_by_ln2(b: &mut Builder, x: Val) -> (Val, Val) {
    let (log2_e, rounder) = (b.f32(LOG2_E), b.f32(ROUNDER));
    let t = b.fma(x, log2_e, rounder);
    let n = b.sub(t, rounder);
    let (hi, lo) = (b.f32(-LN_2[0]), b.f32(-LN_2[1]));
    // The first is exact, since x and n ln2 cancel on a common grid.
    let r = b.fma(n, hi, x);
    (n, b.fma(n, lo, r))
}

/// exp for arguments in -104..=89 (below, the result is 0; above, infinity).
fn exp_in_range(b: &mut Builder, x: Val) -> Val {
    let (n, r) = split_by_ln2(b, x);
    let p = polynomial(b, r, &[1.0, 1.0, 0.49999994, 0.166_665_21, 0.041_668_266, 0.008_368_678, 0.001_382_074_6]);
    b.scale(p, n)
}

/// e^x; 1.0 ulp.
pub fn exp(b: &mut Builder, x: Val) -> Val {
    let x = clamp(b, x, -104.0, 89.0);
    exp_in_range(b, x)
}

/// 2^r for |r| up to a half.
pub(super) const EXP2: &[f32] =
    &[1.0, LN_2[0], 0.240_226_48, 0.055_503_596, 0.009_618_5, 0.001_339_098_3, 0.000_153_290_05];

/// 2^x; 1.0 ulp.
pub fn exp2(b: &mut Builder, x: Val) -> Val {
    let x = clamp(b, x, -151.0, 129.0);
    let n = b.round(x);
    let r = b.sub(x, n);
    let p = polynomial(b, r, EXP2);
    b.scale(p, n)
}

/// (e^r - 1 at |r| <= ln 2 / 2).
pub(super) fn expm1_near_zero(b: &mut Builder, r: Val) -> Val {
    let q = polynomial(b, r, &[0.5, 0.166_665_48, 0.041_666_836, 0.008_366_123, 0.001_389_998_5]);
    let q = b.mul(q, r);
    b.fma(q, r, r)
}

/// e^x - 1; 2.0 ulp.
pub fn expm1(b: &mut Builder, x: Val) -> Val {
    let near = clamp(b, x, -26.0, 89.0);
    let (n, r) = split_by_ln2(b, near);
    let p = expm1_near_zero(b, r);
    // Twice (2^(n-1) p + (2^(n-1) - 1/2)), as 2^128 is no f32.
    let half = b.f32(0.5);
    let s = b.scale(half, n);
    let s1 = b.sub(s, half);
    let y = b.fma(s, p, s1);
    let y = b.add(y, y);
    // Tiny ones, denormals and ±0 are their own result.
    let (size, tiny) = (b.abs(x), b.f32(2f32.powi(-25)));
    let is_tiny = b.lt(size, tiny);
    b.select(is_tiny, x, y)
}

const LOG1P: &[f32] = &[
    -0.5,
    0.333_334_5,
    -0.250_001,
    0.199_908_06,
    -0.166_470_86,
    0.144_787_64,
    -0.131_636_19,
    0.104_656_49,
    -0.045_076_746,
];

/// log(1 + f) for f in -1/4..1/2.
fn log1p_near_zero(b: &mut Builder, f: Val) -> Val {
    let p = polynomial(b, f, LOG1P);
    let square = b.mul(f, f);
    b.fma(p, square, f)
}

/// The natural logarithm; -inf at ±0, NaN below; 1.0 ulp.
pub fn log(b: &mut Builder, x: Val) -> Val {
    let (m, e) = (b.mantissa(x), b.exponent(x));
    let one = b.f32(1.0);
    let f = b.sub(m, one);
    let l = log1p_near_zero(b, f);
    // ln 2 is so near to an f32 that one constant does.
    let ln2 = b.f32(LN_2[0]);
    b.fma(e, ln2, l)
}

/// The base-2 logarithm; 2.0 ulp.
pub fn log2(b: &mut Builder, x: Val) -> Val {
    let (m, e) = (b.mantissa(x), b.exponent(x));
    let one = b.f32(1.0);
    let f = b.sub(m, one);
    let l = log1p_near_zero(b, f);
    let log2_e = b.f32(LOG2_E);
    b.fma(l, log2_e, e)
}

/// The base-10 logarithm; 2.0 ulp.
pub fn log10(b: &mut Builder, x: Val) -> Val {
    let (m, e) = (b.mantissa(x), b.exponent(x));
    let one = b.f32(1.0);
    let f = b.sub(m, one);
    // log(1 + f) = f + t, times log10 e as a sum of two; then e log10 2, the smaller part of which is positive so
    // that an infinite e meets no other infinity.
    let (p, square) = (polynomial(b, f, LOG1P), b.mul(f, f));
    let t = b.mul(p, square);
    let (log10_e, log10_e_lo) = (b.f32(std::f32::consts::LOG10_E), b.f32(-1.010_305e-8));
    let (log10_2, log10_2_lo) = (b.f32(0.301_029_98), b.f32(1.548_133_3e-8));
    let low = b.mul(e, log10_2_lo);
    let low = b.fma(f, log10_e_lo, low);
    let low = b.fma(t, log10_e, low);
    let low = b.fma(f, log10_e, low);
    b.fma(e, log10_2, low)
}

/// log(1 + x); -inf at -1, NaN below; 1.0 ulp.
pub fn log1p(b: &mut Builder, x: Val) -> Val {
    let (one, zero, inf) = (b.f32(1.0), b.f32(0.0), b.f32(f32::INFINITY));
    let u = b.add(one, x);
    let e = b.exponent(u);
    // (1 + x) / 2^e - 1, from x itself: the sum u has lost bits of it.
    let down = b.neg(e);
    let s = b.scale(one, down);
    let s1 = b.sub(s, one);
    let f = b.fma(x, s, s1);
    let l = log1p_near_zero(b, f);
    let ln2 = b.f32(LN_2[0]);
    let y = b.fma(e, ln2, l);
    // ±0 and +inf are their own result; -1 gives -inf and less gives NaN, as this product does.
    let finite = b.lt(x, inf);
    let y = b.select(finite, y, x);
    let is_zero = b.eq(x, zero);
    let y = b.select(is_zero, x, y);
    let m = b.mantissa(u);
    let edge = b.mul(m, e);
    let minus_one = b.f32(-1.0);
    let inside = b.lt(minus_one, x);
    b.select(inside, y, edge)
}

/// Fitted to sin r (1 - 2^-26 (2r/π)^4), lest rounding lifts a sine over 1.
const SIN: &[f32] = &[0.0, -0.166_666_6, 0.008_333_066, -0.000_198_095_83, 2.605_643_9e-6];

/// The sine of a reduced angle.
fn sin_near_zero(b: &mut Builder, r: Val) -> Val {
    let s = b.mul(r, r);
    // The lowest coefficient turns the -0 that a vanishing s would give into +0; so r keeps the sign of zero.
    let p = polynomial(b, s, SIN);
    b.fma(p, r, r)
}

/// The sine; NaN at ±inf; 2.1 ulp.
pub fn sin(b: &mut Builder, x: Val) -> Val {
    let r = b.sin_arg(x);
    sin_near_zero(b, r)
}

/// The cosine; NaN at ±inf; 2.1 ulp.
pub fn cos(b: &mut Builder, x: Val) -> Val {
    let r = b.cos_arg(x);
    sin_near_zero(b, r)
}

/// `magnitude` (not negative) with the sign of `x`.
pub(super) fn with_sign_of(b: &mut Builder, magnitude: Val, x: Val) -> Val {
    let (m, x, mask) = (b.bits(magnitude), b.bits(x), b.u32(0x8000_0000));
    let sign = b.uand(x, mask);
    let y = b.uor(m, sign);
    b.from_bits(y)
}

const TANH: &[f32] = &[0.0, -0.333_333_13, 0.133_324_46, -0.053_837_36, 0.021_008_976, -0.006_183_920_4];

/// The hyperbolic tangent, odd to the bit; 1.5 ulp.
pub fn tanh(b: &mut Builder, x: Val) -> Val {
    // Up to 0.55 a polynomial (the lowest coefficient as in the sine).
    let s = b.mul(x, x);
    let p = polynomial(b, s, TANH);
    let small = b.fma(p, x, x);
    // From there 1 - 2e / (1 + e) with e = e^-2a, a = |x|; from 10 up it is 1.
    let (size, ten) = (b.abs(x), b.f32(10.0));
    let a = b.min(size, ten);
    let (one, minus_two) = (b.f32(1.0), b.f32(-2.0));
    let z = b.mul(a, minus_two);
    let e = exp_in_range(b, z);
    let d = b.add(one, e);
    let q = b.div(e, d);
    let large = b.fma(minus_two, q, one);
    let large = with_sign_of(b, large, x);
    let limit = b.f32(0.55);
    let is_large = b.lt(limit, size);
    b.select(is_large, large, small)
}

/// 1 / (1 + e^-x), gradual towards 0 too; 2.0 ulp.
pub fn sigmoid(b: &mut Builder, x: Val) -> Val {
    // With e = e^-|x| and q = e / (1 + e): 1 - q from 0 up, q below, as e - e q, which rounds less of it.
    let (size, least) = (b.abs(x), b.f32(-104.0));
    let down = b.neg(size);
    let down = b.max(down, least);
    let e = exp_in_range(b, down);
    let (zero, one) = (b.f32(0.0), b.f32(1.0));
    let below = b.lt(x, zero);
    let top = b.select(below, e, one);
    let bottom = b.add(one, e);
    let (q, minus) = (b.div(e, bottom), b.neg(top));
    b.fma(minus, q, top)
}

const ERF_SMALL: &[f32] =
    &[0.128_379_17, -0.376_126_08, 0.112_831_66, -0.026_822_569, 0.005_087_719_3, -0.000_654_918_1];
const ERF_LARGE: &[f32] = &[-1.128_534_2, -0.635_650_1, -0.105_353_1, 0.022_949_288, -0.003_233_686, 0.000_216_282_35];

/// The error function, odd to the bit; 1.5 ulp.
pub fn erf(b: &mut Builder, x: Val) -> Val {
    let (a, four) = (b.abs(x), b.f32(4.0));
    let a = b.min(a, four);
    // Up to 0.8, a (1 + p(a²)).
    let s = b.mul(a, a);
    let p = polynomial(b, s, ERF_SMALL);
    let small = b.fma(p, a, a);
    // From there, 1 - exp(-a q(a)); 1 from 4 up.
    let q = polynomial(b, a, ERF_LARGE);
    let z = b.mul(q, a);
    let tail = exp_in_range(b, z);
    let one = b.f32(1.0);
    let large = b.sub(one, tail);
    let limit = b.f32(0.8);
    let is_large = b.lt(limit, a);
    let y = b.select(is_large, large, small);
    with_sign_of(b, y, x)
}

/// With a = 3t / (2 - t), (1 + 2a) e^a² erfc a is 1 + t p(t - 3/4), for a in 0..10.1.
const ERFC: &[f32] = &[
    0.375_168_6,
    -0.605_025,
    0.537_863_8,
    -0.318_129_48,
    0.120_542_236,
    -0.020_332_908,
    -0.004_885_877_5,
    0.002_939_356,
    0.000_100_585_58,
    -0.000_278_563_88,
];

/// 1 - erf x without cancellation; 2.0 ulp.
///
/// The scaled function e^a² erc a varies slowly, and so does its product with 1 + 2a (Shepherd and Laframboise 1981).
pub fn erfc(b: &mut Builder, x: Val) -> Val {
    let (zero, one, two) = (b.f32(0.0), b.f32(1.0), b.f32(2.0));
    // From 10.06 up it is 0.
    let (a, most) = (b.abs(x), b.f32(10.2));
    let a = b.min(a, most);
    let (twice, three) = (b.add(a, a), b.f32(3.0));
    let away = b.add(a, three);
    let t = b.div(twice, away);
    let middle = b.f32(0.75);
    let q = b.sub(t, middle);
    let p = polynomial(b, q, ERFC);
    let p = b.mul(t, p);
    // (1 + p) / (1 + 2a) as a sum of two.
    let d = b.add(one, twice);
    let whole = b.sub(d, one);
    let d_lo = b.sub(twice, whole);
    let v = b.div(one, d);
    let h = b.fma(p, v, v);
    let minus_h = b.neg(h);
    let rest = b.fma(minus_h, d, one);
    let rest = b.add(rest, p);
    let rest = b.fma(minus_h, d_lo, rest);
    let h_lo = b.mul(v, rest);
    // e^-a² = 2^n (1 + u), a² and its reduced exponent as sums of two.
    let s = b.mul(a, a);
    let down = b.neg(s);
    let s_lo = b.fma(a, a, down);
    let (log2_e, rounder) = (b.f32(LOG2_E), b.f32(ROUNDER));
    let n = b.fma(down, log2_e, rounder);
    let n = b.sub(n, rounder);
    let (hi, lo) = (b.f32(-LN_2[0]), b.f32(-LN_2[1]));
    let (first, minus_lo) = (b.fma(n, hi, down), b.neg(s_lo));
    let second = b.fma(n, lo, minus_lo);
    let r = b.add(first, second);
    let lost = b.sub(first, r);
    let r_lo = b.add(lost, second);
    let u = expm1_near_zero(b, r);
    let low = b.fma(h, r_lo, h_lo);
    let low = b.fma(h, u, low);
    let y = b.add(h, low);
    let y = b.scale(y, n);
    let (below, other) = (b.lt(x, zero), b.sub(two, y));
    b.select(below, other, y)
}

/// Four random words of Philox 4x32-10 (Salmon et al. 2011) for a counter and a key.
pub fn philox4x32_10(b: &mut Builder, counter: [Val; 4], key: [Val; 2]) -> [Val; 4] {
    let (m0, m1) = (b.u32(0xd251_1f53), b.u32(0xcd9e_8d57));
    let (w0, w1) = (b.u32(0x9e37_79b9), b.u32(0xbb67_ae85));
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for round in 0..10 {
        if round > 0 {
            (k0, k1) = (b.uadd(k0, w0), b.uadd(k1, w1));
        }
        let (hi0, lo0) = (b.umulhi(m0, c0), b.umul(m0, c0));
        let (hi1, lo1) = (b.umulhi(m1, c2), b.umul(m1, c2));
        let (x0, x2) = (b.uxor(hi1, c1), b.uxor(hi0, c3));
        (c0, c1, c2, c3) = (b.uxor(x0, k0), lo1, b.uxor(x2, k1), lo0);
    }
    [c0, c1, c2, c3]
}

/// A random word as an f32 in 0..1, a multiple of 2^-24, each equally likely.
pub fn unit_interval(b: &mut Builder, word: Val) -> Val {
    let (eight, step) = (b.u32(8), b.f32(2f32.powi(-24)));
    let top = b.ushr(word, eight);
    let whole = b.itof(top);
    b.mul(whole, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{DType, dtype::Element};
    use crate::kernel::eval::{Memory, run};
    use crate::kernel::ir::Access;

    #[test]
    fn philox_gives_the_known_answers() {
        // Known-answer vectors of Random123.
        for (counter, key, want) in [
            ([0; 4], [0; 2], [0x6627e8d5u32, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([!0; 4], [!0; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ] {
            let mut b = Builder::new(&[1], &[false]);
            let y = b.output(DType::I64, 4);
            let (counter, key) = (counter.map(|c| b.u32(c)), key.map(|k| b.u32(k)));
            for (i, word) in philox4x32_10(&mut b, counter, key).into_iter().enumerate() {
                let word = b.utol(word);
                b.store(Access::strided(y, i as i64, &[1]), word);
            }
            let mut out = [0; 32];
            run(&b.finish().unwrap(), &[], &mut [Memory::Out(&mut out)]).unwrap();
            let words: Vec<u32> = i64::from_bytes(&out).iter().map(|&w| w as u32).collect();
            assert_eq!(words, want);
        }
    }

    #[test]
    fn random_words_stay_below_one() {
        let mut b = Builder::new(&[1], &[false]);
        let y = b.output(DType::F32, 3);
        for (i, word) in [0u32, 0x8000_00ff, u32::MAX].into_iter().enumerate() {
            let word = b.u32(word);
            let v = unit_interval(&mut b, word);
            b.store(Access::strided(y, i as i64, &[1]), v);
        }
        let mut out = [0; 12];
        run(&b.finish().unwrap(), &[], &mut [Memory::Out(&mut out)]).unwrap();
        assert_eq!(f32::from_bytes(&out), [0.0, 0.5, 1.0 - 2f32.powi(-24)]);
    }
}
