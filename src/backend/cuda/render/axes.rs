//! A kernel with as few axes as it can do with: index arithmetic is what a thread does besides its formula.
//!
//! Axes of length 1 go; neighbours of one kind (kept, reduced) that every access walks as one become one. Neither changes a
//! result: the order of a reduction depends on neither.

use crate::kernel::instr::Ty;
use crate::kernel::ir::{Access, Guard, Inst, Kernel};

/// `kernel`, which has at least one outer point, computed over fewer axes.
pub fn collapse(kernel: &Kernel) -> Kernel {
    let mut k = without_unit_axes(kernel);
    let mut axis = 0;
    while axis + 1 < k.domain.len() {
        if mergeable(&k, axis) {
            merge(&mut k, axis);
        } else {
            axis += 1;
        }
    }
    k
}

fn accesses(k: &mut Kernel) -> impl Iterator<Item = &mut Access> {
    k.body.iter_mut().filter_map(|inst| match inst {
        Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => Some(access),
        _ => None,
    })
}

fn without_unit_axes(kernel: &Kernel) -> Kernel {
    let mut k = kernel.clone();
    let stays: Vec<bool> = k.domain.iter().map(|&d| d != 1).collect();
    let new: Vec<u32> = stays.iter().scan(0, |n, &s| Some(std::mem::replace(n, *n + s as u32))).collect();
    let keep = |a: u32| stays[a as usize];
    for inst in &mut k.body {
        match inst {
            Inst::Index { axis } if keep(*axis) => *axis = new[*axis as usize],
            Inst::Index { .. } => *inst = Inst::Const { ty: Ty::I64, bits: 0 },
            Inst::Load { access, guards } => {
                let ty = Ty::of(k.args[access.arg as usize].dtype);
                let len = |g: &Guard| kernel.domain[g.axis as usize] as i64;
                if guards.iter().any(|g| g.lo.max(0) >= g.hi.min(len(g))) {
                    // It holds nowhere.
                    *inst = Inst::Const { ty, bits: 0 };
                    continue;
                }
                guards.retain(|g| g.lo > 0 || g.hi < len(g));
                guards.iter_mut().for_each(|g| g.axis = new[g.axis as usize]);
            }
            _ => {}
        }
    }
    for access in accesses(&mut k) {
        let mut at = 0..;
        access.strides.retain(|_| at.next().is_some_and(keep));
    }
    k.domain.retain(|&d| d != 1);
    let mut at = 0..;
    k.reduced.retain(|_| at.next().is_some_and(keep));
    k
}

/// Whether `axis` and the next can be walked as one.
fn mergeable(k: &Kernel, axis: usize) -> bool {
    let len = k.domain[axis + 1] as i64;
    k.reduced[axis] == k.reduced[axis + 1]
        && k.body.iter().all(|inst| {
            let one = |a: &Access| Some(a.strides[axis]) == a.strides[axis + 1].checked_mul(len);
            match inst {
                Inst::Index { axis: a } => *a as usize != axis && *a as usize != axis + 1,
                // A guard on the outer of both is one on the merged axis.
                Inst::Load { access, guards } => one(access) && guards.iter().all(|g| g.axis as usize != axis + 1),
                Inst::Gather { access, .. } | Inst::Store { access, .. } => one(access),
                _ => true,
            }
        })
}

fn merge(k: &mut Kernel, axis: usize) {
    let len = k.domain.remove(axis + 1);
    k.domain[axis] *= len;
    k.reduced.remove(axis + 1);
    for access in accesses(k) {
        access.strides.remove(axis);
    }
    let after = axis as u32;
    for inst in &mut k.body {
        match inst {
            Inst::Index { axis } if *axis > after => *axis -= 1,
            Inst::Load { guards, .. } => {
                for g in guards {
                    if g.axis > after {
                        g.axis -= 1;
                    } else if g.axis == after {
                        (g.lo, g.hi) = (g.lo.saturating_mul(len as i64), g.hi.saturating_mul(len as i64));
                    }
                }
            }
            _ => {}
        }
    }
}
