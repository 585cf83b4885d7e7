//! Exponential moving averages of parameters.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::optim::group::Group;
use crate::optim::target::{Target, cast, check_number, numbered, working};
use crate::tensor::{Tensor, Var};

/// Averages of parameters: `a ← a + (1-d)(p - a)` at each update, beginning with the parameters as they are (Polyak &
/// Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the form of `torch.optim.swa_utils`).
///
/// ```
/// use stepgraph::optim::Ema;
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;
/// let ema = Ema::new(vec![w.clone()], 0.75)?;
/// w.set(&Tensor::full((), 5.0, &Device::cpu())?)?; // training
/// ema.update()?; // after each of its steps; works inside a step
/// let average = ema.averaged(|| w.get().item::<f32>())?; // evaluation
/// assert_eq!((average, w.get().item::<f32>()?), (2.0, 5.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ema {
    parameters: Vec<Var>,
    averages: Vec<Var>,
    decay: f64,
}

impl Ema {
    /// Averages that begin with the present values. Those of 16-bit parameters are kept in f32.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; a decay outside of
    /// 0..=1.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([3], DType::F32, &Device::cpu())?)?;
    /// assert!(Ema::new(vec![w.clone()], 0.999).is_ok());
    /// assert!(Ema::new(vec![w], 1.5).is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(parameters: Vec<Var>, decay: f64) -> Result<Ema> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let make = || {
            check_number("Ema::new", "decay", decay, 0.0..=1.0)?;
            Target::new("Ema::new", vec![Group::new(parameters.clone())])?;
            let start = |p: &Var| Var::state(&cast(p.get().detach()?, working(p.dtype()))?);
            let averages = parameters.iter().map(start).collect::<Result<_>>()?;
            Ok(Ema { parameters, averages, decay })
        };
        make().map_err(|e: Error| e.at(at))
    }

    /// Another decay from now on: a host number, taken anew at each update.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([3], DType::F32, &Device::cpu())?)?;
    /// let mut ema = Ema::new(vec![w], 0.0)?;
    /// for t in 0..10 {
    ///     ema.set_decay(f64::min(0.999, (1.0 + t as f64) / (10.0 + t as f64)));
    ///     ema.update()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_decay(&mut self, decay: f64) {
        self.decay = decay;
    }

    /// Moves every average towards its parameter.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;
    /// let ema = Ema::new(vec![w.clone()], 0.5)?;
    /// w.set(&Tensor::full((), 2.0, &Device::cpu())?)?;
    /// ema.update()?;
    /// assert_eq!(ema.average(&w).unwrap().item::<f32>()?, 1.5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn update(&self) -> Result<()> {
        let _scope = Scope::enter();
        for (p, average) in self.parameters.iter().zip(&self.averages) {
            let (p, a) = (cast(p.get().detach()?, average.dtype())?, average.get());
            average.set(&a.add(p.sub(&a)?.mul(1.0 - self.decay)?)?)?;
        }
        Ok(())
    }

    /// The average of `parameter`; `None` if it is none of those given.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;
    /// let ema = Ema::new(vec![w.clone()], 0.5)?;
    /// assert_eq!(ema.average(&w).unwrap().item::<f32>()?, 1.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn average(&self, parameter: &Var) -> Option<Tensor> {
        let i = self.parameters.iter().position(|p| p.same(parameter))?;
        Some(self.averages[i].get())
    }

    /// Runs `f` with the averages in the place of the parameters, and puts these back afterwards, whatever
    /// becomes of `f`.
    ///
    /// Errors: those of `f`.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;
    /// let ema = Ema::new(vec![w.clone()], 0.5)?;
    /// w.set(&Tensor::full((), 2.0, &Device::cpu())?)?;
    /// assert_eq!(ema.averaged(|| w.get().item::<f32>())?, 1.0);
    /// assert_eq!(w.get().item::<f32>()?, 2.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn averaged<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut held = Held(self.parameters.iter().map(|p| (p, p.get())).collect());
        for (p, average) in self.parameters.iter().zip(&self.averages) {
            p.set(&cast(average.get(), p.dtype())?)?;
        }
        let result = f();
        let restored = held.restore();
        held.0.clear();
        let value = result?;
        restored.map(|()| value)
    }

    /// The averages by name, in the order of the parameters: what a checkpoint has to hold.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor, Var, optim::Ema};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([3], DType::F32, &Device::cpu())?)?;
    /// assert_eq!(Ema::new(vec![w], 0.5)?.named_state()[0].0, "average.0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn named_state(&self) -> Vec<(String, Var)> {
        numbered("average", &self.averages).collect()
    }
}

/// Parameters' values while their averages take their place: put back when dropped, so that a panic does so, too.
struct Held<'a>(Vec<(&'a Var, Tensor)>);

impl Held<'_> {
    fn restore(&self) -> Result<()> {
        self.0.iter().try_for_each(|(p, value)| p.set(value))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.restore() {
            tracing::error!("putting parameters back after a panic: {e}");
        }
    }
}
