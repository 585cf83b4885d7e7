//! Clipping by norm and by value: edges, many parameters, inside a step.

use stepgraph::optim::{clip_grad_norm, clip_grad_value};
use stepgraph::{Device, Gradients, Result, Tensor, Var, jit};

use crate::harness::{Expect, Log, assert_close, compare, own_device, values, vector};

/// The first element of a value read or kept per call, and the clipped pairs.
fn clipped(pairs: &[[f32; 2]], limit: f64, device: &Device) -> Log {
    compare(
        device,
        &Expect::steady(pairs.len()),
        || {
            let w = Var::new(&vector(&[1.0, 1.0], device))?;
            Ok((w, vector(&[0.0; 2], device)))
        },
        |(_, g), k| {
            *g = vector(&pairs[k], device);
            Ok(())
        },
        |(w, g), _, seen| {
            let gradients = w.get().mul(&*g)?.sum(())?.backward()?;
            let (clipped, norm) = clip_grad_norm(&gradients, limit)?;
            seen.keep(&clipped.get(w).expect("a gradient"));
            seen.keep(&norm);
            Ok(())
        },
        |_| vec![],
    )
}

/// Case 64 of the catalogue.
#[test]
fn edges() {
    let device = &own_device();
    let pairs: [[f32; 2]; 10] = [
        [6.0, 8.0],
        [0.3, 0.4],
        [0.0, 0.0],
        [60.0, 80.0],
        [1e20, 1e20],
        [f32::INFINITY, 1.0],
        [f32::NAN, 1.0],
        [3e38, 3e38],
        [1e-30, 1e-30],
        [-2e19, 0.0],
    ];
    let log = clipped(&pairs, 2.0, device);
    assert_close("clipped", log.f32(0, 0), &[1.2, 1.6], 1e-6);
    assert_eq!(log.f32(0, 1), [10.0]);
    assert_eq!(log.f32(1, 0), pairs[1], "bitwise unchanged");
    assert_eq!((log.f32(2, 0), log.f32(2, 1)), (&[0.0f32, 0.0][..], &[0.0f32][..]), "no NaN");
    assert_close("clipped", log.f32(3, 0), &[1.2, 1.6], 1e-6);
    // Squares overflow, the norm does not.
    assert_close("clipped", log.f32(4, 0), &[2f64.sqrt(); 2], 1e-6);
    assert!((log.f32(4, 1)[0] as f64 / 2e40f64.sqrt() - 1.0).abs() < 1e-6);
    assert_eq!(log.f32(5, 1), [f32::INFINITY]);
    assert!(log.f32(5, 0)[0].is_nan() && log.f32(5, 0)[1] == 0.0, "inf / inf, 1 / inf, as in PyTorch");
    assert!(log.f32(6, 1)[0].is_nan() && log.f32(6, 0).iter().all(|g| g.is_nan()));
    // A norm beyond the largest number.
    assert_eq!((log.f32(7, 1), log.f32(7, 0)), (&[f32::INFINITY][..], &[0.0f32, 0.0][..]));
    assert_eq!(log.f32(8, 0), pairs[8], "tiny ones are not touched");
    assert_close("clipped", log.f32(9, 0), &[-2.0, 0.0], 1e-6);
}

/// 300 parameters of different sizes have one norm; in a step it stays one launch.
#[test]
fn over_many_parameters() {
    let device = &own_device();
    let all: Vec<Var> = (0..300).map(|i| Var::new(&vector(&vec![0.5; i % 7], device)).expect("a Var")).collect();
    let numbers: usize = (0..300).map(|i| i % 7).sum();
    let mut step = jit::Step::new();
    for k in 0..5 {
        let before = device.counts();
        let (got, norm) = step
            .run(|| {
                let parts = all.iter().map(|v| v.get().mul(v.get())?.sum(())).collect::<Result<Vec<_>>>()?;
                let loss = parts[1..].iter().try_fold(parts[0].clone(), |a, b| a + b)?;
                let (clipped, norm) = clip_grad_norm(&loss.backward()?, 2.0)?;
                let got: Vec<Tensor> = all.iter().filter_map(|v| clipped.get(v)).collect();
                Ok((got, norm))
            })
            .expect("a call");
        if k > 0 {
            assert_eq!((device.counts() - before).launches, 1);
        }
        assert_eq!(got.len(), 300);
        let want = (numbers as f64).sqrt();
        assert_close("the norm", &values(&norm), &[want], 1e-6);
        for g in &got {
            assert_close("a gradient", &values(g), &vec![2.0 / want; g.numel()], 1e-6);
        }
    }
}

/// The norm limit is a host number: it takes effect at each call, with nothing recorded anew.
#[test]
fn a_limit_that_changes() {
    let device = &own_device();
    let w = Var::new(&vector(&[3.0, 4.0], device)).expect("a Var");
    let mut step = jit::Step::new();
    for k in 1..=6 {
        let limit = k as f64;
        let g = step
            .run(|| {
                let gradients = w.get().mul(w.get())?.sum(())?.mul(0.5)?.backward()?;
                Ok(clip_grad_norm(&gradients, limit)?.0.get(&w).expect("a gradient"))
            })
            .expect("a call");
        let scale = f64::min(limit / 5.0, 1.0);
        assert_close("clipped", &values(&g), &[3.0 * scale, 4.0 * scale], 1e-6);
    }
    assert_eq!(step.report().recorded, 1);
}

#[test]
fn by_value() {
    let device = &own_device();
    let slopes = [0.5, -0.5, 3.0, -3.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
    let w = Var::new(&vector(&[1.0; 8], device)).expect("a Var");
    let mut step = jit::Step::new();
    let slope = vector(&slopes, device);
    for _ in 0..4 {
        let g = step
            .run(|| {
                let gradients: Gradients = w.get().mul(&slope)?.sum(())?.backward()?;
                Ok(clip_grad_value(&gradients, 1.0)?.get(&w).expect("a gradient"))
            })
            .expect("a call");
        let got = values(&g);
        assert_eq!(got[..4], [0.5, -0.5, 1.0, -1.0]);
        assert!(got[4].is_nan());
        assert_eq!(got[5..], [1.0, -1.0, 0.0]);
    }
}

/// Gradients replaced in a step and kept beyond it are values like any others.
#[test]
fn kept_beyond_the_step() {
    let device = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let (mut step, mut kept) = (jit::Step::new(), Vec::new());
    for k in 0..5 {
        let factor = k as f64;
        let g = step.run(|| w.get().mul(w.get())?.sum(())?.backward()?.map(|g| g * factor)).expect("a call");
        kept.push(g);
    }
    for (k, g) in kept.iter().enumerate() {
        let want = [2.0 * k as f32, 4.0 * k as f32];
        assert_eq!(values(&g.get(&w).expect("a gradient")), want);
        assert_eq!(values(&g.tensors().expect("gradients")[0]), want);
    }
}
