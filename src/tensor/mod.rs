//! Floor 8: tensors, variables, eager execution, the eager tape, random numbers.
//!
//! A [`Tensor`] is an immutable value; a [`Var`] is the only mutable cell. Every operation goes through
//! [`recorder::emit`]: with no session on this thread it runs at once, else the session decides.
//! May rely on floors 0 to 7; knows the tracer only as the trait [`recorder::Recorder`].

pub mod autograd;
pub mod custom;
pub mod device;
pub mod eager;
pub mod random;
pub mod recorder;
mod sketch;
pub mod tape;
pub mod var;

mod arith;
mod autocast;
pub mod composite;
mod create;
mod display;
mod einsum;
mod gradients;
mod indexing;
mod join;
mod math;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nested;
mod order;
mod pick;
mod promote;
mod ranges;
mod read;
pub mod reduce;
mod scan;
mod shape;
mod statistics;
mod window;

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::backend::Buffer;
use crate::base::{DType, Error, ErrorKind, Layout, Loc, Result, Shape, Type};

pub use autocast::autocast;
pub use device::{CpuOptions, CudaOptions, Device, MemoryReport};
pub use nested::Nested;
pub use pick::{Pick, Picks};
pub use random::Rng;
pub use tape::Gradients;
pub use var::Var;

/// An n-dimensional array: an immutable value of one dtype and shape on one device.
///
/// Cloning is cheap and shares the value. No operation changes a tensor; state that changes
/// lives in a [`Var`].
///
/// ```
/// use stepgraph::{Device, Result, Tensor};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
/// let y = (&x * &x)?.sum(())?;
/// assert_eq!(y.item::<f32>()?, 30.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub ty: Type,
    pub device: Device,
    /// Set once: a pending value of a step becomes ready, or failed.
    pub state: OnceLock<Result<Ready>>,
    /// The step that owns the value while its session is open; 0 when none does.
    pub stamp: AtomicU64,
    pub origin: Origin,
    /// Where it was made.
    pub made: Loc,
}

/// A value that is there.
#[derive(Clone)]
pub(crate) struct Ready {
    pub buffer: Buffer,
    /// Shared, so that a value is small to move.
    pub layout: Arc<Layout>,
}

/// What a tensor knows of how it was made, for `backward`.
pub(crate) enum Origin {
    /// A constant: no gradient flows.
    Constant,
    /// A constant made from host data while this step's session was open (call number with it).
    HostData { stamp: u64 },
    /// A snapshot of a trainable `Var`, and its place in the program's order.
    Leaf { var: u64, order: u64 },
    /// A value that gradients can be taken with respect to ([`Tensor::require_grad`]), with no tape behind it.
    Tracked,
    /// A value of the eager tape.
    Tape(Box<tape::TapeNode>),
    /// A value of a step; its tape ended with the step. `taped`: it depends on a trainable `Var` or a tracked value
    /// there, so nobody may take it for a constant of a gradient.
    Step { taped: bool },
}

impl Origin {
    /// Whether a gradient would flow through the value, had it a tape.
    pub fn is_taped(&self) -> bool {
        matches!(self, Origin::Leaf { .. } | Origin::Tracked | Origin::Tape(_) | Origin::Step { taped: true })
    }
}

impl Tensor {
    pub(crate) fn ready(ty: Type, device: Device, ready: Ready, origin: Origin, made: Loc) -> Tensor {
        let state = OnceLock::new();
        let _ = state.set(Ok(ready));
        Tensor(Arc::new(Inner { ty, device, state, stamp: AtomicU64::new(0), origin, made }))
    }

    /// A value promised by the session `stamp`.
    pub(crate) fn pending(ty: Type, device: Device, stamp: u64, origin: Origin, made: Loc) -> Tensor {
        let stamp = AtomicU64::new(stamp);
        Tensor(Arc::new(Inner { ty, device, state: OnceLock::new(), stamp, origin, made }))
    }

    /// Identity of the value: clones share it.
    #[inline]
    pub(crate) fn addr(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The value's memory, or why it is not there.
    pub(crate) fn ready_state(&self) -> Result<&Ready> {
        match self.0.state.get() {
            Some(Ok(r)) => Ok(r),
            Some(Err(e)) => Err(Error::new(ErrorKind::Failed { made: self.0.made, cause: e.to_string() })),
            None => Err(Error::new(ErrorKind::LeakedValue { made: self.0.made })),
        }
    }

    /// Refuses a value that an open session on another thread owns. `mine` is this thread's session (0: none).
    pub(crate) fn check_owner(&self, mine: u64) -> Result<()> {
        let stamp = self.0.stamp.load(Relaxed);
        if stamp != 0 && stamp != mine {
            return Err(Error::new(ErrorKind::LeakedValue { made: self.0.made }));
        }
        Ok(())
    }

    /// The element type.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.dtype(), DType::I64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.shape().to_string(), "[2,3]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shape(&self) -> Shape {
        self.0.ty.shape
    }

    /// Axis lengths, outermost first.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dims(&self) -> &[usize] {
        self.0.ty.shape.dims()
    }

    /// Number of axes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.rank(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rank(&self) -> usize {
        self.0.ty.shape.rank()
    }

    /// Number of elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.numel(), 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn numel(&self) -> usize {
        self.0.ty.shape.numel()
    }

    /// dtype and shape.
    pub(crate) fn ty(&self) -> Type {
        self.0.ty
    }

    /// The device that holds it.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert!(x.device() == device);
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether it is the same value (not merely equal): a clone of the other handle.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert!(x.same(&x.clone()) && !x.same(&x.add(0i64)?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Resolves a possibly negative axis; `op` names the caller in the error.
    pub(crate) fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let rank = self.rank() as isize;
        if axis < -rank || axis >= rank {
            return Err(Error::argument(
                op,
                format!("an axis in {}..{rank} of shape {}", -rank, self.shape()),
                axis.to_string(),
            ));
        }
        Ok((if axis < 0 { axis + rank } else { axis }) as usize)
    }
}

/// Metadata only, in every mode: `Tensor(f32[2,3], cpu)`; values are `Display`, a host read.
impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({}, {})", self.0.ty, self.0.device.name())
    }
}

/// Long eager tapes are chains of values: taken apart step by step, not by recursion.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Origin::Tape(node) = &mut self.origin {
            let mut stack = std::mem::take(&mut node.operands);
            while let Some(t) = stack.pop() {
                if let Some(mut inner) = Arc::into_inner(t.0)
                    && let Origin::Tape(n) = &mut inner.origin
                {
                    stack.append(&mut n.operands);
                }
            }
        }
    }
}

/// The place of the public method that was called.
pub(crate) type At = &'static Location<'static>;
