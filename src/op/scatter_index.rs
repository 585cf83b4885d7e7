//! Where a scatter writes, turned round: of each place the position that wrote to it last.
//!
//! Assignments at indices are made of it: gather the source at these positions, and keep what was there where there is none.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::kernel::library::{self, Library};
use crate::op::gather::{check_index, named};
use crate::op::lowering::not_affine;
use crate::op::scan::{around, lines};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::ScatterIndex`].
#[derive(Clone, Copy)]
pub struct ScatterIndex {
    pub axis: u8,
    pub len: usize,
}

impl Rules for ScatterIndex {
    fn name(&self) -> &'static str {
        "scatter_index"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [index] = super::operands(self.name(), operands)?;
        super::check_axis(self.name(), self.axis as usize, index.shape)?;
        let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(index.shape.dims());
        dims[self.axis as usize] = self.len;
        let shape = Shape::new(&dims)?;
        check_index(self.name(), self.axis as usize, index, shape)?;
        Ok(Type::new(DType::I64, shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(smallvec![None])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let index = &operands[0];
        let [_, count, inner] = around(index.shape, self.axis as usize);
        let mut out = vec![-1i64; result.shape.numel()];
        // Row-major order of the index is ascending j for each place.
        for (e, p) in named(index, self.axis as usize, result.shape).into_iter().enumerate() {
            out[p] = (e / inner % count) as i64;
        }
        Ok(HostValue::new(result.shape, HostData::I64(out)))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Library
    }

    fn lower(&self, _: &mut dyn Lowering, _: Type, _: &IndexMap) -> Result<kernel::Val> {
        Err(not_affine(self.name(), "it is a library call"))
    }

    fn library(&self, operands: &[(DType, Layout)], _: &Layout) -> Option<Library> {
        let ((_, index), axis) = (operands.first()?, self.axis as usize);
        let dims = around(index.shape, axis);
        Some(Library::ScatterIndex(library::ScatterIndex { dims, len: self.len, index: lines(index, axis)? }))
    }

    fn indexed_axis(&self, _: &[Type]) -> Option<usize> {
        Some(self.len)
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::ScatterIndex { axis: self.axis, len: self.len }
    }
}
