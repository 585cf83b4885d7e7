//! Merging kernels into one another.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ir::{Graph, NodeId};
use crate::op::{Class, IndexMap};
use crate::pass::Decision;
use crate::pass::fuse::quotient::Quotient;
use crate::pass::fuse::reads::{Read, Role, class_of, reads, view};
use crate::pass::fuse::space::{Per, Space};
use crate::pass::fuse::{Fusion, Group};

/// Most nodes of one kernel.
const MAX_NODES: usize = 160;
/// Most values that one kernel reads.
const MAX_READS: usize = 40;
/// Longest row that a kernel may go over again once it is reduced (it should stay in cache).
const MAX_ROW: usize = 1 << 16;
/// Kernels of at most so many points cost their launch, and are joined where they can.
const SMALL: usize = 1 << 10;

/// Groups under construction.
pub struct State<'a> {
    pub graph: &'a Graph,
    pub roles: Vec<Role>,
    /// Nodes that are never computed inside their users' kernels.
    pub barred: &'a FxHashSet<NodeId>,
    pub groups: Quotient,
    /// By the group's name in `groups`.
    pub info: Vec<Option<Info>>,
    /// Per kernel node, in its group's space: how often it is made, and where.
    pub place: Vec<Option<(Per, IndexMap)>>,
    /// Per kernel node, in its group's space.
    pub reads: Vec<Vec<Read>>,
}

/// What is known of a group.
#[derive(Clone, Debug)]
pub struct Info {
    pub space: Space,
    pub nodes: Vec<NodeId>,
    pub library: bool,
}

/// Why two groups stay apart.
pub type Reason = &'static str;

/// Places and reads of some nodes in another space than theirs.
type Moved = FxHashMap<NodeId, (Per, IndexMap, Vec<Read>)>;

impl<'a> State<'a> {
    /// Each kernel or library node in a group of its own.
    pub fn new(graph: &'a Graph, roles: Vec<Role>, barred: &'a FxHashSet<NodeId>) -> State<'a> {
        let n = graph.len();
        let mut state = State {
            graph,
            roles,
            barred,
            groups: Quotient::new(n),
            info: vec![None; n],
            place: vec![None; n],
            reads: vec![Vec::new(); n],
        };
        state.singles();
        state
    }

    /// Fills in single groups. An inline node that cannot be computed where it is used becomes a kernel node,
    /// and all is done again.
    fn singles(&mut self) {
        loop {
            let failed = self.graph.ids().find_map(|v| self.single(v).err());
            let Some(v) = failed else { break };
            if self.roles[v.index()] != Role::Inline {
                // Its own kernel could not compute it; lowering will say why.
                break;
            }
            self.roles[v.index()] = Role::Kernel;
        }
        for v in self.graph.ids() {
            for from in self.sources(v) {
                self.groups.depend(from.0, v.0);
            }
        }
    }

    fn single(&mut self, v: NodeId) -> Result<(), NodeId> {
        let role = self.roles[v.index()];
        if !matches!(role, Role::Kernel | Role::Library) {
            return Ok(());
        }
        let space = Space::of(self.graph, v);
        self.info[v.index()] = Some(Info { space, nodes: vec![v], library: role == Role::Library });
        if role == Role::Kernel {
            let (per, map) = space.place(self.graph.node(v).ty.shape).ok_or(v)?;
            self.reads[v.index()] = reads(self.graph, &self.roles, v, &map, &space)?;
            self.place[v.index()] = Some((per, map));
        }
        Ok(())
    }

    /// The values made by steps that `v` needs.
    pub fn sources(&self, v: NodeId) -> Vec<NodeId> {
        let made = |n: &NodeId| matches!(self.roles[n.index()], Role::Kernel | Role::Library);
        match self.roles[v.index()] {
            Role::Kernel => self.reads[v.index()].iter().map(|r| r.from).filter(made).collect(),
            Role::Library => {
                let operands = self.graph.node(v).operands.iter();
                operands.filter_map(|&o| view(self.graph, &self.roles, o)).map(|(base, _)| base).filter(made).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A group's facts.
    pub fn info(&self, group: u32) -> Option<&Info> {
        self.info.get(group as usize).and_then(|i| i.as_ref())
    }

    /// Merges producers into consumers, in the graph's order. Kernels that reduce other axes than the innermost
    /// one wait until the others have taken what they can (`columns`).
    pub fn merge(&mut self, columns: bool, notes: &mut Vec<Decision>) {
        for v in self.graph.ids() {
            if self.roles[v.index()] != Role::Kernel {
                continue;
            }
            for i in 0..self.reads[v.index()].len() {
                let from = self.reads[v.index()][i].from;
                if self.roles[from.index()] != Role::Kernel {
                    continue;
                }
                let (a, b) = (self.groups.find(from.0), self.groups.find(v.0));
                let waits = |s: &Self, g: u32| !columns && s.info(g).is_some_and(|i| i.space.is_column());
                if a == b || waits(self, a) || waits(self, b) {
                    continue;
                }
                let done = self.try_merge(a, b);
                if columns || done.is_ok() {
                    let text = match done {
                        Ok(()) => "fused".into(),
                        Err(reason) => format!("not fused: {reason}"),
                    };
                    notes.push(Decision::new("fuse", self.graph, &[from, v], text));
                }
            }
        }
    }

    /// Merges two kernels if they can be one.
    pub fn try_merge(&mut self, a: u32, b: u32) -> Result<(), Reason> {
        let (Some(x), Some(y)) = (self.info(a).cloned(), self.info(b).cloned()) else {
            return Err("not a kernel");
        };
        if x.library || y.library {
            return Err("a library call is a step of its own");
        }
        if x.nodes.len() + y.nodes.len() > MAX_NODES {
            return Err("the kernel would be too large");
        }
        let spaces: &[Space] = match (x.space.reduced != 0, y.space.reduced != 0) {
            _ if x.space == y.space => &[x.space],
            (true, true) => return Err("they reduce different shapes or axes"),
            (true, false) => &[x.space],
            (false, true) => &[y.space],
            (false, false) => &[x.space, y.space],
        };
        let mut reason = "no common iteration space";
        for &space in spaces {
            match self.in_space(&x, &y, a, b, space) {
                Ok(moved) => return self.commit(a, b, x, y, space, moved),
                Err(r) => reason = r,
            }
        }
        Err(reason)
    }

    /// Whether both groups can be computed in `space`, with values passed between them where they are made.
    fn in_space(&mut self, x: &Info, y: &Info, a: u32, b: u32, space: Space) -> Result<Moved, Reason> {
        let mut moved = Moved::default();
        for side in [x, y].into_iter().filter(|side| side.space != space) {
            for &v in &side.nodes {
                // Only one over no axes at all can get here; its order is that of its own shape.
                if class_of(self.graph, v) == Some(Class::Reduction) {
                    return Err("a reduction keeps its shape");
                }
                let shape = self.graph.node(v).ty.shape;
                let (per, map) = space.place(shape).ok_or("their shapes differ")?;
                let reads = reads(self.graph, &self.roles, v, &map, &space).map_err(|_| "an index is not affine")?;
                moved.insert(v, (per, map, reads));
            }
        }
        let mut outside: Vec<NodeId> = Vec::new();
        let mut again = false;
        for &v in x.nodes.iter().chain(&y.nodes) {
            let (per, v_reads) = match moved.get(&v) {
                Some((per, _, reads)) => (*per, reads),
                None => match &self.place[v.index()] {
                    Some((per, _)) => (*per, &self.reads[v.index()]),
                    None => return Err("not a kernel"),
                },
            };
            for r in v_reads {
                let made = self.roles[r.from.index()] == Role::Kernel;
                let group = if made { self.groups.find(r.from.0) } else { u32::MAX };
                if group != a && group != b {
                    outside.push(r.from);
                    continue;
                }
                if r.gathered {
                    return Err("a gather reads from memory");
                }
                let (own, from_per, from_map) = match moved.get(&r.from) {
                    Some((per, map, _)) => (side(x, v) == side(x, r.from), *per, map),
                    None => match &self.place[r.from.index()] {
                        Some((per, map)) => (side(x, v) == side(x, r.from), *per, map),
                        None => return Err("not a kernel"),
                    },
                };
                if *from_map != r.map {
                    return Err("the value is read at other places than it is made at");
                }
                if !own && self.barred.contains(&r.from) {
                    return Err("the value has to be in memory");
                }
                again |= per == Per::Point && from_per == Per::Row;
            }
        }
        outside.sort_unstable();
        outside.dedup();
        if outside.len() > MAX_READS {
            return Err("the kernel would read too many values");
        }
        if again && space.inner() > MAX_ROW {
            return Err("the rows are too long to go over twice");
        }
        Ok(moved)
    }

    fn commit(&mut self, a: u32, b: u32, x: Info, y: Info, space: Space, moved: Moved) -> Result<(), Reason> {
        let merged = self.groups.merge(a, b).ok_or("another kernel has to run between them")?;
        for (v, (per, map, reads)) in moved {
            self.place[v.index()] = Some((per, map));
            self.reads[v.index()] = reads;
        }
        let mut nodes = x.nodes;
        nodes.extend(y.nodes);
        nodes.sort_unstable();
        for g in [a, b] {
            self.info[g as usize] = None;
        }
        self.info[merged as usize] = Some(Info { space, nodes, library: false });
        Ok(())
    }

    /// Joins kernels that do not depend on each other: those that read the same whole value, and small ones
    /// over one domain.
    pub fn join(&mut self, notes: &mut Vec<Decision>) {
        let mut readers: FxHashMap<NodeId, Vec<NodeId>> = FxHashMap::default();
        for v in self.graph.ids() {
            for r in &self.reads[v.index()] {
                let points = self.graph.node(v).ty.shape.numel().max(1);
                if !r.gathered && self.graph.node(r.from).ty.shape.numel() >= points {
                    readers.entry(r.from).or_default().push(v);
                }
            }
        }
        let mut shared: Vec<(NodeId, Vec<NodeId>)> = readers.into_iter().collect();
        shared.sort_unstable_by_key(|s| s.0);
        for (from, users) in shared {
            let numel = self.graph.node(from).ty.shape.numel();
            let mut kernels: Vec<u32> = users.iter().map(|u| self.groups.find(u.0)).collect();
            kernels.sort_unstable();
            kernels.dedup();
            kernels.retain(|&k| self.info(k).is_some_and(|i| !i.library && i.space.domain.numel() == numel));
            // A value with more readers than this is not worth trying all pairs.
            kernels.truncate(8);
            for i in 1..kernels.len() {
                for j in 0..i {
                    let (a, b) = (self.groups.find(kernels[j]), self.groups.find(kernels[i]));
                    let alike = match (self.info(a), self.info(b)) {
                        (Some(x), Some(y)) => x.space == y.space || x.space.reduced == 0 || y.space.reduced == 0,
                        _ => false,
                    };
                    if alike {
                        self.join_pair(
                            NodeId(kernels[j]),
                            NodeId(kernels[i]),
                            "joined: both read the same value",
                            notes,
                        );
                    }
                }
            }
        }
        let mut small: FxHashMap<Space, Vec<NodeId>> = FxHashMap::default();
        for v in self.graph.ids() {
            let Some(info) = self.info(v.0) else { continue };
            if !info.library && info.space.domain.numel() <= SMALL {
                small.entry(info.space).or_default().push(info.nodes[0]);
            }
        }
        let mut small: Vec<Vec<NodeId>> = small.into_values().collect();
        small.sort_unstable();
        for mut nodes in small {
            nodes.sort_unstable();
            let mut current = nodes[0];
            for &next in &nodes[1..] {
                if !self.join_pair(current, next, "joined: small kernels over one domain", notes) {
                    current = next;
                }
            }
        }
    }

    fn join_pair(&mut self, v: NodeId, w: NodeId, text: &'static str, notes: &mut Vec<Decision>) -> bool {
        let (a, b) = (self.groups.find(v.0), self.groups.find(w.0));
        if a == b {
            return true;
        }
        let done = self.try_merge(a, b).is_ok();
        if done {
            notes.push(Decision::new("fuse", self.graph, &[v, w], text));
        }
        done
    }

    /// The groups, numbered in topological order.
    pub fn finish(mut self) -> Fusion {
        let mut out = Fusion { groups: Vec::new(), roles: Vec::new(), home: vec![None; self.graph.len()] };
        let order: Vec<u32> = self.groups.order().collect();
        for g in order {
            let Some(info) = self.info[g as usize].take() else { continue };
            for &v in &info.nodes {
                out.home[v.index()] = Some(out.groups.len() as u32);
            }
            out.groups.push(Group {
                space: info.space,
                library: info.library,
                nodes: info.nodes,
                stored: Vec::new(),
                after: Vec::new(),
            });
        }
        let mut stored = vec![false; self.graph.len()];
        for v in self.graph.ids() {
            let home = out.home[v.index()];
            for from in self.sources(v) {
                let source = out.home[from.index()];
                if let (Some(h), Some(s)) = (home, source)
                    && h != s
                {
                    stored[from.index()] = true;
                    out.groups[h as usize].after.push(s);
                }
            }
        }
        for &o in self.graph.outputs() {
            if let Some((base, _)) = view(self.graph, &self.roles, o) {
                stored[base.index()] = true;
            }
        }
        for g in &mut out.groups {
            g.stored = g.nodes.iter().copied().filter(|v| stored[v.index()]).collect();
            g.after.sort_unstable();
            g.after.dedup();
        }
        out.roles = self.roles;
        out
    }
}

/// Whether `v` is a node of `x`.
fn side(x: &Info, v: NodeId) -> bool {
    x.nodes.binary_search(&v).is_ok()
}
