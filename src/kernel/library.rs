//! Calls that are not kernels of the body IR: each backend has its own code for them.

use smallvec::SmallVec;

use crate::base::scalar::Origin;
use crate::base::{DType, Scalar, Shape};
use crate::kernel::custom::KernelRef;

/// A library call of a plan step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Library {
    /// Batched matrix product; args: a, b, c (output).
    Matmul(Matmul),
    /// The output starts at zero, then rows of `src` are added to it; args: index, src, out (output).
    ScatterAdd(ScatterAdd),
    /// Of each place the last position that names it; args: index, out (output, i64).
    ScatterIndex(ScatterIndex),
    /// Running results along an axis; args: the inputs, out (output).
    Scan(Scan),
    /// Positions in the order of their elements; args: x, out (output, i64).
    Argsort(Argsort),
    /// A user's kernel; args: the inputs, out (output).
    Custom(Custom),
}

impl Library {
    /// dtypes of the parameters it takes, in the order of the step's.
    pub fn params(&self) -> SmallVec<[DType; 4]> {
        match self {
            Library::Custom(c) => {
                c.scalars.iter().filter(|s| matches!(s.origin, Origin::Param(_))).map(|s| s.dtype).collect()
            }
            _ => SmallVec::new(),
        }
    }
}

/// A user's kernel on inputs without gaps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Custom {
    pub kernel: KernelRef,
    pub inputs: Vec<Block>,
    pub output: Block,
    /// Fixed numbers, and parameters by their position among the step's.
    pub scalars: Vec<Scalar>,
}

/// Elements that lie row-major without gaps, from an offset on (in elements).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    pub dtype: DType,
    pub shape: Shape,
    pub offset: i64,
}

/// `c[b] = a[b] * b[b]`; strides in elements; 0 broadcasts. Numbers: per output element each
/// slice of [`MATMUL_SLICE`] along k is one FMA chain in k order from +0, slices added in order; in f64 for f64, else in
/// f32, to which 16-bit operands are widened, and from which the result is then rounded once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Matmul {
    pub dtype: DType,
    /// Lengths of the batch axes (often none), outermost first.
    pub batch: Vec<usize>,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: Operand,
    pub b: Operand,
    pub c: Operand,
}

/// Where a matrix operand lies: strides and offset in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    pub offset: i64,
    /// One stride per batch axis.
    pub batch: Vec<i64>,
    pub row: i64,
    pub col: i64,
}

/// Length of the k slices of the matmul rule.
pub const MATMUL_SLICE: usize = 512;

/// Scatter-add along one axis of a contiguous output of shape `[outer, len, inner]`:
/// `out[o, index[o, j, i], i] += src[o, j, i]`, for j in ascending order. Strides and offsets in elements.
/// An index outside `0..len` is clamped and raises the launch's index flag. 16-bit floats add up in f32 and are rounded once;
/// integers wrap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScatterAdd {
    pub dtype: DType,
    pub outer: usize,
    pub count: usize,
    pub len: usize,
    pub inner: usize,
    /// Strides of the index operand (i64) along outer, j, inner; 0 where it is broadcast.
    pub index: [i64; 3],
    /// Strides of `src` along outer, j, inner.
    pub src: [i64; 3],
}

/// Where an operand of a call along one axis lies: offset, and strides along the axes before, the axis, and those after; in
/// elements; 0 broadcasts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lines {
    pub offset: i64,
    pub strides: [i64; 3],
}

/// `out[o, k, i]` is the last `j` with `index[o, j, i] == k`, or -1. The output is contiguous, of shape `[outer, len, inner]`.
/// An index outside `0..len` is clamped and raises the launch's index flag.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScatterIndex {
    /// Lengths of the index: before the axis, along it, after it.
    pub dims: [usize; 3],
    pub len: usize,
    pub index: Lines,
}

/// How a scan combines what comes before with the next element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanKind {
    /// `before + x`.
    Sum,
    /// `before * x`.
    Product,
    /// `factor * before + x`, product and sum rounded each; inputs factor, x. The gradient of products, and its own.
    Recurrence,
}

impl ScanKind {
    /// Every kind.
    pub const ALL: [ScanKind; 3] = [ScanKind::Sum, ScanKind::Product, ScanKind::Recurrence];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ScanKind::Sum => "cumsum",
            ScanKind::Product => "cumprod",
            ScanKind::Recurrence => "recurrence",
        }
    }

    /// Number of inputs.
    pub fn inputs(self) -> usize {
        if self == ScanKind::Recurrence { 2 } else { 1 }
    }
}

/// Along the middle axis one element after the other, from its end if `reverse`: the first result is the first element.
/// The output is contiguous. 16-bit floats are combined in f32, and each result is rounded once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scan {
    pub dtype: DType,
    pub kind: ScanKind,
    pub reverse: bool,
    /// Lengths: before the axis, along it, after it.
    pub dims: [usize; 3],
    /// As many as the kind has.
    pub inputs: Vec<Lines>,
}

/// Along the middle axis the positions in the order of their elements, equal ones in their own order; NaN above all numbers, zeros of both
/// signs equal. The output is contiguous.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Argsort {
    pub dtype: DType,
    pub descending: bool,
    /// Lengths: before the axis, along it, after it.
    pub dims: [usize; 3],
    pub input: Lines,
}
