//! The mutable cell: parameters, optimizer state, running statistics, input buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::base::{DType, Error, ErrorKind, Loc, Result, Shape, Type};
use crate::tensor::recorder::{self, here};
use crate::tensor::tape::next_order;
use crate::tensor::{Device, Origin, Tensor};

/// A cell that holds a tensor. Clones are the same cell.
///
/// [`Var::get`] is a snapshot: it keeps its value whatever happens to the cell later. Inside a
/// step, writes take effect for the step at once and for everybody else when the step ends.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, Var};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::from_vec(vec![3.0f32], [1], &Device::cpu())?)?;
/// let before = w.get();
/// w.set(&(&before * 2.0)?)?;
/// assert_eq!(before.to_vec::<f32>()?, [3.0]);
/// assert_eq!(w.get().to_vec::<f32>()?, [6.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Var(Arc<Cell>);

struct Cell {
    id: u64,
    ty: Type,
    device: Device,
    trainable: AtomicBool,
    /// Where a session last found it in its table: checked before use, so only a hint.
    hint: AtomicU32,
    value: Mutex<Tensor>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Var {
    /// A trainable cell holding `value`: gradients are taken with respect to it.
    ///
    /// Errors: a value that is not there yet (made inside a step that has not ended), or a dtype
    /// that has no gradient (use [`Var::state`]).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert!(w.is_trainable());
    /// assert!(Var::new(&Tensor::new([1i64], device)?).is_err()); // no float
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(value: &Tensor) -> Result<Var> {
        let loc = Loc::caller();
        if !value.dtype().is_float() {
            return Err(Error::dtype("Var::new", "a float tensor (Var::state takes any dtype)", value.dtype()).at(loc));
        }
        Var::make(value, true, here()).map_err(|e| e.at(loc))
    }

    /// A cell for state that is not trained: step counts, moments, running statistics.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let count = Var::state(&Tensor::new(0i64, device)?)?;
    /// assert!(!count.is_trainable());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn state(value: &Tensor) -> Result<Var> {
        let loc = Loc::caller();
        Var::make(value, false, here()).map_err(|e| e.at(loc))
    }

    fn make(value: &Tensor, trainable: bool, at: super::At) -> Result<Var> {
        value.make_ready(at)?;
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let leaf = leaf(value, id, trainable)?;
        Ok(Var(Arc::new(Cell {
            id,
            ty: value.ty(),
            device: value.device().clone(),
            trainable: AtomicBool::new(trainable),
            hint: AtomicU32::new(0),
            value: Mutex::new(leaf),
        })))
    }

    /// The value now; it never changes afterwards.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let before = w.get();
    /// w.set(&before.add(1.0)?)?;
    /// assert_eq!((before.to_string(), w.get().to_string()), ("[2. 3.]".into(), "[3. 4.]".into()));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    #[inline]
    pub fn get(&self) -> Tensor {
        let at = here();
        recorder::with(|r| r.var_get(self, at)).unwrap_or_else(|| self.load())
    }

    /// Replaces the value.
    ///
    /// Errors: another shape, dtype or device than the cell's; a value that failed or that another
    /// thread's open step owns.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// w.set(&Tensor::new([7.0f32, 8.0], device)?)?;
    /// assert_eq!(w.get().to_string(), "[7. 8.]");
    /// assert!(w.set(&Tensor::new([7.0f32], device)?).is_err()); // another shape
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let at = here();
        if value.ty() != self.0.ty {
            let (op, expected, given) = ("Var::set", self.0.ty.to_string(), value.ty().to_string());
            return Err(Error::new(ErrorKind::Shape { op, expected, given }).at(Loc::resolve(at)));
        }
        if value.device() != &self.0.device {
            let (left, right) = (self.0.device.name().to_string(), value.device().name().to_string());
            return Err(Error::new(ErrorKind::Device { op: "Var::set", left, right }).at(Loc::resolve(at)));
        }
        match recorder::with(|r| r.var_set(self, value, at)) {
            Some(result) => result,
            None => value.check_owner(0).and_then(|()| self.store(value)).map_err(|e| e.at(Loc::resolve(at))),
        }
    }

    /// The value, past any session.
    pub(crate) fn load(&self) -> Tensor {
        self.0.value.lock().clone()
    }

    /// Replaces the value, past any session.
    pub(crate) fn store(&self, value: &Tensor) -> Result<()> {
        let new = leaf(value, self.0.id, self.is_trainable())?;
        // The old value is dropped after the lock is released.
        let _old = std::mem::replace(&mut *self.0.value.lock(), new);
        Ok(())
    }

    /// dtype and shape: fixed for the cell's life.
    pub(crate) fn ty(&self) -> Type {
        self.0.ty
    }

    /// The shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert_eq!(w.shape().dims(), [2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shape(&self) -> Shape {
        self.0.ty.shape
    }

    /// The element type.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert_eq!(w.dtype(), DType::F32);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The device that holds it.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert!(w.device() == device);
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Unique in the process; locks are taken in this order.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether gradients are taken with respect to it.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// assert!(w.is_trainable());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_trainable(&self) -> bool {
        self.0.trainable.load(Relaxed)
    }

    /// Whether gradients are taken with respect to it from now on: `false` freezes a parameter. Snapshots taken
    /// before keep what they were. A step notices the change at its next call; a frozen step refuses to replay.
    ///
    /// Errors: gradients asked of a cell that holds no floats.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let t = Tensor::from_vec(vec![3.0f32], [1], &Device::cpu())?;
    /// let (a, b) = (Var::new(&t)?, Var::new(&t)?);
    /// a.set_trainable(false)?;
    /// let g = (a.get() * b.get())?.sum(())?.backward()?;
    /// assert!(g.get(&a).is_none() && g.get(&b).is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn set_trainable(&self, trainable: bool) -> Result<()> {
        if trainable && !self.dtype().is_float() {
            return Err(Error::dtype("Var::set_trainable", "a Var that holds floats", self.dtype()).at(Loc::caller()));
        }
        let old = {
            let mut value = self.0.value.lock();
            if self.is_trainable() == trainable {
                return Ok(());
            }
            let new = leaf(&value, self.0.id, trainable)?;
            self.0.trainable.store(trainable, Relaxed);
            std::mem::replace(&mut *value, new)
        };
        drop(old);
        recorder::with(|r| r.var_flagged(self));
        Ok(())
    }

    /// Whether it is the same cell.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let other = Var::new(&w.get())?;
    /// assert!(w.same(&w.clone()) && !w.same(&other));
    /// # Ok(())
    /// # }
    /// ```
    pub fn same(&self, other: &Var) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tensor> {
        self.0.value.lock()
    }

    pub(crate) fn hint(&self) -> u32 {
        self.0.hint.load(Relaxed)
    }

    pub(crate) fn set_hint(&self, slot: u32) {
        self.0.hint.store(slot, Relaxed);
    }
}

/// A snapshot of `value` as the leaf of variable `id`, sharing its memory.
pub(crate) fn leaf(value: &Tensor, id: u64, trainable: bool) -> Result<Tensor> {
    let ready = value.ready_state()?.clone();
    let origin = if trainable { Origin::Leaf { var: id, order: next_order() } } else { Origin::Constant };
    Ok(Tensor::ready(value.ty(), value.device().clone(), ready, origin, value.0.made))
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Var({}, {})", self.0.ty, self.0.device)
    }
}

/// A ready value as the leaf of `var`.
pub(crate) fn leaf_of(var: &Var, value: super::Ready, made: Loc) -> Tensor {
    let origin =
        if var.is_trainable() { Origin::Leaf { var: var.id(), order: next_order() } } else { Origin::Constant };
    Tensor::ready(var.ty(), var.device().clone(), value, origin, made)
}
