//! Reductions, and those composed of them.

use super::*;
use stepgraph::{DType, autograd};

const SHAPES: [(&[usize], &[usize]); 8] = [
    (&[7], &[0]),
    (&[4, 9], &[1]),
    (&[9, 4], &[0]),
    (&[3, 5, 4], &[0, 2]),
    (&[3, 5, 4], &[1]),
    (&[2, 3, 130], &[1, 2]),
    (&[6, 1, 3], &[1]),
    (&[2, 3], &[]),
];

fn signed(axes: &[usize]) -> Vec<isize> {
    axes.iter().map(|&a| a as isize).collect()
}

/// As it lies, transposed and turned.
fn forms(dims: &[usize], seed: u32) -> Vec<Tensor> {
    let reversed: Vec<usize> = dims.iter().rev().copied().collect();
    let order: Vec<usize> = (0..dims.len()).rev().collect();
    let turned = filled(&reversed, seed).permute(&order).unwrap();
    vec![filled(dims, seed), turned.flip(()).unwrap(), turned]
}

#[test]
fn any_and_all() {
    let x = f32s(&[3, 2], &[0.0, 0.0, -0.0, 1e-40, f32::NAN, 2.0]);
    assert_eq!(numbers(|| x.any(1)), [0.0, 1.0, 1.0]);
    assert_eq!(numbers(|| x.all(-1)), [0.0, 0.0, 1.0]);
    assert_eq!(numbers(|| x.any(())), [1.0]);
    assert_eq!(x.any_keepdim(1).unwrap().dims(), [3, 1]);
    assert_eq!(x.all_keepdim([0, 1]).unwrap().dims(), [1, 1]);
    let none = Tensor::zeros([2, 0], DType::Bool, &cpu()).unwrap();
    assert_eq!(numbers(|| none.any(1)), [0.0, 0.0]);
    assert_eq!(numbers(|| none.all(1)), [1.0, 1.0]);
    assert!(message(x.any(2)).contains("any: expected an axis in -2..2 of shape [3,2], got 2"));
    assert_eq!(kernels(|| x.any(1)), 1, "the cast is fused");
}

#[test]
fn the_first_of_equal_extremes() {
    let x = f32s(&[4, 4], &[1., 3., 3., 0., 5., 5., 5., 5., -1., -2., -2., -1., 0., -0., 0., -0.]);
    assert_eq!(numbers(|| x.argmax(1)), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(numbers(|| x.argmin(1)), [3.0, 0.0, 1.0, 0.0]);
    assert_eq!(numbers(|| x.argmax(0)), [1.0, 1.0, 1.0, 1.0]);
    assert_eq!(numbers(|| x.argmax(())), [4.0]);
    assert_eq!(numbers(|| x.argmin(())), [9.0]);
    assert_eq!(x.argmax_keepdim(-1).unwrap().dims(), [4, 1]);
    assert_eq!(x.argmin_keepdim(()).unwrap().dims(), [1, 1]);
    // NaN is the extreme either way, the first one.
    let n = f32s(&[2, 4], &[1., f32::NAN, f32::INFINITY, f32::NAN, f32::NEG_INFINITY, 0., f32::NAN, 0.]);
    assert_eq!(numbers(|| n.argmax(1)), [1.0, 2.0]);
    assert_eq!(numbers(|| n.argmin(1)), [1.0, 2.0]);
    let i = i64s(&[2, 3], &[i64::MIN, i64::MAX, i64::MAX, 7, 7, 7]);
    assert_eq!(numbers(|| i.argmax(1)), [1.0, 0.0]);
    assert_eq!(numbers(|| i.argmin(1)), [0.0, 0.0]);
    let infinite = f32s(&[3], &[f32::NEG_INFINITY; 3]);
    assert_eq!(numbers(|| infinite.argmax(0)), [0.0]);
    assert_eq!(numbers(|| f32s(&[], &[3.0]).argmax(())), [0.0]);
}

#[test]
fn extremes_are_where_a_loop_finds_them() {
    for (k, (dims, axes)) in SHAPES.into_iter().enumerate() {
        for x in forms(dims, k as u32) {
            // Few values, so that there are ties.
            let x = x.mul(3.0).unwrap().to_dtype(DType::I64).unwrap().to_dtype(DType::F32).unwrap();
            let axes = &signed(axes)[..];
            let plain: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
            let first = |g: &Vec<f64>, better: fn(f64, f64) -> bool| {
                (1..g.len()).fold(0, |best, i| if better(g[i], g[best]) { i } else { best }) as f64
            };
            let groups = groups(&x, &plain);
            let largest: Vec<f64> = groups.iter().map(|g| first(g, |a, b| a > b)).collect();
            let smallest: Vec<f64> = groups.iter().map(|g| first(g, |a, b| a < b)).collect();
            assert_eq!(numbers(|| x.argmax(axes)), largest, "{dims:?} {axes:?}");
            assert_eq!(numbers(|| x.argmin(axes)), smallest, "{dims:?} {axes:?}");
        }
    }
}

#[test]
fn an_extreme_of_rows_is_one_kernel() {
    let x = filled(&[40, 300], 1);
    assert_eq!(kernels(|| x.argmax(1)), 1);
    assert_eq!(kernels(|| x.argmin([0, 1])), 1);
    assert_eq!(kernels(|| x.logsumexp(1)), 1);
    assert_eq!(kernels(|| x.var(1)), 1);
    assert_eq!(kernels(|| x.std_keepdim(1)), 1);
    assert_eq!(kernels(|| x.norm(2.0, 1)), 1);
    assert_eq!(kernels(|| x.norm(3.5, 1)), 1);
    assert_eq!(kernels(|| x.all(1)), 1);
}

#[test]
fn extremes_need_elements() {
    let empty = Tensor::zeros([3, 0], DType::F32, &cpu()).unwrap();
    assert!(message(empty.argmax(1)).contains("argmax: expected at least one element along the reduced axes"));
    assert!(message(empty.argmin(())).contains("argmin: expected at least one element"));
    assert_eq!(empty.argmax(0).unwrap().dims(), [0]);
    let truths = Tensor::zeros([3], DType::Bool, &cpu()).unwrap();
    assert!(message(truths.argmax(0)).contains("got bool"));
}

fn log_sum_exp(g: &[f64]) -> f64 {
    let top = g.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top.is_infinite() { top } else { top + g.iter().map(|v| (v - top).exp()).sum::<f64>().ln() }
}

#[test]
fn log_sum_exp_of_groups() {
    for (k, (dims, axes)) in SHAPES.into_iter().enumerate() {
        for x in forms(dims, 10 + k as u32) {
            let x = x.mul(30.0).unwrap();
            let want: Vec<f64> = groups(&x, axes).iter().map(|g| log_sum_exp(g)).collect();
            close(&numbers(|| x.logsumexp(&signed(axes)[..])), &want, 1e-6);
        }
    }
    assert_eq!(filled(&[2, 3], 0).logsumexp_keepdim(1).unwrap().dims(), [2, 1]);
}

#[test]
fn log_sum_exp_of_infinities() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = f32s(&[6, 2], &[-inf, -inf, -inf, 3.0, inf, 0.0, inf, -inf, nan, 0.0, 3e38, 3e38]);
    let got = numbers(|| x.logsumexp(1));
    assert_eq!(got[..4], [f64::NEG_INFINITY, 3.0, f64::INFINITY, f64::INFINITY]);
    assert!(got[4].is_nan());
    assert_eq!(got[5], 3e38f32 as f64);
    let none = Tensor::zeros([2, 0], DType::F32, &cpu()).unwrap();
    assert_eq!(numbers(|| none.logsumexp(1)), [f64::NEG_INFINITY; 2]);
    // The softmax; nothing where there is nothing.
    let slopes = gradient(&f32s(&[3, 2], &[0.0, 0.0, -inf, -inf, -inf, 1.0]), |x| x.logsumexp(1));
    close(&slopes, &[0.5, 0.5, 0.0, 0.0, 0.0, 3.0], 1e-6);
    assert!(message(i64s(&[2], &[1, 2]).logsumexp(0)).contains("logsumexp: expected a float tensor, got i64"));
}

fn variance(g: &[f64], correction: f64) -> f64 {
    let mean = g.iter().sum::<f64>() / g.len() as f64;
    g.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (g.len() as f64 - correction).max(0.0)
}

#[test]
fn variances_of_groups() {
    for (k, (dims, axes)) in SHAPES.into_iter().enumerate() {
        if axes.is_empty() {
            continue;
        }
        for x in forms(dims, 20 + k as u32) {
            // Far from zero, where one pass would lose everything.
            let x = x.add(1000.0).unwrap();
            let axes_of = signed(axes);
            let groups = groups(&x, axes);
            for correction in [0.0, 1.0, 0.5] {
                let want: Vec<f64> = groups.iter().map(|g| variance(g, correction)).collect();
                close(&numbers(|| x.var_with(&axes_of[..], correction, false)), &want, 1e-5);
                let roots: Vec<f64> = want.iter().map(|v| v.sqrt()).collect();
                close(&numbers(|| x.std_with(&axes_of[..], correction, true)), &roots, 1e-5);
            }
            let want: Vec<f64> = groups.iter().map(|g| variance(g, 1.0)).collect();
            close(&numbers(|| x.var(&axes_of[..])), &want, 1e-5);
        }
    }
    // Figures of numpy.var and numpy.std for [2, 4, 4, 4, 5, 5, 7, 9].
    let x = f32s(&[8], &[2., 4., 4., 4., 5., 5., 7., 9.]);
    assert_eq!(numbers(|| x.var_with((), 0.0, false)), [4.0]);
    assert_eq!(numbers(|| x.std_with((), 0.0, false)), [2.0]);
    close(&numbers(|| x.std(0)), &[2.138089935299395], 1e-6);
    assert_eq!(x.var_keepdim(0).unwrap().dims(), [1]);
}

#[test]
fn variances_at_the_edges() {
    assert!(numbers(|| f32s(&[1], &[3.0]).var(0))[0].is_nan(), "one element says nothing of a spread");
    assert_eq!(numbers(|| f32s(&[1], &[3.0]).var_with(0, 0.0, false)), [0.0]);
    assert!(numbers(|| f32s(&[2], &[3.0, f32::NAN]).std(0))[0].is_nan());
    // 2 (x - mean) / (n - 1), weights 1 and 2.
    close(&gradient(&f32s(&[2, 3], &[1., 2., 6., 0., 0., 3.]), |x| x.var(1)), &[-2., -1., 3., -2., -2., 4.], 1e-6);
    // (x - mean) / ((n - 1) std), but 0 where all are equal.
    let s = 7f64.sqrt();
    close(
        &gradient(&f32s(&[2, 3], &[1., 2., 6., 5., 5., 5.]), |x| x.std(1)),
        &[-1.0 / s, -0.5 / s, 1.5 / s, 0., 0., 0.],
        1e-6,
    );
}

#[test]
fn norms_of_groups() {
    for (k, (dims, axes)) in SHAPES.into_iter().enumerate() {
        for x in forms(dims, 30 + k as u32) {
            let groups = groups(&x, axes);
            for p in [0.0, 0.5, 1.0, 2.0, 3.0, 4.5, -1.0, -2.5, f64::INFINITY, f64::NEG_INFINITY] {
                let norm = |g: &Vec<f64>| {
                    let sizes = g.iter().map(|v| v.abs());
                    match p {
                        f64::INFINITY => sizes.fold(0.0, f64::max),
                        f64::NEG_INFINITY => sizes.fold(f64::INFINITY, f64::min),
                        0.0 => g.iter().filter(|&&v| v != 0.0).count() as f64,
                        _ => sizes.map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p),
                    }
                };
                let want: Vec<f64> = groups.iter().map(norm).collect();
                close(&numbers(|| x.norm(p, &signed(axes)[..])), &want, 1e-5);
            }
        }
    }
    assert_eq!(filled(&[2, 3], 0).norm_keepdim(2.0, 1).unwrap().dims(), [2, 1]);
    assert!(
        message(filled(&[2], 0).norm(f64::NAN, ())).contains("norm: expected a number or an infinity for p, got NaN")
    );
}

#[test]
fn slopes_of_norms() {
    let x = f32s(&[4], &[3.0, 0.0, -4.0, 0.0]);
    close(&gradient(&x, |x| x.norm(2.0, ())), &[0.6, 0.0, -0.8, 0.0], 1e-6);
    close(&gradient(&x, |x| x.norm(1.0, ())), &[1.0, 0.0, -1.0, 0.0], 0.0);
    close(&gradient(&x, |x| x.norm(f64::INFINITY, ())), &[0.0, 0.0, -1.0, 0.0], 0.0);
    // Equal extremes share: sign(x) / 2.
    close(&gradient(&f32s(&[2], &[-5.0, 5.0]), |x| x.norm(f64::INFINITY, ())), &[-0.5, 0.5], 0.0);
    // sign(x) |x|^2 / norm^2 for p = 3.
    let n = (27f64 + 64.0).cbrt();
    close(&gradient(&x, |x| x.norm(3.0, ())), &[9.0 / n / n, 0.0, -16.0 / n / n, 0.0], 1e-5);
    // At the origin nothing, for any p.
    let zero = f32s(&[3], &[0.0; 3]);
    for p in [0.5, 1.0, 2.0, 3.0, f64::INFINITY] {
        assert_eq!(gradient(&zero, |x| x.norm(p, ())), [0.0; 3], "p = {p}");
    }
}

/// An exponent is a host number: another one at the next call is no other path.
#[test]
fn exponents_and_corrections_are_not_baked_in() {
    let x = filled(&[5, 7], 3);
    let mut step = jit::Step::new();
    for k in 0..6 {
        let (p, correction) = (3.0 + k as f64 / 4.0, k as f64 / 2.0);
        let body = || Ok((x.norm(p, 1)?, x.var_with(1, correction, false)?));
        let (norm, var) = step.run(body).unwrap();
        let (want_norm, want_var) = body().unwrap();
        harness::assert_bits_eq("norm", &norm.to_host().unwrap(), &want_norm.to_host().unwrap());
        harness::assert_bits_eq("var", &var.to_host().unwrap(), &want_var.to_host().unwrap());
    }
    assert_eq!(step.report().paths, 1);
}

#[test]
fn products_of_groups() {
    for (k, (dims, axes)) in SHAPES.into_iter().enumerate() {
        for x in forms(dims, 40 + k as u32) {
            let x = x.mul(0.5).unwrap().add(1.0).unwrap();
            let want: Vec<f64> = groups(&x, axes).iter().map(|g| g.iter().product()).collect();
            close(&numbers(|| x.prod(&signed(axes)[..])), &want, 2e-5);
        }
    }
    assert_eq!(filled(&[2, 3], 0).prod_keepdim(1).unwrap().dims(), [2, 1]);
    let none = Tensor::zeros([2, 0], DType::F32, &cpu()).unwrap();
    assert_eq!(numbers(|| none.prod(1)), [1.0, 1.0]);
    let i = i64s(&[2, 3], &[2, 3, 4, 1 << 40, 1 << 40, 3]);
    assert_eq!(integers(&i.prod(1).unwrap().to_host().unwrap()), [24, 0], "wraps");
    let b = f32s(&[3], &[1., 0., 1.]).to_dtype(DType::Bool).unwrap();
    assert_eq!((b.prod(()).unwrap().dtype(), numbers(|| b.prod(()))), (DType::I64, vec![0.0]));
}

#[test]
fn slopes_of_products() {
    // The product of the others, weights 1 and 2: without zeros, with one, with two, with all.
    let x = f32s(&[4, 3], &[2., 3., 4., 2., 0., 4., 0., 3., 0., 0., 0., 0.]);
    let want = [12., 8., 6., 0., 2. * 8., 0., 0., 0., 0., 0., 0., 0.];
    assert_eq!(gradient(&x, |x| x.prod(1)), want);
    assert_eq!(gradient(&f32s(&[2, 2], &[1., 2., 3., 0.]), |x| x.prod(())), [0., 0., 0., 6.]);
    assert_eq!(kernels(|| x.prod(1)), 1);
}

/// Second derivatives of a product: those of the elements other than two, whatever is zero among them.
#[test]
fn second_derivatives_of_products() {
    let rows: [[f32; 4]; 8] = [
        [2.0, 3.0, -5.0, 7.0],
        [2.0, 0.0, -5.0, 7.0],
        [0.0, 3.0, -5.0, 0.0],
        [0.0, -0.0, -5.0, 0.0],
        [0.0; 4],
        [-0.0, 3.0, 2.0, -0.0],
        [-0.0, 3.0, 2.0, 1.0],
        // Where products overflow, zeros stay (and second derivatives overflow).
        [0.0, 1e30, 1e30, 0.0],
    ];
    let direction = [1.0f32, -2.0, 3.0, 0.5];
    let at = f32s(&[8, 4], &rows.concat());
    let v = f32s(&[4], &direction);
    let product = |row: &[f32], without: [usize; 2]| {
        (0..4).filter(|k| !without.contains(k)).map(|k| row[k] as f64).product::<f64>()
    };
    let mut slopes = Vec::new();
    let mut second = Vec::new();
    for row in &rows {
        for i in 0..4 {
            slopes.push(product(row, [i, i]));
            let others = (0..4).filter(|&j| j != i);
            second.push(others.map(|j| product(row, [i, j]) * direction[j] as f64).sum::<f64>());
        }
    }
    let x = Var::new(&at).unwrap();
    let slope = |y: &Tensor, x: &Tensor| -> Result<Tensor> {
        Ok(autograd::grad(y, &[x], autograd::GradOptions::new().create_graph(true))?.remove(0).expect("a gradient"))
    };
    for (by_rows, transposed) in [(true, false), (false, true)] {
        let (values, _) = both(|| {
            let x = x.get();
            let (given, axis) = if transposed { (x.t()?, 0) } else { (x.clone(), 1) };
            let products = if by_rows { given.prod(axis)? } else { given.prod_keepdim(axis)? };
            let g = slope(&products.sum(())?, &x)?;
            let along = g.mul(&v)?.sum(())?;
            let h = slope(&along, &x)?;
            Ok(vec![g, h])
        });
        let (g, h) = (values[0].data.to_f64(), values[1].data.to_f64());
        assert_eq!(g, slopes);
        close(&h[..28], &second[..28], 1e-6);
        assert!(g.iter().all(|g| *g != 0.0 || g.is_sign_positive()), "no zero of a product's slope is negative");
    }
}

/// Where a maximum is NaN so are the gradients of all that it was taken of, as those of `torch.amax`; no others.
#[test]
fn slopes_of_extremes_that_are_nan() {
    let nan = f32::NAN;
    let x = f32s(&[3, 3], &[1., nan, 3., 1., 2., 2., nan, nan, nan]);
    for largest in [true, false] {
        let extreme = |x: &Tensor| if largest { x.max(1) } else { x.min(1)?.neg()?.neg() };
        let g = gradient(&x, extreme);
        assert!(g[..3].iter().chain(&g[6..]).all(|g| g.is_nan()), "{g:?}");
        assert_eq!(g[3..6], if largest { [0., 1., 1.] } else { [2., 0., 0.] });
        assert!(g[3..6].iter().all(|g| g.is_sign_positive()), "{g:?}");
    }
    assert!(gradient(&x, |x| x.max(())).iter().all(|g| g.is_nan()));
}

/// The digits of a variance whose mean is far away: `torch.var` in double precision of the same elements.
#[test]
fn variances_keep_their_digits() {
    for base in [0.0f32, 500.0, 3000.0, 20000.0] {
        let row: Vec<f32> = (0..12).map(|i| base + 0.002 * i as f32).collect();
        let want = variance(&row.iter().map(|&v| v as f64).collect::<Vec<_>>(), 1.0);
        let got = numbers(|| f32s(&[12], &row).var(()))[0];
        assert!((got / want - 1.0).abs() < 1e-5, "{base}: {got:e}, not {want:e}");
        let got = numbers(|| f32s(&[12], &row).std(0))[0];
        assert!((got / want.sqrt() - 1.0).abs() < 1e-5, "{base}: {got:e}");
    }
}

/// 16-bit floats are computed in f32, and rounded once: no square overflows, no sum stands still.
#[test]
fn narrow_floats() {
    let large = f32s(&[2], &[400., 400.]).to_dtype(DType::F16).unwrap();
    let norm = large.norm(2.0, ()).unwrap();
    assert_eq!(norm.dtype(), DType::F16);
    // 565.685… lies between 565.5 and 566.0 in f16.
    assert_eq!(numbers(|| large.norm(2.0, ())), [565.5]);
    assert_eq!(numbers(|| large.var_with((), 0.0, false)), [0.0]);
    let many = Tensor::ones([1000], DType::BF16, &cpu()).unwrap();
    assert_eq!(numbers(|| many.norm(1.0, ())), [1000.0]);
    close(&numbers(|| many.logsumexp(())), &[1.0 + 1000f64.ln()], 4e-3);
    assert_eq!(numbers(|| many.cumsum(0)?.i(999)), [1000.0], "1000 additions in bf16 would stop at 256");
    let wide = Tensor::from_slice(&[1e300f64, -1e300], [2], &cpu()).unwrap();
    assert_eq!(numbers(|| wide.logsumexp(())), [1e300]);
    assert_eq!(numbers(|| wide.norm(f64::INFINITY, ())), [1e300]);
    let bytes = Tensor::from_slice(&[3u8, 255, 255], [3], &cpu()).unwrap();
    assert_eq!(numbers(|| bytes.argmax(0)), [1.0]);
    assert_eq!(integers(&bytes.cumsum(0).unwrap().to_host().unwrap()), [3, 258, 513]);
    assert_eq!(integers(&bytes.prod(0).unwrap().to_host().unwrap()), [3 * 255 * 255]);
}
