//! Random graphs: whatever the passes make of them, the numbers are those of the graph.

use super::run::{Random, check};
use super::*;
use crate::op::ScanKind;

struct Grow {
    m: Make,
    r: Random,
    nodes: Vec<NodeId>,
    params: Vec<u64>,
}

impl Grow {
    fn ty(&self, v: NodeId) -> Type {
        self.m.g.node(v).ty
    }

    fn dims(&mut self) -> Vec<usize> {
        let rank = self.r.below(4);
        (0..rank).map(|_| [1, 2, 3, 5, 7, 0, 4, 2, 3][self.r.below(9)]).collect()
    }

    fn pick(&mut self, dtype: DType) -> NodeId {
        let all: Vec<NodeId> = self.nodes.iter().copied().filter(|&v| self.ty(v).dtype == dtype).collect();
        // The newest ones more often, so that chains grow.
        let i = all.len() - 1 - self.r.below(all.len()).min(self.r.below(all.len()));
        all[i]
    }

    fn param(&mut self, dtype: DType, bits: u64) -> Scalar {
        let k = self.m.g.param(dtype);
        self.params.push(bits);
        // The value at recording is another one.
        Scalar { bits: 0, dtype, origin: crate::base::scalar::Origin::Param(k) }
    }

    fn number(&mut self) -> Scalar {
        let v = [1.0, 0.0, 0.5, -2.0, 1.0][self.r.below(5)];
        if self.r.below(2) == 0 { Scalar::f32(v).constant() } else { self.param(DType::F32, v.to_bits() as u64) }
    }

    fn start(&mut self, most: usize) -> Scalar {
        let v = self.r.below(most + 1) as i64;
        if self.r.below(2) == 0 { Scalar::i64(v).constant() } else { self.param(DType::I64, v as u64) }
    }

    fn index(&mut self, dims: &[usize]) -> NodeId {
        self.m.input(DType::I64, dims)
    }

    /// One more operation; `None` if what was drawn does not fit.
    fn step(&mut self) -> Option<NodeId> {
        let x = self.pick(DType::F32);
        let s = self.ty(x).shape;
        let dims = s.dims().to_vec();
        let rank = dims.len();
        let axis = self.r.below(rank.max(1));
        let loc = Loc::NONE;
        let op = match self.r.below(26) {
            0..=3 => {
                let name = ["neg", "exp", "tanh", "relu", "sqrt", "abs", "log", "sin"][self.r.below(8)];
                return Some(self.m.row(name, &[x]));
            }
            4..=7 => {
                let y = self.pick(DType::F32);
                let name = ["add", "sub", "mul", "div", "maximum"][self.r.below(5)];
                return self.m.g.op(Op::Elementwise(Elementwise::new(named(name))), &[x, y], loc).ok();
            }
            8 | 9 => {
                let name = ["add", "mul", "div", "sub"][self.r.below(4)];
                let scalar = Some((self.r.below(2) as u8, self.number()));
                Op::Elementwise(Elementwise { row: named(name), scalar })
            }
            10 => {
                let y = self.pick(DType::F32);
                let c = self.m.g.op(Op::Elementwise(Elementwise::new(named("lt"))), &[x, y], loc).ok()?;
                return self.m.g.op(Op::Elementwise(Elementwise::new(named("select"))), &[c, x, y], loc).ok();
            }
            11..=13 => {
                let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Sum][self.r.below(3)];
                let axes = if rank == 0 { 0 } else { 1 + self.r.below((1 << rank) - 1) as u8 };
                Op::Reduce { kind, axes, keepdim: self.r.below(2) == 0 }
            }
            14 => {
                if rank == 0 || dims[axis] == 0 {
                    return None;
                }
                let axes = 1 << axis;
                return Some(self.m.softmax(x, axes));
            }
            15 | 16 => {
                let mut to = dims.clone();
                match self.r.below(4) {
                    0 => to = vec![s.numel()],
                    1 if rank >= 2 => {
                        let merged = to.remove(axis.min(rank - 2));
                        to[axis.min(rank - 2)] *= merged;
                    }
                    2 if rank >= 1 && to[axis].is_multiple_of(2) => {
                        to[axis] /= 2;
                        to.insert(axis, 2);
                    }
                    _ => to.insert(axis.min(rank), 1),
                }
                Op::Reshape { shape: Shape::new(&to).ok()? }
            }
            17 => {
                let mut order: Vec<usize> = (0..rank).collect();
                for i in (1..rank).rev() {
                    let j = self.r.below(i + 1);
                    order.swap(i, j);
                }
                Op::Permute { order: AxisList::new(&order) }
            }
            18 => {
                let mut to: Vec<usize> = dims.iter().map(|&d| if d == 1 { 3 } else { d }).collect();
                if self.r.below(2) == 0 {
                    to.insert(0, 2);
                }
                Op::Expand { shape: Shape::new(&to).ok()? }
            }
            19 => {
                if rank == 0 || dims[axis] == 0 {
                    return None;
                }
                let step = 1 + self.r.below(2);
                let len = 1 + self.r.below(dims[axis].div_ceil(step));
                let start = self.start(dims[axis] - ((len - 1) * step + 1));
                let step = if self.r.below(3) == 0 { -(step as isize) } else { step as isize };
                Op::Slice { axis: axis as u8, start, len, step }
            }
            20 => {
                if rank == 0 {
                    return None;
                }
                let reach = dims[axis].saturating_sub(1) * 2 + 1;
                let len = reach + self.r.below(3);
                let start = self.start(len - reach);
                Op::Unslice { axis: axis as u8, start, len, step: if self.r.below(3) == 0 { -2 } else { 2 } }
            }
            21 => {
                let y = self.m.row("neg", &[x]);
                if rank == 0 {
                    return None;
                }
                let z = self.pick(DType::F32);
                let op = Op::Concat { axis: axis as u8 };
                return self.m.g.op(op, &[x, y, z], loc).or_else(|_| self.m.g.op(op, &[x, y], loc)).ok();
            }
            22 => {
                if rank < 2 {
                    return None;
                }
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 1, rank - 2);
                let t = self.m.permute(&order, x);
                return Some(if self.r.below(2) == 0 { self.m.matmul(x, t) } else { self.m.matmul(t, x) });
            }
            23 => {
                if rank == 0 {
                    return None;
                }
                let (axis, turned) = (axis as u8, self.r.below(2) == 0);
                match self.r.below(4) {
                    0 => {
                        let order = self.m.g.op(Op::Argsort { axis, descending: turned }, &[x], loc).ok()?;
                        return self.m.g.op(Op::Gather { axis }, &[x, order], loc).ok();
                    }
                    1 => Op::Scan { kind: ScanKind::Product, axis, reverse: turned },
                    2 => {
                        let op = Op::Scan { kind: ScanKind::Recurrence, axis, reverse: turned };
                        let y = self.m.row("tanh", &[x]);
                        return self.m.g.op(op, &[y, x], loc).ok();
                    }
                    _ => Op::Scan { kind: ScanKind::Sum, axis, reverse: turned },
                }
            }
            24 => {
                let axes = if rank == 0 { 0 } else { 1 + self.r.below((1 << rank) - 1) as u8 };
                let places = self.m.g.op(Op::Iota { shape: s, axes }, &[], loc).ok()?;
                let places = self.m.g.op(Op::Cast(DType::F32), &[places], loc).ok()?;
                let add = Op::Elementwise(Elementwise::new(named("add")));
                return self.m.g.op(add, &[places, x], loc).ok();
            }
            _ => {
                if rank == 0 || dims[axis] == 0 {
                    let (seed, counter) = (self.param(DType::I64, 77), self.param(DType::I64, 5));
                    return self
                        .m
                        .g
                        .op(Op::Random { draw: crate::op::random::Draw::Uniform, shape: s, seed, counter }, &[], loc)
                        .ok();
                }
                let mut at = dims.clone();
                at[axis] = [1, 2, dims[axis]][self.r.below(3)];
                let index = self.index(&at);
                if self.r.below(4) == 0 {
                    let op = Op::ScatterIndex { axis: axis as u8, len: 1 + self.r.below(5) };
                    let last = self.m.g.op(op, &[index], loc).ok()?;
                    return self.m.g.op(Op::Cast(DType::F32), &[last], loc).ok();
                }
                if self.r.below(3) == 0 && at == dims {
                    let op = Op::ScatterAdd { axis: axis as u8, len: 1 + self.r.below(5) };
                    return self.m.g.op(op, &[index, x], loc).ok();
                }
                return self.m.g.op(Op::Gather { axis: axis as u8 }, &[x, index], loc).ok();
            }
        };
        self.m.g.op(op, &[x], loc).ok()
    }
}

fn graph(seed: u64, steps: usize) -> (Graph, Vec<u64>) {
    let r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut g = Grow { m: Make::new(), r, nodes: Vec::new(), params: Vec::new() };
    for _ in 0..20 {
        g.r.next();
    }
    for _ in 0..1 + g.r.below(3) {
        let dims = g.dims();
        let x = if g.r.below(3) == 0 && dims.len() == 2 {
            // A transposed input that begins later in its buffer.
            let whole = Layout::contiguous(shape(&[dims[1], dims[0]])).permute(&[1, 0]);
            g.m.strided(Layout { offset: 3, ..whole })
        } else {
            g.m.x(&dims)
        };
        g.nodes.push(x);
    }
    let full = g.number();
    let s = shape(&g.dims());
    let full = g.m.op(Op::Full { shape: s, value: full }, &[]);
    g.nodes.push(full);
    for _ in 0..steps {
        if let Some(v) = g.step()
            && g.ty(v).shape.numel() <= 500
        {
            g.nodes.push(v);
        }
    }
    for _ in 0..1 + g.r.below(4) {
        let v = g.pick(DType::F32);
        g.m.out(v);
    }
    let last = g.nodes[g.nodes.len() - 1];
    g.m.out(last);
    (g.m.g, g.params)
}

#[test]
fn random_graphs_keep_their_numbers() {
    // More of them, and others, were run by hand; these keep the test short.
    let (from, count) = (1, 150);
    for seed in from..from + count {
        let (g, params) = graph(seed, 3 + seed as usize % 25);
        let done = std::panic::catch_unwind(|| check(&g, &params, seed));
        assert!(done.is_ok(), "graph {seed}:\n{g}");
    }
}
