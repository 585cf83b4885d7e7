//! tan, the inverse functions, sinh and cosh over the scalar instructions of f32: as [`crate::kernel::math`].

use crate::kernel::build::Builder;
use crate::kernel::ir::Val;
use crate::kernel::math::{expm1_near_zero, polynomial, split_by_ln2, with_sign_of};
use crate::kernel::meaning::{ANGLE_BOUND, PI, ROUNDER};

/// π/2 as a sum of two, the first the nearest f32. That of π is twice as much.
const HALF_PI: [f32; 2] = [std::f32::consts::FRAC_PI_2, -4.371_139e-8];

/// tan r = r + r s p(s) with s = r², |r| up to π/4.
const TAN: &[f32] =
    &[0.0, 0.333_333_5, 0.133_326_77, 0.054_058_682, 0.021_287_538, 0.010_823_833, 0.000_102_919_71, 0.004_370_371];

/// The tangent; NaN at ±inf; 2.2 ulp.
pub fn tan(b: &mut Builder, x: Val) -> Val {
    let (one, zero, size) = (b.f32(1.0), b.f32(0.0), b.abs(x));
    // x = q π/2 + r, r in two, for small x; π/2 is half of the three parts of π.
    let (turns, rounder) = (b.f32(std::f32::consts::FRAC_2_PI), b.f32(ROUNDER));
    let t = b.fma(x, turns, rounder);
    let q = b.sub(t, rounder);
    let [p0, p1, p2] = PI.map(|p| b.f32(0.5 * p));
    let minus_q = b.neg(q);
    // Exact: x and q π/2 cancel on a common grid. Then the difference of two that may cancel again, exactly (Knuth's).
    let first = b.fma(minus_q, p0, x);
    let product = b.mul(q, p1);
    let minus_product = b.neg(product);
    let product_lo = b.fma(q, p1, minus_product);
    let s = b.sub(first, product);
    let part = b.sub(s, first);
    let (back, other) = (b.sub(s, part), b.add(product, part));
    let lost = b.sub(first, back);
    let lost = b.sub(lost, other);
    let lo = b.sub(lost, product_lo);
    let lo = b.fma(minus_q, p2, lo);
    let r = b.add(s, lo);
    let lost = b.sub(s, r);
    let lo = b.add(lost, lo);
    let (bits, low_bit) = (b.bits(t), b.u32(1));
    let odd = b.uand(bits, low_bit);
    let odd = b.ueq(odd, low_bit);
    // Large x: of the angles of sine and cosine, which add up to π/2 in magnitude, the smaller; with the signs of
    // both, whose quotient the tangent is.
    let (sine, cosine) = (b.sin_arg(x), b.cos_arg(x));
    let (sine_size, cosine_size) = (b.abs(sine), b.abs(cosine));
    let steep = b.lt(cosine_size, sine_size);
    let (direct, turned) = (flip_by(b, sine, cosine), flip_by(b, cosine, sine));
    let turned = b.neg(turned);
    let angle = b.select(steep, turned, direct);
    let bound = b.f32(ANGLE_BOUND);
    let small = b.lt(size, bound);
    let (r, lo, steep) = (b.select(small, r, angle), b.select(small, lo, zero), b.bselect(small, odd, steep));
    // tan r in two: r + w + lo (1 + tan² r).
    let square = b.mul(r, r);
    let p = polynomial(b, square, TAN);
    let w = b.mul(p, r);
    let rough = b.add(r, w);
    let slope = b.fma(rough, rough, one);
    let w = b.fma(lo, slope, w);
    let y = b.add(r, w);
    let lost = b.sub(r, y);
    let y_lo = b.add(lost, w);
    // -1 / tan r, and what is missing from it.
    let minus_one = b.f32(-1.0);
    let inverse = b.div(minus_one, y);
    let rest = b.fma(y, inverse, one);
    let rest = b.fma(y_lo, inverse, rest);
    let inverse = b.fma(inverse, rest, inverse);
    let y = b.select(steep, inverse, y);
    // The sums above lose the sign of -0.
    let is_zero = b.eq(x, zero);
    b.select(is_zero, x, y)
}

/// `x` with its sign flipped where `sign` is negative.
fn flip_by(b: &mut Builder, x: Val, sign: Val) -> Val {
    let (x, sign, mask) = (b.bits(x), b.bits(sign), b.u32(0x8000_0000));
    let sign = b.uand(sign, mask);
    let y = b.uxor(x, sign);
    b.from_bits(y)
}

/// atan z = z + z s p(s) with s = z², z in 0..=1.
const ATAN: &[f32] = &[
    0.0,
    -0.333_333,
    0.199_985_31,
    -0.142_640_5,
    0.109_511_55,
    -0.084_003_77,
    0.057_904_202,
    -0.031_124_06,
    0.010_885_485,
    -0.001_787_068_9,
];

fn atan_up_to_one(b: &mut Builder, z: Val) -> Val {
    let s = b.mul(z, z);
    let p = polynomial(b, s, ATAN);
    b.fma(p, z, z)
}

/// The arc tangent; 1.5 ulp.
pub fn atan(b: &mut Builder, x: Val) -> Val {
    let (size, one) = (b.abs(x), b.f32(1.0));
    // Above 1, π/2 - atan(1 / x).
    let (steep, inverse) = (b.lt(one, size), b.div(one, size));
    let z = b.select(steep, inverse, size);
    let y = atan_up_to_one(b, z);
    let [hi, lo] = HALF_PI.map(|p| b.f32(p));
    let rest = b.sub(y, lo);
    let turned = b.sub(hi, rest);
    let y = b.select(steep, turned, y);
    with_sign_of(b, y, x)
}

/// The angle of the point (x, y), in -π..=π, with the special cases of IEEE 754 `atan2`; 2.0 ulp where tested.
pub fn atan2(b: &mut Builder, y: Val, x: Val) -> Val {
    let (zero, one, inf) = (b.f32(0.0), b.f32(1.0), b.f32(f32::INFINITY));
    let (high, wide) = (b.abs(y), b.abs(x));
    let (top, bottom) = (b.min(high, wide), b.max(high, wide));
    let q = b.div(top, bottom);
    // 0 over 0 counts as 0, infinity over infinity as 1.
    let (none, both) = (b.eq(bottom, zero), b.eq(top, inf));
    let q = b.select(none, zero, q);
    let q = b.select(both, one, q);
    let r = atan_up_to_one(b, q);
    // One of r, π/2 - r, π/2 + r, π - r.
    let (bits, no_bits) = (b.bits(x), b.u32(0));
    let (steep, back) = (b.lt(wide, high), b.ilt(bits, no_bits));
    let [half_hi, half_lo] = HALF_PI.map(|p| b.f32(p));
    let [pi_hi, pi_lo] = HALF_PI.map(|p| b.f32(2.0 * p));
    let (far_hi, far_lo) = (b.select(back, pi_hi, zero), b.select(back, pi_lo, zero));
    let (hi, lo) = (b.select(steep, half_hi, far_hi), b.select(steep, half_lo, far_lo));
    let (away, minus) = (b.xor(steep, back), b.neg(r));
    let r = b.select(away, minus, r);
    let r = b.add(r, lo);
    let angle = b.add(hi, r);
    with_sign_of(b, angle, y)
}

/// asin t = t + t s p(s) with s = t², |t| up to 1/2.
const ASIN: &[f32] = &[0.0, 0.166_667_52, 0.074_953_1, 0.045_469_02, 0.024_185_503, 0.042_157_013];

/// Whether |x| is above 1/2; then √((1 - |x|) / 2), whose arc sine is half the arc cosine of |x|; and s p(s) of [`ASIN`] for
/// that root there, for x else.
fn asin_parts(b: &mut Builder, x: Val) -> (Val, Val, Val) {
    let (size, one, half) = (b.abs(x), b.f32(1.0), b.f32(0.5));
    let large = b.lt(half, size);
    let rest = b.sub(one, size);
    let (z, square) = (b.mul(rest, half), b.mul(x, x));
    let (root, s) = (b.sqrt(z), b.select(large, z, square));
    let p = polynomial(b, s, ASIN);
    (large, root, p)
}

/// The arc sine; NaN outside -1..=1; 1.5 ulp.
pub fn asin(b: &mut Builder, x: Val) -> Val {
    let (large, root, p) = asin_parts(b, x);
    let small = b.fma(p, x, x);
    // π/2 - 2 (root + p root), the difference of the larger two in two.
    let [hi, lo] = HALF_PI.map(|p| b.f32(p));
    let (twice, minus_two) = (b.add(root, root), b.f32(-2.0));
    let first = b.sub(hi, twice);
    let lost = b.sub(hi, first);
    let lost = b.sub(lost, twice);
    let factor = b.mul(minus_two, p);
    let rest = b.fma(factor, root, lo);
    let rest = b.add(rest, lost);
    let y = b.add(first, rest);
    let y = with_sign_of(b, y, x);
    b.select(large, y, small)
}

/// The arc cosine; NaN outside -1..=1; 1.5 ulp.
pub fn acos(b: &mut Builder, x: Val) -> Val {
    let (large, root, p) = asin_parts(b, x);
    let t = b.select(large, root, x);
    let y = b.fma(p, t, t);
    // 2y above 1/2, π - 2y below -1/2, π/2 - y between.
    let twice = b.add(y, y);
    let [half_hi, half_lo] = HALF_PI.map(|p| b.f32(p));
    let [pi_hi, pi_lo] = HALF_PI.map(|p| b.f32(2.0 * p));
    let (hi, lo) = (b.select(large, pi_hi, half_hi), b.select(large, pi_lo, half_lo));
    let angle = b.select(large, twice, y);
    let rest = b.sub(angle, lo);
    let down = b.sub(hi, rest);
    let half = b.f32(0.5);
    let ahead = b.lt(half, x);
    b.select(ahead, twice, down)
}

/// sinh x = x + x s p(s) with s = x², |x| up to 1.
const SINH: &[f32] = &[0.0, 0.166_666_67, 0.008_333_310_5, 0.000_198_428_96, 2.782_213_2e-6];

/// e^a / 4 as `power + power u`, and e^-a / 4, for the magnitude `a` of `x`; it counts as 89.5 from there on, where
/// both functions are infinite.
fn quarters(b: &mut Builder, x: Val) -> (Val, Val, Val) {
    let (size, most) = (b.abs(x), b.f32(89.5));
    let a = b.min(size, most);
    let (n, r) = split_by_ln2(b, a);
    let (u, quarter) = (expm1_near_zero(b, r), b.f32(0.25));
    let power = b.scale(quarter, n);
    let up = b.fma(power, u, power);
    let sixteenth = b.f32(0.0625);
    let down = b.div(sixteenth, up);
    (power, u, down)
}

/// The hyperbolic sine; 1.5 ulp.
pub fn sinh(b: &mut Builder, x: Val) -> Val {
    let s = b.mul(x, x);
    let p = polynomial(b, s, SINH);
    let small = b.fma(p, x, x);
    let (power, u, down) = quarters(b, x);
    let minus = b.neg(down);
    let rest = b.fma(power, u, minus);
    let half = b.add(power, rest);
    let y = b.add(half, half);
    let y = with_sign_of(b, y, x);
    let (size, one) = (b.abs(x), b.f32(1.0));
    let large = b.lt(one, size);
    b.select(large, y, small)
}

/// The hyperbolic cosine; 1.5 ulp.
pub fn cosh(b: &mut Builder, x: Val) -> Val {
    let (power, u, down) = quarters(b, x);
    let rest = b.fma(power, u, down);
    let half = b.add(power, rest);
    b.add(half, half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{DType, dtype::Element};
    use crate::kernel::eval::{Memory, run};
    use crate::kernel::ir::Access;

    fn angles(pairs: &[(f32, f32)]) -> Vec<f32> {
        let n = pairs.len();
        let mut b = Builder::new(&[n], &[false]);
        let (y, x, z) = (b.input(DType::F32, n), b.input(DType::F32, n), b.output(DType::F32, n));
        let (u, v) = (b.load(Access::strided(y, 0, &[1])), b.load(Access::strided(x, 0, &[1])));
        let angle = atan2(&mut b, u, v);
        b.store(Access::strided(z, 0, &[1]), angle);
        let (y, x): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
        let (y, x, mut z) = (f32::to_bytes(&y), f32::to_bytes(&x), vec![0; 4 * n]);
        run(&b.finish().unwrap(), &[], &mut [Memory::In(&y), Memory::In(&x), Memory::Out(&mut z)]).unwrap();
        f32::from_bytes(&z)
    }

    #[test]
    fn angles_of_points_near_and_far() {
        let mut state = 3u64;
        let mut word = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) as u32
        };
        let edges = [0.0f32, 1e-45, 1e-38, 0.5, 1.0, 1e10, f32::MAX, f32::INFINITY, f32::NAN];
        let edges: Vec<f32> = edges.into_iter().flat_map(|e| [e, -e]).collect();
        let mut pairs: Vec<(f32, f32)> = edges.iter().flat_map(|&y| edges.iter().map(move |&x| (y, x))).collect();
        for i in 0..60_000 {
            let y = f32::from_bits(word());
            let ratio = f32::from_bits(0x3600_0000 + word() % 0x1400_0000);
            pairs.push(if i % 3 == 0 {
                (y, f32::from_bits(word()))
            } else {
                (y, if i % 2 == 0 { y * ratio } else { -y * ratio })
            });
        }
        for (&(y, x), got) in pairs.iter().zip(angles(&pairs)) {
            let want = (y as f64).atan2(x as f64);
            if want.is_nan() || want == 0.0 {
                let same = got as f64 == want && got.is_sign_negative() == want.is_sign_negative();
                assert!(same || got.is_nan() && want.is_nan(), "{y:e}, {x:e}: {got:e}, not {want:e}");
                continue;
            }
            let exponent = ((want.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-126);
            let error = (got as f64 - want).abs() / 2f64.powi(exponent - 23);
            assert!(error <= 2.0, "{y:e}, {x:e}: {got:e}, not {want:e}: {error} ulp");
        }
    }
}
