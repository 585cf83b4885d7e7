//! Tensors from nothing but their places: ranges, identity, triangles, grids.

use crate::base::location::Scope;
use crate::base::{DType, Error, Loc, Result, Scalar, Shape};
use crate::op::Op;
use crate::tensor::arith::Operand;
use crate::tensor::recorder::{emit_on, here};
use crate::tensor::{At, Device, Tensor};

/// Most elements of a range: more could not be held.
const MOST: f64 = (1u64 << 48) as f64;

fn iota(shape: Shape, axes: u8, device: &Device, at: At) -> Result<Tensor> {
    emit_on(device, &Op::Iota { shape, axes }, &[], at)
}

impl Tensor {
    /// `start`, `start + 1`, … up to but not `end`: i64 from integers, f32 from floats.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// assert_eq!(Tensor::arange(2, 5, &d)?.to_vec::<i64>()?, [2, 3, 4]);
    /// assert_eq!(Tensor::arange_step(1.0, 0.0, -0.25, &d)?.to_vec::<f32>()?, [1.0, 0.75, 0.5, 0.25]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: as [`Tensor::arange_step`].
    #[track_caller]
    pub fn arange(start: impl Into<Scalar>, end: impl Into<Scalar>, device: &Device) -> Result<Tensor> {
        let _scope = Scope::enter();
        Tensor::range(start.into(), end.into(), None, device, here())
    }

    /// `start`, `start + step`, `start + 2 * step`, … as long as `end` is not reached: i64 if all three are integers, else
    /// f32 (`start + i * step` in f64, then rounded). Inside a step `start` and `step` may change from call to call;
    /// the number of elements is part of the shape.
    ///
    /// Errors: a step of 0 or that leads away from `end`; infinities, NaN, truth values; too many elements.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::arange_step(0i64, 10i64, 3i64, device)?.to_string(), "[0 3 6 9]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn arange_step(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        device: &Device,
    ) -> Result<Tensor> {
        let _scope = Scope::enter();
        Tensor::range(start.into(), end.into(), Some(step.into()), device, here())
    }

    fn range(start: Scalar, end: Scalar, step: Option<Scalar>, device: &Device, at: At) -> Result<Tensor> {
        let wrong = |want: &str, given: String| Err(Error::argument("arange", want, given).at(Loc::resolve(at)));
        let by = step.unwrap_or(Scalar::i64(1));
        let all = [start, end, by];
        if let Some(bad) = all.iter().find(|s| s.dtype == DType::Bool || !s.as_f64().is_finite()) {
            return wrong("finite numbers", bad.to_string());
        }
        let whole = all.iter().all(|s| !s.dtype.is_float());
        let toward = if whole {
            let [from, to, by] = all.map(|s| s.as_i64() as i128);
            if by == 0 || (to - from).signum() == -by.signum() {
                None
            } else {
                let (distance, by) = ((to - from).unsigned_abs(), by.unsigned_abs());
                Some(distance.div_ceil(by) as f64)
            }
        } else {
            let [from, to, by] = all.map(|s| s.as_f64());
            let count = ((to - from) / by).ceil();
            (by != 0.0 && count >= 0.0).then_some(count)
        };
        let Some(count) = toward else {
            let given = format!("{by} from {start} to {end}");
            return wrong("a step towards the end, not 0", given);
        };
        if count > MOST {
            return wrong("at most 2^48 elements", format!("{count} of them"));
        }
        let places = iota(Shape::new(&[count as usize])?, 1, device, at)?;
        let places = if whole { places } else { places.to_dtype(DType::F64)? };
        let places = if step.is_some() { places.mul(Operand::Scalar(by))? } else { places };
        let values = places.add(Operand::Scalar(start))?;
        if whole { Ok(values) } else { values.to_dtype(DType::F32) }
    }

    /// `count` f32 numbers evenly spaced from `start` to `end`, both included. Those of the second half are computed from `end`
    /// back, so both ends are exact.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// assert_eq!(Tensor::linspace(0.0, 1.0, 5, &Device::cpu())?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn linspace(start: f64, end: f64, count: usize, device: &Device) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let shape = Shape::new(&[count]).map_err(|e| e.at(Loc::resolve(at)))?;
        let step = if count > 1 { (end - start) / (count - 1) as f64 } else { 0.0 };
        let places = iota(shape, 1, device, at)?;
        let fixed = |v: i64| Operand::Scalar(Scalar::i64(v).constant());
        let back = places.neg()?.add(fixed(count as i64 - 1))?.to_dtype(DType::F64)?.mul(step)?;
        let upper = back.neg()?.add(end)?;
        let lower = places.to_dtype(DType::F64)?.mul(step)?.add(start)?;
        places.lt(fixed(count as i64 / 2 + count as i64 % 2))?.select(&lower, &upper)?.to_dtype(DType::F32)
    }

    /// The identity matrix of `n` rows: ones on the diagonal, zeros elsewhere.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(Tensor::eye(2, DType::I64, device)?.to_string(), "[[1 0]\n [0 1]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let shape = Shape::new(&[n, n]).map_err(|e| e.at(Loc::resolve(at)))?;
        iota(shape, 0b01, device, at)?.eq(&iota(shape, 0b10, device, at)?)?.to_dtype(dtype)
    }

    /// The lower triangle of the last two axes: elements whose column is at most their row plus `diagonal`, zeros elsewhere.
    ///
    /// ```
    /// # use stepgraph::{DType, Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::ones([2, 3], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    /// assert_eq!(x.triu(1)?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: fewer than two axes.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.triangle("tril", |right| right.le(diagonal), here())
    }

    /// The upper triangle of the last two axes: elements whose column is at least their row plus `diagonal`, zeros elsewhere.
    ///
    /// Errors: fewer than two axes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.triu(0)?.to_string(), "[[1 2 3]\n [0 5 6]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.triangle("triu", |right| right.ge(diagonal), here())
    }

    /// Elements whose distance to the right of the diagonal is kept, else zero.
    fn triangle(&self, op: &'static str, keep: impl Fn(&Tensor) -> Result<Tensor>, at: At) -> Result<Tensor> {
        let [.., rows, columns] = *self.dims() else {
            return Err(Error::shape(op, "at least 2 axes", self.shape().to_string()).at(Loc::resolve(at)));
        };
        let shape = Shape::new(&[rows, columns])?;
        let right = iota(shape, 0b10, self.device(), at)?.sub(&iota(shape, 0b01, self.device(), at)?)?;
        keep(&right)?.select(self, Operand::Scalar(Scalar::i64(0).cast(self.dtype()).constant()))
    }

    /// Coordinates of a grid: of vectors of lengths n, m, … tensors of shape `[n, m, …]`, each varying along its own axis.
    /// Views.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// let (x, y) = (Tensor::arange(0, 2, &d)?, Tensor::arange(10, 13, &d)?);
    /// let grid = Tensor::meshgrid(&[&x, &y])?;
    /// assert_eq!(grid[0].to_vec::<i64>()?, [0, 0, 0, 1, 1, 1]);
    /// assert_eq!(grid[1].to_vec::<i64>()?, [10, 11, 12, 10, 11, 12]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a tensor that is not 1-d.
    #[track_caller]
    pub fn meshgrid(vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
        let at = here();
        let _scope = Scope::enter();
        if let Some(other) = vectors.iter().find(|t| t.rank() != 1) {
            return Err(Error::shape("meshgrid", "1-d tensors", other.shape().to_string()).at(Loc::resolve(at)));
        }
        let dims: Vec<usize> = vectors.iter().map(|t| t.numel()).collect();
        let along = |(a, t): (usize, &&Tensor)| {
            let mut own = vec![1; dims.len()];
            own[a] = dims[a];
            t.reshape(own)?.expand(dims.clone())
        };
        vectors.iter().enumerate().map(along).collect()
    }

    /// Zeros of this tensor's shape, dtype and device.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.zeros_like()?.to_string(), "[[0 0 0]\n [0 0 0]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.dtype(), self.device())
    }

    /// Ones of this tensor's shape, dtype and device.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.ones_like()?.to_string(), "[[1 1 1]\n [1 1 1]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.dtype(), self.device())
    }
}
