//! Gradients on request: of gradients, with respect to inputs and intermediate values, with an upstream gradient;
//! what is on the tape, and what is not.

use stepgraph::autograd::{self, GradOptions, Wrt};
use stepgraph::{Device, ErrorKind, Result, Tensor, Var, jit, optim};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector};

fn graph<'a>() -> GradOptions<'a> {
    GradOptions::new().create_graph(true)
}

/// The only gradient of `y` by `x`, on the tape.
#[track_caller]
fn slope(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    Ok(autograd::grad(y, &[x], graph())?.remove(0).expect("a gradient"))
}

/// Four derivatives of Σ s·sin(x)·x³, s a host number, against the closed forms.
pub fn derivatives_of_derivatives(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok(vector(&[0.5, -1.25, 2.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let x = x.require_grad()?;
            let cube = (&(&x * &x)? * &x)?;
            let mut y = (&(x.sin()? * &cube)? * (1.0 + k as f64))?;
            for _ in 0..4 {
                y = slope(&y.sum(())?, &x)?;
                seen.keep(&y);
            }
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        let of = |f: fn(f64, f64, f64) -> f64| -> Vec<f64> {
            [0.5f64, -1.25, 2.0].iter().map(|&x| (1.0 + k as f64) * f(x, x.sin(), x.cos())).collect()
        };
        assert_close("1st", log.f32(k, 0), &of(|x, s, c| x.powi(3) * c + 3.0 * x * x * s), 1e-5);
        assert_close("2nd", log.f32(k, 1), &of(|x, s, c| -x.powi(3) * s + 6.0 * x * x * c + 6.0 * x * s), 1e-5);
        let third = |x: f64, s: f64, c: f64| -x.powi(3) * c - 9.0 * x * x * s + 18.0 * x * c + 6.0 * s;
        assert_close("3rd", log.f32(k, 2), &of(third), 1e-5);
        let fourth = |x: f64, s: f64, c: f64| x.powi(3) * s - 12.0 * x * x * c - 36.0 * x * s + 24.0 * c;
        assert_close("4th", log.f32(k, 3), &of(fourth), 1e-5);
    }
}

/// Training with a penalty on the slope of the model at its input: (∂f/∂x)² of f(x) = tanh(w·x), closed form.
pub fn a_gradient_penalty(device: &Device) {
    let rate = 0.05;
    let log = compare(
        device,
        &Expect::steady(7).frozen(),
        || Ok((Var::new(&vector(&[0.7, -0.4], device))?, vector(&[1.5, 2.0], device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let x = x.require_grad()?;
            let f = (&w.get() * &x)?.tanh()?.sum(())?;
            let slope = slope(&f, &x)?;
            let loss = (&f + &slope.mul(&slope)?.sum(())?)?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * rate))?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    let mut w = [0.7f64, -0.4];
    for k in 0..7 {
        for (w, x) in w.iter_mut().zip([1.5f64, 2.0]) {
            let t = (*w * x).tanh();
            let sech2 = 1.0 - t * t;
            // d/dw [tanh(wx) + (w sech²(wx))²]
            let penalty = 2.0 * *w * sech2 * (sech2 - 2.0 * *w * x * sech2 * t);
            *w -= rate * (x * sech2 + penalty);
        }
        assert_close("w", log.f32(k, 1), &w, 1e-5);
    }
}

/// An input marked outside the step, once; `backward` and `grad` in the step reach it.
pub fn an_input_tracked_outside_the_step(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok((Var::new(&vector(&[3.0], device))?, vector(&[2.0], device).require_grad()?)),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let y = (&(&w.get() * &*x)? * &*x)?.sum(())?; // w x²
            let dx = slope(&y, x)?; // 2 w x
            let dw = (&y * &dx)?.sum(())?.backward()?.get(w).expect("d(2 w² x³)/dw = 4 w x³");
            seen.keep(&dx);
            seen.keep(&dw);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!((log.f32(5, 0), log.f32(5, 1)), (&[12.0f32][..], &[96.0f32][..]));
}

/// Products with the Jacobian on either side: vᵀJ, and J·u as the gradient of vᵀJ·u by v.
pub fn jacobian_products(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).uploads(2),
        || Ok(vector(&[2.0, 3.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let x = x.require_grad()?;
            let (a, b) = (x.slice(0, 0, 1)?, x.slice(0, 1, 1)?);
            // y = (a b, a², b): J = [[b, a], [2a, 0], [0, 1]].
            let y = Tensor::concat(&[&(&a * &b)?, &(&a * &a)?, &b], 0)?;
            let v = vector(&[1.0, 10.0, 100.0], device);
            let vj = autograd::grad(&y, &[&x], GradOptions::new().upstream(&v))?.remove(0).expect("vᵀJ");
            assert!(!vj.requires_grad());
            let v = (v * (k as f64)).expect("any point will do").require_grad()?;
            let vj2 = autograd::grad(&y, &[&x], graph().upstream(&v))?.remove(0).expect("vᵀJ");
            let u = vector(&[1.0, -1.0], device);
            let ju = autograd::grad(&vj2, &[&v], GradOptions::new().upstream(&u))?.remove(0).expect("J u");
            seen.keep(&vj);
            seen.keep(&ju);
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        assert_eq!(log.f32(k, 0), [3.0 + 40.0, 2.0 + 100.0], "vᵀJ");
        assert_eq!(log.f32(k, 1), [3.0 - 2.0, 4.0, -1.0], "J u");
    }
}

/// With respect to intermediate values, `Var`s, the output itself; unused ones give none; in any mix.
pub fn with_respect_to_anything(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || {
            let var = |v| Var::new(&vector(&[v], device));
            Ok((var(2.0)?, var(5.0)?, Var::state(&vector(&[1.0], device))?, vector(&[3.0], device)))
        },
        |_, _| Ok(()),
        |(w, unused, state, x), _, seen| {
            let x = x.require_grad()?;
            let h = (&w.get() * &x)?;
            let y = (&(&h * &h)? + &state.get())?.sum(())?;
            let apart = x.exp()?;
            let other = unused.get();
            let wrt: [Wrt; 9] = [
                (&h).into(),
                (&*w).into(),
                (&x).into(),
                (&y).into(),
                (&*unused).into(),
                (&apart).into(),
                (&*state).into(),
                (&h).into(),
                (&other).into(),
            ];
            let g = autograd::grad(&y, &wrt, GradOptions::new())?;
            let found: Vec<bool> = g.iter().map(Option::is_some).collect();
            assert_eq!(found, [true, true, true, true, false, false, false, true, false]);
            g.iter().flatten().for_each(|g| seen.keep(g));
            // With respect to two versions of one Var: the sum.
            w.set(&(w.get() * 2.0)?)?;
            let z = (&h * &w.get())?.sum(())?;
            seen.keep(&z.grad(&[&*w])?.remove(0).expect("a gradient"));
            w.set(&(w.get() * 0.5)?)
        },
        |s| vec![s.0.clone()],
    );
    // h = 6: 2h, 2hx, 2hw, 1, 2h; z = w x w' with w' = 4: w' x + w x.
    let want = [12.0, 36.0, 24.0, 1.0, 12.0, 18.0];
    for k in [0, 5] {
        let got: Vec<f32> = (0..6).map(|i| log.f32(k, i)[0]).collect();
        assert_eq!(got, want, "call {}", k + 1);
    }
}

/// Other values to differentiate by, another output or another upstream: another path, never a stale answer.
pub fn what_is_asked_for_changes(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || Ok((vector(&[2.0], device), vector(&[3.0], device))),
        |_, _| Ok(()),
        |(a, b), k, seen| {
            let (a, b) = (a.require_grad()?, b.require_grad()?);
            let y = (&(&a * &b)? * &b)?; // a b²
            let z = (&a * &a)?;
            let v = (&a * 0.5)?;
            let options = [GradOptions::new(), GradOptions::new().upstream(&v), graph()][(k / 2) % 3];
            let by = [&a, &b][k % 2];
            let of = if k % 4 == 3 { &z } else { &y };
            match autograd::grad(of, &[by], options)?.remove(0) {
                Some(g) => seen.keep(&g),
                None => seen.keep(&scalar(-1.0, device)),
            }
            Ok(())
        },
        |_| vec![],
    );
    // by a: b² = 9; by b: 2ab = 12 or, of z, none; upstream 1 in calls 3 and 4, 9 and 10.
    let want = [9.0, 12.0, 9.0, -1.0, 9.0, 12.0, 9.0, -1.0, 9.0, 12.0, 9.0, -1.0];
    let got: Vec<f32> = log.firsts(0);
    assert_eq!(got, want);
}

/// What is computed inside `no_grad` is a constant; a step notices when that changes.
pub fn no_grad_comes_and_goes(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).compiles(2),
        || Var::new(&vector(&[3.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let square = || (&w.get() * &w.get())?.sum(());
            let y = if k % 3 == 2 { autograd::no_grad(square)? } else { square()? };
            assert_eq!(y.requires_grad(), k % 3 != 2);
            let loss = (&y * &w.get())?.sum(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            seen.keep(&g);
            Ok(())
        },
        |_| vec![],
    );
    let want: Vec<f32> = (0..8).map(|k| if k % 3 == 2 { 9.0 } else { 27.0 }).collect();
    assert_eq!(log.firsts(0), want);
}

/// A parameter is frozen and thawed between calls: it has no gradient while it is frozen.
pub fn the_trainable_flag_changes_between_calls(device: &Device) {
    let frozen = |k: usize| (2..5).contains(&k);
    let log = compare(
        device,
        &Expect::steady(9).launches(&[0; 9]).compiles(2),
        || Ok((Var::new(&vector(&[3.0], device))?, Var::new(&vector(&[2.0], device))?)),
        |s, k| s.0.set_trainable(!frozen(k)),
        |(a, b), k, seen| {
            let loss = (&a.get() * &b.get())?.sum(())?;
            let g = loss.backward()?;
            assert_eq!(g.get(a).is_some(), !frozen(k), "call {}", k + 1);
            let of_a = loss.grad(&[&*a])?.remove(0);
            assert_eq!(of_a.is_some(), !frozen(k), "call {}", k + 1);
            for p in [&*a, &*b] {
                if let Some(g) = g.get(p) {
                    p.set(&(p.get() - (g * 0.1))?)?;
                }
            }
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    let (mut a, mut b) = (3.0f64, 2.0);
    for k in 0..9 {
        (a, b) = (if frozen(k) { a } else { a - 0.1 * b }, b - 0.1 * a);
        assert_close("a", log.f32(k, 1), &[a], 1e-6);
        assert_close("b", log.f32(k, 2), &[b], 1e-6);
    }
}

/// The flag changes inside the closure: between reads, and between a write and a read.
pub fn the_trainable_flag_changes_inside_the_step(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(9).launches(&[0; 9]).any_compiles(),
        || Var::new(&vector(&[3.0], device)),
        |s, _| s.set_trainable(true),
        |w, k, seen| {
            let first = w.get();
            if k % 2 == 1 {
                w.set_trainable(false)?;
            }
            let second = w.get();
            w.set(&(&first * 2.0)?)?;
            if k % 3 == 2 {
                w.set_trainable(k % 2 == 1)?;
            }
            let third = w.get();
            let expected = [true, k % 2 == 0, if k % 3 == 2 { k % 2 == 1 } else { k % 2 == 0 }];
            assert_eq!([&first, &second, &third].map(|t| t.requires_grad()), expected, "call {}", k + 1);
            let loss = (&(&first * &second)? * &third)?.sum(())?;
            let g = loss.grad(&[&first])?.remove(0).expect("a gradient");
            seen.keep(&g);
            w.set(&(&first + 0.5)?)
        },
        |s| vec![s.clone()],
    );
    // loss = w · w · 2w: by the first snapshot alone 2w², by both 4w² (the same handle).
    for k in 0..9 {
        let w = 3.0 + 0.5 * k as f64;
        assert_close("g", log.f32(k, 0), &[if k % 2 == 1 { 2.0 } else { 4.0 } * w * w], 1e-6);
    }
}

/// A frozen step knows the flags it was frozen with.
pub fn a_frozen_step_refuses_another_flag(device: &Device) {
    let w = Var::new(&vector(&[1.0], device)).expect("a Var");
    let mut step = jit::trace(|| {
        let g = (&w.get() * &w.get())?.sum(())?.backward()?.get(&w).expect("a gradient");
        w.set(&(w.get() - (g * 0.25))?)
    });
    for _ in 0..3 {
        step.call().expect("a call");
    }
    let mut frozen = step.freeze().expect("frozen");
    frozen.replay().expect("a replay");
    w.set_trainable(false).expect("a float Var");
    let e = frozen.replay().expect_err("the flag changed");
    assert!(matches!(e.kind(), ErrorKind::Freeze { .. }) && e.to_string().contains("freeze it anew"), "{e}");
    w.set_trainable(true).expect("a float Var");
    frozen.replay().expect("as it was");
    assert_eq!(values(&w.get()), [1.0 / 32.0]);
}

/// Detached values, and values of another step, are constants; a detached value shares its memory.
pub fn detached_values_are_constants(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok((Var::new(&filled(&[4], 1, device))?, filled(&[4], 2, device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let y = (&w.get() * &*x)?;
            let d = y.detach()?;
            assert!(!d.requires_grad());
            let g = (&d * &w.get())?.sum(())?.backward()?.get(w).expect("d");
            seen.keep(&d);
            seen.keep(&g);
            w.set(&(w.get() - (&g * 0.1))?)
        },
        |s| vec![s.0.clone()],
    );
    for k in 0..6 {
        assert_eq!(log.f32(k, 0), log.f32(k, 1));
    }
}

/// Sums of gradients over micro-batches: the mean over all of them is the gradient of one large batch.
pub fn accumulated_gradients(device: &Device) {
    let (rate, batches) = (0.5f64, [[1.0f32, 3.0], [2.0, 5.0], [4.0, 4.0]]);
    for traced in [false, true] {
        let (w, idle) =
            (Var::new(&scalar(1.0, device)).expect("a Var"), Var::new(&scalar(7.0, device)).expect("a Var"));
        let mut sums = optim::Accumulator::new(vec![w.clone(), idle.clone()]).expect("an accumulator");
        let mut sgd =
            optim::Sgd::new(vec![w.clone(), idle.clone()], optim::SgdConfig { lr: rate, ..Default::default() })
                .expect("an optimizer");
        let (mut micro, mut update) = (jit::Step::new(), jit::Step::new());
        let mut reference = 1.0f64;
        for batch in batches.iter().cycle().take(6) {
            assert!(sums.gradients().expect("gradients").get(&w).is_none(), "nothing yet");
            let w_now = values(&w.get())[0];
            for x in batch {
                let x = scalar(*x, device);
                let mut step = || sums.add(&(&(&w.get() * &w.get())? * &x)?.backward()?);
                if traced { micro.run(step) } else { step() }.expect("a micro-batch");
            }
            let kept = sums.mean().expect("gradients").get(&w).expect("a gradient");
            let mut apply = || {
                sgd.step(&sums.mean()?)?;
                sums.clear()
            };
            if traced { update.run(&mut apply) } else { apply() }.expect("an update");
            let mean = (batch[0] + batch[1]) as f64 * reference;
            assert_close("the mean", &values(&kept), &[(batch[0] + batch[1]) as f64 * w_now as f64], 1e-6);
            reference -= rate * mean;
            assert_close("w", &values(&w.get()), &[reference], 1e-5);
            assert_eq!(values(&idle.get()), [7.0], "no gradient, no move");
            assert_eq!(sums.count(), 0);
        }
        if traced {
            assert_eq!(micro.report().recorded, 1, "{}", micro.report());
        }
    }
}

scenarios!(
    derivatives_of_derivatives,
    a_gradient_penalty,
    an_input_tracked_outside_the_step,
    jacobian_products,
    with_respect_to_anything,
    what_is_asked_for_changes,
    no_grad_comes_and_goes,
    the_trainable_flag_changes_between_calls,
    the_trainable_flag_changes_inside_the_step,
    a_frozen_step_refuses_another_flag,
    detached_values_are_constants,
    accumulated_gradients,
);
