//! Ways to spoil a plan.

use stepgraph::op::samples::Random;
use stepgraph::plan::{OutputStorage, Plan, SlotKind, StepKind};

use crate::generate::below;

/// What a mutation leaves as it was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Which values steps and outputs mean: results must be those of the graph.
    Placement,
    /// Nothing: the mutant may be a right plan of another graph.
    Program,
}

pub struct Mutant {
    pub plan: Plan,
    pub name: &'static str,
    pub what: String,
    pub kind: Kind,
    /// A step worth running as early as it may.
    pub early: Option<u32>,
}

/// All mutants of the sorts there are; of many, a sample of about `most`, every edge in any case.
pub fn all(plan: &Plan, r: &mut Random, most: usize) -> Vec<Mutant> {
    let mut must = Vec::new();
    let mut list = Vec::new();
    let with = |f: &mut dyn FnMut(&mut Plan)| {
        let mut p = plan.clone();
        f(&mut p);
        p
    };
    for (k, &(a, b)) in plan.edges.iter().enumerate() {
        let p = with(&mut |p| {
            p.edges.remove(k);
        });
        let what = format!("edge {a} -> {b}");
        must.push(Mutant { plan: p, name: "drop an edge", what, kind: Kind::Placement, early: Some(b) });
    }
    let mut add = |plan: Plan, name, what: String, kind, early| list.push(Mutant { plan, name, what, kind, early });
    if plan.edges.len() > 1 {
        add(with(&mut |p| p.edges.clear()), "drop all edges", String::new(), Kind::Placement, None);
    }
    let arena = |s: usize| match plan.slots[s].kind {
        SlotKind::Arena { offset } => Some(offset),
        _ => None,
    };
    for s in 0..plan.slots.len() {
        if let Some(at) = arena(s) {
            let mut to: Vec<usize> = vec![at + 64, at + 4, at.wrapping_sub(64)];
            to.extend((0..plan.slots.len()).filter_map(arena));
            to.sort_unstable();
            to.dedup();
            for new in to.into_iter().filter(|&o| o != at) {
                let p = with(&mut |p| p.slots[s].kind = SlotKind::Arena { offset: new });
                add(p, "move a slot", format!("slot {s} from {at} to {}", new as isize), Kind::Placement, None);
                // The same with room for it, where only the other slots can be in the way.
                if new.is_multiple_of(64) && new < 1 << 20 && new + plan.slots[s].bytes > plan.arena_bytes {
                    let p = with(&mut |p| {
                        p.slots[s].kind = SlotKind::Arena { offset: new };
                        p.arena_bytes = new + p.slots[s].bytes.next_multiple_of(64);
                    });
                    add(p, "move a slot", format!("slot {s} to {new}, larger arena"), Kind::Placement, None);
                }
            }
        }
        for bytes in [plan.slots[s].bytes.saturating_sub(1), 0, plan.slots[s].bytes + 1, plan.slots[s].bytes + 64] {
            if bytes != plan.slots[s].bytes {
                let p = with(&mut |p| p.slots[s].bytes = bytes);
                add(p, "resize a slot", format!("slot {s} to {bytes}"), Kind::Placement, None);
            }
        }
    }
    for less in [1, 64] {
        if plan.arena_bytes >= less {
            let p = with(&mut |p| p.arena_bytes -= less);
            add(p, "smaller arena", format!("by {less}"), Kind::Placement, None);
        }
    }
    let n = plan.steps.len();
    for a in 0..n {
        for b in a + 1..n.min(a + 4) {
            // The same order of work under other numbers, and other work under the same numbers.
            let p = with(&mut |p| {
                p.steps.swap(a, b);
                for (x, y) in &mut p.edges {
                    for e in [x, y] {
                        *e = if *e as usize == a {
                            b as u32
                        } else if *e as usize == b {
                            a as u32
                        } else {
                            *e
                        };
                    }
                }
            });
            add(p, "renumber steps", format!("steps {a} and {b}"), Kind::Placement, None);
            let p = with(&mut |p| p.steps.swap(a, b));
            add(p, "swap steps", format!("steps {a} and {b}, not their edges"), Kind::Placement, Some(a as u32));
        }
        let p = with(&mut |p| {
            p.steps.remove(a);
            // Those after it keep waiting for those before it.
            let before: Vec<u32> = p.edges.iter().filter(|e| e.1 as usize == a).map(|e| e.0).collect();
            let after: Vec<u32> = p.edges.iter().filter(|e| e.0 as usize == a).map(|e| e.1).collect();
            p.edges.retain(|e| e.0 as usize != a && e.1 as usize != a);
            p.edges.extend(before.iter().flat_map(|&x| after.iter().map(move |&y| (x, y))));
            p.edges.sort_unstable();
            p.edges.dedup();
            for (x, y) in &mut p.edges {
                *x -= u32::from(*x as usize > a);
                *y -= u32::from(*y as usize > a);
            }
        });
        add(p, "remove a step", format!("step {a}"), Kind::Program, None);
    }
    for (k, &(a, b)) in plan.edges.iter().enumerate() {
        let p = with(&mut |p| p.edges[k] = (b, a));
        add(p, "turn an edge", format!("edge {a} -> {b}"), Kind::Placement, None);
    }
    for (t, step) in plan.steps.iter().enumerate() {
        for (k, &old) in step.args.iter().enumerate() {
            let writes = match &step.kind {
                StepKind::Kernel(kernel) => kernel.args[k].output,
                StepKind::Library(_) => k == 2,
            };
            for new in 0..plan.slots.len() {
                if new as u32 == old || plan.slots[new].bytes.abs_diff(plan.slots[old as usize].bytes) > 16 {
                    continue;
                }
                let p = with(&mut |p| p.steps[t].args[k] = new as u32);
                let name = if writes { "write another slot" } else { "read another slot" };
                add(p, name, format!("step {t} argument {k} to slot {new}"), Kind::Program, Some(t as u32));
            }
        }
    }
    for (o, output) in plan.outputs.iter().enumerate() {
        let inputs = (0..plan.inputs.len() as u32).map(Some);
        for to in inputs.chain([None]).filter(|&i| i != output.in_place) {
            let p = with(&mut |p| p.outputs[o].in_place = to);
            add(p, "in place", format!("output {o} over {to:?}"), Kind::Placement, None);
        }
        let mut change = |what: String, f: &mut dyn FnMut(&mut Plan)| {
            add(with(f), "output storage or layout", format!("output {o}: {what}"), Kind::Program, None);
        };
        change("offset + 1".into(), &mut |p| p.outputs[o].layout.offset += 1);
        change("offset - 1".into(), &mut |p| p.outputs[o].layout.offset -= 1);
        if output.layout.shape.rank() > 0 {
            change("twice the stride".into(), &mut |p| p.outputs[o].layout.strides[0] *= 2);
        }
        for k in 0..plan.outputs.len() as u32 {
            if k as usize != o {
                change(format!("that of output {k}"), &mut |p| {
                    p.outputs[o].storage = OutputStorage::Output(k);
                    p.outputs[o].in_place = None;
                });
            }
        }
        for i in 0..plan.inputs.len() as u32 {
            change(format!("that of input {i}"), &mut |p| {
                p.outputs[o].storage = OutputStorage::Input(i);
                p.outputs[o].in_place = None;
            });
        }
        if let OutputStorage::Own { bytes } = output.storage {
            change("four bytes less".into(), &mut |p| {
                p.outputs[o].storage = OutputStorage::Own { bytes: bytes.saturating_sub(4) }
            });
        }
    }
    while must.len() < most && !list.is_empty() {
        must.push(list.swap_remove(below(r, list.len())));
    }
    must
}
