//! Floor 6: from a graph to a checked plan.
//!
//! [`compile`] runs the passes of one list, each on what the ones before it made: *simplify*, *cse* and *dce*
//! rewrite the graph, *stage* adds copies that library calls need, *fuse* decides which nodes share a kernel,
//! *lower* writes the kernels, *schedule* orders the steps, *memory* gives every value its bytes. The plan must
//! then convince the independent checker. In debug builds and under the feature `check` the graph is verified
//! after every pass; an error names the pass.
//! May rely on floors 0 to 5. Guarantees: a plan's results are those of the reference evaluator, bit for bit,
//! unless [`Options::fast_math`] is set.

pub mod cse;
pub mod dce;
pub mod fuse;
pub mod lower;
pub mod memory;

pub mod schedule;
pub mod simplify;
pub mod stage;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::base::{Error, Loc, Result};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::plan::check::{Checked, check};
pub use fuse::Fusion;

/// What the passes may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Rewrites that are not exact; results may then differ from eager ones.
    pub fast_math: bool,
    /// Fusion; without it each op is a step of its own.
    pub fuse: bool,
    /// Outputs and intermediate values that overwrite what dies.
    pub in_place: bool,
    /// Memory of the arena used more than once.
    pub reuse: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { fast_math: false, fuse: true, in_place: true, reuse: true }
    }
}

/// Something a pass decided, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    pub pass: &'static str,
    /// Names of the ops it concerns.
    pub ops: SmallVec<[&'static str; 2]>,
    /// The user's lines they come from.
    pub locs: SmallVec<[Loc; 2]>,
    pub reason: Cow<'static, str>,
}

impl Decision {
    /// A decision about some nodes of a graph.
    pub fn new(pass: &'static str, graph: &Graph, nodes: &[NodeId], reason: impl Into<Cow<'static, str>>) -> Decision {
        let mut locs: SmallVec<[Loc; 2]> = SmallVec::new();
        let mut ops = SmallVec::new();
        for &n in nodes {
            if let NodeOp::Op(op) = graph.node(n).op {
                ops.push(op.rules().name());
            }
            let loc = graph.node(n).loc;
            if !locs.contains(&loc) {
                locs.push(loc);
            }
        }
        Decision { pass, ops, locs, reason: reason.into() }
    }
}

/// `fuse: add, relu: fused (mlp.rs:41, mlp.rs:42)`.
impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {} (", self.pass, self.ops.join(", "), self.reason)?;
        for (i, l) in self.locs.iter().enumerate() {
            write!(f, "{}{l}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}

/// A compiled graph, and how it came about.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub plan: Checked,
    /// The graph after the rewriting passes.
    pub graph: Graph,
    /// Which of its nodes are computed together.
    pub groups: Fusion,
    pub notes: Vec<Decision>,
    /// How long each pass took, in the order of the pipeline.
    pub timings: Vec<(&'static str, Duration)>,
}

/// A pass over the graph: a new one, and notes.
type Rewrite = fn(&Graph, &Options, &mut Vec<Decision>) -> Result<Graph>;

/// The passes that rewrite the graph, in order.
pub const REWRITES: [(&str, Rewrite); 4] =
    [("simplify", simplify::simplify), ("cse", cse::cse), ("dce", dce::dce), ("stage", stage::stage)];

/// Compiles a step's graph.
pub fn compile(graph: &Graph, options: &Options) -> Result<Compiled> {
    let mut notes = Vec::new();
    let mut timings = Vec::new();
    let mut timed = |name: &'static str, start: Instant| timings.push((name, start.elapsed()));
    verify(graph, "trace")?;
    let mut graph = Cow::Borrowed(graph);
    for (name, pass) in REWRITES {
        let start = Instant::now();
        graph = Cow::Owned(pass(&graph, options, &mut notes).map_err(|e| blame(name, e))?);
        timed(name, start);
        verify(&graph, name)?;
    }
    let graph = graph.into_owned();
    let start = Instant::now();
    let (groups, drafts) =
        fuse_and_lower(&graph, FxHashSet::default(), |apart| fuse::fuse(&graph, options, apart, &mut notes))?;
    timed("fuse and lower", start);
    let start = Instant::now();
    let schedule = schedule::schedule(&graph, &groups, &drafts, options.in_place);
    timed("schedule", start);
    let start = Instant::now();
    let plan = memory::assign(&graph, &groups, drafts, &schedule, options).map_err(|e| blame("memory", e))?;
    timed("memory", start);
    let start = Instant::now();
    let plan = check(plan).map_err(|e| Error::bug("memory", e.to_string()))?;
    timed("check", start);
    Ok(Compiled { plan, graph, groups, notes, timings })
}

/// Compiles the graph of a single op as it stands, for eager execution. The result, a view too, is written
/// contiguous to memory of its own.
pub fn compile_op(graph: &Graph) -> Result<Checked> {
    let staged = stage::stage(graph, &Options::default(), &mut Vec::new())?;
    let graph = &staged;
    let results = graph.outputs().iter().copied().filter(|&o| fuse::reads::class_of(graph, o).is_some()).collect();
    let (groups, drafts) = fuse_and_lower(graph, results, |apart| fuse::apart(graph, apart))?;
    let schedule = schedule::schedule(graph, &groups, &drafts, true);
    let plan =
        memory::assign(graph, &groups, drafts, &schedule, &Options::default()).map_err(|e| blame("memory", e))?;
    check(plan).map_err(|e| Error::bug("memory", e.to_string()))
}

/// Fuses and lowers, until every group can be lowered: a node that turns out not to be computable where it is used
/// gets a kernel of its own.
fn fuse_and_lower(
    graph: &Graph,
    mut apart: FxHashSet<NodeId>,
    mut fuse: impl FnMut(&FxHashSet<NodeId>) -> Fusion,
) -> Result<(Fusion, Vec<lower::Draft>)> {
    loop {
        let groups = fuse(&apart);
        match lower::lower(graph, &groups) {
            Ok(drafts) => return Ok((groups, drafts)),
            Err(lower::Failure::Error(e)) => return Err(blame("lower", e)),
            Err(lower::Failure::Materialise(node)) => {
                if !apart.insert(node) {
                    let detail = format!("node {} cannot be computed even by a kernel of its own", node.0);
                    return Err(Error::bug("lower", detail).at(graph.node(node).loc));
                }
            }
        }
    }
}

/// An error of a pass is a bug of that pass: the graph was valid.
fn blame(pass: &'static str, e: Error) -> Error {
    match e.kind() {
        crate::base::ErrorKind::Bug { .. } => e,
        _ => Error::bug(pass, e.to_string()),
    }
}

fn verify(graph: &Graph, after: &'static str) -> Result<()> {
    if cfg!(any(debug_assertions, feature = "check")) {
        graph.verify().map_err(|e| Error::bug(after, e.to_string()))?;
    }
    Ok(())
}
