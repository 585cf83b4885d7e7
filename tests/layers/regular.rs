//! Dropout and embedding.

use stepgraph::{Result, Rng, Tensor, Var, jit, nn, optim};

use crate::check::{Check, some};
use crate::harness::{Expect, compare, own_device, values, zeros};

#[test]
fn dropout_drops_a_share_and_scales_the_rest() {
    let device = &own_device();
    let x = some(&[40, 50], 3, device).add(2.0).expect("numbers");
    for (p, scale) in [(0.0, 1.0), (0.25, 4.0f32 / 3.0), (0.5, 2.0), (0.9, 10.0)] {
        let y = values(&x.dropout(p, &Rng::seed_from(5)).expect("a result"));
        let dropped = y.iter().filter(|&&v| v == 0.0).count() as f64 / 2000.0;
        // Five standard deviations.
        assert!((dropped - p).abs() < 5.0 * (p * (1.0 - p) / 2000.0).sqrt() + 1e-9, "{p}: {dropped}");
        for (x, y) in values(&x).iter().zip(&y) {
            assert!(*y == 0.0 || (y / (x * scale) - 1.0).abs() < 1e-6, "{x} became {y}");
        }
    }
    // Nothing is left, and nothing but zeros flows back, even where the input is infinite.
    let w = Var::new(&x.mul(f64::INFINITY).expect("infinities")).expect("a Var");
    let y = w.get().dropout(1.0, &Rng::seed_from(5)).expect("a result");
    assert!(values(&y).iter().all(|&v| v == 0.0));
    let g = y.sum(()).and_then(|l| l.backward()).expect("gradients").get(&w).expect("a gradient");
    assert!(values(&g).iter().all(|&v| v == 0.0));
    for p in [-0.1, 1.5, f64::NAN] {
        assert!(x.dropout(p, &Rng::seed_from(5)).is_err_and(|e| e.to_string().contains("from 0 to 1")));
    }
}

/// Forward and backward share one mask; each call has another; the probability may change from call to call.
#[test]
fn dropout_masks_in_a_step() {
    let device = &own_device();
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&zeros(&[300], device))?, Rng::seed_from(3))),
        |_, _| Ok(()),
        |(w, rng), k, seen| {
            let p = 0.1 * k as f64;
            let y = (w.get() + 1.0)?.dropout(p, rng)?;
            seen.keep(&y);
            seen.keep(&y.sum(())?.backward()?.get(w).expect("a gradient"));
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        assert_eq!(log.f32(k, 0), log.f32(k, 1), "the gradient is the mask, scaled");
        let dropped = log.f32(k, 0).iter().filter(|&&v| v == 0.0).count() as f64 / 300.0;
        assert!((dropped - 0.1 * k as f64).abs() < 0.15, "{k}: {dropped}");
        assert!(k == 0 || log.f32(k, 0) != log.f32(k - 1, 0));
    }
}

#[test]
fn embedding_of_any_shape() {
    let device = &own_device();
    let ids = [3i64, 0, 3, 3, 1, 2];
    for dims in [&[6][..], &[2, 3], &[3, 1, 2]] {
        let at = Tensor::from_slice(&ids, dims, device).expect("ids");
        let formula = |v: &[Vec<f64>]| ids.iter().flat_map(|&i| v[0][i as usize * 5..][..5].to_vec()).collect();
        Check::new("embedding", vec![some(&[4, 5], 1, device)], &formula).run(device, |v| {
            let y = v[0].embedding(&at)?;
            assert_eq!(y.dims(), [dims, &[5]].concat());
            Ok(y)
        });
    }
    let outside = Tensor::from_slice(&[4i64], [1], device).expect("ids");
    let read = |ids: &Tensor| -> Result<Vec<f32>> { some(&[4, 5], 1, device).embedding(ids)?.to_vec() };
    assert!(read(&outside).is_err(), "an id out of range is told at the host read");
}

/// A padding id: its row is zeros, gets no gradient, and stays when trained; the others as ever.
#[test]
fn the_row_of_the_padding_is_left_alone() {
    let device = &own_device();
    let layer = nn::Embedding::with_padding(5, 3, 1, &Rng::seed_from(4), device).expect("a layer");
    let plain = nn::Embedding::new(5, 3, &Rng::seed_from(4), device).expect("a layer");
    let (start, drawn) = (values(&layer.weight.get()), values(&plain.weight.get()));
    assert_eq!(start[3..6], [0.0; 3]);
    assert!(start[..3] == drawn[..3] && start[6..] == drawn[6..], "{start:?}");
    let ids = Tensor::from_vec(vec![1i64, 0, 4, 1, 4, 1], [2, 3], device).expect("ids");
    let mut sgd = optim::Sgd::new(vec![layer.weight.clone()], optim::SgdConfig { lr: 0.5, ..Default::default() })
        .expect("an optimizer");
    let mut step = jit::Step::new();
    for k in 1..=4 {
        let (y, g) = step
            .run(|| {
                let y = layer.forward(&ids)?;
                let gradients = y.sum(())?.backward()?;
                sgd.step(&gradients)?;
                Ok((y, gradients.get(&layer.weight).expect("a gradient")))
            })
            .expect("a call");
        assert_eq!(y.dims(), [2, 3, 3]);
        assert_eq!(values(&y)[..3], [0.0; 3]);
        // How often each row is looked up.
        let times = [1.0, 0.0, 0.0, 0.0, 2.0];
        assert_eq!(values(&g), times.iter().flat_map(|&t| [t; 3]).collect::<Vec<f32>>());
        let now = values(&layer.weight.get());
        for (i, (now, start)) in now.iter().zip(&start).enumerate() {
            assert!((now - (start - 0.5 * k as f32 * times[i / 3])).abs() < 1e-6, "{i}: {now} from {start}");
        }
    }
    assert!(
        nn::Embedding::with_padding(5, 3, 5, &Rng::seed_from(4), device)
            .is_err_and(|e| e.to_string().contains("a padding below 5"))
    );
    assert!(
        layer
            .weight
            .get()
            .embedding_padded(&ids, 7)
            .is_err_and(|e| e.to_string().contains("a padding below 5") && e.to_string().contains("regular.rs"))
    );
}
