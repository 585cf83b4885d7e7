//! Sign, rounding to whole numbers, and what kind of number an element is. Gradients are zero, as in PyTorch.

use crate::kernel::{self, Builder, Instr, Ty};
use crate::op::elementwise::{DTypes, Row, compare};
use crate::op::emit::{Arg, Grad, Val};

/// The gradient of a function that is constant between its steps.
fn flat(g: &mut Grad<'_>, _: &[Arg], i: usize) -> crate::base::Result<Option<Val>> {
    g.zeros(g.operands[i]).map(Some)
}

/// A row that rounds: whole numbers are their own result.
macro_rules! rounding {
    ($(#[$doc:meta])* $row:ident $name:literal $method:ident, $reference:expr) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 1,
            dtypes: DTypes::Number,
            formula: |b, ty, x| if ty == Ty::I64 { x[0] } else { b.on(ty, Instr::$method, x) },
            reference: $reference,
            grad: Some(flat),
            domain: (-4.0, 4.0),
        };
    };
}

rounding!(
    /// The largest whole number not above `a`; zeros keep their sign.
    FLOOR "floor" Floor, |x| x[0].floor()
);
rounding!(
    /// The smallest whole number not below `a`; -0 for `a` in -1..=-0.
    CEIL "ceil" Ceil, |x| x[0].ceil()
);
rounding!(
    /// To the nearest whole number, ties to even; zeros and what rounds to zero keep the sign.
    ROUND "round" Round, |x| x[0].round_ties_even()
);
rounding!(
    /// Without the fraction; what becomes zero keeps the sign.
    TRUNC "trunc" Trunc, |x| x[0].trunc()
);

/// -1, 1, or `a` itself where it is a zero or NaN.
pub static SIGN: Row = Row {
    name: "sign",
    arity: 1,
    dtypes: DTypes::Number,
    formula: |b, ty, x| {
        let [zero, one, minus] = [0.0, 1.0, -1.0].map(|v| b.number(ty, v));
        let (below, above) = (b.on(ty, Instr::Lt, &[x[0], zero]), b.on(ty, Instr::Lt, &[zero, x[0]]));
        let up = b.choose(above, one, x[0]);
        b.choose(below, minus, up)
    },
    reference: |x| if x[0] == 0.0 || x[0].is_nan() { x[0] } else { x[0].signum() },
    grad: Some(flat),
    domain: (-4.0, 4.0),
};

/// A row that tests one number. Integers and truth values are finite.
macro_rules! test {
    ($(#[$doc:meta])* $row:ident $name:literal $formula:expr, $other:literal, $reference:expr) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 1,
            dtypes: DTypes::Compare,
            formula: |b, ty, x| {
                let f: fn(&mut Builder, Ty, kernel::Val) -> kernel::Val = $formula;
                if matches!(ty, Ty::F32 | Ty::F64) { f(b, ty, x[0]) } else { b.bool($other) }
            },
            reference: |x| {
                let f: fn(f64) -> bool = $reference;
                f(x[0]) as u8 as f64
            },
            grad: None,
            domain: (-4.0, 4.0),
        };
    };
}

test!(
    /// Whether `a` is NaN.
    IS_NAN "is_nan" |b, ty, x| b.on(ty, Instr::Ne, &[x, x]), false, |x| x.is_nan()
);
test!(
    /// Whether `a` is an infinity.
    IS_INF "is_inf" |b, ty, x| {
        let (size, inf) = (b.on(ty, Instr::Abs, &[x]), b.number(ty, f64::INFINITY));
        b.on(ty, Instr::Eq, &[size, inf])
    }, false, |x| x.is_infinite()
);
test!(
    /// Whether `a` is neither an infinity nor NaN.
    IS_FINITE "is_finite" |b, ty, x| {
        let (size, inf) = (b.on(ty, Instr::Abs, &[x]), b.number(ty, f64::INFINITY));
        b.on(ty, Instr::Lt, &[size, inf])
    }, true, |x| x.is_finite()
);

/// `max(a, lo)`, NaN if either is; the gradient goes to `a` where `a >= lo`, to `lo` where `a < lo`.
pub static CLAMP_MIN: Row = Row {
    name: "clamp_min",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Max, x),
    reference: |x| if x[0].is_nan() || x[0] > x[1] { x[0] } else { x[1] },
    grad: Some(|g, args, i| within(g, if i == 0 { &compare::GE } else { &compare::LT }, args)),
    domain: (-4.0, 4.0),
};

/// `min(a, hi)`, NaN if either is; the gradient goes to `a` where `a <= hi`, to `hi` where `a > hi`.
pub static CLAMP_MAX: Row = Row {
    name: "clamp_max",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, ty, x| b.on(ty, Instr::Min, x),
    reference: |x| if x[0].is_nan() || x[0] < x[1] { x[0] } else { x[1] },
    grad: Some(|g, args, i| within(g, if i == 0 { &compare::LE } else { &compare::GT }, args)),
    domain: (-4.0, 4.0),
};

/// The gradient where `test` holds of the arguments.
fn within(g: &mut Grad<'_>, test: &'static Row, args: &[Arg]) -> crate::base::Result<Option<Val>> {
    let passes = g.row(test, args)?;
    g.row(&super::logic::SELECT, &[passes.into(), g.grad.into(), 0.0.into()]).map(Some)
}

pub static ROWS: &[&Row] =
    &[&FLOOR, &CEIL, &ROUND, &TRUNC, &SIGN, &IS_NAN, &IS_INF, &IS_FINITE, &CLAMP_MIN, &CLAMP_MAX];
