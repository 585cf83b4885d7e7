//! What the statements' functions are as calls of the library.

use stepgraph::{DType, Device, Result, Rng, Shape, Tensor};

use crate::program::{Binary, Unary};

pub fn unary(op: Unary, a: &Tensor) -> Result<Tensor> {
    match op {
        Unary::Neg => -a,
        Unary::Abs => a.abs(),
        Unary::Exp => a.exp(),
        Unary::Log => a.log(),
        Unary::Sin => a.sin(),
        Unary::Cos => a.cos(),
        Unary::Tanh => a.tanh(),
        Unary::Sqrt => a.sqrt(),
        Unary::Recip => a.recip(),
        Unary::Relu => a.relu(),
        Unary::Detach => a.detach(),
        Unary::Not => a.not(),
        Unary::Exp2 => a.exp2(),
        Unary::Expm1 => a.expm1(),
        Unary::Log1p => a.log1p(),
        Unary::Log2 => a.log2(),
        Unary::Log10 => a.log10(),
        Unary::Rsqrt => a.rsqrt(),
        Unary::Sigmoid => a.sigmoid(),
        Unary::Erf => a.erf(),
        Unary::Erfc => a.erfc(),
        Unary::Tan => a.tan(),
        Unary::Asin => a.asin(),
        Unary::Acos => a.acos(),
        Unary::Atan => a.atan(),
        Unary::Sinh => a.sinh(),
        Unary::Cosh => a.cosh(),
        Unary::Floor => a.floor(),
        Unary::Ceil => a.ceil(),
        Unary::Round => a.round(),
        Unary::Trunc => a.trunc(),
        Unary::Sign => a.sign(),
        Unary::IsNan => a.is_nan(),
        Unary::IsInf => a.is_inf(),
        Unary::IsFinite => a.is_finite(),
        Unary::Square => a.powi(2),
        Unary::Cube => a.powi(3),
        Unary::Clamp => a.clamp(-0.5, 1.0),
    }
}

pub fn binary(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Maximum => a.maximum(b),
        Binary::Minimum => a.minimum(b),
        Binary::Eq => a.eq(b),
        Binary::Ne => a.ne(b),
        Binary::Lt => a.lt(b),
        Binary::Le => a.le(b),
        Binary::Gt => a.gt(b),
        Binary::Ge => a.ge(b),
        Binary::And => a.and(b),
        Binary::Or => a.or(b),
        Binary::Xor => a.xor(b),
        Binary::Pow => a.pow(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Rem => a.rem(b),
        Binary::Fmod => a.fmod(b),
        Binary::ClampMin => a.clamp_min(b),
        Binary::ClampMax => a.clamp_max(b),
        Binary::Shl => a.shl(b),
        Binary::Shr => a.shr(b),
    }
}

/// An operation of a tensor and a host number, with an operator where there is one.
macro_rules! with_number {
    ($op:expr, $a:expr, $h:expr, $left:expr) => {{
        let (a, h) = ($a, $h);
        match ($op, $left) {
            (Binary::Add, false) => a + h,
            (Binary::Add, true) => h + a,
            (Binary::Sub, false) => a - h,
            (Binary::Sub, true) => h - a,
            (Binary::Mul, false) => a * h,
            (Binary::Mul, true) => h * a,
            (Binary::Div, false) => a / h,
            (Binary::Div, true) => h / a,
            (Binary::Maximum, _) => a.maximum(h),
            (Binary::Minimum, _) => a.minimum(h),
            (Binary::Eq, _) => a.eq(h),
            (Binary::Ne, _) => a.ne(h),
            (Binary::Lt, _) => a.lt(h),
            (Binary::Le, _) => a.le(h),
            (Binary::Gt, _) => a.gt(h),
            (Binary::Ge, _) => a.ge(h),
            (Binary::And, _) => a.and(h),
            (Binary::Or, _) => a.or(h),
            (Binary::Xor, _) => a.xor(h),
            (Binary::Pow, _) => a.pow(h),
            (Binary::Atan2, _) => a.atan2(h),
            (Binary::Rem, _) => a.rem(h),
            (Binary::Fmod, _) => a.fmod(h),
            (Binary::ClampMin, _) => a.clamp_min(h),
            (Binary::ClampMax, _) => a.clamp_max(h),
            (Binary::Shl, _) => a.shl(h),
            (Binary::Shr, _) => a.shr(h),
        }
    }};
}

/// Integer tensors take whole numbers (u8 no negative ones), bool ones truth values; sometimes a float, which casts them.
pub fn with_host(op: Binary, a: &Tensor, h: f32, left: bool) -> Result<Tensor> {
    if h.fract() == 0.25 || a.dtype().is_float() {
        return with_number!(op, a, h as f64, left);
    }
    if a.dtype().is_int() {
        return with_number!(op, a, h as i64, left);
    }
    let h = h > 0.0;
    match op {
        Binary::And => a.and(h),
        Binary::Or => a.or(h),
        Binary::Xor => a.xor(h),
        Binary::Eq => a.eq(h),
        _ => a.ne(h),
    }
}

/// Draws other than uniform ones, each taking one count of the stream.
pub fn draw(rng: &Rng, how: u8, shape: Shape, device: &Device) -> Result<Tensor> {
    match how {
        0 => rng.normal(shape, device),
        1 => rng.bernoulli(shape, 0.5, device),
        2 => rng.randint(shape, -3, 7, device),
        3 => rng.uniform_in(shape, -1.0, 2.0, device),
        4 => rng.permutation(shape.numel(), device)?.reshape(shape),
        _ => rng.categorical(&Tensor::full(shape, 0.5, device)?.to_dtype(DType::F32)?),
    }
}
