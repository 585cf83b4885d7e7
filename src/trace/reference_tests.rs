//! That verification can fail.

use super::Reference;
use crate::base::{DType, ErrorKind, Layout, Loc, Shape, Type};
use crate::ir::{Graph, InputKind};
use crate::op::elementwise::{Elementwise, math};
use crate::op::{Op, Row};
use crate::tensor::{Device, Tensor};

fn op(row: &'static Row) -> Op {
    Op::Elementwise(Elementwise::new(row))
}

/// The reference of `exp` of two numbers.
fn exp_of(device: &Device) -> Reference {
    let mut graph = Graph::new("test");
    let shape = Shape::new(&[2]).unwrap();
    let x = graph.input(Type::new(DType::F32, shape), InputKind::External, Layout::contiguous(shape), Loc::NONE);
    let y = graph.op(op(&math::EXP), &[x], Loc::NONE).unwrap();
    graph.output(y);
    Reference { graph, device: device.clone() }
}

#[test]
fn a_launch_that_gives_other_bits_is_told() {
    let device = Device::cpu();
    let reference = exp_of(&device);
    let tensor = |v: &[f32]| Tensor::from_slice(v, [2], &device).unwrap();
    let x = tensor(&[0.5, f32::NAN]);
    let ready = x.ready_state().unwrap();
    let binding = crate::backend::InputBinding {
        buffer: &ready.buffer,
        layout: &ready.layout,
        dtype: DType::F32,
        exclusive: false,
    };
    let expected = reference.evaluate(&[binding], &[]).unwrap();
    let right = x.exp().unwrap();
    reference.compare(0, &expected[0], right.ready_state().unwrap()).unwrap();
    let e = right.to_vec::<f32>().unwrap()[0];
    let wrong = tensor(&[f32::from_bits(e.to_bits() ^ 1), f32::NAN]);
    let error = reference.compare(0, &expected[0], wrong.ready_state().unwrap()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Bug { .. }), "{error}");
}
