//! Reductions over axes, in the order of [`crate::kernel::order`]; NaN propagates. Sums of 16-bit floats are made in f32
//! and rounded once; those of integers and truth values are i64.
//!
//! A maximum or minimum over no elements is refused, since it has no value. The gradient of a
//! maximum or minimum is shared evenly among ties; where it is NaN nothing equals it, and the gradients of all its elements are NaN
//! (as those of `torch.amax`). That of a product is the product of the other elements, zeros among them
//! or not, and so is its second derivative; a third derivative lacks the terms of three zeros and more.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel::order::Order;
use crate::kernel::{self, Combine, Ty};
use crate::op::elementwise::{arith, compare, logic, rounding};
use crate::op::{Class, Emit, Grad, IndexMap, Lowering, Op, Rules, Val, cast, host};

/// The kinds of reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceKind {
    /// Sum; 0 over nothing. Of integers and truth values (wrapping) i64.
    Sum,
    /// Product; 1 over nothing. Of integers and truth values (wrapping) i64.
    Prod,
    /// Maximum of numbers.
    Max,
    /// Minimum of numbers.
    Min,
    /// Whether some truth value is true.
    Any,
    /// Whether all truth values are true.
    All,
}

impl ReduceKind {
    /// Every kind.
    pub const ALL: [ReduceKind; 6] =
        [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min, ReduceKind::Any, ReduceKind::All];

    /// The op's name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Prod => "prod",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
            ReduceKind::Any => "any",
            ReduceKind::All => "all",
        }
    }

    /// How a kernel combines elements of `dtype`; `None` where the kind does not take it.
    pub fn combine(self, dtype: DType) -> Option<Combine> {
        Some(match (self, Ty::of(dtype)) {
            (ReduceKind::Sum, Ty::F32) => Combine::Sum,
            (ReduceKind::Prod, Ty::F32) => Combine::Prod,
            (ReduceKind::Max, Ty::F32) => Combine::Max,
            (ReduceKind::Min, Ty::F32) => Combine::Min,
            (ReduceKind::Sum, Ty::F64) => Combine::DSum,
            (ReduceKind::Prod, Ty::F64) => Combine::DProd,
            (ReduceKind::Max, Ty::F64) => Combine::DMax,
            (ReduceKind::Min, Ty::F64) => Combine::DMin,
            (ReduceKind::Sum, Ty::I64 | Ty::Bool) => Combine::LSum,
            (ReduceKind::Prod, Ty::I64 | Ty::Bool) => Combine::LProd,
            (ReduceKind::Max, Ty::I64) => Combine::LMax,
            (ReduceKind::Min, Ty::I64) => Combine::LMin,
            (ReduceKind::Any, Ty::Bool) => Combine::Any,
            (ReduceKind::All, Ty::Bool) => Combine::All,
            _ => return None,
        })
    }

    /// The dtype of the result for elements of `dtype`.
    pub fn result(self, dtype: DType) -> DType {
        let counts = matches!(self, ReduceKind::Sum | ReduceKind::Prod);
        if counts && !dtype.is_float() { DType::I64 } else { dtype }
    }
}

/// [`Op::Reduce`].
#[derive(Clone, Copy)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub axes: u8,
    pub keepdim: bool,
}

/// Sums `v` over the axes along which `shape` was broadcast to it, and gives it that shape.
pub fn sum_to(cx: &mut dyn Emit, v: Val, shape: Shape) -> Result<Val> {
    let from = cx.ty(v).shape;
    if from == shape {
        return Ok(v);
    }
    let lead = from.rank().saturating_sub(shape.rank());
    let stretched = (0..from.rank()).filter(|&a| a < lead || (shape[a - lead] == 1 && from[a] != 1));
    let axes = stretched.fold(0u8, |mask, a| mask | 1 << a);
    let mut out = v;
    if axes != 0 {
        out = cx.emit(Op::Reduce { kind: ReduceKind::Sum, axes, keepdim: false }, &[out])?;
    }
    if cx.ty(out).shape != shape {
        out = cx.emit(Op::Reshape { shape }, &[out])?;
    }
    Ok(out)
}

impl Reduce {
    /// Of each element the product of the others: that of all over it where no element is 0; that of the rest for the only
    /// 0; else 0, which is computed from the zeros so that it has a derivative itself.
    fn slope_of_product(&self, g: &mut Grad<'_>, x: Val) -> Result<Val> {
        let reduce = |g: &mut Grad<'_>, kind, v: Val| g.emit(Op::Reduce { kind, axes: self.axes, keepdim: true }, &[v]);
        let zeros = g.row(&compare::EQ, &[x.into(), 0.0.into()])?;
        let factors = g.row(&logic::SELECT, &[zeros.into(), 1.0.into(), x.into()])?;
        let rest = reduce(g, ReduceKind::Prod, factors)?;
        let count = reduce(g, ReduceKind::Sum, zeros)?;
        let counts = |g: &mut Grad<'_>, n: i64| g.row(&compare::EQ, &[count.into(), Scalar::i64(n).constant().into()]);
        let (none, one, two) = (counts(g, 0)?, counts(g, 1)?, counts(g, 2)?);
        // A zero of either sign becomes +0; where infinities and zeros would meet, nothing is multiplied.
        let times_zero = |g: &mut Grad<'_>, v: Val, zero: Val, there: Option<Val>| -> Result<Val> {
            let finite = g.row(&rounding::IS_FINITE, &[v.into()])?;
            let there = match there {
                Some(there) => g.row(&logic::AND, &[finite.into(), there.into()])?,
                None => finite,
            };
            let product = g.row(&arith::MUL, &[v.into(), zero.into()])?;
            let product = g.row(&arith::ADD, &[product.into(), 0.0.into()])?;
            g.row(&logic::SELECT, &[there.into(), product.into(), 0.0.into()])
        };
        let over = g.row(&arith::DIV, &[rest.into(), factors.into()])?;
        let of_zeros = g.row(&logic::SELECT, &[zeros.into(), x.into(), 1.0.into()])?;
        let of_zeros = reduce(g, ReduceKind::Prod, of_zeros)?;
        let vanished = times_zero(g, over, of_zeros, None)?;
        let over = g.row(&logic::SELECT, &[none.into(), over.into(), vanished.into()])?;
        // Of two zeros the other one.
        let sum = g.row(&logic::SELECT, &[zeros.into(), x.into(), 0.0.into()])?;
        let sum = reduce(g, ReduceKind::Sum, sum)?;
        let other = g.row(&arith::SUB, &[sum.into(), x.into()])?;
        let vanished = times_zero(g, rest, other, Some(two))?;
        let rest = g.row(&logic::SELECT, &[one.into(), rest.into(), vanished.into()])?;
        g.row(&logic::SELECT, &[zeros.into(), rest.into(), over.into()])
    }

    fn is_reduced(&self, axis: usize) -> bool {
        self.axes >> axis & 1 == 1
    }

    /// Per result element, the positions of the elements it combines, in logical order.
    fn groups(&self, shape: Shape) -> Result<Vec<Vec<usize>>> {
        let all = Layout::contiguous(shape);
        let part = |reduced: bool| -> Result<Layout> {
            let axes: Vec<usize> = (0..shape.rank()).filter(|&a| self.is_reduced(a) == reduced).collect();
            let dims: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
            let mut layout = Layout::contiguous(Shape::new(&dims)?);
            for (slot, &a) in layout.strides.iter_mut().zip(&axes) {
                *slot = all.strides[a];
            }
            Ok(layout)
        };
        let inner = host::positions(&part(true)?);
        Ok(host::positions(&part(false)?).iter().map(|o| inner.iter().map(|i| o + i).collect()).collect())
    }
}

impl Rules for Reduce {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        if let Some(axis) = (0..8).rev().find(|&a| self.is_reduced(a)) {
            super::check_axis(self.name(), axis, x.shape)?;
        }
        if self.kind.combine(x.dtype).is_none() {
            let want =
                if matches!(self.kind, ReduceKind::Any | ReduceKind::All) { "bool" } else { "a number (not bool)" };
            return Err(Error::dtype(self.name(), want, x.dtype));
        }
        let count: usize = (0..x.shape.rank()).filter(|&a| self.is_reduced(a)).map(|a| x.shape[a]).product();
        if count == 0 && matches!(self.kind, ReduceKind::Max | ReduceKind::Min) {
            let given = format!("shape {}", x.shape);
            return Err(Error::shape(self.name(), "at least one element along the reduced axes", given));
        }
        Ok(Type::new(self.kind.result(x.dtype), x.shape.reduce(self.axes, self.keepdim)))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let (x, result, grad) = (g.operands[0], g.result, g.grad);
        let ty = g.ty(x);
        if !g.needs(0) || !ty.dtype.is_float() {
            return Ok(smallvec![None]);
        }
        let kept = ty.shape.reduce(self.axes, true);
        let keep =
            |g: &mut Grad<'_>, v: Val| if self.keepdim { Ok(v) } else { g.emit(Op::Reshape { shape: kept }, &[v]) };
        let grad = keep(g, grad)?;
        if self.kind == ReduceKind::Sum {
            return Ok(smallvec![Some(g.emit(Op::Expand { shape: ty.shape }, &[grad])?)]);
        }
        if self.kind == ReduceKind::Prod {
            let slope = self.slope_of_product(g, x)?;
            return Ok(smallvec![Some(g.row(&arith::MUL, &[grad.into(), slope.into()])?)]);
        }
        let result = keep(g, result)?;
        let ties = g.row(&compare::EQ, &[x.into(), result.into()])?;
        let ones = g.emit(Op::Cast(ty.dtype), &[ties])?;
        let count = g.emit(Op::Reduce { kind: ReduceKind::Sum, axes: self.axes, keepdim: true }, &[ones])?;
        let share = g.row(&arith::DIV, &[grad.into(), count.into()])?;
        // 0, or NaN where nothing equals the result, since that is NaN.
        let others = g.row(&arith::DIV, &[0.0.into(), count.into()])?;
        Ok(smallvec![Some(g.row(&logic::SELECT, &[ties.into(), share.into(), others.into()])?)])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let x = &operands[0];
        let groups = self.groups(x.shape)?;
        if let HostData::Real(dtype, v) = &x.data {
            let larger = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
            let combine = |group: &Vec<usize>| {
                let values = group.iter().map(|&p| v[p]);
                match self.kind {
                    ReduceKind::Max => values.fold(f64::NEG_INFINITY, larger),
                    ReduceKind::Min => -values.fold(f64::NEG_INFINITY, |a, b| larger(a, -b)),
                    ReduceKind::Prod => values.product(),
                    _ => values.sum(),
                }
            };
            return Ok(HostValue::new(result.shape, HostData::Real(*dtype, groups.iter().map(combine).collect())));
        }
        let Some(combine) = self.kind.combine(x.data.dtype()) else {
            return Err(Error::dtype(self.name(), "another dtype", x.data.dtype()));
        };
        let reduced: Vec<bool> = (0..x.shape.rank()).map(|a| self.is_reduced(a)).collect();
        let order = Order::of(x.shape.dims(), &reduced);
        let lanes = x.data.lanes();
        let out: Vec<u64> =
            groups.iter().map(|group| order.combine(combine, group.iter().map(|&p| lanes[p]))).collect();
        Ok(HostValue::new(result.shape, HostData::from_lanes(result.dtype, &out)))
    }

    fn flops(&self, operands: &[Type], _: Type) -> u64 {
        operands.iter().map(|t| t.shape.numel() as u64).sum()
    }

    fn class(&self) -> Class {
        Class::Reduction
    }

    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let from = cx.operand_types().first().map_or(result.dtype, |t| t.dtype);
        let Some(combine) = self.kind.combine(from) else {
            return Err(Error::dtype(self.name(), "another dtype", from));
        };
        let inner = cx.reduction_map(0, map)?;
        let mut value = cx.operand(0, &inner)?;
        if from == DType::Bool && matches!(combine, Combine::LSum | Combine::LProd) {
            value = cast::convert(cx.builder(), from, DType::I64, value);
        }
        let total = cx.reduce(combine, value)?;
        Ok(cx.builder().fit(result.dtype, total))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Reduce { kind: self.kind, axes: self.axes, keepdim: self.keepdim }
    }
}
