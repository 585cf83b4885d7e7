//! Nested steps, other devices, closures that end early, shapes and attributes.

use stepgraph::{DType, Device, Tensor, Var, jit};

use crate::harness::{Expect, compare, filled, own_device, values, vector};

/// A step inside a step is part of it: one launch, and the inner step stays empty.
pub fn nested_steps_are_inlined(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((jit::Step::new(), Var::new(&vector(&[1.0, 2.0], device))?)),
        |_, _| Ok(()),
        |(inner, w), k, seen| {
            let y = (w.get() * 2.0)?;
            let z = inner.run(|| {
                w.set(&(w.get() + 1.0)?)?;
                &y + k as i64
            })?;
            seen.keep(&(&z * &w.get())?);
            Ok(())
        },
        |s| vec![s.1.clone()],
    );
    assert_eq!(log.firsts(1), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    // y = 2w, z = y + k, kept = z (w + 1).
    assert_eq!(log.firsts(0), [4.0, 15.0, 32.0, 55.0, 84.0, 119.0]);
}

/// A step used alone and inside another one.
pub fn a_step_used_inside_and_outside(device: &Device) {
    let (mut inner, mut outer) = (jit::Step::new(), jit::Step::new());
    let x = vector(&[1.0, 2.0], device);
    for k in 0..6i64 {
        let a = inner.run(|| &x + k).expect("alone");
        let b = outer.run(|| (inner.run(|| &x + k)? * 2.0)?.sum(())).expect("inside");
        assert_eq!(values(&a), [1.0 + k as f32, 2.0 + k as f32]);
        assert_eq!(values(&b), [6.0 + 4.0 * k as f32]);
    }
    assert_eq!((inner.report().calls, inner.report().recorded), (6, 1));
    assert_eq!((outer.report().calls, outer.report().recorded), (6, 1));
}

/// An op on another device runs eagerly in its place; its result comes in as an input, and the report says so.
pub fn an_op_on_another_device(device: &Device) {
    let other = own_device();
    let x = vector(&[1.0, 2.0], device);
    let far = vector(&[10.0, 20.0], &other);
    let mut step = jit::Step::new();
    let mut line = 0;
    for k in 1..=6i64 {
        let before = (device.counts(), other.counts());
        let y = step
            .run(|| {
                let a = (&x * k)?;
                line = line!() + 1;
                let b = (&far + k)?;
                let c = b.to_device(device)?;
                &a + &c
            })
            .expect("a call");
        assert_eq!(values(&y), [10.0 + 2.0 * k as f32, 20.0 + 3.0 * k as f32]);
        if k > 1 {
            let did = device.counts() - before.0;
            assert_eq!((did.launches, did.eager_kernels, did.uploads), (1, 0, 1), "call {k}");
            let did = other.counts() - before.1;
            assert_eq!((did.launches, did.eager_kernels), (0, 1), "call {k}");
        }
    }
    let report = step.report();
    assert!(report.copies.iter().any(|n| n.at == format!("{}:{line}", file!())), "{report}");
}

/// A `Var` of another device inside the step is read and written at once, in its place.
pub fn a_var_on_another_device(device: &Device) {
    let other = own_device();
    compare(
        device,
        &Expect::steady(6).uploads(1),
        || Ok((Var::new(&vector(&[1.0], device))?, Var::state(&vector(&[5.0], &other))?)),
        |_, _| Ok(()),
        |(w, far), _, seen| {
            let y = (w.get() * 2.0)?;
            far.set(&(far.get() + 1.0)?)?;
            let z = (&y + &far.get().to_device(device)?)?;
            w.set(&z)?;
            seen.keep(&z);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

/// Traced values move out of the step's device by a host read.
pub fn a_value_moved_to_another_device(device: &Device) {
    let other = own_device();
    let x = vector(&[1.0, 2.0], device);
    let mut step = jit::Step::new();
    for k in 0..6i64 {
        let (near, far) = step
            .run(|| {
                let a = (&x + k)?;
                let far = (a.to_device(&other)? * 2.0)?;
                Ok(((&a * 3.0)?, far))
            })
            .expect("a call");
        assert_eq!((values(&near)[0], values(&far)[0]), (3.0 + 3.0 * k as f32, 2.0 + 2.0 * k as f32));
        assert_eq!((near.device(), far.device()), (device, &other));
    }
    assert_eq!(step.report().segments, 2);
}

/// A closure that ends early is a split of the path, not a divergence: nothing is recorded again.
pub fn an_early_end_is_a_split(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(9).launches(&[0, 1, 1, 1, 1, 1, 1, 1, 1]).compiles(3),
        || Var::new(&vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            w.set(&(w.get() + 1.0)?)?;
            if k % 3 == 2 {
                return Ok(());
            }
            let y = (w.get() * 2.0)?;
            seen.keep(&y);
            if k % 3 == 1 && k > 3 {
                return Ok(());
            }
            w.set(&(&y - &w.get())?)
        },
        |w| vec![w.clone()],
    );
    assert_eq!(log.f32(8, 0)[0], 10.0);
}

/// A closure that first ends early and later goes on.
pub fn a_later_end(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0, 1, 0, 1, 1, 1, 1, 1]).compiles(2),
        || Var::new(&vector(&[1.0, 2.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let y = (w.get() * 2.0)?;
            seen.keep(&y);
            if k < 2 || k == 5 {
                return Ok(());
            }
            w.set(&(&y - 1.0)?)
        },
        |w| vec![w.clone()],
    );
}

/// An empty closure, and one that touches tensors only sometimes.
pub fn closures_without_tensor_work(device: &Device) {
    let x = vector(&[1.0], device);
    let mut step = jit::Step::new();
    for k in 0..8i64 {
        let got = step.run(|| if k % 2 == 1 { Ok(Some((&x + k)?)) } else { Ok(None) }).expect("a call");
        assert_eq!(got.map(|t| values(&t)), (k % 2 == 1).then(|| vec![1.0 + k as f32]));
    }
    let mut empty = jit::Step::new();
    for k in 0..6 {
        assert_eq!(empty.run(|| Ok(k)).expect("a call"), k);
    }
    assert_eq!((empty.report().launches, empty.report().recorded), (0, 1));
}

/// Axes, shapes and lengths are structure, never parameters: other ones are other paths.
pub fn attributes_are_structure(device: &Device) {
    compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || Ok(filled(&[4, 6], 1, device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let y = match k % 6 {
                0 => x.sum(0)?,
                1 => x.sum(1)?,
                2 => x.sum_keepdim(0)?,
                3 => x.reshape([3, 8])?.sum(0)?,
                4 => x.slice(1, 1, 3)?.sum(0)?,
                _ => x.slice(1, 2, 4)?.sum(0)?,
            };
            seen.keep(&y);
            let z = match k % 3 {
                0 => x.to_dtype(DType::I64)?.to_dtype(DType::F32)?,
                1 => x.gt(0.0)?.to_dtype(DType::F32)?,
                _ => x.t()?,
            };
            seen.keep(&z);
            Ok(())
        },
        |_| vec![],
    );
}

/// Arguments of another dtype, layout or shape: another path, and back.
pub fn arguments_of_another_type(device: &Device) {
    compare(
        device,
        &Expect::steady(12).launches(&[0; 12]).any_compiles(),
        || Ok(filled(&[4, 4], 1, device)),
        |s, k| {
            let base = filled(&[4, 4], 1 + k as u32, device);
            *s = match k % 5 {
                0 | 1 => base,
                2 => base.t()?,
                3 => base.slice(0, 1, 1)?.expand([4, 4])?,
                _ => (base * 10.0)?.to_dtype(DType::I64)?,
            };
            Ok(())
        },
        |x, _, seen| {
            seen.keep(&x.add(&*x)?);
            seen.keep(&x.sum(1)?);
            Ok(())
        },
        |_| vec![],
    );
}

/// Empty tensors go the same way.
pub fn empty_arguments(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((filled(&[5, 3], 1, device), Var::new(&filled(&[3], 2, device))?)),
        |s, k| {
            s.0 = filled(&[if k % 2 == 0 { 5 } else { 0 }, 3], 1, device);
            Ok(())
        },
        |(x, w), _, seen| {
            let y = (&*x * &w.get())?;
            let g = y.sum(())?.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * 0.1))?)?;
            seen.keep(&y);
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.1.clone()],
    );
}

/// 500 ops in a chain: one launch.
pub fn a_long_chain(device: &Device) {
    compare(
        device,
        &Expect::steady(5),
        || Ok(filled(&[100], 1, device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let mut y = x.clone();
            for i in 0..250 {
                y = ((&y * (1.0 - 0.001 * k as f64))? + 0.001 * i as f64)?;
            }
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
}

/// Fusion and updates in place change no bit.
pub fn options_change_no_bit(device: &Device) {
    let run = |options: jit::Options| {
        let w = Var::new(&filled(&[6, 4], 1, device)).expect("a Var");
        let x = filled(&[5, 6], 2, device);
        let mut step = jit::Step::with_options(options);
        for _ in 0..6 {
            step.run(|| {
                let loss = x.matmul(&w.get())?.softmax(1)?.log()?.mean(())?;
                let g = loss.backward()?.get(&w).expect("a gradient");
                w.set(&(w.get() + (&g * 0.3))?)
            })
            .expect("a call");
        }
        let value: Tensor = w.get();
        value.to_host().expect("w")
    };
    let usual = run(jit::Options::new());
    for options in [jit::Options::new().fuse(false), jit::Options::new().in_place(false)] {
        crate::harness::assert_bits_eq("w", &run(options), &usual);
    }
}

scenarios!(
    nested_steps_are_inlined,
    a_step_used_inside_and_outside,
    an_op_on_another_device,
    a_var_on_another_device,
    a_value_moved_to_another_device,
    an_early_end_is_a_split,
    a_later_end,
    closures_without_tensor_work,
    attributes_are_structure,
    arguments_of_another_type,
    empty_arguments,
    a_long_chain,
    options_change_no_bit,
);
