//! Order along an axis, which is no kernel of the IR: each line's elements become integer keys in the same order, its
//! position in the low bits, so that any sort of them is stable. Lines are split over threads.

use std::sync::Arc;

use crate::backend::cpu::threads::Pool;
use crate::backend::dispatch::Call;
use crate::base::dtype::{bf16, f16};
use crate::base::{DType, Error, Result};
use crate::kernel::library::{Argsort, Library};
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// Estimated nanoseconds of an element for each doubling of its line, and of the least part that pays on a thread.
const ELEMENT_NS: f64 = 3.0;
const PART_NS: f64 = 5000.0;

/// The call of a step that sorts.
pub(in crate::backend::cpu) fn argsort(plan: &Checked, step: usize, pool: &Arc<Pool>) -> Result<Call> {
    let step = &plan.plan().steps[step];
    let (StepKind::Library(Library::Argsort(sort)), &[x, out]) = (&step.kind, &step.args[..]) else {
        return Err(Error::bug("cpu", "not a sort"));
    };
    let line: Line = match sort.dtype {
        DType::F32 => line::<f32>,
        DType::F64 => line::<f64>,
        DType::F16 => line::<f16>,
        DType::BF16 => line::<bf16>,
        DType::I64 => line::<i64>,
        DType::I32 => line::<i32>,
        DType::I8 => line::<i8>,
        DType::U8 | DType::Bool => line::<u8>,
    };
    let [outer, len, inner] = sort.dims;
    let (lines, doublings) = (outer * inner, (len.max(2) as f64).log2());
    let parts = (lines as f64 * len as f64 * doublings * ELEMENT_NS / PART_NS) as usize;
    let parts = pool.threads().min(parts).min(lines).max(1);
    let call = ArgsortCall { sort: sort.clone(), slots: [x, out], line, parts, pool: pool.clone() };
    // SAFETY: the plan was checked: the slots hold the operands; the call is shared read-only.
    Ok(unsafe { Call::new("run_argsort", run_argsort, call) })
}

/// Sorts one line: its first element, the first place of the result, and memory to work in.
type Line = unsafe fn(&Argsort, *const u8, *mut i64, &mut Work);

struct ArgsortCall {
    sort: Argsort,
    slots: [u32; 2],
    line: Line,
    parts: usize,
    pool: Arc<Pool>,
}

/// Keys with positions, short or long ones.
#[derive(Default)]
struct Work {
    short: Vec<u64>,
    long: Vec<u128>,
}

/// The operands' addresses, for all parts.
struct Bases(*const u8, *mut i64);

// SAFETY: the parts write lines apart from each other, and only read what they share.
unsafe impl Sync for Bases {}

unsafe extern "C" fn run_argsort(call: *const ArgsortCall, slots: *const *mut u8, _: *const u64) -> u32 {
    // SAFETY: the dispatcher passes the descriptor that belongs to this entry, and one address per slot.
    let (call, bases) = unsafe {
        let call = &*call;
        let [x, out] = call.slots.map(|s| *slots.add(s as usize));
        (call, Bases(x.cast_const(), out.cast()))
    };
    let (sort, bases) = (&call.sort, &bases);
    let [outer, len, inner] = sort.dims;
    let lines = outer * inner;
    if len == 0 {
        return 0;
    }
    call.pool.run(call.parts, &|part| {
        let mut work = Work::default();
        for l in lines * part / call.parts..lines * (part + 1) / call.parts {
            let (o, i) = (l / inner, l % inner);
            let [before, _, after] = sort.input.strides.map(|s| s as isize);
            let at = sort.input.offset as isize + o as isize * before + i as isize * after;
            let x = bases.0.wrapping_offset(at * sort.dtype.size() as isize);
            let out = bases.1.wrapping_add(o * len * inner + i);
            // SAFETY: a checked plan's operands lie within their slots, the output apart from the input; no two lines
            // share an element of it.
            unsafe { (call.line)(sort, x, out, &mut work) };
        }
    });
    0
}

/// An element as an unsigned integer that orders alike.
trait Key: Copy {
    /// Bits of the key.
    const BITS: u32;
    fn key(self) -> u64;
}

macro_rules! floats {
    ($($ty:ty, $uint:ty, $bits:literal;)*) => { $(impl Key for $ty {
        const BITS: u32 = $bits;
        fn key(self) -> u64 {
            // Zeros alike; every NaN above infinity.
            let bits = if self == 0.0 { 0 } else { self.to_bits() };
            let key = if self.is_nan() {
                <$uint>::MAX
            } else if bits >> ($bits - 1) == 1 {
                !bits
            } else {
                bits | 1 << ($bits - 1)
            };
            key as u64
        }
    })* };
}
floats! {
    f32, u32, 32;
    f64, u64, 64;
}

macro_rules! halves {
    ($($ty:ty),*) => { $(impl Key for $ty {
        const BITS: u32 = 32;
        fn key(self) -> u64 {
            self.to_f32().key()
        }
    })* };
}
halves!(f16, bf16);

macro_rules! integers {
    ($($ty:ty, $uint:ty, $flip:expr;)*) => { $(impl Key for $ty {
        const BITS: u32 = <$ty>::BITS;
        fn key(self) -> u64 {
            (self as $uint ^ $flip) as u64
        }
    })* };
}
integers! {
    i64, u64, 1 << 63;
    i32, u32, 1 << 31;
    i8, u8, 1 << 7;
    u8, u8, 0;
}

/// # Safety
/// The line's elements, as the strides say, are valid, `out`'s for writing.
unsafe fn line<E: Key>(sort: &Argsort, x: *const u8, out: *mut i64, work: &mut Work) {
    let [_, len, inner] = sort.dims;
    let stride = sort.input.strides[1] as isize;
    let flip = if sort.descending { u64::MAX >> (64 - E::BITS) } else { 0 };
    // SAFETY: `j < len`.
    let key = |j: usize| unsafe { (*x.cast::<E>().offset(j as isize * stride)).key() ^ flip };
    // SAFETY: as above.
    let put = |j: usize, from: i64| unsafe { out.add(j * inner).write(from) };
    if E::BITS <= 32 && u32::try_from(len).is_ok() {
        work.short.clear();
        work.short.extend((0..len).map(|j| key(j) << 32 | j as u64));
        work.short.sort_unstable();
        work.short.iter().enumerate().for_each(|(j, &k)| put(j, (k & u32::MAX as u64) as i64));
    } else {
        work.long.clear();
        work.long.extend((0..len).map(|j| (key(j) as u128) << 64 | j as u128));
        work.long.sort_unstable();
        work.long.iter().enumerate().for_each(|(j, &k)| put(j, k as u64 as i64));
    }
}
