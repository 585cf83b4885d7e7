//! Kernels with reductions over many points and few rows: several launches with partial results in scratch.
//!
//! For each pass one launch computes a result per row and block of the order, and one combines them; then points are stored,
//! then rows. What exists once a row is computed anew in each.

use crate::backend::cuda::render::body::{Body, Pass};
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::reduce::{result_bytes, structs};
use crate::backend::cuda::render::text::Source;
use crate::base::Result;
use crate::kernel::order::Order;

const THREADS: u32 = 128;

/// Where results lie in scratch, in bytes.
struct Places {
    /// Of each reduction: its result per row, its result per row and block.
    at: Vec<(usize, [usize; 2])>,
    bytes: usize,
}

impl Places {
    fn new(body: &Body, rows: usize, blocks: usize) -> Places {
        let mut places = Places { at: Vec::new(), bytes: 0 };
        for &r in body.passes.iter().flat_map(|p| &p.reduces) {
            let of = [rows, rows * blocks].map(|n| {
                let at = places.bytes;
                places.bytes += (n * result_bytes(body, r)).next_multiple_of(256);
                at
            });
            places.at.push((r, of));
        }
        places
    }

    /// The result per row (0) or per row and block (1) of a reduction, as a pointer.
    fn pointer(&self, body: &Body, reduce: usize, which: usize) -> String {
        let at = self.at.iter().find(|p| p.0 == reduce).map_or(0, |p| p.1[which]);
        format!("(({}*)(scratch + {at}ull))", body.ty(reduce))
    }
}

pub fn split(form: &mut Form, body: &mut Body) -> Result<()> {
    let k = body.kernel;
    let order = Order::of(&k.domain, &k.reduced);
    let (rows, inner) = (k.outer(), k.inner());
    let places = Places::new(body, rows, order.blocks(inner));
    form.program.scratch_bytes = places.bytes;
    let passes = body.passes.clone();
    for (n, pass) in passes.iter().enumerate() {
        let done: Vec<usize> = passes[..n].iter().flat_map(|p| p.reduces.clone()).collect();
        if order == Order::COLUMNS {
            columns(form, body, pass, &places, &done)?;
        } else {
            blocks_of_rows(form, body, pass, &places, &done)?;
        }
        if !pass.reduces.is_empty() {
            combine(form, body, pass, &places)?;
        }
    }
    if body.row_roots.is_empty() {
        return Ok(());
    }
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, true);
    form.each(&mut out, body, "row", rows, THREADS);
    let done: Vec<usize> = passes.iter().flat_map(|p| p.reduces.clone()).collect();
    begin_row(&mut out, body, &places, &done);
    let roots = body.row_roots.clone();
    body.emit(&mut out, &roots, true)?;
    out.close();
    out.close();
    form.stage(out, name, rows.div_ceil(THREADS as usize), THREADS);
    Ok(())
}

/// What is known of the row `row` at the begin of an entry.
fn begin_row(out: &mut Source, body: &mut Body, places: &Places, done: &[usize]) {
    body.forget(|_| true);
    let kept = body.axes(false);
    body.locate(out, &kept, "row");
    for &r in done {
        out.line(format!("const {} v{r} = {}[row];", body.ty(r), places.pointer(body, r, 0)));
        body.set_name(r, format!("v{r}"));
    }
}

/// The points of a pass, whose number among a row's is `j`: values are combined in `sum…`.
fn points(out: &mut Source, body: &mut Body, pass: &Pass) -> Result<()> {
    let axes = body.axes(true);
    body.locate(out, &axes, "j");
    let roots = body.pass_roots(pass);
    body.emit(out, &roots, false)?;
    for (r, c) in structs(body, pass)? {
        let value = body.name(body.combined(r))?;
        out.line(format!("sum{r} = {c}::both(sum{r}, {value});"));
    }
    Ok(())
}

fn begin_sums(out: &mut Source, body: &Body, pass: &Pass) -> Result<()> {
    for (r, c) in structs(body, pass)? {
        out.line(format!("{} sum{r} = {c}::identity();", body.ty(r)));
    }
    Ok(())
}

/// One thread a block of a column; neighbours have neighbouring columns.
fn columns(form: &mut Form, body: &mut Body, pass: &Pass, places: &Places, done: &[usize]) -> Result<()> {
    let k = body.kernel;
    let (rows, inner) = (k.outer(), k.inner());
    let blocks = Order::COLUMNS.blocks(inner);
    let (t, count, block) = (body.index_type(), body.number(inner as u64), body.number(Order::COLUMNS.block as u64));
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, true);
    form.each(&mut out, body, "unit", rows * blocks, THREADS);
    out.line(format!("const {t} row = unit % {};", body.number(rows as u64)));
    out.line(format!("const {t} block_of_row = unit / {};", body.number(rows as u64)));
    begin_row(&mut out, body, places, done);
    body.emit_rows(&mut out, pass)?;
    begin_sums(&mut out, body, pass)?;
    out.line(format!("const {t} begin = block_of_row * {block};"));
    out.line(format!("const {t} end = {count} - begin < {block} ? {count} : begin + {block};"));
    let unroll = body.unroll(&body.pass_roots(pass));
    out.pragma(&unroll);
    out.open(format!("for ({t} j = begin; j < end; ++j)"));
    points(&mut out, body, pass)?;
    out.close();
    for &r in &pass.reduces {
        let at = format!("row * {} + block_of_row", body.number(blocks as u64));
        out.line(format!("{}[{at}] = sum{r};", places.pointer(body, r, 1)));
    }
    out.close();
    out.close();
    form.stage(out, name, (rows * blocks).div_ceil(THREADS as usize), THREADS);
    Ok(())
}

/// One thread block a block of a row.
fn blocks_of_rows(form: &mut Form, body: &mut Body, pass: &Pass, places: &Places, done: &[usize]) -> Result<()> {
    let k = body.kernel;
    let (rows, inner) = (k.outer(), k.inner());
    let blocks = Order::ROWS.blocks(inner);
    let (t, count, block) = (body.index_type(), body.number(inner as u64), body.number(Order::ROWS.block as u64));
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, true);
    form.each_block(&mut out, body, "unit", rows * blocks);
    out.line(format!("const {t} row = unit / {};", body.number(blocks as u64)));
    begin_row(&mut out, body, places, done);
    body.emit_rows(&mut out, pass)?;
    begin_sums(&mut out, body, pass)?;
    out.line(format!("const {t} begin = unit % {} * {block};", body.number(blocks as u64)));
    out.line(format!("const {t} end = {count} - begin < {block} ? {count} : begin + {block};"));
    let unroll = body.unroll(&body.pass_roots(pass));
    out.pragma(&unroll);
    out.open(format!("for ({t} j = begin + threadIdx.x; j < end; j += {THREADS}u)"));
    points(&mut out, body, pass)?;
    out.close();
    for (r, c) in structs(body, pass)? {
        out.line(format!("const {} v{r} = halve_block<{c}>(sum{r});", body.ty(r)));
        out.line(format!("if (threadIdx.x == 0u) {}[unit] = v{r};", places.pointer(body, r, 1)));
    }
    out.close();
    out.close();
    form.stage(out, name, rows * blocks, THREADS);
    Ok(())
}

/// A row's blocks combined, by a thread block.
fn combine(form: &mut Form, body: &mut Body, pass: &Pass, places: &Places) -> Result<()> {
    let k = body.kernel;
    let rows = k.outer();
    let blocks = Order::of(&k.domain, &k.reduced).blocks(k.inner());
    let chunk = blocks.div_ceil(THREADS as usize).next_power_of_two();
    let levels = usize::BITS - chunk.leading_zeros();
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, true);
    form.each_block(&mut out, body, "row", rows);
    for (r, c) in structs(body, pass)? {
        let (from, n) = (places.pointer(body, r, 1), body.number(blocks as u64));
        let all = format!("pairwise_block<{c}, {chunk}, {levels}>({from} + row * {n}, {n})");
        out.line(format!("const {} v{r} = {all};", body.ty(r)));
        out.line(format!("if (threadIdx.x == 0u) {}[row] = v{r};", places.pointer(body, r, 0)));
    }
    out.close();
    out.close();
    form.stage(out, name, rows, THREADS);
    Ok(())
}
