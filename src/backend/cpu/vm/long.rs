//! Instructions with 64-bit lanes (integers and f64), from memory to memory.
//!
//! The loops are compiled once per instruction set: plain Rust over contiguous lanes or one word for all, which the compiler
//! vectorises. Nothing is contracted or re-associated, so all have the same bits.

use crate::kernel::{Instr, Ty, meaning};

/// An operand: the first lane and bytes from lane to lane (0 for a word).
pub(super) type Lanes = (*const u8, usize);

/// Writes `instr` of `args` to `lanes` lanes at `into`, which may be one of the operands' tiles.
///
/// # Safety
/// Every operand and `into` are valid for `lanes` lanes of their types; the CPU has the features of the instance.
pub(super) type Long = unsafe fn(instr: Instr, args: [Lanes; 3], into: *mut u8, lanes: usize);

/// Lanes read before any is written: the compiler then need not fear that a result overwrites what it still reads.
const CHUNK: usize = 16;

/// Lanes `i..` of an operand.
///
/// # Safety
/// `N` lanes from `i` on are valid, or the operand is a word.
#[inline(always)]
unsafe fn lanes_at<T: Copy, const N: usize>(a: Lanes, i: usize) -> [T; N] {
    // SAFETY: the caller's contract.
    unsafe {
        if a.1 == 0 {
            [a.0.cast::<T>().read_unaligned(); N]
        } else {
            a.0.cast::<T>().add(i).cast::<[T; N]>().read_unaligned()
        }
    }
}

/// `into[i] = f(a[i], b[i], c[i])`.
///
/// # Safety
/// As [`Long`].
#[inline(always)]
unsafe fn three<A: Copy, B: Copy, C: Copy, O: Copy>(
    [a, b, c]: [Lanes; 3],
    into: *mut u8,
    lanes: usize,
    f: impl Fn(A, B, C) -> O,
) {
    let out = into.cast::<O>();
    // SAFETY: the caller's contract.
    unsafe {
        let whole = lanes / CHUNK * CHUNK;
        for i in (0..whole).step_by(CHUNK) {
            let (a, b, c) = (lanes_at::<A, CHUNK>(a, i), lanes_at::<B, CHUNK>(b, i), lanes_at::<C, CHUNK>(c, i));
            let results: [O; CHUNK] = std::array::from_fn(|k| f(a[k], b[k], c[k]));
            out.add(i).cast::<[O; CHUNK]>().write_unaligned(results);
        }
        for i in whole..lanes {
            let [x] = lanes_at::<A, 1>(a, i);
            let [y] = lanes_at::<B, 1>(b, i);
            let [z] = lanes_at::<C, 1>(c, i);
            out.add(i).write_unaligned(f(x, y, z));
        }
    }
}

/// `into[i] = f(a[i])`.
///
/// # Safety
/// As [`Long`].
#[inline(always)]
unsafe fn one<A: Copy, O: Copy>(a: Lanes, into: *mut u8, lanes: usize, f: impl Fn(A) -> O) {
    // SAFETY: the caller's contract; nothing is read of a `()`.
    unsafe { three::<A, (), (), O>([a, a, a], into, lanes, |x, (), ()| f(x)) }
}

/// `into[i] = f(a[i], b[i])`, with a loop of its own where one of them is a word.
///
/// # Safety
/// As [`Long`].
#[inline(always)]
unsafe fn two<A: Copy, B: Copy, O: Copy>(a: Lanes, b: Lanes, into: *mut u8, lanes: usize, f: impl Fn(A, B) -> O) {
    // SAFETY: the caller's contract.
    unsafe {
        match (a.1, b.1) {
            (0, _) => {
                let [x] = lanes_at::<A, 1>(a, 0);
                one(b, into, lanes, |y| f(x, y));
            }
            (_, 0) => {
                let [y] = lanes_at::<B, 1>(b, 0);
                one(a, into, lanes, |x| f(x, y));
            }
            _ => three::<A, B, (), O>([a, b, a], into, lanes, |x, y, ()| f(x, y)),
        }
    }
}

/// `into[i] = c[i] ? a[i] : b[i]`.
///
/// # Safety
/// As [`Long`].
#[inline(always)]
unsafe fn choose(c: Lanes, a: Lanes, b: Lanes, into: *mut u8, lanes: usize) {
    let pick = |c: u32, x: u64, y: u64| if c != 0 { x } else { y };
    // SAFETY: the caller's contract.
    unsafe {
        if c.1 == 0 {
            let [c] = lanes_at::<u32, 1>(c, 0);
            return one(if c != 0 { a } else { b }, into, lanes, |x: u64| x);
        }
        match (a.1, b.1) {
            (0, _) => {
                let [x] = lanes_at::<u64, 1>(a, 0);
                two(c, b, into, lanes, |c, y| pick(c, x, y));
            }
            (_, 0) => {
                let [y] = lanes_at::<u64, 1>(b, 0);
                two(c, a, into, lanes, |c, x| pick(c, x, y));
            }
            _ => three([c, a, b], into, lanes, pick),
        }
    }
}

#[inline(always)]
unsafe fn run(instr: Instr, args: [Lanes; 3], into: *mut u8, lanes: usize) {
    macro_rules! each {
        ($out:ty, $a:ident: $ta:ty => $e:expr) => {
            one::<$ta, $out>(args[0], into, lanes, |$a| $e)
        };
        ($out:ty, $a:ident: $ta:ty, $b:ident: $tb:ty => $e:expr) => {
            two::<$ta, $tb, $out>(args[0], args[1], into, lanes, |$a, $b| $e)
        };
    }
    let truth = |b: bool| 0u32.wrapping_sub(b as u32);
    // SAFETY: the contract of `Long`.
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
            // As the reference: nothing is left of a shift out of range, but its sign to the right.
            Instr::LShl => each!(i64, a: i64, b: i64 => if b as u64 >= 64 { 0 } else { a.wrapping_shl(b as u32) }),
            Instr::LShr => each!(i64, a: i64, b: i64 => a.wrapping_shr((b as u64).min(63) as u32)),
            Instr::LEq => each!(u32, a: i64, b: i64 => truth(a == b)),
            Instr::LLt => each!(u32, a: i64, b: i64 => truth(a < b)),
            Instr::LSelect | Instr::DSelect => choose(args[0], args[1], args[2], into, lanes),
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
            Instr::FToD => each!(f64, a: f32 => a as f64),
            Instr::DToF => each!(f32, a: f64 => a as f32),
            Instr::LToD => each!(f64, a: i64 => a as f64),
            Instr::DToL => each!(i64, a: f64 => a as i64),
            Instr::LToU => each!(u32, a: i64 => a as u32),
            Instr::UToL => each!(i64, a: u32 => a as i64),
            // The rest are rare, or call a function for each lane: by their reference meaning.
            _ => by_meaning(instr, args, into, lanes),
        }
    }
}

/// # Safety
/// As [`Long`], of any instruction set.
#[inline(never)]
unsafe fn by_meaning(instr: Instr, args: [Lanes; 3], into: *mut u8, lanes: usize) {
    let types = instr.operands();
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..lanes {
            let mut words = [0u64; 3];
            for (k, &ty) in types.iter().enumerate() {
                let at = args[k].0.add(i * args[k].1);
                words[k] = if ty.is_wide() {
                    at.cast::<u64>().read_unaligned()
                } else {
                    at.cast::<u32>().read_unaligned() as u64
                };
            }
            let r = instr.eval(&words);
            match instr.result() {
                Ty::I64 | Ty::F64 => into.cast::<u64>().add(i).write_unaligned(r),
                Ty::Bool => into.cast::<u32>().add(i).write_unaligned(0u32.wrapping_sub((r != 0) as u32)),
                _ => into.cast::<u32>().add(i).write_unaligned(r as u32),
            }
        }
    }
}

/// The instance of an instruction set.
macro_rules! instance {
    ($name:ident $(, $features:literal)?) => {
        /// # Safety
        /// As [`Long`].
        $(#[target_feature(enable = $features)])?
        pub(super) unsafe fn $name(instr: Instr, args: [Lanes; 3], into: *mut u8, lanes: usize) {
            // SAFETY: the contract of `Long`.
            unsafe { run(instr, args, into, lanes) }
        }
    };
}
instance!(portable);
#[cfg(target_arch = "x86_64")]
instance!(avx512, "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma");
#[cfg(target_arch = "x86_64")]
instance!(avx2, "avx2,fma");
