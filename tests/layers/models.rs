//! Layers together: models that train, eagerly, traced and frozen alike, bit for bit.

use stepgraph::nn::{
    self, BatchNorm1d, BatchNorm2d, Conv2d, ConvTranspose2d, Convolution, Dropout, Embedding, GruCell, LayerNorm,
    Linear, LstmCell, Module, MultiHeadAttention, Relu, RmsNorm, Sequential, Tanh,
};
use stepgraph::optim::{Adam, AdamConfig};
use stepgraph::{DType, Device, Result, Rng, Tensor};

use crate::check::some;
use crate::harness::{Expect, compare, own_device, values};

struct Training<M> {
    model: M,
    adam: Adam,
    x: Tensor,
    y: Tensor,
}

/// Trains `model` for 8 steps on a batch that changes; gives the losses.
#[track_caller]
fn trains<M: Module>(
    device: &Device,
    model: impl Fn(&Rng) -> Result<M>,
    forward: impl Fn(&M, &Tensor) -> Result<Tensor>,
    x: impl Fn(u32) -> Tensor,
) -> Vec<f32> {
    let log = compare(
        device,
        &Expect::steady(8).frozen(),
        || {
            let model = model(&Rng::seed_from(5))?;
            let adam = Adam::new(model.parameters(), AdamConfig { lr: 0.03, ..AdamConfig::default() })?;
            let y = Tensor::from_vec(vec![0i64, 2, 1, 1, 0, 2], [6], device)?;
            Ok(Training { model, adam, x: x(1), y })
        },
        |_, _| Ok(()),
        |s, _, seen| {
            let loss = forward(&s.model, &s.x)?.cross_entropy(&s.y)?;
            s.adam.step(&loss.backward()?)?;
            seen.keep(&loss);
            Ok(())
        },
        |s| {
            let buffers = s.model.named_buffers().into_iter().map(|(_, v)| v);
            s.model.parameters().into_iter().chain(buffers).chain(s.adam.state()).collect()
        },
    );
    log.firsts(0)
}

#[track_caller]
fn falls(losses: &[f32]) {
    assert!(losses.iter().all(|l| l.is_finite()), "{losses:?}");
    assert!(losses[losses.len() - 1] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn a_convolutional_network() {
    let device = &own_device();
    let model = |rng: &Rng| -> Result<Sequential> {
        let same = Convolution { padding: [1, 1], ..Convolution::default() };
        let half = Convolution { stride: [2, 2], ..same };
        Ok(Sequential::new()
            .then(Conv2d::new(2, 4, [3, 3], same, rng, device)?.without_bias())
            .then(BatchNorm2d::new(4, device)?)
            .then(Relu)
            .then(Conv2d::new(4, 6, [3, 3], half, rng, device)?)
            .then(Tanh)
            .then(ConvTranspose2d::new(
                6,
                3,
                [2, 2],
                Convolution { stride: [2, 2], ..Convolution::default() },
                rng,
                device,
            )?)
            .then(nn::Function(|x: &Tensor| x.max_pool2d(&nn::Pooling::new([2, 2]))))
            .then(nn::Function(|x: &Tensor| x.global_avg_pool()))
            .then(Linear::new(3, 3, rng, device)?))
    };
    falls(&trains(device, model, |m, x| m.forward(x), |k| some(&[6, 2, 6, 6], k, device)));
}

nn::module! {
    struct Bag {
        table: Embedding,
        norm: LayerNorm,
        rms: RmsNorm,
        batch: BatchNorm1d,
        drop: Dropout,
        last: Linear,
    }
}

#[test]
fn embeddings_norms_and_dropout() {
    let device = &own_device();
    let model = |rng: &Rng| -> Result<Bag> {
        Ok(Bag {
            table: Embedding::new(9, 8, rng, device)?,
            norm: LayerNorm::new([4, 8], device)?,
            rms: RmsNorm::new([8], device)?,
            batch: BatchNorm1d::new(8, device)?,
            drop: Dropout::new(0.2, rng),
            last: Linear::without_bias(8, 3, rng, device)?,
        })
    };
    let forward = |m: &Bag, x: &Tensor| {
        let h = m.rms.forward(&m.norm.forward(&m.table.forward(x)?)?)?;
        m.last.forward(&m.drop.forward(&m.batch.forward(&h.mean(1)?)?)?)
    };
    let ids = |_| Tensor::from_vec((0..24).map(|i| i * i % 9).collect::<Vec<i64>>(), [6, 4], device).expect("ids");
    falls(&trains(device, model, forward, ids));
    let m = model(&Rng::seed_from(5)).expect("a model");
    let names: Vec<String> = m.named_parameters().into_iter().map(|(name, _)| name).collect();
    let want = "table.weight norm.weight norm.bias rms.weight batch.weight batch.bias last.weight";
    assert_eq!(names.join(" "), want);
    let buffers: Vec<String> = m.named_buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(buffers, ["batch.running_mean", "batch.running_variance"]);
    // Evaluated, nothing is drawn and no statistics move.
    m.eval();
    let drawn = m.drop.rng.counter();
    let (a, b) = (forward(&m, &ids(0)).expect("a result"), forward(&m, &ids(0)).expect("a result"));
    assert_eq!(values(&a), values(&b));
    assert_eq!(m.drop.rng.counter(), drawn);
    assert_eq!(values(&m.batch.running_mean.get()), [0.0; 8]);
}

nn::module! {
    struct Sequence {
        table: Embedding,
        attention: MultiHeadAttention,
        lstm: LstmCell,
        gru: GruCell,
        last: Linear,
    }
}

/// A sequence by attention, then by recurrent cells, step by step.
#[test]
fn attention_and_recurrent_cells() {
    let device = &own_device();
    let model = |rng: &Rng| -> Result<Sequence> {
        let mut attention = MultiHeadAttention::new(8, 2, rng, device)?;
        (attention.causal, attention.dropout.p) = (true, 0.1);
        Ok(Sequence {
            table: Embedding::new(9, 8, rng, device)?,
            attention,
            lstm: LstmCell::new(8, 6, rng, device)?,
            gru: GruCell::new(6, 5, rng, device)?,
            last: Linear::new(5, 3, rng, device)?,
        })
    };
    let forward = |m: &Sequence, ids: &Tensor| {
        let x = m.table.forward(ids)?;
        let x = (&x + &m.attention.forward(&x, None)?)?;
        let ((mut h, mut c), mut g) = (m.lstm.zeros(6)?, m.gru.zeros(6)?);
        for word in x.split(1, 1)? {
            (h, c) = m.lstm.forward(&word.squeeze(1)?, &h, &c)?;
            g = m.gru.forward(&h, &g)?;
        }
        m.last.forward(&g)
    };
    let ids = |_| Tensor::from_vec((0..24).map(|i| i * i % 9).collect::<Vec<i64>>(), [6, 4], device).expect("ids");
    falls(&trains(device, model, forward, ids));
}

#[test]
fn initial_values_are_pytorchs() {
    let device = &own_device();
    let rng = Rng::seed_from(11);
    let spread = |t: &Tensor| -> (f64, f64) {
        let v: Vec<f64> = values(t).into_iter().map(f64::from).collect();
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (
            v.iter().fold(0.0f64, |m, x| m.max(x.abs())),
            (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt(),
        )
    };
    // Even over ±1/√fan_in: the largest near the bound, deviation bound/√3.
    let conv =
        Conv2d::new(8, 64, [3, 3], Convolution { groups: 2, ..Convolution::default() }, &rng, device).expect("a layer");
    let bound = 1.0 / 36f64.sqrt();
    let (most, deviation) = spread(&conv.weight.get());
    assert!(most <= bound + 1e-6 && most > 0.99 * bound, "{most} of {bound}");
    assert!((deviation / (bound / 3f64.sqrt()) - 1.0).abs() < 0.05, "{deviation}");
    assert!(spread(&conv.bias.expect("a bias").get()).0 <= bound + 1e-6);
    let (_, deviation) = spread(&Embedding::new(200, 50, &rng, device).expect("a layer").weight.get());
    assert!((deviation - 1.0).abs() < 0.03, "{deviation}");
    let xavier = nn::init::xavier_uniform([300, 100], 300, 100, &rng, device).expect("values");
    assert!(spread(&xavier).0 <= (6.0f64 / 400.0).sqrt() + 1e-6);
    let kaiming = nn::init::kaiming_uniform([50, 100], 50, 2f64.sqrt(), &rng, device).expect("values");
    assert!(spread(&kaiming).0 <= (6.0f64 / 50.0).sqrt() + 1e-6 && spread(&kaiming).0 > 0.99 * (6.0f64 / 50.0).sqrt());
    assert!(Conv2d::new(3, 4, [3, 3], Convolution { groups: 2, ..Convolution::default() }, &rng, device).is_err());
    assert_eq!(xavier.dtype(), DType::F32);
}
