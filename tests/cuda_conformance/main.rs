//! Conformance on the simulated CUDA device: the graphs of the CPU's conformance, through the CUDA backend, against the
//! reference evaluator, bit for bit.
//!
//! A compiler run per kernel takes long, so graphs are compiled in lots and every `STEPGRAPH_CONFORMANCE_STEP`-th of them
//! is run (default 47; 1: all). `STEPGRAPH_KERNELS` names a folder where the kernels' sources are left, for a check by the
//! real compiler. Needs a C++ compiler; without one it says that it was skipped.

#[path = "../conformance/device.rs"]
mod device;
#[path = "../conformance/graphs.rs"]
mod graphs;
#[allow(dead_code)]
#[path = "../conformance/plan.rs"]
mod plan;

use std::collections::HashSet;
use std::sync::Arc;

use device::How;
use graphs::Case;
use stepgraph::KernelCache;
use stepgraph::backend::Backend;
use stepgraph::backend::cuda::{self, CudaBackend};
use stepgraph::base::{HostValue, Result};
use stepgraph::interp::{self, Precision};
use stepgraph::ir::{Graph, NodeOp};
use stepgraph::kernel::Inst;
use stepgraph::pass::{Options, compile};
use stepgraph::plan::StepKind;

/// What a runner is, as in the CPU's conformance.
type Run<'a> = dyn Fn(&Graph, &[HostValue], &[u64]) -> Result<Vec<HostValue>> + 'a;

/// Graphs that are compiled together.
const LOT: usize = 400;

const STEP: How = How { eager: false, exclusive: true, options: FUSED };
const EAGER: How = How { eager: true, exclusive: false, options: NOT_FUSED };
const FUSED: Options = Options { fast_math: false, fuse: true, in_place: true, reuse: true };
const NOT_FUSED: Options = Options { fuse: false, ..FUSED };

fn backend() -> Option<Arc<CudaBackend>> {
    if let Err(why) = cuda_sim::install() {
        println!("SKIPPED: no simulated CUDA driver: {why}");
        return None;
    }
    cuda_sim::set_batching(true);
    let kernel_cache = match std::env::var("STEPGRAPH_KERNELS") {
        Ok(folder) => KernelCache::At(folder.into()),
        Err(_) => KernelCache::Off,
    };
    Some(CudaBackend::new(cuda::Options { kernel_cache, ..cuda::Options::default() }).expect("a simulated device"))
}

/// Every so manieth graph, and the first one of each op.
fn sampled(step: usize, first: usize) -> Vec<Case> {
    let mut seen = HashSet::new();
    let all = graphs::cases().chain(graphs::large());
    let new = |case: &Case, seen: &mut HashSet<String>| {
        let ops = case.graph.ids().filter_map(|i| match case.graph.node(i).op {
            NodeOp::Op(op) => Some(op.rules().name().to_string()),
            _ => None,
        });
        ops.filter(|name| seen.insert(name.clone())).count() > 0
    };
    all.enumerate().filter(|(i, c)| new(c, &mut seen) || i % step == first).map(|(_, c)| c).collect()
}

/// Whether f64 functions of the device's own library are used: they may differ from the reference's in the last bits.
fn is_approximate(graph: &Graph, options: &Options) -> bool {
    let Ok(compiled) = compile(graph, options) else { return false };
    compiled.plan.plan().steps.iter().any(|s| match &s.kind {
        StepKind::Kernel(k) => k.body.iter().any(|i| matches!(i, Inst::Op { instr, .. } if instr.is_call())),
        StepKind::Library(_) => false,
    })
}

fn close(case: &Case, run: &Run<'_>) -> Result<(), String> {
    let want = interp::run(&case.graph, &case.inputs, &case.params, Precision::Exact).map_err(|e| e.to_string())?;
    let got = run(&case.graph, &case.inputs, &case.params).map_err(|e| e.to_string())?;
    for (g, w) in got.iter().zip(&want) {
        for (x, y) in g.data.to_f64().into_iter().zip(w.data.to_f64()) {
            let same = x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-12 * y.abs().max(1e-3);
            if !same {
                return Err(format!("{x}, expected {y}"));
            }
        }
    }
    Ok(())
}

fn conforms(backend: &dyn Backend, cases: &[Case], how: How) {
    let run: &Run<'_> = &|g, x, p| device::run(backend, g, x, p, how);
    let (mut failures, mut approximate) = (Vec::new(), 0);
    for lot in cases.chunks(LOT) {
        // All kernels of the lot first: they are compiled together when the first one is launched.
        for case in lot {
            if let Ok(compiled) = compile(&case.graph, &how.options) {
                let made =
                    if how.eager { backend.compile_eager(compiled.plan) } else { backend.compile(compiled.plan) };
                if let Err(e) = made {
                    failures.push(format!("{e}\n{}", case.graph));
                }
            }
        }
        for case in lot {
            let result = if is_approximate(&case.graph, &how.options) {
                approximate += 1;
                close(case, run)
            } else {
                case.check(run)
            };
            if let Err(e) = result {
                failures.push(format!("{e}\n{}", case.graph));
            }
        }
    }
    println!("{how:?}: {} graphs, {approximate} of them with f64 functions of the device's library", cases.len());
    if !failures.is_empty() {
        println!("{}", cuda_sim::diagnostics());
    }
    let shown = failures.iter().take(8).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{how:?}: {} of {} cases fail:\n{shown}", failures.len(), cases.len());
}

#[test]
fn the_simulated_device_conforms() {
    let Some(backend) = backend() else { return };
    let step = std::env::var("STEPGRAPH_CONFORMANCE_STEP").ok().and_then(|s| s.parse().ok()).unwrap_or(47);
    conforms(&*backend, &sampled(step, 0), STEP);
    conforms(&*backend, &sampled(step * 2, 1), EAGER);
}
