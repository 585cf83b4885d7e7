//! Comparisons of two elements of one dtype; with NaN all are false but `ne`. `false < true`.

use crate::base::DType;
use crate::kernel::{Builder, Val};
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
    EQ "eq" |b, dtype, x| equal(b, dtype, x[0], x[1]), ==
);
comparison!(
    /// `a != b`; true with NaN.
    NE "ne" |b, dtype, x| match dtype {
        DType::F32 => b.ne(x[0], x[1]),
        _ => {
            let same = equal(b, dtype, x[0], x[1]);
            b.not(same)
        }
    }, !=
);
comparison!(
    /// `a < b`.
    LT "lt" |b, dtype, x| less(b, dtype, x[0], x[1]), <
);
comparison!(
    /// `a <= b`.
    LE "le" |b, dtype, x| less_equal(b, dtype, x[0], x[1]), <=
);
comparison!(
    /// `a > b`.
    GT "gt" |b, dtype, x| less(b, dtype, x[1], x[0]), >
);
comparison!(
    /// `a >= b`.
    GE "ge" |b, dtype, x| less_equal(b, dtype, x[1], x[0]), >=
);

fn equal(b: &mut Builder, dtype: DType, x: Val, y: Val) -> Val {
    match dtype {
        DType::F32 => b.eq(x, y),
        DType::I64 => b.leq(x, y),
        DType::Bool => {
            let differ = b.xor(x, y);
            b.not(differ)
        }
    }
}

fn less(b: &mut Builder, dtype: DType, x: Val, y: Val) -> Val {
    match dtype {
        DType::F32 => b.lt(x, y),
        DType::I64 => b.llt(x, y),
        DType::Bool => {
            let low = b.not(x);
            b.and(low, y)
        }
    }
}

fn less_equal(b: &mut Builder, dtype: DType, x: Val, y: Val) -> Val {
    match dtype {
        DType::F32 => b.le(x, y),
        _ => {
            let above = less(b, dtype, y, x);
            b.not(above)
        }
    }
}

pub static ROWS: &[&Row] = &[&EQ, &NE, &LT, &LE, &GT, &GE];
