//! Mixed precision: products in 16 bits, master copies, loss scaling.

use stepgraph::base::dtype::{bf16, f16};
use stepgraph::nn::{Linear, Module};
use stepgraph::optim::*;
use stepgraph::{DType, Device, Error, ErrorKind, Gradients, Result, Rng, Tensor, Var, autocast, jit};

use crate::harness::{Expect, assert_close, compare, filled, own_device, scalar, values, vector};

/// Under `autocast` a product is that of its operands rounded to 16 bits, its result rounded once; dtypes and everything
/// else stay.
#[test]
fn autocast_rounds_products() {
    let device = &own_device();
    let (a, b) = (filled(&[5, 7], 1, device), filled(&[7, 3], 2, device));
    for dtype in [DType::BF16, DType::F16] {
        let round = |v: f32| match dtype {
            DType::F16 => f16::from_f32(v).to_f64(),
            _ => bf16::from_f32(v).to_f64(),
        };
        let (x, y) = (values(&a), values(&b));
        let (got, sum) = autocast(dtype, || Ok((a.matmul(&b)?, a.add(1.0)?))).expect("a product");
        assert_eq!((got.dtype(), values(&sum)), (DType::F32, values(&a.add(1.0).expect("a sum"))));
        for (i, g) in values(&got).iter().enumerate() {
            let (row, column) = (i / 3, i % 3);
            // Products of 16-bit numbers are exact in f64; a sum of 7 in f32 is off by less than its rounding to 16 bits.
            let exact: f64 = (0..7).map(|k| round(x[row * 7 + k]) * round(y[k * 3 + column])).sum();
            let place = exact.abs() * if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
            assert!((*g as f64 - exact).abs() <= place * 1.01 + 1e-7, "{dtype}: {g} instead of {exact}");
            assert_eq!(round(*g), *g as f64, "is rounded to {dtype}");
        }
        // By hand, bit for bit.
        let hand =
            a.to_dtype(dtype).and_then(|a| a.matmul(&b.to_dtype(dtype)?)?.to_dtype(DType::F32)).expect("a product");
        assert_eq!(values(&got), values(&hand));
    }
}

#[test]
fn autocast_ends() {
    let device = &own_device();
    let (a, b) = (filled(&[4, 4], 1, device), filled(&[4, 4], 2, device));
    let plain = values(&a.matmul(&b).expect("a product"));
    let product = || a.matmul(&b).map(|t| values(&t));
    assert_ne!(autocast(DType::BF16, product).expect("a product"), plain);
    assert_eq!(product().expect("a product"), plain);
    // Turned off within, and back on after it; after an error and a panic it is off.
    let (inner, outer) = autocast(DType::BF16, || Ok((autocast(DType::F32, product)?, product()?))).expect("products");
    assert!(inner == plain && outer != plain);
    let failed: Result<()> =
        autocast(DType::F16, || Err(Error::new(ErrorKind::Backward { detail: "on purpose".into() })));
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(|| {
        let _: Result<()> = autocast(DType::F16, || panic!("on purpose"));
    });
    assert!(panicked.is_err());
    assert_eq!(product().expect("a product"), plain);
    // f64 and integers are not touched; other dtypes are refused.
    let wide = a.to_dtype(DType::F64).expect("a cast");
    let of = |t: &Tensor| t.matmul(t).and_then(|t| t.to_vec::<f64>()).expect("a product");
    assert_eq!(autocast(DType::BF16, || Ok(of(&wide))).expect("a product"), of(&wide));
    for dtype in [DType::F64, DType::I64, DType::Bool] {
        let text = autocast(dtype, || Ok(())).expect_err("no").to_string();
        assert!(text.contains("autocast") && text.contains("mixed.rs:"), "{text}");
    }
    // The flag is host state: another path, and back.
    let mut step = jit::Step::new();
    for k in 0..8 {
        let dtype = if k % 2 == 0 { DType::F32 } else { DType::BF16 };
        let y = step.run(|| autocast(dtype, || a.matmul(&b))).expect("a call");
        assert_eq!(values(&y) == plain, k % 2 == 0, "call {k}");
    }
    assert_eq!(step.report().recorded, 2);
}

/// A model trains in bf16 products with f32 parameters and gradients: eager, traced and frozen give the same bits, and
/// the loss comes close to that of f32.
#[test]
fn training_in_bf16() {
    let device = &own_device();
    let run = |dtype: DType| {
        compare(
            device,
            &Expect::steady(40).frozen(),
            || {
                let rng = Rng::seed_from(3);
                let layers = [Linear::new(6, 24, &rng, device)?, Linear::new(24, 2, &rng, device)?];
                let adam = Adam::new(layers.parameters(), AdamConfig { lr: 0.02, ..Default::default() })?;
                Ok((layers, adam, filled(&[16, 6], 5, device), filled(&[16, 2], 6, device)))
            },
            |_, _| Ok(()),
            |(layers, adam, x, y), _, seen| {
                let loss = autocast(dtype, || layers[1].forward(&layers[0].forward(x)?.tanh()?)?.mse(y))?;
                let gradients = loss.backward()?;
                assert!(gradients.tensors()?.iter().all(|g| g.dtype() == DType::F32));
                adam.step(&gradients)?;
                seen.keep(&loss);
                Ok(())
            },
            |(layers, adam, ..)| layers.parameters().into_iter().chain(adam.state()).collect(),
        )
    };
    let (half, full) = (run(DType::BF16), run(DType::F32));
    let (first, last, exact) = (half.firsts(0)[0], half.firsts(0)[39], full.firsts(0)[39]);
    assert!(
        last < 0.7 * first && last != exact && (last - exact).abs() < 0.01 * first,
        "{first} to {last}, in f32 to {exact}"
    );
}

/// Updates too small for bf16 add up in the copies; the parameter is the copy rounded. Against the closed form.
#[test]
fn master_copies() {
    let device = &own_device();
    let log = compare(
        device,
        &Expect::steady(30).frozen(),
        || {
            let half = Var::new(&vector(&[1.0, -2.0], device).to_dtype(DType::BF16)?)?;
            let full = Var::new(&vector(&[1.0], device))?;
            let config = SgdConfig { lr: 2f64.powi(-10), ..Default::default() };
            let sgd = Master::new(vec![half.clone(), full.clone()], |copies| Sgd::new(copies, config))?;
            Ok((half, full, sgd))
        },
        |_, _| Ok(()),
        |(half, full, sgd), _, _| {
            let loss = half.get().sum(())?.to_dtype(DType::F32)?.add(full.get().sum(())?)?;
            sgd.step(&loss.backward()?)
        },
        |(half, full, sgd)| vec![sgd.copies()[0].clone(), sgd.copies()[1].clone(), full.clone(), half.clone()],
    );
    for k in 0..30 {
        let by = (k + 1) as f64 * 2f64.powi(-10);
        assert_close("copies", log.f32(k, 0), &[1.0 - by, -2.0 - by], 0.0);
        assert_close("an f32 parameter", log.f32(k, 1), &[1.0 - by], 0.0);
        assert_eq!(log.f32(k, 1), log.f32(k, 2), "is its own copy");
        let bytes = log.calls[k][3].data.to_bytes();
        let want = [1.0 - by, -2.0 - by].map(|v| bf16::from_f64(v).to_ne_bytes()).concat();
        assert_eq!(bytes, want, "rounded, step {k}");
    }
    let names = || -> Result<Vec<String>> {
        let half = Var::new(&vector(&[1.0], device).to_dtype(DType::F16)?)?;
        let full = Var::new(&vector(&[1.0], device))?;
        let config = SgdConfig { momentum: 0.5, ..Default::default() };
        let sgd = Master::new(vec![full, half], |copies| Sgd::new(copies, config))?;
        Ok(sgd.named_state().into_iter().map(|(name, _)| name).collect())
    };
    assert_eq!(names().expect("names"), ["master.1", "velocity.0", "velocity.1"]);
}

/// Plain 16-bit and 64-bit parameters: state and arithmetic of at least f32, one rounding.
#[test]
fn parameters_of_other_widths() {
    let device = &own_device();
    let config = AdamConfig { lr: 0.1, ..Default::default() };
    let run = |dtype: DType| -> Result<Vec<Tensor>> {
        let w = Var::new(&vector(&[1.0, -2.0, 3.0], device).to_dtype(dtype)?)?;
        let mut adam = Adam::new(vec![w.clone()], config)?;
        let mut step = jit::Step::new();
        for _ in 0..20 {
            step.run(|| adam.step(&w.get().mul(w.get())?.sum(())?.backward()?))?;
        }
        let state = adam.state();
        let working = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        assert!(state.iter().filter(|v| v.dtype().is_float()).all(|v| v.dtype() == working));
        Ok(vec![w.get(), state[3].get()])
    };
    // In f64 against the formula.
    let [mut p, mut m, mut v] = [[1.0f64, -2.0, 3.0], [0.0; 3], [0.0; 3]];
    for t in 1..=20 {
        for i in 0..3 {
            let g = 2.0 * p[i];
            m[i] = 0.9 * m[i] + (1.0 - 0.9) * g;
            v[i] = 0.999 * v[i] + (1.0 - 0.999) * g * g;
            let (m, v) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.999f64.powi(t)));
            p[i] -= 0.1 * m / (v.sqrt() + 1e-8);
        }
    }
    let wide = run(DType::F64).expect("training")[0].to_vec::<f64>().expect("values");
    assert!(wide.iter().zip(p).all(|(a, b)| (a - b).abs() < 1e-13), "{wide:?} instead of {p:?}");
    for dtype in [DType::BF16, DType::F16] {
        let half = run(dtype).expect("training")[0].to_dtype(DType::F32).expect("a cast");
        // Every step rounds to 8 or 11 bits: 20 half places of numbers up to 4.
        let off = 20.0 * if dtype == DType::BF16 { 2f64.powi(-7) } else { 2f64.powi(-10) };
        assert!(values(&half).iter().zip(p).all(|(a, b)| (*a as f64 - b).abs() < off), "{half} instead of {p:?}");
    }
}

/// Case 64's f16 gradients: the norm is taken in f32.
#[test]
fn clipping_f16_gradients() {
    let device = &own_device();
    let w = Var::new(&vector(&[1.0, 1.0], device).to_dtype(DType::F16).expect("a cast")).expect("a Var");
    let g = vector(&[400.0, 400.0], device).to_dtype(DType::F16).expect("a cast");
    let gradients = Gradients::from_pairs([(w.clone(), g)]).expect("gradients");
    let (clipped, norm) = clip_grad_norm(&gradients, 2.0).expect("a norm");
    assert_close("the norm", &values(&norm), &[565.685424949], 1e-6);
    let g = clipped.get(&w).expect("a gradient");
    assert_eq!(g.dtype(), DType::F16);
    assert_close("clipped", &values(&g.to_dtype(DType::F32).expect("a cast")), &[2f64.sqrt(); 2], 5e-4);
}

/// A gradient that f16 cannot hold comes through with the scale.
#[test]
fn scaling_keeps_small_gradients() {
    let device = &own_device();
    let w = Var::new(&scalar(1.0, device).to_dtype(DType::F16).expect("a cast")).expect("a Var");
    let tiny = 2f64.powi(-13);
    let loss = || w.get().mul(tiny)?.mul(tiny);
    let gradient = |g: &Gradients| g.get(&w).and_then(|g| g.to_dtype(DType::F32).ok()).map(|g| values(&g));
    let plain = loss().and_then(|l| l.backward()).expect("gradients");
    assert_eq!(gradient(&plain), Some(vec![0.0]));
    // 65536 itself is beyond f16: scale with less.
    let config = GradScalerConfig { init_scale: 16384.0, ..Default::default() };
    let scaler = GradScaler::new(config, device).expect("a scaler");
    let unscaled = loss().and_then(|l| scaler.unscale(&scaler.scale(&l)?.backward()?)).expect("gradients");
    assert_eq!(gradient(&unscaled.gradients), Some(vec![2f32.powi(-26)]));
    assert!(!unscaled.overflow.item::<bool>().expect("a value"));
}

/// An overflow leaves parameters and optimizer state as they were, and moves the scale; decided on the device, so that
/// traced and frozen steps stay one launch. Against the rule by hand.
#[test]
fn overflows_are_skipped() {
    let device = &own_device();
    let overflowing = [4, 5, 13];
    let log = compare(
        device,
        &Expect::steady(20).frozen(),
        || {
            let w = Var::new(&vector(&[8.0, 4.0], device))?;
            let x = Var::state(&vector(&[0.5, 0.25], device))?;
            let config = SgdConfig { lr: 0.125, momentum: 0.5, ..Default::default() };
            let scaling = GradScalerConfig { init_scale: 1024.0, growth_interval: 3, ..Default::default() };
            Ok((Sgd::new(vec![w.clone()], config)?, GradScaler::new(scaling, device)?, w, x))
        },
        |(_, _, _, x), k| {
            // 60000 times a scale of at least 512 is infinite in f16.
            let x0 = if overflowing.contains(&k) { 60000.0 } else { 0.5 };
            x.set(&vector(&[x0, 0.25], device))
        },
        |(sgd, scaler, w, x), _, seen| {
            let product = w.get().to_dtype(DType::F16)?.mul(x.get().to_dtype(DType::F16)?)?;
            let loss = product.to_dtype(DType::F32)?.sum(())?;
            let unscaled = scaler.unscale(&scaler.scale(&loss)?.backward()?)?;
            seen.keep(&unscaled.overflow);
            scaler.step(sgd, &unscaled)?;
            scaler.update(&unscaled)
        },
        |(sgd, scaler, w, _)| {
            let scaler = scaler.named_state().into_iter().map(|(_, v)| v);
            [w.clone()].into_iter().chain(sgd.state()).chain(scaler).collect()
        },
    );
    let (mut w, mut v, mut scale, mut since) = ([8.0f64, 4.0], [0.0f64; 2], 1024.0f64, 0i64);
    for k in 0..20 {
        let overflow = overflowing.contains(&k);
        if overflow {
            (scale, since) = (scale * 0.5, 0);
        } else {
            v = [0, 1].map(|i| 0.5 * v[i] + [0.5, 0.25][i]);
            w = [0, 1].map(|i| w[i] - 0.125 * v[i]);
            since += 1;
            if since == 3 {
                (scale, since) = (scale * 2.0, 0);
            }
        }
        assert_eq!(log.calls[k][0].data.to_bytes(), [overflow as u8], "step {k}");
        assert_close(&format!("w after step {k}"), log.f32(k, 1), &w, 1e-6);
        assert_close("velocity", log.f32(k, 2), &v, 1e-6);
        assert_eq!(log.f32(k, 3), [scale as f32], "the scale after step {k}");
        assert_eq!(log.calls[k][4].data.to_bytes(), since.to_ne_bytes(), "the count after step {k}");
    }
}

/// The scale does not grow beyond what f32 holds; a NaN counts as an overflow; Adam's counts do not move.
#[test]
fn edges_of_scaling() {
    let device = &own_device();
    let w = Var::new(&scalar(1.0, device)).expect("a Var");
    let config = GradScalerConfig { init_scale: 2f64.powi(127), growth_interval: 1, ..Default::default() };
    let scaler = GradScaler::new(config, device).expect("a scaler");
    let gradients = |v: f32| Gradients::from_pairs([(w.clone(), scalar(v, device))]).expect("gradients");
    let unscaled = scaler.unscale(&gradients(1.0)).expect("gradients");
    scaler.update(&unscaled).expect("an update");
    assert_eq!(values(&scaler.current().get()), [2f32.powi(127)]);
    let mut adam = Adam::new(vec![w.clone()], AdamConfig::default()).expect("an optimizer");
    let before: Vec<_> = adam.state().iter().map(|v| v.get().to_host().expect("a value")).collect();
    for v in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let unscaled = scaler.unscale(&gradients(v)).expect("gradients");
        assert!(unscaled.overflow.item::<bool>().expect("a value"));
        scaler.step(&mut adam, &unscaled).expect("a step");
    }
    let after: Vec<_> = adam.state().iter().map(|v| v.get().to_host().expect("a value")).collect();
    assert_eq!((values(&w.get()), after), (vec![1.0], before));
    let scaler = GradScaler::new(GradScalerConfig::default(), device).expect("a scaler");
    scaler.step(&mut adam, &scaler.unscale(&gradients(1.0)).expect("gradients")).expect("a step");
    assert!(values(&w.get())[0] < 1.0);
    for wrong in [
        GradScalerConfig { init_scale: f64::INFINITY, ..Default::default() },
        GradScalerConfig { growth_factor: 0.0, ..Default::default() },
        GradScalerConfig { backoff_factor: 2.0, ..Default::default() },
        GradScalerConfig { growth_interval: 0, ..Default::default() },
    ] {
        assert!(GradScaler::new(wrong, device).expect_err("a wrong number").to_string().contains("mixed.rs:"));
    }
}

/// What is saved of a scaler and of copies is enough to go on.
#[test]
fn names_of_state() {
    let device: &Device = &own_device();
    let scaler = GradScaler::new(GradScalerConfig::default(), device).expect("a scaler");
    let names: Vec<String> = scaler.named_state().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["scale", "since"]);
}
