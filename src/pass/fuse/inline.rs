//! Computing a value where it is used instead of storing it.

use smallvec::SmallVec;

use crate::base::Type;
use crate::ir::{Graph, NodeId};
use crate::op::Class;
use crate::pass::Decision;
use crate::pass::fuse::merge::State;
use crate::pass::fuse::reads::{Role, class_of, op_of, reads, view};

/// Floating-point operations per element of a value that is cheap to compute again.
pub const CHEAP: u64 = 2;

/// Per value: the kernel nodes that read it; `None` where it must be in memory.
pub type Users = Vec<Option<Vec<NodeId>>>;

/// Who reads what.
pub fn users(state: &State<'_>) -> Users {
    let graph = state.graph;
    let mut users: Users = vec![Some(Vec::new()); graph.len()];
    for v in graph.ids() {
        if state.roles[v.index()] == Role::Library {
            for s in state.sources(v) {
                users[s.index()] = None;
            }
        }
        for r in &state.reads[v.index()] {
            match &mut users[r.from.index()] {
                _ if r.gathered => users[r.from.index()] = None,
                Some(list) => list.push(v),
                None => {}
            }
        }
    }
    for &o in graph.outputs() {
        if let Some((base, _)) = view(graph, &state.roles, o) {
            users[base.index()] = None;
        }
    }
    users
}

/// Dissolves pointwise kernels into their users: those with one user, which computes no more points than the
/// kernel did, and those so cheap that each user may compute them again without reading more than before.
/// Returns whether there were any.
pub fn inline(state: &mut State<'_>, notes: &mut Vec<Decision>) -> bool {
    let graph = state.graph;
    let users = users(state);
    let mut any = false;
    for v in graph.ids() {
        if dissolve(state, v, &users) {
            any = true;
            notes.push(Decision::new("fuse", graph, &[v], "computed where it is used"));
        }
    }
    any
}

fn dissolve(state: &mut State<'_>, v: NodeId, users: &Users) -> bool {
    let graph = state.graph;
    if state.roles[v.index()] != Role::Kernel || state.barred.contains(&v) {
        return false;
    }
    let group = state.groups.find(v.0);
    let alone = state.info(group).is_some_and(|i| i.nodes == [v]);
    let Some(list) = &users[v.index()] else { return false };
    if !alone || class_of(graph, v) != Some(Class::Pointwise) || list.is_empty() {
        return false;
    }
    let n = graph.node(v);
    let points = n.ty.shape.numel().max(1);
    let wide = |r: &NodeId| graph.node(*r).ty.bytes() > 64;
    let mut loaded: Vec<NodeId> = state.reads[v.index()].iter().map(|r| r.from).filter(wide).collect();
    loaded.sort_unstable();
    loaded.dedup();
    let bytes: usize = loaded.iter().map(|&r| graph.node(r).ty.bytes()).sum();
    let one_user = list.len() == 1 && {
        let user = state.groups.find(list[0].0);
        state.info(user).is_some_and(|i| i.space.domain.numel() <= points)
    };
    let cheap = flops(graph, v) <= CHEAP && bytes <= n.ty.bytes();
    if !(one_user || cheap) {
        return false;
    }
    // The users' reads as they would be then; all must work out.
    state.roles[v.index()] = Role::Inline;
    let mut again = Vec::new();
    for &u in list {
        let group = state.groups.find(u.0);
        let (Some(info), Some((_, map))) = (state.info(group), &state.place[u.index()]) else { continue };
        match reads(graph, &state.roles, u, map, &info.space) {
            // What it reads now must not be made in that very kernel elsewhere than where it is read.
            Ok(r) if r.iter().all(|r| fits(state, u, r.from, &r.map)) => again.push((u, r)),
            _ => {
                state.roles[v.index()] = Role::Kernel;
                return false;
            }
        }
    }
    for (u, r) in again {
        for read in &r {
            if matches!(state.roles[read.from.index()], Role::Kernel | Role::Library) {
                state.groups.depend(read.from.0, u.0);
            }
        }
        state.reads[u.index()] = r;
    }
    state.reads[v.index()] = Vec::new();
    state.place[v.index()] = None;
    state.info[group as usize] = None;
    true
}

/// Floating-point operations per element.
pub fn flops(graph: &Graph, v: NodeId) -> u64 {
    let n = graph.node(v);
    let types: SmallVec<[Type; 3]> = n.operands.iter().map(|&o| graph.node(o).ty).collect();
    let points = n.ty.shape.numel().max(1) as u64;
    op_of(graph, v).map_or(u64::MAX, |op| op.rules().flops(&types, n.ty)) / points
}

/// Whether user `u` may read `from` at `map`: in its own kernel only where it is made.
pub fn fits(state: &State<'_>, u: NodeId, from: NodeId, map: &crate::op::IndexMap) -> bool {
    let same = match (state.roles[from.index()], &state.place[from.index()]) {
        (Role::Kernel, Some(place)) => (state.groups.peek(from.0) == state.groups.peek(u.0)).then_some(place),
        _ => None,
    };
    same.is_none_or(|(_, made)| made == map)
}
