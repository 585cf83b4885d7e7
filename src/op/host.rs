//! Host values as the reference evaluation needs them: views, lanes, formulas over all elements.

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Shape, Type};
use crate::kernel::{Builder, Inst, Ty, Val};

/// The types that values stand for.
pub fn types(values: &[HostValue]) -> Vec<Type> {
    values.iter().map(|v| Type::new(v.data.dtype(), v.shape)).collect()
}

/// Whether the operands ask for double precision.
pub fn is_real(values: &[HostValue]) -> bool {
    values.iter().any(|v| matches!(v.data, HostData::Real(..)))
}

/// Element positions of a view, in row-major order of its shape.
pub fn positions(layout: &Layout) -> Vec<usize> {
    let mut out = vec![layout.offset as usize];
    for (&d, &s) in layout.shape.dims().iter().zip(layout.strides()) {
        out = out.iter().flat_map(|&p| (0..d).map(move |i| p.wrapping_add_signed(i as isize * s))).collect();
    }
    out
}

/// The elements of a view of `v`.
pub fn view(v: &HostValue, layout: &Layout) -> HostValue {
    pick(v, &positions(layout), layout.shape)
}

/// The elements at `positions`, as `shape`.
pub fn pick(v: &HostValue, positions: &[usize], shape: Shape) -> HostValue {
    HostValue::new(shape, v.data.pick(positions))
}

/// Doubles as elements of a result of `dtype`: reference values for floats, else cut to whole numbers.
pub fn from_reals(dtype: DType, values: Vec<f64>) -> HostData {
    if dtype.is_float() {
        return HostData::Real(dtype, values);
    }
    let lanes: Vec<u64> =
        values.iter().map(|&v| if dtype == DType::Bool { (v != 0.0) as u64 } else { v as i64 as u64 }).collect();
    HostData::from_lanes(dtype, &lanes)
}

/// `formula` as a straight line of instructions over parameters of the given types; its result last.
pub fn formula(tys: &[Ty], formula: impl FnOnce(&mut Builder, &[Val]) -> Val) -> (Vec<Inst>, Val) {
    let mut b = Builder::new(&[], &[]);
    let args: Vec<Val> = tys.iter().map(|&ty| b.param(ty)).collect();
    let result = formula(&mut b, &args);
    (b.kernel().body.clone(), result)
}

/// Runs a formula at each of `n` points. A column of one lane is the same at every point.
pub fn run_formula((body, result): &(Vec<Inst>, Val), columns: &[Vec<u64>], n: usize) -> Result<Vec<u64>> {
    let mut values: Vec<Vec<u64>> = Vec::with_capacity(body.len());
    let at = |v: &Vec<u64>, i: usize| if v.len() == 1 { v[0] } else { v[i] };
    for inst in body {
        values.push(match inst {
            Inst::Const { bits, .. } => vec![*bits],
            Inst::Param { param } => columns[*param as usize].clone(),
            Inst::Op { instr, args } => {
                let args: Vec<&Vec<u64>> =
                    args[..instr.operands().len()].iter().map(|a| &values[a.0 as usize]).collect();
                let count = if args.iter().all(|v| v.len() == 1) { 1 } else { n };
                let mut word = [0; 3];
                (0..count)
                    .map(|i| {
                        for (w, v) in word.iter_mut().zip(&args) {
                            *w = at(v, i);
                        }
                        instr.eval(&word)
                    })
                    .collect()
            }
            other => return Err(Error::bug("formula", format!("{other:?} is not a scalar instruction"))),
        });
    }
    let out = &values[result.0 as usize];
    Ok(if out.len() == n { out.clone() } else { vec![out.first().copied().unwrap_or(0); n] })
}
