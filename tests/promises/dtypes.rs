//! Every dtype: in and out, computed in, trained in; eagerly, traced and frozen.

use stepgraph::base::HostValue;
use stepgraph::{DType, Device, Element, Result, Tensor, Var, bf16, f16, jit};

use crate::harness::{Expect, compare, vector};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn reals(t: &Tensor) -> Vec<f64> {
    t.to_host().expect("values").data.to_f64()
}

/// Values of one dtype survive every way in and out, a `Var`, and a step.
fn round_trip<T: Element>(values: [T; 3], zero_one: [T; 2], device: &Device) {
    let x = Tensor::from_vec(values.to_vec(), [3], device).expect("a tensor");
    assert_eq!((x.dtype(), x.to_vec::<T>().expect("values")), (T::DTYPE, values.to_vec()));
    assert_eq!(Tensor::from_slice(&values[1..2], (), device).and_then(|t| t.item::<T>()).expect("a value"), values[1]);
    let flat = |t: Result<Tensor>| t.and_then(|t| t.to_vec::<T>()).expect("values");
    assert_eq!(flat(Tensor::zeros([2], T::DTYPE, device)), [zero_one[0]; 2]);
    assert_eq!(flat(Tensor::ones([2], T::DTYPE, device)), [zero_one[1]; 2]);
    assert_eq!(flat(Tensor::full_as([2], 1.0, T::DTYPE, device)), [zero_one[1]; 2]);
    let cell = Var::state(&x).expect("a Var");
    let mut step = jit::Step::new();
    for _ in 0..4 {
        // A copy through a kernel, a strided view of it, and a write.
        let y = step
            .run(|| {
                let pair = Tensor::concat(&[&cell.get(), &x], 0)?.reshape([2, 3])?;
                cell.set(&pair.slice(0, 1, 1)?.reshape([3])?)?;
                pair.t()
            })
            .expect("a call");
        let want: Vec<T> = values.iter().flat_map(|&v| [v, v]).collect();
        assert_eq!((y.dims(), y.to_vec::<T>().expect("values")), (&[3, 2][..], want));
        assert_eq!(cell.get().to_vec::<T>().expect("values"), values);
    }
    assert!(x.to_string().starts_with('['), "{x}");
}

pub fn in_and_out(device: &Device) {
    round_trip([true, false, true], [false, true], device);
    round_trip([0u8, 255, 7], [0, 1], device);
    round_trip([i8::MIN, i8::MAX, -7], [0, 1], device);
    round_trip([i32::MIN, i32::MAX, -7], [0, 1], device);
    round_trip([i64::MIN, i64::MAX, -7], [0, 1], device);
    round_trip([f16::MAX, f16::MIN_POSITIVE_SUBNORMAL, f16::from_f32(-0.1)], [f16::ZERO, f16::ONE], device);
    round_trip([bf16::MAX, bf16::MIN_POSITIVE_SUBNORMAL, bf16::from_f32(-0.1)], [bf16::ZERO, bf16::ONE], device);
    round_trip([f32::MAX, 1e-45, -0.1], [0.0, 1.0], device);
    round_trip([f64::MAX, 5e-324, -0.1], [0.0, 1.0], device);
}

/// Gradient descent on a layer with its loss, all in one dtype: `steps` losses in doubles.
fn descent_reference(x: &[[f64; 3]; 4], y: &[f64; 4], w: &mut [f64; 3], rate: f64, steps: usize) -> Vec<f64> {
    let mut losses = Vec::new();
    for _ in 0..steps {
        let predicted: Vec<f64> = x.iter().map(|r| r.iter().zip(&*w).map(|(a, b)| a * b).sum::<f64>().tanh()).collect();
        losses.push(predicted.iter().zip(y).map(|(p, y)| (p - y).powi(2)).sum::<f64>() / 4.0);
        for k in 0..3 {
            let slope = |i: usize| 2.0 * (predicted[i] - y[i]) / 4.0 * (1.0 - predicted[i] * predicted[i]) * x[i][k];
            w[k] -= rate * (0..4).map(slope).sum::<f64>();
        }
    }
    losses
}

pub fn training_in_each_float_dtype(device: &Device) {
    let x = [[1.0, 0.5, -1.0], [0.25, -2.0, 1.5], [-0.5, 1.0, 2.0], [1.5, -0.75, 0.125]];
    let y = [0.5, -0.25, 0.75, -0.5];
    let (start, rate, steps) = ([0.125, -0.5, 0.25], 0.1, 12);
    let mut w = start;
    let losses = descent_reference(&x, &y, &mut w, rate, steps);
    for (dtype, tolerance) in FLOATS.into_iter().zip([2e-3, 2e-2, 1e-6, 1e-14]) {
        let of = |values: &[f64], dims: &[usize]| {
            Tensor::from_slice(values, dims, device).and_then(|t| t.to_dtype(dtype)).expect("a tensor")
        };
        let log = compare(
            device,
            &Expect::steady(steps).frozen(),
            || Ok((Var::new(&of(&start, &[3, 1]))?, of(&x.concat(), &[4, 3]), of(&y, &[4, 1]))),
            |_, _| Ok(()),
            |(w, x, y), _, seen| {
                let loss = x.matmul(&w.get())?.tanh()?.mse(y)?;
                let g = loss.backward()?.get(w).expect("a gradient");
                assert_eq!((loss.dtype(), g.dtype()), (dtype, dtype));
                w.set(&(w.get() - &(g * rate)?)?)?;
                seen.keep(&loss);
                Ok(())
            },
            |s| vec![s.0.clone()],
        );
        let near = |got: &HostValue, want: &[f64]| {
            assert_eq!(got.data.dtype(), dtype);
            for (g, w) in got.data.to_f64().iter().zip(want) {
                assert!((g - w).abs() <= tolerance, "{dtype}: {g}, expected {w}");
            }
        };
        for (k, loss) in losses.iter().enumerate() {
            near(&log.calls[k][0], &[*loss]);
        }
        near(&log.calls[steps - 1][1], &w);
    }
}

/// The weights stay f32, the layer is computed in bf16: the gradient comes back through the casts as f32.
pub fn single_precision_master_weights(device: &Device) {
    let x = vector(&[1.0, 2.0, 3.0, 4.0], device).reshape([2, 2]).expect("a matrix");
    let log = compare(
        device,
        &Expect::steady(5).frozen(),
        || Ok((Var::new(&vector(&[0.5, 0.25], device).reshape([2, 1])?)?, x.to_dtype(DType::BF16)?)),
        |_, _| Ok(()),
        |(w, x), _, seen| {
            let y = x.matmul(&w.get().to_dtype(DType::BF16)?)?;
            let loss = y.to_dtype(DType::F32)?.sum(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            assert_eq!((y.dtype(), g.dtype()), (DType::BF16, DType::F32));
            w.set(&(w.get() - &(&g * 0.001)?)?)?;
            seen.keep(&y);
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    // Of the first call: y = [1, 2.5], the gradient [1 + 3, 2 + 4]; steps that bf16 weights would lose.
    assert_eq!(log.calls[0][0].data.to_f64(), [1.0, 2.5]);
    assert_eq!(log.calls[0][1].data.to_f64(), [4.0, 6.0]);
    let after: Vec<f64> = [0.5f32, 0.25].iter().zip([0.004f32, 0.006]).map(|(w, d)| (w - d) as f64).collect();
    assert_eq!(log.calls[0][2].data.to_f64(), after);
}

/// 16-bit sums, means and products are made in f32 and rounded once.
pub fn halves_round_once(device: &Device) {
    let ones = |n: usize, dtype| Tensor::ones([n], dtype, device).expect("ones");
    let f = || {
        let mut out = Vec::new();
        for (dtype, half_place) in [(DType::F16, 2f32.powi(-11)), (DType::BF16, 2f32.powi(-8))] {
            let row = ones(4096, dtype).reshape([1, 4096])?;
            out.push(ones(4096, dtype).sum(())?);
            out.push(ones(100_000, dtype).mean(())?);
            out.push(row.matmul(&row.t()?)?.flatten()?);
            // Half a unit in the last place, twice: rounded after each addition both are lost.
            out.push(vector(&[1.0, half_place, half_place], device).to_dtype(dtype)?.sum(())?);
        }
        Ok(out)
    };
    let want = [4096.0, 1.0, 4096.0, 1.0009765625, 4096.0, 1.0, 4096.0, 1.0078125];
    let check = |out: Vec<Tensor>| {
        let got: Vec<f64> = out.iter().flat_map(reals).collect();
        assert_eq!(got, want);
    };
    check(f().expect("eager"));
    let mut step = jit::Step::new();
    for _ in 0..3 {
        check(step.run(f).expect("a call"));
    }
}

/// A host double keeps its full value for an f64 tensor, and is taken anew at each call.
pub fn host_doubles_are_not_narrowed(device: &Device) {
    let x = Tensor::from_vec(vec![1.0f64, 3.0], [2], device).expect("doubles");
    let mut step = jit::Step::new();
    for k in 0..6 {
        let rate = 0.1 + 1e-13 * k as f64;
        let (y, z) = step.run(|| Ok(((&x * rate)?, x.gt(1.0)?.select(rate, &x)?))).expect("a call");
        assert_eq!(y.to_vec::<f64>().expect("values"), [rate, 3.0 * rate]);
        assert_eq!(z.to_vec::<f64>().expect("values"), [1.0, rate]);
    }
}

/// Gradients of f64 functions to f64's precision.
pub fn gradients_of_doubles(device: &Device) {
    let at = [0.3f64, 1.7];
    let w = Var::new(&Tensor::from_vec(at.to_vec(), [2], device).expect("doubles")).expect("a Var");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        let g = step
            .run(|| {
                let x = w.get();
                let y = (&x.exp()? * &x.sin()?)?.add(&x.log()?.tanh()?)?.div(&x.sqrt()?)?;
                Ok(y.sum(())?.backward()?.get(&w).expect("a gradient"))
            })
            .expect("a call");
        for (g, x) in g.to_vec::<f64>().expect("values").into_iter().zip(at) {
            let (top, root) = (x.exp() * x.sin() + x.ln().tanh(), x.sqrt());
            let slope = x.exp() * (x.sin() + x.cos()) + (1.0 - x.ln().tanh().powi(2)) / x;
            let want = slope / root - top / (2.0 * x * root);
            assert!((g - want).abs() <= 1e-14 * want.abs().max(1.0), "{g}, expected {want}");
        }
    }
}

scenarios!(
    in_and_out,
    training_in_each_float_dtype,
    single_precision_master_weights,
    halves_round_once,
    host_doubles_are_not_narrowed,
    gradients_of_doubles,
);
