//! The text form of a kernel; [`crate::kernel::parse`] reads it back.
//!
//! ```text
//! kernel @softmax(%0: f32[320], out %1: f32[320], $0: i64) domain [32,10] reduced [1] {
//!   v0: f32 = load %0[10,1] + 5 + $0 * 10 (max 3) where 0 <= axis 1 < 9
//!   v1: f32 = reduce max v0
//!   v2: f32 = sub v0, v1
//!   store %1[10,1], v2
//! }
//! ```
//! Arguments are `%n` with their number of elements, host scalars `$n`, values `vn`, n the position of the
//! instruction. An access gives a stride per axis, then the offset and the parts that host scalars decide.

use crate::kernel::instr::Ty;
use crate::kernel::ir::{Access, Inst, Kernel, Val};
use std::fmt::{self, Display, Formatter};

/// Items separated by `separator`.
struct List<'a, T>(&'a [T], &'a str);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { self.1 })?;
            item.fmt(f)?;
        }
        Ok(())
    }
}

/// A kernel with the name that its text form gives it.
pub struct Named<'a> {
    pub name: &'a str,
    pub kernel: &'a Kernel,
}

/// The text form, with `k` for a name.
impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        Named { name: "k", kernel: self }.fmt(f)
    }
}

impl Display for Named<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let k = self.kernel;
        let args = k.args.iter().enumerate().map(|(i, a)| {
            let out = if a.output { "out " } else { "" };
            format!("{out}%{i}: {}[{}]", a.dtype, a.len)
        });
        let params = k.params.iter().enumerate().map(|(i, ty)| format!("${i}: {}", ty.name()));
        let header: Vec<String> = args.chain(params).collect();
        let reduced: Vec<usize> = (0..k.reduced.len()).filter(|&a| k.reduced[a]).collect();
        write!(f, "kernel @{}({}) domain [{}]", self.name, List(&header, ", "), List(&k.domain, ","))?;
        if !reduced.is_empty() {
            write!(f, " reduced [{}]", List(&reduced, ","))?;
        }
        f.write_str(" {\n")?;
        for (i, inst) in k.body.iter().enumerate() {
            f.write_str("  ")?;
            if !matches!(inst, Inst::Store { .. }) {
                let ty = k.ty(Val(i as u32)).map_or("?", Ty::name);
                write!(f, "v{i}: {ty} = ")?;
            }
            writeln!(f, "{inst}")?;
        }
        f.write_str("}\n")
    }
}

impl Display for Val {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// The right side of a line.
impl Display for Inst {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Inst::Const { ty, bits } => write!(f, "const {}", Constant(*ty, *bits)),
            Inst::Param { param } => write!(f, "param ${param}"),
            Inst::Index { axis } => write!(f, "index {axis}"),
            Inst::Load { access, guards } => {
                write!(f, "load {access}")?;
                for (i, g) in guards.iter().enumerate() {
                    f.write_str(if i == 0 { " where " } else { ", " })?;
                    write!(f, "{} <= axis {} < {}", g.lo, g.axis, g.hi)?;
                }
                Ok(())
            }
            Inst::Gather { access, index, stride, len } => {
                write!(f, "gather {access} at {index} * {stride} (len {len})")
            }
            Inst::Op { instr, args } => {
                write!(f, "{} {}", instr.name(), List(&args[..instr.operands().len()], ", "))
            }
            Inst::Reduce { combine, value } => write!(f, "reduce {} {value}", combine.name()),
            Inst::Store { access, value } => write!(f, "store {access}, {value}"),
        }
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "%{}[{}]", self.arg, List(&self.strides, ","))?;
        if self.offset != 0 {
            write!(f, " + {}", self.offset)?;
        }
        for d in &self.dynamic {
            write!(f, " + ${} * {} (max {})", d.param, d.stride, d.max)?;
        }
        Ok(())
    }
}

/// A fixed value: decimal where that is short and exact, else its bits in hexadecimal.
struct Constant(Ty, u64);

impl Display for Constant {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Constant(ty, bits) = *self;
        match ty {
            Ty::F32 => {
                let value = f32::from_bits(bits as u32);
                // The shortest text that reads back to the same bits; a signed exponent is no word.
                let text = format!("{value:?}");
                if value.is_nan() || text.contains('e') { write!(f, "{bits:#x}") } else { f.write_str(&text) }
            }
            Ty::F64 => {
                let value = f64::from_bits(bits);
                let text = format!("{value:?}");
                if value.is_nan() || text.contains('e') { write!(f, "{bits:#x}") } else { f.write_str(&text) }
            }
            Ty::U32 => write!(f, "{bits:#x}"),
            Ty::I64 => write!(f, "{}", bits as i64),
            Ty::Bool => write!(f, "{}", bits != 0),
        }
    }
}
