//! The executor for full tiles: one function per code, each ending in a call of the next.
//!
//! The accumulator travels in the eight vector arguments, which the C calling convention keeps in registers, and
//! the calls are tail calls once optimised. So every code has its own indirect jump, which the
//! processor predicts better than the one of a loop (up to twice as fast, depending on where code happens to lie).
//! Where the compiler does not make tail calls of them the stack grows with the program: hence [`LONGEST`].

use crate::backend::cpu::vm::code::{Code, Op, Step, TILE, table};
use crate::backend::cpu::vm::simd::Simd;

/// The longest code that is run this way.
pub(super) const LONGEST: usize = 2000;

/// One handler: `$acc[$i] = $e` for every vector, or a statement; then the next one.
macro_rules! handler {
    ($features:literal, $name:ident, |$acc:ident, $a:ident, $b:ident, $first:ident| $($i:ident)? => $e:expr) => {
        #[target_feature(enable = $features)]
        #[allow(unused_variables, unused_mut, unused_assignments)]
        unsafe extern "C" fn $name(
            at: *const Op,
            table: *mut *mut u8,
            $first: usize,
            v0: V,
            v1: V,
            v2: V,
            v3: V,
            v4: V,
            v5: V,
            v6: V,
            v7: V,
        ) {
            // SAFETY: the contract of `Exec`.
            unsafe {
                let op = *at;
                let $first = if PASS == TILE { 0 } else { $first };
                let $a = *table.add(op.a as usize);
                let $b = *table.add(op.b as usize);
                let mut $acc = [v0, v1, v2, v3, v4, v5, v6, v7];
                handler!(@body $acc, $($i)? => $e);
                let at = at.add(1);
                let [v0, v1, v2, v3, v4, v5, v6, v7] = $acc;
                HANDLERS[(*at).code as usize](at, table, $first, v0, v1, v2, v3, v4, v5, v6, v7)
            }
        }
    };
    (@body $acc:ident, $i:ident => $e:expr) => {
        for $i in 0..8 {
            $acc[$i] = $e;
        }
    };
    (@body $acc:ident, => $e:expr) => {
        $e
    };
}

macro_rules! machine {
    (
        $name:ident $simd:ident $features:literal
        unary { $($u:ident $um:ident [$($ui:ident)*];)* }
        both { $($bt:ident $bb:ident $bm:ident [$($bi:ident)*];)* }
        ordered { $($ot:ident $ob:ident $otr:ident $obr:ident $om:ident [$($oi:ident)*];)* }
        word { $($w:ident $wm:ident;)* }
        combine { $($c:ident $cm:ident [$ci:ident];)* }
    ) => {
        // Vectors in a C signature mean the registers of the target's convention, which is the point.
        #[allow(non_snake_case, improper_ctypes_definitions)]
        pub(super) mod $name {
            use super::*;
            use crate::backend::cpu::vm::x86::$simd as S;

            type V = <S as Simd>::V;
            type Handler = unsafe extern "C" fn(*const Op, *mut *mut u8, usize, V, V, V, V, V, V, V, V);

            /// Lanes of a pass.
            const PASS: usize = 8 * S::N;

            /// Lanes of vector `i` of a tile operand.
            #[inline(always)]
            unsafe fn tile(p: *mut u8, first: usize, i: usize) -> V {
                // SAFETY: the caller's contract.
                unsafe { S::load(p.add((first + i * S::N) * 4)) }
            }
            #[inline(always)]
            unsafe fn put(p: *mut u8, first: usize, i: usize, v: V) {
                // SAFETY: the caller's contract.
                unsafe { S::store(p.add((first + i * S::N) * 4), v) }
            }

            #[target_feature(enable = $features)]
            unsafe extern "C" fn End(_: *const Op, _: *mut *mut u8, _: usize, _: V, _: V, _: V, _: V, _: V, _: V, _: V, _: V) {}

            handler!($features, LoadT, |acc, a, b, first| i => tile(a, first, i));
            handler!($features, LoadB, |acc, a, b, first| => acc = [S::splat(a); 8]);
            handler!($features, LoadBools, |acc, a, b, first| i => S::load_bools(a.add(first + i * S::N), S::N as isize));
            handler!($features, LoadBf16, |acc, a, b, first| i => S::load_bf16(a.add((first + i * S::N) * 2), S::N as isize));
            handler!($features, LoadF16, |acc, a, b, first| i => S::load_f16(a.add((first + i * S::N) * 2), S::N as isize));
            handler!($features, StoreBf16, |acc, a, b, first| => for i in 0..8 {
                S::store_bf16(a.add((first + i * S::N) * 2), acc[i], S::N as isize)
            });
            handler!($features, StoreF16, |acc, a, b, first| => for i in 0..8 {
                S::store_f16(a.add((first + i * S::N) * 2), acc[i], S::N as isize)
            });
            handler!($features, Store, |acc, a, b, first| => for i in 0..8 { put(a, first, i, acc[i]) });
            handler!($features, StoreBools, |acc, a, b, first| => for i in 0..8 {
                S::store_bools(a.add(first + i * S::N), acc[i], S::N as isize)
            });
            handler!($features, Square, |acc, a, b, first| i => S::mul(acc[i], acc[i]));
            handler!($features, FmaTT, |acc, a, b, first| i => S::fma(acc[i], tile(a, first, i), tile(b, first, i)));
            handler!($features, FmaTB, |acc, a, b, first| i => S::fma(acc[i], tile(a, first, i), S::splat(b)));
            handler!($features, FmaBT, |acc, a, b, first| i => S::fma(acc[i], S::splat(a), tile(b, first, i)));
            handler!($features, FmaBB, |acc, a, b, first| i => S::fma(acc[i], S::splat(a), S::splat(b)));
            handler!($features, FmaAccTT, |acc, a, b, first| i => S::fma(tile(a, first, i), tile(b, first, i), acc[i]));
            handler!($features, FmaAccTB, |acc, a, b, first| i => S::fma(tile(a, first, i), S::splat(b), acc[i]));
            handler!($features, FmaAccBB, |acc, a, b, first| i => S::fma(S::splat(a), S::splat(b), acc[i]));
            handler!($features, SelTT, |acc, a, b, first| i => S::select(acc[i], tile(a, first, i), tile(b, first, i)));
            handler!($features, SelTB, |acc, a, b, first| i => S::select(acc[i], tile(a, first, i), S::splat(b)));
            handler!($features, SelBT, |acc, a, b, first| i => S::select(acc[i], S::splat(a), tile(b, first, i)));
            handler!($features, SelBB, |acc, a, b, first| i => S::select(acc[i], S::splat(a), S::splat(b)));
            handler!($features, SelThenTT, |acc, a, b, first| i => S::select(tile(a, first, i), acc[i], tile(b, first, i)));
            handler!($features, SelThenTB, |acc, a, b, first| i => S::select(tile(a, first, i), acc[i], S::splat(b)));
            handler!($features, SelThenBT, |acc, a, b, first| i => S::select(S::splat(a), acc[i], tile(b, first, i)));
            handler!($features, SelThenBB, |acc, a, b, first| i => S::select(S::splat(a), acc[i], S::splat(b)));
            handler!($features, SelElseTT, |acc, a, b, first| i => S::select(tile(a, first, i), tile(b, first, i), acc[i]));
            handler!($features, SelElseTB, |acc, a, b, first| i => S::select(tile(a, first, i), S::splat(b), acc[i]));
            handler!($features, SelElseBT, |acc, a, b, first| i => S::select(S::splat(a), tile(b, first, i), acc[i]));
            handler!($features, SelElseBB, |acc, a, b, first| i => S::select(S::splat(a), S::splat(b), acc[i]));
            $(handler!($features, $u, |acc, a, b, first| i => S::$um(acc[i]));)*
            $(handler!($features, $bt, |acc, a, b, first| i => S::$bm(acc[i], tile(a, first, i)));)*
            $(handler!($features, $bb, |acc, a, b, first| i => S::$bm(acc[i], S::splat(a)));)*
            $(handler!($features, $ot, |acc, a, b, first| i => S::$om(acc[i], tile(a, first, i)));)*
            $(handler!($features, $ob, |acc, a, b, first| i => S::$om(acc[i], S::splat(a)));)*
            $(handler!($features, $otr, |acc, a, b, first| i => S::$om(tile(a, first, i), acc[i]));)*
            $(handler!($features, $obr, |acc, a, b, first| i => S::$om(S::splat(a), acc[i]));)*
            $(handler!($features, $w, |acc, a, b, first| i => S::$wm(acc[i], S::splat(a)));)*
            $(handler!($features, $c, |acc, a, b, first| => for i in 0..8 {
                put(a, first, i, S::$cm(tile(a, first, i), acc[i]))
            });)*

            /// The handler of each code.
            static HANDLERS: [Handler; 256] = {
                let mut t: [Handler; 256] = [End; 256];
                machine!(@set t: LoadT, LoadB, LoadBools, Store, StoreBools, Square, FmaTT, FmaTB, FmaBT, FmaBB, FmaAccTT);
                machine!(@set t: LoadBf16, LoadF16, StoreBf16, StoreF16);
                machine!(@set t: FmaAccTB, FmaAccBB, SelTT, SelTB, SelBT, SelBB, SelThenTT, SelThenTB, SelThenBT);
                machine!(@set t: SelThenBB, SelElseTT, SelElseTB, SelElseBT, SelElseBB);
                t[Code::Spill as usize] = Store;
                machine!(@set t: $($u,)* $($bt, $bb,)* $($ot, $ob, $otr, $obr,)* $($w,)* $($c),*);
                t
            };

            /// Full tiles.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn full(
                code: *const Op,
                table: *mut *mut u8,
                steps: &[Step],
                count: usize,
                _lanes: usize,
            ) {
                // SAFETY: the contract of `Exec`; every code has its handler.
                unsafe {
                    let z = S::splat([0u8; 4].as_ptr());
                    for _ in 0..count {
                        for first in (0..TILE).step_by(PASS) {
                            HANDLERS[(*code).code as usize](code, table, first, z, z, z, z, z, z, z, z);
                        }
                        for step in steps {
                            let p = table.add(step.entry as usize);
                            *p = (*p).wrapping_offset(step.bytes);
                        }
                    }
                }
            }
        }
    };
    (@set $t:ident: $($code:ident),*) => {
        $($t[Code::$code as usize] = $code;)*
    };
}

#[cfg(target_arch = "x86_64")]
table!(machine avx512 Avx512 "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
table!(machine avx2 Avx2 "avx2,fma,f16c");
