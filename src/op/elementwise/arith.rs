//! Arithmetic rows, of floats and (wrapping) integers.

use crate::kernel::{Instr, Ty};
use crate::op::elementwise::{DTypes, Row, compare, logic};

/// `a + b`.
pub static ADD: Row = Row {
    name: "add",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Add, x),
    reference: |x| x[0] + x[1],
    grad: Some(|g, _, _| Ok(Some(g.grad))),
    domain: (-4.0, 4.0),
};

/// `a - b`.
pub static SUB: Row = Row {
    name: "sub",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Sub, x),
    reference: |x| x[0] - x[1],
    grad: Some(|g, _, i| Ok(Some(if i == 0 { g.grad } else { g.row(&NEG, &[g.grad.into()])? }))),
    domain: (-4.0, 4.0),
};

/// `a * b`.
pub static MUL: Row = Row {
    name: "mul",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Mul, x),
    reference: |x| x[0] * x[1],
    grad: Some(|g, args, i| g.row(&MUL, &[g.grad.into(), args[1 - i]]).map(Some)),
    domain: (-4.0, 4.0),
};

/// `a / b`; integers round towards zero, and a zero divisor gives 0.
pub static DIV: Row = Row {
    name: "div",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Div, x),
    reference: |x| x[0] / x[1],
    grad: Some(|g, args, i| {
        if i == 0 {
            return g.row(&DIV, &[g.grad.into(), args[1]]).map(Some);
        }
        let slope = g.row(&DIV, &[g.result.into(), args[1]])?;
        let rising = g.row(&MUL, &[g.grad.into(), slope.into()])?;
        g.row(&NEG, &[rising.into()]).map(Some)
    }),
    domain: (0.5, 4.0),
};

/// `-a`; flips the sign of zeros too.
pub static NEG: Row = Row {
    name: "neg",
    arity: 1,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Neg, x),
    reference: |x| -x[0],
    grad: Some(|g, _, _| g.row(&NEG, &[g.grad.into()]).map(Some)),
    domain: (-4.0, 4.0),
};

/// `|a|`; the gradient at 0 is 0. An integer dtype's least value stays itself.
pub static ABS: Row = Row {
    name: "abs",
    arity: 1,
    dtypes: DTypes::Number,
    formula: |b, ty, x| match ty {
        Ty::I64 => {
            let minus = b.lneg(x[0]);
            b.lmax(x[0], minus)
        }
        _ => b.on(ty, Instr::Abs, x),
    },
    reference: |x| x[0].abs(),
    grad: Some(|g, args, _| {
        let minus = g.row(&NEG, &[g.grad.into()])?;
        let below = g.row(&compare::LT, &[args[0], 0.0.into()])?;
        let signed = g.row(&logic::SELECT, &[below.into(), minus.into(), g.grad.into()])?;
        let zero = g.row(&compare::EQ, &[args[0], 0.0.into()])?;
        g.row(&logic::SELECT, &[zero.into(), 0.0.into(), signed.into()]).map(Some)
    }),
    domain: (-4.0, 4.0),
};

/// `1 / a`.
pub static RECIP: Row = Row {
    name: "recip",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, ty, x| {
        let one = b.number(ty, 1.0);
        b.on(ty, Instr::Div, &[one, x[0]])
    },
    reference: |x| 1.0 / x[0],
    grad: Some(|g, _, _| {
        let square = g.row(&MUL, &[g.result.into(), g.result.into()])?;
        let rising = g.row(&MUL, &[g.grad.into(), square.into()])?;
        g.row(&NEG, &[rising.into()]).map(Some)
    }),
    domain: (0.5, 4.0),
};

/// The larger of two, NaN if either is; ties share the gradient.
pub static MAXIMUM: Row = Row {
    name: "maximum",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Max, x),
    reference: |x| if x[0].is_nan() || x[0] > x[1] { x[0] } else { x[1] },
    grad: Some(|g, args, i| to_winner(g, args[i], args[1 - i])),
    domain: (-4.0, 4.0),
};

/// The smaller of two, NaN if either is; ties share the gradient.
pub static MINIMUM: Row = Row {
    name: "minimum",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Min, x),
    reference: |x| if x[0].is_nan() || x[0] < x[1] { x[0] } else { x[1] },
    grad: Some(|g, args, i| to_winner(g, args[1 - i], args[i])),
    domain: (-4.0, 4.0),
};

/// `a`, through which no gradient flows.
pub static DETACH: Row = Row {
    name: "detach",
    arity: 1,
    dtypes: DTypes::Number,
    formula: |_, _, x| x[0],
    reference: |x| x[0],
    grad: None,
    domain: (-4.0, 4.0),
};

/// `a`, as a value that gradients can be taken with respect to.
pub static TRACK: Row = Row {
    name: "track",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |_, _, x| x[0],
    reference: |x| x[0],
    grad: Some(|g, _, _| Ok(Some(g.grad))),
    domain: (-4.0, 4.0),
};

/// `max(a, 0)`, NaN where `a` is; the gradient at 0 is 0.
pub static RELU: Row = Row {
    name: "relu",
    arity: 1,
    dtypes: DTypes::Float,
    formula: |b, ty, x| {
        let zero = b.number(ty, 0.0);
        let below = b.on(ty, Instr::Le, &[x[0], zero]);
        b.choose(below, zero, x[0])
    },
    reference: |x| if x[0] <= 0.0 { 0.0 } else { x[0] },
    grad: Some(|g, args, _| {
        let below = g.row(&compare::LE, &[args[0], 0.0.into()])?;
        g.row(&logic::SELECT, &[below.into(), 0.0.into(), g.grad.into()]).map(Some)
    }),
    domain: (-4.0, 4.0),
};

/// The gradient where `above > below`, half of it where they are equal, else none.
fn to_winner(
    g: &mut crate::op::Grad<'_>,
    above: crate::op::emit::Arg,
    below: crate::op::emit::Arg,
) -> crate::base::Result<Option<crate::op::Val>> {
    let half = g.row(&MUL, &[g.grad.into(), 0.5.into()])?;
    let tie = g.row(&compare::EQ, &[above, below])?;
    let shared = g.row(&logic::SELECT, &[tie.into(), half.into(), g.grad.into()])?;
    let loses = g.row(&compare::LT, &[above, below])?;
    g.row(&logic::SELECT, &[loses.into(), 0.0.into(), shared.into()]).map(Some)
}

pub static ROWS: &[&Row] = &[&ADD, &SUB, &MUL, &DIV, &NEG, &ABS, &RECIP, &MAXIMUM, &MINIMUM, &RELU, &DETACH, &TRACK];
