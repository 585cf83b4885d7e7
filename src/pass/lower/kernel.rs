//! One group of nodes becomes one kernel.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::scalar::Origin;
use crate::base::{DType, Error, ErrorKind, Layout, Result, Scalar, Type};
use crate::ir::{Graph, NodeId, NodeOp};
use crate::kernel::ir::Access;
use crate::kernel::{self, Builder, Guard, Kernel, Level, Ty};
use crate::op::lowering::{Expr, not_affine};
use crate::op::{Class, IndexMap, Lowering, cast};
use crate::pass::fuse::reads::{class_of, view};
use crate::pass::fuse::space::Per;
use crate::pass::fuse::{Fusion, Group, Space};

/// Values between a stored one and the loads it needs, each inlined into the next: a recursion, so bounded.
const MAX_DEPTH: usize = 96;

/// A kernel and what its arguments and parameters are.
#[derive(Debug)]
pub struct Lowered {
    pub kernel: Kernel,
    /// The value behind each argument: an input's node, or one that a step stores.
    pub args: Vec<NodeId>,
    /// The word of the parameter block behind each parameter.
    pub params: Vec<u32>,
}

/// Why a group cannot be lowered.
#[derive(Debug)]
pub enum Failure {
    /// The node cannot be computed where it is used and must have a kernel of its own.
    Materialise(NodeId),
    /// Anything else.
    Error(Error),
}

/// The kernel of a group.
pub fn lower(graph: &Graph, fusion: &Fusion, number: u32) -> std::result::Result<Lowered, Failure> {
    let group = &fusion.groups[number as usize];
    let space = group.space;
    let mut cx = Cx {
        graph,
        fusion,
        number,
        space,
        builder: Builder::new(space.domain.dims(), &space.mask()),
        args: Vec::new(),
        loads: FxHashMap::default(),
        params: Vec::new(),
        maps: FxHashMap::default(),
        values: FxHashMap::default(),
        frame: None,
        depth: 0,
        failed: None,
    };
    match cx.group(group) {
        Ok(stores) => cx.finish(stores),
        Err(e) => match (e.kind(), cx.failed) {
            (ErrorKind::Unsupported { .. }, Some(node)) => Err(Failure::Materialise(node)),
            _ => Err(Failure::Error(e)),
        },
    }
}

/// A value to store: its node, and the access without the argument's position.
type Pending = (NodeId, kernel::Val, Access);

struct Cx<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    number: u32,
    space: Space,
    builder: Builder,
    args: Vec<NodeId>,
    /// Argument of each loaded value.
    loads: FxHashMap<NodeId, u32>,
    params: Vec<u32>,
    /// Numbers of the maps seen, so that values are looked up by small keys.
    maps: FxHashMap<IndexMap, u32>,
    values: FxHashMap<(NodeId, u32), kernel::Val>,
    /// The node being lowered and the index it is wanted at.
    frame: Option<(NodeId, IndexMap)>,
    depth: usize,
    /// The node that must be materialised, once known.
    failed: Option<NodeId>,
}

impl Cx<'_> {
    /// Computes every node of the group, operands first; so the recursion through `operand` only ever walks
    /// through inline nodes.
    fn group(&mut self, group: &Group) -> Result<Vec<Pending>> {
        let mut pending = Vec::with_capacity(group.stored.len());
        for &node in &group.nodes {
            let shape = self.graph.node(node).ty.shape;
            let (per, map) = self.space.place(shape).ok_or_else(|| self.misplaced(node))?;
            let value = self.value(node, &map)?;
            if group.stored.contains(&node) {
                let access = map.access(0, &Layout::contiguous(shape), self.space.domain.rank());
                let access = access.ok_or_else(|| self.misplaced(node))?;
                pending.push((node, value, per, access));
            }
        }
        let levels = self.builder.kernel().levels();
        let mut stores = Vec::with_capacity(pending.len());
        for (node, value, per, access) in pending {
            let level = levels.get(value.0 as usize).copied().unwrap_or(Level::Row);
            let wide = per == Per::Point && self.space.reduced != 0 && level == Level::Row;
            let value = if wide { self.per_point(value) } else { value };
            stores.push((node, value, access));
        }
        Ok(stores)
    }

    fn finish(mut self, stores: Vec<Pending>) -> std::result::Result<Lowered, Failure> {
        for (node, value, access) in stores {
            let ty = self.graph.node(node).ty;
            let arg = self.builder.output(ty.dtype, ty.shape.numel());
            self.args.push(node);
            self.builder.store(Access { arg, ..access }, value);
        }
        let kernel = self.builder.finish().map_err(Failure::Error)?;
        Ok(Lowered { kernel, args: self.args, params: self.params })
    }

    fn misplaced(&self, node: NodeId) -> Error {
        Error::bug("lower", format!("{} does not fit {:?}", self.graph.node(node).ty, self.space))
    }

    /// The same value for each inner point: a select between equals on the coordinate.
    fn per_point(&mut self, value: kernel::Val) -> kernel::Val {
        let dims = self.space.domain.dims();
        let Some(axis) = (0..dims.len()).find(|&a| self.space.reduced >> a & 1 == 1 && dims[a] != 1) else {
            return value;
        };
        let (at, before) = (self.builder.index(axis), self.builder.i64(-1));
        let always = self.builder.llt(before, at);
        self.builder.choose(always, value, value)
    }

    /// `value` where all guards hold, else zero.
    fn guarded(&mut self, value: kernel::Val, guards: &[Guard]) -> kernel::Val {
        let mut holds = None;
        for g in guards {
            let at = self.builder.index(g.axis as usize);
            let (below, hi) = (self.builder.i64(g.lo - 1), self.builder.i64(g.hi));
            let (a, b) = (self.builder.llt(below, at), self.builder.llt(at, hi));
            let both = self.builder.and(a, b);
            holds = Some(holds.map_or(both, |h| self.builder.and(h, both)));
        }
        let (Some(holds), Some(ty)) = (holds, self.builder.ty(value)) else { return value };
        let zero = self.builder.constant(ty, 0);
        self.builder.choose(holds, value, zero)
    }

    /// A node's value at `map`, computed in this kernel.
    fn value(&mut self, node: NodeId, map: &IndexMap) -> Result<kernel::Val> {
        let number = match self.maps.get(map) {
            Some(&n) => n,
            None => {
                let n = self.maps.len() as u32;
                self.maps.insert(map.clone(), n);
                n
            }
        };
        if let Some(&v) = self.values.get(&(node, number)) {
            return Ok(v);
        }
        if self.depth == MAX_DEPTH {
            self.failed.get_or_insert(node);
            return Err(not_affine("fuse", "too many values computed in place"));
        }
        let n = self.graph.node(node);
        let NodeOp::Op(op) = &n.op else {
            return Err(Error::bug("lower", "an input has no formula"));
        };
        let outer = self.frame.replace((node, map.clone()));
        self.depth += 1;
        let value = op.rules().lower(self, n.ty, map);
        self.depth -= 1;
        self.frame = outer;
        match value {
            Ok(v) => {
                self.values.insert((node, number), v);
                Ok(v)
            }
            Err(e) => {
                self.failed.get_or_insert(node);
                Err(e.at(n.loc))
            }
        }
    }

    fn current(&self) -> Result<(NodeId, &IndexMap)> {
        self.frame.as_ref().map(|(n, m)| (*n, m)).ok_or_else(|| Error::bug("lower", "no node is being lowered"))
    }

    fn argument(&mut self, base: NodeId, dtype: DType, layout: &Layout) -> u32 {
        if let Some(&a) = self.loads.get(&base) {
            return a;
        }
        let len = layout.span().map_or(0, |(_, hi)| hi as usize + 1);
        let a = self.builder.input(dtype, len);
        self.args.push(base);
        self.loads.insert(base, a);
        a
    }

    /// How the elements of a value in memory lie.
    fn layout(&self, node: NodeId) -> Layout {
        let n = self.graph.node(node);
        match n.op {
            NodeOp::Input(k) => self.graph.inputs()[k as usize].layout,
            NodeOp::Op(_) => Layout::contiguous(n.ty.shape),
        }
    }

    /// The kernel's parameter for a word of the parameter block.
    fn word(&mut self, word: u32) -> kernel::Val {
        let position = match self.params.iter().position(|&p| p == word) {
            Some(p) => p as u32,
            None => {
                self.params.push(word);
                let dtype = self.graph.params().get(word as usize).copied().unwrap_or(DType::I64);
                self.builder.add_param(Ty::of(dtype))
            }
        };
        self.builder.param_value(position)
    }
}

impl Lowering for Cx<'_> {
    fn builder(&mut self) -> &mut Builder {
        &mut self.builder
    }

    fn operand_types(&self) -> SmallVec<[Type; 3]> {
        let Some((node, _)) = &self.frame else { return SmallVec::new() };
        self.graph.node(*node).operands.iter().map(|&o| self.graph.node(o).ty).collect()
    }

    fn operand(&mut self, i: usize, map: &IndexMap) -> Result<kernel::Val> {
        let (user, _) = self.current()?;
        let node = self.graph.node(user).operands[i];
        if self.fusion.computed_in(node, self.number) {
            let value = self.value(node, map)?;
            // Loads outside of their guards are zero, and views pass that on; formulas do not. They are
            // cut off where a view (which alone adds guards) asks for them.
            let asked_by_view = !matches!(class_of(self.graph, user), Some(Class::Pointwise | Class::Reduction));
            let formula = class_of(self.graph, node) != Some(Class::Movement);
            return Ok(if asked_by_view && formula { self.guarded(value, &map.guards) } else { value });
        }
        let (layout, dtype) = (self.layout(node), self.graph.node(node).ty.dtype);
        if layout.shape.numel() == 0 {
            // Read at no point; but a row would read it even where it has no inner points.
            return Ok(self.builder.constant(Ty::of(dtype), 0));
        }
        let arg = self.argument(node, dtype, &layout);
        let Some(access) = map.access(arg, &layout, self.space.domain.rank()) else {
            self.failed.get_or_insert(user);
            return Err(not_affine("fuse", "strides cannot express the index"));
        };
        Ok(self.builder.load_where(access, map.guards.to_vec()))
    }

    fn gather(&mut self, i: usize, map: &IndexMap, axis: usize, index: kernel::Val) -> Result<kernel::Val> {
        let (user, _) = self.current()?;
        let node = self.graph.node(user).operands[i];
        let Some((base, layout)) = view(self.graph, &self.fusion.roles, node) else {
            self.failed.get_or_insert(node);
            return Err(not_affine("gather", "the operand is not in memory"));
        };
        let dtype = self.graph.node(base).ty.dtype;
        let len = layout.shape[axis];
        if layout.shape.numel() == 0 {
            return Ok(self.builder.constant(Ty::of(dtype), 0));
        }
        let arg = self.argument(base, dtype, &self.layout(base));
        let mut map = map.clone();
        map.axes[axis] = Expr::default();
        let Some(access) = map.access(arg, &layout, self.space.domain.rank()) else {
            self.failed.get_or_insert(user);
            return Err(not_affine("gather", "strides cannot express the index"));
        };
        Ok(self.builder.gather(access, index, layout.strides()[axis] as i64, len as i64))
    }

    fn checked_index(&mut self, i: usize, map: &IndexMap, len: usize) -> Result<kernel::Val> {
        let (user, _) = self.current()?;
        let node = self.graph.node(user).operands[i];
        let Some((base, layout)) = view(self.graph, &self.fusion.roles, node) else {
            self.failed.get_or_insert(node);
            return Err(not_affine("scatter_add", "the index is not in memory"));
        };
        let arg = self.argument(base, DType::I64, &self.layout(base));
        let Some(access) = map.access(arg, &layout, self.space.domain.rank()) else {
            self.failed.get_or_insert(user);
            return Err(not_affine("scatter_add", "strides cannot express the index"));
        };
        // A gather that stands still: the element it reads is the index that it checks.
        let index = self.builder.load(access.clone());
        Ok(self.builder.gather(access, index, 0, len as i64))
    }

    fn scalar(&mut self, s: Scalar) -> kernel::Val {
        match s.origin {
            Origin::Param(word) => {
                let v = self.word(word);
                let dtype = self.graph.params().get(word as usize).copied().unwrap_or(s.dtype);
                cast::convert(&mut self.builder, dtype, s.dtype, v)
            }
            Origin::Host | Origin::Constant => self.builder.constant(Ty::of(s.dtype), s.bits),
        }
    }

    fn reduce(&mut self, combine: kernel::Combine, value: kernel::Val) -> Result<kernel::Val> {
        Ok(self.builder.reduce(combine, value))
    }

    fn reduction_map(&mut self, i: usize, result: &IndexMap) -> Result<IndexMap> {
        let (node, _) = self.current()?;
        let n = self.graph.node(node);
        let operand = self.graph.node(n.operands[i]).ty.shape;
        let own = Space::of(self.graph, node) == self.space;
        let (_, place) = self.space.place(n.ty.shape).ok_or_else(|| self.misplaced(node))?;
        if !own || place != *result {
            return Err(not_affine("reduce", "a reduction is computed at the rows of its kernel only"));
        }
        Ok(IndexMap::identity(operand))
    }
}
