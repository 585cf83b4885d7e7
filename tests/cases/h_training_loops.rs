//! Section H: training-loop patterns.

use stepgraph::optim::clip_grad_norm;
use stepgraph::{DType, Device, Gradients, Result, Tensor, Var, jit};

use crate::harness::{Expect, assert_close, compare, scalar, values, vector};

pub fn gradient_accumulation_and_zeroing(device: &Device) {
    let batches = [(1.0f32, 3.0f32), (2.0, 5.0), (4.0, 4.0)];
    let want = [-0.4, -1.1, -1.9];
    let zero = || scalar(0.0, device);
    let grad = |w: &Var, x: &Tensor| -> Result<Tensor> { Ok((&w.get() * x)?.backward()?.get(w).expect("a gradient")) };
    // Forms: a micro-step called twice, then an update; both in one; accumulated traced, updated eagerly.
    for form in 0..3 {
        // Zeroing: the accumulator set to zero, or to none; or the two in turn.
        for zeroing in 0..3 {
            let w = Var::new(&zero()).expect("a Var");
            let sum = Var::state(&zero()).expect("a Var");
            let mut accumulated: Option<Tensor> = None;
            let (mut micro, mut update, mut whole) = (jit::Step::new(), jit::Step::new(), jit::Step::new());
            let mut old: Vec<(Tensor, f32)> = Vec::new();
            for (k, (a, b)) in batches.into_iter().cycle().take(6).enumerate() {
                let to_none = zeroing == 1 || (zeroing == 2 && k % 2 == 1);
                if k == 3 {
                    w.set(&zero()).expect("a write");
                }
                if form == 1 {
                    let (a, b) = (scalar(a, device), scalar(b, device));
                    whole
                        .run(|| {
                            let g = (&grad(&w, &a)? + &grad(&w, &b)?)?;
                            w.set(&(w.get() - (&g * 0.1))?)
                        })
                        .expect("a call");
                } else {
                    for x in [a, b] {
                        let x = scalar(x, device);
                        micro
                            .run(|| {
                                let g = grad(&w, &x)?;
                                if to_none {
                                    accumulated = Some(match &accumulated {
                                        Some(sum) => (sum + &g)?,
                                        None => g,
                                    });
                                    return Ok(());
                                }
                                sum.set(&(&sum.get() + &g)?)
                            })
                            .expect("a call");
                    }
                    let g = if to_none { accumulated.take().expect("two gradients") } else { sum.get() };
                    assert_eq!(values(&g), [a + b], "form {form}, zeroing {zeroing}, update {k}");
                    old.push((g.clone(), a + b));
                    let apply = || {
                        w.set(&(w.get() - (&g * 0.1))?)?;
                        sum.set(&(sum.get() * 0.0)?)
                    };
                    if form == 0 { update.run(apply) } else { apply() }.expect("an update");
                }
                assert_close("w", &values(&w.get()), &[want[k % 3]], 1e-6);
            }
            for (g, was) in &old {
                assert_eq!(values(g), [*was], "a kept old gradient stays");
            }
        }
    }
    // A parameter without a gradient in odd calls is not moved.
    let log = compare(
        device,
        &Expect::steady(6).launches(&[0, 0, 1, 1, 1, 1]).compiles(2),
        || Ok((Var::new(&scalar(1.0, device))?, Var::new(&scalar(1.0, device))?)),
        |_, _| Ok(()),
        |(a, b), k, _| {
            let mut loss = (a.get() * 2.0)?;
            if k % 2 == 0 {
                loss = (&loss + &(b.get() * 4.0)?)?;
            }
            let g: Gradients = loss.backward()?;
            assert_eq!(g.get(b).is_none(), k % 2 == 1);
            for p in [&*a, &*b] {
                if let Some(g) = g.get(p) {
                    p.set(&(p.get() - (&g * 0.25))?)?;
                }
            }
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    assert_eq!(log.firsts(0), [0.5, 0.0, -0.5, -1.0, -1.5, -2.0]);
    assert_eq!(log.firsts(1), [0.0, 0.0, -1.0, -1.0, -2.0, -2.0]);
}

pub fn clip_global_norm_edges(device: &Device) {
    let pairs: [[f32; 2]; 7] =
        [[6.0, 8.0], [0.3, 0.4], [0.0, 0.0], [60.0, 80.0], [1e20, 1e20], [f32::INFINITY, 1.0], [f32::NAN, 1.0]];
    let log = compare(
        device,
        &Expect::steady(7),
        || Ok(vector(&[0.0; 2], device)),
        |g, k| {
            *g = vector(&pairs[k], device);
            Ok(())
        },
        |g, _, seen| {
            let norm = g.mul(&*g)?.sum(())?.sqrt()?;
            let coef = (2.0 / (&norm + 1e-6)?)?.minimum(1.0)?;
            seen.keep(&(&*g * &coef)?);
            seen.keep(&norm);
            Ok(())
        },
        |_| vec![],
    );
    assert_close("clipped", log.f32(0, 0), &[1.2, 1.6], 1e-6);
    assert_eq!(log.f32(1, 0), pairs[1], "bitwise unchanged");
    assert_eq!(log.f32(2, 0), [0.0, 0.0]);
    assert_close("clipped", log.f32(3, 0), &[1.2, 1.6], 1e-6);
    // Documented by the formula: the squares overflow, the norm is infinite, the gradients are 0.
    assert_eq!((log.f32(4, 1)[0], log.f32(4, 0)), (f32::INFINITY, &[0.0f32, 0.0][..]));
    assert!(!log.f32(5, 1)[0].is_finite() && !log.f32(6, 1)[0].is_finite());
    // The same by the library, which neither overflows on squares nor in 16 bits: the norm is computed in f32.
    for (given, dtype, norm) in [(400.0, DType::F16, 565.685425), (1e20, DType::F32, 1.41421356e20)] {
        let w = Var::new(&Tensor::zeros([2], dtype, device).expect("zeros")).expect("a Var");
        let mut step = jit::Step::new();
        let clip = || {
            let gradients = (w.get() * given)?.sum(())?.backward()?;
            let (clipped, norm) = clip_grad_norm(&gradients, 2.0)?;
            Ok((clipped.get(&w).expect("a gradient").to_dtype(DType::F32)?, norm))
        };
        for k in 0..5 {
            let (g, n) = if k == 0 { clip() } else { step.run(clip) }.expect("a call");
            assert_close("norm", &values(&n), &[norm], 1e-6);
            assert_close("clipped", &values(&g), &[std::f64::consts::SQRT_2; 2], 1e-3);
        }
    }
    // Split over 300 parameters of different sizes.
    let all: Vec<Tensor> = (0..300).map(|i| vector(&vec![0.5; 1 + i % 7], device)).collect();
    let numbers: usize = (0..300).map(|i| 1 + i % 7).sum();
    let mut step = jit::Step::new();
    for _ in 0..5 {
        let clipped = step
            .run(|| {
                let squares = all.iter().map(|g| g.mul(g)?.sum(())).collect::<Result<Vec<_>>>()?;
                let total = squares[1..].iter().try_fold(squares[0].clone(), |s, t| &s + t)?;
                let coef = (2.0 / (total.sqrt()? + 1e-6)?)?.minimum(1.0)?;
                all.iter().map(|g| g * &coef).collect::<Result<Vec<_>>>()
            })
            .expect("a call");
        let want = 0.5 * 2.0 / (0.5 * (numbers as f64).sqrt());
        assert!(clipped.iter().all(|g| values(g).iter().all(|v| (*v as f64 - want).abs() < 1e-6)));
    }
}

scenarios!(gradient_accumulation_and_zeroing, clip_global_norm_edges);
