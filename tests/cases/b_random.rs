//! Section B: random numbers.

use stepgraph::{Device, Result, Rng, Tensor, Var, jit};

use crate::harness::{Expect, compare, values, vector};

fn dropout(x: &Tensor, rng: &Rng) -> Result<Tensor> {
    rng.uniform(x.shape(), x.device())?.ge(0.5)?.select(&x.mul(2.0)?, 0.0)
}

pub fn dropout_mask_repeats(device: &Device) {
    let n = 4096;
    struct Layer {
        x: Var,
        rng: Rng,
    }
    for unused in [false, true] {
        let log = compare(
            device,
            &Expect::steady(6).frozen(),
            || Ok(Layer { x: Var::new(&vector(&vec![1.0; n], device))?, rng: Rng::seed_from(40) }),
            |_, _| Ok(()),
            |layer, _, seen| {
                if unused {
                    // A draw that nobody uses advances the stream all the same.
                    layer.rng.uniform([3], device)?;
                }
                let y = dropout(&layer.x.get(), &layer.rng)?;
                let grad = y.sum(())?.backward()?.get(&layer.x).expect("a gradient");
                seen.keep(&y);
                seen.keep(&grad);
                Ok(())
            },
            |_| vec![],
        );
        for k in 0..6 {
            let y = log.f32(k, 0);
            assert!(y.iter().all(|v| *v == 0.0 || *v == 2.0));
            let kept = y.iter().filter(|v| **v == 2.0).count();
            assert!(kept.abs_diff(2048) <= 256, "{kept}");
            assert_eq!(y, log.f32(k, 1), "one mask in forward and backward");
            for j in 0..k {
                let agree = y.iter().zip(log.f32(j, 0)).filter(|(a, b)| a == b).count();
                assert!(agree.abs_diff(2048) <= 256, "calls {} and {}: {agree}", j + 1, k + 1);
            }
        }
    }
}

pub fn reseed_and_shared_generator(device: &Device) {
    // (a)
    let rng = Rng::seed_from(7);
    let mut step = jit::trace(|| rng.uniform([256], device));
    let mut f = || values(&step.call().expect("a draw"));
    let a = [f(), f(), f()];
    rng.reseed(7);
    let b = [f(), f(), f()];
    rng.reseed(8);
    let c = f();
    assert_eq!(a, b);
    assert!(a[0] != a[1] && a[0] != a[2] && a[1] != a[2] && c != a[0]);
    // (b)
    let interleaved = |traced: bool| {
        let rng = Rng::seed_from(70);
        let (mut f, mut g) = (jit::Step::new(), jit::Step::new());
        let draw = |n: usize| rng.uniform([n], device);
        let mut out = Vec::new();
        for round in 0..4 {
            let (x, y) = if traced {
                (f.run(|| draw(4)).expect("f"), g.run(|| draw(6)? * 2.0).expect("g"))
            } else {
                (draw(4).expect("f"), draw(6).and_then(|t| t * 2.0).expect("g"))
            };
            out.extend([values(&x), values(&y)]);
            if round % 2 == 0 {
                out.push(values(&draw(5).expect("an eager draw")));
            }
        }
        out
    };
    assert_eq!(interleaved(true), interleaved(false));
}

scenarios!(dropout_mask_repeats, reseed_and_shared_generator);
