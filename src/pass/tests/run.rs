//! Runs plans on the reference evaluator of kernels, in any order that their edges allow, in memory
//! full of rubbish; and graphs op by op, as the expectation.

use crate::base::dtype::NumberKind;
use crate::base::host::HostData;
use crate::base::scalar::{Origin, Scalar};
use crate::base::{DType, HostValue, Layout, Shape};
use crate::ir::{Graph, NodeOp};
use crate::kernel::eval::{self, Memory};
use crate::kernel::library::{Library, Lines, MATMUL_SLICE, Matmul, Operand, ScatterAdd};
use crate::op::Op;
use crate::plan::{OutputStorage, Plan, SlotKind, StepKind};

/// A small generator of test data (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }

    /// Mostly small halves, at times something special.
    pub fn float(&mut self) -> f32 {
        match self.below(40) {
            0 => -0.0,
            1 => f32::INFINITY,
            2 => f32::NAN,
            3 => 1e-40,
            _ => self.below(4001) as f32 / 500.0 - 4.0,
        }
    }
}

/// Values for the graph's inputs; i64 ones are indices, some out of range.
pub fn inputs(g: &Graph, seed: u64) -> Vec<HostValue> {
    let mut r = Random(seed | 1);
    let value = |i: &crate::ir::Input| {
        let ty = g.node(i.node).ty;
        let n = ty.shape.numel();
        let lane = |r: &mut Random| match ty.dtype.kind() {
            NumberKind::Float => Scalar::f32(r.float()),
            NumberKind::Int => Scalar::i64(r.below(9) as i64 - 2),
            NumberKind::Bool => Scalar::bool(r.below(2) == 1),
        };
        let lanes: Vec<u64> = (0..n).map(|_| lane(&mut r).cast(ty.dtype).bits).collect();
        let data = HostData::from_lanes(ty.dtype, &lanes);
        HostValue::new(ty.shape, data)
    };
    g.inputs().iter().map(value).collect()
}

/// The outputs by the reference of each op.
pub fn expected(g: &Graph, inputs: &[HostValue], params: &[u64]) -> Vec<HostValue> {
    let mut values: Vec<HostValue> = Vec::new();
    for v in g.ids() {
        let n = g.node(v);
        let value = match &n.op {
            NodeOp::Input(k) => inputs[*k as usize].clone(),
            NodeOp::Op(op) => {
                let bound = |s: Scalar| match s.origin {
                    Origin::Param(k) => Scalar { bits: params[k as usize], ..s },
                    _ => s,
                };
                let scalars: Vec<Scalar> = op.rules().scalars().into_iter().map(bound).collect();
                let op = op.rules().with_scalars(&scalars);
                let operands: Vec<HostValue> = n.operands.iter().map(|o| values[o.index()].clone()).collect();
                op.rules().eval(&operands).unwrap()
            }
        };
        assert_eq!(value.shape, n.ty.shape);
        values.push(value);
    }
    g.outputs().iter().map(|o| values[o.index()].clone()).collect()
}

/// Element positions of a layout, in row-major order.
fn positions(l: &Layout) -> Vec<usize> {
    let strides = l.shape.strides();
    let at = |i: usize| {
        let part = |a: usize| (i / strides[a] as usize % l.shape[a]) as isize * l.strides[a];
        (l.offset + (0..l.shape.rank()).map(part).sum::<isize>()) as usize
    };
    (0..l.shape.numel()).map(at).collect()
}

/// Runs a plan; `order` seeds the order of steps, `exclusive` lets outputs overwrite inputs.
pub fn run(plan: &Plan, inputs: &[HostValue], params: &[u64], order: u64, exclusive: bool) -> Vec<HostValue> {
    let mut r = Random(order | 1);
    let rubbish = |n: usize| vec![0xa5u8; n];
    let mut arena = rubbish(plan.arena_bytes);
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    for (input, value) in plan.inputs.iter().zip(inputs) {
        let size = input.ty.dtype.size();
        let mut bytes = rubbish(input.bytes);
        let data = value.data.to_bytes();
        for (i, p) in positions(&input.layout).into_iter().enumerate() {
            bytes[p * size..(p + 1) * size].copy_from_slice(&data[i * size..(i + 1) * size]);
        }
        buffers.push(bytes);
    }
    let own: Vec<Option<u32>> = plan.outputs.iter().map(|o| o.in_place.filter(|_| exclusive)).collect();
    let mut outputs: Vec<Vec<u8>> = plan
        .outputs
        .iter()
        .map(|o| match o.storage {
            OutputStorage::Own { bytes } => rubbish(bytes),
            _ => Vec::new(),
        })
        .collect();

    for s in random_order(plan, &mut r) {
        let step = &plan.steps[s];
        let slots: Vec<_> = step.args.iter().map(|&a| plan.slots[a as usize].clone()).collect();
        // Copies, so that a step sees its inputs as they were when it started.
        let fetch = |kind: SlotKind, bytes: usize, arena: &[u8], buffers: &[Vec<u8>], outputs: &[Vec<u8>]| match kind {
            SlotKind::Arena { offset } => arena[offset..offset + bytes].to_vec(),
            SlotKind::Input(i) => buffers[i as usize][..bytes].to_vec(),
            SlotKind::Output(o) => match own[o as usize] {
                Some(i) => buffers[i as usize][..bytes].to_vec(),
                None => outputs[o as usize][..bytes].to_vec(),
            },
        };
        let mut memory: Vec<Vec<u8>> =
            slots.iter().map(|slot| fetch(slot.kind, slot.bytes, &arena, &buffers, &outputs)).collect();
        let written: Vec<bool> = match &step.kind {
            StepKind::Kernel(k) => {
                let words: Vec<u64> = step.params.iter().map(|&p| params[p as usize]).collect();
                let mut args: Vec<Memory> = memory
                    .iter_mut()
                    .zip(&k.args)
                    .map(|(m, a)| if a.output { Memory::Out(m) } else { Memory::In(m) })
                    .collect();
                eval::run(k, &words, &mut args).unwrap();
                k.args.iter().map(|a| a.output).collect()
            }
            StepKind::Library(Library::Matmul(m)) => {
                matmul(m, &mut memory);
                vec![false, false, true]
            }
            StepKind::Library(Library::ScatterAdd(s)) => {
                scatter_add(s, &mut memory);
                vec![false, false, true]
            }
            StepKind::Library(call) => {
                let last = memory.len() - 1;
                memory[last] = along(call, &memory[..last]).unwrap();
                (0..=last).map(|i| i == last).collect()
            }
        };
        for ((slot, bytes), _) in slots.iter().zip(&memory).zip(&written).filter(|w| *w.1) {
            let target = match slot.kind {
                SlotKind::Arena { offset } => &mut arena[offset..],
                SlotKind::Input(_) => panic!("a step writes an input's slot"),
                SlotKind::Output(o) => match own[o as usize] {
                    Some(i) => &mut buffers[i as usize][..],
                    None => &mut outputs[o as usize][..],
                },
            };
            target[..bytes.len()].copy_from_slice(bytes);
        }
    }

    let storage = |k: usize| match own[k] {
        Some(i) => &buffers[i as usize],
        None => &outputs[k],
    };
    let read = |(k, o): (usize, &crate::plan::PlanOutput)| {
        let bytes = match o.storage {
            OutputStorage::Own { .. } => storage(k),
            OutputStorage::Input(i) => &buffers[i as usize],
            OutputStorage::Output(p) => storage(p as usize),
        };
        let size = o.ty.dtype.size();
        let data: Vec<u8> =
            positions(&o.layout).iter().flat_map(|p| bytes[p * size..(p + 1) * size].iter().copied()).collect();
        HostValue::new(o.ty.shape, HostData::from_bytes(o.ty.dtype, &data))
    };
    plan.outputs.iter().enumerate().map(read).collect()
}

/// Any order that the edges allow.
fn random_order(plan: &Plan, r: &mut Random) -> Vec<usize> {
    let n = plan.steps.len();
    let mut waiting = vec![0; n];
    for e in &plan.edges {
        waiting[e.1 as usize] += 1;
    }
    let mut ready: Vec<usize> = (0..n).filter(|&s| waiting[s] == 0).collect();
    let mut out = Vec::new();
    while !ready.is_empty() {
        let s = ready.swap_remove(r.below(ready.len()));
        out.push(s);
        for e in plan.edges.iter().filter(|e| e.0 as usize == s) {
            waiting[e.1 as usize] -= 1;
            if waiting[e.1 as usize] == 0 {
                ready.push(e.1 as usize);
            }
        }
    }
    assert_eq!(out.len(), n);
    out
}

/// What an op's reference evaluation makes of the operands of a call along an axis, whose result has `size` bytes an element.
fn along_axis(op: Op, inputs: &[(&[u8], DType, &Lines)], dims: [usize; 3]) -> Vec<u8> {
    let shape = Shape::new(&dims).unwrap();
    let value = |&(bytes, dtype, lines): &(&[u8], DType, &Lines)| {
        let mut layout = Layout::contiguous(shape);
        layout.offset = lines.offset as isize;
        (0..3).for_each(|a| layout.strides[a] = lines.strides[a] as isize);
        let size = dtype.size();
        let elements: Vec<u8> =
            positions(&layout).iter().flat_map(|&p| bytes[p * size..(p + 1) * size].to_vec()).collect();
        HostValue::new(shape, HostData::from_bytes(dtype, &elements))
    };
    let operands: Vec<HostValue> = inputs.iter().map(value).collect();
    op.rules().eval(&operands).unwrap().data.to_bytes()
}

/// The calls along an axis, by the ops they come from; `None`: another call.
fn along(call: &Library, operands: &[Vec<u8>]) -> Option<Vec<u8>> {
    Some(match call {
        Library::ScatterIndex(s) => {
            let op = Op::ScatterIndex { axis: 1, len: s.len };
            along_axis(op, &[(&operands[0], DType::I64, &s.index)], s.dims)
        }
        Library::Scan(s) => {
            let inputs: Vec<_> =
                operands.iter().zip(&s.inputs).map(|(bytes, l)| (bytes.as_slice(), s.dtype, l)).collect();
            along_axis(Op::Scan { kind: s.kind, axis: 1, reverse: s.reverse }, &inputs, s.dims)
        }
        Library::Argsort(s) => {
            let op = Op::Argsort { axis: 1, descending: s.descending };
            along_axis(op, &[(&operands[0], s.dtype, &s.input)], s.dims)
        }
        _ => return None,
    })
}

fn f32_at(m: &[u8], i: i64) -> f32 {
    let i = i as usize * 4;
    f32::from_ne_bytes(m[i..i + 4].try_into().unwrap())
}

fn matmul(m: &Matmul, memory: &mut [Vec<u8>]) {
    let batches: usize = m.batch.iter().product();
    for b in 0..batches {
        let start = |o: &Operand| {
            let mut rest = b;
            let mut at = o.offset;
            for (&len, &stride) in m.batch.iter().zip(&o.batch).rev() {
                at += (rest % len) as i64 * stride;
                rest /= len;
            }
            at
        };
        for i in 0..m.m as i64 {
            for j in 0..m.n as i64 {
                let mut total: Option<f32> = None;
                for slice in (0..m.k).step_by(MATMUL_SLICE) {
                    let mut sum = 0.0f32;
                    for l in slice as i64..(slice + MATMUL_SLICE).min(m.k) as i64 {
                        let a = f32_at(&memory[0], start(&m.a) + i * m.a.row + l * m.a.col);
                        let b = f32_at(&memory[1], start(&m.b) + l * m.b.row + j * m.b.col);
                        sum = a.mul_add(b, sum);
                    }
                    total = Some(total.map_or(sum, |t| t + sum));
                }
                let at = (start(&m.c) + i * m.c.row + j * m.c.col) as usize * 4;
                memory[2][at..at + 4].copy_from_slice(&total.unwrap_or(0.0).to_ne_bytes());
            }
        }
    }
}

fn scatter_add(s: &ScatterAdd, memory: &mut [Vec<u8>]) {
    let mut out = vec![0.0f32; s.outer * s.len * s.inner];
    for o in 0..s.outer {
        for j in 0..s.count {
            for i in 0..s.inner {
                let at = |st: &[i64; 3]| o as i64 * st[0] + j as i64 * st[1] + i as i64 * st[2];
                let p = at(&s.index) as usize * 8;
                let index = i64::from_ne_bytes(memory[0][p..p + 8].try_into().unwrap());
                let row = index.clamp(0, s.len as i64 - 1) as usize;
                out[(o * s.len + row) * s.inner + i] += f32_at(&memory[1], at(&s.src));
            }
        }
    }
    for (i, v) in out.iter().enumerate() {
        memory[2][i * 4..i * 4 + 4].copy_from_slice(&v.to_ne_bytes());
    }
}

/// Equal bits, any NaN equal to any other.
pub fn same(a: &HostValue, b: &HostValue) -> bool {
    a.shape == b.shape && a.data.difference(&b.data).is_none()
}

/// Compiles a graph in several ways, runs each plan in several orders, and compares with the reference.
#[track_caller]
pub fn check(g: &Graph, params: &[u64], seed: u64) {
    let values = inputs(g, seed);
    let want = expected(g, &values, params);
    let all = crate::pass::Options::default();
    let plans = [
        ("default", crate::pass::compile(g, &all).unwrap().plan),
        ("unfused", crate::pass::compile(g, &crate::pass::Options { fuse: false, ..all }).unwrap().plan),
        ("op by op", crate::pass::compile_op(g).unwrap()),
    ];
    for (name, plan) in plans {
        for order in 0..3 {
            let got = run(plan.plan(), &values, params, seed + order, order != 1);
            for (k, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!(
                    same(got, want),
                    "{name}, order {order}, output {k}: {got:?}\nexpected {want:?}\n{:#?}",
                    plan.plan()
                );
            }
        }
    }
}
