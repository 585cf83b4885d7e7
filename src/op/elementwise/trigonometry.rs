//! Trigonometric and hyperbolic rows, by the formulas of [`crate::kernel::math`].

use crate::kernel::math;
use crate::op::elementwise::{DTypes, Row, arith};

/// Sine of radians.
pub static SIN: Row = Row {
    name: "sin",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::sin(b, x[0]),
    reference: |x| x[0].sin(),
    grad: Some(|g, args, _| {
        let slope = g.row(&COS, &[args[0]])?;
        g.row(&arith::MUL, &[g.grad.into(), slope.into()]).map(Some)
    }),
    domain: (-8.0, 8.0),
};

/// Cosine of radians.
pub static COS: Row = Row {
    name: "cos",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::cos(b, x[0]),
    reference: |x| x[0].cos(),
    grad: Some(|g, args, _| {
        let slope = g.row(&SIN, &[args[0]])?;
        let rising = g.row(&arith::MUL, &[g.grad.into(), slope.into()])?;
        g.row(&arith::NEG, &[rising.into()]).map(Some)
    }),
    domain: (-8.0, 8.0),
};

/// Hyperbolic tangent.
pub static TANH: Row = Row {
    name: "tanh",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, _, x| math::tanh(b, x[0]),
    reference: |x| x[0].tanh(),
    grad: Some(|g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let slope = g.row(&arith::SUB, &[1.0.into(), square.into()])?;
        g.row(&arith::MUL, &[g.grad.into(), slope.into()]).map(Some)
    }),
    domain: (-4.0, 4.0),
};

pub static ROWS: &[&Row] = &[&SIN, &COS, &TANH];
