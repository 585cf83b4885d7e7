//! Ranges, identity, triangles.

use super::*;
use stepgraph::DType;

#[test]
fn whole_ranges() {
    let d = &cpu();
    let ints = |t: Result<Tensor>| t.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(ints(Tensor::arange(0, 4, d)), [0, 1, 2, 3]);
    assert_eq!(ints(Tensor::arange(-2i64, 1i64, d)), [-2, -1, 0]);
    assert_eq!(ints(Tensor::arange(3, 3, d)), [0i64; 0]);
    assert_eq!(ints(Tensor::arange_step(0, 7, 3, d)), [0, 3, 6]);
    assert_eq!(ints(Tensor::arange_step(0, 6, 3, d)), [0, 3]);
    assert_eq!(ints(Tensor::arange_step(5, -2, -3, d)), [5, 2, -1]);
    assert_eq!(ints(Tensor::arange_step(i64::MAX - 1, i64::MAX, 1i64, d)), [i64::MAX - 1]);
    assert_eq!(ints(Tensor::arange_step(i64::MIN, i64::MAX, 1i64 << 62, d)), [i64::MIN, -(1 << 62), 0, 1 << 62]);
    assert!(
        message(Tensor::arange(3, 0, d)).contains("arange: expected a step towards the end, not 0, got 1 from 3 to 0")
    );
    assert!(message(Tensor::arange_step(0, 3, 0, d)).contains("a step towards the end"));
    assert!(message(Tensor::arange(0i64, i64::MAX, d)).contains("at most 2^48 elements"));
    assert!(message(Tensor::arange(0.0, f64::INFINITY, d)).contains("finite numbers, got inf"));
    assert!(message(Tensor::arange(f32::NAN, 1.0, d)).contains("finite numbers"));
}

#[test]
fn float_ranges() {
    let d = &cpu();
    assert_eq!(numbers(|| Tensor::arange(0.5, 3.0, d)), [0.5, 1.5, 2.5]);
    let tenths: Vec<f64> = (0..10).map(|i| i as f64 / 10.0).collect();
    close(&numbers(|| Tensor::arange_step(0.0, 1.0, 0.1, d)), &tenths, 1e-7);
    assert_eq!(numbers(|| Tensor::arange_step(1, -1, -0.5, d)), [1., 0.5, 0., -0.5]);
    assert_eq!(Tensor::arange(0.0, 1.0, d).unwrap().dtype(), DType::F32);
    for (start, end, count) in [(0.0, 1.0, 11), (-3.0, 5.0, 8), (2.0, 2.0, 3), (5.0, -5.0, 4), (1.0, 9.0, 1)] {
        let step = if count > 1 { (end - start) / (count - 1) as f64 } else { 0.0 };
        let want: Vec<f64> = (0..count).map(|i| start + i as f64 * step).collect();
        let got = numbers(|| Tensor::linspace(start, end, count, d));
        close(&got, &want, 1e-6);
        let last = if count > 1 { end } else { start };
        assert_eq!((got[0], got[count - 1]), (start, last), "both ends are exact");
    }
    assert_eq!(Tensor::linspace(0.0, 1.0, 0, d).unwrap().dims(), [0]);
}

/// Start and step are host numbers.
#[test]
fn ranges_move_from_call_to_call() {
    let mut step = jit::Step::new();
    for k in 0..6i64 {
        let (a, b) = step
            .run(|| {
                Ok((Tensor::arange_step(k, k + 3, 1, &cpu())?, Tensor::linspace(k as f64, 2.0 * k as f64, 3, &cpu())?))
            })
            .unwrap();
        assert_eq!(a.to_vec::<i64>().unwrap(), [k, k + 1, k + 2]);
        assert_eq!(b.to_vec::<f32>().unwrap(), [k as f32, 1.5 * k as f32, 2.0 * k as f32]);
    }
    assert_eq!(step.report().paths, 1);
}

#[test]
fn triangles() {
    let x = Tensor::arange(1.0, 13.0, &cpu()).unwrap().reshape([3, 4]).unwrap();
    for k in -4..5i64 {
        let keep = |f: fn(i64, i64) -> bool| -> Vec<f64> {
            (0..12i64).map(|p| if f(p % 4 - p / 4, k) { p as f64 + 1.0 } else { 0.0 }).collect()
        };
        assert_eq!(numbers(|| x.tril(k)), keep(|d, k| d <= k), "tril {k}");
        assert_eq!(numbers(|| x.triu(k)), keep(|d, k| d >= k), "triu {k}");
    }
    let batch = Tensor::ones([2, 3, 3], DType::Bool, &cpu()).unwrap();
    assert_eq!(numbers(|| batch.tril(0)?.to_dtype(DType::I64)?.sum(())), [12.0]);
    assert_eq!(gradient(&x, |x| x.triu(2)), [0., 0., 3., 4., 0., 0., 0., 8., 0., 0., 0., 0.]);
    assert!(message(f32s(&[3], &[0.; 3]).tril(0)).contains("tril: expected at least 2 axes, got [3]"));
    assert_eq!(numbers(|| Tensor::eye(3, DType::F32, &cpu())), [1., 0., 0., 0., 1., 0., 0., 0., 1.]);
    assert_eq!(Tensor::eye(0, DType::I64, &cpu()).unwrap().dims(), [0, 0]);
    assert_eq!(kernels(|| x.tril(0)?.mul(2.0)), 1, "masks by place are fused");
    let mut step = jit::Step::new();
    for k in 0..5 {
        let y = step.run(|| x.tril(k)).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), x.tril(k).unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!(step.report().paths, 1, "the diagonal is a host number");
}

#[test]
fn grids() {
    let (a, b) = (f32s(&[2], &[1., 2.]), f32s(&[3], &[5., 6., 7.]));
    let grid = Tensor::meshgrid(&[&a, &b]).unwrap();
    assert_eq!(numbers(|| grid[0].mul(&grid[1])), [5., 6., 7., 10., 12., 14.]);
    assert!(
        message(Tensor::meshgrid(&[&a, &f32s(&[1, 1], &[0.])])).contains("meshgrid: expected 1-d tensors, got [1,1]")
    );
    assert_eq!(a.zeros_like().unwrap().to_vec::<f32>().unwrap(), [0., 0.]);
    assert_eq!(i64s(&[2], &[4, 5]).ones_like().unwrap().to_vec::<i64>().unwrap(), [1, 1]);
}
