//! What the executor needs of a vector: 32-bit lanes, one method per scalar instruction.
//!
//! Lanes hold f32 bits, u32, or a truth value as all ones / all zeros. Every implementation
//! gives the bits of [`crate::kernel::Instr::eval`] (NaN payloads excepted). This file has the trait and
//! the portable implementation over plain arrays; the others are in `x86.rs`.

use crate::base::dtype::{bf16, f16};
use crate::kernel::Instr;

/// Vectors of 32-bit lanes.
///
/// # Safety
/// Every method may only be called where the implementation's CPU features are there; the
/// memory methods also need their pointers valid for the lanes they touch (no alignment).
pub(super) trait Simd {
    /// Lanes per vector.
    const N: usize;
    type V: Copy;

    unsafe fn load(p: *const u8) -> Self::V;
    unsafe fn store(p: *mut u8, v: Self::V);
    /// The first `n` lanes (all of them if `n` is larger, none below 1); the others are zero.
    unsafe fn load_n(p: *const u8, n: isize) -> Self::V;
    /// Writes the first `n` lanes only.
    unsafe fn store_n(p: *mut u8, v: Self::V, n: isize);
    /// `a` in the first `n` lanes, `b` in the others.
    unsafe fn first(a: Self::V, b: Self::V, n: isize) -> Self::V;
    /// The 32-bit word at `p` in every lane.
    unsafe fn splat(p: *const u8) -> Self::V;
    /// Lane `j` of the result is lane `j ^ H`; `H` is 1, 2, 4 or (with 16 lanes) 8.
    unsafe fn swap<const H: usize>(a: Self::V) -> Self::V;
    /// Truth values from bytes, the first `n` lanes.
    unsafe fn load_bools(p: *const u8, n: isize) -> Self::V;
    /// Truth values to bytes, the first `n` lanes.
    unsafe fn store_bools(p: *mut u8, v: Self::V, n: isize);

    /// 16-bit floats, the first `n` lanes; the others are zero.
    unsafe fn load_bf16(p: *const u8, n: isize) -> Self::V;
    unsafe fn load_f16(p: *const u8, n: isize) -> Self::V;
    /// Rounds to 16-bit floats, the first `n` lanes.
    unsafe fn store_bf16(p: *mut u8, v: Self::V, n: isize);
    unsafe fn store_f16(p: *mut u8, v: Self::V, n: isize);
    unsafe fn bf16(a: Self::V) -> Self::V;
    unsafe fn f16(a: Self::V) -> Self::V;

    unsafe fn neg(a: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    unsafe fn floor(a: Self::V) -> Self::V;
    unsafe fn ceil(a: Self::V) -> Self::V;
    unsafe fn trunc(a: Self::V) -> Self::V;
    unsafe fn round(a: Self::V) -> Self::V;
    unsafe fn not(a: Self::V) -> Self::V;
    unsafe fn itof(a: Self::V) -> Self::V;
    unsafe fn utof(a: Self::V) -> Self::V;
    unsafe fn ftoi(a: Self::V) -> Self::V;
    unsafe fn btou(a: Self::V) -> Self::V;
    /// `maximum(a, +0)`.
    unsafe fn relu(a: Self::V) -> Self::V;
    unsafe fn mantissa(a: Self::V) -> Self::V;
    unsafe fn exponent(a: Self::V) -> Self::V;
    unsafe fn sin_arg(a: Self::V) -> Self::V;
    unsafe fn cos_arg(a: Self::V) -> Self::V;

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn rem(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn scale(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `minimum(a, b)` where `b` is neither NaN nor -0.
    unsafe fn min_const(a: Self::V, b: Self::V) -> Self::V;
    /// `maximum(a, b)` where `b` is neither NaN nor +0.
    unsafe fn max_const(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn eq(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ne(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn lt(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn le(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn uadd(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn usub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn umul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn umulhi(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn and(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn or(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn xor(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ushl(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ushr(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ishr(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ueq(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ult(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn ilt(a: Self::V, b: Self::V) -> Self::V;
    /// `a` where `c` is true, else `b`.
    unsafe fn select(c: Self::V, a: Self::V, b: Self::V) -> Self::V;
}

/// Plain arrays: right on every target.
pub(super) struct Portable;

const LANES: usize = 8;

/// The reference meaning, lane by lane. With `instr` a constant the compiler sees through it.
#[inline(always)]
fn lanes1(instr: Instr, a: [u32; LANES]) -> [u32; LANES] {
    a.map(|a| instr.eval(&[a as u64]) as u32)
}

#[inline(always)]
fn lanes2(instr: Instr, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
    std::array::from_fn(|i| instr.eval(&[a[i] as u64, b[i] as u64]) as u32)
}

/// A comparison: truth values become masks.
#[inline(always)]
fn test(instr: Instr, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
    lanes2(instr, a, b).map(|t| 0u32.wrapping_sub(t))
}

macro_rules! portable {
    (unary { $($m1:ident $i1:ident,)* } binary { $($m2:ident $i2:ident,)* } test { $($m3:ident $i3:ident,)* }) => {
        $(#[inline(always)]
        unsafe fn $m1(a: Self::V) -> Self::V {
            lanes1(Instr::$i1, a)
        })*
        $(#[inline(always)]
        unsafe fn $m2(a: Self::V, b: Self::V) -> Self::V {
            lanes2(Instr::$i2, a, b)
        })*
        $(#[inline(always)]
        unsafe fn $m3(a: Self::V, b: Self::V) -> Self::V {
            test(Instr::$i3, a, b)
        })*
    };
}

/// The first `n` lanes from 16 bits each; the others are zero.
///
/// # Safety
/// `p` is valid for `n` 16-bit elements.
#[inline(always)]
unsafe fn load_halves(p: *const u8, n: isize, widen: impl Fn(u16) -> u32) -> [u32; LANES] {
    let mut v = [0; LANES];
    for (i, lane) in v.iter_mut().enumerate().take(n.max(0) as usize) {
        // SAFETY: lane i is below n.
        *lane = widen(unsafe { p.cast::<u16>().add(i).read_unaligned() });
    }
    v
}

/// # Safety
/// As [`load_halves`], for writing.
#[inline(always)]
unsafe fn store_halves(p: *mut u8, v: [u32; LANES], n: isize, round: impl Fn(f32) -> u16) {
    for (i, &lane) in v.iter().enumerate().take(n.max(0) as usize) {
        // SAFETY: lane i is below n.
        unsafe { p.cast::<u16>().add(i).write_unaligned(round(f32::from_bits(lane))) }
    }
}

impl Simd for Portable {
    const N: usize = LANES;
    type V = [u32; LANES];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::V {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: Self::V) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const u8, n: isize) -> Self::V {
        let mut v = [0; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(n.max(0) as usize) {
            // SAFETY: lane i is below n.
            *lane = unsafe { p.cast::<u32>().add(i).read_unaligned() };
        }
        v
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut u8, v: Self::V, n: isize) {
        for (i, &lane) in v.iter().enumerate().take(n.max(0) as usize) {
            // SAFETY: lane i is below n.
            unsafe { p.cast::<u32>().add(i).write_unaligned(lane) }
        }
    }
    #[inline(always)]
    unsafe fn first(a: Self::V, b: Self::V, n: isize) -> Self::V {
        std::array::from_fn(|i| if (i as isize) < n { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn splat(p: *const u8) -> Self::V {
        // SAFETY: the caller's contract.
        [unsafe { p.cast::<u32>().read_unaligned() }; LANES]
    }
    #[inline(always)]
    unsafe fn swap<const H: usize>(a: Self::V) -> Self::V {
        std::array::from_fn(|i| a[(i ^ H) % LANES])
    }
    #[inline(always)]
    unsafe fn load_bools(p: *const u8, n: isize) -> Self::V {
        let mut v = [0; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(n.max(0) as usize) {
            // SAFETY: lane i is below n.
            *lane = if unsafe { *p.add(i) } != 0 { u32::MAX } else { 0 };
        }
        v
    }
    #[inline(always)]
    unsafe fn store_bools(p: *mut u8, v: Self::V, n: isize) {
        for (i, &lane) in v.iter().enumerate().take(n.max(0) as usize) {
            // SAFETY: lane i is below n.
            unsafe { *p.add(i) = (lane & 1) as u8 }
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8, n: isize) -> Self::V {
        // SAFETY: the caller's contract.
        unsafe { load_halves(p, n, |bits| (bits as u32) << 16) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8, n: isize) -> Self::V {
        // SAFETY: the caller's contract.
        unsafe { load_halves(p, n, |bits| f16::from_bits(bits).to_f32().to_bits()) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u8, v: Self::V, n: isize) {
        // SAFETY: the caller's contract.
        unsafe { store_halves(p, v, n, |v| bf16::from_f32(v).to_bits()) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: Self::V, n: isize) {
        // SAFETY: the caller's contract.
        unsafe { store_halves(p, v, n, |v| f16::from_f32(v).to_bits()) }
    }

    portable! {
        unary {
            neg Neg, abs Abs, sqrt Sqrt, floor Floor, ceil Ceil, trunc Trunc, round Round,
            itof IToF, utof UToF, ftoi FToI, mantissa Mantissa, exponent Exponent, sin_arg SinArg,
            cos_arg CosArg, bf16 Bf16, f16 F16,
        }
        binary {
            add Add, sub Sub, mul Mul, div Div, rem Rem, scale Scale, min Min, max Max, min_const Min, max_const Max,
            uadd UAdd, usub USub, umul UMul, umulhi UMulHi, and UAnd, or UOr, xor UXor,
            ushl UShl, ushr UShr, ishr IShr,
        }
        test { eq Eq, ne Ne, lt Lt, le Le, ueq UEq, ult ULt, ilt ILt, }
    }

    #[inline(always)]
    unsafe fn not(a: Self::V) -> Self::V {
        a.map(|a| !a)
    }
    #[inline(always)]
    unsafe fn btou(a: Self::V) -> Self::V {
        a.map(|a| a & 1)
    }
    #[inline(always)]
    unsafe fn relu(a: Self::V) -> Self::V {
        lanes2(Instr::Max, a, [0; LANES])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| Instr::Fma.eval(&[a[i] as u64, b[i] as u64, c[i] as u64]) as u32)
    }
    #[inline(always)]
    unsafe fn select(c: Self::V, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| (a[i] & c[i]) | (b[i] & !c[i]))
    }
}
