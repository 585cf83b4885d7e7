//! Iteration spaces: a kernel's domain, and where the elements of a value lie in it.

use crate::base::Shape;
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::{Class, IndexMap, Op};

/// The domain of a kernel and the mask of the axes its reductions run over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Space {
    pub domain: Shape,
    pub reduced: u8,
}

/// Once per point of the domain, or once per row (point of the kept axes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    Point,
    Row,
}

impl Space {
    /// A space without reductions.
    pub fn pointwise(domain: Shape) -> Space {
        Space { domain, reduced: 0 }
    }

    /// The space that a node would have in a kernel of its own.
    pub fn of(graph: &Graph, node: NodeId) -> Space {
        let n = graph.node(node);
        match (&n.op, n.operands.first()) {
            (NodeOp::Op(Op::Reduce { axes, .. }), Some(&x)) => Space { domain: graph.node(x).ty.shape, reduced: *axes },
            // A view that is copied runs over its operand's axes where it has all its elements: every
            // reshape is affine there.
            (NodeOp::Op(op), Some(&x)) if op.rules().class() == Class::Movement && n.operands.len() == 1 => {
                let from = graph.node(x).ty.shape;
                let reshaped = matches!(op, Op::Reshape { .. });
                Space::pointwise(if reshaped { from } else { n.ty.shape })
            }
            _ => Space::pointwise(n.ty.shape),
        }
    }

    /// The domain with reduced axes of length 1.
    pub fn row(&self) -> Shape {
        self.domain.reduce(self.reduced, true)
    }

    /// Points per row.
    pub fn inner(&self) -> usize {
        self.domain.dims().iter().enumerate().filter(|(a, _)| self.reduced >> a & 1 == 1).map(|(_, &d)| d).product()
    }

    /// Whether reductions run over other axes than the innermost one, which is the contiguous one
    /// more often than not.
    pub fn is_column(&self) -> bool {
        let dims = self.domain.dims();
        let innermost = (0..dims.len()).rev().find(|&a| dims[a] != 1);
        self.reduced != 0 && innermost.is_some_and(|a| self.reduced >> a & 1 == 0)
    }

    /// Which axes are reduced.
    pub fn mask(&self) -> Vec<bool> {
        (0..self.domain.rank()).map(|a| self.reduced >> a & 1 == 1).collect()
    }

    /// Where a value of `shape` lies in this space if each of its elements is made exactly once:
    /// the one map under which a kernel may store it. `None` if it does not fit.
    pub fn place(&self, shape: Shape) -> Option<(Per, IndexMap)> {
        let points = |to: Shape| (Per::Point, IndexMap::identity(self.domain).reshape(to, self.domain.dims()));
        let rows = |to: Shape| (Per::Row, IndexMap::identity(self.row()).reshape(to, self.domain.dims()));
        if shape == self.domain {
            return Some((Per::Point, IndexMap::identity(shape)));
        }
        if self.reduced != 0 && (shape == self.row() || shape == self.domain.reduce(self.reduced, false)) {
            return Some(rows(shape));
        }
        if shape.numel() == self.domain.numel() {
            return Some(points(shape));
        }
        (self.reduced != 0 && shape.numel() == self.row().numel()).then(|| rows(shape))
    }
}
