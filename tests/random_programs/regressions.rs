//! Programs that failed once, shrunk; and programs for faults that were found on the way.

use crate::check;
use crate::program::{Host::*, Line, Options, Program, Reduction::*, Stmt, Stmt::*, When::*};

const OPTIONS: Options = Options { fuse: true, in_place: true, plan_cache: 64, device: 0 };

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
