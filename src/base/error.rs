//! The one error type of the crate.
//!
//! Every message says what was expected, what was given and what to do; [`Error::at`] adds
//! the user's `file:line`. The error is one pointer wide, so `Result<Tensor>` stays 16 bytes.

use crate::base::dtype::DType;
use crate::base::location::Loc;

/// The crate's result type.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// fn double(x: &Tensor) -> Result<Tensor> {
///     x * 2.0
/// }
/// assert_eq!(double(&Tensor::new(2.0f32, device)?)?.item::<f32>()?, 4.0);
/// # Ok(())
/// # }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let error = Tensor::ones([2], DType::F32, device)?.reshape([3]).unwrap_err();
/// println!("{error}"); // what was expected, what was given, where
/// assert!(error.to_string().contains("reshape"));
/// # Ok(())
/// # }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    loc: Loc,
}

/// The kinds of [`Error`].
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let error = Tensor::ones([2], DType::F32, device)?.reshape([3]).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::Shape { op: "reshape", .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Operand shapes or axes that do not fit the op.
    #[error("{op}: expected {expected}, got {given}")]
    Shape { op: &'static str, expected: String, given: String },
    /// An operand dtype that the op does not take.
    #[error("{op}: expected {expected}, got {given}; cast with `.to_dtype(…)`")]
    DType { op: &'static str, expected: String, given: DType },
    /// An argument out of its range (an index, a probability, an axis).
    #[error("{op}: expected {expected}, got {given}")]
    Argument { op: &'static str, expected: String, given: String },
    /// Operands on different devices.
    #[error("{op}: operands are on {left} and {right}; move one with `.to_device(…)`")]
    Device { op: &'static str, left: String, right: String },
    /// The device cannot do it.
    #[error("{op} is not supported on {device}: {detail}")]
    Unsupported { op: String, device: String, detail: String },
    /// Memory ran out.
    #[error(
        "out of memory: needed {need} bytes with {live} bytes live and {}{}; free tensors or raise the limit, then call the step again",
        limit_text(.limit, .free),
        holders_text(.holders)
    )]
    OutOfMemory {
        need: usize,
        live: usize,
        limit: Option<usize>,
        /// Free bytes of the device, where it says.
        free: Option<usize>,
        /// The largest holders, largest first: "3 of 1048576 bytes".
        holders: Vec<String>,
    },
    /// A device that cannot be used here.
    #[error("{device} is not available: {detail}")]
    Unavailable { device: String, detail: String },
    /// The device is unusable from here on.
    #[error(
        "the device is lost: {call} failed with {code}; what was under way is gone and its memory cannot be read, so start the process again from saved state"
    )]
    DeviceLost { call: String, code: String },
    /// A kernel or dispatch could not be compiled.
    #[error("compiling {kernel} failed: {log}")]
    Compile { kernel: String, log: String },
    /// A driver call failed.
    #[error("driver call {call} failed with {code}")]
    Driver { call: String, code: String },
    /// A pending value of a step was used where it cannot be: on another thread before the step ended.
    #[error(
        "a value made inside a step at {made} was used on another thread before the step ended; read it after `Step::run` returns, or send its values with `to_vec`"
    )]
    LeakedValue { made: Loc },
    /// A value whose computation failed.
    #[error("the value made at {made} was never computed, since its step failed: {cause}; run the step again")]
    Failed { made: Loc, cause: String },
    /// `backward` where there is no tape.
    #[error("backward: {detail}")]
    Backward { detail: String },
    /// A step could not be frozen, or a frozen one not replayed.
    #[error("freeze: {detail}")]
    Freeze { detail: String },
    /// An index was out of range when a kernel ran (found on the device).
    #[error(
        "{op}: an index was out of range for an axis of length {len}; the result holds clamped reads and the step's `Var` writes were dropped"
    )]
    Index { op: String, len: usize },
    /// A user's own op failed: its kernel (then the result is zeros), its shape rule or its gradient.
    #[error("custom op {op}: {detail}")]
    Custom { op: String, detail: String },
    /// Text form that does not parse.
    #[error("parse error in line {line}: {detail}")]
    Parse { line: usize, detail: String },
    /// Input or output of files.
    #[error("{path}: {detail}")]
    Io { path: String, detail: String },
    /// An invariant of the library did not hold; please report it.
    #[error("bug in {pass}: {detail}; please report it with the output of STEPGRAPH_DUMP")]
    Bug { pass: String, detail: String },
}

fn limit_text(limit: &Option<usize>, free: &Option<usize>) -> String {
    match (limit, free) {
        (Some(bytes), _) => format!("a limit of {bytes}"),
        (None, Some(free)) => format!("{free} free on the device"),
        (None, None) => "no more to be had from the system".to_string(),
    }
}

fn holders_text(holders: &[String]) -> String {
    if holders.is_empty() { String::new() } else { format!(" (largest holders: {})", holders.join(", ")) }
}

impl Error {
    /// An error of `kind`, its place unknown as yet.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let error = Error::new(ErrorKind::Backward { detail: "no tape".into() });
    /// assert_eq!(error.to_string(), "backward: no tape");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(kind: ErrorKind) -> Error {
        Error(Box::new(Inner { kind, loc: Loc::NONE }))
    }

    /// [`ErrorKind::Shape`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(Error::shape("mine", "2 axes", "3 axes").to_string().contains("expected 2 axes"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn shape(op: &'static str, expected: impl Into<String>, given: impl Into<String>) -> Error {
        Error::new(ErrorKind::Shape { op, expected: expected.into(), given: given.into() })
    }

    /// [`ErrorKind::DType`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(Error::dtype("mine", "a float", DType::I64).to_string().contains("i64"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dtype(op: &'static str, expected: impl Into<String>, given: DType) -> Error {
        Error::new(ErrorKind::DType { op, expected: expected.into(), given })
    }

    /// [`ErrorKind::Argument`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(Error::argument("mine", "at least 1", "0").to_string().contains("at least 1"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn argument(op: &'static str, expected: impl Into<String>, given: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument { op, expected: expected.into(), given: given.into() })
    }

    /// [`ErrorKind::Bug`].
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(Error::bug("mine", "impossible").to_string().contains("please report it"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn bug(pass: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Bug { pass: pass.into(), detail: detail.into() })
    }

    /// The same error at `loc`, unless it has a place already.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let here = base::Loc::caller();
    /// assert_eq!(Error::bug("mine", "impossible").at(here).loc(), here);
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(mut self, loc: Loc) -> Error {
        if self.0.loc == Loc::NONE {
            self.0.loc = loc;
        }
        self
    }

    /// What went wrong.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let error = Tensor::ones([2], DType::F32, device)?.reshape([3]).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::Shape { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The user's line it happened at.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let error = Tensor::ones([2], DType::F32, device)?.reshape([3]).unwrap_err();
    /// assert!(error.loc().line().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn loc(&self) -> Loc {
        self.0.loc
    }
}

impl Clone for Error {
    fn clone(&self) -> Error {
        Error(Box::new(Inner { kind: self.0.kind.clone(), loc: self.0.loc }))
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.kind)?;
        if self.0.loc != Loc::NONE {
            write!(f, " (at {})", self.0.loc)?;
        }
        Ok(())
    }
}

/// `Debug` is `Display`, so that `main() -> Result<()>` prints a readable message.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}
