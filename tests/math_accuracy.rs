//! exp, log, sin, … against f64 at sampled arguments and around every edge.

#[path = "../examples/math_ulp.rs"]
mod math_ulp;

/// Two million arguments: an odd step meets every exponent and all kinds of mantissas; then the
/// neighbourhoods of the formats' edges and of every limit in the formulas.
fn arguments() -> impl Iterator<Item = u32> {
    let edges = [0x0000_0000u32, 0x0080_0000, 0x3f80_0000, 0x3f40_0000, 0x3fc0_0000, 0x7f80_0000];
    let limits = [
        88.72284f32,
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
