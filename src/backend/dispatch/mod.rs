//! Host dispatch: what a launch does on the host besides the work of its kernels.
//!
//! A [`Script`] is derived from a plan once: guards on inputs and parameters, the address of each slot,
//! where each output goes, then one [`Call`] per step. Two dispatchers run it, with the same
//! results: [`compile`] turns it into straight-line machine code, [`interpret`] walks over it (other
//! targets, eager plans of one op, and the oracle of the first). Both backends use it; it knows neither.
//!
//! Relies on [`Checked`](crate::plan::check::Checked) plans, so that slots are in bounds once the guards hold. Guarantees:
//! a launch whose inputs do not fit, or that finds no memory for its outputs, is an error before any call was made
//! (but for the spare output that a bad index asks for in the middle: see [`script`]).

#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", unix))]
pub mod arena;
#[cfg(all(target_arch = "x86_64", unix))]
pub mod compile;
pub mod interpret;
mod rehearsal;
pub mod script;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::backend::{Buffer, Launch, LaunchResult};
use crate::base::{Error, Layout, Result};
use crate::kernel::custom::take_failure;
pub use rehearsal::Rehearsal;
pub use script::{Call, Entry, Script};

/// An input as the dispatchers see it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bound {
    address: *mut u8,
    bytes: usize,
    layout: *const Layout,
    dtype: u32,
    exclusive: u32,
}

/// What a dispatcher works on during one launch.
#[repr(C)]
pub struct Frame {
    /// One per input.
    bound: *const Bound,
    /// One word per parameter of the plan.
    params: *const u64,
    /// Room for one address per slot.
    slots: *mut *mut u8,
    arena: *mut u8,
    /// Makes the buffer of an output that owns its storage (by its position among those); null: no memory.
    alloc: extern "C" fn(*mut c_void, u32) -> *mut u8,
    /// First argument of `alloc`.
    context: *mut c_void,
    /// Out: the index flags of all calls, or-ed.
    flags: u32,
}

/// In a call's flag: a user's kernel failed ([`crate::kernel::custom`] says how).
pub const KERNEL_FAILED: u32 = 2;

/// How a dispatcher ended.
pub const DONE: u32 = 0;
/// An input or parameter did not fit; nothing was done.
pub const MISFIT: u32 = 1;
/// No memory for an output; no call was made.
pub const NO_MEMORY: u32 = 2;

/// What dispatch needs of a backend's memory.
///
/// # Safety
/// Addresses must be valid for as many bytes as the buffer says (or was asked for), as long as the buffer lives, and
/// be what the plan's calls work on; a lease's memory must be as long as asked for, aligned to 64 bytes, and
/// used by nothing else while the lease lives.
pub unsafe trait Host {
    /// Arena memory for one launch.
    type Lease<'a>: Lease
    where
        Self: 'a;
    /// The address that kernels see of a buffer; `None` if the buffer is not of this backend.
    fn address(&self, buffer: &Buffer) -> Option<*mut u8>;
    /// A new buffer and its (non-null) address.
    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)>;
    /// Memory for the values of one launch.
    fn arena(&self, bytes: usize) -> Result<Self::Lease<'_>>;
}

/// Memory that is returned when the lease is dropped.
pub trait Lease {
    /// Its first byte.
    fn start(&self) -> *mut u8;
}

/// A script with the dispatcher that runs it.
pub struct Dispatcher {
    script: Script,
    #[cfg(all(target_arch = "x86_64", unix))]
    code: Option<compile::Code>,
}

/// Which dispatcher to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Machine code; the interpreter where code cannot be made.
    Compiled,
    /// The interpreter.
    Loop,
}

impl Dispatcher {
    /// A dispatcher for `script`.
    pub fn new(script: Script, mode: Mode) -> Dispatcher {
        #[cfg(all(target_arch = "x86_64", unix))]
        let code = match mode {
            Mode::Loop => None,
            Mode::Compiled => compile::compile(&script)
                .inspect_err(
                    |e| tracing::warn!(plan = script.name(), error = %e, "falling back to the loop dispatcher"),
                )
                .ok(),
        };
        #[cfg(not(all(target_arch = "x86_64", unix)))]
        let _ = mode;
        Dispatcher {
            script,
            #[cfg(all(target_arch = "x86_64", unix))]
            code,
        }
    }

    /// What it runs.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Whether it is machine code.
    pub fn is_compiled(&self) -> bool {
        #[cfg(all(target_arch = "x86_64", unix))]
        return self.code.is_some();
        #[cfg(not(all(target_arch = "x86_64", unix)))]
        return false;
    }

    /// One launch.
    #[inline]
    pub fn launch<H: Host>(&self, host: &H, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        self.launch_timed(host, launch, None)
    }

    /// One launch; with `times`, which gets the label and the time of each call, it goes through the interpreter.
    #[inline]
    pub fn launch_timed<H: Host>(
        &self,
        host: &H,
        launch: &mut Launch<'_>,
        times: Option<&mut Vec<(String, Duration)>>,
    ) -> Result<LaunchResult> {
        let script = &self.script;
        if launch.inputs.len() != script.inputs.len() || launch.params.len() != script.params {
            return Err(script.miscounted(launch));
        }
        let mut bound: SmallVec<[Bound; 24]> = SmallVec::with_capacity(launch.inputs.len());
        for (i, input) in launch.inputs.iter().enumerate() {
            let Some(address) = host.address(input.buffer) else { return Err(script.foreign(i)) };
            // Where in its buffer a view begins is no part of the plan: kernels get the address that makes up for it.
            let moved = script.moved(i, input);
            bound.push(Bound {
                address: address.wrapping_add(moved.unwrap_or(0)),
                bytes: moved.map_or(0, |m| input.buffer.bytes().saturating_sub(m)),
                layout: input.layout,
                dtype: input.dtype as u32,
                exclusive: input.exclusive as u32,
            });
        }
        // The table is written before it is read, so it needs no contents yet.
        let mut slots: SmallVec<[*mut u8; 64]> = SmallVec::with_capacity(script.slots.len());
        let lease = host.arena(script.arena_bytes)?;
        launch.outputs.clear();
        launch.outputs.resize(script.all_outputs, None);
        let mut context = Context { host, script, outputs: launch.outputs, error: None };
        let mut frame = Frame {
            bound: bound.as_ptr(),
            params: launch.params.as_ptr(),
            slots: slots.as_mut_ptr(),
            arena: lease.start(),
            alloc: alloc::<H>,
            context: (&raw mut context).cast(),
            flags: 0,
        };
        // SAFETY: the frame is filled as its fields say, with addresses that the host vouches for; the plan was checked.
        let status = unsafe {
            match times {
                None => self.run(&mut frame),
                Some(times) => self.run_timed(&mut frame, times),
            }
        };
        drop(lease);
        let (flags, error) = (frame.flags, context.error.take());
        if status != DONE {
            launch.outputs.clear();
            // What failed in a launch that gave nothing is not told.
            take_failure();
            return Err(match error {
                Some(error) => error,
                None => script.misfit(launch),
            });
        }
        let mut in_place = 0;
        for output in &script.outputs {
            let place = &mut launch.outputs[output.position as usize];
            if place.is_none()
                && let Some(input) = output.in_place
            {
                *place = Some(launch.inputs[input as usize].buffer.clone());
                in_place += 1;
            }
        }
        Ok(LaunchResult {
            index_flag: flags != 0,
            kernel_failed: flags & KERNEL_FAILED != 0,
            in_place,
            moved: 0,
            pending: None,
        })
    }

    #[inline]
    unsafe fn run(&self, frame: &mut Frame) -> u32 {
        #[cfg(all(target_arch = "x86_64", unix))]
        if let Some(code) = &self.code {
            // SAFETY: the caller's promise.
            return unsafe { code.call(frame) };
        }
        // SAFETY: the caller's promise.
        unsafe { interpret::run(&self.script, frame, |_| ()) }
    }

    unsafe fn run_timed(&self, frame: &mut Frame, times: &mut Vec<(String, Duration)>) -> u32 {
        let mut ends = Vec::with_capacity(self.script.calls());
        let mut start = Instant::now();
        // SAFETY: the caller's promise.
        let status = unsafe { interpret::run(&self.script, frame, |call| ends.push((call, Instant::now()))) };
        for (call, end) in ends {
            times.push((self.script.step_name(call), end - start));
            start = end;
        }
        status
    }

    /// The script and, where this target has one, the machine code it becomes for fixed flags.
    pub fn listing(&self) -> String {
        let mut text = self.script.to_string();
        #[cfg(all(target_arch = "x86_64", unix))]
        match compile::listing(&self.script) {
            Ok(code) => text += &code,
            Err(e) => text += &format!("; {e}\n"),
        }
        text
    }
}

struct Context<'a, H> {
    host: &'a H,
    script: &'a Script,
    outputs: &'a mut Vec<Option<Buffer>>,
    error: Option<Error>,
}

/// [`Frame::alloc`].
extern "C" fn alloc<H: Host>(context: *mut c_void, output: u32) -> *mut u8 {
    // SAFETY: `launch` put a `Context` of this type there, which nothing else uses during the run.
    let context = unsafe { &mut *context.cast::<Context<'_, H>>() };
    let output = &context.script.outputs[output as usize];
    match context.host.alloc(output.bytes) {
        Ok((buffer, address)) => {
            context.outputs[output.position as usize] = Some(buffer);
            address
        }
        Err(error) => {
            context.error = Some(error);
            std::ptr::null_mut()
        }
    }
}
