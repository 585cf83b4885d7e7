//! Kernels with reductions, in one launch: an outer point (a row) is the work of a thread, a warp or a thread block.
//!
//! A row takes one pass over its inner points per reduction that depends on another. All stores come after the last load
//! of earlier passes, and a thread meets the same points in each, so that an output may share its memory with an input.

use crate::backend::cuda::render::body::{Body, Pass};
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::pack::Packs;
use crate::backend::cuda::render::text::{Source, combine_name};
use crate::backend::cuda::render::{scalar, split};
use crate::base::{Error, Result};
use crate::kernel::Val;
use crate::kernel::ir::{Inst, Level};
use crate::kernel::order::Order;

/// Longest row that one thread computes.
const FEW: usize = 32;
/// Longest row that a warp computes, and where there are rows enough to fill a device with warps.
const WARP: usize = 1024;
const WARP_OF_MANY: usize = 4096;
/// Columns and warps of a tile.
const TILE_COLUMNS: usize = 32;
const TILE_WARPS: usize = 8;
/// Bytes of shared memory that a tile's partial results may take.
const TILE_BYTES: usize = 32 << 10;
/// 32-bit registers for elements that are kept from pass to pass.
const KEPT: usize = 64;
/// Instructions up to which a row's loop is unrolled.
const UNROLLED: usize = 2048;

/// Who computes a row.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Worker {
    /// A thread, its lanes in registers: short rows.
    Lanes,
    /// A thread, one chain a block of the order: columns.
    Chain,
    /// A thread block computes 32 neighbouring columns; blocks of the order are spread over its warps.
    Tile,
    /// A warp, four lanes a thread.
    Warp,
    /// A thread block, one lane a thread.
    Block,
}

/// A kernel with reduced axes.
pub fn reduce(form: &mut Form, body: &mut Body) -> Result<()> {
    let k = body.kernel;
    let order = Order::of(&k.domain, &k.reduced);
    let (rows, inner, fill) = (k.outer(), k.inner(), form.tuning.fill);
    let blocks = order.blocks(inner);
    let reduces = body.passes.iter().any(|p| !p.reduces.is_empty());
    let worker = if order == Order::COLUMNS {
        if blocks < 2 || rows >= fill * 128 || !reduces {
            Worker::Chain
        } else if shared_bytes(body, blocks) <= TILE_BYTES && (blocks <= TILE_WARPS || rows / TILE_COLUMNS >= fill / 4)
        {
            Worker::Tile
        } else {
            return split::split(form, body);
        }
    } else if inner <= FEW {
        Worker::Lanes
    } else if inner <= WARP || inner <= WARP_OF_MANY && rows >= fill * 8 {
        Worker::Warp
    } else if blocks >= 4 && rows < fill && reduces {
        return split::split(form, body);
    } else {
        Worker::Block
    };
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, worker.threads(), false);
    let state = State::new(worker, body);
    state.packs.alignment(body, &mut out);
    let t = body.index_type();
    let blocks = rows.div_ceil(worker.rows());
    match worker {
        Worker::Block => form.each_block(&mut out, body, "row", rows),
        Worker::Lanes | Worker::Chain => form.each(&mut out, body, "row", rows, worker.threads()),
        Worker::Warp => {
            form.each_block(&mut out, body, "group", blocks);
            out.line(format!("const {t} row = group * 4u + threadIdx.x / 32u;"));
            out.open(format!("if (row < {})", body.number(rows as u64)));
        }
        Worker::Tile => {
            form.each_block(&mut out, body, "group", blocks);
            out.line(format!("const {t} column = group * {TILE_COLUMNS}u + threadIdx.x % 32u;"));
            out.line("const u32 warp = threadIdx.x / 32u;");
            // All threads meet at barriers; those beyond the last column only load.
            let all = body.number(rows as u64);
            out.line(format!("const bool valid = column < {all};"));
            out.line(format!("const {t} row = valid ? column : {};", body.number(rows as u64 - 1)));
        }
    }
    let kept = body.axes(false);
    body.locate(&mut out, &kept, "row");
    let mut state = state;
    state.begin(body, &mut out);
    for pass in body.passes.clone() {
        body.emit_rows(&mut out, &pass)?;
        state.pass(&mut out, body, &pass)?;
    }
    row_stores(&mut out, body, worker)?;
    if worker == Worker::Warp {
        out.close();
    }
    if worker == Worker::Tile && blocks > form.tuning.most_blocks {
        out.line("__syncthreads();");
    }
    out.close();
    out.close();
    form.stage(out, name, blocks, worker.threads());
    Ok(())
}

/// Shared memory for a tile's partial results.
fn shared_bytes(body: &Body, blocks: usize) -> usize {
    let wide = |r: &usize| body.kernel.ty(Val(*r as u32)).is_some_and(|t| t.is_wide());
    let reduces = body.passes.iter().flat_map(|p| &p.reduces);
    reduces.map(|r| if wide(r) { 8 } else { 4 }).sum::<usize>() * blocks * TILE_COLUMNS
}

/// What happens once a row, after its passes.
fn row_stores(out: &mut Source, body: &mut Body, worker: Worker) -> Result<()> {
    let roots = body.row_roots.clone();
    if roots.is_empty() {
        return Ok(());
    }
    let first = match worker {
        Worker::Lanes | Worker::Chain => return body.emit(out, &roots, true),
        Worker::Block => "threadIdx.x == 0u",
        Worker::Warp => "threadIdx.x % 32u == 0u",
        Worker::Tile => "valid && warp == 0u",
    };
    // Other threads may still have to load what is overwritten.
    out.line(if worker == Worker::Warp { "__syncwarp();" } else { "__syncthreads();" });
    out.open(format!("if ({first})"));
    body.emit(out, &roots, true)?;
    out.close();
    Ok(())
}

impl Worker {
    fn threads(self) -> u32 {
        if self == Worker::Tile { (TILE_COLUMNS * TILE_WARPS) as u32 } else { 128 }
    }

    /// Rows of a thread block.
    fn rows(self) -> usize {
        match self {
            Worker::Lanes | Worker::Chain => 128,
            Worker::Tile => TILE_COLUMNS,
            Worker::Warp => 4,
            Worker::Block => 1,
        }
    }
}

/// A worker on its way through the passes.
struct State {
    worker: Worker,
    packs: Packs,
    /// Rounds of a warp's loop, if it is unrolled: elements are kept from pass to pass.
    rounds: Option<usize>,
    /// Loads whose elements are at hand.
    kept: Vec<bool>,
}

impl State {
    fn new(worker: Worker, body: &Body) -> State {
        let n = body.kernel.body.len();
        let mut state = State { worker, packs: Packs::default(), rounds: None, kept: vec![false; n] };
        let axes = body.axes(true);
        if worker == Worker::Warp
            && let [axis] = axes[..]
        {
            state.packs = Packs::new(body, axis, 4);
            let rounds = body.kernel.inner().div_ceil(128);
            if rounds * 4 * n <= UNROLLED && state.packs.registers(body, rounds) <= KEPT {
                state.rounds = Some(rounds);
            }
        }
        state
    }

    fn begin(&mut self, body: &Body, out: &mut Source) {
        if let Some(rounds) = self.rounds {
            let roots: Vec<usize> = body.passes.iter().flat_map(|p| body.pass_roots(p)).collect();
            self.packs.keep(body, out, &body.closure(&roots), rounds);
        }
    }

    fn pass(&mut self, out: &mut Source, body: &mut Body, pass: &Pass) -> Result<()> {
        if self.worker == Worker::Warp {
            return self.warp_pass(out, body, pass);
        }
        let k = body.kernel;
        let order = Order::of(&k.domain, &k.reduced);
        let (inner, worker) = (k.inner(), self.worker);
        let (t, count) = (body.index_type(), body.number(inner as u64));
        let reduces = structs(body, pass)?;
        let roots = body.pass_roots(pass);
        let unroll = body.unroll(&roots);
        let steps = if worker == Worker::Block { order.lanes } else { 1 };
        let first = if worker == Worker::Block { "threadIdx.x" } else { "0" };
        let blocks = order.blocks(inner);
        let several = blocks > 1 && (!reduces.is_empty() || worker == Worker::Tile);
        let levels = usize::BITS - blocks.leading_zeros();
        let step = if steps == 1 { "++j".to_string() } else { format!("j += {}", body.number(steps as u64)) };
        for &(r, c) in &reduces {
            if worker == Worker::Tile {
                out.line(format!("__shared__ {} part{r}[{}];", body.ty(r), blocks * TILE_COLUMNS));
            } else if several {
                out.line(format!("Pairwise<{c}, {levels}> blocks{r};"));
            } else if worker == Worker::Lanes {
                out.line(format!("{} lane{r}[{inner}];", body.ty(r)));
            } else {
                out.line(format!("{} sum{r} = {c}::identity();", body.ty(r)));
            }
        }
        if several {
            let block = body.number(order.block as u64);
            let (from, by) = if worker == Worker::Tile {
                (format!("warp * {block}"), body.number((order.block * TILE_WARPS) as u64))
            } else {
                ("0".to_string(), block.clone())
            };
            out.pragma("#pragma unroll 1");
            let valid = if worker == Worker::Tile { "valid && " } else { "" };
            out.open(format!("for ({t} b = {from}; {valid}b < {count}; b += {by})"));
            out.line(format!("const {t} end = {count} - b < {block} ? {count} : b + {block};"));
            reduces.iter().for_each(|&(r, c)| out.line(format!("{} sum{r} = {c}::identity();", body.ty(r))));
            let from = if steps == 1 { "b".to_string() } else { format!("b + {first}") };
            out.pragma(&unroll);
            out.open(format!("for ({t} j = {from}; j < end; {step})"));
        } else {
            out.pragma(if worker == Worker::Lanes { "#pragma unroll" } else { &unroll });
            out.open(format!("for ({t} j = {first}; j < {count}; {step})"));
        }
        let axes = body.axes(true);
        body.locate(out, &axes, "j");
        body.emit(out, &roots, false)?;
        for &(r, c) in &reduces {
            let value = body.name(body.combined(r))?;
            match worker {
                Worker::Lanes => out.line(format!("lane{r}[j] = {value};")),
                _ => out.line(format!("sum{r} = {c}::both(sum{r}, {value});")),
            }
        }
        out.close();
        body.forget(|level| level == Level::Full);
        let lanes = |r: usize, c: &str| match worker {
            Worker::Lanes => format!("halve_few<{c}, {inner}>(lane{r})"),
            Worker::Block => format!("halve_block<{c}>(sum{r})"),
            Worker::Chain | Worker::Tile | Worker::Warp => format!("sum{r}"),
        };
        if several {
            for &(r, c) in &reduces {
                match worker {
                    Worker::Tile => {
                        out.line(format!("part{r}[b / {}u * 32u + threadIdx.x % 32u] = sum{r};", order.block));
                    }
                    _ => out.line(format!("blocks{r}.push({});", lanes(r, c))),
                }
            }
            out.close();
        }
        if worker == Worker::Tile && !reduces.is_empty() {
            out.line("__syncthreads();");
            for &(r, c) in &reduces {
                out.line(format!("Pairwise<{c}, {levels}> blocks{r};"));
                out.pragma("#pragma unroll 4");
                let push = format!("blocks{r}.push(part{r}[b * 32u + threadIdx.x % 32u]);");
                out.line(format!("for (u32 b = 0; b < {blocks}u; ++b) {push}"));
            }
        }
        for &(r, c) in &reduces {
            let value = if several { format!("blocks{r}.finish()") } else { lanes(r, c) };
            out.line(format!("const {} v{r} = {value};", body.ty(r)));
            body.set_name(r, format!("v{r}"));
        }
        Ok(())
    }

    /// A pass of a warp over a row of one block: thread t has lanes 4t to 4t + 3.
    fn warp_pass(&mut self, out: &mut Source, body: &mut Body, pass: &Pass) -> Result<()> {
        let inner = body.kernel.inner();
        let (t, count) = (body.index_type(), body.number(inner as u64));
        let reduces = structs(body, pass)?;
        let roots = body.pass_roots(pass);
        let live = body.closure(&roots);
        for &(r, c) in &reduces {
            let id = format!("{c}::identity()");
            out.line(format!("{} sum{r}[4] = {{{id}, {id}, {id}, {id}}};", body.ty(r)));
        }
        match self.rounds {
            Some(rounds) => {
                out.pragma("#pragma unroll");
                out.open(format!("for (u32 round = 0; round < {rounds}u; ++round)"));
                out.line(format!("const {t} b = round * 128u + threadIdx.x % 32u * 4u;"));
                out.open(if inner.is_multiple_of(128) { String::new() } else { format!("if (b < {count})") });
            }
            None => out.open(format!("for ({t} b = threadIdx.x % 32u * 4u; b < {count}; b += 128u)")),
        }
        let left = if inner.is_multiple_of(4) {
            "4u".to_string()
        } else {
            out.line(format!("const u32 left = (u32)({count} - b);"));
            "left".to_string()
        };
        let copy = self.rounds.map(|_| "round");
        self.packs.load(body, out, &live, "b", &left, copy, &self.kept);
        self.packs.begin_stores(body, out, &live);
        out.pragma("#pragma unroll");
        out.open("for (u32 k = 0; k < 4u; ++k)");
        if left == "left" {
            out.open("if (k < left)");
        }
        out.line(format!("const {t} j = b + k;"));
        let axes = body.axes(true);
        body.locate(out, &axes, "j");
        body.emit(out, &roots, false)?;
        for &(r, c) in &reduces {
            let value = body.name(body.combined(r))?;
            out.line(format!("sum{r}[k] = {c}::both(sum{r}[k], {value});"));
        }
        if left == "left" {
            out.close();
        }
        out.close();
        self.packs.store(body, out, &live, "b", &left);
        out.close();
        if self.rounds.is_some() {
            out.close();
            self.kept.iter_mut().zip(&live).for_each(|(k, &l)| *k |= l);
        }
        body.forget(|level| level == Level::Full);
        for &(r, c) in &reduces {
            out.line(format!("const {} v{r} = halve_quads<{c}>(sum{r});", body.ty(r)));
            body.set_name(r, format!("v{r}"));
        }
        Ok(())
    }
}

/// A pass's reductions with the structs of their ways to combine.
pub fn structs(body: &Body, pass: &Pass) -> Result<Vec<(usize, &'static str)>> {
    let of = |&r: &usize| match &body.kernel.body[r] {
        Inst::Reduce { combine, .. } => Ok((r, combine_name(*combine))),
        other => Err(Error::bug("cuda", format!("{other:?} is no reduction"))),
    };
    pass.reduces.iter().map(of).collect()
}

/// Bytes of a reduction's result in memory.
pub fn result_bytes(body: &Body, reduce: usize) -> usize {
    match body.kernel.ty(Val(reduce as u32)) {
        Some(ty) if ty.is_wide() => 8,
        Some(ty) if scalar::ty(ty) == "bool" => 1,
        _ => 4,
    }
}
