//! The stages of a sort: tiles in shared memory, then merges of neighbouring runs in scratch.

use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::library::{Call, THREADS};
use crate::backend::cuda::render::text::Source;
use crate::base::Result;

/// Keys that are sorted at once in shared memory.
const TILE: usize = 1024;

/// Lines of keys, each with its position in its line.
pub struct Keys {
    pub lines: usize,
    /// Of a line; at least 1.
    pub len: usize,
    /// Whether a key and a position take two words.
    pub long: bool,
}

impl Keys {
    /// The struct of a key with its position.
    pub fn name(&self) -> &'static str {
        if self.long { "Long" } else { "Short" }
    }

    /// Bytes of scratch of this many copies.
    pub fn bytes(&self, copies: usize) -> usize {
        let one = self.lines * self.len * if self.long { 16 } else { 8 };
        copies * one.next_multiple_of(256)
    }

    /// Number of merging stages.
    pub fn merges(&self) -> usize {
        self.len.div_ceil(TILE).next_power_of_two().trailing_zeros() as usize
    }
}

/// Statements that compute the key of element `j` of line `line`, and its name.
type MakeKey<'a> = dyn Fn(&mut Source) -> Result<String> + 'a;

/// Statements that take the key (the third) that comes at place (the second) of `line`.
type Put<'a> = dyn Fn(&mut Source, &str, &str) + 'a;

/// Sorts; the result goes to `put`, or to scratch at the offset that is given back.
pub fn sort(form: &mut Form, call: &Call, keys: &Keys, key: &MakeKey, put: Option<&Put>) -> Result<usize> {
    let (k, len) = (keys.name(), keys.len);
    let line = len.next_power_of_two().min(TILE);
    let (tiles, per) = (len.div_ceil(TILE), TILE / line);
    let merges = keys.merges();
    let mut out = Source::default();
    let name = form.entry();
    call.head(&mut out, &name, THREADS);
    out.line(format!("__shared__ {k} tile[{TILE}];"));
    let blocks = keys.lines.div_ceil(per) * tiles;
    if blocks <= form.tuning.most_blocks {
        out.open("");
        out.line("const u64 b = blockIdx.x;");
    } else {
        out.open(format!("for (u64 b = blockIdx.x; b < {blocks}ull; b += gridDim.x)"));
    }
    // Element p of the tile is the j-th of a line.
    let element = |out: &mut Source| {
        if tiles > 1 {
            out.line(format!("const u64 line = b / {tiles}ull, j = b % {tiles}ull * {TILE}ull + p;"));
        } else {
            out.line(format!("const u64 line = b * {per}ull + p / {line}u, j = p % {line}u;"));
        }
    };
    out.open(format!("for (u32 p = threadIdx.x; p < {TILE}u; p += {THREADS}u)"));
    element(&mut out);
    out.line(format!("tile[p] = {k}::last();"));
    out.open(format!("if (line < {}ull && j < {len}ull)", keys.lines));
    let value = key(&mut out)?;
    out.line(format!("tile[p] = {k}::of({value}, j);"));
    out.close();
    out.close();
    out.line(format!("sort_tile<{k}, {TILE}, {line}, {THREADS}>(tile);"));
    out.open(format!("for (u32 p = threadIdx.x; p < {TILE}u; p += {THREADS}u)"));
    element(&mut out);
    out.open(format!("if (line < {}ull && j < {len}ull)", keys.lines));
    match put.filter(|_| merges == 0) {
        Some(put) => put(&mut out, "j", "tile[p]"),
        None => out.line(format!("(({k}*)scratch)[line * {len}ull + j] = tile[p];")),
    }
    out.close();
    out.close();
    out.line("__syncthreads();");
    out.close();
    out.close();
    form.stage(out, name, blocks, THREADS);
    let half = keys.bytes(1);
    let mut from = 0;
    for m in 0..merges {
        let to = half - from;
        let run = TILE << m;
        call.entry(form, keys.lines * len, |out| {
            out.line(format!("const u64 line = i / {len}ull, p = i % {len}ull;"));
            out.line(format!("const {k}* from = (const {k}*)(scratch + {from}ull) + line * {len}ull;"));
            out.line(format!("const u64 at = merged_at<{k}>(from, p, {run}ull, {len}ull);"));
            match put.filter(|_| m + 1 == merges) {
                Some(put) => put(out, "at", "from[p]"),
                None => out.line(format!("(({k}*)(scratch + {to}ull))[line * {len}ull + at] = from[p];")),
            }
            Ok(())
        })?;
        from = to;
    }
    Ok(from)
}
