//! Adding at places that another tensor decides: the gradient of a gather. 16-bit floats add up in f32 and are rounded
//! once; integers wrap.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel::library::{self, Library};
use crate::kernel::{self, Instr, Ty};
use crate::op::gather::{check_index, named};
use crate::op::lowering::{Expr, not_affine};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::ScatterAdd`].
#[derive(Clone, Copy)]
pub struct ScatterAdd {
    pub axis: u8,
    pub len: usize,
}

impl ScatterAdd {
    fn result_shape(&self, index: Shape) -> Result<Shape> {
        super::check_axis("scatter_add", self.axis as usize, index)?;
        let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(index.dims());
        dims[self.axis as usize] = self.len;
        Shape::new(&dims)
    }

    /// The library call for operands that lie as these layouts say, offsets aside. `None` where the axes before or
    /// after the scattered one are not evenly strided (the operand must be copied first).
    pub fn call(&self, dtype: DType, index: &Layout, src: &Layout) -> Option<Library> {
        let axis = self.axis as usize;
        let dims = src.shape.dims();
        let (outer, count, inner) = (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product());
        let strides = |l: &Layout| -> Option<[i64; 3]> {
            let flat = l.reshape(Shape::new(&[outer, count, inner]).ok()?)?;
            Some([0, 1, 2].map(|a| flat.strides[a] as i64))
        };
        Some(Library::ScatterAdd(library::ScatterAdd {
            dtype,
            outer,
            count,
            len: self.len,
            inner,
            index: strides(index)?,
            src: strides(src)?,
        }))
    }
}

impl Rules for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [index, src] = super::operands(self.name(), operands)?;
        let shape = self.result_shape(index.shape)?;
        check_index(self.name(), self.axis as usize, index, shape)?;
        if src.shape != index.shape {
            return Err(Error::shape(
                self.name(),
                format!("a source of the index's shape {}", index.shape),
                src.shape.to_string(),
            ));
        }
        if src.dtype == DType::Bool {
            return Err(Error::dtype(self.name(), "a source of numbers", src.dtype));
        }
        Ok(Type::new(src.dtype, shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let (index, grad) = (g.operands[0], g.grad);
        if !g.needs(1) || !g.ty(grad).dtype.is_float() {
            return Ok(smallvec![None, None]);
        }
        Ok(smallvec![None, Some(g.emit(Op::Gather { axis: self.axis }, &[grad, index])?)])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let (index, src) = (&operands[0], &operands[1]);
        // Row-major order of the source is ascending j for each result element.
        let at = named(index, self.axis as usize, result.shape);
        let (n, dtype) = (result.shape.numel(), result.dtype);
        let data = if let HostData::Real(_, v) = &src.data {
            let mut sums = vec![0.0; n];
            at.iter().zip(v).for_each(|(&p, v)| sums[p] += v);
            HostData::Real(dtype, sums)
        } else {
            // 16-bit floats add up in f32 and round once, integers in i64 and wrap.
            let add = Instr::Add.on(Ty::of(dtype)).ok_or_else(|| Error::bug(self.name(), "a dtype without a sum"))?;
            let mut sums = vec![0; n];
            at.iter().zip(src.data.lanes()).for_each(|(&p, v)| sums[p] = add.eval(&[sums[p], v]));
            HostData::from_lanes(dtype, &sums)
        };
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, operands: &[Type], _: Type) -> u64 {
        operands.get(1).map_or(0, |t| t.shape.numel() as u64)
    }

    fn class(&self) -> Class {
        Class::Library
    }

    /// Only where one element at most is added to each of the result's, so that there is no order to keep.
    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (axis, domain, types) = (self.axis as usize, cx.domain(), cx.operand_types());
        let index = types.first().ok_or_else(|| Error::bug("scatter_add", "no operands"))?.shape;
        if index[axis] != 1 || result.shape.numel() == 0 || !map.guards.is_empty() {
            return Err(not_affine(self.name(), "it is a library call"));
        }
        let map = map.by_axes(&domain)?;
        let mut from = map.clone();
        from.shape = index;
        from.axes[axis] = Expr::default();
        let named = cx.checked_index(0, &from, self.len)?;
        let added = cx.operand(1, &from)?;
        let here = cx.coordinate(&map.axes[axis]);
        let b = cx.builder();
        let (first, last) = (b.i64(0), b.i64(self.len as i64 - 1));
        let named = b.lmax(named, first);
        let named = b.lmin(named, last);
        let hit = b.leq(here, named);
        // As the library call does: added to zero, which makes +0 of -0.
        let ty = Ty::of(result.dtype);
        let zero = b.number(ty, 0.0);
        let sum = b.on(ty, Instr::Add, &[zero, added]);
        Ok(b.choose(hit, sum, zero))
    }

    fn library(&self, operands: &[(DType, Layout)], _: &Layout) -> Option<Library> {
        let [(_, index), (dtype, src)] = operands else { return None };
        // The call has no offsets.
        if index.offset == 0 && src.offset == 0 { self.call(*dtype, index, src) } else { None }
    }

    fn indexed_axis(&self, _: &[Type]) -> Option<usize> {
        Some(self.len)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::ScatterAdd { axis: self.axis, len: self.len }
    }
}
