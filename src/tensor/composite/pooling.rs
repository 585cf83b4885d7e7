//! Pooling: windows, then their maximum or mean.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, Scalar, Shape};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::tensor::arith::Operand;
use crate::tensor::composite::convolution::pad;
use crate::tensor::composite::{fixed, narrow, need_float, wide};
use crate::tensor::recorder::{emit_on, here};
use crate::tensor::window::count;

/// Settings of pooling over the last `D` axes.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Pooling;
/// let x = Tensor::new([[[1.0f32, 3.0, 2.0, 8.0]]], device)?;
/// let overlapping = Pooling { stride: [1], ..Pooling::new([2]) };
/// assert_eq!(x.max_pool1d(&overlapping)?.to_string(), "[[[3. 3. 8.]]]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pooling<const D: usize> {
    /// Elements of a window along each axis.
    pub size: [usize; D],
    /// From one window to the next.
    pub stride: [usize; D],
    /// Elements before and after each axis: below all others for a maximum, zeros for a mean. At most half of the size.
    pub padding: [usize; D],
    /// From one element of a window to the next.
    pub dilation: [usize; D],
    /// Whether a mean counts the padding among its elements.
    pub count_padding: bool,
    /// A last window that begins within the input (or the padding before it) but reaches beyond the padding after it. What lies there is in no
    /// maximum, and counts for no mean (PyTorch's `ceil_mode`).
    pub ceil: bool,
}

impl<const D: usize> Pooling<D> {
    /// Windows of `size`, side by side, without padding, as many as fit (PyTorch's defaults).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[[1.0f32, 3.0, 2.0, 8.0]]], device)?;
    /// assert_eq!(x.max_pool1d(&nn::Pooling::new([2]))?.to_string(), "[[[3. 8.]]]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(size: [usize; D]) -> Pooling<D> {
        Pooling { size, stride: size, padding: [0; D], dilation: [1; D], count_padding: true, ceil: false }
    }
}

impl Tensor {
    /// Means of windows of `[.., length]`: see [`Tensor::avg_pool2d`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[[1.0f32, 3.0, 2.0, 8.0]]], device)?;
    /// assert_eq!(x.avg_pool1d(&nn::Pooling::new([2]))?.to_string(), "[[[2. 5.]]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn avg_pool1d(&self, options: &Pooling<1>) -> Result<Tensor> {
        let _scope = Scope::enter();
        average("avg_pool1d", self, options)
    }

    /// Means of windows of `[.., height, width]`.
    ///
    /// ```
    /// use stepgraph::nn::Pooling;
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec((0..16).map(|i| i as f32).collect::<Vec<_>>(), [1, 1, 4, 4], &Device::cpu())?;
    /// assert_eq!(x.avg_pool2d(&Pooling::new([2, 2]))?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: fewer axes; a size, stride or dilation of 0; a padding above half of the size; a window larger than the padded input.
    #[track_caller]
    pub fn avg_pool2d(&self, options: &Pooling<2>) -> Result<Tensor> {
        let _scope = Scope::enter();
        average("avg_pool2d", self, options)
    }

    /// Largest elements of windows of `[.., length]`: see [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[[1.0f32, 3.0, 2.0, 8.0]]], device)?;
    /// assert_eq!(x.max_pool1d(&nn::Pooling::new([2]))?.to_string(), "[[[3. 8.]]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn max_pool1d(&self, options: &Pooling<1>) -> Result<Tensor> {
        let _scope = Scope::enter();
        largest("max_pool1d", self, options)
    }

    /// Largest elements of windows of `[.., height, width]`; NaN if any is NaN. Padding is -inf. The gradient goes to the first of several largest elements
    /// of a window, row by row (PyTorch's).
    ///
    /// ```
    /// use stepgraph::nn::Pooling;
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec((0..16).map(|i| i as f32).collect::<Vec<_>>(), [1, 1, 4, 4], &Device::cpu())?;
    /// assert_eq!(x.max_pool2d(&Pooling::new([2, 2]))?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: as [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn max_pool2d(&self, options: &Pooling<2>) -> Result<Tensor> {
        let _scope = Scope::enter();
        largest("max_pool2d", self, options)
    }

    /// The mean of each channel of `[n, channels, ..]` over all axes after it: `[n, channels]`. PyTorch's `adaptive_avg_pool` to one element.
    ///
    /// Errors: fewer than 3 axes; not a float tensor.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[[[1.0f32, 2.0], [3.0, 6.0]]]], device)?;
    /// assert_eq!(x.global_avg_pool()?.to_string(), "[[3.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn global_avg_pool(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        if self.rank() < 3 {
            let given = self.ty().to_string();
            return Err(Error::shape("global_avg_pool", "[n, channels, ..]", given).at(Loc::caller()));
        }
        let axes: Vec<isize> = (2..self.rank() as isize).collect();
        self.mean(&axes[..])
    }
}

/// How many places the last window of each of the last `D` axes of `x` reaches beyond its padding.
#[track_caller]
fn beyond<const D: usize>(op: &'static str, x: &Tensor, options: &Pooling<D>) -> Result<[usize; D]> {
    let fail = |e: Error| Err(e.at(Loc::caller()));
    let Some(lead) = x.rank().checked_sub(D) else {
        return fail(Error::shape(op, format!("at least {D} axes"), x.ty().to_string()));
    };
    let Pooling { size, stride, padding, dilation, .. } = *options;
    let mut beyond = [0; D];
    for d in 0..D {
        if padding[d] > size[d] / 2 {
            let expected = format!("a padding of at most {}, half of the size", size[d] / 2);
            return fail(Error::argument(op, expected, padding[d].to_string()));
        }
        let len = x.dims()[lead + d];
        let padded = len.saturating_add(2 * padding[d]);
        if options.ceil && stride[d] > 0 && size[d] > 0 {
            let reach = (size[d] - 1).saturating_mul(dilation[d]).saturating_add(1);
            // The next multiple of the stride, if a window may begin there.
            let next = match padded.checked_sub(reach) {
                Some(rest) => rest.div_ceil(stride[d]).saturating_mul(stride[d]),
                None => 0,
            };
            let last = next.saturating_add(reach);
            let near = reach <= padded || reach - padded < stride[d];
            if near && next < len + padding[d] {
                beyond[d] = last.saturating_sub(padded);
            }
        }
        if count(padded + beyond[d], size[d], stride[d], dilation[d]).is_none() {
            let expected =
                format!("windows, strides and dilations of at least 1, within {padded} elements with padding");
            return fail(Error::argument(op, expected, format!("{options:?}")));
        }
    }
    Ok(beyond)
}

/// The windows of the last `D` axes of `x`, padded with `value` (`padding` before each, and after it, and `beyond` more): the windows' elements on the first `D` axes, then
/// the axes of the result.
fn windows<const D: usize>(
    x: &Tensor,
    options: &Pooling<D>,
    (padding, beyond): ([usize; D], [usize; D]),
    value: f64,
) -> Result<Tensor> {
    let lead = x.rank() - D;
    let mut out = x.clone();
    for d in 0..D {
        out = pad(&out, lead + d, padding[d], padding[d] + beyond[d], value)?;
    }
    for d in 0..D {
        out = out.window((lead + 2 * d) as isize, options.size[d], options.stride[d], options.dilation[d])?;
    }
    let elements = (0..D).map(|d| lead + 2 * d + 1);
    let order: Vec<usize> = elements.chain(0..lead).chain((0..D).map(|d| lead + 2 * d)).collect();
    out.permute(&order)
}

/// The first `D` axes.
fn first<const D: usize>() -> [isize; D] {
    std::array::from_fn(|d| d as isize)
}

#[track_caller]
fn average<const D: usize>(op: &'static str, x: &Tensor, options: &Pooling<D>) -> Result<Tensor> {
    need_float(op, &[x])?;
    let dtype = x.dtype();
    let x = &wide(x)?;
    let beyond = beyond(op, x, options)?;
    let sum = windows(x, options, (options.padding, beyond), 0.0)?.sum(first::<D>())?;
    let padded = options.padding != [0; D] && !options.count_padding;
    if !padded && beyond == [0; D] {
        return narrow(sum.div(fixed(options.size.iter().product::<usize>() as f64))?, dtype);
    }
    // How many elements each window has, by the same sum over ones.
    let mut dims: [usize; D] = std::array::from_fn(|d| x.dims()[x.rank() - D + d]);
    let mut padding = options.padding;
    if options.count_padding {
        dims.iter_mut().zip(&mut padding).for_each(|(len, padding)| *len += 2 * std::mem::take(padding));
    }
    let ones = Tensor::ones(&dims[..], x.dtype(), x.device())?;
    narrow(sum.div(&windows(&ones, options, (padding, beyond), 0.0)?.sum(first::<D>())?)?, dtype)
}

#[track_caller]
fn largest<const D: usize>(op: &'static str, x: &Tensor, options: &Pooling<D>) -> Result<Tensor> {
    need_float(op, &[x])?;
    let beyond = beyond(op, x, options)?;
    let windows = windows(x, options, (options.padding, beyond), f64::NEG_INFINITY)?;
    let axes = first::<D>();
    // The first place of a window that holds its largest element, or a NaN; a maximum would share its gradient.
    let top = windows.max_keepdim(axes)?;
    let found = windows.eq(&top)?.or(&windows.ne(&windows)?)?;
    let mut dims = vec![1; windows.rank()];
    dims[..D].copy_from_slice(&options.size);
    let count: usize = options.size.iter().product();
    let place = emit_on(x.device(), &Op::Iota { shape: Shape::new(&dims)?, axes: (1 << D) - 1 }, &[], here())?;
    let none = Operand::Scalar(Scalar::i64(count as i64).constant());
    let winner = found.select(&place, none)?.min_keepdim(axes)?.eq(&place)?;
    // Added to -0, every number stays as it is.
    winner.select(&windows, fixed(-0.0))?.sum(axes)
}
