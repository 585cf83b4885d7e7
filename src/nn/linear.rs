//! Affine maps.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::nn::{impl_module, init};
use crate::tensor::{Device, Rng, Tensor, Var};

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
    /// `[inputs, outputs]`: PyTorch's, transposed.
    pub weight: Var,
    /// `[outputs]`.
    pub bias: Option<Var>,
}
impl_module!(Linear { weight, bias });

impl Linear {
    /// Weights and bias drawn from the uniform distribution over ±1/√inputs (PyTorch's default), f32.
    ///
    /// Errors: `inputs` of 0.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
    /// assert_eq!(layer.weight.shape().dims(), [4, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, rng: &Rng, device: &Device) -> Result<Linear> {
        let _scope = Scope::enter();
        let layer = Linear::without_bias(inputs, outputs, rng, device)?;
        let bias = init::uniform([outputs], init::default_bound(inputs), rng, device)?;
        Ok(Linear { bias: Some(Var::new(&bias)?), ..layer })
    }

    /// As [`Linear::new`], without a bias.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let layer = nn::Linear::without_bias(4, 3, &Rng::seed_from(0), device)?;
    /// assert!(layer.bias.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn without_bias(inputs: usize, outputs: usize, rng: &Rng, device: &Device) -> Result<Linear> {
        let _scope = Scope::enter();
        if inputs == 0 {
            return Err(Error::argument("Linear::new", "at least one input", "0").at(Loc::caller()));
        }
        let weight = init::uniform([inputs, outputs], init::default_bound(inputs), rng, device)?;
        Ok(Linear { weight: Var::new(&weight)?, bias: None })
    }

    /// `x` is `[.., inputs]`, with at least 2 axes; the result `[.., outputs]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
    /// assert_eq!(layer.forward(&Tensor::ones([2, 5, 4], DType::F32, device)?)?.dims(), [2, 5, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let y = x.matmul(&self.weight.get())?;
        match &self.bias {
            Some(bias) => y.add(bias.get()),
            None => Ok(y),
        }
    }
}
