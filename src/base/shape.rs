//! Logical shapes: axis lengths, outermost first, stored inline.

use crate::base::error::{Error, Result};

/// The most axes a tensor can have.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::base::shape::MAX_RANK;
/// assert!(Tensor::zeros(vec![1; MAX_RANK + 1], DType::F32, device).is_err());
/// # Ok(())
/// # }
/// ```
pub const MAX_RANK: usize = 8;

/// The lengths of a tensor's axes, outermost first; at most [`MAX_RANK`] of them.
/// In C order, since compiled guards read it.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let shape = Shape::new(&[2, 3])?;
/// assert_eq!((shape.numel(), shape[1], shape.to_string()), (6, 3, "[2,3]".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Eq)]
#[repr(C)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a 0-d tensor (one element).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::SCALAR.numel(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// Where compiled guards find the axis lengths and their number (one byte), in bytes from a shape's start.
    pub(crate) const DIMS_AT: usize = std::mem::offset_of!(Shape, dims);
    pub(crate) const RANK_AT: usize = std::mem::offset_of!(Shape, rank);

    /// A shape from axis lengths; an error beyond [`MAX_RANK`] axes or 2^62 elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(dims: &[usize]) -> Result<Shape> {
        if dims.len() > MAX_RANK {
            return Err(Error::shape("shape", format!("at most {MAX_RANK} axes"), format!("{dims:?}")));
        }
        // Zero-length axes make the product small, but strides still need the other lengths to fit.
        let product = dims.iter().try_fold(1usize, |p, &d| p.checked_mul(d.max(1)).filter(|&p| p <= 1 << 62));
        if product.is_none() {
            return Err(Error::shape("shape", "at most 2^62 elements", format!("{dims:?}")));
        }
        let mut s = Shape { dims: [0; MAX_RANK], rank: dims.len() as u8 };
        s.dims[..dims.len()].copy_from_slice(dims);
        Ok(s)
    }

    /// Axis lengths, outermost first.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.dims(), [2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of axes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.rank(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.numel(), 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// Row-major (C order) strides in elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.strides()[..2], [3, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn strides(&self) -> [isize; MAX_RANK] {
        let mut out = [0; MAX_RANK];
        let mut step = 1usize;
        for a in (0..self.rank()).rev() {
            out[a] = step as isize;
            step *= self.dims[a].max(1);
        }
        out
    }

    /// The shape both broadcast to (trailing axes aligned, length 1 stretches), NumPy's rule.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Shape::new(&[2, 1])?, Shape::new(&[3])?);
    /// assert_eq!(a.broadcast(&b), Some(Shape::new(&[2, 3])?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = Shape { dims: [0; MAX_RANK], rank: rank as u8 };
        for i in 0..rank {
            let a = if i < self.rank() { self.dims[self.rank() - 1 - i] } else { 1 };
            let b = if i < other.rank() { other.dims[other.rank() - 1 - i] } else { 1 };
            out.dims[rank - 1 - i] = match (a, b) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Some(out)
    }

    /// The shape without the axes in `mask` (bit `a` set: axis `a` is dropped), or with them as length 1.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Shape::new(&[2, 3])?.reduce(0b10, true).dims(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce(&self, mask: u8, keepdim: bool) -> Shape {
        let mut out = Shape { dims: [0; MAX_RANK], rank: 0 };
        for (a, &d) in self.dims().iter().enumerate() {
            let reduced = mask >> a & 1 == 1;
            if reduced && !keepdim {
                continue;
            }
            out.dims[out.rank as usize] = if reduced { 1 } else { d };
            out.rank += 1;
        }
        out
    }
}

/// A short loop: shapes are compared on the hot path, and a call of `memcmp` costs more.
impl PartialEq for Shape {
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        self.rank == other.rank && (0..self.rank()).all(|a| self.dims[a] == other.dims[a])
    }
}

/// Unused places of the array are zero, so only the axes need hashing.
impl std::hash::Hash for Shape {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl std::ops::Index<usize> for Shape {
    type Output = usize;
    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

/// Prints as `[32,784]`.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.dims().iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What the tensor constructors accept as a shape: arrays, slices, `()`, one length.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// // Arrays, slices, `Vec`s, one length, or `()` for a 0-d tensor.
/// assert_eq!(Tensor::zeros(vec![2, 3], DType::F32, device)?.dims(), [2, 3]);
/// assert_eq!(Tensor::zeros(4, DType::F32, device)?.dims(), [4]);
/// assert_eq!(Tensor::zeros((), DType::F32, device)?.rank(), 0);
/// # Ok(())
/// # }
/// ```
pub trait IntoShape {
    /// The shape, or the error of [`Shape::new`].
    fn into_shape(self) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(self)
    }
}
impl IntoShape for &[usize] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}
impl IntoShape for &Vec<usize> {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}
impl IntoShape for Vec<usize> {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}
impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}
impl<const N: usize> IntoShape for &[usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}
impl IntoShape for usize {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&[self])
    }
}
impl IntoShape for () {
    fn into_shape(self) -> Result<Shape> {
        Ok(Shape::SCALAR)
    }
}
impl IntoShape for (usize, usize) {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&[self.0, self.1])
    }
}
