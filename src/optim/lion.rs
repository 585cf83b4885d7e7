//! Lion: steps by the sign of an interpolated momentum.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::optim::target::{Target, check_number, numbered};
use crate::optim::{Group, Optimizer};
use crate::tensor::{Gradients, Var};

/// Configuration of [`Lion`].
///
/// ```
/// use stepgraph::optim::LionConfig;
/// let config = LionConfig { weight_decay: 0.1, ..LionConfig::default() };
/// assert_eq!((config.lr, config.beta1, config.beta2), (1e-4, 0.9, 0.99));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LionConfig {
    /// Learning rate: every element moves by as much.
    pub lr: f64,
    /// How much of the momentum is in the step.
    pub beta1: f64,
    /// Decay of the momentum.
    pub beta2: f64,
    /// A step shrinks the parameter by this times the learning rate.
    pub weight_decay: f64,
}

/// Those of Chen et al. 2023: 1e-4, 0.9, 0.99, no decay.
impl Default for LionConfig {
    fn default() -> Self {
        LionConfig { lr: 1e-4, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, program 1).
///
/// `p ← p - lr·(sign(β₁m + (1-β₁)g) + λp)`, `m ← β₂m + (1-β₂)g`. The sign of 0 is 0, of NaN it is NaN.
///
/// ```
/// use stepgraph::optim::{Lion, LionConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![1.0f32, 1.0, 1.0], [3], &Device::cpu())?)?;
/// let slopes = Tensor::from_vec(vec![20.0f32, 0.0, -1e-3], [3], &Device::cpu())?;
/// let mut lion = Lion::new(vec![w.clone()], LionConfig { lr: 0.5, ..LionConfig::default() })?;
/// lion.step(&w.get().mul(&slopes)?.sum(())?.backward()?)?;
/// assert_eq!(w.get().to_vec::<f32>()?, [0.5, 1.0, 1.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lion {
    config: LionConfig,
    target: Target,
    momentum: Vec<Var>,
}

impl Lion {
    /// Momentum at zero for each parameter.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; a β outside of
    /// 0..=1.
    ///
    /// ```
    /// use stepgraph::optim::{Group, Lion, LionConfig};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let (w, b) = (Tensor::ones([3], DType::F32, &Device::cpu())?, Tensor::zeros((), DType::F32, &Device::cpu())?);
    /// let groups = vec![Group::new(vec![Var::new(&w)?]), Group::new(vec![Var::new(&b)?]).lr_factor(2.0)];
    /// let optimizer = Lion::with_groups(groups, LionConfig::default())?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_groups(groups: Vec<Group>, config: LionConfig) -> Result<Lion> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            check_number("Lion::new", "beta1", config.beta1, 0.0..=1.0)?;
            check_number("Lion::new", "beta2", config.beta2, 0.0..=1.0)?;
            let target = Target::new("Lion::new", groups)?;
            let momentum = target.zeros()?;
            Ok(Lion { config, target, momentum })
        };
        make().map_err(|e: Error| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let LionConfig { lr, beta1, beta2, weight_decay } = self.config;
        for work in self.target.work("Lion::step", gradients)? {
            let lr = lr * work.group.lr_factor;
            let decay = work.group.weight_decay.unwrap_or(weight_decay);
            for u in &work.updates {
                let (g, m) = (&u.gradient, self.momentum[u.index].get());
                let direction = m.mul(beta1)?.add(g.mul(1.0 - beta1)?)?.sign()?;
                let p = if decay != 0.0 { u.value.mul(1.0 - lr * decay)? } else { u.value.clone() };
                u.write(p.sub(direction.mul(lr)?)?)?;
                self.momentum[u.index].set(&m.mul(beta2)?.add(g.mul(1.0 - beta2)?)?)?;
            }
        }
        Ok(())
    }

    fn named(&self) -> Vec<(String, Var)> {
        numbered("momentum", &self.momentum).collect()
    }
}

optimizer!(Lion, LionConfig);
