//! That verification of replays can fail.

use super::Frozen;
use crate::base::ErrorKind;
use crate::jit::Step;
use crate::op::Op;
use crate::op::elementwise::{Elementwise, arith, trigonometry};
use crate::tensor::{Device, Tensor, Var};

/// `w = w + exp(x)`, giving `exp(x)`.
fn frozen() -> (Frozen, Var) {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[0.5f32, -1.0], [2], &device).unwrap();
    let w = Var::state(&Tensor::from_slice(&[1.0f32, 2.0], [2], &device).unwrap()).unwrap();
    let mut step = Step::new();
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(
            step.run(|| {
                let e = x.exp()?;
                w.set(&(w.get() + &e)?)?;
                Ok(e)
            })
            .unwrap(),
        );
    }
    (step.freeze().unwrap(), w)
}

/// Another op than the plan's, or the same numbers read wrongly: the replay after so many is an error, others are not.
#[test]
fn a_replay_that_is_not_what_was_recorded_is_told() {
    for line in 0..2 {
        let (mut frozen, _w) = frozen();
        frozen.verify_every(2);
        for _ in 0..4 {
            frozen.replay().unwrap();
        }
        frozen.script[line].op = Some(Op::Elementwise(Elementwise::new([&trigonometry::SIN, &arith::SUB][line])));
        frozen.replay().unwrap();
        let e = frozen.replay().map(|_| ()).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Bug { .. }) && e.to_string().contains(file!()), "{e}");
    }
}
