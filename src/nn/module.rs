//! What layers are made of: parameters and buffers with dotted names, and the training flag.
//!
//! A layer is any struct whose fields are [`Module`]s: a [`Var`] is a parameter, a [`Buffer`] state that is saved
//! but not trained, a [`Mode`] the training flag; other layers, `Vec`s, arrays, tuples and `Option`s of them nest, and
//! plain numbers hold nothing. [`crate::nn::module!`] and [`crate::nn::impl_module!`] write the one method there is to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustc_hash::FxHashSet;

use crate::tensor::{Device, Rng, Var};

/// What a module holds in one place, as a [`Visitor`] is shown it.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::{Held, Module, Visitor};
/// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
/// let mut names = Vec::new();
/// let mut each = |path: &str, held: Held<'_>| {
///     if let Held::Parameter(_) = held {
///         names.push(path.to_string());
///     }
/// };
/// layer.visit(&mut Visitor::new(&mut each));
/// assert_eq!(names, ["weight", "bias"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Held<'a> {
    /// A parameter: what an optimizer trains.
    Parameter(&'a Var),
    /// State that is not trained, such as running statistics.
    Buffer(&'a Var),
    /// The training flag of a layer that has one.
    Mode(&'a Mode),
}

/// Goes through a module's fields; keeps the dotted path to where it is.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::{Held, Module, Visitor};
/// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
/// let mut names = Vec::new();
/// let mut each = |path: &str, held: Held<'_>| {
///     if let Held::Parameter(_) = held {
///         names.push(path.to_string());
///     }
/// };
/// Visitor::new(&mut each).field("layer", &layer);
/// assert_eq!(names, ["layer.weight", "layer.bias"]);
/// # Ok(())
/// # }
/// ```
pub struct Visitor<'a> {
    path: String,
    each: &'a mut dyn FnMut(&str, Held<'_>),
}

impl<'a> Visitor<'a> {
    /// `each` is called with the path and the content of every place.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// use stepgraph::nn::{Held, Module, Visitor};
    /// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
    /// let mut names = Vec::new();
    /// let mut each = |path: &str, held: Held<'_>| {
    ///     if let Held::Parameter(_) = held {
    ///         names.push(path.to_string());
    ///     }
    /// };
    /// Visitor::new(&mut each).field("layer", &layer);
    /// assert_eq!(names.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(each: &'a mut dyn FnMut(&str, Held<'_>)) -> Visitor<'a> {
        Visitor { path: String::new(), each }
    }

    /// Goes on into the field `name`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// use stepgraph::nn::{Held, Module, Visitor};
    /// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
    /// let mut names = Vec::new();
    /// let mut each = |path: &str, held: Held<'_>| {
    ///     if let Held::Parameter(_) = held {
    ///         names.push(path.to_string());
    ///     }
    /// };
    /// Visitor::new(&mut each).field("layer", &layer);
    /// assert_eq!(names, ["layer.weight", "layer.bias"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn field(&mut self, name: &str, module: &dyn Module) {
        let before = self.path.len();
        if before > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        module.visit(self);
        self.path.truncate(before);
    }

    /// Shows what is held at the present path.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// use stepgraph::nn::{Held, Module, Visitor};
    /// let layer = nn::Linear::new(4, 3, &Rng::seed_from(0), device)?;
    /// let mut names = Vec::new();
    /// let mut each = |path: &str, held: Held<'_>| {
    ///     if let Held::Parameter(_) = held {
    ///         names.push(path.to_string());
    ///     }
    /// };
    /// Visitor::new(&mut each).hold(Held::Parameter(&layer.weight));
    /// assert_eq!(names, [""]); // a module that is one parameter has no path
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&mut self, held: Held<'_>) {
        (self.each)(&self.path, held);
    }
}

/// What has parameters: a layer, or a model of layers.
///
/// Implement it with a macro, [`crate::nn::module!`] or [`crate::nn::impl_module!`]; by hand only [`Module::visit`] is needed.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Module;
/// let rng = Rng::seed_from(0);
/// let layers = vec![nn::Linear::new(4, 8, &rng, device)?, nn::Linear::new(8, 2, &rng, device)?];
/// assert_eq!(layers.parameters().len(), 4);
/// assert_eq!(layers.named_parameters()[2].0, "1.weight");
/// # Ok(())
/// # }
/// ```
pub trait Module {
    /// Shows `visitor` every field that holds something, under its name.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// The parameters with their dotted paths (`layers.0.weight`), in the order of the fields. A `Var` that is held
    /// in several places (tied weights) is listed once, under the first of its names.
    fn named_parameters(&self) -> Vec<(String, Var)> {
        named(|v| self.visit(v), |held| if let Held::Parameter(var) = held { Some(var.clone()) } else { None })
    }

    /// The buffers with their dotted paths, as [`Module::named_parameters`].
    fn named_buffers(&self) -> Vec<(String, Var)> {
        named(|v| self.visit(v), |held| if let Held::Buffer(var) = held { Some(var.clone()) } else { None })
    }

    /// The parameters, each once, in a fixed order: what an optimizer takes.
    fn parameters(&self) -> Vec<Var> {
        self.named_parameters().into_iter().map(|(_, var)| var).collect()
    }

    /// Sets the training flag of every layer that has one ([`Mode`]). Host state: inside a step a changed flag takes another path.
    fn set_training(&self, training: bool) {
        self.visit(&mut Visitor::new(&mut |_, held| {
            if let Held::Mode(mode) = held {
                mode.set(training);
            }
        }));
    }

    /// Training mode: dropout drops, batch norm uses the batch's statistics. Layers begin so.
    fn train(&self) {
        self.set_training(true);
    }

    /// Evaluation mode.
    fn eval(&self) {
        self.set_training(false);
    }
}

/// The `Var`s that `pick` chooses, each once, with their paths.
fn named(visit: impl FnOnce(&mut Visitor<'_>), mut pick: impl FnMut(Held<'_>) -> Option<Var>) -> Vec<(String, Var)> {
    let (mut out, mut seen) = (Vec::new(), FxHashSet::default());
    visit(&mut Visitor::new(&mut |path, held| {
        if let Some(var) = pick(held)
            && seen.insert(var.id())
        {
            out.push((path.to_string(), var));
        }
    }));
    out
}

/// A [`Var`] of a module that is saved with it but not trained: running statistics, a table of positions.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::{Buffer, Module};
/// let running_mean = Buffer(Var::state(&Tensor::new([0.0f32], device)?)?);
/// assert_eq!((running_mean.parameters().len(), running_mean.named_buffers().len()), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Buffer(pub Var);

impl std::ops::Deref for Buffer {
    type Target = Var;
    fn deref(&self) -> &Var {
        &self.0
    }
}

/// The training flag of a layer. Clones share it; it begins with training.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::{Mode, Module};
/// let mode = Mode::default();
/// mode.eval();
/// assert!(!mode.is_training());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mode(Arc<AtomicBool>);

impl Default for Mode {
    fn default() -> Mode {
        Mode(Arc::new(AtomicBool::new(true)))
    }
}

impl Mode {
    /// Whether the layer trains.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(nn::Mode::default().is_training());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_training(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Trains from now on, or not.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mode = nn::Mode::default();
    /// mode.set(false);
    /// assert!(!mode.is_training());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(&self, training: bool) {
        self.0.store(training, Relaxed);
    }
}

impl Module for Var {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.hold(Held::Parameter(self));
    }
}

impl Module for Buffer {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.hold(Held::Buffer(&self.0));
    }
}

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.hold(Held::Mode(self));
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().for_each(|m| m.visit(visitor));
    }
}

/// Items are named by their place: `0`, `1`, …
impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, m)| visitor.field(&i.to_string(), m));
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

macro_rules! through {
    ($($pointer:ty),*) => { $(impl<M: Module + ?Sized> Module for $pointer {
        fn visit(&self, visitor: &mut Visitor<'_>) {
            (**self).visit(visitor);
        }
    })* };
}
through!(Box<M>, Arc<M>, std::rc::Rc<M>, &M);

macro_rules! tuples {
    ($(($($name:ident $at:tt),*))*) => { $(impl<$($name: Module),*> Module for ($($name,)*) {
        fn visit(&self, visitor: &mut Visitor<'_>) {
            $(visitor.field(stringify!($at), &self.$at);)*
        }
    })* };
}
tuples!((A 0)(A 0, B 1)(A 0, B 1, C 2)(A 0, B 1, C 2, D 3)(A 0, B 1, C 2, D 3, E 4)(A 0, B 1, C 2, D 3, E 4, F 5));

macro_rules! nothing {
    ($($plain:ty),*) => { $(
        /// Holds nothing: a layer may keep plain settings beside its parameters.
        impl Module for $plain {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )* };
}
nothing!((), bool, usize, u32, u64, i32, i64, f32, f64, String, &str, Device, Rng);

/// A [`crate::nn::Module`] of the named fields of a struct; of a tuple struct by their numbers.
///
/// ```
/// use stepgraph::nn::{self, Linear, Module};
/// use stepgraph::{Device, Result, Rng};
///
/// struct Mlp {
///     first: Linear,
///     rest: Vec<Linear>,
///     names: std::collections::HashMap<u32, String>, // not a module: left out below
/// }
/// nn::impl_module!(Mlp { first, rest });
///
/// # fn main() -> Result<()> {
/// let (rng, device) = (Rng::seed_from(0), Device::cpu());
/// let model = Mlp {
///     first: Linear::new(4, 8, &rng, &device)?,
///     rest: vec![Linear::without_bias(8, 2, &rng, &device)?],
///     names: Default::default(),
/// };
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["first.weight", "first.bias", "rest.0.weight"]);
/// # let _ = model.names;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! impl_module {
    ($name:ident { $($field:tt),* $(,)? }) => {
        impl $crate::nn::Module for $name {
            fn visit(&self, visitor: &mut $crate::nn::Visitor<'_>) {
                let _ = &visitor;
                $(visitor.field(stringify!($field), &self.$field);)*
            }
        }
    };
}

/// A struct, and its [`crate::nn::Module`] of all of its fields: layers, [`crate::Var`]s, [`crate::nn::Buffer`]s, plain numbers.
///
/// ```
/// use stepgraph::nn::{self, Linear, Module};
/// use stepgraph::{Device, Result, Rng, Tensor};
///
/// nn::module! {
///     /// Two layers.
///     pub struct Mlp {
///         first: Linear,
///         second: Linear,
///     }
/// }
///
/// impl Mlp {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.second.forward(&self.first.forward(x)?.relu()?)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let (rng, device) = (Rng::seed_from(0), Device::cpu());
/// let model = Mlp { first: Linear::new(4, 8, &rng, &device)?, second: Linear::new(8, 2, &rng, &device)? };
/// assert_eq!(model.parameters().len(), 4);
/// assert_eq!(model.forward(&Tensor::full([1, 4], 1.0, &device)?)?.dims(), [1, 2]);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! module {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$note:meta])* $seen:vis $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$note])* $seen $field: $ty),* }
        $crate::impl_module!($name { $($field),* });
    };
}

pub use {impl_module, module};
