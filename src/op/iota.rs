//! Coordinates as values: what ranges, masks by place and the index of an extremum are made of.

use smallvec::SmallVec;

use crate::base::host::HostData;
use crate::base::{DType, HostValue, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::op::lowering::Expr;
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Iota`].
#[derive(Clone, Copy)]
pub struct Iota {
    pub shape: Shape,
    pub axes: u8,
}

impl Iota {
    /// Per axis by how much the value grows along it.
    fn strides(&self) -> SmallVec<[i64; 8]> {
        let mut stride = 1;
        let mut out: SmallVec<[i64; 8]> = SmallVec::from_elem(0, self.shape.rank());
        for a in (0..self.shape.rank()).rev().filter(|a| self.axes >> a & 1 == 1) {
            out[a] = stride;
            stride *= self.shape[a].max(1) as i64;
        }
        out
    }
}

impl Rules for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [] = super::operands(self.name(), operands)?;
        if let Some(axis) = (0..8).rev().find(|a| self.axes >> a & 1 == 1) {
            super::check_axis(self.name(), axis, self.shape)?;
        }
        Ok(Type::new(DType::I64, self.shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(SmallVec::new())
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        self.infer(&host::types(operands))?;
        let mut out = vec![0i64];
        for (a, stride) in self.strides().into_iter().enumerate() {
            let len = self.shape[a] as i64;
            out = out.iter().flat_map(|&v| (0..len).map(move |i| v + i * stride)).collect();
        }
        Ok(HostValue::new(self.shape, HostData::I64(out)))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Source
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        // A row-major index over all axes may come as it is, even where a reshape left no axes.
        let expr = match &map.linear {
            Some(linear) if self.axes.count_ones() as usize == self.shape.rank() => linear.clone(),
            _ => {
                let map = map.by_axes(&cx.domain())?;
                let axes = map.axes.iter().zip(self.strides());
                axes.fold(Expr::default(), |sum, (e, stride)| sum.plus(e, stride))
            }
        };
        Ok(cx.coordinate(&expr))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Iota { shape: self.shape, axes: self.axes }
    }
}
