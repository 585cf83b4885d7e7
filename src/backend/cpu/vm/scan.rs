//! Running results along an axis, which are no kernel of the IR: lines are independent, so they are computed several at a
//! time and split over threads; each is a chain in the axis's order.

use std::sync::Arc;

use crate::backend::cpu::threads::Pool;
use crate::backend::dispatch::Call;
use crate::base::dtype::{bf16, f16};
use crate::base::{DType, Error, ErrorKind, Result};
use crate::kernel::library::{Library, Scan, ScanKind};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// Neighbouring lines computed together: enough to fill registers.
const WIDE: usize = 32;
/// Lines far apart computed together: enough to hide an addition's latency, few enough to stay apart in a cache's sets.
const FEW: usize = 4;
/// Estimated nanoseconds of an element, and of the least part that pays on a thread.
const ELEMENT_NS: f64 = 0.6;
const PART_NS: f64 = 3000.0;

/// The call of a step that is a scan.
pub(in crate::backend::cpu) fn scan(plan: &Checked, step: usize, pool: &Arc<Pool>) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let StepKind::Library(Library::Scan(scan)) = &step.kind else { return Err(Error::bug("cpu", "not a scan")) };
    let slots = match step.args[..] {
        [x, out] if scan.kind.inputs() == 1 => [x, x, out],
        [factor, x, out] if scan.kind.inputs() == 2 => [factor, x, out],
        _ => return Err(Error::bug("cpu", "a scan with other operands")),
    };
    let run: Run = match scan.dtype {
        DType::F32 => run_block::<f32>,
        DType::F64 => run_block::<f64>,
        DType::F16 => run_block::<f16>,
        DType::BF16 => run_block::<bf16>,
        DType::I64 => run_block::<i64>,
        DType::I32 => run_block::<i32>,
        DType::I8 => run_block::<i8>,
        DType::U8 => run_block::<u8>,
        DType::Bool => {
            let (op, device) = ("scan".into(), "cpu".into());
            return Err(Error::new(ErrorKind::Unsupported { op, device, detail: "dtype bool".into() }));
        }
    };
    let call = ScanCall::new(scan, slots, run, pool);
    // SAFETY: the plan was checked: the slots hold the operands; the call is shared read-only.
    Ok(unsafe { Call::new("run_scan", run_scan, call) })
}

/// Lines `first..first + count` of those that share everything but the last coordinate; bases of factor, x and out.
type Run = unsafe fn(&ScanCall, [*mut u8; 3], usize, usize);

struct ScanCall {
    kind: ScanKind,
    len: usize,
    /// Lengths of the axes across the lines: those before, those computed together.
    outer: usize,
    across: usize,
    /// Of factor, x and out: elements before the first one computed, and strides before, along (in the order of
    /// computation) and across.
    operands: [(isize, [isize; 3]); 3],
    slots: [u32; 3],
    /// Lines computed together.
    width: usize,
    parts: usize,
    run: Run,
    pool: Arc<Pool>,
}

impl ScanCall {
    fn new(scan: &Scan, slots: [u32; 3], run: Run, pool: &Arc<Pool>) -> ScanCall {
        let [outer, len, inner] = scan.dims;
        let input = |l: &crate::kernel::library::Lines| (l.offset as isize, l.strides.map(|s| s as isize));
        let out = (0, [(len * inner) as isize, inner as isize, 1]);
        let inputs: Vec<(isize, [isize; 3])> = scan.inputs.iter().map(input).collect();
        let zero = (0, [0; 3]);
        let last = inputs.last().copied().unwrap_or(zero);
        let mut operands = [inputs.first().copied().unwrap_or(zero), last, out];
        for (offset, strides) in &mut operands {
            if scan.reverse {
                *offset += len.saturating_sub(1) as isize * strides[1];
                strides[1] = -strides[1];
            }
            if inner == 1 {
                // Whole rows: several of them side by side.
                strides.swap(0, 2);
            }
        }
        let (outer, across, width) = if inner == 1 { (1, outer, FEW) } else { (outer, inner, WIDE) };
        let cost = (outer * len * across) as f64 * ELEMENT_NS;
        let blocks = outer * across.div_ceil(width);
        let parts = pool.threads().min((cost / PART_NS) as usize).min(blocks).max(1);
        ScanCall { kind: scan.kind, len, outer, across, operands, slots, width, parts, run, pool: pool.clone() }
    }
}

/// The operands' addresses, for all parts.
struct Bases([*mut u8; 3]);

// SAFETY: the parts write apart from each other, and only read what they share.
unsafe impl Sync for Bases {}

unsafe extern "C" fn run_scan(call: *const ScanCall, slots: *const *mut u8, _: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot.
    let (call, bases) = unsafe {
        let call = &*call;
        (call, Bases(call.slots.map(|s| *slots.add(s as usize))))
    };
    if call.len == 0 {
        return 0;
    }
    let blocks = call.across.div_ceil(call.width);
    let all = call.outer * blocks;
    let bases = &bases;
    call.pool.run(call.parts, &|part| {
        for unit in all * part / call.parts..all * (part + 1) / call.parts {
            // SAFETY: a checked plan's operands lie within their slots, the output apart from the inputs; no two blocks share
            // an element of it.
            unsafe { (call.run)(call, bases.0, unit / blocks, unit % blocks * call.width) };
        }
    });
    0
}

/// An element, and the lane it is computed in.
trait Cell: Copy {
    type Lane: Lane;
    fn load(self) -> Self::Lane;
    fn store(lane: Self::Lane) -> Self;
}

trait Lane: Copy + Default {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
}

macro_rules! lanes {
    ($($ty:ty: $a:ident, $b:ident => $add:expr, $mul:expr;)*) => { $(
        impl Cell for $ty {
            type Lane = $ty;
            fn load(self) -> $ty {
                self
            }
            fn store(lane: $ty) -> $ty {
                lane
            }
        }
        impl Lane for $ty {
            fn add(self, other: $ty) -> $ty {
                let ($a, $b) = (self, other);
                $add
            }
            fn mul(self, other: $ty) -> $ty {
                let ($a, $b) = (self, other);
                $mul
            }
        }
    )* };
}
lanes! {
    f32: a, b => a + b, a * b;
    f64: a, b => a + b, a * b;
    i64: a, b => a.wrapping_add(b), a.wrapping_mul(b);
    i32: a, b => a.wrapping_add(b), a.wrapping_mul(b);
    i8: a, b => a.wrapping_add(b), a.wrapping_mul(b);
    u8: a, b => a.wrapping_add(b), a.wrapping_mul(b);
}

/// 16-bit floats go on in f32; each result is rounded once.
macro_rules! halves {
    ($($ty:ty),*) => { $(impl Cell for $ty {
        type Lane = f32;
        fn load(self) -> f32 {
            self.to_f32()
        }
        fn store(lane: f32) -> $ty {
            <$ty>::from_f32(lane)
        }
    })* };
}
halves!(f16, bf16);

/// # Safety
/// The bases are those of the call's operands; `outer` and `first` are coordinates of it.
unsafe fn run_block<E: Cell>(call: &ScanCall, bases: [*mut u8; 3], outer: usize, first: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match call.kind {
            ScanKind::Sum => block::<E>(call, bases, outer, first, |before, _, x| before.add(x)),
            ScanKind::Product => block::<E>(call, bases, outer, first, |before, _, x| before.mul(x)),
            ScanKind::Recurrence => block::<E>(call, bases, outer, first, |before, f, x| f.mul(before).add(x)),
        }
    }
}

/// # Safety
/// As [`run_block`].
unsafe fn block<E: Cell>(
    call: &ScanCall,
    bases: [*mut u8; 3],
    outer: usize,
    first: usize,
    step: impl Fn(E::Lane, E::Lane, E::Lane) -> E::Lane,
) {
    let count = call.width.min(call.across - first);
    let start = |k: usize| {
        let (offset, s) = call.operands[k];
        bases[k].cast::<E>().wrapping_offset(offset + outer as isize * s[0] + first as isize * s[2])
    };
    let (factor, x, out) = (start(0).cast_const(), start(1).cast_const(), start(2));
    let strides = [0, 1, 2].map(|k| call.operands[k].1);
    let mut before = [E::Lane::default(); WIDE];
    let dense = count == WIDE && strides.iter().all(|s| s[2] == 1);
    for j in 0..call.len as isize {
        let (factor, x) = (factor.wrapping_offset(j * strides[0][1]), x.wrapping_offset(j * strides[1][1]));
        let out = out.wrapping_offset(j * strides[2][1]);
        // SAFETY: all coordinates are in range; `dense`: a block's elements follow each other.
        unsafe {
            if dense {
                let (f, v) = (*factor.cast::<[E; WIDE]>(), *x.cast::<[E; WIDE]>());
                for i in 0..WIDE {
                    let v = v[i].load();
                    before[i] = if j == 0 { v } else { step(before[i], f[i].load(), v) };
                }
                *out.cast::<[E; WIDE]>() = before.map(E::store);
            } else {
                for (i, before) in before.iter_mut().enumerate().take(count) {
                    let i = i as isize;
                    let v = (*x.offset(i * strides[1][2])).load();
                    let f = (*factor.offset(i * strides[0][2])).load();
                    *before = if j == 0 { v } else { step(*before, f, v) };
                    *out.offset(i * strides[2][2]) = E::store(*before);
                }
            }
        }
    }
}
