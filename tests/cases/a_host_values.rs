//! Section A: host values frozen at capture.

use std::time::{Duration, Instant};

use stepgraph::{Device, Result, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector};

/// The update of the schedule, given the rate in whatever form.
fn update(w: &Var, lr: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
    let g = w.get().mul(1.0)?.backward()?.get(w).expect("a gradient");
    w.set(&(w.get() - lr(&g))?)
}

pub fn lr_schedule_frozen(device: &Device) {
    struct Training {
        w: Var,
        lr: f64,
        rate: Var,
    }
    let make = || Ok(Training { w: Var::new(&scalar(3.0, device))?, lr: 0.8, rate: Var::state(&scalar(0.8, device))? });
    let halve = |s: &mut Training, k: usize| {
        s.lr /= 2.0;
        s.rate.set(&scalar(0.4 * 0.5f32.powi(k as i32), device))
    };
    let want: Vec<f64> = (1..=6).map(|k| 3.0 - 0.8 * (1.0 - 0.5f64.powi(k))).collect();
    // The rate as a field, as a value computed beside it, and as a tensor rewritten by the host.
    for form in 0..3 {
        let log = compare(
            device,
            &Expect::steady(6),
            make,
            halve,
            |s, k, _| match form {
                0 => update(&s.w, |g| g * s.lr),
                1 => update(&s.w, |g| g * (0.4 / (1 << k) as f64)),
                _ => update(&s.w, |g| g * &s.rate.get()),
            },
            |s| vec![s.w.clone()],
        );
        assert_close("w", &log.firsts(0), &want, 1e-6);
    }
    // The rate as a capture that the closure itself changes, and as an argument.
    let (w, mut lr) = (Var::new(&scalar(3.0, device)).expect("a Var"), 0.4);
    let mut seen = Vec::new();
    let mut step = jit::trace(|| {
        update(&w, |g| g * lr)?;
        lr /= 2.0;
        Ok(())
    });
    for _ in 0..6 {
        step.call().expect("a call");
        seen.push(values(&w.get())[0]);
    }
    assert_close("w", &seen, &want, 1e-6);
    let w = Var::new(&scalar(3.0, device)).expect("a Var");
    let body = |lr: f64| update(&w, |g| g * lr);
    let mut step = jit::Step::new();
    for (k, want) in want.iter().enumerate() {
        step.run(|| body(0.4 / (1 << k) as f64)).expect("a call");
        assert_close("w", &values(&w.get()), &[*want], 1e-6);
    }
    assert_eq!(step.report().recorded, 1);
}

pub fn state_rebound_out_of_place(device: &Device) {
    struct Model {
        w: Tensor,
    }
    struct Opt {
        v: Tensor,
    }
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Model { w: scalar(2.0, device) }, Opt { v: scalar(0.0, device) }, Vec::<Tensor>::new())),
        |s, _| {
            s.2.push(s.0.w.clone());
            Ok(())
        },
        |(model, opt, _), _, seen| {
            let v = ((&opt.v * 0.8)? + 1.0)?;
            let w = (&model.w - (&v * 0.25))?;
            opt.v = v;
            model.w = w;
            seen.keep(&opt.v);
            seen.keep(&model.w);
            Ok(())
        },
        |_| vec![],
    );
    assert_close("v", &log.firsts(0)[..5], &[1.0, 1.8, 2.44, 2.952, 3.3616], 1e-6);
    assert_close("w", &log.firsts(1)[..5], &[1.75, 1.3, 0.69, -0.048, -0.8884], 1e-6);
    // Every other handle to an old w still shows it: captures this time.
    let (mut v, mut w) = (scalar(0.0, device), scalar(2.0, device));
    let mut step = jit::Step::new();
    let mut old = vec![w.clone()];
    for _ in 0..5 {
        step.run(|| {
            v = ((&v * 0.8)? + 1.0)?;
            w = (&w - (&v * 0.25))?;
            Ok(())
        })
        .expect("a call");
        old.push(w.clone());
    }
    let old: Vec<f32> = old.iter().map(|t| values(t)[0]).collect();
    assert_eq!(old[0], 2.0);
    assert_eq!(old[1..], log.firsts(1)[..5]);
    assert_eq!(step.report().replayed, 4);
}

pub fn host_reads_frozen(device: &Device) {
    // (a) a counter
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((0i64, scalar(10.0, device))),
        |_, _| Ok(()),
        |(n, x), _, seen| {
            *n += 1;
            seen.keep(&(&*x + *n)?);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
    // (b) a flag
    let flags = [true, true, false, false, true, false];
    let log = compare(
        device,
        &Expect::steady(6).launches(&[0, 1, 0, 1, 1, 1]).compiles(2),
        || Ok((true, scalar(3.0, device))),
        |s, k| {
            s.0 = flags[k];
            Ok(())
        },
        |(training, x), _, seen| {
            let y = if *training { (&*x * 2.0)? } else { x.clone() };
            seen.keep(&(&y + 0.0)?);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [6.0, 6.0, 3.0, 3.0, 6.0, 3.0]);
    // (c) a clock
    let (x, start) = (scalar(1.0, device), Instant::now());
    let mut step = jit::Step::new();
    let mut last = -1.0f32;
    for _ in 0..6 {
        let now = step.run(|| (&x * 0.0)? + start.elapsed().as_secs_f64()).expect("a call");
        let now = values(&now)[0];
        assert!(now >= last + 0.005 || last < 0.0, "{now} after {last}");
        last = now;
        std::thread::sleep(Duration::from_millis(6));
    }
    assert_eq!(step.report().recorded, 1);
}

pub fn host_read_branch(device: &Device) {
    let inputs = [1.0f32, 10.0, 1.0, 10.0, 1.0, 10.0];
    let log = compare(
        device,
        &Expect::steady(6).launches(&[0, 0, 1, 2, 1, 2]).compiles(2),
        || Ok(vector(&[0.0; 2], device)),
        |x, k| {
            *x = vector(&[inputs[k]; 2], device);
            Ok(())
        },
        |x, _, seen| {
            let mut y = (&*x * 2.0)?;
            if y.sum(())?.item::<f32>()? > 10.0 {
                y = (&y * 100.0)?;
            }
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [2.0, 2000.0, 2.0, 2000.0, 2.0, 2000.0]);
    // A loop that stops early, the read inside the step.
    let mut step = jit::Step::new();
    let (mut calls, mut x) = (0, 4.0f32);
    loop {
        let input = scalar(x, device);
        let stop = step.run(|| Ok((&input * 1.0)?.item::<f32>()? < 0.5)).expect("a call");
        calls += 1;
        if stop {
            break;
        }
        x /= 2.0;
    }
    assert_eq!(calls, 5);
}

pub fn log_and_collect_inside_step(device: &Device) {
    struct Log {
        kept: Vec<Tensor>,
        lines: Vec<String>,
    }
    for printed in [false, true] {
        let mut log = Log { kept: Vec::new(), lines: Vec::new() };
        let mut step = jit::Step::new();
        for k in 1..=6 {
            let x = vector(&[k as f32; 4], device);
            let before = device.counts();
            let s = step
                .run(|| {
                    let s = x.sum(())?;
                    log.kept.push(s.clone());
                    log.lines.push(if printed { format!("{s}") } else { format!("{s:?}") });
                    println!("{}", log.lines.last().expect("a line"));
                    Ok(s)
                })
                .expect("a call");
            assert_eq!(values(&s), [4.0 * k as f32]);
            if k > 1 {
                let did = device.counts() - before;
                // Printing the value is a host read, and the step's only segment with work.
                assert_eq!((did.launches, did.eager_kernels), (1, 0), "call {k}");
            }
        }
        let kept: Vec<f32> = log.kept.iter().map(|t| values(t)[0]).collect();
        assert_eq!(kept, [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]);
        if printed {
            assert_eq!(log.lines, ["4.0", "8.0", "12.0", "16.0", "20.0", "24.0"]);
        }
    }
    // Kept among others, and read in the middle of the run.
    let mut kept = Vec::new();
    let mut step = jit::Step::new();
    for k in 0..6u32 {
        let x = filled(&[4], k, device);
        step.run(|| {
            kept.push(x.sum(())?);
            Ok(())
        })
        .expect("a call");
        for (i, t) in kept.iter().enumerate() {
            let want = filled(&[4], i as u32, device).sum(()).expect("a sum").to_host().expect("a value");
            crate::harness::assert_bits_eq("a kept sum", &t.to_host().expect("a value"), &want);
        }
    }
}

scenarios!(
    lr_schedule_frozen,
    state_rebound_out_of_place,
    host_reads_frozen,
    host_read_branch,
    log_and_collect_inside_step,
);
