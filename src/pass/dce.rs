//! Drops what no output depends on. Inputs stay: they are the plan's signature.

use crate::base::Result;
use crate::ir::rewrite::Rewriter;
use crate::ir::{Graph, NodeOp};
use crate::pass::{Decision, Options};

/// Keeps inputs and what outputs depend on.
pub fn dce(graph: &Graph, _: &Options, notes: &mut Vec<Decision>) -> Result<Graph> {
    let mut live = vec![false; graph.len()];
    for &o in graph.outputs() {
        live[o.index()] = true;
    }
    for v in (0..graph.len() as u32).rev().map(crate::ir::NodeId) {
        if live[v.index()] {
            for o in &graph.node(v).operands {
                live[o.index()] = true;
            }
        }
    }
    let mut out = Rewriter::new(graph);
    for v in graph.ids() {
        if live[v.index()] || matches!(graph.node(v).op, NodeOp::Input(_)) {
            out.copy(v)?;
        } else {
            notes.push(Decision::new("dce", graph, &[v], "nothing needs it"));
        }
    }
    out.finish()
}
