//! Several threads: each its own steps; pending values stay on theirs.

use std::sync::{Mutex, mpsc};
use std::thread;

use stepgraph::{Device, ErrorKind, Tensor, Var, jit};

use crate::harness::{filled, values, vector};

fn is_send<T: Send>(_: &T) {}

/// Two threads record, replay and compute eagerly at the same time; each sees only its own ops.
pub fn two_threads_each_with_a_step(device: &Device) {
    let expected: Vec<Vec<f32>> = {
        let mut w = filled(&[16, 16], 1, device);
        let x = filled(&[16, 16], 2, device);
        (0..40)
            .map(|_| {
                w = (&w - (x.matmul(&w).and_then(|y| y.tanh()).and_then(|y| y.mul(0.1)))).expect("an update");
                values(&w)
            })
            .collect()
    };
    thread::scope(|scope| {
        for t in 0..3 {
            let expected = &expected;
            scope.spawn(move || {
                let w = Var::new(&filled(&[16, 16], 1, device)).expect("a Var");
                let x = filled(&[16, 16], 2, device);
                let mut step = jit::Step::new();
                for (k, want) in expected.iter().enumerate() {
                    let update = || w.set(&(w.get() - x.matmul(&w.get())?.tanh()?.mul(0.1))?);
                    if t == 2 { update() } else { step.run(update) }.expect("a call");
                    assert_eq!(&values(&w.get()), want, "thread {t}, call {}", k + 1);
                }
                if t < 2 {
                    let report = step.report();
                    assert_eq!((report.recorded, report.replayed, report.paths), (1, 39, 1), "{report}");
                    // get, matmul, tanh, mul, sub, set: nobody else's ops.
                    assert_eq!(report.events, 6, "{report}");
                }
            });
        }
    });
}

/// Two threads update one `Var`, each write whole.
pub fn two_threads_share_a_var(device: &Device) {
    let w = Var::new(&vector(&[0.0; 512], device)).expect("a Var");
    thread::scope(|scope| {
        for t in 0..2 {
            let w = &w;
            scope.spawn(move || {
                let mut step = jit::Step::new();
                for _ in 0..200 {
                    let seen = step
                        .run(|| {
                            let before = w.get();
                            w.set(&(&before + 1.0)?)?;
                            Ok(before)
                        })
                        .expect("a call");
                    let v = values(&seen);
                    assert!(v.iter().all(|x| *x == v[0]), "thread {t} saw a half-written value");
                }
            });
        }
    });
    let v = values(&w.get());
    assert!(v.iter().all(|x| *x == v[0]) && (200.0..=400.0).contains(&v[0]), "{}", v[0]);
}

/// A pending value used on another thread is an error that says where it was made, at every call, the
/// recording one included; once the step has ended it can be used anywhere.
pub fn a_pending_value_on_another_thread(device: &Device) {
    let mut step = jit::Step::new();
    let x = vector(&[1.0, 2.0], device);
    for k in 0..6 {
        let mut line = 0;
        let y = step
            .run(|| {
                line = line!() + 1;
                let y = (&x + 1.0)?;
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let uses = [y.mul(2.0).err(), y.to_vec::<f32>().err(), (&x * &y).err(), y.sum(()).err()];
                        for e in uses {
                            let e = e.unwrap_or_else(|| panic!("call {}: used on another thread", k + 1));
                            let ErrorKind::LeakedValue { made } = e.kind() else { panic!("{e}") };
                            assert_eq!((made.file(), made.line()), (Some(file!()), Some(line)), "{e}");
                            assert_eq!(e.loc().file(), Some(file!()), "{e}");
                            assert!(e.to_string().contains("to_vec"), "says what to do: {e}");
                        }
                        // And in a step of that thread.
                        let mut other = jit::Step::new();
                        let e = other.run(|| y.mul(2.0)).expect_err("a leaked value");
                        assert!(matches!(e.kind(), ErrorKind::LeakedValue { .. }), "{e}");
                        // A `Var` of that thread cannot hold it.
                        let v = Var::new(&x).expect("a Var");
                        assert!(v.set(&y).is_err());
                        assert!(Var::new(&y).is_err());
                    });
                });
                Ok(y)
            })
            .expect("a call");
        let sum = thread::scope(|scope| scope.spawn(|| values(&y)).join().expect("the thread"));
        assert_eq!(sum, [2.0, 3.0]);
    }
}

/// A value sent away during the step and used after it is the step's value.
pub fn a_value_sent_away_and_used_later(device: &Device) {
    let (send, receive) = mpsc::channel::<Tensor>();
    let (ready, wait) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        let mut out = Vec::new();
        for t in receive {
            wait.recv().expect("the step's end");
            out.push(values(&t)[0]);
        }
        out
    });
    let mut step = jit::Step::new();
    for k in 0..6 {
        let x = vector(&[k as f32], device);
        step.run(|| {
            send.send((&x * 2.0)?).expect("a reader");
            Ok(())
        })
        .expect("a call");
        ready.send(()).expect("a reader");
    }
    drop(send);
    assert_eq!(reader.join().expect("the reader"), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
}

/// A step moves between threads and is dropped on a third; it replays everywhere.
pub fn a_step_moves_between_threads(device: &Device) {
    let step = jit::Step::new();
    is_send(&step);
    let x = filled(&[8, 8], 3, device);
    let want = values(&x.matmul(&x).and_then(|y| y.sum(0)).expect("eager"));
    let shared = Mutex::new(step);
    for _ in 0..4 {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut step = shared.lock().expect("no panic");
                    assert_eq!(values(&step.run(|| x.matmul(&x)?.sum(0)).expect("a call")), want);
                });
            }
        });
    }
    let step = shared.into_inner().expect("no panic");
    let report = step.report();
    assert_eq!((report.recorded, report.replayed), (1, 7), "{report}");
    let mut frozen = step.freeze().expect("a frozen step");
    is_send(&frozen);
    thread::spawn(move || {
        drop(step);
        assert_eq!(values(&frozen.replay().expect("a replay")[0]), want);
    })
    .join()
    .expect("the thread");
}

/// Another thread's eager ops during a recording run at once and leave nothing in it.
pub fn eager_work_during_a_recording(device: &Device) {
    let mut events = Vec::new();
    for _ in 0..20 {
        let mut step = jit::Step::new();
        for _ in 0..2 {
            step.run(|| {
                let mut y = vector(&[1.0, 2.0], device);
                for _ in 0..25 {
                    y = (y * 0.5)?;
                }
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let z = (vector(&[3.0], device) + 1.0).expect("an eager op");
                        assert_eq!(values(&z), [4.0]);
                    });
                });
                for _ in 0..25 {
                    y = (y * 2.0)?;
                }
                Ok(y)
            })
            .map(|y| assert_eq!(values(&y), [1.0, 2.0]))
            .expect("a call");
        }
        events.push(step.report().events);
    }
    assert!(events.iter().all(|n| *n == 50), "{events:?}");
}

scenarios!(
    two_threads_each_with_a_step,
    two_threads_share_a_var,
    a_pending_value_on_another_thread,
    a_value_sent_away_and_used_later,
    a_step_moves_between_threads,
    eager_work_during_a_recording,
);
