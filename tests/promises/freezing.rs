//! Frozen steps: the last call's launch without the closure, or a refusal that says where and why.

use stepgraph::jit::{Frozen, Step};
use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig};
use stepgraph::{Device, Error, ErrorKind, Result, Rng, Tensor, Var};

use crate::harness::{Expect, assert_bits_eq, compare, filled, scalar, values, vector};

fn refusal(step: &Step) -> String {
    match step.freeze() {
        Ok(_) => panic!("frozen: a refusal was expected\n{}", step.report()),
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::Freeze { .. }), "{e}");
            e.to_string()
        }
    }
}

/// The refusal names this line of this file.
#[track_caller]
fn assert_names(text: &str, line: u32) {
    assert!(text.contains(&format!("{}:{line}", file!())), "line {line} is not named: {text}");
}

/// A whole training step with dropout: Adam, a generator, a layer; 20 frozen replays are 20 eager steps.
pub fn a_training_step(device: &Device) {
    compare(
        device,
        &Expect::steady(20).frozen(),
        || {
            let rng = Rng::seed_from(4);
            let layer = Linear::new(6, 3, &rng, device)?;
            let adam = Adam::new(layer.parameters(), AdamConfig { lr: 0.02, ..AdamConfig::default() })?;
            let labels = Tensor::from_vec(vec![0i64, 2, 1, 1, 0], [5], device)?;
            Ok((layer, adam, rng, filled(&[5, 6], 7, device), labels))
        },
        |_, _| Ok(()),
        |(layer, adam, rng, x, labels), _, seen| {
            let mask = rng.uniform([5, 6], device)?.ge(0.3)?;
            let loss = layer.forward(&mask.select(&*x, 0.0)?)?.cross_entropy(labels)?;
            adam.step(&loss.backward()?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| s.0.parameters().into_iter().chain(s.1.state()).collect(),
    );
}

/// The inputs, by first touch, can be looked at and replaced; another type is refused.
pub fn inputs_can_be_replaced(device: &Device) {
    let w = Var::new(&vector(&[1.0, 1.0], device)).expect("a Var");
    let (a, b) = (vector(&[1.0, 2.0], device), vector(&[10.0, 20.0], device));
    let mut step = Step::new();
    for _ in 0..3 {
        step.run(|| (&a + &b)? * &w.get()).expect("a call");
    }
    let mut frozen = step.freeze().expect("a frozen step");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [11.0, 22.0]);
    let inputs = frozen.inputs();
    assert_eq!((inputs.len(), values(&inputs[0]), values(&inputs[1])), (2, values(&a), values(&b)));
    frozen.set_input(1, &vector(&[100.0, 200.0], device)).expect("an input of the same type");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [101.0, 202.0]);
    // `Var`s are read at each replay.
    w.set(&vector(&[2.0, 3.0], device)).expect("a write");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [202.0, 606.0]);
    assert!(frozen.set_input(2, &a).is_err(), "there are two");
    assert!(frozen.set_input(0, &vector(&[1.0], device)).is_err(), "another shape");
    assert!(frozen.set_input(0, &Tensor::from_vec(vec![1i64, 2], [2], device).expect("i64")).is_err(), "another dtype");
    assert!(frozen.set_input(0, &vector(&[1.0, 2.0], &crate::harness::own_device())).is_err(), "another device");
    // Strided inputs and `Var` values are the same numbers.
    let strided = vector(&[5.0, 0.0, 6.0, 0.0], device).slice_step(0, 0, 2, 2).expect("a view");
    frozen.set_input(0, &strided).expect("an input of the same type");
    w.set(&strided).expect("a write");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [525.0, 1236.0]);
    let moved = vector(&[0.0, 0.0, 7.0, 8.0], device).slice(0, 2, 2).expect("a view");
    frozen.set_input(0, &moved).expect("an input of the same type");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [535.0, 1248.0]);
    assert_eq!(frozen.replays(), 5);
}

/// Outputs of a replay that are still held are not overwritten by the next.
pub fn replayed_values_are_kept(device: &Device) {
    let w = Var::new(&vector(&[1.0; 100], device)).expect("a Var");
    let mut step = Step::new();
    let update = || {
        let next = (w.get() * 2.0)?;
        w.set(&next)?;
        Ok((next, w.get()))
    };
    for _ in 0..3 {
        step.run(update).expect("a call");
    }
    let mut frozen = step.freeze().expect("a frozen step");
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.extend(frozen.replay().expect("a replay").to_vec());
        kept.push(w.get());
    }
    let firsts: Vec<f32> = kept.iter().map(|t| values(t)[99]).collect();
    assert!(
        firsts.chunks(kept.len() / 5).zip([16.0, 32.0, 64.0, 128.0, 256.0]).all(|(c, w)| c.iter().all(|v| *v == w))
    );
}

/// Too few calls, or a last call that recorded.
pub fn refused_before_three_calls(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    for _ in 0..2 {
        assert!(refusal(&step).contains("three times"));
        step.run(|| &x + 1.0).expect("a call");
    }
    assert!(refusal(&step).contains("replay"));
    step.run(|| &x + 1.0).expect("a call");
    let mut frozen: Frozen = step.freeze().expect("a frozen step");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [2.0]);
}

/// The last two calls took two paths: the line where they part is named.
pub fn refused_after_two_paths(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    let mut line = 0;
    for k in 0..8 {
        step.run(|| {
            if k % 2 == 0 {
                return &x + 1.0;
            }
            line = line!() + 1;
            &x * 3.0
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
}

/// A host read inside: two segments, at this line.
pub fn refused_with_a_host_read(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    let mut line = 0;
    for _ in 0..4 {
        step.run(|| {
            let y = (&x + 1.0)?;
            line = line!() + 1;
            let v = y.item::<f32>()?;
            &y * v as f64
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
}

/// A host number that changes from call to call, at this line.
pub fn refused_with_a_changing_number(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    let mut line = 0;
    for k in 0..4i64 {
        step.run(|| {
            let y = (&x + 1.0)?;
            line = line!() + 1;
            let z = (&y * k)?;
            &z - 3.0
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
    // Once it stands still, it can be frozen.
    for _ in 0..2 {
        step.run(|| ((&x + 1.0)? * 7i64)? - 3.0).expect("a call");
    }
    let mut frozen = step.freeze().expect("a frozen step");
    assert_eq!(values(&frozen.replay().expect("a replay")[0]), [11.0]);
}

/// A tensor made from host data inside the closure, at this line.
pub fn refused_with_host_data(device: &Device) {
    let w = Var::new(&vector(&[1.0], device)).expect("a Var");
    let mut step = Step::new();
    let mut line = 0;
    for _ in 0..4 {
        step.run(|| {
            line = line!() + 1;
            let x = Tensor::from_vec(vec![2.0f32], [1], device)?;
            w.set(&(&w.get() * &x)?)
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
}

/// The last two calls kept different values: the line of one of them is named.
pub fn refused_with_other_survivors(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    let mut kept = Vec::new();
    let mut line = 0;
    for k in 0..6 {
        step.run(|| {
            line = line!() + 1;
            let y = (&x + 1.0)?;
            if k == 5 {
                kept.push(y.clone());
            }
            &y * 2.0
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
}

/// A generator that was seeded anew between the calls.
pub fn refused_after_a_reseed(device: &Device) {
    let rng = Rng::seed_from(1);
    let mut step = Step::new();
    let mut line = 0;
    for k in 0..4 {
        if k == 3 {
            rng.reseed(2);
        }
        step.run(|| {
            line = line!() + 1;
            rng.uniform([4], device)
        })
        .expect("a call");
    }
    assert_names(&refusal(&step), line);
}

/// The last call failed: it is no call to freeze.
pub fn refused_after_a_failed_call(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = Step::new();
    for k in 0..5 {
        let _ = step.run(|| -> Result<Tensor> {
            let y = (&x + 1.0)?;
            if k == 4 {
                return Err(Error::argument("the user's check", "less", "more"));
            }
            &y * 2.0
        });
    }
    refusal(&step);
}

/// A step without tensor work has nothing to freeze.
pub fn refused_without_tensor_work(_device: &Device) {
    let mut step = Step::new();
    for k in 0..5 {
        step.run(|| Ok(k)).expect("a call");
    }
    refusal(&step);
}

/// A frozen step inside an open one is refused; afterwards it replays.
pub fn not_inside_an_open_step(device: &Device) {
    let w = Var::new(&scalar(1.0, device)).expect("a Var");
    let mut step = Step::new();
    for _ in 0..3 {
        step.run(|| w.set(&(w.get() + 1.0)?)).expect("a call");
    }
    let mut frozen = step.freeze().expect("a frozen step");
    let mut outer = Step::new();
    for _ in 0..3 {
        let e = outer.run(|| frozen.replay().map(|_| ())).expect_err("a replay in an open step");
        assert!(matches!(e.kind(), ErrorKind::Freeze { .. }), "{e}");
    }
    assert_eq!(values(&w.get()), [4.0]);
    frozen.replay().expect("a replay");
    assert_eq!(values(&w.get()), [5.0]);
    // The step itself goes on, too.
    step.run(|| w.set(&(w.get() + 1.0)?)).expect("a call");
    assert_eq!(values(&w.get()), [6.0]);
}

/// A snapshot held across replays keeps its value; an index out of range drops a replay's writes.
pub fn snapshots_and_flags_of_a_frozen_step(device: &Device) {
    let w = Var::new(&filled(&[4, 2], 1, device)).expect("a Var");
    let good = Tensor::from_vec(vec![0i64, 3], [2], device).expect("indices");
    let bad = Tensor::from_vec(vec![0i64, 4], [2], device).expect("indices");
    let mut step = Step::new();
    let update = || {
        let rows = w.get().index_select(0, &good)?;
        w.set(&(w.get() * 0.5)?)?;
        rows.sum(())
    };
    for _ in 0..3 {
        step.run(update).expect("a call");
    }
    let mut frozen = step.freeze().expect("a frozen step");
    let held = w.get();
    let before = held.to_host().expect("w");
    frozen.replay().expect("a replay");
    assert_bits_eq("the snapshot", &held.to_host().expect("w"), &before);
    let index = frozen.inputs().iter().position(|t| t.dtype() == stepgraph::DType::I64).expect("the index is an input");
    frozen.set_input(index, &bad).expect("an index");
    drop(held);
    let before = w.get().to_host().expect("w");
    // A device that launches without waiting tells when it is waited for.
    let e = frozen.replay().map(|_| ()).and_then(|()| device.synchronize()).expect_err("an index out of range");
    assert!(matches!(e.kind(), ErrorKind::Index { len: 4, .. }) && e.to_string().contains(file!()), "{e}");
    assert_bits_eq("w after a dropped write", &w.get().to_host().expect("w"), &before);
    frozen.set_input(index, &good).expect("an index");
    frozen.replay().expect("a replay");
    assert_eq!(values(&w.get())[0], values(&filled(&[4, 2], 1, device))[0] / 32.0);
}

/// Every second replay is also run eagerly and compared: draws, reads after writes, in-place updates and views agree.
pub fn replays_can_be_verified(device: &Device) {
    let rng = Rng::seed_from(9);
    let layer = Linear::new(6, 3, &rng, device).expect("a layer");
    let mut adam = Adam::new(layer.parameters(), AdamConfig::default()).expect("an optimizer");
    let (x, labels) = (filled(&[5, 6], 7, device), Tensor::from_vec(vec![0i64, 2, 1, 1, 0], [5], device).expect("i64"));
    let mut step = Step::new();
    let mut frozen = {
        let mut run = || {
            let mask = rng.uniform([5, 6], device)?.ge(0.3)?;
            let loss = layer.forward(&mask.select(&x, 0.0)?)?.cross_entropy(&labels)?;
            adam.step(&loss.backward()?)?;
            let bias = layer.bias.as_ref().expect("a bias").get();
            Ok((loss, bias.reshape([1, 3])?))
        };
        for _ in 0..3 {
            step.run(&mut run).expect("a call");
        }
        step.freeze().expect("a frozen step")
    };
    frozen.verify_every(2);
    let before = device.counts();
    for _ in 0..6 {
        frozen.replay().expect("a replay that is verified");
    }
    let done = device.counts() - before;
    assert_eq!(done.launches, 6);
    assert!(done.eager_kernels > 0, "three of them were run eagerly too");
    frozen.verify_every(0);
    let before = device.counts();
    frozen.replay().expect("a replay");
    assert_eq!((device.counts() - before).eager_kernels, 0);
}

scenarios!(
    a_training_step,
    replays_can_be_verified,
    inputs_can_be_replaced,
    replayed_values_are_kept,
    refused_before_three_calls,
    refused_after_two_paths,
    refused_with_a_host_read,
    refused_with_a_changing_number,
    refused_with_host_data,
    refused_with_other_survivors,
    refused_after_a_reseed,
    refused_after_a_failed_call,
    refused_without_tensor_work,
    not_inside_an_open_step,
    snapshots_and_flags_of_a_frozen_step,
);
