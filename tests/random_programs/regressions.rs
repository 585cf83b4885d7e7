//! Programs that failed once, shrunk; and programs for faults that were found on the way.

#![allow(unused_imports)]

use crate::check;
use crate::program::Binary::*;
use crate::program::Dim::*;
use crate::program::Host::*;
use crate::program::Reduction::*;
use crate::program::Stmt::*;
use crate::program::Type::*;
use crate::program::Unary::*;
use crate::program::When::*;
use crate::program::{Line, Options, Program, Stmt};

const OPTIONS: Options =
    Options { fuse: true, in_place: true, plan_cache: 64, device: 0, wild: 0, threads: 0, starved: 0 };

#[track_caller]
fn holds(p: Program) {
    if let Err(e) = check::run(&p) {
        panic!("{e}\n{p}");
    }
}

fn always(stmts: Vec<Stmt>) -> Vec<Line> {
    stmts.into_iter().map(|s| Line(Always, s)).collect()
}

/// A view that begins behind the end of its empty memory was read there.
#[test]
fn values_without_elements_are_read() {
    for (k, d) in [(13, 2), (12, 5)] {
        holds(Program {
            m: (3, 3),
            alt: 0,
            n: 0,
            steps: vec![1; 4],
            options: OPTIONS,
            before: vec![],
            body: always(vec![
                Input { d, k: vec![k] },
                Slice { d, a: d, axis: 2, start: Fixed(2.0), len: 4, step: 1 },
                Return { a: d },
            ]),
        });
    }
}

/// The kernel read an element of an expanded operand once per row although the rows have no points.
#[test]
fn sums_over_no_points_read_nothing() {
    holds(Program {
        m: (0, 2),
        alt: 0b10010,
        n: 1,
        steps: vec![1; 6],
        options: OPTIONS,
        before: vec![],
        body: always(vec![
            Input { d: 2, k: vec![4] },
            Reduce { d: 7, op: Sum, a: 2, axes: 7, keepdim: false },
            Return { a: 7 },
        ]),
    });
}

/// A value that an earlier call made from a `Var` is no constant: its tape has ended, and `backward` says so, inside a
/// step, outside of it, and at every call. Detached it is one.
#[test]
fn values_of_earlier_calls_are_not_taken_for_constants() -> stepgraph::Result<()> {
    use stepgraph::{ErrorKind, Tensor, Var, jit};
    let device = check::device(0);
    let w = Var::new(&Tensor::from_vec(vec![2.0f32, 3.0], [2], &device)?)?;
    let refused = |r: stepgraph::Result<stepgraph::Gradients>| {
        assert!(matches!(r.unwrap_err().kind(), ErrorKind::Backward { .. }));
    };
    let mut step = jit::Step::new();
    let mut kept: Option<Tensor> = None;
    for call in 0..6 {
        kept = Some(step.run(|| {
            let h = match &kept {
                Some(h) => (h * &w.get())?,
                None => w.get().exp()?,
            };
            let loss = h.sum(())?;
            match kept {
                Some(_) => refused(loss.backward()),
                None => _ = loss.backward()?,
            }
            // In every call a constant, once it is detached.
            let d = (h.detach()? * w.get())?.sum(())?.backward()?.get(&w).unwrap();
            assert_eq!(d.to_vec::<f32>()?, h.to_vec::<f32>()?, "call {call}");
            Ok(h)
        })?);
        let h = kept.clone().unwrap();
        refused((&h * &w.get())?.sum(())?.backward());
        refused(h.sum(())?.backward());
        assert!((h.detach()? * w.get())?.sum(())?.backward().is_ok());
    }
    // A gradient is a constant wherever it goes.
    let mut step = jit::Step::new();
    let mut kept: Option<Tensor> = None;
    for _ in 0..5 {
        kept = Some(step.run(|| {
            let x = kept.clone().map_or_else(|| w.get().detach(), Ok)?;
            (x * w.get())?.sum(())?.backward()?.get(&w).unwrap().detach()
        })?);
        assert_eq!(kept.as_ref().unwrap().to_vec::<f32>()?, [2.0, 3.0]);
    }
    Ok(())
}

/// A variable was read after a write, the value dropped, and read again after a host read, or after the recorded path
/// was left: the second read gave a handle that nothing filled.
#[test]
fn variables_read_again_later() {
    let program = |between: Vec<Line>| Program {
        m: (3, 3),
        alt: 0,
        n: 2,
        steps: vec![1; 7],
        options: OPTIONS,
        before: vec![],
        body: [
            always(vec![
                Swap { v: 1, w: 0 },
                Get { d: 3, v: vec![3] },
                Get { d: 2, v: vec![0] },
                Unary { d: 2, op: Tanh, a: 3 },
                Draw { d: 5, rng: 0, dims: vec![] },
            ]),
            between,
            always(vec![Get { d: 0, v: vec![0] }, Return { a: 0 }, Unary { d: 1, op: Tanh, a: 0 }, Return { a: 1 }]),
        ]
        .concat(),
    };
    holds(program(always(vec![Read { a: 5 }])));
    holds(program(vec![Line(Calls(0b100100), Unary { d: 6, op: Exp, a: 5 })]));
    holds(program(vec![Line(Calls(0b100110), Unary { d: 6, op: Exp, a: 5 }), Line(Calls(0b1011000), Read { a: 5 })]));
}

/// A value that goes from one segment to the next lies in memory as the plan of the first one has it, which depends on
/// what else is kept.
#[test]
fn values_between_segments_may_lie_otherwise() {
    holds(Program {
        m: (3, 3),
        alt: 0,
        n: 2,
        steps: vec![1; 12],
        options: OPTIONS,
        before: vec![],
        body: [
            always(vec![
                Input { d: 0, k: vec![0] },
                Unary { d: 1, op: Exp, a: 0 },
                Transpose { d: 2, a: 1, x: 0, y: 1 },
                Reduce { d: 3, op: Sum, a: 2, axes: 3, keepdim: false },
            ]),
            vec![Line(Calls(0b1101_1110_1000), Push { a: 1 })],
            always(vec![Input { d: 1, k: vec![0] }, Read { a: 3 }, Unary { d: 4, op: Neg, a: 2 }, Return { a: 4 }]),
        ]
        .concat(),
    });
}

/// Whether a gradient would flow through a value from outside is guarded: the same place sees a constant, what the
/// variable holds anyway, and a value with a tape, in turn.
#[test]
fn constants_and_taped_values_in_turn() -> stepgraph::Result<()> {
    use stepgraph::{Tensor, Var, jit};
    let device = check::device(0);
    let w = Var::new(&Tensor::from_vec(vec![2.0f32, 3.0], [2], &device)?)?;
    let constant = Tensor::from_vec(vec![5.0f32, 7.0], [2], &device)?;
    let (snapshot, taped) = (w.get(), (w.get() * 2.0)?);
    let mut step = jit::Step::new();
    for call in 0..18 {
        let (x, expected) = match call % 6 {
            3 => (&snapshot, Some([4.0, 6.0])),
            5 => (&taped, None),
            _ => (&constant, Some([5.0, 7.0])),
        };
        let grads = step.run(|| (x * &w.get())?.sum(())?.backward()).ok();
        let grad = grads.and_then(|g| g.get(&w)).map(|g| g.to_vec::<f32>()).transpose()?;
        assert_eq!(grad.as_deref(), expected.as_ref().map(|e| &e[..]), "call {call}");
    }
    Ok(())
}

/// A number of another kind takes effect at its call, whatever matched before.
#[test]
fn numbers_of_either_kind_for_integers() {
    holds(Program {
        m: (3, 3),
        alt: 0,
        n: 2,
        steps: vec![1; 8],
        options: OPTIONS,
        before: vec![],
        body: always(vec![
            Input { d: 0, k: vec![10] },
            WithHost { d: 1, op: Mul, a: 0, host: Schedule(0.75), left: false },
            WithHost { d: 1, op: Lt, a: 0, host: Schedule(0.75), left: false },
            Return { a: 1 },
        ]),
    });
}

/// A scatter_add whose sum could not be formed had computed, and flagged, its indices already.
#[test]
fn what_fails_finds_no_index_out_of_range() {
    holds(Program {
        m: (2, 3),
        alt: 0b101,
        n: 3,
        steps: vec![1; 4],
        options: Options { wild: 0b1111, ..OPTIONS },
        before: vec![],
        body: always(vec![
            Draw { d: 5, rng: 1, dims: vec![N, M] },
            Draw { d: 7, rng: 0, dims: vec![M, N] },
            ScatterAdd { d: 0, a: 5, b: 7, c: 7, axis: 1 },
        ]),
    });
}

/// A closure panicked, and there was no memory for what had been promised: the handles were promised again by the next
/// call, and what a user had kept became another call's.
#[test]
fn what_a_panic_without_memory_kept_stays_lost() {
    for starved in 0..16 {
        holds(Program {
            m: (3, 3),
            alt: 0,
            n: 3,
            steps: vec![1; 5],
            options: Options { starved: starved << 1, ..OPTIONS },
            before: vec![],
            body: [
                always(vec![
                    Get { d: 2, v: vec![6] },
                    WithHost { d: 3, op: Mul, a: 2, host: Schedule(0.5), left: false },
                    Backward { a: 3 },
                    KeepGrads { slot: 1 },
                    Keep { slot: 0, a: 3 },
                ]),
                vec![Line(Calls(0b10110), Stmt::Panic)],
            ]
            .concat(),
        });
    }
}

/// A call that left its path, and found no memory to catch up with, was counted as recorded and as replayed.
#[test]
fn a_divergence_without_memory_is_no_recording() {
    holds(Program {
        m: (3, 3),
        alt: 0,
        n: 2,
        steps: vec![1; 4],
        options: Options { starved: 0b1111, ..OPTIONS },
        before: vec![],
        body: always(vec![Input { d: 1, k: vec![2] }, Backward { a: 1 }]),
    });
}
