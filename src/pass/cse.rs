//! One node for equal computations.
//!
//! Equal means the same op with the same attributes on the same operands. A scalar's value at recording says nothing
//! of later calls, so scalars that are parameters are equal only if they are the same parameter; two random
//! draws differ in theirs.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::Result;
use crate::base::scalar::{Origin, Scalar};
use crate::ir::rewrite::Rewriter;
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::Op;
use crate::pass::{Decision, Options};

/// Merges equal nodes.
pub fn cse(graph: &Graph, _: &Options, notes: &mut Vec<Decision>) -> Result<Graph> {
    let mut out = Rewriter::new(graph);
    let mut known: FxHashMap<(Op, SmallVec<[NodeId; 3]>), NodeId> = FxHashMap::default();
    for v in graph.ids() {
        let n = graph.node(v);
        let NodeOp::Op(op) = &n.op else {
            out.copy(v)?;
            continue;
        };
        let key = (identity(op), out.operands(v)?);
        if let Some(&same) = known.get(&key) {
            notes.push(Decision::new("cse", graph, &[v], "computed already"));
            out.replace(v, same)?;
            continue;
        }
        let made = out.copy(v)?;
        known.insert(key, made);
    }
    out.finish()
}

/// The op with the values of its parameters blanked.
fn identity(op: &Op) -> Op {
    let rules = op.rules();
    let mut scalars: SmallVec<[Scalar; 2]> = rules.scalars();
    let mut any = false;
    for s in scalars.iter_mut().filter(|s| matches!(s.origin, Origin::Param(_))) {
        s.bits = 0;
        any = true;
    }
    if any { rules.with_scalars(&scalars) } else { *op }
}
