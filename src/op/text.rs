//! The text form of an op: its name, and its attributes in parentheses.
//!
//! `add`, `mul(scalar1=$3)`, `sum(axes=[0,1], keepdim=true)`, `slice(axis=1, start=$0, len=4, step=1)`,
//! `cast(f32)`. A host scalar is `$k`, the trace's parameter `k` (its value is not part of the text and reads back
//! as 0), or a literal, `0.5:f32`. A user's op is `custom.` and its name. The type may be left out where it is the usual one: i64 for starts, seeds and
//! counters, f32 elsewhere.

use std::str::FromStr;

use crate::base::scalar::Origin;
use crate::base::{DType, Error, ErrorKind, Result, Scalar, Shape};
use crate::op::elementwise::{Elementwise, row};
use crate::op::random::Draw;
use crate::op::{AxisList, Op, ReduceKind, ScanKind, custom};

/// `name` or `name(key=value, …)`; [`parse`] reads it back.
pub fn print(op: &Op) -> String {
    let attributes = attributes(op);
    let name = match op {
        Op::Custom(c) => format!("custom.{}", c.definition.kernel.name),
        _ => op.rules().name().to_string(),
    };
    if attributes.is_empty() { name } else { format!("{name}({})", attributes.join(", ")) }
}

fn attributes(op: &Op) -> Vec<String> {
    match *op {
        Op::Elementwise(e) => e.scalar.iter().map(|(p, s)| format!("scalar{p}={}", scalar(*s, DType::F32))).collect(),
        Op::Cast(to) => vec![to.to_string()],
        Op::Full { shape, value } => vec![format!("shape={shape}"), format!("value={}", scalar(value, DType::F32))],
        Op::Random { shape, seed, counter, .. } => vec![
            format!("shape={shape}"),
            format!("seed={}", scalar(seed, DType::I64)),
            format!("counter={}", scalar(counter, DType::I64)),
        ],
        Op::Iota { shape, axes } => {
            let axes: Vec<String> = (0..8).filter(|a| axes >> a & 1 == 1).map(|a| a.to_string()).collect();
            vec![format!("shape={shape}"), format!("axes=[{}]", axes.join(","))]
        }
        Op::Reduce { axes, keepdim, .. } => {
            let axes: Vec<String> = (0..8).filter(|a| axes >> a & 1 == 1).map(|a| a.to_string()).collect();
            let mut out = vec![format!("axes=[{}]", axes.join(","))];
            out.extend(keepdim.then(|| "keepdim=true".to_string()));
            out
        }
        Op::Reshape { shape } | Op::Expand { shape } => vec![format!("shape={shape}")],
        Op::Permute { order } => {
            let order: Vec<String> = order.to_vec().iter().map(|a| a.to_string()).collect();
            vec![format!("order=[{}]", order.join(","))]
        }
        Op::Slice { axis, start, len, step } | Op::Unslice { axis, start, len, step } => vec![
            format!("axis={axis}"),
            format!("start={}", scalar(start, DType::I64)),
            format!("len={len}"),
            format!("step={step}"),
        ],
        Op::Window { axis, count, size, step, dilation } => vec![
            format!("axis={axis}"),
            format!("count={count}"),
            format!("size={size}"),
            format!("step={step}"),
            format!("dilation={dilation}"),
        ],
        Op::Fold { axis, len, step, dilation } => {
            vec![format!("axis={axis}"), format!("len={len}"), format!("step={step}"), format!("dilation={dilation}")]
        }
        Op::Concat { axis } | Op::Gather { axis } => vec![format!("axis={axis}")],
        Op::Matmul => vec![],
        Op::ScatterAdd { axis, len } | Op::ScatterIndex { axis, len } => {
            vec![format!("axis={axis}"), format!("len={len}")]
        }
        Op::Scan { axis, reverse, .. } => flagged(axis, "reverse", reverse),
        Op::Argsort { axis, descending } => flagged(axis, "descending", descending),
        Op::Custom(c) => {
            let usual = |(k, s): (usize, &Scalar)| format!("scalar{k}={}", scalar(*s, DType::F32));
            c.given().iter().enumerate().map(usual).collect()
        }
    }
}

/// An axis, and a flag that is printed when it is set.
fn flagged(axis: u8, name: &str, flag: bool) -> Vec<String> {
    let mut out = vec![format!("axis={axis}")];
    out.extend(flag.then(|| format!("{name}=true")));
    out
}

/// A scalar; its type is left out for a parameter or integer of the usual type.
fn scalar(s: Scalar, usual: DType) -> String {
    match s.origin {
        Origin::Param(k) if s.dtype == usual => format!("${k}"),
        Origin::Param(k) => format!("${k}:{}", s.dtype),
        _ if s.dtype == DType::I64 && usual == DType::I64 => s.to_string(),
        // The bits of a NaN's lane.
        _ if s.dtype.is_float() && s.as_f64().is_nan() => format!("{:#x}:{}", s.bits, s.dtype),
        _ => format!("{s:?}"),
    }
}

/// The op that `text` names: the inverse of [`print()`].
pub fn parse(text: &str) -> Result<Op> {
    let text = text.trim();
    let (name, list) = match text.split_once('(') {
        None => (text, ""),
        Some((name, rest)) => {
            let list = rest.strip_suffix(')').ok_or_else(|| bad(format!("`{text}`: expected `)` at the end")))?;
            (name.trim(), list)
        }
    };
    let mut a = Attributes { op: name, left: split(list) };
    let op = if let Some(row) = row(name) {
        let scalar = a.left.iter().find_map(|i| i.strip_prefix("scalar")?.split_once('=')?.0.trim().parse::<u8>().ok());
        let scalar = scalar.map(|p| Ok::<_, Error>((p, a.scalar(&format!("scalar{p}"), DType::F32)?))).transpose()?;
        Op::Elementwise(Elementwise { row, scalar })
    } else if let Some(custom) = name.strip_prefix("custom.") {
        let definition =
            custom::named(custom).ok_or_else(|| bad(format!("there is no custom op called `{custom}`")))?;
        let scalar = |(k, &dtype): (usize, &DType)| a.scalar(&format!("scalar{k}"), dtype);
        let scalars = definition.scalars.iter().enumerate().map(scalar).collect::<Result<Vec<_>>>()?;
        Op::Custom(custom::Custom::new(definition, &scalars))
    } else if let Some(kind) = ReduceKind::ALL.into_iter().find(|k| k.name() == name) {
        Op::Reduce { kind, axes: a.axes()?, keepdim: a.flag("keepdim")? }
    } else if let Some(kind) = ScanKind::ALL.into_iter().find(|k| k.name() == name) {
        Op::Scan { kind, axis: a.value("axis")?, reverse: a.flag("reverse")? }
    } else if let Some(draw) = Draw::ALL.into_iter().find(|d| d.name() == name) {
        let (shape, seed) = (a.shape()?, a.scalar("seed", DType::I64)?);
        Op::Random { draw, shape, seed, counter: a.scalar("counter", DType::I64)? }
    } else {
        match name {
            "cast" => {
                let to = a.left.first().map(|s| s.to_string()).unwrap_or_default();
                a.left.clear();
                Op::Cast(
                    DType::from_name(&to)
                        .ok_or_else(|| bad(format!("`cast({to})`: expected one of {}", DType::names())))?,
                )
            }
            "full" => Op::Full { shape: a.shape()?, value: a.scalar("value", DType::F32)? },
            "iota" => Op::Iota { shape: a.shape()?, axes: a.axes()? },
            "reshape" => Op::Reshape { shape: a.shape()? },
            "expand" => Op::Expand { shape: a.shape()? },
            "permute" => Op::Permute { order: AxisList::new(&a.list("order")?) },
            "slice" | "unslice" => {
                let (axis, start) = (a.value("axis")?, a.scalar("start", DType::I64)?);
                let (len, step) = (a.value("len")?, a.value("step")?);
                if name == "slice" {
                    Op::Slice { axis, start, len, step }
                } else {
                    Op::Unslice { axis, start, len, step }
                }
            }
            "window" => Op::Window {
                axis: a.value("axis")?,
                count: a.value("count")?,
                size: a.value("size")?,
                step: a.value("step")?,
                dilation: a.value("dilation")?,
            },
            "fold" => Op::Fold {
                axis: a.value("axis")?,
                len: a.value("len")?,
                step: a.value("step")?,
                dilation: a.value("dilation")?,
            },
            "concat" => Op::Concat { axis: a.value("axis")? },
            "matmul" => Op::Matmul,
            "gather" => Op::Gather { axis: a.value("axis")? },
            "scatter_add" => Op::ScatterAdd { axis: a.value("axis")?, len: a.value("len")? },
            "scatter_index" => Op::ScatterIndex { axis: a.value("axis")?, len: a.value("len")? },
            "argsort" => Op::Argsort { axis: a.value("axis")?, descending: a.flag("descending")? },
            _ => return Err(bad(format!("there is no op called `{name}`"))),
        }
    };
    match a.left.first() {
        None => Ok(op),
        Some(extra) => Err(bad(format!("`{name}` has no attribute `{extra}`"))),
    }
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Parse { line: 1, detail })
}

/// Items between commas outside brackets.
fn split(list: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (i, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(list[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    if !list[from..].trim().is_empty() {
        out.push(list[from..].trim());
    }
    out
}

/// The attributes not yet read.
struct Attributes<'a> {
    op: &'a str,
    left: Vec<&'a str>,
}

impl<'a> Attributes<'a> {
    fn text(&mut self, key: &str) -> Result<&'a str> {
        let is = |item: &&str| item.split_once('=').is_some_and(|(k, _)| k.trim() == key);
        let at = self.left.iter().position(is);
        let at = at.ok_or_else(|| bad(format!("`{}` needs the attribute `{key}`", self.op)))?;
        let item = self.left.remove(at);
        Ok(item.split_once('=').map_or("", |(_, v)| v.trim()))
    }

    fn value<T: FromStr>(&mut self, key: &str) -> Result<T> {
        let text = self.text(key)?;
        text.parse().map_err(|_| bad(format!("`{}`: `{text}` is not a value for `{key}`", self.op)))
    }

    /// A truth value, false if it is left out.
    fn flag(&mut self, key: &str) -> Result<bool> {
        let given = self.left.iter().any(|i| i.split_once('=').is_some_and(|(k, _)| k.trim() == key));
        if given { self.value(key) } else { Ok(false) }
    }

    /// `axes=[…]` as a mask.
    fn axes(&mut self) -> Result<u8> {
        self.list("axes")?.into_iter().try_fold(0u8, |mask, axis| match axis {
            0..8 => Ok(mask | 1 << axis),
            _ => Err(bad(format!("`{}`: axis {axis} is above 7", self.op))),
        })
    }

    fn list(&mut self, key: &str) -> Result<Vec<usize>> {
        let text = self.text(key)?;
        let items = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let items = items.ok_or_else(|| bad(format!("`{}`: expected `{key}=[…]`, got `{text}`", self.op)))?;
        let number = |t: &str| t.trim().parse().map_err(|_| bad(format!("`{}`: `{t}` is not a number", self.op)));
        items.split(',').filter(|t| !t.trim().is_empty()).map(number).collect()
    }

    fn shape(&mut self) -> Result<Shape> {
        Shape::new(&self.list("shape")?)
    }

    fn scalar(&mut self, key: &str, usual: DType) -> Result<Scalar> {
        let text = self.text(key)?;
        let wrong = || bad(format!("`{}`: `{text}` is not a scalar for `{key}`, such as `0.5:f32` or `$2`", self.op));
        let (value, dtype) = match text.split_once(':') {
            Some((value, dtype)) => (value, DType::from_name(dtype).ok_or_else(wrong)?),
            None => (text, usual),
        };
        if let Some(k) = value.strip_prefix('$') {
            let origin = Origin::Param(k.parse().map_err(|_| wrong())?);
            return Ok(Scalar { bits: 0, dtype, origin });
        }
        let scalar = if let Some(hex) = value.strip_prefix("0x") {
            let bits = u64::from_str_radix(hex, 16).map_err(|_| wrong())?;
            let canonical = dtype.is_float() && dtype.round(bits) == bits;
            if canonical { Scalar { bits, dtype, origin: Origin::Host } } else { return Err(wrong()) }
        } else {
            match dtype {
                DType::Bool => Scalar::bool(value.parse().map_err(|_| wrong())?),
                DType::F64 => Scalar::f64(value.parse().map_err(|_| wrong())?),
                d if d.is_float() => Scalar::f32(value.parse().map_err(|_| wrong())?).cast(d),
                d => Some(Scalar::i64(value.parse().map_err(|_| wrong())?))
                    .filter(|s| s.fits(d))
                    .ok_or_else(wrong)?
                    .cast(d),
            }
        };
        Ok(scalar.constant())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn both_ways(op: Op, text: &str) {
        assert_eq!(print(&op), text);
        assert_eq!(parse(text).unwrap(), op);
    }

    #[test]
    fn the_documented_forms() {
        let param = |k, dtype| Scalar { bits: 0, dtype, origin: Origin::Param(k) };
        let mul = |scalar| Op::Elementwise(Elementwise { row: row("mul").unwrap(), scalar });
        both_ways(Op::Elementwise(Elementwise::new(row("add").unwrap())), "add");
        both_ways(mul(Some((1, param(3, DType::F32)))), "mul(scalar1=$3)");
        both_ways(mul(Some((0, param(3, DType::I64)))), "mul(scalar0=$3:i64)");
        both_ways(mul(Some((1, Scalar::f32(0.5).constant()))), "mul(scalar1=0.5:f32)");
        both_ways(mul(Some((1, Scalar::f32(-0.0).constant()))), "mul(scalar1=-0.0:f32)");
        both_ways(mul(Some((1, Scalar::f32(f32::NEG_INFINITY).constant()))), "mul(scalar1=-inf:f32)");
        both_ways(mul(Some((1, Scalar::f32(f32::from_bits(0x7fc0_0001)).constant()))), "mul(scalar1=0x7fc00001:f32)");
        both_ways(Op::Reduce { kind: ReduceKind::Sum, axes: 3, keepdim: true }, "sum(axes=[0,1], keepdim=true)");
        both_ways(Op::Reduce { kind: ReduceKind::Any, axes: 0x80, keepdim: false }, "any(axes=[7])");
        both_ways(Op::Reshape { shape: Shape::new(&[2, 3]).unwrap() }, "reshape(shape=[2,3])");
        both_ways(Op::Reshape { shape: Shape::SCALAR }, "reshape(shape=[])");
        both_ways(
            Op::Slice { axis: 1, start: param(0, DType::I64), len: 4, step: 1 },
            "slice(axis=1, start=$0, len=4, step=1)",
        );
        both_ways(
            Op::Unslice { axis: 0, start: Scalar::i64(-7).constant(), len: 4, step: 2 },
            "unslice(axis=0, start=-7, len=4, step=2)",
        );
        both_ways(Op::Matmul, "matmul");
        both_ways(Op::Cast(DType::F32), "cast(f32)");
        both_ways(Op::Gather { axis: 1 }, "gather(axis=1)");
        both_ways(Op::ScatterAdd { axis: 1, len: 9 }, "scatter_add(axis=1, len=9)");
        both_ways(Op::ScatterIndex { axis: 0, len: 3 }, "scatter_index(axis=0, len=3)");
        both_ways(Op::Iota { shape: Shape::new(&[2, 3]).unwrap(), axes: 2 }, "iota(shape=[2,3], axes=[1])");
        both_ways(Op::Scan { kind: ScanKind::Sum, axis: 1, reverse: true }, "cumsum(axis=1, reverse=true)");
        both_ways(Op::Scan { kind: ScanKind::Product, axis: 0, reverse: false }, "cumprod(axis=0)");
        both_ways(Op::Argsort { axis: 1, descending: false }, "argsort(axis=1)");
        both_ways(Op::Permute { order: AxisList::new(&[1, 0]) }, "permute(order=[1,0])");
        both_ways(
            Op::Full { shape: Shape::SCALAR, value: Scalar::bool(true).constant() },
            "full(shape=[], value=true:bool)",
        );
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert!(message("ad").contains("no op called `ad`"));
        assert!(message("add(axis=1)").contains("`add` has no attribute `axis=1`"));
        assert!(message("gather").contains("`gather` needs the attribute `axis`"));
        assert!(message("gather(axis=x)").contains("`x` is not a value for `axis`"));
        assert!(message("sum(axes=[9])").contains("axis 9 is above 7"));
        assert!(message("mul(scalar1=a)").contains("`a` is not a scalar"));
        assert!(message("cast(f99)").contains("expected one of bool, u8,"));
        assert!(message("reshape(shape=[2)").contains("expected `shape=[…]`"));
        assert!(message("reshape(shape=[2]").contains("expected `)`"));
    }
}
