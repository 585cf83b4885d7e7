//! Composites become few kernels by the rules of fusion alone.

use stepgraph::nn::{CrossEntropy, Reduction};
use stepgraph::{Device, Result, Tensor, jit};

use crate::check::some;
use crate::harness::own_device;

/// Kernels of the forward pass of `f` in a replayed step, of rows as long as those of real models.
#[track_caller]
fn kernels(f: impl Fn(&[Tensor]) -> Result<Tensor>) -> u32 {
    kernels_on(&own_device(), f)
}

#[track_caller]
fn kernels_on(device: &Device, f: impl Fn(&[Tensor]) -> Result<Tensor>) -> u32 {
    let operands = [some(&[48, 160], 1, device), some(&[160], 2, device), some(&[160], 3, device)];
    let mut step = jit::Step::new();
    for _ in 0..3 {
        step.run(|| f(&operands)).expect("a call");
    }
    let report = step.report();
    assert_eq!((report.recorded, report.launches_per_call), (1, 1), "{report}");
    report.kernels
}

#[test]
fn one_kernel_each() {
    assert_eq!(kernels(|v| v[0].layer_norm(-1, Some(&v[1]), Some(&v[2]), 1e-5)), 1, "layer_norm");
    assert_eq!(kernels(|v| v[0].rms_norm(-1, Some(&v[1]), 1e-5)), 1, "rms_norm");
    assert_eq!(kernels(|v| v[0].softmax(-1)), 1, "softmax");
    assert_eq!(kernels(|v| v[0].log_softmax(-1)), 1, "log_softmax");
    assert_eq!(kernels(|v| v[0].softmax(0)), 1, "softmax of columns");
    assert_eq!(kernels(|v| v[0].gelu()), 1, "gelu");
    assert_eq!(kernels(|v| v[0].gelu_tanh()), 1, "gelu_tanh");
    assert_eq!(kernels(|v| v[0].silu()?.softplus()?.elu(0.5)), 1, "a chain of activations");
    assert_eq!(kernels(|v| v[0].huber(&v[1], 0.5, Reduction::None)), 1, "huber");
    assert_eq!(kernels(|v| v[0].add(&v[0].layer_norm(-1, Some(&v[1]), Some(&v[2]), 1e-5)?.gelu_tanh()?)), 1, "W6");
}

/// The losses of the rows are one kernel; their mean, a reduction of other elements, is another.
#[test]
fn cross_entropy() {
    let device = &own_device();
    let labels: Vec<i64> = (0..48).map(|i| i * 31 % 160).collect();
    let labels = Tensor::from_vec(labels, [48], device).expect("labels");
    let each = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    assert_eq!(kernels_on(device, |v| v[0].cross_entropy_with(&labels, &each)), 1, "losses of rows");
    assert_eq!(kernels_on(device, |v| v[0].cross_entropy(&labels)), 2, "their mean");
    let smooth = CrossEntropy { smoothing: 0.1, ignore: Some(3), ..each };
    assert_eq!(kernels_on(device, |v| v[0].cross_entropy_with(&labels, &smooth)), 1, "smoothed, some ignored");
}
