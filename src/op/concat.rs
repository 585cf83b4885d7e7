//! Operands joined along an axis.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{Error, HostValue, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::op::lowering::{Expr, Within};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Concat`].
#[derive(Clone, Copy)]
pub struct Concat {
    pub axis: u8,
}

/// The parts' chunks, `outer` of each, interleaved.
fn join<T: Copy>(parts: Vec<Vec<T>>, outer: usize) -> Vec<T> {
    let chunk = |p: &Vec<T>, o: usize| {
        let n = p.len() / outer;
        p[n * o..n * (o + 1)].to_vec()
    };
    (0..outer).flat_map(|o| parts.iter().flat_map(move |p| chunk(p, o))).collect()
}

impl Rules for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let axis = self.axis as usize;
        let Some(first) = operands.first() else {
            return Err(Error::argument(self.name(), "at least one tensor", "none"));
        };
        super::check_axis(self.name(), axis, first.shape)?;
        let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(first.shape.dims());
        for t in &operands[1..] {
            if t.dtype != first.dtype {
                return Err(Error::dtype(self.name(), format!("{} like the first operand", first.dtype), t.dtype));
            }
            let fits = t.shape.rank() == dims.len() && (0..dims.len()).all(|a| a == axis || t.shape[a] == dims[a]);
            if !fits {
                let want = format!("shapes equal to {} except along axis {axis}", first.shape);
                return Err(Error::shape(self.name(), want, t.shape.to_string()));
            }
            dims[axis] += t.shape[axis];
        }
        Ok(Type::new(first.dtype, Shape::new(&dims)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let (operands, grad) = (g.operands, g.grad);
        let mut out = smallvec![];
        let mut start = 0;
        for (i, &v) in operands.iter().enumerate() {
            let ty = g.ty(v);
            let len = ty.shape[self.axis as usize];
            let slice = Op::Slice { axis: self.axis, start: Scalar::i64(start as i64).constant(), len, step: 1 };
            let wanted = g.needs(i) && ty.dtype.is_float();
            out.push(if wanted { Some(g.emit(slice, &[grad])?) } else { None });
            start += len;
        }
        Ok(out)
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let axis = self.axis as usize;
        let outer: usize = result.shape.dims()[..axis].iter().product();
        let data = if host::is_real(operands) {
            HostData::Real(result.dtype, join(operands.iter().map(|v| v.data.to_f64()).collect(), outer))
        } else {
            HostData::from_lanes(result.dtype, &join(operands.iter().map(|v| v.data.lanes()).collect(), outer))
        };
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Piecewise
    }

    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (axis, domain, types) = (self.axis as usize, cx.domain(), cx.operand_types());
        let map = map.by_axes(&domain)?;
        let coordinate = &map.axes[axis];
        let mut start = 0i64;
        // (exclusive end along the axis, value) of the pieces that some point reaches, in order.
        let mut pieces: SmallVec<[(i64, kernel::Val); 4]> = SmallVec::new();
        for (i, t) in types.iter().enumerate() {
            let (lo, hi) = (start, start + t.shape[axis] as i64);
            start = hi;
            let shifted = map.slice(axis, Expr::constant(-lo), 1, t.shape, &domain)?;
            let piece = match map.within(axis, lo, hi, &domain)? {
                Within::Never => continue,
                Within::Always => shifted,
                Within::Guarded(guard) => shifted.guarded(guard),
            };
            pieces.push((hi, cx.operand(i, &piece)?));
        }
        let Some((_, mut value)) = pieces.pop() else {
            // No point of the kernel reads this value.
            return Ok(cx.builder().constant(kernel::Ty::of(result.dtype), 0));
        };
        let at = if pieces.is_empty() { value } else { cx.coordinate(coordinate) };
        while let Some((end, earlier)) = pieces.pop() {
            let end = cx.builder().i64(end);
            let before = cx.builder().llt(at, end);
            value = cx.builder().choose(before, earlier, value);
        }
        Ok(value)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Concat { axis: self.axis }
    }
}
