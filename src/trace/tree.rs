//! The trace tree: paths of events, the values they define, the plans of their segments.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::{DType, Layout, Loc, Type};
use crate::op::Op;
use crate::tensor::tape::GradTable;
use crate::tensor::{Origin, Tensor};
use crate::trace::segment::SegmentPlan;

/// A value of a path: numbered from the tree's root, in order of first appearance.
pub(crate) type ValId = u32;
/// Position in [`Tree::paths`].
pub(crate) type PathId = u32;

/// No value.
pub(crate) const NONE: ValId = ValId::MAX;

/// What the closure did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A tensor op.
    Op,
    /// The first `get` of a `Var`, or the first after a `set`.
    VarGet,
    VarSet,
    /// A host read of a value of the current segment: ends the segment.
    Read,
    /// `backward`; the `inner` next events are its gradient ops.
    Backward,
    /// `autograd::grad`; as `Backward`.
    Grad,
    /// The closure's end.
    End,
}

/// One event of a path. The hot part of a trace: compared in order at every call.
pub(crate) struct Event {
    pub kind: Kind,
    /// Inside a `backward` or `grad`: its scalars are constants or copies of parameters.
    pub inner: bool,
    /// Not on the tape: an op inside `no_grad`, or of a gradient that nobody differentiates.
    pub constant: bool,
    /// `Kind::Op`: the op, scalars given by origin. Others: unused.
    pub op: Op,
    pub operands: SmallVec<[ValId; 3]>,
    /// The value defined or, for an aliasing `VarGet`, met again.
    pub out: ValId,
    /// `VarGet`, `VarSet`: slot in the session's table of `Var`s.
    pub var: u32,
    /// The handle that stands for `out` at every call.
    pub template: Option<Tensor>,
    pub loc: Loc,
    pub extra: Option<Box<Extra>>,
}

/// What a `Grad` event differentiates by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Value(ValId),
    /// A `Var`, by its slot.
    Var(u32),
    /// Not met in this call before.
    Unknown,
}

/// The cold part of `Backward`, `Grad`, `Read` and `End` events.
#[derive(Default)]
pub(crate) struct Extra {
    /// `Backward`, `Grad`: number of events that belong to it.
    pub inner: u32,
    /// `Backward`: (var slot, gradient); `Grad`: (position in `wants`, gradient).
    pub grads: Vec<(u32, ValId)>,
    /// `Grad`: what it differentiates by.
    pub wants: Vec<Want>,
    /// `Grad`: its results are on the tape.
    pub graph: bool,
    /// `Backward`: what `Gradients` of the present call hold.
    pub table: Option<Arc<GradTable>>,
    /// `Read`, `End`: the plans of the segment that ends here, by what survives.
    pub plans: Vec<Arc<SegmentPlan>>,
    /// `Read`, `End`: values of earlier events that known continuations need, as of `generation`.
    pub escapes: Vec<ValId>,
    pub generation: u64,
}

/// How a value of a path comes to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Def {
    /// A tensor from outside, bound at first touch; `guard` is its position in [`Path::externals`].
    External { guard: u32, held: u32 },
    /// The value a `Var` had when it was first read; `guard` is its position in [`Path::snapshots`].
    Snapshot { var: u32, guard: u32, held: u32 },
    /// The result of the op event at this ordinal.
    Made { event: u32 },
    /// A `Var` read after it was set in the step: value `of`, as a new leaf.
    Leaf { event: u32, of: ValId },
}

/// What is guarded of a tensor from outside at first touch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ExternalGuard {
    pub ty: Type,
    pub layout: Layout,
    pub tape: Tape,
}

/// What hangs on a tensor from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tape {
    /// A constant.
    None,
    /// A value that gradients can be taken with respect to, nothing behind it.
    Tracked,
    /// A tape that leads out of the step.
    Outside,
}

impl Tape {
    #[inline]
    pub fn of(t: &Tensor) -> Tape {
        match t.0.origin {
            Origin::Tracked => Tape::Tracked,
            _ if t.0.origin.is_taped() => Tape::Outside,
            _ => Tape::None,
        }
    }
}

/// What is guarded of a `Var` at first touch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct VarGuard {
    pub ty: Type,
    pub trainable: bool,
}

/// A run of events. The root path starts empty; a branch starts at an event of its parent.
#[derive(Default)]
pub(crate) struct Path {
    pub parent: Option<PathId>,
    /// Numbers that this path's own parts start at, counted from the root.
    pub base_event: u32,
    pub base_value: u32,
    pub base_param: u32,
    pub base_var: u32,
    pub events: Vec<Event>,
    pub defs: Vec<Def>,
    /// dtypes of the host scalars.
    pub params: Vec<DType>,
    pub vars: Vec<VarGuard>,
    pub externals: Vec<ExternalGuard>,
    /// Layouts of the `Var` values first read here.
    pub snapshots: Vec<Layout>,
    /// (position of the event they replace, branch).
    pub children: Vec<(u32, PathId)>,
    /// The call that last took it.
    pub used: u64,
}

/// All that a step has seen.
#[derive(Default)]
pub(crate) struct Tree {
    pub paths: Vec<Path>,
    /// Places of paths that were dropped.
    free: Vec<PathId>,
    /// Grows with every new path.
    pub generation: u64,
}

impl Tree {
    pub fn new() -> Tree {
        Tree { paths: vec![Path::default()], free: Vec::new(), generation: 0 }
    }

    /// Adds a branch of `parent` at its event `at`.
    pub fn add(&mut self, parent: PathId, at: u32, path: Path) -> PathId {
        self.generation += 1;
        let id = match self.free.pop() {
            Some(id) => {
                self.paths[id as usize] = path;
                id
            }
            None => {
                self.paths.push(path);
                self.paths.len() as u32 - 1
            }
        };
        self.paths[parent as usize].children.push((at, id));
        id
    }

    /// Paths there are.
    pub fn len(&self) -> usize {
        self.paths.len() - self.free.len()
    }

    /// Drops a path without branches, its plans with it. The root stays.
    pub fn remove(&mut self, id: PathId) {
        let Some(parent) = self.paths[id as usize].parent else { return };
        self.paths[parent as usize].children.retain(|c| c.1 != id);
        self.paths[id as usize] = Path { used: u64::MAX, ..Path::default() };
        self.free.push(id);
    }

    /// The path without branches that was not taken for the longest time, `kept` aside.
    pub fn oldest_leaf(&self, kept: PathId) -> Option<PathId> {
        (1..self.paths.len() as u32)
            .filter(|&id| {
                let p = &self.paths[id as usize];
                id != kept && p.parent.is_some() && p.children.is_empty()
            })
            .min_by_key(|&id| self.paths[id as usize].used)
    }
}
