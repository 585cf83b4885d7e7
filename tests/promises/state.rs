//! State in `Var`s, in structs, in optimizers; parameters swapped, reloaded, rebound.

use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use stepgraph::{Device, Rng, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector, zeros};

/// Adam on f(w) = Σ (a w - b)², in double precision.
fn adam_reference(a: &[f64], b: &[f64], steps: usize, lr: f64) -> Vec<f64> {
    let (beta1, beta2, eps) = (0.9f64, 0.999f64, 1e-8f64);
    let n = a.len();
    let (mut w, mut m, mut v) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    for t in 1..=steps as i32 {
        for i in 0..n {
            let g = 2.0 * a[i] * (a[i] * w[i] - b[i]);
            m[i] = beta1 * m[i] + (1.0 - beta1) * g;
            v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
            let first = m[i] / (1.0 - beta1.powi(t));
            let second = v[i] / (1.0 - beta2.powi(t));
            w[i] -= lr * first / (second.sqrt() + eps);
        }
    }
    w
}

/// 50 steps of Adam: the textbook's values, eager, traced and frozen bit for bit, optimizer state included.
pub fn adam_over_fifty_steps(device: &Device) {
    let (a, b) = ([1.0f32, 0.5, -2.0, 0.1], [1.0f32, 2.0, 3.0, -4.0]);
    let config = AdamConfig { lr: 0.05, ..AdamConfig::default() };
    let log = compare(
        device,
        &Expect::steady(50).frozen(),
        || {
            let w = Var::new(&zeros(&[4], device))?;
            let adam = Adam::new(vec![w.clone()], config)?;
            Ok((w, adam, vector(&a, device), vector(&b, device)))
        },
        |_, _| Ok(()),
        |(w, adam, a, b), _, seen| {
            let d = ((&*a * &w.get())? - &*b)?;
            let loss = d.mul(&d)?.sum(())?;
            adam.step(&loss.backward()?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| std::iter::once(s.0.clone()).chain(s.1.state()).collect(),
    );
    let wide = |v: &[f32]| v.iter().map(|&x| x as f64).collect::<Vec<f64>>();
    let want = adam_reference(&wide(&a), &wide(&b), 50, 0.05);
    assert_close("w after 50 steps", log.f32(49, 1), &want, 2e-4);
}

/// SGD with momentum on a layer; the rate changes half-way.
pub fn momentum_with_a_changing_rate(device: &Device) {
    compare(
        device,
        &Expect::steady(10),
        || {
            let layer = Linear::new(5, 3, &Rng::seed_from(3), device)?;
            let sgd = Sgd::new(layer.parameters(), SgdConfig { lr: 0.1, momentum: 0.9, ..SgdConfig::default() })?;
            Ok((layer, sgd, filled(&[7, 5], 1, device), filled(&[7, 3], 2, device)))
        },
        |s, k| {
            if k == 5 {
                s.1.set_lr(0.01);
            }
            Ok(())
        },
        |(layer, sgd, x, y), _, seen| {
            let loss = layer.forward(x)?.tanh()?.mse(y)?;
            sgd.step(&loss.backward()?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| s.0.parameters().into_iter().chain(s.1.state()).collect(),
    );
}

/// A model whose parameter is replaced: by another `Var`, by `set`, and from a checkpoint.
pub fn swapped_parameter(device: &Device) {
    struct Model {
        w: Var,
    }
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Model { w: Var::new(&vector(&[2.0], device))? }, vector(&[3.0], device), Vec::new())),
        |(model, _, others): &mut (Model, Tensor, Vec<Tensor>), k| {
            match k {
                1 => model.w = Var::new(&vector(&[5.0], device))?,
                2 => model.w.set(&vector(&[7.0], device))?,
                3 => others.extend((0..100).map(|_| vector(&[-1.0], device))),
                4 => model.w = Var::new(&vector(&[4.0], device))?,
                _ => {}
            }
            Ok(())
        },
        |(model, x, _), _, seen| {
            seen.keep(&(&model.w.get() * &*x)?);
            Ok(())
        },
        |s| vec![s.0.w.clone()],
    );
    assert_eq!(log.firsts(0), [6.0, 15.0, 21.0, 21.0, 12.0, 12.0]);
}

/// Optimizer state that is rebound as tensors of a struct, nothing written in place.
pub fn rebinding_of_state(device: &Device) {
    struct Opt {
        v: Tensor,
        w: Tensor,
        old: Vec<Tensor>,
    }
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok(Opt { v: vector(&[0.0], device), w: vector(&[2.0], device), old: Vec::new() }),
        |opt, _| {
            opt.old.push(opt.w.clone());
            Ok(())
        },
        |opt, _, seen| {
            let v = ((&opt.v * 0.8)? + 1.0)?;
            let w = (&opt.w - (&v * 0.25))?;
            (opt.v, opt.w) = (v, w);
            seen.keep(&opt.v);
            seen.keep(&opt.w);
            if opt.old.len() == 6 {
                // Every other handle to an old value still shows it.
                opt.old.iter().for_each(|t| seen.keep(t));
            }
            Ok(())
        },
        |_| vec![],
    );
    assert_close("v", &log.firsts(0)[..5], &[1.0, 1.8, 2.44, 2.952, 3.3616], 1e-6);
    assert_close("w", &log.firsts(1)[..5], &[1.75, 1.3, 0.69, -0.048, -0.8884], 1e-6);
    let old: Vec<f32> = (2..8).map(|i| log.f32(5, i)[0]).collect();
    assert_eq!(old[0], 2.0);
    assert_eq!(old[1..], log.firsts(1)[..5]);
}

/// Batches of 4, 4, 2, twice: one extra trace for the short batch, none for going back.
pub fn shorter_last_batch(device: &Device) {
    let data: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let bounds = [(0, 4), (4, 8), (8, 10)];
    let log = compare(
        device,
        &Expect::steady(9).launches(&[0, 1, 0, 1, 1, 1, 1, 1, 1]).compiles(2),
        || Ok((Var::new(&scalar(2.0, device))?, vector(&[0.0], device))),
        |s, k| {
            let (lo, hi) = bounds[k % 3];
            s.1 = vector(&data[lo..hi], device);
            Ok(())
        },
        |(w, x), _, seen| {
            let loss = (&w.get() * &*x)?.mean(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * 0.1))?)?;
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    assert_eq!(log.firsts(0)[..6], [1.5, 5.5, 8.5, 1.5, 5.5, 8.5]);
    assert_close("w", &log.firsts(1)[..6], &[1.85, 1.30, 0.45, 0.30, -0.25, -1.10], 1e-6);
}

/// Batches cut from one tensor outside the step: another place in the same buffer is just another argument.
pub fn batches_as_views(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8),
        || Ok((filled(&[32, 3], 5, device), filled(&[4, 3], 6, device))),
        |s, k| {
            s.1 = s.0.slice(0, 4 * ((k * 3) % 8), 4)?;
            Ok(())
        },
        |(_, x), _, seen| {
            seen.keep(&(&*x * 2.0)?);
            seen.keep(&x.matmul(&x.t()?)?);
            Ok(())
        },
        |_| vec![],
    );
    let data = values(&filled(&[32, 3], 5, device));
    for k in 0..8 {
        assert_eq!(log.f32(k, 0)[0], data[12 * ((k * 3) % 8)] * 2.0, "call {}", k + 1);
    }
}

/// `Var`s written before they are read, and read again after: the new value, as a new leaf.
pub fn set_before_get(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok((Var::new(&vector(&[1.0, 1.0], device))?, vector(&[2.0, 3.0], device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            w.set(x)?;
            let y = (&w.get() * &w.get())?;
            let g = y.sum(())?.backward()?.get(w).expect("the gradient of the value set before");
            w.set(&(w.get() - (&g * 0.5))?)?;
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    assert_eq!(log.f32(5, 0), [4.0, 6.0]);
    assert_eq!(log.f32(5, 1), [0.0, 0.0]);
}

/// A value written and read again in the step is a new leaf: gradients of both versions add up.
pub fn get_after_set_is_a_new_leaf(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::new(&vector(&[3.0], device)),
        |w, _| w.set(&vector(&[3.0], device)),
        |w, _, seen| {
            let before = w.get();
            w.set(&(&before * 2.0)?)?;
            let after = w.get();
            // d/dbefore = 1, d/dafter = before = 3: nothing flows through the write.
            let loss = (&before + &(&after * &before.detach()?)?)?.sum(())?;
            seen.keep(&loss.backward()?.get(w).expect("a gradient"));
            seen.keep(&after);
            Ok(())
        },
        |w| vec![w.clone()],
    );
    assert_eq!(log.firsts(0), [4.0; 6]);
    assert_eq!(log.firsts(1), [6.0; 6]);
}

/// Two `Var`s swap their values at every call.
pub fn two_vars_swap_values(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(7).frozen(),
        || Ok((Var::new(&vector(&[1.0, 2.0], device))?, Var::new(&vector(&[3.0, 4.0], device))?)),
        |_, _| Ok(()),
        |(a, b), _, _| {
            let (x, y) = (a.get(), b.get());
            a.set(&y)?;
            b.set(&x)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_eq!(log.firsts(0), [3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0]);
}

/// `Var`s swap and change: each is the other's new value.
pub fn two_vars_swap_and_grow(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(7).frozen(),
        || Ok((Var::new(&vector(&[1.0; 64], device))?, Var::new(&vector(&[2.0; 64], device))?)),
        |_, _| Ok(()),
        |(a, b), _, _| {
            let (x, y) = (a.get(), b.get());
            a.set(&(&y + 1.0)?)?;
            b.set(&(&x * 2.0)?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    let (mut a, mut b) = (1.0f32, 2.0f32);
    for k in 0..7 {
        (a, b) = (b + 1.0, a * 2.0);
        assert_eq!((log.f32(k, 0)[63], log.f32(k, 1)[63]), (a, b), "call {}", k + 1);
    }
}

/// One `Var` gets the old value of another that is then updated, twice.
pub fn copied_then_updated(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || {
            let src: Vec<f32> = (0..12).map(|i| i as f32).collect();
            Ok((Var::new(&zeros(&[12], device))?, Var::new(&vector(&src, device))?))
        },
        |_, _| Ok(()),
        |(dst, src), _, seen| {
            dst.set(&src.get())?;
            src.set(&(src.get() + 1.0)?)?;
            let y = (&src.get() * 10.0)?;
            src.set(&(src.get() - 3.0)?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    for k in 0..6 {
        let d = -2.0 * k as f32;
        assert_eq!((log.f32(k, 1)[0], log.f32(k, 0)[0], log.f32(k, 2)[11]), (d, 10.0 * (d + 1.0), d + 9.0));
    }
}

/// The host puts a transposed view into a `Var`: the numbers follow, whatever the strides.
pub fn a_strided_value_in_a_var(device: &Device) {
    let square = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let log = compare(
        device,
        // Another layout is another path; coming back is not.
        &Expect::steady(8).launches(&[0, 1, 0, 1, 1, 1, 1, 1]).compiles(2),
        || Ok((Var::new(&Tensor::from_slice(&square, [3, 3], device)?)?, vector(&[1.0, 10.0, 100.0], device))),
        |s, k| {
            let t = Tensor::from_slice(&square, [3, 3], device)?;
            s.0.set(&if [2, 3, 5].contains(&k) { t.t()? } else { t })
        },
        |(w, x), _, seen| {
            seen.keep(&(&w.get() * &*x)?);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    assert_eq!(log.f32(0, 0)[..3], [1.0, 20.0, 300.0]);
    assert_eq!(log.f32(2, 0)[..3], [1.0, 40.0, 700.0]);
    assert_eq!(log.f32(6, 0)[..3], [1.0, 20.0, 300.0]);
}

/// A step that writes its `Var`'s transpose back: a square turned at every call.
pub fn a_var_transposed_by_the_step(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0, 0, 0, 0, 1, 1, 1, 1]).compiles(2),
        || Var::new(&filled(&[3, 3], 4, device)),
        |_, _| Ok(()),
        |w, _, seen| {
            let turned = w.get().t()?;
            w.set(&turned)?;
            seen.keep(&(&turned + 1.0)?);
            Ok(())
        },
        |w| vec![w.clone()],
    );
    let start = values(&filled(&[3, 3], 4, device));
    assert_eq!(log.f32(0, 1)[1], start[3]);
    assert_eq!(log.f32(1, 1), start);
}

/// A slice of a buffer put into a `Var` that is updated in place: its neighbours stay.
pub fn a_part_of_a_buffer_in_a_var(device: &Device) {
    let all = vector(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], device);
    let w = Var::new(&zeros(&[4], device)).expect("a Var");
    let mut step = jit::Step::new();
    for k in 0..6 {
        w.set(&all.slice(0, k % 5, 4).expect("a slice")).expect("a write");
        step.run(|| w.set(&(w.get() * 10.0)?)).expect("a call");
        assert_eq!(values(&w.get())[0], 10.0 * (1 + k % 5) as f32, "call {}", k + 1);
        assert_eq!(values(&all), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }
    // The slice's tensor gone, the `Var` alone holds a part of a buffer.
    drop(all);
    for _ in 0..6 {
        let part = vector(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], device).slice(0, 3, 4).expect("a slice");
        w.set(&part).expect("a write");
        drop(part);
        step.run(|| w.set(&(w.get() * 10.0)?)).expect("a call");
        assert_eq!(values(&w.get()), [40.0, 50.0, 60.0, 70.0]);
    }
}

/// State that is written and never read in the step is written at every call.
pub fn state_without_a_reader(device: &Device) {
    let stats = [(2.0f32, 1.0f32), (4.0, 4.0), (6.0, 9.0), (8.0, 16.0), (2.0, 1.0), (4.0, 4.0)];
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Var::state(&scalar(0.0, device))?, Var::state(&scalar(1.0, device))?, vector(&[0.0; 2], device))),
        |s, k| {
            let (mean, var) = stats[k];
            s.2 = vector(&[mean - var.sqrt(), mean + var.sqrt()], device);
            Ok(())
        },
        |(rm, rv, x), _, seen| {
            let mu = x.mean(())?;
            let d = (&*x - &mu)?;
            let var = d.mul(&d)?.mean(())?;
            seen.keep(&(&d / &(&var + 1e-5)?.sqrt()?)?);
            rm.set(&((rm.get() * 0.8)? + (&mu * 0.2))?)?;
            rv.set(&((rv.get() * 0.8)? + (&var * 0.2))?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_close("rm", &log.firsts(1)[..4], &[0.4, 1.12, 2.096, 3.2768], 1e-6);
    assert_close("rv", &log.firsts(2)[..4], &[1.0, 1.6, 3.08, 5.664], 1e-6);
}

scenarios!(
    adam_over_fifty_steps,
    momentum_with_a_changing_rate,
    swapped_parameter,
    rebinding_of_state,
    shorter_last_batch,
    batches_as_views,
    set_before_get,
    get_after_set_is_a_new_leaf,
    two_vars_swap_values,
    two_vars_swap_and_grow,
    copied_then_updated,
    a_strided_value_in_a_var,
    a_var_transposed_by_the_step,
    a_part_of_a_buffer_in_a_var,
    state_without_a_reader,
);
