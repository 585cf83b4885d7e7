//! Every optimizer against its paper's (and PyTorch's) formula in double precision, over 25 steps, eager, traced and
//! frozen.

use stepgraph::optim::*;
use stepgraph::{Device, Gradients, Result, Tensor, Var};

use crate::harness::{Expect, assert_close, compare, own_device, scalar, vector};

/// The slopes and targets of the loss `Σ (a w - b)²`, whose gradient is `2a(a w - b)`.
const SLOPES: [f64; 5] = [1.0, -0.5, 2.0, 0.125, -1.5];
const TARGETS: [f64; 5] = [0.5, 1.0, -2.0, 0.25, 3.0];
const START: [f64; 5] = [0.75, -1.0, 0.5, 2.0, 0.0];
const STEPS: usize = 25;

/// One element's state in a reference: parameter, two moments, velocity, and the number of the step.
#[derive(Clone, Copy, Default)]
struct Element {
    p: f64,
    m: f64,
    v: f64,
    u: f64,
    t: i32,
}

/// Parameters after each of 25 steps of `rule`, which is given an element and its gradient.
fn reference(rule: impl Fn(&mut Element, f64)) -> Vec<Vec<f64>> {
    let mut elements = START.map(|p| Element { p, ..Element::default() });
    let step = |_| {
        for (e, (a, b)) in elements.iter_mut().zip(SLOPES.iter().zip(TARGETS)) {
            let g = 2.0 * a * (a * e.p - b);
            e.t += 1;
            rule(e, g);
        }
        elements.map(|e| e.p).to_vec()
    };
    (0..STEPS).map(step).collect()
}

/// The loss's parameters: a vector and a 0-d one, so that state of both kinds is met.
fn start(device: &Device) -> Result<Vec<Var>> {
    let f = |v: &[f64]| v.iter().map(|&x| x as f32).collect::<Vec<_>>();
    Ok(vec![Var::new(&vector(&f(&START[..4]), device))?, Var::new(&scalar(START[4] as f32, device))?])
}

fn gradients(parameters: &[Var], device: &Device) -> Result<Gradients> {
    let f = |v: &[f64]| v.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let (a, b) = (f(&SLOPES), f(&TARGETS));
    // Host numbers for the 0-d parameter, tensors made before the step for the other one.
    let off = parameters[0].get().mul(tensor(&a[..4], device))?.sub(tensor(&b[..4], device))?;
    let last = parameters[1].get().mul(a[4])?.sub(b[4])?;
    off.mul(&off)?.sum(())?.add(last.mul(&last)?)?.backward()
}

/// A tensor of fixed values that is made without host data, so that a step may be frozen.
fn tensor(values: &[f32], device: &Device) -> Tensor {
    let one = |&v: &f32| Tensor::full([1], v, device).expect("a number");
    let parts: Vec<Tensor> = values.iter().map(one).collect();
    Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0).expect("a vector")
}

/// Trains with `make`'s optimizer eagerly, traced and frozen, all bit for bit the same, and compares with `rule`.
#[track_caller]
fn check<O: Optimizer>(make: impl Fn(Vec<Var>) -> Result<O>, rule: impl Fn(&mut Element, f64)) {
    let device = &own_device();
    let log = compare(
        device,
        &Expect::steady(STEPS).frozen(),
        || {
            let parameters = start(device)?;
            Ok((make(parameters.clone())?, parameters))
        },
        |_, _| Ok(()),
        |(optimizer, parameters), _, _| optimizer.step(&gradients(parameters, device)?),
        |(optimizer, parameters)| {
            let state = optimizer.named_state().into_iter().map(|(_, v)| v);
            parameters.iter().cloned().chain(state).collect()
        },
    );
    for (k, want) in reference(rule).iter().enumerate() {
        let got = [log.f32(k, 0), log.f32(k, 1)].concat();
        assert_close(&format!("parameters after step {}", k + 1), &got, want, 2e-5);
    }
}

#[test]
fn sgd_plain() {
    check(|p| Sgd::new(p, SgdConfig { lr: 0.05, ..Default::default() }), |e, g| e.p -= 0.05 * g);
}

#[test]
fn sgd_with_momentum_dampening_and_decay() {
    let config = SgdConfig { lr: 0.02, momentum: 0.8, dampening: 0.25, weight_decay: 0.1, nesterov: false };
    check(
        |p| Sgd::new(p, config),
        |e, g| {
            let g = g + 0.1 * e.p;
            e.v = if e.t == 1 { g } else { 0.8 * e.v + 0.75 * g };
            e.p -= 0.02 * e.v;
        },
    );
}

#[test]
fn sgd_with_nesterov_momentum() {
    let config = SgdConfig { lr: 0.02, momentum: 0.9, nesterov: true, ..Default::default() };
    check(
        |p| Sgd::new(p, config),
        |e, g| {
            e.v = 0.9 * e.v + g;
            e.p -= 0.02 * (g + 0.9 * e.v);
        },
    );
}

#[test]
fn adam() {
    let config = AdamConfig { lr: 0.05, beta1: 0.8, beta2: 0.95, eps: 1e-4, weight_decay: 0.1 };
    check(
        |p| Adam::new(p, config),
        |e, g| {
            let g = g + 0.1 * e.p;
            e.m = 0.8 * e.m + 0.2 * g;
            e.v = 0.95 * e.v + 0.05 * g * g;
            let (m, v) = (e.m / (1.0 - 0.8f64.powi(e.t)), e.v / (1.0 - 0.95f64.powi(e.t)));
            e.p -= 0.05 * m / (v.sqrt() + 1e-4);
        },
    );
}

#[test]
fn adamw() {
    let config = AdamWConfig { lr: 0.05, weight_decay: 0.2, ..Default::default() };
    check(
        |p| AdamW::new(p, config),
        |e, g| {
            e.m = 0.9 * e.m + 0.1 * g;
            e.v = 0.999 * e.v + 0.001 * g * g;
            let (m, v) = (e.m / (1.0 - 0.9f64.powi(e.t)), e.v / (1.0 - 0.999f64.powi(e.t)));
            e.p = e.p - 0.05 * 0.2 * e.p - 0.05 * m / (v.sqrt() + 1e-8);
        },
    );
}

#[test]
fn lion() {
    let config = LionConfig { lr: 0.03, weight_decay: 0.1, ..Default::default() };
    check(
        |p| Lion::new(p, config),
        |e, g| {
            let direction = 0.9 * e.m + 0.1 * g;
            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
            e.p -= 0.03 * (sign + 0.1 * e.p);
            e.m = 0.99 * e.m + 0.01 * g;
        },
    );
}

#[test]
fn rms_prop() {
    let config = RmsPropConfig { lr: 0.01, alpha: 0.9, weight_decay: 0.1, ..Default::default() };
    check(
        |p| RmsProp::new(p, config),
        |e, g| {
            let g = g + 0.1 * e.p;
            e.v = 0.9 * e.v + 0.1 * g * g;
            e.p -= 0.01 * g / (e.v.sqrt() + 1e-8);
        },
    );
}

#[test]
fn rms_prop_centered_with_momentum() {
    let config = RmsPropConfig { lr: 0.01, alpha: 0.9, eps: 1e-3, momentum: 0.5, centered: true, ..Default::default() };
    check(
        |p| RmsProp::new(p, config),
        |e, g| {
            e.v = 0.9 * e.v + 0.1 * g * g;
            e.m = 0.9 * e.m + 0.1 * g;
            e.u = 0.5 * e.u + g / ((e.v - e.m * e.m).sqrt() + 1e-3);
            e.p -= 0.01 * e.u;
        },
    );
}

/// Case 03 of the catalogue: momentum by hand.
#[test]
fn momentum_by_hand() {
    let w = Var::new(&scalar(2.0, &own_device())).expect("a Var");
    let config = SgdConfig { lr: 0.25, momentum: 0.8, ..Default::default() };
    let mut sgd = Sgd::new(vec![w.clone()], config).expect("an optimizer");
    let mut seen = Vec::new();
    for _ in 0..5 {
        sgd.step(&w.get().backward().expect("gradients")).expect("a step");
        seen.push((w.get().item::<f32>().expect("a value"), sgd.state()[0].get().item::<f32>().expect("a value")));
    }
    let (w, v): (Vec<f32>, Vec<f32>) = seen.into_iter().unzip();
    assert_close("w", &w, &[1.75, 1.3, 0.69, -0.048, -0.8884], 1e-6);
    assert_close("v", &v, &[1.0, 1.8, 2.44, 2.952, 3.3616], 1e-6);
}

/// With a constant gradient both corrected moments are exact, so each step of Adam is as long as the rate: also the
/// first ones, where 1 - β₂ᵗ is a small difference of large numbers.
#[test]
fn adam_steps_of_constant_length() {
    let w = Var::new(&scalar(0.0, &own_device())).expect("a Var");
    let config = AdamConfig { lr: 1.0, eps: 0.0, ..Default::default() };
    let mut adam = Adam::new(vec![w.clone()], config).expect("an optimizer");
    for t in 1..=40 {
        adam.step(&w.get().mul(0.3).and_then(|l| l.backward()).expect("gradients")).expect("a step");
        let moved = -w.get().item::<f32>().expect("a value") as f64;
        assert!((moved / t as f64 - 1.0).abs() < 4e-7, "after {t} steps: {moved}");
    }
}

/// A sign of nothing is nothing; a NaN does not vanish.
#[test]
fn lion_at_zero_and_nan() {
    let device = &own_device();
    let w = Var::new(&vector(&[1.0, 1.0, 1.0], device)).expect("a Var");
    let mut lion = Lion::new(vec![w.clone()], LionConfig { lr: 0.5, ..Default::default() }).expect("an optimizer");
    let g = Gradients::from_pairs([(w.clone(), vector(&[0.0, -0.0, f32::NAN], device))]).expect("gradients");
    lion.step(&g).expect("a step");
    let got = w.get().to_vec::<f32>().expect("values");
    assert!(got[0] == 1.0 && got[1] == 1.0 && got[2].is_nan(), "{got:?}");
}

/// Where a constant gradient leaves no deviation, rounding may not make a NaN.
#[test]
fn rms_prop_centered_on_a_constant_gradient() {
    let device = &own_device();
    let w = Var::new(&vector(&[0.0; 64], device)).expect("a Var");
    let config = RmsPropConfig { alpha: 0.5, centered: true, eps: 1.0, ..Default::default() };
    let mut rms = RmsProp::new(vec![w.clone()], config).expect("an optimizer");
    let slopes: Vec<f32> = (0..64).map(|i| 0.1 + i as f32 / 7.0).collect();
    let slopes = vector(&slopes, device);
    for _ in 0..60 {
        let g = Gradients::from_pairs([(w.clone(), slopes.clone())]).expect("gradients");
        rms.step(&g).expect("a step");
    }
    assert!(w.get().to_vec::<f32>().expect("values").iter().all(|v| v.is_finite()));
}
