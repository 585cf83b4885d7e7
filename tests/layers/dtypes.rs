//! Composites in other dtypes: f64 to its own precision; 16-bit floats computed in f32 and rounded once.

use stepgraph::nn::{Attention, BatchNormOptions, Convolution, CrossEntropy, Pooling, Reduction};
use stepgraph::{DType, Device, Result, Rng, Tensor};

use crate::check::some;
use crate::harness::{assert_bits_eq, own_device};

type F = fn(&[Tensor]) -> Result<Tensor>;

/// Composites of an image, a weight per channel (and per place of the last axis) and a filter.
fn composites() -> Vec<(&'static str, F)> {
    vec![
        ("leaky_relu", |v| v[0].leaky_relu(0.1)),
        ("elu", |v| v[0].elu(0.7)),
        ("gelu", |v| v[0].gelu()),
        ("gelu_tanh", |v| v[0].gelu_tanh()),
        ("silu", |v| v[0].silu()),
        ("softplus", |v| v[0].softplus()),
        ("log_sigmoid", |v| v[0].log_sigmoid()),
        ("softmax", |v| v[0].softmax(-1)),
        ("log_softmax", |v| v[0].log_softmax(1)),
        ("layer_norm", |v| v[0].layer_norm(-1, Some(&v[1]), Some(&v[1]), 1e-5)),
        ("rms_norm", |v| v[0].rms_norm(-1, Some(&v[1]), 1e-5)),
        ("batch_norm", |v| {
            v[0].batch_norm(&BatchNormOptions { weight: Some(&v[1]), bias: Some(&v[1]), ..Default::default() })
        }),
        ("mse", |v| v[0].mse_with(&v[1], Reduction::None)),
        ("huber", |v| v[0].huber(&v[1], 0.3, Reduction::Mean)),
        ("smooth_l1", |v| v[0].smooth_l1(&v[1], 0.3, Reduction::Sum)),
        ("bce", |v| v[0].binary_cross_entropy_with_logits(&v[1], Some(&v[1]), Reduction::Mean)),
        ("avg_pool2d", |v| v[0].avg_pool2d(&Pooling { stride: [1, 2], padding: [1, 1], ..Pooling::new([3, 2]) })),
        ("max_pool2d", |v| v[0].max_pool2d(&Pooling { stride: [1, 2], padding: [1, 1], ..Pooling::new([3, 2]) })),
    ]
}

/// What goes through a matrix product, whose operands and result are rounded.
fn products() -> Vec<(&'static str, F)> {
    vec![
        ("conv2d", |v| {
            v[0].conv2d(&v[2], Some(&v[1]), &Convolution { padding: [1, 1], stride: [2, 1], ..Default::default() })
        }),
        ("conv_transpose2d", |v| {
            v[0].conv_transpose2d(&v[2], Some(&v[1]), [1, 0], &Convolution { stride: [2, 1], ..Default::default() })
        }),
        ("attention", |v| {
            v[0].scaled_dot_product_attention(&v[0], &v[0], &Attention { causal: true, ..Default::default() })
        }),
    ]
}

fn operands(device: &Device, dtype: DType) -> Vec<Tensor> {
    let make = |dims: &[usize], seed| some(dims, seed, device).to_dtype(DType::F16)?.to_dtype(dtype);
    let all = [make(&[2, 4, 5, 4], 1), make(&[4], 2), make(&[4, 4, 3, 2], 3)];
    all.into_iter().collect::<Result<_>>().expect("operands")
}

fn run(f: F, device: &Device, dtype: DType) -> Tensor {
    let y = f(&operands(device, dtype)).expect("a result");
    assert_eq!(y.dtype(), dtype);
    y
}

#[test]
fn sixteen_bits_are_computed_in_f32_and_rounded_once() {
    let device = &own_device();
    for (name, f) in composites() {
        // Every f16 is an f32, and so is every bf16; these operands are both.
        for dtype in [DType::F16, DType::BF16] {
            let narrow = |t: Tensor| t.to_dtype(dtype).expect("a cast");
            let given: Vec<Tensor> = operands(device, dtype);
            let wide: Vec<Tensor> = given.iter().map(|t| t.to_dtype(DType::F32).expect("a cast")).collect();
            let (got, want) = (f(&given).expect("a result"), narrow(f(&wide).expect("a result")));
            assert_eq!(got.dtype(), dtype, "{name}");
            assert_bits_eq(name, &got.to_host().expect("values"), &want.to_host().expect("values"));
        }
    }
}

#[test]
fn double_precision() {
    let device = &own_device();
    for (name, f) in composites().into_iter().chain(products()) {
        let (single, double) = (run(f, device, DType::F32), run(f, device, DType::F64));
        let (single, double) = (single.to_host().expect("values"), double.to_host().expect("values"));
        // Near the f32 result; that it is better than that is what the formulas' own tests are for.
        for (a, b) in single.data.to_f64().iter().zip(double.data.to_f64()) {
            assert!((a - b).abs() < 3e-6 * b.abs().max(1.0), "{name}: {a} and {b}");
        }
    }
    // One formula to double precision: rows of layer norm have the mean 0 and the variance 1.
    let x = some(&[3, 50], 4, device).to_dtype(DType::F64).and_then(|x| x.add(1000.0)).expect("rows");
    let y = x.layer_norm(-1, None, None, 0.0).and_then(|y| y.to_vec::<f64>()).expect("a result");
    for row in y.chunks(50) {
        let (mean, square) = (row.iter().sum::<f64>() / 50.0, row.iter().map(|v| v * v).sum::<f64>() / 50.0);
        assert!(mean.abs() < 1e-14 && (square - 1.0).abs() < 1e-13, "{mean} {square}");
    }
}

#[test]
fn products_of_sixteen_bits() {
    let device = &own_device();
    for (name, f) in products() {
        for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            let (got, want) = (run(f, device, dtype), run(f, device, DType::F32));
            let (got, want) = (got.to_host().expect("values"), want.to_host().expect("values"));
            for (a, b) in got.data.to_f64().iter().zip(want.data.to_f64()) {
                assert!((a - b).abs() < tolerance * b.abs().max(2.0), "{name} of {dtype}: {a} and {b}");
            }
        }
    }
}

/// Labels and ids of any integer dtype, dropout of any float.
#[test]
fn integer_labels_and_ids() {
    let device = &own_device();
    let x = some(&[6, 4], 1, device);
    let labels = Tensor::from_vec(vec![3i64, 0, 1, 1, 2, 3], [6], device).expect("labels");
    let options = CrossEntropy { ignore: Some(1), ..CrossEntropy::default() };
    let want = x.cross_entropy_with(&labels, &options).and_then(|l| l.item::<f32>()).expect("a loss");
    for dtype in [DType::U8, DType::I8, DType::I32] {
        let labels = labels.to_dtype(dtype).expect("labels");
        assert_eq!(x.cross_entropy_with(&labels, &options).and_then(|l| l.item::<f32>()).expect("a loss"), want);
        assert_eq!(x.embedding(&labels).expect("rows").dims(), [6, 4]);
    }
    assert!(
        x.cross_entropy(&labels.to_dtype(DType::F32).expect("floats"))
            .is_err_and(|e| e.to_string().contains("integer labels"))
    );
    assert!(
        x.embedding(&labels.to_dtype(DType::Bool).expect("bools"))
            .is_err_and(|e| e.to_string().contains("integer ids"))
    );
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let y = Tensor::ones([100], dtype, device).and_then(|x| x.dropout(0.5, &Rng::seed_from(1))).expect("a result");
        assert_eq!(y.dtype(), dtype);
        assert!(y.to_host().expect("values").data.to_f64().iter().all(|&v| v == 0.0 || v == 2.0));
    }
}
