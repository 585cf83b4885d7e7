//! Floor 9: layers. Parameters are [`Var`]s; `forward` is ordinary eager code.

use crate::base::{Error, Loc, Result};
use crate::tensor::{Device, Rng, Tensor, Var};

/// What has parameters.
pub trait Module {
    /// The trainable parameters, in a fixed order.
    fn parameters(&self) -> Vec<Var>;
}

/// An affine map of the last axis: `x @ weight + bias`.
///
/// ```
/// use stepgraph::{Device, Result, Rng, Tensor, DType, nn::Linear};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let layer = Linear::new(4, 3, &Rng::seed_from(0), &device)?;
/// let y = layer.forward(&Tensor::ones([2, 4], DType::F32, &device)?)?;
/// assert_eq!(y.dims(), [2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    /// f32 `[inputs, outputs]`.
    pub weight: Var,
    /// f32 `[outputs]`.
    pub bias: Var,
}

impl Linear {
    /// Weights and bias drawn from the uniform distribution over ±1/√inputs (PyTorch's default).
    ///
    /// Errors: `inputs` of 0.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, rng: &Rng, device: &Device) -> Result<Linear> {
        if inputs == 0 {
            return Err(Error::argument("Linear::new", "at least one input", "0").at(Loc::caller()));
        }
        let _scope = crate::base::location::Scope::enter();
        let bound = 1.0 / (inputs as f32).sqrt();
        let draw = |u: Tensor| u.mul(2.0 * bound)?.sub(bound);
        Ok(Linear {
            weight: Var::new(&draw(rng.uniform([inputs, outputs], device)?)?)?,
            bias: Var::new(&draw(rng.uniform([outputs], device)?)?)?,
        })
    }

    /// `x` is f32 `[.., inputs]`; the result `[.., outputs]`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = crate::base::location::Scope::enter();
        x.matmul(&self.weight.get())?.add(self.bias.get())
    }
}

impl Module for Linear {
    fn parameters(&self) -> Vec<Var> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}
