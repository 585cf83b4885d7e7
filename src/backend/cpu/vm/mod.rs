//! The vector machine: compiles a [`Kernel`] to a small program and runs it on one thread.
//!
//! A program works on tiles of 128 lanes. [`space`] chooses which points of the domain share a tile, [`lower`]
//! and [`emit`] schedule the body into machine code and spills, [`code`] and [`threaded`] execute it with
//! one instance per instruction set, [`drive`] loops over tiles and combines reductions, [`memory`] does the
//! accesses that are not contiguous, [`long`] the 64-bit lanes; `scan`, `sort`, `scatter_add` and `scatter_index` are the calls
//! along an axis, which are no programs. May rely on `base` and `kernel`;
//! guarantees the bits of [`crate::kernel::eval`] (NaN payloads excepted) for every instruction set and any
//! number of parts. The launcher sets the floating-point control word.

#![allow(unsafe_code)]

mod call;
mod code;
mod custom;
mod drive;
mod emit;
mod isa;
mod long;
mod lower;
mod memory;
mod program;
mod scan;
mod scatter_add;
mod scatter_index;
mod simd;
mod sort;
mod space;
#[cfg(test)]
mod tests;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports, unused_macros))]
mod threaded;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(in crate::backend::cpu) use call::kernel;
pub(in crate::backend::cpu) use custom::custom;
pub use isa::Isa;
pub use program::Program;
pub(in crate::backend::cpu) use scan::scan;
pub(in crate::backend::cpu) use scatter_add::scatter_add;
pub(in crate::backend::cpu) use scatter_index::scatter_index;
pub(in crate::backend::cpu) use sort::argsort;

use crate::base::Result;
use crate::kernel::Kernel;

/// Estimated time below which splitting does not pay, per part.
const PART_NS: f64 = 1500.0;

impl Program {
    /// Compiles a kernel that [`Kernel::verify`] accepts. Takes microseconds.
    pub fn compile(kernel: &Kernel, isa: Isa) -> Result<Program> {
        lower::compile(kernel, isa)
    }

    /// The instruction set it was compiled for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Where [`Program::run`] finds things: argument `i` is slot `slots[i]`, parameter `i` is word `words[i]`.
    /// Without a binding they are in the kernel's own order.
    pub fn bind(&mut self, slots: &[u32], words: &[u32]) {
        debug_assert_eq!((slots.len(), words.len()), (self.arg_slots.len(), self.param_words.len()));
        self.arg_slots = slots.to_vec();
        self.param_words = words.to_vec();
    }

    /// Estimated nanoseconds of a run on one thread.
    pub fn cost_ns(&self) -> f64 {
        self.cost_ns
    }

    /// Into how many parts a run is usefully split for `threads` threads; 1 is not at all.
    pub fn parts(&self, threads: usize) -> usize {
        let most = (self.cost_ns / PART_NS) as usize;
        threads.min(most).min(self.units()).max(1)
    }

    /// Runs part `part` of `parts`; true if an index was out of range. Parts touch disjoint outputs and may
    /// run at the same time, in any order.
    ///
    /// # Safety
    /// Each slot the binding names points to memory valid for the kernel's argument (`len` elements of its
    /// dtype, exclusively for outputs, except that an output may be an input accessed at the same element), each
    /// bound word of `params` is valid and within the parameter's range. `part < parts`.
    pub unsafe fn run(&self, slots: *const *mut u8, params: *const u64, part: usize, parts: usize) -> bool {
        // SAFETY: the same contract.
        unsafe { self.drive(slots, params, part, parts) }
    }
}

/// Runs a whole program on the calling thread, for compiled dispatch; 1 if an index was out of range.
///
/// # Safety
/// `program` is valid; the rest as [`Program::run`].
pub unsafe extern "C" fn run_program(program: *const Program, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { (*program).run(slots, params, 0, 1) as u32 }
}
