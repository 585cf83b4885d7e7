//! Computing a value again in the kernels that read it, when that moves fewer bytes than storing it.

use crate::ir::NodeId;
use crate::op::Class;
use crate::pass::Decision;
use crate::pass::fuse::inline::{CHEAP, Users, fits, flops, users};
use crate::pass::fuse::merge::State;
use crate::pass::fuse::reads::{Read, Role, class_of, reads};

/// Drops stored values that their readers can cheaply compute from what they read anyway, or from
/// less. What a value is made of must be in memory already; so nothing else has to be kept instead of it. Later
/// values go first: what they no longer need may then go too.
pub fn recompute(state: &mut State<'_>, notes: &mut Vec<Decision>) {
    let mut users = users(state);
    for v in (0..state.graph.len() as u32).rev().map(NodeId) {
        if let Some(again) = worthwhile(state, v, &users) {
            commit(state, v, again, &mut users);
            notes.push(Decision::new("fuse", state.graph, &[v], "computed again rather than stored"));
        }
    }
}

/// The new reads of each user of `v`, if `v` should be computed there.
fn worthwhile(state: &mut State<'_>, v: NodeId, users: &Users) -> Option<Vec<(NodeId, Vec<Read>)>> {
    let graph = state.graph;
    let candidate = state.roles[v.index()] == Role::Kernel
        && class_of(graph, v) == Some(Class::Pointwise)
        && !state.barred.contains(&v)
        && flops(graph, v) <= CHEAP;
    let list = users[v.index()].as_ref().filter(|l| candidate && !l.is_empty())?;
    let home = state.groups.peek(v.0);
    let mut readers: Vec<u32> = list.iter().map(|u| state.groups.peek(u.0)).filter(|&g| g != home).collect();
    readers.sort_unstable();
    readers.dedup();
    let sources: Vec<NodeId> = {
        let mut all: Vec<NodeId> = state.reads[v.index()].iter().map(|r| r.from).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let in_memory = |s: &NodeId| match (state.roles[s.index()], &users[s.index()]) {
        (Role::Kernel, Some(readers)) => {
            let made = state.groups.peek(s.0);
            made != home || readers.iter().any(|u| state.groups.peek(u.0) != made)
        }
        _ => true,
    };
    if readers.is_empty() || !sources.iter().all(in_memory) {
        return None;
    }
    let bytes = |s: NodeId| graph.node(s).ty.bytes();
    let mut more = 0;
    for &g in &readers {
        let info = state.info(g)?;
        let read = |s: NodeId| {
            let made_there = state.roles[s.index()] == Role::Kernel && state.groups.peek(s.0) == g;
            made_there || info.nodes.iter().any(|n| state.reads[n.index()].iter().any(|r| r.from == s))
        };
        more += sources.iter().filter(|&&s| !read(s)).map(|&s| bytes(s)).sum::<usize>();
    }
    if more >= bytes(v) * (1 + readers.len()) {
        return None;
    }
    state.roles[v.index()] = Role::Inline;
    let mut again = Vec::with_capacity(list.len());
    for &u in list {
        let found = state.info(state.groups.peek(u.0)).zip(state.place[u.index()].as_ref());
        let new = found.and_then(|(info, (_, map))| reads(graph, &state.roles, u, map, &info.space).ok());
        match new {
            Some(new) if new.iter().all(|r| fits(state, u, r.from, &r.map)) => again.push((u, new)),
            _ => {
                state.roles[v.index()] = Role::Kernel;
                return None;
            }
        }
    }
    Some(again)
}

fn commit(state: &mut State<'_>, v: NodeId, again: Vec<(NodeId, Vec<Read>)>, users: &mut Users) {
    let home = state.groups.find(v.0);
    for r in std::mem::take(&mut state.reads[v.index()]) {
        if let Some(list) = &mut users[r.from.index()] {
            list.retain(|&u| u != v);
        }
    }
    for (u, new) in again {
        for r in &new {
            if let Some(list) = &mut users[r.from.index()]
                && !list.contains(&u)
            {
                list.push(u);
            }
            if matches!(state.roles[r.from.index()], Role::Kernel | Role::Library) {
                state.groups.depend(r.from.0, u.0);
            }
        }
        state.reads[u.index()] = new;
    }
    state.place[v.index()] = None;
    users[v.index()] = Some(Vec::new());
    if let Some(info) = &mut state.info[home as usize] {
        info.nodes.retain(|&n| n != v);
        if info.nodes.is_empty() {
            state.info[home as usize] = None;
        }
    }
}
