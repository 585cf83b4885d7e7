//! Running sums and products.

use super::*;
use stepgraph::DType;

const LINES: [(&[usize], usize); 8] = [
    (&[9], 0),
    (&[1], 0),
    (&[5, 7], 1),
    (&[7, 70], 0),
    (&[3, 4, 33], 1),
    (&[2, 3, 4, 5], 2),
    (&[3, 0], 1),
    (&[0, 3], 1),
];

/// Along `axis` one after the other, in f32 as the order says.
fn scan(x: &Tensor, axis: usize, reverse: bool, combine: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let (values, dims) = (x.to_vec::<f32>().unwrap(), x.dims().to_vec());
    let mut out = values.clone();
    for c in coordinates(&dims).into_iter().filter(|c| c[axis] == 0) {
        let mut last = None;
        for j in 0..dims[axis] {
            let mut c = c.clone();
            c[axis] = if reverse { dims[axis] - 1 - j } else { j };
            let p = at(&dims, &c);
            out[p] = last.map_or(values[p], |l| combine(l, values[p]));
            last = Some(out[p]);
        }
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn one_element_after_the_other() {
    for (k, (dims, axis)) in LINES.into_iter().enumerate() {
        let reversed: Vec<usize> = dims.iter().rev().copied().collect();
        let order: Vec<usize> = (0..dims.len()).rev().collect();
        let turned = filled(&reversed, k as u32).permute(&order).unwrap();
        for x in [filled(dims, k as u32), turned.clone(), turned.flip(()).unwrap()] {
            let (a, x) = (axis as isize, &x);
            let (got, _) = both(|| {
                Ok(vec![x.cumsum(a)?, x.cumsum_reverse(a - dims.len() as isize)?, x.cumprod(a)?, x.cumprod_reverse(a)?])
            });
            let want = [
                scan(x, axis, false, |l, v| l + v),
                scan(x, axis, true, |l, v| l + v),
                scan(x, axis, false, |l, v| l * v),
                scan(x, axis, true, |l, v| l * v),
            ];
            for (g, w) in got.iter().zip(&want) {
                let HostData::F32(g) = &g.data else { panic!() };
                assert_eq!(bits(g), bits(w), "{dims:?} {axis}");
            }
        }
    }
    assert_eq!(
        numbers(|| f32s(&[2], &[-0.0, -0.0]).cumsum(0))[0].to_bits(),
        (-0.0f64).to_bits(),
        "nothing is added to the first"
    );
}

#[test]
fn many_lines_over_threads() {
    for (dims, axis) in [(&[300, 1000][..], 1), (&[300, 1000], 0), (&[40, 50, 60], 1)] {
        let x = filled(dims, 4);
        let got = x.cumsum(axis as isize).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(bits(&got), bits(&scan(&x, axis, false, |l, v| l + v)));
    }
}

#[test]
fn integers_and_truth_values_count() {
    let x = i64s(&[4], &[i64::MAX, 1, 2, -3]);
    assert_eq!(integers(&x.cumsum(0).unwrap().to_host().unwrap()), [i64::MAX, i64::MIN, i64::MIN + 2, i64::MAX]);
    assert_eq!(numbers(|| i64s(&[4], &[1, 2, 3, 4]).cumprod(0)), [1., 2., 6., 24.]);
    let b = f32s(&[4], &[1., 0., 1., 1.]).to_dtype(DType::Bool).unwrap();
    let count = b.cumsum(0).unwrap();
    assert_eq!((count.dtype(), count.to_vec::<i64>().unwrap()), (DType::I64, vec![1, 1, 2, 3]));
    assert!(message(x.cumsum(1)).contains("cumsum: expected an axis in -1..1 of shape [4], got 1"));
}

/// `d out[k] / d x[i]` by the definition: the product of the others up to k.
fn slopes_of_products(x: &[f64], reverse: bool) -> Vec<f64> {
    let n = x.len();
    let upto = |k: usize| if reverse { k..n } else { 0..k + 1 };
    (0..n)
        .map(|i| {
            let through = (0..n).filter(|&k| upto(k).contains(&i));
            through.map(|k| (k + 1) as f64 * upto(k).filter(|&j| j != i).map(|j| x[j]).product::<f64>()).sum()
        })
        .collect()
}

#[test]
fn slopes() {
    let x = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    assert_eq!(gradient(&x, |x| x.cumsum(1)), [6., 5., 3., 15., 11., 6.]);
    assert_eq!(gradient(&x, |x| x.cumsum_reverse(0)), [1., 2., 3., 5., 7., 9.]);
    // Zeros, one and several, at any place.
    for values in [[2., 0., 3., -1.], [0., 2., 0., 3.], [0., 0., 0., 0.], [1., 2., 3., 4.], [1.5, -2., 0.5, 0.]] {
        let doubles = values.map(|v: f32| v as f64);
        let x = f32s(&[4], &values);
        close(&gradient(&x, |x| x.cumprod(0)), &slopes_of_products(&doubles, false), 1e-6);
        close(&gradient(&x, |x| x.cumprod_reverse(0)), &slopes_of_products(&doubles, true), 1e-6);
    }
    assert_eq!(gradient(&f32s(&[1, 1], &[5.0]), |x| x.cumprod(1)), [1.0]);
}

#[test]
fn recurrences() {
    let (x, f) = (f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]), f32s(&[3], &[9., 0.5, -1.]));
    assert_eq!(numbers(|| x.recurrence(1, &f)), [1., 2.5, 0.5, 4., 7., -1.]);
    assert_eq!(numbers(|| x.recurrence(0, &f)), [1., 2., 3., 13., 6., 3.]);
    // d loss / d x[j]: the weights of all after it, each times the factors between. Weights 1, 2, 3.
    let row = f32s(&[3], &[1., 2., 3.]);
    assert_eq!(gradient(&row, |x| x.recurrence(0, &f)), [1. + 2. * 0.5 - 3. * 0.5, 2. - 3., 3.]);
    // d loss / d factor[j] = through[j] * out[j - 1]; the first factor is not used.
    assert_eq!(gradient(&f, |f| row.recurrence(0, f)), [0., -1., 3. * 2.5]);
    assert!(message(x.recurrence(0, &filled(&[4], 0))).contains("a shape that [4] broadcasts to"));
    assert!(message(x.recurrence(0, &i64s(&[3], &[1, 2, 3]))).contains("factors of f32 like the operand, got i64"));
}
