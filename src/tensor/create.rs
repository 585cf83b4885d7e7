//! Tensors from host data and from nothing.

use crate::base::dtype::Element;
use crate::base::host::HostData;
use crate::base::shape::IntoShape;
use crate::base::{DType, Error, HostValue, Layout, Loc, Result, Scalar, Type};
use crate::op::Op;
use crate::tensor::recorder::{self, emit_on, here};
use crate::tensor::{At, Device, Origin, Ready, Tensor};

impl Tensor {
    /// A tensor holding `values`, row-major. Inside a step it is a new input at each call, never a constant.
    ///
    /// Errors: a number of values other than the shape's.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], device)?;
    /// assert_eq!(x.to_string(), "[[1. 2.]\n [3. 4.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        Tensor::from_slice_at(&values, shape, device, here())
    }

    /// As [`Tensor::from_vec`], from a slice.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::from_slice(&[1i64, 2, 3], [3], device)?;
    /// assert_eq!(x.to_string(), "[1 2 3]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        Tensor::from_slice_at(values, shape, device, here())
    }

    fn from_slice_at<T: Element>(values: &[T], shape: impl IntoShape, device: &Device, at: At) -> Result<Tensor> {
        let make = || {
            let shape = shape.into_shape()?;
            if values.len() != shape.numel() {
                let expected = format!("{} values for shape {shape}", shape.numel());
                return Err(Error::shape("from_slice", expected, format!("{} values", values.len())));
            }
            Tensor::from_bytes(Type::new(T::DTYPE, shape), &T::to_bytes(values), device, at)
        };
        make().map_err(|e| e.at(Loc::resolve(at)))
    }

    /// A tensor of the value's dtype and shape: the inverse of [`Tensor::to_host`]. Inside a step it is a new input at
    /// each call, never a constant.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1u8, 2], [2], &Device::cpu())?;
    /// assert_eq!(Tensor::from_host(&x.to_host()?, &Device::cpu())?.to_vec::<u8>()?, [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn from_host(value: &HostValue, device: &Device) -> Result<Tensor> {
        let at = here();
        let (dtype, data) = (value.data.dtype(), &value.data);
        // Reference values are rounded to the dtype they stand for.
        let bytes = match data {
            HostData::Real(..) => HostData::from_lanes(dtype, &data.lanes()).to_bytes(),
            _ => data.to_bytes(),
        };
        Tensor::from_bytes(Type::new(dtype, value.shape), &bytes, device, at).map_err(|e| e.at(Loc::resolve(at)))
    }

    pub(crate) fn from_bytes(ty: Type, bytes: &[u8], device: &Device, at: At) -> Result<Tensor> {
        let buffer = device.backend().upload(bytes)?;
        let origin = match recorder::stamp() {
            0 => Origin::Constant,
            stamp => Origin::HostData { stamp },
        };
        let ready = Ready { buffer, layout: Layout::contiguous(ty.shape).into() };
        Ok(Tensor::ready(ty, device.clone(), ready, origin, Loc::resolve(at)))
    }

    /// A tensor of one repeated number: f32 for a float, i64 for an integer, bool for a truth value. Inside a step the
    /// number is taken anew at each call.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::full([2, 2], 7i64, device)?.to_string(), "[[7 7]\n [7 7]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn full(shape: impl IntoShape, value: impl Into<Scalar>, device: &Device) -> Result<Tensor> {
        let value: Scalar = value.into();
        Tensor::full_at(shape, value.cast(DType::of_number(value.kind())), device, here())
    }

    /// As [`Tensor::full`], of `dtype`; the number is converted as [`Tensor::to_dtype`] does.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::full_as([2], 0.1, DType::F64, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f64>()?, [0.1, 0.1]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn full_as(shape: impl IntoShape, value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full_at(shape, value.into().cast(dtype), device, here())
    }

    pub(crate) fn full_at(shape: impl IntoShape, value: Scalar, device: &Device, at: At) -> Result<Tensor> {
        let shape = shape.into_shape().map_err(|e| e.at(Loc::resolve(at)))?;
        emit_on(device, &Op::Full { shape, value }, &[], at)
    }

    /// Zeros.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::zeros([3], DType::F32, device)?.to_string(), "[0. 0. 0.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full_at(shape, Scalar::i64(0).cast(dtype), device, here())
    }

    /// Ones.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::ones([3], DType::Bool, device)?.to_string(), "[ True  True  True]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn ones(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full_at(shape, Scalar::i64(1).cast(dtype), device, here())
    }
}
