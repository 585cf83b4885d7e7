//! The seam through which everything makes operations.
//!
//! A gradient rule, a composite or a test emits ops without knowing whether they run eagerly,
//! are recorded, or are added to a graph.

use smallvec::SmallVec;

use crate::base::{DType, Result, Scalar, Shape, Type};
use crate::op::{Elementwise, Op, Row};

/// A value known to an [`Emit`]: an index that it gave out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Val(pub u32);

/// Makes operations.
pub trait Emit {
    /// Applies `op`; the error is that of the op's `infer`, or of running it.
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val>;
    /// The type of a value.
    fn ty(&self, v: Val) -> Type;
}

/// An operand of an elementwise op: a value, or a host scalar.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    Val(Val),
    Scalar(Scalar),
}

impl From<Val> for Arg {
    fn from(v: Val) -> Arg {
        Arg::Val(v)
    }
}
impl From<Scalar> for Arg {
    fn from(s: Scalar) -> Arg {
        Arg::Scalar(s)
    }
}
/// A fixed number of the library's own; it is cast to the dtype of the operands beside it.
impl From<f64> for Arg {
    fn from(v: f64) -> Arg {
        Arg::Scalar(Scalar::f64(v).constant())
    }
}

/// What a gradient rule sees: the forward op's operands and result, the incoming gradient, and
/// the means to emit. Scalars taken from the forward op keep their origin.
pub struct Grad<'a> {
    cx: &'a mut dyn Emit,
    /// The forward op's operands (without a scalar one).
    pub operands: &'a [Val],
    /// The forward op's result.
    pub result: Val,
    /// The gradient of the result.
    pub grad: Val,
    needs: &'a [bool],
}

impl<'a> Grad<'a> {
    /// `needs[i]`: whether anybody wants the gradient of operand `i`.
    pub fn new(cx: &'a mut dyn Emit, operands: &'a [Val], result: Val, grad: Val, needs: &'a [bool]) -> Self {
        Grad { cx, operands, result, grad, needs }
    }

    /// Whether anybody wants the gradient of operand `i`.
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// The type of a value.
    pub fn ty(&self, v: Val) -> Type {
        self.cx.ty(v)
    }

    /// What emits.
    pub fn emitter(&mut self) -> &mut dyn Emit {
        self.cx
    }

    /// Emits an op.
    pub fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        self.cx.emit(op, operands)
    }

    /// Emits an elementwise op; at most one operand may be a scalar.
    pub fn row(&mut self, row: &'static Row, args: &[Arg]) -> Result<Val> {
        let mut operands: SmallVec<[Val; 3]> = SmallVec::new();
        let mut scalar = None;
        for (i, a) in args.iter().enumerate() {
            match *a {
                Arg::Val(v) => operands.push(v),
                Arg::Scalar(s) => scalar = Some((i as u8, s)),
            }
        }
        self.cx.emit(Op::Elementwise(Elementwise { row, scalar }), &operands)
    }

    /// An argument as a value: a scalar becomes a 0-d one of `dtype`.
    pub fn value(&mut self, arg: Arg, dtype: DType) -> Result<Val> {
        let s = match arg {
            Arg::Val(v) => return Ok(v),
            Arg::Scalar(s) => s,
        };
        let v = self.cx.emit(Op::Full { shape: Shape::SCALAR, value: s }, &[])?;
        if s.dtype == dtype { Ok(v) } else { self.cx.emit(Op::Cast(dtype), &[v]) }
    }

    /// Zeros of the type of `like`.
    pub fn zeros(&mut self, like: Val) -> Result<Val> {
        let ty = self.cx.ty(like);
        let value = Scalar::i64(0).cast(ty.dtype).constant();
        self.cx.emit(Op::Full { shape: ty.shape, value }, &[])
    }

    /// Sums `v` over the axes by which `shape` was broadcast to it, and gives it that shape.
    pub fn unbroadcast(&mut self, v: Val, shape: Shape) -> Result<Val> {
        crate::op::reduce::sum_to(self.cx, v, shape)
    }
}
