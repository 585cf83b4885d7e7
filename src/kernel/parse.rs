//! Reads the text form of a kernel, as [`crate::kernel::print`] writes it.
//!
//! Only verified kernels come back, and a value's stated type must be its type.

use crate::base::text::Cursor;
use crate::base::{Error, Result};
use crate::kernel::instr::{Instr, Ty};
use crate::kernel::ir::{Access, Arg, Combine, Dynamic, Guard, Inst, Kernel, Val};

/// The one kernel that `text` holds, and its name.
pub fn parse(text: &str) -> Result<(String, Kernel)> {
    let mut c = Cursor::new(text);
    let named = kernel(&mut c)?;
    if c.at_end() { Ok(named) } else { Err(c.expected("the end")) }
}

/// The kernel at the cursor, and its name.
pub fn kernel(c: &mut Cursor) -> Result<(String, Kernel)> {
    let mut k = Kernel::default();
    c.expect("kernel")?;
    c.expect("@")?;
    let name = c.word("a name")?.to_string();
    c.list("(", ")", |c| header_item(c, &mut k))?;
    c.expect("domain")?;
    k.domain = c.list("[", "]", |c| c.number("a length"))?;
    k.reduced = vec![false; k.domain.len()];
    if c.eat("reduced") {
        for axis in c.list("[", "]", |c| c.number::<usize>("an axis"))? {
            match k.reduced.get_mut(axis) {
                Some(r) => *r = true,
                None => return Err(c.error(format!("axis {axis} of a domain with {} axes", k.domain.len()))),
            }
        }
    }
    c.expect("{")?;
    let mut stated: Vec<(usize, Ty)> = Vec::new();
    while !c.eat("}") {
        let i = k.body.len();
        if c.eat("store") {
            let access = access(c)?;
            c.expect(",")?;
            let value = value(c)?;
            k.body.push(Inst::Store { access, value });
            continue;
        }
        let made = value(c)?;
        if made.0 as usize != i {
            return Err(c.error(format!("this is instruction {i}, so its value is v{i}, not {made}")));
        }
        c.expect(":")?;
        stated.push((i, ty(c)?));
        c.expect("=")?;
        let inst = instruction(c, stated[stated.len() - 1].1)?;
        k.body.push(inst);
    }
    k.verify()?;
    for (i, stated) in stated {
        match k.ty(Val(i as u32)) {
            Some(ty) if ty == stated => {}
            ty => return Err(c.error(format!("v{i} is {}, not {}", ty.map_or("no value", Ty::name), stated.name()))),
        }
    }
    Ok((name, k))
}

/// `%n: dtype[len]`, `out %n: dtype[len]` or `$n: type`.
fn header_item(c: &mut Cursor, k: &mut Kernel) -> Result<()> {
    if c.eat("$") {
        position(c, k.params.len())?;
        let ty = ty(c)?;
        k.params.push(ty);
        return Ok(());
    }
    let output = c.eat("out");
    c.expect("%")?;
    position(c, k.args.len())?;
    let dtype = c.dtype()?;
    c.expect("[")?;
    let len = c.number("a number of elements")?;
    c.expect("]")?;
    k.args.push(Arg { dtype, len, output });
    Ok(())
}

/// The number that must come next, and a colon.
fn position(c: &mut Cursor, next: usize) -> Result<()> {
    let n: usize = c.number("a position")?;
    if n != next {
        return Err(c.error(format!("position {n} where {next} is next")));
    }
    c.expect(":")
}

fn ty(c: &mut Cursor) -> Result<Ty> {
    let word = c.word("a type")?;
    Ty::from_name(word).ok_or_else(|| c.error(format!("expected f32, f64, u32, i64 or bool, got `{word}`")))
}

fn value(c: &mut Cursor) -> Result<Val> {
    let word = c.word("a value")?;
    let number = word.strip_prefix('v').and_then(|n| n.parse().ok());
    number.map(Val).ok_or_else(|| c.error(format!("expected a value (v0, v1, …), got `{word}`")))
}

fn instruction(c: &mut Cursor, ty: Ty) -> Result<Inst> {
    let word = c.word("an instruction")?;
    Ok(match word {
        "const" => Inst::Const { ty, bits: constant(c, ty)? },
        "param" => {
            c.expect("$")?;
            Inst::Param { param: c.number("a position")? }
        }
        "index" => Inst::Index { axis: c.number("an axis")? },
        "load" => {
            let access = access(c)?;
            let mut guards = Vec::new();
            if c.eat("where") {
                guards.push(guard(c)?);
                while c.eat(",") {
                    guards.push(guard(c)?);
                }
            }
            Inst::Load { access, guards }
        }
        "gather" => {
            let access = access(c)?;
            c.expect("at")?;
            let index = value(c)?;
            c.expect("*")?;
            let stride = c.number("a stride")?;
            c.expect("(")?;
            c.expect("len")?;
            let len = c.number("a length")?;
            c.expect(")")?;
            Inst::Gather { access, index, stride, len }
        }
        "reduce" => {
            let name = c.word("a way to combine")?;
            let combine = Combine::ALL.into_iter().find(|x| x.name() == name);
            let combine = combine.ok_or_else(|| c.error(format!("unknown way to combine `{name}`")))?;
            Inst::Reduce { combine, value: value(c)? }
        }
        _ => {
            let instr = Instr::from_name(word).ok_or_else(|| c.error(format!("unknown instruction `{word}`")))?;
            let mut args = [Val(0); 3];
            for (i, a) in args.iter_mut().take(instr.operands().len()).enumerate() {
                if i > 0 {
                    c.expect(",")?;
                }
                *a = value(c)?;
            }
            Inst::Op { instr, args }
        }
    })
}

/// `%n[stride,…] + offset + $n * stride (max m)`
fn access(c: &mut Cursor) -> Result<Access> {
    c.expect("%")?;
    let arg = c.number("a position")?;
    let strides = c.list("[", "]", |c| c.number("a stride"))?;
    let mut access = Access { arg, offset: 0, strides, dynamic: Vec::new() };
    while c.eat("+") {
        if c.eat("$") {
            let param = c.number("a position")?;
            c.expect("*")?;
            let stride = c.number("a stride")?;
            c.expect("(")?;
            c.expect("max")?;
            let max = c.number("a maximum")?;
            c.expect(")")?;
            access.dynamic.push(Dynamic { param, stride, max });
        } else {
            let part: i64 = c.number("an offset")?;
            let sum = access.offset.checked_add(part);
            access.offset = sum.ok_or_else(|| c.error("the offset overflows"))?;
        }
    }
    Ok(access)
}

/// `lo <= axis n < hi`
fn guard(c: &mut Cursor) -> Result<Guard> {
    let lo = c.number("a bound")?;
    c.expect("<=")?;
    c.expect("axis")?;
    let axis = c.number("an axis")?;
    c.expect("<")?;
    let hi = c.number("a bound")?;
    Ok(Guard { axis, lo, hi })
}

fn constant(c: &mut Cursor, ty: Ty) -> Result<u64> {
    if c.sees("true") || c.sees("false") {
        let word = c.word("a truth value")?;
        return if ty == Ty::Bool { Ok((word == "true") as u64) } else { Err(not_of(c, ty)) };
    }
    match ty {
        Ty::Bool => Err(not_of(c, ty)),
        Ty::I64 => Ok(c.number::<i64>("an i64")? as u64),
        Ty::F32 | Ty::F64 | Ty::U32 => {
            let mut ahead = c.clone();
            let hex = ahead.word("a number").ok().and_then(|w| w.strip_prefix("0x"));
            if let Some(bits) = hex {
                *c = ahead;
                let width = if ty == Ty::F64 { 64 } else { 32 };
                let bits = u64::from_str_radix(bits, 16).ok().filter(|b| width == 64 || *b <= u32::MAX as u64);
                return bits.ok_or_else(|| c.error(format!("the bits do not fit {width} bits")));
            }
            Ok(match ty {
                Ty::U32 => c.number::<u32>("a u32")? as u64,
                Ty::F64 => c.number::<f64>("an f64")?.to_bits(),
                _ => c.number::<f32>("an f32")?.to_bits() as u64,
            })
        }
    }
}

fn not_of(c: &Cursor, ty: Ty) -> Error {
    c.expected(&format!("a constant of type {}", ty.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::random::{Random, kernel as random_kernel};
    use proptest::prelude::*;

    const SOFTMAX: &str = "kernel @softmax(%0: f32[320], out %1: f32[320], $0: i64) domain [32,10] reduced [1] {
  v0: f32 = load %0[10,1]
  v1: f32 = reduce max v0
  v2: f32 = sub v0, v1
  v3: i64 = param $0
  v4: f32 = const -0.5
  v5: f32 = const 0x1
  v6: u32 = const 0xffffffff
  v7: i64 = const -9
  v8: bool = const true
  v9: i64 = index 1
  v10: f32 = load %0[10,0] + -10 + $0 * 1 (max 9) where 1 <= axis 0 < 40, 0 <= axis 1 < 1
  v11: f32 = gather %0[0,0] at v9 * 10 (len 32)
  v12: f32 = fma v2, v4, v11
  store %1[10,1], v12
}
";

    #[test]
    fn every_part_of_the_grammar() {
        let (name, k) = parse(SOFTMAX).unwrap();
        assert_eq!(name, "softmax");
        assert_eq!((k.domain.as_slice(), k.reduced.as_slice()), (&[32, 10][..], &[false, true][..]));
        assert_eq!(k.body[5], Inst::Const { ty: Ty::F32, bits: 1 });
        let guards = vec![Guard { axis: 0, lo: 1, hi: 40 }, Guard { axis: 1, lo: 0, hi: 1 }];
        let dynamic = vec![Dynamic { param: 0, stride: 1, max: 9 }];
        let access = Access { arg: 0, offset: -10, strides: vec![10, 0], dynamic };
        assert_eq!(k.body[10], Inst::Load { access, guards });
        assert_eq!(crate::kernel::print::Named { name: "softmax", kernel: &k }.to_string(), SOFTMAX);
    }

    #[test]
    fn errors_say_what_and_where() {
        let change = |from: &str, to: &str| {
            assert!(SOFTMAX.contains(from));
            parse(&SOFTMAX.replace(from, to)).unwrap_err().to_string()
        };
        assert!(change("sub v0", "subb v0").contains("line 4: unknown instruction `subb`"));
        assert!(change("v2: f32", "v3: f32").contains("line 4: this is instruction 2"));
        assert!(change("v2: f32", "v2: i64").contains("v2 is f32, not i64"));
        assert!(change("reduce max", "reduce most").contains("line 3: unknown way to combine `most`"));
        assert!(change("f32[320], out", "f32[319], out").contains("touches elements"));
        assert!(change("reduced [1]", "reduced [2]").contains("line 1: axis 2"));
        assert!(change("  store %1[10,1], v12\n", "").contains("output 1 is never stored"));
        assert!(change("const true", "const 1").contains("line 10: expected a constant of type bool"));
        assert!(change("0xffffffff", "0x1ffffffff").contains("do not fit"));
        assert!(parse(&SOFTMAX[..200]).is_err());
        assert!(parse(&format!("{SOFTMAX} x")).is_err());
    }

    proptest! {
        #[test]
        fn printed_kernels_read_back_equal(seed: u64) {
            let k = random_kernel(&mut Random::new(seed));
            let text = k.to_string();
            let (_, back) = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert_eq!(k, back);
        }

        #[test]
        fn any_text_is_read_without_panic(at in 0..700usize, junk in "[ -~]{0,8}") {
            let at = at.min(SOFTMAX.len());
            let _ = parse(&format!("{}{junk}{}", &SOFTMAX[..at], &SOFTMAX[at..]));
        }
    }
}
