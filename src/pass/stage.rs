//! Copies the operands of library calls that lie where the call cannot reach them, such as a strided input of a
//! scatter. A copy is a cast to the same dtype; the kernel that makes it leaves its result contiguous.

use smallvec::SmallVec;

use crate::base::{Layout, Result, Type};
use crate::ir::rewrite::Rewriter;
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::{Class, Op};
use crate::pass::fuse::reads::{Role, class_of, is_library, view};
use crate::pass::{Decision, Options};

/// Adds the copies.
pub fn stage(graph: &Graph, _: &Options, notes: &mut Vec<Decision>) -> Result<Graph> {
    if graph.ids().all(|v| !is_library(graph, v)) {
        return Ok(graph.clone());
    }
    let role = |v| match class_of(graph, v) {
        None => Role::Input,
        Some(Class::Movement) => Role::Inline,
        Some(_) => Role::Kernel,
    };
    let roles: Vec<Role> = graph.ids().map(role).collect();
    let mut out = Rewriter::new(graph);
    for v in graph.ids() {
        let node = graph.node(v);
        let (NodeOp::Op(op), true) = (node.op, is_library(graph, v)) else {
            out.copy(v)?;
            continue;
        };
        // A view that strides cannot express is copied anyway, when kernels are formed.
        let contiguous = |o: NodeId| Layout::contiguous(graph.node(o).ty.shape);
        let layouts: SmallVec<[Layout; 3]> =
            node.operands.iter().map(|&o| view(graph, &roles, o).map_or(contiguous(o), |(_, layout)| layout)).collect();
        let types: SmallVec<[Type; 3]> = node.operands.iter().map(|&o| graph.node(o).ty).collect();
        if op.rules().library(&types, &layouts, &Layout::contiguous(node.ty.shape)).is_some() {
            out.copy(v)?;
            continue;
        }
        let mut operands = out.operands(v)?;
        for (i, layout) in layouts.iter().enumerate() {
            if *layout != contiguous(node.operands[i]) {
                let copy = Op::Cast(graph.node(node.operands[i]).ty.dtype);
                operands[i] = out.op(copy, &[operands[i]], node.loc)?;
            }
        }
        let new = out.op(op, &operands, node.loc)?;
        out.replace(v, new)?;
        notes.push(Decision::new("stage", graph, &[v], "copied: operands that the library call cannot reach"));
    }
    out.finish()
}
