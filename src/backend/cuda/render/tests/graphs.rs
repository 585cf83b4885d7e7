//! The kernels that plans of real graphs are made of.

use super::kernels::{check, comparable, trial};
use crate::base::{Layout, Loc};
use crate::ir::{Graph, InputKind};
use crate::kernel::Kernel;
use crate::kernel::random::Random;
use crate::op::samples::samples;
use crate::pass::{Options, compile};
use crate::plan::StepKind;

/// The kernels of every op's samples.
fn kernels() -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    for sample in samples() {
        let mut graph = Graph::new("sample");
        let mut operands = Vec::new();
        for o in &sample.operands {
            operands.push(graph.input(o.ty, InputKind::External, Layout::contiguous(o.ty.shape), Loc::NONE));
        }
        let Ok(result) = graph.op(sample.op, &operands, Loc::NONE) else { continue };
        graph.output(result);
        let plan = compile(&graph, &Options::default()).unwrap().plan;
        for step in &plan.plan().steps {
            if let StepKind::Kernel(k) = &step.kind
                && !all.contains(k)
            {
                all.push(k.clone());
            }
        }
    }
    all
}

#[test]
fn kernels_of_every_op() {
    let r = &mut Random::new(77);
    let all = kernels();
    assert!(all.len() > 300, "{}", all.len());
    // Every third: compiling them all takes a minute.
    let trials = all.into_iter().enumerate().step_by(3);
    check(trials.map(|(i, k)| trial(r, comparable(k), &format!("op {i}"), 1 << 20)).collect());
}
