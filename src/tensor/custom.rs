//! Operations that users define: a kernel in Rust over slices, a gradient in tensor code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use smallvec::SmallVec;

use crate::base::{DType, Error, ErrorKind, Loc, Result, Scalar, Shape, Type};
use crate::kernel::custom::{HostFn, HostKernel, KernelArgs, KernelError, panic_text};
use crate::op::custom::{Custom, Definition, MOST_SCALARS, ShapeFn, register};
use crate::op::{Grad, Op, Val};
use crate::tensor::recorder::{emit, here};
use crate::tensor::{Tensor, sketch};

/// What a gradient is computed from: values of the tensors that the op was applied to, of its result, and what flows in.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let twice = jit::custom_op("twice")
///     .cpu(|k| {
///         let x = k.inputs[0].as_slice::<f32>()?;
///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
///             *y = 2.0 * x;
///         }
///         Ok(())
///     })
///     .gradient(|g: &jit::GradientArgs<'_>| Ok(vec![Some(g.upstream.mul(2.0)?)]))
///     .build()?;
/// let w = Var::new(&Tensor::new([1.0f32, 2.0], device)?)?;
/// assert_eq!(twice.call(&[&w.get()])?.sum(())?.backward()?.get(&w).unwrap().to_string(), "[2. 2.]");
/// # Ok(())
/// # }
/// ```
pub struct GradientArgs<'a> {
    /// The op's inputs.
    pub inputs: &'a [Tensor],
    /// Its result.
    pub output: &'a Tensor,
    /// The gradient of the result.
    pub upstream: &'a Tensor,
    /// The op's host numbers as 0-d tensors: what is computed from them is never stale.
    pub scalars: &'a [Tensor],
    needs: &'a [bool],
}

impl GradientArgs<'_> {
    /// Whether anybody asks for the gradient of input `i`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .gradient(|g| Ok(vec![if g.needs(0) { Some(g.upstream.mul(2.0)?) } else { None }]))
    ///     .build()?;
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// assert_eq!(twice.call(&[&x])?.to_string(), "[2. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }
}

type TensorGradient = dyn Fn(&GradientArgs<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// Begins the definition of an operation called `name`: see [`CustomOpBuilder`].
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let twice = jit::custom_op("twice")
///     .cpu(|k| {
///         let x = k.inputs[0].as_slice::<f32>()?;
///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
///             *y = 2.0 * x;
///         }
///         Ok(())
///     })
///     .build()?;
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// assert_eq!(twice.call(&[&x])?.to_string(), "[2. 4.]");
/// # Ok(())
/// # }
/// ```
pub fn custom_op(name: impl Into<String>) -> CustomOpBuilder {
    CustomOpBuilder {
        name: name.into(),
        inputs: vec![DType::F32],
        output: None,
        scalars: Vec::new(),
        shape: None,
        cpu: None,
        cuda: None,
        gradient: None,
    }
}

/// Defines an operation: a kernel, dtypes, a shape rule, a gradient.
///
/// The operation is then like the library's own: eager code runs the kernel at once; a step records it as one node, runs
/// it inside its one launch and fuses everything else around it. The kernel must be a pure function of its inputs
/// and scalars, since it may be run more or less often than the program says: values that nobody uses are not computed, equal ones once. It
/// may be called from several threads at a time. When it returns an error or panics, its result is zeros and the
/// error ([`crate::ErrorKind::Custom`]) is told as an index out of range is: at the step's end, its `Var` writes
/// dropped; in plain eager code at the next host read.
///
/// A definition lives as long as the process: make it once, outside of steps.
///
/// ```
/// use stepgraph::{Device, Result, Scalar, Tensor, jit};
/// # fn main() -> Result<()> {
/// // y = x if x > 0, else slope · x
/// let leaky = jit::custom_op("leaky")
///     .scalars([stepgraph::DType::F32])
///     .cpu(|k| {
///         let (x, slope) = (k.inputs[0].as_slice::<f32>()?, k.scalars[0].as_f64() as f32);
///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
///             *y = if *x > 0.0 { *x } else { slope * x };
///         }
///         Ok(())
///     })
///     .gradient(|g| {
///         let below = g.upstream.mul(&g.scalars[0])?;
///         Ok(vec![Some(g.inputs[0].gt(0.0)?.select(g.upstream, &below)?)])
///     })
///     .build()?;
/// let x = Tensor::from_vec(vec![-2.0f32, 3.0], [2], &Device::cpu())?.require_grad()?;
/// let y = leaky.call_with(&[&x], &[Scalar::from(0.5)])?;
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 3.0]);
/// assert_eq!(y.sum(())?.grad(&[&x])?[0].as_ref().unwrap().to_vec::<f32>()?, [0.5, 1.0]);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct CustomOpBuilder {
    name: String,
    inputs: Vec<DType>,
    output: Option<DType>,
    scalars: Vec<DType>,
    shape: Option<Box<ShapeFn>>,
    cpu: Option<Box<HostFn>>,
    cuda: Option<String>,
    gradient: Option<Box<TensorGradient>>,
}

impl CustomOpBuilder {
    /// dtypes of the input tensors, at least one (default: one of f32).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let sum = jit::custom_op("sum_of_both")
    ///     .inputs([DType::I64, DType::I64])
    ///     .cpu(|k| {
    ///         let (a, b) = (k.inputs[0].as_slice::<i64>()?, k.inputs[1].as_slice::<i64>()?);
    ///         for ((y, a), b) in k.output.as_mut_slice::<i64>()?.iter_mut().zip(a).zip(b) {
    ///             *y = a + b;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([1i64, 2], device)?;
    /// assert_eq!(sum.call(&[&x, &x])?.to_string(), "[2 4]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn inputs(mut self, dtypes: impl IntoIterator<Item = DType>) -> CustomOpBuilder {
        self.inputs = dtypes.into_iter().collect();
        self
    }

    /// dtype of the result (default: that of the first input).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let positive = jit::custom_op("positive")
    ///     .output(DType::Bool)
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<bool>()?.iter_mut().zip(x) {
    ///             *y = *x > 0.0;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// assert_eq!(positive.call(&[&Tensor::new([1.0f32, -2.0], device)?])?.to_string(), "[ True False]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn output(mut self, dtype: DType) -> CustomOpBuilder {
        self.output = Some(dtype);
        self
    }

    /// dtypes of the host numbers that a call takes, at most four (default: none). Inside a step they are taken anew
    /// at each call.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let shifted = jit::custom_op("shifted")
    ///     .scalars([DType::F32])
    ///     .cpu(|k| {
    ///         let (x, by) = (k.inputs[0].as_slice::<f32>()?, k.scalars[0].as_f64() as f32);
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = x + by;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// assert_eq!(shifted.call_with(&[&x], &[Scalar::from(0.5)])?.to_string(), "[1.5 2.5]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn scalars(mut self, dtypes: impl IntoIterator<Item = DType>) -> CustomOpBuilder {
        self.scalars = dtypes.into_iter().collect();
        self
    }

    /// The result's shape, from those of the inputs; an error refuses them (default: the first input's). Always the same for
    /// the same shapes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let first = jit::custom_op("first")
    ///     .shape(|shapes| Shape::new(&shapes[0].dims()[1..]))
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         let y = k.output.as_mut_slice::<f32>()?;
    ///         y.copy_from_slice(&x[..y.len()]);
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([[1.0f32, 2.0], [3.0, 4.0]], device)?;
    /// assert_eq!(first.call(&[&x])?.to_string(), "[1. 2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shape(mut self, rule: impl Fn(&[Shape]) -> Result<Shape> + Send + Sync + 'static) -> CustomOpBuilder {
        self.shape = Some(Box::new(rule));
        self
    }

    /// The kernel for the CPU: fills the output, which is zeros to begin with.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// assert_eq!(twice.call(&[&x])?.to_string(), "[2. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn cpu(
        mut self,
        kernel: impl Fn(&mut KernelArgs<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
    ) -> CustomOpBuilder {
        self.cpu = Some(Box::new(kernel));
        self
    }

    /// CUDA C++ source of the kernel, for a CUDA device: it defines a function that computes one element,
    ///
    /// ```text
    /// __device__ void compute(long long i, T* out, const T0* in0, …, S0 scalar0, …)
    /// ```
    ///
    /// which is called once for each element `i` of the output, in any order and all at a time. It writes `out[i]`, which is zero
    /// to begin with, and may read all of the inputs, which like the output are row-major without gaps. The types are `bool`,
    /// `unsigned char` (u8), `signed char` (i8), `int` (i32), `long long` (i64), `float`, `double`, and `unsigned short`
    /// for the bits of f16 and bf16: `from_f16`, `to_f16`, `from_bf16` and `to_bf16` convert to and from `float`. Scalars of 16-bit
    /// floats are `float`.
    ///
    /// Shapes are macros: `OUT_LEN`, `OUT_RANK`, `OUT_DIM0`, … and `IN0_LEN`, `IN0_DIM0`, … of each input. The source is compiled at run
    /// time without headers, with no multiplications and additions fused.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let leaky = jit::custom_op("leaky")
    ///     .scalars([DType::F32])
    ///     .cpu(|k| {
    ///         let (x, slope) = (k.inputs[0].as_slice::<f32>()?, k.scalars[0].as_f64() as f32);
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = if *x > 0.0 { *x } else { slope * x };
    ///         }
    ///         Ok(())
    ///     })
    ///     .cuda(
    ///         "__device__ void compute(long long i, float* out, const float* x, float slope) {
    ///              out[i] = x[i] > 0.0f ? x[i] : slope * x[i];
    ///          }",
    ///     )
    ///     .build()?;
    /// assert!(leaky.cuda_source().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cuda(mut self, source: impl Into<String>) -> CustomOpBuilder {
        self.cuda = Some(source.into());
        self
    }

    /// The gradients of the inputs, one each (`None`: zero), in tensor code.
    ///
    /// It is run on values that are not there, to learn which operations it is made of; these are then recorded,
    /// fused and differentiated like any. So it may use only the tensors it is given, must not read their values, and
    /// numbers that it takes from elsewhere are fixed. Without a gradient, differentiating the op is an error.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .gradient(|g| Ok(vec![Some(g.upstream.mul(2.0)?)]))
    ///     .build()?;
    /// let w = Var::new(&Tensor::new([1.0f32, 2.0], device)?)?;
    /// assert_eq!(twice.call(&[&w.get()])?.sum(())?.backward()?.get(&w).unwrap().to_string(), "[2. 2.]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn gradient(
        mut self,
        rule: impl Fn(&GradientArgs<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
    ) -> CustomOpBuilder {
        self.gradient = Some(Box::new(rule));
        self
    }

    /// The operation.
    ///
    /// Errors: a name that is no identifier; no inputs; more than four scalars; no kernel.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(jit::custom_op("no kernel").build().is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn build(self) -> Result<CustomOp> {
        let loc = Loc::caller();
        let argument = |expected: &str, given: String| Err(Error::argument("custom_op", expected, given).at(loc));
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.name.is_empty() || !self.name.chars().all(word) || self.name.starts_with(|c: char| c.is_ascii_digit()) {
            return argument(
                "a name of letters, digits and underscores that begins with none of the digits",
                self.name,
            );
        }
        let Some(&first) = self.inputs.first() else {
            return argument("at least one input", "none".into());
        };
        if self.scalars.len() > MOST_SCALARS {
            return argument(&format!("at most {MOST_SCALARS} scalars"), self.scalars.len().to_string());
        }
        if self.cpu.is_none() && self.cuda.is_none() {
            return argument("a kernel (`.cpu(…)`)", "none".into());
        }
        let name: &'static str = self.name.leak();
        let gradient = self.gradient.map(|rule| {
            let rule = move |g: &mut Grad<'_>, scalars: &[Scalar]| gradients(name, &*rule, g, scalars);
            Box::new(rule) as Box<crate::op::custom::GradientFn>
        });
        let first_shape = |shapes: &[Shape]| Ok(shapes.first().copied().unwrap_or(Shape::SCALAR));
        Ok(CustomOp(register(Definition {
            kernel: HostKernel { name, cpu: self.cpu, cuda: self.cuda },
            output: self.output.unwrap_or(first),
            inputs: self.inputs,
            scalars: self.scalars,
            shape: self.shape.unwrap_or_else(|| Box::new(first_shape)),
            gradient,
        })))
    }
}

/// The user's gradient as a gradient rule.
fn gradients(
    name: &'static str,
    rule: &TensorGradient,
    g: &mut Grad<'_>,
    scalars: &[Scalar],
) -> Result<SmallVec<[Option<Val>; 3]>> {
    let count = g.operands.len();
    let vals: Vec<Val> = g.operands.iter().copied().chain([g.result, g.grad]).collect();
    let wants: Vec<Type> = g.operands.iter().map(|&v| g.ty(v)).collect();
    let needs: Vec<bool> = (0..count).map(|i| g.needs(i)).collect();
    let failed = |detail: String| Error::new(ErrorKind::Custom { op: name.to_string(), detail });
    let code = |values: &[Tensor], scalars: &[Tensor]| {
        let args = GradientArgs {
            inputs: &values[..count],
            output: &values[count],
            upstream: &values[count + 1],
            scalars,
            needs: &needs,
        };
        let result = catch_unwind(AssertUnwindSafe(|| rule(&args)));
        let mut out = result.map_err(|p| failed(format!("its gradient panicked: {}", panic_text(&*p))))??;
        if out.len() != count {
            return Err(failed(format!("its gradient gave {} results for {count} inputs", out.len())));
        }
        for (i, (slot, want)) in out.iter_mut().zip(&wants).enumerate() {
            if slot.as_ref().is_some_and(|t| t.ty() != *want) {
                let given = slot.as_ref().map(|t| t.ty().to_string()).unwrap_or_default();
                return Err(failed(format!("its gradient for input {i} is {given}, expected {want}")));
            }
            // What nobody asks for need not be computed.
            slot.take_if(|_| !needs[i]);
        }
        Ok(out)
    };
    Ok(sketch::emit(g, &vals, scalars, code)?.into_iter().collect())
}

/// An operation that [`custom_op`] defined.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let twice = jit::custom_op("twice")
///     .cpu(|k| {
///         let x = k.inputs[0].as_slice::<f32>()?;
///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
///             *y = 2.0 * x;
///         }
///         Ok(())
///     })
///     .build()?;
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut step = jit::Step::new();
/// for _ in 0..3 {
///     assert_eq!(step.run(|| twice.call(&[&x])?.add(1.0))?.to_string(), "[3. 5.]");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct CustomOp(&'static Definition);

impl CustomOp {
    /// Applies the operation, without host numbers.
    ///
    /// Errors: as [`CustomOp::call_with`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// assert_eq!(twice.call(&[&x])?.to_string(), "[2. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        self.apply(inputs, &[], here())
    }

    /// Applies the operation with host numbers.
    ///
    /// Errors: another number of tensors or scalars than declared; other dtypes (tensors are not cast); shapes that the
    /// shape rule refuses; a device without a kernel.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let x = Tensor::new([1.0f32, 2.0], device)?;
    /// assert_eq!(twice.call_with(&[&x], &[])?.to_string(), "[2. 4.]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn call_with(&self, inputs: &[&Tensor], scalars: &[Scalar]) -> Result<Tensor> {
        self.apply(inputs, scalars, here())
    }

    fn apply(&self, inputs: &[&Tensor], scalars: &[Scalar], at: crate::tensor::At) -> Result<Tensor> {
        let loc = Loc::resolve(at);
        let declared = &self.0.scalars;
        if scalars.len() != declared.len() {
            let expected = format!("{} host numbers", declared.len());
            return Err(Error::argument(self.name(), expected, scalars.len().to_string()).at(loc));
        }
        if let Some((s, dtype)) = scalars.iter().zip(declared).find(|(s, d)| !s.fits(**d)) {
            return Err(
                Error::argument(self.name(), format!("a host number that {dtype} can hold"), format!("{s}")).at(loc)
            );
        }
        emit(&Op::Custom(Custom::new(self.0, scalars)), inputs, at)
    }

    /// Its name; one that was taken has got a number.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("named")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// assert_eq!(twice.name(), "named");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &'static str {
        self.0.kernel.name
    }

    /// The CUDA source that it was given.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let twice = jit::custom_op("twice")
    ///     .cpu(|k| {
    ///         let x = k.inputs[0].as_slice::<f32>()?;
    ///         for (y, x) in k.output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
    ///             *y = 2.0 * x;
    ///         }
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// assert_eq!(twice.cuda_source(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cuda_source(&self) -> Option<&str> {
        self.0.kernel.cuda.as_deref()
    }
}

impl std::fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CustomOp({})", self.name())
    }
}
