//! Host reads: values, printing.

use std::sync::atomic::Ordering::Relaxed;

use crate::base::dtype::Element;
use crate::base::host::HostData;
use crate::base::location::Scope;
use crate::base::{Error, HostValue, Loc, Result};
use crate::tensor::recorder::{self, here};
use crate::tensor::{At, Tensor, eager};

impl Tensor {
    /// The value of a tensor of one element. A host read: inside a step it ends a segment.
    ///
    /// Errors: more or fewer elements than one; another dtype than `T`'s.
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
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let at = here();
        self.values(at).map_err(|e| e.at(Loc::resolve(at)))
    }

    /// The value as a [`HostValue`], whatever its dtype. A host read.
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
            return Ok(out);
        }
        // A strided view: gathered by a copy on the device.
        let copy = eager::contiguous(self)?;
        device.backend().download(&copy.buffer, 0, &mut out)?;
        Ok(out)
    }
}

/// Prints values like NumPy, long axes abridged. A host read.
impl std::fmt::Display for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Formatting hides the caller: the read is attributed to the line that made the value.
        let _scope = Scope::at(self.0.made);
        let Ok(value) = self.to_host() else {
            return write!(f, "{self:?} (no value)");
        };
        let cells = value.data.to_text();
        let width = cells.iter().map(|c| c.len()).max().unwrap_or(0);
        write_axis(f, &cells, self.dims(), width, 1)
    }
}

/// Axes longer than this are abridged to their first and last three elements.
const PRINTED: usize = 12;

fn write_axis(
    f: &mut std::fmt::Formatter<'_>,
    cells: &[String],
    dims: &[usize],
    width: usize,
    depth: usize,
) -> std::fmt::Result {
    let Some((&n, rest)) = dims.split_first() else {
        return write!(f, "{}", cells.first().map_or("", |c| c.as_str()));
    };
    let block: usize = rest.iter().product();
    f.write_str("[")?;
    let mut first = true;
    for i in 0..n {
        if n > PRINTED && (3..n - 3).contains(&i) {
            if i == 3 {
                f.write_str(if rest.is_empty() { ", ..." } else { ",\n" })?;
                if !rest.is_empty() {
                    write!(f, "{:depth$}...", "")?;
                }
            }
            continue;
        }
        if !first {
            if rest.is_empty() {
                f.write_str(", ")?;
            } else {
                write!(f, ",{:\n<1$}{2:depth$}", "", rest.len(), "")?;
            }
        }
        first = false;
        let part = &cells[i * block..(i + 1) * block];
        if rest.is_empty() {
            write!(f, "{:>width$}", part[0])?;
        } else {
            write_axis(f, part, rest, width, depth + 1)?;
        }
    }
    f.write_str("]")
}
