//! The vector machine's instructions and the loop that executes them.
//!
//! The machine has one *accumulator* of [`TILE`] lanes, held in registers, and a table of
//! pointers: every other operand is an entry of it, read as a tile of 32-bit lanes (`T`) or as
//! one word for all lanes (`B`). `R` forms take the operands in reverse. One table below gives the
//! codes, what they do and which [`Instr`] they implement.

use crate::backend::cpu::vm::long::{self, Long};
use crate::backend::cpu::vm::simd::{Portable, Simd};
use crate::kernel::Instr;

/// Lanes of a tile.
pub(super) const TILE: usize = 128;

/// One machine instruction; operands are positions in the pointer table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Op {
    pub code: Code,
    pub a: u16,
    pub b: u16,
}

/// The codes by which an [`Instr`] of 32-bit lanes is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Forms {
    /// On the accumulator alone.
    Unary(Code),
    /// `acc ∘ tile`, `acc ∘ word`; operands may be exchanged.
    Both(Code, Code),
    /// `acc ∘ tile`, `acc ∘ word`, `tile ∘ acc`, `word ∘ acc`.
    Ordered(Code, Code, Code, Code),
    /// Three operands, or no operation of the 32-bit machine.
    Special,
}

/// How an operand is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Tile,
    Word,
}

macro_rules! table {
    ($m:ident $($extra:tt)*) => { $m! { $($extra)*
        unary {
            Neg neg [Neg]; Abs abs [Abs]; Sqrt sqrt [Sqrt]; Floor floor [Floor]; Ceil ceil [Ceil];
            Trunc trunc [Trunc]; Round round [Round]; Not not [Not]; IToF itof [IToF];
            UToF utof [UToF]; FToI ftoi [FToI]; BToU btou [BToU]; Relu relu [];
            Mantissa mantissa [Mantissa]; Exponent exponent [Exponent]; SinArg sin_arg [SinArg];
            CosArg cos_arg [CosArg]; Bf16 bf16 [Bf16]; F16 f16 [F16];
        }
        both {
            AddT AddB add [Add]; MulT MulB mul [Mul]; MinT MinB min [Min]; MaxT MaxB max [Max];
            AndT AndB and [UAnd And]; OrT OrB or [UOr Or]; XorT XorB xor [UXor Xor];
            UAddT UAddB uadd [UAdd]; UMulT UMulB umul [UMul]; UMulHiT UMulHiB umulhi [UMulHi];
            EqT EqB eq [Eq]; NeT NeB ne [Ne]; UEqT UEqB ueq [UEq];
        }
        ordered {
            ScaleT ScaleB ScaleTR ScaleBR scale [Scale];
            SubT SubB SubTR SubBR sub [Sub]; DivT DivB DivTR DivBR div [Div];
            RemT RemB RemTR RemBR rem [Rem];
            LtT LtB LtTR LtBR lt [Lt]; LeT LeB LeTR LeBR le [Le];
            USubT USubB USubTR USubBR usub [USub]; UShlT UShlB UShlTR UShlBR ushl [UShl];
            UShrT UShrB UShrTR UShrBR ushr [UShr]; IShrT IShrB IShrTR IShrBR ishr [IShr];
            ULtT ULtB ULtTR ULtBR ult [ULt]; ILtT ILtB ILtTR ILtBR ilt [ILt];
        }
        word { MinK min_const; MaxK max_const; }
        combine {
            AccAdd add [Add]; AccMul mul [Mul]; AccMin min [Min]; AccMax max [Max]; AccOr or [Or]; AccAnd and [And];
        }
    } };
}

macro_rules! define {
    (
        unary { $($u:ident $um:ident [$($ui:ident)*];)* }
        both { $($bt:ident $bb:ident $bm:ident [$($bi:ident)*];)* }
        ordered { $($ot:ident $ob:ident $otr:ident $obr:ident $om:ident [$($oi:ident)*];)* }
        word { $($w:ident $wm:ident;)* }
        combine { $($c:ident $cm:ident [$ci:ident];)* }
    ) => {
        /// What a machine instruction does. `acc` is the accumulator, `a`, `b` the operands.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(super) enum Code {
            /// The program is over.
            End,
            /// `acc = a`.
            LoadT,
            LoadB,
            /// `acc = a`, truth values from bytes.
            LoadBools,
            /// `acc = a`, from 16-bit floats.
            LoadBf16,
            LoadF16,
            /// `a = acc`.
            Store,
            /// `a = acc` in the frame, where a tile has all its lanes.
            Spill,
            /// `a = acc`, truth values to bytes.
            StoreBools,
            /// `a = acc`, rounded to 16-bit floats.
            StoreBf16,
            StoreF16,
            /// `acc = acc * acc`.
            Square,
            /// `acc = acc * a + b`.
            FmaTT, FmaTB, FmaBT, FmaBB,
            /// `acc = a * b + acc`.
            FmaAccTT, FmaAccTB, FmaAccBB,
            /// `acc = acc ? a : b`.
            SelTT, SelTB, SelBT, SelBB,
            /// `acc = a ? acc : b`.
            SelThenTT, SelThenTB, SelThenBT, SelThenBB,
            /// `acc = a ? b : acc`.
            SelElseTT, SelElseTB, SelElseBT, SelElseBB,
            $($u,)* $($bt, $bb,)* $($ot, $ob, $otr, $obr,)* $($w,)*
            // `a = a ∘ acc`
            $($c,)*
        }

        /// The codes of `instr`.
        pub(super) fn forms(instr: Instr) -> Forms {
            match instr {
                $($(Instr::$ui => Forms::Unary(Code::$u),)*)*
                $($(Instr::$bi => Forms::Both(Code::$bt, Code::$bb),)*)*
                $($(Instr::$oi => Forms::Ordered(Code::$ot, Code::$ob, Code::$otr, Code::$obr),)*)*
                _ => Forms::Special,
            }
        }

        /// The code that combines the accumulator into a tile.
        pub(super) fn combine_code(instr: Instr) -> Option<Code> {
            match instr {
                $(Instr::$ci => Some(Code::$c),)*
                _ => None,
            }
        }
    };
}
pub(super) use table;

table!(define);

/// Where an execution's streams go from one repetition to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Position in the pointer table.
    pub entry: u16,
    /// Bytes to advance per repetition.
    pub bytes: isize,
}

/// Runs a program over `lanes` lanes (at most [`TILE`]) `count` times, advancing the streams in between.
///
/// # Safety
/// `code` ends with [`Code::End`]; its operands are entries of `table`, valid for what the codes read and
/// write in `lanes` lanes at every repetition; the CPU has the features of the instance.
pub(super) type Exec = unsafe fn(code: *const Op, table: *mut *mut u8, steps: &[Step], count: usize, lanes: usize);

macro_rules! executor {
    (
        unary { $($u:ident $um:ident [$($ui:ident)*];)* }
        both { $($bt:ident $bb:ident $bm:ident [$($bi:ident)*];)* }
        ordered { $($ot:ident $ob:ident $otr:ident $obr:ident $om:ident [$($oi:ident)*];)* }
        word { $($w:ident $wm:ident;)* }
        combine { $($c:ident $cm:ident [$ci:ident];)* }
    ) => {
        /// The one executor: `W` vectors of accumulator, `MASKED` for tiles that may be short.
        #[inline(always)]
        unsafe fn execute<S: Simd, const W: usize, const MASKED: bool>(
            code: *const Op,
            table: *mut *mut u8,
            steps: &[Step],
            count: usize,
            lanes: usize,
        ) {
            // SAFETY: the contract of `Exec`; lanes past `lanes` are masked off where MASKED,
            // and there are none otherwise.
            unsafe {
                let lanes = if MASKED { lanes } else { TILE };
                for _ in 0..count {
                    let mut first = 0;
                    while first < lanes {
                        let mut acc = [S::splat([0u8; 4].as_ptr()); W];
                        let mut at = code;
                        // The lanes that vector `$i` of this pass has left.
                        macro_rules! left {
                            ($i:expr) => { if MASKED { lanes as isize - (first + $i * S::N) as isize } else { S::N as isize } };
                        }
                        macro_rules! tile {
                            ($p:expr, $i:expr) => {
                                if MASKED { S::load_n($p.add($i * S::N * 4), left!($i)) } else { S::load($p.add($i * S::N * 4)) }
                            };
                        }
                        macro_rules! put {
                            ($p:expr, $i:expr, $v:expr) => {
                                if MASKED { S::store_n($p.add($i * S::N * 4), $v, left!($i)) } else { S::store($p.add($i * S::N * 4), $v) }
                            };
                        }
                        macro_rules! each {
                            ($i:ident, $e:expr) => { for $i in 0..W { acc[$i] = $e; } };
                        }
                        loop {
                            let op = *at;
                            at = at.add(1);
                            let base_a = *table.add(op.a as usize);
                            let base_b = *table.add(op.b as usize);
                            let pa = base_a.wrapping_add(first * 4);
                            let pb = base_b.wrapping_add(first * 4);
                            match op.code {
                                Code::End => break,
                                Code::LoadT => each!(i, tile!(pa, i)),
                                Code::LoadB => { let a = S::splat(base_a); each!(i, { let _ = i; a }) }
                                Code::LoadBools => {
                                    let p = base_a.wrapping_add(first);
                                    each!(i, S::load_bools(p.add(i * S::N), left!(i)))
                                }
                                Code::LoadBf16 => {
                                    let p = base_a.wrapping_add(first * 2);
                                    each!(i, S::load_bf16(p.add(i * S::N * 2), left!(i)))
                                }
                                Code::LoadF16 => {
                                    let p = base_a.wrapping_add(first * 2);
                                    each!(i, S::load_f16(p.add(i * S::N * 2), left!(i)))
                                }
                                Code::StoreBf16 => {
                                    let p = base_a.wrapping_add(first * 2);
                                    for i in 0..W { S::store_bf16(p.add(i * S::N * 2), acc[i], left!(i)) }
                                }
                                Code::StoreF16 => {
                                    let p = base_a.wrapping_add(first * 2);
                                    for i in 0..W { S::store_f16(p.add(i * S::N * 2), acc[i], left!(i)) }
                                }
                                Code::Store => for i in 0..W { put!(pa, i, acc[i]) },
                                Code::Spill => for i in 0..W { S::store(pa.add(i * S::N * 4), acc[i]) },
                                Code::StoreBools => {
                                    let p = base_a.wrapping_add(first);
                                    for i in 0..W { S::store_bools(p.add(i * S::N), acc[i], left!(i)) }
                                }
                                Code::Square => each!(i, S::mul(acc[i], acc[i])),
                                Code::FmaTT => each!(i, S::fma(acc[i], tile!(pa, i), tile!(pb, i))),
                                Code::FmaTB => { let b = S::splat(base_b); each!(i, S::fma(acc[i], tile!(pa, i), b)) }
                                Code::FmaBT => { let a = S::splat(base_a); each!(i, S::fma(acc[i], a, tile!(pb, i))) }
                                Code::FmaBB => {
                                    let (a, b) = (S::splat(base_a), S::splat(base_b));
                                    each!(i, S::fma(acc[i], a, b))
                                }
                                Code::FmaAccTT => each!(i, S::fma(tile!(pa, i), tile!(pb, i), acc[i])),
                                Code::FmaAccTB => { let b = S::splat(base_b); each!(i, S::fma(tile!(pa, i), b, acc[i])) }
                                Code::FmaAccBB => {
                                    let (a, b) = (S::splat(base_a), S::splat(base_b));
                                    each!(i, S::fma(a, b, acc[i]))
                                }
                                Code::SelTT => each!(i, S::select(acc[i], tile!(pa, i), tile!(pb, i))),
                                Code::SelTB => { let b = S::splat(base_b); each!(i, S::select(acc[i], tile!(pa, i), b)) }
                                Code::SelBT => { let a = S::splat(base_a); each!(i, S::select(acc[i], a, tile!(pb, i))) }
                                Code::SelBB => {
                                    let (a, b) = (S::splat(base_a), S::splat(base_b));
                                    each!(i, S::select(acc[i], a, b))
                                }
                                Code::SelThenTT => each!(i, S::select(tile!(pa, i), acc[i], tile!(pb, i))),
                                Code::SelThenTB => { let b = S::splat(base_b); each!(i, S::select(tile!(pa, i), acc[i], b)) }
                                Code::SelThenBT => { let a = S::splat(base_a); each!(i, S::select(a, acc[i], tile!(pb, i))) }
                                Code::SelThenBB => {
                                    let (a, b) = (S::splat(base_a), S::splat(base_b));
                                    each!(i, S::select(a, acc[i], b))
                                }
                                Code::SelElseTT => each!(i, S::select(tile!(pa, i), tile!(pb, i), acc[i])),
                                Code::SelElseTB => { let b = S::splat(base_b); each!(i, S::select(tile!(pa, i), b, acc[i])) }
                                Code::SelElseBT => { let a = S::splat(base_a); each!(i, S::select(a, tile!(pb, i), acc[i])) }
                                Code::SelElseBB => {
                                    let (a, b) = (S::splat(base_a), S::splat(base_b));
                                    each!(i, S::select(a, b, acc[i]))
                                }
                                $(Code::$u => each!(i, S::$um(acc[i])),)*
                                $(Code::$bt => each!(i, S::$bm(acc[i], tile!(pa, i))),)*
                                $(Code::$bb => { let a = S::splat(base_a); each!(i, S::$bm(acc[i], a)) })*
                                $(Code::$ot => each!(i, S::$om(acc[i], tile!(pa, i))),)*
                                $(Code::$ob => { let a = S::splat(base_a); each!(i, S::$om(acc[i], a)) })*
                                $(Code::$otr => each!(i, S::$om(tile!(pa, i), acc[i])),)*
                                $(Code::$obr => { let a = S::splat(base_a); each!(i, S::$om(a, acc[i])) })*
                                $(Code::$w => { let a = S::splat(base_a); each!(i, S::$wm(acc[i], a)) })*
                                $(Code::$c => for i in 0..W {
                                    let p = pa.add(i * S::N * 4);
                                    let old = S::load(p);
                                    let new = S::$cm(old, acc[i]);
                                    S::store(p, if MASKED { S::first(new, old, left!(i)) } else { new });
                                },)*
                            }
                        }
                        first += W * S::N;
                    }
                    for step in steps {
                        let p = table.add(step.entry as usize);
                        *p = (*p).wrapping_offset(step.bytes);
                    }
                }
            }
        }
    };
}
table!(executor);

/// The executors of an instruction set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// Full tiles.
    pub full: Exec,
    /// Tiles of any length.
    pub short: Exec,
    /// Tiles of a few lanes.
    pub narrow: Exec,
    pub fold_rows: FoldRows,
    /// Instructions with 64-bit lanes.
    pub long: Long,
}

impl Machine {
    /// The executor for tiles of `lanes` lanes; `long` code has no use of the fast one.
    pub fn exec(&self, lanes: usize, long: bool) -> Exec {
        match lanes {
            TILE if !long => self.full,
            0..=32 => self.narrow,
            _ => self.short,
        }
    }
}

/// Combines each row of `row` lanes of the tile `from` (a power of two of lanes, `lanes` in all) by halving, into all lanes of
/// the row in the tile `to`, which may be the same; `code` is one of the `Acc` codes.
///
/// # Safety
/// The tiles are valid, with all their lanes; the CPU has the features of the instance.
pub(super) type FoldRows = unsafe fn(code: Code, from: *const u8, to: *mut u8, row: usize, lanes: usize);

/// Rows of `K` vectors.
#[inline(always)]
unsafe fn fold_vectors<S: Simd, const K: usize>(
    from: *const u8,
    to: *mut u8,
    row: usize,
    lanes: usize,
    f: impl Fn(S::V, S::V) -> S::V,
) {
    // SAFETY: the contract of `FoldRows`.
    unsafe {
        for at in (0..lanes * 4).step_by(K * S::N * 4) {
            let mut v: [S::V; K] = std::array::from_fn(|i| S::load(from.add(at + i * S::N * 4)));
            let mut half = K / 2;
            while half > 0 {
                for i in 0..half {
                    v[i] = f(v[i], v[i + half]);
                }
                half /= 2;
            }
            // Every lane takes the place of the one it meets, so all end with the row's result: the operations commute.
            let mut x = v[0];
            if S::N >= 16 && row >= 16 {
                x = f(x, S::swap::<8>(x));
            }
            if row >= 8 {
                x = f(x, S::swap::<4>(x));
            }
            if row >= 4 {
                x = f(x, S::swap::<2>(x));
            }
            if row >= 2 {
                x = f(x, S::swap::<1>(x));
            }
            for i in 0..K {
                S::store(to.add(at + i * S::N * 4), x);
            }
        }
    }
}

#[inline(always)]
unsafe fn fold_rows_by<S: Simd>(
    from: *const u8,
    to: *mut u8,
    row: usize,
    lanes: usize,
    f: impl Fn(S::V, S::V) -> S::V,
) {
    // SAFETY: the contract of `FoldRows`.
    unsafe {
        match row / S::N {
            0 | 1 => fold_vectors::<S, 1>(from, to, row, lanes, f),
            2 => fold_vectors::<S, 2>(from, to, row, lanes, f),
            4 => fold_vectors::<S, 4>(from, to, row, lanes, f),
            8 => fold_vectors::<S, 8>(from, to, row, lanes, f),
            _ => fold_vectors::<S, 16>(from, to, row, lanes, f),
        }
    }
}

macro_rules! folds {
    (
        unary { $($unary:tt)* }
        both { $($both:tt)* }
        ordered { $($ordered:tt)* }
        word { $($word:tt)* }
        combine { $($c:ident $cm:ident [$ci:ident];)* }
    ) => {
        /// [`FoldRows`].
        #[inline(always)]
        unsafe fn fold_rows<S: Simd>(code: Code, from: *const u8, to: *mut u8, row: usize, lanes: usize) {
            // SAFETY: the same contract.
            unsafe {
                match code {
                    $(Code::$c => fold_rows_by::<S>(from, to, row, lanes, |a, b| S::$cm(a, b)),)*
                    _ => debug_assert!(false, "{code:?} combines nothing"),
                }
            }
        }
    };
}
table!(folds);

/// The instances of one instruction set.
macro_rules! machine {
    ($name:ident, $simd:ty, $full:path, $long:path $(, $features:literal)?) => {
        pub(super) mod $name {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn short(code: *const Op, table: *mut *mut u8, steps: &[Step], count: usize, lanes: usize) {
                // SAFETY: the contract of `Exec`.
                unsafe { execute::<$simd, 8, true>(code, table, steps, count, lanes) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn narrow(code: *const Op, table: *mut *mut u8, steps: &[Step], count: usize, lanes: usize) {
                // SAFETY: the contract of `Exec`.
                unsafe { execute::<$simd, 2, true>(code, table, steps, count, lanes) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn fold_rows(code: Code, from: *const u8, to: *mut u8, row: usize, lanes: usize) {
                // SAFETY: the contract of `FoldRows`.
                unsafe { super::fold_rows::<$simd>(code, from, to, row, lanes) }
            }

            pub(in super::super) const MACHINE: Machine =
                Machine { full: $full, short, narrow, fold_rows, long: $long };
        }
    };
}

machine!(portable, Portable, short, long::portable);
#[cfg(target_arch = "x86_64")]
machine!(
    avx512,
    crate::backend::cpu::vm::x86::Avx512,
    crate::backend::cpu::vm::threaded::avx512::full,
    long::avx512,
    "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
machine!(
    avx2,
    crate::backend::cpu::vm::x86::Avx2,
    crate::backend::cpu::vm::threaded::avx2::full,
    long::avx2,
    "avx2,fma,f16c"
);
