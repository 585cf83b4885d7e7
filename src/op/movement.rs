//! Views: reshape, permute, expand, slice; and unslice, the reverse of a slice.
//!
//! In a kernel a view is an index map and costs nothing; in memory it is a [`Layout`].

use smallvec::{SmallVec, smallvec};

use crate::base::scalar::Origin;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::op::lowering::{Expr, Within, not_affine};
use crate::op::{AxisList, Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Reshape`].
#[derive(Clone, Copy)]
pub struct Reshape {
    pub shape: Shape,
}

/// [`Op::Permute`].
#[derive(Clone, Copy)]
pub struct Permute {
    pub order: AxisList,
}

/// [`Op::Expand`].
#[derive(Clone, Copy)]
pub struct Expand {
    pub shape: Shape,
}

/// [`Op::Slice`].
#[derive(Clone, Copy)]
pub struct Slice {
    pub axis: u8,
    pub start: Scalar,
    pub len: usize,
    pub step: isize,
}

/// [`Op::Unslice`].
#[derive(Clone, Copy)]
pub struct Unslice {
    pub axis: u8,
    pub start: Scalar,
    pub len: usize,
    pub step: isize,
}

/// What the four views have in common: no arithmetic, no scalars of their own.
macro_rules! view_rules {
    () => {
        fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
            self.infer(&host::types(operands))?;
            Ok(host::view(&operands[0], &self.layout(&Layout::contiguous(operands[0].shape))))
        }

        fn flops(&self, _: &[Type], _: Type) -> u64 {
            0
        }

        fn class(&self) -> Class {
            Class::Movement
        }
    };
}

/// The gradient of an op with one operand, made by `rule` if anybody asks.
pub(super) fn gradient(
    g: &mut Grad<'_>,
    rule: impl FnOnce(&mut Grad<'_>, Val, Type) -> Result<Val>,
) -> Result<SmallVec<[Option<Val>; 3]>> {
    let (ty, grad) = (g.ty(g.operands[0]), g.grad);
    if !g.needs(0) || !ty.dtype.is_float() {
        return Ok(smallvec![None]);
    }
    Ok(smallvec![Some(rule(g, grad, ty)?)])
}

/// Shape of the only operand.
pub(super) fn operand_shape(cx: &dyn Lowering) -> Result<Shape> {
    cx.operand_types().first().map(|t| t.shape).ok_or_else(|| Error::bug("lower", "a view without an operand"))
}

impl Reshape {
    fn layout(&self, operand: &Layout) -> Layout {
        operand.reshape(self.shape).unwrap_or(*operand)
    }
}

impl Rules for Reshape {
    view_rules!();

    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        if x.shape.numel() != self.shape.numel() {
            let want = format!("a shape of {} elements, as many as {} has", x.shape.numel(), x.shape);
            return Err(Error::shape(self.name(), want, format!("{} with {}", self.shape, self.shape.numel())));
        }
        Ok(Type::new(x.dtype, self.shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        gradient(g, |g, grad, ty| g.emit(Op::Reshape { shape: ty.shape }, &[grad]))
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let map = map.reshape(operand_shape(cx)?, &cx.domain());
        cx.operand(0, &map)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Reshape { shape: self.shape }
    }
}

impl Permute {
    fn layout(&self, operand: &Layout) -> Layout {
        operand.permute(&self.order.to_vec())
    }
}

impl Rules for Permute {
    view_rules!();

    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        let order = self.order.to_vec();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.shape.rank()) {
            let want = format!("each axis of {} exactly once", x.shape);
            return Err(Error::argument(self.name(), want, format!("{order:?}")));
        }
        let dims: SmallVec<[usize; 8]> = order.iter().map(|&o| x.shape[o]).collect();
        Ok(Type::new(x.dtype, Shape::new(&dims)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let order = self.order.to_vec();
        let mut inverse: SmallVec<[usize; 8]> = SmallVec::from_elem(0, order.len());
        for (a, &o) in order.iter().enumerate() {
            inverse[o] = a;
        }
        gradient(g, |g, grad, _| g.emit(Op::Permute { order: AxisList::new(&inverse) }, &[grad]))
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let map = map.permute(&self.order.to_vec(), operand_shape(cx)?, &cx.domain())?;
        cx.operand(0, &map)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Permute { order: self.order }
    }
}

impl Expand {
    fn layout(&self, operand: &Layout) -> Layout {
        operand.expand(self.shape)
    }
}

impl Rules for Expand {
    view_rules!();

    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        if x.shape.broadcast(&self.shape) != Some(self.shape) {
            let want = format!("a shape that {} broadcasts to (trailing axes equal, or 1 in it)", x.shape);
            return Err(Error::shape(self.name(), want, self.shape.to_string()));
        }
        Ok(Type::new(x.dtype, self.shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        gradient(g, |g, grad, ty| g.unbroadcast(grad, ty.shape))
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let map = map.broadcast(operand_shape(cx)?, &cx.domain())?;
        cx.operand(0, &map)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Expand { shape: self.shape }
    }
}

/// `shape` with another length along `axis`.
fn with_len(shape: Shape, axis: usize, len: usize) -> Result<Shape> {
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(shape.dims());
    dims[axis] = len;
    Shape::new(&dims)
}

/// The largest start of `count` elements, every `|step|`-th, out of `len`; `None` if they never fit.
fn last_start(count: usize, step: isize, len: usize) -> Option<usize> {
    let span = if count == 0 { 0 } else { (count - 1).checked_mul(step.unsigned_abs())?.checked_add(1)? };
    len.checked_sub(span)
}

/// The largest start, after checking step, fit and the present start.
fn check_range(op: &'static str, start: Scalar, count: usize, step: isize, len: usize) -> Result<usize> {
    if step == 0 {
        return Err(Error::argument(op, "a step other than 0", "0"));
    }
    if start.dtype != DType::I64 {
        return Err(Error::argument(op, "an i64 start", format!("{start:?}")));
    }
    let Some(max) = last_start(count, step, len) else {
        let given = format!("{count} elements with step {step}");
        return Err(Error::argument(op, format!("a range inside an axis of length {len}"), given));
    };
    // A parameter's value is that of a call; who passes it checks it against `scalar_limits`.
    let fixed = !matches!(start.origin, Origin::Param(_));
    if fixed && !(0..=max as i64).contains(&start.as_i64()) {
        let want = format!("a start in 0..={max} ({count} elements with step {step} of {len})");
        return Err(Error::argument(op, want, start.to_string()));
    }
    Ok(max)
}

impl Slice {
    fn layout(&self, operand: &Layout) -> Layout {
        operand.slice(self.axis as usize, self.start.as_i64() as usize, self.len, self.step)
    }
}

impl Rules for Slice {
    view_rules!();

    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        let axis = self.axis as usize;
        super::check_axis(self.name(), axis, x.shape)?;
        check_range(self.name(), self.start, self.len, self.step, x.shape[axis])?;
        Ok(Type::new(x.dtype, with_len(x.shape, axis, self.len)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let Slice { axis, start, len: count, step } = *self;
        gradient(g, |g, grad, ty| {
            let len = ty.shape[axis as usize];
            // The whole axis, turned or not: it turns back.
            let whole = count == len && step.unsigned_abs() == 1 && len > 0;
            let start = if whole { Scalar::i64(0).constant() } else { start };
            let op = if whole { Op::Slice { axis, start, len, step } } else { Op::Unslice { axis, start, len, step } };
            g.emit(op, &[grad])
        })
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (axis, shape, domain) = (self.axis as usize, operand_shape(cx)?, cx.domain());
        let max = last_start(self.len, self.step, shape[axis]).unwrap_or(0) as i64;
        let param = if self.start.origin == Origin::Constant { None } else { cx.parameter(self.start) };
        let mut first = match param {
            Some(param) => Expr {
                dynamic: SmallVec::from_elem(kernel::ir::Dynamic { param, stride: 1, max }, 1),
                ..Expr::default()
            },
            None => Expr::constant(self.start.as_i64()),
        };
        if self.step < 0 {
            first.offset += (self.len as i64 - 1).max(0) * -(self.step as i64);
        }
        let map = map.slice(axis, first, self.step as i64, shape, &domain)?;
        cx.operand(0, &map)
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        smallvec![self.start]
    }

    fn scalar_limits(&self, operands: &[Type]) -> SmallVec<[Option<i64>; 2]> {
        let len = operands.first().map_or(0, |t| t.shape[self.axis as usize]);
        smallvec![Some(last_start(self.len, self.step, len).unwrap_or(0) as i64)]
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        Op::Slice { axis: self.axis, start: scalars[0], len: self.len, step: self.step }
    }
}

impl Rules for Unslice {
    fn name(&self) -> &'static str {
        "unslice"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        let axis = self.axis as usize;
        super::check_axis(self.name(), axis, x.shape)?;
        check_range(self.name(), self.start, x.shape[axis], self.step, self.len)?;
        Ok(Type::new(x.dtype, with_len(x.shape, axis, self.len)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let Unslice { axis, start, step, .. } = *self;
        gradient(g, |g, grad, ty| g.emit(Op::Slice { axis, start, len: ty.shape[axis as usize], step }, &[grad]))
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let (x, axis) = (&operands[0], self.axis as usize);
        let mut data = x.data.zeros(result.shape.numel());
        let start = self.start.as_i64() as usize;
        let inside = Layout::contiguous(result.shape).slice(axis, start, x.shape[axis], self.step);
        data.put(&host::positions(&inside), &x.data);
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Piecewise
    }

    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (axis, shape, domain) = (self.axis as usize, operand_shape(cx)?, cx.domain());
        let map = map.by_axes(&domain)?;
        let zero = cx.builder().constant(kernel::Ty::of(result.dtype), 0);
        let count = shape[axis] as i64;
        if shape.numel() == 0 || result.shape.numel() == 0 {
            return Ok(zero);
        }
        if self.start.origin == Origin::Constant && self.step.unsigned_abs() == 1 {
            let start = self.start.as_i64();
            let (first, step) = if self.step > 0 { (-start, 1) } else { (start + count - 1, -1) };
            let shifted = map.slice(axis, Expr::constant(first), step, shape, &domain)?;
            let guard = match map.within(axis, start, start + count, &domain)? {
                Within::Never => return Ok(zero),
                Within::Always => return cx.operand(0, &shifted),
                Within::Guarded(guard) => guard,
            };
            let value = cx.operand(0, &shifted.guarded(guard))?;
            let at = cx.coordinate(&map.axes[axis]);
            let b = cx.builder();
            let (lo, hi) = (b.i64(start), b.i64(start + count));
            let (before, below) = (b.llt(at, lo), b.llt(at, hi));
            let after = b.not(before);
            let inside = b.and(after, below);
            return Ok(b.choose(inside, value, zero));
        }
        if !map.guards.is_empty() {
            return Err(not_affine("unslice", "its start is a host scalar, and a gather takes no guards"));
        }
        // Position (c - start) / |step| where it is whole and in range, else zero.
        let at = cx.coordinate(&map.axes[axis]);
        let start = cx.scalar(self.start);
        let b = cx.builder();
        let apart = self.step.unsigned_abs() as i64;
        let (nothing, step, last, count) = (b.i64(0), b.i64(apart), b.i64(count - 1), b.i64(count));
        let distance = b.lsub(at, start);
        let before = b.llt(distance, nothing);
        let after = b.not(before);
        let (position, rest) = if apart == 1 {
            (distance, None)
        } else {
            let position = b.ldiv(distance, step);
            let back = b.lmul(position, step);
            (position, Some(b.leq(back, distance)))
        };
        let below = b.llt(position, count);
        let mut inside = b.and(after, below);
        if let Some(whole) = rest {
            inside = b.and(inside, whole);
        }
        let position = if self.step < 0 { b.lsub(last, position) } else { position };
        let index = b.lselect(inside, position, nothing);
        let mut target = map.clone();
        target.shape = shape;
        target.axes[axis] = Expr::default();
        let value = cx.gather(0, &target, axis, index)?;
        Ok(cx.builder().choose(inside, value, zero))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        smallvec![self.start]
    }

    fn scalar_limits(&self, operands: &[Type]) -> SmallVec<[Option<i64>; 2]> {
        let count = operands.first().map_or(0, |t| t.shape[self.axis as usize]);
        smallvec![Some(last_start(count, self.step, self.len).unwrap_or(0) as i64)]
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        Op::Unslice { axis: self.axis, start: scalars[0], len: self.len, step: self.step }
    }
}
