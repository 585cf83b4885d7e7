//! What users rely on at the edges: messages, special values, known draws, the shape of library calls.

use crate::base::host::HostData;
use crate::base::{DType, HostValue, Layout, Scalar, Shape, Type};
use crate::kernel::library::Library;
use crate::op::elementwise::{Elementwise, row};
use crate::op::random::Draw;
use crate::op::{AxisList, Op, ReduceKind};

fn ty(dtype: DType, dims: &[usize]) -> Type {
    Type::new(dtype, Shape::new(dims).unwrap())
}

fn f32s(values: &[f32]) -> HostValue {
    HostValue::new(Shape::new(&[values.len()]).unwrap(), HostData::F32(values.to_vec()))
}

fn elementwise(name: &str) -> Op {
    Op::Elementwise(Elementwise::new(row(name).unwrap()))
}

#[track_caller]
fn refused(op: Op, operands: &[Type], message: &str) {
    let e = op.rules().infer(operands).expect_err("accepted").to_string();
    assert!(e.contains(message), "{e}");
}

#[test]
fn errors_say_what_was_expected_and_given() {
    let f = |dims: &[usize]| ty(DType::F32, dims);
    let i = |dims: &[usize]| ty(DType::I64, dims);
    let add = elementwise("add");
    refused(
        add,
        &[f(&[2, 3]), f(&[4])],
        "add: expected shapes that broadcast (trailing axes equal or 1) with [2,3], got [4]",
    );
    refused(add, &[f(&[2]), i(&[2])], "add: expected f32 like operand 0, got i64; cast with");
    refused(add, &[f(&[2])], "add: expected 2 tensor operands, got 1");
    refused(elementwise("exp"), &[i(&[2])], "exp: expected a float dtype (f16, bf16, f32, f64), got i64");
    refused(elementwise("select"), &[f(&[2]), f(&[2]), f(&[2])], "select: expected a bool condition, got f32");
    refused(
        Op::Matmul,
        &[f(&[2, 3]), f(&[4, 5])],
        "matmul: expected 3 rows on the right, as many as [2,3] has columns, got [4,5]",
    );
    refused(Op::Matmul, &[f(&[3]), f(&[3, 5])], "at least 2 axes; reshape a vector");
    refused(
        Op::Reshape { shape: Shape::new(&[4]).unwrap() },
        &[f(&[2, 3])],
        "a shape of 6 elements, as many as [2,3] has, got [4] with 4",
    );
    refused(
        Op::Permute { order: AxisList::new(&[0, 0]) },
        &[f(&[2, 3])],
        "each axis of [2,3] exactly once, got [0, 0]",
    );
    refused(Op::Expand { shape: Shape::new(&[2, 4]).unwrap() }, &[f(&[2, 3])], "a shape that [2,3] broadcasts to");
    let slice = |start: i64, len, step| Op::Slice { axis: 0, start: Scalar::i64(start), len, step };
    refused(slice(8, 3, 1), &[f(&[10])], "slice: expected a start in 0..=7 (3 elements with step 1 of 10), got 8");
    refused(slice(-1, 3, 1), &[f(&[10])], "got -1");
    refused(slice(0, 6, 2), &[f(&[10])], "a range inside an axis of length 10, got 6 elements with step 2");
    refused(
        Op::Reduce { kind: ReduceKind::Max, axes: 2, keepdim: false },
        &[f(&[3, 0])],
        "at least one element along the reduced axes",
    );
    refused(
        Op::Reduce { kind: ReduceKind::Sum, axes: 4, keepdim: false },
        &[f(&[3, 2])],
        "an axis below 2 for shape [3,2], got 2",
    );
    refused(Op::Reduce { kind: ReduceKind::Any, axes: 1, keepdim: false }, &[f(&[3])], "any: expected bool, got f32");
    refused(Op::Concat { axis: 0 }, &[f(&[2, 3]), f(&[2, 4])], "shapes equal to [2,3] except along axis 0, got [2,4]");
    refused(Op::Gather { axis: 0 }, &[f(&[5, 3]), i(&[2, 4])], "an index of shape [5,3] except along axis 0");
    refused(Op::Gather { axis: 0 }, &[f(&[5]), f(&[2])], "gather: expected an i64 index, got f32");
    refused(Op::Gather { axis: 0 }, &[f(&[0]), i(&[2])], "at least one element along axis 0");
}

#[test]
fn special_values() {
    let nan = f32::NAN;
    let eval = |op: Op, x: &[f32]| op.rules().eval(&[f32s(x)]).unwrap().data;
    let bits = |d: HostData| match d {
        HostData::F32(v) => v.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let HostData::F32(relu) = eval(elementwise("relu"), &[nan, -1.0, 2.0]) else { panic!() };
    assert!(relu[0].is_nan() && relu[1..] == [0.0, 2.0]);
    let max = |a: f32, b: f32| elementwise("maximum").rules().eval(&[f32s(&[a]), f32s(&[b])]).unwrap().data;
    assert_eq!(bits(max(-0.0, 0.0)), [0]);
    assert!(matches!(max(1.0, nan), HostData::F32(v) if v[0].is_nan()));
    let reduce = |kind| Op::Reduce { kind, axes: 1, keepdim: false };
    assert!(matches!(eval(reduce(ReduceKind::Max), &[1.0, nan, 2.0]), HostData::F32(v) if v[0].is_nan()));
    assert_eq!(bits(eval(reduce(ReduceKind::Sum), &[])), [0]);
    assert_eq!(bits(eval(reduce(ReduceKind::Sum), &[-0.0, -0.0])), [0x8000_0000]);
    let to_i64 = eval(Op::Cast(DType::I64), &[2.9, -2.9, nan, f32::INFINITY, -1e30]);
    assert_eq!(to_i64, HostData::I64(vec![2, -2, 0, i64::MAX, i64::MIN]));
    assert_eq!(eval(Op::Cast(DType::Bool), &[0.0, -0.0, 1e-45, nan]), HostData::Bool(vec![false, false, true, true]));
    let i = |v: &[i64]| HostValue::new(Shape::new(&[v.len()]).unwrap(), HostData::I64(v.to_vec()));
    let div = elementwise("div").rules().eval(&[i(&[7, -7, 5, i64::MIN]), i(&[2, 2, 0, -1])]).unwrap();
    assert_eq!(div.data, HostData::I64(vec![3, -3, 0, i64::MIN]));
}

#[test]
fn out_of_range_indices_are_clamped() {
    let i = |v: &[i64]| HostValue::new(Shape::new(&[v.len()]).unwrap(), HostData::I64(v.to_vec()));
    let index = i(&[-1, 1, 9]);
    let got = Op::Gather { axis: 0 }.rules().eval(&[f32s(&[10.0, 20.0, 30.0]), index.clone()]).unwrap();
    assert_eq!(got, f32s(&[10.0, 20.0, 30.0]));
    let added = Op::ScatterAdd { axis: 0, len: 2 }.rules().eval(&[index, f32s(&[1.0, 2.0, 4.0])]).unwrap();
    assert_eq!(added, f32s(&[1.0, 6.0]));
}

/// The first word of Philox4x32-10 for a zero counter and key, and for ones, as Random123 publishes them.
#[test]
fn draws_are_those_of_philox() {
    let draw = |seed: i64, counter: i64| {
        let shape = Shape::new(&[2]).unwrap();
        let (seed, counter) = (Scalar::i64(seed), Scalar::i64(counter));
        let op = Op::Random { draw: Draw::Uniform, shape, seed, counter };
        op.rules().eval(&[]).unwrap().data.to_f64()
    };
    assert_eq!(draw(0, 0)[0], (0x6627_e8d5u32 >> 8) as f64 / (1u64 << 24) as f64);
    let [a, b] = [draw(0, 0), draw(0, 1)];
    assert!(a[0] != a[1] && a[0] != b[0] && draw(1 << 32, 0)[0] != a[0], "element, counter and seed all count");
}

#[test]
fn a_shared_matrix_makes_one_long_product() {
    let contiguous = |dims: &[usize]| Layout::contiguous(Shape::new(dims).unwrap());
    let call =
        |a: &Layout, b: &Layout, c: &Layout| match Op::Matmul.rules().library(&[(DType::F32, *a), (DType::F32, *b)], c)
        {
            Some(Library::Matmul(m)) => (m.batch, m.m, m.a.row, m.c.row, m.b.batch),
            other => panic!("{other:?}"),
        };
    let (c, w) = (contiguous(&[4, 3, 5]), contiguous(&[7, 5]));
    assert_eq!(call(&contiguous(&[4, 3, 7]), &w, &c), (vec![], 12, 7, 5, vec![]));
    assert_eq!(call(&contiguous(&[4, 1, 7]), &w, &contiguous(&[4, 1, 5])), (vec![], 4, 7, 5, vec![]));
    let own = contiguous(&[4, 7, 5]);
    assert_eq!(call(&contiguous(&[4, 3, 7]), &own, &c), (vec![4], 3, 7, 5, vec![35]));
    // Rows that do not follow each other from one item to the next stay a batch.
    let turned = contiguous(&[3, 4, 7]).permute(&[1, 0, 2]);
    assert_eq!(call(&turned, &w, &c), (vec![4], 3, 28, 5, vec![0]));
}
