//! Steps of a plan as CUDA C++.
//!
//! The text is header-free (NVRTC has no implicit headers, and a user needs the driver and NVRTC only) and depends on
//! the step and its [`Signature`] alone, so equal steps share one compiled program. May rely on [`crate::kernel`];
//! knows nothing of the driver.

mod axes;
mod body;
mod custom;
mod form;
mod library;
mod pack;
mod pointwise;
mod reduce;
mod scalar;
mod sort;
mod split;
#[cfg(test)]
mod tests;
mod text;

use crate::backend::cuda::render::body::Body;
use crate::backend::cuda::render::form::{Form, Tuning};
use crate::base::{Error, Result};
use crate::kernel::Kernel;
use crate::plan::StepKind;

/// How an entry point is given an argument's address, or the host scalars.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// As a parameter of the entry: a pointer, or a word.
    Direct,
    /// In the parameter block: the entry gets the position of the 64-bit word that holds it.
    Block,
}

/// What an entry point's parameters are, in this order: `const u64* block` if [`Signature::has_block`]; per
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

impl Signature {
    /// Whether entries take the parameter block, for a step with this many parameters.
    pub fn has_block(&self, params: usize) -> bool {
        self.args.contains(&Place::Block) || params > 0 && self.params == Place::Block
    }
}

/// The source of a step. `label` (the ops it computes) gives its entry a name that profilers show.
///
/// Errors: matrix products, which are no kernels of ours; a user's kernel without CUDA source.
pub fn render(step: &StepKind, label: &str, signature: &Signature) -> Result<Rendered> {
    render_with(step, label, signature, Tuning::DEFAULT)
}

fn render_with(step: &StepKind, label: &str, signature: &Signature, tuning: Tuning) -> Result<Rendered> {
    let mut form = Form::new(label, tuning);
    match step {
        StepKind::Kernel(kernel) => render_kernel(&mut form, kernel, signature)?,
        StepKind::Library(call) => library::library(&mut form, call, signature)?,
    }
    Ok(form.program.finish())
}

fn render_kernel(form: &mut Form, kernel: &Kernel, signature: &Signature) -> Result<()> {
    let expected = kernel.args.len();
    if signature.args.len() != expected || signature.guarded.len() != expected {
        return Err(Error::bug("cuda", format!("a signature of {} arguments for {expected}", signature.args.len())));
    }
    form.program.flag = body::uses_flag(kernel, signature);
    if kernel.outer() == 0 {
        // Nothing runs.
        return Ok(());
    }
    // Without inner points it matters which axes a value varies along: nothing of points runs.
    let kernel = if kernel.inner() == 0 { kernel.clone() } else { axes::collapse(kernel) };
    let mut body = Body::new(&kernel, signature);
    let pointwise_only = body.passes.iter().all(|p| p.reduces.is_empty()) && body.row_roots.is_empty();
    if kernel.inner() == 1 || pointwise_only && kernel.inner() > 0 {
        // Every axis alike: more of them become one.
        let flat = Kernel { reduced: vec![false; kernel.domain.len()], ..kernel.clone() };
        let flat = axes::collapse(&flat);
        return pointwise::pointwise(form, &mut Body::new(&flat, signature));
    }
    reduce::reduce(form, &mut body)
}
