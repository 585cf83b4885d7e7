//! Methods of tensors against closed forms, known figures and naive loops in double precision: reductions, order, movement,
//! indexing, contraction. Everything runs eagerly and traced, and must give the same bits.

#[path = "tensor_ops/einsum.rs"]
mod einsum;
mod harness;
#[path = "tensor_ops/indexing.rs"]
mod indexing;
#[path = "tensor_ops/movement.rs"]
mod movement;
#[path = "tensor_ops/order.rs"]
mod order;
#[path = "tensor_ops/ranges.rs"]
mod ranges;
#[path = "tensor_ops/reductions.rs"]
mod reductions;
#[path = "tensor_ops/scans.rs"]
mod scans;

use stepgraph::base::HostValue;
use stepgraph::base::host::HostData;
use stepgraph::diag::report::Report;
use stepgraph::{Device, Result, Tensor, Var, jit};

/// What `body` gives, eagerly; and that a step gives the same bits at each of four calls, all but the first in one launch. And
/// its report.
#[track_caller]
fn both(body: impl Fn() -> Result<Vec<Tensor>>) -> (Vec<HostValue>, Report) {
    let host =
        |tensors: Vec<Tensor>| -> Vec<HostValue> { tensors.iter().map(|t| t.to_host().expect("a value")).collect() };
    let eager = host(body().expect("eager"));
    let mut step = jit::Step::new();
    for call in 0..4 {
        let traced = host(step.run(&body).expect("traced"));
        assert_eq!(traced.len(), eager.len());
        for (i, (t, e)) in traced.iter().zip(&eager).enumerate() {
            harness::assert_bits_eq(&format!("call {call}, value {i}"), t, e);
        }
    }
    let report = step.report();
    assert!(report.recorded == 1 && report.launches_per_call <= 1, "{report}");
    (eager, report)
}

/// Values of [`both`], flat, as f64.
#[track_caller]
fn numbers(body: impl Fn() -> Result<Tensor>) -> Vec<f64> {
    let (values, _) = both(|| Ok(vec![body()?]));
    values[0].data.to_f64()
}

/// Kernels (and library calls) that a traced `body` takes.
#[track_caller]
fn kernels(body: impl Fn() -> Result<Tensor>) -> u32 {
    both(|| Ok(vec![body()?])).1.kernels
}

/// The gradient of `sum(f(x) * weights)` with respect to `x`, eagerly and traced; the weights are 1, 2, 3, ….
#[track_caller]
fn gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<f64> {
    let var = Var::new(x).expect("a Var");
    numbers(|| {
        let y = f(&var.get())?;
        let weights = Tensor::arange(1.0, y.numel() as f64 + 1.0, y.device())?.reshape(y.shape())?;
        let loss = y.mul(&weights)?.sum(())?;
        Ok(loss.backward()?.get(&var).expect("a gradient"))
    })
}

fn cpu() -> Device {
    Device::cpu()
}

/// An f32 tensor.
#[track_caller]
fn f32s(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(values, dims, &cpu()).expect("a tensor")
}

/// An i64 tensor.
#[track_caller]
fn i64s(dims: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(values, dims, &cpu()).expect("a tensor")
}

/// A tensor of small, distinct, non-trivial numbers.
#[track_caller]
fn filled(dims: &[usize], seed: u32) -> Tensor {
    harness::filled(dims, seed, &cpu())
}

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{got:?}, expected {want:?}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let near = (g - w).abs() <= tolerance * w.abs().max(1.0);
        let same = g == w || (g.is_nan() && w.is_nan());
        assert!(near || same, "element {i} is {g}, expected {w}: {got:?}, expected {want:?}");
    }
}

/// Elements of `x` as f64, row-major, and its dims.
fn host(x: &Tensor) -> (Vec<f64>, Vec<usize>) {
    (x.to_host().expect("a value").data.to_f64(), x.dims().to_vec())
}

/// All coordinates of a shape, row-major.
fn coordinates(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter()
        .fold(vec![vec![]], |all, &d| all.iter().flat_map(|c| (0..d).map(move |i| [&c[..], &[i]].concat())).collect())
}

/// Row-major position.
fn at(dims: &[usize], coordinate: &[usize]) -> usize {
    coordinate.iter().zip(dims).fold(0, |p, (&c, &d)| p * d + c)
}

/// The groups of elements that a reduction over `axes` combines, in order of the results.
fn groups(x: &Tensor, axes: &[usize]) -> Vec<Vec<f64>> {
    let (values, dims) = host(x);
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !axes.contains(a)).collect();
    let shape: Vec<usize> = kept.iter().map(|&a| dims[a]).collect();
    let mut out = vec![Vec::new(); shape.iter().product()];
    for c in coordinates(&dims) {
        let row: Vec<usize> = kept.iter().map(|&a| c[a]).collect();
        out[at(&shape, &row)].push(values[at(&dims, &c)]);
    }
    out
}

/// The message of an error.
#[track_caller]
fn message(result: Result<impl Sized>) -> String {
    match result {
        Err(e) => {
            assert_eq!(e.loc().file().map(|f| f.starts_with("tests/tensor_ops")), Some(true), "{e}");
            e.to_string()
        }
        Ok(_) => panic!("no error"),
    }
}

/// Integers of a value.
#[track_caller]
fn integers(v: &HostValue) -> Vec<i64> {
    match &v.data {
        HostData::I64(v) => v.clone(),
        other => panic!("{other:?}"),
    }
}
