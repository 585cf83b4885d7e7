//! Operations that users define: a kernel over slices, a shape rule, a gradient.
//!
//! A [`Definition`] lives as long as the process, so that the op that refers to it can be copied and compared by
//! address; definitions are found by name when a text is read. In a graph it is one library call: everything
//! else fuses around it. [`crate::jit::custom_op`] is the door.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::scalar::Origin;
use crate::base::{DType, Error, ErrorKind, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::kernel::custom::{HostKernel, KernelArgs, KernelRef, Slice, SliceMut, View, ViewMut, panic_text};
use crate::kernel::library::{self, Block, Library};
use crate::op::lowering::not_affine;
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// Most host scalars an op may take.
pub const MOST_SCALARS: usize = 4;

/// Gradients of the inputs, given the op's scalars as the forward op has them.
pub type GradientFn = dyn Fn(&mut Grad<'_>, &[Scalar]) -> Result<SmallVec<[Option<Val>; 3]>> + Send + Sync;

/// The result's shape for inputs of these shapes.
pub type ShapeFn = dyn Fn(&[Shape]) -> Result<Shape> + Send + Sync;

/// All that is known of a user's op.
pub struct Definition {
    pub kernel: HostKernel,
    /// dtypes of the inputs (at least one) and of the result.
    pub inputs: Vec<DType>,
    pub output: DType,
    /// dtypes of the host scalars, at most [`MOST_SCALARS`].
    pub scalars: Vec<DType>,
    pub shape: Box<ShapeFn>,
    pub gradient: Option<Box<GradientFn>>,
}

// Its functions are pure, so there is no state that a panic could leave broken.
impl std::panic::RefUnwindSafe for Definition {}

static DEFINITIONS: Mutex<Vec<&'static Definition>> = Mutex::new(Vec::new());

/// Keeps a definition for the rest of the process, under a name of its own: one that is taken already gets a number.
pub fn register(mut definition: Definition) -> &'static Definition {
    let mut all = DEFINITIONS.lock();
    let base = definition.kernel.name;
    let taken = |name: &str| all.iter().any(|d| d.kernel.name == name);
    let mut number = 1;
    while taken(definition.kernel.name) {
        number += 1;
        definition.kernel.name = format!("{base}_{number}").leak();
    }
    let definition: &'static Definition = Box::leak(Box::new(definition));
    all.push(definition);
    definition
}

/// The definition called `name`.
pub fn named(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.lock().iter().find(|d| d.kernel.name == name).copied()
}

/// [`Op::Custom`]: a definition, with host scalars in its declared dtypes.
#[derive(Clone, Copy)]
pub struct Custom {
    pub definition: &'static Definition,
    scalars: [Scalar; MOST_SCALARS],
}

impl Custom {
    /// The op with these scalars; missing ones are zero, ones too many are left out.
    pub fn new(definition: &'static Definition, scalars: &[Scalar]) -> Custom {
        let mut all = [Scalar::i64(0).constant(); MOST_SCALARS];
        for (k, (slot, &dtype)) in all.iter_mut().zip(&definition.scalars).enumerate() {
            *slot = scalars.get(k).copied().unwrap_or(*slot).cast(dtype);
        }
        Custom { definition, scalars: all }
    }

    /// Its scalars.
    pub fn given(&self) -> &[Scalar] {
        &self.scalars[..self.definition.scalars.len().min(MOST_SCALARS)]
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        std::ptr::eq(self.definition, other.definition) && self.given() == other.given()
    }
}
impl Eq for Custom {}
impl std::hash::Hash for Custom {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.definition, state);
        self.given().hash(state);
    }
}
impl std::fmt::Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.definition.kernel.name, self.given())
    }
}

/// The elements of an input on the host; a reference in double precision is rounded first.
fn narrowed(v: &HostValue) -> HostData {
    match &v.data {
        HostData::Real(dtype, _) => HostData::from_lanes(*dtype, &v.data.lanes()),
        data => data.clone(),
    }
}

impl Rules for Custom {
    fn name(&self) -> &'static str {
        self.definition.kernel.name
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let d = self.definition;
        if operands.len() != d.inputs.len() {
            let given = format!("{} tensors", operands.len());
            return Err(Error::argument(self.name(), format!("{} tensors", d.inputs.len()), given));
        }
        for (k, (t, &want)) in operands.iter().zip(&d.inputs).enumerate() {
            if t.dtype != want {
                return Err(Error::dtype(self.name(), format!("{want} as input {k}"), t.dtype));
            }
        }
        let shapes: SmallVec<[Shape; 4]> = operands.iter().map(|t| t.shape).collect();
        let shape = match catch_unwind(AssertUnwindSafe(|| (d.shape)(&shapes))) {
            Ok(shape) => shape?,
            Err(panic) => {
                let detail = format!("its shape rule panicked: {}", panic_text(&*panic));
                return Err(ErrorKind::Custom { op: self.name().to_string(), detail }.into());
            }
        };
        Ok(Type::new(d.output, shape))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        match &self.definition.gradient {
            Some(rule) => rule(g, self.given()),
            None if (0..g.operands.len()).any(|i| g.needs(i)) => {
                let detail = "it has no gradient; give it one with `.gradient(…)`, or call `.detach()` on its inputs";
                Err(ErrorKind::Custom { op: self.name().to_string(), detail: detail.to_string() }.into())
            }
            None => Ok(smallvec![None; g.operands.len()]),
        }
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let data: Vec<HostData> = operands.iter().map(narrowed).collect();
        let mut out = HostData::from_lanes(result.dtype, &vec![0; result.shape.numel()]);
        macro_rules! slices {
            ($($kind:ident),*) => {{
                let inputs: Option<Vec<View<'_>>> = operands.iter().zip(&data).map(|(v, d)| match d {
                    $(HostData::$kind(x) => Some(View::new(v.shape, Slice::$kind(x))),)*
                    HostData::Real(..) => None,
                }).collect();
                let output = match &mut out {
                    $(HostData::$kind(x) => Some(ViewMut::new(result.shape, SliceMut::$kind(x))),)*
                    HostData::Real(..) => None,
                };
                (inputs, output)
            }};
        }
        let (Some(inputs), Some(output)) = slices!(Bool, U8, I8, I32, I64, F16, BF16, F32, F64) else {
            return Err(Error::bug("custom", "a value in double precision"));
        };
        // A failing kernel gives zeros.
        let _ = self.definition.kernel.run(&mut KernelArgs { inputs: &inputs, output, scalars: self.given() });
        let wide = host::is_real(operands) && result.dtype.is_float();
        Ok(HostValue::new(result.shape, if wide { out.widen() } else { out }))
    }

    /// Unknown: counted as one per element.
    fn flops(&self, _: &[Type], result: Type) -> u64 {
        result.shape.numel() as u64
    }

    fn class(&self) -> Class {
        Class::Library
    }

    fn lower(&self, _: &mut dyn Lowering, _: Type, _: &IndexMap) -> Result<kernel::Val> {
        Err(not_affine(self.name(), "it is a library call"))
    }

    fn library(&self, operands: &[(DType, Layout)], result: &Layout) -> Option<Library> {
        let block = |&(dtype, ref l): &(DType, Layout)| {
            l.is_contiguous().then_some(Block { dtype, shape: l.shape, offset: l.offset as i64 })
        };
        let mut params = 0;
        let mut scalar = |s: &Scalar| match s.origin {
            // The step's own parameters, in order.
            Origin::Param(_) => {
                params += 1;
                Scalar { bits: 0, origin: Origin::Param(params - 1), ..*s }
            }
            _ => s.constant(),
        };
        Some(Library::Custom(library::Custom {
            kernel: KernelRef(&self.definition.kernel),
            inputs: operands.iter().map(block).collect::<Option<_>>()?,
            output: block(&(self.definition.output, *result))?,
            scalars: self.given().iter().map(&mut scalar).collect(),
        }))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        self.given().iter().copied().collect()
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        let mut all = self.scalars;
        all.iter_mut().zip(scalars).for_each(|(slot, s)| *slot = *s);
        Op::Custom(Custom { definition: self.definition, scalars: all })
    }
}
