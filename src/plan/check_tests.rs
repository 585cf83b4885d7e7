//! Valid plans pass; each way of spoiling one is refused for the right reason.

use super::*;
use crate::base::{Layout, Shape, Type};
use crate::kernel::library::{Library, Matmul, Operand, ScatterAdd};
use crate::kernel::{Access, Arg, Combine, Guard, Inst, Instr, Kernel, Val};
use crate::plan::{PlanInput, PlanOutput, Slot, Step};

const N: usize = 100;

fn ty(n: usize) -> Type {
    Type::new(DType::F32, Shape::new(&[n]).unwrap())
}

fn input(n: usize, var: bool) -> PlanInput {
    PlanInput { ty: ty(n), layout: Layout::contiguous(ty(n).shape), bytes: n * 4, var }
}

fn own(n: usize, in_place: Option<u32>) -> PlanOutput {
    let storage = OutputStorage::Own { bytes: n * 4 };
    PlanOutput { ty: ty(n), storage, layout: Layout::contiguous(ty(n).shape), in_place }
}

fn at(arg: u32, offset: i64, strides: &[i64]) -> Access {
    Access { arg, offset, strides: strides.to_vec(), dynamic: Vec::new() }
}

fn load(arg: u32, offset: i64, strides: &[i64]) -> Inst {
    Inst::Load { access: at(arg, offset, strides), guards: Vec::new() }
}

fn store(arg: u32, offset: i64, strides: &[i64], value: u32) -> Inst {
    Inst::Store { access: at(arg, offset, strides), value: Val(value) }
}

fn f32s(len: usize, output: bool) -> Arg {
    Arg { dtype: DType::F32, len, output }
}

/// `y = -x` over n elements; args x, y.
fn neg(n: usize) -> Kernel {
    Kernel {
        domain: vec![n],
        reduced: vec![false],
        args: vec![f32s(n, false), f32s(n, true)],
        params: vec![],
        body: vec![load(0, 0, &[1]), Inst::Op { instr: Instr::Neg, args: [Val(0); 3] }, store(1, 0, &[1], 1)],
    }
}

/// `z = x + y` over n elements; args x, y, z.
fn add(n: usize) -> Kernel {
    Kernel {
        domain: vec![n],
        reduced: vec![false],
        args: vec![f32s(n, false), f32s(n, false), f32s(n, true)],
        params: vec![],
        body: vec![
            load(0, 0, &[1]),
            load(1, 0, &[1]),
            Inst::Op { instr: Instr::Add, args: [Val(0), Val(1), Val(0)] },
            store(2, 0, &[1], 2),
        ],
    }
}

fn step(kernel: Kernel, args: &[u32]) -> Step {
    Step { kind: StepKind::Kernel(kernel), args: args.to_vec(), params: vec![], locs: vec![], label: "k".to_string() }
}

fn slot(kind: SlotKind, bytes: usize) -> Slot {
    Slot { kind, bytes }
}

/// x -> a -> b -> c -> y, where c re-uses the bytes of a. Slots: 0 x, 1 a, 2 b, 3 c, 4 y.
fn chain() -> Plan {
    let arena = |offset| slot(SlotKind::Arena { offset }, N * 4);
    Plan {
        name: "chain".into(),
        slots: vec![slot(SlotKind::Input(0), N * 4), arena(0), arena(448), arena(0), slot(SlotKind::Output(0), N * 4)],
        steps: vec![step(neg(N), &[0, 1]), step(neg(N), &[1, 2]), step(neg(N), &[2, 3]), step(neg(N), &[3, 4])],
        edges: vec![(0, 1), (1, 2), (2, 3)],
        arena_bytes: 896,
        inputs: vec![input(N, false)],
        outputs: vec![own(N, None)],
        params: vec![],
    }
}

/// x -> a; a -> b; a -> c; b + c -> y. Slots: 0 x, 1 a, 2 b, 3 c, 4 y.
fn diamond() -> Plan {
    let mut p = chain();
    p.name = "diamond".into();
    p.slots[3].kind = SlotKind::Arena { offset: 896 };
    p.arena_bytes = 1344;
    p.steps = vec![step(neg(N), &[0, 1]), step(neg(N), &[1, 2]), step(neg(N), &[1, 3]), step(add(N), &[2, 3, 4])];
    p.edges = vec![(0, 1), (0, 2), (1, 3), (2, 3)];
    p
}

/// A `Var` w with w' = -w in place, and y = -w. Slots: 0 w, 1 y, 2 w'.
fn update() -> Plan {
    Plan {
        name: "update".into(),
        slots: vec![
            slot(SlotKind::Input(0), N * 4),
            slot(SlotKind::Output(0), N * 4),
            slot(SlotKind::Output(1), N * 4),
        ],
        steps: vec![step(neg(N), &[0, 1]), step(neg(N), &[0, 2])],
        edges: vec![(0, 1)],
        arena_bytes: 0,
        inputs: vec![input(N, true)],
        outputs: vec![own(N, None), own(N, Some(0))],
        params: vec![],
    }
}

/// The fault of the plan after `spoil`; the plan before it must be accepted.
#[track_caller]
fn fault(plan: Plan, spoil: impl FnOnce(&mut Plan)) -> Fault {
    if let Err(r) = check(plan.clone()) {
        panic!("the plan was refused before it was spoiled: {r}");
    }
    let mut spoiled = plan;
    spoil(&mut spoiled);
    match check(spoiled) {
        Ok(_) => panic!("a spoiled plan was accepted"),
        Err(r) => r.fault,
    }
}

#[track_caller]
fn accepted(plan: Plan) {
    if let Err(r) = check(plan) {
        panic!("{r}");
    }
}

fn kernel(plan: &mut Plan, step: usize) -> &mut Kernel {
    match &mut plan.steps[step].kind {
        StepKind::Kernel(k) => k,
        StepKind::Library(_) => panic!("a library step"),
    }
}

#[test]
fn valid_plans_are_accepted() {
    accepted(chain());
    accepted(diamond());
    accepted(update());
    accepted(Plan::default());
}

#[test]
fn positions_that_do_not_exist() {
    use Fault::BadIndex;
    let slot = BadIndex { what: "slot", index: 9 };
    assert_eq!(fault(chain(), |p| p.steps[1].args[0] = 9), slot);
    assert_eq!(fault(chain(), |p| p.edges.push((0, 9))), BadIndex { what: "step", index: 9 });
    assert_eq!(fault(chain(), |p| p.slots[0].kind = SlotKind::Input(1)), BadIndex { what: "input", index: 1 });
    assert_eq!(fault(chain(), |p| p.slots[4].kind = SlotKind::Output(1)), BadIndex { what: "output", index: 1 });
    assert_eq!(fault(update(), |p| p.outputs[1].in_place = Some(3)), BadIndex { what: "input", index: 3 });
    assert_eq!(
        fault(chain(), |p| p.outputs[0].storage = OutputStorage::Output(0)),
        BadIndex { what: "output", index: 0 }
    );
    assert_eq!(
        fault(chain(), |p| {
            kernel(p, 0).params = vec![crate::kernel::Ty::F32];
            p.steps[0].params = vec![0];
        }),
        BadIndex { what: "param", index: 0 }
    );
}

#[test]
fn slots_outside_the_arena() {
    assert_eq!(fault(chain(), |p| p.slots[2].kind = SlotKind::Arena { offset: 416 }), Fault::Offset { slot: 2 });
    assert_eq!(fault(chain(), |p| p.slots[2].kind = SlotKind::Arena { offset: 512 }), Fault::Offset { slot: 2 });
    assert_eq!(fault(chain(), |p| p.arena_bytes = 700), Fault::Offset { slot: 2 });
    let huge = SlotKind::Arena { offset: usize::MAX - 63 };
    assert_eq!(fault(chain(), |p| p.slots[2].kind = huge), Fault::Offset { slot: 2 });
}

#[test]
fn accesses_out_of_bounds() {
    let bounds = |index| Fault::Bounds { what: "step", index };
    // The slot is too small for the kernel, then the kernel's argument for its access.
    assert_eq!(fault(chain(), |p| p.slots[1].bytes = 396), bounds(0));
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[0] = load(0, 1, &[1])), bounds(1));
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[0] = load(0, -1, &[1])), bounds(1));
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[0] = load(0, 98, &[-1])), bounds(1));
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[0] = load(0, 0, &[i64::MAX])), bounds(1));
    accepted({
        let mut p = chain();
        kernel(&mut p, 1).body[0] = load(0, 99, &[-1]);
        p
    });
    // A slice start that may reach too far.
    let slice = |max| {
        let mut access = at(0, 0, &[0]);
        access.dynamic.push(crate::kernel::ir::Dynamic { param: 0, stride: 1, max });
        let mut p = chain();
        p.params = vec![DType::I64];
        p.steps[1].params = vec![0];
        kernel(&mut p, 1).params = vec![crate::kernel::Ty::I64];
        kernel(&mut p, 1).body[0] = Inst::Load { access, guards: vec![] };
        p
    };
    assert_eq!(fault(slice(99), |p| *p = slice(100)), bounds(1));
    assert_eq!(fault(slice(99), |p| *p = slice(i64::MAX)), bounds(1));
    // Buffers smaller than what the plan takes from them.
    assert_eq!(fault(chain(), |p| p.inputs[0].bytes = 396), Fault::Bounds { what: "input", index: 0 });
    assert_eq!(
        fault(chain(), |p| p.outputs[0].storage = OutputStorage::Own { bytes: 396 }),
        Fault::Bounds { what: "output", index: 0 }
    );
    assert_eq!(fault(chain(), |p| p.slots[0].bytes = 404), Fault::Bounds { what: "slot", index: 0 });
    assert_eq!(fault(chain(), |p| p.outputs[0].layout.offset = 1), Fault::Bounds { what: "output", index: 0 });
}

#[test]
fn guards_narrow_an_access_and_gathers_widen_it() {
    // Reads x[i - 10] for 10 <= i: the padding of a shift.
    let guarded = |lo| {
        let mut p = chain();
        kernel(&mut p, 0).body[0] =
            Inst::Load { access: at(0, -10, &[1]), guards: vec![Guard { axis: 0, lo, hi: 100 }] };
        p
    };
    assert_eq!(fault(guarded(10), |p| *p = guarded(9)), Fault::Bounds { what: "step", index: 0 });
    accepted(guarded(100));
    let gather = |len| {
        let mut p = chain();
        p.steps[1] = step(
            Kernel {
                body: vec![
                    Inst::Index { axis: 0 },
                    Inst::Gather { access: at(0, 0, &[0]), index: Val(0), stride: 1, len },
                    store(1, 0, &[1], 1),
                ],
                ..neg(N)
            },
            &[1, 2],
        );
        p
    };
    assert_eq!(fault(gather(100), |p| *p = gather(101)), Fault::Bounds { what: "step", index: 1 });
    assert_eq!(fault(gather(100), |p| *p = gather(0)), Fault::Kernel { step: 1 });
}

#[test]
fn edges_lead_forward() {
    assert_eq!(fault(chain(), |p| p.edges.push((2, 1))), Fault::Order { from: 2, to: 1 });
    assert_eq!(fault(chain(), |p| p.edges.push((1, 1))), Fault::Order { from: 1, to: 1 });
}

#[test]
fn every_missing_edge_is_a_race() {
    for (plan, edge) in (0..3).map(|e| (chain(), e)).chain((0..4).map(|e| (diamond(), e))) {
        let (a, b) = plan.edges[edge];
        let found = fault(plan, |p| {
            p.edges.remove(edge);
        });
        assert_eq!(found, Fault::Race { a, b });
    }
}

#[test]
fn a_path_is_as_good_as_an_edge() {
    // Step 0 writes a, step 3 reads it; the path goes over 1 and 2.
    let mut p = chain();
    p.slots[3].kind = SlotKind::Arena { offset: 896 };
    p.arena_bytes = 1344;
    p.steps[3] = step(add(N), &[1, 3, 4]);
    assert_eq!(fault(p, |p| p.edges = vec![(0, 1), (1, 2), (1, 3)]), Fault::Race { a: 2, b: 3 });
}

#[test]
fn reuse_of_bytes_that_a_branch_still_reads() {
    // c over a: step 2 would write over what step 1, on another branch, reads.
    let found = fault(diamond(), |p| {
        p.slots[3].kind = SlotKind::Arena { offset: 0 };
        p.steps[2] = step(neg(N), &[0, 3]);
        p.edges = vec![(0, 1), (0, 2), (1, 3), (2, 3)];
    });
    assert_eq!(found, Fault::Race { a: 1, b: 2 });
    // The same with the branches in order is right.
    let mut p = diamond();
    p.slots[3].kind = SlotKind::Arena { offset: 0 };
    p.steps[2] = step(neg(N), &[0, 3]);
    p.edges = vec![(0, 1), (1, 2), (2, 3)];
    accepted(p);
}

#[test]
fn partial_overlap_is_overlap() {
    let found = fault(diamond(), |p| p.slots[3].kind = SlotKind::Arena { offset: 448 + 64 });
    assert_eq!(found, Fault::Race { a: 1, b: 2 });
}

#[test]
fn values_overwritten_while_needed() {
    // b over a in the same step is element by element and fine; then a is gone.
    let mut p = chain();
    p.slots[2].kind = SlotKind::Arena { offset: 0 };
    accepted(p);
    let found = fault(chain(), |p| {
        // y = b + c, with c over b.
        p.slots[3].kind = SlotKind::Arena { offset: 448 };
        p.steps[3] = step(add(N), &[2, 3, 4]);
    });
    assert_eq!(found, Fault::Clobbered { step: 3, slot: 2, by: 2 });
    // c over a is fine until a is read at the end.
    let found = fault(chain(), |p| p.steps[3] = step(add(N), &[1, 3, 4]));
    assert_eq!(found, Fault::Clobbered { step: 3, slot: 1, by: 2 });
}

#[test]
fn reads_of_what_nothing_wrote() {
    assert_eq!(fault(chain(), |p| p.steps[0] = step(neg(N), &[2, 1])), Fault::Uninitialised { step: 0, slot: 2 });
    assert_eq!(fault(chain(), |p| p.steps[0] = step(neg(N - 1), &[0, 1])), Fault::Uninitialised { step: 1, slot: 1 });
    // Every other element is not the whole either.
    let half = Kernel {
        args: vec![f32s(N, false), f32s(N, true)],
        body: vec![load(0, 0, &[1]), store(1, 0, &[2], 0)],
        ..neg(N / 2)
    };
    assert_eq!(fault(chain(), |p| p.steps[0] = step(half, &[0, 1])), Fault::Uninitialised { step: 1, slot: 1 });
}

#[test]
fn outputs_not_written() {
    assert_eq!(fault(chain(), |p| p.steps[3].args[1] = 2), {
        // It then overwrites b, which is allowed; but y is missing.
        Fault::Unwritten { output: 0 }
    });
    assert_eq!(fault(chain(), |p| p.steps[3] = step(neg(N - 1), &[3, 4])), Fault::Unwritten { output: 0 });
    assert_eq!(
        fault(chain(), |p| {
            p.steps.pop();
            p.edges.pop();
        }),
        Fault::Unwritten { output: 0 }
    );
}

#[test]
fn an_output_in_parts() {
    // Two steps write the columns 0..2 and 2..5 of a 4 x 5 output, in any order.
    let part = |from: i64, cols: usize| Kernel {
        domain: vec![4, cols],
        reduced: vec![false, false],
        args: vec![f32s(20, false), f32s(20, true)],
        params: vec![],
        body: vec![load(0, from, &[5, 1]), store(1, from, &[5, 1], 0)],
    };
    let plan = |parts: &[(i64, usize)]| Plan {
        name: "parts".into(),
        slots: vec![slot(SlotKind::Input(0), 80), slot(SlotKind::Output(0), 80)],
        steps: parts.iter().map(|&(from, cols)| step(part(from, cols), &[0, 1])).collect(),
        edges: vec![],
        arena_bytes: 0,
        inputs: vec![input(20, false)],
        outputs: vec![own(20, None)],
        params: vec![],
    };
    let whole = plan(&[(0, 2), (2, 3)]);
    assert_eq!(fault(whole.clone(), |p| *p = plan(&[(0, 2), (3, 2)])), Fault::Unwritten { output: 0 });
    assert_eq!(fault(whole, |p| *p = plan(&[(0, 3), (2, 3)])), Fault::Race { a: 0, b: 1 });
}

#[test]
fn in_place_under_readers_of_the_old_value() {
    let pair = Fault::InPlace { output: 1, input: 0 };
    // Not ordered, then in the wrong order.
    assert_eq!(fault(update(), |p| p.edges.clear()), pair);
    assert_eq!(fault(update(), |p| p.steps.swap(0, 1)), pair);
    // Right without the pair.
    let mut p = update();
    p.outputs[1].in_place = None;
    p.edges.clear();
    accepted(p);
}

#[test]
fn in_place_pairs_that_cannot_be() {
    let pair = Fault::InPlace { output: 1, input: 0 };
    assert_eq!(fault(update(), |p| p.inputs[0].var = false), pair);
    assert_eq!(fault(update(), |p| p.outputs[0].in_place = Some(0)), pair);
    assert_eq!(fault(update(), |p| p.outputs[1].storage = OutputStorage::Own { bytes: 404 }), pair);
    assert_eq!(
        fault(update(), |p| {
            p.outputs[0].storage = OutputStorage::Input(0);
            p.steps.remove(0);
            p.edges.clear();
        }),
        pair
    );
    assert_eq!(fault(update(), |p| p.outputs[1].storage = OutputStorage::Input(0)), pair);
}

#[test]
fn in_place_in_one_step_is_element_by_element() {
    let pair = Fault::InPlace { output: 1, input: 0 };
    let body = |first: Inst| vec![first, store(1, 0, &[1], 0)];
    let guards = vec![Guard { axis: 0, lo: 0, hi: 100 }];
    let reversed = body(load(0, 99, &[-1]));
    let guarded = body(Inst::Load { access: at(0, 0, &[1]), guards });
    let broadcast = body(load(0, 0, &[0]));
    let twice = vec![load(0, 0, &[1]), load(0, 5, &[0]), store(1, 0, &[1], 0)];
    for spoiled in [reversed, guarded, broadcast, twice] {
        let mut p = update();
        kernel(&mut p, 1).body = spoiled;
        assert_eq!(fault(update(), |q| *q = p.clone()), pair);
        // The same kernel is fine where the output has its own memory.
        p.outputs[1].in_place = None;
        accepted(p);
    }
}

#[test]
fn in_place_over_rows() {
    // x[i, j] - max_j x[i, j] over 10 rows: each row touches only itself.
    let rows = |load_strides: &[i64; 2]| Kernel {
        domain: vec![10, 10],
        reduced: vec![false, true],
        args: vec![f32s(N, false), f32s(N, true)],
        params: vec![],
        body: vec![
            load(0, 0, load_strides),
            Inst::Reduce { combine: Combine::Max, value: Val(0) },
            Inst::Op { instr: Instr::Sub, args: [Val(0), Val(1), Val(0)] },
            store(1, 0, &[10, 1], 2),
        ],
    };
    let mut p = update();
    *kernel(&mut p, 1) = rows(&[10, 1]);
    // Columns read, rows written: another row's elements are lost.
    assert_eq!(fault(p, |p| *kernel(p, 1) = rows(&[1, 10])), Fault::InPlace { output: 1, input: 0 });
    // The row's maximum over its first element: the other rows' elements are still whole, but the
    // kernel may read its row again.
    let mut p = chain();
    let k = kernel(&mut p, 1);
    *k = rows(&[10, 1]);
    k.body[3] = store(1, 0, &[10, 0], 1);
    p.slots[2].kind = SlotKind::Arena { offset: 0 };
    match check(p).map(|_| ()) {
        Err(r) => assert_eq!(r.fault, Fault::Overlap { step: 1 }),
        Ok(()) => panic!("accepted"),
    }
}

#[test]
fn stores_that_meet() {
    // A value of every point stored to one element; then two stores that share one.
    assert_eq!(fault(chain(), |p| kernel(p, 0).body[2] = store(1, 0, &[0], 1)), Fault::Overlap { step: 0 });
    let halves = |second: i64| {
        let mut p = chain();
        *kernel(&mut p, 0) = Kernel {
            args: vec![f32s(N, false), f32s(N, true)],
            body: vec![load(0, 0, &[1]), store(1, 0, &[1], 0), store(1, second, &[1], 0)],
            ..neg(N / 2)
        };
        p
    };
    assert_eq!(fault(halves(50), |p| *p = halves(49)), Fault::Kernel { step: 0 });
    // A type error inside a kernel.
    let mistyped = Inst::Op { instr: Instr::LNeg, args: [Val(0); 3] };
    assert_eq!(fault(chain(), |p| kernel(p, 0).body[1] = mistyped), Fault::Kernel { step: 0 });
}

#[test]
fn row_values_are_stored_once() {
    // 10 row sums: written densely, though the access has no stride along the inner axis.
    let sums = Kernel {
        domain: vec![10, 10],
        reduced: vec![false, true],
        args: vec![f32s(N, false), f32s(10, true)],
        params: vec![],
        body: vec![
            load(0, 0, &[10, 1]),
            Inst::Reduce { combine: Combine::Sum, value: Val(0) },
            store(1, 0, &[1, 0], 1),
        ],
    };
    let plan = |kernel: Kernel| Plan {
        name: "sums".into(),
        slots: vec![slot(SlotKind::Input(0), N * 4), slot(SlotKind::Output(0), 40)],
        steps: vec![step(kernel, &[0, 1])],
        inputs: vec![input(N, false)],
        outputs: vec![own(10, None)],
        ..Plan::default()
    };
    accepted(plan(sums.clone()));
    // A value of every inner point there is written ten times.
    let mut wrong = sums.clone();
    wrong.body[2] = store(1, 0, &[1, 0], 0);
    assert_eq!(fault(plan(sums.clone()), |p| *p = plan(wrong)), Fault::Overlap { step: 0 });
    // No inner points at all: the identity is still stored; no outer points: nothing is.
    let mut none = sums.clone();
    none.domain[1] = 0;
    accepted(plan(none));
    let mut none = sums;
    none.domain[0] = 0;
    let refused = check(plan(none)).map(|_| ()).unwrap_err();
    assert_eq!(refused.fault, Fault::Unwritten { output: 0 });
}

#[test]
fn signatures() {
    let signature = |step| Fault::Signature { step };
    assert_eq!(
        fault(chain(), |p| {
            p.steps[1].args.pop();
        }),
        signature(1)
    );
    assert_eq!(fault(chain(), |p| p.steps[1].params.push(0)), Fault::BadIndex { what: "param", index: 0 });
    assert_eq!(
        fault(chain(), |p| {
            p.params.push(DType::I64);
            p.steps[1].params.push(0);
        }),
        signature(1)
    );
    assert_eq!(
        fault(chain(), |p| {
            p.params.push(DType::I64);
            p.steps[1].params.push(0);
            kernel(p, 1).params.push(crate::kernel::Ty::F32);
        }),
        signature(1)
    );
    // Writes to an input.
    assert_eq!(fault(chain(), |p| p.steps[3].args[1] = 0), signature(3));
    // Read as another dtype than written.
    assert_eq!(
        fault(chain(), |p| {
            // A copy of 50 integers.
            let k = kernel(p, 1);
            k.domain[0] = 50;
            k.args.iter_mut().for_each(|a| (a.dtype, a.len) = (DType::I64, 50));
            k.body = vec![load(0, 0, &[1]), store(1, 0, &[1], 0)];
        }),
        signature(1)
    );
    // Roles inside the kernel, and values that come later.
    assert_eq!(fault(chain(), |p| kernel(p, 1).args[1].output = false), Fault::Kernel { step: 1 });
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[2] = store(1, 0, &[1], 2)), Fault::Kernel { step: 1 });
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[2] = store(2, 0, &[1], 1)), Fault::Kernel { step: 1 });
    assert_eq!(fault(chain(), |p| kernel(p, 1).body[2] = store(1, 0, &[], 1)), Fault::Kernel { step: 1 });
}

#[test]
fn library_calls() {
    // y[4, 5] = x[4, 3] * w[3, 5]
    let operand = |row, col| Operand { offset: 0, batch: vec![], row, col };
    let matmul = |c: Operand| {
        let (a, b) = (operand(3, 1), operand(5, 1));
        Plan {
            name: "library".into(),
            slots: vec![slot(SlotKind::Input(0), 48), slot(SlotKind::Input(1), 60), slot(SlotKind::Output(0), 80)],
            steps: vec![Step {
                kind: StepKind::Library(Library::Matmul(Matmul {
                    dtype: DType::F32,
                    batch: vec![],
                    m: 4,
                    k: 3,
                    n: 5,
                    a,
                    b,
                    c,
                })),
                args: vec![0, 1, 2],
                params: vec![],
                locs: vec![],
                label: "matmul".into(),
            }],
            inputs: vec![input(12, true), input(15, false)],
            outputs: vec![own(20, None)],
            ..Plan::default()
        }
    };
    let right = matmul(operand(5, 1));
    accepted(matmul(operand(1, 4)));
    assert_eq!(fault(right.clone(), |p| *p = matmul(operand(4, 1))), Fault::Overlap { step: 0 });
    assert_eq!(fault(right.clone(), |p| *p = matmul(operand(6, 1))), Fault::Bounds { what: "step", index: 0 });
    assert_eq!(fault(right.clone(), |p| p.steps[0].args.swap(0, 1)), Fault::Bounds { what: "step", index: 0 });
    // Never in place: not element by element.
    assert_eq!(
        fault(right, |p| {
            p.inputs[0].bytes = 80;
            p.outputs[0].in_place = Some(0);
        }),
        Fault::InPlace { output: 0, input: 0 }
    );
    let scatter = |len| {
        let mut p = matmul(operand(5, 1));
        p.inputs[1] = PlanInput {
            ty: Type::new(DType::I64, Shape::new(&[7]).unwrap()),
            layout: Layout::contiguous(Shape::new(&[7]).unwrap()),
            bytes: 56,
            var: false,
        };
        p.slots[1].bytes = 56;
        p.steps[0].kind = StepKind::Library(Library::ScatterAdd(ScatterAdd {
            dtype: DType::F32,
            outer: 1,
            count: 7,
            len,
            inner: 1,
            index: [0, 1, 0],
            src: [0, 1, 0],
        }));
        p.steps[0].args = vec![1, 0, 2];
        p
    };
    assert_eq!(fault(scatter(20), |p| *p = scatter(19)), Fault::Unwritten { output: 0 });
    assert_eq!(fault(scatter(20), |p| *p = scatter(21)), Fault::Bounds { what: "step", index: 0 });
}

#[test]
fn views_need_what_they_view() {
    // A second output is elements 10..20 of the first, or of the input.
    let mut p = chain();
    let layout = Layout::contiguous(ty(N).shape).slice(0, 10, 10, 1);
    p.outputs.push(PlanOutput { ty: ty(10), storage: OutputStorage::Output(0), layout, in_place: None });
    accepted(p.clone());
    p.outputs[1].storage = OutputStorage::Input(0);
    accepted(p.clone());
    let found = fault(p, |p| p.outputs[1].layout.offset = 91);
    assert_eq!(found, Fault::Bounds { what: "output", index: 1 });
}

/// A plan of `n` steps in `branches` chains that share one input, each ping-ponging between two slots.
fn wide(n: usize, branches: usize) -> Plan {
    let mut p = chain();
    p.slots.truncate(1);
    (p.steps, p.edges, p.outputs) = (vec![], vec![], vec![]);
    p.arena_bytes = branches * 2 * 448;
    for b in 0..branches {
        p.slots.push(slot(SlotKind::Arena { offset: b * 896 }, N * 4));
        p.slots.push(slot(SlotKind::Arena { offset: b * 896 + 448 }, N * 4));
    }
    for t in 0..n {
        let (b, turn) = (t % branches, t / branches % 2);
        let slots = [1 + 2 * b as u32, 2 + 2 * b as u32];
        if t >= branches {
            p.edges.push(((t - branches) as u32, t as u32));
            p.steps.push(step(neg(N), &[slots[1 - turn], slots[turn]]));
        } else {
            p.steps.push(step(neg(N), &[0, slots[turn]]));
        }
    }
    p
}

#[test]
fn large_plans() {
    accepted(wide(5000, 40));
    assert_eq!(fault(wide(5000, 1), |p| _ = p.edges.remove(2500)), Fault::Race { a: 2500, b: 2501 });
    // Beyond the bit matrix paths are searched.
    accepted(wide(CLOSURE_LIMIT + 100, 7));
    let at = CLOSURE_LIMIT;
    let found = fault(wide(CLOSURE_LIMIT + 100, 7), |p| _ = p.edges.remove(at));
    assert_eq!(found, Fault::Race { a: at as u32, b: at as u32 + 7 });
}

#[test]
fn both_ways_of_finding_paths_agree() {
    // A fixed pseudo-random graph of 200 steps; expected: Floyd-Warshall over booleans.
    let n = 200usize;
    let mut p = Plan { steps: vec![step(neg(1), &[]); n], ..Plan::default() };
    let mut state = 12345u64;
    for _ in 0..260 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (a, b) = ((state >> 33) as usize % n, (state >> 45) as usize % n);
        if a != b {
            p.edges.push((a.min(b) as u32, a.max(b) as u32));
        }
    }
    let mut expected = vec![vec![false; n]; n];
    for (a, row) in expected.iter_mut().enumerate() {
        row[a] = true;
    }
    for &(a, b) in &p.edges {
        expected[a as usize][b as usize] = true;
    }
    for k in 0..n {
        for a in 0..n {
            for b in 0..n {
                expected[a][b] |= expected[a][k] && expected[k][b];
            }
        }
    }
    let closure = Paths::with_limit(&p, n).ok().unwrap();
    let search = Paths::with_limit(&p, 0).ok().unwrap();
    for a in 0..n as u32 {
        for b in 0..n as u32 {
            assert_eq!(closure.reaches(a, b), expected[a as usize][b as usize], "{a} {b}");
            assert_eq!(search.reaches(a, b), expected[a as usize][b as usize], "{a} {b}");
        }
    }
}

/// `cargo test --release checking_time -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn checking_time() {
    for (n, branches) in [(40, 3), (5000, 1), (5000, 40), (5000, 1000)] {
        let mut times: Vec<_> = (0..21)
            .map(|_| {
                let p = wide(n, branches);
                let start = std::time::Instant::now();
                let checked = check(p);
                let time = start.elapsed();
                assert!(checked.is_ok());
                time
            })
            .collect();
        times.sort();
        println!("{n} steps in {branches} branches: {:?}", times[10]);
    }
}
