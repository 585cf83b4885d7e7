//! Floor 4: the plan of one launch: steps, dependency edges, slots.
//!
//! A plan is a *partial order*: steps may run in any order that respects `edges`, so a
//! backend may run independent branches in parallel. Only a plan that [`check::check`] accepted
//! ([`check::Checked`]) can be executed. May rely on floors 0 to 3 (the checker on floors 0, 1 and this one only).

mod access;
pub mod check;
pub mod parse;
pub mod print;

use crate::base::{DType, Layout, Loc, Type};
use crate::kernel::library::Library;
use crate::kernel::{Inst, Kernel};

/// What to run at one launch, and where values lie.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub name: String,
    pub slots: Vec<Slot>,
    pub steps: Vec<Step>,
    /// (from, to): `to` starts after `from` has ended. Indices into `steps`; from < to, since
    /// `steps` is itself one allowed order.
    pub edges: Vec<(u32, u32)>,
    /// Bytes of the arena that slots of kind [`SlotKind::Arena`] lie in; 64-byte aligned.
    pub arena_bytes: usize,
    pub inputs: Vec<PlanInput>,
    pub outputs: Vec<PlanOutput>,
    /// dtypes of the parameter block's words (one `u64` each).
    pub params: Vec<DType>,
}

/// A range of memory that steps read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub kind: SlotKind,
    /// Bytes from the slot's start that may be touched.
    pub bytes: usize,
}

/// Where a slot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// In the plan's arena, at this byte offset (a multiple of 64).
    Arena { offset: usize },
    /// The buffer bound to the input of this position.
    Input(u32),
    /// The buffer of the output of this position: new at each launch, or the input's that
    /// [`PlanOutput::in_place`] names.
    Output(u32),
}

/// An input of the plan: what is bound must match.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    pub ty: Type,
    pub layout: Layout,
    /// Bytes that the bound buffer must have.
    pub bytes: usize,
    /// Whether it is a `Var`'s value.
    pub var: bool,
}

/// An output of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOutput {
    pub ty: Type,
    pub storage: OutputStorage,
    /// Where the elements lie in that storage.
    pub layout: Layout,
    /// An input whose buffer may be used instead of a new one, when the launch is its only holder.
    /// Only for `OutputStorage::Own`; the plan is right either way.
    pub in_place: Option<u32>,
}

/// Whose buffer an output's elements lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStorage {
    /// Its own, of this many bytes (slot kind `Output` with its position).
    Own { bytes: usize },
    /// That of an input: the output is a view of it.
    Input(u32),
    /// That of another output, which owns its own.
    Output(u32),
}

/// One unit of work.
#[derive(Clone, Debug)]
pub struct Step {
    pub kind: StepKind,
    /// One slot per argument of the kernel or library call.
    pub args: Vec<u32>,
    /// Words of the parameter block, one per parameter of the kernel.
    pub params: Vec<u32>,
    /// The user's lines whose ops it computes, first one first.
    pub locs: Vec<Loc>,
    /// Ops it computes, for reports: "add·mul·tanh".
    pub label: String,
}

/// What a step runs.
#[derive(Clone, Debug)]
pub enum StepKind {
    Kernel(Kernel),
    Library(Library),
}

impl StepKind {
    /// Whether the step can raise the launch's flag: an index out of range, or a user's kernel that fails.
    pub fn may_flag(&self) -> bool {
        match self {
            StepKind::Kernel(k) => k.body.iter().any(|i| matches!(i, Inst::Gather { .. })),
            StepKind::Library(Library::ScatterAdd(_) | Library::ScatterIndex(_) | Library::Custom(_)) => true,
            StepKind::Library(Library::Matmul(_) | Library::Scan(_) | Library::Argsort(_)) => false,
        }
    }
}
