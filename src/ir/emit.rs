//! Ops appended to a graph, and gradients of a graph's values.

use smallvec::SmallVec;

use crate::base::{Error, Loc, Result, Type};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::elementwise::{Elementwise, arith};
use crate::op::{Emit, Grad, Op, Val};

/// An [`Emit`] that adds nodes to a graph; the values it knows are the graph's nodes, by number.
pub struct GraphEmit<'g> {
    pub graph: &'g mut Graph,
    /// The place that new nodes get.
    pub loc: Loc,
}

impl<'g> GraphEmit<'g> {
    /// Adds to `graph`, at no known place.
    pub fn new(graph: &'g mut Graph) -> GraphEmit<'g> {
        GraphEmit { graph, loc: Loc::NONE }
    }
}

impl Emit for GraphEmit<'_> {
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        let operands: SmallVec<[NodeId; 3]> = operands.iter().map(|v| NodeId(v.0)).collect();
        Ok(Val(self.graph.op(op, &operands, self.loc)?.0))
    }

    fn ty(&self, v: Val) -> Type {
        self.graph.node(NodeId(v.0)).ty
    }
}

/// Appends the gradients of `output` with respect to `wrt`, given the gradient `seed` of `output`
/// (a node of its type). `None` where `output` does not depend on a node differentiably.
pub fn gradient(graph: &mut Graph, output: NodeId, seed: NodeId, wrt: &[NodeId]) -> Result<Vec<Option<NodeId>>> {
    if graph.node(seed).ty != graph.node(output).ty {
        return Err(Error::bug("gradient", "the seed is not of the output's type"));
    }
    // Which nodes up to the output lead back to one of `wrt`.
    let mut wanted = vec![false; output.index() + 1];
    for id in graph.ids().take(output.index() + 1) {
        let node = graph.node(id);
        let leads = |o: &NodeId| wanted[o.index()];
        wanted[id.index()] = node.ty.dtype.is_float() && (wrt.contains(&id) || node.operands.iter().any(leads));
    }
    let mut grads: Vec<Option<Val>> = vec![None; output.index() + 1];
    grads[output.index()] = Some(Val(seed.0));
    for i in (0..=output.index()).rev() {
        let Some(grad) = grads[i].filter(|_| wanted[i]) else { continue };
        let node = graph.node(NodeId(i as u32)).clone();
        let NodeOp::Op(op) = node.op else { continue };
        let needs: SmallVec<[bool; 3]> = node.operands.iter().map(|o| wanted[o.index()]).collect();
        let operands: SmallVec<[Val; 3]> = node.operands.iter().map(|o| Val(o.0)).collect();
        let mut cx = GraphEmit { graph, loc: node.loc.gradient() };
        let parts = op.rules().grad(&mut Grad::new(&mut cx, &operands, Val(i as u32), grad, &needs))?;
        for (o, part) in node.operands.iter().zip(parts) {
            let Some(part) = part.filter(|_| wanted[o.index()]) else { continue };
            grads[o.index()] = Some(match grads[o.index()] {
                None => part,
                Some(sum) => cx.emit(Op::Elementwise(Elementwise::new(&arith::ADD)), &[sum, part])?,
            });
        }
    }
    let found = |w: &NodeId| grads.get(w.index()).copied().flatten().map(|v| NodeId(v.0));
    Ok(wrt.iter().map(found).collect())
}
