//! Steps of a plan as CUDA C++.
//!
//! The text is header-free (NVRTC has no implicit headers, and a user needs the driver and NVRTC only) and depends on
//! the step and its [`Signature`] alone, so equal steps share one compiled program. May rely on [`crate::kernel`];
//! knows nothing of the driver.

use crate::base::Result;
use crate::plan::StepKind;

/// How an entry point is given an argument's address, or the host scalars.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// As a parameter of the entry: a pointer, or a word.
    Direct,
    /// In the parameter block: the entry gets the position of the 64-bit word that holds it.
    Block,
}

/// What an entry point's parameters are, in this order: `const u64* block` if anything is [`Place::Block`]; per
/// argument of the step a pointer or a `u32` position in the block; per parameter of the step a `u64` word or
/// a `u32` position; `u32* flag` if [`Rendered::flag`]; `unsigned char* scratch` if [`Rendered::scratch_bytes`] is not 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    /// Of each argument of the step.
    pub args: Vec<Place>,
    /// Of all its host scalars.
    pub params: Place,
    /// Of each argument: stores to it are dropped when the flag was up before the kernel began (a step with a bad index
    /// must not overwrite a `Var`).
    pub guarded: Vec<bool>,
    /// Some output may share its memory with an input (accessed at the same element at every point).
    pub may_alias: bool,
}

/// A step as source code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendered {
    pub source: String,
    /// Launched one after the other, each after the one before has ended.
    pub stages: Vec<Stage>,
    /// Device memory that the stages share, aligned to 256 bytes; 0: none.
    pub scratch_bytes: usize,
    /// Whether entries take the flag: a 32-bit word that is or-ed with 1 when an index is out of range.
    pub flag: bool,
}

/// One kernel launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The `extern "C"` name.
    pub entry: String,
    /// Thread blocks along x.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// The source of a step. `label` (the ops it computes) gives its entry a name that profilers show.
pub fn render(step: &StepKind, label: &str, signature: &Signature) -> Result<Rendered> {
    let _ = (step, label, signature);
    Err(crate::base::Error::bug("cuda", "not rendered yet"))
}
