//! Floor 9: optimizers. Ordinary eager code over [`Var`]s.
//!
//! All state that changes, the step count included, lives in `Var`s, in eager mode too: so a traced
//! step is the same as an eager one, and can be frozen.

mod accumulate;

pub use accumulate::Accumulator;

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::tensor::{Gradients, Tensor, Var};

/// Configuration of [`Adam`].
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
}

/// Kingma & Ba 2015, and PyTorch's defaults: 1e-3, 0.9, 0.999, 1e-8.
impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }
}

/// Adam (Kingma & Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1).
///
/// `m ← β₁m + (1-β₁)g`, `v ← β₂v + (1-β₂)g²`, `p ← p - lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε)`.
#[derive(Debug)]
pub struct Adam {
    config: AdamConfig,
    parameters: Vec<Var>,
    first: Vec<Var>,
    second: Vec<Var>,
    /// Steps taken, i64.
    count: Var,
    /// β₁ᵗ and β₂ᵗ, f32.
    beta1_power: Var,
    beta2_power: Var,
}

impl Adam {
    /// Moments at zero for each parameter.
    ///
    /// Errors: no parameters, or parameters on different devices.
    #[track_caller]
    pub fn new(parameters: Vec<Var>, config: AdamConfig) -> Result<Adam> {
        let _scope = Scope::enter();
        let device = one_device("Adam::new", &parameters).map_err(|e| e.at(Loc::caller()))?;
        let zeros = || -> Result<Vec<Var>> {
            parameters.iter().map(|p| Var::state(&Tensor::zeros(p.shape(), p.dtype(), &device)?)).collect()
        };
        let one = Tensor::ones((), DType::F32, &device)?;
        Ok(Adam {
            config,
            first: zeros()?,
            second: zeros()?,
            count: Var::state(&Tensor::zeros((), DType::I64, &device)?)?,
            beta1_power: Var::state(&one)?,
            beta2_power: Var::state(&one)?,
            parameters,
        })
    }

    /// The learning rate from now on; takes effect at the next [`Adam::step`], traced or not.
    pub fn set_lr(&mut self, lr: f64) {
        self.config.lr = lr;
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.config.lr
    }

    /// Every `Var` of the optimizer's own state.
    pub fn state(&self) -> Vec<Var> {
        let own = [self.count.clone(), self.beta1_power.clone(), self.beta2_power.clone()];
        self.first.iter().chain(&self.second).cloned().chain(own).collect()
    }

    /// Updates every parameter that has a gradient; the others stay as they are.
    #[track_caller]
    pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let _scope = Scope::enter();
        let AdamConfig { lr, beta1, beta2, eps } = self.config;
        self.count.set(&self.count.get().add(1i64)?)?;
        self.beta1_power.set(&self.beta1_power.get().mul(beta1)?)?;
        self.beta2_power.set(&self.beta2_power.get().mul(beta2)?)?;
        let step_size = (lr / (1.0 - self.beta1_power.get())?)?;
        let correction = (1.0 - self.beta2_power.get())?.sqrt()?;
        for ((p, m), v) in self.parameters.iter().zip(&self.first).zip(&self.second) {
            let Some(g) = gradients.get(p) else { continue };
            let first = m.get().mul(beta1)?.add(&g.mul(1.0 - beta1)?)?;
            let second = v.get().mul(beta2)?.add(&g.mul(&g)?.mul(1.0 - beta2)?)?;
            let denominator = second.sqrt()?.div(&correction)?.add(eps)?;
            p.set(&p.get().sub(&first.div(&denominator)?.mul(&step_size)?)?)?;
            m.set(&first)?;
            v.set(&second)?;
        }
        Ok(())
    }
}

/// Stochastic gradient descent with momentum: `v ← μv + g`, `p ← p - lr·v` (PyTorch's form).
#[derive(Debug)]
pub struct Sgd {
    lr: f64,
    momentum: f64,
    parameters: Vec<Var>,
    velocity: Vec<Var>,
}

impl Sgd {
    /// `momentum` 0 keeps no state.
    ///
    /// Errors: no parameters, or parameters on different devices.
    #[track_caller]
    pub fn new(parameters: Vec<Var>, lr: f64, momentum: f64) -> Result<Sgd> {
        let _scope = Scope::enter();
        let device = one_device("Sgd::new", &parameters).map_err(|e| e.at(Loc::caller()))?;
        let velocity = if momentum == 0.0 {
            Vec::new()
        } else {
            parameters
                .iter()
                .map(|p| Var::state(&Tensor::zeros(p.shape(), p.dtype(), &device)?))
                .collect::<Result<_>>()?
        };
        Ok(Sgd { lr, momentum, parameters, velocity })
    }

    /// The learning rate from now on.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// Every `Var` of the optimizer's own state.
    pub fn state(&self) -> Vec<Var> {
        self.velocity.clone()
    }

    /// Updates every parameter that has a gradient; the others stay as they are.
    #[track_caller]
    pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let _scope = Scope::enter();
        for (i, p) in self.parameters.iter().enumerate() {
            let Some(g) = gradients.get(p) else { continue };
            let update = match self.velocity.get(i) {
                Some(v) => {
                    let new = v.get().mul(self.momentum)?.add(&g)?;
                    v.set(&new)?;
                    new
                }
                None => g,
            };
            p.set(&p.get().sub(&update.mul(self.lr)?)?)?;
        }
        Ok(())
    }
}

fn one_device(op: &'static str, parameters: &[Var]) -> Result<crate::tensor::Device> {
    let Some(first) = parameters.first() else {
        return Err(Error::argument(op, "at least one parameter", "none"));
    };
    if let Some(p) = parameters.iter().find(|p| p.device() != first.device()) {
        let (left, right) = (first.device().name().to_string(), p.device().name().to_string());
        return Err(crate::base::ErrorKind::Device { op, left, right }.into());
    }
    Ok(first.device().clone())
}
