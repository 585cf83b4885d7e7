//! Every op, by its samples: types, values against double precision, gradients against finite differences, the text
//! form; and every runner (a pipeline of passes with a backend) against the reference evaluator, bit for bit.

#[path = "conformance/graphs.rs"]
mod graphs;
#[path = "conformance/plan.rs"]
mod plan;
#[path = "conformance/reference.rs"]
mod reference;

use stepgraph::base::{HostValue, Result};
use stepgraph::ir::Graph;
use stepgraph::pass::Options;

/// What a runner is: it gives a graph's outputs for inputs (logical values, to be laid out as the graph's inputs
/// say) and parameter words.
type Run<'a> = dyn Fn(&Graph, &[HostValue], &[u64]) -> Result<Vec<HostValue>> + 'a;

/// Checks a runner on all samples in all forms of operands and results.
#[track_caller]
fn conforms(name: &str, run: &Run<'_>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for case in graphs::cases() {
        count += 1;
        if let Err(e) = case.check(run) {
            failures.push(format!("{}\n{}", e, case.graph));
        }
    }
    assert!(count > 1000, "only {count} cases");
    let shown = failures.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{name}: {} of {count} cases fail:\n{shown}", failures.len());
}

#[test]
fn each_op_as_a_plan_of_its_own() {
    let options = Options { fuse: false, ..Options::default() };
    conforms("plan, not fused", &|g, x, p| plan::run(g, x, p, &options, false));
}

#[test]
fn fused_plans() {
    conforms("plan, fused", &|g, x, p| plan::run(g, x, p, &Options::default(), false));
}

#[test]
fn fused_plans_in_place() {
    conforms("plan, fused, in place", &|g, x, p| plan::run(g, x, p, &Options::default(), true));
}
