//! Layers one after the other, and the activations between them.

use crate::base::Result;
use crate::base::location::Scope;
use crate::nn::{
    BatchNorm1d, BatchNorm2d, Conv1d, Conv2d, ConvTranspose2d, Dropout, LayerNorm, Linear, Module, RmsNorm, Visitor,
};
use crate::tensor::Tensor;

/// A module of one tensor to one tensor.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Layer;
/// let layers: Vec<Box<dyn Layer>> = vec![Box::new(nn::Relu), Box::new(nn::Tanh)];
/// let x = Tensor::new([-1.0f32, 0.0], device)?;
/// let y = layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
/// assert_eq!(y.to_string(), "[0. 0.]");
/// # Ok(())
/// # }
/// ```
pub trait Layer: Module {
    /// The layer applied to `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

macro_rules! layers {
    ($($layer:ty),* $(,)?) => { $(impl Layer for $layer {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            <$layer>::forward(self, x)
        }
    })* };
}
layers!(Linear, Conv1d, Conv2d, ConvTranspose2d, Dropout, LayerNorm, RmsNorm, BatchNorm1d, BatchNorm2d, Sequential);

/// Layers applied in order; their parameters are named by their places (`0.weight`, `2.bias`).
///
/// ```
/// use stepgraph::nn::{self, Linear, Module, Relu, Sequential};
/// # use stepgraph::{DType, Device, Result, Rng, Tensor};
/// # fn main() -> Result<()> {
/// let (rng, device) = (Rng::seed_from(0), Device::cpu());
/// let model = Sequential::new()
///     .then(Linear::new(4, 8, &rng, &device)?)
///     .then(Relu)
///     .then(nn::Function(|x: &Tensor| x.mul(0.5)))
///     .then(Linear::new(8, 2, &rng, &device)?);
/// assert_eq!(model.forward(&Tensor::ones([1, 4], DType::F32, &device)?)?.dims(), [1, 2]);
/// assert_eq!(model.named_parameters()[2].0, "3.weight");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Sequential(pub Vec<Box<dyn Layer>>);

impl Sequential {
    /// No layers: the identity.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(nn::Sequential::new().forward(&Tensor::new(1.0f32, device)?)?.item::<f32>()?, 1.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With `layer` after the others.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let model = nn::Sequential::new().then(nn::Relu);
    /// assert_eq!(model.forward(&Tensor::new(-1.0f32, device)?)?.item::<f32>()?, 0.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn then(mut self, layer: impl Layer + 'static) -> Sequential {
        self.0.push(Box::new(layer));
        self
    }

    /// All layers, one after the other.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let model = nn::Sequential::new().then(nn::Relu);
    /// assert_eq!(model.forward(&Tensor::new(-1.0f32, device)?)?.item::<f32>()?, 0.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

impl Module for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (i, layer) in self.0.iter().enumerate() {
            let module: &dyn Module = &**layer;
            visitor.field(&i.to_string(), module);
        }
    }
}

/// A function as a layer without parameters.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let model = nn::Sequential::new().then(nn::Function(|x: &Tensor| x.mul(2.0)));
/// assert_eq!(model.forward(&Tensor::new(3.0f32, device)?)?.item::<f32>()?, 6.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Function<F>(pub F);

impl<F> Module for Function<F> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<F: Fn(&Tensor) -> Result<Tensor>> Layer for Function<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (self.0)(x)
    }
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $method:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }

        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.$method()
            }
        }
    )* };
}

activations! {
    /// [`Tensor::relu`] as a layer.
    Relu = relu;
    /// [`Tensor::gelu`] as a layer.
    Gelu = gelu;
    /// [`Tensor::gelu_tanh`] as a layer.
    GeluTanh = gelu_tanh;
    /// [`Tensor::silu`] as a layer.
    Silu = silu;
    /// [`Tensor::sigmoid`] as a layer.
    Sigmoid = sigmoid;
    /// [`Tensor::softplus`] as a layer.
    Softplus = softplus;
    /// [`Tensor::tanh`] as a layer.
    Tanh = tanh;
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident { $(#[$note:meta])* $field:ident: $ty:ty } = $method:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(#[$note])*
            pub $field: $ty,
        }

        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }

        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.$method(self.$field)
            }
        }
    )* };
}

settings! {
    /// [`Tensor::leaky_relu`] as a layer.
    LeakyRelu {
        /// The slope below 0.
        slope: f64
    } = leaky_relu;
    /// [`Tensor::elu`] as a layer.
    Elu {
        /// The limit below is `-alpha`.
        alpha: f64
    } = elu;
    /// [`Tensor::softmax`] as a layer.
    Softmax {
        /// The axis whose elements add up to 1.
        axis: isize
    } = softmax;
}
