//! Exponentials, logarithms, powers and their like, by the formulas of [`crate::kernel::math`]; in f64 by crate `libm`.

use crate::base::Result;
use crate::kernel::{self, Builder, Instr, Ty, math};
use crate::op::elementwise::{DTypes, Row, arith, compare, logic};
use crate::op::emit::{Arg, Grad, Val};

/// A function of one operand: its formula in f32 lanes and its instruction in f64 lanes, or one formula for both; the
/// same on doubles; its gradient; the samples' domain.
macro_rules! function {
    ($(#[$doc:meta])* $row:ident $name:literal $single:expr, $double:ident; $($rest:tt)*) => {
        function!($(#[$doc])* $row $name |b, ty, x| if ty == Ty::F64 { b.$double(x[0]) } else { $single(b, x[0]) }; $($rest)*);
    };
    ($(#[$doc:meta])* $row:ident $name:literal $formula:expr; $reference:expr, $domain:expr, $grad:expr) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 1,
            dtypes: DTypes::Float,
            formula: $formula,
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

/// The gradient times a slope.
pub(super) fn times(g: &mut Grad<'_>, slope: impl Into<Arg>) -> Result<Option<Val>> {
    g.row(&arith::MUL, &[g.grad.into(), slope.into()]).map(Some)
}

/// The gradient over a slope.
pub(super) fn over(g: &mut Grad<'_>, slope: impl Into<Arg>) -> Result<Option<Val>> {
    g.row(&arith::DIV, &[g.grad.into(), slope.into()]).map(Some)
}

function!(
    /// `e^a`.
    EXP "exp" math::exp, dexp; f64::exp, (-8.0, 8.0), |g, _, _| times(g, g.result)
);
function!(
    /// `2^a`.
    EXP2 "exp2" math::exp2, dexp2; f64::exp2, (-8.0, 8.0), |g, _, _| {
        let slope = g.row(&arith::MUL, &[g.result.into(), std::f64::consts::LN_2.into()])?;
        times(g, slope)
    }
);
function!(
    /// `e^a - 1`, near 0 too.
    EXPM1 "expm1" math::expm1, dexpm1; f64::exp_m1, (-4.0, 4.0), |g, _, _| {
        let slope = g.row(&arith::ADD, &[g.result.into(), 1.0.into()])?;
        times(g, slope)
    }
);
function!(
    /// Natural logarithm.
    LOG "log" math::log, dlog; f64::ln, (0.1, 8.0), |g, args, _| over(g, args[0])
);
function!(
    /// Logarithm to base 2.
    LOG2 "log2" math::log2, dlog2; f64::log2, (0.1, 8.0), |g, args, _| {
        let slope = g.row(&arith::MUL, &[args[0], std::f64::consts::LN_2.into()])?;
        over(g, slope)
    }
);
function!(
    /// Logarithm to base 10.
    LOG10 "log10" math::log10, dlog10; f64::log10, (0.1, 8.0), |g, args, _| {
        let slope = g.row(&arith::MUL, &[args[0], std::f64::consts::LN_10.into()])?;
        over(g, slope)
    }
);
function!(
    /// Natural logarithm of `1 + a`, near 0 too.
    LOG1P "log1p" math::log1p, dlog1p; f64::ln_1p, (-0.9, 8.0), |g, args, _| {
        let slope = g.row(&arith::ADD, &[args[0], 1.0.into()])?;
        over(g, slope)
    }
);
function!(
    /// Square root, correctly rounded.
    SQRT "sqrt" |b, ty, x| b.on(ty, Instr::Sqrt, x); f64::sqrt, (0.1, 8.0), |g, _, _| {
        let twice = g.row(&arith::MUL, &[g.result.into(), 2.0.into()])?;
        over(g, twice)
    }
);
function!(
    /// `1 / √a`.
    RSQRT "rsqrt" |b, ty, x| {
        let (one, root) = (b.number(ty, 1.0), b.on(ty, Instr::Sqrt, x));
        b.on(ty, Instr::Div, &[one, root])
    }; |x| 1.0 / x.sqrt(), (0.1, 8.0), |g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let cube = g.row(&arith::MUL, &[square.into(), g.result.into()])?;
        let slope = g.row(&arith::MUL, &[cube.into(), (-0.5).into()])?;
        times(g, slope)
    }
);
function!(
    /// `1 / (1 + e^-a)`.
    SIGMOID "sigmoid" |b, ty, x| if ty == Ty::F64 { sigmoid_f64(b, x[0]) } else { math::sigmoid(b, x[0]) };
    |x| 1.0 / (1.0 + (-x).exp()), (-8.0, 8.0), |g, _, _| {
        let rest = g.row(&arith::SUB, &[1.0.into(), g.result.into()])?;
        let slope = g.row(&arith::MUL, &[rest.into(), g.result.into()])?;
        times(g, slope)
    }
);
function!(
    /// The error function, `2/√π ∫ e^-t² dt` from 0 to `a`.
    ERF "erf" math::erf, derf; libm::erf, (-3.0, 3.0), |g, args, _| {
        let slope = bell(g, args[0], std::f64::consts::FRAC_2_SQRT_PI)?;
        times(g, slope)
    }
);
function!(
    /// `1 - erf(a)`, without cancellation.
    ERFC "erfc" math::erfc, derfc; libm::erfc, (-3.0, 3.0), |g, args, _| {
        let slope = bell(g, args[0], -std::f64::consts::FRAC_2_SQRT_PI)?;
        times(g, slope)
    }
);

/// `1 / (1 + e^-x)` in f64 lanes, gradual towards 0 too: with `e = e^-|x|`, `1 / (1 + e)` from 0 up, `e / (1 + e)` below.
fn sigmoid_f64(b: &mut Builder, x: kernel::Val) -> kernel::Val {
    let (size, zero, one) = (b.dabs(x), b.f64(0.0), b.f64(1.0));
    let down = b.dneg(size);
    let e = b.dexp(down);
    let below = b.dlt(x, zero);
    let (top, bottom) = (b.dselect(below, e, one), b.dadd(one, e));
    b.ddiv(top, bottom)
}

/// `factor * e^-a²`.
fn bell(g: &mut Grad<'_>, a: Arg, factor: f64) -> Result<Val> {
    let square = g.row(&arith::MUL, &[a, a])?;
    let down = g.row(&arith::NEG, &[square.into()])?;
    let bell = g.row(&EXP, &[down.into()])?;
    g.row(&arith::MUL, &[bell.into(), factor.into()])
}

/// `a^b`, with the special cases of IEEE 754. Gradients are PyTorch's: that of the base is 0 where the exponent is 0; that of
/// the exponent is 0 where the base is 0 and the exponent not negative.
pub static POW: Row = Row {
    name: "pow",
    arity: 2,
    dtypes: DTypes::Float,
    formula: |b, ty, x| if ty == Ty::F64 { b.dpow(x[0], x[1]) } else { math::pow(b, x[0], x[1]) },
    reference: |x| x[0].powf(x[1]),
    grad: Some(|g, args, i| {
        let dtype = g.ty(g.grad).dtype;
        let (x, y) = (g.value(args[0], dtype)?, g.value(args[1], dtype)?);
        let (flat, slope) = if i == 0 {
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
        let rising = g.row(&arith::MUL, &[g.grad.into(), slope.into()])?;
        g.row(&logic::SELECT, &[flat.into(), 0.0.into(), rising.into()]).map(Some)
    }),
    domain: (0.5, 4.0),
};

pub static ROWS: &[&Row] =
    &[&EXP, &EXP2, &EXPM1, &LOG, &LOG2, &LOG10, &LOG1P, &SQRT, &RSQRT, &SIGMOID, &ERF, &ERFC, &POW];
