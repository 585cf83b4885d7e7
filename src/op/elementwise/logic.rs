//! Truth values and bits, and choosing by truth values.

use crate::kernel::{Instr, Ty};
use crate::op::elementwise::{DTypes, Row};

/// A row on truth values or, bit by bit, on integers.
macro_rules! bits {
    ($(#[$doc:meta])* $row:ident $name:literal $truth:ident $integer:ident $reference:tt) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: 2,
            dtypes: DTypes::Bits,
            formula: |b, ty, x| match ty {
                Ty::Bool => b.$truth(x[0], x[1]),
                _ => b.$integer(x[0], x[1]),
            },
            reference: |x| (x[0] as i64 $reference x[1] as i64) as f64,
            grad: None,
            domain: (-4.0, 4.0),
        };
    };
}

bits!(
    /// `a && b`; of integers `a & b`.
    AND "and" and land &
);
bits!(
    /// `a || b`; of integers `a | b`.
    OR "or" or lor |
);
bits!(
    /// `a != b`; of integers `a ^ b`.
    XOR "xor" xor lxor ^
);

/// `!a`.
pub static NOT: Row = Row {
    name: "not",
    arity: 1,
    dtypes: DTypes::Logic,
    formula: |b, _, x| b.not(x[0]),
    reference: |x| 1.0 - x[0],
    grad: None,
    domain: (0.0, 1.0),
};

/// `if c { a } else { b }`, element by element.
pub static SELECT: Row = Row {
    name: "select",
    arity: 3,
    dtypes: DTypes::Select,
    formula: |b, ty, x| b.on(ty, Instr::Select, x),
    reference: |x| if x[0] != 0.0 { x[1] } else { x[2] },
    grad: Some(|g, args, i| {
        let zero = 0.0.into();
        let [yes, no] = if i == 1 { [g.grad.into(), zero] } else { [zero, g.grad.into()] };
        g.row(&SELECT, &[args[0], yes, no]).map(Some)
    }),
    domain: (-4.0, 4.0),
};

pub static ROWS: &[&Row] = &[&AND, &OR, &XOR, &NOT, &SELECT];
