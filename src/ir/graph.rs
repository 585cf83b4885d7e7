//! Nodes, operands and outputs.

use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;

use crate::base::{DType, Error, Layout, Loc, Result, Type};
use crate::op::Op;

/// A node of a [`Graph`]; valid in the graph that gave it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Position in the graph's order.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    pub op: NodeOp,
    /// Operands in order.
    pub operands: SmallVec<[NodeId; 3]>,
    pub ty: Type,
    /// The user's line.
    pub loc: Loc,
}

/// What makes a node's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NodeOp {
    /// The graph's input of this position.
    Input(u32),
    /// An operation on the operands.
    Op(Op),
}

/// An input of a graph.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Input {
    pub node: NodeId,
    pub kind: InputKind,
    /// Where its elements lie in its buffer (part of the guard).
    pub layout: Layout,
}

/// What an input is bound to at each launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// A tensor from outside.
    External,
    /// The value of a `Var` at the start of the launch; its buffer may be overwritten in place by
    /// the output with this position, when nobody else holds it.
    Var { written_by: Option<u32> },
}

/// The graph of one segment: inputs, host parameters, ops, outputs.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: DiGraph<Node, ()>,
    inputs: Vec<Input>,
    outputs: Vec<NodeId>,
    /// dtypes of the words of the parameter block.
    params: Vec<DType>,
    /// Name in dumps.
    pub name: String,
}

impl Graph {
    /// An empty graph called `name`.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds an input.
    pub fn input(&mut self, ty: Type, kind: InputKind, layout: Layout, loc: Loc) -> NodeId {
        let position = self.inputs.len() as u32;
        let node = self.push(Node { op: NodeOp::Input(position), operands: SmallVec::new(), ty, loc });
        self.inputs.push(Input { node, kind, layout });
        node
    }

    /// Adds a word to the parameter block and gives its position.
    pub fn param(&mut self, dtype: DType) -> u32 {
        self.params.push(dtype);
        self.params.len() as u32 - 1
    }

    /// Adds an operation; its type is inferred.
    pub fn op(&mut self, op: Op, operands: &[NodeId], loc: Loc) -> Result<NodeId> {
        let types: SmallVec<[Type; 3]> = operands.iter().map(|&o| self.node(o).ty).collect();
        let ty = op.rules().infer(&types).map_err(|e| e.at(loc))?;
        Ok(self.push(Node { op: NodeOp::Op(op), operands: operands.into(), ty, loc }))
    }

    /// Makes `node` the next output.
    pub fn output(&mut self, node: NodeId) {
        self.outputs.push(node);
    }

    fn push(&mut self, node: Node) -> NodeId {
        let operands = node.operands.clone();
        let ix = self.nodes.add_node(node);
        for o in operands {
            self.nodes.add_edge(NodeIndex::new(o.index()), ix, ());
        }
        NodeId(ix.index() as u32)
    }

    /// Marks which output overwrites a `Var` input (see [`InputKind::Var`]).
    pub fn set_input_kind(&mut self, input: usize, kind: InputKind) -> Result<()> {
        match self.inputs.get_mut(input) {
            Some(i) => {
                i.kind = kind;
                Ok(())
            }
            None => Err(Error::bug("ir", format!("graph has no input {input}"))),
        }
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[NodeIndex::new(id.index())]
    }

    /// A node to be spoiled by the verifier's tests.
    #[cfg(test)]
    pub(in crate::ir) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[NodeIndex::new(id.index())]
    }

    /// Nodes in order: operands come before users.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.node_count() as u32).map(NodeId)
    }

    /// Number of nodes, inputs included.
    pub fn len(&self) -> usize {
        self.nodes.node_count()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The inputs in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The outputs in order; a node may be several of them.
    pub fn outputs(&self) -> &[NodeId] {
        &self.outputs
    }

    /// dtypes of the parameter block's words.
    pub fn params(&self) -> &[DType] {
        &self.params
    }

    /// Nodes that use `id`, in ascending order, each once.
    pub fn users(&self, id: NodeId) -> Vec<NodeId> {
        let mut out: Vec<NodeId> =
            self.nodes.edges(NodeIndex::new(id.index())).map(|e| NodeId(e.target().index() as u32)).collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The petgraph graph, for its algorithms (node indices are those of [`NodeId`]).
    pub fn petgraph(&self) -> &DiGraph<Node, ()> {
        &self.nodes
    }
}
