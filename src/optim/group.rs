//! Groups of parameters with learning rates and decays of their own.

use crate::tensor::Var;

/// Parameters that share a learning rate and a weight decay.
///
/// ```
/// use stepgraph::optim::{AdamW, AdamWConfig, Group};
/// use stepgraph::{DType, Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let var = |n: usize| Var::new(&Tensor::ones([n], DType::F32, &Device::cpu())?);
/// let (weight, bias, head) = (var(6)?, var(3)?, var(2)?);
/// let groups = vec![
///     Group::new(vec![weight]),
///     Group::new(vec![bias]).weight_decay(0.0),
///     Group::new(vec![head]).lr_factor(10.0),
/// ];
/// let adam = AdamW::with_groups(groups, AdamWConfig { lr: 1e-3, ..AdamWConfig::default() })?;
/// assert_eq!(adam.parameters().len(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) parameters: Vec<Var>,
    pub(crate) lr_factor: f64,
    pub(crate) weight_decay: Option<f64>,
}

impl Group {
    /// Parameters with the optimizer's own rate and decay.
    ///
    /// ```
    /// use stepgraph::{DType, Device, Result, Tensor, Var, optim::Group};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([2], DType::F32, &Device::cpu())?)?;
    /// assert_eq!(Group::new(vec![w]).parameters().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(parameters: Vec<Var>) -> Group {
        Group { parameters, lr_factor: 1.0, weight_decay: None }
    }

    /// The group's learning rate is the optimizer's times `factor`.
    ///
    /// ```
    /// use stepgraph::{DType, Device, Result, Tensor, Var, optim::{Group, Sgd, SgdConfig}};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;
    /// let group = Group::new(vec![w.clone()]).lr_factor(0.5);
    /// let mut sgd = Sgd::with_groups(vec![group], SgdConfig { lr: 0.25, ..SgdConfig::default() })?;
    /// sgd.step(&w.get().sum(())?.backward()?)?;
    /// assert_eq!(w.get().item::<f32>()?, 1.0 - 0.5 * 0.25);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lr_factor(mut self, factor: f64) -> Group {
        self.lr_factor = factor;
        self
    }

    /// The group's weight decay, instead of the optimizer's.
    ///
    /// ```
    /// use stepgraph::{DType, Device, Result, Tensor, Var, optim::{AdamW, AdamWConfig, Group}};
    /// # fn main() -> Result<()> {
    /// let bias = Var::new(&Tensor::ones([3], DType::F32, &Device::cpu())?)?;
    /// let group = Group::new(vec![bias]).weight_decay(0.0);
    /// let adam = AdamW::with_groups(vec![group], AdamWConfig::default())?;
    /// # let _ = adam;
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight_decay(mut self, decay: f64) -> Group {
        self.weight_decay = Some(decay);
        self
    }

    /// Its parameters.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor, Var, optim::Group};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::ones([2], DType::F32, &Device::cpu())?)?;
    /// assert!(Group::new(vec![w.clone()]).parameters()[0].same(&w));
    /// # Ok(())
    /// # }
    /// ```
    pub fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// Another factor from now on: takes effect at the next step, traced or not.
    ///
    /// ```
    /// use stepgraph::optim::Group;
    /// let mut group = Group::new(vec![]);
    /// group.set_lr_factor(0.1);
    /// ```
    pub fn set_lr_factor(&mut self, factor: f64) {
        self.lr_factor = factor;
    }

    /// Another decay from now on; `None`: the optimizer's.
    ///
    /// ```
    /// use stepgraph::optim::Group;
    /// let mut group = Group::new(vec![]);
    /// group.set_weight_decay(Some(0.01));
    /// ```
    pub fn set_weight_decay(&mut self, decay: Option<f64>) {
        self.weight_decay = decay;
    }
}
