//! exp, log, sin, … against f64 at sampled arguments and around every edge.

#[path = "../examples/math_ulp.rs"]
mod math_ulp;

/// Two million arguments: an odd step meets every exponent and all kinds of mantissas; then the
/// neighbourhoods of the formats' edges and of every limit in the formulas, and where walks over all arguments found the largest
/// errors: 2.1152 ulp of tan at 3.732468e21.
fn arguments() -> impl Iterator<Item = u32> {
    let edges = [0x0000_0000u32, 0x0080_0000, 0x3f80_0000, 0x3f40_0000, 0x3fc0_0000, 0x7f80_0000];
    let limits = [
        3.732468e21f32,
        1.5440078e36,
        88.72284,
        89.0,
        87.33655,
        103.97208,
        104.0,
        128.0,
        126.0,
        149.0,
        150.0,
        0.8,
        4.0,
        10.0,
        0.55,
        2.9802322e-8,
        0.346_573_6,
        std::f32::consts::FRAC_PI_2,
        std::f32::consts::PI,
        32768.0,
        1.6367e19,
    ];
    let near = edges.into_iter().chain(limits.map(f32::to_bits)).flat_map(|e| {
        (0..2000u32).flat_map(move |d| [e, e ^ 0x8000_0000].map(|e| e.wrapping_add(d).wrapping_sub(1000)))
    });
    (0..1u64 << 21).map(|i| (i * 2047) as u32).chain(near)
}

#[test]
fn formulas_are_as_accurate_as_stated() {
    for f in math_ulp::FUNCTIONS {
        let (error, at) = f.worst(arguments());
        assert!(error <= f.limit, "{}: {error:.3} ulp at {at:e}, stated {}", f.name, f.limit);
    }
}

/// The functions of f64 against the standard library's, which are the platform's: each is good to about an ulp.
#[test]
fn functions_of_doubles_are_accurate() {
    use stepgraph::kernel::Instr;
    type Reference = fn(f64) -> f64;
    type OfTwo = fn(f64, f64) -> f64;
    let one: [(Instr, Reference); 18] = [
        (Instr::DExp, f64::exp),
        (Instr::DExp2, f64::exp2),
        (Instr::DExpm1, f64::exp_m1),
        (Instr::DLog, f64::ln),
        (Instr::DLog2, f64::log2),
        (Instr::DLog10, f64::log10),
        (Instr::DLog1p, f64::ln_1p),
        (Instr::DSin, f64::sin),
        (Instr::DCos, f64::cos),
        (Instr::DTan, f64::tan),
        (Instr::DSinh, f64::sinh),
        (Instr::DCosh, f64::cosh),
        (Instr::DTanh, f64::tanh),
        (Instr::DAsin, f64::asin),
        (Instr::DAcos, f64::acos),
        (Instr::DAtan, f64::atan),
        (Instr::DSqrt, f64::sqrt),
        (Instr::DAbs, f64::abs),
    ];
    let ulps = |got: f64, want: f64| {
        if got == want || got.is_nan() && want.is_nan() {
            return 0.0;
        }
        (got - want).abs() / (f64::from_bits(want.abs().to_bits() + 1) - want.abs())
    };
    // Every exponent, both signs, mantissas that have no pattern.
    let arguments = || (0..200_000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i << 63));
    // Also the range where most functions do something.
    let middle = || (0..200_000u64).map(|i| (i as f64 - 100_000.0) * 3.7e-4);
    for (instr, reference) in one {
        for x in arguments().chain(middle()).chain([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 5e-324]) {
            let got = f64::from_bits(instr.eval(&[x.to_bits()]));
            let error = ulps(got, reference(x));
            assert!(error <= 2.5, "{}({x:e}) = {got:e}: {error} ulp", instr.name());
        }
    }
    let two: [(Instr, OfTwo); 3] = [(Instr::DPow, f64::powf), (Instr::DAtan2, f64::atan2), (Instr::DRem, |x, y| x % y)];
    for (instr, reference) in two {
        for (x, y) in arguments().zip(arguments().skip(77)).chain(middle().zip(middle().skip(5_000))) {
            let got = f64::from_bits(instr.eval(&[x.to_bits(), y.to_bits()]));
            let error = ulps(got, reference(x, y));
            assert!(error <= 2.5, "{}({x:e}, {y:e}) = {got:e}: {error} ulp", instr.name());
        }
    }
    // The standard library has no error function: values that Python's `math` gives.
    let erf = |x: f64| f64::from_bits(Instr::DErf.eval(&[x.to_bits()]));
    let erfc = |x: f64| f64::from_bits(Instr::DErfc.eval(&[x.to_bits()]));
    for (x, want) in [(0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (2.0, 0.995_322_265_018_952_7)] {
        assert!(ulps(erf(x), want) <= 2.0 && ulps(erf(-x), -want) <= 2.0, "erf({x}) = {:e}", erf(x));
    }
    for (x, want) in
        [(0.5, 0.479_500_122_186_953_5), (3.0, 2.209_049_699_858_544e-5), (10.0, 2.088_487_583_762_545e-45)]
    {
        assert!(ulps(erfc(x), want) <= 2.0, "erfc({x}) = {:e}", erfc(x));
    }
}
