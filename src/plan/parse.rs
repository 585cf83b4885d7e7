//! Reads the text form of a plan, as [`crate::plan::print`] writes it.
//!
//! What is read is a plan, not yet a right one: that is for [`crate::plan::check::check`] to say.

use crate::base::scalar::Origin;
use crate::base::text::Cursor;
use crate::base::{Error, Result, Scalar, Type};
use crate::ir::parse::layout;
use crate::kernel::custom::KernelRef;
use crate::kernel::library::{
    Argsort, Block, Custom, Library, Lines, Matmul, Operand, Scan, ScanKind, ScatterAdd, ScatterIndex,
};
use crate::op::custom;
use crate::plan::{OutputStorage, Plan, PlanInput, PlanOutput, Slot, SlotKind, Step, StepKind};

/// The plan that `text` holds, and nothing else.
pub fn parse(text: &str) -> Result<Plan> {
    let mut c = Cursor::new(text);
    let plan = plan(&mut c)?;
    if c.at_end() { Ok(plan) } else { Err(c.expected("the end")) }
}

impl std::str::FromStr for Plan {
    type Err = Error;
    fn from_str(text: &str) -> Result<Plan> {
        parse(text)
    }
}

/// The plan at the cursor.
pub fn plan(c: &mut Cursor<'_>) -> Result<Plan> {
    let mut p = Plan::default();
    c.expect("plan")?;
    c.expect("@")?;
    p.name = c.word("the plan's name")?.to_string();
    c.expect("arena")?;
    p.arena_bytes = c.number("the arena's bytes")?;
    if c.eat("params") {
        c.list("(", ")", |c| {
            c.expect("$")?;
            position(c, p.params.len())?;
            c.expect(":")?;
            p.params.push(c.dtype()?);
            Ok(())
        })?;
    }
    c.expect("{")?;
    while !c.eat("}") {
        if c.eat("input") {
            position(c, p.inputs.len())?;
            p.inputs.push(input(c)?);
        } else if c.eat("output") {
            position(c, p.outputs.len())?;
            p.outputs.push(output(c)?);
        } else if c.eat("slot") {
            c.expect("%")?;
            position(c, p.slots.len())?;
            p.slots.push(slot(c)?);
        } else if c.eat("step") {
            position(c, p.steps.len())?;
            let step = step(c, &mut p)?;
            p.steps.push(step);
        } else {
            return Err(c.expected("`input`, `output`, `slot`, `step` or `}`"));
        }
    }
    Ok(p)
}

/// The number that must come next.
fn position(c: &mut Cursor<'_>, next: usize) -> Result<()> {
    let n: usize = c.number("a position")?;
    if n == next { Ok(()) } else { Err(c.error(format!("position {n} where {next} is next"))) }
}

fn bytes(c: &mut Cursor<'_>) -> Result<usize> {
    let n = c.number("a number of bytes")?;
    c.expect("bytes")?;
    Ok(n)
}

fn input(c: &mut Cursor<'_>) -> Result<PlanInput> {
    c.expect(":")?;
    let ty = c.ty()?;
    let var = c.eat("var");
    let layout = layout(c, ty.shape)?;
    c.expect(",")?;
    Ok(PlanInput { ty, layout, bytes: bytes(c)?, var })
}

fn output(c: &mut Cursor<'_>) -> Result<PlanOutput> {
    c.expect(":")?;
    let ty = c.ty()?;
    let layout = layout(c, ty.shape)?;
    c.expect(",")?;
    let storage = if c.eat("view") {
        c.expect("of")?;
        if c.eat("input") {
            OutputStorage::Input(c.number("an input's position")?)
        } else {
            c.expect("output")?;
            OutputStorage::Output(c.number("an output's position")?)
        }
    } else {
        OutputStorage::Own { bytes: bytes(c)? }
    };
    let mut in_place = None;
    if c.eat(",") {
        for word in ["may", "overwrite", "input"] {
            c.expect(word)?;
        }
        in_place = Some(c.number("an input's position")?);
    }
    Ok(PlanOutput { ty, storage, layout, in_place })
}

fn slot(c: &mut Cursor<'_>) -> Result<Slot> {
    c.expect(":")?;
    let kind = if c.eat("arena") {
        SlotKind::Arena { offset: c.number("an offset")? }
    } else if c.eat("input") {
        SlotKind::Input(c.number("an input's position")?)
    } else if c.eat("output") {
        SlotKind::Output(c.number("an output's position")?)
    } else {
        return Err(c.expected("`arena`, `input` or `output`"));
    };
    c.expect(",")?;
    Ok(Slot { kind, bytes: bytes(c)? })
}

fn step(c: &mut Cursor<'_>, plan: &mut Plan) -> Result<Step> {
    let label = c.quoted()?.to_string();
    let args = c.list("(", ")", |c| {
        c.expect("%")?;
        c.number("a slot")
    })?;
    let mut params = Vec::new();
    if c.eat("params") {
        params = c.list("(", ")", |c| {
            c.expect("$")?;
            c.number("a parameter")
        })?;
    }
    if c.eat("after") {
        loop {
            plan.edges.push((c.number("a step")?, plan.steps.len() as u32));
            if !c.eat(",") {
                break;
            }
        }
    }
    let kind = if c.sees("kernel") {
        StepKind::Kernel(crate::kernel::parse::kernel(c)?.1)
    } else {
        StepKind::Library(library(c)?)
    };
    Ok(Step { kind, args, params, locs: Vec::new(), label })
}

fn library(c: &mut Cursor<'_>) -> Result<Library> {
    if c.eat("matmul") {
        let dtype = c.dtype()?;
        let batch = if c.eat("batch") { c.list("[", "]", |c| c.number("a length"))? } else { Vec::new() };
        let m = c.number("a length")?;
        c.expect("x")?;
        let k = c.number("a length")?;
        c.expect("x")?;
        let n = c.number("a length")?;
        let mut operand = |name: &str| {
            c.expect(",")?;
            c.expect(name)?;
            let mut strides: Vec<i64> = c.list("[", "]", |c| c.number("a stride"))?;
            let (Some(col), Some(row)) = (strides.pop(), strides.pop()) else {
                return Err(c.error("a matrix has at least the strides of rows and columns"));
            };
            let offset = if c.eat("+") { c.number("an offset")? } else { 0 };
            Ok(Operand { offset, batch: strides, row, col })
        };
        let (a, b, c) = (operand("a")?, operand("b")?, operand("c")?);
        return Ok(Library::Matmul(Matmul { dtype, batch, m, k, n, a, b, c }));
    }
    if c.eat("scatter_add") {
        let dtype = c.dtype()?;
        let mut length = |name: &str| {
            c.expect(name)?;
            c.number("a length")
        };
        let (outer, count, len, inner) = (length("outer")?, length("count")?, length("len")?, length("inner")?);
        let mut strides = |name: &str| {
            c.expect(",")?;
            c.expect(name)?;
            let list = c.list("[", "]", |c| c.number("a stride"))?;
            <[i64; 3]>::try_from(list).map_err(|_| c.error("three strides are needed"))
        };
        let (index, src) = (strides("index")?, strides("src")?);
        return Ok(Library::ScatterAdd(ScatterAdd { dtype, outer, count, len, inner, index, src }));
    }
    if c.eat("scatter_index") {
        let dims = dims(c)?;
        c.expect("len")?;
        let len = c.number("a length")?;
        return Ok(Library::ScatterIndex(ScatterIndex { dims, len, index: lines(c)? }));
    }
    if c.eat("scan") {
        let Some(kind) = ScanKind::ALL.into_iter().find(|k| c.eat(k.name())) else {
            return Err(c.expected("`cumsum`, `cumprod` or `recurrence`"));
        };
        let (dtype, dims) = (c.dtype()?, dims(c)?);
        let reverse = c.eat("reverse");
        let inputs = (0..kind.inputs()).map(|_| lines(c)).collect::<Result<_>>()?;
        return Ok(Library::Scan(Scan { dtype, kind, reverse, dims, inputs }));
    }
    if c.eat("argsort") {
        let (dtype, dims) = (c.dtype()?, dims(c)?);
        let descending = c.eat("descending");
        return Ok(Library::Argsort(Argsort { dtype, descending, dims, input: lines(c)? }));
    }
    if c.eat("custom") {
        let name = c.word("a custom op's name")?;
        let kernel = custom::named(name).ok_or_else(|| c.error(format!("there is no custom op called `{name}`")))?;
        let inputs = c.list("(", ")", block)?;
        c.expect("->")?;
        let output = block(c)?;
        let scalars = if c.eat("scalars") { c.list("[", "]", scalar)? } else { Vec::new() };
        return Ok(Library::Custom(Custom { kernel: KernelRef(&kernel.kernel), inputs, output, scalars }));
    }
    Err(c.expected("`kernel` or a library call, such as `matmul`"))
}

/// Elements without gaps: their type, and their offset if there is one.
fn block(c: &mut Cursor<'_>) -> Result<Block> {
    let Type { dtype, shape } = c.ty()?;
    Ok(Block { dtype, shape, offset: if c.eat("+") { c.number("an offset")? } else { 0 } })
}

/// A parameter by its position, or the bits of a fixed number.
fn scalar(c: &mut Cursor<'_>) -> Result<Scalar> {
    let dtype = c.dtype()?;
    if c.eat("$") {
        return Ok(Scalar { bits: 0, dtype, origin: Origin::Param(c.number("a parameter")?) });
    }
    c.expect("#")?;
    Ok(Scalar { bits: c.number("the bits of a number")?, dtype, origin: Origin::Constant })
}

/// Lengths before an axis, along it and after it.
fn dims(c: &mut Cursor<'_>) -> Result<[usize; 3]> {
    let list = c.list("[", "]", |c| c.number("a length"))?;
    list.try_into().map_err(|_| c.error("three lengths are needed"))
}

/// A comma, and where an operand lies.
fn lines(c: &mut Cursor<'_>) -> Result<Lines> {
    c.expect(",")?;
    let list = c.list("[", "]", |c| c.number("a stride"))?;
    let strides = list.try_into().map_err(|_| c.error("three strides are needed"))?;
    let offset = if c.eat("+") { c.number("an offset")? } else { 0 };
    Ok(Lines { offset, strides })
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
