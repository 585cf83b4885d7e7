//! Random graphs: training-like, with `Var`s that outputs overwrite, views, library calls, several outputs.

use stepgraph::base::host::HostData;
use stepgraph::base::scalar::Origin;
use stepgraph::base::{DType, HostValue, Layout, Loc, Scalar, Shape, Type};
use stepgraph::ir::{Graph, InputKind, NodeId};
use stepgraph::op::elementwise::{Elementwise, row};
use stepgraph::op::samples::Random;
use stepgraph::op::{AxisList, Op, ReduceKind};

struct Grow {
    graph: Graph,
    random: Random,
    nodes: Vec<NodeId>,
    params: Vec<u64>,
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

impl Grow {
    fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    fn dims(&self, v: NodeId) -> Vec<usize> {
        self.graph.node(v).ty.shape.dims().to_vec()
    }

    /// A float value, the newest ones more often.
    fn pick(&mut self) -> NodeId {
        let n = self.nodes.len();
        let back = self.below(n).min(self.below(n));
        self.nodes[n - 1 - back]
    }

    fn input(&mut self, dtype: DType, dims: &[usize], kind: InputKind) -> NodeId {
        let ty = Type::new(dtype, shape(dims));
        let layout = if dims.len() == 2 && self.below(4) == 0 {
            let turned = Layout::contiguous(shape(&[dims[1], dims[0]])).permute(&[1, 0]);
            Layout { offset: 3, ..turned }
        } else {
            Layout::contiguous(ty.shape)
        };
        self.graph.input(ty, kind, layout, Loc::NONE)
    }

    fn row(&mut self, name: &str, operands: &[NodeId]) -> Option<NodeId> {
        self.graph.op(Op::Elementwise(Elementwise::new(row(name).unwrap())), operands, Loc::NONE).ok()
    }

    fn param(&mut self, dtype: DType, bits: u64) -> Scalar {
        let k = self.graph.param(dtype);
        self.params.push(bits);
        Scalar { bits: 0, dtype, origin: Origin::Param(k) }
    }

    fn step(&mut self) -> Option<NodeId> {
        let x = self.pick();
        let dims = self.dims(x);
        let rank = dims.len();
        let axis = self.below(rank);
        let op = match self.below(20) {
            0..4 => {
                let name = ["neg", "tanh", "relu", "sin"][self.below(4)];
                return self.row(name, &[x]);
            }
            4..9 => {
                let y = self.pick();
                let name = ["add", "sub", "mul", "maximum"][self.below(4)];
                return self.row(name, &[x, y]);
            }
            9 => {
                let s = self.param(DType::F32, 0.5f32.to_bits() as u64);
                Op::Elementwise(Elementwise { row: row("mul").unwrap(), scalar: Some((1, s)) })
            }
            10..12 => {
                let kind = [ReduceKind::Sum, ReduceKind::Max][self.below(2)];
                let axes = 1 + self.below((1 << rank) - 1) as u8;
                Op::Reduce { kind, axes, keepdim: self.below(2) == 0 }
            }
            12 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(1.min(rank));
                Op::Permute { order: AxisList::new(&order) }
            }
            13 => Op::Reshape { shape: shape(&[dims.iter().product()]) },
            14 if rank > 0 && dims[axis] > 1 => {
                let len = dims[axis] / 2 + 1;
                let start = self.below(dims[axis] - len + 1);
                let start = if self.below(2) == 0 {
                    Scalar::i64(start as i64).constant()
                } else {
                    self.param(DType::I64, start as u64)
                };
                Op::Slice { axis: axis as u8, start, len, step: 1 }
            }
            15 if rank > 0 => {
                let y = self.row("neg", &[x])?;
                let op = Op::Concat { axis: axis as u8 };
                return self.graph.op(op, &[x, y], Loc::NONE).ok();
            }
            16 | 17 if rank >= 2 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 1, rank - 2);
                let t = self.graph.op(Op::Permute { order: AxisList::new(&order) }, &[x], Loc::NONE).ok()?;
                let pair = if self.below(2) == 0 { [x, t] } else { [t, x] };
                return self.graph.op(Op::Matmul, &pair, Loc::NONE).ok();
            }
            18 if rank > 0 => {
                let mut at = dims.clone();
                at[axis] = 1 + self.below(3);
                let index = self.input(DType::I64, &at, InputKind::External);
                let picked = self.graph.op(Op::Gather { axis: axis as u8 }, &[x, index], Loc::NONE).ok()?;
                let op = Op::ScatterAdd { axis: axis as u8, len: dims[axis] };
                return if self.below(2) == 0 {
                    Some(picked)
                } else {
                    self.graph.op(op, &[index, picked], Loc::NONE).ok()
                };
            }
            _ if rank > 0 => {
                // Softmax over one axis.
                let axes = 1 << axis;
                let reduce =
                    |g: &mut Grow, kind, v| g.graph.op(Op::Reduce { kind, axes, keepdim: true }, &[v], Loc::NONE).ok();
                let top = reduce(self, ReduceKind::Max, x)?;
                let below = self.row("sub", &[x, top])?;
                let e = self.row("exp", &[below])?;
                let total = reduce(self, ReduceKind::Sum, e)?;
                return self.row("div", &[e, total]);
            }
            _ => return None,
        };
        self.graph.op(op, &[x], Loc::NONE).ok()
    }
}

/// Graph number `seed`, values for its inputs, and the words of its parameters.
pub fn graph(seed: u64) -> (Graph, Vec<HostValue>, Vec<u64>) {
    let mut g = Grow { graph: Graph::new(format!("g{seed}")), random: Random(seed), nodes: vec![], params: vec![] };
    let lengths = [2, 3, 4, 5, 7, 16];
    let (m, n) = (lengths[g.below(6)], lengths[g.below(6)]);
    let shapes: [&[usize]; 5] = [&[m, n], &[n], &[m, 1], &[m, n], &[2, m, n]];
    let vars = 1 + g.below(3);
    let mut var_inputs = Vec::new();
    for _ in 0..vars {
        let dims = shapes[g.below(5)];
        let v = g.input(DType::F32, dims, InputKind::Var { written_by: None });
        g.nodes.push(v);
        var_inputs.push(v);
    }
    for _ in 0..1 + g.below(2) {
        let dims = shapes[g.below(5)];
        let v = g.input(DType::F32, dims, InputKind::External);
        g.nodes.push(v);
    }
    for _ in 0..4 + g.below(20) {
        if let Some(v) = g.step()
            && g.graph.node(v).ty.shape.numel() <= 400
        {
            g.nodes.push(v);
        }
    }
    for _ in 0..1 + g.below(3) {
        let v = g.pick();
        g.graph.output(v);
    }
    // Updates: the new value of a `Var` is computed from it and a value that broadcasts to it.
    for v in var_inputs {
        let new = (0..8).find_map(|_| {
            let by = g.pick();
            let new = g.row("sub", &[v, by])?;
            (g.graph.node(new).ty == g.graph.node(v).ty).then_some(new)
        });
        if let Some(new) = new {
            let at = g.graph.outputs().len() as u32;
            g.graph.output(new);
            let position = g.graph.inputs().iter().position(|i| i.node == v).unwrap();
            g.graph.set_input_kind(position, InputKind::Var { written_by: Some(at) }).unwrap();
        }
    }
    let inputs = g.graph.inputs().to_vec();
    let values = inputs
        .iter()
        .map(|i| {
            let ty = g.graph.node(i.node).ty;
            let numel = ty.shape.numel();
            let data = match ty.dtype {
                DType::I64 => HostData::I64((0..numel).map(|_| g.below(2) as i64).collect()),
                _ => HostData::F32((0..numel).map(|_| (g.random.unit() * 4.0 - 2.0) as f32).collect()),
            };
            HostValue::new(ty.shape, data)
        })
        .collect();
    (g.graph, values, g.params)
}
