//! Softmax and losses.

use stepgraph::nn::{CrossEntropy, Reduction};
use stepgraph::{DType, Device, Result, Tensor, Var};

use crate::check::{Check, some};
use crate::harness::{Expect, assert_close, compare, own_device, values, vector};

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log = row.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
    row.iter().map(|x| x - top - log).collect()
}

#[test]
fn softmax_along_any_axis() {
    let device = &own_device();
    for (axis, log) in [(0, false), (1, false), (-1, false), (0, true), (1, true), (2, true)] {
        let dims = [3usize, 4, 5];
        let along = (axis + 3) as usize % 3;
        let formula = |v: &[Vec<f64>]| {
            let mut out = vec![0.0; 60];
            let strides = [20usize, 5, 1];
            for start in (0..60).filter(|i| (i / strides[along]).is_multiple_of(dims[along])) {
                let at = |j: usize| start + j * strides[along];
                let row: Vec<f64> = (0..dims[along]).map(|j| v[0][at(j)]).collect();
                for (j, y) in log_softmax(&row).into_iter().enumerate() {
                    out[at(j)] = if log { y } else { y.exp() };
                }
            }
            out
        };
        Check::new("softmax", vec![some(&dims, 5, device)], &formula)
            .run(device, |v| if log { v[0].log_softmax(axis) } else { v[0].softmax(axis) });
    }
}

#[test]
fn rows_of_minus_infinity() {
    let device = &own_device();
    let inf = f32::INFINITY;
    let rows = [[-inf, -inf], [0.0, -inf], [inf, 0.0], [f32::NAN, 0.0]];
    let x = Tensor::from_vec(rows.concat(), [4, 2], device).expect("rows");
    let soft = values(&x.softmax(1).expect("softmax"));
    assert_eq!(soft[..4], [0.0, 0.0, 1.0, 0.0]);
    assert!(soft[4].is_nan() && soft[6..].iter().all(|v| v.is_nan()), "{soft:?}");
    let log = values(&x.log_softmax(1).expect("log_softmax"));
    assert_eq!(log[..4], [-inf, -inf, 0.0, -inf]);
    assert!(log[6..].iter().all(|v| v.is_nan()), "{log:?}");
}

fn labels(values: &[i64], dims: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, dims, device).expect("labels")
}

/// Losses in double precision: logits `[outer, classes, inner]`, labels `[outer, inner]`.
fn losses(v: &[f64], labels: &[i64], classes: usize, inner: usize, options: &CrossEntropy<'_>) -> Vec<f64> {
    let mut out = Vec::new();
    for (i, &label) in labels.iter().enumerate() {
        let (o, j) = (i / inner, i % inner);
        let row: Vec<f64> = (0..classes).map(|c| v[(o * classes + c) * inner + j]).collect();
        let log = log_softmax(&row);
        let even = log.iter().sum::<f64>() / classes as f64;
        let s = options.smoothing;
        let loss = |label: i64| -((1.0 - s) * log[label as usize] + s * even);
        out.push(if options.ignore == Some(label) { 0.0 } else { loss(label) });
    }
    let counted = labels.iter().filter(|&&l| options.ignore != Some(l)).count() as f64;
    match options.reduction {
        Reduction::None => out,
        Reduction::Sum => vec![out.iter().sum()],
        Reduction::Mean => vec![out.iter().sum::<f64>() / counted],
    }
}

#[test]
fn cross_entropy_in_all_its_forms() {
    let device = &own_device();
    let known = [2i64, 0, -100, 3, 3, -100, 1, 0];
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        for (ignore, smoothing) in [(None, 0.0), (Some(-100), 0.0), (None, 0.1), (Some(-100), 0.3), (Some(-100), 1.0)] {
            let options = CrossEntropy { ignore, smoothing, reduction, ..CrossEntropy::default() };
            let used: Vec<i64> = known.iter().map(|&l| if ignore.is_none() { l.max(0) } else { l }).collect();
            // [n, classes], [n, classes, ..], [.., classes], one row.
            let forms: [(&[usize], &[usize], Option<isize>, usize); 5] = [
                (&[8, 4], &[8], None, 1),
                (&[2, 4, 2, 2], &[2, 2, 2], None, 4),
                (&[4, 2, 4], &[4, 2], Some(-1), 1),
                (&[4, 8], &[8], Some(0), 8),
                (&[4], &[], None, 1),
            ];
            for (dims, label_dims, axis, inner) in forms {
                let options = CrossEntropy { axis, ..options };
                let count: usize = label_dims.iter().product();
                let used = &used[..count];
                let at = labels(used, label_dims, device);
                let formula = |v: &[Vec<f64>]| losses(&v[0], used, 4, inner, &options);
                Check::new("cross_entropy", vec![some(dims, 7, device)], &formula)
                    .run(device, |v| v[0].cross_entropy_with(&at, &options));
                if smoothing == 0.0 {
                    Check::new("nll_loss", vec![some(dims, 7, device)], &formula).run(device, |v| {
                        v[0].log_softmax(axis.unwrap_or((dims.len() > 1) as isize))?.nll_loss(&at, &options)
                    });
                }
            }
        }
    }
}

/// Figures of PyTorch's documentation of `cross_entropy` would be random; these are of the closed form: equal logits.
#[test]
fn cross_entropy_of_equal_logits_is_the_logarithm_of_their_number() {
    let device = &own_device();
    let x = Tensor::zeros([6, 10], DType::F32, device).expect("zeros");
    let y = labels(&[0, 9, 3, 3, 1, 7], &[6], device);
    assert_close("loss", &values(&x.cross_entropy(&y).expect("a loss")), &[10f64.ln()], 1e-6);
    // Everything ignored: the mean over nothing.
    let options = CrossEntropy { ignore: Some(3), ..CrossEntropy::default() };
    let all = labels(&[3; 6], &[6], device);
    assert!(values(&x.cross_entropy_with(&all, &options).expect("a loss"))[0].is_nan());
}

/// Weights of classes, against PyTorch 2.15's `cross_entropy` in double precision: losses, and gradients of the mean.
#[test]
fn weights_of_classes() {
    let device = &own_device();
    let logits = [2.0f32, 0.0, -1.0, 0.5, 0.25, 1.0, 3.0, -2.0, 0.0, 0.0, 1.0, 1.0, 1.0, -1.0, 0.5, 2.0];
    let x = Var::new(&Tensor::from_slice(&logits, [4, 4], device).expect("logits")).expect("a Var");
    let y = labels(&[2, 0, -100, 3], &[4], device);
    let weight = vector(&[0.5, 1.0, 2.0, 3.0], device);
    type Row = (f64, f64, [f64; 4], [f64; 8]);
    let rows: [Row; 2] = [
        (
            0.0,
            1.752527247399027,
            [6.684699164779644, 1.4686550016574353, 0.0, 1.4855456942575682],
            [
                0.25821815377679064,
                0.03494602697821717,
                -0.35078043876045495,
                0.057616258005447174,
                -0.08609017010768974,
                0.010201655416621444,
                0.07538060417537559,
                0.0005079105156927216,
            ],
        ),
        (
            0.2,
            1.8023533401432088,
            [6.084022946100408, 2.1545497524032813, 0.0, 1.6743706722839578],
            [
                0.24398951846470643,
                0.024544641875624936,
                -0.296717081397847,
                0.02818292105751563,
                -0.07028529211069559,
                0.005701491263192004,
                0.09112005787247643,
                -0.02653625702497283,
            ],
        ),
    ];
    for (smoothing, mean, each, slopes) in rows {
        let options = CrossEntropy { smoothing, ignore: Some(-100), weight: Some(&weight), ..CrossEntropy::default() };
        let log = compare(
            device,
            &Expect::steady(5),
            || Ok(()),
            |_, _| Ok(()),
            |_, _, seen| {
                let loss = x.get().cross_entropy_with(&y, &options)?;
                seen.keep(&loss);
                seen.keep(&loss.backward()?.get(&x).expect("a gradient"));
                for reduction in [Reduction::None, Reduction::Sum] {
                    seen.keep(&x.get().cross_entropy_with(&y, &CrossEntropy { reduction, ..options })?);
                }
                Ok(())
            },
            |_| vec![],
        );
        assert_close("the mean", log.f32(0, 0), &[mean], 2e-6);
        assert_close("its gradient", &log.f32(0, 1)[..8], &slopes, 2e-6);
        assert_eq!(log.f32(0, 1)[8..12], [0.0; 4], "of an ignored label");
        assert_close("each loss", log.f32(0, 2), &each, 2e-6);
        assert_close("their sum", log.f32(0, 3), &[each.iter().sum()], 2e-6);
        if smoothing == 0.0 {
            let nll = x.get().log_softmax(1).and_then(|p| p.nll_loss(&y, &options)).expect("a loss");
            assert_close("nll_loss", &values(&nll), &[mean], 2e-6);
        }
    }
    // Nothing ignored; and the classes on the first axis.
    let all = labels(&[2, 0, 1, 3], &[4], device);
    let options = CrossEntropy { weight: Some(&weight), ..CrossEntropy::default() };
    let rows: Vec<Vec<f64>> =
        logits.chunks(4).map(|r| log_softmax(&r.iter().map(|&v| v as f64).collect::<Vec<_>>())).collect();
    let want = -(2.0 * rows[0][2] + 0.5 * rows[1][0] + rows[2][1] + 3.0 * rows[3][3]) / 6.5;
    assert_close("the mean", &values(&x.get().cross_entropy_with(&all, &options).expect("a loss")), &[want], 2e-6);
    let turned = x.get().t().expect("turned");
    let first = CrossEntropy { axis: Some(0), ..options };
    assert_close("the mean", &values(&turned.cross_entropy_with(&all, &first).expect("a loss")), &[want], 2e-6);
    // A weight of each class, a float.
    let short = vector(&[1.0; 3], device);
    let e = x.get().cross_entropy_with(&all, &CrossEntropy { weight: Some(&short), ..first }).expect_err("3 weights");
    assert!(e.to_string().contains("a weight per class, [4]") && e.to_string().contains("losses.rs"), "{e}");
    let e = x.get().cross_entropy_with(&all, &CrossEntropy { weight: Some(&all), ..first }).expect_err("integers");
    assert!(e.to_string().contains("a float tensor"), "{e}");
}

#[test]
fn binary_cross_entropy() {
    let device = &own_device();
    let targets = || some(&[4, 6], 2, device).abs().expect("targets");
    let logits = || some(&[4, 6], 1, device).mul(3.0).expect("logits");
    let formula = |v: &[Vec<f64>]| {
        let loss = |i: usize| {
            let (p, y) = (1.0 / (1.0 + (-v[0][i]).exp()), v[1][i]);
            let weight = v.get(2).map_or(1.0, |w| w[i % 6]);
            -(weight * y * p.ln() + (1.0 - y) * (1.0 - p).ln())
        };
        vec![(0..24).map(loss).sum::<f64>() / 24.0]
    };
    Check::new("bce", vec![logits(), targets()], &formula)
        .run(device, |v| v[0].binary_cross_entropy_with_logits(&v[1], None, Reduction::Mean));
    let weights = some(&[6], 5, device).add(2.0).expect("weights");
    Check::new("bce", vec![logits(), targets(), weights], &formula)
        .run(device, |v| v[0].binary_cross_entropy_with_logits(&v[1], Some(&v[2]), Reduction::Mean));
    // At 0 the gradient is sigmoid(0) - y; far out nothing overflows.
    let x = Var::new(&vector(&[0.0, 1e38, -1e38, 300.0], device)).expect("a Var");
    let y = vector(&[0.25, 1.0, 0.0, 0.5], device);
    let loss = x.get().binary_cross_entropy_with_logits(&y, None, Reduction::Sum).expect("a loss");
    let g = loss.backward().expect("gradients").get(&x).expect("a gradient");
    assert_eq!(values(&g), [0.25, 0.0, 0.0, 0.5]);
    let each = x.get().binary_cross_entropy_with_logits(&y, None, Reduction::None).expect("losses");
    assert_close("far out", &values(&each), &[2f64.ln(), 0.0, 0.0, 150.0], 1e-6);
}

#[test]
fn differences() {
    let device = &own_device();
    let operands = || vec![some(&[4, 6], 1, device).mul(2.0).expect("numbers"), some(&[4, 6], 2, device)];
    type F = fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>;
    let forms: [(&str, F, fn(f64) -> f64); 5] = [
        ("mse", |a, b, r| a.mse_with(b, r), |d| d * d),
        ("huber", |a, b, r| a.huber(b, 0.7, r), |d| if d.abs() <= 0.7 { d * d / 2.0 } else { 0.7 * (d.abs() - 0.35) }),
        ("smooth_l1", |a, b, r| a.smooth_l1(b, 0.4, r), |d| if d.abs() < 0.4 { d * d / 0.8 } else { d.abs() - 0.2 }),
        ("smooth_l1", |a, b, r| a.smooth_l1(b, 0.0, r), f64::abs),
        ("huber", |a, b, r| a.huber(b, 9.0, r), |d| d * d / 2.0),
    ];
    for (name, f, formula) in forms {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let formula = |v: &[Vec<f64>]| {
                let each: Vec<f64> = v[0].iter().zip(&v[1]).map(|(a, b)| formula(a - b)).collect();
                match reduction {
                    Reduction::None => each,
                    Reduction::Sum => vec![each.iter().sum()],
                    Reduction::Mean => vec![each.iter().sum::<f64>() / each.len() as f64],
                }
            };
            Check::new(name, operands(), &formula).run(device, |v| f(&v[0], &v[1], reduction));
        }
    }
}
