//! x^y over the scalar instructions: the logarithm and its product with y as sums of two f32.

use crate::kernel::build::Builder;
use crate::kernel::ir::Val;
use crate::kernel::math::{EXP2, clamp, polynomial, with_sign_of};

/// log2 of the positive `x` as a sum of two, to about 2^-33; not for 0 and infinity.
fn log2_in_two(b: &mut Builder, x: Val) -> (Val, Val) {
    // With s = (m - 1) / (m + 1) in two, log2 m = 2/ln 2 atanh s = k s (1 + s²/3 + …).
    let (m, e) = (b.mantissa(x), b.exponent(x));
    let one = b.f32(1.0);
    let (top, bottom) = (b.sub(m, one), b.add(m, one));
    let back = b.sub(bottom, one);
    let bottom_lo = b.sub(m, back);
    let inverse = b.div(one, bottom);
    let s = b.mul(top, inverse);
    let minus_s = b.neg(s);
    let rest = b.fma(minus_s, bottom, top);
    let rest = b.fma(minus_s, bottom_lo, rest);
    let s_lo = b.mul(rest, inverse);
    let q = b.mul(s, s);
    let minus_q = b.neg(q);
    let q_lo = b.fma(s, s, minus_q);
    let twice = b.add(s, s);
    let q_lo = b.fma(twice, s_lo, q_lo);
    // u = s²/3 + … with the 1/3 apart, in two.
    let w = polynomial(b, q, &[0.0, 0.199_999_97, 0.142_862_34, 0.110_777_66, 0.099_603_98]);
    let (third, third_lo) = (b.f32(1.0 / 3.0), b.f32(-9.934_108e-9));
    let p = b.add(third, w);
    let p_lo = b.sub(third, p);
    let p_lo = b.add(p_lo, w);
    let p_lo = b.add(p_lo, third_lo);
    let u = b.mul(q, p);
    let minus_u = b.neg(u);
    let u_lo = b.fma(q, p, minus_u);
    let u_lo = b.fma(q, p_lo, u_lo);
    let u_lo = b.fma(q_lo, p, u_lo);
    // k s (1 + u) in two.
    let (k, k_lo) = (b.f32(2.885_39), b.f32(3.851_926e-8));
    let ks = b.mul(k, s);
    let minus_ks = b.neg(ks);
    let ks_lo = b.fma(k, s, minus_ks);
    let ks_lo = b.fma(k_lo, s, ks_lo);
    let ks_lo = b.fma(k, s_lo, ks_lo);
    let v = b.mul(ks, u);
    let minus_v = b.neg(v);
    let v_lo = b.fma(ks, u, minus_v);
    let v_lo = b.fma(ks, u_lo, v_lo);
    let v_lo = b.fma(ks_lo, u, v_lo);
    let lo = b.add(ks_lo, v_lo);
    let hi = b.add(ks, v);
    let lost = b.sub(ks, hi);
    let lost = b.add(lost, v);
    let lo = b.add(lost, lo);
    // e is 0 or the larger, so the sum of e and hi is exact in two.
    let sum = b.add(e, hi);
    let lost = b.sub(e, sum);
    let lost = b.add(lost, hi);
    let lo = b.add(lost, lo);
    // The second is to be below the last place of the first.
    let log = b.add(sum, lo);
    let rest = b.sub(sum, log);
    (log, b.add(rest, lo))
}

/// x^y with the special cases of IEEE 754 `pow`; 1.0 ulp where tested.
pub fn pow(b: &mut Builder, x: Val, y: Val) -> Val {
    let (zero, one, inf, half) = (b.f32(0.0), b.f32(1.0), b.f32(f32::INFINITY), b.f32(0.5));
    let size = b.abs(x);
    // 2^(y log2 |x|), the product in two.
    let (l, l_lo) = log2_in_two(b, size);
    let z = b.mul(y, l);
    let minus_z = b.neg(z);
    let z_lo = b.fma(y, l, minus_z);
    let z_lo = b.fma(y, l_lo, z_lo);
    // Where the first is clamped the second means nothing, and a half changes nothing there.
    let z = clamp(b, z, -160.0, 160.0);
    let z_lo = clamp(b, z_lo, -0.5, 0.5);
    let n = b.round(z);
    let r = b.sub(z, n);
    let r = b.add(r, z_lo);
    let p = polynomial(b, r, EXP2);
    let usual = b.scale(p, n);
    // Zeros and infinities: 0 or infinity, whichever way |x| and y point.
    let y_size = b.abs(y);
    let (x_zero, x_inf, y_inf) = (b.eq(size, zero), b.eq(size, inf), b.eq(y_size, inf));
    let edge = b.or(x_zero, x_inf);
    let edge = b.or(edge, y_inf);
    let (large, down) = (b.lt(one, size), b.lt(y, zero));
    let up = b.xor(large, down);
    let extreme = b.select(up, inf, zero);
    let result = b.select(edge, extreme, usual);
    // Negative bases: a sign for odd y, NaN for finite ones and y between integers.
    let (whole, y_half) = (b.trunc(y), b.mul(y, half));
    let half_whole = b.trunc(y_half);
    let (is_whole, not_even) = (b.eq(whole, y), b.ne(half_whole, y_half));
    let odd = b.and(is_whole, not_even);
    let signed = with_sign_of(b, result, x);
    let result = b.select(odd, signed, result);
    let (negative, fraction, finite) = (b.lt(x, zero), b.not(is_whole), b.lt(size, inf));
    let undefined = b.and(negative, fraction);
    let undefined = b.and(undefined, finite);
    let nan = b.f32(f32::NAN);
    let result = b.select(undefined, nan, result);
    // NaN operands, which comparisons took for ordinary; then what is 1 even so.
    let either = b.add(x, y);
    let (x_nan, y_nan) = (b.ne(x, x), b.ne(y, y));
    let any_nan = b.or(x_nan, y_nan);
    let result = b.select(any_nan, either, result);
    let (unit, none, minus_one) = (b.eq(x, one), b.eq(y, zero), b.f32(-1.0));
    let is_one = b.or(unit, none);
    let turned = b.eq(x, minus_one);
    let turned = b.and(turned, y_inf);
    let is_one = b.or(is_one, turned);
    b.select(is_one, one, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{DType, dtype::Element};
    use crate::kernel::eval::{Memory, run};
    use crate::kernel::ir::Access;

    fn powers(pairs: &[(f32, f32)]) -> Vec<f32> {
        let n = pairs.len();
        let mut b = Builder::new(&[n], &[false]);
        let (x, y, z) = (b.input(DType::F32, n), b.input(DType::F32, n), b.output(DType::F32, n));
        let (u, v) = (b.load(Access::strided(x, 0, &[1])), b.load(Access::strided(y, 0, &[1])));
        let p = pow(&mut b, u, v);
        b.store(Access::strided(z, 0, &[1]), p);
        let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
        let (x, y, mut z) = (f32::to_bytes(&x), f32::to_bytes(&y), vec![0; 4 * n]);
        let k = b.finish().unwrap();
        run(&k, &[], &mut [Memory::In(&x), Memory::In(&y), Memory::Out(&mut z)]).unwrap();
        f32::from_bytes(&z)
    }

    #[test]
    fn every_pair_of_edges() {
        let edges = [
            0.0,
            1.0,
            2.0,
            3.0,
            0.5,
            1.5,
            0.999_999_94,
            1.000_000_1,
            1e-40,
            1e-45,
            1e10,
            16777215.0,
            16777216.0,
            33554432.0,
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::INFINITY,
            f32::NAN,
        ];
        let signed: Vec<f32> = edges.into_iter().flat_map(|e| [e, -e]).collect();
        let pairs: Vec<(f32, f32)> = signed.iter().flat_map(|&x| signed.iter().map(move |&y| (x, y))).collect();
        for (&(x, y), got) in pairs.iter().zip(powers(&pairs)) {
            let want = (x as f64).powf(y as f64) as f32;
            let near = (got.to_bits() as i64 - want.to_bits() as i64).abs() <= 2;
            assert!(near || got.is_nan() && want.is_nan(), "{x:e} ^ {y:e}: {got:e}, not {want:e}");
        }
    }

    #[test]
    fn accuracy_over_the_whole_range() {
        let mut state = 1u64;
        let mut word = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) as u32
        };
        let mut pairs = Vec::new();
        while pairs.len() < 50_000 {
            // Bases of every size, and as often near 1; exponents that spread the results over all of f32.
            let x = match word() % 3 {
                0 => f32::from_bits(word() & 0x7fff_ffff),
                1 => f32::from_bits(0x3f00_0000 + word() % 0x0100_0000),
                _ => f32::from_bits(0x3f7f_0000 + word() % 0x0002_0000),
            };
            let y = ((word() as f64 / 2f64.powi(32) * 280.0 - 150.0) / (x as f64).log2()) as f32;
            if x.is_finite() && x > 0.0 && y.is_finite() {
                pairs.push((x, y));
            }
        }
        let mut worst = (0.0, (0.0, 0.0));
        for (&(x, y), got) in pairs.iter().zip(powers(&pairs)) {
            let limit = 2f64.powi(128);
            let want = (x as f64).powf(y as f64).min(limit);
            let got = if got.is_infinite() { limit } else { got as f64 };
            let exponent = ((want.to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
            let error = (got - want).abs() / 2f64.powi(exponent - 23);
            if error > worst.0 {
                worst = (error, (x, y));
            }
        }
        assert!(worst.0 <= 1.0, "{worst:?}");
    }
}
