//! Activation functions.

use stepgraph::{Result, Tensor};

use crate::check::{Check, some};
use crate::harness::{own_device, vector};

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
fn gelu_tanh() {
    let formula = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    activation("gelu_tanh", |x| x.gelu_tanh(), formula);
}
