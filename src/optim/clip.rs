//! Gradient clipping, decided on the device.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::optim::target::{cast, working};
use crate::tensor::{Gradients, Tensor};

/// Added to the norm before the division, as `torch.nn.utils.clip_grad_norm_` does.
const EPS: f64 = 1e-6;

/// Gradients scaled by `min(1, max_norm / (norm + 1e-6))`, and `norm`: that of all of them together, before clipping.
///
/// Works inside a step: nothing is read on the host, `max_norm` is a host number that may change from call to call.
/// Gradients within `max_norm` keep their bits. The norm is computed in f32 (f64 when a gradient is f64), without
/// overflow as long as it is itself within range; beyond that it is infinite and the gradients become 0. With an
/// infinite gradient or a NaN the norm is infinite or NaN, and so is the result, as in PyTorch: look at the norm, or let
/// a gradient scaler leave the step out.
///
/// Errors: a `max_norm` that is negative or NaN; gradients on different devices.
///
/// ```
/// use stepgraph::optim::clip_grad_norm;
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![3.0f32, 4.0], [2], &Device::cpu())?)?;
/// let gradients = w.get().mul(w.get())?.sum(())?.backward()?; // [6, 8]
/// let (clipped, norm) = clip_grad_norm(&gradients, 2.0)?;
/// assert_eq!(norm.item::<f32>()?, 10.0);
/// let g = clipped.get(&w).unwrap().to_vec::<f32>()?;
/// assert!((g[0] - 1.2).abs() < 1e-6 && (g[1] - 1.6).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn clip_grad_norm(gradients: &Gradients, max_norm: f64) -> Result<(Gradients, Tensor)> {
    let at = Loc::caller();
    let _scope = Scope::enter();
    let clip = || {
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(Error::argument("clip_grad_norm", "a norm of at least 0", max_norm.to_string()));
        }
        let norm = global_norm(&gradients.tensors()?)?;
        let factor = (max_norm / norm.add(EPS)?)?.minimum(1.0)?;
        let clipped = gradients.map(|g| {
            let dtype = g.dtype();
            let wide = cast(g.clone(), working(dtype))?;
            cast(wide.mul(cast(factor.clone(), working(dtype))?)?, dtype)
        })?;
        Ok((clipped, norm))
    };
    clip().map_err(|e: Error| e.at(at))
}

/// The euclidean norm of all elements of `tensors` together.
fn global_norm(tensors: &[Tensor]) -> Result<Tensor> {
    let Some(widest) = tensors.iter().map(|t| working(t.dtype())).max_by_key(|d| d.size()) else {
        return Err(Error::argument("clip_grad_norm", "at least one gradient", "none"));
    };
    // Squares of large elements overflow. So the sum is taken twice in one pass, as it is and of elements scaled down
    // by a power of two (exact), after which no sum of squares of finite elements overflows.
    let down = if widest == DType::F32 { 2f64.powi(-96) } else { 2f64.powi(-600) };
    let (mut plain, mut scaled): (Option<Tensor>, Option<Tensor>) = (None, None);
    let add = |sum: &mut Option<Tensor>, t: &Tensor| -> Result<()> {
        let squares = t.mul(t)?.sum(())?;
        *sum = Some(match sum.take() {
            Some(sum) => sum.add(squares)?,
            None => squares,
        });
        Ok(())
    };
    for t in tensors {
        let wide = cast(t.clone(), widest)?;
        add(&mut plain, &wide)?;
        add(&mut scaled, &wide.mul(down)?)?;
    }
    let (Some(plain), Some(scaled)) = (plain, scaled) else {
        return Err(Error::bug("clip_grad_norm", "no sum"));
    };
    let fits = plain.lt(if widest == DType::F32 { f32::INFINITY as f64 } else { f64::INFINITY })?;
    fits.select(plain.sqrt()?, scaled.sqrt()?.mul(1.0 / down)?)
}

/// Gradients whose elements are moved into `-limit..=limit`; NaN stays NaN.
///
/// Errors: a `limit` that is negative or NaN.
///
/// ```
/// use stepgraph::optim::clip_grad_value;
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![3.0f32, -0.2], [2], &Device::cpu())?)?;
/// let gradients = w.get().mul(w.get())?.sum(())?.backward()?; // [6, -0.4]
/// let clipped = clip_grad_value(&gradients, 1.0)?;
/// assert_eq!(clipped.get(&w).unwrap().to_vec::<f32>()?, [1.0, -0.4]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn clip_grad_value(gradients: &Gradients, limit: f64) -> Result<Gradients> {
    let at = Loc::caller();
    let _scope = Scope::enter();
    if limit.is_nan() || limit < 0.0 {
        return Err(Error::argument("clip_grad_value", "a limit of at least 0", limit.to_string()).at(at));
    }
    gradients.map(|g| g.maximum(-limit)?.minimum(limit)).map_err(|e| e.at(at))
}
