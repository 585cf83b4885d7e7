//! `backward` inside a step: one event, the same gradients, whatever changes around it.

use stepgraph::nn::{Linear, Module};
use stepgraph::{Device, Rng, Tensor, Var};

use crate::harness::{Expect, assert_close, compare, filled, scalar, vector};

/// Host numbers used in the forward pass change: the gradient follows.
pub fn a_host_scalar_of_the_forward_pass(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::new(&vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let scale = 0.5 + k as f64;
            // d/dw Σ (s·w)·(w / s) / s² … every place a scalar may stand in.
            let a = (w.get() * scale)?;
            let b = (&w.get() / (scale + 1.0))?;
            let c = (scale / (&w.get() + 10.0)?)?;
            let d = (scale - &w.get())?;
            let loss = (&(&a * &b)? + &(&c * &d)?)?.sum(())?;
            seen.keep(&loss.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
    let want: Vec<f64> = (0..6)
        .map(|k| {
            let (s, w) = (0.5 + k as f64, 1.0);
            2.0 * w * s / (s + 1.0) - s / (w + 10.0) - s * (s - w) / ((w + 10.0) * (w + 10.0))
        })
        .collect();
    assert_close("the gradient", &log.firsts(0), &want, 1e-5);
}

/// The same number by chance, then another: provenance decides, not the value.
pub fn scalars_that_were_equal_by_chance(device: &Device) {
    let pairs = [(2.0, 2.0), (2.0, 2.0), (2.0, 3.0), (1.0, 1.0), (1.0, 5.0), (0.0, 1.0)];
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::new(&vector(&[3.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let (a, b) = pairs[k];
            let loss = ((w.get() * a)? * (w.get() * b)?)?.sum(())?;
            seen.keep(&loss.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
    let want: Vec<f32> = pairs.iter().map(|(a, b)| (2.0 * a * b * 3.0) as f32).collect();
    assert_eq!(log.firsts(0), want);
}

/// Slice starts, full values and clamps in the forward pass: parameters of the gradient, too.
pub fn other_parameters_of_the_forward_pass(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::new(&filled(&[8], 1, device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let part = w.get().slice(0, k, 2)?;
            let scale = Tensor::full([2], 1.0 + k as f64, device)?;
            let loss = part.mul(&scale)?.maximum(-0.1 * k as f64)?.sum(())?;
            seen.keep(&loss.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        let g = log.f32(k, 0);
        assert!(g.iter().enumerate().all(|(i, v)| (k..k + 2).contains(&i) || *v == 0.0), "call {}: {g:?}", k + 1);
    }
}

/// Three and more uses of one value: the gradient's terms add up in one order, eagerly and traced.
pub fn terms_add_up_in_one_order(device: &Device) {
    compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&filled(&[64], 1, device))?, filled(&[64], 2, device))),
        |_, _| Ok(()),
        |(w, x), k, seen| {
            let v = w.get();
            let a = (&v * (1.1 + k as f64))?;
            let b = (&v * &*x)?;
            let c = v.sin()?;
            let d = (&v / 3.7)?;
            let e = v.tanh()?;
            // Used in other orders than they were made in, and deep on one side.
            let left = (&e + &(&a + &d)?)?;
            let right = ((&c * &b)? + &v)?;
            let loss = (&right + &(&left * &v)?)?.mean(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * 0.3))?)?;
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// Several versions of one `Var` in one loss: their gradients add up in one order.
pub fn versions_of_a_var_add_up_in_one_order(device: &Device) {
    compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&filled(&[32], 1, device))?, filled(&[32], 3, device))),
        |s, _| s.0.set(&filled(&[32], 1, device)),
        |(w, x), _, seen| {
            let a = w.get();
            w.set(&(&*x * 1.5)?)?;
            let b = w.get();
            w.set(&(&*x * 0.3)?)?;
            let c = w.get();
            let loss = (&(c.sin()? * &*x)? + &(&a.tanh()? + &(&b * &b)?)?)?.sum(())?;
            seen.keep(&loss.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// A gradient is a constant for a second `backward`, in every mode.
pub fn gradients_are_constants(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::new(&vector(&[2.0, -1.0], device)),
        |_, _| Ok(()),
        |w, _, seen| {
            let v = w.get();
            let g = (&(&v * &v)? * &v)?.sum(())?.backward()?.get(w).expect("3 w²");
            // d/dw Σ g·w with g constant is g, not 9 w².
            let second = (&g * &v)?.sum(())?.backward()?.get(w).expect("a gradient");
            seen.keep(&g);
            seen.keep(&second);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.f32(5, 0), [12.0, 3.0]);
    assert_eq!(log.f32(5, 1), [12.0, 3.0]);
}

/// Two losses of one forward pass, each with its gradients; and one loss differentiated twice.
pub fn two_backwards(device: &Device) {
    compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&filled(&[3, 3], 1, device))?, Var::new(&filled(&[3, 3], 2, device))?)),
        |_, _| Ok(()),
        |(a, b), _, seen| {
            let h = a.get().matmul(&b.get())?;
            let (first, second) = (h.tanh()?.mean(())?, (&h * &h)?.mean(())?);
            let ga = first.backward()?;
            let gb = second.backward()?;
            let again = first.backward()?;
            seen.keep(&ga.get(a).expect("a gradient"));
            seen.keep(&again.get(a).expect("a gradient"));
            a.set(&(a.get() - (ga.get(a).expect("a gradient") * 0.1))?)?;
            b.set(&(b.get() - (gb.get(b).expect("a gradient") * 0.1))?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

/// A host branch in the forward pass: each side has its own gradients.
pub fn a_branch_in_the_forward_pass(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0, 1, 0, 1, 1, 1, 1, 1]).compiles(2),
        || Var::new(&vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let v = w.get();
            let y = if k < 2 || k == 5 { (&v * &v)? } else { (&v * 3.0)? };
            seen.keep(&y.sum(())?.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [2.0, 2.0, 3.0, 3.0, 3.0, 2.0, 3.0, 3.0]);
}

/// A branch between the forward pass and `backward`, and between `backward` and the update.
pub fn a_branch_around_backward(device: &Device) {
    compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || {
            let layer = Linear::new(4, 2, &Rng::seed_from(1), device)?;
            Ok((layer, filled(&[3, 4], 1, device)))
        },
        |_, _| Ok(()),
        |(layer, x), k, seen| {
            let y = layer.forward(x)?.tanh()?;
            let loss = if k % 4 < 2 { y.mean(())? } else { (&y * &y)?.mean(())? };
            let g = loss.backward()?;
            for p in layer.parameters() {
                let g = g.get(&p).expect("a gradient");
                let update = if k % 3 == 2 { (&g * 0.5)? } else { (&g * &g)? };
                p.set(&(p.get() - &update)?)?;
            }
            seen.keep(&loss);
            Ok(())
        },
        |s| s.0.parameters(),
    );
}

/// Parameters that the loss does not depend on have no gradient, at every call.
pub fn no_gradient_at_every_call(device: &Device) {
    compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&scalar(1.0, device))?, Var::new(&scalar(2.0, device))?, Var::state(&scalar(3.0, device))?)),
        |_, _| Ok(()),
        |(a, b, s), _, seen| {
            let other = b.get();
            let loss = (&a.get() * &s.get())?;
            let g = loss.backward()?;
            assert!(g.get(b).is_none(), "the loss does not depend on b");
            assert!(g.get(s).is_none(), "s is not trainable");
            seen.keep(&g.get(a).expect("a gradient"));
            seen.keep(&(&other + &loss)?);
            let detached = (&a.get().detach()? * &b.get())?.backward()?;
            assert!(detached.get(a).is_none(), "detached");
            seen.keep(&detached.get(b).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
}

/// A parameter takes part in the loss only at some calls.
pub fn a_parameter_without_a_gradient_sometimes(device: &Device) {
    compare(
        device,
        &Expect::steady(9).launches(&[0; 9]).any_compiles(),
        || Ok((Var::new(&vector(&[1.0, 2.0], device))?, Var::new(&vector(&[3.0, 4.0], device))?)),
        |_, _| Ok(()),
        |(a, b), k, seen| {
            let mut y = (&a.get() * 2.0)?;
            if k % 2 == 1 {
                y = (&y * &b.get())?;
            }
            let g = y.sum(())?.backward()?;
            assert_eq!(g.get(b).is_some(), k % 2 == 1);
            for p in [&*a, &*b] {
                if let Some(g) = g.get(p) {
                    p.set(&(p.get() - (&g * 0.1))?)?;
                }
            }
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

/// Gradients through every kind of op: joined, cut, picked, reduced, selected, cast.
pub fn gradients_through_many_ops(device: &Device) {
    let index = |device: &Device| Tensor::from_vec(vec![2i64, 0, 2, 1], [4], device);
    compare(
        device,
        &Expect::steady(5),
        || Ok((Var::new(&filled(&[3, 4], 1, device))?, Var::new(&filled(&[4], 2, device))?, index(device)?)),
        |_, _| Ok(()),
        |(table, bias, index), _, seen| {
            let rows = table.get().index_select(0, index)?;
            let joined = Tensor::concat(&[&rows, &bias.get().reshape([1, 4])?.expand([2, 4])?], 0)?;
            let cut = joined.slice_step(0, 0, 3, 2)?;
            let soft = cut.log_softmax(1)?;
            let picked = soft.gt(-1.4)?.select(&soft, 0.0)?;
            let top = joined.max(1)?.sum(())?;
            let loss = (picked.mean(())? + (&top * 0.1))?;
            let g = loss.backward()?;
            for p in [&*table, &*bias] {
                let g = g.get(p).expect("a gradient");
                p.set(&(p.get() - (&g * 0.5))?)?;
            }
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

scenarios!(
    a_host_scalar_of_the_forward_pass,
    scalars_that_were_equal_by_chance,
    other_parameters_of_the_forward_pass,
    terms_add_up_in_one_order,
    versions_of_a_var_add_up_in_one_order,
    gradients_are_constants,
    two_backwards,
    a_branch_in_the_forward_pass,
    a_branch_around_backward,
    no_gradient_at_every_call,
    a_parameter_without_a_gradient_sometimes,
    gradients_through_many_ops,
);
