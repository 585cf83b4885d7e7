//! Conversion to a dtype: floats round to nearest, integers from floats truncate and saturate (NaN is 0),
//! truth values are "not zero" and become 0 or 1.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Result, Scalar, Type};
use crate::kernel::{self, Builder, Ty};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Cast`].
#[derive(Clone, Copy)]
pub struct Cast {
    pub to: DType,
}

/// `v` converted, in a kernel; the same conversions as [`Scalar::cast`].
pub fn convert(b: &mut Builder, from: DType, to: DType, v: kernel::Val) -> kernel::Val {
    match (from, to) {
        (DType::F32, DType::I64) => b.ftol(v),
        (DType::I64, DType::F32) => b.ltof(v),
        (DType::F32, DType::Bool) => {
            let zero = b.f32(0.0);
            b.ne(v, zero)
        }
        (DType::I64, DType::Bool) => {
            let zero = b.i64(0);
            let eq = b.leq(v, zero);
            b.not(eq)
        }
        (DType::Bool, DType::F32) => {
            let word = b.btou(v);
            b.itof(word)
        }
        (DType::Bool, DType::I64) => {
            let word = b.btou(v);
            b.utol(word)
        }
        (DType::F32, DType::F32) | (DType::I64, DType::I64) | (DType::Bool, DType::Bool) => v,
    }
}

/// A host scalar as a value of `dtype`, in a kernel.
pub fn scalar(cx: &mut dyn Lowering, s: Scalar, dtype: DType) -> kernel::Val {
    let v = cx.scalar(s);
    convert(cx.builder(), s.dtype, dtype, v)
}

impl Rules for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [x] = super::operands(self.name(), operands)?;
        Ok(Type::new(self.to, x.shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let from = g.ty(g.operands[0]).dtype;
        Ok(smallvec![(g.needs(0) && from.is_float() && self.to.is_float()).then_some(g.grad)])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let x = &operands[0];
        let data = match (&x.data, self.to) {
            (HostData::F64(_), DType::F32) => x.data.clone(),
            (HostData::F64(v), DType::I64) => HostData::I64(v.iter().map(|&v| v as i64).collect()),
            (HostData::F64(v), DType::Bool) => HostData::Bool(v.iter().map(|&v| v != 0.0).collect()),
            _ => {
                let from = host::dtype(x);
                let f = host::formula(&[Ty::of(from)], |b, v| convert(b, from, self.to, v[0]));
                host::from_lanes(self.to, &host::run_formula(&f, &[host::lanes(&x.data)], x.data.len())?)
            }
        };
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Pointwise
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let from = cx.operand_types().first().ok_or_else(|| Error::bug("cast", "no operand"))?.dtype;
        let v = cx.operand(0, map)?;
        Ok(convert(cx.builder(), from, self.to, v))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Cast(self.to)
    }
}
