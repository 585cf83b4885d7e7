//! Windows over an axis, and adding them back: what convolutions and pooling are made of.
//!
//! A window is a view: in memory a [`Layout`] whose elements overlap, in a kernel an index map. Its gradient is a fold,
//! whose gradient is a window.

use smallvec::SmallVec;

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel::{self, Instr, Ty};
use crate::op::lowering::{Expr, Within, not_affine};
use crate::op::movement::{gradient, operand_shape};
use crate::op::{Class, Emit, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Window`].
#[derive(Clone, Copy)]
pub struct Window {
    pub axis: u8,
    pub count: usize,
    pub size: usize,
    pub step: usize,
    pub dilation: usize,
}

/// [`Op::Fold`].
#[derive(Clone, Copy)]
pub struct Fold {
    pub axis: u8,
    pub len: usize,
    pub step: usize,
    pub dilation: usize,
}

/// Whether `count` windows of `size` elements lie within `len`.
fn check_windows(
    op: &'static str,
    (count, size): (usize, usize),
    (step, dilation): (usize, usize),
    len: usize,
) -> Result<()> {
    if step == 0 || dilation == 0 {
        return Err(Error::argument(op, "a step and a dilation of at least 1", format!("{step} and {dilation}")));
    }
    if count == 0 || size == 0 {
        return Ok(());
    }
    let reach = || (count - 1).checked_mul(step)?.checked_add((size - 1).checked_mul(dilation)?);
    if reach().is_none_or(|last| last >= len) {
        let given = format!("{count} of {size} elements with step {step} and dilation {dilation}");
        return Err(Error::argument(op, format!("windows inside an axis of length {len}"), given));
    }
    Ok(())
}

impl Window {
    fn layout(&self, operand: &Layout) -> Layout {
        operand.window(self.axis as usize, [self.count, self.size], [self.step, self.dilation])
    }
}

/// `windows`, with `count` and `size` along `axis` and the next one, added back to an axis of length `len`: by a reshape where
/// windows lie side by side.
pub fn fold(cx: &mut dyn Emit, windows: Val, fold: Fold) -> Result<Val> {
    let Fold { axis, len, step, dilation } = fold;
    let shape = cx.ty(windows).shape;
    let (count, size) = (shape[axis as usize], shape[axis as usize + 1]);
    if dilation != 1 || step != size || size == 0 {
        return cx.emit(Op::Fold { axis, len, step, dilation }, &[windows]);
    }
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(shape.dims());
    dims.remove(axis as usize);
    dims[axis as usize] = count * size;
    let side_by_side = cx.emit(Op::Reshape { shape: Shape::new(&dims)? }, &[windows])?;
    if len == count * size {
        return Ok(side_by_side);
    }
    cx.emit(Op::Unslice { axis, start: Scalar::i64(0).constant(), len, step: 1 }, &[side_by_side])
}

impl Rules for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        let axis = self.axis as usize;
        super::check_axis(self.name(), axis, x.shape)?;
        check_windows(self.name(), (self.count, self.size), (self.step, self.dilation), x.shape[axis])?;
        let mut dims: SmallVec<[usize; 9]> = SmallVec::from_slice(x.shape.dims());
        dims[axis] = self.count;
        dims.insert(axis + 1, self.size);
        Ok(Type::new(x.dtype, Shape::new(&dims)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let Window { axis, step, dilation, .. } = *self;
        gradient(g, |g, grad, ty| fold(g.emitter(), grad, Fold { axis, len: ty.shape[axis as usize], step, dilation }))
    }

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

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let by = [self.step as i64, self.dilation as i64];
        let map = map.window(self.axis as usize, by, operand_shape(cx)?, &cx.domain())?;
        cx.operand(0, &map)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        let Window { axis, count, size, step, dilation } = *self;
        Op::Window { axis, count, size, step, dilation }
    }
}

/// Lengths of the axis of windows and of the one in a window.
fn windows_of(op: &'static str, axis: usize, shape: Shape) -> Result<(usize, usize)> {
    super::check_axis(op, axis + 1, shape)?;
    Ok((shape[axis], shape[axis + 1]))
}

impl Rules for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        let axis = self.axis as usize;
        let windows = windows_of(self.name(), axis, x.shape)?;
        check_windows(self.name(), windows, (self.step, self.dilation), self.len)?;
        if x.dtype == DType::Bool {
            return Err(Error::dtype(self.name(), "numbers, which can be added", x.dtype));
        }
        let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(x.shape.dims());
        dims.remove(axis);
        dims[axis] = self.len;
        Ok(Type::new(x.dtype, Shape::new(&dims)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let Fold { axis, step, dilation, .. } = *self;
        gradient(g, |g, grad, ty| {
            let (count, size) = windows_of("fold", axis as usize, ty.shape)?;
            g.emit(Op::Window { axis, count, size, step, dilation }, &[grad])
        })
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let (x, axis) = (&operands[0], self.axis as usize);
        let (count, size) = windows_of(self.name(), axis, x.shape)?;
        let (n, dtype) = (result.shape.numel(), result.dtype);
        // 16-bit floats add up in f32 and round once, integers in i64 and wrap.
        let add = Instr::Add.on(Ty::of(dtype)).ok_or_else(|| Error::bug(self.name(), "a dtype without a sum"))?;
        let (mut reals, mut lanes) = (vec![0.0f64; n], vec![0; n]);
        for w in 0..size {
            // Element w of each window, everywhere else zero.
            let to = Layout::contiguous(result.shape).slice(axis, w * self.dilation, count, self.step as isize);
            let from = host::positions(&Layout::contiguous(x.shape).slice(axis + 1, w, 1, 1));
            let mut element = x.data.zeros(n);
            element.put(&host::positions(&to), &x.data.pick(&from));
            if let HostData::Real(_, element) = &element {
                reals.iter_mut().zip(element).for_each(|(sum, e)| *sum += e);
            } else {
                let sums = lanes.iter_mut().zip(element.lanes());
                sums.for_each(|(sum, e)| *sum = if w == 0 { e } else { add.eval(&[*sum, e]) });
            }
        }
        let real = host::is_real(operands);
        let data = if real { HostData::Real(dtype, reals) } else { HostData::from_lanes(dtype, &lanes) };
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, operands: &[Type], result: Type) -> u64 {
        let size = operands.first().map_or(0, |t| t.shape.dims().get(self.axis as usize + 1).copied().unwrap_or(0));
        size as u64 * result.shape.numel() as u64
    }

    fn class(&self) -> Class {
        Class::Piecewise
    }

    /// The elements of the windows that lie at a place, in the order of their places in the window.
    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (axis, shape, domain) = (self.axis as usize, operand_shape(cx)?, cx.domain());
        let map = map.by_axes(&domain)?;
        let (count, size) = windows_of(self.name(), axis, shape)?;
        let ty = Ty::of(result.dtype);
        let mut sum = None;
        if shape.numel() > 0 && result.shape.numel() > 0 {
            for w in 0..size {
                let element = match self.step {
                    1 => self.side_by_side(cx, &map, w, count, ty)?,
                    _ => self.apart(cx, &map, w, count, ty)?,
                };
                sum = Some(match sum {
                    None => element,
                    Some(sum) => cx.builder().on(ty, Instr::Add, &[sum, element]),
                });
            }
        }
        let b = cx.builder();
        let sum = sum.unwrap_or_else(|| b.constant(ty, 0));
        Ok(b.fit(result.dtype, sum))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        let Fold { axis, len, step, dilation } = *self;
        Op::Fold { axis, len, step, dilation }
    }
}

impl Fold {
    /// `map` as an index into the windows, at element `w` of window `window`.
    fn at(&self, map: &IndexMap, shape: Shape, window: Expr, w: usize) -> IndexMap {
        let axis = self.axis as usize;
        let mut to = map.clone();
        to.shape = shape;
        to.axes[axis] = window;
        to.axes.insert(axis + 1, Expr::constant(w as i64));
        to
    }

    /// Element `w` of the window at each place where there is one, for windows a step of 1 apart.
    fn side_by_side(
        &self,
        cx: &mut dyn Lowering,
        map: &IndexMap,
        w: usize,
        count: usize,
        ty: Ty,
    ) -> Result<kernel::Val> {
        let (axis, shape, domain) = (self.axis as usize, operand_shape(cx)?, cx.domain());
        let start = (w * self.dilation) as i64;
        let window = Expr::constant(-start).plus(&map.axes[axis], 1);
        let to = self.at(map, shape, window, w);
        // Loads outside of a guard are zero.
        match map.within(axis, start, start + count as i64, &domain)? {
            Within::Never => Ok(cx.builder().constant(ty, 0)),
            Within::Always => cx.operand(0, &to),
            Within::Guarded(guard) => cx.operand(0, &to.guarded(guard)),
        }
    }

    /// The same for windows further apart: which window it is, if any, is computed.
    fn apart(&self, cx: &mut dyn Lowering, map: &IndexMap, w: usize, count: usize, ty: Ty) -> Result<kernel::Val> {
        if !map.guards.is_empty() {
            return Err(not_affine("fold", "its windows are computed, and a gather takes no guards"));
        }
        let (axis, shape) = (self.axis as usize, operand_shape(cx)?);
        let at = cx.coordinate(&map.axes[axis]);
        let b = cx.builder();
        let (nothing, start) = (b.i64(0), b.i64((w * self.dilation) as i64));
        let (step, count) = (b.i64(self.step as i64), b.i64(count as i64));
        let distance = b.lsub(at, start);
        let before = b.llt(distance, nothing);
        let after = b.not(before);
        let window = b.ldiv(distance, step);
        let back = b.lmul(window, step);
        let (whole, below) = (b.leq(back, distance), b.llt(window, count));
        let inside = b.and(after, below);
        let inside = b.and(inside, whole);
        let window = b.lselect(inside, window, nothing);
        let to = self.at(map, shape, Expr::default(), w);
        let element = cx.gather(0, &to, axis, window)?;
        let zero = cx.builder().constant(ty, 0);
        Ok(cx.builder().choose(inside, element, zero))
    }
}
