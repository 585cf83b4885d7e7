//! A closure that returns an error or panics: what it did has happened, and the thread goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stepgraph::{Device, Error, ErrorKind, Result, Tensor, Var, jit};

use crate::harness::{Expect, Outcome, assert_bits_eq, compare, filled, scalar, values, vector};

fn refuse() -> Result<()> {
    Err(Error::argument("the user's check", "a lower loss", "a higher one"))
}

/// w += 1, then maybe the end; then y = 2w is kept.
fn failing_at(device: &Device, at: &[usize], outcome: Outcome) {
    let log = compare(
        device,
        // Which calls record depends on where the failures are; the values must not.
        &Expect::steady(9).launches(&[0, 0, 0, 0, 0, 1, 0, 0, 1]).any_compiles().ends(at, outcome),
        || Var::new(&scalar(0.0, device)),
        |_, _| Ok(()),
        |w, k, seen| {
            w.set(&(w.get() + 1.0)?)?;
            if at.contains(&k) {
                match outcome {
                    Outcome::Panic => panic!("the user's panic"),
                    _ => refuse()?,
                }
            }
            seen.keep(&(w.get() * 2.0)?);
            Ok(())
        },
        |w| vec![w.clone()],
    );
    for k in 0..9 {
        let last = log.calls[k].len() - 1;
        assert_eq!(log.f32(k, last), [k as f32 + 1.0], "w advances once per call");
    }
}

/// An error from call 1, the recording one.
pub fn error_on_the_first_call(device: &Device) {
    failing_at(device, &[0], Outcome::Err);
}

/// An error from call 2, the compiling one.
pub fn error_on_the_second_call(device: &Device) {
    failing_at(device, &[1], Outcome::Err);
}

/// Errors later, more than once.
pub fn errors_later(device: &Device) {
    failing_at(device, &[3, 6], Outcome::Err);
}

/// A panic in call 1.
pub fn panic_on_the_first_call(device: &Device) {
    failing_at(device, &[0], Outcome::Panic);
}

/// A panic in call 2.
pub fn panic_on_the_second_call(device: &Device) {
    failing_at(device, &[1], Outcome::Panic);
}

/// Panics later, more than once.
pub fn panics_later(device: &Device) {
    failing_at(device, &[3, 6], Outcome::Panic);
}

/// After a failure the thread computes eagerly, traces other steps, and the first step goes on.
pub fn the_thread_is_usable_after_a_failure(device: &Device) {
    for panics in [false, true] {
        let w = Var::new(&scalar(0.0, device)).expect("a Var");
        let mut step = jit::Step::new();
        let mut call = |fail: bool| {
            catch_unwind(AssertUnwindSafe(|| {
                step.run(|| {
                    w.set(&(w.get() + 1.0)?)?;
                    if fail && panics {
                        panic!("the user's panic");
                    }
                    if fail {
                        refuse()?;
                    }
                    w.get() * 2.0
                })
            }))
        };
        assert!(call(true).map_or(true, |r| r.is_err()));
        assert_eq!(values(&w.get()), [1.0], "the write before the failure has happened");
        let before = device.counts();
        let c = (vector(&[1.0; 3], device) + 1.0).expect("an eager op");
        assert_eq!(values(&c), [2.0; 3]);
        assert_eq!((device.counts() - before).eager_kernels, 1, "the op ran at once");
        let mut other = jit::Step::new();
        for k in 1..=3 {
            let x = vector(&[k as f32], device);
            assert_eq!(values(&other.run(|| &x * 3.0).expect("another step")), [3.0 * k as f32]);
        }
        assert_eq!(other.report().replayed, 2);
        for k in 1..=4 {
            let y = call(false).expect("no panic").expect("a call");
            assert_eq!(values(&y), [2.0 * (1.0 + k as f32)]);
        }
    }
}

/// The error that the closure returned comes out unchanged.
pub fn the_error_is_the_users(device: &Device) {
    let mut step = jit::Step::new();
    for k in 0..6 {
        let e = step
            .run(|| {
                let _ = Tensor::ones([k + 1], stepgraph::DType::F32, device)?;
                refuse()
            })
            .expect_err("the closure failed");
        assert!(matches!(e.kind(), ErrorKind::Argument { op: "the user's check", .. }), "{e}");
    }
}

/// Values kept before a failure are real values.
pub fn values_kept_before_a_failure(device: &Device) {
    for panics in [false, true] {
        let mut kept: Vec<Tensor> = Vec::new();
        let mut step = jit::Step::new();
        for k in 0..8 {
            let x = vector(&[k as f32, 1.0], device);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                step.run(|| {
                    let y = (&x * 2.0)?;
                    kept.push(y.clone());
                    if k % 3 == 2 {
                        if panics {
                            panic!("the user's panic");
                        }
                        refuse()?;
                    }
                    &y + 1.0
                })
            }));
        }
        let got: Vec<f32> = kept.iter().map(|t| values(t)[0]).collect();
        assert_eq!(got, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    }
}

/// An op that fails leaves nothing behind: the user may try another way.
pub fn a_failing_op_leaves_no_event(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((vector(&[1.0, 2.0], device), vector(&[1.0, 2.0, 3.0], device))),
        |_, _| Ok(()),
        |(a, b), _, seen| {
            let y = match &*a + &*b {
                Ok(y) => y,
                // The shapes do not fit: cut one.
                Err(_) => (&*a + b.slice(0, 0, 2)?)?,
            };
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.f32(5, 0), [2.0, 4.0]);
}

/// The same when only some calls fail in the middle.
pub fn an_op_that_fails_now_and_then(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0, 1, 0, 1, 1, 1, 1, 1]).compiles(2),
        || Ok((vector(&[1.0, 2.0], device), vector(&[1.0, 2.0, 3.0], device))),
        |_, _| Ok(()),
        |(a, b), k, seen| {
            if k % 2 == 1 {
                assert!(a.matmul(b).is_err());
                assert!(a.reshape([7]).is_err());
            }
            let c = if k == 2 || k > 4 { b.slice(0, 1, 2)? } else { b.slice_step(0, 0, 2, 2)? };
            seen.keep(&(&*a + &c)?);
            Ok(())
        },
        |_| vec![],
    );
}

/// An index out of range is told at the step's end, its `Var` writes are dropped, and the next call is right.
pub fn index_out_of_range_drops_the_writes(device: &Device) {
    let w = Var::new(&filled(&[5, 2], 1, device)).expect("a Var");
    let count = Var::state(&scalar(0.0, device)).expect("a Var");
    let mut step = jit::Step::new();
    let (mut good, mut line) = (0.0, 0);
    for k in 0..9 {
        let bad = k % 3 == 2;
        let index = Tensor::from_vec(vec![0i64, if bad { 5 } else { 4 }], [2], device).expect("indices");
        let before = w.get().to_host().expect("a value");
        let result = step.run(|| {
            line = line!() + 1;
            let rows = w.get().index_select(0, &index)?;
            count.set(&(count.get() + 1.0)?)?;
            w.set(&(w.get() * 0.5)?)?;
            rows.sum(())
        });
        // A device that launches without waiting tells at the next host read, or when it is waited for.
        let result = result.and_then(|sum| device.synchronize().map(|()| sum));
        if bad {
            let e = result.expect_err("an index out of range");
            assert!(matches!(e.kind(), ErrorKind::Index { len: 5, .. }), "{e}");
            assert_eq!((e.loc().file(), e.loc().line()), (Some(file!()), Some(line)), "{e}");
            assert_bits_eq("w after a call with an index out of range", &w.get().to_host().expect("w"), &before);
        } else {
            good += 1.0;
            result.expect("a call");
        }
        assert_eq!(values(&count.get()), [good], "call {}", k + 1);
        // The thread is usable.
        assert_eq!(values(&(vector(&[1.0], device) + 1.0).expect("an eager op")), [2.0]);
    }
}

/// Out of memory in the middle of a step: an error, no write lost or doubled, and the step goes on when there is room.
pub fn out_of_memory(device: &Device) {
    // A device of its own, with little memory; the scenario's device says only that it is a CPU.
    if device.name() != "cpu" {
        return;
    }
    let options = stepgraph::CpuOptions { memory_limit: Some(24 << 20), ..Default::default() };
    let device = &Device::cpu_with(&options).expect("a small device");
    let w = Var::new(&scalar(0.0, device)).expect("a Var");
    let x = filled(&[1 << 20], 1, device);
    let mut step = jit::Step::new();
    let mut done = 0.0;
    for round in 0..4 {
        let ballast = (round % 2 == 1)
            .then(|| (0..4).map_while(|i| Tensor::full([1 << 20], i as f32, device).ok()).collect::<Vec<_>>());
        let result = step.run(|| {
            let a = (&x * 2.0)?;
            let b = a.exp()?;
            let s = (&a * &b)?.sum(())?;
            w.set(&(w.get() + 1.0)?)?;
            Ok((a, b, s))
        });
        match result {
            Ok(_) => done += 1.0,
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
                assert!(ballast.is_some(), "there is room without the ballast: {e}");
            }
        }
        assert_eq!(values(&w.get()), [done], "round {round}");
        drop(ballast);
        assert_eq!(values(&(scalar(1.0, device) + 1.0).expect("an eager op")), [2.0]);
    }
}

scenarios!(
    error_on_the_first_call,
    error_on_the_second_call,
    errors_later,
    panic_on_the_first_call,
    panic_on_the_second_call,
    panics_later,
    the_thread_is_usable_after_a_failure,
    the_error_is_the_users,
    values_kept_before_a_failure,
    a_failing_op_leaves_no_event,
    an_op_that_fails_now_and_then,
    index_out_of_range_drops_the_writes,
    out_of_memory,
);
