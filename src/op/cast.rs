//! Conversion to a dtype: floats round to nearest (f64 and i64 go to 16-bit floats by way of f32), integers from floats
//! truncate and saturate (NaN is 0), from wider integers wrap; truth values are "not zero" (NaN is true) and
//! become 0 or 1.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::scalar::Origin;
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
    if from == to {
        return v;
    }
    let lane = match (Ty::of(from), Ty::of(to)) {
        (Ty::F32, Ty::F64) => b.ftod(v),
        (Ty::F64, Ty::F32) => b.dtof(v),
        (Ty::I64, Ty::F32) => b.ltof(v),
        (Ty::I64, Ty::F64) => b.ltod(v),
        (Ty::F32, Ty::I64) => b.ftol(v),
        (Ty::F64, Ty::I64) => b.dtol(v),
        (ty @ (Ty::F32 | Ty::F64), Ty::Bool) => {
            let zero = b.number(ty, 0.0);
            b.on(ty, kernel::Instr::Ne, &[v, zero])
        }
        (Ty::I64, Ty::Bool) => {
            let zero = b.i64(0);
            let eq = b.leq(v, zero);
            b.not(eq)
        }
        (Ty::Bool, Ty::F32) => {
            let word = b.btou(v);
            b.itof(word)
        }
        (Ty::Bool, Ty::F64) => {
            let (one, zero) = (b.f64(1.0), b.f64(0.0));
            b.dselect(v, one, zero)
        }
        (Ty::Bool, Ty::I64) => {
            let word = b.btou(v);
            b.utol(word)
        }
        // 16-bit floats with f32, integers among themselves: the same lanes.
        _ => v,
    };
    match to.int_range() {
        // From floats integers saturate; from integers they wrap.
        Some((lo, hi)) if from.is_float() && to != DType::I64 => {
            let (lo, hi) = (b.i64(lo), b.i64(hi));
            let least = b.lmax(lane, lo);
            b.lmin(least, hi)
        }
        _ => b.fit(to, lane),
    }
}

/// A host scalar as a value of `dtype`, in a kernel.
pub fn scalar(cx: &mut dyn Lowering, s: Scalar, dtype: DType) -> kernel::Val {
    if s.origin == Origin::Constant {
        return cx.scalar(s.cast(dtype));
    }
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
        if !(g.needs(0) && from.is_float() && self.to.is_float()) {
            return Ok(smallvec![None]);
        }
        let grad = g.grad;
        Ok(smallvec![Some(if from == self.to { grad } else { g.emit(Op::Cast(from), &[grad])? })])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let x = &operands[0];
        let data = match &x.data {
            HostData::Real(_, v) if self.to.is_float() => HostData::Real(self.to, v.clone()),
            HostData::Real(_, v) => {
                HostData::from_lanes(self.to, &v.iter().map(|&v| Scalar::f64(v).cast(self.to).bits).collect::<Vec<_>>())
            }
            _ => {
                let from = x.data.dtype();
                let f = host::formula(&[Ty::of(from)], |b, v| convert(b, from, self.to, v[0]));
                HostData::from_lanes(self.to, &host::run_formula(&f, &[x.data.lanes()], x.data.len())?)
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
