//! The order of the steps.
//!
//! The order decides how much memory is live at once; the backend may still run steps in any order that the plan's
//! edges allow. Among the steps that can run, one that frees at least what it needs goes first; else
//! the program's own order is kept, which is that of its data flow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::ir::{Graph, InputKind, NodeId, NodeOp};
use crate::pass::fuse::Fusion;
use crate::pass::lower::Draft;
use crate::plan::StepKind;

/// Steps in order, with what must precede what.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// Groups in the order of their steps.
    pub order: Vec<u32>,
    /// (from, to) in groups: data, and last readers of an input before the step that overwrites it.
    pub edges: Vec<(u32, u32)>,
    /// Per output the input that it overwrites in place.
    pub in_place: Vec<Option<u32>>,
}

/// Orders the groups.
pub fn schedule(graph: &Graph, fusion: &Fusion, drafts: &[Draft], in_place: bool) -> Schedule {
    let n = fusion.groups.len();
    let mut out = Schedule { in_place: vec![None; graph.outputs().len()], ..Schedule::default() };
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); n];
    for (g, group) in fusion.groups.iter().enumerate() {
        for &before in &group.after {
            out.edges.push((before, g as u32));
            users[before as usize].push(g as u32);
        }
    }
    if in_place {
        overwrite(graph, fusion, drafts, &mut users, &mut out);
    }
    out.order = order(graph, drafts, &users);
    out
}

/// Decides which outputs overwrite the `Var` input that they replace: those made by a kernel that reads the old
/// value, if at all, only at the element it writes, and whose other readers can run before.
fn overwrite(graph: &Graph, fusion: &Fusion, drafts: &[Draft], users: &mut [Vec<u32>], out: &mut Schedule) {
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); graph.inputs().len()];
    for (g, d) in drafts.iter().enumerate() {
        for (&v, &written) in d.args.iter().zip(&d.written) {
            if let (NodeOp::Input(i), false) = (graph.node(v).op, written) {
                readers[i as usize].push(g as u32);
            }
        }
    }
    // A step that can find an index out of range comes first: then what it flags is not overwritten.
    let flagging: Vec<u32> = (0..drafts.len() as u32).filter(|&g| drafts[g as usize].kind.may_flag()).collect();
    let mut search = Search { seen: vec![0; drafts.len()], stamp: 0, queue: VecDeque::new() };
    for (i, input) in graph.inputs().iter().enumerate() {
        let InputKind::Var { written_by: Some(k) } = input.kind else { continue };
        let Some(&node) = graph.outputs().get(k as usize) else { continue };
        let Some(home) = fusion.home[node.index()] else { continue };
        let ty = graph.node(input.node).ty;
        let plain = input.layout.is_contiguous() && input.layout.offset == 0 && graph.node(node).ty == ty;
        let first = graph.outputs().iter().position(|&o| o == node) == Some(k as usize);
        if !plain || !first || ty.shape.numel() == 0 {
            continue;
        }
        let draft = &drafts[home as usize];
        let element = same_element(draft, input.node, node);
        let mut before: Vec<u32> = readers[i].iter().chain(&flagging).copied().filter(|&r| r != home).collect();
        before.sort_unstable();
        before.dedup();
        if element && !flagging.contains(&home) && before.iter().all(|&r| !search.path(users, home, r)) {
            for r in before {
                users[r as usize].push(home);
                out.edges.push((r, home));
            }
            out.in_place[k as usize] = Some(i as u32);
        }
    }
    // A view of an input that is an output too keeps the old value.
    for (k, &o) in graph.outputs().iter().enumerate() {
        if let Some((base, _)) = crate::pass::fuse::reads::view(graph, &fusion.roles, o)
            && let NodeOp::Input(i) = graph.node(base).op
        {
            for slot in out.in_place.iter_mut().filter(|s| **s == Some(i)) {
                tracing::debug!(output = k, input = i, "kept: an output is a view of it");
                *slot = None;
            }
        }
    }
}

/// Whether `draft` may write `new` into the memory of `old`: it is a kernel that reads `old` at the very element
/// that it writes, point by point, and when a row is reduced, writes only once nothing of it is read any more.
pub fn same_element(draft: &Draft, old: NodeId, new: NodeId) -> bool {
    let StepKind::Kernel(kernel) = &draft.kind else { return false };
    let position = |v: NodeId, written: bool| {
        draft.args.iter().zip(&draft.written).position(|(&a, &w)| a == v && w == written).map(|p| p as u32)
    };
    let Some(out) = position(new, true) else { return false };
    let Some(arg) = position(old, false) else { return true };
    crate::pass::memory::element_wise(kernel, arg, out)
}

/// Breadth-first search for paths.
struct Search {
    seen: Vec<u32>,
    stamp: u32,
    queue: VecDeque<u32>,
}

impl Search {
    fn path(&mut self, users: &[Vec<u32>], from: u32, to: u32) -> bool {
        self.stamp += 1;
        self.queue.clear();
        self.queue.push_back(from);
        while let Some(g) = self.queue.pop_front() {
            for &u in &users[g as usize] {
                if u == to {
                    return true;
                }
                if self.seen[u as usize] != self.stamp {
                    self.seen[u as usize] = self.stamp;
                    self.queue.push_back(u);
                }
            }
        }
        false
    }
}

fn order(graph: &Graph, drafts: &[Draft], users: &[Vec<u32>]) -> Vec<u32> {
    let n = drafts.len();
    let mut waiting = vec![0u32; n];
    for list in users {
        for &u in list {
            waiting[u as usize] += 1;
        }
    }
    // How many steps still read a value, and whether its memory is the plan's to free.
    let mut left = vec![0u32; graph.len()];
    let mut owned = vec![true; graph.len()];
    for &o in graph.outputs() {
        owned[o.index()] = false;
    }
    for d in drafts {
        for (&v, &written) in d.args.iter().zip(&d.written) {
            left[v.index()] += !written as u32;
            owned[v.index()] &= !matches!(graph.node(v).op, NodeOp::Input(_));
        }
    }
    let bytes = |v: NodeId| graph.node(v).ty.bytes() as i64;
    // Memory that a step needs on top of what it frees. It only ever falls, as other readers run.
    let growth = |g: u32, left: &[u32]| -> i64 {
        let d = &drafts[g as usize];
        let part = |(&v, &written): (&NodeId, &bool)| match (written, owned[v.index()]) {
            (_, false) => 0,
            (true, true) => bytes(v),
            (false, true) => -bytes(v) * (left[v.index()] == 1) as i64,
        };
        d.args.iter().zip(&d.written).map(part).sum()
    };
    // Program order: by the first node of the step's results.
    let rank: Vec<u32> = drafts
        .iter()
        .map(|d| d.args.iter().zip(&d.written).filter(|a| *a.1).map(|(v, _)| v.0).max().unwrap_or(0))
        .collect();
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
    for (g, d) in drafts.iter().enumerate() {
        for (&v, &written) in d.args.iter().zip(&d.written) {
            if !written && owned[v.index()] {
                readers[v.index()].push(g as u32);
            }
        }
    }
    let mut ready: BinaryHeap<Reverse<(bool, u32, u32)>> = BinaryHeap::new();
    let key = |g: u32, left: &[u32]| Reverse((growth(g, left) > 0, rank[g as usize], g));
    for g in 0..n as u32 {
        if waiting[g as usize] == 0 {
            ready.push(key(g, &left));
        }
    }
    let mut done = vec![false; n];
    let mut out = Vec::with_capacity(n);
    while let Some(Reverse((_, _, g))) = ready.pop() {
        if std::mem::replace(&mut done[g as usize], true) {
            continue;
        }
        out.push(g);
        let d = &drafts[g as usize];
        for (&v, _) in d.args.iter().zip(&d.written).filter(|a| !*a.1) {
            left[v.index()] -= 1;
            // The last reader's growth fell.
            if left[v.index()] == 1 {
                for &r in readers[v.index()].iter().filter(|&&r| !done[r as usize] && waiting[r as usize] == 0) {
                    ready.push(key(r, &left));
                }
            }
        }
        for &u in &users[g as usize] {
            waiting[u as usize] -= 1;
            if waiting[u as usize] == 0 {
                ready.push(key(u, &left));
            }
        }
    }
    out
}
