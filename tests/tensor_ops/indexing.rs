//! Writing at indices, choosing.

use super::*;
use stepgraph::{DType, ErrorKind};

#[test]
fn the_last_one_wins() {
    let x = f32s(&[4], &[10., 11., 12., 13.]);
    let (index, src) = (i64s(&[5], &[2, 0, 2, 2, 0]), f32s(&[5], &[1., 2., 3., 4., 5.]));
    assert_eq!(numbers(|| x.scatter(0, &index, &src)), [5., 11., 4., 13.]);
    assert_eq!(numbers(|| x.scatter(0, &index, 9.0)), [9., 11., 9., 13.]);
    // What stayed of each gets the slope, and nothing else.
    assert_eq!(gradient(&x, |x| x.scatter(0, &index, &src)), [0., 2., 0., 4.]);
    assert_eq!(gradient(&src, |src| x.scatter(0, &index, src)), [0., 0., 0., 3., 1.]);
    let i = i64s(&[2, 2], &[1, 2, 3, 4]);
    let got = i.scatter(1, &i64s(&[2, 1], &[1, 0]), i64s(&[2, 1], &[7, 8])).unwrap();
    assert_eq!(got.to_vec::<i64>().unwrap(), [1, 7, 8, 4]);
    let b = x.gt(11.5).unwrap();
    assert_eq!(numbers(|| b.scatter(0, &i64s(&[1], &[0]), true)), [1., 0., 1., 1.]);
    let none = Tensor::zeros([0], DType::I64, &cpu()).unwrap();
    assert_eq!(numbers(|| x.scatter(0, &none, f32s(&[0], &[]))), [10., 11., 12., 13.]);
    assert!(
        message(x.scatter(0, &index, &x))
            .contains("scatter: expected a source f32[5], of the index's shape, got f32[4]")
    );
    assert!(
        message(x.scatter(0, &i64s(&[1, 1], &[0]), 1.0))
            .contains("scatter: expected an index of shape [4] except along axis 0")
    );
    assert!(message(x.scatter(0, &x, 1.0)).contains("an i64 index, got f32"));
    assert!(message(x.scatter(1, &index, 1.0)).contains("scatter: expected an axis in -1..1"));
}

#[test]
fn scatters_of_any_axis() {
    for (dims, axis, count) in
        [(&[6][..], 0, 9), (&[3, 5], 1, 7), (&[5, 3], 0, 4), (&[2, 4, 3], 1, 6), (&[2, 2, 2, 5], 3, 3)]
    {
        let x = filled(dims, 1);
        let mut shape = dims.to_vec();
        shape[axis] = count;
        let src = filled(&shape, 2);
        let n: usize = shape.iter().product();
        let index: Vec<i64> = (0..n).map(|i| (i * 7 + i * i * 3) as i64 % dims[axis] as i64).collect();
        let index = i64s(&shape, &index);
        let (mut written, mut added) = (host(&x).0, vec![0.0; x.numel()]);
        let (source, places) = (host(&src).0, host(&index).0);
        for (p, c) in coordinates(&shape).iter().enumerate() {
            let mut to = c.clone();
            to[axis] = places[p] as usize;
            written[at(dims, &to)] = source[p];
            added[at(dims, &to)] += source[p];
        }
        assert_eq!(numbers(|| x.scatter(axis as isize, &index, &src)), written, "{dims:?}");
        added.iter_mut().zip(&host(&x).0).for_each(|(a, x)| *a += x);
        close(&numbers(|| x.scatter_add(axis as isize, &index, &src)), &added, 1e-6);
        // Read where it was written: the source where it won.
        let back = numbers(|| x.scatter(axis as isize, &index, &src)?.gather(axis as isize, &index));
        let wins = back.iter().zip(&source).filter(|(b, s)| b == s).count();
        let mut reached: Vec<Vec<usize>> = coordinates(&shape);
        reached.iter_mut().zip(&places).for_each(|(c, &p)| c[axis] = p as usize);
        reached.sort();
        reached.dedup();
        assert_eq!(wins, reached.len(), "one winner for each place");
    }
}

#[test]
fn indices_out_of_range_are_told() {
    let x = f32s(&[3], &[1., 2., 3.]);
    for bad in [-1i64, 3] {
        let index = i64s(&[1], &[bad]);
        let clamped = x.scatter(0, &index, 9.0).unwrap();
        let e = clamped.to_vec::<f32>().unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Index { len: 3, .. }), "{e}");
        // In a step: at its end, and its writes are dropped.
        let var = Var::state(&x).unwrap();
        let mut step = jit::Step::new();
        for _ in 0..4 {
            let e = step.run(|| var.set(&var.get().scatter(0, &index, 9.0)?)).unwrap_err();
            assert!(e.to_string().contains("scatter_index: an index was out of range for an axis of length 3"), "{e}");
        }
        assert_eq!(var.get().to_vec::<f32>().unwrap(), [1., 2., 3.]);
    }
}

#[test]
fn rows_added_at_indices() {
    let x = f32s(&[3, 2], &[0.; 6]);
    let (index, src) = (i64s(&[4], &[2, 0, 2, 2]), f32s(&[4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.]));
    assert_eq!(numbers(|| x.index_add(0, &index, &src)), [3., 4., 0., 0., 13., 16.]);
    let columns = src.t().unwrap();
    assert_eq!(numbers(|| x.t()?.index_add(1, &index, &columns)), [3., 0., 13., 4., 0., 16.]);
    assert_eq!(gradient(&src, |src| x.index_add(0, &index, src)), [5., 6., 1., 2., 5., 6., 5., 6.]);
    assert!(
        message(x.index_add(0, &index, &x)).contains("index_add: expected a 1-d index, and a source of shape [3,2]")
    );
}

#[test]
fn masks_choose() {
    let x = f32s(&[2, 3], &[1., f32::NAN, 3., 4., 5., 6.]);
    let mask = f32s(&[3], &[0., 1., 0.]).to_dtype(DType::Bool).unwrap();
    assert_eq!(numbers(|| x.masked_fill(&mask, -1.0)), [1., -1., 3., 4., -1., 6.]);
    let other = f32s(&[2, 1], &[10., 20.]);
    assert_eq!(numbers(|| x.masked_fill(&mask, &other)), [1., 10., 3., 4., 20., 6.]);
    assert_eq!(numbers(|| mask.where_cond(&other, 0.0)), [0., 10., 0., 0., 20., 0.]);
    assert_eq!(
        gradient(&x, |x| x.masked_fill(&mask, f32::NEG_INFINITY)?.exp()?.mul(0.0)?.add(x)),
        [1., 2., 3., 4., 5., 6.]
    );
}

#[test]
fn classes_as_rows() {
    let labels = i64s(&[2, 2], &[2, 0, -1, 3]);
    assert_eq!(numbers(|| labels.one_hot(3)), [0., 0., 1., 1., 0., 0., 0., 0., 0., 0., 0., 0.]);
    let hot = labels.one_hot(4).unwrap();
    assert_eq!((hot.dims(), hot.dtype()), (&[2, 2, 4][..], DType::I64));
    assert!(message(f32s(&[1], &[0.]).one_hot(2)).contains("one_hot: expected integer labels, got f32"));
}

#[test]
fn slices_chosen_by_indices_of_any_shape() {
    let x = Tensor::arange(0.0, 12.0, &cpu()).unwrap().reshape([3, 4]).unwrap();
    let index = i64s(&[2, 1, 2], &[2, 0, 1, 1]);
    let rows = x.index_select(0, &index).unwrap();
    assert_eq!(rows.dims(), [2, 1, 2, 4]);
    assert_eq!(rows.to_vec::<f32>().unwrap()[..8], [8., 9., 10., 11., 0., 1., 2., 3.]);
    let columns = x.index_select(-1, &index).unwrap();
    assert_eq!(columns.dims(), [3, 2, 1, 2]);
    assert_eq!(columns.to_vec::<f32>().unwrap()[..4], [2., 0., 1., 1.]);
    assert_eq!(x.index_select(0, &i64s(&[], &[1])).unwrap().dims(), [4]);
    assert_eq!(gradient(&x, |x| x.index_select(0, &index)?.sum(-1)), [2., 2., 2., 2., 7., 7., 7., 7., 1., 1., 1., 1.]);
}

#[test]
fn indices_of_any_integers() {
    let x = f32s(&[3], &[10., 20., 30.]);
    let bytes = Tensor::from_slice(&[2u8, 0], [2], &cpu()).unwrap();
    let words = bytes.to_dtype(DType::I32).unwrap();
    for index in [&bytes, &words] {
        assert_eq!(numbers(|| x.gather(0, index)), [30., 10.]);
        assert_eq!(numbers(|| x.index_select(0, index)), [30., 10.]);
        assert_eq!(numbers(|| x.scatter(0, index, -1.0)), [-1., 20., -1.]);
        assert_eq!(numbers(|| x.scatter_add(0, index, &f32s(&[2], &[1., 2.]))), [12., 20., 31.]);
        assert_eq!(numbers(|| index.one_hot(3)), [0., 0., 1., 1., 0., 0.]);
    }
    assert!(message(x.gather(0, &x)).contains("gather: expected an i64 index, got f32"));
}
