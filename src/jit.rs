//! Floor 12, the door: [`Step`], [`trace`], [`Traced`], [`Frozen`], [`Options`].

use crate::base::{ErrorKind, Result};
use crate::diag::explain::Explanation;
use crate::diag::report::Report;
pub use crate::kernel::custom::{KernelArgs, KernelError, Native, View, ViewMut};
use crate::pass;
pub use crate::tensor::custom::{CustomOp, CustomOpBuilder, GradientArgs, custom_op};
use crate::tensor::recorder;
pub use crate::trace::freeze::Frozen;
use crate::trace::session::Session;

/// How a step is compiled.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let options = jit::Options::new().fuse(false).plan_cache(8);
/// let x = Tensor::new([1.0f32], device)?;
/// let mut step = jit::Step::with_options(options);
/// for _ in 0..3 {
///     assert_eq!(step.run(|| x.add(1.0)?.mul(2.0))?.to_string(), "[4.]");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pass: pass::Options,
    plan_cache: usize,
    verify: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { pass: pass::Options::default(), plan_cache: 64, verify: false }
    }
}

impl Options {
    /// The defaults: everything on that keeps the bits.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new());
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether pointwise work, reductions and movement are fused (default: yes). Never changes a bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().fuse(false));
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fuse(mut self, fuse: bool) -> Options {
        self.pass.fuse = fuse;
        self
    }

    /// How many paths and plans are kept (default: 64, at least 1). Beyond it the one not used for the longest
    /// time goes, its memory with it, and is compiled again when it is needed.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().plan_cache(8));
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan_cache(mut self, plans: usize) -> Options {
        self.plan_cache = plans.max(1);
        self
    }

    /// Whether `Var`s may be updated in place when nobody else holds their value (default: yes). Never changes a bit.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().in_place(false));
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_place(mut self, in_place: bool) -> Options {
        self.pass.in_place = in_place;
        self
    }

    /// Whether rewrites may change bits (default: no): `x + 0` is `x` also for a negative zero. A step so compiled
    /// may give other numbers than the same closure does eagerly, and its report says so.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().fast_math(true));
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fast_math(mut self, fast_math: bool) -> Options {
        self.pass.fast_math = fast_math;
        self
    }

    /// Whether every launch is computed again by the reference evaluator, one operation after the other as they were
    /// recorded, and compared bit for bit (default: no). Very slow: for finding faults of this library.
    /// What differs makes the call fail with `ErrorKind::Bug`. With [`Options::fast_math`] it may differ.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().verify(true));
    /// let x = Tensor::new([1.0f32], device)?;
    /// assert_eq!(step.run(|| x.add(1.0))?.to_string(), "[2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn verify(mut self, verify: bool) -> Options {
        self.verify = verify;
        self
    }

    fn session(&self) -> Box<Session> {
        Box::new(Session::new(self.pass, self.plan_cache, self.verify))
    }
}

/// A step: owns the trace tree and the compiled plans of the closures it runs.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, Var, jit};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let w = Var::new(&Tensor::from_vec(vec![3.0f32], [1], &device)?)?;
/// let mut step = jit::Step::new();
/// let mut lr = 0.4;
/// for _ in 0..6 {
///     step.run(|| {
///         let grads = w.get().sum(())?.backward()?;
///         let g = grads.get(&w).unwrap();
///         w.set(&(w.get() - &(g * lr)?)?)
///     })?;
///     lr /= 2.0; // host code: takes effect at every call
/// }
/// assert!((w.get().item::<f32>()? - 2.2125).abs() < 1e-6);
/// assert_eq!(device.counts().launches, 5);
/// # Ok(())
/// # }
/// ```
pub struct Step {
    session: Option<Box<Session>>,
    options: Options,
}

impl Default for Step {
    fn default() -> Self {
        Step::new()
    }
}

impl Step {
    /// A step that has seen nothing yet.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::new();
    /// assert_eq!(step.run(|| Tensor::ones([2], DType::I64, device))?.to_string(), "[1 1]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Step {
        Step::with_options(Options::default())
    }

    /// As [`Step::new`], compiled as `options` say.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut step = jit::Step::with_options(jit::Options::new().in_place(false));
    /// assert_eq!(step.run(|| Tensor::ones([2], DType::I64, device))?.to_string(), "[1 1]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_options(options: Options) -> Step {
        Step { session: Some(options.session()), options }
    }

    /// Runs the closure: its host code always, its tensor work recorded or replayed.
    ///
    /// Inside another step's closure it is part of that step. When the closure returns `Err` or panics, what
    /// it did so far has taken effect, as without a step.
    ///
    /// Errors: the closure's; out of memory (a replay then writes no `Var`; a call that records has written what came
    /// before, as eager code has); an index out of range (then the segment's `Var` writes are dropped, except in calls
    /// that run eagerly because paths do not repeat). Where the closure fails, its own error is given; if there is no memory
    /// for what it did before, a `tracing` event says so.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut step = jit::Step::new();
    /// let mut calls = 0;
    /// for _ in 0..5 {
    ///     step.run(|| {
    ///         calls += 1; // host code runs at every call
    ///         x.mul(calls as f64)
    ///     })?;
    /// }
    /// assert_eq!((calls, step.report().recorded), (5, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<R>(&mut self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if recorder::stamp() != 0 {
            return f();
        }
        let mut session = match self.session.take() {
            Some(s) => s,
            // A panic inside the library lost it: start over.
            None => self.options.session(),
        };
        session.begin();
        let stamp = session.stamp;
        recorder::install(session, stamp);
        let mut open = Open { step: self };
        let result = f();
        let closed = match open.take() {
            Some(mut session) => {
                let closed = session.close();
                open.step.session = Some(session);
                closed
            }
            None => Err(ErrorKind::Bug { pass: "jit".into(), detail: "the session was lost".into() }.into()),
        };
        drop(open);
        match result {
            Ok(value) => closed.map(|()| value),
            Err(e) => {
                if let Err(lost) = closed {
                    tracing::error!("what the closure did before its error is not kept: {lost}");
                }
                Err(e)
            }
        }
    }

    /// Reduces the step to the launch of its last call: see [`Frozen`].
    ///
    /// Errors, naming `file:line`: unless the last two calls were both replays of one path of one segment, with the
    /// same values kept and the same host numbers, and no tensor made from host data.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut step = jit::Step::new();
    /// let mut kept = Vec::new();
    /// for _ in 0..4 {
    ///     kept = vec![step.run(|| x.mul(2.0))?];
    /// }
    /// let mut frozen = step.freeze()?;
    /// assert_eq!(frozen.replay()?[0].to_string(), kept[0].to_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn freeze(&self) -> Result<Frozen> {
        match &self.session {
            Some(s) => s.freeze(),
            None => {
                Err(ErrorKind::Freeze { detail: "the step is open; call it after `run` has returned".into() }.into())
            }
        }
    }

    /// What the step did and why: see [`Report`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut step = jit::Step::new();
    /// for _ in 0..3 {
    ///     step.run(|| x.exp()?.add(1.0))?;
    /// }
    /// let report = step.report();
    /// assert_eq!((report.calls, report.kernels, report.launches_per_call), (3, 1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> Report {
        self.session.as_ref().map(|s| Report::of(s)).unwrap_or_default()
    }
}

impl Step {
    /// The trace tree, and per path its guards, segments, survivors and fusion decisions, with the lines they
    /// come from: see [`Explanation`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut step = jit::Step::new();
    /// for _ in 0..3 {
    ///     step.run(|| x.exp()?.add(1.0))?;
    /// }
    /// let explanation = step.explain();
    /// assert_eq!(explanation.paths[0].segments[0].plans[0].ops, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self) -> Explanation {
        self.session.as_ref().map(|s| Explanation::of(s)).unwrap_or_default()
    }
}

/// Closes the session when the closure panics.
struct Open<'a> {
    step: &'a mut Step,
}

impl Open<'_> {
    fn take(&mut self) -> Option<Box<Session>> {
        recorder::remove()?.into_any().downcast().ok()
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.step.session.is_none()
            && let Some(mut session) = self.take()
        {
            session.abort();
            self.step.session = Some(session);
        }
    }
}

/// A step with its closure: made by [`trace`].
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut traced = jit::trace(|| x.exp()?.add(1.0));
/// for _ in 0..3 {
///     traced.call()?;
/// }
/// assert_eq!(traced.report().recorded, 1);
/// # Ok(())
/// # }
/// ```
pub struct Traced<F> {
    step: Step,
    closure: F,
}

/// Traces a closure: the first [`Traced::call`] records it, later ones replay it.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, jit};
/// # fn main() -> Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
/// let mut n = 0;
/// let mut step = jit::trace(|| {
///     n += 1;
///     &x + n
/// });
/// for k in 1..=5 {
///     assert_eq!(step.call()?.to_vec::<f32>()?, [1.0 + k as f32, 2.0 + k as f32]);
/// }
/// # Ok(())
/// # }
/// ```
pub fn trace<R, F: FnMut() -> Result<R>>(closure: F) -> Traced<F> {
    Traced { step: Step::new(), closure }
}

impl<R, F: FnMut() -> Result<R>> Traced<F> {
    /// Runs the closure: see [`Step::run`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut traced = jit::trace(|| x.exp()?.add(1.0));
    /// for _ in 0..3 {
    ///     traced.call()?;
    /// }
    /// assert_eq!(traced.call()?.dims(), [2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&mut self) -> Result<R> {
        self.step.run(&mut self.closure)
    }

    /// See [`Step::freeze`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut traced = jit::trace(|| x.exp()?.add(1.0));
    /// for _ in 0..3 {
    ///     traced.call()?;
    /// }
    /// let mut frozen = traced.freeze()?;
    /// assert_eq!(frozen.replay()?.len(), 1); // what the closure returns
    /// # Ok(())
    /// # }
    /// ```
    pub fn freeze(&self) -> Result<Frozen> {
        self.step.freeze()
    }

    /// See [`Step::report`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut traced = jit::trace(|| x.exp()?.add(1.0));
    /// for _ in 0..3 {
    ///     traced.call()?;
    /// }
    /// assert_eq!(traced.report().calls, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self) -> Report {
        self.step.report()
    }

    /// See [`Step::explain`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// let mut traced = jit::trace(|| x.exp()?.add(1.0));
    /// for _ in 0..3 {
    ///     traced.call()?;
    /// }
    /// assert_eq!(traced.explain().paths.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self) -> Explanation {
        self.step.explain()
    }
}
