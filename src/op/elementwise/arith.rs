//! Arithmetic rows.

use crate::base::DType;
use crate::op::elementwise::{DTypes, Row};

/// `a + b`.
pub static ADD: Row = Row {
    name: "add",
    arity: 2,
    dtypes: DTypes::Number,
    formula: |b, dtype, x| match dtype {
        DType::I64 => b.op(crate::kernel::Instr::LAdd, &[x[0], x[1]]),
        _ => b.op(crate::kernel::Instr::Add, &[x[0], x[1]]),
    },
    reference: |x| x[0] + x[1],
    grad: Some(|g, _, _| Ok(Some(g.grad))),
    domain: (-4.0, 4.0),
};

pub static ROWS: &[&Row] = &[&ADD];
