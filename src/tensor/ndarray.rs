//! Conversions to and from the crate `ndarray` (feature `ndarray`), of any rank.

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::base::dtype::Element;
use crate::base::{Error, Loc, Result, Shape};
use crate::tensor::recorder::here;
use crate::tensor::{Device, Tensor};

impl Tensor {
    /// A tensor of an `ndarray` array or view, of any layout. Inside a step it is a new input at each call.
    ///
    /// Errors: more axes than a tensor can have.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let a = ndarray::array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let x = Tensor::from_ndarray(&a.t(), &Device::cpu())?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_ndarray<T, S, D>(array: &ArrayBase<S, D>, device: &Device) -> Result<Tensor>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        let at = here();
        let make = || {
            let shape = Shape::new(array.shape())?;
            let values: Vec<T> = array.iter().copied().collect();
            Tensor::from_slice(&values, shape, device)
        };
        make().map_err(|e| e.at(Loc::resolve(at)))
    }

    /// An `ndarray` array of the same shape; `into_dimensionality` makes its rank a part of its type. A host read: inside a
    /// step it ends a segment.
    ///
    /// Errors: another dtype than `T`'s.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::new([[1i64, 2], [3, 4]], &Device::cpu())?;
    /// let a = x.to_ndarray::<i64>()?.into_dimensionality::<ndarray::Ix2>().unwrap();
    /// assert_eq!(a[[1, 0]], 3);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let at = here();
        let values = self.to_vec::<T>()?;
        let array = ArrayD::from_shape_vec(IxDyn(self.dims()), values);
        array.map_err(|e| Error::bug("to_ndarray", e.to_string()).at(Loc::resolve(at)))
    }
}
