//! Fusion goes by the rules of ops, not by patterns: no pass knows a composition by its name, and how the user wrote
//! it down (the order of independent ops, what stands between them, names) does not change the kernels.

use std::path::Path;

use stepgraph::base::{DType, Layout, Loc, Scalar, Shape, Type};
use stepgraph::ir::{Graph, InputKind, NodeId};
use stepgraph::op::elementwise::{Elementwise, row};
use stepgraph::op::{Op, ReduceKind};
use stepgraph::pass::{Options, compile};

/// Source files under `dir`, tests (which name what they build) left out.
fn sources(dir: &Path, out: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "tests") {
                sources(&path, out);
            }
        } else {
            out.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn no_pass_names_a_composition() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pass"), &mut files);
    assert!(files.len() > 10, "{} files", files.len());
    for (path, text) in files {
        let text = text.to_lowercase().replace([' ', '_', '-'], "");
        for name in ["softmax", "layernorm", "gelu", "crossentropy"] {
            assert!(!text.contains(name), "{path} mentions {name}");
        }
    }
}

/// A graph under construction.
struct Make(Graph);

impl Make {
    fn new(name: &str) -> Make {
        Make(Graph::new(name))
    }

    fn x(&mut self, dims: &[usize]) -> NodeId {
        let ty = Type::new(DType::F32, Shape::new(dims).unwrap());
        self.0.input(ty, InputKind::External, Layout::contiguous(ty.shape), Loc::NONE)
    }

    fn row(&mut self, name: &str, operands: &[NodeId]) -> NodeId {
        self.0.op(Op::Elementwise(Elementwise::new(row(name).unwrap())), operands, Loc::NONE).unwrap()
    }

    fn with(&mut self, name: &str, x: NodeId, value: f32) -> NodeId {
        let scalar = Some((1, Scalar::f32(value).constant()));
        let op = Op::Elementwise(Elementwise { row: row(name).unwrap(), scalar });
        self.0.op(op, &[x], Loc::NONE).unwrap()
    }

    fn reduce(&mut self, kind: ReduceKind, x: NodeId) -> NodeId {
        self.0.op(Op::Reduce { kind, axes: 0b10, keepdim: true }, &[x], Loc::NONE).unwrap()
    }

    /// The kernels' text, sorted.
    fn kernels(mut self, outputs: &[NodeId]) -> Vec<String> {
        outputs.iter().for_each(|&o| self.0.output(o));
        let plan = compile(&self.0, &Options::default()).unwrap().plan.into_plan();
        let mut all: Vec<String> = plan.steps.iter().map(|s| format!("{:?}", s.kind)).collect();
        all.sort();
        all
    }
}

/// Exponentials over their sum, of rows.
const EXPONENTIALS: [fn(&mut Make, &mut Vec<NodeId>); 5] = [
    |m, v| v.push(m.reduce(ReduceKind::Max, v[0])),
    |m, v| v.push(m.row("sub", &[v[0], v[1]])),
    |m, v| v.push(m.row("exp", &[v[2]])),
    |m, v| v.push(m.reduce(ReduceKind::Sum, v[3])),
    |m, v| v.push(m.row("div", &[v[3], v[4]])),
];

/// Rows less their mean, over their deviation.
const DEVIATIONS: [fn(&mut Make, &mut Vec<NodeId>); 9] = [
    |m, v| v.push(m.reduce(ReduceKind::Sum, v[0])),
    |m, v| v.push(m.with("div", v[1], 8.0)),
    |m, v| v.push(m.row("sub", &[v[0], v[2]])),
    |m, v| v.push(m.row("mul", &[v[3], v[3]])),
    |m, v| v.push(m.reduce(ReduceKind::Sum, v[4])),
    |m, v| v.push(m.with("div", v[5], 8.0)),
    |m, v| v.push(m.with("add", v[6], 1e-5)),
    |m, v| v.push(m.row("sqrt", &[v[7]])),
    |m, v| v.push(m.row("div", &[v[3], v[8]])),
];

/// Ops of a chain: each appends its value to those before it; value 0 is the input.
type Chain<'a> = &'a [fn(&mut Make, &mut Vec<NodeId>)];

/// Two chains; `turns` says which of them goes on (what is left follows, `first` first).
fn woven(name: &str, first: Chain<'_>, second: Chain<'_>, turns: &[u8]) -> Vec<String> {
    let mut m = Make::new(name);
    let mut values = [vec![m.x(&[6, 8])], vec![m.x(&[5, 8])]];
    let rest = [0u8; 16].iter().chain(&[1u8; 16]);
    for &who in turns.iter().chain(rest) {
        let (chain, v) = ([first, second][who as usize], &mut values[who as usize]);
        if let Some(op) = chain.get(v.len() - 1) {
            op(&mut m, v);
        }
    }
    let last = |k: usize| *values[k].last().unwrap();
    let outputs = [last(0), last(1)];
    m.kernels(&outputs)
}

#[test]
fn interleaved_chains_compile_to_the_same_kernels() {
    let pairs: [(Chain<'_>, Chain<'_>); 4] = [
        (&EXPONENTIALS, &EXPONENTIALS),
        (&EXPONENTIALS, &DEVIATIONS),
        (&DEVIATIONS, &DEVIATIONS),
        (&DEVIATIONS, &[|m, v| v.push(m.row("tanh", &[v[0]])), |m, v| v.push(m.reduce(ReduceKind::Sum, v[1]))]),
    ];
    for (first, second) in pairs {
        let plain = woven("a", first, second, &[]);
        assert_eq!(plain.len(), 2, "a kernel for each chain: {plain:#?}");
        for turns in [&[1; 16][..], &[0, 1].repeat(9), &[1, 0].repeat(9), &[1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0]] {
            assert_eq!(woven("another", first, second, turns), plain, "{turns:?}");
        }
    }
}

/// Both forms from one input share a kernel, whose instructions stand in the order of the ops; so their number is compared.
#[test]
fn independent_ops_of_one_input_may_change_places() {
    let build = |order: &[u8]| {
        let mut m = Make::new("t");
        let x = m.x(&[6, 8]);
        let mut v = [vec![x], vec![x]];
        for &who in order {
            let chain: Chain<'_> = if who == 0 { &EXPONENTIALS } else { &DEVIATIONS };
            if let Some(op) = chain.get(v[who as usize].len() - 1) {
                op(&mut m, &mut v[who as usize]);
            }
        }
        let out = [v[0][5], v[1][9]];
        m.kernels(&out).len()
    };
    let one_after_the_other = [[0u8; 9], [1; 9]].concat();
    let plain = build(&one_after_the_other);
    for order in [[[1u8; 9], [0; 9]].concat(), [0, 1].repeat(9), [1, 0].repeat(9)] {
        assert_eq!(build(&order), plain, "{order:?}");
    }
}
