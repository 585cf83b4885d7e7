//! Names, parameters and buffers of nested modules; the training flag.

use stepgraph::nn::{self, Buffer, Linear, Mode, Module};
use stepgraph::{DType, Device, Result, Rng, Tensor, Var};

use crate::harness::{own_device, scalar};

nn::module! {
    /// Two layers and a table.
    struct Block {
        first: Linear,
        rest: Vec<Linear>,
        gate: Option<Var>,
        none: Option<Linear>,
        pair: (Var, [Var; 2]),
        seen: Buffer,
        mode: Mode,
        width: usize,
        tied: Var,
    }
}

struct Pair(Box<dyn Module>, Block);
nn::impl_module!(Pair { 0, 1 });

fn block(device: &Device) -> Result<Block> {
    let rng = Rng::seed_from(1);
    let var = |v: f32| Var::new(&scalar(v, device));
    let first = Linear::new(2, 3, &rng, device)?;
    Ok(Block {
        rest: vec![Linear::without_bias(3, 3, &rng, device)?, Linear::new(3, 1, &rng, device)?],
        gate: Some(var(1.0)?),
        none: None,
        pair: (var(2.0)?, [var(3.0)?, var(4.0)?]),
        seen: Buffer(Var::state(&scalar(0.0, device))?),
        mode: Mode::default(),
        width: 3,
        tied: first.weight.clone(),
        first,
    })
}

fn names(list: Vec<(String, Var)>) -> Vec<String> {
    list.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn parameters_have_dotted_names_in_the_order_of_the_fields() {
    let device = &own_device();
    let b = block(device).expect("a block");
    let want = [
        "first.weight",
        "first.bias",
        "rest.0.weight",
        "rest.1.weight",
        "rest.1.bias",
        "gate",
        "pair.0",
        "pair.1.0",
        "pair.1.1",
    ];
    // The tied weight is listed once; the width is no parameter, the buffer none either.
    assert_eq!(names(b.named_parameters()), want);
    assert_eq!(names(b.named_buffers()), ["seen"]);
    assert!(b.parameters().iter().zip(b.named_parameters()).all(|(p, (_, q))| p.same(&q)));
    assert!(b.parameters()[0].same(&b.tied) && b.named_buffers()[0].1.same(&b.seen));
    assert_eq!((b.width, b.none.is_none(), b.gate.is_some()), (3, true, true));
    let pair = Pair(Box::new(b.first.clone()), block(device).expect("a block"));
    let all = names(pair.named_parameters());
    assert_eq!((&all[0][..], &all[2][..], all.len()), ("0.weight", "1.first.weight", 11));
}

#[test]
fn the_training_flag_reaches_every_layer() {
    let device = &own_device();
    let pair = Pair(Box::new(Mode::default()), block(device).expect("a block"));
    let flag = pair.1.mode.clone();
    assert!(flag.is_training());
    pair.eval();
    assert!(!flag.is_training() && !pair.1.mode.is_training());
    pair.train();
    assert!(flag.is_training());
}

#[test]
fn a_linear_layer_without_bias() {
    let device = &own_device();
    let layer = Linear::without_bias(3, 2, &Rng::seed_from(4), device).expect("a layer");
    let x = Tensor::ones([1, 3], DType::F32, device).expect("ones");
    let sums = layer.weight.get().sum(0).and_then(|s| s.to_vec::<f32>()).expect("sums");
    let y = layer.forward(&x).and_then(|y| y.to_vec::<f32>()).expect("a result");
    assert!(y.iter().zip(&sums).all(|(a, b)| (a - b).abs() < 1e-6), "{y:?} {sums:?}");
    let bound = 1.0 / 3f32.sqrt();
    assert!(layer.weight.get().to_vec::<f32>().expect("weights").iter().all(|w| (-bound..bound).contains(w)));
}
