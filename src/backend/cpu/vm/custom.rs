//! Users' kernels: the memory of a step as slices, and nothing unwinds from here.

use smallvec::SmallVec;

use crate::backend::dispatch::{Call, KERNEL_FAILED};
use crate::base::dtype::{bf16, f16};
use crate::base::scalar::Origin;
use crate::base::{DType, Error, ErrorKind, Loc, Result, Scalar};
use crate::kernel::custom::{Failure, KernelArgs, Slice, SliceMut, View, ViewMut, fail};
use crate::kernel::library::{Block, Custom, Library};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// The call of a step that is a user's kernel.
pub(in crate::backend::cpu) fn custom(plan: &Checked, step: usize) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let StepKind::Library(Library::Custom(custom)) = &step.kind else {
        return Err(Error::bug("cpu", "not a user's kernel"));
    };
    let kernel = custom.kernel.0;
    if kernel.cpu.is_none() {
        let (op, device) = (kernel.name.to_string(), "cpu".to_string());
        let detail = "it has no kernel for the CPU; give it one with `.cpu(…)`".to_string();
        return Err(Error::new(ErrorKind::Unsupported { op, device, detail }));
    }
    let call = CustomCall {
        custom: custom.clone(),
        slots: step.args.clone(),
        words: step.params.clone(),
        loc: step.locs.first().copied().unwrap_or(Loc::NONE),
    };
    // SAFETY: the plan was checked: the slots hold the arguments, the output apart from the inputs, and there is a word
    // for each parameter; the call is shared read-only, and catches the kernel's panics.
    Ok(unsafe { Call::new("run_custom", run_custom, call) })
}

struct CustomCall {
    custom: Custom,
    slots: Vec<u32>,
    /// The step's parameters in the plan's block.
    words: Vec<u32>,
    /// The user's line.
    loc: Loc,
}

/// A slice of the elements of a block, by its dtype.
macro_rules! slice {
    ($block:expr, $from:path, $variant:ident, $ptr:expr) => {{
        let len = $block.shape.numel();
        let at = $ptr.wrapping_add($block.offset as usize * $block.dtype.size());
        match $block.dtype {
            DType::Bool => $variant::Bool($from(at.cast::<bool>(), len)),
            DType::U8 => $variant::U8($from(at.cast::<u8>(), len)),
            DType::I8 => $variant::I8($from(at.cast::<i8>(), len)),
            DType::I32 => $variant::I32($from(at.cast::<i32>(), len)),
            DType::I64 => $variant::I64($from(at.cast::<i64>(), len)),
            DType::F16 => $variant::F16($from(at.cast::<f16>(), len)),
            DType::BF16 => $variant::BF16($from(at.cast::<bf16>(), len)),
            DType::F32 => $variant::F32($from(at.cast::<f32>(), len)),
            DType::F64 => $variant::F64($from(at.cast::<f64>(), len)),
        }
    }};
}

unsafe extern "C" fn run_custom(call: *const CustomCall, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, one address per slot and one word per
    // parameter. A checked plan's blocks lie within their slots, aligned to their elements (buffers are to 64 bytes, and views begin at
    // whole elements), written before; truth values are 0 or 1. The output is apart from the inputs, and its bytes are zeroed before
    // they are seen as elements, of which zero bits are one in every dtype.
    unsafe {
        let call = &*call;
        let Custom { kernel, inputs, output, scalars } = &call.custom;
        let address = |k: usize| *slots.add(call.slots[k] as usize);
        let view = |(k, b): (usize, &Block)| {
            View::new(b.shape, slice!(b, std::slice::from_raw_parts, Slice, address(k).cast_const()))
        };
        let views: SmallVec<[View<'_>; 4]> = inputs.iter().enumerate().map(view).collect();
        let out = address(inputs.len());
        out.wrapping_add(output.offset as usize * output.dtype.size())
            .write_bytes(0, output.shape.numel() * output.dtype.size());
        let filled = slice!(output, std::slice::from_raw_parts_mut, SliceMut, out);
        let value = |s: &Scalar| match s.origin {
            Origin::Param(k) => {
                let bits = *params.add(call.words[k as usize] as usize);
                Scalar { bits, origin: Origin::Host, ..*s }
            }
            _ => *s,
        };
        let scalars: SmallVec<[Scalar; 4]> = scalars.iter().map(value).collect();
        let mut args = KernelArgs { inputs: &views, output: ViewMut::new(output.shape, filled), scalars: &scalars };
        match kernel.0.run(&mut args) {
            Ok(()) => 0,
            Err(detail) => {
                fail(Failure { op: kernel.0.name, detail, loc: call.loc });
                1 | KERNEL_FAILED
            }
        }
    }
}
