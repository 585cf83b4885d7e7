//! Kernels that users write: functions over slices, called as library calls.
//!
//! A [`HostKernel`] lives as long as the process, so that ops, plans and compiled steps refer to it by address
//! ([`KernelRef`]). It is a pure function of its inputs and scalars: it may be run more or less often than the
//! program says. An error or a panic of it never unwinds through compiled code: it is noted on the thread ([`fail`]), the
//! result is zeros, and the launch's flag tells the caller to look ([`take_failure`]).

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::dtype::{Element, bf16, f16};
use crate::base::{DType, Loc, Scalar, Shape};

/// What a user's kernel may return as an error: anything that says what went wrong.
pub type KernelError = Box<dyn Error + Send + Sync>;

/// A user's kernel for the CPU.
pub type HostFn = dyn Fn(&mut KernelArgs<'_>) -> Result<(), KernelError> + Send + Sync;

/// A user's kernel, by device.
pub struct HostKernel {
    /// Unique in the process.
    pub name: &'static str,
    /// Runs on the CPU.
    pub cpu: Option<Box<HostFn>>,
    /// CUDA C++ source.
    pub cuda: Option<String>,
}

// A kernel is a pure function: there is no state that a panic could leave broken.
impl std::panic::RefUnwindSafe for HostKernel {}

/// A reference to a kernel; equal if it is the same one.
#[derive(Clone, Copy)]
pub struct KernelRef(pub &'static HostKernel);

impl PartialEq for KernelRef {
    fn eq(&self, other: &KernelRef) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
impl Eq for KernelRef {}
impl std::hash::Hash for KernelRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}
impl fmt::Debug for KernelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

/// What a kernel works on: its inputs, its output (zeros to begin with), its scalars.
pub struct KernelArgs<'a> {
    /// One per input, row-major without gaps.
    pub inputs: &'a [View<'a>],
    /// To be filled, row-major.
    pub output: ViewMut<'a>,
    /// Host numbers of this call, in the declared dtypes.
    pub scalars: &'a [Scalar],
}

macro_rules! slices {
    ($($kind:ident $ty:ty),*) => {
        /// Elements of an input.
        #[derive(Clone, Copy)]
        pub enum Slice<'a> { $($kind(&'a [$ty])),* }

        /// Elements of an output.
        pub enum SliceMut<'a> { $($kind(&'a mut [$ty])),* }

        impl Slice<'_> {
            fn dtype(&self) -> DType {
                match self { $(Slice::$kind(_) => DType::$kind),* }
            }
        }

        impl SliceMut<'_> {
            fn dtype(&self) -> DType {
                match self { $(SliceMut::$kind(_) => DType::$kind),* }
            }

            /// Zero everywhere.
            pub fn clear(&mut self) {
                match self { $(SliceMut::$kind(s) => s.fill(<$ty>::default())),* }
            }
        }

        $(impl Native for $ty {
            fn of<'a>(s: Slice<'a>) -> Option<&'a [Self]> {
                if let Slice::$kind(s) = s { Some(s) } else { None }
            }
            fn of_mut<'s>(s: &'s mut SliceMut<'_>) -> Option<&'s mut [Self]> {
                if let SliceMut::$kind(s) = s { Some(s) } else { None }
            }
        })*
    };
}
slices!(Bool bool, U8 u8, I8 i8, I32 i32, I64 i64, F16 f16, BF16 bf16, F32 f32, F64 f64);

/// An element type whose values lie in memory as the tensor stores them.
pub trait Native: Element {
    /// The elements, if they are of this type.
    fn of<'a>(s: Slice<'a>) -> Option<&'a [Self]>;
    /// The elements, if they are of this type.
    fn of_mut<'s>(s: &'s mut SliceMut<'_>) -> Option<&'s mut [Self]>;
}

/// An input of a kernel.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Its shape.
    pub shape: Shape,
    data: Slice<'a>,
}

/// The output of a kernel.
pub struct ViewMut<'a> {
    /// Its shape.
    pub shape: Shape,
    data: SliceMut<'a>,
}

fn mismatch(is: DType, asked: DType) -> KernelError {
    format!("expected elements of {asked}, they are {is}").into()
}

impl<'a> View<'a> {
    /// `data` has as many elements as `shape`.
    pub fn new(shape: Shape, data: Slice<'a>) -> View<'a> {
        View { shape, data }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements, row-major.
    ///
    /// Errors: another dtype than `T`'s.
    pub fn as_slice<T: Native>(&self) -> Result<&'a [T], KernelError> {
        T::of(self.data).ok_or_else(|| mismatch(self.dtype(), T::DTYPE))
    }
}

impl<'a> ViewMut<'a> {
    /// `data` has as many elements as `shape`.
    pub fn new(shape: Shape, data: SliceMut<'a>) -> ViewMut<'a> {
        ViewMut { shape, data }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements, row-major.
    ///
    /// Errors: another dtype than `T`'s.
    pub fn as_mut_slice<T: Native>(&mut self) -> Result<&mut [T], KernelError> {
        let is = self.dtype();
        T::of_mut(&mut self.data).ok_or_else(|| mismatch(is, T::DTYPE))
    }
}

impl HostKernel {
    /// Runs the CPU kernel; an error or panic leaves zeros, and is given back as text.
    pub fn run(&self, args: &mut KernelArgs<'_>) -> Result<(), String> {
        args.output.data.clear();
        let Some(kernel) = &self.cpu else { return Err("it has no kernel for the CPU".to_string()) };
        let failed = match catch_unwind(AssertUnwindSafe(|| kernel(args))) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => e.to_string(),
            Err(panic) => format!("its kernel panicked: {}", panic_text(&*panic)),
        };
        args.output.data.clear();
        Err(failed)
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// A failure of a user's kernel in a launch.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The op's name.
    pub op: &'static str,
    pub detail: String,
    /// The user's line that called the op, if the launch is of a step.
    pub loc: Loc,
}

thread_local! {
    static FAILED: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Notes a failure, unless there is an earlier one.
pub fn fail(failure: Failure) {
    FAILED.with_borrow_mut(|f| {
        f.get_or_insert(failure);
    });
}

/// The first failure on this thread since this was last called.
pub fn take_failure() -> Option<Failure> {
    FAILED.take()
}
