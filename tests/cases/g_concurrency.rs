//! Section G: tracer state, concurrency, failing calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use stepgraph::{CpuOptions, Device, Error, ErrorKind, Result, Tensor, Var, jit};

use crate::harness::{filled, scalar, values, vector};

pub fn panic_leaves_tracer_armed(device: &Device) {
    for (panics, at, in_backward) in
        [(true, 0, false), (true, 1, false), (true, 2, false), (false, 0, false), (false, 1, false), (true, 1, true)]
    {
        let w = Var::new(&scalar(0.0, device)).expect("a Var");
        let lock = Mutex::new(());
        let mut step = jit::Step::new();
        let mut call = |fail: bool| {
            catch_unwind(AssertUnwindSafe(|| {
                step.run(|| -> Result<Tensor> {
                    w.set(&(w.get() + 1.0)?)?;
                    let held = lock.lock().unwrap_or_else(|e| e.into_inner());
                    if in_backward {
                        w.get().sum(())?.backward()?;
                    }
                    if fail {
                        if panics {
                            panic!("the user's panic");
                        }
                        return Err(Error::argument("the user's check", "success", "failure"));
                    }
                    drop(held);
                    w.get() * 2.0
                })
            }))
        };
        for _ in 0..at {
            call(false).expect("no panic").expect("a call");
        }
        match call(true) {
            Ok(Err(e)) => {
                assert!(!panics && matches!(e.kind(), ErrorKind::Argument { op: "the user's check", .. }), "{e}")
            }
            Ok(Ok(_)) => panic!("the call went well"),
            Err(payload) => assert!(panics && payload.downcast_ref::<&str>() == Some(&"the user's panic")),
        }
        let mut n = at as f32 + 1.0;
        assert_eq!(values(&w.get()), [n], "the effect before the failure");
        let before = device.counts();
        assert_eq!(values(&(vector(&[1.0; 3], device) + 1.0).expect("an eager op")), [2.0; 3]);
        assert_eq!((device.counts() - before).eager_kernels, 1);
        let mut other = jit::Step::new();
        for k in 0..3 {
            let x = scalar(k as f32, device);
            assert_eq!(values(&other.run(|| &x + 10.0).expect("another step")), [10.0 + k as f32]);
        }
        for _ in 0..3 {
            n += 1.0;
            assert_eq!(values(&call(false).expect("no panic").expect("a call")), [2.0 * n]);
        }
    }
}

pub fn second_thread_during_trace(device: &Device) {
    let chain = |x: &Tensor| (0..50).try_fold(x.clone(), |y, i| if i % 2 == 0 { &y * 0.5 } else { &y + 1.0 });
    let want = |seed: u32| values(&chain(&filled(&[16], seed, device)).expect("eager"));
    let expected: Vec<Vec<f32>> = (0..4).map(want).collect();
    let shared = Mutex::new(jit::Step::new());
    let captured = filled(&[16], 3, device);
    thread::scope(|scope| {
        for t in 0..2u32 {
            let (expected, chain) = (&expected, &chain);
            scope.spawn(move || {
                for round in 0..60u32 {
                    let x = filled(&[16], (t + round) % 4, device);
                    let mut step = jit::Step::new();
                    for _ in 0..2 {
                        let y = step.run(|| chain(&x)).expect("a call");
                        assert_eq!(values(&y), expected[((t + round) % 4) as usize]);
                    }
                    assert_eq!((step.report().ops, step.report().recorded), (50, 1), "nobody else's ops");
                }
            });
        }
        let expected_ref = &expected;
        scope.spawn(move || {
            for round in 0..60u32 {
                let before = filled(&[16], round % 4, device);
                assert_eq!(values(&chain(&before).expect("eager")), expected_ref[(round % 4) as usize]);
            }
        });
        scope.spawn(move || (0..500).for_each(|i| drop(vector(&vec![i as f32; 1 + i % 64], device))));
        for _ in 0..2 {
            let (shared, captured, expected, chain) = (&shared, captured.clone(), &expected, &chain);
            scope.spawn(move || {
                for _ in 0..20 {
                    let y = shared.lock().expect("no panic").run(|| chain(&captured)).expect("a call");
                    assert_eq!(values(&y), expected[3]);
                }
            });
        }
        // A captured tensor dropped here while others use theirs.
        drop(captured);
    });
    assert_eq!(shared.into_inner().expect("no panic").report().recorded, 1);
}

pub fn out_of_memory_during_trace(device: &Device) {
    if device.name() != "cpu" {
        return;
    }
    let mib = 1 << 20;
    let device =
        &Device::cpu_with(&CpuOptions { memory_limit: Some(20 * mib), ..CpuOptions::default() }).expect("a device");
    let w = Var::new(&scalar(0.0, device)).expect("a Var");
    let x = filled(&[mib / 4], 1, device);
    let mut step = jit::Step::new();
    let mut done = 0.0;
    let mut call = || {
        step.run(|| {
            w.set(&(w.get() + 1.0)?)?;
            let mut all = vec![(&x * 2.0)?];
            for i in 1..8 {
                all.push((&all[i - 1] + 1.0)?);
            }
            Ok(all)
        })
        .map(drop)
    };
    for round in 0..10 {
        let ballast: Vec<_> = (0..12).map_while(|_| Tensor::full([mib / 4], 1.0, device).ok()).collect();
        let e = call().expect_err("8 MiB more than there are");
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "round {round}: {e}");
        // What the failed call did before is either there or not, never half: documented as eager (recording) or dropped (replay).
        let now = values(&w.get())[0];
        assert!(now == done || now == done + 1.0, "round {round}: {now} after {done}");
        done = now;
        assert_eq!(values(&(scalar(1.0, device) + 1.0).expect("a small op")), [2.0]);
        drop(ballast);
        for _ in 0..3 {
            call().unwrap_or_else(|e| panic!("round {round}: {e}"));
            done += 1.0;
            assert_eq!(values(&w.get()), [done]);
        }
    }
}

pub fn replay_from_another_thread_or_stream(device: &Device) {
    let w = Var::new(&scalar(2.0, device)).expect("a Var");
    let x = Var::state(&scalar(0.0, device)).expect("a Var");
    // Traced here, replayed there, then in turn, dropped on a third thread.
    let shared = Mutex::new(jit::Step::new());
    let call = |k: f32| {
        let mut step = shared.lock().expect("no panic");
        x.set(&scalar(k, device)).expect("a write");
        values(&step.run(|| &x.get() * &w.get()).expect("a call"))
    };
    assert_eq!(call(1.0), [2.0]);
    for k in 0..100 {
        let there = thread::scope(|scope| scope.spawn(|| call(k as f32)).join().expect("no panic"));
        assert_eq!((there, call(k as f32 + 0.5)), (vec![2.0 * k as f32], vec![2.0 * k as f32 + 1.0]));
    }
    // A write from the host, a replay, a read: 1000 times (fewer on a simulated device, which is slow); with a chain of ops in one kernel, and with more than 200 kernels.
    let one = filled(&[1, 1], 1, device).mul(0.0).and_then(|z| z + 1.0).expect("a 1");
    type F<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    let fused: F = &|x| (0..100).try_fold(x * 2.0, |y, _| Ok::<_, Error>(&y? * 1.0))?;
    let many: F = &|x| (0..210).try_fold((x * 2.0)?.reshape([1, 1])?, |y, _| y.matmul(&one)?.neg()?.neg())?.reshape(());
    let often = if device.name() == "cpu" { 1000 } else { 100 };
    for (times, kernels, f) in [(1000, 1, fused), (often, 210, many)] {
        let mut step = jit::Step::new();
        for k in 0..times {
            x.set(&scalar(k as f32, device)).expect("a write");
            let y = step.run(|| f(&x.get())).expect("a call");
            assert_eq!(values(&y), [2.0 * k as f32]);
        }
        assert!(step.report().kernels >= kernels && step.report().recorded == 1, "{}", step.report());
    }
    // Work on another thread that is joined before the step ends: what it makes of its own is an operand like any other. A value
    // of the step itself is refused there.
    let mut step = jit::Step::new();
    for k in 0..6 {
        x.set(&scalar(k as f32, device)).expect("a write");
        let y = step
            .run(|| {
                let doubled = (&x.get() * 2.0)?;
                let (side, refused) = thread::scope(|scope| {
                    let side = scope.spawn(|| scalar(10.0, device) + k as f64).join().expect("no panic");
                    (side, scope.spawn(|| &doubled + 1.0).join().expect("no panic"))
                });
                let e = refused.expect_err("a value of a step that has not ended");
                assert!(matches!(e.kind(), ErrorKind::LeakedValue { .. }), "{e}");
                &doubled + &side?
            })
            .expect("a call");
        assert_eq!(values(&y), [3.0 * k as f32 + 10.0]);
    }
    // Two steps share a weight; one updates it: calls ordered after the update see it.
    let (mut train, mut eval) = (jit::Step::new(), jit::Step::new());
    let one = scalar(1.0, device);
    for k in 1..=20 {
        thread::scope(|scope| {
            scope.spawn(|| train.run(|| w.set(&(w.get() + 1.0)?)).expect("a call"));
        });
        let seen = eval.run(|| &w.get() * &one).expect("a call");
        assert_eq!(values(&seen), [2.0 + k as f32]);
    }
    let step = shared.into_inner().expect("no panic");
    thread::spawn(move || drop(step)).join().expect("dropped");
}

scenarios!(
    panic_leaves_tracer_armed,
    second_thread_during_trace,
    out_of_memory_during_trace,
    replay_from_another_thread_or_stream,
);
