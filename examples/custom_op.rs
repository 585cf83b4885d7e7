//! An operation of one's own: weights rounded to a codebook, with a straight-through gradient.
//!
//! `cargo run --release --example custom_op`. A linear model is trained whose weights may only take the values of
//! a small sorted codebook, found by binary search in a Rust kernel. The gradient ignores the rounding, in tensor code. Eager
//! and traced runs give the same bits; the step is one launch with the kernel inside.

use stepgraph::jit::{self, CustomOp};
use stepgraph::{DType, Device, Result, Rng, Tensor, Var};

/// `nearest(x, codes)`: each element of `x` replaced by the nearest of the sorted `codes`.
fn nearest() -> Result<CustomOp> {
    jit::custom_op("nearest")
        .inputs([DType::F32, DType::F32])
        .cpu(|k| {
            let (x, codes) = (k.inputs[0].as_slice::<f32>()?, k.inputs[1].as_slice::<f32>()?);
            if codes.is_empty() || !codes.is_sorted() {
                return Err("the codes must be sorted, and there must be some".into());
            }
            for (y, &x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
                let above = codes.partition_point(|&c| c < x).min(codes.len() - 1);
                let below = above.saturating_sub(1);
                *y = if x - codes[below] < codes[above] - x { codes[below] } else { codes[above] };
            }
            Ok(())
        })
        // Straight through (Bengio, Léonard & Courville, 2013): as if nothing had been rounded.
        .gradient(|g| Ok(vec![Some(g.upstream.clone()), None]))
        .build()
}

/// Trains for `steps` steps; the loss of each.
fn train(traced: bool, steps: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let (device, rng) = (Device::cpu(), Rng::seed_from(1));
    let nearest = nearest()?;
    let codes: Vec<f32> = (-4..=4).map(|i| i as f32 / 4.0).collect();
    let codes = Tensor::from_slice(&codes, [codes.len()], &device)?;
    // What is to be found: weights that are in the codebook.
    let truth = Tensor::from_slice(&[0.25f32, -0.75, 1.0, 0.0], [4, 1], &device)?;
    let x = (rng.uniform([64, 4], &device)? - 0.5)?;
    let y = x.matmul(&truth)?;
    let w = Var::new(&Tensor::zeros([4, 1], DType::F32, &device)?)?;
    let mut step = jit::Step::new();
    let mut losses = Vec::new();
    for k in 0..steps {
        let rate = 2.0 / (1.0 + 0.02 * k as f64); // host code: taken anew at each call
        let body = || {
            let rounded = nearest.call(&[&w.get(), &codes])?;
            let loss = x.matmul(&rounded)?.mse(&y)?;
            let g = loss.backward()?.get(&w).ok_or_else(|| stepgraph::ErrorKind::Backward { detail: "none".into() })?;
            w.set(&w.get().sub(&(g * rate)?)?)?;
            Ok(loss)
        };
        let loss = if traced { step.run(body)? } else { body()? };
        losses.push(loss.item::<f32>()?);
    }
    if traced {
        println!("{}", step.report());
    }
    Ok((losses, nearest.call(&[&w.get(), &codes])?.to_vec()?))
}

fn main() -> Result<()> {
    let (eager, _) = train(false, 60)?;
    let (traced, weights) = train(true, 60)?;
    assert_eq!(eager, traced, "the same bits");
    println!("loss {:.5} -> {:.5}, weights {weights:?}", traced[0], traced[traced.len() - 1]);
    assert!(traced[traced.len() - 1] < 1e-12, "the weights are found exactly");
    Ok(())
}
