//! Values that the user keeps are never overwritten, whenever they are kept first.

use stepgraph::{Device, Gradients, Tensor, Var, jit};

use crate::harness::{Expect, compare, filled, values, vector};

/// Results, views of them, detached ones and values computed from them, kept over many calls.
pub fn held_outputs(device: &Device) {
    let mut step = jit::Step::new();
    let (mut sums, mut rows, mut views, mut detached, mut derived) = (vec![], vec![], vec![], vec![], vec![]);
    for i in 1..=8 {
        let x = vector(&[i as f32, i as f32, i as f32 + 0.5], device);
        let before = device.counts();
        let (s, row) = step.run(|| Ok((x.sum(())?, (&x * 2.0)?))).expect("a call");
        if i > 1 {
            let did = device.counts() - before;
            assert_eq!((did.launches, did.eager_kernels), (1, 0), "call {i}");
        }
        views.push(row.slice(0, 1, 2).expect("a view"));
        detached.push(s.detach().expect("detached"));
        derived.push((&s + 1.0).expect("a sum"));
        sums.push(s);
        rows.push(row);
    }
    for i in 0..8 {
        let k = (i + 1) as f32;
        let sum = 3.0 * k + 0.5;
        assert_eq!(values(&sums[i]), [sum]);
        assert_eq!(values(&detached[i]), [sum]);
        assert_eq!(values(&derived[i]), [sum + 1.0]);
        assert_eq!(values(&rows[i]), [2.0 * k, 2.0 * k, 2.0 * k + 1.0]);
        assert_eq!(values(&views[i]), [2.0 * k, 2.0 * k + 1.0]);
    }
}

/// Two results of one step compared on the device are two values.
pub fn results_of_two_calls_differ(device: &Device) {
    let mut step = jit::Step::new();
    let mut call = |v: f32| {
        let x = vector(&[v], device);
        step.run(|| &x * 1.0).expect("a call")
    };
    for _ in 0..5 {
        let (a, b) = (call(0.25), call(0.5));
        assert_eq!(a.eq(&b).and_then(|e| e.to_vec::<bool>()).expect("a comparison"), [false]);
    }
}

/// An intermediate kept for the first time on call 5: its own value, a second plan, reported with its line.
pub fn value_first_kept_on_call_five(device: &Device) {
    let mut step = jit::Step::new();
    let mut kept = Vec::new();
    let mut line = 0;
    for k in 1..=9 {
        let x = vector(&[k as f32, 2.0], device);
        let before = device.counts();
        let y = step
            .run(|| {
                line = line!() + 1;
                let inner = (&x * 3.0)?;
                if k == 5 || k == 7 {
                    kept.push(inner.clone());
                }
                &inner + 1.0
            })
            .expect("a call");
        assert_eq!(values(&y), [3.0 * k as f32 + 1.0, 7.0]);
        if k > 1 {
            let did = device.counts() - before;
            assert_eq!((did.launches, did.eager_kernels), (1, 0), "call {k} is a replay, whatever is kept");
            assert_eq!(did.compiles, (k == 2 || k == 5) as u64, "call {k}");
        }
    }
    assert_eq!(kept.iter().map(|t| values(t)[0]).collect::<Vec<_>>(), [15.0, 21.0]);
    let report = step.report();
    assert_eq!(report.kept.len(), 1, "{report}");
    assert_eq!(report.kept[0].at, format!("{}:{line}", file!()));
    assert_eq!(report.paths, 1, "keeping a value is no other path");
}

/// Every subset of the intermediates kept in turn: each right, at most a handful of plans.
pub fn every_subset_kept(device: &Device) {
    let mut step = jit::Step::new();
    let a = vector(&[2.0, -1.0, 4.0], device);
    let b = vector(&[10.0, 20.0, 30.0], device);
    for round in 0..2 {
        for mask in 0..16u32 {
            let kept = step
                .run(|| {
                    let t = (&a + &b)?;
                    let u = (&t * &a)?;
                    let v = u.sum(())?;
                    let w = (&u + (&t * &v))?;
                    let all = [t, u, v, w];
                    Ok((0..4).filter(|i| mask >> i & 1 == 1).map(|i| (i, all[i].clone())).collect::<Vec<_>>())
                })
                .expect("a call");
            for (i, t) in kept {
                let want: &[f32] = match i {
                    0 => &[12.0, 19.0, 34.0],
                    1 => &[24.0, -19.0, 136.0],
                    // 24 - 19 + 136
                    2 => &[141.0],
                    _ => &[24.0 + 12.0 * 141.0, -19.0 + 19.0 * 141.0, 136.0 + 34.0 * 141.0],
                };
                assert_eq!(values(&t), want, "round {round}, mask {mask:b}, value {i}");
            }
        }
    }
    assert!(step.report().compiles <= 16, "{}", step.report());
    assert_eq!((values(&a), values(&b)), (vec![2.0, -1.0, 4.0], vec![10.0, 20.0, 30.0]));
}

/// Snapshots of a `Var` that is updated in place keep their old values, those taken inside the step too.
pub fn snapshot_of_a_var(device: &Device) {
    let w = Var::new(&vector(&[1.0; 256], device)).expect("a Var");
    let mut step = jit::Step::new();
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for k in 0..10 {
        if k % 3 == 0 {
            outside.push((k, w.get()));
        }
        let snapshot = step
            .run(|| {
                let before = w.get();
                w.set(&(&before + 1.0)?)?;
                Ok(before)
            })
            .expect("a call");
        if k % 2 == 0 {
            inside.push((k, snapshot));
        }
    }
    for (k, t) in inside.iter().chain(&outside) {
        assert_eq!(values(t), vec![1.0 + *k as f32; 256], "the snapshot of call {}", k + 1);
    }
    assert_eq!(values(&w.get())[0], 11.0);
    // Without a snapshot the update is in place.
    for _ in 0..3 {
        step.run(|| w.set(&(w.get() + 1.0)?)).expect("a call");
    }
    let mut lone = jit::Step::new();
    for _ in 0..3 {
        lone.run(|| w.set(&(w.get() + 1.0)?)).expect("a call");
    }
    assert_eq!(lone.report().in_place, 1, "{}", lone.report());
    let held = w.get();
    lone.run(|| w.set(&(w.get() + 1.0)?)).expect("a call");
    assert_eq!(lone.report().in_place, 0, "somebody holds the old value\n{}", lone.report());
    assert_eq!((values(&held)[9], values(&w.get())[9]), (17.0, 18.0));
}

/// `Gradients` that outlive the step hold the gradients of their call.
pub fn gradients_kept_beyond_the_step(device: &Device) {
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let unused = Var::new(&vector(&[0.0], device)).expect("a Var");
    let mut step = jit::Step::new();
    let mut all: Vec<Gradients> = Vec::new();
    for k in 1..=6 {
        let x = vector(&[k as f32, 1.0], device);
        let before = device.counts();
        all.push(step.run(|| (&w.get() * &x)?.sum(())?.backward()).expect("a call"));
        if k > 1 {
            assert_eq!((device.counts() - before).launches, 1);
        }
    }
    for (i, g) in all.iter().enumerate() {
        assert_eq!(values(&g.get(&w).expect("a gradient")), [i as f32 + 1.0, 1.0]);
        assert!(g.get(&unused).is_none());
    }
}

/// Gradients kept only now and then: asked for after the step, in the step, or not at all.
pub fn gradients_kept_sometimes(device: &Device) {
    compare(
        device,
        &Expect::steady(8).compiles(2),
        || Ok((Var::new(&vector(&[1.0, 2.0], device))?, Var::new(&vector(&[0.5], device))?)),
        |_, _| Ok(()),
        |(w, b), k, seen| {
            let loss = (&w.get() * &b.get())?.sum(())?;
            let g = loss.backward()?;
            w.set(&(w.get() - (g.get(w).expect("a gradient") * 0.1))?)?;
            if k % 3 == 2 {
                seen.keep(&g.get(b).expect("a gradient"));
            }
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

/// A value kept from one branch must not stand for a value of another branch.
pub fn a_surviving_value_of_another_branch(device: &Device) {
    struct State {
        last: Tensor,
        x: Tensor,
    }
    let log = compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || Ok(State { last: vector(&[1.0], device), x: vector(&[2.0], device) }),
        |_, _| Ok(()),
        |s, k, seen| {
            let y = (&s.x * 2.0)?;
            let z = if k % 3 == 0 { (&y + &s.last)? } else { (&y - &s.last)? };
            seen.keep(&z);
            // Kept as the next call's operand: an external there, though it is an event's handle here.
            s.last = if k % 2 == 0 { z } else { y };
            Ok(())
        },
        |_| vec![],
    );
    let (mut last, mut want) = (1.0f32, Vec::new());
    for k in 0..12 {
        let z = if k % 3 == 0 { 4.0 + last } else { 4.0 - last };
        want.push(z);
        last = if k % 2 == 0 { z } else { 4.0 };
    }
    assert_eq!(log.firsts(0), want);
}

/// User memory allocated after the plan was made is never the plan's, also after half of it was freed.
pub fn canaries(device: &Device) {
    let sizes = [16 * 1024usize, 256 * 1024];
    let x: Vec<Tensor> = (0..3).map(|k| filled(&[128, 128], k, device)).collect();
    let work = |x: &Tensor| {
        let a = x.matmul(x)?.tanh()?;
        let b = (a.matmul(&a.t()?)? * 0.01)?.exp()?;
        (&b / &b.sum_keepdim(1)?)?.matmul(x)
    };
    let want: Vec<Vec<f32>> = x.iter().map(|x| values(&work(x).expect("eager"))).collect();
    let (mut step, mut other) = (jit::Step::new(), jit::Step::new());
    for k in 0..3 {
        assert_eq!(values(&step.run(|| work(&x[k])).expect("a call")), want[k]);
    }
    let mut canaries: Vec<Tensor> =
        (0..20).map(|i| Tensor::full([sizes[i % 2]], 1234.5, device).expect("a canary")).collect();
    let alive = |canaries: &[Tensor]| canaries.iter().all(|c| values(c).iter().all(|v| *v == 1234.5));
    for k in 0..5 {
        assert_eq!(values(&step.run(|| work(&x[k % 3])).expect("a call")), want[k % 3]);
    }
    assert!(alive(&canaries));
    canaries.truncate(10);
    let mut kept = Vec::new();
    for k in 0..10 {
        let y = step.run(|| work(&x[k % 3])).expect("a call");
        let z = other.run(|| work(&x[(k + 1) % 3])?.sum(1)).expect("a call");
        kept.push((k % 3, y, z));
    }
    for (i, y, _) in &kept {
        assert_eq!(values(y), want[*i]);
    }
    assert!(alive(&canaries));
}

scenarios!(
    held_outputs,
    results_of_two_calls_differ,
    value_first_kept_on_call_five,
    every_subset_kept,
    snapshot_of_a_var,
    gradients_kept_beyond_the_step,
    gradients_kept_sometimes,
    a_surviving_value_of_another_branch,
    canaries,
);
