//! Mixed precision: matrix products in 16 bits, everything else as it is written.

use std::cell::Cell;

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result};
use crate::tensor::{At, Tensor, promote};

thread_local! {
    static DTYPE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// Puts the thread's dtype back when dropped.
struct Restore(Option<DType>);

impl Drop for Restore {
    fn drop(&mut self) {
        DTYPE.set(self.0);
    }
}

/// Runs `f`; meanwhile matrix products on this thread (those in layers, convolutions and attention, too) cast `f32` and
/// 16-bit operands to `dtype`, and their results back to the dtype that they have without it. So dtypes stay what they
/// are, parameters stay `f32` (their *master* copy), gradients come back in `f32`, and only products are rounded to 16
/// bits; sums within them are `f32` (Micikevicius et al., "Mixed precision training", 2018).
///
/// Take `backward` inside or outside: gradients are computed as their operations were. Inside another call the innermost
/// dtype counts; `DType::F32` turns it off. With `f16` scale the loss: see [`crate::optim::GradScaler`].
///
/// Errors: those of `f`; a dtype that is no float of at most 32 bits.
///
/// ```
/// use stepgraph::nn::Linear;
/// use stepgraph::{DType, Device, Result, Rng, Tensor, autocast};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let layer = Linear::new(3, 2, &Rng::seed_from(0), &device)?;
/// let x = Tensor::new([[0.1f32, 0.2, 0.3]], &device)?;
/// let loss = autocast(DType::BF16, || layer.forward(&x)?.sum(()))?;
/// let gradient = loss.backward()?.get(&layer.weight).unwrap();
/// assert_eq!((loss.dtype(), gradient.dtype()), (DType::F32, DType::F32));
/// assert_ne!(loss.item::<f32>()?, layer.forward(&x)?.sum(())?.item::<f32>()?);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn autocast<R>(dtype: DType, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !dtype.is_float() || dtype == DType::F64 {
        return Err(Error::dtype("autocast", "bf16, f16 or f32", dtype).at(Loc::caller()));
    }
    let _restore = Restore(DTYPE.replace((dtype != DType::F32).then_some(dtype)));
    f()
}

/// The product in the thread's dtype; `None`: there is none, or it is not for these operands.
pub(super) fn matmul(a: &Tensor, b: &Tensor, at: At) -> Result<Option<Tensor>> {
    let Some(dtype) = DTYPE.get() else { return Ok(None) };
    let fits = |t: &Tensor| t.dtype().is_float() && t.dtype() != DType::F64;
    if !fits(a) || !fits(b) {
        return Ok(None);
    }
    let out = a.dtype().promote(b.dtype());
    let _scope = Scope::at(Loc::resolve(at));
    let _restore = Restore(DTYPE.replace(None));
    let product = promote::to(a, dtype, at)?.matmul(&*promote::to(b, dtype, at)?)?;
    Ok(Some(promote::to(&product, out, at)?.into_owned()))
}
