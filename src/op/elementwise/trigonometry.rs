//! Trigonometric and hyperbolic rows, by the formulas of [`crate::kernel::math`]; in f64 by crate `libm`.

use crate::kernel::{Ty, math};
use crate::op::elementwise::math::{function, over, times};
use crate::op::elementwise::{DTypes, Row, arith, math as exponentials};

function!(
    /// Sine of radians.
    SIN "sin" math::sin, dsin; f64::sin, (-8.0, 8.0), |g, args, _| {
        let slope = g.row(&COS, &[args[0]])?;
        times(g, slope)
    }
);
function!(
    /// Cosine of radians.
    COS "cos" math::cos, dcos; f64::cos, (-8.0, 8.0), |g, args, _| {
        let slope = g.row(&SIN, &[args[0]])?;
        let rising = g.row(&arith::MUL, &[g.grad.into(), slope.into()])?;
        g.row(&arith::NEG, &[rising.into()]).map(Some)
    }
);
function!(
    /// Tangent of radians.
    TAN "tan" math::tan, dtan; f64::tan, (-1.4, 1.4), |g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let slope = g.row(&arith::ADD, &[square.into(), 1.0.into()])?;
        times(g, slope)
    }
);
function!(
    /// Arc sine.
    ASIN "asin" math::asin, dasin; f64::asin, (-0.95, 0.95), |g, args, _| {
        let slope = half_circle(g, args[0])?;
        times(g, slope)
    }
);
function!(
    /// Arc cosine.
    ACOS "acos" math::acos, dacos; f64::acos, (-0.95, 0.95), |g, args, _| {
        let slope = half_circle(g, args[0])?;
        let down = g.row(&arith::NEG, &[slope.into()])?;
        times(g, down)
    }
);
function!(
    /// Arc tangent.
    ATAN "atan" math::atan, datan; f64::atan, (-4.0, 4.0), |g, args, _| {
        let square = g.row(&arith::MUL, &[args[0], args[0]])?;
        let slope = g.row(&arith::ADD, &[square.into(), 1.0.into()])?;
        over(g, slope)
    }
);
function!(
    /// Hyperbolic sine.
    SINH "sinh" math::sinh, dsinh; f64::sinh, (-4.0, 4.0), |g, args, _| {
        let slope = g.row(&COSH, &[args[0]])?;
        times(g, slope)
    }
);
function!(
    /// Hyperbolic cosine.
    COSH "cosh" math::cosh, dcosh; f64::cosh, (-4.0, 4.0), |g, args, _| {
        let slope = g.row(&SINH, &[args[0]])?;
        times(g, slope)
    }
);
function!(
    /// Hyperbolic tangent.
    TANH "tanh" math::tanh, dtanh; f64::tanh, (-4.0, 4.0), |g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let slope = g.row(&arith::SUB, &[1.0.into(), square.into()])?;
        times(g, slope)
    }
);

/// `1 / √(1 - a²)`.
fn half_circle(g: &mut crate::op::Grad<'_>, a: crate::op::emit::Arg) -> crate::base::Result<crate::op::Val> {
    let square = g.row(&arith::MUL, &[a, a])?;
    let rest = g.row(&arith::SUB, &[1.0.into(), square.into()])?;
    g.row(&exponentials::RSQRT, &[rest.into()])
}

/// The angle of the point with ordinate `a` and abscissa `b`, in -π..=π.
pub static ATAN2: Row = Row {
    name: "atan2",
    arity: 2,
    dtypes: DTypes::Float,
    formula: |b, ty, x| if ty == Ty::F64 { b.datan2(x[0], x[1]) } else { math::atan2(b, x[0], x[1]) },
    reference: |x| x[0].atan2(x[1]),
    grad: Some(|g, args, i| {
        let dtype = g.ty(g.grad).dtype;
        let (y, x) = (g.value(args[0], dtype)?, g.value(args[1], dtype)?);
        let (yy, xx) = (g.row(&arith::MUL, &[y.into(), y.into()])?, g.row(&arith::MUL, &[x.into(), x.into()])?);
        let square = g.row(&arith::ADD, &[yy.into(), xx.into()])?;
        let other = if i == 0 { x } else { g.row(&arith::NEG, &[y.into()])? };
        let slope = g.row(&arith::DIV, &[other.into(), square.into()])?;
        times(g, slope)
    }),
    domain: (0.5, 4.0),
};

pub static ROWS: &[&Row] = &[&SIN, &COS, &TAN, &ASIN, &ACOS, &ATAN, &ATAN2, &SINH, &COSH, &TANH];
