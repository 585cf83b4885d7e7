//! Calls that are not kernels of the body IR: each backend has its own code for them.

use crate::base::DType;

/// A library call of a plan step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Library {
    /// Batched matrix product; args: a, b, c (output).
    Matmul(Matmul),
    /// The output starts at zero, then rows of `src` are added to it; args: index, src, out (output).
    ScatterAdd(ScatterAdd),
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
