//! Elementwise ops: one row each, by families.

pub mod arith;
pub mod compare;
pub mod integers;
pub mod logic;
pub mod math;
pub mod rounding;
mod rules;
pub mod trigonometry;

use crate::base::{Result, Scalar};
use crate::kernel::{self, Builder, Ty};
use crate::op::emit::{Arg, Grad, Val};

/// One elementwise operation: all that is known of it.
pub struct Row {
    /// Name in the text form, in reports and errors.
    pub name: &'static str,
    /// Number of operands (1 to 3).
    pub arity: usize,
    /// Which dtypes it takes and gives.
    pub dtypes: DTypes,
    /// One result element from the operands' lanes, of type `ty` for the data operands: `F32` (of 16-bit floats too),
    /// `F64`, `I64` (of all integers) or `Bool`. The result is rounded or wrapped to the dtype by
    /// [`Builder::fit`], not here.
    pub formula: fn(b: &mut Builder, ty: Ty, x: &[kernel::Val]) -> kernel::Val,
    /// The same on doubles: the independent reference. Truth values are 0 and 1.
    pub reference: fn(&[f64]) -> f64,
    /// Gradient of each operand before un-broadcasting; `None`: not differentiable.
    /// `args` are the forward operands with a scalar one in its place.
    pub grad: Option<GradRule>,
    /// Domain of the samples for conformance: operands are drawn from here.
    pub domain: (f64, f64),
}

/// Gradient of operand `i`, given the forward arguments.
pub type GradRule = fn(g: &mut Grad<'_>, args: &[Arg], i: usize) -> Result<Option<Val>>;

/// The dtype rule of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DTypes {
    /// Operands and result of one float dtype.
    Float,
    /// Operands and result of one numeric dtype (not bool).
    Number,
    /// Operands of one dtype, result bool.
    Compare,
    /// Operands and result bool.
    Logic,
    /// Operands and result of one dtype that is bool or an integer: bit by bit.
    Bits,
    /// Operands and result of one integer dtype.
    Integer,
    /// First operand bool, the others and the result of one dtype.
    Select,
}

/// An elementwise op: its row, and the host scalar that stands for one operand, if any.
#[derive(Clone, Copy)]
pub struct Elementwise {
    pub row: &'static Row,
    /// (operand position, value); cast to the dtype of the other data operands.
    pub scalar: Option<(u8, Scalar)>,
}

impl Elementwise {
    /// `row` with tensor operands only.
    pub fn new(row: &'static Row) -> Elementwise {
        Elementwise { row, scalar: None }
    }
}

impl PartialEq for Elementwise {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.row, other.row) && self.scalar == other.scalar
    }
}
impl Eq for Elementwise {}
impl std::hash::Hash for Elementwise {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.row, state);
        self.scalar.hash(state);
    }
}
impl std::fmt::Debug for Elementwise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.row.name, self.scalar)
    }
}

/// Every row, by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    let families =
        [arith::ROWS, math::ROWS, trigonometry::ROWS, rounding::ROWS, integers::ROWS, compare::ROWS, logic::ROWS];
    families.into_iter().flatten().copied()
}

/// The row called `name`.
pub fn row(name: &str) -> Option<&'static Row> {
    rows().find(|r| r.name == name)
}
