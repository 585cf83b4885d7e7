//! Section E: numeric semantics.

// `x - x` and `x / x` are what is tested.
#![allow(clippy::eq_op)]

use stepgraph::{CpuOptions, DType, Device, Result, Rng, Tensor, Var, jit};

use crate::harness::{Expect, assert_bits_eq, assert_close, compare, filled, scalar, values, vector};

/// `f` eagerly and in five traced calls: the same bits; the eager values as f32.
#[track_caller]
fn agree(device: &Device, f: impl Fn() -> Result<Vec<Tensor>>) -> Vec<Vec<f32>> {
    agree_exactly(device, f).into_iter().map(|v| v.into_iter().map(|x| x as f32).collect()).collect()
}

/// The same, of values of any dtype.
#[track_caller]
fn agree_exactly(device: &Device, f: impl Fn() -> Result<Vec<Tensor>>) -> Vec<Vec<f64>> {
    let log = compare(
        device,
        // What is a view or an argument launches nothing.
        &Expect::steady(5).launches(&[0; 5]).any_compiles(),
        || Ok(()),
        |_, _| Ok(()),
        |_, _, seen| {
            f()?.iter().for_each(|t| seen.keep(t));
            Ok(())
        },
        |_| vec![],
    );
    log.calls[0].iter().map(|v| v.data.to_f64()).collect()
}

/// The gradient of Σ f(x) with respect to x, eagerly and traced.
#[track_caller]
fn gradient(device: &Device, x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<f32> {
    let w = Var::new(x).expect("a Var");
    let out = agree(device, || Ok(vec![f(&w.get())?.sum(())?.backward()?.get(&w).expect("a gradient")]));
    out[0].clone()
}

pub fn nan_through_max_min_clamp(device: &Device) {
    let mut data: Vec<f32> = (0..37).map(|i| 0.25 * i as f32 - 4.0).collect();
    for i in [0, 5, 36] {
        data[i] = f32::NAN;
    }
    let x = vector(&data, device);
    let mut other = vec![0.5f32; 37];
    other[7] = f32::NAN;
    let y = vector(&other, device);
    let half = vector(&[0.5; 37], device);
    let out = agree(device, || {
        let chain = ((x.mul(1.5)?.maximum(0.0)? * 2.0)? + 1.0)?;
        let two = [x.relu()?, x.maximum(0.5)?, half.maximum(&x)?, x.minimum(0.5)?, x.clamp(-1.0, 1.0)?];
        Ok(two.into_iter().chain([chain, x.maximum(&y)?, x.max(())?, x.min(())?]).collect())
    });
    for (f, v) in out.iter().enumerate().take(7) {
        for (i, value) in v.iter().enumerate() {
            let nan = [0, 5, 36].contains(&i) || (f == 6 && i == 7);
            assert_eq!(value.is_nan(), nan, "function {f}, element {i}: {value}");
        }
    }
    assert!(out[7][0].is_nan() && out[8][0].is_nan());
    // Vector body and scalar tail agree on the gradient at a NaN.
    type F = fn(&Tensor) -> Result<Tensor>;
    let forms: [F; 4] = [|x| x.relu(), |x| x.maximum(0.5), |x| x.minimum(0.5), |x| x.clamp(-1.0, 1.0)];
    for f in forms {
        let g = gradient(device, &x, f);
        assert!(g[0].to_bits() == g[36].to_bits() || (g[0].is_nan() && g[36].is_nan()), "{} and {}", g[0], g[36]);
    }
}

pub fn zero_times_nan_and_signed_zero(device: &Device) {
    let (nan, inf) = (scalar(f32::NAN, device), scalar(f32::INFINITY, device));
    let (zero, minus) = (scalar(0.0, device), scalar(-0.0, device));
    let minus_half = scalar(-0.5, device);
    let a = Tensor::from_vec(vec![f32::NAN, 1.0, 2.0, 3.0], [2, 2], device).expect("a matrix");
    let out = agree(device, || {
        let zeros = Tensor::zeros((), DType::F32, device)?;
        let ones = Tensor::ones((), DType::F32, device)?;
        let product = a.matmul(&a)?.slice(0, 0, 1)?.slice(1, 0, 1)?.reshape(())?;
        Ok(vec![
            (3.0 + (&nan * 0.0)?)?,
            (&inf * 0.0)?,
            (&inf - &inf)?,
            (&zero / &zero)?,
            ((&ones * 2.0)? + (&product * 0.0))?,
            (&nan * &zeros)?,
            (&inf * &zeros)?,
            (1.0 / (&minus + 0.0)?)?,
            (1.0 / (&minus * 1.0)?)?,
            (1.0 / zero.neg()?)?,
            (1.0 / (0.0 - &zero)?)?,
            (1.0 / (&minus + &zeros)?)?,
            (1.0 / (&minus * &ones)?)?,
            (1.0 / (&minus - 0.0)?)?,
            (1.0 / (minus_half.ceil()? + 0.0)?)?,
            (1.0 / (minus_half.ceil()? + &zeros)?)?,
            (1.0 / (minus_half.ceil()? * &ones)?)?,
        ])
    });
    assert!(out[..7].iter().all(|v| v[0].is_nan()), "{out:?}");
    let want = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0].map(|s: f32| s * f32::INFINITY);
    assert_eq!(out[7..].iter().map(|v| v[0]).collect::<Vec<_>>(), want);
    agree(device, || {
        Ok(vec![minus.minimum(&zero)?, zero.minimum(&minus)?, minus.maximum(&zero)?, zero.maximum(&minus)?])
    });
}

pub fn fma_contraction_cancellation(device: &Device) {
    let (x, s) = (scalar(9e11, device), 0.7);
    let a = vector(&(1..=1000).map(|i| 1.0 + i as f32 / 7.0).collect::<Vec<_>>(), device);
    let b = vector(&(1..=1000).map(|i| 1.0 + i as f32 / 11.0).collect::<Vec<_>>(), device);
    let c = (&a * &b).expect("computed eagerly beforehand");
    let out = agree(device, || {
        let m = (&x * s)?;
        let y = (&m - (&x * s))?.exp()?;
        let p = (&a * &b)?;
        Ok(vec![y, ((&a * &b)? - (&a * &b))?, (&p - &c)?, (&p - &(&a * &b)?)?, ((&a * &b)? - &c)?])
    });
    assert_eq!(out[0], [1.0]);
    assert!(out[1..].iter().all(|v| v.iter().all(|d| *d == 0.0)));
}

pub fn half_rounding_observed_by_compare(device: &Device) {
    let x = vector(&[5.0, 6.5, 7.0, 7.0, 3.0], device).to_dtype(DType::BF16).expect("bf16");
    let v = vector(&(1..=8).map(|k| k as f32 / 9.0).collect::<Vec<_>>(), device);
    let out = agree_exactly(device, || {
        let q = x.div(3.0)?;
        let m = q.max(())?;
        let best = q.eq(&m)?;
        let ties = best.to_dtype(DType::BF16)?.sum(())?;
        let g = best.select(&ties.recip()?, 0.0)?;
        let h = v.to_dtype(DType::F16)?.to_dtype(DType::F32)?;
        Ok(vec![m, ties, g, h.ne(&v)?.sum(())?, h.sum(())?, v.sum(())?])
    });
    assert_eq!(out[0], [2.328125]);
    assert_eq!(out[1], [2.0]);
    assert_eq!(out[2], [0.0, 0.0, 0.5, 0.5, 0.0]);
    assert_eq!((out[3][0], out[4][0]), (8.0, 3.99951171875));
    assert!((out[5][0] - 4.0).abs() < 1e-6, "{}", out[5][0]);
    // The gradient of the maximum is shared by the two that are equal as bf16, and is bf16.
    let w = Var::new(&x).expect("a Var");
    let out = agree_exactly(device, || {
        let g = w.get().div(3.0)?.max(())?.backward()?.get(&w).expect("a gradient");
        assert_eq!(g.dtype(), DType::BF16);
        Ok(vec![g])
    });
    // A half of 1/3, rounded to bf16.
    assert_eq!(out[0], [0.0, 0.0, 0.1669921875, 0.1669921875, 0.0]);
}

pub fn variance_cancellation(device: &Device) {
    // Layer norm as it is composed here; of plain means over differences from the row's first element, which are exact; by the variance; and
    // as plain as can be, whose mean is rounded to f32: half an ulp at 500 is 2.2e-3 of the result, and at 20000 an ulp is the step of the row.
    type F = fn(&Tensor) -> Result<Tensor>;
    let plain: F = |x| {
        let d = (x - &x.mean_keepdim(-1)?)?;
        &d / &(d.mul(&d)?.mean_keepdim(-1)? + 1e-5)?.sqrt()?
    };
    let shifted: F = |x| {
        let x = (x - &x.slice(-1, 0, 1)?)?;
        let d = (&x - &x.mean_keepdim(-1)?)?;
        &d / &(d.mul(&d)?.mean_keepdim(-1)? + 1e-5)?.sqrt()?
    };
    let by_variance: F = |x| {
        let from = (x - &x.slice(-1, 0, 1)?)?;
        (&from - &from.mean_keepdim(-1)?)? / (x.var_with(-1, 0.0, true)? + 1e-5)?.sqrt()?
    };
    let composite: F = |x| x.layer_norm(-1, None, None, 1e-5);
    let moments = |row: &[f32]| -> (f64, f64) {
        let n = row.len() as f64;
        let mean = row.iter().map(|&v| v as f64).sum::<f64>() / n;
        (mean, row.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n)
    };
    let check = |row: &[f32], norm: F, tolerance: f64| {
        let x = Var::new(&Tensor::from_slice(row, [1, row.len()], device).expect("a row")).expect("a Var");
        let out = agree(device, || {
            let y = norm(&x.get())?;
            let g = (&y * &y)?.sum(())?.backward()?.get(&x).expect("a gradient");
            Ok(vec![y, g, x.get().var_with((), 0.0, false)?])
        });
        let (mean, var) = moments(row);
        for i in [0, row.len() * 5 / 12, row.len() - 1] {
            let want = (row[i] as f64 - mean) / (var + 1e-5).sqrt();
            assert!((out[0][i] as f64 - want).abs() <= tolerance, "element {i} of {row:?}: {}, not {want}", out[0][i]);
        }
        assert!(out[1].iter().all(|g| g.is_finite()), "{:?}", out[1]);
        // Within 2e-3 of the spread as well.
        assert!((out[2][0] as f64 - var).abs() <= 2e-3 * var, "the variance of {row:?}: {}, not {var}", out[2][0]);
        out[0].clone()
    };
    let rows = [
        (0.0f32, [-1.44854, -0.13169, 1.44854]),
        (500.0, [-1.44921, -0.13065, 1.44921]),
        (3000.0, [-1.44728, -0.13108, 1.44193]),
        (20000.0, [-1.44248, -0.13113, 1.44248]),
    ];
    for norm in [composite, shifted, by_variance, plain] {
        for (base, figures) in rows {
            let is_plain = std::ptr::fn_addr_eq(norm, plain);
            if is_plain && base > 1000.0 {
                continue;
            }
            let row: Vec<f32> = (0..12).map(|i| base + 0.002 * i as f32).collect();
            let tolerance = if is_plain { 2.5e-3 } else { 2e-3 };
            let y = check(&row, norm, tolerance);
            for (i, want) in [0, 5, 11].into_iter().zip(figures) {
                assert!((y[i] as f64 - want).abs() <= tolerance, "base {base}, element {i}: {}, not {want}", y[i]);
            }
        }
        let big = check(&[50000.0, 50002.0, 50004.0, 50006.0], norm, 1e-4);
        assert_close("the big row", &big, &[-1.34164, -0.44721, 0.44721, 1.34164], 1e-4);
        let flat = {
            let x = Tensor::full([1, 96], 777.7, device).expect("a row");
            let w = Var::new(&x).expect("a Var");
            let out = agree(device, || {
                let y = norm(&w.get())?;
                Ok(vec![y.clone(), y.mul(&y)?.sum(())?.backward()?.get(&w).expect("a gradient")])
            });
            assert!(out[1].iter().all(|g| g.is_finite()), "{:?}", out[1]);
            out[0].clone()
        };
        assert!(flat.iter().all(|v| v.abs() <= 1e-2), "{flat:?}");
    }
}

pub fn masked_softmax_row(device: &Device) {
    let inf = f32::INFINITY;
    let lse = |x: &Tensor| -> Result<Tensor> {
        // The usual guard: a row without a finite element keeps its maximum out of the difference.
        let top = x.max_keepdim(-1)?.detach()?;
        let top = top.eq(-inf)?.select(0.0, &top)?;
        (x - &top)?.exp()?.sum(-1)?.log()? + &top.squeeze(-1)?
    };
    let out = agree(device, || {
        let t = |v: &[f32]| Tensor::from_slice(v, [1, v.len()], device);
        Ok(vec![
            lse(&t(&[800.0, 800.0])?)?,
            lse(&t(&[900.0, 897.0])?)?,
            lse(&t(&[-inf, -inf])?)?,
            t(&[1e4, 1e4 - 1.0, -1e4])?.softmax(1)?,
        ])
    });
    assert_close("log-sum-exp", &[out[0][0], out[1][0]], &[800.693147, 900.048587], 1e-6);
    assert_eq!(out[2], [-inf]);
    assert_close("softmax", &out[3], &[0.731059, 0.268941, 0.0], 1e-6);
    // The mask added as -inf, and as a select; the loss looks at the second row only.
    let mask = Tensor::from_vec(vec![true, true, true, false, false, true], [2, 3], device).expect("a mask");
    for added in [false, true] {
        let scores =
            Var::new(&Tensor::from_vec(vec![0.5f32, 1.5, 2.5, 0.0, 1.0, 9.0], [2, 3], device).expect("scores"));
        let (scores, v) = (scores.expect("a Var"), Var::new(&filled(&[3, 2], 1, device)).expect("a Var"));
        let out = agree(device, || {
            let masked = if added {
                let minus = mask.select(-inf, 0.0)?;
                (&scores.get() + &minus)?
            } else {
                mask.select(-inf, scores.get())?
            };
            let p = masked.softmax(1)?;
            let row = p.slice(0, 1, 1)?;
            let g = row.matmul(&v.get())?.sum(())?.backward()?;
            Ok(vec![row, g.get(&v).expect("a gradient"), g.get(&scores).expect("a gradient").slice(0, 1, 1)?])
        });
        assert_close("row 1", &out[0], &[0.268941, 0.731059, 0.0], 1e-6);
        assert!(out[1..].iter().all(|g| g.iter().all(|v| v.is_finite())), "{out:?}");
    }
}

pub fn kink_subgradients(device: &Device) {
    let zeros = vector(&[0.0, -0.0], device);
    let one = |f: &dyn Fn(&Tensor) -> Result<Tensor>| gradient(device, &zeros, f);
    assert_eq!(one(&|x| x.relu()), [0.0, 0.0]);
    assert_eq!(one(&|x| x.abs()), [0.0, 0.0]);
    // Documented: at ties half of the gradient goes to each operand.
    assert_eq!(one(&|x| x.maximum(0.0)), [0.5, 0.5]);
    assert_eq!(one(&|x| x.gt(0.0)?.select(x, 0.0)), [0.0, 0.0]);
    let (x, y) = (Var::new(&scalar(2.0, device)).expect("a Var"), Var::new(&scalar(2.0, device)).expect("a Var"));
    let out = agree(device, || {
        let g = x.get().maximum(y.get())?.backward()?;
        Ok(vec![g.get(&x).expect("a gradient"), g.get(&y).expect("a gradient")])
    });
    assert_eq!((out[0][0], out[1][0]), (0.5, 0.5));
    assert_eq!(gradient(device, &vector(&[2.0, 7.0, 7.0], device), |x| x.max(())), [0.0, 0.5, 0.5]);
    let edges = gradient(device, &vector(&[0.0, 1.0, 0.5, 2.0], device), |x| x.clamp(0.0, 1.0));
    assert_eq!(edges, [1.0, 1.0, 1.0, 0.0], "the bounds are inside");
    // At a NaN: the same eagerly and traced.
    gradient(device, &vector(&[f32::NAN], device), |x| x.relu());
}

pub fn where_unselected_branch(device: &Device) {
    let yes = Tensor::from_vec(vec![true], [1], device).expect("a mask");
    let no = yes.not().expect("a mask");
    let (nan, inf) = (vector(&[f32::NAN], device), vector(&[f32::INFINITY], device));
    let out = agree(device, || {
        let floats = yes.to_dtype(DType::F32)?;
        Ok(vec![yes.select(1.0, &nan)?, no.select(&inf, 2.0)?, floats.ne(0.0)?.select(1.0, &nan)?])
    });
    assert_eq!(out, [[1.0], [2.0], [1.0]]);
    // (b) the plain form, (c) the guarded one
    let x = vector(&[1.0, -4.0], device);
    let plain = |x: &Tensor| x.ge(0.0)?.select(x, &x.neg()?.sqrt()?);
    let guarded = |x: &Tensor| {
        let inner = x.ge(0.0)?.select(1.0, &x.neg()?)?;
        x.ge(0.0)?.select(x, &inner.sqrt()?)
    };
    assert_eq!(agree(device, || Ok(vec![plain(&x)?, guarded(&x)?])), [[1.0, 2.0], [1.0, 2.0]]);
    let g = gradient(device, &x, plain);
    assert!((g[0] == 1.0 || g[0].is_nan()) && g[1] == -0.25, "{g:?}");
    assert_eq!(gradient(device, &x, guarded), [1.0, -0.25]);
}

pub fn integer_division_shift_cast_edges(device: &Device) {
    let ints = |v: &[i64]| Tensor::from_slice(v, [v.len()], device).expect("integers");
    let (a, b) = (ints(&[-9, 9, i64::MIN, 5, 7]), ints(&[4, -4, -1, 0, 2]));
    let floats = vector(&[f32::NAN, 3e30, -3e30, 2.9, -2.9], device);
    let mut step = jit::Step::new();
    let mut fused = jit::Step::new();
    let wanted = vec![-2i64, -2, i64::MIN, 0, 3];
    let cast = vec![0i64, i64::MAX, i64::MIN, 2, -2];
    for _ in 0..5 {
        for (q, c) in [(a.div(&b), floats.to_dtype(DType::I64)), {
            let both = step.run(|| Ok((a.div(&b)?, floats.to_dtype(DType::I64)?))).expect("a call");
            (Ok(both.0), Ok(both.1))
        }] {
            assert_eq!(q.and_then(|q| q.to_vec::<i64>()).expect("a quotient"), wanted);
            assert_eq!(c.and_then(|c| c.to_vec::<i64>()).expect("a cast"), cast);
        }
        // In a chain with other dtypes: wrapping at each op.
        let chain = || -> Result<Tensor> {
            let big = (a.mul(0i64)? + i64::MAX)?;
            let sum = (&big + 1i64)?;
            sum.lt(0i64)?.to_dtype(DType::F32)? + &floats.gt(0.0)?.to_dtype(DType::F32)?
        };
        let (eager, traced) = (chain().expect("eager"), fused.run(chain).expect("a call"));
        assert_eq!(values(&eager), [1.0, 2.0, 1.0, 2.0, 1.0]);
        assert_eq!(values(&traced), values(&eager));
        let bools = vector(&[0.5, f32::NAN, 0.0, -0.0], device).to_dtype(DType::Bool).expect("bools");
        assert_eq!(bools.to_vec::<bool>().expect("bools"), [true, true, false, false]);
    }
    // Smaller integers: each op wraps, alone and in a chain with other dtypes.
    let of = |v: &[f32], dtype| vector(v, device).to_dtype(dtype).expect("a cast");
    let (p, q) = (of(&[-9.0, 9.0, -2147483648.0, 5.0], DType::I32), of(&[4.0, -4.0, -1.0, 0.0], DType::I32));
    let (u, v) = (of(&[200.0, 3.0], DType::U8), of(&[100.0, 5.0], DType::U8));
    let small = of(&[100.0], DType::I8);
    let (bits, counts) = (of(&[1.0, -8.0, 1.0], DType::I32), of(&[33.0, 1.0, -1.0], DType::I32));
    let floats = vector(&[f32::NAN, 3e9, -3e9, -1.0, 300.0, 2.9], device);
    let large = Tensor::from_vec(vec![1i64 << 40], [1], device).expect("an integer");
    let out = agree_exactly(device, || {
        let chain = (u.add(&v)?.to_dtype(DType::F32)? * 0.5)?.add(&u.lt(&v)?.to_dtype(DType::F16)?)?;
        Ok(vec![
            p.div(&q)?,
            u.add(&v)?,
            u.sub(&v)?,
            small.add(&small)?,
            floats.to_dtype(DType::I32)?,
            floats.to_dtype(DType::U8)?,
            floats.to_dtype(DType::F64)?.to_dtype(DType::I8)?,
            large.to_dtype(DType::I32)?,
            chain,
            p.neg()?.abs()?,
            small.neg()?.sub(29i64)?.div(2i64)?,
            p.fmod(&q)?,
            p.rem(&q)?,
            // The quotient rounded towards zero goes with `fmod`.
            p.div(&q)?.mul(&q)?.add(&p.fmod(&q)?)?.sub(&p)?,
            bits.shl(&counts)?,
            bits.shr(&counts)?,
        ])
    });
    let want: [&[f64]; 16] = [
        &[-2.0, -2.0, -2147483648.0, 0.0],
        &[44.0, 8.0],
        &[100.0, 254.0],
        &[-56.0],
        &[0.0, 2147483647.0, -2147483648.0, -1.0, 300.0, 2.0],
        &[0.0, 255.0, 0.0, 0.0, 255.0, 2.0],
        &[0.0, 127.0, -128.0, -1.0, 127.0, 2.0],
        &[0.0],
        &[22.0, 5.0],
        &[9.0, 9.0, -2147483648.0, 5.0],
        &[63.0],
        &[-1.0, 1.0, 0.0, 0.0],
        &[3.0, -3.0, 0.0, 0.0],
        // Except for a zero divisor.
        &[0.0, 0.0, 0.0, -5.0],
        &[0.0, -16.0, 0.0],
        &[0.0, -4.0, 0.0],
    ];
    assert_eq!(out, want);
}

pub fn promotion_and_zero_dim(device: &Device) {
    let (none, one, three) = (scalar(2.0, device), vector(&[3.0], device), vector(&[1.0, 2.0, 4.0], device));
    for k in 0..5 {
        let mut step = jit::Step::new();
        let shapes = |ts: Vec<Tensor>| ts.iter().map(|t| t.dims().to_vec()).collect::<Vec<_>>();
        let f = || Ok(vec![(&none + &three)?, (&one * &three)?, (&none - &none)?, none.sum(())?, (&none * 2.5)?]);
        let want = [vec![3], vec![3], vec![], vec![], vec![]];
        assert_eq!(shapes(f().expect("eager")), want);
        for _ in 0..k {
            assert_eq!(shapes(step.run(f).expect("a call")), want);
        }
    }
    // Gradients have the shape of their operand.
    let (a, b) = (Var::new(&none).expect("a Var"), Var::new(&one).expect("a Var"));
    for (v, shape) in [(&a, vec![]), (&b, vec![1])] {
        let g = (&v.get() * &three).and_then(|y| y.sum(())?.backward()).expect("gradients").get(v).expect("a gradient");
        assert_eq!((g.dims().to_vec(), values(&g)), (shape, vec![7.0]));
    }
    // The documented table, the same eagerly and traced: dtype and values.
    let of = |v: &[f32], dtype| vector(v, device).to_dtype(dtype).expect("a cast");
    let (half, brain) = (of(&[1.5, 2.0], DType::F16), of(&[1.0, 3.0], DType::BF16));
    let (ints, wide) = (of(&[7.0, -7.0], DType::I32), of(&[2.0, 4.0], DType::I64));
    let (bytes, double) = (of(&[1.0, 2.0], DType::U8), of(&[1.0, 2.0], DType::F64));
    let bools = ints.gt(0i64).expect("bools");
    let single = |v: f64, dtype| Tensor::full_as((), v, dtype, device).expect("a 0-d tensor");
    let (zero32, zero64, zero16) = (single(0.1, DType::F32), single(0.1, DType::F64), single(0.5, DType::F16));
    let f = || {
        Ok(vec![
            (half.add(&zero32)?, DType::F16, vec![1.599_609_4, 2.099_609_4]),
            (half.mul(2.5)?, DType::F16, vec![3.75, 5.0]),
            (ints.mul(2.5)?, DType::F32, vec![17.5, -17.5]),
            (bools.add(&bools)?, DType::Bool, vec![1.0, 0.0]),
            (bools.add(1i64)?, DType::I64, vec![2.0, 1.0]),
            (ints.div(of(&[2.0, 2.0], DType::I32))?, DType::I32, vec![3.0, -3.0]),
            (brain.add(&half)?, DType::F32, vec![2.5, 5.0]),
            (ints.add(&wide)?, DType::I64, vec![9.0, -3.0]),
            (bytes.add(&ints)?, DType::I32, vec![8.0, -5.0]),
            (ints.add(&zero64)?, DType::F64, vec![7.1, -6.9]),
            (double.mul(0.1)?, DType::F64, vec![0.1, 0.2]),
            ((0.1 - &double)?, DType::F64, vec![-0.9, -1.9]),
            (zero16.add(&zero32)?, DType::F32, vec![0.6]),
            (zero16.add(single(2.0, DType::I64))?, DType::F16, vec![2.5]),
            (ints.sum(())?, DType::I64, vec![0.0]),
            (bools.sum(())?, DType::I64, vec![1.0]),
            (bools.select(&half, &ints)?, DType::F16, vec![1.5, -7.0]),
            (bools.select(1i64, 0.5)?, DType::F32, vec![1.0, 0.5]),
            (Tensor::concat(&[&brain, &wide], 0)?, DType::BF16, vec![1.0, 3.0, 2.0, 4.0]),
            (ints.lt(&half)?, DType::Bool, vec![0.0, 1.0]),
        ])
    };
    let check = |out: Vec<(Tensor, DType, Vec<f64>)>| {
        for (i, (t, dtype, want)) in out.into_iter().enumerate() {
            let got = t.to_host().expect("values").data.to_f64();
            assert_eq!(t.dtype(), dtype, "{i}");
            let near = got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-7 * w.abs());
            assert!(near && got.len() == want.len(), "{i}: {got:?}, expected {want:?}");
        }
    };
    check(f().expect("eager"));
    let mut step = jit::Step::new();
    for _ in 0..4 {
        check(step.run(f).expect("a call"));
    }
    // What has no common meaning is refused, the same eagerly and traced.
    for _ in 0..3 {
        for wrong in [ints.mean(()), ints.matmul(&ints), bytes.add(300i64), bools.sub(&bools), ints.exp()] {
            assert!(wrong.is_err());
        }
        step.run(|| {
            assert!(ints.mean(()).is_err() && bytes.sub(-1i64).is_err());
            Ok(())
        })
        .expect("a call");
    }
}

pub fn duplicate_index_scatter_add(device: &Device) {
    let w = Var::new(&filled(&[5, 2], 1, device)).expect("a Var");
    let index = Tensor::from_vec(vec![2i64, 2, 4, 2], [4], device).expect("indices");
    let upstream = vector(&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], device).reshape([4, 2]).expect("rows");
    let out = agree(device, || {
        let loss = (&w.get().index_select(0, &index)? * &upstream)?.sum(())?;
        Ok(vec![loss.backward()?.get(&w).expect("a gradient")])
    });
    assert_eq!(out[0], [0.0, 0.0, 0.0, 0.0, 7.0, 7.0, 0.0, 0.0, 3.0, 3.0]);
    let n = 100_000;
    let picks: Vec<i64> = (0..n).map(|i| (i * 7919 + i / 13) % 7).collect();
    let table = Var::new(&filled(&[7, 1], 2, device)).expect("a Var");
    let many = Tensor::from_slice(&picks, [picks.len()], device).expect("indices");
    let out = agree(device, || {
        let loss = table.get().index_select(0, &many)?.sum(())?;
        Ok(vec![loss.backward()?.get(&table).expect("a gradient")])
    });
    let counts: Vec<f32> = (0..7).map(|r| picks.iter().filter(|&&p| p == r).count() as f32).collect();
    assert_eq!(out[0], counts);
    // 16-bit gradients add up in f32 and round once: a sum in bf16 stops at 256, one in f16 at 2048.
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        let table = Var::new(&Tensor::zeros([3, 2], dtype, device).expect("zeros")).expect("a Var");
        let rows = Tensor::full([4000], 1i64, device).expect("indices");
        let out = agree_exactly(device, || {
            let loss = table.get().index_select(0, &rows)?.sum(())?;
            Ok(vec![loss.backward()?.get(&table).expect("a gradient")])
        });
        // 4000 is a bf16 to 8 bits: 4000 = 250 * 16.
        assert_eq!(out[0], [0.0, 0.0, 4000.0, 4000.0, 0.0, 0.0], "{dtype}");
    }
}

pub fn broadcast_gradient_reduction(device: &Device) {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, device).expect("ones");
    let check = |a: &[usize], b: &[usize], upstream: f32| {
        let (x, y) = (Var::new(&ones(a)).expect("a Var"), Var::new(&ones(b)).expect("a Var"));
        let out = agree(device, || {
            let g = (&x.get() * &y.get())?.sum(())?.backward()?;
            let (gx, gy) = (g.get(&x).expect("a gradient"), g.get(&y).expect("a gradient"));
            assert_eq!((gx.dims(), gy.dims()), (a, b));
            Ok(vec![gx, gy])
        });
        let n = |d: &[usize]| d.iter().product::<usize>() as f32;
        assert!(out[0].iter().all(|v| *v == upstream / n(a)), "{a:?} {b:?}: {:?}", out[0]);
        assert!(out[1].iter().all(|v| *v == upstream / n(b)), "{a:?} {b:?}: {:?}", out[1]);
    };
    check(&[1], &[5, 4], 20.0);
    check(&[], &[2], 2.0);
    check(&[4, 1], &[1, 3], 12.0);
    check(&[2, 1, 4, 1], &[2, 3, 1, 5], 120.0);
    check(&[3], &[2, 3], 6.0);
    assert_eq!(gradient(device, &ones(&[2, 3, 4]), |x| x.mean([1, 2])), vec![1.0 / 12.0; 24]);
    assert_eq!(gradient(device, &ones(&[3]), |x| x.expand([3])), [1.0; 3]);
}

pub fn strides_into_fused_kernel(device: &Device) {
    let x = vector(&(0..16).map(|i| i as f32).collect::<Vec<_>>(), device).reshape([4, 4]).expect("a matrix");
    let pick = Tensor::from_vec(vec![3i64, 2, 1, 0], [4], device).expect("indices");
    let mut step = jit::Step::new();
    let mut insides: Vec<jit::Step> = (0..20).map(|_| jit::Step::new()).collect();
    // Each with the elements of x that it shows.
    let forms = |x: &Tensor| -> Result<Vec<(Tensor, Vec<usize>)>> {
        let at = |rows: usize, columns: usize, f: &dyn Fn(usize, usize) -> usize| -> Vec<usize> {
            (0..rows).flat_map(|i| (0..columns).map(move |j| f(i, j))).collect()
        };
        Ok(vec![
            (x.clone(), at(4, 4, &|i, j| 4 * i + j)),
            (x.t()?, at(4, 4, &|i, j| 4 * j + i)),
            (x.slice(1, 1, 2)?, at(4, 2, &|i, j| 4 * i + j + 1)),
            (x.flip(0)?, at(4, 4, &|i, j| 4 * (3 - i) + j)),
            (x.flip(1)?, at(4, 4, &|i, j| 4 * i + 3 - j)),
            (x.flip(())?, at(4, 4, &|i, j| 15 - 4 * i - j)),
            (x.t()?.flip(0)?, at(4, 4, &|i, j| 4 * j + 3 - i)),
            (x.slice_step(1, 3, 2, -2)?, at(4, 2, &|i, j| 4 * i + 3 - 2 * j)),
            (x.slice_step(0, 2, 3, -1)?, at(3, 4, &|i, j| 4 * (2 - i) + j)),
            (x.flip(1)?.slice(1, 1, 2)?.t()?, at(2, 4, &|i, j| 4 * j + 2 - i)),
            (x.index_select(0, &pick)?, at(4, 4, &|i, j| 4 * (3 - i) + j)),
            (x.slice(0, 2, 1)?.expand([4, 4])?, at(4, 4, &|_, j| 8 + j)),
            (x.slice(0, 2, 1)?.flip(1)?.expand([4, 4])?, at(4, 4, &|_, j| 11 - j)),
            (x.slice(1, 3, 1)?.expand([4, 4])?, at(4, 4, &|i, _| 4 * i + 3)),
            (x.reshape([16])?.slice(0, 3, 8)?, (3..11).collect()),
            (x.slice_step(1, 1, 2, 2)?, at(4, 2, &|i, j| 4 * i + 1 + 2 * j)),
            (x.reshape([4, 1, 4])?.permute(&[1, 2, 0])?, at(4, 4, &|i, j| 4 * j + i)),
            // An axis of length 1, with a stride of 4, -4 and 0.
            (x.slice(0, 3, 1)?, (12..16).collect()),
            (x.slice(0, 3, 1)?.flip(0)?, (12..16).collect()),
            (x.i(1)?.unsqueeze(1)?.slice_step(1, 0, 1, -7)?, (4..8).collect()),
        ])
    };
    for _ in 0..3 {
        for (i, (v, shown)) in forms(&x).expect("views").iter().enumerate() {
            let elements: Vec<f32> = shown.iter().map(|&at| at as f32).collect();
            assert_eq!(&values(v), &elements, "form {i}");
            let dense = Tensor::from_vec(elements, v.dims().to_vec(), device).expect("a copy");
            let chain = |v: &Tensor| (v * 2.0)? + 1.0;
            let want = chain(&dense).and_then(|y| y.to_host()).expect("eager");
            assert_bits_eq(&format!("form {i}, eager"), &chain(v).and_then(|y| y.to_host()).expect("eager"), &want);
            let got = step.run(|| chain(v)).and_then(|y| y.to_host()).expect("a call");
            assert_bits_eq(&format!("form {i}"), &got, &want);
            // The view taken inside the step, of an argument as it lies; and reduced where it is read.
            let inside = |x: &Tensor| -> Result<Tensor> { chain(&forms(x)?[i].0) };
            let step = &mut insides[i];
            let got = step.run(|| inside(&x)).and_then(|y| y.to_host()).expect("a call");
            assert_bits_eq(&format!("form {i}, inside"), &got, &want);
            let sum = step.run(|| inside(&x)?.sum(())).expect("a call");
            assert_eq!(values(&sum), [shown.iter().map(|&at| 2.0 * at as f32 + 1.0).sum::<f32>()], "form {i}");
        }
        let y = step.run(|| (&x.t()? * 2.0)? + 1.0).expect("a call");
        assert_eq!(values(&y)[..4], [1.0, 9.0, 17.0, 25.0]);
        // Contiguous, transposed, reversed and broadcast operands mixed in one kernel.
        let mixed = |x: &Tensor| (x + &x.t()?)? * (x.flip(())? - x.slice(0, 1, 1)?.flip(1)?)?;
        let want: Vec<f32> = (0..16usize)
            .map(|k| {
                let (i, j) = (k / 4, k % 4);
                ((4 * i + j + 4 * j + i) as f32) * ((15 - k) as f32 - (7 - j) as f32)
            })
            .collect();
        assert_eq!(values(&mixed(&x).expect("eager")), want);
        assert_eq!(values(&step.run(|| mixed(&x)).expect("a call")), want);
    }
    for step in &insides {
        assert!(step.report().eager == 0 && step.report().paths == 2, "{}", step.report());
    }
    // x[:, ::2] *= 10: a value is not written in place. What it would become is a new value, and a Var takes it, while
    // the old value stays.
    let w = Var::new(&x).expect("a Var");
    let mut step = jit::Step::new();
    for k in 1..=4 {
        let before = w.get();
        let held = values(&before);
        step.run(|| {
            let x = w.get();
            let even = (x.slice_step(1, 0, 2, 2)? * 10.0)?;
            let columns = [even.slice(1, 0, 1)?, x.slice(1, 1, 1)?, even.slice(1, 1, 1)?, x.slice(1, 3, 1)?];
            w.set(&Tensor::concat(&columns.iter().collect::<Vec<_>>(), 1)?)
        })
        .expect("a call");
        let want = |i: usize| i as f32 * if i.is_multiple_of(2) { 10f32.powi(k) } else { 1.0 };
        assert_eq!(values(&w.get()), (0..16).map(want).collect::<Vec<_>>());
        assert_eq!(values(&before), held, "an earlier value");
    }
    assert_eq!(values(&x), (0..16).map(|i| i as f32).collect::<Vec<_>>());
}

pub fn empty_tensors(device: &Device) {
    for dims in [vec![0usize], vec![3, 0], vec![0, 3]] {
        let x = Var::new(&Tensor::zeros(&dims, DType::F32, device).expect("nothing")).expect("a Var");
        let full = Tensor::ones(if dims.len() == 1 { vec![2] } else { vec![3, 3] }, DType::F32, device).expect("ones");
        let axis: isize = if dims == [3, 0] { 1 } else { 0 };
        let out = agree(device, || {
            let v = x.get();
            let joined = Tensor::concat(&[&v, &full], axis)?;
            let g = (&v + 1.0)?.sum(())?.backward()?.get(&x).expect("a gradient");
            assert_eq!(g.dims(), dims);
            x.set(&(&v - (&g * 0.1))?)?;
            Ok(vec![(&v + &v)?, joined, v.sum(())?, v.mean(())?, v.sum(axis)?, (&full + 1.0)?])
        });
        assert!(out[0].is_empty());
        assert!(out[1].iter().all(|v| *v == 1.0));
        assert_eq!(out[2], [0.0]);
        assert!(out[3][0].is_nan(), "the mean of nothing");
        assert!(out[4].iter().all(|v| *v == 0.0));
        assert!(out[5].iter().all(|v| *v == 2.0), "a normal op works after it");
        assert!(x.get().max(axis).is_err(), "the maximum of nothing");
    }
    let (a, b) = (Tensor::zeros([2, 0], DType::F32, device), Tensor::zeros([0, 3], DType::F32, device));
    let (a, b) = (a.expect("nothing"), b.expect("nothing"));
    assert_eq!(agree(device, || Ok(vec![a.matmul(&b)?]))[0], [0.0; 6]);
    let none = Tensor::from_vec(Vec::<i64>::new(), [0], device).expect("no indices");
    let table = filled(&[5, 2], 1, device);
    assert!(agree(device, || Ok(vec![table.index_select(0, &none)?]))[0].is_empty());
    // First 5 rows, then none.
    let mut step = jit::Step::new();
    for rows in [5, 0, 5, 0, 0, 5] {
        let x = Tensor::ones([rows, 3], DType::F32, device).expect("rows");
        assert_eq!(values(&step.run(|| (&x * 2.0)?.sum(0)).expect("a call")), [2.0 * rows as f32; 3]);
    }
}

pub fn long_sum_accuracy_and_thread_count(device: &Device) {
    // A simulated device is too slow for so many.
    let cpu = device.name() == "cpu";
    let (n, long) = if cpu { (1usize << 25, 30_000_000usize) } else { (1 << 20, 1_000_000) };
    if !cpu {
        eprintln!("not run at full size: sums of 2^26 elements, on the CPU only");
    }
    // The sums of the case, and of numbers without a pattern, whose low bits show the order of the additions.
    let sums = |device: &Device, all: bool| -> Result<Vec<f32>> {
        let mut out = Vec::new();
        let mut step = jit::Step::new();
        let mut sum = |repeats: usize, f: &dyn Fn() -> Result<Tensor>| -> Result<()> {
            let eager = values(&f()?);
            for k in 0..repeats {
                // The second and every later traced call replays.
                let again = if k < 2 || k % 2 == 0 { step.run(f)? } else { f()? };
                let same = values(&again).iter().zip(&eager).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "repeat {k}: {:?}, not {eager:?}", values(&again));
            }
            out.extend(eager);
            Ok(())
        };
        let drawn = Rng::seed_from(9).uniform([2 * n], device)?;
        sum(20, &|| drawn.sum(()))?;
        sum(2, &|| drawn.reshape([2, n])?.sum(1))?;
        // Columns are slower: an eighth of them.
        sum(2, &|| drawn.slice(0, 0, n / 4)?.reshape([n / 8, 2])?.sum(0))?;
        drop(drawn);
        if !all {
            return Ok(out);
        }
        let ones = Tensor::ones([2 * n], DType::F32, device)?;
        sum(2, &|| ones.slice(0, 0, n)?.sum(()))?;
        sum(2, &|| ones.reshape([n, 2])?.sum(0))?;
        sum(2, &|| ones.reshape([2, n])?.sum(1))?;
        drop(ones);
        let many = Tensor::full([long], 0.7, device)?;
        sum(2, &|| many.sum(()))?;
        drop(many);
        let tenths = Tensor::full([2 * n], 0.1, device)?;
        sum(2, &|| tenths.mean(()))?;
        Ok(out)
    };
    let check = |got: &[f32]| {
        let n = n as f64;
        // Of uniform numbers: the mean is 1/2 to within six standard deviations of it.
        let spread = 6.0 * (1.0 / 12.0 / (2.0 * n)).sqrt();
        assert!((got[0] as f64 / (2.0 * n) - 0.5).abs() < spread, "{}", got[0]);
        let rows = got[1] as f64 + got[2] as f64;
        assert!((rows / got[0] as f64 - 1.0).abs() < 1e-6, "{rows}, not {}", got[0]);
        assert_eq!(got[5..10], [n as f32; 5]);
        // Of the f32 nearest to 0.7: 20,999,999.6 at full size.
        assert!((got[10] as f64 / (long as f64 * 0.7f32 as f64) - 1.0).abs() <= 1e-6, "{}", got[10]);
        assert!((got[11] as f64 - 0.1).abs() <= 1e-7, "{}", got[11]);
    };
    let first = sums(device, true).expect("sums");
    check(&first);
    if !cpu {
        return;
    }
    for threads in [1, 2, 3, 8] {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let got = sums(&Device::cpu_with(&options).expect("a device"), false).expect("sums");
        assert_eq!(got.len(), 5);
        for (i, (a, b)) in got.iter().zip(&first[..5]).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{threads} threads, sum {i}: {a}, not {b}");
        }
    }
}

scenarios!(
    nan_through_max_min_clamp,
    zero_times_nan_and_signed_zero,
    fma_contraction_cancellation,
    half_rounding_observed_by_compare,
    variance_cancellation,
    masked_softmax_row,
    kink_subgradients,
    where_unselected_branch,
    integer_division_shift_cast_edges,
    promotion_and_zero_dim,
    duplicate_index_scatter_add,
    broadcast_gradient_reduction,
    strides_into_fused_kernel,
    empty_tensors,
    long_sum_accuracy_and_thread_count,
);
