//! Every op, by its samples: types, values against double precision, gradients against finite differences, the text
//! form; and every runner (a pipeline of passes with a backend) against the reference evaluator, bit for bit.

#[path = "conformance/device.rs"]
mod device;
#[path = "conformance/graphs.rs"]
mod graphs;
#[path = "conformance/plan.rs"]
mod plan;
#[path = "conformance/reference.rs"]
mod reference;

use device::How;
use stepgraph::backend::cpu::{self, CpuBackend, Isa};
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
    for case in graphs::cases().chain(graphs::large()) {
        count += 1;
        if let Err(e) = case.check(run) {
            failures.push(format!("{}\n{}", e, case.graph));
        }
    }
    assert!(count > 1000, "only {count} cases");
    let shown = failures.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{name}: {} of {count} cases fail:\n{shown}", failures.len());
}

/// The comparison itself can fail: one flipped bit in one output is seen, as is a missing one.
#[test]
fn a_wrong_bit_is_seen() {
    use stepgraph::base::host::HostData;
    use stepgraph::interp;
    for case in graphs::cases().step_by(97).filter(|c| c.graph.node(c.graph.outputs()[0]).ty.shape.numel() > 0) {
        let right = |g: &Graph, x: &[HostValue], p: &[u64]| interp::run(g, x, p, interp::Precision::Exact);
        assert!(case.check(&right).is_ok());
        let flipped = case.check(&|g, x, p| {
            let mut out = right(g, x, p)?;
            let (dtype, mut bytes) = (out[0].data.dtype(), out[0].data.to_bytes());
            // Zero instead of NaN, whose payload does not count.
            let nan = out[0].data.to_f64()[0].is_nan();
            bytes[..dtype.size()].iter_mut().for_each(|b| *b = if nan { 0 } else { *b });
            bytes[0] ^= !nan as u8;
            out[0].data = HostData::from_bytes(dtype, &bytes);
            Ok(out)
        });
        assert!(flipped.is_err(), "{}", case.graph);
        assert!(case.check(&|g, x, p| Ok(right(g, x, p)?.into_iter().skip(1).collect())).is_err());
    }
}

fn not_fused() -> Options {
    Options { fuse: false, ..Options::default() }
}

#[test]
fn each_op_as_a_plan_of_its_own() {
    conforms("plan, not fused", &|g, x, p| plan::run(g, x, p, &not_fused(), false));
}

#[test]
fn fused_plans() {
    conforms("plan, fused", &|g, x, p| plan::run(g, x, p, &Options::default(), false));
}

#[test]
fn fused_plans_in_place() {
    conforms("plan, fused, in place", &|g, x, p| plan::run(g, x, p, &Options::default(), true));
}

/// The CPU with an instruction set, if this machine has it.
fn cpu(isa: Isa, threads: usize, compiled: bool, how: How) {
    if !isa.available() {
        return;
    }
    let options = cpu::Options {
        threads: Some(threads),
        isa: Some(isa),
        compiled_dispatch: Some(compiled),
        ..cpu::Options::default()
    };
    let backend = CpuBackend::new(options).unwrap_or_else(|e| panic!("{e}"));
    conforms(&format!("{isa:?}, {threads} threads, {how:?}"), &|g, x, p| device::run(&*backend, g, x, p, how));
}

const STEP: How = How { eager: false, exclusive: false, options: FUSED };
const FUSED: Options = Options { fast_math: false, fuse: true, in_place: true, reuse: true };

#[test]
fn cpu_avx512() {
    cpu(Isa::Avx512, 1, true, STEP);
}

#[test]
fn cpu_avx512_two_threads_in_place() {
    cpu(Isa::Avx512, 2, true, How { exclusive: true, ..STEP });
}

#[test]
fn cpu_avx2() {
    cpu(Isa::Avx2, 1, true, STEP);
}

#[test]
fn cpu_portable_two_threads() {
    cpu(Isa::Portable, 2, true, STEP);
}

#[test]
fn cpu_eager_ops() {
    cpu(Isa::best(), 1, true, How { eager: true, exclusive: true, options: not_fused() });
}

#[test]
fn cpu_by_the_dispatch_loop() {
    cpu(Isa::best(), 2, false, STEP);
}
