//! Elementwise functions at the edges of their domains: NaN, zeros of both signs, infinities, ties, zero divisors, shift
//! counts; for every dtype that takes them, eagerly, traced and in a fused chain, on every instruction set.
//!
//! What is expected is that of IEEE 754-2019 and of PyTorch, written out by hand.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

use stepgraph::{CpuOptions, DType, Device, Result, Tensor, jit};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
type Cases<C> = &'static [C];
type OfDType = (DType, &'static str, Binary, Cases<(i64, i64, i64)>);
type Table<F, C> = &'static [(&'static str, F, Cases<C>)];

/// A function, and (argument, result) pairs. NaN gives NaN besides.
const UNARY: Table<Unary, (f64, f64)> = &[
    ("exp", |x| x.exp(), &[(-INF, 0.0), (INF, INF), (0.0, 1.0), (-0.0, 1.0), (1.0, std::f64::consts::E)]),
    ("exp2", |x| x.exp2(), &[(-INF, 0.0), (INF, INF), (-0.0, 1.0), (3.0, 8.0), (-1.0, 0.5), (-14.0, 6.103515625e-5)]),
    ("expm1", |x| x.expm1(), &[(-INF, -1.0), (INF, INF), (0.0, 0.0), (-0.0, -0.0)]),
    ("log", |x| x.log(), &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (-INF, NAN), (INF, INF)]),
    ("log2", |x| x.log2(), &[(0.0, -INF), (-0.0, -INF), (8.0, 3.0), (0.25, -2.0), (-1.0, NAN), (INF, INF)]),
    ("log10", |x| x.log10(), &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (1000.0, 3.0), (-1.0, NAN), (INF, INF)]),
    ("log1p", |x| x.log1p(), &[(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (-INF, NAN)]),
    ("sqrt", |x| x.sqrt(), &[(0.0, 0.0), (-0.0, -0.0), (4.0, 2.0), (-1.0, NAN), (INF, INF), (-INF, NAN)]),
    ("rsqrt", |x| x.rsqrt(), &[(4.0, 0.5), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN)]),
    ("recip", |x| x.recip(), &[(4.0, 0.25), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0)]),
    ("sigmoid", |x| x.sigmoid(), &[(-INF, 0.0), (INF, 1.0), (0.0, 0.5), (-0.0, 0.5)]),
    ("erf", |x| x.erf(), &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)]),
    ("erfc", |x| x.erfc(), &[(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0)]),
    ("sin", |x| x.sin(), &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)]),
    ("cos", |x| x.cos(), &[(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)]),
    ("tan", |x| x.tan(), &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)]),
    ("asin", |x| x.asin(), &[(0.0, 0.0), (-0.0, -0.0), (1.0, FRAC_PI_2), (-1.0, -FRAC_PI_2), (1.5, NAN), (-INF, NAN)]),
    ("acos", |x| x.acos(), &[(1.0, 0.0), (-1.0, PI), (0.0, FRAC_PI_2), (-0.0, FRAC_PI_2), (1.5, NAN), (INF, NAN)]),
    ("atan", |x| x.atan(), &[(0.0, 0.0), (-0.0, -0.0), (INF, FRAC_PI_2), (-INF, -FRAC_PI_2), (-1.0, -FRAC_PI_4)]),
    ("sinh", |x| x.sinh(), &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)]),
    ("cosh", |x| x.cosh(), &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF)]),
    ("tanh", |x| x.tanh(), &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)]),
    ("floor", |x| x.floor(), &[(-0.5, -1.0), (0.5, 0.0), (-0.0, -0.0), (2.0, 2.0), (-INF, -INF), (INF, INF)]),
    ("ceil", |x| x.ceil(), &[(-0.5, -0.0), (0.5, 1.0), (-0.0, -0.0), (0.0, 0.0), (2.0, 2.0), (INF, INF)]),
    (
        "round",
        |x| x.round(),
        &[(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-1.5, -2.0), (0.75, 1.0), (-0.0, -0.0), (INF, INF)],
    ),
    ("trunc", |x| x.trunc(), &[(-0.75, -0.0), (0.75, 0.0), (-2.5, -2.0), (-0.0, -0.0), (-INF, -INF)]),
    ("sign", |x| x.sign(), &[(-0.25, -1.0), (0.25, 1.0), (0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)]),
    ("abs", |x| x.abs(), &[(-0.0, 0.0), (-INF, INF), (-2.0, 2.0)]),
    ("neg", |x| x.neg(), &[(0.0, -0.0), (-0.0, 0.0), (INF, -INF)]),
    ("relu", |x| x.relu(), &[(-0.0, 0.0), (0.0, 0.0), (-INF, 0.0), (INF, INF)]),
    ("clamp", |x| x.clamp(-1.0, 0.5), &[(-INF, -1.0), (INF, 0.5), (0.25, 0.25), (-1.0, -1.0), (-0.0, -0.0)]),
    ("clamp, bounds crossed", |x| x.clamp(1.0, -1.0), &[(-INF, -1.0), (0.0, -1.0), (INF, -1.0)]),
    ("square", |x| x.powi(2), &[(-3.0, 9.0), (-0.0, 0.0), (-INF, INF)]),
    ("cube", |x| x.powi(3), &[(-3.0, -27.0), (-0.0, -0.0), (-INF, -INF)]),
    ("powi(4)", |x| x.powi(4), &[(-2.0, 16.0), (-0.0, 0.0)]),
    ("powi(-1)", |x| x.powi(-1), &[(-4.0, -0.25), (-0.0, -INF), (0.0, INF), (-INF, -0.0)]),
    ("powi(5)", |x| x.powi(5), &[(-2.0, -32.0), (-0.0, -0.0), (-INF, -INF)]),
    ("pow(0.5)", |x| x.pow(0.5), &[(4.0, 2.0), (-0.0, 0.0), (-INF, INF), (-1.0, NAN)]),
];

/// Tests: what they say of NaN, ±inf, ±0, 1.
const TESTS: &[(&str, Unary, [bool; 6])] = &[
    ("is_nan", |x| x.is_nan(), [true, false, false, false, false, false]),
    ("is_inf", |x| x.is_inf(), [false, true, true, false, false, false]),
    ("is_finite", |x| x.is_finite(), [false, false, false, true, true, true]),
];

/// A function, and (left, right, result).
const BINARY: Table<Binary, (f64, f64, f64)> = &[
    (
        "pow",
        |x, y| x.pow(y),
        &[
            (0.0, -1.0, INF),
            (-0.0, -1.0, -INF),
            (-0.0, -2.0, INF),
            (-0.0, 3.0, -0.0),
            (-0.0, 0.5, 0.0),
            (-8.0, 0.25, NAN),
            (-2.0, 3.0, -8.0),
            (-2.0, -2.0, 0.25),
            (1.0, NAN, 1.0),
            (NAN, 0.0, 1.0),
            (NAN, -0.0, 1.0),
            (NAN, 1.0, NAN),
            (2.0, NAN, NAN),
            (0.0, 0.0, 1.0),
            (INF, -1.0, 0.0),
            (-INF, 3.0, -INF),
            (-INF, 2.0, INF),
            (-INF, -3.0, -0.0),
            (0.5, INF, 0.0),
            (2.0, -INF, 0.0),
            (-2.0, INF, INF),
            (-1.0, INF, 1.0),
            (-1.0, -INF, 1.0),
            (INF, 0.0, 1.0),
        ],
    ),
    (
        "atan2",
        |y, x| y.atan2(x),
        &[
            (0.0, 1.0, 0.0),
            (-0.0, 1.0, -0.0),
            (0.0, -1.0, PI),
            (-0.0, -1.0, -PI),
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, -0.0),
            (0.0, -0.0, PI),
            (-0.0, -0.0, -PI),
            (1.0, 0.0, FRAC_PI_2),
            (-1.0, -0.0, -FRAC_PI_2),
            (1.0, 1.0, FRAC_PI_4),
            (-2.0, -2.0, -3.0 * FRAC_PI_4),
            (INF, 1.0, FRAC_PI_2),
            (-INF, -1.0, -FRAC_PI_2),
            (1.0, INF, 0.0),
            (-1.0, INF, -0.0),
            (1.0, -INF, PI),
            (-1.0, -INF, -PI),
            (INF, INF, FRAC_PI_4),
            (INF, -INF, 3.0 * FRAC_PI_4),
            (-INF, INF, -FRAC_PI_4),
            (-INF, -INF, -3.0 * FRAC_PI_4),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (NAN, INF, NAN),
        ],
    ),
    (
        "fmod",
        |x, y| x.fmod(y),
        &[
            (9.0, 4.0, 1.0),
            (-9.0, 4.0, -1.0),
            (9.0, -4.0, 1.0),
            (-9.0, -4.0, -1.0),
            (5.5, 2.0, 1.5),
            (6.0, 3.0, 0.0),
            (-6.0, 3.0, -0.0),
            (-0.0, 1.0, -0.0),
            (5.0, INF, 5.0),
            (-5.0, INF, -5.0),
            (5.0, 0.0, NAN),
            (INF, 2.0, NAN),
            (1.0, NAN, NAN),
            (NAN, 1.0, NAN),
        ],
    ),
    (
        "rem",
        |x, y| x.rem(y),
        &[
            (9.0, 4.0, 1.0),
            (-9.0, 4.0, 3.0),
            (9.0, -4.0, -3.0),
            (-9.0, -4.0, -1.0),
            (-5.5, 2.0, 0.5),
            (6.0, -3.0, 0.0),
            (-6.0, 3.0, -0.0),
            (5.0, INF, 5.0),
            (-5.0, INF, INF),
            (5.0, -INF, -INF),
            (5.0, 0.0, NAN),
            (-INF, 2.0, NAN),
            (1.0, NAN, NAN),
            (NAN, 1.0, NAN),
        ],
    ),
    (
        "maximum",
        |x, y| x.maximum(y),
        &[(0.0, -0.0, 0.0), (-0.0, 0.0, 0.0), (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, NAN, NAN), (-INF, 2.0, 2.0)],
    ),
    (
        "minimum",
        |x, y| x.minimum(y),
        &[(0.0, -0.0, -0.0), (-0.0, 0.0, -0.0), (NAN, 1.0, NAN), (1.0, NAN, NAN), (-INF, NAN, NAN), (INF, 2.0, 2.0)],
    ),
    ("clamp_min", |x, y| x.clamp_min(y), &[(NAN, 0.0, NAN), (0.0, NAN, NAN), (1.0, 2.0, 2.0), (3.0, 2.0, 3.0)]),
    ("clamp_max", |x, y| x.clamp_max(y), &[(NAN, 0.0, NAN), (0.0, NAN, NAN), (1.0, 2.0, 1.0), (3.0, 2.0, 2.0)]),
    (
        "div",
        |x, y| x.div(y),
        &[(1.0, 0.0, INF), (1.0, -0.0, -INF), (0.0, 0.0, NAN), (INF, INF, NAN), (-0.0, 2.0, -0.0)],
    ),
];

/// Of i64, each value within i8.
const INTEGERS: Table<Binary, (i64, i64, i64)> = &[
    ("div", |x, y| x.div(y), &[(-9, 4, -2), (9, -4, -2), (-9, -4, 2), (5, 0, 0), (-5, 0, 0)]),
    ("fmod", |x, y| x.fmod(y), &[(-9, 4, -1), (9, -4, 1), (-9, -4, -1), (5, 0, 0), (8, 4, 0)]),
    ("rem", |x, y| x.rem(y), &[(-9, 4, 3), (9, -4, -3), (-9, -4, -1), (5, 0, 0), (-8, 4, 0)]),
    (
        "pow",
        |x, y| x.pow(y),
        &[(3, 4, 81), (-2, 3, -8), (0, 0, 1), (5, 0, 1), (1, -3, 1), (-1, -3, -1), (-1, -4, 1), (2, -1, 0), (0, -1, 0)],
    ),
    ("shl", |x, y| x.shl(y), &[(5, 3, 40), (-3, 2, -12), (1, -1, 0), (7, 0, 7), (1, 64, 0), (-1, 127, 0)]),
    (
        "shr",
        |x, y| x.shr(y),
        &[(40, 3, 5), (-8, 1, -4), (-1, 5, -1), (-8, 70, -1), (8, 70, 0), (-8, -1, -1), (8, -1, 0)],
    ),
    ("and", |x, y| x.and(y), &[(12, 10, 8), (-1, 7, 7), (-4, -6, -8)]),
    ("or", |x, y| x.or(y), &[(12, 10, 14), (-8, 3, -5)]),
    ("xor", |x, y| x.xor(y), &[(12, 10, 6), (-1, 5, -6)]),
    ("maximum", |x, y| x.maximum(y), &[(-3, 2, 2)]),
    ("not", |x, _| x.not(), &[(5, 0, -6), (-1, 0, 0)]),
    ("sign", |x, _| x.sign(), &[(5, 0, 1), (-7, 0, -1), (0, 0, 0)]),
    ("abs", |x, _| x.abs(), &[(-5, 0, 5)]),
    ("floor", |x, _| x.floor(), &[(-5, 0, -5)]),
    ("round", |x, _| x.round(), &[(-5, 0, -5)]),
    ("clamp", |x, _| x.clamp(-3i64, 4i64), &[(-5, 0, -3), (9, 0, 4), (0, 0, 0)]),
    ("square", |x, _| x.powi(2), &[(-5, 0, 25)]),
    ("powi(5)", |x, _| x.powi(5), &[(-2, 0, -32)]),
];

/// At the limits of each integer dtype, where results wrap.
const LIMITS: &[OfDType] = &[
    (DType::I64, "div", |x, y| x.div(y), &[(i64::MIN, -1, i64::MIN)]),
    (DType::I64, "fmod", |x, y| x.fmod(y), &[(i64::MIN, -1, 0), (i64::MIN, 10, -8)]),
    (DType::I64, "rem", |x, y| x.rem(y), &[(i64::MIN, -1, 0), (i64::MIN, 10, 2)]),
    (DType::I64, "abs", |x, _| x.abs(), &[(i64::MIN, 0, i64::MIN)]),
    (DType::I64, "shl", |x, y| x.shl(y), &[(1, 63, i64::MIN), (1, 62, 1 << 62), (3, 63, i64::MIN), (1, i64::MIN, 0)]),
    (DType::I64, "shr", |x, y| x.shr(y), &[(i64::MIN, 63, -1), (i64::MAX, 62, 1), (i64::MIN, i64::MAX, -1)]),
    (DType::I64, "pow", |x, y| x.pow(y), &[(2, 63, i64::MIN), (2, 64, 0), (3, 41, 36472996377170786403u128 as i64)]),
    (DType::I32, "div", |x, y| x.div(y), &[(i32::MIN as i64, -1, i32::MIN as i64)]),
    (DType::I32, "shl", |x, y| x.shl(y), &[(1, 31, i32::MIN as i64), (1, 33, 0), (1, 32, 0), (5, 30, 1 << 30)]),
    (DType::I32, "shr", |x, y| x.shr(y), &[(i32::MIN as i64, 31, -1), (-8, 1, -4), (-8, 33, -1)]),
    (DType::I32, "pow", |x, y| x.pow(y), &[(3, 21, 10460353203u64 as i32 as i64)]),
    (DType::I8, "add", |x, y| x.add(y), &[(100, 100, -56)]),
    (DType::I8, "div", |x, y| x.div(y), &[(-128, -1, -128)]),
    (DType::I8, "abs", |x, _| x.abs(), &[(-128, 0, -128)]),
    (DType::I8, "shl", |x, y| x.shl(y), &[(1, 7, -128), (3, 7, -128), (1, 8, 0), (1, 9, 0)]),
    (DType::I8, "shr", |x, y| x.shr(y), &[(-128, 7, -1), (-128, 8, -1), (127, 6, 1)]),
    (DType::I8, "pow", |x, y| x.pow(y), &[(3, 5, 243 - 256)]),
    (DType::U8, "add", |x, y| x.add(y), &[(200, 100, 44)]),
    (DType::U8, "sub", |x, y| x.sub(y), &[(3, 5, 254)]),
    (DType::U8, "rem", |x, y| x.rem(y), &[(250, 7, 5), (250, 0, 0)]),
    (DType::U8, "not", |x, _| x.not(), &[(5, 0, 250), (255, 0, 0)]),
    (DType::U8, "shl", |x, y| x.shl(y), &[(129, 1, 2), (1, 8, 0), (255, 7, 128)]),
    (DType::U8, "shr", |x, y| x.shr(y), &[(200, 3, 25), (200, 8, 0), (200, 255, 0)]),
    (DType::U8, "pow", |x, y| x.pow(y), &[(3, 5, 243), (2, 8, 0), (7, 3, 343 - 256)]),
    (DType::U8, "sign", |x, _| x.sign(), &[(200, 0, 1), (0, 0, 0)]),
];

fn devices() -> impl Iterator<Item = (&'static str, Device)> {
    ["avx512", "avx2", "portable"].into_iter().filter_map(|isa| {
        // Not every machine has all of them.
        let options = CpuOptions { isa: Some(isa.into()), threads: Some(1), ..CpuOptions::default() };
        Some((isa, Device::cpu_with(&options).ok()?))
    })
}

/// Values in full tiles and a rest, the list over and over.
const COUNT: usize = 300;

fn repeated(values: &[f64], dtype: DType, device: &Device) -> Tensor {
    let values: Vec<f64> = values.iter().copied().cycle().take(COUNT).collect();
    Tensor::from_vec(values, [COUNT], device).and_then(|t| t.to_dtype(dtype)).expect("arguments")
}

fn repeated_integers(values: &[i64], dtype: DType, device: &Device) -> Tensor {
    let values: Vec<i64> = values.iter().copied().cycle().take(COUNT).collect();
    Tensor::from_vec(values, [COUNT], device).and_then(|t| t.to_dtype(dtype)).expect("arguments")
}

/// `f` eagerly, in five calls of a step, and inside a chain that changes nothing.
fn ways(x: &Tensor, y: &Tensor, f: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Vec<(&'static str, Tensor)> {
    let mut out = vec![("eager", f(x, y).expect("eager"))];
    let mut step = jit::Step::new();
    for _ in 0..3 {
        out.push(("traced", step.run(|| f(x, y)).expect("traced")));
    }
    let around = |x: &Tensor, y: &Tensor| -> Result<Tensor> {
        let (x, y) = if x.dtype().is_float() { (x.mul(1.0)?, y.mul(1.0)?) } else { (x.mul(1i64)?, y.mul(1i64)?) };
        let r = f(&x, &y)?;
        if r.dtype() == DType::Bool {
            r.not()?.not()
        } else if r.dtype().is_float() {
            r.mul(1.0)
        } else {
            r.mul(1i64)
        }
    };
    let mut chain = jit::Step::new();
    out.push(("chain, eager", around(x, y).expect("a chain")));
    for _ in 0..3 {
        out.push(("chain, traced", chain.run(|| around(x, y)).expect("a chain")));
    }
    out
}

/// Whether `got` is `want`: exactly where that is NaN, an infinity or a number with few digits, else nearly.
fn is_right(got: f64, want: f64, dtype: DType) -> bool {
    if want.is_nan() || got.is_nan() {
        return want.is_nan() && got.is_nan();
    }
    let short = want.is_infinite() || want * 65536.0 == (want * 65536.0).trunc();
    if short && got == want {
        return got.is_sign_negative() == want.is_sign_negative();
    }
    // log10 1000 and the like may be off by a place.
    let ulp = match dtype {
        DType::F64 => 2f64.powi(-52),
        DType::F32 => 2f64.powi(-23),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    };
    want.is_finite() && want != 0.0 && (got - want).abs() <= 2.0 * ulp * want.abs()
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).and_then(|t| t.to_vec::<f64>()).expect("floats")
}

#[track_caller]
fn check_floats(
    name: &str,
    f: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>,
    cases: &[(f64, f64, f64)],
    dtype: DType,
    isa: &str,
    device: &Device,
) {
    let column = |k: fn(&(f64, f64, f64)) -> f64| cases.iter().map(k).collect::<Vec<_>>();
    let (x, y) = (repeated(&column(|c| c.0), dtype, device), repeated(&column(|c| c.1), dtype, device));
    for (way, r) in ways(&x, &y, f) {
        assert_eq!(r.dtype(), dtype, "{name}");
        for (i, got) in floats(&r).into_iter().enumerate() {
            let (x, y, want) = cases[i % cases.len()];
            let right = is_right(got, want, dtype);
            assert!(right, "{name} of {x:?}, {y:?} is {got:?}, expected {want:?} ({dtype}, {isa}, {way}, element {i})");
        }
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

#[test]
fn functions_of_one_float() {
    for (isa, device) in devices() {
        for dtype in FLOATS {
            for (name, f, pairs) in UNARY {
                let cases: Vec<(f64, f64, f64)> =
                    pairs.iter().map(|&(x, r)| (x, 0.0, r)).chain([(NAN, 0.0, NAN)]).collect();
                check_floats(name, &|x, _| f(x), &cases, dtype, isa, &device);
            }
        }
    }
}

#[test]
fn functions_of_two_floats() {
    for (isa, device) in devices() {
        for dtype in FLOATS {
            for (name, f, cases) in BINARY {
                check_floats(name, f, cases, dtype, isa, &device);
            }
        }
    }
}

#[test]
fn kinds_of_numbers() {
    for (isa, device) in devices() {
        for dtype in FLOATS {
            let x = repeated(&[NAN, INF, -INF, 0.0, -0.0, 1.0], dtype, &device);
            for (name, f, want) in TESTS {
                for (way, r) in ways(&x, &x, &|x, _| f(x)) {
                    let got = r.to_vec::<bool>().expect("truth values");
                    assert!(got.iter().enumerate().all(|(i, g)| *g == want[i % 6]), "{name}, {dtype}, {isa}, {way}");
                }
            }
        }
        for dtype in [DType::I64, DType::U8] {
            let x = repeated_integers(&[0, 7], dtype, &device);
            for (name, f, want) in TESTS {
                let got = f(&x).and_then(|r| r.to_vec::<bool>()).expect("truth values");
                assert_eq!(got, vec![want[5]; COUNT], "{name}, {dtype}");
            }
        }
    }
}

#[track_caller]
fn check_integers(name: &str, f: Binary, cases: &[(i64, i64, i64)], dtype: DType, isa: &str, device: &Device) {
    let column = |k: fn(&(i64, i64, i64)) -> i64| cases.iter().map(k).collect::<Vec<_>>();
    let (x, y) =
        (repeated_integers(&column(|c| c.0), dtype, device), repeated_integers(&column(|c| c.1), dtype, device));
    for (way, r) in ways(&x, &y, &f) {
        assert_eq!(r.dtype(), dtype, "{name}");
        let got = r.to_dtype(DType::I64).and_then(|r| r.to_vec::<i64>()).expect("integers");
        for (i, got) in got.into_iter().enumerate() {
            let (x, y, want) = cases[i % cases.len()];
            assert_eq!(got, want, "{name} of {x}, {y} ({dtype}, {isa}, {way})");
        }
    }
}

#[test]
fn integers() {
    for (isa, device) in devices() {
        for dtype in [DType::I64, DType::I32, DType::I8] {
            for (name, f, cases) in INTEGERS {
                check_integers(name, *f, cases, dtype, isa, &device);
            }
        }
        for (dtype, name, f, cases) in LIMITS {
            check_integers(name, *f, cases, *dtype, isa, &device);
        }
    }
}

#[test]
fn truth_values() {
    for (isa, device) in devices() {
        let pick = |v: [bool; 4]| Tensor::from_vec(v.to_vec(), [4], &device).expect("truth values");
        let (x, y) = (pick([false, false, true, true]), pick([false, true, false, true]));
        let cases: [(Binary, [bool; 4]); 4] = [
            (|x, y| x.and(y), [false, false, false, true]),
            (|x, y| x.or(y), [false, true, true, true]),
            (|x, y| x.xor(y), [false, true, true, false]),
            (|x, _| x.not(), [true, true, false, false]),
        ];
        for (f, want) in cases {
            assert_eq!(f(&x, &y).and_then(|r| r.to_vec::<bool>()).expect("truth values"), want, "{isa}");
        }
    }
}

/// `rem` of f32 where the quotient is too large for the short way, or an operand is a denormal: against the host's.
#[test]
fn remainders_over_the_whole_range() {
    let mut state = 9u64;
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    let mut pairs: Vec<(f32, f32)> = vec![(f32::MAX, 1e-45), (f32::MAX, 3e-39), (-1e30, 7.0), (16777217.0, 3.0)];
    for i in 0..4000 {
        let a = f32::from_bits(word());
        let b = match i % 3 {
            0 => f32::from_bits(word()),
            // Near a whole multiple, from both sides.
            1 => f32::from_bits((a / (word() % 1000 + 1) as f32).to_bits().wrapping_add(word() % 3).wrapping_sub(1)),
            _ => a * f32::from_bits(0x3000_0000 + word() % 0x2000_0000),
        };
        pairs.push((a, b));
    }
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    for (isa, device) in devices() {
        let tensor = |v: &[f32]| Tensor::from_slice(v, [v.len()], &device).expect("numbers");
        let got = tensor(&a).fmod(tensor(&b)).and_then(|r| r.to_vec::<f32>()).expect("remainders");
        for ((a, b), got) in pairs.iter().zip(got) {
            let want = a % b;
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{a:e} % {b:e}: {got:e}, expected {want:e} ({isa})");
        }
    }
}

#[test]
fn what_is_refused() {
    let device = Device::cpu();
    let ints = Tensor::from_vec(vec![1i64, 2], [2], &device).expect("integers");
    let floats = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device).expect("floats");
    let bools = floats.gt(1.0).expect("truth values");
    let message = |r: Result<Tensor>| r.expect_err("refused").to_string();
    assert!(message(ints.sin()).contains("sin: expected a float dtype"));
    assert!(message(floats.and(&floats)).contains("and: expected bool or an integer dtype"));
    assert!(message(floats.shl(1i64)).contains("shl: expected an integer dtype"));
    assert!(message(bools.floor()).contains("floor: expected a number"));
    assert!(message(floats.not()).contains("not: expected bool"));
    assert!(message(bools.fmod(&bools)).contains("fmod: expected a number"));
}
