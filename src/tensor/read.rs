//! Host reads.

use std::sync::atomic::Ordering::Relaxed;

use crate::base::dtype::Element;
use crate::base::host::HostData;
use crate::base::{Error, HostValue, Loc, Result};
use crate::tensor::recorder::{self, here};
use crate::tensor::{At, Tensor, eager};

impl Tensor {
    /// The value of a tensor of one element. A host read: inside a step it ends a segment.
    ///
    /// Errors: more or fewer elements than one; another dtype than `T`'s.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::new([[2.5f32]], device)?.item::<f32>()?, 2.5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let at = here();
        let read = || {
            if self.numel() != 1 {
                return Err(Error::shape("item", "a tensor of one element", self.ty().to_string()));
            }
            self.values(at)?.first().copied().ok_or_else(|| Error::bug("read", "one element, none read"))
        };
        read().map_err(|e: Error| e.at(Loc::resolve(at)))
    }

    /// All elements, row-major. A host read: inside a step it ends a segment.
    ///
    /// Errors: another dtype than `T`'s.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2], [3, 4]], device)?;
    /// assert_eq!(x.t()?.to_vec::<i64>()?, [1, 3, 2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let at = here();
        self.values(at).map_err(|e| e.at(Loc::resolve(at)))
    }

    /// The value as a [`HostValue`], whatever its dtype. A host read.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let value = Tensor::new([1u8, 2], device)?.to_host()?;
    /// assert_eq!((value.data.dtype(), value.data.to_f64()), (DType::U8, vec![1.0, 2.0]));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_host(&self) -> Result<HostValue> {
        let at = here();
        let bytes = self.host_bytes(at).map_err(|e| e.at(Loc::resolve(at)))?;
        Ok(HostValue::new(self.shape(), HostData::from_bytes(self.dtype(), &bytes)))
    }

    fn values<T: Element>(&self, at: At) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::dtype("to_vec", format!("elements of {}", T::DTYPE), self.dtype()));
        }
        Ok(T::from_bytes(&self.host_bytes(at)?))
    }

    /// The elements row-major, in the memory format of the dtype.
    #[track_caller]
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let at = here();
        self.host_bytes(at).map_err(|e| e.at(Loc::resolve(at)))
    }

    /// Makes a pending value of this thread's step ready; refuses another thread's.
    pub(crate) fn make_ready(&self, at: At) -> Result<()> {
        let mine = recorder::stamp();
        self.check_owner(mine)?;
        if mine != 0 && self.0.stamp.load(Relaxed) == mine {
            recorder::with(|r| r.read(self, at)).unwrap_or(Ok(()))?;
        }
        self.ready_state().map(|_| ())
    }

    /// The elements row-major, in the memory format.
    pub(crate) fn host_bytes(&self, at: At) -> Result<Vec<u8>> {
        self.make_ready(at)?;
        let device = self.device();
        device.take_flag()?;
        let ready = self.ready_state()?;
        let size = self.dtype().size();
        let mut out = vec![0u8; self.numel() * size];
        if out.is_empty() {
            return Ok(out);
        }
        if ready.layout.is_contiguous() {
            device.backend().download(&ready.buffer, ready.layout.offset.max(0) as usize * size, &mut out)?;
        } else {
            // A strided view: gathered by a copy on the device.
            let copy = eager::contiguous(self)?;
            device.backend().download(&copy.buffer, 0, &mut out)?;
        }
        // The device has told by now what this thread's work found.
        device.settle();
        device.take_flag()?;
        Ok(out)
    }
}
