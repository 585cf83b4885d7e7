//! Stochastic gradient descent.

use crate::base::location::Scope;
use crate::base::{Loc, Result};
use crate::optim::numbers::{Numbers, number_of};
use crate::optim::target::{Target, check_number, numbered};
use crate::optim::{Group, Optimizer};
use crate::tensor::{Gradients, Var};

/// Configuration of [`Sgd`].
///
/// ```
/// use stepgraph::optim::SgdConfig;
/// let config = SgdConfig { lr: 0.1, momentum: 0.9, nesterov: true, ..SgdConfig::default() };
/// assert_eq!(config.weight_decay, 0.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SgdConfig {
    /// Learning rate.
    pub lr: f64,
    /// Factor of the velocity; 0 keeps no state.
    pub momentum: f64,
    /// Part of the gradient that does not enter the velocity.
    pub dampening: f64,
    /// Times the parameter, added to its gradient.
    pub weight_decay: f64,
    /// Whether to look ahead along the velocity.
    pub nesterov: bool,
}

/// PyTorch's defaults: a rate of 1e-3, everything else off.
impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// Stochastic gradient descent with momentum, in PyTorch's form.
///
/// `g ← g + λp`; `v ← μv + (1-τ)g`, at a parameter's first step `v ← g`; `p ← p - lr·v`, with Nesterov's momentum
/// `p ← p - lr·(g + μv)`. Sources: Polyak, "Some methods of speeding up the convergence of iteration methods", 1964;
/// Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013 (Nesterov's, with the
/// rate outside of the velocity as in `torch.optim.SGD`).
///
/// ```
/// use stepgraph::optim::{Sgd, SgdConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
/// let mut sgd = Sgd::new(vec![w.clone()], SgdConfig { lr: 0.25, momentum: 0.5, ..SgdConfig::default() })?;
/// for _ in 0..2 {
///     sgd.step(&w.get().sum(())?.backward()?)?; // gradient 1, velocity 1 then 1.5
/// }
/// assert_eq!(w.get().item::<f32>()?, 2.0 - 0.25 - 0.375);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sgd {
    config: SgdConfig,
    target: Target,
    velocity: Vec<Var>,
    /// Per group, 1 for each parameter that has been updated: with dampening only.
    started: Vec<Numbers>,
}

impl Sgd {
    /// State for each parameter when there is momentum.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; momentum or
    /// dampening outside of 0..=1; Nesterov's momentum without momentum or with dampening.
    ///
    /// ```
    /// use stepgraph::optim::{Group, Sgd, SgdConfig};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let (w, b) = (Tensor::ones([3], DType::F32, &Device::cpu())?, Tensor::zeros((), DType::F32, &Device::cpu())?);
    /// let groups = vec![Group::new(vec![Var::new(&w)?]), Group::new(vec![Var::new(&b)?]).lr_factor(2.0)];
    /// let optimizer = Sgd::with_groups(groups, SgdConfig::default())?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_groups(groups: Vec<Group>, config: SgdConfig) -> Result<Sgd> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            let op = "Sgd::new";
            check_number(op, "momentum", config.momentum, 0.0..=1.0)?;
            check_number(op, "dampening", config.dampening, 0.0..=1.0)?;
            if config.nesterov && (config.momentum == 0.0 || config.dampening != 0.0) {
                let given = format!("momentum {}, dampening {}", config.momentum, config.dampening);
                let expected = "momentum above 0 and no dampening with `nesterov`";
                return Err(crate::base::Error::argument(op, expected, given));
            }
            let target = Target::new(op, groups)?;
            let with_state = config.momentum != 0.0;
            let velocity = if with_state { target.zeros()? } else { Vec::new() };
            let started = if with_state && config.dampening != 0.0 {
                target.groups().iter().map(|g| Numbers::zeros(g, target.device())).collect::<Result<_>>()?
            } else {
                Vec::new()
            };
            Ok(Sgd { config, target, velocity, started })
        };
        make().map_err(|e| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let SgdConfig { lr, momentum, dampening, weight_decay, nesterov } = self.config;
        for work in self.target.work("Sgd::step", gradients)? {
            let decay = work.group.weight_decay.unwrap_or(weight_decay);
            // The part of the gradient that enters the velocity: all of it at first.
            let parts = match self.started.get(work.number) {
                None => None,
                Some(started) => {
                    let parts = (1.0 - started.var().get().mul(dampening)?)?;
                    started.advance(&work, |s| s.mul(0.0)?.add(1.0))?;
                    Some(parts)
                }
            };
            for u in &work.updates {
                let mut g = u.gradient.clone();
                if decay != 0.0 {
                    g = g.add(u.value.mul(decay)?)?;
                }
                if let Some(velocity) = self.velocity.get(u.index) {
                    let entering = match &parts {
                        Some(parts) => g.mul(number_of(parts, u)?)?,
                        None => g.clone(),
                    };
                    let v = velocity.get().mul(momentum)?.add(entering)?;
                    velocity.set(&v)?;
                    g = if nesterov { g.add(v.mul(momentum)?)? } else { v };
                }
                u.write(u.value.sub(g.mul(lr * work.group.lr_factor)?)?)?;
            }
        }
        Ok(())
    }

    fn named(&self) -> Vec<(String, Var)> {
        let started = self.started.iter().enumerate().map(|(i, n)| (format!("started.{i}"), n.var().clone()));
        numbered("velocity", &self.velocity).chain(started).collect()
    }
}

optimizer!(Sgd, SgdConfig);
