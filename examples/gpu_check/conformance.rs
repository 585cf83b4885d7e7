//! Every operation's samples in all forms, as a step's plan and op by op, against the reference evaluator.
//!
//! Results must have the reference's bits, but where code that is not stepgraph's computes: cuBLASLt's products, whose order of
//! summation is its own, and CUDA's transcendental functions of doubles. There the deviation must be below a
//! [`tolerance`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use stepgraph::backend::Backend;
use stepgraph::base::{DType, HostValue, Result};
use stepgraph::interp::{self, Precision};
use stepgraph::ir::Graph;
use stepgraph::kernel::Ty;
use stepgraph::kernel::ir::Inst;
use stepgraph::kernel::library::Library;
use stepgraph::pass::{Options, compile};
use stepgraph::plan::StepKind;

use crate::Size;
use crate::device::{self, How};
use crate::graphs::{self, Case};
use crate::output::{Output, panic_text};

/// Functions of doubles that are the same everywhere.
const EXACT: [&str; 16] = [
    "dadd", "dsub", "dmul", "ddiv", "dfma", "dneg", "dabs", "dsqrt", "dmin", "dmax", "dfloor", "dceil", "dtrunc",
    "dround", "drem", "dselect",
];

/// Whose code computes a graph, besides stepgraph's.
#[derive(Clone, Copy, Debug, Default)]
struct Foreign {
    /// The dtype of a product with the fewest digits.
    product: Option<DType>,
    /// Transcendental functions of doubles.
    doubles: bool,
}

fn foreign(graph: &Graph, options: &Options) -> Result<Foreign> {
    let mut found = Foreign::default();
    for step in &compile(graph, options)?.plan.plan().steps {
        match &step.kind {
            StepKind::Library(Library::Matmul(m)) if m.dtype.is_float() => {
                let tolerance = tolerance_of_product;
                let worse = found.product.is_none_or(|p| tolerance(m.dtype) > tolerance(p));
                found.product = if worse { Some(m.dtype) } else { found.product };
            }
            StepKind::Kernel(kernel) => {
                found.doubles |= kernel.body.iter().any(|i| match i {
                    Inst::Op { instr, .. } => {
                        let double = |t: &Ty| *t == Ty::F64;
                        instr.operands().iter().all(double) && double(&instr.result()) && !EXACT.contains(&instr.name())
                    }
                    _ => false,
                });
            }
            // Products of users' kernels and scans are stepgraph's own code.
            StepKind::Library(_) => {}
        }
    }
    Ok(found)
}

/// Deviation allowed of a product's results, as a share of the largest of them (of 1 at least): rounding of up to 700
/// terms in another order; of 16-bit results, two units in the last place.
fn tolerance_of_product(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    }
}

/// Deviation allowed of an output.
fn tolerance(foreign: Foreign, output: DType, largest: f64) -> f64 {
    let product = foreign.product.map_or(0.0, tolerance_of_product);
    // A few units in the last place of a double, or one of an f32 that it was rounded to.
    let doubles = match (foreign.doubles, output) {
        (false, _) => 0.0,
        (true, DType::F64) => 1e-13,
        (true, _) => 1e-6,
    };
    if output.is_float() { f64::max(product, doubles) * largest.max(1.0) } else { 0.0 }
}

/// How a case ended.
enum Verdict {
    Exact,
    /// Within tolerance; the share of it that was used.
    Close(f64),
    Wrong(String),
}

fn compare(got: &[HostValue], want: &[HostValue], foreign: Foreign) -> Verdict {
    if got.len() != want.len() {
        return Verdict::Wrong(format!("{} outputs, expected {}", got.len(), want.len()));
    }
    let mut used: f64 = 0.0;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        if g.shape != w.shape || g.data.dtype() != w.data.dtype() {
            return Verdict::Wrong(format!("output {i}: shape {}, expected {}", g.shape, w.shape));
        }
        let Some(at) = g.data.difference(&w.data) else { continue };
        let (got, want) = (g.data.to_f64(), w.data.to_f64());
        let largest = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
        let allowed = tolerance(foreign, g.data.dtype(), largest);
        for (k, (a, b)) in got.iter().zip(&want).enumerate() {
            let same = a == b || (a.is_nan() && b.is_nan());
            let share = if same { 0.0 } else { (a - b).abs() / allowed };
            if share.is_nan() || share > 1.0 {
                let k = if allowed == 0.0 { at } else { k };
                return Verdict::Wrong(format!("output {i}, element {k} is {}, expected {}", got[k], want[k]));
            }
            used = used.max(share);
        }
    }
    if used > 0.0 { Verdict::Close(used) } else { Verdict::Exact }
}

fn check(backend: &dyn Backend, case: &Case, how: How) -> Result<Verdict> {
    let want = interp::run(&case.graph, &case.inputs, &case.params, Precision::Exact)?;
    let got = device::run(backend, &case.graph, &case.inputs, &case.params, how)?;
    Ok(compare(&got, &want, foreign(&case.graph, &how.options)?))
}

const FUSED: Options = Options { fast_math: false, fuse: true, in_place: true, reuse: true };

/// As a step, and op by op.
const HOW: [(&str, How); 2] = [
    ("step", How { eager: false, exclusive: true, options: FUSED }),
    ("eager", How { eager: true, exclusive: false, options: Options { fuse: false, ..FUSED } }),
];

/// Runs the cases on several threads.
pub fn run(backend: &dyn Backend, size: Size, out: &mut Output) {
    let stride = match size {
        Size::Full => 1,
        Size::Quick => 10,
        Size::Tiny => 211,
    };
    for (name, how) in HOW {
        // One op at a time differs from a step in how it is launched, not in what is compiled: a part is enough.
        let stride = if how.eager && size == Size::Full { 7 } else { stride };
        let large = graphs::large().filter(|_| size == Size::Full);
        let cases: Vec<Case> = graphs::cases().step_by(stride).chain(large).collect();
        out.title(&format!("conformance, {name}: {} graphs", cases.len()));
        let (next, exact, close) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let (most, wrong) = (Mutex::new(0.0f64), Mutex::new(Vec::new()));
        let work = || {
            while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                let verdict = match catch_unwind(AssertUnwindSafe(|| check(backend, case, how))) {
                    Ok(Ok(verdict)) => verdict,
                    Ok(Err(e)) => Verdict::Wrong(e.to_string()),
                    Err(panic) => Verdict::Wrong(panic_text(&*panic)),
                };
                match verdict {
                    Verdict::Exact => {
                        exact.fetch_add(1, Relaxed);
                    }
                    Verdict::Close(share) => {
                        close.fetch_add(1, Relaxed);
                        let mut most = most.lock();
                        *most = most.max(share);
                    }
                    Verdict::Wrong(e) => wrong.lock().push(format!("{e}\n{}", case.graph)),
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (exact, close, wrong) = (exact.into_inner(), close.into_inner(), wrong.into_inner());
        let share = *most.lock();
        out.line(serde_json::json!({
            "section": "conformance", "how": name, "cases": cases.len(), "exact": exact, "within_tolerance": close,
            "largest_share_of_tolerance": share, "wrong": wrong.len(),
        }));
        out.say(&format!("{exact} exact, {close} within tolerance ({share:.2} of it at most), {} wrong", wrong.len()));
        let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        let outcome = if wrong.is_empty() { Ok(()) } else { Err(format!("{} graphs:\n{shown}", wrong.len())) };
        out.check("conformance", name, outcome);
    }
}
