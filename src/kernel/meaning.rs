//! Reference meanings of the instructions that take more than an expression.
//!
//! Everything is plain IEEE and integer arithmetic, stated so that a backend can repeat it bit for
//! bit; the constants are public for that. AVX-512 has [`scale`], [`mantissa`] and [`exponent`] as
//! instructions (`vscalefps`, `vgetmantps` with interval 3/4..3/2, `vgetexpps` adjusted).

/// IEEE 754-2019 minimum: NaN if either is NaN; -0 is below +0.
pub fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if a == b {
        // Only zeros compare equal with different bits: the sign of either makes it -0.
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    }
}

/// `a^b` modulo 2^64. A negative `b` gives the reciprocal cut to a whole number: 1 for 1, ±1 for -1, else 0 (for 0, too).
pub fn integer_power(a: i64, b: i64) -> i64 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => 1 - 2 * (b & 1),
            _ => 0,
        };
    }
    let (mut power, mut square, mut left) = (1i64, a, b);
    while left > 0 {
        if left & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    power
}

/// [`minimum`] of doubles.
pub fn minimum_f64(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    }
}

/// `a * 2^floor(n)` with one rounding, gradual underflow and overflow to infinity.
/// An infinite `n` stands for the factor +inf or +0, so `scale(0, inf)` and `scale(inf, -inf)` are NaN.
pub fn scale(a: f32, n: f32) -> f32 {
    let factor = if n == f32::INFINITY {
        f64::INFINITY
    } else if n == f32::NEG_INFINITY {
        0.0
    } else if n.is_nan() {
        f64::NAN
    } else {
        // Beyond 300 every result has overflowed or vanished; within, the f64 product is exact.
        let n = n.floor().clamp(-300.0, 300.0) as i64;
        f64::from_bits(((1023 + n) as u64) << 52)
    };
    (a as f64 * factor) as f32
}

/// `|a|` as `mantissa * 2^exponent` with the mantissa in 3/4..3/2, for normal and denormal numbers.
fn split(a: f32) -> (f32, f32) {
    // An f64 is never denormal here, so its fields tell.
    let bits = (a.abs() as f64).to_bits();
    let (field, fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1));
    let high = (fraction >> 51) as i64;
    let mantissa = f64::from_bits(((1023 - high) as u64) << 52 | fraction);
    (mantissa as f32, (field + high) as f32)
}

/// The mantissa of a positive number, in 3/4..3/2; 1 for ±0 and +inf, NaN for negative numbers.
pub fn mantissa(a: f32) -> f32 {
    if a.is_nan() || a < 0.0 {
        f32::NAN
    } else if a == 0.0 || a == f32::INFINITY {
        1.0
    } else {
        split(a).0
    }
}

/// The `e` for which `|a| / 2^e` lies in 3/4..3/2; -inf for ±0, +inf for ±inf.
pub fn exponent(a: f32) -> f32 {
    if a.is_nan() || a.is_infinite() {
        a.abs()
    } else if a == 0.0 {
        f32::NEG_INFINITY
    } else {
        split(a).1
    }
}

/// From this magnitude up [`sin_arg`] and [`cos_arg`] reduce in integers ([`turns`]).
pub const ANGLE_BOUND: f32 = 32768.0;
/// 1/π.
pub const INV_PI: f32 = f32::from_bits(0x3ea2_f983);
/// π is the sum of these three, to 73 bits. All are positive, so that subtracting 0 times each keeps a -0.
pub const PI: [f32; 3] = [f32::from_bits(0x4049_0fda), f32::from_bits(0x3422_2168), f32::from_bits(0x2842_34c5)];
/// Adding it rounds to an integer, which the low bits of the sum then show (1.5 * 2^23).
pub const ROUNDER: f32 = 12582912.0;

/// Reduced angles are at most this: π/2 and what rounding the number of half turns may add.
pub const ANGLE_LIMIT: f32 = 1.575;

/// An angle of at most [`ANGLE_LIMIT`] with the same sine as `a`; keeps the sign of zero.
pub fn sin_arg(a: f32) -> f32 {
    if a.abs() < ANGLE_BOUND {
        let t = a.mul_add(INV_PI, ROUNDER);
        let r = subtract_turns(a, t - ROUNDER);
        // sin(kπ + r) = (-1)^k sin(r).
        f32::from_bits(r.to_bits() ^ t.to_bits() << 31)
    } else if a.is_finite() {
        let r = sin_of_turns(turns(a));
        f32::from_bits(r.to_bits() ^ a.to_bits() & 0x8000_0000)
    } else {
        f32::NAN
    }
}

/// An angle of at most [`ANGLE_LIMIT`] whose sine is the cosine of `a`.
pub fn cos_arg(a: f32) -> f32 {
    if a.abs() < ANGLE_BOUND {
        let t = a.mul_add(INV_PI, -0.5) + ROUNDER;
        let r = subtract_turns(a, (t - ROUNDER) + 0.5);
        // cos(kπ + π/2 + r) = (-1)^(k+1) sin(r).
        f32::from_bits(r.to_bits() ^ !t.to_bits() << 31)
    } else if a.is_finite() {
        // cos(πv) = sin(π(v + 1/2)).
        sin_of_turns(turns(a).wrapping_add(1 << 62))
    } else {
        f32::NAN
    }
}

/// `a - q * π`. The first step is exact, since `a` and `q * PI[0]` cancel on a common grid.
fn subtract_turns(a: f32, q: f32) -> f32 {
    let r = q.mul_add(-PI[0], a);
    let r = q.mul_add(-PI[1], r);
    q.mul_add(-PI[2], r)
}

/// Bits of 1/π, 32 before the binary point.
pub const INV_PI_BITS: [u32; 8] =
    [0, 0x517c_c1b7, 0x2722_0a94, 0xfe13_abe8, 0xfa9a_6ee0, 0x6db1_4acc, 0x9e21_c820, 0xff28_b1d5];

/// `|a| / π mod 2`, in units of 2^-63, for finite `|a| >= ANGLE_BOUND` (Payne and Hanek's reduction).
pub fn turns(a: f32) -> u64 {
    let bits = a.to_bits() & 0x7fff_ffff;
    let integer = (bits & 0x007f_ffff | 0x0080_0000) as u64;
    // a = integer * 2^e; bits of 1/π worth 2^(1-e) and more give multiples of 2. Of the others 96 are enough:
    // no f32 is nearer than 2^-34 to a multiple of π/2, and those left out are worth 2^-71 together.
    let e = (bits >> 23) as i32 - 150;
    let first = (31 + e).clamp(0, 159) as usize;
    let word = |i: usize| {
        let at = first + 32 * i;
        let pair = (INV_PI_BITS[at / 32] as u64) << 32 | INV_PI_BITS.get(at / 32 + 1).copied().unwrap_or(0) as u64;
        pair << (at % 32) >> 32
    };
    let low = word(1) * integer + ((word(2) * integer) >> 32);
    ((word(0) * integer) << 32).wrapping_add(low)
}

/// The angle in -π/2..π/2 with the sine of `π * turns`.
pub fn sin_of_turns(turns: u64) -> f32 {
    let mut t = turns as i64;
    if !(-(1 << 62)..=1 << 62).contains(&t) {
        // sin(πv) = sin(π(1 - v)) = sin(π(-1 - v)).
        t = i64::MIN.wrapping_sub(t);
    }
    const UNIT: f64 = std::f64::consts::PI / (1u64 << 63) as f64;
    (t as f64 * UNIT) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_powers_wrap() {
        for a in [-7i64, -2, -1, 0, 1, 2, 3, 10, i64::MAX, i64::MIN] {
            let mut want = 1i64;
            for b in 0..70 {
                assert_eq!(integer_power(a, b), want, "{a}^{b}");
                want = want.wrapping_mul(a);
            }
            let reciprocal = |b: i64| if a.abs() == 1 { a.pow((b & 1) as u32) } else { 0 };
            for b in [-1, -2, -3, i64::MIN, i64::MIN + 1].into_iter().filter(|_| a != i64::MIN) {
                assert_eq!(integer_power(a, b), reciprocal(b), "{a}^{b}");
            }
        }
    }

    #[test]
    fn scale_is_exact_and_gradual() {
        assert_eq!(scale(3.0, 4.9), 48.0);
        assert_eq!(scale(3.0, -0.5), 1.5);
        assert_eq!(scale(1.5, -149.0).to_bits(), 2, "ties to even");
        assert_eq!(scale(1.0, -150.0).to_bits(), 0);
        assert_eq!(scale(f32::from_bits(1), 276.0), 2f32.powi(127));
        assert_eq!(scale(-f32::MAX, 1.0), f32::NEG_INFINITY);
        assert_eq!(scale(f32::MAX, -1e30), 0.0);
        assert_eq!(scale(-2.0, f32::NEG_INFINITY).to_bits(), (-0.0f32).to_bits());
        assert!(scale(0.0, f32::INFINITY).is_nan() && scale(1.0, f32::NAN).is_nan());
        assert!(scale(f32::INFINITY, f32::NEG_INFINITY).is_nan());
    }

    #[test]
    fn mantissa_and_exponent_give_the_number_back() {
        for bits in (0..0x7f80_0000).step_by(4099).chain([1, 2, 3, 0x007f_ffff, 0x0080_0000, 0x3f40_0000, 0x3f3f_ffff])
        {
            let a = f32::from_bits(bits);
            if a == 0.0 {
                continue;
            }
            let (m, e) = (mantissa(a), exponent(a));
            assert!((0.75..1.5).contains(&m), "{a:e}: {m}");
            assert_eq!(m as f64 * (e as f64).exp2(), a as f64);
            assert_eq!(exponent(-a), e);
        }
        assert_eq!((mantissa(0.0), exponent(0.0)), (1.0, f32::NEG_INFINITY));
        assert_eq!((mantissa(-0.0), exponent(-0.0)), (1.0, f32::NEG_INFINITY));
        assert_eq!((mantissa(f32::INFINITY), exponent(f32::INFINITY)), (1.0, f32::INFINITY));
        assert!(mantissa(-1.0).is_nan() && mantissa(f32::NAN).is_nan() && exponent(f32::NAN).is_nan());
        assert!(mantissa(f32::NEG_INFINITY).is_nan());
    }

    #[test]
    fn reduced_angles_have_the_sine() {
        // std's f64 functions are right to about 2^-52 of an f32's exact angle.
        let check = |a: f32| {
            for (r, want) in [(sin_arg(a), (a as f64).sin()), (cos_arg(a), (a as f64).cos())] {
                assert!(r.abs() <= ANGLE_LIMIT, "{a:e}: {r}");
                let error = ((r as f64).sin() - want).abs() / want.abs().max(f64::MIN_POSITIVE);
                // At most two roundings.
                assert!(error < 2.01 * 2f64.powi(-24), "{a:e}: {r} {error:e}");
            }
        };
        for bits in (0x3000_0000..0x7f80_0000).step_by(1009) {
            check(f32::from_bits(bits));
            check(-f32::from_bits(bits));
        }
        // Nearest to a multiple of π/2 among all f32; the bound; the largest.
        for a in [1.6367e19f32, f32::from_bits(0x4a43_3c6b), ANGLE_BOUND, 32767.998, f32::MAX] {
            check(a);
        }
        assert_eq!(sin_arg(-0.0).to_bits(), (-0.0f32).to_bits());
        assert!(sin_arg(f32::INFINITY).is_nan() && cos_arg(f32::NEG_INFINITY).is_nan() && cos_arg(f32::NAN).is_nan());
    }
}
