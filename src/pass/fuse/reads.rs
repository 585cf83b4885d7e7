//! What a node reads, and where: found by asking its `lower` what it would ask for.
//!
//! Views and other values that have no kernel of their own ([`Role::Inline`]) are seen through:
//! a [`Read`] ends at a value that lies in memory or is made by a kernel.

use smallvec::{SmallVec, smallvec};

use crate::base::scalar::Origin;
use crate::base::{DType, Layout, Result, Scalar, Type};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::kernel::{self, Builder, Ty};
use crate::op::{Class, IndexMap, Lowering, Op};
use crate::pass::fuse::space::Space;

/// What becomes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Bound from outside.
    Input,
    /// Computed where it is used: views, constants, cheap values.
    Inline,
    /// Computed once, by a kernel.
    Kernel,
    /// Computed by a library call.
    Library,
}

/// A value read by a kernel node, and at which index.
#[derive(Clone, Debug)]
pub struct Read {
    pub from: NodeId,
    pub map: IndexMap,
    /// The value must lie in memory: an index decides which element is read.
    pub gathered: bool,
}

/// Most inline nodes between a node and the values it reads.
const MAX_INLINE: usize = 64;

/// The op of a node that is not an input.
pub fn op_of(graph: &Graph, node: NodeId) -> Option<&Op> {
    match &graph.node(node).op {
        NodeOp::Op(op) => Some(op),
        NodeOp::Input(_) => None,
    }
}

/// The class of a node's op; `None` for inputs.
pub fn class_of(graph: &Graph, node: NodeId) -> Option<Class> {
    op_of(graph, node).map(|op| op.rules().class())
}

/// Whether a node is a library call: its op says so, and has no formula for these operands.
pub fn is_library(graph: &Graph, node: NodeId) -> bool {
    let Some(op) = op_of(graph, node).filter(|op| op.rules().class() == Class::Library) else { return false };
    let ty = graph.node(node).ty;
    let mut probe = Probe::new(graph, node, &Space::pointwise(ty.shape));
    op.rules().lower(&mut probe, ty, &IndexMap::identity(ty.shape)).is_err()
}

/// One request of an op: operand position, index, whether it is a gather.
pub type Request = (usize, IndexMap, bool);

/// What `node`, evaluated at `map`, asks of its operands. The error says that it cannot be
/// evaluated there.
pub fn requests(graph: &Graph, node: NodeId, map: &IndexMap, space: &Space) -> Result<SmallVec<[Request; 3]>> {
    let n = graph.node(node);
    let NodeOp::Op(op) = &n.op else { return Ok(SmallVec::new()) };
    let domain = space.domain.dims();
    match op.rules().class() {
        Class::Source => Ok(SmallVec::new()),
        Class::Reduction => Ok(smallvec![(0, IndexMap::identity(space.domain), false)]),
        Class::Pointwise => {
            let request = |(i, &o): (usize, &NodeId)| Ok((i, map.broadcast(graph.node(o).ty.shape, domain)?, false));
            n.operands.iter().enumerate().map(request).collect()
        }
        _ => {
            let mut probe = Probe::new(graph, node, space);
            op.rules().lower(&mut probe, n.ty, map)?;
            Ok(probe.asked)
        }
    }
}

/// Records what an op asks for, and answers with zeros.
pub struct Probe {
    builder: Builder,
    types: SmallVec<[Type; 3]>,
    asked: SmallVec<[Request; 3]>,
}

impl Probe {
    /// A probe for `node`.
    pub fn new(graph: &Graph, node: NodeId, space: &Space) -> Probe {
        Probe::of_types(graph.node(node).operands.iter().map(|&o| graph.node(o).ty).collect(), space)
    }

    /// A probe for an op on operands of these types.
    pub fn of_types(types: SmallVec<[Type; 3]>, space: &Space) -> Probe {
        Probe { builder: Builder::new(space.domain.dims(), &space.mask()), types, asked: SmallVec::new() }
    }

    /// What was asked for.
    pub fn asked(&self) -> &[Request] {
        &self.asked
    }

    fn zero(&mut self, dtype: DType) -> kernel::Val {
        self.builder.constant(Ty::of(dtype), 0)
    }
}

impl Lowering for Probe {
    fn builder(&mut self) -> &mut Builder {
        &mut self.builder
    }

    fn operand_types(&self) -> SmallVec<[Type; 3]> {
        self.types.clone()
    }

    fn operand(&mut self, i: usize, map: &IndexMap) -> Result<kernel::Val> {
        self.asked.push((i, map.clone(), false));
        Ok(self.zero(self.types[i].dtype))
    }

    fn gather(&mut self, i: usize, map: &IndexMap, _axis: usize, _index: kernel::Val) -> Result<kernel::Val> {
        self.asked.push((i, map.clone(), true));
        Ok(self.zero(self.types[i].dtype))
    }

    fn checked_index(&mut self, i: usize, map: &IndexMap, _len: usize) -> Result<kernel::Val> {
        self.asked.push((i, map.clone(), true));
        Ok(self.zero(DType::I64))
    }

    fn scalar(&mut self, s: Scalar) -> kernel::Val {
        match s.origin {
            Origin::Param(_) => self.builder.param(Ty::of(s.dtype)),
            _ => self.builder.constant(Ty::of(s.dtype), s.bits),
        }
    }

    fn reduce(&mut self, _combine: kernel::Combine, value: kernel::Val) -> Result<kernel::Val> {
        Ok(value)
    }

    fn reduction_map(&mut self, i: usize, _result: &IndexMap) -> Result<IndexMap> {
        Ok(IndexMap::identity(self.types[i].shape))
    }
}

/// The values that `node` at `map` reads, inline ones seen through. `Err(n)`: `n` must become a
/// kernel of its own, since it cannot be computed where it is used.
pub fn reads(
    graph: &Graph,
    roles: &[Role],
    node: NodeId,
    map: &IndexMap,
    space: &Space,
) -> std::result::Result<Vec<Read>, NodeId> {
    let mut out = Vec::new();
    let mut stack: SmallVec<[(NodeId, IndexMap); 4]> = smallvec![(node, map.clone())];
    let mut seen = 0;
    while let Some((v, map)) = stack.pop() {
        seen += 1;
        if seen > MAX_INLINE && v != node {
            return Err(v);
        }
        let asked = requests(graph, v, &map, space).map_err(|_| v)?;
        let operands = &graph.node(v).operands;
        for (i, map, gathered) in asked.into_iter().rev() {
            let o = operands[i];
            if gathered {
                let (from, _) = view(graph, roles, o).ok_or(o)?;
                out.push(Read { from, map, gathered });
            } else if roles[o.index()] == Role::Inline {
                stack.push((o, map));
            } else {
                if let NodeOp::Input(k) = graph.node(o).op {
                    let layout = &graph.inputs()[k as usize].layout;
                    map.access(0, layout, space.domain.rank()).ok_or(v)?;
                }
                out.push(Read { from: o, map, gathered });
            }
        }
    }
    Ok(out)
}

/// The value in memory that `node` is a view of, and where the node's elements lie in it.
/// `None` if strides cannot say. Values of kernels and libraries lie contiguous.
pub fn view(graph: &Graph, roles: &[Role], node: NodeId) -> Option<(NodeId, Layout)> {
    let shape = graph.node(node).ty.shape;
    let space = Space::pointwise(shape);
    let (mut v, mut map) = (node, IndexMap::identity(shape));
    while roles[v.index()] == Role::Inline {
        if class_of(graph, v) != Some(Class::Movement) {
            return None;
        }
        let asked = requests(graph, v, &map, &space).ok()?;
        let [(i, next, false)] = asked.as_slice() else { return None };
        if !next.guards.is_empty() {
            return None;
        }
        v = graph.node(v).operands[*i];
        map = next.clone();
    }
    let n = graph.node(v);
    let layout = match n.op {
        NodeOp::Input(k) => graph.inputs()[k as usize].layout,
        NodeOp::Op(_) => Layout::contiguous(n.ty.shape),
    };
    if v == node {
        return Some((v, layout));
    }
    let access = map.access(0, &layout, shape.rank())?;
    if !access.dynamic.is_empty() {
        return None;
    }
    let mut strides = Layout::contiguous(shape).strides;
    for (a, &s) in access.strides.iter().enumerate() {
        // Where an axis has one element its stride means nothing; the row-major one is the usual.
        if shape[a] != 1 {
            strides[a] = s as isize;
        }
    }
    Some((v, Layout { shape, strides, offset: access.offset as isize }))
}
