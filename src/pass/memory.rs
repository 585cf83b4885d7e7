//! Where values lie: slots, offsets in the arena, and the edges that re-using memory needs.
//!
//! Values that pass between steps live in one arena. Each gets the lowest gap that no value live at the same time
//! takes, the largest first. A step that uses bytes of an earlier value waits for the steps that
//! read it: one edge each; so the plan stays a partial order. May rely on floors 0 to 4 and on [`schedule`].
//!
//! [`schedule`]: crate::pass::schedule

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::{Error, Layout, Result};
use crate::ir::{Graph, InputKind, NodeId, NodeOp};
use crate::kernel::ir::Access;
use crate::kernel::{Inst, Kernel, Level, Val};
use crate::pass::Options;
use crate::pass::fuse::Fusion;
use crate::pass::fuse::reads::view;
use crate::pass::lower::Draft;
use crate::pass::schedule::{Schedule, same_element};
use crate::plan::{OutputStorage, Plan, PlanInput, PlanOutput, Slot, SlotKind, Step};

const ALIGN: usize = 64;

/// Whether the kernel loads `arg` only at the element that it stores to `out` at the same point, and
/// reads nothing of it any more once it stores.
///
/// In a kernel that reduces, a backend goes over a row several times and may load again what it used
/// before. So a value of the whole domain must be stored in the last pass, and a value of the rows
/// must have been read for the rows alone.
pub fn element_wise(kernel: &Kernel, arg: u32, out: u32) -> bool {
    let (read, write) = (&kernel.args[arg as usize], &kernel.args[out as usize]);
    if read.dtype.size() != write.dtype.size() {
        return false;
    }
    let mut stores = kernel.body.iter().filter_map(|i| match i {
        Inst::Store { access, value } if access.arg == out => Some((access, *value)),
        _ => None,
    });
    let (Some((store, stored)), None) = (stores.next(), stores.next()) else { return false };
    if !store.dynamic.is_empty() {
        return false;
    }
    let same = |a: &Access| {
        let strides = a.strides.iter().zip(&store.strides).zip(&kernel.domain);
        a.dynamic.is_empty()
            && a.offset == store.offset
            && strides.fold(true, |ok, ((x, y), &n)| ok && (x == y || n == 1))
    };
    let plain = kernel.body.iter().all(|i| match i {
        Inst::Load { access, guards } if access.arg == arg => guards.is_empty() && same(access),
        Inst::Gather { access, .. } => access.arg != arg,
        _ => true,
    });
    plain && (!kernel.reduced.contains(&true) || last_pass(kernel, arg, stored))
}

/// See [`element_wise`].
fn last_pass(kernel: &Kernel, arg: u32, stored: Val) -> bool {
    let levels = kernel.levels();
    let n = kernel.body.len();
    // Reductions that have to end before a value is known, and whether it depends on loads of `arg` without a
    // reduction in between.
    let (mut pass, mut tainted) = (vec![0u32; n], vec![false; n]);
    let mut last = 0;
    let mut spills = false;
    for (i, inst) in kernel.body.iter().enumerate() {
        let mut args: SmallVec<[Val; 3]> = SmallVec::new();
        match inst {
            Inst::Op { instr, args: a } => args.extend_from_slice(&a[..instr.operands().len()]),
            Inst::Gather { index, .. } => args.push(*index),
            Inst::Reduce { value, .. } | Inst::Store { value, .. } => args.push(*value),
            Inst::Load { access, .. } => tainted[i] = access.arg == arg,
            _ => {}
        }
        for a in args {
            let a = a.0 as usize;
            pass[i] = pass[i].max(pass[a]);
            tainted[i] |= tainted[a];
        }
        if matches!(inst, Inst::Reduce { .. }) {
            pass[i] += 1;
            spills |= tainted[i] && levels[stored.0 as usize] == Level::Row;
            tainted[i] = false;
        }
        if levels[i] == Level::Full {
            last = last.max(pass[i]);
            spills |= tainted[i] && levels[stored.0 as usize] == Level::Row;
        }
    }
    match levels[stored.0 as usize] {
        Level::Full => pass[stored.0 as usize] == last,
        Level::Row => !spills,
    }
}

/// A range of the arena, taken by one value or, in place, by one after the other.
struct Block {
    bytes: usize,
    /// Positions in the schedule: first writer and last accessor.
    first: u32,
    last: u32,
    offset: usize,
    /// The values in it, each with its writer and its readers (positions), in order.
    values: Vec<Tenant>,
}

struct Tenant {
    node: NodeId,
    writer: u32,
    readers: Vec<u32>,
}

/// Makes the plan.
pub fn assign(
    graph: &Graph,
    fusion: &Fusion,
    drafts: Vec<Draft>,
    schedule: &Schedule,
    options: &Options,
) -> Result<Plan> {
    let mut position = vec![0u32; drafts.len()];
    for (p, &g) in schedule.order.iter().enumerate() {
        position[g as usize] = p as u32;
    }
    let mut plan = Plan {
        name: graph.name.clone(),
        params: graph.params().to_vec(),
        inputs: inputs(graph),
        outputs: outputs(graph, fusion, schedule)?,
        ..Plan::default()
    };
    let mut edges: Vec<(u32, u32)> =
        schedule.edges.iter().map(|&(a, b)| (position[a as usize], position[b as usize])).collect();
    // Values that the caller gets lie in the outputs' own memory.
    let mut owner: FxHashMap<NodeId, u32> = FxHashMap::default();
    for (k, out) in plan.outputs.iter().enumerate() {
        if let OutputStorage::Own { .. } = out.storage
            && let Some((base, _)) = view(graph, &fusion.roles, graph.outputs()[k])
        {
            owner.entry(base).or_insert(k as u32);
        }
    }
    let mut blocks = blocks(graph, &drafts, schedule, &owner, options);
    place(&mut blocks, options);
    reuse_edges(&blocks, &mut edges);

    let mut offsets: FxHashMap<NodeId, usize> = FxHashMap::default();
    for b in &blocks {
        plan.arena_bytes = plan.arena_bytes.max((b.offset + b.bytes).next_multiple_of(ALIGN));
        offsets.extend(b.values.iter().map(|t| (t.node, b.offset)));
    }
    let mut slots: FxHashMap<NodeId, u32> = FxHashMap::default();
    let mut drafts: Vec<Option<Draft>> = drafts.into_iter().map(Some).collect();
    for &g in &schedule.order {
        let Some(d) = drafts[g as usize].take() else {
            return Err(Error::bug("memory", format!("step {g} is scheduled twice")));
        };
        let mut args = Vec::with_capacity(d.args.len());
        for &v in &d.args {
            let slot = *slots.entry(v).or_insert_with(|| {
                let kind = match (graph.node(v).op, owner.get(&v)) {
                    (NodeOp::Input(i), _) => SlotKind::Input(i),
                    (_, Some(&k)) => SlotKind::Output(k),
                    _ => SlotKind::Arena { offset: offsets.get(&v).copied().unwrap_or(0) },
                };
                let bytes = match kind {
                    SlotKind::Input(i) => plan.inputs[i as usize].bytes,
                    _ => graph.node(v).ty.bytes(),
                };
                plan.slots.push(Slot { kind, bytes });
                plan.slots.len() as u32 - 1
            });
            args.push(slot);
        }
        plan.steps.push(Step { kind: d.kind, args, params: d.params, locs: d.locs, label: d.label });
    }
    edges.sort_unstable();
    edges.dedup();
    plan.edges = edges;
    Ok(plan)
}

fn inputs(graph: &Graph) -> Vec<PlanInput> {
    let input = |i: &crate::ir::Input| {
        let ty = graph.node(i.node).ty;
        let bytes = i.layout.span().map_or(0, |(_, hi)| (hi as usize + 1) * ty.dtype.size());
        PlanInput { ty, layout: i.layout, bytes, var: matches!(i.kind, InputKind::Var { .. }) }
    };
    graph.inputs().iter().map(input).collect()
}

fn outputs(graph: &Graph, fusion: &Fusion, schedule: &Schedule) -> Result<Vec<PlanOutput>> {
    let mut owners: FxHashMap<NodeId, u32> = FxHashMap::default();
    let mut out = Vec::with_capacity(graph.outputs().len());
    // An output that is the whole value owns its memory rather than one that views a part of it.
    for (k, &o) in graph.outputs().iter().enumerate() {
        if matches!(view(graph, &fusion.roles, o), Some((base, _)) if base == o && fusion.home[o.index()].is_some()) {
            owners.entry(o).or_insert(k as u32);
        }
    }
    for (k, &o) in graph.outputs().iter().enumerate() {
        let (base, layout) = view(graph, &fusion.roles, o)
            .ok_or_else(|| Error::bug("memory", format!("output {k} is not in memory")))?;
        let storage = match graph.node(base).op {
            NodeOp::Input(i) => OutputStorage::Input(i),
            NodeOp::Op(_) => match *owners.entry(base).or_insert(k as u32) {
                owner if owner == k as u32 => OutputStorage::Own { bytes: graph.node(base).ty.bytes() },
                owner => OutputStorage::Output(owner),
            },
        };
        let in_place = schedule.in_place[k].filter(|_| matches!(storage, OutputStorage::Own { .. }));
        out.push(PlanOutput { ty: graph.node(o).ty, storage, layout, in_place });
    }
    Ok(out)
}

/// The values of the arena. A value that its step may write over one that dies there shares that one's block.
fn blocks(
    graph: &Graph,
    drafts: &[Draft],
    schedule: &Schedule,
    owner: &FxHashMap<NodeId, u32>,
    options: &Options,
) -> Vec<Block> {
    let mut readers: FxHashMap<NodeId, Vec<u32>> = FxHashMap::default();
    for (p, &g) in schedule.order.iter().enumerate() {
        let d = &drafts[g as usize];
        for (&v, _) in d.args.iter().zip(&d.written).filter(|a| !*a.1) {
            let list = readers.entry(v).or_default();
            if list.last() != Some(&(p as u32)) {
                list.push(p as u32);
            }
        }
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut block_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (p, &g) in schedule.order.iter().enumerate() {
        let p = p as u32;
        let d = &drafts[g as usize];
        let mut taken: SmallVec<[NodeId; 4]> = SmallVec::new();
        for (&v, _) in d.args.iter().zip(&d.written).filter(|a| *a.1) {
            if owner.contains_key(&v) {
                continue;
            }
            let bytes = graph.node(v).ty.bytes();
            let tenant = Tenant { node: v, writer: p, readers: readers.get(&v).cloned().unwrap_or_default() };
            let last = tenant.readers.last().copied().unwrap_or(p).max(p);
            let dies_here = |u: NodeId| {
                block_of.contains_key(&u)
                    && graph.node(u).ty.bytes() == bytes
                    && bytes > 0
                    && readers.get(&u).and_then(|r| r.last()) == Some(&p)
                    && !taken.contains(&u)
                    && same_element(d, u, v)
            };
            let over = if options.in_place && options.reuse {
                d.args.iter().zip(&d.written).filter(|a| !*a.1).map(|a| *a.0).find(|&u| dies_here(u))
            } else {
                None
            };
            let block = match over {
                Some(u) => {
                    taken.push(u);
                    block_of[&u]
                }
                None => {
                    blocks.push(Block { bytes, first: p, last: p, offset: 0, values: Vec::new() });
                    blocks.len() - 1
                }
            };
            blocks[block].last = last;
            blocks[block].values.push(tenant);
            block_of.insert(v, block);
        }
    }
    blocks
}

/// Gives every block its offset: the largest first, each at the lowest gap between the blocks that
/// live at the same time.
fn place(blocks: &mut [Block], options: &Options) {
    let mut by_size: Vec<usize> = (0..blocks.len()).filter(|&b| blocks[b].bytes > 0).collect();
    by_size.sort_by_key(|&b| (std::cmp::Reverse(blocks[b].bytes), blocks[b].first));
    // Placed blocks by ascending offset.
    let mut placed: Vec<usize> = Vec::with_capacity(by_size.len());
    for b in by_size {
        let (first, last, bytes) = (blocks[b].first, blocks[b].last, blocks[b].bytes);
        let (mut at, mut end) = (0usize, 0usize);
        let mut best: Option<usize> = None;
        for &other in &placed {
            let o = &blocks[other];
            if options.reuse && (o.last < first || last < o.first) {
                continue;
            }
            if o.offset >= end && o.offset - end >= bytes {
                best = Some(end);
                break;
            }
            end = end.max((o.offset + o.bytes).next_multiple_of(ALIGN));
        }
        at = best.unwrap_or(at.max(end));
        blocks[b].offset = at;
        let i = placed.partition_point(|&o| blocks[o].offset <= at);
        placed.insert(i, b);
    }
}

/// A step that writes a value waits for those that accessed the bytes last.
fn reuse_edges(blocks: &[Block], edges: &mut Vec<(u32, u32)>) {
    // Per range of the arena (by start): its end and the steps that end the last value's life there.
    let mut ranges: std::collections::BTreeMap<usize, (usize, SmallVec<[u32; 4]>)> = Default::default();
    let mut all: Vec<(u32, usize, usize)> = Vec::new();
    for (b, block) in blocks.iter().enumerate() {
        all.extend(block.values.iter().enumerate().filter(|_| block.bytes > 0).map(|(i, t)| (t.writer, b, i)));
    }
    all.sort_unstable();
    for (writer, b, i) in all {
        let (lo, hi) = (blocks[b].offset, blocks[b].offset + blocks[b].bytes);
        // The range may begin inside an earlier one.
        let mut touched: SmallVec<[usize; 4]> = ranges.range(lo..hi).map(|r| *r.0).collect();
        if let Some((&start, (end, _))) = ranges.range(..lo).next_back()
            && *end > lo
        {
            touched.push(start);
        }
        for start in touched {
            let Some((end, steps)) = ranges.remove(&start) else { continue };
            edges.extend(steps.iter().filter(|&&s| s != writer).map(|&s| (s, writer)));
            if start < lo {
                ranges.insert(start, (lo, steps.clone()));
            }
            if end > hi {
                ranges.insert(hi, (end, steps));
            }
        }
        let t = &blocks[b].values[i];
        let ends: SmallVec<[u32; 4]> =
            if t.readers.is_empty() { SmallVec::from_slice(&[t.writer]) } else { t.readers.iter().copied().collect() };
        ranges.insert(lo, (hi, ends));
    }
}

/// Whether a layout is the whole of a contiguous buffer of its shape.
pub fn is_whole(layout: &Layout) -> bool {
    layout.offset == 0 && layout.is_contiguous()
}
