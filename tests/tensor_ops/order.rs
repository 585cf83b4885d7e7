//! Sorting.

use super::*;

/// Positions in order by the textbook: insertion sort, which is stable; NaN above all.
fn sorted(line: &[f64], descending: bool) -> Vec<usize> {
    let above = |a: f64, b: f64| (a.is_nan() && !b.is_nan()) || a > b;
    let mut order: Vec<usize> = Vec::new();
    for (i, &v) in line.iter().enumerate() {
        let before = |&j: &usize| if descending { !above(v, line[j]) } else { !above(line[j], v) };
        let at = order.iter().take_while(|&j| before(j)).count();
        order.insert(at, i);
    }
    order
}

#[test]
fn nan_ties_and_zeros() {
    let nan = f32::NAN;
    let x = f32s(&[8], &[3.0, nan, -0.0, 0.0, f32::NEG_INFINITY, nan, 3.0, f32::INFINITY]);
    assert_eq!(numbers(|| x.argsort(0, false)), [4., 2., 3., 0., 6., 7., 1., 5.]);
    assert_eq!(numbers(|| x.argsort(-1, true)), [1., 5., 7., 0., 6., 2., 3., 4.]);
    let (values, _) = both(|| Ok(vec![x.sort(0, false)?.0]));
    let HostData::F32(v) = &values[0].data else { panic!() };
    assert_eq!(v[..6], [f32::NEG_INFINITY, -0.0, 0.0, 3.0, 3.0, f32::INFINITY]);
    assert!(v[1].is_sign_negative() && v[6].is_nan() && v[7].is_nan());
    let i = i64s(&[2, 3], &[i64::MAX, i64::MIN, 0, -1, 1, -1]);
    assert_eq!(integers(&i.argsort(1, false).unwrap().to_host().unwrap()), [1, 2, 0, 0, 2, 1]);
    assert_eq!(integers(&i.sort(1, true).unwrap().0.to_host().unwrap()), [i64::MAX, 0, i64::MIN, 1, -1, -1]);
    let b = x.eq(3.0).unwrap();
    assert_eq!(numbers(|| b.argsort(0, true)), [0., 6., 1., 2., 3., 4., 5., 7.]);
}

#[test]
fn lines_of_any_axis() {
    for (dims, axis) in [(&[50][..], 0), (&[1], 0), (&[5, 300], 1), (&[300, 5], 0), (&[3, 17, 4], 1), (&[4, 0, 2], 1)] {
        let reversed: Vec<usize> = dims.iter().rev().copied().collect();
        let order: Vec<usize> = (0..dims.len()).rev().collect();
        let turned = filled(&reversed, 2).permute(&order).unwrap();
        // Coarse values tie.
        for x in [filled(dims, 1), filled(dims, 1).mul(4.0).unwrap().to_dtype(stepgraph::DType::I64).unwrap(), turned] {
            for descending in [false, true] {
                let (values, shape) = host(&x);
                let mut want = vec![0.0; values.len()];
                for c in coordinates(&shape).into_iter().filter(|c| c[axis] == 0) {
                    let place = |j: usize| {
                        let mut c = c.clone();
                        c[axis] = j;
                        at(&shape, &c)
                    };
                    let line: Vec<f64> = (0..shape[axis]).map(|j| values[place(j)]).collect();
                    for (j, from) in sorted(&line, descending).into_iter().enumerate() {
                        want[place(j)] = from as f64;
                    }
                }
                assert_eq!(numbers(|| x.argsort(axis as isize, descending)), want, "{dims:?} {axis} {descending}");
            }
        }
    }
}

/// Lines long enough to be split over threads, and keys of all kinds of bits.
#[test]
fn many_long_lines() {
    let x = filled(&[64, 5000], 9);
    let (values, order) = x.sort(1, false).unwrap();
    let (got, from) = (values.to_vec::<f32>().unwrap(), order.to_vec::<i64>().unwrap());
    let source = x.to_vec::<f32>().unwrap();
    for row in 0..64 {
        let line = &got[row * 5000..][..5000];
        assert!(line.is_sorted());
        let mut all: Vec<i64> = from[row * 5000..][..5000].to_vec();
        assert!(all.iter().zip(line).all(|(&f, v)| source[row * 5000 + f as usize] == *v));
        all.sort();
        assert_eq!(all, (0..5000).collect::<Vec<i64>>(), "a permutation");
    }
}

#[test]
fn slopes_go_where_the_elements_came_from() {
    let x = f32s(&[2, 3], &[3.0, 1.0, 2.0, 5.0, 5.0, 4.0]);
    assert_eq!(gradient(&x, |x| Ok(x.sort(1, false)?.0)), [3.0, 1.0, 2.0, 5.0, 6.0, 4.0]);
    assert_eq!(gradient(&x, |x| Ok(x.topk(1, 2, true)?.0)), [1.0, 0.0, 2.0, 3.0, 4.0, 0.0]);
}

#[test]
fn the_first_few() {
    let x = f32s(&[2, 4], &[1.0, 7.0, 7.0, f32::NAN, -1.0, 0.0, -3.0, 2.0]);
    let (largest, at) = x.topk(1, 2, true).unwrap();
    assert_eq!(at.to_vec::<i64>().unwrap(), [3, 1, 3, 1]);
    assert_eq!(largest.to_vec::<f32>().unwrap()[1..], [7.0, 2.0, 0.0]);
    assert_eq!(numbers(|| Ok(x.topk(-1, 3, false)?.1)), [0., 1., 2., 2., 0., 1.]);
    assert_eq!(x.topk(0, 0, true).unwrap().0.dims(), [0, 4]);
    assert!(message(x.topk(1, 5, true)).contains("topk: expected a number up to 4, the length of axis 1, got 5"));
    assert!(message(x.argsort(2, true)).contains("argsort: expected an axis in -2..2"));
    assert!(message(x.sort(-3, true)).contains("sort: expected an axis in -2..2"));
}
