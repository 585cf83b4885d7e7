//! Hand-computed graphs.

use crate::base::host::HostData;
use crate::base::{DType, ErrorKind, HostValue, Shape};
use crate::interp::{Precision, run};

fn f32s(dims: &[usize], values: &[f32]) -> HostValue {
    HostValue::new(Shape::new(dims).unwrap(), HostData::F32(values.to_vec()))
}

#[test]
fn a_small_step() {
    let text = "graph @t(%x: f32[2,2], %w: f32[2,1]) params($0: f32, $1: i64) {
  %0: f32[2,1] = matmul %x, %w
  %1: f32[2,1] = mul(scalar1=$0) %0
  %2: f32[1,1] = slice(axis=0, start=$1, len=1, step=1) %1
  %3: f32[] = sum(axes=[0,1]) %1
  return %2, %3
}";
    let graph = crate::ir::parse::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let inputs = [f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), f32s(&[2, 1], &[10.0, 100.0])];
    let out = run(&graph, &inputs, &[0.5f32.to_bits() as u64, 1], Precision::Exact).unwrap();
    assert_eq!(out, [f32s(&[1, 1], &[215.0]), f32s(&[], &[320.0])]);
    let out = run(&graph, &inputs, &[2f32.to_bits() as u64, 0], Precision::F64).unwrap();
    assert_eq!(out[0].data, HostData::Real(DType::F32, vec![420.0]));
    assert_eq!(out[1].data, HostData::Real(DType::F32, vec![1280.0]));
    let far = run(&graph, &inputs, &[0, 2], Precision::Exact).unwrap_err();
    assert!(matches!(far.kind(), ErrorKind::Argument { op: "slice", .. }), "{far}");
    assert!(run(&graph, &inputs, &[], Precision::Exact).is_err());
}

#[test]
fn a_value_outlives_its_last_reader_if_it_is_an_output() {
    let text = "graph @t(%x: f32[2]) {
  %0: f32[2] = neg %x
  %1: f32[2] = exp %0
  return %0, %x, %1, %0
}";
    let graph = crate::ir::parse::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let x = f32s(&[2], &[-0.0, 0.0]);
    let out = run(&graph, std::slice::from_ref(&x), &[], Precision::Exact).unwrap();
    assert_eq!(out[1], x);
    assert_eq!(out[2], f32s(&[2], &[1.0, 1.0]));
    assert_eq!(out[0], out[3]);
}
