//! Activation functions.

use stepgraph::{Result, Tensor};

use crate::check::{Check, some};
use crate::harness::{assert_close, own_device, values, vector};

/// `f` elementwise against `formula`, on small numbers.
#[track_caller]
fn activation(name: &str, f: impl Fn(&Tensor) -> Result<Tensor>, formula: fn(f64) -> f64) {
    let device = &own_device();
    let x = some(&[5, 13], 3, device).mul(4.0).expect("numbers");
    Check::new(name, vec![x], &|v| v[0].iter().map(|&x| formula(x)).collect()).run(device, |v| f(&v[0]));
}

/// The gradient of `f` at some points.
#[track_caller]
fn slopes(f: impl Fn(&Tensor) -> Result<Tensor>, at: &[f32]) -> Vec<f32> {
    let x = stepgraph::Var::new(&vector(at, &own_device())).expect("a Var");
    let g = f(&x.get()).and_then(|y| y.sum(())).and_then(|l| l.backward()).expect("gradients");
    g.get(&x).expect("a gradient").to_vec::<f32>().expect("values")
}

#[test]
fn leaky_relu() {
    activation("leaky_relu", |x| x.leaky_relu(0.1), |x| if x > 0.0 { x } else { 0.1 * x });
    // At 0, as PyTorch: the slope below.
    assert_eq!(slopes(|x| x.leaky_relu(0.25), &[0.0, -0.0, 1.0, -1.0]), [0.25, 0.25, 1.0, 0.25]);
}

#[test]
fn elu_and_softplus() {
    activation("elu", |x| x.elu(0.7), |x| if x > 0.0 { x } else { 0.7 * x.exp_m1() });
    activation("softplus", |x| x.softplus(), |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
    activation("log_sigmoid", |x| x.log_sigmoid(), |x| x.min(0.0) - (-x.abs()).exp().ln_1p());
    // Far out: no overflow, and gradients that are finite.
    let far = vector(&[200.0, -200.0, 1e38, -1e38], &own_device());
    assert_eq!(values(&far.softplus().expect("values")), [200.0, 0.0, 1e38, 0.0]);
    assert_eq!(values(&far.elu(2.0).expect("values")), [200.0, -2.0, 1e38, -2.0]);
    assert_eq!(slopes(|x| x.elu(2.0), &[200.0, -200.0, 1e38, 0.0]), [1.0, 0.0, 1.0, 2.0]);
    assert_eq!(slopes(|x| x.softplus(), &[200.0, -200.0, 1e38, 0.0]), [1.0, 0.0, 1.0, 0.5]);
    assert_eq!(slopes(|x| x.log_sigmoid(), &[200.0, -200.0, -1e38, 0.0]), [0.0, 1.0, 1.0, 0.5]);
}

#[test]
fn gelu_and_silu() {
    activation("silu", |x| x.silu(), |x| x / (1.0 + (-x).exp()));
    assert_eq!(slopes(|x| x.silu(), &[300.0, -300.0, 0.0]), [1.0, 0.0, 0.5]);
    // The distribution function of the normal distribution, integrated by Simpson's rule from 0.
    let phi = |x: f64| {
        let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let n = 400;
        let h = x / n as f64;
        let inner: f64 = (1..n).map(|i| density(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        0.5 + (density(0.0) + density(x) + inner) * h / 3.0
    };
    let device = &own_device();
    let x = some(&[5, 13], 3, device).mul(4.0).expect("numbers");
    Check::new("gelu", vec![x], &|v| v[0].iter().map(|&x| x * phi(x)).collect()).run(device, |v| v[0].gelu());
    // Figures of PyTorch 2's `gelu`.
    let y = values(&vector(&[-2.0, -0.5, 0.0, 1.0, 3.0], device).gelu().expect("values"));
    assert_close("gelu", &y, &[-0.04550026, -0.15426877, 0.0, 0.84134475, 2.9959502], 1e-6);
}

#[test]
fn gelu_tanh() {
    let formula = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    activation("gelu_tanh", |x| x.gelu_tanh(), formula);
}
