//! Kernels with very many arguments as several: a whole optimizer's updates fused into one kernel, say.
//!
//! A kernel's parameters are limited (4 KiB before CUDA 12.1), and code for hundreds of tensors at each point takes long to
//! compile. What such a kernel stores falls apart into parts that have nothing to do with each other, most of
//! them alike but for their arguments: alike parts share one program, and run side by side. Shared values (a learning rate, a
//! bias correction) are computed in each part: the same instructions, so the same bits.

use std::collections::HashMap;

use crate::base::Result;
use crate::kernel::ir::{Inst, Kernel, Val};

/// Arguments from which on a kernel is split, and that a part may have.
pub const MOST_ARGS: usize = 48;

/// A part of a kernel.
pub struct Part {
    pub kernel: Kernel,
    /// Which of the whole kernel's arguments its arguments are.
    pub args: Vec<u32>,
    /// Which of its parameters.
    pub params: Vec<u32>,
}

/// The parts of a kernel; one, as it is, where it is small or hangs together. `shared`: whether two arguments may share
/// memory, so that one must be read before the other is written.
pub fn split(kernel: &Kernel, shared: impl Fn(u32, u32) -> bool) -> Result<Vec<Part>> {
    let whole = || Part {
        kernel: kernel.clone(),
        args: (0..kernel.args.len() as u32).collect(),
        params: (0..kernel.params.len() as u32).collect(),
    };
    if kernel.args.len() <= MOST_ARGS {
        return Ok(vec![whole()]);
    }
    let stores: Vec<Store> = kernel
        .body
        .iter()
        .enumerate()
        .filter(|(_, inst)| matches!(inst, Inst::Store { .. }))
        .map(|(i, _)| Store::new(kernel, i))
        .collect();
    let mut parts: Vec<Part> = Vec::new();
    let mut pending: Vec<usize> = Vec::new();
    let mut pending_args: Vec<u32> = Vec::new();
    for component in components(&stores, shared) {
        let mut args = pending_args.clone();
        let new = component.iter().flat_map(|&s| stores[s].args.iter().copied());
        new.for_each(|a| {
            if !args.contains(&a) {
                args.push(a)
            }
        });
        if args.len() > MOST_ARGS && !pending.is_empty() {
            parts.push(part(kernel, &stores, &std::mem::take(&mut pending))?);
            args.clear();
            let own = component.iter().flat_map(|&s| stores[s].args.iter().copied());
            own.for_each(|a| {
                if !args.contains(&a) {
                    args.push(a)
                }
            });
        }
        pending.extend(component);
        pending_args = args;
    }
    if !pending.is_empty() {
        parts.push(part(kernel, &stores, &pending)?);
    }
    Ok(parts)
}

/// A store with all that it is computed from.
struct Store {
    /// Instructions, ascending; the store is the last.
    slice: Vec<usize>,
    /// Arguments that it reads, and writes.
    args: Vec<u32>,
    written: u32,
}

impl Store {
    fn new(kernel: &Kernel, store: usize) -> Store {
        let mut needed = vec![false; store + 1];
        needed[store] = true;
        for i in (0..=store).rev().filter(|&i| i == store || !matches!(kernel.body[i], Inst::Store { .. })) {
            if needed[i] {
                operands(&kernel.body[i]).iter().for_each(|v| needed[v.0 as usize] = true);
            }
        }
        let slice: Vec<usize> = (0..=store).filter(|&i| needed[i]).collect();
        let mut args = Vec::new();
        for &i in &slice {
            if let Some(arg) = argument(&kernel.body[i])
                && !args.contains(&arg)
            {
                args.push(arg);
            }
        }
        Store { slice, args, written: argument(&kernel.body[store]).unwrap_or_default() }
    }
}

/// Stores that must stay together, in order: one reads what another one writes over.
fn components(stores: &[Store], shared: impl Fn(u32, u32) -> bool) -> Vec<Vec<usize>> {
    let mut root: Vec<usize> = (0..stores.len()).collect();
    fn find(root: &mut [usize], mut i: usize) -> usize {
        while root[i] != i {
            root[i] = root[root[i]];
            i = root[i];
        }
        i
    }
    // Of each argument the stores that read it; what shares memory with a written one is looked up among them.
    let mut readers: HashMap<u32, Vec<usize>> = HashMap::new();
    for (s, store) in stores.iter().enumerate() {
        store.args.iter().filter(|&&a| a != store.written).for_each(|&a| readers.entry(a).or_default().push(s));
    }
    let mut arguments: Vec<u32> = readers.keys().copied().collect();
    arguments.sort_unstable();
    for (s, store) in stores.iter().enumerate() {
        for &a in arguments.iter().filter(|&&a| shared(a, store.written)) {
            for &other in &readers[&a] {
                let (x, y) = (find(&mut root, s), find(&mut root, other));
                root[x.max(y)] = x.min(y);
            }
        }
    }
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut place: HashMap<usize, usize> = HashMap::new();
    for s in 0..stores.len() {
        let root = find(&mut root, s);
        let at = *place.entry(root).or_insert_with(|| {
            out.push(Vec::new());
            out.len() - 1
        });
        out[at].push(s);
    }
    out
}

/// The kernel of some stores, its arguments numbered in the order of their use, so that alike parts are equal.
fn part(kernel: &Kernel, stores: &[Store], chosen: &[usize]) -> Result<Part> {
    let mut out = Part {
        kernel: Kernel { domain: kernel.domain.clone(), reduced: kernel.reduced.clone(), ..Kernel::default() },
        args: Vec::new(),
        params: Vec::new(),
    };
    let mut values: HashMap<usize, Val> = HashMap::new();
    for &s in chosen {
        for &i in &stores[s].slice {
            if values.contains_key(&i) {
                continue;
            }
            let mut inst = kernel.body[i].clone();
            out.renumber(kernel, &mut inst, &values);
            values.insert(i, Val(out.kernel.body.len() as u32));
            out.kernel.body.push(inst);
        }
    }
    out.kernel.verify()?;
    Ok(out)
}

impl Part {
    fn renumber(&mut self, whole: &Kernel, inst: &mut Inst, values: &HashMap<usize, Val>) {
        let value = |v: &mut Val| *v = values.get(&(v.0 as usize)).copied().unwrap_or(*v);
        match inst {
            Inst::Op { instr, args } => args[..instr.operands().len()].iter_mut().for_each(value),
            Inst::Gather { index, .. } => value(index),
            Inst::Reduce { value: v, .. } | Inst::Store { value: v, .. } => value(v),
            Inst::Param { param } => *param = self.param(whole, *param),
            Inst::Const { .. } | Inst::Index { .. } | Inst::Load { .. } => {}
        }
        if let Inst::Op { instr, args } = inst {
            // Places that the instruction does not use name something that is there.
            args[instr.operands().len()..].iter_mut().for_each(|v| *v = Val(0));
        }
        if let Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } = inst {
            let found = self.args.iter().position(|&a| a == access.arg);
            access.arg = found.unwrap_or_else(|| {
                self.kernel.args.push(whole.args[access.arg as usize].clone());
                self.args.push(access.arg);
                self.args.len() - 1
            }) as u32;
            for d in &mut access.dynamic {
                d.param = self.param(whole, d.param);
            }
        }
    }

    fn param(&mut self, whole: &Kernel, param: u32) -> u32 {
        let found = self.params.iter().position(|&p| p == param);
        found.unwrap_or_else(|| {
            self.kernel.params.push(whole.params[param as usize]);
            self.params.push(param);
            self.params.len() - 1
        }) as u32
    }
}

fn operands(inst: &Inst) -> &[Val] {
    match inst {
        Inst::Op { instr, args } => &args[..instr.operands().len()],
        Inst::Gather { index, .. } => std::slice::from_ref(index),
        Inst::Reduce { value, .. } | Inst::Store { value, .. } => std::slice::from_ref(value),
        Inst::Const { .. } | Inst::Param { .. } | Inst::Index { .. } | Inst::Load { .. } => &[],
    }
}

fn argument(inst: &Inst) -> Option<u32> {
    match inst {
        Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => Some(access.arg),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DType;
    use crate::base::dtype::Element;
    use crate::kernel::build::Builder;
    use crate::kernel::eval::{self, Memory};
    use crate::kernel::instr::Ty;
    use crate::kernel::ir::Access;

    /// `n` momentum updates with a common factor: v = v * 0.5 + g * s, w = w - v, in place.
    fn updates(n: usize) -> Kernel {
        let mut b = Builder::new(&[4], &[false]);
        let s = b.param(Ty::F32);
        let half = b.f32(0.5);
        let twice = b.add(s, s);
        let mut stores = Vec::new();
        for _ in 0..n {
            let [w, v, g] = [0; 3].map(|_| b.input(DType::F32, 4));
            let [w_new, v_new] = [0; 2].map(|_| b.output(DType::F32, 4));
            let load = |b: &mut Builder, a: u32| b.load(Access::row_major(a, &[4]));
            let (old, v, g) = (load(&mut b, w), load(&mut b, v), load(&mut b, g));
            let (v, g) = (b.mul(v, half), b.mul(g, twice));
            let v = b.add(v, g);
            let w = b.sub(old, v);
            stores.extend([(v_new, v), (w_new, w)]);
        }
        for (out, v) in stores {
            b.store(Access::row_major(out, &[4]), v);
        }
        b.finish().unwrap()
    }

    /// Argument 5k + 3 overwrites 5k, and 5k + 4 overwrites 5k + 1.
    fn shared(a: u32, b: u32) -> bool {
        let (a, b) = (a.min(b), a.max(b));
        a == b || a / 5 == b / 5 && b - a == 3
    }

    #[test]
    fn parts_compute_what_the_whole_does_and_are_alike() {
        let whole = updates(40);
        let parts = split(&whole, shared).unwrap();
        assert!(parts.len() >= 5, "{} parts", parts.len());
        assert!(parts.iter().all(|p| p.kernel.args.len() <= MOST_ARGS));
        let kinds: std::collections::HashSet<&Kernel> = parts.iter().map(|p| &p.kernel).collect();
        assert!(kinds.len() <= 2, "{} programs for 40 alike updates", kinds.len());
        let value = |arg: usize, i: usize| ((arg * 31 + i * 7) % 13) as f32 - 6.0;
        let memory: Vec<Vec<u8>> = (0..200).map(|a| f32::to_bytes(&[0, 1, 2, 3].map(|i| value(a, i)))).collect();
        let run = |kernel: &Kernel, args: &[u32]| -> Vec<(u32, Vec<f32>)> {
            let mut outs: Vec<Vec<u8>> = args.iter().map(|&a| memory[a as usize].clone()).collect();
            let bound = outs.iter_mut().zip(args).zip(&kernel.args).map(|((o, &a), arg)| match arg.output {
                true => Memory::Out(o),
                false => Memory::In(&memory[a as usize]),
            });
            let mut bound: Vec<Memory<'_>> = bound.collect();
            eval::run(kernel, &[1.25f32.to_bits() as u64], &mut bound).unwrap();
            drop(bound);
            let written = args.iter().zip(&outs).zip(&kernel.args).filter(|x| x.1.output);
            written.map(|((&a, o), _)| (a, f32::from_bytes(o))).collect()
        };
        let all: Vec<u32> = (0..200).collect();
        let mut want = run(&whole, &all);
        let mut got: Vec<_> = parts.iter().flat_map(|p| run(&p.kernel, &p.args)).collect();
        want.sort_by_key(|w| w.0);
        got.sort_by_key(|g| g.0);
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_read_stays_with_what_overwrites_it() {
        for p in split(&updates(40), shared).unwrap() {
            for &a in &p.args {
                // An update is in one part: w and v are both read for the new w.
                let update = a / 5 * 5;
                assert!((update..update + 5).all(|x| p.args.contains(&x)), "{:?}", p.args);
            }
        }
    }

    #[test]
    fn small_kernels_stay_whole() {
        let whole = updates(9);
        let parts = split(&whole, shared).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].kernel, whole);
    }
}
