//! Transcendental rows, by the formulas of [`crate::kernel::math`].

use crate::kernel::math;
use crate::op::elementwise::{DTypes, Row, arith, compare, logic};
use crate::op::emit::{Arg, Grad, Val};

/// A transcendental function: its formula, the same on doubles, its gradient and domain.
macro_rules! function {
    ($(#[$doc:meta])* $row:ident $name:literal $formula:expr, $reference:expr, $grad:expr, $domain:expr) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 1,
            dtypes: DTypes::Float,
            formula: |b, _, x| {
                let f: fn(&mut crate::kernel::Builder, crate::kernel::Val) -> crate::kernel::Val = $formula;
                f(b, x[0])
            },
            reference: |x| {
                let f: fn(f64) -> f64 = $reference;
                f(x[0])
            },
            grad: Some($grad),
            domain: $domain,
        };
    };
}
pub(super) use function;

/// `e^a`.
pub static EXP: Row = Row {
    name: "exp",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::exp(b, x[0]),
    reference: |x| x[0].exp(),
    grad: Some(|g, _, _| g.row(&arith::MUL, &[g.grad.into(), g.result.into()]).map(Some)),
    domain: (-8.0, 8.0),
};

/// Natural logarithm.
pub static LOG: Row = Row {
    name: "log",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::log(b, x[0]),
    reference: |x| x[0].ln(),
    grad: Some(|g, args, _| g.row(&arith::DIV, &[g.grad.into(), args[0]]).map(Some)),
    domain: (0.1, 8.0),
};

/// Square root, correctly rounded.
pub static SQRT: Row = Row {
    name: "sqrt",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| b.sqrt(x[0]),
    reference: |x| x[0].sqrt(),
    grad: Some(|g, _, _| {
        let twice = g.row(&arith::MUL, &[g.result.into(), 2.0.into()])?;
        g.row(&arith::DIV, &[g.grad.into(), twice.into()]).map(Some)
    }),
    domain: (0.1, 8.0),
};

/// `grad * slope`.
pub(super) fn times(g: &mut Grad<'_>, slope: impl Into<Arg>) -> crate::base::Result<Option<Val>> {
    g.row(&arith::MUL, &[g.grad.into(), slope.into()]).map(Some)
}

/// `grad / slope`.
pub(super) fn over(g: &mut Grad<'_>, slope: impl Into<Arg>) -> crate::base::Result<Option<Val>> {
    g.row(&arith::DIV, &[g.grad.into(), slope.into()]).map(Some)
}

function!(
    /// `2^a`.
    EXP2 "exp2" math::exp2, f64::exp2, |g, _, _| {
        let slope = g.row(&arith::MUL, &[g.result.into(), std::f32::consts::LN_2.into()])?;
        times(g, slope)
    }, (-8.0, 8.0)
);

function!(
    /// `e^a - 1`, exact to the last places near 0 too.
    EXPM1 "expm1" math::expm1, f64::exp_m1, |g, _, _| {
        let slope = g.row(&arith::ADD, &[g.result.into(), 1.0.into()])?;
        times(g, slope)
    }, (-4.0, 4.0)
);

function!(
    /// Logarithm to base 2.
    LOG2 "log2" math::log2, f64::log2, |g, args, _| {
        let slope = g.row(&arith::MUL, &[args[0], std::f32::consts::LN_2.into()])?;
        over(g, slope)
    }, (0.1, 8.0)
);

function!(
    /// Natural logarithm of `1 + a`, exact to the last places near 0 too.
    LOG1P "log1p" math::log1p, f64::ln_1p, |g, args, _| {
        let slope = g.row(&arith::ADD, &[args[0], 1.0.into()])?;
        over(g, slope)
    }, (-0.9, 8.0)
);

function!(
    /// `1 / √a`.
    RSQRT "rsqrt" |b, x| {
        let (one, root) = (b.f32(1.0), b.sqrt(x));
        b.div(one, root)
    }, |x| 1.0 / x.sqrt(), |g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let cube = g.row(&arith::MUL, &[square.into(), g.result.into()])?;
        let slope = g.row(&arith::MUL, &[cube.into(), (-0.5).into()])?;
        times(g, slope)
    }, (0.1, 8.0)
);

function!(
    /// `1 / (1 + e^-a)`.
    SIGMOID "sigmoid" math::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), |g, _, _| {
        let rest = g.row(&arith::SUB, &[1.0.into(), g.result.into()])?;
        let slope = g.row(&arith::MUL, &[rest.into(), g.result.into()])?;
        times(g, slope)
    }, (-8.0, 8.0)
);

function!(
    /// The error function, `2/√π ∫ e^-t² dt` from 0 to `a`.
    ERF "erf" math::erf, libm::erf, |g, args, _| {
        let slope = gauss(g, args[0], std::f32::consts::FRAC_2_SQRT_PI)?;
        times(g, slope)
    }, (-3.0, 3.0)
);

/// `factor * e^-a²`.
fn gauss(g: &mut Grad<'_>, a: Arg, factor: f32) -> crate::base::Result<Val> {
    let square = g.row(&arith::MUL, &[a, a])?;
    let down = g.row(&arith::NEG, &[square.into()])?;
    let bell = g.row(&EXP, &[down.into()])?;
    g.row(&arith::MUL, &[bell.into(), factor.into()])
}

/// `a^b`, with the special cases of IEEE 754. Gradients as PyTorch's: that of the base is 0 where the exponent is 0; that of
/// the exponent is 0 where the base is 0 and the exponent not negative.
pub static POW: Row = Row {
    name: "pow",
    arity: 2,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::pow(b, x[0], x[1]),
    reference: |x| x[0].powf(x[1]),
    grad: Some(|g, args, i| {
        let dtype = g.ty(g.grad).dtype;
        let (x, y) = (g.value(args[0], dtype)?, g.value(args[1], dtype)?);
        let (none, rising) = if i == 0 {
            let less = g.row(&arith::SUB, &[y.into(), 1.0.into()])?;
            let power = g.row(&POW, &[x.into(), less.into()])?;
            let slope = g.row(&arith::MUL, &[y.into(), power.into()])?;
            (g.row(&compare::EQ, &[y.into(), 0.0.into()])?, slope)
        } else {
            let log = g.row(&LOG, &[x.into()])?;
            let slope = g.row(&arith::MUL, &[g.result.into(), log.into()])?;
            let zero = g.row(&compare::EQ, &[x.into(), 0.0.into()])?;
            let up = g.row(&compare::GE, &[y.into(), 0.0.into()])?;
            (g.row(&logic::AND, &[zero.into(), up.into()])?, slope)
        };
        let rising = g.row(&arith::MUL, &[g.grad.into(), rising.into()])?;
        g.row(&logic::SELECT, &[none.into(), 0.0.into(), rising.into()]).map(Some)
    }),
    domain: (0.5, 4.0),
};

pub static ROWS: &[&Row] = &[&EXP, &EXP2, &EXPM1, &LOG, &LOG2, &LOG1P, &SQRT, &RSQRT, &SIGMOID, &ERF, &POW];
