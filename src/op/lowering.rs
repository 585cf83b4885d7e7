//! How an op's elements are computed inside a kernel.
//!
//! Lowering pulls: to get the value of a node at some index, the op's `lower` asks for its
//! operands at the indices they are needed at. An [`IndexMap`] is such an index: one affine
//! expression in the kernel's domain axes per axis of the value.

use smallvec::SmallVec;

use crate::base::{Result, Scalar, Shape};
use crate::kernel::{self, Builder, Guard, ir::Dynamic};

/// An affine index expression: `offset + Σ domain coordinate * stride + Σ param * stride`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Expr {
    pub offset: i64,
    /// (domain axis, stride), by ascending axis, no zero strides.
    pub terms: SmallVec<[(u32, i64); 4]>,
    pub dynamic: SmallVec<[Dynamic; 1]>,
}

/// At which index of a value a kernel's point reads it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexMap {
    /// The value's shape.
    pub shape: Shape,
    /// One expression per axis; or, when a reshape cannot be split by axes, see `linear`.
    pub axes: SmallVec<[Expr; 4]>,
    /// Set (and `axes` empty): the row-major linear index of the element.
    pub linear: Option<Expr>,
    /// Where the index is valid; loads outside are not made and give zero.
    pub guards: SmallVec<[Guard; 2]>,
}

/// What an op's `lower` can ask of the kernel under construction.
pub trait Lowering {
    /// The kernel's instructions.
    fn builder(&mut self) -> &mut Builder;
    /// Operand `i` at `map`; computes it in place when it is fused, else loads it.
    /// An error (`Unsupported`) tells the fuser that this operand must be materialised.
    fn operand(&mut self, i: usize, map: &IndexMap) -> Result<kernel::Val>;
    /// Operand `i`, which is materialised, at `map` with the coordinate of `axis` replaced by the
    /// i64 value `index` (clamped to the axis and flagged). `map.axes[axis]` is ignored.
    fn gather(&mut self, i: usize, map: &IndexMap, axis: usize, index: kernel::Val) -> Result<kernel::Val>;
    /// A host scalar: a parameter of the launch, or a constant.
    fn scalar(&mut self, s: Scalar) -> kernel::Val;
    /// Combines `value`, the operand at the current point, over the kernel's reduced axes.
    fn reduce(&mut self, combine: kernel::Combine, value: kernel::Val) -> Result<kernel::Val>;
    /// The map from the reduction's operand to the domain: identity over all domain axes.
    fn reduction_map(&mut self, i: usize, result: &IndexMap) -> Result<IndexMap>;
    /// The coordinate that `expr` gives, as an I64 value.
    fn coordinate(&mut self, expr: &Expr) -> kernel::Val;
    /// The row-major linear index that `map` gives, as an I64 value.
    fn linear_index(&mut self, map: &IndexMap) -> kernel::Val;
}
