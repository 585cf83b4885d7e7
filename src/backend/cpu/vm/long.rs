//! Instructions with 64-bit lanes (integers and f64), from memory to memory.

use crate::kernel::{Instr, Ty, meaning};

/// An operand: the first lane and bytes from lane to lane (0 for a word).
pub(super) type Lanes = (*const u8, usize);

/// Writes `instr` of `args` to `lanes` lanes at `into`.
///
/// # Safety
/// Every operand and `into` are valid for `lanes` lanes of their types.
pub(super) unsafe fn run(instr: Instr, args: [Lanes; 3], into: *mut u8, lanes: usize) {
    macro_rules! get {
        ($i:expr, $k:expr, $t:ty) => {
            args[$k].0.add($i * args[$k].1).cast::<$t>().read_unaligned()
        };
    }
    // One loop per instruction, so that each can be vectorised.
    macro_rules! each {
        ($out:ty, $($a:ident: $t:ty),* => $e:expr) => {
            for i in 0..lanes {
                let mut _k = 0;
                $(let $a = get!(i, _k, $t); _k += 1;)*
                into.cast::<$out>().add(i).write_unaligned($e);
            }
        };
    }
    let truth = |b: bool| 0u32.wrapping_sub(b as u32);
    // SAFETY: the caller's contract.
    unsafe {
        match instr {
            Instr::LAdd => each!(i64, a: i64, b: i64 => a.wrapping_add(b)),
            Instr::LSub => each!(i64, a: i64, b: i64 => a.wrapping_sub(b)),
            Instr::LMul => each!(i64, a: i64, b: i64 => a.wrapping_mul(b)),
            Instr::LNeg => each!(i64, a: i64 => a.wrapping_neg()),
            Instr::LMin => each!(i64, a: i64, b: i64 => a.min(b)),
            Instr::LMax => each!(i64, a: i64, b: i64 => a.max(b)),
            Instr::LAnd => each!(i64, a: i64, b: i64 => a & b),
            Instr::LOr => each!(i64, a: i64, b: i64 => a | b),
            Instr::LXor => each!(i64, a: i64, b: i64 => a ^ b),
            Instr::LEq => each!(u32, a: i64, b: i64 => truth(a == b)),
            Instr::LLt => each!(u32, a: i64, b: i64 => truth(a < b)),
            Instr::LSelect => each!(i64, c: u32, a: i64, b: i64 => if c != 0 { a } else { b }),
            Instr::LToF => each!(f32, a: i64 => a as f32),
            Instr::FToL => each!(i64, a: f32 => a as i64),
            Instr::WrapI8 => each!(i64, a: i64 => a as i8 as i64),
            Instr::WrapU8 => each!(i64, a: i64 => a as u8 as i64),
            Instr::WrapI32 => each!(i64, a: i64 => a as i32 as i64),
            Instr::DAdd => each!(f64, a: f64, b: f64 => a + b),
            Instr::DSub => each!(f64, a: f64, b: f64 => a - b),
            Instr::DMul => each!(f64, a: f64, b: f64 => a * b),
            Instr::DDiv => each!(f64, a: f64, b: f64 => a / b),
            Instr::DNeg => each!(u64, a: u64 => a ^ 1 << 63),
            Instr::DAbs => each!(u64, a: u64 => a & !(1 << 63)),
            Instr::DSqrt => each!(f64, a: f64 => a.sqrt()),
            Instr::DMin => each!(f64, a: f64, b: f64 => meaning::minimum_f64(a, b)),
            Instr::DMax => each!(f64, a: f64, b: f64 => -meaning::minimum_f64(-a, -b)),
            Instr::DEq => each!(u32, a: f64, b: f64 => truth(a == b)),
            Instr::DNe => each!(u32, a: f64, b: f64 => truth(a != b)),
            Instr::DLt => each!(u32, a: f64, b: f64 => truth(a < b)),
            Instr::DLe => each!(u32, a: f64, b: f64 => truth(a <= b)),
            Instr::DSelect => each!(u64, c: u32, a: u64, b: u64 => if c != 0 { a } else { b }),
            Instr::FToD => each!(f64, a: f32 => a as f64),
            Instr::DToF => each!(f32, a: f64 => a as f32),
            Instr::LToD => each!(f64, a: i64 => a as f64),
            Instr::DToL => each!(i64, a: f64 => a as i64),
            Instr::LToU => each!(u32, a: i64 => a as u32),
            Instr::UToL => each!(i64, a: u32 => a as i64),
            // The rest are rare: by their reference meaning.
            _ => {
                let types = instr.operands();
                for i in 0..lanes {
                    let mut words = [0u64; 3];
                    for (k, &ty) in types.iter().enumerate() {
                        words[k] = if ty.is_wide() { get!(i, k, u64) } else { get!(i, k, u32) as u64 };
                    }
                    let r = instr.eval(&words);
                    match instr.result() {
                        Ty::I64 | Ty::F64 => into.cast::<u64>().add(i).write_unaligned(r),
                        Ty::Bool => into.cast::<u32>().add(i).write_unaligned(truth(r != 0)),
                        _ => into.cast::<u32>().add(i).write_unaligned(r as u32),
                    }
                }
            }
        }
    }
}
