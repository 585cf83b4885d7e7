//! Host code in the closure takes effect at every call.

use stepgraph::{DType, Device, Tensor, Var};

use crate::harness::{Expect, assert_close, compare, filled, scalar, values, vector};
use stepgraph::jit;

/// A learning rate that halves at every call: w after call k is 3 - 0.8 (1 - 0.5^k).
pub fn learning_rate_schedule(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8),
        || Ok((Var::new(&scalar(3.0, device))?, 0.4f64)),
        |s, k| {
            if k > 0 {
                s.1 /= 2.0;
            }
            Ok(())
        },
        |(w, lr), _, seen| {
            let loss = w.get().mul(1.0)?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - &(g * *lr)?)?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    let want: Vec<f64> = (1..=8).map(|k| 3.0 - 0.8 * (1.0 - 0.5f64.powi(k))).collect();
    assert_close("w", &log.firsts(1), &want, 1e-6);
}

/// The same with the rate in a `Var` that the host rewrites before each call.
pub fn learning_rate_in_a_var(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&scalar(3.0, device))?, Var::state(&scalar(0.4, device))?)),
        |s, k| s.1.set(&scalar(0.4 * 0.5f32.powi(k as i32), device)),
        |(w, lr), _, _| {
            let g = w.get().sum(())?.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (g * &lr.get()))?)
        },
        |s| vec![s.0.clone()],
    );
    assert_close("w", &log.firsts(0), &[2.6, 2.4, 2.3, 2.25, 2.225, 2.2125], 1e-6);
}

/// A host integer that the closure counts up.
pub fn counter(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((vector(&[10.0, 20.0], device), 0i64)),
        |_, _| Ok(()),
        |(x, n), _, seen| {
            *n += 1;
            seen.keep(&(&*x + *n)?);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
}

/// A host flag chooses between two computations: two paths, each compiled when it is seen again.
pub fn flag(device: &Device) {
    let flags = [true, true, false, false, true, false, true];
    let log = compare(
        device,
        &Expect::steady(flags.len()).launches(&[0, 1, 0, 1, 1, 1, 1]).compiles(2),
        || Ok(vector(&[3.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let y = if flags[k] { (&*x * 2.0)? } else { (&*x + 0.5)? };
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [6.0, 6.0, 3.5, 3.5, 6.0, 3.5, 6.0]);
}

/// A host branch on a value read inside the step.
pub fn host_branch_on_a_loss(device: &Device) {
    let inputs = [1.0f32, 10.0, 1.0, 10.0, 1.0, 10.0];
    let log = compare(
        device,
        // Two segments each time: up to the read, and after it. Going on from the read with the other
        // branch for the first time records.
        &Expect::steady(6).launches(&[0, 0, 2, 2, 2, 2]).compiles(3),
        || Ok(Vec::new()),
        |s: &mut Vec<Tensor>, k| {
            s.push(vector(&[inputs[k]; 2], device));
            Ok(())
        },
        |s, k, seen| {
            let mut y = (&s[k] * 2.0)?;
            if seen.read(&y.sum(())?)? > 10.0 {
                y = (&y * 100.0)?;
            } else {
                y = (&y - 0.0)?;
            }
            seen.keep(&y);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [2.0, 2000.0, 2.0, 2000.0, 2.0, 2000.0]);
}

/// A loop around the step stops at the right call.
pub fn early_stopping(device: &Device) {
    let losses = [4.0f32, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625];
    let mut step = jit::Step::new();
    let mut calls = 0;
    for l in losses {
        let x = vector(&[l], device);
        calls += 1;
        let loss = step.run(|| (&x * 1.0)?.sum(())).expect("a loss");
        if loss.item::<f32>().expect("its value") < 0.5 {
            break;
        }
    }
    assert_eq!(calls, 5);
    assert_eq!(step.report().recorded, 1);
}

/// The closure pushes handles to a list and prints: neither ends a segment, and every handle keeps its own value.
pub fn collecting_and_printing(device: &Device) {
    let mut kept: Vec<Tensor> = Vec::new();
    let mut printed: Vec<String> = Vec::new();
    let mut step = jit::Step::new();
    for k in 1..=6 {
        let x = vector(&[k as f32; 4], device);
        let before = device.counts();
        step.run(|| {
            let s = x.sum(())?;
            // `Debug` shows metadata only, so it reads nothing.
            printed.push(format!("{s:?}"));
            println!("{s:?}");
            kept.push(s);
            Ok(())
        })
        .expect("a call");
        let did = device.counts() - before;
        if k > 1 {
            assert_eq!((did.launches, did.eager_kernels), (1, 0), "call {k}");
        }
    }
    let all: Vec<f32> = kept.iter().map(|t| t.item::<f32>().expect("a value")).collect();
    assert_eq!(all, [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]);
    assert_eq!(printed.len(), 6);
    assert!(printed.iter().all(|p| p == &printed[0] && p.contains("f32")), "{printed:?}");
}

/// `Display` inside the closure is a host read: the number of this call, each time.
pub fn printing_a_value_inside(device: &Device) {
    let mut step = jit::Step::new();
    for k in 1..=6 {
        let x = vector(&[k as f32, 0.5], device);
        let text = step.run(|| Ok(format!("{}", x.sum(())?))).expect("a call");
        assert_eq!(text.trim(), format!("{:?}", k as f32 + 0.5));
    }
}

/// A tensor made from host data inside the step is a new input at each call, never a constant.
pub fn host_data_inside_the_step(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).uploads(1),
        || Var::state(&vector(&[1.0, 1.0], device)),
        |_, _| Ok(()),
        |w, k, seen| {
            let x = Tensor::from_vec(vec![k as f32, -(k as f32)], [2], device)?;
            let y = (&w.get() * &x)?;
            w.set(&(&y + 1.0)?)?;
            seen.keep(&y);
            Ok(())
        },
        |w| vec![w.clone()],
    );
    // y1 = w0·1, w1 = y1 + 1, y2 = w1·2 …
    let (mut w, mut want) = (1.0f32, Vec::new());
    for k in 0..6 {
        want.push(w * k as f32);
        w = w * k as f32 + 1.0;
    }
    assert_eq!(log.firsts(0), want);
}

/// `full` of a host value takes the value anew at each call; `zeros` and `ones` stay what they are.
pub fn full_of_a_host_value(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok(()),
        |_, _| Ok(()),
        |_, k, seen| {
            let a = Tensor::full([3], 0.5 * k as f32, device)?;
            let b = Tensor::ones([3], DType::F32, device)?;
            seen.keep(&(&a + &b)?);
            seen.keep(&Tensor::zeros([2], DType::F32, device)?);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]);
    assert_eq!(log.firsts(1), [0.0; 6]);
}

/// The start of a slice is a host scalar: it changes without a new trace.
pub fn slice_start_is_a_parameter(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((filled(&[32, 3], 1, device), Var::new(&filled(&[3, 2], 2, device))?)),
        |_, _| Ok(()),
        |(data, w), k, seen| {
            let batch = data.slice(0, 4 * k, 4)?;
            let loss = batch.matmul(&w.get())?.sum(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (g * 0.1))?)?;
            seen.keep(&loss);
            seen.keep(&(&batch * 2.0)?);
            Ok(())
        },
        |s| vec![s.1.clone()],
    );
    let data = values(&filled(&[32, 3], 1, device));
    for k in 0..6 {
        assert_eq!(log.f32(k, 1)[0], data[4 * k * 3] * 2.0, "the batch of call {}", k + 1);
    }
}

/// i64 host numbers stay i64: 2^53 + k is exact.
pub fn integer_scalars_stay_exact(device: &Device) {
    let base = (1i64 << 53) + 1;
    let mut step = jit::Step::new();
    let x = Tensor::from_vec(vec![0i64, 1], [2], device).expect("integers");
    for k in 0..6 {
        let before = device.counts();
        let y = step.run(|| &x + (base + 2 * k)).expect("a call");
        assert_eq!(y.to_vec::<i64>().expect("values"), [base + 2 * k, base + 2 * k + 1]);
        if k > 0 {
            assert_eq!((device.counts() - before).launches, 1);
        }
    }
}

/// A host float where an integer was before is an error, not a silent cast; the integer works again afterwards.
pub fn a_number_that_a_tensor_cannot_hold_is_refused_at_each_call(device: &Device) {
    let x = Tensor::from_vec(vec![1u8, 2], [2], device).expect("bytes");
    let mut step = jit::Step::new();
    for k in 0..6 {
        let result = step.run(|| if k == 3 { x.add(256i64) } else { x.add(100 + k) });
        if k == 3 {
            let text = result.expect_err("256 for a u8 tensor").to_string();
            assert!(text.contains("u8") && text.contains(file!()), "{text}");
        } else {
            let k = k as u8;
            assert_eq!(result.expect("a call").to_vec::<u8>().expect("values"), [101 + k, 102 + k]);
        }
    }
}

pub fn a_float_for_an_integer_tensor_takes_effect_at_its_call(device: &Device) {
    let x = Tensor::from_vec(vec![1i64, 2], [2], device).expect("integers");
    let mut step = jit::Step::new();
    for k in 0..6 {
        let y = step.run(|| if k == 3 { x.add(0.5) } else { x.add(1i64) }).expect("a call");
        let want = if k == 3 { [1.5, 2.5] } else { [2.0, 3.0] };
        assert_eq!(y.to_host().expect("values").data.to_f64(), want);
        assert_eq!(y.dtype(), if k == 3 { DType::F32 } else { DType::I64 });
    }
}

scenarios!(
    learning_rate_schedule,
    learning_rate_in_a_var,
    counter,
    flag,
    host_branch_on_a_loss,
    early_stopping,
    collecting_and_printing,
    printing_a_value_inside,
    host_data_inside_the_step,
    full_of_a_host_value,
    slice_start_is_a_parameter,
    integer_scalars_stay_exact,
    a_number_that_a_tensor_cannot_hold_is_refused_at_each_call,
    a_float_for_an_integer_tensor_takes_effect_at_its_call,
);
