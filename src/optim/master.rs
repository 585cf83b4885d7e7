//! Parameters of 16 bits with a copy in f32 that is trained.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::optim::Optimizer;
use crate::optim::group::Group;
use crate::optim::target::{Target, cast, numbered};
use crate::tensor::{Gradients, Var};

/// An optimizer of `f32` copies ("master weights") of 16-bit parameters: gradients are widened, the copies are updated, and
/// the parameters are the copies rounded. So updates that are too small for 16 bits add up (Micikevicius et al., "Mixed
/// precision training", 2018, section 3.1). Parameters of 32 bits or more are their own copy.
///
/// For parameters that are `f32` with a forward pass in 16 bits, [`crate::autocast`] is all it takes.
///
/// ```
/// use stepgraph::optim::{Master, Sgd, SgdConfig};
/// use stepgraph::{DType, Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?.to_dtype(DType::BF16)?)?;
/// let config = SgdConfig { lr: 1e-3, ..SgdConfig::default() };
/// let mut sgd = Master::new(vec![w.clone()], |copies| Sgd::new(copies, config))?;
/// for _ in 0..100 {
///     sgd.step(&w.get().backward()?)?; // 1 - 0.001 rounds to 1 in bf16
/// }
/// assert_eq!(w.get().to_dtype(DType::F32)?.item::<f32>()?, 0.8984375); // 0.9, rounded to bf16
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Master<O> {
    parameters: Vec<Var>,
    copies: Vec<Var>,
    optimizer: O,
}

impl<O: Optimizer> Master<O> {
    /// `make` is given the copies, in the order of the parameters, and makes the optimizer that updates them.
    ///
    /// Errors: no parameters, one given twice, parameters that are no floats or on different devices; those of `make`.
    ///
    /// ```
    /// use stepgraph::optim::{Adam, AdamConfig, Master};
    /// use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([4], DType::F16, &Device::cpu())?)?;
    /// let adam = Master::new(vec![w], |copies| Adam::new(copies, AdamConfig::default()))?;
    /// assert_eq!(adam.copies()[0].dtype(), DType::F32);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(parameters: Vec<Var>, make: impl FnOnce(Vec<Var>) -> Result<O>) -> Result<Master<O>> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        let build = || {
            Target::new("Master::new", vec![Group::new(parameters.clone())])?;
            let copy = |p: &Var| {
                if !p.dtype().is_half() {
                    return Ok(p.clone());
                }
                // Trainable, as the parameter is; nobody computes with it.
                Var::new(&cast(p.get().detach()?, DType::F32)?)
            };
            let copies: Vec<Var> = parameters.iter().map(copy).collect::<Result<_>>()?;
            let optimizer = make(copies.clone())?;
            Ok(Master { parameters, copies, optimizer })
        };
        build().map_err(|e: Error| e.at(at))
    }

    /// Updates the copies of every parameter that has a gradient, and rounds them to the parameters.
    ///
    /// ```
    /// # use stepgraph::optim::{Master, Sgd, SgdConfig};
    /// # use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([4], DType::BF16, &Device::cpu())?)?;
    /// let mut sgd = Master::new(vec![w.clone()], |copies| Sgd::new(copies, SgdConfig::default()))?;
    /// sgd.step(&w.get().sum(())?.backward()?)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let at = Loc::caller();
        let _scope = Scope::enter();
        self.update(gradients).map_err(|e| e.at(at))
    }

    fn update(&mut self, gradients: &Gradients) -> Result<()> {
        let mut pairs = Vec::with_capacity(self.parameters.len());
        for (p, copy) in self.parameters.iter().zip(&self.copies) {
            if let Some(g) = gradients.get(p) {
                pairs.push((copy.clone(), cast(g, copy.dtype())?));
            }
        }
        let met: Vec<bool> = self.parameters.iter().map(|p| gradients.get(p).is_some()).collect();
        self.optimizer.step(&Gradients::from_pairs(pairs)?)?;
        for ((p, copy), met) in self.parameters.iter().zip(&self.copies).zip(met) {
            if met && !p.same(copy) {
                p.set(&cast(copy.get(), p.dtype())?)?;
            }
        }
        Ok(())
    }

    /// The copies, in the order of the parameters.
    ///
    /// ```
    /// # use stepgraph::optim::{Master, Sgd, SgdConfig};
    /// # use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([4], DType::F32, &Device::cpu())?)?;
    /// let sgd = Master::new(vec![w.clone()], |copies| Sgd::new(copies, SgdConfig::default()))?;
    /// assert!(sgd.copies()[0].same(&w)); // f32 is its own copy
    /// # Ok(())
    /// # }
    /// ```
    pub fn copies(&self) -> &[Var] {
        &self.copies
    }

    /// The optimizer of the copies.
    ///
    /// ```
    /// # use stepgraph::optim::{Master, Sgd, SgdConfig};
    /// # use stepgraph::{DType, Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([4], DType::BF16, &Device::cpu())?)?;
    /// let mut sgd = Master::new(vec![w], |copies| Sgd::new(copies, SgdConfig::default()))?;
    /// sgd.optimizer_mut().set_lr(0.5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }
}

impl<O: Optimizer> Optimizer for Master<O> {
    #[track_caller]
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        Master::step(self, gradients)
    }

    fn parameters(&self) -> Vec<Var> {
        self.parameters.clone()
    }

    /// The copies as `master.0`, … and the state of the optimizer.
    fn named_state(&self) -> Vec<(String, Var)> {
        let copies = self.parameters.iter().zip(numbered("master", &self.copies));
        let own = copies.filter(|(p, (_, copy))| !p.same(copy)).map(|(_, named)| named);
        own.chain(self.optimizer.named_state()).collect()
    }

    fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    fn set_lr(&mut self, lr: f64) {
        self.optimizer.set_lr(lr)
    }
}
