//! The order of the elements along an axis.
//!
//! Stable: elements that compare equal (zeros of both signs, too) keep their order, whichever way it goes. NaN is above
//! all numbers and equal to itself, so it comes last, and first where the order descends. Sorted values are a gather at
//! these positions, which brings their gradient along.

use std::cmp::Ordering;

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, HostValue, Layout, Result, Scalar, Type};
use crate::kernel;
use crate::kernel::library::{self, Library};
use crate::op::lowering::not_affine;
use crate::op::scan::{around, lines};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Argsort`].
#[derive(Clone, Copy)]
pub struct Argsort {
    pub axis: u8,
    pub descending: bool,
}

/// Floats in order, NaN above all.
fn floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

impl Rules for Argsort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        super::check_axis(self.name(), self.axis as usize, x.shape)?;
        Ok(Type::new(DType::I64, x.shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(smallvec![None])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let (x, [outer, len, inner]) = (&operands[0], around(result.shape, self.axis as usize));
        let doubles = x.data.to_f64();
        // Doubles hold every element but wide integers.
        let compare = |p: usize, q: usize| match &x.data {
            HostData::I64(v) => v[p].cmp(&v[q]),
            _ => floats(doubles[p], doubles[q]),
        };
        let mut out = vec![0i64; result.shape.numel()];
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * len + j) * inner + i;
                let mut order: Vec<usize> = (0..len).collect();
                order.sort_by(|&a, &b| {
                    let ascending = compare(at(a), at(b));
                    if self.descending { ascending.reverse() } else { ascending }
                });
                order.into_iter().enumerate().for_each(|(j, from)| out[at(j)] = from as i64);
            }
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
        let (&(dtype, x), axis) = (operands.first()?, self.axis as usize);
        let (dims, input) = (around(x.shape, axis), lines(&x, axis)?);
        Some(Library::Argsort(library::Argsort { dtype, descending: self.descending, dims, input }))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Argsort { axis: self.axis, descending: self.descending }
    }
}
