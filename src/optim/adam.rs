//! Adam, and the update that it shares with AdamW.

use crate::base::location::Scope;
use crate::base::{Loc, Result};
use crate::optim::numbers::{Numbers, number_of};
use crate::optim::target::{Target, check_number, numbered};
use crate::optim::{Group, Optimizer};
use crate::tensor::{Gradients, Var};

/// Configuration of [`Adam`].
///
/// ```
/// use stepgraph::optim::AdamConfig;
/// let config = AdamConfig { lr: 3e-4, ..AdamConfig::default() };
/// assert_eq!((config.beta1, config.beta2, config.eps), (0.9, 0.999, 1e-8));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdamConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Times the parameter, added to its gradient; [`super::AdamW`] decays apart from the gradient.
    pub weight_decay: f64,
}

/// Those of Kingma & Ba 2015, and PyTorch's: 1e-3, 0.9, 0.999, 1e-8, no decay.
impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// Adam (Kingma & Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1).
///
/// `g ← g + λp`, `m ← β₁m + (1-β₁)g`, `v ← β₂v + (1-β₂)g²`, `p ← p - lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε)`, where t
/// counts the steps in which the parameter had a gradient. The corrections `1-βᵗ` are kept as `c ← βc + (1-β)`, the
/// same average of ones that the moments are of gradients: exact to rounding for any t, and right when β changes.
///
/// ```
/// use stepgraph::optim::{Adam, AdamConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
/// let mut adam = Adam::new(vec![w.clone()], AdamConfig { lr: 0.1, ..AdamConfig::default() })?;
/// adam.step(&w.get().mul(5.0)?.backward()?)?;
/// assert!((w.get().item::<f32>()? - 1.9).abs() < 1e-6); // a first step is as long as the rate
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Adam {
    config: AdamConfig,
    target: Target,
    moments: Moments,
}

impl Adam {
    /// Moments at zero for each parameter.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; a β outside of
    /// 0..1.
    ///
    /// ```
    /// use stepgraph::optim::{Group, Adam, AdamConfig};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let (w, b) = (Tensor::ones([3], DType::F32, &Device::cpu())?, Tensor::zeros((), DType::F32, &Device::cpu())?);
    /// let groups = vec![Group::new(vec![Var::new(&w)?]), Group::new(vec![Var::new(&b)?]).lr_factor(2.0)];
    /// let optimizer = Adam::with_groups(groups, AdamConfig::default())?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_groups(groups: Vec<Group>, config: AdamConfig) -> Result<Adam> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            let target = Target::new("Adam::new", groups)?;
            let moments = Moments::new("Adam::new", &target, config.beta1, config.beta2)?;
            Ok(Adam { config, target, moments })
        };
        make().map_err(|e: crate::base::Error| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let c = self.config;
        let rule = Rule { lr: c.lr, beta1: c.beta1, beta2: c.beta2, eps: c.eps, decay: c.weight_decay, apart: false };
        self.moments.step("Adam::step", &self.target, gradients, rule)
    }

    fn named(&self) -> Vec<(String, Var)> {
        self.moments.named()
    }
}

optimizer!(Adam, AdamConfig);

/// The state of Adam and AdamW.
#[derive(Debug)]
pub(super) struct Moments {
    /// By group: t of each parameter, `1-β₁ᵗ` and `1-β₂ᵗ`.
    counts: Vec<Numbers>,
    corrections: Vec<[Numbers; 2]>,
    first: Vec<Var>,
    second: Vec<Var>,
}

/// The numbers of one step.
pub(super) struct Rule {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub decay: f64,
    /// The decay does not pass through the moments (AdamW).
    pub apart: bool,
}

impl Moments {
    pub fn new(op: &'static str, target: &Target, beta1: f64, beta2: f64) -> Result<Moments> {
        check_number(op, "beta1", beta1, 0.0..1.0)?;
        check_number(op, "beta2", beta2, 0.0..1.0)?;
        let numbers = |g| Ok([Numbers::zeros(g, target.device())?, Numbers::zeros(g, target.device())?]);
        Ok(Moments {
            counts: target.groups().iter().map(|g| Numbers::counts(g, target.device())).collect::<Result<_>>()?,
            corrections: target.groups().iter().map(numbers).collect::<Result<_>>()?,
            first: target.zeros()?,
            second: target.zeros()?,
        })
    }

    pub fn step(&self, op: &'static str, target: &Target, gradients: &Gradients, rule: Rule) -> Result<()> {
        let Rule { lr, beta1, beta2, eps, decay, apart } = rule;
        for work in target.work(op, gradients)? {
            let lr = lr * work.group.lr_factor;
            let decay = work.group.weight_decay.unwrap_or(decay);
            self.counts[work.number].advance(&work, |t| t.add(1i64))?;
            let [first, second] = &self.corrections[work.number];
            let first = first.advance(&work, |c| c.mul(beta1)?.add(1.0 - beta1))?;
            let second = second.advance(&work, |c| c.mul(beta2)?.add(1.0 - beta2))?;
            let (sizes, roots) = ((lr / first)?, second.sqrt()?);
            for u in &work.updates {
                let (mut p, mut g) = (u.value.clone(), u.gradient.clone());
                if decay != 0.0 && apart {
                    p = p.mul(1.0 - lr * decay)?;
                } else if decay != 0.0 {
                    g = g.add(p.mul(decay)?)?;
                }
                let m = self.first[u.index].get().mul(beta1)?.add(g.mul(1.0 - beta1)?)?;
                let v = self.second[u.index].get().mul(beta2)?.add(g.mul(&g)?.mul(1.0 - beta2)?)?;
                let denominator = v.sqrt()?.div(number_of(&roots, u)?)?.add(eps)?;
                u.write(p.sub(m.div(denominator)?.mul(number_of(&sizes, u)?)?)?)?;
                self.first[u.index].set(&m)?;
                self.second[u.index].set(&v)?;
            }
        }
        Ok(())
    }

    pub fn named(&self) -> Vec<(String, Var)> {
        let mut out = Vec::new();
        for (i, ([first, second], count)) in self.corrections.iter().zip(&self.counts).enumerate() {
            out.push((format!("count.{i}"), count.var().clone()));
            out.push((format!("correction1.{i}"), first.var().clone()));
            out.push((format!("correction2.{i}"), second.var().clone()));
        }
        out.extend(numbered("moment1", &self.first));
        out.extend(numbered("moment2", &self.second));
        out
    }
}
