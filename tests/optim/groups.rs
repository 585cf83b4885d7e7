//! Groups, parameters without gradients, changed rates, wrong configurations.

use stepgraph::optim::*;
use stepgraph::{Gradients, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, own_device, scalar, values, vector};

/// Rates and decays of their own, changed half-way.
#[test]
fn rates_and_decays_of_groups() {
    let device = &own_device();
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0, 1, 1, 1, 0, 1, 1, 1]).compiles(2),
        || {
            let (a, b) = (Var::new(&scalar(1.0, device))?, Var::new(&vector(&[2.0, 4.0], device))?);
            let groups =
                vec![Group::new(vec![a.clone()]), Group::new(vec![b.clone()]).lr_factor(0.5).weight_decay(0.0)];
            let config = SgdConfig { lr: 0.1, weight_decay: 0.5, ..Default::default() };
            Ok((Sgd::with_groups(groups, config)?, a, b))
        },
        |(sgd, ..), k| {
            if k == 4 {
                // Decay where there was none: another path.
                sgd.groups_mut()[1].set_lr_factor(2.0);
                sgd.groups_mut()[1].set_weight_decay(Some(1.0));
                sgd.set_lr(0.05);
            }
            Ok(())
        },
        |(sgd, a, b), _, _| {
            let loss = a.get().mul(3.0)?.add(b.get().sum(())?)?;
            sgd.step(&loss.backward()?)
        },
        |(_, a, b)| vec![a.clone(), b.clone()],
    );
    let (mut a, mut b) = (1.0f64, [2.0f64, 4.0]);
    for k in 0..8 {
        let (lr, factor, decay) = if k < 4 { (0.1, 0.5, 0.0) } else { (0.05, 2.0, 1.0) };
        a -= lr * (3.0 + 0.5 * a);
        b = b.map(|b| b - lr * factor * (1.0 + decay * b));
        assert_close("a", log.f32(k, 0), &[a], 1e-6);
        assert_close("b", log.f32(k, 1), &b, 1e-6);
    }
}

/// A parameter that has a gradient only in every other step counts only these, as in PyTorch.
#[test]
fn adam_counts_per_parameter() {
    let device = &own_device();
    let config = AdamConfig { lr: 0.1, ..Default::default() };
    let log = compare(
        device,
        &Expect::steady(12).launches(&[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]).compiles(2),
        || {
            let all = [1.0, 2.0, 3.0].map(|v| Var::new(&scalar(v, device)).expect("a Var"));
            Ok((Adam::new(all.to_vec(), config)?, all))
        },
        |_, _| Ok(()),
        |(adam, all), k, _| {
            let mut loss = all[0].get().mul(all[0].get())?;
            if k % 2 == 1 {
                loss = loss.add(all[1].get().mul(all[1].get())?)?;
            }
            loss = loss.add(all[2].get().mul(all[2].get())?)?;
            adam.step(&loss.backward()?)
        },
        |(adam, all)| all.iter().cloned().chain(adam.state()).collect(),
    );
    let mut elements = [(1.0f64, 0.0f64, 0.0f64, 0); 3];
    for (i, e) in elements.iter_mut().enumerate() {
        e.0 = 1.0 + i as f64;
    }
    for k in 0..12 {
        for (i, (p, m, v, t)) in elements.iter_mut().enumerate() {
            if i == 1 && k % 2 == 0 {
                continue;
            }
            let g = 2.0 * *p;
            *t += 1;
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.999 * *v + 0.001 * g * g;
            let (m, v) = (*m / (1.0 - 0.9f64.powi(*t)), *v / (1.0 - 0.999f64.powi(*t)));
            *p -= 0.1 * m / (v.sqrt() + 1e-8);
        }
        let got: Vec<f32> = (0..3).map(|i| log.f32(k, i)[0]).collect();
        assert_close(&format!("step {k}"), &got, &elements.map(|e| e.0), 1e-5);
    }
}

/// A rate set in the closure takes effect at once, with no further recording.
#[test]
fn a_schedule_in_the_step() {
    let device = &own_device();
    let w = Var::new(&scalar(3.0, device)).expect("a Var");
    let mut sgd = Sgd::new(vec![w.clone()], SgdConfig::default()).expect("an optimizer");
    let (schedule, mut step) = (Schedule::step(0.4, 1, 0.5), jit::Step::new());
    for k in 0..6 {
        step.run(|| {
            sgd.set_lr(schedule.at(k));
            sgd.step(&w.get().backward()?)
        })
        .expect("a call");
        let want = 3.0 - 0.8 * (1.0 - 0.5f64.powi(k as i32 + 1));
        assert_close("w", &values(&w.get()), &[want], 1e-6);
    }
    assert_eq!(step.report().recorded, 1);
}

#[test]
fn what_is_refused() {
    let device = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    #[track_caller]
    fn refused<T>(result: stepgraph::Result<T>, words: &[&str]) {
        let text = result.err().expect("an error").to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
        assert!(text.contains("groups.rs:"), "says where: {text}");
    }
    let twice = || vec![w.clone(), w.clone()];
    refused(Adam::new(twice(), AdamConfig::default()), &["Adam::new", "once", "number 1"]);
    let beta = AdamConfig { beta2: 1.0, ..Default::default() };
    refused(Adam::new(vec![w.clone()], beta), &["beta2 in 0.0..1.0", "got 1.0"]);
    refused(RmsProp::new(vec![], RmsPropConfig::default()), &["at least one parameter"]);
    let nesterov = SgdConfig { nesterov: true, ..Default::default() };
    refused(Sgd::new(vec![w.clone()], nesterov), &["momentum above 0", "momentum 0"]);
    refused(Lion::new(vec![w.clone()], LionConfig { beta1: f64::NAN, ..Default::default() }), &["beta1", "NaN"]);
    let index = Var::state(&Tensor::from_vec(vec![1i64], [1], device).expect("a tensor")).expect("a Var");
    refused(AdamW::new(vec![index], AdamWConfig::default()), &["float parameters", "i64"]);
    refused(Ema::new(vec![w.clone()], 1.5), &["decay in 0.0..=1.0", "1.5"]);
    let g = vector(&[1.0, 2.0, 3.0], device);
    refused(Gradients::from_pairs([(w.clone(), g)]), &["gradient of shape [2]", "[3]"]);
    let mapped = w.get().sum(()).and_then(|l| l.backward()).and_then(|g| g.map(|g| g.sum(()))).expect("gradients");
    let mut sgd = Sgd::new(vec![w.clone()], SgdConfig::default()).expect("an optimizer");
    refused(sgd.step(&mapped), &["Sgd::step", "gradient of shape [2]", "parameter 0"]);
    refused(clip_grad_norm(&mapped, -1.0), &["norm of at least 0", "-1"]);
    refused(clip_grad_value(&mapped, f64::NAN), &["limit of at least 0"]);
}
