//! Groups become steps, their memory not yet decided.

pub mod kernel;

use smallvec::SmallVec;

use crate::base::scalar::Origin;
use crate::base::{DType, Error, Layout, Loc};
use crate::ir::{Graph, NodeId};
use crate::op::Class;
use crate::pass::fuse::Fusion;
use crate::pass::fuse::reads::{class_of, op_of, view};
use crate::plan::StepKind;
pub use kernel::Failure;

/// A step whose arguments are values, not slots yet.
#[derive(Debug)]
pub struct Draft {
    pub kind: StepKind,
    /// The value behind each argument: an input's node, or one that a step stores.
    pub args: Vec<NodeId>,
    /// Whether each argument is written.
    pub written: Vec<bool>,
    pub params: Vec<u32>,
    pub locs: Vec<Loc>,
    pub label: String,
}

/// The step of each group, by the group's number.
pub fn lower(graph: &Graph, fusion: &Fusion) -> Result<Vec<Draft>, Failure> {
    (0..fusion.groups.len() as u32).map(|g| draft(graph, fusion, g)).collect()
}

fn draft(graph: &Graph, fusion: &Fusion, number: u32) -> Result<Draft, Failure> {
    let group = &fusion.groups[number as usize];
    let mut locs: Vec<Loc> = Vec::new();
    for &v in &group.nodes {
        let loc = graph.node(v).loc;
        if loc != Loc::NONE && !locs.contains(&loc) {
            locs.push(loc);
        }
    }
    let label = label(graph, &group.nodes);
    if group.library {
        let (library, args) = library(graph, fusion, group.nodes[0]).map_err(Failure::Error)?;
        let written = (0..args.len()).map(|i| i + 1 == args.len()).collect();
        let scalars = op_of(graph, group.nodes[0]).map(|op| op.rules().scalars()).unwrap_or_default();
        let word = |s: &crate::base::Scalar| if let Origin::Param(k) = s.origin { Some(k) } else { None };
        let params = scalars.iter().filter_map(word).collect();
        return Ok(Draft { kind: StepKind::Library(library), args, written, params, locs, label });
    }
    let lowered = kernel::lower(graph, fusion, number)?;
    let written = lowered.kernel.args.iter().map(|a| a.output).collect();
    let (args, params) = (lowered.args, lowered.params);
    Ok(Draft { kind: StepKind::Kernel(lowered.kernel), args, written, params, locs, label })
}

/// The library call of a node, its operands where their views lie.
fn library(
    graph: &Graph,
    fusion: &Fusion,
    node: NodeId,
) -> Result<(crate::kernel::library::Library, Vec<NodeId>), Error> {
    let n = graph.node(node);
    let mut args = Vec::with_capacity(n.operands.len() + 1);
    let mut places: SmallVec<[(DType, Layout); 3]> = SmallVec::new();
    for &o in &n.operands {
        let found = view(graph, &fusion.roles, o);
        let (base, layout) =
            found.ok_or_else(|| Error::bug("lower", "an operand of a library call is not in memory"))?;
        args.push(base);
        places.push((graph.node(o).ty.dtype, layout));
    }
    args.push(node);
    let call = op_of(graph, node).and_then(|op| op.rules().library(&places, &Layout::contiguous(n.ty.shape)));
    Ok((call.ok_or_else(|| Error::bug("lower", "a library op without its call"))?, args))
}

/// Names of the ops computed, views left out unless there is nothing else: `add·mul·tanh`.
fn label(graph: &Graph, nodes: &[NodeId]) -> String {
    const MOST: usize = 8;
    let view = |v: &NodeId| class_of(graph, *v) == Some(Class::Movement);
    let only_views = nodes.iter().all(view);
    let named: Vec<&NodeId> = nodes.iter().filter(|v| only_views || !view(v)).collect();
    let names: Vec<&str> = named.iter().take(MOST).filter_map(|&&v| Some(op_of(graph, v)?.rules().name())).collect();
    let mut out = names.join("·");
    if named.len() > MOST {
        out.push_str(&format!("·… ({} ops)", named.len()));
    }
    out
}
