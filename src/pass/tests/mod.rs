//! Tests of the passes: what is fused, and that plans compute what the graph says.

#[cfg(test)]
mod fusion;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod random;
#[cfg(test)]
mod run;
#[cfg(test)]
mod training;

use crate::base::{DType, Layout, Loc, Scalar, Shape, Type};
use crate::ir::{Graph, InputKind, NodeId};
use crate::op::elementwise::{Elementwise, Row};
use crate::op::{AxisList, Op, ReduceKind};
use crate::pass::{Compiled, Options, compile};
use crate::plan::StepKind;

/// A graph under construction, with short names.
struct Make {
    g: Graph,
}

impl Make {
    fn new() -> Make {
        Make { g: Graph::new("test") }
    }

    fn input(&mut self, dtype: DType, dims: &[usize]) -> NodeId {
        let ty = Type::new(dtype, shape(dims));
        self.g.input(ty, InputKind::External, Layout::contiguous(ty.shape), Loc::NONE)
    }

    fn x(&mut self, dims: &[usize]) -> NodeId {
        self.input(DType::F32, dims)
    }

    /// An input whose elements lie as `layout` says.
    fn strided(&mut self, layout: Layout) -> NodeId {
        self.g.input(Type::new(DType::F32, layout.shape), InputKind::External, layout, Loc::NONE)
    }

    /// A `Var` input that output `written_by` replaces.
    fn var(&mut self, dims: &[usize], written_by: u32) -> NodeId {
        let ty = Type::new(DType::F32, shape(dims));
        let kind = InputKind::Var { written_by: Some(written_by) };
        self.g.input(ty, kind, Layout::contiguous(ty.shape), Loc::NONE)
    }

    fn op(&mut self, op: Op, operands: &[NodeId]) -> NodeId {
        self.g.op(op, operands, Loc::NONE).unwrap()
    }

    fn row(&mut self, name: &str, operands: &[NodeId]) -> NodeId {
        self.op(Op::Elementwise(Elementwise::new(named(name))), operands)
    }

    /// With a fixed number as the second operand.
    fn with(&mut self, name: &str, x: NodeId, value: f32) -> NodeId {
        let scalar = Some((1, Scalar::f32(value).constant()));
        self.op(Op::Elementwise(Elementwise { row: named(name), scalar }), &[x])
    }

    fn reduce(&mut self, kind: ReduceKind, axes: u8, keepdim: bool, x: NodeId) -> NodeId {
        self.op(Op::Reduce { kind, axes, keepdim }, &[x])
    }

    fn sum(&mut self, axes: u8, x: NodeId) -> NodeId {
        self.reduce(ReduceKind::Sum, axes, true, x)
    }

    fn reshape(&mut self, dims: &[usize], x: NodeId) -> NodeId {
        self.op(Op::Reshape { shape: shape(dims) }, &[x])
    }

    fn permute(&mut self, order: &[usize], x: NodeId) -> NodeId {
        self.op(Op::Permute { order: AxisList::new(order) }, &[x])
    }

    fn matmul(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.op(Op::Matmul, &[a, b])
    }

    fn softmax(&mut self, x: NodeId, axes: u8) -> NodeId {
        let top = self.reduce(ReduceKind::Max, axes, true, x);
        let below = self.row("sub", &[x, top]);
        let e = self.row("exp", &[below]);
        let total = self.sum(axes, e);
        self.row("div", &[e, total])
    }

    fn log_softmax(&mut self, x: NodeId, axes: u8) -> NodeId {
        let top = self.reduce(ReduceKind::Max, axes, true, x);
        let below = self.row("sub", &[x, top]);
        let e = self.row("exp", &[below]);
        let total = self.sum(axes, e);
        let log = self.row("log", &[total]);
        self.row("sub", &[below, log])
    }

    fn layer_norm(&mut self, x: NodeId, axes: u8, n: usize, scale: NodeId, shift: NodeId) -> NodeId {
        let total = self.sum(axes, x);
        let mean = self.with("div", total, n as f32);
        let centred = self.row("sub", &[x, mean]);
        let square = self.row("mul", &[centred, centred]);
        let total = self.sum(axes, square);
        let variance = self.with("div", total, n as f32);
        let variance = self.with("add", variance, 1e-5);
        let deviation = self.row("sqrt", &[variance]);
        let unit = self.row("div", &[centred, deviation]);
        let scaled = self.row("mul", &[unit, scale]);
        self.row("add", &[scaled, shift])
    }

    fn out(&mut self, v: NodeId) {
        self.g.output(v);
    }
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn named(name: &str) -> &'static Row {
    crate::op::elementwise::row(name).unwrap()
}

fn compiled(g: &Graph) -> Compiled {
    compile(g, &Options::default()).unwrap()
}

/// (kernels, library calls) of the plan.
fn steps(c: &Compiled) -> (usize, usize) {
    let steps = &c.plan.plan().steps;
    let kernels = steps.iter().filter(|s| matches!(s.kind, StepKind::Kernel(_))).count();
    (kernels, steps.len() - kernels)
}
