//! The seam between tensors and the tracer.
//!
//! A session installs a [`Recorder`] on its thread; while it is there, every op, `Var` access,
//! host read and `backward` of the thread goes to it.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

use crate::base::{Error, Loc, Result};
use crate::op::Op;
use crate::tensor::autograd::Request;
use crate::tensor::tape::{GradTable, Gradients};
use crate::tensor::{At, Device, Rng, Tensor, Var, eager};

/// What a session does with the thread's tensor work.
pub(crate) trait Recorder {
    /// Applies an op.
    fn op(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor>;
    /// The value of a `Var` now.
    fn var_get(&mut self, var: &Var, at: At) -> Tensor;
    /// Replaces the value of a `Var` (type and device already checked).
    fn var_set(&mut self, var: &Var, value: &Tensor, at: At) -> Result<()>;
    /// Makes a value of the session ready, for a host read.
    fn read(&mut self, t: &Tensor, at: At) -> Result<()>;
    /// Gradients of a scalar.
    fn backward(&mut self, loss: &Tensor, at: At) -> Result<Gradients>;
    /// Gradients with respect to tensors and `Var`s.
    fn grad(&mut self, request: &Request<'_>, at: At) -> Result<Vec<Option<Tensor>>>;
    /// `set_trainable` has changed the flag of `var`.
    fn var_flagged(&mut self, var: &Var);
    /// The gradient of `var` in the table of an own `backward`; `None`: no gradient reached it.
    fn gradient(&mut self, table: &Arc<GradTable>, var: &Var) -> Option<Tensor>;
    /// All gradients in the table of an own `backward`, by `Var` id.
    fn gradients(&mut self, table: &Arc<GradTable>) -> Vec<(u64, Tensor)>;
    /// A random op is about to be emitted with a counter of `rng`.
    fn draw(&mut self, rng: &Rng);
    /// For downcasting by the owner.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any>;
}

thread_local! {
    static RECORDER: RefCell<Option<Box<dyn Recorder>>> = const { RefCell::new(None) };
    /// The recorder of a sketch, which may be made while the thread's own is at work.
    static SKETCH: RefCell<Option<Box<dyn Recorder>>> = const { RefCell::new(None) };
    static STAMP: Cell<u64> = const { Cell::new(0) };
}

/// The stamp while a sketch is made.
pub(crate) const SKETCHING: u64 = u64::MAX;

/// Runs `f` with `sketch` as the thread's recorder, whatever is installed; `None` inside another sketch.
pub(crate) fn sketch<T>(sketch: Box<dyn Recorder>, f: impl FnOnce() -> T) -> Option<(T, Box<dyn Recorder>)> {
    struct Ended(u64);
    impl Drop for Ended {
        fn drop(&mut self) {
            STAMP.set(self.0);
            SKETCH.take();
        }
    }
    if STAMP.get() == SKETCHING {
        return None;
    }
    SKETCH.set(Some(sketch));
    let ended = Ended(STAMP.replace(SKETCHING));
    let result = f();
    let sketch = SKETCH.take();
    drop(ended);
    Some((result, sketch?))
}

/// Installs a recorder with the session's stamp. The caller made sure that there is none.
pub(crate) fn install(recorder: Box<dyn Recorder>, stamp: u64) {
    RECORDER.with(|r| *r.borrow_mut() = Some(recorder));
    STAMP.set(stamp);
}

/// Takes the thread's recorder away.
pub(crate) fn remove() -> Option<Box<dyn Recorder>> {
    STAMP.set(0);
    RECORDER.with(|r| r.borrow_mut().take())
}

/// Stamp of the session open on this thread; 0: none.
#[inline]
pub(crate) fn stamp() -> u64 {
    STAMP.get()
}

/// Calls `f` with the thread's recorder, if one is installed.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&mut dyn Recorder) -> T) -> Option<T> {
    let slot = match STAMP.get() {
        0 => return None,
        SKETCHING => &SKETCH,
        _ => &RECORDER,
    };
    slot.with(|r| r.borrow_mut().as_mut().map(|r| f(&mut **r)))
}

/// Applies an op on `device`: the one door of every tensor operation.
#[inline]
pub(crate) fn emit_on(device: &Device, op: &Op, operands: &[&Tensor], at: At) -> Result<Tensor> {
    match with(|r| r.op(op, operands, device, at)) {
        Some(result) => result,
        None => eager::op(op, operands, device, Loc::resolve(at)),
    }
}

/// Applies an op on the device of its first operand.
#[inline]
pub(crate) fn emit(op: &Op, operands: &[&Tensor], at: At) -> Result<Tensor> {
    match operands.first() {
        Some(t) => emit_on(t.device(), op, operands, at),
        None => Err(Error::shape(op.rules().name(), "at least one operand", "none").at(Loc::resolve(at))),
    }
}

/// The caller's place, without looking at scopes: resolved later, only when it is needed.
#[track_caller]
#[inline]
pub(crate) fn here() -> At {
    Location::caller()
}
