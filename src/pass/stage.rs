//! Copies the operands of library calls that lie where the call cannot reach them, such as a strided input of a
//! scatter. A copy is a cast to the same dtype; the kernel that makes it leaves its result contiguous.

use smallvec::SmallVec;

use crate::base::{DType, Layout, Result};
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
        let place = |&o: &NodeId| {
            let layout = view(graph, &roles, o).map_or(contiguous(o), |(_, layout)| layout);
            (graph.node(o).ty.dtype, layout)
        };
        let places: SmallVec<[(DType, Layout); 3]> = node.operands.iter().map(place).collect();
        if op.rules().library(&places, &Layout::contiguous(node.ty.shape)).is_some() {
            out.copy(v)?;
            continue;
        }
        let mut operands = out.operands(v)?;
        for (i, (dtype, layout)) in places.iter().enumerate() {
            if *layout != contiguous(node.operands[i]) {
                let copy = Op::Cast(*dtype);
                operands[i] = out.op(copy, &[operands[i]], node.loc)?;
            }
        }
        let new = out.op(op, &operands, node.loc)?;
        out.replace(v, new)?;
        notes.push(Decision::new("stage", graph, &[v], "copied: operands that the library call cannot reach"));
    }
    out.finish()
}
