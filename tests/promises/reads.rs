//! Host reads inside a step end segments; values live across them; effects happen once.

use stepgraph::{Device, Tensor, Var, jit};

use crate::harness::{Expect, compare, filled, scalar, values, vector};

/// A value read in the middle: two segments, two launches.
pub fn a_read_in_the_middle(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).segments(2),
        || Ok((Var::new(&scalar(1.0, device))?, vector(&[1.0, 2.0], device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let y = (&w.get() * &*x)?;
            let s = seen.read(&y.sum(())?)?;
            w.set(&(w.get() + (s as f64 / 4.0))?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    let mut w = 1.0f32;
    for k in 0..6 {
        w += 3.0 * w / 4.0;
        assert_eq!(log.f32(k, 2)[0], w);
    }
}

/// Reading one value twice ends one segment, not two.
pub fn the_same_value_read_twice(device: &Device) {
    compare(
        device,
        &Expect::steady(6).segments(2),
        || Ok(vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let s = (&*x * (k as f64))?.sum(())?;
            let (a, b) = (seen.read(&s)?, seen.read(&s)?);
            assert_eq!(a, b);
            let y = (&s + 1.0)?;
            seen.read(&s)?;
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
}

/// A second value of a segment that is over is there: reading it launches nothing.
pub fn a_value_of_an_earlier_segment(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).segments(2),
        || Ok(vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let a = (&*x + k as i64)?;
            let b = (&a * 2.0)?.sum(())?;
            let c = (&a * 3.0)?.sum(())?;
            seen.read(&b)?;
            seen.read(&c)?;
            let d = (&b + &c)?;
            seen.read(&a)?;
            seen.keep(&d);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [15.0, 25.0, 35.0, 45.0, 55.0, 65.0]);
}

/// A value is pending across a read and used after it, by ops and by a second read.
pub fn a_value_pending_across_a_read(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).segments(3),
        || Ok((Var::new(&filled(&[4, 4], 1, device))?, filled(&[4, 4], 2, device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let h = x.matmul(&w.get())?;
            let t = h.tanh()?;
            seen.read(&t.sum(())?)?;
            let u = (&h * &t)?;
            seen.read(&u.sum(())?)?;
            let v = (&u - &h)?;
            w.set(&(&v * 0.5)?)?;
            seen.keep(&v);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    assert_eq!(log.calls.len(), 6);
}

/// Gradients computed before a read are used after it.
pub fn gradients_across_a_read(device: &Device) {
    compare(
        device,
        &Expect::steady(8).segments(2),
        || Ok((Var::new(&filled(&[4, 3], 1, device))?, filled(&[5, 4], 2, device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let loss = x.matmul(&w.get())?.tanh()?.mean(())?;
            let g = loss.backward()?;
            let scale = seen.read(&loss)?;
            w.set(&(w.get() - (g.get(w).expect("a gradient") * (0.1 + scale as f64)))?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// `backward` after a read: the tape reaches back over it.
pub fn backward_after_a_read(device: &Device) {
    compare(
        device,
        &Expect::steady(8).segments(2),
        || Ok((Var::new(&filled(&[4, 3], 1, device))?, filled(&[5, 4], 2, device))),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let h = x.matmul(&w.get())?;
            let loss = h.tanh()?.mean(())?;
            let scale = seen.read(&loss)?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * (0.1 + scale as f64)))?)?;
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// A `Var` is written, a value is read, and the call goes another way than recorded: the write has
/// happened once.
pub fn divergence_after_a_launched_write(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(10).launches(&[0; 10]).any_compiles(),
        || Ok((Var::new(&vector(&[1.0, 1.0], device))?, Var::state(&scalar(0.0, device))?)),
        |_, _| Ok(()),
        |(w, n), k, seen| {
            n.set(&(n.get() + 1.0)?)?;
            w.set(&(w.get() * 1.5)?)?;
            let s = w.get().sum(())?;
            seen.read(&s)?;
            // Three ways to go on, the first of them twice before another comes.
            match [0, 0, 1, 0, 2, 1, 2, 0, 1, 2][k] {
                0 => w.set(&(w.get() + &s)?)?,
                1 => w.set(&(w.get() - &n.get())?)?,
                _ => n.set(&(n.get() * 1.0)?)?,
            }
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_eq!(log.firsts(2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
}

/// A divergence in the middle of a segment with writes pending: each is applied once.
pub fn divergence_with_writes_pending(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(10).launches(&[0; 10]).any_compiles(),
        || Ok((Var::new(&vector(&[1.0; 33], device))?, Var::state(&scalar(0.0, device))?)),
        |_, _| Ok(()),
        |(w, n), k, seen| {
            n.set(&(n.get() + 1.0)?)?;
            let old = w.get();
            w.set(&(&old * 2.0)?)?;
            let y = match [0, 0, 1, 2, 1, 2, 0, 3, 3, 0][k] {
                0 => (&w.get() + 1.0)?,
                1 => (&w.get() - 1.0)?,
                2 => (&old - &w.get())?,
                _ => n.get(),
            };
            w.set(&(w.get() * 0.5)?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_eq!(log.firsts(2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    assert_eq!(log.firsts(1), [1.0; 10]);
}

/// A value read after a write, dropped, and read again after a divergence.
pub fn a_var_read_again_after_a_divergence(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Var::new(&vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            w.set(&(w.get() + 1.0)?)?;
            // Read and dropped: only the `Var` knows the value when the paths part.
            drop(w.get());
            let one = vector(&[1.0, 1.0], device);
            let y = if k % 3 == 2 { (&one * 2.0)? } else { (&one + 3.0)? };
            seen.keep(&(&y * &w.get())?);
            Ok(())
        },
        |w| vec![w.clone()],
    );
}

/// Only the last segment of a call updates a `Var` in place: the first one's input stays for a way not taken before.
pub fn no_update_in_place_before_the_last_segment(device: &Device) {
    let w = Var::new(&vector(&[1.0; 128], device)).expect("a Var");
    let mut step = jit::Step::new();
    let mut want = 1.0f32;
    for k in 0..12 {
        let s = step
            .run(|| {
                let old = w.get();
                let doubled = (&old * 2.0)?;
                w.set(&(&old + 1.0)?)?;
                drop(old);
                let s = w.get().sum(())?.item::<f32>()?;
                // Needs what was computed from the old value, in a new way from call 7 on.
                if k < 6 {
                    w.set(&(&doubled + 0.5)?)?
                } else {
                    w.set(&(&doubled - &w.get())?)?
                }
                Ok(s)
            })
            .expect("a call");
        assert_eq!(s, 128.0 * (want + 1.0), "call {}", k + 1);
        want = if k < 6 { 2.0 * want + 0.5 } else { 2.0 * want - (want + 1.0) };
        assert_eq!(values(&w.get()), vec![want; 128], "call {}", k + 1);
    }
}

/// Reads of arguments, snapshots and constants made inside: no segment ends.
pub fn reads_of_values_that_are_there(device: &Device) {
    compare(
        device,
        &Expect::steady(6).uploads(1),
        || Ok((Var::new(&scalar(2.0, device))?, vector(&[1.0, 3.0], device))),
        |_, _| Ok(()),
        |(w, x), k, seen| {
            let before = seen.read(&w.get())?;
            seen.read(x)?;
            let made = Tensor::from_vec(vec![k as f32], [1], device)?;
            seen.read(&made)?;
            let y = ((&*x * before as f64)? + &made)?;
            w.set(&(w.get() + 1.0)?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// A read of a `Var` just written sees the write; other holders see it after the segment.
pub fn a_written_var_is_read(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).segments(2),
        || Var::new(&scalar(1.0, device)),
        |_, _| Ok(()),
        |w, _, seen| {
            w.set(&(w.get() * 2.0)?)?;
            seen.read(&w.get())?;
            w.set(&(w.get() + 1.0)?)
        },
        |w| vec![w.clone()],
    );
    assert_eq!(log.firsts(0), [2.0, 6.0, 14.0, 30.0, 62.0, 126.0]);
}

/// A read that moves to another place or disappears is another path; the numbers follow.
pub fn a_read_now_and_then(device: &Device) {
    compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || Ok((Var::new(&filled(&[6], 1, device))?, filled(&[6], 2, device))),
        |_, _| Ok(()),
        |(w, x), k, seen| {
            let a = (&w.get() * &*x)?;
            let s = a.sum(())?;
            if k % 3 == 0 {
                seen.read(&s)?;
            }
            let b = (&a + &s)?;
            if k % 4 == 1 {
                seen.read(&b)?;
            }
            w.set(&(&b * 0.25)?)?;
            if k % 5 == 4 {
                seen.read(&w.get())?;
            }
            seen.keep(&b);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

scenarios!(
    a_read_in_the_middle,
    the_same_value_read_twice,
    a_value_of_an_earlier_segment,
    a_value_pending_across_a_read,
    gradients_across_a_read,
    backward_after_a_read,
    divergence_after_a_launched_write,
    divergence_with_writes_pending,
    a_var_read_again_after_a_divergence,
    no_update_in_place_before_the_last_segment,
    reads_of_values_that_are_there,
    a_written_var_is_read,
    a_read_now_and_then,
);
