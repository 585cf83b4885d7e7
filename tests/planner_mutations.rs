//! Plans of random graphs, spoiled in every way the checker should know.
//!
//! Each plan and each mutant is executed by a plain executor, in many of the orders that its own edges allow, with
//! memory full of rubbish, outputs in place and not. A mutant is *harmful* if it has no order, leaves its memory,
//! writes what is not its own, or gives another value than the graph's reference evaluation in any of these
//! executions; the checker must refuse every such mutant. Some mutations ([`mutate::Kind::Program`]: a step reads
//! another slot, is missing, accesses other elements, an output shows another place) may make a plan that is right for another graph, which
//! no checker of memory can tell; these are harmful if two executions of the mutant differ.
//! Executions run one step after the other on copies of its operands, so harm inside one step is not seen.
//!
//! That the test can fail: without the rule that a write waits for the *readers* of what it overwrites
//! (`.chain(&segment.readers)` in `Memory::write` of `src/plan/check.rs`) it does, with 319 harmful mutants accepted.

#[path = "planner_mutations/execute.rs"]
mod execute;
#[path = "planner_mutations/generate.rs"]
mod generate;
#[path = "planner_mutations/kernels.rs"]
mod kernels;
#[path = "planner_mutations/mutate.rs"]
mod mutate;
#[allow(dead_code)]
#[path = "conformance/plan.rs"]
mod plan;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mutate::Kind;
use stepgraph::interp::{self, Precision};
use stepgraph::pass::{Options, compile};
use stepgraph::plan::check::check;

/// Numbers of mutants of one sort.
#[derive(Default, Clone, Copy)]
struct Score {
    harmful: u64,
    harmful_rejected: u64,
    harmless_accepted: u64,
    harmless_rejected: u64,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// One graph: its plan is right in every order, and each mutant is judged.
fn judge(seed: u64, scores: &mut BTreeMap<&'static str, Score>, missed: &mut Vec<String>) {
    let mut case = generate::case(seed);
    let options = Options { fuse: !seed.is_multiple_of(3), ..Options::default() };
    let want = interp::run(&case.graph, &case.inputs, &case.params, Precision::Exact).unwrap();
    let checked = compile(&case.graph, &options).unwrap().plan;
    let right = checked.plan();
    for how in execute::ways(right, None, true, seed) {
        let got = execute::run(right, &case.inputs, &case.params, &how);
        assert!(got.as_ref().is_ok_and(|g| execute::same(g, &want)), "graph {seed}: {got:?}\n{}\n{right}", case.graph);
    }
    let most = number("STEPGRAPH_MUTANTS", 120) as usize;
    let mutants = mutate::all(right, &mut case.random, most);
    for m in mutants.into_iter().chain(kernels::some(right, &mut case.random, most / 3)) {
        let verdict = check(m.plan.clone());
        let mut first = (m.kind == Kind::Placement).then(|| want.clone());
        let mut harm = None;
        // What the checker accepts is looked at most closely.
        for how in execute::ways(&m.plan, m.early, verdict.is_ok(), seed) {
            harm = match (execute::run(&m.plan, &case.inputs, &case.params, &how), &first) {
                (Err(e), _) => Some(e),
                (Ok(got), Some(w)) if !execute::same(&got, w) => Some("other values".to_string()),
                (Ok(got), None) => {
                    first = Some(got);
                    None
                }
                _ => None,
            };
            if harm.is_some() {
                break;
            }
        }
        let score = scores.entry(m.name).or_default();
        match (harm, verdict) {
            (Some(_), Err(_)) => {
                (score.harmful, score.harmful_rejected) = (score.harmful + 1, score.harmful_rejected + 1)
            }
            (Some(harm), Ok(_)) => {
                score.harmful += 1;
                missed.push(format!("graph {seed}: {}: {} ({harm})\n{right}mutant\n{}", m.name, m.what, m.plan));
            }
            (None, Ok(_)) => score.harmless_accepted += 1,
            (None, Err(_)) => score.harmless_rejected += 1,
        }
    }
}

#[test]
fn every_harmful_mutant_is_rejected() {
    let (count, first) = (number("STEPGRAPH_GRAPHS", 1000), number("STEPGRAPH_SEED", 1));
    let (next, result) = (AtomicU64::new(first), Mutex::new((BTreeMap::<&str, Score>::new(), Vec::new())));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()).min(8) {
            s.spawn(|| {
                let (mut scores, mut missed) = (BTreeMap::new(), Vec::new());
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    judge(seed, &mut scores, &mut missed);
                }
                let mut all = result.lock().unwrap();
                for (name, s) in scores {
                    let t = all.0.entry(name).or_default();
                    t.harmful += s.harmful;
                    t.harmful_rejected += s.harmful_rejected;
                    t.harmless_accepted += s.harmless_accepted;
                    t.harmless_rejected += s.harmless_rejected;
                }
                all.1.append(&mut missed);
            });
        }
    });
    let (scores, mut missed) = result.into_inner().unwrap();
    let mut total = Score::default();
    println!("{:28} {:>17}  {:>8} {:>8}   harmless", "mutation", "rejected/harmful", "accepted", "rejected");
    let row = |name: &str, s: &Score| {
        let of = format!("{}/{}", s.harmful_rejected, s.harmful);
        println!("{name:28} {of:>17}  {:>8} {:>8}", s.harmless_accepted, s.harmless_rejected);
    };
    for (name, s) in &scores {
        row(name, s);
        total.harmful += s.harmful;
        total.harmful_rejected += s.harmful_rejected;
        total.harmless_accepted += s.harmless_accepted;
        total.harmless_rejected += s.harmless_rejected;
    }
    row(&format!("all ({count} graphs)"), &total);
    missed.sort();
    let shown = missed.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(missed.is_empty(), "{} harmful mutants of {} were accepted:\n{shown}", missed.len(), total.harmful);
    // The sorts that matter most were really there.
    for name in [
        "drop an edge",
        "move a slot",
        "swap steps",
        "in place",
        "read another slot",
        "remove a step",
        "remove a store",
        "store elsewhere",
        "load elsewhere",
        "another domain",
    ] {
        assert!(scores.get(name).is_some_and(|s| s.harmful > 0), "no harmful mutant of the sort: {name}");
    }
    assert!(total.harmful >= 5 * count && total.harmless_accepted > 0);
}
