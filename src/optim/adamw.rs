//! Adam with decoupled weight decay.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::optim::adam::{Moments, Rule};
use crate::optim::target::Target;
use crate::optim::{Group, Optimizer};
use crate::tensor::{Gradients, Var};

/// Configuration of [`AdamW`].
///
/// ```
/// use stepgraph::optim::AdamWConfig;
/// let config = AdamWConfig { weight_decay: 0.1, beta2: 0.95, ..AdamWConfig::default() };
/// assert_eq!(config.lr, 1e-3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdamWConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// A step shrinks the parameter by this times the learning rate.
    pub weight_decay: f64,
}

/// PyTorch's defaults: 1e-3, 0.9, 0.999, 1e-8, a decay of 0.01.
impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Adam with decoupled weight decay (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019, algorithm 2).
///
/// `p ← p - lr·λp` before Adam's update of it ([`super::Adam`]); the decay does not enter the moments. As in
/// `torch.optim.AdamW` the decay is scaled by the learning rate itself.
///
/// ```
/// use stepgraph::optim::{AdamW, AdamWConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
/// let config = AdamWConfig { lr: 0.1, weight_decay: 0.5, ..AdamWConfig::default() };
/// let mut adam = AdamW::new(vec![w.clone()], config)?;
/// adam.step(&w.get().mul(5.0)?.backward()?)?;
/// assert!((w.get().item::<f32>()? - (2.0 * 0.95 - 0.1)).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdamW {
    config: AdamWConfig,
    target: Target,
    moments: Moments,
}

impl AdamW {
    /// Moments at zero for each parameter.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; a β outside of
    /// 0..1.
    ///
    /// ```
    /// use stepgraph::optim::{Group, AdamW, AdamWConfig};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let (w, b) = (Tensor::ones([3], DType::F32, &Device::cpu())?, Tensor::zeros((), DType::F32, &Device::cpu())?);
    /// let groups = vec![Group::new(vec![Var::new(&w)?]), Group::new(vec![Var::new(&b)?]).lr_factor(2.0)];
    /// let optimizer = AdamW::with_groups(groups, AdamWConfig::default())?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_groups(groups: Vec<Group>, config: AdamWConfig) -> Result<AdamW> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            let target = Target::new("AdamW::new", groups)?;
            let moments = Moments::new("AdamW::new", &target, config.beta1, config.beta2)?;
            Ok(AdamW { config, target, moments })
        };
        make().map_err(|e: Error| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let c = self.config;
        let rule = Rule { lr: c.lr, beta1: c.beta1, beta2: c.beta2, eps: c.eps, decay: c.weight_decay, apart: true };
        self.moments.step("AdamW::step", &self.target, gradients, rule)
    }

    fn named(&self) -> Vec<(String, Var)> {
        self.moments.named()
    }
}

optimizer!(AdamW, AdamWConfig);
