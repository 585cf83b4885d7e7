//! Normalisation by mean and variance.
//!
//! Variances are taken in two passes, over the differences from the mean, and the mean of these differences, which is
//! the rounding error of the mean, is taken off again: a row far from zero keeps its digits. The result has the dtype of
//! what is normalised, whatever that of a 16-bit weight or bias.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, Shape};
use crate::tensor::composite::{narrow, need_float, wide, wide_if};
use crate::tensor::reduce::Axes;
use crate::tensor::{Tensor, Var};

/// How [`Tensor::batch_norm`] goes about it: PyTorch's defaults, without parameters.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let options = nn::BatchNormOptions { training: true, ..nn::BatchNormOptions::default() };
/// let x = Tensor::new([[1.0f32, 5.0], [3.0, 5.0]], device)?;
/// assert_eq!(format!("{:.3}", x.batch_norm(&options)?), "[[-1.  0.]\n [ 1.  0.]]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions<'a> {
    /// Factor and summand per channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    pub bias: Option<&'a Tensor>,
    /// The running mean and variance, `[channels]`: updated in training, used in evaluation.
    pub running: Option<(&'a Var, &'a Var)>,
    /// The batch's own statistics, and an update of the running ones; else the running statistics (the batch's, if there
    /// are none).
    pub training: bool,
    /// How far the running statistics go towards the batch's.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        BatchNormOptions { weight: None, bias: None, running: None, training: true, momentum: 0.1, eps: 1e-5 }
    }
}

impl Tensor {
    /// Layer norm (Ba, Kiros & Hinton 2016): `(x - mean) / √(variance + eps) * weight + bias`, mean and (biased) variance taken over
    /// `axes`, usually the last one. `weight` and `bias` broadcast to `x`.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 3.0, 10.0, 10.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.layer_norm(-1, None, None, 0.0)?.slice(0, 0, 1)?.to_vec::<f32>()?, [-1.0, 1.0]);
    /// assert_eq!(x.layer_norm(-1, None, None, 1e-5)?.slice(0, 1, 1)?.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: not float tensors; no such axes; a weight or bias that does not broadcast to `x`.
    #[track_caller]
    pub fn layer_norm(
        &self,
        axes: impl Axes,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("layer_norm", &[self])?;
        let axes = axes.axes();
        let axes = Listed(axes.as_deref());
        let (_, centred, variance) = centre(&wide(self)?, axes)?;
        narrow(scaled("layer_norm", &centred, &variance, weight, bias, eps)?, self.dtype())
    }

    /// RMS norm (Zhang & Sennrich 2019): `x / √(mean(x²) + eps) * weight`, the mean taken over `axes`, usually the last one.
    ///
    /// Errors: as [`Tensor::layer_norm`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[3.0f32, 4.0]], device)?;
    /// assert_eq!(format!("{:.3}", x.rms_norm(-1, None, 0.0)?), "[[0.849 1.131]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, axes: impl Axes, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("rms_norm", &[self])?;
        let x = wide(self)?;
        let square = x.mul(&x)?.mean_keepdim(axes)?;
        narrow(scaled("rms_norm", &x, &square, weight, None, eps)?, self.dtype())
    }

    /// Batch norm (Ioffe & Szegedy 2015) of `[n, channels, ..]`: each channel, axis 1, is normalised over all others.
    ///
    /// In training the mean and the biased variance of the batch are used, and the running statistics become
    /// `(1 - momentum) · running + momentum · batch`, with the unbiased variance (`n - 1` in the denominator), as PyTorch does. These are
    /// writes of `Var`s: inside a step they take effect with it.
    ///
    /// Errors: fewer than 2 axes; parameters or statistics not of shape `[channels]`; in training, one value per channel.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let options = nn::BatchNormOptions { training: true, ..nn::BatchNormOptions::default() };
    /// let x = Tensor::new([[1.0f32, 5.0], [3.0, 5.0]], device)?;
    /// assert_eq!(format!("{:.3}", x.batch_norm(&options)?), "[[-1.  0.]\n [ 1.  0.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn batch_norm(&self, options: &BatchNormOptions<'_>) -> Result<Tensor> {
        const OP: &str = "batch_norm";
        let _scope = Scope::enter();
        let fail = |e: Error| Err(e.at(Loc::caller()));
        need_float(OP, &[self])?;
        if self.rank() < 2 {
            return fail(Error::shape(OP, "at least 2 axes, [n, channels, ..]", self.ty().to_string()));
        }
        let channels = self.dims()[1];
        let running = options.running.iter().flat_map(|(mean, variance)| [mean.shape(), variance.shape()]);
        let given = [options.weight, options.bias].into_iter().flatten().map(Tensor::shape).chain(running);
        for shape in given {
            if shape.dims() != [channels] {
                let expected = format!("parameters and statistics of shape [{channels}] for {}", self.ty());
                return fail(Error::shape(OP, expected, shape.to_string()));
            }
        }
        let others: Vec<isize> = (0..self.rank() as isize).filter(|&a| a != 1).collect();
        let along = self.shape().reduce(!2, true);
        let per_channel = |t: &Tensor| t.reshape(along);
        let (weight, bias) = (options.weight.map(per_channel).transpose()?, options.bias.map(per_channel).transpose()?);
        let x = wide(self)?;
        let (centred, variance) = match options.running {
            Some((mean, variance)) if !options.training => {
                (x.sub(&wide(&per_channel(&mean.get())?)?)?, wide(&per_channel(&variance.get())?)?)
            }
            running => {
                let count = self.numel().checked_div(channels).unwrap_or(0);
                if options.training && count < 2 {
                    let expected = "more than one value per channel in training, which has no variance otherwise";
                    return fail(Error::shape(OP, expected, self.ty().to_string()));
                }
                let (mean, centred, variance) = centre(&x, Listed(Some(&others)))?;
                if let (Some((mean_var, variance_var)), true) = (running, options.training) {
                    let unbiased = variance.detach()?.mul(count as f64 / (count as f64 - 1.0))?;
                    go_towards(mean_var, &mean.detach()?, options.momentum)?;
                    go_towards(variance_var, &unbiased, options.momentum)?;
                }
                (centred, variance)
            }
        };
        narrow(scaled(OP, &centred, &variance, weight.as_ref(), bias.as_ref(), options.eps)?, self.dtype())
    }
}

/// Axes already listed.
#[derive(Clone, Copy)]
struct Listed<'a>(Option<&'a [isize]>);

impl Axes for Listed<'_> {
    fn axes(&self) -> Option<Vec<isize>> {
        self.0.map(<[isize]>::to_vec)
    }
}

/// The mean over `axes`, kept with length 1; what is left without it; and the variance, the mean of the squares of that.
fn centre(x: &Tensor, axes: Listed<'_>) -> Result<(Tensor, Tensor, Tensor)> {
    let mean = x.mean_keepdim(axes)?;
    let rough = x.sub(&mean)?;
    // The mean's rounding error. Its exact value is 0 whatever `x` is, and so is its gradient.
    let error = rough.mean_keepdim(axes)?.detach()?;
    let centred = rough.sub(&error)?;
    let variance = centred.mul(&centred)?.mean_keepdim(axes)?;
    Ok((mean.add(&error)?, centred, variance))
}

/// `x / √(square + eps) * weight + bias`.
#[track_caller]
fn scaled(
    op: &'static str,
    x: &Tensor,
    square: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    for t in [weight, bias].into_iter().flatten() {
        need_float(op, &[t])?;
        if Shape::broadcast(&t.shape(), &x.shape()) != Some(x.shape()) {
            let expected = format!("a weight and a bias that broadcast to {}", x.shape());
            return Err(Error::shape(op, expected, t.ty().to_string()).at(Loc::caller()));
        }
    }
    let mut y = x.mul(&square.add(eps)?.rsqrt()?)?;
    if let Some(weight) = wide_if(weight)? {
        y = y.mul(&weight)?;
    }
    if let Some(bias) = wide_if(bias)? {
        y = y.add(&bias)?;
    }
    Ok(y)
}

/// Moves a running statistic towards the batch's.
fn go_towards(running: &Var, batch: &Tensor, momentum: f64) -> Result<()> {
    let batch = batch.reshape(running.shape())?;
    let batch = if batch.dtype() == running.dtype() { batch } else { batch.to_dtype(running.dtype())? };
    running.set(&running.get().mul(1.0 - momentum)?.add(&batch.mul(momentum)?)?)
}
