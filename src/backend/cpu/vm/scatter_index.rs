//! Where a scatter writes, turned round, which is no kernel of the IR: the last writer wins, so it stays on one thread.

use crate::backend::dispatch::Call;
use crate::base::{Error, Result};
use crate::kernel::library::{Library, ScatterIndex};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// The call of a step that turns indices round.
pub(in crate::backend::cpu) fn scatter_index(plan: &Checked, step: usize) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let (StepKind::Library(Library::ScatterIndex(scatter)), &[index, out]) = (&step.kind, &step.args[..]) else {
        return Err(Error::bug("cpu", "not a scatter index"));
    };
    let call = ScatterIndexCall { scatter: scatter.clone(), slots: [index, out] };
    // SAFETY: the plan was checked: the slots hold the operands; the call is shared read-only.
    Ok(unsafe { Call::new("run_scatter_index", run_scatter_index, call) })
}

struct ScatterIndexCall {
    scatter: ScatterIndex,
    slots: [u32; 2],
}

/// 1 if an index was out of range.
unsafe extern "C" fn run_scatter_index(call: *const ScatterIndexCall, slots: *const *mut u8, _: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot; a checked
    // plan's operands lie within their slots, the output apart from the index. Indices are clamped to the output.
    unsafe {
        let call = &*call;
        let s = &call.scatter;
        let [outer, count, inner] = s.dims;
        let [index, out] = call.slots.map(|slot| (*slots.add(slot as usize)).cast::<i64>());
        let (index, strides) =
            (index.cast_const().offset(s.index.offset as isize), s.index.strides.map(|v| v as isize));
        for i in 0..outer * s.len * inner {
            out.add(i).write(-1);
        }
        if s.len == 0 {
            return (outer * count * inner > 0) as u32;
        }
        let mut flag = false;
        for o in 0..outer {
            for j in 0..count {
                let row = index.offset(o as isize * strides[0] + j as isize * strides[1]);
                for i in 0..inner {
                    let at = *row.offset(i as isize * strides[2]);
                    flag |= !(0..s.len as i64).contains(&at);
                    let at = at.clamp(0, s.len as i64 - 1) as usize;
                    out.add((o * s.len + at) * inner + i).write(j as i64);
                }
            }
        }
        flag as u32
    }
}
