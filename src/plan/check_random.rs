//! The checker against execution: random plans, right ones and spoiled ones, are run in many allowed orders.
//!
//! A right plan must be accepted. Whatever is accepted must give, in every order, for every way of walking through the points of a
//! kernel, with outputs in place or not, the values it gives in program order with every slot in memory of its own.

use proptest::prelude::*;

use super::*;
use crate::base::{Layout, Shape, Type};
use crate::kernel::{Access, Arg, Inst, Instr, Kernel, Val};
use crate::plan::{PlanInput, PlanOutput, Slot, Step};

/// Draws from a list of numbers that proptest can shrink; zeros at its end.
struct Choices<'a>(std::slice::Iter<'a, u16>);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&c| c as usize % n.max(1))
    }
}

/// How a kernel's points map to the elements of an operand.
#[derive(Clone, Copy, PartialEq)]
enum Walk {
    Same,
    Reversed,
    First,
}

/// `out[i] = a[…] + b[…] - …` over `n` elements.
fn kernel(n: usize, loads: &[(usize, Walk)]) -> Kernel {
    let mut k = Kernel { domain: vec![n], reduced: vec![false], ..Kernel::default() };
    for (arg, &(len, walk)) in loads.iter().enumerate() {
        k.args.push(Arg { dtype: DType::F32, len, output: false });
        let (offset, stride) = match walk {
            Walk::Same => (0, 1),
            Walk::Reversed => (n as i64 - 1, -1),
            Walk::First => (0, 0),
        };
        let access = Access { arg: arg as u32, offset, strides: vec![stride], dynamic: vec![] };
        k.body.push(Inst::Load { access, guards: vec![] });
    }
    let mut value = Val(0);
    for v in 1..loads.len() as u32 {
        k.body.push(Inst::Op { instr: Instr::Add, args: [value, Val(v), Val(0)] });
        value = Val(k.body.len() as u32 - 1);
    }
    k.args.push(Arg { dtype: DType::F32, len: n, output: true });
    let access = Access { arg: loads.len() as u32, offset: 0, strides: vec![1], dynamic: vec![] };
    k.body.push(Inst::Store { access, value });
    k
}

const LENGTHS: [usize; 3] = [16, 32, 40];

/// A random plan that is right: values flow along edges, and bytes are used again behind their last readers.
fn valid(c: &mut Choices) -> Plan {
    let mut p = Plan { name: "random".into(), ..Plan::default() };
    let inputs = 1 + c.below(3);
    // By slot: length in elements; the steps that touch it.
    let mut lens = Vec::new();
    for i in 0..inputs {
        let n = LENGTHS[c.below(3)];
        let ty = Type::new(DType::F32, Shape::new(&[n]).unwrap());
        p.inputs.push(PlanInput { ty, layout: Layout::contiguous(ty.shape), bytes: n * 4, var: c.below(2) == 0 });
        p.slots.push(Slot { kind: SlotKind::Input(i as u32), bytes: n * 4 });
        lens.push(n);
    }
    let steps = 1 + c.below(8);
    let mut reads: Vec<Vec<(usize, Walk)>> = Vec::new();
    for t in 0..steps {
        let n = LENGTHS[c.below(3)];
        let mut list = Vec::new();
        for _ in 0..1 + c.below(2) {
            // Late values more often, so that chains are long.
            let slot =
                if c.below(3) == 0 { c.below(lens.len()) } else { lens.len() - 1 - c.below(2).min(lens.len() - 1) };
            let walk = match c.below(5) {
                _ if lens[slot] < n => Walk::First,
                0 => Walk::Reversed,
                1 => Walk::First,
                _ => Walk::Same,
            };
            list.push((slot, walk));
        }
        lens.push(n);
        reads.push(list);
        let _ = t;
    }
    let slot_of = |t: usize| inputs + t;
    let readers = |slot: usize| (0..steps).filter(|&t| reads[t].iter().any(|r| r.0 == slot)).collect::<Vec<_>>();
    let last = |slot: usize| readers(slot).last().copied();
    let writer = |slot: usize| slot.checked_sub(inputs);
    // Steps that must end before `t` may overwrite the slot.
    let touching = |slot: usize, t: usize| {
        readers(slot).into_iter().chain(writer(slot)).filter(move |&s| s != t).collect::<Vec<_>>()
    };
    let elementwise = |slot: usize, t: usize| reads[t].iter().all(|r| r.0 != slot || r.1 == Walk::Same);
    let mut edges = std::collections::BTreeSet::new();
    let mut taken: Vec<u32> = Vec::new();
    for t in 0..steps {
        let (slot, n) = (slot_of(t), lens[slot_of(t)]);
        for &(r, _) in &reads[t] {
            edges.extend(writer(r).map(|w| (w as u32, t as u32)));
        }
        let used = last(slot).is_some();
        if !used || c.below(4) == 0 {
            let o = p.outputs.len() as u32;
            let ty = Type::new(DType::F32, Shape::new(&[n]).unwrap());
            let fits = |i: &usize| {
                p.inputs[*i].var
                    && p.inputs[*i].bytes >= n * 4
                    && !taken.contains(&(*i as u32))
                    && last(*i).is_none_or(|l| l <= t)
                    && elementwise(*i, t)
            };
            let in_place = if c.below(4) > 0 { (0..inputs).find(fits) } else { None };
            if let Some(i) = in_place {
                taken.push(i as u32);
                edges.extend(touching(i, t).into_iter().map(|s| (s as u32, t as u32)));
            }
            let storage = OutputStorage::Own { bytes: n * 4 };
            let in_place = in_place.map(|i| i as u32);
            p.outputs.push(PlanOutput { ty, storage, layout: Layout::contiguous(ty.shape), in_place });
            p.slots.push(Slot { kind: SlotKind::Output(o), bytes: n * 4 });
        } else {
            // The first offset where only dead values lie.
            let bytes = n * 4;
            let offset = (0..).map(|k| k * 64).find(|&offset: &usize| {
                (inputs..slot).all(|other| {
                    let SlotKind::Arena { offset: at } = p.slots[other].kind else { return true };
                    let apart = at >= offset + bytes || offset >= at + lens[other] * 4;
                    let dead = last(other).is_none_or(|l| l < t);
                    apart || dead || (last(other) == Some(t) && at == offset && elementwise(other, t))
                })
            });
            let offset = offset.unwrap();
            for (other, &len) in lens.iter().enumerate().take(slot).skip(inputs) {
                if let SlotKind::Arena { offset: at } = p.slots[other].kind
                    && at < offset + bytes
                    && offset < at + len * 4
                {
                    edges.extend(touching(other, t).into_iter().map(|s| (s as u32, t as u32)));
                }
            }
            p.slots.push(Slot { kind: SlotKind::Arena { offset }, bytes });
            p.arena_bytes = p.arena_bytes.max((offset + bytes).next_multiple_of(64));
        }
        let loads: Vec<(usize, Walk)> = reads[t].iter().map(|&(s, w)| (lens[s], w)).collect();
        let args = reads[t].iter().map(|r| r.0).chain([slot]).map(|s| s as u32).collect();
        p.steps.push(Step {
            kind: StepKind::Kernel(kernel(n, &loads)),
            args,
            params: vec![],
            locs: vec![],
            label: format!("k{t}"),
        });
    }
    p.edges = edges.into_iter().collect();
    p
}

/// Spoils the plan, perhaps harmlessly.
fn spoil(p: &mut Plan, c: &mut Choices) {
    let (slots, steps) = (p.slots.len(), p.steps.len());
    let slot = c.below(slots);
    let step = c.below(steps);
    match c.below(9) {
        0 | 1 if !p.edges.is_empty() => _ = p.edges.remove(c.below(p.edges.len())),
        2 => {
            if let SlotKind::Arena { offset } = &mut p.slots[slot].kind {
                *offset = c.below(4) * 64;
            }
        }
        3 => {
            let other = c.below(slots);
            let kinds = (p.slots[slot].kind, p.slots[other].kind);
            if let (SlotKind::Arena { .. }, SlotKind::Arena { .. }) = kinds {
                (p.slots[slot].kind, p.slots[other].kind) = (kinds.1, kinds.0);
            }
        }
        4 if !p.outputs.is_empty() => {
            let o = c.below(p.outputs.len());
            p.outputs[o].in_place = Some(c.below(p.inputs.len()) as u32);
        }
        5 => {
            let args = p.steps[step].args.len();
            p.steps[step].args[c.below(args)] = slot as u32;
        }
        6 => p.steps.swap(step, (step + 1) % steps),
        7 => {
            if let StepKind::Kernel(k) = &mut p.steps[step].kind
                && let Inst::Load { access, .. } = &mut k.body[0]
            {
                (access.offset, access.strides[0]) = [(0, 1), (15, -1), (1, 1), (0, 0)][c.below(4)];
            }
        }
        _ => {
            if let StepKind::Kernel(k) = &mut p.steps[step].kind {
                k.domain[0] = LENGTHS[c.below(3)];
            }
        }
    }
}

/// Where each slot's elements lie, and what is in all memories.
struct Machine {
    memories: Vec<Vec<u32>>,
    /// (memory, first element) of each slot.
    place: Vec<(usize, usize)>,
}

impl Machine {
    /// `apart`: every slot in memory of its own. `shared`: outputs in place. Fresh memory holds `garbage`.
    fn new(p: &Plan, apart: bool, shared: bool, garbage: u32) -> Machine {
        let (i, o) = (p.inputs.len(), p.outputs.len());
        let mut memories: Vec<Vec<u32>> = p
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| (0..input.bytes as u32 / 4).map(|e| mix(i as u32, e)).collect())
            .collect();
        memories.extend(p.outputs.iter().map(|o| vec![garbage; o.ty.bytes() / 4]));
        memories.push(vec![garbage; p.arena_bytes / 4]);
        let mut place = Vec::new();
        for slot in &p.slots {
            place.push(match slot.kind {
                SlotKind::Arena { .. } if apart => {
                    memories.push(vec![garbage; slot.bytes / 4]);
                    (memories.len() - 1, 0)
                }
                SlotKind::Arena { offset } => (i + o, offset / 4),
                SlotKind::Input(k) => (k as usize, 0),
                SlotKind::Output(k) => match p.outputs[k as usize].in_place {
                    Some(at) if shared => (at as usize, 0),
                    _ => (i + k as usize, 0),
                },
            });
        }
        Machine { memories, place }
    }

    /// Runs one step; `walk` 0: points ascending, 1: descending, 2: all loads before all stores.
    fn step(&mut self, p: &Plan, t: usize, walk: usize) {
        let StepKind::Kernel(k) = &p.steps[t].kind else { unreachable!() };
        let n = k.domain[0];
        let place = |a: &Access, point: usize| {
            let (memory, first) = self.place[p.steps[t].args[a.arg as usize] as usize];
            (memory, (first as i64 + a.offset + a.strides[0] * point as i64) as usize)
        };
        let value = |memories: &[Vec<u32>], point: usize| {
            k.body.iter().fold(mix(t as u32, 7), |v, inst| match inst {
                Inst::Load { access, .. } => {
                    let (m, e) = place(access, point);
                    mix(v, memories[m][e])
                }
                _ => v,
            })
        };
        let Some(Inst::Store { access, .. }) = k.body.last() else { unreachable!() };
        let targets: Vec<(usize, usize)> = (0..n).map(|point| place(access, point)).collect();
        if walk == 2 {
            let values: Vec<u32> = (0..n).map(|point| value(&self.memories, point)).collect();
            targets.iter().zip(values).for_each(|(&(m, e), v)| self.memories[m][e] = v);
            return;
        }
        for i in 0..n {
            let point = if walk == 1 { n - 1 - i } else { i };
            let v = value(&self.memories, point);
            let (m, e) = targets[point];
            self.memories[m][e] = v;
        }
    }

    fn outputs(&self, p: &Plan) -> Vec<Vec<u32>> {
        (0..p.outputs.len())
            .map(|o| {
                let slot = p.slots.iter().position(|s| s.kind == SlotKind::Output(o as u32)).unwrap();
                let (m, first) = self.place[slot];
                self.memories[m][first..first + p.outputs[o].ty.bytes() / 4].to_vec()
            })
            .collect()
    }
}

fn mix(a: u32, b: u32) -> u32 {
    let x = (a ^ b.rotate_left(15)).wrapping_mul(0x9e37_79b1).wrapping_add(b);
    (x ^ (x >> 15)).wrapping_mul(0x85eb_ca6b)
}

/// An order that the edges allow, drawn by `seed`.
fn order(p: &Plan, mut seed: u32) -> Vec<usize> {
    let n = p.steps.len();
    let mut done = vec![false; n];
    let mut out = Vec::new();
    while out.len() < n {
        let ready: Vec<usize> =
            (0..n).filter(|&t| !done[t] && p.edges.iter().all(|&(a, b)| b as usize != t || done[a as usize])).collect();
        seed = mix(seed, out.len() as u32);
        let t = ready[seed as usize % ready.len()];
        done[t] = true;
        out.push(t);
    }
    out
}

/// Runs an accepted plan in many ways; all must agree.
fn runs_alike(p: &Plan) -> Result<(), TestCaseError> {
    let mut reference = Machine::new(p, true, false, 0);
    (0..p.steps.len()).for_each(|t| reference.step(p, t, 2));
    let expected = reference.outputs(p);
    for seed in 0..60 {
        let order = order(p, seed);
        let shared = seed % 2 == 0;
        let mut machine = Machine::new(p, false, shared, mix(seed, 99));
        for &t in &order {
            machine.step(p, t, seed as usize / 2 % 3);
        }
        prop_assert_eq!(machine.outputs(p), &expected[..], "order {:?}, in place: {}\n{:#?}", order, shared, p);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn right_plans_are_accepted_and_run_alike(choices in prop::collection::vec(any::<u16>(), 0..100)) {
        let p = valid(&mut Choices(choices.iter()));
        match check(p) {
            Ok(checked) => runs_alike(checked.plan())?,
            Err(r) => prop_assert!(false, "{}", r),
        }
    }

    #[test]
    fn spoiled_plans_that_are_accepted_run_alike(
        choices in prop::collection::vec(any::<u16>(), 0..100),
        spoiling in prop::collection::vec(any::<u16>(), 1..12),
    ) {
        let mut p = valid(&mut Choices(choices.iter()));
        let mut c = Choices(spoiling.iter());
        for _ in 0..1 + c.below(2) {
            spoil(&mut p, &mut c);
        }
        if let Ok(checked) = check(p) {
            runs_alike(checked.plan())?;
        }
    }
}

/// Taking away any one edge that carries a conflict is found: the checker accepts exactly if another path remains.
#[test]
fn edges_of_random_plans_are_needed() {
    let (mut refused, mut removed) = (0, 0);
    let mut state = 1u32;
    for _ in 0..200 {
        let choices: Vec<u16> = (0..100)
            .map(|i| {
                state = mix(state, i);
                (state >> 7) as u16
            })
            .collect();
        let p = valid(&mut Choices(choices.iter()));
        let paths = Paths::new(&p).ok().unwrap();
        for e in 0..p.edges.len() {
            let mut less = p.clone();
            let (a, b) = less.edges.remove(e);
            let other_path = Paths::new(&less).ok().unwrap().reaches(a, b);
            assert!(paths.reaches(a, b));
            removed += 1;
            match check(less) {
                Ok(_) => assert!(other_path, "edge {a} -> {b} of {p:#?}"),
                Err(r) => {
                    assert!(!other_path, "{r}");
                    let ordering = matches!(r.fault, Fault::Race { .. } | Fault::InPlace { .. });
                    assert!(ordering, "{r}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 500, "{refused} of {removed}");
}
