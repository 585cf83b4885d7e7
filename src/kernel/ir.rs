//! The kernel: a domain, memory arguments, parameters and a straight-line body.
//!
//! Meaning, which [`crate::kernel::eval`] spells out and every backend must match bit for bit:
//! the body runs at each point of the domain. Axes marked `reduced` are the *inner* axes: for
//! each point of the outer (kept) axes, `Reduce` combines its operand over all inner points
//! in the order of [`crate::kernel::order`]. A value that depends on no inner point ([`Level::Row`]) exists once per
//! outer point and is seen by every inner point. So softmax is one kernel: load, reduce max,
//! sub, exp, reduce sum, div, store.
//!
//! A body never reads what the same kernel wrote, except that an output may share its memory
//! with an input when both are accessed at the same element at every point.

use crate::base::DType;
use crate::kernel::instr::{Instr, Ty};

/// A value of the body: the index of the instruction that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Val(pub u32);

/// A fused kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Kernel {
    /// Lengths of the loop axes in logical order, outermost first. May hold zeros: then nothing
    /// runs, except that reductions over zero inner points yield their identity.
    pub domain: Vec<usize>,
    /// Which axes the kernel's reductions run over. All false in a pointwise kernel.
    pub reduced: Vec<bool>,
    /// Memory operands; accesses name them by position.
    pub args: Vec<Arg>,
    /// Host scalars; the body names them by position. The value is the word of the parameter
    /// block that the launch passes at the same position.
    pub params: Vec<Ty>,
    /// Instructions in order; operands come before their users.
    pub body: Vec<Inst>,
}

/// One memory operand of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Arg {
    /// Element type in memory.
    pub dtype: DType,
    /// Elements that may be touched: indices 0..len.
    pub len: usize,
    /// Written by stores (then never loaded), else only loaded.
    pub output: bool,
}

/// An element index, affine in the domain's coordinates and in host scalars.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access {
    /// Position in [`Kernel::args`].
    pub arg: u32,
    /// Constant part, in elements.
    pub offset: i64,
    /// Elements per step along each domain axis (same length as the domain); 0 broadcasts.
    pub strides: Vec<i64>,
    /// Added parts `param * stride`: slice starts. Each parameter is an I64 with `0 <= param <= max`,
    /// which the caller of the launch guarantees.
    pub dynamic: Vec<Dynamic>,
}

/// A part of an element index that a host scalar decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dynamic {
    /// Position in [`Kernel::params`].
    pub param: u32,
    pub stride: i64,
    /// The largest value the parameter may take.
    pub max: i64,
}

/// A load happens only where `lo <= coordinate(axis) < hi`; elsewhere the loaded value is zero (false).
/// It is how padding and concatenation are written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    pub axis: u32,
    pub lo: i64,
    pub hi: i64,
}

/// One instruction of a body.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Inst {
    /// A fixed value, in the low bits.
    Const { ty: Ty, bits: u64 },
    /// A host scalar.
    Param { param: u32 },
    /// The coordinate along a domain axis, as I64.
    Index { axis: u32 },
    /// An element of an input; zero where a guard fails.
    Load { access: Access, guards: Vec<Guard> },
    /// The element of an input at `access + clamp(index, 0, len - 1) * stride`. An index outside
    /// `0..len` raises the launch's index flag. `len` is at least 1.
    Gather { access: Access, index: Val, stride: i64, len: i64 },
    /// A scalar instruction.
    Op { instr: Instr, args: [Val; 3] },
    /// `value` combined over all inner points of the outer point.
    Reduce { combine: Combine, value: Val },
    /// Writes `value` to an output; a Row value at an access with zero strides on inner axes.
    Store { access: Access, value: Val },
}

/// How a reduction combines two values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Combine {
    /// f32 sum; -0.0 is the transparent identity, an empty sum is +0.0.
    Sum,
    /// f32 maximum ([`Instr::Max`]); empty: -inf.
    Max,
    /// f32 minimum ([`Instr::Min`]); empty: +inf.
    Min,
    /// f32 product; empty: 1.
    Prod,
    /// f64 sum, as `Sum`.
    DSum,
    /// f64 maximum; empty: -inf.
    DMax,
    /// f64 minimum; empty: +inf.
    DMin,
    /// f64 product; empty: 1.
    DProd,
    /// i64 wrapping sum; empty: 0.
    LSum,
    /// i64 maximum; empty: i64::MIN.
    LMax,
    /// i64 minimum; empty: i64::MAX.
    LMin,
    /// i64 wrapping product; empty: 1.
    LProd,
    /// "or" of truth values; empty: false.
    Any,
    /// "and" of truth values; empty: true.
    All,
}

impl Combine {
    pub const ALL: [Combine; 14] = [
        Combine::Sum,
        Combine::Max,
        Combine::Min,
        Combine::Prod,
        Combine::DSum,
        Combine::DMax,
        Combine::DMin,
        Combine::DProd,
        Combine::LSum,
        Combine::LMax,
        Combine::LMin,
        Combine::LProd,
        Combine::Any,
        Combine::All,
    ];

    /// The instruction that combines two partial results.
    pub fn instr(self) -> Instr {
        match self {
            Combine::Sum => Instr::Add,
            Combine::Max => Instr::Max,
            Combine::Min => Instr::Min,
            Combine::Prod => Instr::Mul,
            Combine::DSum => Instr::DAdd,
            Combine::DMax => Instr::DMax,
            Combine::DMin => Instr::DMin,
            Combine::DProd => Instr::DMul,
            Combine::LProd => Instr::LMul,
            Combine::LSum => Instr::LAdd,
            Combine::LMax => Instr::LMax,
            Combine::LMin => Instr::LMin,
            Combine::Any => Instr::Or,
            Combine::All => Instr::And,
        }
    }

    /// Bits of the value that changes nothing when combined.
    pub fn identity(self) -> u64 {
        match self {
            Combine::Sum => (-0.0f32).to_bits() as u64,
            Combine::Max => f32::NEG_INFINITY.to_bits() as u64,
            Combine::Min => f32::INFINITY.to_bits() as u64,
            Combine::Prod => 1f32.to_bits() as u64,
            Combine::DSum => (-0.0f64).to_bits(),
            Combine::DMax => f64::NEG_INFINITY.to_bits(),
            Combine::DMin => f64::INFINITY.to_bits(),
            Combine::DProd => 1f64.to_bits(),
            Combine::LSum | Combine::Any => 0,
            Combine::LMax => i64::MIN as u64,
            Combine::LMin => i64::MAX as u64,
            Combine::All | Combine::LProd => 1,
        }
    }

    /// Bits of the result over no points.
    pub fn empty(self) -> u64 {
        if matches!(self, Combine::Sum | Combine::DSum) { 0 } else { self.identity() }
    }

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Combine::Sum => "sum",
            Combine::Max => "max",
            Combine::Min => "min",
            Combine::Prod => "prod",
            Combine::DSum => "dsum",
            Combine::DMax => "dmax",
            Combine::DMin => "dmin",
            Combine::DProd => "dprod",
            Combine::LProd => "lprod",
            Combine::LSum => "lsum",
            Combine::LMax => "lmax",
            Combine::LMin => "lmin",
            Combine::Any => "any",
            Combine::All => "all",
        }
    }
}

/// On what a value depends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// On no inner point: one value per outer point (or per launch).
    Row,
    /// On the inner point too. In a kernel without reduced axes every value is `Row`.
    Full,
}

impl Kernel {
    /// Outer points: product of the axes that are not reduced.
    pub fn outer(&self) -> usize {
        self.domain.iter().zip(&self.reduced).filter(|&(_, &r)| !r).map(|(&d, _)| d).product()
    }

    /// Inner points per outer point: product of the reduced axes (1 if there are none).
    pub fn inner(&self) -> usize {
        self.domain.iter().zip(&self.reduced).filter(|&(_, &r)| r).map(|(&d, _)| d).product()
    }

    /// The type of a value; `None` for a store.
    pub fn ty(&self, v: Val) -> Option<Ty> {
        match &self.body[v.0 as usize] {
            Inst::Const { ty, .. } => Some(*ty),
            Inst::Param { param } => Some(self.params[*param as usize]),
            Inst::Index { .. } => Some(Ty::I64),
            Inst::Load { access, .. } | Inst::Gather { access, .. } => {
                Some(Ty::of(self.args[access.arg as usize].dtype))
            }
            Inst::Op { instr, .. } => Some(instr.result()),
            Inst::Reduce { combine, .. } => Some(combine.instr().result()),
            Inst::Store { .. } => None,
        }
    }

    /// The level of every instruction (a store's is that of its value).
    pub fn levels(&self) -> Vec<Level> {
        let varies = |strides: &[i64]| strides.iter().zip(&self.reduced).any(|(&s, &r)| r && s != 0);
        let level = |full: bool| if full { Level::Full } else { Level::Row };
        let mut out: Vec<Level> = Vec::with_capacity(self.body.len());
        for inst in &self.body {
            let l = match inst {
                Inst::Const { .. } | Inst::Param { .. } | Inst::Reduce { .. } => Level::Row,
                Inst::Index { axis } => level(self.reduced[*axis as usize]),
                Inst::Load { access, guards } => {
                    level(varies(&access.strides) || guards.iter().any(|g| self.reduced[g.axis as usize]))
                }
                Inst::Gather { access, index, .. } => level(varies(&access.strides)).max(out[index.0 as usize]),
                Inst::Op { instr, args } => {
                    args[..instr.operands().len()].iter().map(|a| out[a.0 as usize]).max().unwrap_or(Level::Row)
                }
                Inst::Store { value, .. } => out[value.0 as usize],
            };
            out.push(l);
        }
        out
    }
}
