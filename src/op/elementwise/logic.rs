//! Truth values, and choosing by them.

use crate::kernel::Instr;
use crate::op::elementwise::{DTypes, Row};

/// A row on truth values without a gradient.
macro_rules! truth {
    ($(#[$doc:meta])* $row:ident $name:literal $arity:literal $formula:expr, $reference:expr) => {
        $(#[$doc])*
        pub static $row: Row = Row {
            name: $name,
            arity: $arity,
            dtypes: DTypes::Logic,
            formula: $formula,
            reference: $reference,
            grad: None,
            domain: (0.0, 1.0),
        };
    };
}

truth!(
    /// `a && b`.
    AND "and" 2 |b, _, x| b.and(x[0], x[1]), |x| x[0] * x[1]
);
truth!(
    /// `a || b`.
    OR "or" 2 |b, _, x| b.or(x[0], x[1]), |x| x[0].max(x[1])
);
truth!(
    /// `a != b`.
    XOR "xor" 2 |b, _, x| b.xor(x[0], x[1]), |x| (x[0] - x[1]).abs()
);
truth!(
    /// `!a`.
    NOT "not" 1 |b, _, x| b.not(x[0]), |x| 1.0 - x[0]
);

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
