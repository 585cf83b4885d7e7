//! Kernels with reductions, in one launch: an outer point (a row) is the work of a thread or of a thread block.
//!
//! A row takes one pass over its inner points per reduction that depends on another. All stores come after the last load
//! of earlier passes, and a thread meets the same points in each, so that an output may share its memory with an input.

use crate::backend::cuda::render::body::{Body, Pass};
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::text::{Source, combine_name};
use crate::base::{Error, Result};
use crate::kernel::ir::{Inst, Level};
use crate::kernel::order::Order;

/// Longest row that one thread computes.
const FEW: usize = 32;

/// Who computes a row.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Worker {
    /// A thread, its lanes in registers: short rows.
    Lanes,
    /// A thread, one chain a block of the order: columns.
    Chain,
    /// A thread block, one lane a thread.
    Block,
}

impl Worker {
    fn threads(self) -> u32 {
        128
    }
}

/// A kernel with reduced axes.
pub fn reduce(form: &mut Form, body: &mut Body) -> Result<()> {
    let k = body.kernel;
    let worker = match Order::of(&k.domain, &k.reduced) {
        Order::COLUMNS => Worker::Chain,
        _ if k.inner() <= FEW => Worker::Lanes,
        _ => Worker::Block,
    };
    let rows = k.outer();
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, worker.threads(), false);
    let blocks = if worker == Worker::Block {
        form.each_block(&mut out, body, "row", rows);
        rows
    } else {
        form.each(&mut out, body, "row", rows, worker.threads());
        rows.div_ceil(worker.threads() as usize)
    };
    let kept = body.axes(false);
    body.locate(&mut out, &kept, "row");
    for pass in body.passes.clone() {
        let roots = body.pass_roots(&pass);
        body.emit(&mut out, &roots, true)?;
        worker.pass(&mut out, body, &pass)?;
    }
    row_stores(&mut out, body, worker)?;
    out.close();
    out.close();
    form.stage(out, name, blocks, worker.threads());
    Ok(())
}

/// What happens once a row, after its passes.
fn row_stores(out: &mut Source, body: &mut Body, worker: Worker) -> Result<()> {
    let roots = body.row_roots.clone();
    if roots.is_empty() {
        return Ok(());
    }
    if worker != Worker::Block {
        return body.emit(out, &roots, true);
    }
    // Other threads may still have to load what is overwritten.
    out.line("__syncthreads();");
    out.open("if (threadIdx.x == 0u)");
    body.emit(out, &roots, true)?;
    out.close();
    Ok(())
}

impl Worker {
    fn pass(self, out: &mut Source, body: &mut Body, pass: &Pass) -> Result<()> {
        let k = body.kernel;
        let order = Order::of(&k.domain, &k.reduced);
        let inner = k.inner();
        let (t, count) = (body.index_type(), body.number(inner as u64));
        let reduces: Vec<(usize, &str)> =
            pass.reduces.iter().map(|&r| Ok((r, struct_of(body, r)?))).collect::<Result<_>>()?;
        let steps = if self == Worker::Block { order.lanes } else { 1 };
        let first = if self == Worker::Block { "threadIdx.x" } else { "0" };
        let several = order.blocks(inner) > 1 && !reduces.is_empty();
        let levels = usize::BITS - order.blocks(inner).leading_zeros();
        let step = if steps == 1 { "++j".to_string() } else { format!("j += {}", body.number(steps as u64)) };
        for &(r, c) in &reduces {
            if several {
                out.line(format!("Pairwise<{c}, {levels}> blocks{r};"));
            } else if self == Worker::Lanes {
                out.line(format!("{} lane{r}[{inner}];", body.ty(r)));
            } else {
                out.line(format!("{} sum{r} = {c}::identity();", body.ty(r)));
            }
        }
        if several {
            let block = body.number(order.block as u64);
            out.pragma("#pragma unroll 1");
            out.open(format!("for ({t} b = 0; b < {count}; b += {block})"));
            out.line(format!("const {t} end = {count} - b < {block} ? {count} : b + {block};"));
            reduces.iter().for_each(|&(r, c)| out.line(format!("{} sum{r} = {c}::identity();", body.ty(r))));
            let from = if steps == 1 { "b".to_string() } else { format!("b + {first}") };
            out.pragma("#pragma unroll 4");
            out.open(format!("for ({t} j = {from}; j < end; {step})"));
        } else {
            out.pragma(if self == Worker::Lanes { "#pragma unroll" } else { "#pragma unroll 4" });
            out.open(format!("for ({t} j = {first}; j < {count}; {step})"));
        }
        let axes = body.axes(true);
        body.locate(out, &axes, "j");
        let roots = body.pass_roots(pass);
        body.emit(out, &roots, false)?;
        for &(r, c) in &reduces {
            let value = body.name(body.combined(r))?;
            match self {
                Worker::Lanes => out.line(format!("lane{r}[j] = {value};")),
                _ => out.line(format!("sum{r} = {c}::both(sum{r}, {value});")),
            }
        }
        out.close();
        body.forget(|level| level == Level::Full);
        let lanes = |r: usize, c: &str| match self {
            Worker::Lanes => format!("halve_few<{c}, {inner}>(lane{r})"),
            Worker::Chain => format!("sum{r}"),
            Worker::Block => format!("halve_block<{c}>(sum{r})"),
        };
        if several {
            reduces.iter().for_each(|&(r, c)| out.line(format!("blocks{r}.push({});", lanes(r, c))));
            out.close();
        }
        for &(r, c) in &reduces {
            let value = if several { format!("blocks{r}.finish()") } else { lanes(r, c) };
            out.line(format!("const {} v{r} = {value};", body.ty(r)));
            body.set_name(r, format!("v{r}"));
        }
        Ok(())
    }
}

/// The struct of a reduction's way to combine.
fn struct_of(body: &Body, reduce: usize) -> Result<&'static str> {
    match &body.kernel.body[reduce] {
        Inst::Reduce { combine, .. } => Ok(combine_name(*combine)),
        other => Err(Error::bug("cuda", format!("{other:?} is no reduction"))),
    }
}
