//! Running results along an axis: sums, products, linear recurrences.
//!
//! Elements combine one after the other in the order of the axis (from its end, if reversed); the first result is the
//! first element itself. That order is the meaning, so it is the same on every backend. 16-bit floats are combined in
//! f32, and each result is rounded once.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
pub use crate::kernel::library::ScanKind;
use crate::kernel::library::{self, Library, Lines};
use crate::kernel::{self, Instr, Ty};
use crate::op::elementwise::arith;
use crate::op::lowering::not_affine;
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Scan`].
#[derive(Clone, Copy)]
pub struct Scan {
    pub kind: ScanKind,
    pub axis: u8,
    pub reverse: bool,
}

/// Lengths of the axes before `axis`, of itself, and of those after.
pub(super) fn around(shape: Shape, axis: usize) -> [usize; 3] {
    let dims = shape.dims();
    [dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()]
}

/// Where an operand lies, the axes before and after `axis` as one each; `None` if they are not evenly strided.
pub(super) fn lines(layout: &Layout, axis: usize) -> Option<Lines> {
    let flat = layout.reshape(Shape::new(&around(layout.shape, axis)).ok()?)?;
    Some(Lines { offset: flat.offset as i64, strides: [0, 1, 2].map(|a| flat.strides[a] as i64) })
}

/// `v` moved by one along `axis`, to higher indices or to lower ones, with a zero at the free place.
fn shift(g: &mut Grad<'_>, v: Val, axis: u8, up: bool) -> Result<Val> {
    let len = g.ty(v).shape[axis as usize];
    let start = |s: bool| Scalar::i64(s as i64).constant();
    let part = g.emit(Op::Slice { axis, start: start(!up), len: len - 1, step: 1 }, &[v])?;
    g.emit(Op::Unslice { axis, start: start(up), len, step: 1 }, &[part])
}

impl Scan {
    /// Combines along the axis: `step(before, factor, x)`.
    fn run<T: Copy>(&self, shape: Shape, inputs: &[&[T]], step: impl Fn(T, T, T) -> T) -> Vec<T> {
        let [outer, len, inner] = around(shape, self.axis as usize);
        let (x, factor) = (inputs[inputs.len() - 1], inputs[0]);
        let mut out = x.to_vec();
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * len + if self.reverse { len - 1 - j } else { j }) * inner + i;
                for j in 1..len {
                    out[at(j)] = step(out[at(j - 1)], factor[at(j)], x[at(j)]);
                }
            }
        }
        out
    }
}

impl Rules for Scan {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let count = self.kind.inputs();
        if operands.len() != count {
            return Err(Error::argument(self.name(), format!("{count} operands"), operands.len().to_string()));
        }
        let x = operands[count - 1];
        super::check_axis(self.name(), self.axis as usize, x.shape)?;
        if x.dtype == DType::Bool {
            return Err(Error::dtype(self.name(), "numbers", x.dtype));
        }
        if operands[0].dtype != x.dtype {
            return Err(Error::dtype(
                self.name(),
                format!("factors of {} like the operand", x.dtype),
                operands[0].dtype,
            ));
        }
        if operands[0].shape != x.shape {
            let want = format!("factors of the operand's shape {}", x.shape);
            return Err(Error::shape(self.name(), want, operands[0].shape.to_string()));
        }
        Ok(x)
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let Scan { kind, axis, reverse } = *self;
        let (operands, result, grad) = (g.operands, g.result, g.grad);
        let ty = g.ty(result);
        let mut out: SmallVec<[Option<Val>; 3]> = smallvec![None; operands.len()];
        if !ty.dtype.is_float() {
            return Ok(out);
        }
        if kind == ScanKind::Sum {
            if g.needs(0) {
                out[0] = Some(g.emit(Op::Scan { kind, axis, reverse: !reverse }, &[grad])?);
            }
            return Ok(out);
        }
        let len = ty.shape[axis as usize];
        if len == 0 {
            return Ok(operands.iter().map(|_| Some(grad)).collect());
        }
        // What a change of element j does to the loss through result j and all after it: the same recurrence backwards,
        // each factor that of the next element.
        let factors = shift(g, operands[0], axis, reverse)?;
        let through = g.emit(Op::Scan { kind: ScanKind::Recurrence, axis, reverse: !reverse }, &[factors, grad])?;
        if kind == ScanKind::Recurrence {
            if g.needs(0) {
                let before = shift(g, result, axis, !reverse)?;
                out[0] = Some(g.row(&arith::MUL, &[through.into(), before.into()])?);
            }
            out[1] = g.needs(1).then_some(through);
            return Ok(out);
        }
        if g.needs(0) {
            // The product of all before element j; of none, 1.
            let mut one: SmallVec<[usize; 8]> = SmallVec::from_slice(ty.shape.dims());
            one[axis as usize] = 1;
            let value = Scalar::i64(1).cast(ty.dtype).constant();
            let one = g.emit(Op::Full { shape: Shape::new(&one)?, value }, &[])?;
            let start = Scalar::i64(reverse as i64).constant();
            let rest = g.emit(Op::Slice { axis, start, len: len - 1, step: 1 }, &[result])?;
            let before = g.emit(Op::Concat { axis }, &if reverse { [rest, one] } else { [one, rest] })?;
            out[0] = Some(g.row(&arith::MUL, &[through.into(), before.into()])?);
        }
        Ok(out)
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        if host::is_real(operands) {
            let doubles: Vec<Vec<f64>> = operands.iter().map(|v| v.data.to_f64()).collect();
            let inputs: Vec<&[f64]> = doubles.iter().map(|v| v.as_slice()).collect();
            let step = |before: f64, factor: f64, x: f64| match self.kind {
                ScanKind::Sum => before + x,
                ScanKind::Product => before * x,
                ScanKind::Recurrence => factor * before + x,
            };
            return Ok(HostValue::new(
                result.shape,
                HostData::Real(result.dtype, self.run(result.shape, &inputs, step)),
            ));
        }
        let lanes: Vec<Vec<u64>> = operands.iter().map(|v| v.data.lanes()).collect();
        let inputs: Vec<&[u64]> = lanes.iter().map(|v| v.as_slice()).collect();
        let ty = Ty::of(result.dtype);
        let (Some(add), Some(mul)) = (Instr::Add.on(ty), Instr::Mul.on(ty)) else {
            return Err(Error::dtype(self.name(), "numbers", result.dtype));
        };
        let step = |before: u64, factor: u64, x: u64| match self.kind {
            ScanKind::Sum => add.eval(&[before, x]),
            ScanKind::Product => mul.eval(&[before, x]),
            ScanKind::Recurrence => add.eval(&[mul.eval(&[factor, before]), x]),
        };
        let out = self.run(result.shape, &inputs, step);
        Ok(HostValue::new(result.shape, HostData::from_lanes(result.dtype, &out)))
    }

    fn flops(&self, operands: &[Type], result: Type) -> u64 {
        operands.len() as u64 * result.shape.numel() as u64
    }

    fn class(&self) -> Class {
        Class::Library
    }

    fn lower(&self, _: &mut dyn Lowering, _: Type, _: &IndexMap) -> Result<kernel::Val> {
        Err(not_affine(self.name(), "it is a library call"))
    }

    fn library(&self, operands: &[(DType, Layout)], _: &Layout) -> Option<Library> {
        let axis = self.axis as usize;
        let inputs: Option<Vec<Lines>> = operands.iter().map(|(_, l)| lines(l, axis)).collect();
        let (dtype, x) = operands.last()?;
        let (dtype, dims) = (*dtype, around(x.shape, axis));
        Some(Library::Scan(library::Scan { dtype, kind: self.kind, reverse: self.reverse, dims, inputs: inputs? }))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Scan { kind: self.kind, axis: self.axis, reverse: self.reverse }
    }
}
