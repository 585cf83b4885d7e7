//! Convolutions: windows, a copy in which each window is a column, and one matrix product for the whole batch.

use smallvec::SmallVec;

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, Scalar};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::tensor::composite::need_float;
use crate::tensor::recorder::{emit, here};
use crate::tensor::window::count;

/// Settings of a convolution over `D` axes; by default each 1, without padding, in one group.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::nn::Convolution;
/// let options = Convolution { padding: [1, 1], ..Convolution::default() };
/// let (x, w) = (Tensor::ones([1, 2, 5, 5], DType::F32, device)?, Tensor::ones([3, 2, 3, 3], DType::F32, device)?);
/// assert_eq!(x.conv2d(&w, None, &options)?.dims(), [1, 3, 5, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Convolution<const D: usize> {
    /// From one window to the next.
    pub stride: [usize; D],
    /// Zeros before and after each axis.
    pub padding: [usize; D],
    /// From one element of a window to the next.
    pub dilation: [usize; D],
    /// Channels in so many groups, each with its own outputs.
    pub groups: usize,
}

impl<const D: usize> Default for Convolution<D> {
    fn default() -> Self {
        Convolution { stride: [1; D], padding: [0; D], dilation: [1; D], groups: 1 }
    }
}

impl Tensor {
    /// Convolution (cross-correlation, as in PyTorch) of `[n, channels, length]` with `weight`, `[outputs, channels / groups, size]`, plus
    /// `bias`, `[outputs]`: `[n, outputs, (length + 2 padding - dilation (size - 1) - 1) / stride + 1]`.
    ///
    /// Errors: as [`Tensor::conv2d`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[[1.0f32, 2.0, 3.0, 4.0]]], device)?;
    /// let w = Tensor::new([[[1.0f32, -1.0]]], device)?;
    /// assert_eq!(x.conv1d(&w, None, &Default::default())?.to_string(), "[[[-1. -1. -1.]]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Convolution<1>) -> Result<Tensor> {
        let _scope = Scope::enter();
        convolve("conv1d", self, weight, bias, options)
    }

    /// Convolution (cross-correlation, as in PyTorch) of `[n, channels, height, width]` with `weight`,
    /// `[outputs, channels / groups, rows, columns]`, plus `bias`, `[outputs]`.
    ///
    /// ```
    /// use stepgraph::nn::Convolution;
    /// # use stepgraph::{DType, Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let x = Tensor::ones([1, 2, 4, 4], DType::F32, &device)?;
    /// let weight = Tensor::ones([3, 2, 3, 3], DType::F32, &device)?;
    /// let y = x.conv2d(&weight, None, &Convolution { padding: [1, 1], stride: [2, 2], ..Convolution::default() })?;
    /// assert_eq!(y.dims(), [1, 3, 2, 2]);
    /// assert_eq!(y.to_vec::<f32>()?[..4], [8.0, 12.0, 12.0, 18.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: other numbers of axes; channels that do not fit together, or not into the groups; a stride or dilation of 0; a window larger
    /// than the padded input.
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Convolution<2>) -> Result<Tensor> {
        let _scope = Scope::enter();
        convolve("conv2d", self, weight, bias, options)
    }

    /// Transposed convolution, the gradient of [`Tensor::conv2d`] by its input: of `[n, channels, height, width]` with `weight`,
    /// `[channels, outputs / groups, rows, columns]`, plus `bias`, `[outputs]`. The result's height is
    /// `(height - 1) stride - 2 padding + dilation (rows - 1) + output_padding + 1`.
    ///
    /// Errors: as [`Tensor::conv2d`]; an `output_padding` that is not below the larger of stride and dilation; a padding larger than the result.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (x, w) = (Tensor::ones([1, 2, 4, 4], DType::F32, device)?, Tensor::ones([2, 3, 3, 3], DType::F32, device)?);
    /// let y = x.conv_transpose2d(&w, None, [0, 0], &Default::default())?;
    /// assert_eq!(y.dims(), [1, 3, 6, 6]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        output_padding: [usize; 2],
        options: &Convolution<2>,
    ) -> Result<Tensor> {
        let _scope = Scope::enter();
        transposed("conv_transpose2d", self, weight, bias, output_padding, options)
    }
}

fn fail(op: &'static str, expected: impl Into<String>, given: impl Into<String>) -> Error {
    Error::shape(op, expected, given).at(Loc::caller())
}

/// Checks what both directions have in common; `x` and `weight` have `D` axes besides two.
#[track_caller]
fn check<const D: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<(&Tensor, usize)>,
    options: &Convolution<D>,
) -> Result<()> {
    need_float(op, &[x, weight])?;
    for (what, t) in [("an input", x), ("a weight", weight)] {
        if t.rank() != D + 2 {
            return Err(fail(op, format!("{what} of {} axes", D + 2), t.ty().to_string()));
        }
    }
    let positive = |v: &[usize]| v.iter().all(|&v| v > 0);
    if !positive(&options.stride) || !positive(&options.dilation) || options.groups == 0 {
        let expected = "a stride, a dilation and a number of groups of at least 1";
        return Err(Error::argument(op, expected, format!("{options:?}")).at(Loc::caller()));
    }
    if let Some((bias, outputs)) = bias
        && bias.dims() != [outputs]
    {
        return Err(fail(op, format!("a bias of shape [{outputs}]"), bias.ty().to_string()));
    }
    Ok(())
}

/// `x` with `value` before and after `axis`.
pub(super) fn pad(x: &Tensor, axis: usize, before: usize, after: usize, value: f64) -> Result<Tensor> {
    if before == 0 && after == 0 {
        return Ok(x.clone());
    }
    if value == 0.0 {
        let len = x.dims()[axis].saturating_add(before).saturating_add(after);
        let start = Scalar::i64(before as i64).constant();
        return emit(&Op::Unslice { axis: axis as u8, start, len, step: 1 }, &[x], here());
    }
    let border = |len: usize| {
        let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(x.dims());
        dims[axis] = len;
        Tensor::full_at(&dims[..], Scalar::f64(value).cast(x.dtype()).constant(), x.device(), here())
    };
    Tensor::concat(&[&border(before)?, x, &border(after)?], axis as isize)
}

/// `len` elements of `axis` from the fixed place `start`.
fn cut(x: &Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor> {
    let start = Scalar::i64(start as i64).constant();
    emit(&Op::Slice { axis: axis as u8, start, len, step: 1 }, &[x], here())
}

fn plus_bias(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(y) };
    let mut dims = vec![1; y.rank() - 1];
    dims[0] = bias.numel();
    y.add(&bias.reshape(dims)?)
}

#[track_caller]
fn convolve<const D: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &Convolution<D>,
) -> Result<Tensor> {
    let outputs = weight.dims().first().copied().unwrap_or(0);
    check(op, x, weight, bias.map(|b| (b, outputs)), options)?;
    let (n, channels, groups) = (x.dims()[0], x.dims()[1], options.groups);
    if weight.dims()[1] * groups != channels || outputs % groups != 0 {
        let expected = format!("a weight [outputs, channels / groups, ..] for {channels} channels in {groups} groups");
        return Err(fail(op, expected, weight.ty().to_string()));
    }
    let mut windows = x.clone();
    let mut places = [0; D];
    for (d, place) in places.iter_mut().enumerate() {
        let (padding, size) = (options.padding[d], weight.dims()[2 + d]);
        let padded = x.dims()[2 + d].saturating_add(padding.saturating_mul(2));
        let fits = count(padded, size, options.stride[d], options.dilation[d]);
        *place = fits.ok_or_else(|| {
            let expected = format!("a window within the {padded} elements of axis {} with its padding", 2 + d);
            fail(op, expected, format!("{size} elements with dilation {}", options.dilation[d]))
        })?;
        windows = pad(&windows, 2 + d, padding, padding, 0.0)?;
    }
    // [n, channels, places, size, ..]: the axis after this one moves by one each time.
    for d in 0..D {
        let size = weight.dims()[2 + d];
        windows = windows.window(2 + 2 * d as isize, size, options.stride[d], options.dilation[d])?;
    }
    let split = [&[n, groups, channels / groups], &windows.dims()[2..]].concat();
    // Columns: [group, channel and place in the window, item and place of the window].
    let sizes = (0..D).map(|d| 4 + 2 * d);
    let order: Vec<usize> = [1, 2].into_iter().chain(sizes).chain([0]).chain((0..D).map(|d| 3 + 2 * d)).collect();
    let rows: usize = weight.dims()[1..].iter().product();
    let all: usize = n * places.iter().product::<usize>();
    let columns = windows.reshape(split)?.permute(&order)?.reshape([groups, rows, all])?;
    let y = weight.reshape([groups, outputs / groups, rows])?.matmul(&columns)?;
    let y = items_first(&y.reshape([&[outputs, n], &places[..]].concat())?)?;
    plus_bias(y, bias)
}

/// The first two axes exchanged.
fn items_first(y: &Tensor) -> Result<Tensor> {
    let order: Vec<usize> = [1, 0].into_iter().chain(2..y.rank()).collect();
    y.permute(&order)
}

#[track_caller]
fn transposed<const D: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    output_padding: [usize; D],
    options: &Convolution<D>,
) -> Result<Tensor> {
    let per_group = weight.dims().get(1).copied().unwrap_or(0);
    let (groups, outputs) = (options.groups, per_group.saturating_mul(options.groups));
    check(op, x, weight, bias.map(|b| (b, outputs)), options)?;
    let (n, channels) = (x.dims()[0], x.dims()[1]);
    if weight.dims()[0] != channels || channels % groups != 0 {
        let expected = format!("a weight [channels, outputs / groups, ..] for {channels} channels in {groups} groups");
        return Err(fail(op, expected, weight.ty().to_string()));
    }
    let (places, sizes) = (&x.dims()[2..], &weight.dims()[2..]);
    let mut lengths = [0; D];
    for (d, length) in lengths.iter_mut().enumerate() {
        let (stride, dilation, extra) = (options.stride[d], options.dilation[d], output_padding[d]);
        if extra >= stride.max(dilation) {
            let expected =
                format!("an output padding below {}, the larger of stride and dilation", stride.max(dilation));
            return Err(Error::argument(op, expected, extra.to_string()).at(Loc::caller()));
        }
        let reach = || {
            let windows = places[d].checked_sub(1)?.checked_mul(stride)?;
            windows.checked_add(sizes[d].checked_sub(1)?.checked_mul(dilation)?)?.checked_add(extra + 1)
        };
        let whole = reach().filter(|&len| len > options.padding[d].saturating_mul(2));
        *length = whole.ok_or_else(|| {
            let expected = "a result of at least one element along each axis";
            fail(op, expected, format!("{} with a weight {} and {options:?}", x.ty(), weight.ty()))
        })?;
    }
    let all: usize = n * places.iter().product::<usize>();
    let rows = per_group * sizes.iter().product::<usize>();
    let items = items_first(x)?.reshape([groups, channels / groups, all])?;
    let columns = weight.reshape([groups, channels / groups, rows])?.t()?.matmul(&items)?;
    // [outputs, size, .., n, place, ..] to [n, outputs, place, size, ..].
    let split = [&[outputs], sizes, &[n], places].concat();
    let order: Vec<usize> = [1 + D, 0].into_iter().chain((0..D).flat_map(|d| [2 + D + d, 1 + d])).collect();
    let mut y = columns.reshape(split)?.permute(&order)?;
    for d in (0..D).rev() {
        y = y.fold(2 + 2 * d as isize, lengths[d], options.stride[d], options.dilation[d])?;
    }
    for (d, (&padding, &length)) in options.padding.iter().zip(&lengths).enumerate() {
        if padding > 0 {
            y = cut(&y, 2 + d, padding, length - 2 * padding)?;
        }
    }
    plus_bias(y, bias)
}
