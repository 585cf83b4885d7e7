//! Reading at places that another tensor decides.

use smallvec::{SmallVec, smallvec};

use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::op::lowering::not_affine;
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Gather`].
#[derive(Clone, Copy)]
pub struct Gather {
    pub axis: u8,
}

/// An i64 index over `shape` whose lengths but for `axis` are those of `full`, where something can be read.
pub(super) fn check_index(op: &'static str, axis: usize, index: Type, full: Shape) -> Result<()> {
    if index.dtype != DType::I64 {
        return Err(Error::dtype(op, "an i64 index", index.dtype));
    }
    super::check_axis(op, axis, full)?;
    let same = index.shape.rank() == full.rank() && (0..full.rank()).all(|a| a == axis || index.shape[a] == full[a]);
    if !same {
        let want = format!("an index of shape {full} except along axis {axis} (expand it first)");
        return Err(Error::shape(op, want, index.shape.to_string()));
    }
    if full[axis] == 0 && index.shape.numel() != 0 {
        let given = format!("{full} with an index of shape {}", index.shape);
        return Err(Error::shape(op, format!("at least one element along axis {axis}"), given));
    }
    Ok(())
}

/// Positions in a contiguous tensor of shape `full` that the (clamped) index names, one per index element.
pub(super) fn named(index: &HostValue, axis: usize, full: Shape) -> Vec<usize> {
    let len = full[axis] as i64;
    let mut rows = Layout::contiguous(full);
    let stride = rows.strides[axis] as usize;
    rows.shape = index.shape;
    rows.strides[axis] = 0;
    let at = |(p, &bits): (usize, &u64)| p + (bits as i64).clamp(0, len - 1) as usize * stride;
    host::positions(&rows).into_iter().zip(&index.data.lanes()).map(at).collect()
}

impl Rules for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x, index] = super::operands(self.name(), operands)?;
        check_index(self.name(), self.axis as usize, index, x.shape)?;
        Ok(Type::new(x.dtype, index.shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let (x, index, grad) = (g.ty(g.operands[0]), g.operands[1], g.grad);
        if !g.needs(0) || !x.dtype.is_float() {
            return Ok(smallvec![None, None]);
        }
        let op = Op::ScatterAdd { axis: self.axis, len: x.shape[self.axis as usize] };
        Ok(smallvec![Some(g.emit(op, &[index, grad])?), None])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let (x, index) = (&operands[0], &operands[1]);
        Ok(host::pick(x, &named(index, self.axis as usize, x.shape), result.shape))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Gather
    }

    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (domain, types) = (cx.domain(), cx.operand_types());
        if types[0].shape.numel() == 0 {
            return Ok(cx.builder().constant(kernel::Ty::of(result.dtype), 0));
        }
        if !map.guards.is_empty() {
            return Err(not_affine(self.name(), "a gather takes no guards"));
        }
        let mut map = map.by_axes(&domain)?;
        let index = cx.operand(1, &map)?;
        map.shape = types[0].shape;
        cx.gather(0, &map, self.axis as usize, index)
    }

    fn indexed_axis(&self, operands: &[Type]) -> Option<usize> {
        operands.first()?.shape.dims().get(self.axis as usize).copied()
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Gather { axis: self.axis }
    }
}
