//! Random draws: new at each call, the same eagerly, traced and frozen.

use stepgraph::{Device, Result, Rng, Tensor, Var, jit};

use crate::harness::{Expect, compare, values, vector};

fn dropout(x: &Tensor, rng: &Rng) -> Result<Tensor> {
    let mask = rng.uniform(x.shape(), x.device())?.ge(0.5)?;
    mask.select(&x.mul(2.0)?, 0.0)
}

/// Every call draws another mask; forward and backward of one call share it.
pub fn masks_differ(device: &Device) {
    let n = 4096;
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok((Var::new(&vector(&vec![1.0; n], device))?, Rng::seed_from(11))),
        |_, _| Ok(()),
        |(x, rng), _, seen| {
            let y = dropout(&x.get(), rng)?;
            let g = y.sum(())?.backward()?.get(x).expect("a gradient");
            seen.keep(&y);
            seen.keep(&g);
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        let y = log.f32(k, 0);
        assert!(y.iter().all(|&v| v == 0.0 || v == 2.0));
        let kept = y.iter().filter(|v| **v == 2.0).count();
        assert!(kept.abs_diff(n / 2) <= 256, "call {} kept {kept}", k + 1);
        assert_eq!(y, log.f32(k, 1), "the gradient uses the mask of the forward pass");
        for j in 0..k {
            let agree = y.iter().zip(log.f32(j, 0)).filter(|(a, b)| a == b).count();
            assert!(agree.abs_diff(n / 2) <= 256, "calls {} and {} agree at {agree}", j + 1, k + 1);
        }
    }
}

/// Two draws of one shape in one step are two draws.
pub fn two_draws_are_two(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || Ok(Rng::seed_from(5)),
        |_, _| Ok(()),
        |rng, _, seen| {
            let (a, b) = (rng.uniform([64], device)?, rng.uniform([64], device)?);
            seen.keep(&a);
            seen.keep(&b);
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        assert_ne!(log.f32(k, 0), log.f32(k, 1));
    }
    assert_ne!(log.f32(1, 0), log.f32(2, 0));
}

/// Two steps and eager code draw from one stream in turn: as if all were eager.
pub fn two_steps_share_a_stream(device: &Device) {
    let eager = {
        let rng = Rng::seed_from(9);
        (0..30).map(|_| values(&rng.uniform([5], device).expect("a draw"))).collect::<Vec<_>>()
    };
    let rng = Rng::seed_from(9);
    let (mut f, mut g) = (jit::Step::new(), jit::Step::new());
    let mut drawn = Vec::new();
    for k in 0..6 {
        let a = f.run(|| rng.uniform([5], device)).expect("a draw");
        let (b, c) = g
            .run(|| {
                let b = rng.uniform([5], device)?;
                Ok((b, rng.uniform([5], device)?))
            })
            .expect("draws");
        drawn.extend([values(&a), values(&b), values(&c)]);
        if k % 2 == 1 {
            drawn.push(values(&rng.uniform([5], device).expect("a draw")));
        }
    }
    assert_eq!(drawn, eager[..drawn.len()]);
    assert_eq!(rng.counter(), drawn.len() as u64);
    assert_eq!((f.report().recorded, g.report().recorded), (1, 1));
}

/// Another seed takes effect at once, and the same seed gives the same draws.
pub fn reseed(device: &Device) {
    let rng = Rng::seed_from(7);
    let mut step = jit::Step::new();
    let mut call = || values(&step.run(|| rng.uniform([256], device)).expect("a draw"));
    let a = [call(), call(), call()];
    rng.reseed(7);
    let b = [call(), call(), call()];
    rng.reseed(8);
    let c = call();
    rng.reseed(7);
    let d = call();
    assert_eq!(a, b);
    assert!(a[0] != a[1] && a[1] != a[2] && a[0] != a[2]);
    assert_ne!(c, a[0]);
    assert_eq!(d, a[0]);
}

/// A frozen step goes on drawing where the stream stands, also after eager draws in between.
pub fn frozen_draws_advance_the_stream(device: &Device) {
    let eager = {
        let rng = Rng::seed_from(3);
        (0..12).map(|_| values(&rng.uniform([8], device).expect("a draw"))).collect::<Vec<_>>()
    };
    let rng = Rng::seed_from(3);
    let mut step = jit::Step::new();
    for want in &eager[..3] {
        assert_eq!(&values(&step.run(|| rng.uniform([8], device)).expect("a draw")), want);
    }
    let mut frozen = step.freeze().expect("a frozen step");
    for want in &eager[3..6] {
        assert_eq!(&values(&frozen.replay().expect("a replay")[0]), want);
    }
    assert_eq!(&values(&rng.uniform([8], device).expect("a draw")), &eager[6]);
    assert_eq!(&values(&frozen.replay().expect("a replay")[0]), &eager[7]);
    assert_eq!(&values(&step.run(|| rng.uniform([8], device)).expect("a draw")), &eager[8]);
    assert_eq!(rng.counter(), 9);
}

/// Draws that depend on a host flag: the stream stands where it would eagerly.
pub fn draws_under_a_flag(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((vector(&[1.0; 32], device), Rng::seed_from(21))),
        |_, _| Ok(()),
        |(x, rng), k, seen| {
            let y = if k % 3 != 1 { dropout(x, rng)? } else { (&*x * 1.0)? };
            seen.keep(&y);
            seen.keep(&rng.uniform([2], device)?);
            Ok(())
        },
        |_| vec![],
    );
}

scenarios!(
    masks_differ,
    two_draws_are_two,
    two_steps_share_a_stream,
    reseed,
    frozen_draws_advance_the_stream,
    draws_under_a_flag,
);
