//! Scatter-add, which is no kernel of the IR: rows are added in a fixed order, so it stays on one thread.

use std::cell::RefCell;

use crate::backend::dispatch::Call;
use crate::base::dtype::{bf16, f16};
use crate::base::{DType, Error, ErrorKind, Result};
use crate::kernel::library::{Library, ScatterAdd};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// The call of a step that is a scatter-add.
pub(in crate::backend::cpu) fn scatter_add(plan: &Checked, step: usize) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let (StepKind::Library(Library::ScatterAdd(scatter)), &[index, src, out]) = (&step.kind, &step.args[..]) else {
        return Err(Error::bug("cpu", "not a scatter-add"));
    };
    if scatter.dtype == DType::Bool {
        let (op, device) = ("scatter_add".into(), "cpu".into());
        return Err(Error::new(ErrorKind::Unsupported { op, device, detail: "dtype bool".into() }));
    }
    let call = ScatterAddCall { scatter: scatter.clone(), slots: [index, src, out] };
    // SAFETY: the plan was checked: the slots hold the operands; the call is shared read-only.
    Ok(unsafe { Call::new("run_scatter_add", run_scatter_add, call) })
}

struct ScatterAddCall {
    scatter: ScatterAdd,
    slots: [u32; 3],
}

unsafe extern "C" fn run_scatter_add(call: *const ScatterAddCall, slots: *const *mut u8, _params: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot;
    // a checked plan's operands lie within their slots, the output apart from the others.
    unsafe {
        let call = &*call;
        let [index, src, out] = call.slots.map(|s| *slots.add(s as usize));
        let s = &call.scatter;
        let index = index.cast();
        let flag = match s.dtype {
            DType::F32 => add_rows::<f32, f32>(s, index, src.cast(), out.cast(), |a, b| a + b),
            DType::F64 => add_rows::<f64, f64>(s, index, src.cast(), out.cast(), |a, b| a + b),
            DType::I64 => add_rows::<i64, i64>(s, index, src.cast(), out.cast(), i64::wrapping_add),
            DType::I32 => add_rows::<i32, i32>(s, index, src.cast(), out.cast(), i32::wrapping_add),
            DType::I8 => add_rows::<i8, i8>(s, index, src.cast(), out.cast(), i8::wrapping_add),
            DType::U8 | DType::Bool => add_rows::<u8, u8>(s, index, src.cast(), out.cast(), u8::wrapping_add),
            DType::F16 => by_way_of_f32::<f16>(s, index, src.cast(), out.cast(), f16::to_f32, f16::from_f32),
            DType::BF16 => by_way_of_f32::<bf16>(s, index, src.cast(), out.cast(), bf16::to_f32, bf16::from_f32),
        };
        flag as u32
    }
}

thread_local! {
    /// Sums on their way to a 16-bit result.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// [`add_rows`] of 16-bit floats: the sums are made in f32 and rounded once.
///
/// # Safety
/// As [`add_rows`].
unsafe fn by_way_of_f32<T: Copy>(
    s: &ScatterAdd,
    index: *const i64,
    src: *const T,
    out: *mut T,
    widen: fn(T) -> f32,
    round: fn(f32) -> T,
) -> bool {
    let n = s.outer * s.len * s.inner;
    SUMS.with_borrow_mut(|sums| {
        sums.clear();
        sums.resize(n, 0.0);
        // SAFETY: the same contract; the sums are as many as the output's elements.
        unsafe {
            let flag = add_rows(s, index, src, sums.as_mut_ptr(), |sum, v| sum + widen(v));
            for (i, &sum) in sums.iter().enumerate() {
                out.add(i).write(round(sum));
            }
            flag
        }
    })
}

/// Returns whether an index was out of range.
///
/// # Safety
/// `index`, `src` and `out` must be valid for the elements that the strides name, `out` for writing and apart.
unsafe fn add_rows<T: Copy, S: Copy + Default>(
    s: &ScatterAdd,
    index: *const i64,
    src: *const T,
    out: *mut S,
    add: impl Fn(S, T) -> S,
) -> bool {
    let mut flag = false;
    // SAFETY: every element is named by the strides or lies in the contiguous output (indices are clamped).
    unsafe {
        for i in 0..s.outer * s.len * s.inner {
            out.add(i).write(S::default());
        }
        if s.len == 0 {
            return s.outer * s.count * s.inner > 0;
        }
        for o in 0..s.outer {
            for j in 0..s.count {
                let index = index.offset(o as isize * s.index[0] as isize + j as isize * s.index[1] as isize);
                let src = src.offset(o as isize * s.src[0] as isize + j as isize * s.src[1] as isize);
                let row = |at: i64| out.add((o * s.len + at.clamp(0, s.len as i64 - 1) as usize) * s.inner);
                if s.index[2] == 0 && s.inner > 0 {
                    // One index for the whole row (an embedding's gradient).
                    let at = *index;
                    flag |= !(0..s.len as i64).contains(&at);
                    let to = row(at);
                    for i in 0..s.inner {
                        *to.add(i) = add(*to.add(i), *src.offset(i as isize * s.src[2] as isize));
                    }
                } else {
                    for i in 0..s.inner {
                        let at = *index.offset(i as isize * s.index[2] as isize);
                        flag |= !(0..s.len as i64).contains(&at);
                        let to = row(at).add(i);
                        *to = add(*to, *src.offset(i as isize * s.src[2] as isize));
                    }
                }
            }
        }
    }
    flag
}
