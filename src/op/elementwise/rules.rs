//! Everything about an elementwise op that follows from its row.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel::{self, Builder, Inst, Ty};
use crate::op::elementwise::{DTypes, Elementwise};
use crate::op::emit::{Arg, Grad, Val};
use crate::op::{Class, IndexMap, Lowering, Op, Rules, cast, host};

impl Elementwise {
    /// Whether position `p` holds data: operands of the row's common dtype, unlike the condition of a select.
    fn is_data(&self, p: usize) -> bool {
        !(self.row.dtypes == DTypes::Select && p == 0)
    }

    /// Positions of the tensor operands, in order.
    fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let scalar = self.scalar.map(|s| s.0 as usize);
        (0..self.row.arity).filter(move |&p| Some(p) != scalar)
    }

    /// dtype of the data operands.
    fn data_dtype(&self, operands: &[Type]) -> Option<DType> {
        self.positions().zip(operands).find(|&(p, _)| self.is_data(p)).map(|(_, t)| t.dtype)
    }

    /// Lane types of all positions, the scalar's cast.
    fn lane_types(&self, data: DType) -> SmallVec<[Ty; 3]> {
        (0..self.row.arity).map(|p| if self.is_data(p) { Ty::of(data) } else { Ty::Bool }).collect()
    }

    /// One element of a result of dtype `result`, from lanes of data of dtype `data`.
    fn element(&self, b: &mut Builder, data: DType, result: DType, x: &[kernel::Val]) -> kernel::Val {
        let value = (self.row.formula)(b, Ty::of(data), x);
        b.fit(result, value)
    }

    fn check_scalar(&self) -> Result<()> {
        let Some((p, s)) = self.scalar else { return Ok(()) };
        if self.row.arity < 2 || p as usize >= self.row.arity || !self.is_data(p as usize) {
            let want = "a tensor there; a host scalar may stand for one data operand of two or three";
            return Err(Error::argument(self.row.name, want, format!("{s:?} as operand {p}")));
        }
        Ok(())
    }
}

/// What a function of f64 that is one instruction counts: about as many as its f32 formula has.
const CALL_FLOPS: u64 = 20;

/// Why a dtype is refused, if it is.
fn refused(dtypes: DTypes, data: DType) -> Option<&'static str> {
    match dtypes {
        DTypes::Float if !data.is_float() => Some("a float dtype (f16, bf16, f32, f64)"),
        DTypes::Number if data == DType::Bool => Some("a number (not bool)"),
        DTypes::Logic if data != DType::Bool => Some("bool"),
        DTypes::Bits if data.is_float() => Some("bool or an integer dtype"),
        DTypes::Integer if data.is_float() || data == DType::Bool => Some("an integer dtype (u8, i8, i32, i64)"),
        _ => None,
    }
}

impl Rules for Elementwise {
    fn name(&self) -> &'static str {
        self.row.name
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        self.check_scalar()?;
        let count = self.positions().count();
        if operands.len() != count {
            return Err(Error::argument(self.name(), format!("{count} tensor operands"), operands.len().to_string()));
        }
        let Some(data) = self.data_dtype(operands) else {
            return Err(Error::argument(self.name(), "a tensor for a data operand", "none"));
        };
        if let Some(want) = refused(self.row.dtypes, data) {
            return Err(Error::dtype(self.name(), want, data));
        }
        let mut shape = Shape::SCALAR;
        for (p, t) in self.positions().zip(operands) {
            let want = if self.is_data(p) { data } else { DType::Bool };
            if t.dtype != want {
                let what = if self.is_data(p) { format!("{want} like operand 0") } else { "a bool condition".into() };
                return Err(Error::dtype(self.name(), what, t.dtype));
            }
            let Some(wider) = shape.broadcast(&t.shape) else {
                let want = format!("shapes that broadcast (trailing axes equal or 1) with {shape}");
                return Err(Error::shape(self.name(), want, t.shape.to_string()));
            };
            shape = wider;
        }
        let dtype = if self.row.dtypes == DTypes::Compare { DType::Bool } else { data };
        Ok(Type::new(dtype, shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let operands = g.operands;
        let mut out = smallvec![None; operands.len()];
        let Some(rule) = self.row.grad else { return Ok(out) };
        let mut next = operands.iter();
        let args: SmallVec<[Arg; 3]> = (0..self.row.arity)
            .filter_map(|p| match self.scalar {
                Some((at, s)) if at as usize == p => Some(Arg::Scalar(s)),
                _ => next.next().map(|&v| Arg::Val(v)),
            })
            .collect();
        for (i, p) in self.positions().enumerate() {
            let ty = g.ty(operands[i]);
            if !g.needs(i) || !self.is_data(p) || !ty.dtype.is_float() {
                continue;
            }
            if let Some(full) = rule(g, &args, p)? {
                out[i] = Some(g.unbroadcast(full, ty.shape)?);
            }
        }
        Ok(out)
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let types = host::types(operands);
        let result = self.infer(&types)?;
        let data = self.data_dtype(&types).unwrap_or(result.dtype);
        let n = result.shape.numel();
        let wide = |v: &HostValue| host::view(v, &Layout::contiguous(v.shape).expand(result.shape));
        let mut next = operands.iter().map(wide);
        let scalar = |p: usize| self.scalar.filter(|s| s.0 as usize == p).map(|s| s.1);
        if host::is_real(operands) {
            let columns: Vec<Vec<f64>> = (0..self.row.arity)
                .map(|p| match scalar(p) {
                    Some(s) => vec![s.cast(data).as_f64(); n],
                    None => next.next().map_or(vec![], |v| v.data.to_f64()),
                })
                .collect();
            let point = |i: usize| {
                let x: SmallVec<[f64; 3]> = columns.iter().map(|c| c[i]).collect();
                (self.row.reference)(&x)
            };
            return Ok(HostValue::new(result.shape, host::from_reals(result.dtype, (0..n).map(point).collect())));
        }
        let columns: Vec<Vec<u64>> = (0..self.row.arity)
            .map(|p| match scalar(p) {
                Some(s) => vec![s.cast(data).bits],
                None => next.next().map_or(vec![], |v| v.data.lanes()),
            })
            .collect();
        let formula = host::formula(&self.lane_types(data), |b, x| self.element(b, data, result.dtype, x));
        let lanes = host::run_formula(&formula, &columns, n)?;
        Ok(HostValue::new(result.shape, HostData::from_lanes(result.dtype, &lanes)))
    }

    fn flops(&self, operands: &[Type], result: Type) -> u64 {
        let data = self.data_dtype(operands).unwrap_or(result.dtype);
        let (body, _) = host::formula(&self.lane_types(data), |b, x| (self.row.formula)(b, Ty::of(data), x));
        let flops = |i: &Inst| match i {
            Inst::Op { instr, .. } if instr.is_call() => CALL_FLOPS,
            Inst::Op { .. } => 1,
            _ => 0,
        };
        body.iter().map(flops).sum::<u64>() * result.shape.numel() as u64
    }

    fn class(&self) -> Class {
        Class::Pointwise
    }

    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (domain, types) = (cx.domain(), cx.operand_types());
        let data = self.data_dtype(&types).unwrap_or(result.dtype);
        let mut args: SmallVec<[kernel::Val; 3]> = SmallVec::new();
        let mut i = 0;
        for p in 0..self.row.arity {
            args.push(match self.scalar {
                Some((at, s)) if at as usize == p => cast::scalar(cx, s, data),
                _ => {
                    i += 1;
                    cx.operand(i - 1, &map.broadcast(types[i - 1].shape, &domain)?)?
                }
            });
        }
        Ok(self.element(cx.builder(), data, result.dtype, &args))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        self.scalar.iter().map(|s| s.1).collect()
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        let scalar = self.scalar.zip(scalars.first()).map(|((p, _), &s)| (p, s));
        Op::Elementwise(Elementwise { row: self.row, scalar })
    }
}
