//! Transcendental rows, by the formulas of [`crate::kernel::math`]; in f64 by crate `libm`.

use crate::kernel::{Instr, Ty, math};
use crate::op::elementwise::{DTypes, Row, arith};

/// A function of one operand: its formula in f32 lanes (`kernel::math`), its instruction in f64 lanes.
macro_rules! function {
    ($single:ident, $double:ident) => {
        |b, ty, x| if ty == Ty::F64 { b.$double(x[0]) } else { math::$single(b, x[0]) }
    };
}

/// `e^a`.
pub static EXP: Row = Row {
    name: "exp",
    arity: 1,
    dtypes: DTypes::Float,
    formula: function!(exp, dexp),
    reference: |x| x[0].exp(),
    grad: Some(|g, _, _| g.row(&arith::MUL, &[g.grad.into(), g.result.into()]).map(Some)),
    domain: (-8.0, 8.0),
};

/// Natural logarithm.
pub static LOG: Row = Row {
    name: "log",
    arity: 1,
    dtypes: DTypes::Float,
    formula: function!(log, dlog),
    reference: |x| x[0].ln(),
    grad: Some(|g, args, _| g.row(&arith::DIV, &[g.grad.into(), args[0]]).map(Some)),
    domain: (0.1, 8.0),
};

/// Sine of radians.
pub static SIN: Row = Row {
    name: "sin",
    arity: 1,
    dtypes: DTypes::Float,
    formula: function!(sin, dsin),
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
    formula: function!(cos, dcos),
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
    formula: function!(tanh, dtanh),
    reference: |x| x[0].tanh(),
    grad: Some(|g, _, _| {
        let square = g.row(&arith::MUL, &[g.result.into(), g.result.into()])?;
        let slope = g.row(&arith::SUB, &[1.0.into(), square.into()])?;
        g.row(&arith::MUL, &[g.grad.into(), slope.into()]).map(Some)
    }),
    domain: (-4.0, 4.0),
};

/// Square root, correctly rounded.
pub static SQRT: Row = Row {
    name: "sqrt",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, ty, x| b.on(ty, Instr::Sqrt, x),
    reference: |x| x[0].sqrt(),
    grad: Some(|g, _, _| {
        let twice = g.row(&arith::MUL, &[g.result.into(), 2.0.into()])?;
        g.row(&arith::DIV, &[g.grad.into(), twice.into()]).map(Some)
    }),
    domain: (0.1, 8.0),
};

pub static ROWS: &[&Row] = &[&EXP, &LOG, &SIN, &COS, &TANH, &SQRT];
