//! Comparisons of two elements of one dtype; with NaN all are false but `ne`. `false < true`.

use crate::kernel::{Builder, Instr, Ty, Val};
use crate::op::elementwise::{DTypes, Row};

/// A row that compares: its name, its formula, and the same on doubles.
macro_rules! comparison {
    ($(#[$doc:meta])* $row:ident $name:literal $formula:expr, $op:tt) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 2,
            dtypes: DTypes::Compare,
            formula: $formula,
            reference: |x| (x[0] $op x[1]) as u8 as f64,
            grad: None,
            domain: (-2.0, 2.0),
        };
    };
}

comparison!(
    /// `a == b`.
    EQ "eq" |b, ty, x| equal(b, ty, x[0], x[1]), ==
);
comparison!(
    /// `a != b`; true with NaN.
    NE "ne" |b, ty, x| match ty {
        Ty::F32 | Ty::F64 => b.on(ty, Instr::Ne, x),
        _ => {
            let same = equal(b, ty, x[0], x[1]);
            b.not(same)
        }
    }, !=
);
comparison!(
    /// `a < b`.
    LT "lt" |b, ty, x| less(b, ty, x[0], x[1]), <
);
comparison!(
    /// `a <= b`.
    LE "le" |b, ty, x| less_equal(b, ty, x[0], x[1]), <=
);
comparison!(
    /// `a > b`.
    GT "gt" |b, ty, x| less(b, ty, x[1], x[0]), >
);
comparison!(
    /// `a >= b`.
    GE "ge" |b, ty, x| less_equal(b, ty, x[1], x[0]), >=
);

fn equal(b: &mut Builder, ty: Ty, x: Val, y: Val) -> Val {
    match ty {
        Ty::F32 | Ty::F64 | Ty::I64 => b.on(ty, Instr::Eq, &[x, y]),
        _ => {
            let differ = b.xor(x, y);
            b.not(differ)
        }
    }
}

fn less(b: &mut Builder, ty: Ty, x: Val, y: Val) -> Val {
    match ty {
        Ty::F32 | Ty::F64 | Ty::I64 => b.on(ty, Instr::Lt, &[x, y]),
        _ => {
            let low = b.not(x);
            b.and(low, y)
        }
    }
}

fn less_equal(b: &mut Builder, ty: Ty, x: Val, y: Val) -> Val {
    match ty {
        Ty::F32 | Ty::F64 => b.on(ty, Instr::Le, &[x, y]),
        _ => {
            let above = less(b, ty, y, x);
            b.not(above)
        }
    }
}

pub static ROWS: &[&Row] = &[&EQ, &NE, &LT, &LE, &GT, &GE];
