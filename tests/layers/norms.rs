//! Normalisation.

use stepgraph::nn::BatchNormOptions;
use stepgraph::{Result, Tensor, Var};

use crate::check::{Check, doubles, rows, some};
use crate::harness::{Expect, assert_close, compare, own_device, vector};

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

fn variance(v: &[f64]) -> f64 {
    let m = mean(v);
    v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / v.len() as f64
}

#[test]
fn layer_norm_and_rms_norm() {
    let device = &own_device();
    // Over the last axis, the last two, all; weight and bias of the shape of these.
    let axes: [(&[isize], &[usize]); 3] = [(&[-1], &[6]), (&[-2, -1], &[4, 6]), (&[0, 1, 2], &[3, 4, 6])];
    for (axes, dims) in axes {
        let n: usize = dims.iter().product();
        let operands = || vec![some(&[3, 4, 6], 1, device), some(dims, 2, device), some(dims, 3, device)];
        let norm = |v: &[Vec<f64>]| -> Vec<f64> {
            let mut out = Vec::new();
            for r in rows(72, n) {
                let row = &v[0][r];
                let (m, s) = (mean(row), (variance(row) + 1e-3).sqrt());
                out.extend((0..n).map(|i| (row[i] - m) / s * v[1][i] + v[2][i]));
            }
            out
        };
        Check::new("layer_norm", operands(), &norm)
            .run(device, |v| v[0].layer_norm(axes, Some(&v[1]), Some(&v[2]), 1e-3));
        let plain = |v: &[Vec<f64>]| norm(&[v[0].clone(), vec![1.0; n], vec![0.0; n]]);
        Check::new("layer_norm", operands()[..1].to_vec(), &plain)
            .run(device, |v| v[0].layer_norm(axes, None, None, 1e-3));
        let rms = |v: &[Vec<f64>]| -> Vec<f64> {
            let mut out = Vec::new();
            for r in rows(72, n) {
                let row = &v[0][r];
                let s = (row.iter().map(|x| x * x).sum::<f64>() / n as f64 + 1e-3).sqrt();
                out.extend((0..n).map(|i| row[i] / s * v[1][i]));
            }
            out
        };
        Check::new("rms_norm", operands()[..2].to_vec(), &rms).run(device, |v| v[0].rms_norm(axes, Some(&v[1]), 1e-3));
    }
}

/// The elements of each channel of `[n, channels, inner]`.
fn channel(v: &[f64], channels: usize, inner: usize, c: usize) -> Vec<f64> {
    (0..v.len()).filter(|i| i / inner % channels == c).map(|i| v[i]).collect()
}

#[test]
fn batch_norm_by_the_batch() {
    let device = &own_device();
    let forms: [&[usize]; 3] = [&[6, 3], &[4, 3, 5], &[2, 3, 2, 3]];
    for dims in forms {
        let inner: usize = dims[2..].iter().product();
        let formula = |v: &[Vec<f64>]| -> Vec<f64> {
            let stats: Vec<(f64, f64)> =
                (0..3).map(|c| channel(&v[0], 3, inner, c)).map(|v| (mean(&v), (variance(&v) + 1e-5).sqrt())).collect();
            let norm = |i: usize| {
                let c = i / inner % 3;
                (v[0][i] - stats[c].0) / stats[c].1 * v[1][c] + v[2][c]
            };
            (0..v[0].len()).map(norm).collect()
        };
        let operands = vec![some(dims, 4, device), some(&[3], 5, device), some(&[3], 6, device)];
        Check::new("batch_norm", operands, &formula).run(device, |v| {
            v[0].batch_norm(&BatchNormOptions { weight: Some(&v[1]), bias: Some(&v[2]), ..Default::default() })
        });
    }
}

#[test]
fn running_statistics() {
    let device = &own_device();
    let batches: Vec<Tensor> = (0..6).map(|k| some(&[5, 2, 3], 10 + k, device)).collect();
    let log = compare(
        device,
        &Expect::steady(6),
        || {
            let var = |v: f32| Var::state(&vector(&[v, v], device));
            Ok((var(0.0)?, var(1.0)?, batches[0].clone()))
        },
        |s, k| {
            s.2 = batches[k].clone();
            Ok(())
        },
        |(mean, variance, x), _, seen| {
            let running = Some((&*mean, &*variance));
            let options = BatchNormOptions { running, momentum: 0.25, ..Default::default() };
            seen.keep(&x.batch_norm(&options)?);
            seen.keep(&x.batch_norm(&BatchNormOptions { training: false, ..options })?);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    let (mut running_mean, mut running_variance) = ([0.0f64; 2], [1.0f64; 2]);
    for (k, batch) in batches.iter().enumerate() {
        let v = doubles(batch);
        for c in 0..2 {
            let values = channel(&v, 2, 3, c);
            let n = values.len() as f64;
            running_mean[c] = 0.75 * running_mean[c] + 0.25 * mean(&values);
            running_variance[c] = 0.75 * running_variance[c] + 0.25 * variance(&values) * n / (n - 1.0);
        }
        assert_close("running mean", log.f32(k, 2), &running_mean, 1e-6);
        assert_close("running variance", log.f32(k, 3), &running_variance, 1e-6);
        let evaluated = |i: usize| (v[i] - running_mean[i / 3 % 2]) / (running_variance[i / 3 % 2] + 1e-5).sqrt();
        assert_close("evaluated", log.f32(k, 1), &(0..30).map(evaluated).collect::<Vec<_>>(), 2e-6);
    }
}

/// Far from zero, and without any variance: see `variance_cancellation` of the cases.
#[test]
fn norms_keep_their_digits() {
    let device = &own_device();
    let norm = |row: &[f32]| -> Result<Vec<f32>> {
        let x = Tensor::from_slice(row, [row.len()], device)?;
        let wide = x.reshape([1, row.len()])?.expand([3, row.len()])?;
        let y = wide.layer_norm(-1, None, None, 1e-5)?.to_vec::<f32>()?;
        let z = wide.t()?.unsqueeze(0)?.batch_norm(&BatchNormOptions::default())?;
        assert!(z.to_vec::<f32>()?.iter().all(|v| v.is_finite()));
        Ok(y)
    };
    for row in [vec![777.7; 96], vec![1e6; 7], vec![0.0; 5], vec![-3e30; 33]] {
        let y = norm(&row).expect("a norm");
        assert!(y.iter().all(|v| v.abs() < 1e-2), "{row:?}: {y:?}");
    }
}
