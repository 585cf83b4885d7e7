//! Losses.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Scalar, Shape};
use crate::tensor::Tensor;
use crate::tensor::arith::Operand;
use crate::tensor::composite::activation::softplus;
use crate::tensor::composite::{fixed, narrow, need_float, wide, wide_if};

/// What becomes of the losses of the elements.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Reduction;
/// let (x, y) = (Tensor::new([1.0f32, 2.0], device)?, Tensor::new([1.5f32, 5.0], device)?);
/// assert_eq!(x.mse_with(&y, Reduction::Sum)?.to_string(), "9.25");
/// assert_eq!(x.mse_with(&y, Reduction::None)?.to_string(), "[0.25 9.  ]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Their mean: a 0-d tensor. Elements that are ignored do not count.
    #[default]
    Mean,
    /// Their sum: a 0-d tensor.
    Sum,
    /// They stay as they are.
    None,
}

impl Reduction {
    /// Applied to losses that all count.
    fn of(self, losses: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => losses.mean(()),
            Reduction::Sum => losses.sum(()),
            Reduction::None => Ok(losses.clone()),
        }
    }
}

/// How [`Tensor::cross_entropy_with`] and [`Tensor::nll_loss`] go about it. The default is the mean over all labels.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::CrossEntropy;
/// let logits = Tensor::new([[2.0f32, 0.0, 0.0], [0.0, 0.0, 2.0]], device)?;
/// let options = CrossEntropy { ignore: Some(-1), ..CrossEntropy::default() };
/// let loss = logits.cross_entropy_with(&Tensor::new([0i64, -1], device)?, &options)?;
/// assert!((loss.item::<f32>()? - 0.2395).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy<'a> {
    /// The axis of the classes; `None`: axis 1, or axis 0 of a 1-d tensor (PyTorch's).
    pub axis: Option<isize>,
    /// Elements with this label have no loss, and do not count for the mean (over none it is NaN). PyTorch ignores -100
    /// unless told otherwise; here nothing is ignored unless told so.
    pub ignore: Option<i64>,
    /// Label smoothing: the target is `1 - smoothing` on the label and `smoothing / classes` on every class (Szegedy et al.,
    /// "Rethinking the inception architecture", 2016). Cross entropy only.
    pub smoothing: f64,
    /// A weight per class, `[classes]`: the loss of a label is multiplied by its class's, and the mean is that of the weights
    /// (the sum of the losses over the sum of the labels' weights). With smoothing, each class's share of the target has its weight
    /// (PyTorch's).
    pub weight: Option<&'a Tensor>,
    /// Mean, sum, or a loss per label.
    pub reduction: Reduction,
}

impl Tensor {
    /// Mean cross entropy of logits `[n, classes, ..]` against integer labels `[n, ..]`: a 0-d tensor. Of 1-d logits, `[classes]`,
    /// against a 0-d label. See [`Tensor::cross_entropy_with`] for other axes, ignored labels and smoothing.
    ///
    /// A label out of range is found when the kernel runs, as an index of [`Tensor::gather`] is.
    ///
    /// Errors: shapes other than these; logits that are no floats, labels that are no integers.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let logits = Tensor::new([[2.0f32, 0.0, 0.0], [0.0, 0.0, 2.0]], device)?;
    /// let loss = logits.cross_entropy(&Tensor::new([0i64, 1], device)?)?;
    /// assert!((loss.item::<f32>()? - 1.2395).abs() < 1e-4);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.cross_entropy_with(labels, &CrossEntropy::default())
    }

    /// Cross entropy of logits against integer labels, whose shape is that of the logits without the axis of the classes.
    ///
    /// ```
    /// use stepgraph::nn::{CrossEntropy, Reduction};
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let logits = Tensor::from_vec(vec![0.0f32; 2 * 3 * 4], [2, 3, 4], &device)?;
    /// let labels = Tensor::from_vec(vec![0i64, 3, -1, 2, -1, 1], [2, 3], &device)?;
    /// let options = CrossEntropy { axis: Some(-1), ignore: Some(-1), ..CrossEntropy::default() };
    /// let loss = logits.cross_entropy_with(&labels, &options)?;
    /// assert!((loss.item::<f32>()? - 4f32.ln()).abs() < 1e-6);
    /// let each = CrossEntropy { reduction: Reduction::None, ..options };
    /// assert_eq!(logits.cross_entropy_with(&labels, &each)?.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Classes that are rare may weigh more:
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let logits = Tensor::new([[2.0f32, 0.0], [2.0, 0.0]], device)?;
    /// let weight = Tensor::new([1.0f32, 3.0], device)?;
    /// let options = nn::CrossEntropy { weight: Some(&weight), ..Default::default() };
    /// let loss = logits.cross_entropy_with(&Tensor::new([0i64, 1], device)?, &options)?;
    /// let (rare, common) = (2.1269280110429727f64, 0.1269280110429726); // log(1 + e²), log(1 + e⁻²)
    /// assert!((loss.item::<f32>()? as f64 - (common + 3.0 * rare) / 4.0).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: as [`Tensor::cross_entropy`]; a smoothing outside of 0 to 1; weights that are no floats of shape `[classes]`.
    #[track_caller]
    pub fn cross_entropy_with(&self, labels: &Tensor, options: &CrossEntropy<'_>) -> Result<Tensor> {
        let _scope = Scope::enter();
        let axis = self.class_axis("cross_entropy", labels, options)?;
        if !(0.0..=1.0).contains(&options.smoothing) {
            let given = options.smoothing.to_string();
            return Err(Error::argument("cross_entropy", "a smoothing from 0 to 1", given).at(Loc::caller()));
        }
        let log_p = wide(self)?.log_softmax(axis as isize)?;
        narrow(negative_log_likelihood(&log_p, labels, axis, options, options.smoothing)?, self.dtype())
    }

    /// Negative log likelihood: as [`Tensor::cross_entropy_with`], of log-probabilities such as [`Tensor::log_softmax`] gives. There is
    /// no smoothing.
    ///
    /// Errors: as [`Tensor::cross_entropy`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let logits = Tensor::new([[2.0f32, 0.0, 0.0], [0.0, 0.0, 2.0]], device)?;
    /// let labels = Tensor::new([0i64, 1], device)?;
    /// let loss = logits.log_softmax(1)?.nll_loss(&labels, &Default::default())?;
    /// assert!((loss.item::<f32>()? - 1.2395).abs() < 1e-4);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn nll_loss(&self, labels: &Tensor, options: &CrossEntropy<'_>) -> Result<Tensor> {
        let _scope = Scope::enter();
        let axis = self.class_axis("nll_loss", labels, options)?;
        narrow(negative_log_likelihood(&wide(self)?, labels, axis, options, 0.0)?, self.dtype())
    }

    /// The axis of the classes, the labels' shape and dtype checked against it.
    #[track_caller]
    fn class_axis(&self, op: &'static str, labels: &Tensor, options: &CrossEntropy<'_>) -> Result<usize> {
        need_float(op, &[self])?;
        let fail = |e: Error| e.at(Loc::caller());
        let axis = self.axis(op, options.axis.unwrap_or((self.rank() > 1) as isize)).map_err(fail)?;
        let want = self.shape().reduce(1 << axis, false);
        if labels.shape() != want {
            let expected = format!("labels of shape {want}, that of {} without axis {axis} of the classes", self.ty());
            return Err(fail(Error::shape(op, expected, labels.ty().to_string())));
        }
        if !labels.dtype().is_int() {
            return Err(fail(Error::dtype(op, "integer labels", labels.dtype())));
        }
        if let Some(weight) = options.weight {
            need_float(op, &[weight])?;
            if weight.dims() != [self.dims()[axis]] {
                let expected = format!("a weight per class, [{}]", self.dims()[axis]);
                return Err(fail(Error::shape(op, expected, weight.ty().to_string())));
            }
        }
        Ok(axis)
    }

    /// Mean of the squared differences: a 0-d tensor.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, y) = (Tensor::new([1.0f32, 2.0], device)?, Tensor::new([1.5f32, 5.0], device)?);
    /// assert_eq!(x.mse(&y)?.item::<f32>()?, 4.625);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn mse(&self, target: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.mse_with(target, Reduction::Mean)
    }

    /// The squared differences, or their sum or mean.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, y) = (Tensor::new([1.0f32, 2.0], device)?, Tensor::new([1.5f32, 5.0], device)?);
    /// assert_eq!(x.mse_with(&y, nn::Reduction::Sum)?.item::<f32>()?, 9.25);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn mse_with(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.difference("mse", target, reduction, |d| d.mul(d))
    }

    /// Huber's loss (1964) of the differences `d`: `d²/2` up to `|d| = delta`, beyond that `delta (|d| - delta/2)`.
    ///
    /// Errors: a `delta` that is not above 0; operands that are no floats.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, y) = (Tensor::new([1.0f32, 2.0], device)?, Tensor::new([1.5f32, 5.0], device)?);
    /// assert_eq!(x.huber(&y, 1.0, nn::Reduction::None)?.to_string(), "[0.125 2.5  ]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn huber(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        let _scope = Scope::enter();
        if delta.is_nan() || delta <= 0.0 {
            return Err(Error::argument("huber", "a delta above 0", delta.to_string()).at(Loc::caller()));
        }
        self.difference("huber", target, reduction, |d| {
            let size = d.abs()?;
            let near = d.mul(d)?.mul(fixed(0.5))?;
            let far = size.sub(0.5 * delta)?.mul(delta)?;
            size.le(delta)?.select(&near, &far)
        })
    }

    /// The smooth L1 loss (Girshick, "Fast R-CNN", 2015) of the differences `d`: `d²/(2 beta)` below `|d| = beta`, from there on
    /// `|d| - beta/2`; for `beta` 0 `|d|`.
    ///
    /// Errors: a negative `beta`; operands that are no floats.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, y) = (Tensor::new([1.0f32, 2.0], device)?, Tensor::new([1.5f32, 5.0], device)?);
    /// assert_eq!(x.smooth_l1(&y, 1.0, nn::Reduction::None)?.to_string(), "[0.125 2.5  ]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn smooth_l1(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        let _scope = Scope::enter();
        if beta.is_nan() || beta < 0.0 {
            return Err(Error::argument("smooth_l1", "a beta of at least 0", beta.to_string()).at(Loc::caller()));
        }
        self.difference("smooth_l1", target, reduction, |d| {
            let size = d.abs()?;
            if beta == 0.0 {
                return Ok(size);
            }
            let near = d.mul(d)?.mul(0.5 / beta)?;
            size.lt(beta)?.select(&near, &size.sub(0.5 * beta)?)
        })
    }

    /// Binary cross entropy of logits `x` against targets `y` from 0 to 1, without overflow: `(1 - y) x + w log(1 + exp(-x))`, where `w` is 1,
    /// or `1 + (positive - 1) y` for weights `positive` of the targets that are 1, which broadcast to the logits.
    ///
    /// ```
    /// use stepgraph::nn::Reduction;
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// let (x, y) = (Tensor::from_vec(vec![0.0f32, 500.0], [2], &d)?, Tensor::from_vec(vec![1.0f32, 0.0], [2], &d)?);
    /// let loss = x.binary_cross_entropy_with_logits(&y, None, Reduction::Sum)?;
    /// assert_eq!(loss.item::<f32>()?, 500.0 + 2f32.ln());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: operands that are no floats, or do not broadcast.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        positive: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("binary_cross_entropy_with_logits", &[self, target])?;
        let (x, y) = (wide(self)?, wide(target)?);
        let mut rest = softplus(&x.neg()?)?;
        if let Some(positive) = wide_if(positive)? {
            rest = rest.mul(&positive.sub(fixed(1.0))?.mul(&y)?.add(fixed(1.0))?)?;
        }
        let one_less = y.neg()?.add(fixed(1.0))?;
        narrow(reduction.of(&one_less.mul(&x)?.add(&rest)?)?, self.dtype())
    }

    /// `f` of the differences from `target`, reduced.
    #[track_caller]
    fn difference(
        &self,
        op: &'static str,
        target: &Tensor,
        reduction: Reduction,
        f: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        need_float(op, &[self, target])?;
        narrow(reduction.of(&f(&wide(self)?.sub(&wide(target)?)?)?)?, self.dtype())
    }
}

/// The losses of log-probabilities along `axis`, reduced.
fn negative_log_likelihood(
    log_p: &Tensor,
    labels: &Tensor,
    axis: usize,
    options: &CrossEntropy<'_>,
    smoothing: f64,
) -> Result<Tensor> {
    let ignored = options.ignore.map(|label| labels.eq(label)).transpose()?;
    let index = match &ignored {
        // Any class will do.
        Some(ignored) => ignored.select(Operand::Scalar(Scalar::i64(0).constant()), labels)?,
        None => labels.clone(),
    };
    let index = if index.dtype() == DType::I64 { index } else { index.to_dtype(DType::I64)? };
    let kept = Shape::new(log_p.dims())?.reduce(1 << axis, true);
    let weight = options.weight.map(|w| w.to_dtype(log_p.dtype())).transpose()?;
    let mut picked = log_p.gather(axis as isize, &index.reshape(kept)?)?.reshape(labels.shape())?;
    // Of each label.
    let weights = match &weight {
        Some(weight) => Some(weight.index_select(0, &index.flatten()?)?.reshape(labels.shape())?),
        None => None,
    };
    if let Some(weights) = &weights {
        picked = picked.mul(weights)?;
    }
    let losses = if smoothing == 0.0 {
        picked
    } else {
        let even = match &weight {
            Some(weight) => {
                let mut along = vec![1; log_p.rank()];
                along[axis] = weight.numel();
                log_p.mul(&weight.reshape(along)?)?.mean(axis as isize)?
            }
            None => log_p.mean(axis as isize)?,
        };
        picked.mul(1.0 - smoothing)?.add(&even.mul(smoothing)?)?
    };
    let losses = match (&ignored, &weights) {
        (None, None) => return options.reduction.of(&losses)?.neg(),
        (None, Some(_)) => losses.neg()?,
        (Some(ignored), _) => ignored.select(fixed(0.0), &losses.neg()?)?,
    };
    match options.reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum(()),
        Reduction::Mean => {
            let counted = match (ignored, weights) {
                (Some(ignored), Some(weights)) => ignored.select(fixed(0.0), &weights)?,
                (Some(ignored), None) => ignored.not()?.to_dtype(losses.dtype())?,
                (None, Some(weights)) => weights,
                (None, None) => return losses.mean(()),
            };
            losses.sum(())?.div(&counted.sum(())?)
        }
    }
}
