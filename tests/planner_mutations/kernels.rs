//! Ways to spoil what a step runs: accesses, guards, domains, arguments of kernels; shapes and strides of products.

use stepgraph::kernel::library::Library;
use stepgraph::kernel::{Access, Inst, Kernel, Ty};
use stepgraph::op::samples::Random;
use stepgraph::plan::{Plan, StepKind};

use crate::generate::below;
use crate::mutate::{Kind, Mutant};

/// A sample of at most `most` of the mutants there are.
pub fn some(plan: &Plan, r: &mut Random, most: usize) -> Vec<Mutant> {
    let mut all = Vec::new();
    for t in 0..plan.steps.len() {
        let mut add = |name: &'static str, what: String, change: &dyn Fn(&mut StepKind)| {
            let mut mutant = plan.clone();
            change(&mut mutant.steps[t].kind);
            let what = format!("step {t}: {what}");
            all.push(Mutant { plan: mutant, name, what, kind: Kind::Program, early: Some(t as u32) });
        };
        match &plan.steps[t].kind {
            StepKind::Kernel(k) => kernel(k, &mut |name, what, change| {
                add(name, what, &|kind| {
                    if let StepKind::Kernel(k) = kind {
                        change(k);
                    }
                })
            }),
            StepKind::Library(l) => library(l, &mut |name, what, change| {
                add(name, what, &|kind| {
                    if let StepKind::Library(l) = kind {
                        change(l);
                    }
                })
            }),
        }
    }
    while all.len() > most {
        all.swap_remove(below(r, all.len()));
    }
    all
}

type Add<'a, T> = &'a mut dyn FnMut(&'static str, String, &dyn Fn(&mut T));

fn kernel(kernel: &Kernel, add: Add<'_, Kernel>) {
    for (i, inst) in kernel.body.iter().enumerate() {
        let accesses = |name, access: &Access, add: Add<'_, Kernel>| {
            for by in [1, -1, 1000] {
                add(name, format!("instruction {i}, offset by {by}"), &|k| access_of(k, i, &|a| a.offset += by));
            }
            for axis in 0..access.strides.len() {
                let what = |new| format!("instruction {i}, {new} stride of axis {axis}");
                add(name, what("a longer"), &|k| access_of(k, i, &|a| a.strides[axis] += 1));
                add(name, what("no"), &|k| access_of(k, i, &|a| a.strides[axis] = 0));
            }
            for d in 0..access.dynamic.len() {
                add(name, format!("instruction {i}, a farther start"), &|k| {
                    access_of(k, i, &|a| a.dynamic[d].max += 1)
                });
            }
        };
        match inst {
            Inst::Store { access, .. } => {
                accesses("store elsewhere", access, add);
                // One in the middle becomes a constant, so that values keep their numbers.
                add("remove a store", format!("instruction {i}"), &|k| {
                    if i + 1 == k.body.len() {
                        k.body.pop();
                    } else {
                        k.body[i] = Inst::Const { ty: Ty::F32, bits: 0 };
                    }
                });
            }
            Inst::Load { access, guards } => {
                accesses("load elsewhere", access, add);
                for g in 0..guards.len() {
                    add("remove or widen a guard", format!("instruction {i}, guard {g} removed"), &|k| {
                        if let Inst::Load { guards, .. } = &mut k.body[i] {
                            guards.remove(g);
                        }
                    });
                    add("remove or widen a guard", format!("instruction {i}, guard {g} widened"), &|k| {
                        if let Inst::Load { guards, .. } = &mut k.body[i] {
                            (guards[g].lo, guards[g].hi) = (guards[g].lo - 1, guards[g].hi + 1);
                        }
                    });
                }
            }
            Inst::Gather { access, .. } => {
                accesses("gather elsewhere", access, add);
                add("gather elsewhere", format!("instruction {i}, a longer axis"), &|k| {
                    if let Inst::Gather { len, .. } = &mut k.body[i] {
                        *len += 1;
                    }
                });
            }
            _ => {}
        }
    }
    for a in 0..kernel.domain.len() {
        add("another domain", format!("axis {a} longer"), &|k| k.domain[a] += 1);
        add("another domain", format!("axis {a} shorter"), &|k| k.domain[a] = k.domain[a].saturating_sub(1));
    }
    for a in 0..kernel.args.len() {
        add("another argument", format!("{a} longer"), &|k| k.args[a].len += 1);
        add("another argument", format!("{a} shorter"), &|k| k.args[a].len = k.args[a].len.saturating_sub(1));
        add("another argument", format!("{a} read for written, or the reverse"), &|k| k.args[a].output ^= true);
    }
}

fn access_of(k: &mut Kernel, i: usize, change: &dyn Fn(&mut Access)) {
    if let Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } = &mut k.body[i] {
        change(access);
    }
}

fn library(call: &Library, add: Add<'_, Library>) {
    match call {
        Library::Matmul(_) => {
            for (which, what) in ["more rows", "a longer sum", "more columns"].into_iter().enumerate() {
                add("another product", what.into(), &|l| {
                    if let Library::Matmul(m) = l {
                        *[&mut m.m, &mut m.k, &mut m.n][which] += 1;
                    }
                });
                for by in [1, 64] {
                    add("another product", format!("operand {which}, offset by {by}"), &|l| {
                        if let Library::Matmul(m) = l {
                            [&mut m.a, &mut m.b, &mut m.c][which].offset += by;
                        }
                    });
                    add("another product", format!("operand {which}, rows farther by {by}"), &|l| {
                        if let Library::Matmul(m) = l {
                            [&mut m.a, &mut m.b, &mut m.c][which].row += by;
                        }
                    });
                }
            }
        }
        Library::ScatterIndex(_) | Library::Scan(_) | Library::Argsort(_) => {
            for which in 0..6 {
                let name =
                    ["longer before", "a longer axis", "longer after", "farther apart", "later", "a longer result"];
                add("another call along an axis", name[which].into(), &|l| {
                    let (dims, lines) = match l {
                        Library::ScatterIndex(s) if which == 5 => {
                            s.len += 1;
                            return;
                        }
                        Library::ScatterIndex(s) => (&mut s.dims, &mut s.index),
                        Library::Scan(s) => (&mut s.dims, &mut s.inputs[0]),
                        Library::Argsort(s) => (&mut s.dims, &mut s.input),
                        _ => return,
                    };
                    match which {
                        0..3 => dims[which] += 1,
                        3 => lines.strides[1] += 1,
                        _ => lines.offset += 1,
                    }
                });
            }
        }
        // The graphs have none.
        Library::Custom(_) => {}
        Library::ScatterAdd(_) => {
            for which in 0..4 {
                add(
                    "another scatter",
                    ["a longer axis", "more of it", "more inside", "rows farther"][which].into(),
                    &|l| {
                        if let Library::ScatterAdd(s) = l {
                            match which {
                                0 => s.len += 1,
                                1 => s.count += 1,
                                2 => s.inner += 1,
                                _ => s.src[0] += 1,
                            }
                        }
                    },
                );
            }
        }
    }
}
