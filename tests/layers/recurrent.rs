//! Recurrent cells, against PyTorch's formulas.

use stepgraph::nn::{GruCell, LstmCell, Module};
use stepgraph::{Rng, Tensor};

use crate::check::{Check, doubles, some};
use crate::harness::{assert_close, own_device, values};

const N: usize = 2;
const INPUTS: usize = 3;
const HIDDEN: usize = 4;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x w + b` of row `n`, column `c`.
fn affine(x: &[f64], w: &[f64], b: &[f64], n: usize, c: usize) -> f64 {
    let (inputs, columns) = (w.len() / b.len(), b.len());
    b[c] + (0..inputs).map(|i| x[n * inputs + i] * w[i * columns + c]).sum::<f64>()
}

#[test]
fn lstm_cell() {
    let device = &own_device();
    let cell = LstmCell::new(INPUTS, HIDDEN, &Rng::seed_from(3), device).expect("a cell");
    let p: Vec<Vec<f64>> = cell.parameters().iter().map(|v| doubles(&v.get())).collect();
    // v: x, h, c
    let formula = |v: &[Vec<f64>]| {
        let mut out = vec![0.0; 2 * N * HIDDEN];
        for (n, j) in (0..N).flat_map(|n| (0..HIDDEN).map(move |j| (n, j))) {
            let gate = |g: usize| {
                affine(&v[0], &p[0], &p[2], n, g * HIDDEN + j) + affine(&v[1], &p[1], &p[3], n, g * HIDDEN + j)
            };
            let c = sigmoid(gate(1)) * v[2][n * HIDDEN + j] + sigmoid(gate(0)) * gate(2).tanh();
            out[n * 2 * HIDDEN + j] = sigmoid(gate(3)) * c.tanh();
            out[n * 2 * HIDDEN + HIDDEN + j] = c;
        }
        out
    };
    let operands = vec![some(&[N, INPUTS], 1, device), some(&[N, HIDDEN], 2, device), some(&[N, HIDDEN], 3, device)];
    Check::new("lstm", operands, &formula).run(device, |v| {
        let (h, c) = cell.forward(&v[0], &v[1], &v[2])?;
        Tensor::concat(&[&h, &c], 1)
    });
    assert_eq!(cell.parameters().iter().map(|p| p.shape().numel()).sum::<usize>(), 16 * (INPUTS + HIDDEN) + 32);
    let (h, c) = cell.zeros(5).expect("zeros");
    assert_eq!((values(&h), values(&c)), (vec![0.0; 20], vec![0.0; 20]));
    let e = cell.forward(&some(&[5, 2], 1, device), &h, &c).expect_err("a wrong input").to_string();
    assert!(e.contains("[n, 3]"), "{e}");
}

#[test]
fn gru_cell() {
    let device = &own_device();
    let cell = GruCell::new(INPUTS, HIDDEN, &Rng::seed_from(4), device).expect("a cell");
    let p: Vec<Vec<f64>> = cell.parameters().iter().map(|v| doubles(&v.get())).collect();
    let step = |x: &[f64], h: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; N * HIDDEN];
        for (n, j) in (0..N).flat_map(|n| (0..HIDDEN).map(move |j| (n, j))) {
            let from =
                |g: usize| (affine(x, &p[0], &p[2], n, g * HIDDEN + j), affine(h, &p[1], &p[3], n, g * HIDDEN + j));
            let sum = |g: usize| from(g).0 + from(g).1;
            let (r, z) = (sigmoid(sum(0)), sigmoid(sum(1)));
            let new = (from(2).0 + r * from(2).1).tanh();
            out[n * HIDDEN + j] = (1.0 - z) * new + z * h[n * HIDDEN + j];
        }
        out
    };
    let formula = |v: &[Vec<f64>]| step(&v[0], &v[1]);
    let operands = vec![some(&[N, INPUTS], 1, device), some(&[N, HIDDEN], 2, device)];
    Check::new("gru", operands.clone(), &formula).run(device, |v| cell.forward(&v[0], &v[1]));
    // Several steps.
    let (x, mut h) = (&operands[0], cell.zeros(N).expect("zeros"));
    let mut want = vec![0.0; N * HIDDEN];
    for _ in 0..5 {
        h = cell.forward(x, &h).expect("a step");
        want = step(&doubles(x), &want);
    }
    assert_close("five steps", &values(&h), &want, 2e-6);
}
