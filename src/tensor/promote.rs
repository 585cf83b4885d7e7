//! Promotion: operands of different dtypes are cast to one, by explicit casts, before an operation takes them.
//!
//! The rule is [`DType::common`], PyTorch's. Operations themselves take one dtype.

use std::borrow::Cow;

use crate::base::dtype::NumberKind;
use crate::base::{DType, Result, Scalar};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, Row, arith, logic};
use crate::tensor::arith::Operand;
use crate::tensor::recorder::emit;
use crate::tensor::{At, Tensor};

/// The dtype in which tensors and host numbers are computed together.
pub(super) fn common(tensors: &[&Tensor], numbers: &[Scalar]) -> DType {
    let operands = tensors.iter().map(|t| (t.dtype(), t.rank() == 0));
    DType::common(operands, numbers.iter().map(|s| s.kind())).unwrap_or(DType::F32)
}

/// The dtype in which `a` and `b` are computed together.
pub(super) fn with(a: &Tensor, b: &Operand<'_>) -> DType {
    match (b.tensor(), b.number()) {
        (Some(b), _) => common(&[a, b], &[]),
        (None, number) => common(&[a], number.as_slice()),
    }
}

/// `t` as `dtype`: itself, or a cast.
pub(super) fn to<'a>(t: &'a Tensor, dtype: DType, at: At) -> Result<Cow<'a, Tensor>> {
    if t.dtype() == dtype { Ok(Cow::Borrowed(t)) } else { emit(&Op::Cast(dtype), &[t], at).map(Cow::Owned) }
}

/// A row of two operands on tensors or a host number; `swap`: the second comes first.
pub(super) fn binary(row: &'static Row, a: &Tensor, b: &Operand<'_>, swap: bool, at: At) -> Result<Tensor> {
    match b.tensor() {
        Some(b) => {
            if a.dtype() == b.dtype() && a.dtype() != DType::Bool {
                return emit(&Op::Elementwise(Elementwise { row, scalar: None }), &[a, b], at);
            }
            let dtype = common(&[a, b], &[]);
            let (a, b) = (to(a, dtype, at)?, to(b, dtype, at)?);
            emit(&Op::Elementwise(Elementwise { row: of_truths(row, dtype), scalar: None }), &[&a, &b], at)
        }
        None => {
            let Operand::Scalar(s) = *b else { return Err(crate::base::Error::bug("binary", "no operand")) };
            let scalar = Some((!swap as u8, s));
            if a.dtype().is_float() || (a.dtype().is_int() && s.kind() < NumberKind::Float) {
                return emit(&Op::Elementwise(Elementwise { row, scalar }), &[a], at);
            }
            let dtype = common(&[a], &[s]);
            let a = to(a, dtype, at)?;
            emit(&Op::Elementwise(Elementwise { row: of_truths(row, dtype), scalar }), &[&a], at)
        }
    }
}

/// What a row does on truth values, as in PyTorch: sum and maximum are "or", product and minimum are "and".
fn of_truths(row: &'static Row, dtype: DType) -> &'static Row {
    let is = |other: &'static Row| std::ptr::eq(row, other);
    match dtype {
        DType::Bool if is(&arith::ADD) || is(&arith::MAXIMUM) => &logic::OR,
        DType::Bool if is(&arith::MUL) || is(&arith::MINIMUM) => &logic::AND,
        _ => row,
    }
}
