//! A tensor of one repeated host value.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{HostValue, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Full`].
#[derive(Clone, Copy)]
pub struct Full {
    pub shape: Shape,
    pub value: Scalar,
}

impl Rules for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [] = super::operands(self.name(), operands)?;
        Ok(Type::new(self.value.dtype, self.shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(smallvec![])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let data = HostData::from_lanes(result.dtype, &vec![self.value.bits; self.shape.numel()]);
        Ok(HostValue::new(self.shape, data))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Source
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, _: &IndexMap) -> Result<kernel::Val> {
        Ok(cx.scalar(self.value))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        smallvec![self.value]
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        Op::Full { shape: self.shape, value: scalars[0] }
    }
}
