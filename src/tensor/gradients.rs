//! Gradients as a whole: replaced, made from pairs, listed.

use std::sync::{Arc, OnceLock};

use crate::base::{Error, ErrorKind, Loc, Result};
use crate::tensor::recorder;
use crate::tensor::tape::GradTable;
use crate::tensor::{Gradients, Tensor, Var};

impl Gradients {
    /// Gradients made of pairs: sums over micro-batches, or computed by hand. For a `Var` given more than once
    /// the last one counts.
    ///
    /// Errors: a gradient of another shape than its `Var`'s, or on another device.
    ///
    /// ```
    /// use stepgraph::{Device, Gradients, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
    /// let (a, b) = (w.get().mul(3.0)?.backward()?, w.get().mul(4.0)?.backward()?);
    /// let sum = (a.get(&w).unwrap() + b.get(&w).unwrap())?;
    /// let both = Gradients::from_pairs([(w.clone(), sum)])?;
    /// assert_eq!(both.get(&w).unwrap().item::<f32>()?, 7.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_pairs(pairs: impl IntoIterator<Item = (Var, Tensor)>) -> Result<Gradients> {
        let (op, mut entries) = ("Gradients::from_pairs", Vec::new());
        for (var, g) in pairs {
            if g.shape() != var.shape() {
                let expected = format!("a gradient of shape {}", var.shape());
                return Err(Error::shape(op, expected, g.shape().to_string()).at(Loc::caller()));
            }
            if g.device() != var.device() {
                let (left, right) = (var.device().name().to_string(), g.device().name().to_string());
                return Err(Error::new(ErrorKind::Device { op, left, right }).at(Loc::caller()));
            }
            entries.push((var.id(), g));
        }
        Ok(Gradients::of(entries))
    }

    /// Every gradient replaced by what `f` makes of it.
    ///
    /// Errors: those of `f`; gradients of a step that is still open on another thread.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
    /// let gradients = w.get().mul(3.0)?.backward()?;
    /// let halved = gradients.map(|g| g * 0.5)?;
    /// assert_eq!(halved.get(&w).unwrap().item::<f32>()?, 1.5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn map(&self, mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Gradients> {
        let pairs = self.pairs().map_err(|e| e.at(Loc::caller()))?;
        let pairs = pairs.into_iter().map(|(id, g)| Ok((id, f(&g)?)));
        Ok(Gradients::of(pairs.collect::<Result<_>>()?))
    }

    /// All gradients, in the order in which their `Var`s were made.
    ///
    /// Errors: gradients of a step that is still open on another thread.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 2.0, &Device::cpu())?)?;
    /// let gradients = w.get().mul(3.0)?.backward()?;
    /// assert_eq!(gradients.tensors()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        Ok(self.pairs().map_err(|e| e.at(Loc::caller()))?.into_iter().map(|(_, g)| g).collect())
    }

    fn of(entries: Vec<(u64, Tensor)>) -> Gradients {
        let entries = OnceLock::from(GradTable::sorted(entries));
        Gradients(Arc::new(GradTable { stamp: 0, event: (0, 0), entries }))
    }

    /// By `Var` id, in its order: the same in eager code and in steps.
    fn pairs(&self) -> Result<Vec<(u64, Tensor)>> {
        if let Some(entries) = self.0.entries.get() {
            return Ok(entries.clone());
        }
        let own = (self.0.stamp == recorder::stamp()).then(|| recorder::with(|r| r.gradients(&self.0))).flatten();
        own.map(GradTable::sorted).ok_or_else(|| {
            let detail = "these gradients belong to a step that is still open on another thread".to_string();
            Error::new(ErrorKind::Backward { detail })
        })
    }
}
