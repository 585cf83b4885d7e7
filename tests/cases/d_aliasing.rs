//! Section D: aliasing and ordering. In-place writes are `Var`s here; tensors are values.

use stepgraph::{DType, Device, Result, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector};

fn flip(x: &Tensor, axis: isize, device: &Device) -> Result<Tensor> {
    let n = x.dims()[axis as usize] as i64;
    x.index_select(axis, &Tensor::from_vec((0..n).rev().collect::<Vec<i64>>(), [n as usize], device)?)
}

pub fn mirror_read_while_writing(device: &Device) {
    // (a) x += flip(x), the index made outside.
    let eight: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || {
            let reversed = Tensor::from_vec((0..8i64).rev().collect::<Vec<_>>(), [8], device)?;
            Ok((Var::state(&vector(&eight, device))?, reversed))
        },
        |_, _| Ok(()),
        |(x, reversed), _, _| x.set(&(&x.get() + &x.get().index_select(0, reversed)?)?),
        |s| vec![s.0.clone()],
    );
    assert_eq!(log.f32(0, 0), [9.0; 8]);
    assert_eq!(log.f32(5, 0), [9.0 * 32.0; 8]);
    // (b) x += transpose(x)
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Var::state(&Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], device)?),
        |_, _| Ok(()),
        |x, _, _| x.set(&(&x.get() + &x.get().t()?)?),
        |x| vec![x.clone()],
    );
    assert_eq!(log.f32(0, 0), [2.0, 5.0, 5.0, 8.0]);
    // (c) large: x[i][j] = i + 2j, five repeats from the start.
    let n = 1024;
    let start: Vec<f32> = (0..n * n).map(|e| (e / n + 2 * (e % n)) as f32).collect();
    let x = Var::state(&Tensor::from_slice(&start, [n, n], device).expect("a matrix")).expect("a Var");
    let mut step = jit::Step::new();
    for k in 0..5 {
        x.set(&Tensor::from_slice(&start, [n, n], device).expect("a matrix")).expect("a write");
        step.run(|| x.set(&(&x.get() + &x.get().t()?)?)).expect("a call");
        let v = values(&x.get());
        let wrong = (0..n * n).filter(|&e| v[e] != 3.0 * (e / n + e % n) as f32).count();
        assert_eq!(wrong, 0, "call {}", k + 1);
    }
    // x *= roll(x, 1), and x = flip(x) followed by y = x + Σ rows of y.
    let roll = |x: &Tensor| -> Result<Tensor> {
        let n = x.dims()[0];
        Tensor::concat(&[&x.slice(0, n - 1, 1)?, &x.slice(0, 0, n - 1)?], 0)
    };
    compare(
        device,
        &Expect::steady(6),
        || {
            let order = Tensor::from_vec((0..96i64).rev().collect::<Vec<_>>(), [96], device)?;
            Ok((Var::state(&filled(&[96, 64], 1, device))?, Var::state(&filled(&[96, 64], 2, device))?, order))
        },
        |_, _| Ok(()),
        |(x, y, order), _, _| {
            x.set(&(&x.get() * &roll(&x.get())?)?)?;
            x.set(&x.get().index_select(0, order)?)?;
            y.set(&(&x.get() + &y.get().sum_keepdim(0)?)?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    // (d) one update of several
    let log = compare(
        device,
        &Expect::steady(6).uploads(5),
        || (0..5).map(|_| Var::state(&vector(&eight, device))).collect::<Result<Vec<_>>>(),
        |_, _| Ok(()),
        |all, _, _| all.iter().try_for_each(|p| p.set(&(&p.get() + &flip(&p.get(), 0, device)?)?)),
        |all| all.clone(),
    );
    assert!((0..5).all(|i| log.f32(0, i) == [9.0; 8]));
}

pub fn copy_then_mutate_source(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || {
            let arange: Vec<f32> = (0..12).map(|i| i as f32).collect();
            Ok((Var::state(&vector(&[0.0; 12], device))?, Var::state(&vector(&arange, device))?))
        },
        |_, _| Ok(()),
        |(dst, src), _, seen| {
            dst.set(&src.get())?;
            src.set(&(src.get() + 1.0)?)?;
            seen.keep(&(src.get() * 10.0)?);
            src.set(&(src.get() - 3.0)?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    for k in 0..6 {
        for i in 0..12 {
            let old = i as f32 - 2.0 * k as f32;
            assert_eq!((log.f32(k, 1)[i], log.f32(k, 0)[i], log.f32(k, 2)[i]), (old, 10.0 * (old + 1.0), old - 2.0));
        }
    }
}

pub fn output_shares_storage_it_should_own(device: &Device) {
    // (a) The results go into a `Var` that is then updated in place: x stays.
    type Form = fn(&Tensor) -> Result<Tensor>;
    let forms: [Form; 5] = [|x| x * 1.0, |x| x + 0.0, |x| x / 1.0, |x| x.reshape([2]), |x| x.to_dtype(DType::F32)];
    for (i, form) in forms.iter().enumerate() {
        let x = vector(&[1.0, 2.0], device);
        let y = Var::state(&vector(&[0.0, 0.0], device)).expect("a Var");
        let (mut make, mut add) = (jit::Step::new(), jit::Step::new());
        for _ in 0..6 {
            let seen = make
                .run(|| {
                    let v = form(&x)?;
                    y.set(&v)?;
                    Ok(v)
                })
                .expect("a call");
            if i % 2 == 0 {
                drop(seen);
            }
            add.run(|| y.set(&(y.get() + 5.0)?)).expect("a call");
            assert_eq!((values(&x), values(&y.get())), (vec![1.0, 2.0], vec![6.0, 7.0]), "form {i}");
        }
    }
    // (b) two equal results, one of them changed
    let x = vector(&[1.0, 2.0], device);
    let (p, q) = (Var::state(&x).expect("a Var"), Var::state(&x).expect("a Var"));
    let (mut make, mut add) = (jit::Step::new(), jit::Step::new());
    for _ in 0..6 {
        make.run(|| {
            p.set(&(&x * 3.0)?)?;
            q.set(&(&x * 3.0)?)
        })
        .expect("a call");
        add.run(|| p.set(&(p.get() + 1.0)?)).expect("a call");
        assert_eq!((values(&p.get()), values(&q.get())), (vec![4.0, 7.0], vec![3.0, 6.0]));
    }
    // (c) a result that depends on nothing
    let total = Var::state(&vector(&[0.0; 2], device)).expect("a Var");
    let (mut make, mut add) = (jit::Step::new(), jit::Step::new());
    for _ in 0..6 {
        let z = make.run(|| Tensor::zeros([2], DType::F32, device)).expect("a call");
        assert_eq!(values(&z), [0.0, 0.0]);
        total.set(&z).expect("a write");
        drop(z);
        add.run(|| total.set(&(total.get() + 1.0)?)).expect("a call");
        assert_eq!(values(&total.get()), [1.0, 1.0]);
    }
    // (d) a counter
    let log = compare(
        device,
        &Expect::steady(6),
        || Var::state(&scalar(1.0, device)),
        |_, _| Ok(()),
        |counter, _, seen| {
            counter.set(&(counter.get() + 1.0)?)?;
            seen.keep(&(counter.get() * 1.0)?);
            Ok(())
        },
        |c| vec![c.clone()],
    );
    assert_eq!(log.firsts(0), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

pub fn alias_pattern_changes_after_trace(device: &Device) {
    // Tensors cannot be written, so the alias that matters is one `Var` under two names. A view of a
    // `Var`'s value is a snapshot: it keeps the old numbers.
    let ones = || vector(&[1.0; 3], device);
    let (a, b) = (Var::state(&ones()).expect("a Var"), Var::state(&ones()).expect("a Var"));
    let base = Var::state(&vector(&[1.0; 5], device)).expect("a Var");
    let mut step = jit::Step::new();
    let mut call = |a: &Var, b: &dyn Fn() -> Result<Tensor>| {
        step.run(|| {
            a.set(&(a.get() * 3.0)?)?;
            &a.get() + &b()?
        })
        .expect("a call")
    };
    for k in 0..8 {
        a.set(&ones()).expect("a write");
        match k {
            3 | 6 => {
                let y = call(&a, &|| Ok(a.get()));
                assert_eq!((values(&y), values(&a.get())), (vec![6.0; 3], vec![3.0; 3]), "call {}", k + 1);
            }
            2 | 5 => {
                // A view of other storage, read before and after it changes: always the old numbers.
                let view = base.get().slice(0, 1, 3).expect("a view");
                let y = call(&a, &|| Ok(view.clone()));
                base.set(&vector(&[9.0; 5], device)).expect("a write");
                assert_eq!((values(&y), values(&view)), (vec![4.0; 3], vec![1.0; 3]), "call {}", k + 1);
                base.set(&vector(&[1.0; 5], device)).expect("a write");
            }
            _ => assert_eq!(values(&call(&a, &|| Ok(b.get()))), [4.0; 3], "call {}", k + 1),
        }
        assert_eq!(values(&b.get()), [1.0; 3]);
    }
    // Traced first with one tensor twice.
    let (x, z) = (vector(&[1.0], device), vector(&[10.0], device));
    let mut step = jit::Step::new();
    for k in 0..7 {
        let second = if k < 3 || k == 5 { &x } else { &z };
        let y = step.run(|| (&x * 2.0)? + second).expect("a call");
        assert_eq!(values(&y), [2.0 + values(second)[0]], "call {}", k + 1);
    }
    assert_eq!(step.report().paths, 2);
}

pub fn saved_tensor_mutated_before_backward(device: &Device) {
    let rows: Vec<f32> = (1..=6).map(|i| i as f32 / 8.0).collect();
    let want = [0.625f32, 0.625, 0.625, 0.875, 0.875, 0.875, 1.125, 1.125, 1.125];
    // (a) x filled with zeros, (b) a view of it and the next batch: the gradient is that of the old x.
    for view in [false, true] {
        let log = compare(
            device,
            &Expect::steady(6),
            || {
                let x = Var::state(&Tensor::from_slice(&rows, [2, 3], device)?)?;
                Ok((x, Var::new(&filled(&[3, 3], 1, device))?, filled(&[2, 3], 9, device)))
            },
            |s, _| s.0.set(&Tensor::from_slice(&rows, [2, 3], device)?),
            |(x, w, next), _, seen| {
                let input = if view { x.get().slice(1, 0, 3)? } else { x.get() };
                let y = input.matmul(&w.get())?;
                if view {
                    x.set(next)?;
                } else {
                    x.set(&Tensor::zeros([2, 3], DType::F32, device)?)?;
                }
                seen.keep(&y.sum(())?.backward()?.get(w).expect("a gradient"));
                Ok(())
            },
            |s| vec![s.0.clone()],
        );
        for k in 0..6 {
            assert_eq!(log.f32(k, 0), want, "call {}", k + 1);
        }
    }
    // (c) running statistics used, then updated, then backward.
    compare(
        device,
        &Expect::steady(6),
        || {
            let stats = Var::state(&filled(&[4], 1, device))?;
            Ok((stats, Var::new(&filled(&[4], 2, device))?, filled(&[5, 4], 3, device)))
        },
        |_, _| Ok(()),
        |(stats, w, x), _, seen| {
            let y = ((&*x - &stats.get())? * &w.get())?;
            stats.set(&((stats.get() * 0.9)? + (x.mean(0)? * 0.1))?)?;
            let g = (&y * &y)?.mean(())?.backward()?.get(w).expect("a gradient");
            seen.keep(&g);
            w.set(&(w.get() - (&g * 0.1))?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

pub fn planner_clobbers_live_buffer(device: &Device) {
    let want: [&[f32]; 4] = [&[12.0, 19.0, 34.0], &[24.0, -19.0, 136.0], &[65.0], &[804.0, 1216.0, 2346.0]];
    for dims in [vec![3], vec![1, 3]] {
        for temporary in [false, true] {
            let a = Tensor::from_slice(&[2.0f32, -1.0, 4.0], &dims, device).expect("a");
            let b = Tensor::from_slice(&[10.0f32, 20.0, 30.0], &dims, device).expect("b");
            for mask in 1..16u32 {
                let mut step = jit::Step::new();
                for k in 0..5 {
                    let kept = step
                        .run(|| {
                            let b = if temporary { (&b * 1.0)? } else { b.clone() };
                            let t = (&a + &b)?;
                            let u = (&t * &a)?;
                            let v = t.sum(())?;
                            let w = (&u + (&t * &v))?;
                            let all = [t, u, v, w];
                            Ok((0..4).filter(|i| mask >> i & 1 == 1).map(|i| (i, all[i].clone())).collect::<Vec<_>>())
                        })
                        .expect("a call");
                    for (i, t) in &kept {
                        assert_eq!(values(t), want[*i], "dims {dims:?}, subset {mask:04b}, call {}", k + 1);
                    }
                    assert_eq!((values(&a), values(&b)), (vec![2.0, -1.0, 4.0], vec![10.0, 20.0, 30.0]));
                }
            }
        }
    }
}

pub fn state_write_without_reader(device: &Device) {
    let stats = [(2.0f32, 1.0f32), (4.0, 4.0), (6.0, 9.0), (8.0, 16.0), (4.0, 4.0), (2.0, 1.0)];
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
            let var = (&d * &d)?.mean(())?;
            seen.keep(&(&d / &(&var + 1e-5)?.sqrt()?)?);
            rm.set(&((rm.get() * 0.8)? + (&mu * 0.2))?)?;
            rv.set(&((rv.get() * 0.8)? + (&var * 0.2))?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_close("rm", &log.firsts(1)[..4], &[0.4, 1.12, 2.096, 3.2768], 1e-6);
    assert_close("rv", &log.firsts(2)[..4], &[1.0, 1.6, 3.08, 5.664], 1e-6);
    // An eval step reads what the training step wrote.
    let (rm, x) = (Var::state(&scalar(0.0, device)).expect("a Var"), vector(&[1.0, 3.0], device));
    let (mut train, mut eval) = (jit::Step::new(), jit::Step::new());
    let mut want = 0.0f64;
    for _ in 0..6 {
        train.run(|| rm.set(&((rm.get() * 0.8)? + (x.mean(())? * 0.2))?)).expect("a call");
        want = 0.8 * want + 0.4;
        let seen = eval.run(|| (&x - &rm.get())?.mean(())).expect("a call");
        assert_close("the mean seen by the eval step", &values(&seen), &[2.0 - want], 1e-6);
    }
}

scenarios!(
    mirror_read_while_writing,
    copy_then_mutate_source,
    output_shares_storage_it_should_own,
    alias_pattern_changes_after_trace,
    saved_tensor_mutated_before_backward,
    planner_clobbers_live_buffer,
    state_write_without_reader,
);
