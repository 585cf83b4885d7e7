//! Tensors to and from nested arrays, lists, iterators.

use stepgraph::base::dtype::{bf16, f16};
use stepgraph::{DType, ErrorKind, Tensor, jit};

use crate::harness::own_device;

#[test]
fn nested_arrays() {
    let d = &own_device();
    let x = Tensor::new([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]], d).expect("a tensor");
    assert_eq!((x.dims(), x.dtype()), (&[3, 2][..], DType::F32));
    assert_eq!(x.to_vec2::<f32>().expect("rows"), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    assert_eq!(x.t().and_then(|t| t.to_vec2::<f32>()).expect("rows"), [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]);
    // Plain decimals are f64 in Rust, integers i32.
    assert_eq!(Tensor::new([0.1, 0.2], d).expect("a tensor").dtype(), DType::F64);
    assert_eq!(Tensor::new([1, 2], d).expect("a tensor").dtype(), DType::I32);
    let deep = Tensor::new([[[[[[[[7u8]]]]]]]], d).expect("a tensor");
    assert_eq!((deep.rank(), deep.to_vec::<u8>().expect("a value")), (8, vec![7]));
    let rows: Vec<&[i64]> = vec![&[1, 2, 3], &[4, 5, 6]];
    assert_eq!(Tensor::new(&rows, d).and_then(|t| t.to_vec2::<i64>()).expect("rows"), [[1, 2, 3], [4, 5, 6]]);
    assert_eq!(Tensor::new(&rows[..1], d).expect("a tensor").dims(), [1, 3]);
    let single = Tensor::new(2.5f64, d).expect("a tensor");
    assert_eq!((single.rank(), single.item::<f64>().expect("a value")), (0, 2.5));
    assert_eq!(Tensor::new([f16::from_f32(0.5)], d).expect("a tensor").dtype(), DType::F16);
    assert_eq!(Tensor::new([bf16::from_f32(0.5)], d).expect("a tensor").dtype(), DType::BF16);
    assert_eq!(Tensor::new([[true], [false]], d).and_then(|t| t.to_vec::<bool>()).expect("values"), [true, false]);
    // Of nothing.
    assert_eq!(Tensor::new(Vec::<f32>::new(), d).expect("a tensor").dims(), [0]);
    let none: [[i64; 0]; 2] = [[], []];
    let none = Tensor::new(none, d).expect("a tensor");
    assert_eq!((none.dims(), none.to_vec2::<i64>().expect("rows")), (&[2, 0][..], vec![vec![], vec![]]));
    let cube = Tensor::new([[[1i8, 2], [3, 4]], [[5, 6], [7, 8]]], d).expect("a tensor");
    assert_eq!(cube.to_vec3::<i8>().expect("matrices"), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]);
    assert_eq!(Tensor::new([3u8, 4], d).and_then(|t| t.to_vec1::<u8>()).expect("values"), [3, 4]);
}

#[test]
fn iterators() {
    let d = &own_device();
    let x = Tensor::from_iter((1..=5).map(|i| i as f32 / 2.0), d).expect("a tensor");
    assert_eq!((x.dims(), x.iter::<f32>().expect("values").sum::<f32>()), (&[5][..], 7.5));
    assert_eq!(Tensor::from_iter(std::iter::empty::<bool>(), d).expect("a tensor").dims(), [0]);
    let flipped = x.slice_step(0, 0, 3, 2).expect("a view");
    assert_eq!(flipped.iter::<f32>().expect("values").rev().collect::<Vec<_>>(), [2.5, 1.5, 0.5]);
}

/// In a step such a tensor is a new input at each call.
#[test]
fn in_a_step() {
    let (d, mut step) = (&own_device(), jit::Step::new());
    for k in 0..5i64 {
        let y = step.run(|| Tensor::new([[k, 2 * k]], d)?.add(Tensor::from_iter([1i64, 1], d)?)).expect("a call");
        assert_eq!(y.to_vec2::<i64>().expect("rows"), [[k + 1, 2 * k + 1]]);
    }
    assert_eq!(step.report().recorded, 1);
}

#[test]
fn what_is_refused() {
    let d = &own_device();
    #[track_caller]
    fn refused<T>(result: stepgraph::Result<T>, words: &[&str]) {
        let text = result.err().expect("an error").to_string();
        assert!(words.iter().all(|w| text.contains(w)) && text.contains("conversions.rs:"), "{text}");
    }
    refused(Tensor::new(vec![vec![1i64, 2], vec![3]], d), &["Tensor::new", "rows of shape [2]", "[1] in row 1"]);
    refused(Tensor::new([vec![vec![1i64]], vec![]], d), &["rows of shape [1, 1]", "[0] in row 1"]);
    refused(Tensor::new([[[[[[[[[1u8]]]]]]]]], d), &["at most 8 axes"]);
    let x = Tensor::new([[1.0f32, 2.0]], d).expect("a tensor");
    refused(x.to_vec1::<f32>(), &["to_vec1", "1 axes", "f32[1,2]"]);
    refused(x.to_vec3::<f32>(), &["to_vec3", "3 axes"]);
    refused(x.to_vec2::<f64>(), &["elements of f64", "f32"]);
    refused(x.iter::<i64>(), &["elements of i64", "f32"]);
    assert!(matches!(x.to_vec1::<f32>().expect_err("two axes").kind(), ErrorKind::Shape { .. }));
}

#[cfg(feature = "ndarray")]
#[test]
fn ndarray() {
    use ndarray::{ArrayD, IxDyn, array, s};
    let d = &own_device();
    let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let x = Tensor::from_ndarray(&a, d).expect("a tensor");
    assert_eq!(x.to_vec2::<f32>().expect("rows"), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    assert_eq!(x.to_ndarray::<f32>().expect("an array"), a.clone().into_dyn());
    // Views of any layout, both ways.
    let view = Tensor::from_ndarray(&a.slice(s![..;-1, 1..]), d).expect("a tensor");
    assert_eq!(view.to_vec2::<f32>().expect("rows"), [[5.0, 6.0], [2.0, 3.0]]);
    assert_eq!(x.t().and_then(|t| t.to_ndarray::<f32>()).expect("an array"), a.t().to_owned().into_dyn());
    let single = ArrayD::from_elem(IxDyn(&[]), 7i64);
    let x = Tensor::from_ndarray(&single, d).expect("a tensor");
    assert_eq!((x.rank(), x.to_ndarray::<i64>().expect("an array")), (0, single));
    let empty = ArrayD::<bool>::from_elem(IxDyn(&[2, 0, 3]), true);
    assert_eq!(Tensor::from_ndarray(&empty, d).expect("a tensor").to_ndarray::<bool>().expect("an array"), empty);
    assert!(Tensor::from_ndarray(&ArrayD::from_elem(IxDyn(&[1; 9]), 0u8), d).is_err());
    assert!(x.to_ndarray::<f32>().is_err());
}
