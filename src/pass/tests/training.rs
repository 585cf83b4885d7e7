//! A whole training step: forward, gradients, and the update of every parameter.

use super::*;
use crate::ir::emit::gradient;
use crate::pass::tests::run::check;

/// A classifier of `sizes`, its loss, and Adam for all parameters, step count and powers as values.
fn classifier(batch: usize, sizes: &[usize]) -> Graph {
    let mut m = Make::new();
    let (x, label) = (m.x(&[batch, sizes[0]]), m.input(DType::I64, &[batch, 1]));
    let mut parameters = Vec::new();
    for pair in sizes.windows(2) {
        for dims in [&[pair[1], pair[0]][..], &[pair[1]]] {
            let k = parameters.len() as u32 * 3 + 1;
            parameters.push([m.var(dims, k), m.var(dims, k + 1), m.var(dims, k + 2)]);
        }
    }
    let powers = [m.var(&[], parameters.len() as u32 * 3 + 1), m.var(&[], parameters.len() as u32 * 3 + 2)];
    let rate = m.g.param(DType::F32);
    let mut h = x;
    for (i, layer) in parameters.chunks(2).enumerate() {
        let wt = m.permute(&[1, 0], layer[0][0]);
        let product = m.matmul(h, wt);
        h = m.row("add", &[product, layer[1][0]]);
        if i + 2 < sizes.len() {
            h = m.row("relu", &[h]);
        }
    }
    let log = m.log_softmax(h, 0b10);
    let picked = m.op(Op::Gather { axis: 1 }, &[log, label]);
    let total = m.reduce(ReduceKind::Sum, 0b11, false, picked);
    let mean = m.with("div", total, batch as f32);
    let loss = m.row("neg", &[mean]);
    let seed = m.op(Op::Full { shape: Shape::SCALAR, value: Scalar::f32(1.0).constant() }, &[]);
    let wrt: Vec<NodeId> = parameters.iter().map(|p| p[0]).collect();
    let grads = gradient(&mut m.g, loss, seed, &wrt).unwrap();
    m.out(loss);
    let power = [m.with("mul", powers[0], 0.9), m.with("mul", powers[1], 0.999)];
    let rest = power.map(|p| {
        let minus = m.row("neg", &[p]);
        m.with("add", minus, 1.0)
    });
    for (&[p, first, second], g) in parameters.iter().zip(grads) {
        let g = g.unwrap();
        let (a, b) = (m.with("mul", first, 0.9), m.with("mul", g, 0.1));
        let first = m.row("add", &[a, b]);
        let gg = m.row("mul", &[g, g]);
        let (a, b) = (m.with("mul", second, 0.999), m.with("mul", gg, 0.001));
        let second = m.row("add", &[a, b]);
        let (mean, var) = (m.row("div", &[first, rest[0]]), m.row("div", &[second, rest[1]]));
        let root = m.row("sqrt", &[var]);
        let root = m.with("add", root, 1e-8);
        let step = m.row("div", &[mean, root]);
        let by = Scalar { origin: crate::base::scalar::Origin::Param(rate), ..Scalar::f32(0.0) };
        let scale = Op::Elementwise(Elementwise { row: named("mul"), scalar: Some((1, by)) });
        let step = m.op(scale, &[step]);
        let new = m.row("sub", &[p, step]);
        for v in [new, first, second] {
            m.out(v);
        }
    }
    m.out(power[0]);
    m.out(power[1]);
    m.g
}

#[test]
fn a_training_step_is_a_few_kernels() {
    let g = classifier(8, &[12, 16, 16, 5]);
    let c = compiled(&g);
    let plan = c.plan.plan();
    let labels: Vec<&str> = plan.steps.iter().map(|s| s.label.as_str()).collect();
    // Eight products (no gradient of the input); the rest is fused around them.
    let (kernels, calls) = steps(&c);
    assert_eq!(calls, 8, "{labels:#?}");
    assert!(kernels <= 11, "{labels:#?}");
    // Every parameter, moment and power is updated in place.
    assert!(plan.outputs[1..].iter().all(|o| o.in_place.is_some()));
    check(&g, &[0.01f32.to_bits() as u64], 21);
}

#[test]
#[ignore = "a measurement: prints the passes' times"]
fn times() {
    for sizes in [&[784, 256, 256, 10][..], &[64; 30]] {
        let g = classifier(32, sizes);
        let mut all: Vec<_> = (0..21).map(|_| compiled(&g)).collect();
        all.sort_by_key(|c| c.timings.iter().map(|t| t.1).sum::<std::time::Duration>());
        let c = &all[10];
        let total: std::time::Duration = c.timings.iter().map(|t| t.1).sum();
        println!(
            "{} nodes, {:?} steps, arena {}: {total:?} {:?}",
            g.len(),
            steps(c),
            c.plan.plan().arena_bytes,
            c.timings
        );
        if sizes.len() == 4 {
            for s in &c.plan.plan().steps {
                println!("  {}", s.label);
            }
        }
    }
    let mut m = Make::new();
    let (a, b) = (m.x(&[8, 8]), m.x(&[8, 8]));
    let y = m.row("tanh", &[a]);
    let mut n = Make::new();
    let (p, q) = (n.x(&[8, 8]), n.x(&[8, 8]));
    let z = n.matmul(p, q);
    n.out(z);
    m.out(y);
    let _ = b;
    for g in [&m.g, &n.g] {
        let start = std::time::Instant::now();
        for _ in 0..1000 {
            crate::pass::compile_op(g).unwrap();
        }
        println!("compile_op: {:?}", start.elapsed() / 1000);
    }
}

/// One block of a transformer with its gradients: attention and a two-layer network, each after a normalisation.
fn block(b: usize, s: usize, heads: usize, d: usize) -> Graph {
    let mut m = Make::new();
    let x = m.x(&[b, s, d]);
    let w: Vec<NodeId> = [[d, d], [d, d], [d, d], [d, d], [4 * d, d], [d, 4 * d]].iter().map(|s| m.x(s)).collect();
    let bias: Vec<NodeId> = [d, d, d, d, 4 * d, d].iter().map(|&n| m.x(&[n])).collect();
    let norm: Vec<NodeId> = (0..4).map(|_| m.x(&[d])).collect();
    let linear = |m: &mut Make, x: NodeId, k: usize| {
        let t = m.permute(&[1, 0], w[k]);
        let y = m.matmul(x, t);
        m.row("add", &[y, bias[k]])
    };
    let h = m.layer_norm(x, 0b100, d, norm[0], norm[1]);
    let split = |m: &mut Make, x: NodeId| {
        let y = m.reshape(&[b, s, heads, d / heads], x);
        m.permute(&[0, 2, 1, 3], y)
    };
    let q = linear(&mut m, h, 0);
    let q = split(&mut m, q);
    let k = linear(&mut m, h, 1);
    let k = split(&mut m, k);
    let v = linear(&mut m, h, 2);
    let v = split(&mut m, v);
    let kt = m.permute(&[0, 1, 3, 2], k);
    let scores = m.matmul(q, kt);
    let scores = m.with("mul", scores, 0.5);
    let p = m.softmax(scores, 0b1000);
    let o = m.matmul(p, v);
    let o = m.permute(&[0, 2, 1, 3], o);
    let o = m.reshape(&[b, s, d], o);
    let o = linear(&mut m, o, 3);
    let x2 = m.row("add", &[x, o]);
    let h = m.layer_norm(x2, 0b100, d, norm[2], norm[3]);
    let h = linear(&mut m, h, 4);
    // x * 0.5 * (1 + tanh(0.8 * (x + 0.04 * x^3)))
    let cube = m.row("mul", &[h, h]);
    let cube = m.row("mul", &[cube, h]);
    let cube = m.with("mul", cube, 0.04);
    let inner = m.row("add", &[h, cube]);
    let inner = m.with("mul", inner, 0.8);
    let t = m.row("tanh", &[inner]);
    let t = m.with("add", t, 1.0);
    let half = m.with("mul", h, 0.5);
    let h = m.row("mul", &[half, t]);
    let h = linear(&mut m, h, 5);
    let y = m.row("add", &[x2, h]);
    let square = m.row("mul", &[y, y]);
    let total = m.reduce(ReduceKind::Sum, 0b111, false, square);
    let loss = m.with("div", total, (b * s * d) as f32);
    m.out(loss);
    let seed = m.op(Op::Full { shape: Shape::SCALAR, value: Scalar::f32(1.0).constant() }, &[]);
    let wrt: Vec<NodeId> = w.iter().chain(&bias).chain(&norm).copied().collect();
    for g in gradient(&mut m.g, loss, seed, &wrt).unwrap() {
        m.out(g.unwrap());
    }
    m.g
}

#[test]
fn a_transformer_block_is_a_few_kernels() {
    let g = block(2, 3, 2, 8);
    let c = compiled(&g);
    let labels: Vec<&str> = c.plan.plan().steps.iter().map(|s| s.label.as_str()).collect();
    let (kernels, calls) = steps(&c);
    // Eight products forward, two for each of them backward.
    assert_eq!(calls, 24, "{labels:#?}");
    assert!(kernels <= 12, "{labels:#?}");
    check(&g, &[], 5);
}
