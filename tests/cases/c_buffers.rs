//! Section C: buffers and lifetime.

use stepgraph::{Device, Result, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector};

pub fn input_in_container_not_rebound(device: &Device) {
    struct Batch {
        x: Tensor,
    }
    type Bound = (Vec<Tensor>, Option<Tensor>, Option<Batch>);
    for dropping in [false, true] {
        for style in 0..4 {
            let mut step = jit::Step::new();
            let mut alive = Vec::new();
            for i in 0..6 {
                let t = vector(&[i as f32], device);
                let bound: Bound = match style {
                    0 => (vec![t.clone()], None, None),
                    1 => (vec![], Some(t.clone()), None),
                    2 => (vec![], None, Some(Batch { x: t.clone() })),
                    _ => (vec![], None, None),
                };
                let before = device.counts();
                let y = step
                    .run(|| match (&bound, style) {
                        ((list, ..), 0) => &list[0] + 1.0,
                        ((_, Some(x), _), 1) => x + 1.0,
                        ((.., Some(batch)), 2) => &batch.x + 1.0,
                        _ => &t + 1.0,
                    })
                    .expect("a call");
                assert_eq!(values(&y), [i as f32 + 1.0], "style {style}, call {}", i + 1);
                if i > 0 {
                    let did = device.counts() - before;
                    assert_eq!((did.launches, did.eager_kernels), (1, 0));
                }
                if dropping {
                    drop((bound, t));
                    alive.push(vector(&[999.0], device));
                } else {
                    alive.push(t);
                }
            }
        }
    }
}

pub fn short_last_batch(device: &Device) {
    let samples: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let all = vector(&samples, device);
    // Batches as tensors of their own, and as views of all samples.
    for views in [false, true] {
        let log = compare(
            device,
            &Expect::steady(6).launches(&[0, 1, 0, 1, 1, 1]).compiles(2),
            || Ok((Var::new(&scalar(2.0, device))?, vector(&[0.0], device))),
            |s, k| {
                let (start, len) = [(0, 4), (4, 4), (8, 2)][k % 3];
                s.1 = if views { all.slice(0, start, len)? } else { vector(&samples[start..start + len], device) };
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
        assert_eq!(log.firsts(0), [1.5, 5.5, 8.5, 1.5, 5.5, 8.5]);
        assert_close("w", &log.firsts(1), &[1.85, 1.30, 0.45, 0.30, -0.25, -1.10], 1e-6);
    }
}

pub fn kept_output_overwritten(device: &Device) {
    let mut step = jit::Step::new();
    let (mut sums, mut views, mut detached, mut later) = (vec![], vec![], vec![], vec![]);
    for i in 1..=6 {
        let x = vector(&[i as f32; 3], device);
        let r = step.run(|| x.sum(())).expect("a call");
        views.push(r.reshape([1]).expect("a view"));
        detached.push(r.detach().expect("detached"));
        later.push((&r * 1.0).expect("a product"));
        sums.push(r);
    }
    let want = [3.0f32, 6.0, 9.0, 12.0, 15.0, 18.0];
    for list in [&sums, &views, &detached, &later] {
        assert_eq!(list.iter().map(|t| values(t)[0]).collect::<Vec<_>>(), want);
    }
    let mut call = |v: f32| {
        let x = vector(&[v], device);
        step.run(|| x.sum(())).expect("a call")
    };
    let equal = call(0.25).eq(call(0.5)).and_then(|e| e.item::<bool>()).expect("a comparison");
    assert!(!equal);
    // The same for a result that is a view inside the step, and one that is an argument.
    let mut step = jit::Step::new();
    let mut kept = Vec::new();
    for i in 0..6 {
        let x = filled(&[2, 3], i, device);
        kept.push(step.run(|| Ok(((&x * 2.0)?.t()?, x.t()?, x.clone()))).expect("a call"));
    }
    for (i, (a, b, c)) in kept.iter().enumerate() {
        let x = filled(&[2, 3], i as u32, device);
        assert_eq!(values(a), values(&(&x * 2.0).and_then(|y| y.t()).expect("eager")));
        assert_eq!(values(b), values(&x.t().expect("eager")));
        assert_eq!(values(c), values(&x));
    }
}

pub fn parameter_replaced_between_calls(device: &Device) {
    struct Model {
        w: Var,
        fixed: Tensor,
    }
    // A `Var` and a plain tensor, both reached through the model.
    for plain in [false, true] {
        let x = vector(&[3.0], device);
        let mut model = Model { w: Var::new(&vector(&[2.0], device)).expect("a Var"), fixed: vector(&[2.0], device) };
        let mut step = jit::Step::new();
        let mut pool = Vec::new();
        for (k, want) in [6.0, 15.0, 21.0, 21.0, 12.0, 12.0].into_iter().enumerate() {
            let set = |model: &mut Model, v: f32, new: bool| {
                model.fixed = vector(&[v], device);
                if new {
                    model.w = Var::new(&model.fixed).expect("a Var");
                } else {
                    model.w.set(&model.fixed).expect("a write");
                }
            };
            match k {
                1 => set(&mut model, 5.0, true),
                2 => set(&mut model, 7.0, false),
                3 => pool.extend((0..100).map(|_| vector(&[-1.0], device))),
                4 => set(&mut model, 4.0, true),
                _ => {}
            }
            let before = device.counts();
            let y = step.run(|| if plain { &model.fixed * &x } else { &model.w.get() * &x }).expect("a call");
            assert_eq!(values(&y), [want], "call {}", k + 1);
            if k > 0 {
                assert_eq!((device.counts() - before).launches, 1);
            }
        }
        assert_eq!(step.report().recorded, 1);
    }
}

pub fn canary_aliases_graph_pool(device: &Device) {
    // Intermediates of 64 KiB, 1 MiB and 4 MiB.
    let inputs: Vec<Tensor> = (0..3).map(|s| filled(&[128, 128], s, device)).collect();
    let work = |x: &Tensor| -> Result<Tensor> {
        let a = x.matmul(x)?.tanh()?;
        let wide = a.reshape([1, 16384])?.expand([16, 16384])?.mul(0.5)?.sin()?;
        let b = wide.sum(0)?.reshape([128, 128])?;
        let widest = wide.sum(0)?.reshape([1, 16384])?.expand([64, 16384])?.cos()?;
        let c = widest.sum(0)?.reshape([128, 128])?;
        ((&b.matmul(&a)? + &a)? + &c)?.sum(0)
    };
    let other = |x: &Tensor| -> Result<Tensor> { x.t()?.matmul(x)?.tanh()?.sum(1) };
    let eager = |f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Vec<_> {
        inputs.iter().map(|x| f(x).and_then(|y| y.to_host()).expect("eager")).collect()
    };
    let (want, want_other) = (eager(&work), eager(&other));
    let (mut f, mut g) = (jit::Step::new(), jit::Step::new());
    let mut check = |k: usize, both: bool| {
        let y = f.run(|| work(&inputs[k % 3])).and_then(|y| y.to_host()).expect("a call");
        crate::harness::assert_bits_eq("the step", &y, &want[k % 3]);
        if both {
            let y = g.run(|| other(&inputs[k % 3])).and_then(|y| y.to_host()).expect("a call");
            crate::harness::assert_bits_eq("the other step", &y, &want_other[k % 3]);
        }
    };
    (0..3).for_each(|k| check(k, false));
    let sizes = [16 << 10, 256 << 10, 1 << 20];
    let mut canaries: Vec<Tensor> =
        (0..60).map(|i| Tensor::full([sizes[i % 3]], 1234.5, device).expect("a canary")).collect();
    let alive = |list: &[Tensor]| list.iter().all(|c| values(c).iter().all(|v| *v == 1234.5));
    (3..8).for_each(|k| check(k, false));
    assert!(alive(&canaries));
    canaries.truncate(30);
    (0..10).for_each(|k| check(k, true));
    assert!(alive(&canaries));
    // The free blocks go back to the system: what the steps and the canaries hold stays.
    assert!(device.memory().cached > 0);
    let live = device.memory().live;
    device.trim();
    assert_eq!((device.memory().cached, device.memory().live), (0, live));
    (0..3).for_each(|k| check(k, true));
    assert!(alive(&canaries));
    canaries.clear();
    device.trim();
    check(0, true);
}

pub fn extra_warmup_runs_mutate_state(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok((Var::state(&scalar(0.0, device))?, Var::state(&scalar(0.0, device))?, 0u32)),
        |_, _| Ok(()),
        |(n, h, q), _, _| {
            n.set(&(n.get() + 1.0)?)?;
            h.set(&((h.get() * 0.5)? + 1.0)?)?;
            *q += 1;
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_eq!(log.firsts(0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(log.firsts(1)[..5], [1.0, 1.5, 1.75, 1.875, 1.9375]);
    // The host's own counter: once a call.
    let (n, mut q) = (Var::state(&scalar(0.0, device)).expect("a Var"), 0);
    let mut step = jit::trace(|| {
        q += 1;
        n.set(&(n.get() + 1.0)?)
    });
    (0..6).for_each(|_| step.call().expect("a call"));
    drop(step);
    assert_eq!((values(&n.get())[0], q), (6.0, 6));
}

scenarios!(
    input_in_container_not_rebound,
    short_last_batch,
    kept_output_overwritten,
    parameter_replaced_between_calls,
    canary_aliases_graph_pool,
    extra_warmup_runs_mutate_state,
);
