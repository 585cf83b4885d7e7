//! Types, constants and scalar instructions as CUDA C++.
//!
//! Every f32 and integer instruction has the bits of [`crate::kernel::instr`], and so have binary64's arithmetic, `drem` and `dsqrt`;
//! its transcendental functions (`dexp` to `dpow`) are CUDA's own double functions, within 2 ulp of those of crate `libm`.

use crate::base::DType;
use crate::kernel::instr::{Instr, Ty};

/// The type of a lane.
pub fn ty(ty: Ty) -> &'static str {
    match ty {
        Ty::F32 => "float",
        Ty::F64 => "double",
        Ty::U32 => "u32",
        Ty::I64 => "i64",
        Ty::Bool => "bool",
    }
}

/// The type of an element in memory.
pub fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I32 => "int",
        DType::I64 => "i64",
        DType::F16 | DType::BF16 => "u16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// An element as a lane.
pub fn widen(dtype: DType, element: &str) -> String {
    match dtype {
        DType::Bool => format!("{element} != 0"),
        DType::U8 | DType::I8 | DType::I32 => format!("(i64){element}"),
        DType::F16 => format!("from_f16({element})"),
        DType::BF16 => format!("from_bf16({element})"),
        DType::I64 | DType::F32 | DType::F64 => element.to_string(),
    }
}

/// A lane as an element.
pub fn narrow(dtype: DType, lane: &str) -> String {
    match dtype {
        DType::Bool | DType::U8 => format!("(u8)({lane})"),
        DType::I8 => format!("(i8)({lane})"),
        DType::I32 => format!("(int)({lane})"),
        DType::F16 => format!("to_f16({lane})"),
        DType::BF16 => format!("to_bf16({lane})"),
        DType::I64 | DType::F32 | DType::F64 => lane.to_string(),
    }
}

/// A fixed value.
pub fn constant(ty: Ty, bits: u64) -> String {
    match ty {
        Ty::F32 => {
            let v = f32::from_bits(bits as u32);
            match v.is_normal() || v == 0.0 {
                true => format!("{v:?}f"),
                false => format!("__uint_as_float({bits:#x}u)"),
            }
        }
        Ty::F64 => {
            let v = f64::from_bits(bits);
            match v.is_normal() || v == 0.0 {
                true => format!("{v:?}"),
                false => format!("__longlong_as_double((i64){bits:#x}ull)"),
            }
        }
        Ty::U32 => format!("{bits:#x}u"),
        Ty::I64 if bits as i64 == i64::MIN => "(i64)0x8000000000000000ull".to_string(),
        Ty::I64 => format!("{}ll", bits as i64),
        Ty::Bool => (bits != 0).to_string(),
    }
}

/// A word of the parameter block as a lane.
pub fn canonical(ty: Ty, word: &str) -> String {
    match ty {
        Ty::F32 => format!("__uint_as_float((u32){word})"),
        Ty::F64 => format!("__longlong_as_double((i64){word})"),
        Ty::U32 => format!("(u32){word}"),
        Ty::I64 => format!("(i64){word}"),
        Ty::Bool => format!("{word} != 0"),
    }
}

/// `instr` of operands that are names, literals or in brackets.
pub fn instr(instr: Instr, [a, b, c]: [&str; 3]) -> String {
    use Instr::*;
    let infix = |op: &str| format!("{a} {op} {b}");
    let call = |name: &str| match instr.operands().len() {
        1 => format!("{name}({a})"),
        2 => format!("{name}({a}, {b})"),
        _ => format!("{name}({a}, {b}, {c})"),
    };
    let wrapping = |op: &str| format!("(i64)((u64){a} {op} (u64){b})");
    match instr {
        Add | DAdd | UAdd => infix("+"),
        Sub | DSub | USub => infix("-"),
        Mul | DMul | UMul => infix("*"),
        Div | DDiv => infix("/"),
        Rem => call("fmodf"),
        Fma => call("fmaf"),
        Neg | DNeg => format!("-({a})"),
        Abs => call("fabsf"),
        Sqrt => call("sqrtf"),
        Min => call("minimum"),
        Max => call("maximum"),
        Floor => call("floorf"),
        Ceil => call("ceilf"),
        Trunc => call("truncf"),
        Round => call("rintf"),
        Scale => call("scale"),
        Mantissa => call("mantissa"),
        Exponent => call("exponent"),
        SinArg => call("sin_arg"),
        CosArg => call("cos_arg"),
        Eq | DEq | UEq | LEq => infix("=="),
        Ne | DNe => infix("!="),
        Lt | DLt | ULt | LLt => infix("<"),
        Le | DLe => infix("<="),
        Bf16 => format!("from_bf16(to_bf16({a}))"),
        F16 => format!("from_f16(to_f16({a}))"),
        DFma => call("fma"),
        DAbs => call("fabs"),
        DSqrt => call("sqrt"),
        DMin => call("minimum_f64"),
        DMax => call("maximum_f64"),
        DFloor => call("floor"),
        DCeil => call("ceil"),
        DTrunc => call("trunc"),
        DRound => call("rint"),
        DRem => call("fmod"),
        DExp => call("exp"),
        DExp2 => call("exp2"),
        DExpm1 => call("expm1"),
        DLog => call("log"),
        DLog2 => call("log2"),
        DLog10 => call("log10"),
        DLog1p => call("log1p"),
        DSin => call("sin"),
        DCos => call("cos"),
        DTan => call("tan"),
        DSinh => call("sinh"),
        DCosh => call("cosh"),
        DTanh => call("tanh"),
        DAsin => call("asin"),
        DAcos => call("acos"),
        DAtan => call("atan"),
        DAtan2 => call("atan2"),
        DAsinh => call("asinh"),
        DAcosh => call("acosh"),
        DAtanh => call("atanh"),
        DErf => call("erf"),
        DErfc => call("erfc"),
        DPow => call("pow"),
        UMulHi => call("__umulhi"),
        UAnd | LAnd => infix("&"),
        UOr | LOr => infix("|"),
        UXor | LXor => infix("^"),
        UShl => format!("{b} < 32u ? {a} << {b} : 0u"),
        UShr => format!("{b} < 32u ? {a} >> {b} : 0u"),
        IShr => format!("(u32)((int){a} >> ({b} < 31u ? {b} : 31u))"),
        ILt => format!("(int){a} < (int){b}"),
        LAdd => wrapping("+"),
        LSub => wrapping("-"),
        LMul => wrapping("*"),
        LDiv => call("quotient"),
        LRem => call("remainder_of"),
        LPow => call("integer_power"),
        LNeg => format!("(i64)(0ull - (u64){a})"),
        LMin => format!("{a} < {b} ? {a} : {b}"),
        LMax => format!("{a} > {b} ? {a} : {b}"),
        LShl => format!("(u64){b} < 64ull ? (i64)((u64){a} << {b}) : 0ll"),
        LShr => format!("{a} >> ((u64){b} < 64ull ? {b} : 63ll)"),
        WrapI8 => format!("(i64)(i8){a}"),
        WrapU8 => format!("(i64)(u8){a}"),
        WrapI32 => format!("(i64)(int){a}"),
        And => infix("&&"),
        Or => infix("||"),
        Xor => infix("!="),
        Not => format!("!{a}"),
        Select | USelect | LSelect | DSelect | BSelect => format!("{a} ? {b} : {c}"),
        Bits => call("__float_as_uint"),
        FromBits => call("__uint_as_float"),
        IToF => format!("(float)(int){a}"),
        UToF | LToF | DToF => format!("(float){a}"),
        FToI => call("to_i32"),
        FToL => call("to_i64_f32"),
        FToD | LToD => format!("(double){a}"),
        DToL => call("to_i64"),
        DBits => call("__double_as_longlong"),
        FromDBits => call("__longlong_as_double"),
        LToU => format!("(u32){a}"),
        UToL => format!("(i64){a}"),
        BToU => format!("(u32){a}"),
    }
}
