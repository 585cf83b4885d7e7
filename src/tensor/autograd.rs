//! Gradients on request: with respect to tensors as well as `Var`s, of values of any shape given an upstream gradient, and
//! of gradients.
//!
//! [`Tensor::backward`] answers the usual question, the gradients of a loss for an optimizer. [`grad`] answers the
//! others, as `torch.autograd.grad` does: derivatives with respect to inputs and intermediate values, vector-Jacobian
//! products, and, with [`GradOptions::create_graph`], results that are on the tape themselves, so that `grad` or
//! `backward` may be applied to what is computed from them.
//!
//! What is on the tape: what depends on a trainable [`Var`], or on a tensor marked with [`Tensor::require_grad`], through
//! operations between floats; not through [`Tensor::detach`], comparisons, or operations inside [`no_grad`].
//!
//! At kinks gradients are PyTorch's: 0 for `relu` and `abs` at 0, half of it to each at ties of `maximum` and `minimum`,
//! evenly shared among ties of `max` and `min` over axes (as from `torch.amax`). One case differs: where such a maximum or
//! minimum is NaN, no element equals it, and all of them get 0; `torch.amax` divides by their number, 0, and gives them
//! NaN, and `torch.max` without axes shares the gradient among the elements that are NaN.
//!
//! Inside a step the same calls are recorded: a replay compares one event, as for `backward`.

use std::cell::Cell;

use crate::base::location::Scope;
use crate::base::{Error, ErrorKind, Loc, Result};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, arith};
use crate::tensor::recorder::{self, emit, here};
use crate::tensor::{Tensor, Var, tape};

/// What a gradient is taken with respect to. Lists of `&Tensor` or of `&Var` will do; this mixes them.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
/// let y = w.get().mul(w.get())?;
/// let gradients = autograd::grad(&y.sum(())?, &[autograd::Wrt::Var(&w), autograd::Wrt::Tensor(&y)], Default::default())?;
/// assert_eq!(gradients[0].as_ref().unwrap().to_string(), "[4. 6.]");
/// assert_eq!(gradients[1].as_ref().unwrap().to_string(), "[1. 1.]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Wrt<'a> {
    /// A tensor on the tape: marked with [`Tensor::require_grad`], got from a trainable `Var`, or computed from such.
    Tensor(&'a Tensor),
    /// A `Var`: the sum over all its snapshots that the output depends on.
    Var(&'a Var),
}

impl<'a> From<&'a Tensor> for Wrt<'a> {
    fn from(t: &'a Tensor) -> Wrt<'a> {
        Wrt::Tensor(t)
    }
}
impl<'a> From<&'a Var> for Wrt<'a> {
    fn from(v: &'a Var) -> Wrt<'a> {
        Wrt::Var(v)
    }
}

/// How [`grad`] differentiates. The default: the output is one element, the results are constants.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
/// let options = autograd::GradOptions::new().create_graph(true);
/// let cube = w.get().powi(3)?.sum(())?;
/// let slope = autograd::grad(&cube, &[&w], options)?[0].clone().unwrap();
/// let curvature = slope.sum(())?.grad(&[&w])?;
/// assert_eq!(curvature[0].as_ref().unwrap().to_string(), "[12. 18.]"); // 6w
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GradOptions<'a> {
    upstream: Option<&'a Tensor>,
    create_graph: bool,
}

impl<'a> GradOptions<'a> {
    /// The default.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let gradients = autograd::grad(&w.get().sum(())?, &[&w], autograd::GradOptions::new())?;
    /// assert_eq!(gradients[0].as_ref().unwrap().to_string(), "[1. 1.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> GradOptions<'a> {
        GradOptions::default()
    }

    /// The gradient of something with respect to the output, of the output's type: the results are then those of that
    /// something (a vector-Jacobian product). Without it the output must have one element, and this is 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let up = Tensor::new([1.0f32, 10.0], device)?;
    /// let square = w.get().mul(w.get())?;
    /// let gradients = autograd::grad(&square, &[&w], autograd::GradOptions::new().upstream(&up))?;
    /// assert_eq!(gradients[0].as_ref().unwrap().to_string(), "[ 4. 60.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn upstream(mut self, upstream: &'a Tensor) -> GradOptions<'a> {
        self.upstream = Some(upstream);
        self
    }

    /// Whether the results are on the tape, so that they can be differentiated themselves (default: no).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let square = w.get().mul(w.get())?.sum(())?;
    /// let options = autograd::GradOptions::new().create_graph(true);
    /// let slope = autograd::grad(&square, &[&w], options)?[0].clone().unwrap();
    /// assert_eq!(slope.sum(())?.backward()?.get(&w).unwrap().to_string(), "[2. 2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_graph(mut self, create_graph: bool) -> GradOptions<'a> {
        self.create_graph = create_graph;
        self
    }
}

/// A checked call of [`grad`].
pub(crate) struct Request<'a> {
    pub output: &'a Tensor,
    pub wrt: &'a [Wrt<'a>],
    pub upstream: Option<&'a Tensor>,
    /// The results are on the tape.
    pub graph: bool,
}

/// Gradients of `output` with respect to each of `wrt`, of their shapes and dtypes; `None` for those that `output` does
/// not depend on, and for `Var`s that are not trainable.
///
/// Errors: an output that is not a float, not on the tape, or of several elements without
/// [`GradOptions::upstream`]; an upstream gradient of another type than the output's; a tensor that is not on the tape
/// (mark it with [`Tensor::require_grad`] before it is used); a tape that leads out of an open step, or into an ended one.
///
/// ```
/// use stepgraph::autograd::{self, GradOptions};
/// use stepgraph::{Device, Result, Tensor};
/// # fn main() -> Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?.require_grad()?;
/// let y = (&(&x * &x)? * &x)?.sum(())?; // Σ x³
/// let graph = GradOptions::new().create_graph(true);
/// let slope = autograd::grad(&y, &[&x], graph)?[0].clone().unwrap(); // 3 x²
/// let curvature = slope.sum(())?.grad(&[&x])?[0].clone().unwrap(); // 6 x
/// assert_eq!(slope.to_vec::<f32>()?, [3.0, 12.0]);
/// assert_eq!(curvature.to_vec::<f32>()?, [6.0, 12.0]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn grad<'a, W>(output: &Tensor, wrt: &[W], options: GradOptions<'_>) -> Result<Vec<Option<Tensor>>>
where
    W: Copy + Into<Wrt<'a>>,
{
    let at = here();
    let wrt: Vec<Wrt<'_>> = wrt.iter().map(|&w| w.into()).collect();
    let GradOptions { upstream, create_graph } = options;
    let request = Request { output, wrt: &wrt, upstream, graph: create_graph };
    let _scope = Scope::enter();
    let result = check(&request).and_then(|()| match recorder::with(|r| r.grad(&request, at)) {
        Some(result) => result,
        None => tape::eager_grad(&request, 0).map(|r| r.0),
    });
    result.map_err(|e| e.at(Loc::resolve(at)))
}

fn check(request: &Request<'_>) -> Result<()> {
    let Request { output, wrt, upstream, .. } = request;
    if !output.dtype().is_float() {
        return Err(Error::dtype("grad", "a float tensor", output.dtype()));
    }
    if let Some(e) = tape::no_tape(output).filter(|_| !output.requires_grad()) {
        return Err(e);
    }
    match upstream {
        Some(u) if u.ty() != output.ty() => {
            let expected = format!("an upstream gradient of the output's type {}", output.ty());
            return Err(Error::shape("grad", expected, u.ty().to_string()));
        }
        Some(u) if u.device() != output.device() => {
            let (left, right) = (output.device().name().to_string(), u.device().name().to_string());
            return Err(ErrorKind::Device { op: "grad", left, right }.into());
        }
        None if output.numel() != 1 => {
            let expected = "an output of one element, or an upstream gradient (`GradOptions::upstream`)";
            return Err(Error::shape("grad", expected, output.ty().to_string()));
        }
        _ => {}
    }
    let mine = recorder::stamp();
    upstream.map_or(Ok(()), |u| u.check_owner(mine))?;
    for (k, w) in wrt.iter().enumerate() {
        let Wrt::Tensor(t) = w else { continue };
        t.check_owner(mine)?;
        if !t.0.origin.is_taped() {
            let detail = format!(
                "tensor {k} of those to differentiate by (made at {}) is a constant; mark it with `.require_grad()` before it is used",
                t.0.made
            );
            return Err(ErrorKind::Backward { detail }.into());
        }
    }
    Ok(())
}

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations go on the tape on this thread now.
#[inline]
pub(crate) fn is_enabled() -> bool {
    ENABLED.get()
}

/// Puts the setting back when dropped.
pub(crate) struct Enabled(bool);

impl Enabled {
    /// Turns the tape on or off for this thread.
    pub fn set(on: bool) -> Enabled {
        Enabled(ENABLED.replace(on))
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        ENABLED.set(self.0);
    }
}

/// Runs `f` with nothing going on the tape: what it computes are constants for gradients, and keep no operands alive.
/// For evaluation, metrics and updates written by hand. It holds for this thread, and nests.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, Var, autograd};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![3.0f32], [1], &Device::cpu())?)?;
/// let y = autograd::no_grad(|| (w.get() * 2.0)?.sum(()))?;
/// assert!(!y.requires_grad() && y.backward().is_err());
/// # Ok(())
/// # }
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    let _off = Enabled::set(false);
    f()
}

impl Tensor {
    /// The same value (and memory), as one that gradients can be taken with respect to: for an input that no `Var`
    /// holds. A tensor that is on the tape already stays what it is.
    ///
    /// Errors: not a float tensor.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![2.0f32], [1], &Device::cpu())?.require_grad()?;
    /// let g = x.exp()?.sum(())?.grad(&[&x])?[0].clone().unwrap();
    /// assert!((g.item::<f32>()? - 2f32.exp()).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn require_grad(&self) -> Result<Tensor> {
        let at = here();
        if !self.dtype().is_float() {
            return Err(Error::dtype("require_grad", "a float tensor", self.dtype()).at(Loc::resolve(at)));
        }
        if self.requires_grad() {
            return Ok(self.clone());
        }
        emit(&Op::Elementwise(Elementwise::new(&arith::TRACK)), &[self], at)
    }

    /// Whether gradients flow through it: it depends on a trainable `Var` or a tensor marked with
    /// [`Tensor::require_grad`]. A value of a step that has ended says what it did there, though its tape is gone.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert!(w.get().add(1.0)?.requires_grad() && !w.get().detach()?.requires_grad());
    /// # Ok(())
    /// # }
    /// ```
    pub fn requires_grad(&self) -> bool {
        self.0.origin.is_taped()
    }

    /// Gradients of this value of one element with respect to each of `wrt` (tensors or `Var`s): [`grad`] with the
    /// default options.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let gradients = w.get().mul(w.get())?.sum(())?.grad(&[&w])?;
    /// assert_eq!(gradients[0].as_ref().unwrap().to_string(), "[4. 6.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn grad<'a, W>(&self, wrt: &[W]) -> Result<Vec<Option<Tensor>>>
    where
        W: Copy + Into<Wrt<'a>>,
    {
        grad(self, wrt, GradOptions::new())
    }
}
