//! Initial values of parameters, as PyTorch draws them by default (`torch.nn.init`).

use crate::base::Result;
use crate::base::location::Scope;
use crate::base::shape::IntoShape;
use crate::tensor::{Device, Rng, Tensor};

/// Even draws from `[-bound, bound)`.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = nn::init::uniform([4, 4], 0.5, &Rng::seed_from(0), device)?;
/// assert!(w.abs()?.max(())?.item::<f32>()? <= 0.5);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn uniform(shape: impl IntoShape, bound: f64, rng: &Rng, device: &Device) -> Result<Tensor> {
    let _scope = Scope::enter();
    // In f32, as the draws are.
    let bound = bound as f32;
    rng.uniform(shape, device)?.mul(2.0 * bound)?.sub(bound)
}

/// Even draws over `±gain·√(3/fan_in)` (He et al., "Delving deep into rectifiers", 2015, in its uniform form). PyTorch's
/// linear and convolution layers use `gain` √(1/3), for which the bound is 1/√fan_in.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = nn::init::kaiming_uniform([64, 8], 64, 2f64.sqrt(), &Rng::seed_from(0), device)?;
/// assert_eq!(w.dims(), [64, 8]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn kaiming_uniform(shape: impl IntoShape, fan_in: usize, gain: f64, rng: &Rng, device: &Device) -> Result<Tensor> {
    let _scope = Scope::enter();
    uniform(shape, gain * (3.0 / fan_in.max(1) as f64).sqrt(), rng, device)
}

/// Even draws over `±√(6/(fan_in + fan_out))` (Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural
/// networks", 2010).
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = nn::init::xavier_uniform([64, 8], 64, 8, &Rng::seed_from(0), device)?;
/// assert_eq!(w.dims(), [64, 8]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn xavier_uniform(
    shape: impl IntoShape,
    fan_in: usize,
    fan_out: usize,
    rng: &Rng,
    device: &Device,
) -> Result<Tensor> {
    let _scope = Scope::enter();
    uniform(shape, (6.0 / (fan_in + fan_out).max(1) as f64).sqrt(), rng, device)
}

/// The bound of PyTorch's default for layers with `fan_in` inputs per output: 1/√fan_in.
pub(crate) fn default_bound(fan_in: usize) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}

/// Draws from the normal distribution of mean 0 and standard deviation `std`.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = nn::init::normal([64, 8], 0.02, &Rng::seed_from(0), device)?;
/// assert!(w.abs()?.max(())?.item::<f32>()? < 0.2);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn normal(shape: impl IntoShape, std: f64, rng: &Rng, device: &Device) -> Result<Tensor> {
    let _scope = Scope::enter();
    rng.normal(shape, device)?.mul(std)
}
