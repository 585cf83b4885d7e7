//! Conversions between tensors and nested arrays, lists and iterators.

use crate::base::dtype::Element;
use crate::base::{Error, Loc, Result, Shape};
use crate::tensor::recorder::here;
use crate::tensor::{Device, Tensor};

/// Numbers, and arrays, `Vec`s and slices of them, nested to any depth: what [`Tensor::new`] takes.
///
/// ```
/// use stepgraph::tensor::Nested;
/// fn first_row<N: Nested>(rows: &[N]) -> Vec<N::Element> {
///     let mut out = Vec::new();
///     rows[0].collect_into(&mut out);
///     out
/// }
/// assert_eq!(first_row(&[[1i64, 2], [3, 4]]), [1, 2]);
/// ```
pub trait Nested {
    /// The element type.
    type Element: Element;

    /// The lengths of the axes, outermost first, pushed to `dims`.
    ///
    /// Errors: rows of different lengths.
    fn lengths(&self, dims: &mut Vec<usize>) -> Result<()>;

    /// The elements, row-major, pushed to `out`.
    fn collect_into(&self, out: &mut Vec<Self::Element>);
}

macro_rules! numbers {
    ($($t:ty),*) => { $(impl Nested for $t {
        type Element = $t;
        fn lengths(&self, _: &mut Vec<usize>) -> Result<()> {
            Ok(())
        }
        fn collect_into(&self, out: &mut Vec<$t>) {
            out.push(*self);
        }
    })* };
}
numbers!(f32, f64, crate::base::dtype::f16, crate::base::dtype::bf16, i64, i32, i8, u8, bool);

impl<N: Nested> Nested for [N] {
    type Element = N::Element;

    fn lengths(&self, dims: &mut Vec<usize>) -> Result<()> {
        dims.push(self.len());
        let Some((first, rest)) = self.split_first() else {
            // Of nothing: an axis of length 0 for each level that is not there to be seen, as in NumPy.
            return Ok(());
        };
        let at = dims.len();
        first.lengths(dims)?;
        for (i, row) in rest.iter().enumerate() {
            let mut other = Vec::new();
            row.lengths(&mut other)?;
            if other != dims[at..] {
                let (expected, given) =
                    (format!("rows of shape {:?}", &dims[at..]), format!("{other:?} in row {}", i + 1));
                return Err(Error::shape("Tensor::new", expected, given));
            }
        }
        Ok(())
    }

    fn collect_into(&self, out: &mut Vec<Self::Element>) {
        self.iter().for_each(|row| row.collect_into(out));
    }
}

macro_rules! like_slices {
    ($([$($generics:tt)*] $t:ty;)*) => { $(impl<$($generics)*> Nested for $t {
        type Element = N::Element;
        fn lengths(&self, dims: &mut Vec<usize>) -> Result<()> {
            self[..].lengths(dims)
        }
        fn collect_into(&self, out: &mut Vec<Self::Element>) {
            self[..].collect_into(out);
        }
    })* };
}
like_slices! {
    [N: Nested, const L: usize] [N; L];
    [N: Nested] Vec<N>;
}

impl<N: Nested + ?Sized> Nested for &N {
    type Element = N::Element;
    fn lengths(&self, dims: &mut Vec<usize>) -> Result<()> {
        (**self).lengths(dims)
    }
    fn collect_into(&self, out: &mut Vec<Self::Element>) {
        (**self).collect_into(out);
    }
}

impl Tensor {
    /// A tensor of a number, or of nested arrays, `Vec`s or slices; its dtype is that of the numbers (plain decimals are
    /// `f64` in Rust: write `1.0f32`). Inside a step it is a new input at each call, never a constant.
    ///
    /// Errors: rows of different lengths; more axes than a tensor can have.
    ///
    /// ```
    /// use stepgraph::{DType, Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let x = Tensor::new([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device)?;
    /// assert_eq!((x.dims(), x.dtype()), (&[2, 3][..], DType::F32));
    /// assert_eq!(Tensor::new(7i64, &device)?.rank(), 0);
    /// assert_eq!(Tensor::new(vec![vec![true], vec![false]], &device)?.dims(), [2, 1]);
    /// assert!(Tensor::new(vec![vec![1i64], vec![2, 3]], &device).is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new<N: Nested>(values: N, device: &Device) -> Result<Tensor> {
        let at = here();
        let make = || {
            let (mut dims, mut out) = (Vec::new(), Vec::new());
            values.lengths(&mut dims)?;
            let shape = Shape::new(&dims)?;
            values.collect_into(&mut out);
            Tensor::from_slice(&out, shape, device)
        };
        make().map_err(|e| e.at(Loc::resolve(at)))
    }

    /// A 1-d tensor of an iterator's elements.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let squares = Tensor::from_iter((0..4).map(|i| (i * i) as f32), &Device::cpu())?;
    /// assert_eq!(squares.to_vec::<f32>()?, [0.0, 1.0, 4.0, 9.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_iter<T: Element>(values: impl IntoIterator<Item = T>, device: &Device) -> Result<Tensor> {
        let values: Vec<T> = values.into_iter().collect();
        Tensor::from_slice(&values, [values.len()], device)
    }

    /// All elements in turn, row-major. A host read: inside a step it ends a segment.
    ///
    /// Errors: another dtype than `T`'s.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::new([[1i64, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.iter::<i64>()?.filter(|v| v % 2 == 0).sum::<i64>(), 6);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn iter<T: Element>(&self) -> Result<std::vec::IntoIter<T>> {
        Ok(self.to_vec::<T>()?.into_iter())
    }

    /// The elements of a 1-d tensor. A host read.
    ///
    /// Errors: another rank than 1; another dtype than `T`'s.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// assert_eq!(Tensor::new([3u8, 4], &Device::cpu())?.to_vec1::<u8>()?, [3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_vec1<T: Element>(&self) -> Result<Vec<T>> {
        self.dims_of::<1>("to_vec1")?;
        self.to_vec()
    }

    /// The rows of a 2-d tensor. A host read.
    ///
    /// Errors: another rank than 2; another dtype than `T`'s.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::new([[1i64, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.to_vec2::<i64>()?, [[1, 2], [3, 4]]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let [rows, n] = self.dims_of("to_vec2")?;
        let mut all = self.to_vec()?.into_iter();
        Ok((0..rows).map(|_| all.by_ref().take(n).collect()).collect())
    }

    /// The rows of the matrices of a 3-d tensor. A host read.
    ///
    /// Errors: another rank than 3; another dtype than `T`'s.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::new([[[1.0f32], [2.0]]], &Device::cpu())?;
    /// assert_eq!(x.to_vec3::<f32>()?, [[[1.0], [2.0]]]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_vec3<T: Element>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        let [matrices, rows, n] = self.dims_of("to_vec3")?;
        let mut all = self.to_vec()?.into_iter();
        let mut matrix = || (0..rows).map(|_| all.by_ref().take(n).collect()).collect();
        Ok((0..matrices).map(|_| matrix()).collect())
    }

    #[track_caller]
    fn dims_of<const R: usize>(&self, op: &'static str) -> Result<[usize; R]> {
        let at = Loc::caller();
        let wrong = |_| Error::shape(op, format!("a tensor with {R} axes"), self.ty().to_string()).at(at);
        self.dims().try_into().map_err(wrong)
    }
}
