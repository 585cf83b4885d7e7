//! Kernels by the reference interpreter: the stand-in until the vector machine runs them.

#![allow(unsafe_code)]

use crate::backend::dispatch::Call;
use crate::kernel::Kernel;
use crate::kernel::eval::{self, Memory};

struct KernelCall {
    kernel: Kernel,
    args: Vec<u32>,
    params: Vec<u32>,
}

/// The call of `kernel` on the slots `args` with the parameter words `params`.
///
/// # Safety
/// `args` must name slots of the plan that are large enough for the kernel's, as a checked plan's are.
pub(super) unsafe fn call(kernel: &Kernel, args: &[u32], params: &[u32]) -> Call {
    let call = KernelCall { kernel: kernel.clone(), args: args.to_vec(), params: params.to_vec() };
    // SAFETY: the slots hold the arguments, by the caller's promise.
    unsafe { Call::new("run_reference", run_reference, call) }
}

unsafe extern "C" fn run_reference(call: *const KernelCall, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, one address per slot, one
    // word per parameter; a checked plan's arguments lie within their slots.
    unsafe {
        let call = &*call;
        let words: Vec<u64> = call.params.iter().map(|&w| *params.add(w as usize)).collect();
        // Copies, since an output may share its memory with an input.
        let mut copies: Vec<Vec<u8>> = Vec::new();
        for (arg, &slot) in call.kernel.args.iter().zip(&call.args) {
            let address: *mut u8 = *slots.add(slot as usize);
            copies.push(std::slice::from_raw_parts(address, arg.len * arg.dtype.size()).to_vec());
        }
        let mut memory: Vec<Memory> = Vec::new();
        for (arg, copy) in call.kernel.args.iter().zip(&mut copies) {
            memory.push(if arg.output { Memory::Out(copy) } else { Memory::In(copy) });
        }
        let flag = eval::run(&call.kernel, &words, &mut memory).unwrap_or(true);
        for (i, (arg, copy)) in call.kernel.args.iter().zip(&copies).enumerate() {
            if arg.output {
                std::ptr::copy_nonoverlapping(copy.as_ptr(), *slots.add(call.args[i] as usize), copy.len());
            }
        }
        flag as u32
    }
}
