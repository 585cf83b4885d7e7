//! Floor 5: the reference evaluator of graphs.
//!
//! It runs each node's [`crate::op::Rules::eval`], one after the other, and is what backends and passes are
//! compared with. May rely on floors 0 to 4. Guarantees: with [`Precision::Exact`] its bits are those that every
//! backend must give; with [`Precision::F64`] all float values are computed in double precision.

use crate::base::scalar::Origin;
use crate::base::{Error, HostValue, Result, Scalar};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::Op;

#[cfg(test)]
mod tests;

/// In which arithmetic a graph is evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Bit for bit as kernels do.
    Exact,
    /// Floats as doubles, whatever their dtype: for error bounds and finite differences.
    F64,
}

/// The graph's outputs for these inputs and words of the parameter block.
pub fn run(graph: &Graph, inputs: &[HostValue], params: &[u64], precision: Precision) -> Result<Vec<HostValue>> {
    let bad = |detail: String| Err(Error::bug("interp", detail));
    if inputs.len() != graph.inputs().len() || params.len() != graph.params().len() {
        return bad(format!(
            "{} inputs and {} params for a graph with {} and {}",
            inputs.len(),
            params.len(),
            graph.inputs().len(),
            graph.params().len()
        ));
    }
    let mut dying = deaths(graph);
    let mut values: Vec<Option<HostValue>> = vec![None; graph.len()];
    for id in graph.ids() {
        let node = graph.node(id);
        let value = match node.op {
            NodeOp::Input(k) => inputs[k as usize].clone(),
            NodeOp::Op(op) => {
                let operands: Option<Vec<HostValue>> =
                    node.operands.iter().map(|o| values[o.index()].clone()).collect();
                let Some(operands) = operands else { return bad(format!("node {} reads a dead value", id.0)) };
                bind(op, graph, params)?.rules().eval(&operands).map_err(|e| e.at(node.loc))?
            }
        };
        let value = if precision == Precision::F64 { widen(value) } else { value };
        if value.shape != node.ty.shape {
            return bad(format!("node {} has shape {}, expected {}", id.0, value.shape, node.ty.shape));
        }
        values[id.index()] = Some(value);
        for dead in std::mem::take(&mut dying[id.index()]) {
            values[dead.index()] = None;
        }
    }
    let output = |id: &NodeId| values[id.index()].clone().ok_or_else(|| Error::bug("interp", "an output died"));
    graph.outputs().iter().map(output).collect()
}

/// Per node the values nobody reads after it, outputs excepted.
fn deaths(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut last: Vec<NodeId> = graph.ids().collect();
    for id in graph.ids() {
        for o in &graph.node(id).operands {
            last[o.index()] = id;
        }
    }
    let mut out = vec![Vec::new(); graph.len()];
    for id in graph.ids().filter(|id| !graph.outputs().contains(id)) {
        out[last[id.index()].index()].push(id);
    }
    out
}

/// The op with parameters' values in place of their positions.
fn bind(op: Op, graph: &Graph, params: &[u64]) -> Result<Op> {
    let rules = op.rules();
    let mut scalars = rules.scalars();
    if scalars.is_empty() {
        return Ok(op);
    }
    for s in &mut scalars {
        if let Origin::Param(k) = s.origin {
            let (Some(&bits), Some(&dtype)) = (params.get(k as usize), graph.params().get(k as usize)) else {
                return Err(Error::bug("interp", format!("the graph has no parameter {k}")));
            };
            *s = Scalar { bits, dtype, origin: Origin::Host };
        }
    }
    Ok(rules.with_scalars(&scalars))
}

/// Floats as doubles.
fn widen(v: HostValue) -> HostValue {
    HostValue::new(v.shape, v.data.widen())
}
