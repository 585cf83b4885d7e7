//! Convolution layers.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::nn::{Module, Visitor, init};
use crate::tensor::composite::Convolution;
use crate::tensor::{Device, Rng, Tensor, Var};

/// Weights of `shape` and a bias of `outputs`, drawn evenly over ±1/√fan_in: PyTorch's default.
fn parameters(
    shape: &[usize],
    fan_in: usize,
    outputs: usize,
    rng: &Rng,
    device: &Device,
) -> Result<(Var, Option<Var>)> {
    let bound = init::default_bound(fan_in);
    let weight = Var::new(&init::uniform(shape, bound, rng, device)?)?;
    Ok((weight, Some(Var::new(&init::uniform([outputs], bound, rng, device)?)?)))
}

/// Refuses channels that do not go into the groups, and windows of nothing.
#[track_caller]
fn check(op: &'static str, channels: [usize; 2], size: &[usize], groups: usize) -> Result<()> {
    if groups == 0 || channels.iter().any(|&c| c == 0 || c % groups != 0) || size.contains(&0) {
        let expected = "channels that are multiples of the groups, and windows of at least 1 element";
        let given = format!("{} and {} channels in {groups} groups, windows of {size:?}", channels[0], channels[1]);
        return Err(Error::argument(op, expected, given).at(Loc::caller()));
    }
    Ok(())
}

macro_rules! convolution {
    ($(#[$doc:meta])* $name:ident, $d:literal, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// `[outputs, inputs / groups, size..]`.
            pub weight: Var,
            /// `[outputs]`.
            pub bias: Option<Var>,
            /// Stride, padding, dilation, groups.
            pub options: Convolution<$d>,
        }

        impl $name {
            /// Weights and bias drawn evenly over ±1/√(inputs / groups · window elements): PyTorch's default. f32.
            ///
            /// Errors: no channels, or channels that do not go into the groups; an empty window.
            ///
            /// ```
            /// # use stepgraph::*;
            /// # fn main() -> Result<()> {
            /// # let device = &Device::cpu();
            /// let rng = Rng::seed_from(0);
            /// let layer = nn::Conv2d::new(3, 4, [3, 3], Default::default(), &rng, device)?;
            /// assert_eq!(layer.weight.shape().dims(), [4, 3, 3, 3]);
            /// # Ok(())
            /// # }
            /// ```
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                size: [usize; $d],
                options: Convolution<$d>,
                rng: &Rng,
                device: &Device,
            ) -> Result<$name> {
                let _scope = Scope::enter();
                check(stringify!($name), [inputs, outputs], &size, options.groups)?;
                let shape = [&[outputs, inputs / options.groups], &size[..]].concat();
                let (weight, bias) = parameters(&shape, shape[1..].iter().product(), outputs, rng, device)?;
                Ok($name { weight, bias, options })
            }

            /// Without the bias.
            ///
            /// ```
            /// # use stepgraph::*;
            /// # fn main() -> Result<()> {
            /// # let device = &Device::cpu();
            /// let rng = Rng::seed_from(0);
            /// let layer = nn::Conv2d::new(3, 4, [3, 3], Default::default(), &rng, device)?.without_bias();
            /// assert!(layer.bias.is_none());
            /// # Ok(())
            /// # }
            /// ```
            pub fn without_bias(self) -> $name {
                $name { bias: None, ..self }
            }

            /// `x` is `[n, inputs, length..]`.
            ///
            /// ```
            /// # use stepgraph::*;
            /// # fn main() -> Result<()> {
            /// # let device = &Device::cpu();
            /// let rng = Rng::seed_from(0);
            /// let layer = nn::Conv2d::new(3, 4, [3, 3], Default::default(), &rng, device)?;
            /// assert_eq!(layer.forward(&rng.normal([1, 3, 8, 8], device)?)?.dims(), [1, 4, 6, 6]);
            /// # Ok(())
            /// # }
            /// ```
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = Scope::enter();
                x.$method(&self.weight.get(), self.bias.as_ref().map(Var::get).as_ref(), &self.options)
            }
        }

        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.field("weight", &self.weight);
                visitor.field("bias", &self.bias);
            }
        }
    };
}

convolution! {
    /// A convolution over one axis: [`Tensor::conv1d`].
    ///
    /// ```
    /// use stepgraph::nn::{Conv1d, Convolution};
    /// # use stepgraph::{DType, Device, Result, Rng, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let layer = Conv1d::new(2, 4, [3], Convolution::default(), &Rng::seed_from(0), &device)?;
    /// assert_eq!(layer.forward(&Tensor::ones([5, 2, 8], DType::F32, &device)?)?.dims(), [5, 4, 6]);
    /// # Ok(())
    /// # }
    /// ```
    Conv1d, 1, conv1d
}

convolution! {
    /// A convolution over two axes: [`Tensor::conv2d`].
    ///
    /// ```
    /// use stepgraph::nn::{Conv2d, Convolution};
    /// # use stepgraph::{DType, Device, Result, Rng, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let same = Convolution { padding: [1, 1], ..Convolution::default() };
    /// let layer = Conv2d::new(3, 8, [3, 3], same, &Rng::seed_from(0), &device)?;
    /// assert_eq!(layer.forward(&Tensor::ones([2, 3, 5, 6], DType::F32, &device)?)?.dims(), [2, 8, 5, 6]);
    /// # Ok(())
    /// # }
    /// ```
    Conv2d, 2, conv2d
}

/// A transposed convolution over two axes: [`Tensor::conv_transpose2d`].
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let rng = Rng::seed_from(0);
/// let layer = nn::ConvTranspose2d::new(3, 4, [2, 2], Default::default(), &rng, device)?;
/// assert_eq!(layer.forward(&rng.normal([1, 3, 5, 5], device)?)?.dims()[1], 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    /// `[inputs, outputs / groups, rows, columns]`.
    pub weight: Var,
    /// `[outputs]`.
    pub bias: Option<Var>,
    /// Added to one side of the result's axes.
    pub output_padding: [usize; 2],
    /// Stride, padding, dilation, groups.
    pub options: Convolution<2>,
}

impl ConvTranspose2d {
    /// Weights and bias drawn evenly over ±1/√(outputs / groups · window elements): PyTorch's default. f32. No output padding.
    ///
    /// Errors: no channels, or channels that do not go into the groups; an empty window.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let layer = nn::ConvTranspose2d::new(3, 4, [2, 2], Default::default(), &rng, device)?;
    /// assert_eq!(layer.weight.shape().dims()[..2], [3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(
        inputs: usize,
        outputs: usize,
        size: [usize; 2],
        options: Convolution<2>,
        rng: &Rng,
        device: &Device,
    ) -> Result<ConvTranspose2d> {
        let _scope = Scope::enter();
        check("ConvTranspose2d", [inputs, outputs], &size, options.groups)?;
        let shape = [inputs, outputs / options.groups, size[0], size[1]];
        let (weight, bias) = parameters(&shape, shape[1..].iter().product(), outputs, rng, device)?;
        Ok(ConvTranspose2d { weight, bias, output_padding: [0, 0], options })
    }

    /// Without the bias.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let layer = nn::ConvTranspose2d::new(3, 4, [2, 2], Default::default(), &rng, device)?.without_bias();
    /// assert!(layer.bias.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_bias(self) -> ConvTranspose2d {
        ConvTranspose2d { bias: None, ..self }
    }

    /// `x` is `[n, inputs, height, width]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let layer = nn::ConvTranspose2d::new(3, 4, [2, 2], Default::default(), &rng, device)?;
    /// assert_eq!(layer.forward(&rng.normal([1, 3, 5, 5], device)?)?.dims()[..2], [1, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let bias = self.bias.as_ref().map(Var::get);
        x.conv_transpose2d(&self.weight.get(), bias.as_ref(), self.output_padding, &self.options)
    }
}

impl Module for ConvTranspose2d {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.field("weight", &self.weight);
        visitor.field("bias", &self.bias);
    }
}
