//! The planner against the checker: plans of random graphs are spoiled in many ways; what the checker accepts must give
//! the same results in every order that the edges allow, in memory full of rubbish, with outputs in place or not.
//!
//! Hazards between points of one step (an element overwritten before another point reads it) are not seen by the
//! executor here, which reads a step's operands before it writes: the tests beside the checker walk through them.

#[path = "planner_mutations/execute.rs"]
mod execute;
#[path = "planner_mutations/graphs.rs"]
mod graphs;
#[path = "planner_mutations/mutate.rs"]
mod mutate;
#[allow(dead_code)]
#[path = "conformance/plan.rs"]
mod plan;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use execute::Bytes;
use stepgraph::base::HostValue;
use stepgraph::interp::{self, Precision};
use stepgraph::ir::Graph;
use stepgraph::pass::{self, Options};
use stepgraph::plan::Plan;
use stepgraph::plan::check::check;

/// What became of the mutants of one kind.
#[derive(Default, Debug)]
struct Score {
    mutants: u64,
    rejected: u64,
    /// Their results differ, in some order or memory.
    wrong: u64,
    caught: u64,
}

/// A graph with its plan and what to run it on.
struct Case {
    plan: Plan,
    inputs: Vec<HostValue>,
    params: Vec<u64>,
    expected: Vec<Bytes>,
}

fn case(seed: u64) -> Case {
    let (graph, inputs, params) = graphs::graph(seed);
    let options = Options { fuse: seed % 4 != 0, ..Options::default() };
    let plan = pass::compile(&graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}")).plan.into_plan();
    let expected = reference(&graph, &inputs, &params);
    Case { plan, inputs, params, expected }
}

fn reference(graph: &Graph, inputs: &[HostValue], params: &[u64]) -> Vec<Bytes> {
    let values = interp::run(graph, inputs, params, Precision::Exact).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    values.iter().map(execute::bytes).collect()
}

/// Runs a plan in many ways. `None`: they do not agree, or some touch what is not there.
fn agreed(plan: &Plan, case: &Case, ways: u64) -> Option<Vec<Bytes>> {
    let run = |way: u64| {
        let how =
            execute::How { apart: way == 0, in_place: way % 2 == 1, rubbish: [0xa5, 0x3c, 0xff][way as usize % 3] };
        let order = execute::order(plan, way);
        catch_unwind(AssertUnwindSafe(|| execute::run(plan, &case.inputs, &case.params, how, &order?))).ok().flatten()
    };
    let first = run(0)?;
    // In memory of its own again, other rubbish in it: what was never written shows.
    let how = execute::How { apart: true, in_place: false, rubbish: 0x11 };
    let again = catch_unwind(AssertUnwindSafe(|| {
        execute::run(plan, &case.inputs, &case.params, how, &execute::order(plan, 0)?)
    }));
    if again.ok().flatten()? != first {
        return None;
    }
    (1..ways).all(|way| run(way).as_ref() == Some(&first)).then_some(first)
}

#[test]
fn every_mutant_that_computes_something_else_is_rejected() {
    // Mutants may panic in the executor; that is a result.
    let hook = std::panic::take_hook();
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |info| {
        let quiet =
            info.location().is_some_and(|l| l.file().contains("execute") || !l.file().contains("planner_mutations"));
        if std::thread::current().id() != main || !quiet {
            hook(info);
        }
    }));
    let graphs = std::env::var("STEPGRAPH_GRAPHS").ok().and_then(|v| v.parse().ok()).unwrap_or(40u64);
    let mut scores: BTreeMap<&'static str, Score> = BTreeMap::new();
    let mut missed = Vec::new();
    for seed in 0..graphs {
        let case = case(seed);
        let right = agreed(&case.plan, &case, 16);
        assert!(right.as_ref() == Some(&case.expected), "graph {seed}: its own plan is wrong\n{}", case.plan);
        for (kind, content, mutant) in mutate::mutants(&case.plan, seed) {
            let score = scores.entry(kind).or_default();
            score.mutants += 1;
            let accepted = check(mutant.clone()).is_ok();
            score.rejected += !accepted as u64;
            // Few ways are enough where nothing hangs on the answer but the score.
            let results = agreed(&mutant, &case, if accepted { 24 } else { 8 });
            // A mutant that says another thing may compute another thing, but always the same.
            let wrong = match results {
                None => true,
                Some(r) => !content && r != case.expected,
            };
            score.wrong += wrong as u64;
            score.caught += (wrong && !accepted) as u64;
            if wrong && accepted {
                missed.push(format!("graph {seed}, {kind}:\n{mutant}\nof\n{}", case.plan));
            }
        }
    }
    let total = |f: fn(&Score) -> u64| scores.values().map(f).sum::<u64>();
    for (kind, s) in &scores {
        println!(
            "{kind:<28} {:>6} mutants, {:>6} rejected, {:>6} of {:>6} wrong ones",
            s.mutants, s.rejected, s.caught, s.wrong
        );
    }
    let (wrong, caught) = (total(|s| s.wrong), total(|s| s.caught));
    println!(
        "{graphs} plans, {} mutants, {caught} of {wrong} wrong ones rejected: {:.2}%",
        total(|s| s.mutants),
        100.0 * caught as f64 / wrong as f64
    );
    assert!(
        missed.is_empty(),
        "{} wrong plans are accepted:\n{}",
        missed.len(),
        missed[..missed.len().min(3)].join("\n\n")
    );
    assert!(
        wrong > 1000 && scores.values().filter(|s| s.wrong > 0).count() > 10,
        "the mutants are too tame: {scores:?}"
    );
    // A checker that refuses everything is worth nothing: harmless mutants exist, and most of those are accepted.
    let harmless = total(|s| s.mutants) - wrong;
    let accepted = total(|s| s.mutants) - total(|s| s.rejected);
    assert!(accepted * 4 > harmless, "{accepted} accepted, {harmless} harmless");
}
