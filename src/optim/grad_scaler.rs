//! Dynamic loss scaling, decided on the device.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::optim::Optimizer;
use crate::optim::target::{cast, check_number, working};
use crate::tensor::{Device, Gradients, Tensor, Var};

/// Configuration of [`GradScaler`].
///
/// ```
/// use stepgraph::optim::GradScalerConfig;
/// let config = GradScalerConfig { growth_interval: 100, ..GradScalerConfig::default() };
/// assert_eq!((config.init_scale, config.growth_factor, config.backoff_factor), (65536.0, 2.0, 0.5));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GradScalerConfig {
    /// The scale to begin with.
    pub init_scale: f64,
    /// What it is multiplied with after `growth_interval` steps without an overflow.
    pub growth_factor: f64,
    /// What it is multiplied with after an overflow.
    pub backoff_factor: f64,
    /// Steps in a row without an overflow before it grows.
    pub growth_interval: u32,
}

/// Those of `torch.amp.GradScaler`: 65536, 2, 0.5, 2000.
impl Default for GradScalerConfig {
    fn default() -> Self {
        GradScalerConfig { init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
    }
}

/// Dynamic loss scaling for training in `f16`, whose small gradients vanish (Micikevicius et al., "Mixed precision
/// training", 2018; the rule and defaults of `torch.amp.GradScaler`).
///
/// The loss is multiplied with the scale, the gradients are divided by it again. When one of them is infinite or NaN the
/// optimizer's step has no effect and the scale shrinks; after a number of steps without that it grows. All of that is
/// decided on the device: the scale is a `Var`, nothing is read on the host, a step with it is one launch and can be frozen.
///
/// ```
/// use stepgraph::optim::{GradScaler, GradScalerConfig, Sgd, SgdConfig, clip_grad_norm};
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
/// let mut sgd = Sgd::new(vec![w.clone()], SgdConfig { lr: 0.25, ..SgdConfig::default() })?;
/// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
///
/// let loss = w.get().mul(w.get())?;
/// let mut unscaled = scaler.unscale(&scaler.scale(&loss)?.backward()?)?;
/// unscaled.gradients = clip_grad_norm(&unscaled.gradients, 100.0)?.0; // where one clips
/// scaler.step(&mut sgd, &unscaled)?;
/// scaler.update(&unscaled)?;
/// assert_eq!(w.get().item::<f32>()?, 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradScaler {
    config: GradScalerConfig,
    /// f32.
    scale: Var,
    /// Steps since the last overflow or growth, i64.
    since: Var,
}

/// Gradients as they are without the scale.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
/// let scaler = optim::GradScaler::new(Default::default(), device)?;
/// let optim::Unscaled { gradients, overflow } = scaler.unscale(&scaler.scale(&w.get().sum(())?)?.backward()?)?;
/// assert_eq!(gradients.get(&w).unwrap().to_string(), "[1. 1.]");
/// assert_eq!(overflow.to_string(), "False");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Unscaled {
    /// The gradients; 16-bit ones widened to `f32`.
    pub gradients: Gradients,
    /// 0-d bool: whether one of them was infinite or NaN.
    pub overflow: Tensor,
}

impl GradScaler {
    /// A scaler whose state is on `device`.
    ///
    /// Errors: a scale or growth factor that is not above 0 and finite, a backoff factor outside of 0..=1, an interval of 0.
    ///
    /// ```
    /// use stepgraph::{Device, optim::{GradScaler, GradScalerConfig}};
    /// assert!(GradScaler::new(GradScalerConfig::default(), &Device::cpu()).is_ok());
    /// let wrong = GradScalerConfig { init_scale: 0.0, ..GradScalerConfig::default() };
    /// assert!(GradScaler::new(wrong, &Device::cpu()).is_err());
    /// ```
    #[track_caller]
    pub fn new(config: GradScalerConfig, device: &Device) -> Result<GradScaler> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            let (op, tiny, huge) = ("GradScaler::new", f32::MIN_POSITIVE as f64, f32::MAX as f64);
            check_number(op, "init_scale", config.init_scale, tiny..=huge)?;
            check_number(op, "growth_factor", config.growth_factor, tiny..=huge)?;
            check_number(op, "backoff_factor", config.backoff_factor, 0.0..=1.0)?;
            if config.growth_interval == 0 {
                return Err(Error::argument(op, "a growth interval of at least 1", "0"));
            }
            let scale = Var::state(&Tensor::full((), config.init_scale as f32, device)?)?;
            Ok(GradScaler { config, scale, since: Var::state(&Tensor::zeros((), DType::I64, device)?)? })
        };
        make().map_err(|e| e.at(at))
    }

    /// The loss times the scale, in `f32` (`f64` for an `f64` loss): take the gradients of that.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor, Var, optim::{GradScaler, GradScalerConfig}};
    /// # fn main() -> Result<()> {
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// let loss = Tensor::full((), 0.5, &Device::cpu())?;
    /// assert_eq!(scaler.scale(&loss)?.item::<f32>()?, 32768.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let dtype = working(loss.dtype());
        cast(loss.clone(), dtype)?.mul(cast(self.scale.get(), dtype)?)
    }

    /// Gradients of the scaled loss divided by the scale, and whether one of them overflowed.
    ///
    /// Errors: no gradients; gradients on different devices.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor, Var, optim::{GradScaler, GradScalerConfig}};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 3.0, &Device::cpu())?)?;
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// let unscaled = scaler.unscale(&scaler.scale(&w.get().mul(2.0)?)?.backward()?)?;
    /// assert_eq!(unscaled.gradients.get(&w).unwrap().item::<f32>()?, 2.0);
    /// assert!(!unscaled.overflow.item::<bool>()?);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn unscale(&self, gradients: &Gradients) -> Result<Unscaled> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let unscale = || {
            let inverse = self.scale.get().recip()?;
            let gradients = gradients.map(|g| {
                let dtype = working(g.dtype());
                cast(g.clone(), dtype)?.mul(cast(inverse.clone(), dtype)?)
            })?;
            // Of what was divided: a scale of less than 1 may overflow here.
            let mut finite: Option<Tensor> = None;
            for g in gradients.tensors()? {
                let all = g.is_finite()?.all(())?;
                finite = Some(match finite {
                    Some(others) => others.and(all)?,
                    None => all,
                });
            }
            let Some(finite) = finite else {
                return Err(Error::argument("GradScaler::unscale", "at least one gradient", "none"));
            };
            Ok(Unscaled { gradients, overflow: finite.not()? })
        };
        unscale().map_err(|e| e.at(at))
    }

    /// The optimizer's step; after an overflow its parameters and state stay what they were, decided on the device.
    ///
    /// Errors: those of the optimizer's step.
    ///
    /// ```
    /// # use stepgraph::optim::{GradScaler, GradScalerConfig, Sgd, SgdConfig};
    /// # use stepgraph::{Device, Gradients, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 3.0, &Device::cpu())?)?;
    /// let mut sgd = Sgd::new(vec![w.clone()], SgdConfig::default())?;
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// let infinite = Gradients::from_pairs([(w.clone(), Tensor::full((), f32::INFINITY, &Device::cpu())?)])?;
    /// scaler.step(&mut sgd, &scaler.unscale(&infinite)?)?;
    /// assert_eq!(w.get().item::<f32>()?, 3.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn step(&self, optimizer: &mut dyn Optimizer, unscaled: &Unscaled) -> Result<()> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let mut step = || {
            let state = optimizer.named_state().into_iter().map(|(_, v)| v);
            let vars: Vec<Var> = optimizer.parameters().into_iter().chain(state).collect();
            let before: Vec<Tensor> = vars.iter().map(Var::get).collect();
            optimizer.step(&unscaled.gradients)?;
            for (var, before) in vars.iter().zip(&before) {
                let after = var.get();
                if !after.same(before) {
                    var.set(&unscaled.overflow.select(before, &after)?)?;
                }
            }
            Ok(())
        };
        step().map_err(|e: Error| e.at(at))
    }

    /// Moves the scale, once after the step of every optimizer: back after an overflow, up after `growth_interval` calls
    /// without one, unless that would be infinite.
    ///
    /// ```
    /// # use stepgraph::optim::{GradScaler, GradScalerConfig};
    /// # use stepgraph::{Device, Gradients, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 3.0, &Device::cpu())?)?;
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// let infinite = Gradients::from_pairs([(w, Tensor::full((), f32::INFINITY, &Device::cpu())?)])?;
    /// scaler.update(&scaler.unscale(&infinite)?)?;
    /// assert_eq!(scaler.current().get().item::<f32>()?, 32768.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn update(&self, unscaled: &Unscaled) -> Result<()> {
        let _scope = Scope::enter();
        let GradScalerConfig { growth_factor, backoff_factor, growth_interval, .. } = self.config;
        let (overflow, scale) = (&unscaled.overflow, self.scale.get());
        let since = self.since.get().add(1i64)?;
        let full = since.ge(growth_interval as i64)?;
        let larger = scale.mul(growth_factor)?;
        let grown = full.and(larger.is_finite()?)?.select(&larger, &scale)?;
        self.scale.set(&overflow.select(scale.mul(backoff_factor)?, grown)?)?;
        self.since.set(&overflow.or(full)?.select(0i64, since)?)
    }

    /// The scale, a 0-d `f32`.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, optim::{GradScaler, GradScalerConfig}};
    /// # fn main() -> Result<()> {
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// assert_eq!(scaler.current().get().item::<f32>()?, 65536.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn current(&self) -> &Var {
        &self.scale
    }

    /// Its state by name: what a checkpoint has to hold.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, optim::{GradScaler, GradScalerConfig}};
    /// # fn main() -> Result<()> {
    /// let scaler = GradScaler::new(GradScalerConfig::default(), &Device::cpu())?;
    /// assert_eq!(scaler.named_state().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn named_state(&self) -> Vec<(String, Var)> {
        vec![("scale".to_string(), self.scale.clone()), ("since".to_string(), self.since.clone())]
    }
}
