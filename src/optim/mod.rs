//! Floor 9: optimizers, what goes with them, and learning rate schedules. Ordinary eager code over [`Var`]s.
//!
//! All state that changes, step counts and bias corrections included, lives in `Var`s, in eager mode too: so a
//! traced step is the same as an eager one, and can be frozen. Learning rates, decays and the like are host
//! numbers: a changed one takes effect at the next call, traced or not.
//!
//! - [`Sgd`], [`Adam`], [`AdamW`], [`Lion`], [`RmsProp`], all of them [`Optimizer`]s, with PyTorch's formulas
//!   and defaults; parameters may be given in [`Group`]s with rates and decays of their own.
//! - [`Accumulator`], gradients summed over micro-batches; [`clip_grad_norm`] and [`clip_grad_value`]; [`Ema`], averages of parameters; [`Schedule`]s.
//!
//! - Mixed precision: [`crate::autocast`] for products in 16 bits with parameters in f32, [`Master`] for parameters of 16
//!   bits with copies in f32, [`GradScaler`] for the small gradients of f16.
//!
//! A parameter without a gradient in a step stays as it is, and so does its state. Parameters of 16 bits are updated
//! in f32, with state in f32, and rounded once when they are written.

/// A doc example with an optimizer of one parameter `w`.
macro_rules! example {
    ($name:ident, $config:ident, $code:literal) => {
        concat!(
            "```\nuse stepgraph::{Device, Result, Tensor, Var};\nuse stepgraph::optim::{",
            stringify!($name),
            ", ",
            stringify!($config),
            "};\n# fn main() -> Result<()> {\nlet w = Var::new(&Tensor::full((), 1.0, &Device::cpu())?)?;\nlet mut optimizer = ",
            stringify!($name),
            "::new(vec![w.clone()], ",
            stringify!($config),
            "::default())?;\n",
            $code,
            "\n# Ok(())\n# }\n```"
        )
    };
}

/// The methods that every optimizer has. Needs fields `config` and `target`, and the methods `update` and `named`.
macro_rules! optimizer {
    ($name:ident, $config:ident) => {
        impl $name {
            /// For `parameters` in one group: see `with_groups`, also for errors.
            ///
            #[doc = example!($name, $config, "assert_eq!(optimizer.groups().len(), 1);")]
            #[track_caller]
            pub fn new(parameters: Vec<Var>, config: $config) -> Result<$name> {
                $name::with_groups(vec![Group::new(parameters)], config)
            }

            /// Updates every parameter that has a gradient; the others, and their state, stay as they are.
            ///
            /// Errors: a gradient of another shape than its parameter's; out of memory.
            ///
            #[doc = example!($name, $config, "optimizer.step(&w.get().sum(())?.backward()?)?;\nassert!(w.get().item::<f32>()? < 1.0);")]
            #[track_caller]
            pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
                let at = Loc::caller();
                let _scope = Scope::enter();
                self.update(gradients).map_err(|e| e.at(at))
            }

            /// The parameters, group by group.
            ///
            #[doc = example!($name, $config, "assert!(optimizer.parameters()[0].same(&w));")]
            pub fn parameters(&self) -> Vec<Var> {
                self.target.parameters()
            }

            /// The groups, in order.
            ///
            #[doc = example!($name, $config, "assert_eq!(optimizer.groups().len(), 1);")]
            pub fn groups(&self) -> &[Group] {
                self.target.groups()
            }

            /// The groups, to change their rates and decays: takes effect at the next step.
            ///
            #[doc = example!($name, $config, "optimizer.groups_mut()[0].set_lr_factor(0.1);")]
            pub fn groups_mut(&mut self) -> &mut [Group] {
                self.target.groups_mut()
            }

            /// The optimizer's own state by name, in a fixed order: what a checkpoint has to hold. Names are
            /// those of the state and the number of the parameter or group.
            ///
            #[doc = example!($name, $config, "for (name, var) in optimizer.named_state() {\n    println!(\"{name}: {var:?}\");\n}")]
            pub fn named_state(&self) -> Vec<(String, Var)> {
                self.named()
            }

            /// Every `Var` of `named_state`, in its order.
            ///
            #[doc = example!($name, $config, "assert_eq!(optimizer.state().len(), optimizer.named_state().len());")]
            pub fn state(&self) -> Vec<Var> {
                self.named().into_iter().map(|(_, v)| v).collect()
            }

            /// The learning rate; a group's own is this times its factor.
            ///
            #[doc = example!($name, $config, "assert_eq!(optimizer.lr(), optimizer.config().lr);")]
            pub fn lr(&self) -> f64 {
                self.config.lr
            }

            /// The learning rate from now on: takes effect at the next step, traced or not.
            ///
            #[doc = example!($name, $config, "optimizer.set_lr(0.02);\nassert_eq!(optimizer.lr(), 0.02);")]
            pub fn set_lr(&mut self, lr: f64) {
                self.config.lr = lr;
            }

            /// What it was made with, and the present learning rate.
            ///
            #[doc = example!($name, $config, "optimizer.set_lr(0.02);\nassert_eq!(optimizer.config().lr, 0.02);")]
            pub fn config(&self) -> &$config {
                &self.config
            }
        }

        impl Optimizer for $name {
            #[track_caller]
            fn step(&mut self, gradients: &Gradients) -> Result<()> {
                $name::step(self, gradients)
            }
            fn parameters(&self) -> Vec<Var> {
                $name::parameters(self)
            }
            fn named_state(&self) -> Vec<(String, Var)> {
                $name::named_state(self)
            }
            fn lr(&self) -> f64 {
                $name::lr(self)
            }
            fn set_lr(&mut self, lr: f64) {
                $name::set_lr(self, lr)
            }
        }
    };
}

mod accumulate;
mod adam;
mod adamw;
mod clip;
mod ema;
mod grad_scaler;
mod group;
mod lion;
mod master;
mod numbers;
mod rms_prop;
mod schedule;
mod sgd;
mod target;

use crate::base::Result;
use crate::tensor::{Gradients, Var};

pub use accumulate::Accumulator;
pub use adam::{Adam, AdamConfig};
pub use adamw::{AdamW, AdamWConfig};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use ema::Ema;
pub use grad_scaler::{GradScaler, GradScalerConfig, Unscaled};
pub use group::Group;
pub use lion::{Lion, LionConfig};
pub use master::Master;
pub use rms_prop::{RmsProp, RmsPropConfig};
pub use schedule::Schedule;
pub use sgd::{Sgd, SgdConfig};

/// What updates parameters from gradients. Every optimizer has these methods of its own, too, so that the
/// trait is needed only by code that is generic over optimizers.
///
/// ```
/// use stepgraph::optim::{Lion, LionConfig, Optimizer, Sgd, SgdConfig};
/// use stepgraph::{Device, Result, Tensor, Var};
///
/// fn descend(optimizer: &mut dyn Optimizer, w: &Var) -> Result<f32> {
///     optimizer.set_lr(0.5);
///     optimizer.step(&w.get().mul(w.get())?.sum(())?.backward()?)?;
///     w.get().item()
/// }
///
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full((), 4.0, &Device::cpu())?)?;
/// let mut sgd = Sgd::new(vec![w.clone()], SgdConfig::default())?;
/// assert_eq!(descend(&mut sgd, &w)?, 0.0); // 4 - 0.5 * 8
/// w.set(&Tensor::full((), 4.0, &Device::cpu())?)?;
/// let mut lion = Lion::new(vec![w.clone()], LionConfig::default())?;
/// assert_eq!(descend(&mut lion, &w)?, 3.5); // 4 - 0.5 * sign(8)
/// # Ok(())
/// # }
/// ```
pub trait Optimizer {
    /// Updates every parameter that has a gradient; the others, and their state, stay as they are.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The parameters, group by group.
    fn parameters(&self) -> Vec<Var>;

    /// The optimizer's own state by name, in a fixed order: what a checkpoint has to hold.
    fn named_state(&self) -> Vec<(String, Var)>;

    /// The learning rate; a group's own is this times its factor.
    fn lr(&self) -> f64;

    /// The learning rate from now on: takes effect at the next step, traced or not.
    fn set_lr(&mut self, lr: f64);
}
