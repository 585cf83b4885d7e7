//! What becomes one kernel.

use super::*;
use crate::pass::tests::run::check;

#[test]
fn softmax_is_one_kernel() {
    for axes in [0b10, 0b01] {
        let mut m = Make::new();
        let x = m.x(&[5, 7]);
        let y = m.softmax(x, axes);
        m.out(y);
        assert_eq!(steps(&compiled(&m.g)), (1, 0));
        check(&m.g, &[], 3);
    }
}

#[test]
fn layer_norm_is_one_kernel() {
    let mut m = Make::new();
    let (x, scale, shift) = (m.x(&[2, 3, 8]), m.x(&[8]), m.x(&[8]));
    let y = m.layer_norm(x, 0b100, 8, scale, shift);
    m.out(y);
    assert_eq!(steps(&compiled(&m.g)), (1, 0));
    check(&m.g, &[], 4);
}

#[test]
fn bias_and_activation_follow_the_matmul() {
    let mut m = Make::new();
    let (x, w, b) = (m.x(&[4, 6]), m.x(&[5, 6]), m.x(&[5]));
    let wt = m.permute(&[1, 0], w);
    let y = m.matmul(x, wt);
    let y = m.row("add", &[y, b]);
    let y = m.row("relu", &[y]);
    m.out(y);
    assert_eq!(steps(&compiled(&m.g)), (1, 1));
    check(&m.g, &[], 5);
}

#[test]
fn cross_entropy_is_one_kernel_per_row_and_one_for_the_mean() {
    let mut m = Make::new();
    let (x, label) = (m.x(&[6, 5]), m.input(DType::I64, &[6, 1]));
    let log = m.log_softmax(x, 0b10);
    let picked = m.op(Op::Gather { axis: 1 }, &[log, label]);
    let loss = m.row("neg", &[picked]);
    let total = m.reduce(ReduceKind::Sum, 0b11, false, loss);
    let mean = m.with("div", total, 6.0);
    m.out(mean);
    assert_eq!(steps(&compiled(&m.g)), (2, 0));
    check(&m.g, &[], 6);
}

#[test]
fn a_scatter_of_one_element_a_row_is_part_of_a_kernel_and_still_checks_its_index() {
    use crate::kernel::eval::{Memory, run};
    let mut m = Make::new();
    let (label, x) = (m.input(DType::I64, &[2, 1]), m.x(&[2, 1]));
    let s = m.op(Op::ScatterAdd { axis: 1, len: 4 }, &[label, x]);
    let y = m.with("add", s, 1.0);
    m.out(y);
    let c = compiled(&m.g);
    assert_eq!(steps(&c), (1, 0));
    let StepKind::Kernel(kernel) = &c.plan.plan().steps[0].kind else { panic!("not a kernel") };
    for (labels, flagged, want) in
        [([3i64, 0], false, [1., 1., 1., 3., 4., 1., 1., 1.]), ([7, 0], true, [1., 1., 1., 3., 4., 1., 1., 1.])]
    {
        let labels: Vec<u8> = labels.iter().flat_map(|l| l.to_ne_bytes()).collect();
        let values: Vec<u8> = [2.0f32, 3.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let mut out = [0u8; 32];
        let mut memory = kernel.args.iter().fold((Vec::new(), Some(&mut out)), |(mut all, mut out), a| {
            all.push(match (a.output, a.dtype) {
                (true, _) => Memory::Out(out.take().unwrap()),
                (_, DType::I64) => Memory::In(&labels),
                _ => Memory::In(&values),
            });
            (all, out)
        });
        assert_eq!(run(kernel, &[], &mut memory.0).unwrap(), flagged);
        drop(memory);
        let got: Vec<f32> = out.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
        assert_eq!(got, want);
    }
    check(&m.g, &[], 13);
}

#[test]
fn the_order_of_nodes_does_not_matter() {
    // The same two softmaxes, one after the other and interleaved.
    let mut a = Make::new();
    let (x, y) = (a.x(&[4, 9]), a.x(&[9, 4]));
    let (u, v) = (a.softmax(x, 0b10), a.softmax(y, 0b10));
    a.out(u);
    a.out(v);
    let mut b = Make::new();
    let (x, y) = (b.x(&[4, 9]), b.x(&[9, 4]));
    let pair = |b: &mut Make, name: &str, p: (NodeId, NodeId), q: (NodeId, NodeId)| {
        let second = b.row(name, &[p.1, q.1]);
        (b.row(name, &[p.0, q.0]), second)
    };
    let top = (b.reduce(ReduceKind::Max, 0b10, true, x), b.reduce(ReduceKind::Max, 0b10, true, y));
    let below = pair(&mut b, "sub", (x, y), top);
    let second = b.row("exp", &[below.1]);
    let e = (b.row("exp", &[below.0]), second);
    let total = (b.sum(0b10, e.0), b.sum(0b10, e.1));
    let (u, v) = pair(&mut b, "div", e, total);
    b.out(u);
    b.out(v);
    let kernels = |m: &Make| {
        let mut all: Vec<String> = compiled(&m.g).plan.plan().steps.iter().map(|s| format!("{:?}", s.kind)).collect();
        all.sort();
        all
    };
    assert_eq!(kernels(&a), kernels(&b));
    assert_eq!(kernels(&a).len(), 2);
    check(&b.g, &[], 7);
}

#[test]
fn one_pass_for_several_reductions() {
    let mut m = Make::new();
    let (g, x) = (m.x(&[8, 5]), m.x(&[8, 5]));
    let a = m.reduce(ReduceKind::Sum, 0b01, false, g);
    let prod = m.row("mul", &[g, x]);
    let b = m.reduce(ReduceKind::Sum, 0b01, false, prod);
    let c = m.reduce(ReduceKind::Max, 0b01, false, g);
    for v in [a, b, c] {
        m.out(v);
    }
    assert_eq!(steps(&compiled(&m.g)), (1, 0));
    check(&m.g, &[], 8);
}

#[test]
fn an_update_of_one_parameter_is_one_kernel() {
    let mut m = Make::new();
    let (p, mo, vo, g) = (m.var(&[4, 4], 0), m.var(&[4, 4], 1), m.var(&[4, 4], 2), m.x(&[4, 4]));
    let rate = m.x(&[]);
    let a = m.with("mul", mo, 0.9);
    let b = m.with("mul", g, 0.1);
    let first = m.row("add", &[a, b]);
    let gg = m.row("mul", &[g, g]);
    let a = m.with("mul", vo, 0.999);
    let b = m.with("mul", gg, 0.001);
    let second = m.row("add", &[a, b]);
    let root = m.row("sqrt", &[second]);
    let root = m.with("add", root, 1e-8);
    let step = m.row("div", &[first, root]);
    let step = m.row("mul", &[step, rate]);
    let new = m.row("sub", &[p, step]);
    for v in [new, first, second] {
        m.out(v);
    }
    let c = compiled(&m.g);
    assert_eq!(steps(&c), (1, 0));
    let in_place: Vec<_> = c.plan.plan().outputs.iter().map(|o| o.in_place).collect();
    assert_eq!(in_place, [Some(0), Some(1), Some(2)]);
    check(&m.g, &[], 9);
}

#[test]
fn a_third_kernel_between_keeps_two_apart() {
    // x -> exp -> (matmul with itself) -> add exp: the matmul runs between exp and add.
    let mut m = Make::new();
    let x = m.x(&[4, 4]);
    let e = m.row("exp", &[x]);
    let p = m.matmul(e, e);
    let s = m.row("add", &[p, e]);
    m.out(s);
    assert_eq!(steps(&compiled(&m.g)), (2, 1));
    check(&m.g, &[], 10);
}

#[test]
fn long_chains_compile_quickly() {
    let mut m = Make::new();
    let (mut v, y) = (m.x(&[16]), m.x(&[16]));
    for i in 0..5000 {
        v = if i % 2 == 0 { m.row("neg", &[v]) } else { m.row("add", &[v, y]) };
    }
    m.out(v);
    let start = std::time::Instant::now();
    let c = compiled(&m.g);
    assert!(steps(&c).0 < 50);
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", c.timings);
}

#[test]
fn wide_graphs_compile_quickly() {
    // Columns of a mesh: each node reads its left and upper neighbours.
    let mut m = Make::new();
    let mut row: Vec<NodeId> = (0..50).map(|_| m.x(&[8, 8])).collect();
    for _ in 0..100 {
        for i in 0..row.len() {
            let left = row[i.saturating_sub(1)];
            row[i] = if i % 7 == 0 { m.matmul(row[i], left) } else { m.row("mul", &[row[i], left]) };
        }
    }
    for v in row {
        m.out(v);
    }
    let start = std::time::Instant::now();
    let c = compiled(&m.g);
    assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", c.timings);
}

#[test]
fn views_cost_no_kernel() {
    let mut m = Make::new();
    let x = m.x(&[4, 6]);
    let e = m.row("exp", &[x]);
    let t = m.permute(&[1, 0], e);
    let r = m.reshape(&[2, 2, 6], e);
    let s = m.op(Op::Slice { axis: 1, start: Scalar::i64(2).constant(), len: 2, step: 2 }, &[e]);
    for v in [t, r, s, e] {
        m.out(v);
    }
    let c = compiled(&m.g);
    assert_eq!(steps(&c), (1, 0));
    let storage: Vec<_> = c.plan.plan().outputs.iter().map(|o| o.storage).collect();
    use crate::plan::OutputStorage::{Output, Own};
    assert_eq!(storage, [Output(3), Output(3), Output(3), Own { bytes: 96 }]);
    check(&m.g, &[], 11);
}

#[test]
fn a_value_of_the_rows_can_fill_the_domain() {
    // sum over rows, written back at each point.
    let mut m = Make::new();
    let x = m.x(&[3, 4]);
    let s = m.sum(0b10, x);
    let e = m.op(Op::Expand { shape: shape(&[3, 4]) }, &[s]);
    let y = m.with("add", e, 1.0);
    m.out(y);
    check(&m.g, &[], 12);
}

#[test]
fn no_pass_knows_an_op_by_its_use() {
    let sources = [
        include_str!("../mod.rs"),
        include_str!("../simplify.rs"),
        include_str!("../fuse/mod.rs"),
        include_str!("../fuse/merge.rs"),
        include_str!("../fuse/inline.rs"),
        include_str!("../fuse/reads.rs"),
        include_str!("../fuse/space.rs"),
        include_str!("../lower/mod.rs"),
        include_str!("../lower/kernel.rs"),
    ];
    for s in sources {
        for name in ["softmax", "layer_norm", "gelu", "cross_entropy"] {
            assert!(!s.to_lowercase().contains(name), "{name}");
        }
    }
}

/// `-0 + 0` is 0; fast math takes it for the -0 that it began with.
#[test]
fn fast_math_drops_a_zero_that_is_added() {
    let mut m = Make::new();
    let x = m.x(&[4]);
    let y = m.with("add", x, 0.0);
    let z = m.row("sin", &[y]);
    m.out(z);
    let exact = compiled(&m.g);
    let fast = compile(&m.g, &Options { fast_math: true, ..Options::default() }).unwrap();
    let adds = |c: &Compiled| c.graph.to_string().matches("= add").count();
    assert_eq!((adds(&exact), adds(&fast)), (1, 0));
    assert!(fast.notes.iter().any(|n| n.to_string().contains("fast math")));
}
