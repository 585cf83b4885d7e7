//! Matrix products of a plan as calls of the dispatcher.

use std::sync::Arc;

use super::{Isa, Matmul, Strides};
use crate::backend::cpu::threads::Pool;
use crate::backend::dispatch::Call;
use crate::base::dtype::{bf16, f16};
use crate::base::{DType, Error, ErrorKind, Result};
use crate::kernel::library::{self, Library};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// The call of a step that is a matrix product.
pub(in crate::backend::cpu) fn matmul(plan: &Checked, step: usize, isa: Isa, pool: &Arc<Pool>) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let (StepKind::Library(Library::Matmul(product)), &[a, b, c]) = (&step.kind, &step.args[..]) else {
        return Err(Error::bug("cpu", "not a matmul"));
    };
    let call = MatmulCall::new(product, [a, b, c], isa, pool.clone())?;
    // SAFETY: the plan was checked: the slots hold the operands; the call is shared read-only.
    Ok(unsafe { Call::new("run_matmul", run_matmul, call) })
}

/// A matmul with any number of batch axes: the inner ones merged into one, a walk over the others.
struct MatmulCall {
    product: Matmul,
    /// Lengths and strides (of a, b, c) of the outer batch axes, outermost first.
    outer: Vec<(usize, [isize; 3])>,
    /// Elements before the first one of each operand.
    offsets: [isize; 3],
    slots: [u32; 3],
    dtype: DType,
    isa: Isa,
    pool: Arc<Pool>,
}

impl MatmulCall {
    fn new(call: &library::Matmul, slots: [u32; 3], isa: Isa, pool: Arc<Pool>) -> Result<MatmulCall> {
        if !call.dtype.is_float() {
            let detail = format!("dtype {}", call.dtype);
            return Err(Error::new(ErrorKind::Unsupported { op: "matmul".into(), device: "cpu".into(), detail }));
        }
        let operands = [&call.a, &call.b, &call.c];
        let mut axes: Vec<(usize, [isize; 3])> = Vec::new();
        for (axis, &len) in call.batch.iter().enumerate() {
            let strides = operands.map(|o| o.batch[axis] as isize);
            match axes.last_mut() {
                _ if len == 1 => {}
                // Evenly spaced with the axis before: one axis.
                Some((outer, before)) if (0..3).all(|o| before[o] == strides[o] * len as isize) => {
                    *outer *= len;
                    *before = strides;
                }
                _ => axes.push((len, strides)),
            }
        }
        let (batch, step) = axes.pop().unwrap_or((1, [0; 3]));
        let strides =
            |o: usize| Strides { batch: step[o], row: operands[o].row as isize, col: operands[o].col as isize };
        let (a, b, c) = (strides(0), strides(1), strides(2));
        let product = Matmul { batch, m: call.m, k: call.k, n: call.n, a, b, c };
        let offsets = operands.map(|o| o.offset as isize);
        Ok(MatmulCall { product, outer: axes, offsets, slots, dtype: call.dtype, isa, pool })
    }
}

unsafe extern "C" fn run_matmul(call: *const MatmulCall, slots: *const *mut u8, _params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot; a checked
    // plan's operands lie within their slots, and the output apart from the others.
    unsafe {
        let call = &*call;
        let base = call.slots.map(|s| *slots.add(s as usize));
        match call.dtype {
            DType::F64 => call.each::<f64>(base, |a, b, c| call.product.run(call.isa, &call.pool, a, b, c)),
            DType::BF16 => call.each::<bf16>(base, |a, b, c| call.product.run_halves(call.isa, &call.pool, a, b, c)),
            DType::F16 => call.each::<f16>(base, |a, b, c| call.product.run_halves(call.isa, &call.pool, a, b, c)),
            _ => call.each::<f32>(base, |a, b, c| call.product.run(call.isa, &call.pool, a, b, c)),
        }
    }
    0
}

impl MatmulCall {
    /// Calls `product` with the operands' addresses at each point of the outer batch axes.
    ///
    /// # Safety
    /// `base` are the addresses of the slots of a checked plan.
    unsafe fn each<T>(&self, base: [*mut u8; 3], mut product: impl FnMut(*const T, *const T, *mut T)) {
        let outer: usize = self.outer.iter().map(|&(len, _)| len).product();
        for index in 0..outer {
            let mut at = self.offsets;
            let mut left = index;
            for &(len, strides) in self.outer.iter().rev() {
                for (at, stride) in at.iter_mut().zip(strides) {
                    *at += (left % len) as isize * stride;
                }
                left /= len;
            }
            let [a, b, c] = [0, 1, 2].map(|o| base[o].cast::<T>().wrapping_offset(at[o]));
            product(a, b, c);
        }
    }
}
