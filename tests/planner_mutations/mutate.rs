//! Plans spoiled in every way that the checker should know.

use stepgraph::kernel::Inst;
use stepgraph::kernel::library::Library;
use stepgraph::op::samples::Random;
use stepgraph::plan::{OutputStorage, Plan, SlotKind, StepKind};

/// (what was done, whether the plan says another thing now (else it should still compute the same), the mutant).
pub type Mutant = (&'static str, bool, Plan);

struct Mutants<'a> {
    plan: &'a Plan,
    out: Vec<Mutant>,
    random: Random,
}

/// Mutants tried of each kind.
const MOST: usize = 12;

impl Mutants<'_> {
    fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    /// Adds a mutant, if the plan changed.
    fn with(&mut self, kind: &'static str, content: bool, change: impl FnOnce(&mut Plan)) {
        let mut p = self.plan.clone();
        change(&mut p);
        if format!("{p:?}") != format!("{:?}", self.plan) {
            self.out.push((kind, content, p));
        }
    }

    /// Some of the numbers below `n`, all if they are few.
    fn some(&mut self, n: usize) -> Vec<usize> {
        if n <= MOST {
            return (0..n).collect();
        }
        (0..MOST).map(|_| self.below(n)).collect()
    }
}

pub fn mutants(plan: &Plan, seed: u64) -> Vec<Mutant> {
    let mut m = Mutants { plan, out: Vec::new(), random: Random(seed) };
    slots(&mut m);
    order(&mut m);
    outputs(&mut m);
    steps(&mut m);
    kernels(&mut m);
    libraries(&mut m);
    m.out
}

fn slots(m: &mut Mutants) {
    let plan = m.plan;
    let arena: Vec<usize> =
        (0..plan.slots.len()).filter(|&s| matches!(plan.slots[s].kind, SlotKind::Arena { .. })).collect();
    let offset = |s: usize| if let SlotKind::Arena { offset } = plan.slots[s].kind { offset } else { 0 };
    for i in m.some(arena.len()) {
        let s = arena[i];
        let mut to = vec![offset(s) + 64, offset(s).wrapping_sub(64), offset(s) + 4, plan.arena_bytes];
        to.extend(arena.iter().map(|&o| offset(o)));
        to.sort_unstable();
        to.dedup();
        for t in to {
            m.with("slot moved", false, |p| p.slots[s].kind = SlotKind::Arena { offset: t });
        }
        for &o in &arena {
            m.with("two slots exchanged", false, |p| {
                let kind = p.slots[s].kind;
                p.slots[s].kind = p.slots[o].kind;
                p.slots[o].kind = kind;
            });
        }
    }
    for s in m.some(plan.slots.len()) {
        let bytes = plan.slots[s].bytes;
        for to in [bytes.saturating_sub(4), bytes / 2, 0] {
            m.with("slot made smaller", false, |p| p.slots[s].bytes = to);
        }
        for other in m.some(plan.slots.len()) {
            let arena = |s: usize| matches!(plan.slots[s].kind, SlotKind::Arena { .. });
            let content = !(arena(s) && arena(other));
            m.with("slot put elsewhere", content, |p| p.slots[s].kind = p.slots[other].kind);
        }
    }
    for cut in [4, 64, plan.arena_bytes] {
        m.with("arena made smaller", false, |p| p.arena_bytes = p.arena_bytes.saturating_sub(cut));
    }
    for i in 0..plan.inputs.len() {
        m.with("input made smaller", false, |p| p.inputs[i].bytes = p.inputs[i].bytes.saturating_sub(4));
        m.with("input elsewhere in its buffer", true, |p| p.inputs[i].layout.offset += 1);
        m.with("input before its buffer", true, |p| p.inputs[i].layout.offset -= 1);
    }
}

fn order(m: &mut Mutants) {
    let (edges, steps) = (m.plan.edges.len(), m.plan.steps.len());
    for e in 0..edges.min(40) {
        m.with("edge dropped", false, |p| _ = p.edges.remove(e));
    }
    for _ in 0..MOST.min(edges) {
        let (a, b) = (m.below(edges), m.below(edges));
        m.with("two edges dropped", false, |p| {
            p.edges.remove(a.max(b));
            if a != b {
                p.edges.remove(a.min(b));
            }
        });
        m.with("edge turned", false, |p| p.edges[a] = (p.edges[a].1, p.edges[a].0));
        m.with("edge to another step", false, |p| p.edges[a].1 = (p.edges[a].1 + 1).min(steps as u32));
    }
    for t in 0..steps.saturating_sub(1) {
        m.with("two steps exchanged", false, |p| p.steps.swap(t, t + 1));
        m.with("two steps exchanged, with their edges", false, |p| {
            p.steps.swap(t, t + 1);
            let (x, y) = (t as u32, t as u32 + 1);
            let moved = |s: u32| {
                if s == x {
                    y
                } else if s == y {
                    x
                } else {
                    s
                }
            };
            p.edges.iter_mut().for_each(|e| *e = (moved(e.0), moved(e.1)));
        });
    }
}

fn outputs(m: &mut Mutants) {
    let plan = m.plan;
    for o in 0..plan.outputs.len() {
        for i in 0..plan.inputs.len() as u32 {
            m.with("in place of an input", false, |p| p.outputs[o].in_place = Some(i));
            m.with("output taken for an input", true, |p| {
                p.outputs[o].storage = OutputStorage::Input(i);
                p.outputs[o].in_place = None;
            });
        }
        for other in 0..plan.outputs.len() as u32 {
            m.with("output taken for another", true, |p| {
                p.outputs[o].storage = OutputStorage::Output(other);
                p.outputs[o].in_place = None;
            });
        }
        if let OutputStorage::Own { bytes } = plan.outputs[o].storage {
            for to in [bytes.saturating_sub(4), bytes / 2, 0] {
                m.with("output made smaller", false, |p| p.outputs[o].storage = OutputStorage::Own { bytes: to });
            }
        }
        for by in [1, -1, 1000] {
            m.with("output elsewhere in its buffer", true, |p| p.outputs[o].layout.offset += by);
        }
        if plan.outputs[o].layout.shape.rank() > 0 {
            m.with("output with another stride", true, |p| p.outputs[o].layout.strides[0] += 1);
        }
    }
}

fn steps(m: &mut Mutants) {
    let plan = m.plan;
    for t in m.some(plan.steps.len()) {
        let args = plan.steps[t].args.len();
        for a in 0..args {
            for s in m.some(plan.slots.len()) {
                m.with("argument in another slot", true, |p| p.steps[t].args[a] = s as u32);
            }
            m.with("argument left out", true, |p| _ = p.steps[t].args.remove(a));
            m.with("two arguments exchanged", true, |p| p.steps[t].args.swap(a, (a + 1) % args));
        }
        m.with("argument in no slot", true, |p| p.steps[t].args[0] = plan.slots.len() as u32);
        for k in 0..plan.steps[t].params.len() {
            m.with("another parameter", true, |p| {
                p.steps[t].params[k] = (p.steps[t].params[k] + 1) % p.params.len() as u32
            });
            m.with("no parameter", true, |p| p.steps[t].params[k] = p.params.len() as u32);
            m.with("parameter left out", true, |p| _ = p.steps[t].params.remove(k));
        }
        m.with("step without its edges", false, |p| p.edges.retain(|e| e.0 != t as u32 && e.1 != t as u32));
        m.with("step left out", true, |p| {
            p.steps.remove(t);
            p.edges.retain(|e| e.0 != t as u32 && e.1 != t as u32);
            let moved = |s: u32| if s > t as u32 { s - 1 } else { s };
            p.edges.iter_mut().for_each(|e| *e = (moved(e.0), moved(e.1)));
        });
        m.with("step done twice", false, |p| {
            // Behind all others, ordered after itself only.
            let copy = p.steps[t].clone();
            p.steps.push(copy);
            p.edges.push((t as u32, p.steps.len() as u32 - 1));
        });
    }
}

fn kernels(m: &mut Mutants) {
    let plan = m.plan;
    for t in m.some(plan.steps.len()) {
        let StepKind::Kernel(kernel) = &plan.steps[t].kind else { continue };
        let mut with = |kind, change: &dyn Fn(&mut stepgraph::kernel::Kernel)| {
            m.with(kind, true, |p| {
                if let StepKind::Kernel(k) = &mut p.steps[t].kind {
                    change(k);
                }
            });
        };
        for (i, inst) in kernel.body.iter().enumerate() {
            match inst {
                Inst::Store { access, .. } => {
                    // A store in the middle becomes a constant, so that values keep their numbers.
                    with("store left out", &|k| {
                        if i + 1 == k.body.len() {
                            k.body.pop();
                        } else {
                            k.body[i] = Inst::Const { ty: stepgraph::kernel::Ty::F32, bits: 0 };
                        }
                    });
                    for by in [1, -1, 16] {
                        with("store elsewhere", &|k| store(k, i, |a| a.offset += by));
                    }
                    for axis in 0..access.strides.len() {
                        with("store with another stride", &|k| store(k, i, |a| a.strides[axis] += 1));
                        with("store without a stride", &|k| store(k, i, |a| a.strides[axis] = 0));
                    }
                }
                Inst::Load { access, guards } => {
                    for by in [1, -1, 1000] {
                        with("load elsewhere", &|k| load(k, i, |a| a.offset += by));
                    }
                    for axis in 0..access.strides.len() {
                        with("load with another stride", &|k| load(k, i, |a| a.strides[axis] += 1));
                        with("load without a stride", &|k| load(k, i, |a| a.strides[axis] = 0));
                    }
                    for d in 0..access.dynamic.len() {
                        with("load with a farther start", &|k| load(k, i, |a| a.dynamic[d].max += 1));
                    }
                    for g in 0..guards.len() {
                        with("guard left out", &|k| {
                            if let Inst::Load { guards, .. } = &mut k.body[i] {
                                guards.remove(g);
                            }
                        });
                        with("guard widened", &|k| {
                            if let Inst::Load { guards, .. } = &mut k.body[i] {
                                guards[g].lo -= 1;
                                guards[g].hi += 1;
                            }
                        });
                    }
                }
                Inst::Gather { .. } => {
                    with("gather from a longer axis", &|k| {
                        if let Inst::Gather { len, .. } = &mut k.body[i] {
                            *len += 1;
                        }
                    });
                }
                _ => {}
            }
        }
        for a in 0..kernel.domain.len() {
            with("longer domain", &|k| k.domain[a] += 1);
            with("shorter domain", &|k| k.domain[a] = k.domain[a].saturating_sub(1));
        }
        for a in 0..kernel.args.len() {
            with("argument longer", &|k| k.args[a].len += 1);
            with("argument shorter", &|k| k.args[a].len = k.args[a].len.saturating_sub(1));
            with("input taken for an output", &|k| k.args[a].output = !k.args[a].output);
        }
    }
}

fn store(k: &mut stepgraph::kernel::Kernel, i: usize, change: impl Fn(&mut stepgraph::kernel::Access)) {
    if let Inst::Store { access, .. } = &mut k.body[i] {
        change(access);
    }
}

fn load(k: &mut stepgraph::kernel::Kernel, i: usize, change: impl Fn(&mut stepgraph::kernel::Access)) {
    if let Inst::Load { access, .. } = &mut k.body[i] {
        change(access);
    }
}

fn libraries(m: &mut Mutants) {
    let plan = m.plan;
    for t in 0..plan.steps.len() {
        let StepKind::Library(call) = &plan.steps[t].kind else { continue };
        let mut with = |kind, change: &dyn Fn(&mut Library)| {
            m.with(kind, true, |p| {
                if let StepKind::Library(l) = &mut p.steps[t].kind {
                    change(l);
                }
            });
        };
        match call {
            Library::Matmul(_) => {
                for (kind, which) in
                    [("product with more rows", 0), ("longer product", 1), ("product with more columns", 2)]
                {
                    with(kind, &|l| {
                        if let Library::Matmul(m) = l {
                            *[&mut m.m, &mut m.k, &mut m.n][which] += 1;
                        }
                    });
                }
                for which in 0..3 {
                    for by in [1, -1] {
                        with("operand of a product elsewhere", &|l| {
                            if let Library::Matmul(m) = l {
                                [&mut m.a, &mut m.b, &mut m.c][which].offset += by;
                            }
                        });
                        with("product with another stride", &|l| {
                            if let Library::Matmul(m) = l {
                                [&mut m.a, &mut m.b, &mut m.c][which].row += by;
                            }
                        });
                    }
                }
            }
            Library::ScatterAdd(_) => {
                with("scatter over a longer axis", &|l| {
                    if let Library::ScatterAdd(s) = l {
                        s.len += 1;
                    }
                });
                with("scatter of more rows", &|l| {
                    if let Library::ScatterAdd(s) = l {
                        s.count += 1;
                    }
                });
                with("scatter with another stride", &|l| {
                    if let Library::ScatterAdd(s) = l {
                        s.src[0] += 1;
                    }
                });
            }
        }
    }
}
