//! Section F: scale, limits, caches.

use stepgraph::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use stepgraph::{Device, Result, Tensor, Var, jit};

use crate::harness::{assert_bits_eq, filled, scalar, values, vector};

/// Runs on a thread with half a MiB of stack.
fn on_a_small_stack(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(512 << 10);
        small.spawn_scoped(scope, f).expect("a thread").join().expect("no overflow");
    });
}

pub fn very_deep_chain(device: &Device) {
    // (a) forward, backward, drop
    let ops = 20_000;
    on_a_small_stack(|| {
        let start = Var::new(&scalar(0.0, device)).expect("a Var");
        let chain = || -> Result<(Tensor, Tensor)> {
            let mut y = start.get();
            for _ in 0..ops / 2 {
                y = ((&y * 0.999)? + 0.001)?;
            }
            let g = y.backward()?.get(&start).expect("a gradient");
            Ok((y, g))
        };
        let (y, g) = chain().expect("eager");
        // In double precision: 1 - 0.999^n, and 0.999^n.
        let power = 0.999f64.powi(ops / 2);
        assert!((values(&y)[0] as f64 - (1.0 - power)).abs() < 1e-4, "{}", values(&y)[0]);
        assert!((values(&g)[0] as f64 / power - 1.0).abs() < 1e-2, "{}", values(&g)[0]);
        let mut step = jit::Step::new();
        for _ in 0..3 {
            let traced = step.run(chain).expect("a call");
            assert_bits_eq("y", &traced.0.to_host().expect("y"), &y.to_host().expect("y"));
            assert_bits_eq("the gradient", &traced.1.to_host().expect("g"), &g.to_host().expect("g"));
        }
        drop((y, g, step));
    });
    // (b) shared values are not expanded
    let one = scalar(1.0, device);
    let doubled = || -> Result<Tensor> { (0..60).try_fold(one.clone(), |y, _| &y + &y) };
    let mut step = jit::Step::new();
    for _ in 0..5 {
        assert_eq!(values(&step.run(doubled).expect("a call")), [(1u64 << 60) as f32]);
    }
    assert!(step.report().kernels <= 4, "{}", step.report());
    // (c) 400 live values, combined pairwise
    let x = filled(&[33], 1, device);
    let wide = || -> Result<Tensor> {
        let parts = (0..400).map(|i| &x * (1.0 + i as f64)).collect::<Result<Vec<_>>>()?;
        (0..400).try_fold(x.clone(), |sum, i| &sum + &(&parts[i] * &parts[(i * 7 + 3) % 400])?)
    };
    let want = wide().and_then(|y| y.to_host()).expect("eager");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        assert_bits_eq("400 live values", &step.run(wide).and_then(|y| y.to_host()).expect("a call"), &want);
    }
}

pub fn kernel_parameter_limit(device: &Device) {
    // (a) 600 operands in one expression, (d) joined
    let all: Vec<Tensor> = (1..=600).map(|i| vector(&[i as f32; 7], device)).collect();
    let mut step = jit::Step::new();
    for _ in 0..5 {
        let (sum, joined) = step
            .run(|| {
                let sum = all[1..].iter().try_fold(all[0].clone(), |s, t| &s + t)?;
                let refs: Vec<&Tensor> = all.iter().collect();
                Ok((sum, Tensor::concat(&refs, 0)?))
            })
            .expect("a call");
        assert_eq!(values(&sum), [180300.0; 7]);
        let v = values(&joined);
        assert!(v.len() == 4200 && v.iter().enumerate().all(|(i, x)| *x == (i / 7 + 1) as f32));
    }
    // (b) 600 results of one region
    let x = vector(&[1.0, 2.0, 3.0], device);
    let mut step = jit::Step::new();
    for _ in 0..4 {
        let out = step.run(|| (0..600).map(|i| &x * i as f64).collect::<Result<Vec<_>>>()).expect("a call");
        assert!(out.iter().enumerate().all(|(i, t)| values(t) == [i as f32, 2.0 * i as f32, 3.0 * i as f32]));
    }
    // (c) 600 parameters of different sizes, some frozen
    let n = 600;
    let dims = |i: usize| if i.is_multiple_of(41) { vec![] } else { vec![i % 41] };
    let all: Vec<Var> =
        (0..n).map(|i| Var::new(&Tensor::full(dims(i), i as f32, device).expect("a value")).expect("a Var")).collect();
    let trained = |i: usize| !i.is_multiple_of(10);
    let chosen: Vec<Var> = (0..n).filter(|&i| trained(i)).map(|i| all[i].clone()).collect();
    let mut sgd = Sgd::new(chosen.clone(), SgdConfig { lr: 0.5, ..SgdConfig::default() }).expect("an optimizer");
    let mut step = jit::Step::new();
    for k in 1..=4 {
        step.run(|| {
            let mut loss = all[0].get().sum(())?;
            for v in &all[1..] {
                loss = (&loss + &v.get().sum(())?)?;
            }
            sgd.step(&loss.backward()?)
        })
        .expect("a call");
        let moved = |i: usize| i as f32 - if trained(i) { 0.5 * k as f32 } else { 0.0 };
        let wrong = (0..n).filter(|&i| values(&all[i].get()).iter().any(|v| *v != moved(i))).count();
        assert_eq!(wrong, 0, "call {k}");
    }
    let mut adam = Adam::new(chosen, AdamConfig::default()).expect("an optimizer");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        step.run(|| {
            let sums = all.iter().map(|v| v.get().sum(())).collect::<Result<Vec<_>>>()?;
            let loss = sums[1..].iter().try_fold(sums[0].clone(), |s, t| &s + t)?;
            adam.step(&loss.backward()?)
        })
        .expect("a call");
    }
    // Adam's first steps with a gradient of 1 are of length lr.
    let still = (0..n).filter(|&i| {
        trained(i) && (values(&all[i].get()).first().copied().unwrap_or(0.0) - (i as f32 - 2.0)).abs() < 1e-4
    });
    assert_eq!(still.count(), 0, "every parameter moved");
}

scenarios!(very_deep_chain, kernel_parameter_limit);
