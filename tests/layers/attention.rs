//! Attention.

use stepgraph::nn::{Attention, Linear, Module, MultiHeadAttention};
use stepgraph::{Device, Result, Rng, Tensor, Var};

use crate::check::{Check, doubles, some};
use crate::harness::{assert_close, own_device, values};

const QUERIES: usize = 3;
const KEYS: usize = 4;
const WIDTH: usize = 5;
const OUT: usize = 2;

/// Attention of `n` items in double precision; `score` changes the scaled product of query i and key j of item b.
fn attention(v: &[Vec<f64>], n: usize, scale: f64, score: &dyn Fn(usize, usize, usize, f64) -> f64) -> Vec<f64> {
    let mut out = vec![0.0; n * QUERIES * OUT];
    for (b, i) in (0..n).flat_map(|b| (0..QUERIES).map(move |i| (b, i))) {
        let product = |j: usize| {
            let (q, k) = (&v[0][(b * QUERIES + i) * WIDTH..], &v[1][(b * KEYS + j) * WIDTH..]);
            (0..WIDTH).map(|w| q[w] * k[w]).sum::<f64>() * scale
        };
        let scores: Vec<f64> = (0..KEYS).map(|j| score(b, i, j, product(j))).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            continue;
        }
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (j, o) in (0..KEYS).flat_map(|j| (0..OUT).map(move |o| (j, o))) {
            out[(b * QUERIES + i) * OUT + o] += weights[j] / sum * v[2][(b * KEYS + j) * OUT + o];
        }
    }
    out
}

fn operands(device: &Device) -> Vec<Tensor> {
    let scaled = |dims: &[usize], seed| some(dims, seed, device).mul(2.0).expect("numbers");
    vec![scaled(&[2, QUERIES, WIDTH], 1), scaled(&[2, KEYS, WIDTH], 2), scaled(&[2, KEYS, OUT], 3)]
}

#[test]
fn with_and_without_masks() {
    let device = &own_device();
    let inf = f64::INFINITY;
    let plain = |_, _, _, s| s;
    let causal = |_, i, j, s| if j <= i { s } else { -inf };
    // Query 1 of every item looks at nothing.
    let seen = |i: usize, j: usize| i != 1 && !(i + j).is_multiple_of(3);
    let boolean: Vec<bool> = (0..QUERIES * KEYS).map(|p| seen(p / KEYS, p % KEYS)).collect();
    let boolean = Tensor::from_vec(boolean, [QUERIES, KEYS], device).expect("a mask");
    let masked = move |_, i, j, s| if seen(i, j) { s } else { -inf };
    let both = move |_, i, j, s| if seen(i, j) && j <= i { s } else { -inf };
    let added: Vec<f32> = (0..2 * KEYS).map(|p| if p % 3 == 0 { -f32::INFINITY } else { p as f32 * 0.25 }).collect();
    let added = Tensor::from_vec(added, [2, 1, KEYS], device).expect("a mask");
    let shifted = |b: usize, _, j: usize, s: f64| {
        let p = b * KEYS + j;
        if p.is_multiple_of(3) { -inf } else { s + p as f64 * 0.25 }
    };
    type Score<'a> = &'a dyn Fn(usize, usize, usize, f64) -> f64;
    let forms: [(Score<'_>, Attention<'_>); 6] = [
        (&plain, Attention::default()),
        (&plain, Attention { scale: Some(0.3), ..Attention::default() }),
        (&causal, Attention { causal: true, ..Attention::default() }),
        (&masked, Attention { mask: Some(&boolean), ..Attention::default() }),
        (&both, Attention { mask: Some(&boolean), causal: true, ..Attention::default() }),
        (&shifted, Attention { mask: Some(&added), ..Attention::default() }),
    ];
    for (score, options) in forms {
        let scale = options.scale.unwrap_or(1.0 / (WIDTH as f64).sqrt());
        let formula = |v: &[Vec<f64>]| attention(v, 2, scale, score);
        // The gradients of all operands are compared with finite differences: a NaN of the masked row would show.
        Check::new("attention", operands(device), &formula)
            .run(device, |v| v[0].scaled_dot_product_attention(&v[1], &v[2], &options));
    }
}

#[test]
fn dropped_weights_are_scaled() {
    let device = &own_device();
    let [q, k, v] = <[Tensor; 3]>::try_from(operands(device)).expect("three");
    let run = |p: f64| -> Result<Vec<f32>> {
        let rng = Rng::seed_from(3);
        let options = Attention { dropout: Some((p, &rng)), ..Attention::default() };
        q.scaled_dot_product_attention(&k, &v, &options)?.to_vec()
    };
    let plain = q.scaled_dot_product_attention(&k, &v, &Attention::default()).expect("a result");
    assert_eq!(run(0.0).expect("a result"), values(&plain));
    assert_eq!(run(1.0).expect("a result"), [0.0; 12]);
    assert_ne!(run(0.5).expect("a result"), values(&plain));
}

#[test]
fn wrong_operands_are_told() {
    let device = &own_device();
    let t = |dims: &[usize]| some(dims, 1, device);
    let told = |q: &[usize], k: &[usize], v: &[usize], mask: Option<&Tensor>, says: &str| {
        let options = Attention { mask, ..Attention::default() };
        let e = t(q).scaled_dot_product_attention(&t(k), &t(v), &options).expect_err("an error").to_string();
        assert!(e.contains("scaled_dot_product_attention") && e.contains(says), "{e}");
    };
    told(&[3, 4], &[5, 3], &[5, 2], None, "keys [.., n, 4]");
    told(&[3, 4], &[5, 4], &[6, 2], None, "keys [.., n, 4]");
    told(&[4], &[5, 4], &[5, 2], None, "at least 2 axes");
    told(&[3, 4], &[0, 4], &[0, 2], None, "n above 0");
    told(&[3, 4], &[5, 4], &[5, 2], Some(&t(&[3, 4])), "a mask that broadcasts");
}

/// Heads side by side: the layer is its two linear maps with the attention of each head between them.
#[test]
fn multi_head_attention() {
    let device = &own_device();
    let rng = Rng::seed_from(2);
    let layer = MultiHeadAttention::new(6, 3, &rng, device).expect("a layer");
    let names: Vec<String> = layer.named_parameters().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["input.weight", "input.bias", "output.weight", "output.bias"]);
    assert!(MultiHeadAttention::new(6, 4, &rng, device).is_err());
    let x = some(&[2, 4, 6], 7, device);
    for causal in [false, true] {
        let layer = MultiHeadAttention { causal, ..layer.clone() };
        let got = values(&layer.forward(&x, None).expect("a result"));
        let weights = |l: &Linear| doubles(&l.weight.get());
        let (input, output) = (weights(&layer.input), weights(&layer.output));
        let x = doubles(&x);
        let at = |b: usize, t: usize, column: usize| -> f64 {
            (0..6).map(|w| x[(b * 4 + t) * 6 + w] * input[w * 18 + column]).sum()
        };
        let mut want = vec![0.0; 48];
        for (b, head, t) in (0..2).flat_map(|b| (0..3).flat_map(move |h| (0..4).map(move |t| (b, h, t)))) {
            let product = |s: usize| {
                let sum: f64 = (0..2).map(|w| at(b, t, head * 2 + w) * at(b, s, 6 + head * 2 + w)).sum();
                if causal && s > t { f64::NEG_INFINITY } else { sum / 2f64.sqrt() }
            };
            let exp: Vec<f64> = (0..4).map(|s| product(s).exp()).collect();
            for w in 0..2 {
                let value: f64 = (0..4).map(|s| exp[s] / exp.iter().sum::<f64>() * at(b, s, 12 + head * 2 + w)).sum();
                (0..6).for_each(|o| want[(b * 4 + t) * 6 + o] += value * output[(head * 2 + w) * 6 + o]);
            }
        }
        assert_close("multi-head attention", &got, &want, 1e-5);
    }
    // A trained layer has gradients for all of its parameters, eagerly and traced alike: see `models`.
    let g = layer.forward(&x, None).and_then(|y| y.sum(())).and_then(|l| l.backward()).expect("gradients");
    assert!(layer.parameters().iter().all(|p: &Var| g.get(p).is_some()));
}
