//! Remainders, whole powers, shifts: where integers and floats, or widths, go separate ways.

use crate::kernel::Instr;
use crate::op::elementwise::{DTypes, Row, arith, rounding};
use crate::op::emit::{Arg, Grad, Val};

/// The remainder with the sign of the dividend (C's `fmod`), exact: of floats NaN for a zero divisor or an infinite
/// dividend, and `a` itself for an infinite divisor; of integers 0 for a zero divisor.
pub static FMOD: Row = Row {
    name: "fmod",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Rem, x),
    reference: |x| x[0] % x[1],
    grad: Some(|g, args, i| of_divisor(g, args, i, &rounding::TRUNC)),
    domain: (0.5, 4.0),
};

/// The remainder with the sign of the divisor (Python's `%`): `fmod`, and the divisor added (one rounding) if that is
/// not 0 and has the other sign. A zero keeps the sign of the dividend. Of integers 0 for a zero divisor.
pub static REM: Row = Row {
    name: "rem",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| {
        let (r, zero) = (b.on(ty, Instr::Rem, x), b.number(ty, 0.0));
        let (down, back) = (b.on(ty, Instr::Lt, &[r, zero]), b.on(ty, Instr::Lt, &[x[1], zero]));
        let none = b.on(ty, Instr::Eq, &[r, zero]);
        let (left, other) = (b.not(none), b.xor(down, back));
        let (turned, sum) = (b.and(left, other), b.on(ty, Instr::Add, &[r, x[1]]));
        b.choose(turned, sum, r)
    },
    reference: |x| {
        let r = x[0] % x[1];
        if r != 0.0 && (r < 0.0) != (x[1] < 0.0) { r + x[1] } else { r }
    },
    grad: Some(|g, args, i| of_divisor(g, args, i, &rounding::FLOOR)),
    domain: (0.5, 4.0),
};

/// Gradients of `a - b round(a / b)`, the rounded quotient taken for a constant.
fn of_divisor(g: &mut Grad<'_>, args: &[Arg], i: usize, round: &'static Row) -> crate::base::Result<Option<Val>> {
    if i == 0 {
        return Ok(Some(g.grad));
    }
    let quotient = g.row(&arith::DIV, args)?;
    let whole = g.row(round, &[quotient.into()])?;
    let rising = g.row(&arith::MUL, &[g.grad.into(), whole.into()])?;
    g.row(&arith::NEG, &[rising.into()]).map(Some)
}

/// `a` to the power `b`, wrapping; a negative `b` gives the reciprocal cut to a whole number.
pub static IPOW: Row = Row {
    name: "ipow",
    arity: 2,
    dtypes: DTypes::Integer,
    formula: |b, _, x| b.lpow(x[0], x[1]),
    reference: |x| if x[1] < 0.0 && x[0] == 0.0 { 0.0 } else { x[0].powf(x[1]) },
    grad: None,
    domain: (-0.3, 0.9),
};

/// `a` shifted left by `b` bits; 0 for counts outside the width.
pub static SHL: Row = Row {
    name: "shl",
    arity: 2,
    dtypes: DTypes::Integer,
    formula: |b, _, x| b.lshl(x[0], x[1]),
    reference: |x| if x[1] < 0.0 { 0.0 } else { x[0] * x[1].exp2() },
    grad: None,
    domain: (-1.0, 3.0),
};

/// `a` shifted right by `b` bits, arithmetically: the sign (0 or -1) for counts outside the width.
pub static SHR: Row = Row {
    name: "shr",
    arity: 2,
    dtypes: DTypes::Integer,
    formula: |b, _, x| b.lshr(x[0], x[1]),
    reference: |x| (x[0] / if x[1] < 0.0 { f64::MAX } else { x[1].exp2() }).floor(),
    grad: None,
    domain: (-1.0, 3.0),
};

pub static ROWS: &[&Row] = &[&FMOD, &REM, &IPOW, &SHL, &SHR];
