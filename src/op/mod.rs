//! Floor 2: what an operation is.
//!
//! [`Op`] is closed. Elementwise ops are rows of one table ([`elementwise`]): name, dtype rule,
//! formula over scalar instructions, f64 reference, gradient; everything else about them is
//! derived. Each structural op has one file that holds all that is known of it: `infer, grad, eval, cost,
//! lower` ([`Rules`]). Nothing outside this folder lists ops.
//! May rely on floors 0 and 1. Guarantees: `infer` accepts exactly what `eval` and `lower` can do.

pub mod cast;
pub mod concat;
pub mod custom;
pub mod elementwise;
pub mod emit;
pub mod full;
pub mod gather;
pub(crate) mod host;
pub mod iota;
pub mod lowering;
pub mod matmul;
pub mod movement;
pub mod random;
pub mod reduce;
pub mod samples;
pub mod scan;
pub mod scatter_add;
pub mod scatter_index;
pub mod sort;
#[cfg(test)]
mod tests;
pub mod text;
pub mod window;

use smallvec::SmallVec;

use crate::base::scalar::Origin;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use cast::Cast;
use concat::Concat;
use custom::Custom;
pub use elementwise::{Elementwise, Row};
pub use emit::{Emit, Grad, Val};
use full::Full;
use gather::Gather;
use iota::Iota;
pub use lowering::{IndexMap, Lowering};
use matmul::Matmul;
use movement::{Expand, Permute, Reshape, Slice, Unslice};
use random::{Draw, Random};
use reduce::Reduce;
pub use reduce::ReduceKind;
use scan::Scan;
pub use scan::ScanKind;
use scatter_add::ScatterAdd;
use scatter_index::ScatterIndex;
use sort::Argsort;
use window::{Fold, Window};

/// An operation with its attributes. Attributes are *structural* (part of the trace's identity)
/// except those of type [`Scalar`], which are parameters of each call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A row of the elementwise table; operands broadcast; one of them may be a host scalar.
    Elementwise(Elementwise),
    /// Conversion to a dtype.
    Cast(DType),
    /// A tensor of one repeated host value. No operands.
    Full { shape: Shape, value: Scalar },
    /// i64: the row-major index among the axes in the bit mask `axes` of the element's place (of one axis: its coordinate). No operands.
    Iota { shape: Shape, axes: u8 },
    /// Random numbers: element `i` is what `draw` makes of the words of Philox4x32-10 with key `seed`
    /// at counter (`i`, `counter`); see [`random`]. No operands.
    Random { draw: Draw, shape: Shape, seed: Scalar, counter: Scalar },
    /// A reduction over the axes in the bit mask `axes`; with `keepdim` they stay as length 1.
    Reduce { kind: ReduceKind, axes: u8, keepdim: bool },
    /// The same elements in row-major order under another shape.
    Reshape { shape: Shape },
    /// Axis `a` of the result is axis `order[a]` of the operand.
    Permute { order: AxisList },
    /// Broadcast to a larger shape (trailing axes aligned).
    Expand { shape: Shape },
    /// `len` elements of `axis` from `start` up, every `|step|`-th (not 0), all in range; with a step below zero they come in
    /// reverse, the one at `start` last.
    Slice { axis: u8, start: Scalar, len: usize, step: isize },
    /// The reverse of a slice: zeros of length `len` along `axis`, the operand at `start`, `start + |step|`, …, its elements
    /// in reverse if the step is below zero.
    Unslice { axis: u8, start: Scalar, len: usize, step: isize },
    /// Axis `axis` as two, `[count, size]`: element (i, w) is element `i * step + w * dilation` of it.
    Window { axis: u8, count: usize, size: usize, step: usize, dilation: usize },
    /// The reverse of windows: axes `axis` and the next, `[count, size]`, become one of length `len`, to whose element `i * step + w * dilation`
    /// element (i, w) is added, in the order of w; zero elsewhere.
    Fold { axis: u8, len: usize, step: usize, dilation: usize },
    /// Operands joined along `axis`.
    Concat { axis: u8 },
    /// Batched matrix product of `[.., m, k]` and `[.., k, n]`, batch axes equal or broadcast.
    Matmul,
    /// `out[.., j, ..] = x[.., index[.., j, ..], ..]` along `axis`; operands x, index (i64, the rank of x,
    /// same lengths on the other axes). Indices are clamped and flagged.
    Gather { axis: u8 },
    /// Zeros with `len` along `axis`, then `out[.., index[.., j, ..], ..] += src[.., j, ..]` for j in order;
    /// operands index, src of one shape. The gradient of `Gather`. Indices are clamped and flagged.
    ScatterAdd { axis: u8, len: usize },
    /// i64, with `len` along `axis`: of each place along it the last j with `index[.., j, ..]` equal to it, -1 if there is
    /// none. Operand index. Indices are clamped and flagged.
    ScatterIndex { axis: u8, len: usize },
    /// Running results along `axis`, from its end if `reverse`.
    Scan { kind: ScanKind, axis: u8, reverse: bool },
    /// i64: the positions along `axis` in the order of their elements; equal ones keep their order. NaN is above all numbers.
    Argsort { axis: u8, descending: bool },
    /// An op that a user defined.
    Custom(Custom),
}

impl Op {
    /// Whether a gradient of the result is passed on to operands: not by comparisons, nor by `detach`.
    pub fn carries_gradient(&self) -> bool {
        match self {
            Op::Elementwise(e) => e.row.grad.is_some(),
            _ => true,
        }
    }

    /// Whether gradients can be taken with respect to the result, whatever its operands are.
    pub fn starts_gradient(&self) -> bool {
        matches!(self, Op::Elementwise(e) if std::ptr::eq(e.row, &elementwise::arith::TRACK))
    }

    /// Whether the result is the value of its operand (of dtype `operand`), unchanged: it may share its memory.
    pub fn keeps_value(&self, operand: DType) -> bool {
        match self {
            Op::Elementwise(e) => {
                [&elementwise::arith::DETACH, &elementwise::arith::TRACK].iter().any(|r| std::ptr::eq(*r, e.row))
            }
            Op::Cast(to) => *to == operand,
            _ => false,
        }
    }
}

/// A short list of axes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisList {
    axes: [u8; crate::base::MAX_RANK],
    len: u8,
}

impl AxisList {
    /// At most [`crate::base::MAX_RANK`] axes; further ones are cut.
    pub fn new(axes: &[usize]) -> AxisList {
        let mut out = AxisList { axes: [0; crate::base::MAX_RANK], len: axes.len().min(crate::base::MAX_RANK) as u8 };
        for (slot, &a) in out.axes.iter_mut().zip(axes) {
            *slot = a as u8;
        }
        out
    }

    /// The axes.
    pub fn to_vec(self) -> SmallVec<[usize; 8]> {
        self.axes[..self.len as usize].iter().map(|&a| a as usize).collect()
    }
}

/// What one kind of operation knows about itself.
pub trait Rules {
    /// Name in the text form, in reports and in errors.
    fn name(&self) -> &'static str;

    /// Result type, or the error that tells the user what was expected.
    fn infer(&self, operands: &[Type]) -> Result<Type>;

    /// Gradients of the operands, given that of the result; `None` where there is none
    /// (not differentiable, or [`Grad::needs`] says that nobody asks).
    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>>;

    /// Reference values. Operands that are `Real` stand for floats of their dtype in double precision
    /// (then so does a float result); otherwise the bits are those of every backend.
    fn eval(&self, operands: &[HostValue]) -> Result<HostValue>;

    /// Floating-point operations of one evaluation, for reports.
    fn flops(&self, operands: &[Type], result: Type) -> u64;

    /// How the op takes part in kernels.
    fn class(&self) -> Class;

    /// Computes one element of the result inside a kernel: see [`Lowering`]. Only for ops whose
    /// class is not `Library`.
    fn lower(&self, cx: &mut dyn Lowering, result: Type, map: &IndexMap) -> Result<crate::kernel::Val>;

    /// The library call, for ops of class `Library`, on operands of these dtypes that lie as these layouts say. `None`
    /// where the call cannot express them: then they must be copied first.
    fn library(&self, operands: &[(DType, Layout)], result: &Layout) -> Option<crate::kernel::library::Library> {
        let _ = (operands, result);
        None
    }

    /// Length of the axis that an index operand points into, for ops that have one and flag what is out of range.
    fn indexed_axis(&self, operands: &[Type]) -> Option<usize> {
        let _ = operands;
        None
    }

    /// The scalar attributes, in order.
    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        SmallVec::new()
    }

    /// Per scalar attribute the largest value it may take, from 0 up; `None`: any value will do.
    /// `infer` checks it; a replay, whose scalars are new at each call, must check it again.
    fn scalar_limits(&self, operands: &[Type]) -> SmallVec<[Option<i64>; 2]> {
        let _ = operands;
        self.scalars().iter().map(|_| None).collect()
    }

    /// The same op with other scalar attributes (as many as [`Rules::scalars`] gives).
    fn with_scalars(&self, scalars: &[Scalar]) -> Op;
}

/// How an operation takes part in fusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// One result element from one element of each operand (after broadcasting).
    Pointwise,
    /// No operands; computed from the index and host scalars.
    Source,
    /// A view: the operand's elements under another index (reshape, permute, expand, slice).
    Movement,
    /// One result element from one element of one of the operands, or zero, by where it lies (concat, unslice); or
    /// from a sum of such (fold).
    Piecewise,
    /// Reads operand 0 at a place that operand 1 decides.
    Gather,
    /// A reduction.
    Reduction,
    /// A library call: a step of its own.
    Library,
}

macro_rules! descriptors {
    ($($kind:ident),*) => {
        /// An op as the struct of its file; dereferences to its [`Rules`].
        #[derive(Clone, Copy)]
        pub enum Descriptor { $($kind($kind)),* }

        impl std::ops::Deref for Descriptor {
            type Target = dyn Rules;
            fn deref(&self) -> &(dyn Rules + 'static) {
                match self { $(Descriptor::$kind(d) => d),* }
            }
        }
    };
}
descriptors!(
    Elementwise,
    Cast,
    Full,
    Iota,
    Random,
    Reduce,
    Reshape,
    Permute,
    Expand,
    Slice,
    Unslice,
    Window,
    Fold,
    Concat,
    Matmul,
    Gather,
    ScatterAdd,
    ScatterIndex,
    Scan,
    Argsort,
    Custom
);

impl Op {
    /// The rules of this op: the only place that goes from the enum to the files.
    pub fn rules(&self) -> Descriptor {
        match *self {
            Op::Elementwise(e) => Descriptor::Elementwise(e),
            Op::Custom(c) => Descriptor::Custom(c),
            Op::Cast(to) => Descriptor::Cast(Cast { to }),
            Op::Full { shape, value } => Descriptor::Full(Full { shape, value }),
            Op::Iota { shape, axes } => Descriptor::Iota(Iota { shape, axes }),
            Op::Random { draw, shape, seed, counter } => Descriptor::Random(Random { draw, shape, seed, counter }),
            Op::Reduce { kind, axes, keepdim } => Descriptor::Reduce(Reduce { kind, axes, keepdim }),
            Op::Reshape { shape } => Descriptor::Reshape(Reshape { shape }),
            Op::Permute { order } => Descriptor::Permute(Permute { order }),
            Op::Expand { shape } => Descriptor::Expand(Expand { shape }),
            Op::Slice { axis, start, len, step } => Descriptor::Slice(Slice { axis, start, len, step }),
            Op::Unslice { axis, start, len, step } => Descriptor::Unslice(Unslice { axis, start, len, step }),
            Op::Window { axis, count, size, step, dilation } => {
                Descriptor::Window(Window { axis, count, size, step, dilation })
            }
            Op::Fold { axis, len, step, dilation } => Descriptor::Fold(Fold { axis, len, step, dilation }),
            Op::Concat { axis } => Descriptor::Concat(Concat { axis }),
            Op::Matmul => Descriptor::Matmul(Matmul),
            Op::Gather { axis } => Descriptor::Gather(Gather { axis }),
            Op::ScatterAdd { axis, len } => Descriptor::ScatterAdd(ScatterAdd { axis, len }),
            Op::ScatterIndex { axis, len } => Descriptor::ScatterIndex(ScatterIndex { axis, len }),
            Op::Scan { kind, axis, reverse } => Descriptor::Scan(Scan { kind, axis, reverse }),
            Op::Argsort { axis, descending } => Descriptor::Argsort(Argsort { axis, descending }),
        }
    }
}

impl Op {
    /// Whether `other` is the same op up to the values of host scalars: what a trace compares. Fixed numbers of the
    /// library's are compared.
    #[inline]
    pub fn same_structure(&self, other: &Op) -> bool {
        match (self, other) {
            (Op::Elementwise(a), Op::Elementwise(b)) => {
                std::ptr::eq(a.row, b.row)
                    && match (a.scalar, b.scalar) {
                        (Some((p, s)), Some((q, t))) => p == q && same_source(s, t),
                        (None, None) => true,
                        _ => false,
                    }
            }
            (Op::Full { shape: a, value: x }, Op::Full { shape: b, value: y }) => {
                a == b && x.dtype == y.dtype && same_source(*x, *y)
            }
            (Op::Random { draw: d, shape: a, .. }, Op::Random { draw: e, shape: b, .. }) => (d, a) == (e, b),
            (Op::Slice { axis: a, start: x, len: l, step: s }, Op::Slice { axis: b, start: y, len: m, step: t })
            | (
                Op::Unslice { axis: a, start: x, len: l, step: s },
                Op::Unslice { axis: b, start: y, len: m, step: t },
            ) => (a, l, s) == (b, m, t) && same_source(*x, *y),
            (Op::Custom(a), Op::Custom(b)) => {
                std::ptr::eq(a.definition, b.definition)
                    && a.given().iter().zip(b.given()).all(|(x, y)| same_source(*x, *y))
            }
            _ => self == other,
        }
    }
}

/// Whether two scalars come alike: both from the host at each call (or from the trace), or both fixed and equal.
#[inline]
fn same_source(a: Scalar, b: Scalar) -> bool {
    match (a.origin, b.origin) {
        // One of them may have been cast to the operands' dtype.
        (Origin::Constant, Origin::Constant) => a.cast(b.dtype).bits == b.bits || b.cast(a.dtype).bits == a.bits,
        (Origin::Constant, _) | (_, Origin::Constant) => false,
        _ => true,
    }
}

/// Exactly `N` operand types.
fn operands<const N: usize>(op: &'static str, given: &[Type]) -> Result<[Type; N]> {
    given.try_into().map_err(|_| Error::argument(op, format!("{N} operands"), given.len().to_string()))
}

/// An axis of a shape.
fn check_axis(op: &'static str, axis: usize, shape: Shape) -> Result<()> {
    if axis < shape.rank() {
        return Ok(());
    }
    Err(Error::argument(op, format!("an axis below {} for shape {shape}", shape.rank()), axis.to_string()))
}
