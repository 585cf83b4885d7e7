//! Making kernels: a [`Builder`] appends instructions and makes identical pure ones only once.
//!
//! No algebra happens here beyond that sharing (local value numbering), so the kernel computes
//! exactly what was written. [`Builder::finish`] returns only kernels that [`Kernel::verify`] accepts.

use crate::base::{DType, Error, Result};
use crate::kernel::instr::{Instr, Ty};
use crate::kernel::ir::{Access, Arg, Combine, Guard, Inst, Kernel, Val};
use rustc_hash::FxHashMap;

/// Builds one kernel.
#[derive(Clone, Debug)]
pub struct Builder {
    kernel: Kernel,
    /// The pure instructions made so far. Loads are pure: a kernel never reads what it wrote.
    made: FxHashMap<Inst, Val>,
    /// The first misuse that the kernel itself cannot show; `finish` reports it.
    misuse: Option<String>,
}

impl Access {
    /// Elements of `arg` in row-major order over `domain`.
    pub fn row_major(arg: u32, domain: &[usize]) -> Access {
        let mut strides = vec![0; domain.len()];
        let mut step = 1i64;
        for (s, &d) in strides.iter_mut().zip(domain).rev() {
            *s = step;
            step = step.saturating_mul(d.max(1) as i64);
        }
        Access::strided(arg, 0, &strides)
    }

    /// Element `offset + Σ coordinate * stride` of `arg`.
    pub fn strided(arg: u32, offset: i64, strides: &[i64]) -> Access {
        Access { arg, offset, strides: strides.to_vec(), dynamic: Vec::new() }
    }
}

impl Builder {
    /// A kernel over `domain`, whose reductions run over the axes marked in `reduced`.
    pub fn new(domain: &[usize], reduced: &[bool]) -> Builder {
        let kernel = Kernel { domain: domain.to_vec(), reduced: reduced.to_vec(), ..Kernel::default() };
        Builder { kernel, made: FxHashMap::default(), misuse: None }
    }

    /// What was built so far.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The type of a value; `None` for a number this builder did not give out.
    pub fn ty(&self, v: Val) -> Option<Ty> {
        if (v.0 as usize) < self.kernel.body.len() { self.kernel.ty(v) } else { None }
    }

    /// Adds a memory operand of `len` elements; returns its position.
    pub fn arg(&mut self, dtype: DType, len: usize, output: bool) -> u32 {
        self.kernel.args.push(Arg { dtype, len, output });
        (self.kernel.args.len() - 1) as u32
    }

    /// Adds a memory operand that is loaded.
    pub fn input(&mut self, dtype: DType, len: usize) -> u32 {
        self.arg(dtype, len, false)
    }

    /// Adds a memory operand that is stored.
    pub fn output(&mut self, dtype: DType, len: usize) -> u32 {
        self.arg(dtype, len, true)
    }

    /// Adds a host scalar; returns its position (for [`crate::kernel::ir::Dynamic`]).
    pub fn add_param(&mut self, ty: Ty) -> u32 {
        self.kernel.params.push(ty);
        (self.kernel.params.len() - 1) as u32
    }

    /// The value of the host scalar at `position`.
    pub fn param_value(&mut self, position: u32) -> Val {
        if position as usize >= self.kernel.params.len() {
            self.misuse(format!("parameter {position} does not exist"));
        }
        self.push(Inst::Param { param: position })
    }

    /// Adds a host scalar; returns its value.
    pub fn param(&mut self, ty: Ty) -> Val {
        let position = self.add_param(ty);
        self.param_value(position)
    }

    /// A fixed f32 (its bits decide identity: 0.0 and -0.0 are two constants).
    pub fn f32(&mut self, v: f32) -> Val {
        self.constant(Ty::F32, v.to_bits() as u64)
    }

    /// A fixed f64 (its bits decide identity).
    pub fn f64(&mut self, v: f64) -> Val {
        self.constant(Ty::F64, v.to_bits())
    }

    /// The number `v` as a lane of type `ty`: nearest f32, or truncated to an integer; a truth value is "not zero".
    pub fn number(&mut self, ty: Ty, v: f64) -> Val {
        match ty {
            Ty::F32 => self.f32(v as f32),
            Ty::F64 => self.f64(v),
            Ty::I64 => self.i64(v as i64),
            Ty::U32 => self.u32(v as u32),
            Ty::Bool => self.bool(v != 0.0),
        }
    }

    /// A fixed u32.
    pub fn u32(&mut self, v: u32) -> Val {
        self.constant(Ty::U32, v as u64)
    }

    /// A fixed i64.
    pub fn i64(&mut self, v: i64) -> Val {
        self.constant(Ty::I64, v as u64)
    }

    /// A fixed truth value.
    pub fn bool(&mut self, v: bool) -> Val {
        self.constant(Ty::Bool, v as u64)
    }

    /// A fixed value given by its bits.
    pub fn constant(&mut self, ty: Ty, bits: u64) -> Val {
        self.push(Inst::Const { ty, bits })
    }

    /// The coordinate along a domain axis, as i64.
    pub fn index(&mut self, axis: usize) -> Val {
        self.push(Inst::Index { axis: axis as u32 })
    }

    /// An element of an input.
    pub fn load(&mut self, access: Access) -> Val {
        self.load_where(access, Vec::new())
    }

    /// An element of an input, zero where a guard fails.
    pub fn load_where(&mut self, access: Access, guards: Vec<Guard>) -> Val {
        self.known_arg(&access);
        self.push(Inst::Load { access, guards })
    }

    /// The element of an input at `access + clamp(index, 0, len - 1) * stride`; see [`Inst::Gather`].
    pub fn gather(&mut self, access: Access, index: Val, stride: i64, len: i64) -> Val {
        self.known_arg(&access);
        self.push(Inst::Gather { access, index, stride, len })
    }

    /// A scalar instruction.
    pub fn op(&mut self, instr: Instr, operands: &[Val]) -> Val {
        if operands.len() != instr.operands().len() {
            self.misuse(format!("{} takes {} operands, got {}", instr.name(), instr.operands().len(), operands.len()));
        }
        let mut args = [Val(0); 3];
        for (a, &o) in args.iter_mut().zip(operands) {
            *a = o;
        }
        self.push(Inst::Op { instr, args })
    }

    /// What `instr`, an instruction of f32 lanes, does on lanes of type `ty` ([`Instr::on`]): so a formula of
    /// arithmetic alone is written once.
    pub fn on(&mut self, ty: Ty, instr: Instr, operands: &[Val]) -> Val {
        match instr.on(ty) {
            Some(instr) => self.op(instr, operands),
            None => {
                self.misuse(format!("there is no {} of {} lanes", instr.name(), ty.name()));
                Val(0)
            }
        }
    }

    /// `if c { a } else { b }` of lanes of any type.
    pub fn choose(&mut self, c: Val, a: Val, b: Val) -> Val {
        let ty = self.ty(a).unwrap_or(Ty::F32);
        self.on(ty, Instr::Select, &[c, a, b])
    }

    /// `value` rounded (16-bit floats) or wrapped (integers) to an element of `dtype`: what an op does with each
    /// result. Nothing is added where the value is one already.
    pub fn fit(&mut self, dtype: DType, value: Val) -> Val {
        let instr = match dtype {
            DType::BF16 => Instr::Bf16,
            DType::F16 => Instr::F16,
            DType::I8 => Instr::WrapI8,
            DType::U8 => Instr::WrapU8,
            DType::I32 => Instr::WrapI32,
            DType::Bool | DType::I64 | DType::F32 | DType::F64 => return value,
        };
        if self.is_of(dtype, value, 8) { value } else { self.op(instr, &[value]) }
    }

    /// Whether `value` is known to be an element of `dtype`, looking `depth` instructions far.
    fn is_of(&self, dtype: DType, value: Val, depth: u32) -> bool {
        let Some(inst) = self.kernel.body.get(value.0 as usize).filter(|_| depth > 0) else { return false };
        match inst {
            Inst::Const { ty, bits } => *ty == Ty::of(dtype) && dtype.round(*bits) == *bits,
            Inst::Load { access, .. } | Inst::Gather { access, .. } => {
                self.kernel.args.get(access.arg as usize).is_some_and(|a| a.dtype == dtype)
            }
            Inst::Op { instr, args } => {
                let all =
                    |from: usize| args[from..instr.operands().len()].iter().all(|&a| self.is_of(dtype, a, depth - 1));
                match instr {
                    Instr::Bf16 => dtype == DType::BF16,
                    Instr::F16 => dtype == DType::F16,
                    Instr::WrapI8 => dtype == DType::I8,
                    Instr::WrapU8 => dtype == DType::U8,
                    Instr::WrapI32 => dtype == DType::I32,
                    // An integer's negative may be out of range; a float's never is.
                    Instr::Neg | Instr::Abs | Instr::Min | Instr::Max => all(0),
                    Instr::LMin | Instr::LMax | Instr::LAnd | Instr::LOr | Instr::LXor => all(0),
                    Instr::Select | Instr::LSelect => all(1),
                    Instr::UToL => {
                        matches!(self.kernel.body.get(args[0].0 as usize), Some(Inst::Op { instr: Instr::BToU, .. }))
                    }
                    _ => false,
                }
            }
            Inst::Reduce { combine: Combine::Max | Combine::Min | Combine::LMax | Combine::LMin, value } => {
                self.is_of(dtype, *value, depth - 1)
            }
            _ => false,
        }
    }

    /// `value` combined over all inner points.
    pub fn reduce(&mut self, combine: Combine, value: Val) -> Val {
        self.push(Inst::Reduce { combine, value })
    }

    /// Writes `value` to an output.
    pub fn store(&mut self, access: Access, value: Val) {
        self.known_arg(&access);
        self.kernel.body.push(Inst::Store { access, value });
    }

    /// The kernel, verified.
    pub fn finish(self) -> Result<Kernel> {
        if let Some(detail) = self.misuse {
            return Err(Error::bug("kernel builder", detail));
        }
        self.kernel.verify()?;
        Ok(self.kernel)
    }

    fn known_arg(&mut self, access: &Access) {
        if access.arg as usize >= self.kernel.args.len() {
            self.misuse(format!("argument {} does not exist", access.arg));
        }
    }

    fn misuse(&mut self, detail: String) {
        self.misuse.get_or_insert(detail);
    }

    fn push(&mut self, inst: Inst) -> Val {
        if let Some(&v) = self.made.get(&inst) {
            return v;
        }
        let v = Val(self.kernel.body.len() as u32);
        self.kernel.body.push(inst.clone());
        self.made.insert(inst, v);
        v
    }
}

/// One method per instruction, named as in the text form.
macro_rules! methods {
    ($($name:ident $instr:ident ($($arg:ident),*);)*) => {
        #[doc(hidden)]
        #[allow(clippy::should_implement_trait)]
        impl Builder {
            $(pub fn $name(&mut self, $($arg: Val),*) -> Val {
                self.op(Instr::$instr, &[$($arg),*])
            })*
        }

        #[cfg(test)]
        const METHODS: &[(&str, Instr)] = &[$((stringify!($name), Instr::$instr)),*];
    };
}

methods! {
    add Add (a, b); sub Sub (a, b); mul Mul (a, b); div Div (a, b); rem Rem (a, b); fma Fma (a, b, c);
    neg Neg (a); abs Abs (a); sqrt Sqrt (a); min Min (a, b); max Max (a, b);
    floor Floor (a); ceil Ceil (a); trunc Trunc (a); round Round (a);
    scale Scale (a, n); mantissa Mantissa (a); exponent Exponent (a); sin_arg SinArg (a); cos_arg CosArg (a);
    eq Eq (a, b); ne Ne (a, b); lt Lt (a, b); le Le (a, b);
    bf16 Bf16 (a); f16 F16 (a);
    dadd DAdd (a, b); dsub DSub (a, b); dmul DMul (a, b); ddiv DDiv (a, b); dfma DFma (a, b, c);
    dneg DNeg (a); dabs DAbs (a); dsqrt DSqrt (a); dmin DMin (a, b); dmax DMax (a, b);
    dfloor DFloor (a); dceil DCeil (a); dtrunc DTrunc (a); dround DRound (a); drem DRem (a, b);
    dexp DExp (a); dexp2 DExp2 (a); dexpm1 DExpm1 (a);
    dlog DLog (a); dlog2 DLog2 (a); dlog10 DLog10 (a); dlog1p DLog1p (a);
    dsin DSin (a); dcos DCos (a); dtan DTan (a); dsinh DSinh (a); dcosh DCosh (a); dtanh DTanh (a);
    dasin DAsin (a); dacos DAcos (a); datan DAtan (a); datan2 DAtan2 (a, b);
    dasinh DAsinh (a); dacosh DAcosh (a); datanh DAtanh (a); derf DErf (a); derfc DErfc (a); dpow DPow (a, b);
    deq DEq (a, b); dne DNe (a, b); dlt DLt (a, b); dle DLe (a, b);
    uadd UAdd (a, b); usub USub (a, b); umul UMul (a, b); umulhi UMulHi (a, b);
    uand UAnd (a, b); uor UOr (a, b); uxor UXor (a, b);
    ushl UShl (a, b); ushr UShr (a, b); ishr IShr (a, b);
    ueq UEq (a, b); ult ULt (a, b); ilt ILt (a, b);
    ladd LAdd (a, b); lsub LSub (a, b); lmul LMul (a, b); ldiv LDiv (a, b); lrem LRem (a, b); lpow LPow (a, b);
    lneg LNeg (a); lmin LMin (a, b); lmax LMax (a, b);
    land LAnd (a, b); lor LOr (a, b); lxor LXor (a, b); lshl LShl (a, b); lshr LShr (a, b);
    wrap_i8 WrapI8 (a); wrap_u8 WrapU8 (a); wrap_i32 WrapI32 (a);
    leq LEq (a, b); llt LLt (a, b);
    and And (a, b); or Or (a, b); xor Xor (a, b); not Not (a);
    select Select (c, a, b); uselect USelect (c, a, b); lselect LSelect (c, a, b); dselect DSelect (c, a, b); bselect BSelect (c, a, b);
    bits Bits (a); from_bits FromBits (a); itof IToF (a); utof UToF (a); ftoi FToI (a);
    ltof LToF (a); ftol FToL (a); ftod FToD (a); dtof DToF (a); ltod LToD (a); dtol DToL (a);
    dbits DBits (a); from_dbits FromDBits (a); ltou LToU (a); utol UToL (a); btou BToU (a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_has_its_method() {
        assert_eq!(METHODS.iter().map(|m| m.1).collect::<Vec<_>>(), Instr::ALL);
        for (name, instr) in METHODS {
            assert_eq!(*name, instr.name());
        }
    }

    #[test]
    fn identical_instructions_are_made_once() {
        let mut b = Builder::new(&[4], &[false]);
        let (x, y) = (b.input(DType::F32, 4), b.output(DType::F32, 4));
        let a = b.load(Access::row_major(x, &[4]));
        let c = b.load(Access::row_major(x, &[4]));
        assert_eq!(a, c);
        let (s, t) = (b.add(a, a), b.add(c, c));
        assert_eq!(s, t);
        assert_ne!(b.f32(0.0), b.f32(-0.0));
        b.store(Access::row_major(y, &[4]), s);
        assert_eq!(b.finish().unwrap().body.len(), 5);
    }

    #[test]
    fn misuse_is_an_error() {
        let mut b = Builder::new(&[4], &[false]);
        let one = b.f32(1.0);
        b.op(Instr::Add, &[one]);
        assert!(b.finish().unwrap_err().to_string().contains("add takes 2 operands, got 1"));
    }
}
