//! Normalising layers.

use crate::base::location::Scope;
use crate::base::shape::IntoShape;
use crate::base::{DType, Error, Loc, Result};
use crate::nn::{Buffer, Mode, impl_module};
use crate::tensor::composite::BatchNormOptions;
use crate::tensor::{Device, Tensor, Var};

/// Layer norm over the last axes: [`Tensor::layer_norm`] with a weight and a bias.
///
/// ```
/// use stepgraph::nn::LayerNorm;
/// # use stepgraph::{Device, Result, Tensor};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let x = Tensor::from_vec(vec![1.0f32, 3.0], [1, 2], &device)?;
/// let y = LayerNorm::new([2], &device)?.forward(&x)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Of the shape of the last axes, which are normalised together.
    pub weight: Var,
    /// Of the same shape.
    pub bias: Option<Var>,
    /// Added to the variance.
    pub eps: f64,
}
impl_module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// Over the last axes, of this shape: weight 1, bias 0, `eps` 1e-5 (PyTorch's). f32.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let norm = nn::LayerNorm::new([4], device)?;
    /// assert_eq!(norm.weight.shape().dims(), [4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(shape: impl IntoShape, device: &Device) -> Result<LayerNorm> {
        let _scope = Scope::enter();
        let shape = shape.into_shape().map_err(|e| e.at(Loc::caller()))?;
        let weight = Var::new(&Tensor::ones(shape, DType::F32, device)?)?;
        Ok(LayerNorm { weight, bias: Some(Var::new(&Tensor::zeros(shape, DType::F32, device)?)?), eps: 1e-5 })
    }

    /// The last axes of `x` are of the weight's shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let norm = nn::LayerNorm::new([2], device)?;
    /// let y = norm.forward(&Tensor::new([[1.0f32, 3.0]], device)?)?;
    /// assert_eq!(y.dims(), [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let axes = last_axes("LayerNorm", x, &self.weight)?;
        x.layer_norm(&axes[..], Some(&self.weight.get()), self.bias.as_ref().map(Var::get).as_ref(), self.eps)
    }
}

/// RMS norm over the last axes: [`Tensor::rms_norm`] with a weight.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let norm = nn::RmsNorm::new([4], device)?;
/// assert_eq!(norm.forward(&Tensor::ones([2, 4], DType::F32, device)?)?.dims(), [2, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// Of the shape of the last axes, which are normalised together.
    pub weight: Var,
    /// Added to the mean of the squares.
    pub eps: f64,
}
impl_module!(RmsNorm { weight });

impl RmsNorm {
    /// Over the last axes, of this shape: weight 1, `eps` 1e-6. f32. (PyTorch's `eps` is the distance from 1 to the next number of the
    /// dtype, about 1e-7.)
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let norm = nn::RmsNorm::new([4], device)?;
    /// assert_eq!(norm.weight.shape().dims(), [4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(shape: impl IntoShape, device: &Device) -> Result<RmsNorm> {
        let _scope = Scope::enter();
        let shape = shape.into_shape().map_err(|e| e.at(Loc::caller()))?;
        Ok(RmsNorm { weight: Var::new(&Tensor::ones(shape, DType::F32, device)?)?, eps: 1e-6 })
    }

    /// The last axes of `x` are of the weight's shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let norm = nn::RmsNorm::new([2], device)?;
    /// let y = norm.forward(&Tensor::new([[1.0f32, 3.0]], device)?)?;
    /// assert_eq!(y.dims(), [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        let axes = last_axes("RmsNorm", x, &self.weight)?;
        x.rms_norm(&axes[..], Some(&self.weight.get()), self.eps)
    }
}

/// The last axes of `x`, which must be of the weight's shape.
#[track_caller]
fn last_axes(op: &'static str, x: &Tensor, weight: &Var) -> Result<Vec<isize>> {
    let shape = weight.shape();
    if !x.dims().ends_with(shape.dims()) || shape.rank() == 0 {
        let expected = format!("an input whose last axes are {shape}");
        return Err(Error::shape(op, expected, x.ty().to_string()).at(Loc::caller()));
    }
    Ok((1..=shape.rank() as isize).map(|a| -a).collect())
}

macro_rules! batch_norm {
    ($(#[$doc:meta])* $name:ident, $rank:pat, $says:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// `[channels]`, as are the others.
            pub weight: Var,
            pub bias: Var,
            pub running_mean: Buffer,
            pub running_variance: Buffer,
            /// The batch's statistics, or the running ones.
            pub mode: Mode,
            /// How far the running statistics go towards the batch's.
            pub momentum: f64,
            /// Added to the variance.
            pub eps: f64,
        }
        impl_module!($name { weight, bias, running_mean, running_variance, mode });

        impl $name {
            /// PyTorch's defaults: weight 1, bias 0, running mean 0 and variance 1, momentum 0.1, `eps` 1e-5. f32.
            ///
            /// ```
            /// # use stepgraph::*;
            /// # fn main() -> Result<()> {
            /// # let device = &Device::cpu();
            /// let norm = nn::BatchNorm2d::new(3, device)?;
            /// assert_eq!(norm.weight.shape().dims(), [3]);
            /// # Ok(())
            /// # }
            /// ```
            #[track_caller]
            pub fn new(channels: usize, device: &Device) -> Result<$name> {
                let _scope = Scope::enter();
                let zeros = Tensor::zeros([channels], DType::F32, device)?;
                let ones = Tensor::ones([channels], DType::F32, device)?;
                Ok($name {
                    weight: Var::new(&ones)?,
                    bias: Var::new(&zeros)?,
                    running_mean: Buffer(Var::state(&zeros)?),
                    running_variance: Buffer(Var::state(&ones)?),
                    mode: Mode::default(),
                    momentum: 0.1,
                    eps: 1e-5,
                })
            }

            /// By the batch's statistics while the layer trains (see [`Mode`]), which go into the running ones; else by these.
            ///
            /// Errors: as [`Tensor::batch_norm`]; another number of axes.
            ///
            /// ```
            /// # use stepgraph::*;
            /// # fn main() -> Result<()> {
            /// # let device = &Device::cpu();
            /// let norm = nn::BatchNorm2d::new(3, device)?;
            /// assert_eq!(norm.forward(&Tensor::ones([2, 3, 4, 4], DType::F32, device)?)?.dims(), [2, 3, 4, 4]);
            /// # Ok(())
            /// # }
            /// ```
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = Scope::enter();
                if !matches!(x.rank(), $rank) {
                    return Err(Error::shape(stringify!($name), $says, x.ty().to_string()).at(Loc::caller()));
                }
                x.batch_norm(&BatchNormOptions {
                    weight: Some(&self.weight.get()),
                    bias: Some(&self.bias.get()),
                    running: Some((&self.running_mean, &self.running_variance)),
                    training: self.mode.is_training(),
                    momentum: self.momentum,
                    eps: self.eps,
                })
            }
        }
    };
}

batch_norm! {
    /// Batch norm of `[n, channels]` or `[n, channels, length]`: [`Tensor::batch_norm`].
    BatchNorm1d, 2 | 3, "[n, channels] or [n, channels, length]"
}
batch_norm! {
    /// Batch norm of `[n, channels, height, width]`: [`Tensor::batch_norm`].
    BatchNorm2d, 4, "[n, channels, height, width]"
}
