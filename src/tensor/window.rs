//! Windows over an axis, and adding them back.

use crate::base::{Error, Loc, Result};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::tensor::recorder::{emit, here};

/// How many windows of `size` elements, every `step`-th one, each element `dilation` after the last, fit into `len`;
/// `None` for a size, step or dilation of 0, or when not even one fits.
pub(crate) fn count(len: usize, size: usize, step: usize, dilation: usize) -> Option<usize> {
    let reach = size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let rest = len.checked_sub(reach)?;
    if dilation == 0 { None } else { rest.checked_div(step).map(|n| n + 1) }
}

impl Tensor {
    /// All windows of `size` elements over `axis`, the first at 0, then every `step` elements; within a window
    /// the elements lie `dilation` apart. The axis becomes two, `[windows, size]`. A view: elements in several windows are not copied.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0], [5], &Device::cpu())?;
    /// let w = x.window(0, 3, 2, 1)?;
    /// assert_eq!((w.dims(), w.to_vec::<f32>()?), (&[2, 3][..], vec![1.0, 2.0, 3.0, 3.0, 4.0, 5.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: no such axis; a size, step or dilation of 0; an axis too short for one window; more axes than a tensor can have.
    #[track_caller]
    pub fn window(&self, axis: isize, size: usize, step: usize, dilation: usize) -> Result<Tensor> {
        let at = here();
        let fail = |e: Error| e.at(Loc::resolve(at));
        let axis = self.axis("window", axis).map_err(fail)?;
        let Some(count) = count(self.dims()[axis], size, step, dilation) else {
            let expected =
                format!("windows, steps and dilations of at least 1, within axis {axis} of {}", self.shape());
            let given = format!("windows of {size} elements with step {step} and dilation {dilation}");
            return Err(fail(Error::argument("window", expected, given)));
        };
        emit(&Op::Window { axis: axis as u8, count, size, step, dilation }, &[self], at)
    }

    /// The reverse of [`Tensor::window`]: axis `axis` and the next one, `[windows, size]`, become one of length `len`; elements of several
    /// windows that lie at one place add up, and places in no window are 0. Numbers: at each place the elements are
    /// added in the order of their places in a window.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let w = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 30.0, 40.0, 50.0], [2, 3], &Device::cpu())?;
    /// assert_eq!(w.fold(0, 6, 2, 1)?.to_vec::<f32>()?, [1.0, 2.0, 33.0, 40.0, 50.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: `axis` and the next are not both there; windows that reach beyond `len`; a step or dilation of 0; bool elements.
    #[track_caller]
    pub fn fold(&self, axis: isize, len: usize, step: usize, dilation: usize) -> Result<Tensor> {
        let at = here();
        let axis = self.axis("fold", axis).map_err(|e| e.at(Loc::resolve(at)))?;
        if let &[ref before @ .., count, size] = &self.dims()[..(axis + 2).min(self.rank())]
            && (before.len(), dilation, step, len) == (axis, 1, size, count * size)
            && self.dtype() != crate::base::DType::Bool
        {
            // Side by side: nothing to add up.
            return self.reshape([before, &[len], &self.dims()[axis + 2..]].concat());
        }
        emit(&Op::Fold { axis: axis as u8, len, step, dilation }, &[self], at)
    }
}
