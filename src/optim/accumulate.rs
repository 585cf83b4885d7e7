//! Gradients summed over several backward passes before one update.

use crate::base::location::Scope;
use crate::base::{Loc, Result};
use crate::optim::group::Group;
use crate::optim::target::{Target, cast, working};
use crate::tensor::{Gradients, Tensor, Var};

/// Sums gradients over micro-batches, so that one update sees a larger batch than fits at once. Those of 16-bit
/// parameters are summed in f32 and rounded once.
///
/// The sums live in `Var`s: [`Accumulator::add`] may be inside a traced step (every micro-batch replays one path), the
/// update inside another or the same, or eager. A parameter that got no gradient since [`Accumulator::clear`] has none
/// in [`Accumulator::gradients`], so that an optimizer does not move it. Which ones did, and how many passes there
/// were, is host state: it does not advance in replays of a frozen step.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, Var, optim};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![0.0f32], [1], &Device::cpu())?)?;
/// let mut sgd = optim::Sgd::new(vec![w.clone()], optim::SgdConfig { lr: 0.1, ..Default::default() })?;
/// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
/// for x in [1.0, 3.0] {
///     sums.add(&(w.get() * x)?.sum(())?.backward()?)?;
/// }
/// sgd.step(&sums.mean()?)?; // gradient (1 + 3) / 2
/// sums.clear()?;
/// assert_eq!(w.get().to_vec::<f32>()?, [-0.2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Accumulator {
    parameters: Vec<Var>,
    sums: Vec<Var>,
    /// Which parameters got a gradient.
    present: Vec<bool>,
    count: usize,
}

impl Accumulator {
    /// Zero sums, one a parameter.
    ///
    /// Errors: no parameters, one twice, or parameters on different devices.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert_eq!(optim::Accumulator::new(vec![w])?.count(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(parameters: Vec<Var>) -> Result<Accumulator> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let target = Target::new("Accumulator::new", vec![Group::new(parameters)]).map_err(|e| e.at(at))?;
        let (parameters, sums) = (target.parameters(), target.zeros()?);
        Ok(Accumulator { present: vec![false; sums.len()], parameters, sums, count: 0 })
    }

    /// Adds the gradients of one backward pass.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// assert_eq!(sums.count(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn add(&mut self, gradients: &Gradients) -> Result<()> {
        let _scope = Scope::enter();
        for ((p, sum), present) in self.parameters.iter().zip(&self.sums).zip(&mut self.present) {
            let Some(g) = gradients.get(p) else { continue };
            sum.set(&sum.get().add(cast(g, working(p.dtype()))?)?)?;
            *present = true;
        }
        self.count += 1;
        Ok(())
    }

    /// The sums, for the parameters that got a gradient.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// assert_eq!(sums.gradients()?.get(&w).unwrap().to_string(), "[4. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn gradients(&self) -> Result<Gradients> {
        let _scope = Scope::enter();
        self.each(|sum| Ok(sum.get()))
    }

    /// The sums divided by the number of backward passes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// assert_eq!(sums.mean()?.get(&w).unwrap().to_string(), "[1. 1.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn mean(&self) -> Result<Gradients> {
        let _scope = Scope::enter();
        let passes = self.count.max(1) as f64;
        self.each(|sum| sum.get().div(passes))
    }

    fn each(&self, value: impl Fn(&Var) -> Result<Tensor>) -> Result<Gradients> {
        let mut pairs = Vec::with_capacity(self.sums.len());
        for ((p, sum), _) in self.parameters.iter().zip(&self.sums).zip(&self.present).filter(|(_, present)| **present)
        {
            pairs.push((p.clone(), cast(value(sum)?, p.dtype())?));
        }
        Gradients::from_pairs(pairs)
    }

    /// Zero sums again, and no gradients.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// sums.clear()?;
    /// assert_eq!(sums.count(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn clear(&mut self) -> Result<()> {
        let _scope = Scope::enter();
        for (sum, present) in self.sums.iter().zip(&mut self.present).filter(|(_, present)| **present) {
            sum.set(&Tensor::zeros(sum.shape(), sum.dtype(), sum.device())?)?;
            *present = false;
        }
        self.count = 0;
        Ok(())
    }

    /// Backward passes since the last [`Accumulator::clear`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// assert_eq!(sums.count(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn count(&self) -> usize {
        self.count
    }

    /// Every `Var` of the accumulator's own.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let mut sums = optim::Accumulator::new(vec![w.clone()])?;
    /// for _ in 0..4 {
    ///     sums.add(&w.get().sum(())?.backward()?)?;
    /// }
    /// assert!(!sums.state().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self) -> Vec<Var> {
        self.sums.clone()
    }
}
