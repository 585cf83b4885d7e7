//! What every pass and the interpreter may rely on: [`Graph::verify`].
//!
//! Operands precede their users; types are those that the ops infer; inputs, parameters and outputs exist and
//! fit; a scalar attribute is a parameter of the right dtype or a constant, never a bare host value.

use crate::base::scalar::Origin;
use crate::base::{Error, Loc, Result, Type};
use crate::ir::print::Names;
use crate::ir::{Graph, InputKind, NodeId, NodeOp};
use crate::op::Op;

impl Graph {
    /// Checks every rule of the IR; the error names the node, its place and its neighbours.
    pub fn verify(&self) -> Result<()> {
        for id in self.ids() {
            self.verify_node(id).map_err(|detail| self.refused(id, detail))?;
        }
        let whole = |detail: String| Error::bug("graph verifier", format!("graph @{}: {detail}", self.name));
        let edges: usize = self.ids().map(|id| self.node(id).operands.len()).sum();
        if self.petgraph().edge_count() != edges {
            return Err(whole(format!("{edges} operands, but {} edges", self.petgraph().edge_count())));
        }
        if let Some(id) = self.outputs().iter().find(|id| id.index() >= self.len()) {
            return Err(whole(format!("output {} is not a node", id.0)));
        }
        self.verify_inputs().map_err(whole)
    }

    fn verify_node(&self, id: NodeId) -> Result<(), String> {
        let node = self.node(id);
        if let Some(o) = node.operands.iter().find(|o| **o >= id) {
            return Err(format!("its operand {} does not precede it", o.0));
        }
        match &node.op {
            NodeOp::Input(k) => {
                if self.inputs().get(*k as usize).is_none_or(|i| i.node != id) || !node.operands.is_empty() {
                    return Err(format!("it is not what the graph has as input {k}"));
                }
                Ok(())
            }
            NodeOp::Op(op) => {
                let types: Vec<Type> = node.operands.iter().map(|&o| self.node(o).ty).collect();
                match op.rules().infer(&types) {
                    Ok(ty) if ty == node.ty => {}
                    Ok(ty) => return Err(format!("its type is {}, but its operands make it {ty}", node.ty)),
                    Err(e) => return Err(e.kind().to_string()),
                }
                self.verify_scalars(op)
            }
        }
    }

    fn verify_scalars(&self, op: &Op) -> Result<(), String> {
        for s in op.rules().scalars() {
            match s.origin {
                Origin::Constant => {}
                Origin::Host => return Err(format!("the scalar {s:?} is a bare host value")),
                Origin::Param(k) => match self.params().get(k as usize) {
                    Some(&dtype) if dtype == s.dtype => {}
                    Some(dtype) => return Err(format!("it takes ${k} as {}, but ${k} is {dtype}", s.dtype)),
                    None => return Err(format!("there is no ${k}; the graph has {} params", self.params().len())),
                },
            }
        }
        Ok(())
    }

    fn verify_inputs(&self) -> Result<(), String> {
        let mut written = vec![false; self.outputs().len()];
        for (k, input) in self.inputs().iter().enumerate() {
            let node = match input.node.index() < self.len() {
                true => self.node(input.node),
                false => return Err(format!("input {k} is not a node")),
            };
            if node.op != NodeOp::Input(k as u32) {
                return Err(format!("node {} is not input {k}", input.node.0));
            }
            if input.layout.shape != node.ty.shape {
                return Err(format!("input {k} is {}, but its layout has shape {}", node.ty, input.layout.shape));
            }
            let InputKind::Var { written_by: Some(o) } = input.kind else { continue };
            let Some(&output) = self.outputs().get(o as usize) else {
                return Err(format!("input {k} is written by output {o}, which does not exist"));
            };
            if self.node(output).ty != node.ty {
                return Err(format!(
                    "input {k} is {}, but output {o}, which writes it, is {}",
                    node.ty,
                    self.node(output).ty
                ));
            }
            if std::mem::replace(&mut written[o as usize], true) {
                return Err(format!("output {o} writes two inputs"));
            }
        }
        Ok(())
    }

    /// The error about one node, with the lines of its operands and users.
    fn refused(&self, id: NodeId, detail: String) -> Error {
        let names = Names::new(self);
        let node = self.node(id);
        let mut lines = String::new();
        let mut near: Vec<NodeId> = node.operands.iter().copied().filter(|o| o.index() < self.len()).collect();
        near.extend(self.users(id).into_iter().take(8));
        near.push(id);
        near.sort_unstable();
        near.dedup();
        for n in near {
            let mark = if n == id { "> " } else { "  " };
            lines.push_str(&format!("\n{mark}{}", names.line(self, n)));
        }
        let error = Error::bug("graph verifier", format!("graph @{}: {}: {detail}{lines}", self.name, names.get(id)));
        if node.loc == Loc::NONE { error } else { error.at(node.loc) }
    }
}
