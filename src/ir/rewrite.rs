//! How passes change graphs: by building a new one.
//!
//! A [`Rewriter`] walks the old graph and says for each node what it has become. Inputs, parameters, the
//! order of outputs and the name are kept; nodes that nothing copies are dropped.

use smallvec::SmallVec;

use crate::base::{DType, Error, Loc, Result};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::Op;

/// A graph under construction, with a map from the nodes of the old one.
pub struct Rewriter<'a> {
    old: &'a Graph,
    new: Graph,
    map: Vec<Option<NodeId>>,
}

impl<'a> Rewriter<'a> {
    /// Starts a new graph with the inputs and parameters of `old`.
    pub fn new(old: &'a Graph) -> Rewriter<'a> {
        let mut new = Graph::new(old.name.clone());
        for &dtype in old.params() {
            new.param(dtype);
        }
        let mut map = vec![None; old.len()];
        for input in old.inputs() {
            let node = old.node(input.node);
            map[input.node.index()] = Some(new.input(node.ty, input.kind, input.layout, node.loc));
        }
        Rewriter { old, new, map }
    }

    /// The graph that is rewritten.
    pub fn old(&self) -> &'a Graph {
        self.old
    }

    /// The new graph as it is so far.
    pub fn graph(&self) -> &Graph {
        &self.new
    }

    /// What the old node has become, if that is decided.
    pub fn get(&self, old: NodeId) -> Option<NodeId> {
        self.map.get(old.index()).copied().flatten()
    }

    /// What the old node has become; an error if that is not decided.
    pub fn mapped(&self, old: NodeId) -> Result<NodeId> {
        let loc = if old.index() < self.old.len() { self.old.node(old).loc } else { Loc::NONE };
        self.get(old).ok_or_else(|| Error::bug("rewriter", format!("node {} was dropped but is used", old.0)).at(loc))
    }

    /// What the operands of the old node have become.
    pub fn operands(&self, old: NodeId) -> Result<SmallVec<[NodeId; 3]>> {
        self.old.node(old).operands.iter().map(|&o| self.mapped(o)).collect()
    }

    /// Repeats the old node on what its operands have become (an input is there already).
    pub fn copy(&mut self, old: NodeId) -> Result<NodeId> {
        if let Some(new) = self.get(old) {
            return Ok(new);
        }
        match self.old.node(old).op {
            NodeOp::Op(op) => {
                let operands = self.operands(old)?;
                let new = self.new.op(op, &operands, self.old.node(old).loc)?;
                self.map[old.index()] = Some(new);
                Ok(new)
            }
            NodeOp::Input(_) => self.mapped(old),
        }
    }

    /// Users of the old node get `new`, a node of the new graph, of the same type.
    pub fn replace(&mut self, old: NodeId, new: NodeId) -> Result<()> {
        let (was, is) = (self.old.node(old), self.new.node(new));
        if was.ty != is.ty {
            let detail = format!("node {} of type {} replaced by one of type {}", old.0, was.ty, is.ty);
            return Err(Error::bug("rewriter", detail).at(was.loc));
        }
        self.map[old.index()] = Some(new);
        Ok(())
    }

    /// Adds an operation on nodes of the new graph.
    pub fn op(&mut self, op: Op, operands: &[NodeId], loc: Loc) -> Result<NodeId> {
        self.new.op(op, operands, loc)
    }

    /// Adds a parameter to the new graph.
    pub fn param(&mut self, dtype: DType) -> u32 {
        self.new.param(dtype)
    }

    /// The new graph; every output must have become something.
    pub fn finish(mut self) -> Result<Graph> {
        for &o in self.old.outputs() {
            let new = self.mapped(o)?;
            self.new.output(new);
        }
        Ok(self.new)
    }
}
