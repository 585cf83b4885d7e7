//! The scalar instructions of a kernel body: one row each.
//!
//! A row gives the name in the text form, operand and result types, and the reference
//! meaning as a Rust expression; [`Instr::eval`] and every table below derive from it.
//! A backend adds one arm per instruction. All arithmetic is IEEE 754 binary32 (or binary64), round to
//! nearest even, denormals kept, no contraction. Bits of NaN results are not promised. The transcendental functions of
//! binary64 are one instruction each, defined by crate `libm` (pure Rust: the same bits everywhere).

use crate::base::DType;
use crate::kernel::meaning;

/// The type of a value inside a kernel (a lane).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ty {
    /// binary32; the lanes of 16-bit floats too.
    F32,
    /// binary64.
    F64,
    /// 32 bits, for bit tricks and Philox; signedness is the instruction's.
    U32,
    /// Two's complement 64-bit; the lanes of all integer dtypes.
    I64,
    /// A truth value.
    Bool,
}

impl Ty {
    /// Every lane type.
    pub const ALL: [Ty; 5] = [Ty::F32, Ty::F64, Ty::U32, Ty::I64, Ty::Bool];

    /// The lane type that elements of `dtype` load as.
    pub fn of(dtype: DType) -> Ty {
        match dtype {
            DType::F64 => Ty::F64,
            DType::F32 | DType::F16 | DType::BF16 => Ty::F32,
            DType::I64 | DType::I32 | DType::I8 | DType::U8 => Ty::I64,
            DType::Bool => Ty::Bool,
        }
    }

    /// Whether a lane takes 64 bits rather than 32.
    pub fn is_wide(self) -> bool {
        matches!(self, Ty::I64 | Ty::F64)
    }

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Ty::F32 => "f32",
            Ty::F64 => "f64",
            Ty::U32 => "u32",
            Ty::I64 => "i64",
            Ty::Bool => "bool",
        }
    }

    /// The type called `name`.
    pub fn from_name(name: &str) -> Option<Ty> {
        Ty::ALL.into_iter().find(|t| t.name() == name)
    }
}

/// Reading and writing a lane as the low bits of a `u64` (the interpreter's register).
trait Lane: Sized {
    fn get(bits: u64) -> Self;
    fn put(self) -> u64;
}
impl Lane for f32 {
    fn get(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    fn put(self) -> u64 {
        self.to_bits() as u64
    }
}
impl Lane for f64 {
    fn get(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn put(self) -> u64 {
        self.to_bits()
    }
}
impl Lane for u32 {
    fn get(bits: u64) -> u32 {
        bits as u32
    }
    fn put(self) -> u64 {
        self as u64
    }
}
impl Lane for i64 {
    fn get(bits: u64) -> i64 {
        bits as i64
    }
    fn put(self) -> u64 {
        self as u64
    }
}
impl Lane for bool {
    fn get(bits: u64) -> bool {
        bits != 0
    }
    fn put(self) -> u64 {
        self as u64
    }
}

macro_rules! rust_type {
    (F32) => {
        f32
    };
    (F64) => {
        f64
    };
    (U32) => {
        u32
    };
    (I64) => {
        i64
    };
    (Bool) => {
        bool
    };
}

macro_rules! instructions {
    (@zip $out:expr, $a:expr) => { $out.zip($a) };
    (@zip $out:expr, $a:expr, $b:expr) => { $out.zip($a).zip($b) };
    (@zip $out:expr, $a:expr, $b:expr, $c:expr) => { $out.zip($a).zip($b).zip($c) };
    (@pattern $out:pat, $a:pat) => { ($out, $a) };
    (@pattern $out:pat, $a:pat, $b:pat) => { (($out, $a), $b) };
    (@pattern $out:pat, $a:pat, $b:pat, $c:pat) => { ((($out, $a), $b), $c) };
    ($($(#[$doc:meta])* $name:ident $text:literal ($($arg:ident: $at:ident),*) -> $rt:ident = $body:expr;)*) => {
        /// A scalar instruction. See the module's table for operands and meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Instr { $($(#[$doc])* $name,)* }

        impl Instr {
            /// Every instruction, in table order.
            pub const ALL: &'static [Instr] = &[$(Instr::$name),*];

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $(Instr::$name => $text,)* }
            }

            /// Operand types.
            pub fn operands(self) -> &'static [Ty] {
                match self { $(Instr::$name => &[$(Ty::$at),*],)* }
            }

            /// Result type.
            pub fn result(self) -> Ty {
                match self { $(Instr::$name => Ty::$rt,)* }
            }

            /// The reference meaning, on lanes kept in the low bits of `u64`s.
            /// `args` has at least as many entries as the instruction has operands.
            pub fn eval(self, args: &[u64]) -> u64 {
                match self { $(Instr::$name => {
                    let mut _it = args.iter();
                    $(let $arg: rust_type!($at) = Lane::get(_it.next().copied().unwrap_or(0));)*
                    let r: rust_type!($rt) = $body;
                    Lane::put(r)
                })* }
            }

            /// [`Instr::eval`] on many lanes at once: `out[i]` from the `i`-th of each operand.
            pub fn eval_lanes(self, args: [&[u64]; 3], out: &mut [u64]) {
                match self { $(Instr::$name => {
                    let mut _it = args.iter();
                    $(let $arg = _it.next().copied().unwrap_or_default().iter();)*
                    let zipped = instructions!(@zip out.iter_mut() $(, $arg)*);
                    for instructions!(@pattern _slot $(, $arg)*) in zipped {
                        $(let $arg: rust_type!($at) = Lane::get(*$arg);)*
                        let r: rust_type!($rt) = $body;
                        *_slot = Lane::put(r);
                    }
                })* }
            }
        }
    };
}

instructions! {
    // f32 arithmetic
    Add "add" (a: F32, b: F32) -> F32 = a + b;
    Sub "sub" (a: F32, b: F32) -> F32 = a - b;
    Mul "mul" (a: F32, b: F32) -> F32 = a * b;
    Div "div" (a: F32, b: F32) -> F32 = a / b;
    /// Remainder with the dividend's sign, exact (C's `fmod`): NaN for a zero divisor or an infinite dividend.
    Rem "rem" (a: F32, b: F32) -> F32 = a % b;
    /// Fused multiply-add, one rounding.
    Fma "fma" (a: F32, b: F32, c: F32) -> F32 = a.mul_add(b, c);
    /// Flips the sign bit, of NaN too.
    Neg "neg" (a: F32) -> F32 = f32::from_bits(a.to_bits() ^ 0x8000_0000);
    /// Clears the sign bit.
    Abs "abs" (a: F32) -> F32 = f32::from_bits(a.to_bits() & 0x7fff_ffff);
    Sqrt "sqrt" (a: F32) -> F32 = a.sqrt();
    /// IEEE 754-2019 minimum: NaN if either is NaN; -0 is below +0.
    Min "min" (a: F32, b: F32) -> F32 = meaning::minimum(a, b);
    /// IEEE 754-2019 maximum: NaN if either is NaN; +0 is above -0.
    Max "max" (a: F32, b: F32) -> F32 = -meaning::minimum(-a, -b);
    Floor "floor" (a: F32) -> F32 = a.floor();
    Ceil "ceil" (a: F32) -> F32 = a.ceil();
    Trunc "trunc" (a: F32) -> F32 = a.trunc();
    /// To the nearest integer, ties to even.
    Round "round" (a: F32) -> F32 = a.round_ties_even();
    /// `a * 2^floor(n)`, one rounding; see [`meaning::scale`].
    Scale "scale" (a: F32, n: F32) -> F32 = meaning::scale(a, n);
    /// The mantissa of a positive number, in 3/4..3/2; see [`meaning::mantissa`].
    Mantissa "mantissa" (a: F32) -> F32 = meaning::mantissa(a);
    /// The exponent that goes with it; see [`meaning::exponent`].
    Exponent "exponent" (a: F32) -> F32 = meaning::exponent(a);
    /// An angle of about -π/2..π/2 with the same sine; see [`meaning::sin_arg`].
    SinArg "sin_arg" (a: F32) -> F32 = meaning::sin_arg(a);
    /// An angle of about -π/2..π/2 whose sine is the cosine of `a`; see [`meaning::cos_arg`].
    CosArg "cos_arg" (a: F32) -> F32 = meaning::cos_arg(a);
    // f32 comparisons; false with NaN, except `ne`
    Eq "eq" (a: F32, b: F32) -> Bool = a == b;
    Ne "ne" (a: F32, b: F32) -> Bool = a != b;
    Lt "lt" (a: F32, b: F32) -> Bool = a < b;
    Le "le" (a: F32, b: F32) -> Bool = a <= b;
    /// To the nearest bf16, ties to even; NaN stays NaN.
    Bf16 "bf16" (a: F32) -> F32 = half::bf16::from_f32(a).to_f32();
    /// To the nearest f16, ties to even; NaN stays NaN.
    F16 "f16" (a: F32) -> F32 = half::f16::from_f32(a).to_f32();
    // f64 arithmetic, as that of f32
    DAdd "dadd" (a: F64, b: F64) -> F64 = a + b;
    DSub "dsub" (a: F64, b: F64) -> F64 = a - b;
    DMul "dmul" (a: F64, b: F64) -> F64 = a * b;
    DDiv "ddiv" (a: F64, b: F64) -> F64 = a / b;
    /// Fused multiply-add, one rounding.
    DFma "dfma" (a: F64, b: F64, c: F64) -> F64 = a.mul_add(b, c);
    /// Flips the sign bit, of NaN too.
    DNeg "dneg" (a: F64) -> F64 = f64::from_bits(a.to_bits() ^ 1 << 63);
    /// Clears the sign bit.
    DAbs "dabs" (a: F64) -> F64 = f64::from_bits(a.to_bits() & !(1 << 63));
    DSqrt "dsqrt" (a: F64) -> F64 = a.sqrt();
    /// IEEE 754-2019 minimum: NaN if either is NaN; -0 is below +0.
    DMin "dmin" (a: F64, b: F64) -> F64 = meaning::minimum_f64(a, b);
    /// IEEE 754-2019 maximum: NaN if either is NaN; +0 is above -0.
    DMax "dmax" (a: F64, b: F64) -> F64 = -meaning::minimum_f64(-a, -b);
    DFloor "dfloor" (a: F64) -> F64 = a.floor();
    DCeil "dceil" (a: F64) -> F64 = a.ceil();
    DTrunc "dtrunc" (a: F64) -> F64 = a.trunc();
    /// To the nearest integer, ties to even.
    DRound "dround" (a: F64) -> F64 = a.round_ties_even();
    /// The remainder of a truncated division, exact; the dividend's sign.
    DRem "drem" (a: F64, b: F64) -> F64 = libm::fmod(a, b);
    DExp "dexp" (a: F64) -> F64 = libm::exp(a);
    DExp2 "dexp2" (a: F64) -> F64 = libm::exp2(a);
    DExpm1 "dexpm1" (a: F64) -> F64 = libm::expm1(a);
    DLog "dlog" (a: F64) -> F64 = libm::log(a);
    DLog2 "dlog2" (a: F64) -> F64 = libm::log2(a);
    DLog10 "dlog10" (a: F64) -> F64 = libm::log10(a);
    DLog1p "dlog1p" (a: F64) -> F64 = libm::log1p(a);
    DSin "dsin" (a: F64) -> F64 = libm::sin(a);
    DCos "dcos" (a: F64) -> F64 = libm::cos(a);
    DTan "dtan" (a: F64) -> F64 = libm::tan(a);
    DSinh "dsinh" (a: F64) -> F64 = libm::sinh(a);
    DCosh "dcosh" (a: F64) -> F64 = libm::cosh(a);
    DTanh "dtanh" (a: F64) -> F64 = libm::tanh(a);
    DAsin "dasin" (a: F64) -> F64 = libm::asin(a);
    DAcos "dacos" (a: F64) -> F64 = libm::acos(a);
    DAtan "datan" (a: F64) -> F64 = libm::atan(a);
    DAtan2 "datan2" (a: F64, b: F64) -> F64 = libm::atan2(a, b);
    DAsinh "dasinh" (a: F64) -> F64 = libm::asinh(a);
    DAcosh "dacosh" (a: F64) -> F64 = libm::acosh(a);
    DAtanh "datanh" (a: F64) -> F64 = libm::atanh(a);
    DErf "derf" (a: F64) -> F64 = libm::erf(a);
    DErfc "derfc" (a: F64) -> F64 = libm::erfc(a);
    DPow "dpow" (a: F64, b: F64) -> F64 = libm::pow(a, b);
    // f64 comparisons; false with NaN, except `dne`
    DEq "deq" (a: F64, b: F64) -> Bool = a == b;
    DNe "dne" (a: F64, b: F64) -> Bool = a != b;
    DLt "dlt" (a: F64, b: F64) -> Bool = a < b;
    DLe "dle" (a: F64, b: F64) -> Bool = a <= b;
    // 32-bit integers
    UAdd "uadd" (a: U32, b: U32) -> U32 = a.wrapping_add(b);
    USub "usub" (a: U32, b: U32) -> U32 = a.wrapping_sub(b);
    UMul "umul" (a: U32, b: U32) -> U32 = a.wrapping_mul(b);
    /// High half of the unsigned 64-bit product.
    UMulHi "umulhi" (a: U32, b: U32) -> U32 = ((a as u64 * b as u64) >> 32) as u32;
    UAnd "uand" (a: U32, b: U32) -> U32 = a & b;
    UOr "uor" (a: U32, b: U32) -> U32 = a | b;
    UXor "uxor" (a: U32, b: U32) -> U32 = a ^ b;
    /// Left shift; 0 from a count of 32 up.
    UShl "ushl" (a: U32, b: U32) -> U32 = a.checked_shl(b).unwrap_or(0);
    /// Logical right shift; 0 from a count of 32 up.
    UShr "ushr" (a: U32, b: U32) -> U32 = a.checked_shr(b).unwrap_or(0);
    /// Arithmetic right shift; the sign from a count of 32 up.
    IShr "ishr" (a: U32, b: U32) -> U32 = ((a as i32) >> b.min(31)) as u32;
    UEq "ueq" (a: U32, b: U32) -> Bool = a == b;
    /// Unsigned less-than.
    ULt "ult" (a: U32, b: U32) -> Bool = a < b;
    /// Signed less-than.
    ILt "ilt" (a: U32, b: U32) -> Bool = (a as i32) < (b as i32);
    // 64-bit integers; arithmetic wraps
    LAdd "ladd" (a: I64, b: I64) -> I64 = a.wrapping_add(b);
    LSub "lsub" (a: I64, b: I64) -> I64 = a.wrapping_sub(b);
    LMul "lmul" (a: I64, b: I64) -> I64 = a.wrapping_mul(b);
    /// Quotient rounded towards zero; 0 for a zero divisor; MIN / -1 wraps.
    LDiv "ldiv" (a: I64, b: I64) -> I64 = if b == 0 { 0 } else { a.wrapping_div(b) };
    /// Remainder with the dividend's sign; 0 for a zero divisor.
    LRem "lrem" (a: I64, b: I64) -> I64 = if b == 0 { 0 } else { a.wrapping_rem(b) };
    /// Power modulo 2^64; see [`meaning::integer_power`].
    LPow "lpow" (a: I64, b: I64) -> I64 = meaning::integer_power(a, b);
    LNeg "lneg" (a: I64) -> I64 = a.wrapping_neg();
    LMin "lmin" (a: I64, b: I64) -> I64 = a.min(b);
    LMax "lmax" (a: I64, b: I64) -> I64 = a.max(b);
    LAnd "land" (a: I64, b: I64) -> I64 = a & b;
    LOr "lor" (a: I64, b: I64) -> I64 = a | b;
    LXor "lxor" (a: I64, b: I64) -> I64 = a ^ b;
    LShl "lshl" (a: I64, b: I64) -> I64 = if (0..64).contains(&b) { a << b } else { 0 };
    /// Arithmetic right shift; the sign for counts outside 0..64.
    LShr "lshr" (a: I64, b: I64) -> I64 = if (0..64).contains(&b) { a >> b } else { a >> 63 };
    /// The low 8 bits, signed.
    WrapI8 "wrap_i8" (a: I64) -> I64 = a as i8 as i64;
    /// The low 8 bits, unsigned.
    WrapU8 "wrap_u8" (a: I64) -> I64 = a as u8 as i64;
    /// The low 32 bits, signed.
    WrapI32 "wrap_i32" (a: I64) -> I64 = a as i32 as i64;
    LEq "leq" (a: I64, b: I64) -> Bool = a == b;
    LLt "llt" (a: I64, b: I64) -> Bool = a < b;
    // truth values
    And "and" (a: Bool, b: Bool) -> Bool = a & b;
    Or "or" (a: Bool, b: Bool) -> Bool = a | b;
    Xor "xor" (a: Bool, b: Bool) -> Bool = a ^ b;
    Not "not" (a: Bool) -> Bool = !a;
    // selection: the first operand chooses the second (true) or the third
    Select "select" (c: Bool, a: F32, b: F32) -> F32 = if c { a } else { b };
    USelect "uselect" (c: Bool, a: U32, b: U32) -> U32 = if c { a } else { b };
    LSelect "lselect" (c: Bool, a: I64, b: I64) -> I64 = if c { a } else { b };
    DSelect "dselect" (c: Bool, a: F64, b: F64) -> F64 = if c { a } else { b };
    BSelect "bselect" (c: Bool, a: Bool, b: Bool) -> Bool = if c { a } else { b };
    // conversions
    /// The bits of an f32.
    Bits "bits" (a: F32) -> U32 = a.to_bits();
    /// The f32 with these bits.
    FromBits "from_bits" (a: U32) -> F32 = f32::from_bits(a);
    /// Signed 32-bit to f32, to nearest.
    IToF "itof" (a: U32) -> F32 = a as i32 as f32;
    /// Unsigned 32-bit to f32, to nearest.
    UToF "utof" (a: U32) -> F32 = a as f32;
    /// f32 to signed 32-bit, towards zero, saturating, NaN to 0.
    FToI "ftoi" (a: F32) -> U32 = a as i32 as u32;
    /// i64 to f32, to nearest.
    LToF "ltof" (a: I64) -> F32 = a as f32;
    /// f32 to i64, towards zero, saturating, NaN to 0.
    FToL "ftol" (a: F32) -> I64 = a as i64;
    /// f32 to f64, exact.
    FToD "ftod" (a: F32) -> F64 = a as f64;
    /// f64 to f32, to nearest.
    DToF "dtof" (a: F64) -> F32 = a as f32;
    /// i64 to f64, to nearest.
    LToD "ltod" (a: I64) -> F64 = a as f64;
    /// f64 to i64, towards zero, saturating, NaN to 0.
    DToL "dtol" (a: F64) -> I64 = a as i64;
    /// The bits of an f64.
    DBits "dbits" (a: F64) -> I64 = a.to_bits() as i64;
    /// The f64 with these bits.
    FromDBits "from_dbits" (a: I64) -> F64 = f64::from_bits(a as u64);
    /// Low 32 bits.
    LToU "ltou" (a: I64) -> U32 = a as u32;
    /// Zero-extended.
    UToL "utol" (a: U32) -> I64 = a as i64;
    /// 1 or 0.
    BToU "btou" (a: Bool) -> U32 = a as u32;
}

impl Instr {
    /// What this instruction of f32 lanes is for lanes of type `ty`; `None` where there is no such instruction.
    pub fn on(self, ty: Ty) -> Option<Instr> {
        use Instr::*;
        Some(match (self, ty) {
            (i, Ty::F32) => i,
            (Add, Ty::F64) => DAdd,
            (Add, Ty::I64) => LAdd,
            (Sub, Ty::F64) => DSub,
            (Sub, Ty::I64) => LSub,
            (Mul, Ty::F64) => DMul,
            (Mul, Ty::I64) => LMul,
            (Div, Ty::F64) => DDiv,
            (Div, Ty::I64) => LDiv,
            (Rem, Ty::F64) => DRem,
            (Rem, Ty::I64) => LRem,
            (Fma, Ty::F64) => DFma,
            (Neg, Ty::F64) => DNeg,
            (Neg, Ty::I64) => LNeg,
            (Abs, Ty::F64) => DAbs,
            (Sqrt, Ty::F64) => DSqrt,
            (Min, Ty::F64) => DMin,
            (Min, Ty::I64) => LMin,
            (Max, Ty::F64) => DMax,
            (Max, Ty::I64) => LMax,
            (Floor, Ty::F64) => DFloor,
            (Ceil, Ty::F64) => DCeil,
            (Trunc, Ty::F64) => DTrunc,
            (Round, Ty::F64) => DRound,
            (Eq, Ty::F64) => DEq,
            (Eq, Ty::I64) => LEq,
            (Ne, Ty::F64) => DNe,
            (Lt, Ty::F64) => DLt,
            (Lt, Ty::I64) => LLt,
            (Le, Ty::F64) => DLe,
            (Select, Ty::F64) => DSelect,
            (Select, Ty::I64) => LSelect,
            (Select, Ty::U32) => USelect,
            (Select, Ty::Bool) => BSelect,
            _ => return None,
        })
    }

    /// Whether it is a function that crate `libm` computes: some tens of floating-point operations.
    pub fn is_call(self) -> bool {
        use Instr::*;
        matches!(
            self,
            DRem | DExp
                | DExp2
                | DExpm1
                | DLog
                | DLog2
                | DLog10
                | DLog1p
                | DSin
                | DCos
                | DTan
                | DSinh
                | DCosh
                | DTanh
                | DAsin
                | DAcos
                | DAtan
                | DAtan2
                | DAsinh
                | DAcosh
                | DAtanh
                | DErf
                | DErfc
                | DPow
        )
    }

    /// The instruction called `name` in the text form.
    pub fn from_name(name: &str) -> Option<Instr> {
        Instr::ALL.iter().copied().find(|i| i.name() == name)
    }
}
