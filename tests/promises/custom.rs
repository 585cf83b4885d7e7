//! Users' own operations: the same numbers eagerly, traced and frozen, one node, never stale, safe when they fail.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use stepgraph::autograd::{self, GradOptions};
use stepgraph::jit::{self, CustomOp};
use stepgraph::{DType, Device, ErrorKind, Result, Scalar, Shape, Tensor, Var};

use crate::harness::{Expect, Outcome, assert_close, compare, filled, values, vector};

/// `s · x³`, f64, with its gradient in tensor code.
fn cube() -> CustomOp {
    static OP: OnceLock<CustomOp> = OnceLock::new();
    *OP.get_or_init(|| {
        jit::custom_op("cube")
            .inputs([DType::F64])
            .scalars([DType::F64])
            .cpu(|k| {
                let (x, s) = (k.inputs[0].as_slice::<f64>()?, k.scalars[0].as_f64());
                k.output.as_mut_slice::<f64>()?.iter_mut().zip(x).for_each(|(y, x)| *y = s * x * x * x);
                Ok(())
            })
            .cuda(
                "__device__ void compute(long long i, double* out, const double* x, double s) {
                    out[i] = s * x[i] * x[i] * x[i];
                }",
            )
            .gradient(|g| {
                let square = g.inputs[0].mul(&g.inputs[0])?;
                Ok(vec![Some(square.mul(&(&g.scalars[0] * 3.0)?)?.mul(g.upstream)?)])
            })
            .build()
            .expect("an op")
    })
}

/// Squared distances of the rows of `[n, d]` and `[m, d]`: `[n, m]`.
fn distances() -> CustomOp {
    static OP: OnceLock<CustomOp> = OnceLock::new();
    *OP.get_or_init(|| {
        jit::custom_op("distances")
            .inputs([DType::F32, DType::F32])
            .shape(|s| match (s[0].dims(), s[1].dims()) {
                (&[n, d], &[m, e]) if d == e => Shape::new(&[n, m]),
                _ => Err(ErrorKind::Shape {
                    op: "distances",
                    expected: "[n,d] and [m,d]".into(),
                    given: format!("{} and {}", s[0], s[1]),
                }
                .into()),
            })
            .cpu(|k| {
                let (a, b) = (k.inputs[0].as_slice::<f32>()?, k.inputs[1].as_slice::<f32>()?);
                let (d, m) = (k.inputs[0].shape[1], k.inputs[1].shape[0]);
                for (i, y) in k.output.as_mut_slice::<f32>()?.iter_mut().enumerate() {
                    let (a, b) = (&a[i / m * d..][..d], &b[i % m * d..][..d]);
                    *y = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
                }
                Ok(())
            })
            .cuda(
                "__device__ void compute(long long i, float* out, const float* a, const float* b) {
                    const float* row = a + i / IN1_DIM0 * IN0_DIM1;
                    const float* other = b + i % IN1_DIM0 * IN0_DIM1;
                    float sum = -0.0f;
                    for (int k = 0; k < IN0_DIM1; ++k) sum += (row[k] - other[k]) * (row[k] - other[k]);
                    out[i] = sum;
                }",
            )
            .gradient(|g| {
                // d|a - b|² / da = 2 (a - b), summed with the upstream gradient as weights.
                let (a, b, u) = (&g.inputs[0], &g.inputs[1], g.upstream);
                let toward = |x: &Tensor, y: &Tensor, u: &Tensor| -> Result<Tensor> {
                    (x * &u.sum_keepdim(1)?)?.sub(&u.matmul(y)?)? * 2.0
                };
                let of_a = if g.needs(0) { Some(toward(a, b, u)?) } else { None };
                let of_b = if g.needs(1) { Some(toward(b, a, &u.t()?)?) } else { None };
                Ok(vec![of_a, of_b])
            })
            .build()
            .expect("an op")
    })
}

fn f64s(values: &[f64], device: &Device) -> Tensor {
    Tensor::from_slice(values, [values.len()], device).expect("a vector")
}

/// Host numbers change from call to call; the kernels before and after are fused up to it.
pub fn one_node_with_fresh_numbers(device: &Device) {
    let op = cube();
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok(f64s(&[0.5, -2.0, 3.0], device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let before = (&(&*x * 2.0)? + 1.0)?;
            let after = (op.call_with(&[&before], &[Scalar::from(k as f64)])? - 4.0)?.abs()?;
            seen.keep(&after.to_dtype(DType::F32)?);
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        let want = [0.5f64, -2.0, 3.0].map(|x| (k as f64 * (2.0 * x + 1.0).powi(3) - 4.0).abs());
        assert_close("|k (2x+1)³ - 4|", log.f32(k, 0), &want, 1e-6);
    }
    let x = f64s(&[1.0; 8], device);
    let mut step = jit::Step::new();
    for _ in 0..3 {
        step.run(|| (op.call_with(&[&((&x + 1.0)? * 2.0)?], &[Scalar::from(1.0)])? * 3.0)?.abs()).expect("a call");
    }
    assert_eq!(step.report().kernels, 3, "before, the op, after:\n{}", step.report());
    assert!(step.explain().to_string().contains("cube"), "{}", step.explain());
}

/// Frozen: the numbers of the last call, the op inside the one launch; weights learn through it.
pub fn trained_and_frozen(device: &Device) {
    let op = distances();
    compare(
        device,
        &Expect::steady(8).frozen(),
        || Ok((Var::new(&filled(&[3, 4], 1, device))?, filled(&[5, 4], 2, device))),
        |_, _| Ok(()),
        |(centers, x), _, seen| {
            let near = op.call(&[x, &centers.get()])?.min(1)?;
            let loss = near.mean(())?;
            let g = loss.backward()?.get(centers).expect("a gradient");
            centers.set(&(centers.get() - (&g * 0.5))?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    // Gradients are those of the same distances in tensor ops.
    let (a, b) = (filled(&[5, 4], 2, device), filled(&[3, 4], 1, device));
    let (a, b) = (a.require_grad().expect("floats"), b.require_grad().expect("floats"));
    let plain = || -> Result<Tensor> {
        let d = (&a.reshape([5, 1, 4])? - &b.reshape([1, 3, 4])?)?;
        d.mul(&d)?.sum(2)
    };
    let weights = filled(&[5, 3], 7, device);
    let options = GradOptions::new().upstream(&weights);
    let own = op.call(&[&a, &b]).and_then(|y| autograd::grad(&y, &[&a, &b], options)).expect("gradients");
    let other = plain().and_then(|y| autograd::grad(&y, &[&a, &b], options)).expect("gradients");
    for (own, other) in own.iter().zip(&other) {
        let want: Vec<f64> = values(other.as_ref().expect("one")).iter().map(|&v| v as f64).collect();
        assert_close("the gradient", &values(own.as_ref().expect("one")), &want, 1e-5);
    }
}

/// First and second derivative against central differences of the kernel itself, in f64; the number changes.
pub fn its_derivatives_are_finite_differences(device: &Device) {
    let op = cube();
    let points = [0.5f64, -2.0, 3.0];
    let value = |x: f64, s: f64| -> f64 {
        let y = op.call_with(&[&f64s(&[x], device)], &[Scalar::from(s)]).expect("a value");
        y.to_vec::<f64>().expect("a value")[0]
    };
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok(f64s(&points, device)),
        |_, _| Ok(()),
        |x, k, seen| {
            let x = x.require_grad()?;
            let y = op.call_with(&[&x], &[Scalar::from(0.5 + k as f64)])?.sum(())?;
            let graph = GradOptions::new().create_graph(true);
            let first = autograd::grad(&y, &[&x], graph)?.remove(0).expect("a gradient");
            let second = first.sum(())?.grad(&[&x])?.remove(0).expect("a gradient");
            seen.keep(&first.to_dtype(DType::F32)?);
            seen.keep(&second.to_dtype(DType::F32)?);
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        let (s, h) = (0.5 + k as f64, 1e-3);
        let first = points.map(|x| (value(x + h, s) - value(x - h, s)) / (2.0 * h));
        let second = points.map(|x| (value(x + h, s) - 2.0 * value(x, s) + value(x - h, s)) / (h * h));
        assert_close("1st", log.f32(k, 0), &first, 1e-4);
        assert_close("2nd", log.f32(k, 1), &second, 1e-4);
    }
}

/// Operands that are views: rows cut out of a tensor, a transposed one, a repeated one.
pub fn views_as_inputs(device: &Device) {
    let op = distances();
    let log = compare(
        device,
        &Expect::steady(5),
        || Ok((filled(&[4, 6], 1, device), filled(&[1, 4], 2, device))),
        |_, _| Ok(()),
        |(a, b), k, seen| {
            let rows = a.t()?.slice(0, k % 3, 3)?;
            seen.keep(&op.call(&[&rows, &b.expand([2, 4])?])?);
            seen.keep(&op.call(&[&a.slice(0, 1, 2)?, &a.slice(0, 2, 2)?])?);
            Ok(())
        },
        |_| vec![],
    );
    let (a, b) = (values(&filled(&[4, 6], 1, device)), values(&filled(&[1, 4], 2, device)));
    for k in 0..5 {
        for (i, got) in log.f32(k, 0).iter().enumerate() {
            let row = k % 3 + i / 2;
            let want: f64 = (0..4).map(|j| (a[j * 6 + row] as f64 - b[j] as f64).powi(2)).sum();
            assert_close("a distance", &[*got], &[want], 1e-5);
        }
        assert_eq!(log.f32(k, 1)[2], 0.0, "a row and itself");
    }
}

/// Kernels in CUDA C++ have no way to fail.
fn kernels_can_fail(device: &Device) -> bool {
    let can = device.name() == "cpu";
    if !can {
        println!("NOT RUN on {device}: kernels in CUDA C++ cannot fail");
    }
    can
}

/// `x`, unless some element is above the limit: then an error, or a panic.
fn limited(panics: bool) -> CustomOp {
    static OPS: OnceLock<[CustomOp; 2]> = OnceLock::new();
    OPS.get_or_init(|| {
        [false, true].map(|panics| {
            jit::custom_op(if panics { "limited_panic" } else { "limited_error" })
                .scalars([DType::F32])
                .cpu(move |k| {
                    let (x, limit) = (k.inputs[0].as_slice::<f32>()?, k.scalars[0].as_f64() as f32);
                    k.output.as_mut_slice::<f32>()?.copy_from_slice(x);
                    match x.iter().find(|x| **x > limit) {
                        None => Ok(()),
                        Some(x) if panics => panic!("{x} is above {limit}"),
                        Some(x) => Err(format!("{x} is above {limit}").into()),
                    }
                })
                .gradient(|g| Ok(vec![Some(g.upstream.clone())]))
                .build()
                .expect("an op")
        })
    })[panics as usize]
}

/// A kernel that fails at some calls: told at the step's end, the writes dropped; nothing unwinds, the step goes on.
pub fn a_failing_kernel_is_told(device: &Device) {
    if !kernels_can_fail(device) {
        return;
    }
    for panics in [false, true] {
        let op = limited(panics);
        let w = Var::new(&vector(&[0.0, 1.0], device)).expect("a Var");
        let mut step = jit::Step::new();
        let mut limits = Vec::new();
        for k in 0..9 {
            let bad = [0, 2, 3, 6].contains(&k);
            let before = values(&w.get());
            let mut line = 0;
            let limit = Scalar::from(if bad { 0.5 } else { 100.0 });
            let result = step.run(|| {
                line = line!() + 1;
                let y = op.call_with(&[&w.get()], &[limit])?;
                w.set(&(&y + 1.0)?)?;
                Ok(y)
            });
            match result {
                Ok(y) => {
                    assert!(!bad, "call {} went well", k + 1);
                    assert_eq!(values(&y), before);
                    assert_eq!(values(&w.get()), before.iter().map(|v| v + 1.0).collect::<Vec<_>>());
                }
                Err(e) => {
                    assert!(bad, "call {} failed: {e}", k + 1);
                    let text = e.to_string();
                    assert!(matches!(e.kind(), ErrorKind::Custom { .. }), "{text}");
                    assert!(text.contains("limited") && text.contains("is above 0.5"), "{text}");
                    assert_eq!(text.contains("panicked"), panics, "{text}");
                    assert!(text.contains(&format!("{}:{line}", file!())), "{line}: {text}");
                    assert_eq!(values(&w.get()), before, "the writes are dropped");
                    limits.push(k);
                }
            }
        }
        assert_eq!(limits, [0, 2, 3, 6]);
        // Eagerly: the result is zeros, the next host read tells, the one after that reads.
        let x = vector(&[1.0, 2.0], device);
        let y = op.call_with(&[&x], &[Scalar::from(1.5)]).expect("a tensor");
        let e = y.to_vec::<f32>().expect_err("the kernel failed");
        assert!(e.to_string().contains("2 is above 1.5"), "{e}");
        assert_eq!(values(&y), [0.0, 0.0]);
    }
}

/// A failing kernel in a gradient, and in a frozen step.
pub fn failures_elsewhere(device: &Device) {
    if !kernels_can_fail(device) {
        return;
    }
    let op = limited(false);
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let x = vector(&[1.0, 1.0], device);
    let mut step = jit::trace(|| {
        let y = op.call_with(&[&(&w.get() * &x)?], &[Scalar::from(10.0)])?;
        w.set(&(&y * 2.0)?)
    });
    for _ in 0..3 {
        step.call().expect("a call");
    }
    let mut frozen = step.freeze().expect("frozen");
    let e = frozen.replay().map(|_| ()).expect_err("16 is above 10");
    assert!(matches!(e.kind(), ErrorKind::Custom { .. }), "{e}");
    assert_eq!(values(&w.get()), [8.0, 16.0], "the writes are dropped");
    w.set(&vector(&[1.0, 2.0], device)).expect("a write");
    frozen.replay().expect("a replay");
    assert_eq!(values(&w.get()), [2.0, 4.0]);
}

/// The kernel runs as often as a plan has it: never for a value that nobody uses.
pub fn runs_once_a_launch(device: &Device) {
    if device.name() != "cpu" {
        println!("NOT RUN on {device}: only kernels on the host can be counted");
        return;
    }
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let op = jit::custom_op("counted")
        .cpu(|k| {
            RUNS.fetch_add(1, Relaxed);
            let x = k.inputs[0].as_slice::<f32>()?;
            k.output.as_mut_slice::<f32>()?.copy_from_slice(x);
            Ok(())
        })
        .build()
        .expect("an op");
    let x = vector(&[1.0], device);
    let mut step = jit::Step::new();
    for k in 0..5 {
        let before = RUNS.load(Relaxed);
        step.run(|| {
            let _unused = op.call(&[&(&x + 1.0)?])?;
            (op.call(&[&x])? + 1.0)?.sum(())
        })
        .expect("a call");
        assert_eq!(RUNS.load(Relaxed) - before, if k == 0 { 2 } else { 1 }, "call {}", k + 1);
    }
}

/// Two threads run one op, eagerly and in steps of their own, at the same time; one of them fails now and then.
pub fn from_two_threads(device: &Device) {
    if !kernels_can_fail(device) {
        return;
    }
    let (good, bad) = (distances(), limited(false));
    let want = good.call(&[&filled(&[5, 4], 1, device), &filled(&[3, 4], 2, device)]).expect("distances");
    let want = values(&want);
    std::thread::scope(|scope| {
        let work = |fails: bool| {
            let (a, b) = (filled(&[5, 4], 1, device), filled(&[3, 4], 2, device));
            let w = Var::new(&vector(&[1.0], device)).expect("a Var");
            let mut step = jit::Step::new();
            for k in 0..60 {
                let fail = fails && k % 5 == 4;
                let result = step.run(|| {
                    let y = good.call(&[&a, &b])?;
                    let limit = Scalar::from(if fail { 0.0 } else { 10.0 });
                    w.set(&bad.call_with(&[&w.get()], &[limit])?)?;
                    Ok(y)
                });
                assert_eq!(result.is_err(), fail, "call {}", k + 1);
                if let Ok(y) = result {
                    assert_eq!(values(&y), want);
                }
                if !fails {
                    assert_eq!(values(&good.call(&[&a, &b]).expect("eagerly")), want);
                }
            }
        };
        let threads = [scope.spawn(move || work(false)), scope.spawn(move || work(true))];
        threads.into_iter().for_each(|t| t.join().expect("a thread"));
    });
}

/// Gradients that are no function of what they are given are refused, eagerly and in a step.
pub fn gradients_that_cannot_be_traced(device: &Device) {
    let w = Var::new(&vector(&[2.0], device)).expect("a Var");
    let outside = vector(&[3.0], device);
    let copy = |k: &mut jit::KernelArgs<'_>| {
        let x = k.inputs[0].as_slice::<f32>()?;
        k.output.as_mut_slice::<f32>()?.copy_from_slice(x);
        Ok(())
    };
    let cuda = "__device__ void compute(long long i, float* out, const float* x) { out[i] = x[i]; }";
    let op = |name: &str| jit::custom_op(name).cpu(copy).cuda(cuda);
    let (var, rng) = (w.clone(), stepgraph::Rng::seed_from(1));
    let wrong: [(CustomOp, &str); 8] = [
        (op("none").build().expect("an op"), "no gradient"),
        (op("reads").gradient(|g| g.upstream.item::<f32>().map(|_| vec![])).build().expect("an op"), "read values"),
        (
            op("captures").gradient(move |g| Ok(vec![Some((g.upstream * &outside)?)])).build().expect("an op"),
            "from elsewhere",
        ),
        (op("gets").gradient(move |g| Ok(vec![Some((g.upstream * &var.get())?)])).build().expect("an op"), "Var"),
        (
            op("draws")
                .gradient(move |g| Ok(vec![Some((g.upstream * &rng.uniform([1], &Device::cpu())?)?)]))
                .build()
                .expect("an op"),
            "random",
        ),
        (op("few").gradient(|_| Ok(vec![])).build().expect("an op"), "0 results for 1 inputs"),
        (op("shape").gradient(|g| Ok(vec![Some(g.upstream.sum(())?)])).build().expect("an op"), "expected f32[1]"),
        (op("panics").gradient(|_| panic!("oh")).build().expect("an op"), "panicked: oh"),
    ];
    for (op, says) in wrong {
        let run = || op.call(&[&w.get()])?.sum(())?.backward().map(|_| ());
        let mut step = jit::Step::new();
        for k in 0..4 {
            let e = if k == 0 { run() } else { step.run(run) }.expect_err(says);
            assert!(e.to_string().contains(says), "{op:?}: {e}");
        }
        // The step goes on without the gradient.
        for _ in 0..4 {
            let y = step.run(|| op.call(&[&w.get()])?.sum(())).expect("a call");
            assert_eq!(values(&y), [2.0]);
        }
    }
}

/// Errors of the closure around it, as with any op.
pub fn a_closure_that_panics_around_it(device: &Device) {
    let op = cube();
    compare(
        device,
        &Expect::steady(7).launches(&[0; 7]).any_compiles().ends(&[2, 4], Outcome::Panic),
        || Ok((Var::state(&f64s(&[1.0], device))?, f64s(&[0.5], device))),
        |_, _| Ok(()),
        |(w, x), k, _| {
            let y = op.call_with(&[&*x], &[Scalar::from(k as f64)])?;
            w.set(&(w.get() + &y)?)?;
            if k == 2 || k == 4 {
                panic!("the user's");
            }
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

scenarios!(
    one_node_with_fresh_numbers,
    trained_and_frozen,
    its_derivatives_are_finite_differences,
    views_as_inputs,
    a_failing_kernel_is_told,
    failures_elsewhere,
    runs_once_a_launch,
    from_two_threads,
    gradients_that_cannot_be_traced,
    a_closure_that_panics_around_it,
);
