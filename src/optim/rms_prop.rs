//! RMSProp.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::optim::target::{Target, check_number, numbered};
use crate::optim::{Group, Optimizer};
use crate::tensor::{Gradients, Var};

/// Configuration of [`RmsProp`].
///
/// ```
/// use stepgraph::optim::RmsPropConfig;
/// let config = RmsPropConfig { centered: true, momentum: 0.9, ..RmsPropConfig::default() };
/// assert_eq!((config.lr, config.alpha, config.eps), (1e-2, 0.99, 1e-8));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RmsPropConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the averages.
    pub alpha: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Times the parameter, added to its gradient.
    pub weight_decay: f64,
    /// Factor of the velocity; 0 keeps none.
    pub momentum: f64,
    /// Whether to divide by the deviation from the average gradient instead of the root mean square.
    pub centered: bool,
}

/// PyTorch's defaults: 1e-2, 0.99, 1e-8, everything else off.
impl Default for RmsPropConfig {
    fn default() -> Self {
        RmsPropConfig { lr: 1e-2, alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

/// RMSProp (Tieleman & Hinton, "Lecture 6.5: RMSProp", 2012; centered: Graves, "Generating sequences with recurrent
/// neural networks", 2013), in PyTorch's form.
///
/// `g ← g + λp`, `s ← αs + (1-α)g²`; centered `a ← αa + (1-α)g` and `s - a²` in the place of s below; `d = √s + ε`;
/// `v ← μv + g/d` and `p ← p - lr·v`, without momentum `p ← p - lr·g/d`. Where rounding makes `s - a²` negative it
/// counts as 0 (PyTorch: NaN).
///
/// ```
/// use stepgraph::optim::{RmsProp, RmsPropConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
/// let mut rms = RmsProp::new(vec![w.clone()], RmsPropConfig::default())?;
/// rms.step(&w.get().mul(5.0)?.backward()?)?;
/// assert!((w.get().item::<f32>()? - (2.0 - 0.01 / 0.1)).abs() < 1e-6); // √((1 - 0.99)·5²) is 0.5
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RmsProp {
    config: RmsPropConfig,
    target: Target,
    square: Vec<Var>,
    average: Vec<Var>,
    velocity: Vec<Var>,
}

impl RmsProp {
    /// Averages at zero for each parameter.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; α or momentum
    /// outside of 0..=1.
    ///
    /// ```
    /// use stepgraph::optim::{Group, RmsProp, RmsPropConfig};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let (w, b) = (Tensor::ones([3], DType::F32, &Device::cpu())?, Tensor::zeros((), DType::F32, &Device::cpu())?);
    /// let groups = vec![Group::new(vec![Var::new(&w)?]), Group::new(vec![Var::new(&b)?]).lr_factor(2.0)];
    /// let optimizer = RmsProp::with_groups(groups, RmsPropConfig::default())?;
    /// assert_eq!(optimizer.parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with_groups(groups: Vec<Group>, config: RmsPropConfig) -> Result<RmsProp> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            check_number("RmsProp::new", "alpha", config.alpha, 0.0..=1.0)?;
            check_number("RmsProp::new", "momentum", config.momentum, 0.0..=1.0)?;
            let target = Target::new("RmsProp::new", groups)?;
            let state = |wanted: bool| if wanted { target.zeros() } else { Ok(Vec::new()) };
            let (square, average) = (state(true)?, state(config.centered)?);
            let velocity = state(config.momentum != 0.0)?;
            Ok(RmsProp { config, target, square, average, velocity })
        };
        make().map_err(|e: Error| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let RmsPropConfig { lr, alpha, eps, weight_decay, momentum, .. } = self.config;
        for work in self.target.work("RmsProp::step", gradients)? {
            let decay = work.group.weight_decay.unwrap_or(weight_decay);
            for u in &work.updates {
                let mut g = u.gradient.clone();
                if decay != 0.0 {
                    g = g.add(u.value.mul(decay)?)?;
                }
                let square = &self.square[u.index];
                let mut s = square.get().mul(alpha)?.add(g.mul(&g)?.mul(1.0 - alpha)?)?;
                square.set(&s)?;
                if let Some(average) = self.average.get(u.index) {
                    let a = average.get().mul(alpha)?.add(g.mul(1.0 - alpha)?)?;
                    average.set(&a)?;
                    s = s.sub(a.mul(&a)?)?.maximum(0.0)?;
                }
                let mut step = g.div(s.sqrt()?.add(eps)?)?;
                if let Some(velocity) = self.velocity.get(u.index) {
                    step = velocity.get().mul(momentum)?.add(step)?;
                    velocity.set(&step)?;
                }
                u.write(u.value.sub(step.mul(lr * work.group.lr_factor)?)?)?;
            }
        }
        Ok(())
    }

    fn named(&self) -> Vec<(String, Var)> {
        let averages = numbered("average", &self.average).chain(numbered("velocity", &self.velocity));
        numbered("square", &self.square).chain(averages).collect()
    }
}

optimizer!(RmsProp, RmsPropConfig);
