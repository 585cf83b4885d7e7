//! Small random graphs with many live values: pointwise ops, reductions, products, views, gathers, several outputs,
//! some of them the new values of `Var`s.

use stepgraph::base::host::HostData;
use stepgraph::base::{DType, HostValue, Layout, Loc, Scalar, Shape, Type};
use stepgraph::ir::{Graph, InputKind, NodeId};
use stepgraph::op::elementwise::{Elementwise, row};
use stepgraph::op::samples::Random;
use stepgraph::op::{AxisList, Op, ReduceKind, ScanKind};

/// A graph with inputs.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<HostValue>,
    pub params: Vec<u64>,
    pub random: Random,
}

pub fn below(r: &mut Random, n: usize) -> usize {
    (r.next_u64() >> 11) as usize % n.max(1)
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

pub fn case(seed: u64) -> Case {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        r.next_u64();
    }
    let mut g = Graph::new("random");
    // Few lengths, so that shapes often agree; some slots take one unit of 64 bytes, some two.
    let lengths = [[2, 3], [4, 4], [4, 5], [3, 8]][below(&mut r, 4)];
    let mut nodes: Vec<NodeId> = Vec::new();
    let vars = below(&mut r, 3);
    for k in 0..vars + 1 + below(&mut r, 2) {
        let dims: Vec<usize> = (0..1 + below(&mut r, 2)).map(|_| lengths[below(&mut r, 2)]).collect();
        let ty = Type::new(DType::F32, shape(&dims));
        let kind = if k < vars { InputKind::Var { written_by: None } } else { InputKind::External };
        let layout = if k >= vars && dims.len() == 2 && below(&mut r, 3) == 0 {
            let whole = Layout::contiguous(shape(&[dims[1], dims[0]])).permute(&[1, 0]);
            Layout { offset: 3, ..whole }
        } else {
            Layout::contiguous(ty.shape)
        };
        nodes.push(g.input(ty, kind, layout, Loc::NONE));
    }
    for _ in 0..4 + below(&mut r, 14) {
        if let Some(v) = step(&mut g, &mut r, &nodes)
            && (1..=64).contains(&g.node(v).ty.shape.numel())
        {
            nodes.push(v);
        }
    }
    // New values of the `Var`s: any computed value of their type.
    let mut written = Vec::new();
    for k in 0..vars {
        let ty = g.node(nodes[k]).ty;
        let fits: Vec<NodeId> = nodes[vars..].iter().copied().filter(|&v| g.node(v).ty == ty).collect();
        let value = if fits.is_empty() {
            let double = Op::Elementwise(Elementwise::new(row("add").unwrap()));
            g.op(double, &[nodes[k], nodes[k]], Loc::NONE).unwrap()
        } else {
            fits[fits.len() - 1 - below(&mut r, fits.len().min(3))]
        };
        if !written.contains(&value) {
            written.push(value);
            g.output(value);
            let by = g.outputs().len() as u32 - 1;
            g.set_input_kind(k, InputKind::Var { written_by: Some(by) }).unwrap();
        }
    }
    for _ in 0..1 + below(&mut r, 3) {
        g.output(nodes[nodes.len() - 1 - below(&mut r, nodes.len().min(5))]);
    }
    g.output(nodes[nodes.len() - 1]);
    let inputs = g.inputs().iter().map(|i| {
        let ty = g.node(i.node).ty;
        let n = ty.shape.numel();
        let data = match ty.dtype {
            DType::I64 => HostData::I64((0..n).map(|_| below(&mut r, 3) as i64).collect()),
            // No two alike, so that a value in a wrong place shows.
            _ => HostData::F32((0..n).map(|_| (r.unit() * 3.0 - 1.0) as f32).collect()),
        };
        HostValue::new(ty.shape, data)
    });
    let inputs = inputs.collect();
    Case { graph: g, inputs, params: Vec::new(), random: r }
}

/// One more operation; `None` if what was drawn does not fit.
fn step(g: &mut Graph, r: &mut Random, nodes: &[NodeId]) -> Option<NodeId> {
    let x = nodes[nodes.len() - 1 - below(r, nodes.len()).min(below(r, nodes.len()))];
    let y = nodes[below(r, nodes.len())];
    let dims = g.node(x).ty.shape.dims().to_vec();
    let rank = dims.len();
    let axis = below(r, rank.max(1));
    let named = |name: &str| Elementwise::new(row(name).unwrap());
    let op = match below(r, 18) {
        0..=2 => Op::Elementwise(named(["neg", "tanh", "sin", "cos"][below(r, 4)])),
        3..=6 => return g.op(Op::Elementwise(named(["add", "sub", "mul"][below(r, 3)])), &[x, y], Loc::NONE).ok(),
        7 => Op::Elementwise(Elementwise { scalar: Some((1, Scalar::f32(0.75).constant())), ..named("mul") }),
        8..=9 => {
            let axes = if rank == 0 { 0 } else { 1 + below(r, (1 << rank) - 1) as u8 };
            let kind = [ReduceKind::Sum, ReduceKind::Max][below(r, 2)];
            Op::Reduce { kind, axes, keepdim: below(r, 2) == 0 }
        }
        10 if rank == 2 => Op::Permute { order: AxisList::new(&[1, 0]) },
        10 => Op::Reshape { shape: shape(&[dims.iter().product::<usize>(), 1]) },
        11..=12 => {
            if rank != 2 {
                return None;
            }
            if let Ok(v) = g.op(Op::Matmul, &[x, y], Loc::NONE) {
                return Some(v);
            }
            let t = g.op(Op::Permute { order: AxisList::new(&[1, 0]) }, &[x], Loc::NONE).ok()?;
            return g.op(Op::Matmul, &[x, t], Loc::NONE).ok();
        }
        13 => {
            if rank == 0 || dims[axis] < 2 {
                return None;
            }
            let start = below(r, 2) as i64;
            Op::Slice {
                axis: axis as u8,
                start: Scalar::i64(start).constant(),
                len: dims[axis] - 1,
                step: [1, -1][below(r, 2)],
            }
        }
        14 => {
            if rank == 0 {
                return None;
            }
            return g.op(Op::Concat { axis: axis as u8 }, &[x, y], Loc::NONE).ok();
        }
        15..=16 => {
            if rank == 0 {
                return None;
            }
            let (axis, turned) = (axis as u8, below(r, 2) == 0);
            if below(r, 2) == 0 {
                let order = g.op(Op::Argsort { axis, descending: turned }, &[x], Loc::NONE).ok()?;
                return g.op(Op::Cast(DType::F32), &[order], Loc::NONE).ok();
            }
            if let Ok(v) = g.op(Op::Scan { kind: ScanKind::Recurrence, axis, reverse: turned }, &[y, x], Loc::NONE) {
                return Some(v);
            }
            Op::Scan { kind: ScanKind::Sum, axis, reverse: turned }
        }
        _ => {
            if rank == 0 || dims[axis] == 0 {
                return None;
            }
            let ty = Type::new(DType::I64, shape(&dims));
            let index = g.input(ty, InputKind::External, Layout::contiguous(ty.shape), Loc::NONE);
            if below(r, 3) == 0 {
                let last = g.op(Op::ScatterIndex { axis: axis as u8, len: 3 }, &[index], Loc::NONE).ok()?;
                return g.op(Op::Cast(DType::F32), &[last], Loc::NONE).ok();
            }
            if below(r, 2) == 0 {
                return g.op(Op::ScatterAdd { axis: axis as u8, len: 3 }, &[index, x], Loc::NONE).ok();
            }
            return g.op(Op::Gather { axis: axis as u8 }, &[x, index], Loc::NONE).ok();
        }
    };
    g.op(op, &[x], Loc::NONE).ok()
}
