//! Runs a program: loops, tiles, reduction trees.

use std::cell::RefCell;

use crate::backend::cpu::vm::code::{Exec, Kind, TILE};
use crate::backend::cpu::vm::long;
use crate::backend::cpu::vm::program::{Action, Operand, PERIODIC_TILES, Program, Segment, Source, lane_bytes};
use crate::backend::cpu::vm::space::Walk;
use crate::kernel::Ty;

/// One thread's frame: tiles, kept values, the pointer table.
#[derive(Default)]
struct Frame {
    words: Vec<[u64; 8]>,
}

thread_local! {
    static FRAME: RefCell<Frame> = RefCell::default();
}

/// The state of a run.
pub(super) struct Run<'p> {
    pub program: &'p Program,
    frame: *mut u8,
    table: *mut *mut u8,
    /// Address of each stream at the origin.
    base: *mut *mut u8,
    /// Coordinates of the loops and of the inner loop.
    pub at: [usize; 16],
    pub inner: [usize; 16],
    /// Flat inner index.
    point: usize,
    /// First point of the tile in the group, and how many.
    pub first: usize,
    pub lanes: usize,
    /// An index was out of range.
    pub flag: bool,
}

impl Program {
    /// Units that can be given to different threads.
    pub(super) fn units(&self) -> usize {
        match self.space.walk {
            Walk::Across | Walk::Rows => self.points[0] * self.points[1].div_ceil(TILE),
            Walk::Along => self.points[0],
        }
    }

    /// See [`Program::run`], with pointers found through the binding.
    ///
    /// # Safety
    /// As [`Program::run`].
    pub(super) unsafe fn drive(&self, slots: *const *mut u8, params: *const u64, part: usize, parts: usize) -> bool {
        let units = self.units();
        let (from, to) = (units * part / parts, units * (part + 1) / parts);
        if from >= to {
            return false;
        }
        FRAME.with_borrow_mut(|frame| {
            let entries = self.consts.len() + self.tiles.len() + self.pointers;
            let table_at = self.frame_bytes;
            let base_at = table_at + entries * 8;
            let words = (base_at + self.space.streams.len() * 8).div_ceil(64) + 1;
            if frame.words.len() < words {
                frame.words = vec![[0; 8]; words];
            }
            // Aligned to cache lines.
            let start = frame.words.as_mut_ptr().cast::<u8>();
            let start = start.wrapping_add(start.align_offset(64));
            let mut run = Run {
                program: self,
                frame: start,
                table: start.wrapping_add(table_at).cast(),
                base: start.wrapping_add(base_at).cast(),
                at: [0; 16],
                inner: [0; 16],
                point: 0,
                first: 0,
                lanes: TILE,
                flag: false,
            };
            // SAFETY: the frame holds what the program asks for; the rest is the caller's contract.
            unsafe {
                run.set_up(slots, params);
                match self.space.walk {
                    Walk::Across | Walk::Rows => run.across(from, to),
                    Walk::Along => run.along(from, to),
                }
            }
            run.flag
        })
    }
}

impl Run<'_> {
    /// Fills the table.
    unsafe fn set_up(&mut self, slots: *const *mut u8, params: *const u64) {
        let p = self.program;
        // SAFETY: table and base have room for all entries; slots and params are the caller's.
        unsafe {
            let mut entry = self.table;
            for c in &p.consts {
                *entry = std::ptr::from_ref(c).cast_mut().cast();
                entry = entry.add(1);
            }
            for &offset in &p.tiles {
                *entry = self.frame.add(offset as usize);
                entry = entry.add(1);
            }
            let word = |param: u32| params.add(p.param_words[param as usize] as usize);
            for &(entry, param) in &p.params {
                *self.table.add(entry as usize) = word(param).cast_mut().cast();
            }
            for &(entry, param) in &p.bool_params {
                let mask = 0u32.wrapping_sub((*word(param) != 0) as u32);
                self.entry(entry).cast::<u32>().write(mask);
            }
            for (i, s) in p.space.streams.iter().enumerate() {
                let mut offset = s.offset;
                for &(param, stride) in &s.dynamic {
                    offset += *word(param) as i64 * stride;
                }
                let slot = *slots.add(p.arg_slots[s.arg as usize] as usize);
                *self.base.add(i) = slot.wrapping_offset(offset as isize);
            }
            for e in &p.periodics {
                let lane_bytes = p.space.streams[e.stream as usize].lane_bytes();
                let end = e.len.min(p.points[1]);
                while self.first < end {
                    self.lanes = TILE.min(end - self.first);
                    self.load_to(e.stream, self.frame.add(e.at as usize + self.first * lane_bytes));
                    self.first += TILE;
                }
                self.first = 0;
            }
        }
    }

    /// The pointer at a position of the table.
    pub(super) fn entry(&self, entry: u16) -> *mut u8 {
        // SAFETY: positions come from the compiler and are within the table.
        unsafe { *self.table.add(entry as usize) }
    }

    /// Where a stream is at the present loop and inner coordinates, at the group's origin.
    pub(super) fn address(&self, stream: u32) -> *mut u8 {
        let s = &self.program.space.streams[stream as usize];
        let mut offset = 0;
        for (&c, &stride) in self.at.iter().zip(&s.loops) {
            offset += c as i64 * stride;
        }
        for (&c, &stride) in self.inner.iter().zip(&s.inner) {
            offset += c as i64 * stride;
        }
        // SAFETY: one base per stream.
        unsafe { *self.base.add(stream as usize) }.wrapping_offset(offset as isize)
    }

    fn locate(&self, source: Source) -> *mut u8 {
        let p = self.program;
        match source {
            Source::Fixed => std::ptr::null_mut(),
            Source::Access(stream, unit) => {
                let size = p.space.streams[stream as usize].dtype.size();
                self.address(stream).wrapping_add(if unit { self.first * size } else { 0 })
            }
            Source::Periodic(i) => {
                let e = &p.periodics[i as usize];
                let lane_bytes = p.space.streams[e.stream as usize].lane_bytes();
                // Few points are expanded in full.
                let point = if e.len >= p.points[1] { self.first } else { self.first % e.period };
                self.frame.wrapping_add(e.at as usize + point * lane_bytes)
            }
            Source::Kept(at) => {
                let lanes = if p.space.walk == Walk::Across { self.point * TILE } else { self.first };
                self.frame.wrapping_add(at as usize + lanes * 4)
            }
            Source::Partial(r) => {
                let r = &p.reductions[r as usize];
                self.frame.wrapping_add(r.partial as usize + self.point % p.space.order.lanes * TILE * r.size)
            }
        }
    }

    fn exec(&self, lanes: usize) -> Exec {
        self.program.machine.exec(lanes, self.program.long)
    }

    /// Runs a segment `count` times from the present position, over the inner loop's last axis or over tiles.
    unsafe fn segment(&mut self, segment: &Segment, count: usize, over_inner: bool) {
        if segment.is_empty() {
            return;
        }
        let p = self.program;
        // SAFETY: the compiler's entries, the caller's pointers.
        unsafe {
            for &(entry, source) in &segment.streams {
                *self.table.add(entry as usize) = self.locate(source);
            }
            if let Some(start) = segment.direct {
                let code = p.code.as_ptr().add(start as usize);
                return self.exec(self.lanes)(code, self.table, &segment.steps, count, self.lanes);
            }
            let (first, point, inner) = (self.first, self.point, self.inner);
            let last = p.space.inner.len().saturating_sub(1);
            for _ in 0..count {
                for action in &segment.actions {
                    self.act(action);
                }
                for step in &segment.steps {
                    let entry = self.table.add(step.entry as usize);
                    *entry = (*entry).wrapping_offset(step.bytes);
                }
                if over_inner {
                    self.inner[last] += 1;
                    self.point += 1;
                } else {
                    self.first += TILE;
                }
            }
            (self.first, self.point, self.inner) = (first, point, inner);
        }
    }

    unsafe fn act(&mut self, action: &Action) {
        // SAFETY: as `segment`.
        unsafe {
            match *action {
                Action::Code(start) => {
                    let code = self.program.code.as_ptr().add(start as usize);
                    self.exec(self.lanes)(code, self.table, &[], 1, self.lanes);
                }
                Action::Load { stream, into } => self.load(stream, into),
                Action::Gather { stream, index, stride, len, into } => self.gather(stream, index, stride, len, into),
                Action::Index { role, axis, into } => self.index(role, axis as usize, into),
                Action::Store { stream, value } => self.store(stream, value),
                Action::Long { instr, args, into } => {
                    let mut lanes: [long::Lanes; 3] = [(std::ptr::null(), 0); 3];
                    for ((slot, arg), &ty) in lanes.iter_mut().zip(&args).zip(instr.operands()) {
                        *slot = self.lanes_of(*arg, ty);
                    }
                    (self.program.machine.long)(instr, lanes, self.entry(into), self.lanes);
                }
                Action::Fold { code, from, into } => {
                    let (from, into) = (self.entry(from).cast_const(), self.entry(into));
                    (self.program.machine.fold_rows)(code, from, into, self.program.space.row, self.lanes);
                }
                Action::Combine { combine, value, into } => {
                    let into = self.entry(into);
                    let args = [(into.cast_const(), 8), self.lanes_of(value, Ty::I64), (std::ptr::null(), 0)];
                    (self.program.machine.long)(combine.instr(), args, into, self.lanes);
                }
            }
        }
    }

    fn lanes_of(&self, o: Operand, ty: Ty) -> long::Lanes {
        let step = lane_bytes(ty);
        (self.entry(o.entry).cast_const(), if o.kind == Kind::Tile { step } else { 0 })
    }

    /// Tiles of kept axes.
    unsafe fn across(&mut self, from: usize, to: usize) {
        let p = self.program;
        let tiles = p.points[1].div_ceil(TILE);
        let mut unit = from;
        self.seek(unit / tiles);
        // SAFETY: as `drive`.
        unsafe {
            while unit < to {
                let tile = unit % tiles;
                self.first = tile * TILE;
                self.lanes = TILE.min(p.points[1] - self.first);
                let full = if p.loops.is_empty() {
                    // Full tiles of this loop point in one go.
                    let end = (tiles - tile).min(to - unit);
                    let full = end - (self.first + end * TILE > p.points[1]) as usize;
                    if full > 0 {
                        self.lanes = TILE;
                    }
                    let most = if p.periodics.is_empty() { full } else { PERIODIC_TILES };
                    full.min(most).max(1)
                } else {
                    1
                };
                self.segment(&p.stages[0], full, false);
                for phase in 0..p.loops.len() {
                    self.reduce_across(phase);
                    self.segment(&p.stages[phase + 1], 1, false);
                }
                unit += full;
                if unit.is_multiple_of(tiles) {
                    self.next();
                }
            }
        }
    }

    /// One loop over the inner points of a tile of kept points.
    unsafe fn reduce_across(&mut self, phase: usize) {
        let p = self.program;
        let (points, order) = (p.points[2], p.space.order);
        let last = p.space.inner.len().saturating_sub(1);
        let run = p.space.inner.last().copied().unwrap_or(1);
        self.inner = [0; 16];
        self.point = 0;
        // SAFETY: as `drive`.
        unsafe {
            self.begin(phase, order.lanes.min(points), points);
            let mut block = 0;
            while self.point < points {
                let in_block = self.point % order.block;
                if in_block == 0 && block > 0 {
                    self.begin(phase, order.lanes.min(points), points);
                }
                let mut count = (order.block - in_block).min(points - self.point).min(run - self.inner[last]);
                if order.lanes > 1 {
                    count = count.min(order.lanes - self.point % order.lanes);
                }
                self.segment(&p.loops[phase], count, true);
                self.point += count;
                self.inner[last] += count;
                if self.inner[last] == run && !p.space.inner.is_empty() {
                    self.inner[last] = 0;
                    for axis in (0..last).rev() {
                        self.inner[axis] += 1;
                        if self.inner[axis] < p.space.inner[axis] {
                            break;
                        }
                        self.inner[axis] = 0;
                    }
                }
                if self.point.is_multiple_of(order.block) || self.point == points {
                    let in_block = self.point - block * order.block;
                    self.end(phase, block, order.lanes.min(in_block), self.lanes);
                    block += 1;
                }
            }
            self.finish(phase, block, self.lanes);
        }
        self.inner = [0; 16];
        self.point = 0;
    }

    /// Rows: tiles of reduced axes.
    unsafe fn along(&mut self, from: usize, to: usize) {
        let p = self.program;
        self.seek(from);
        // SAFETY: as `drive`.
        unsafe {
            for _ in from..to {
                (self.first, self.lanes) = (0, 1);
                self.segment(&p.stages[0], 1, false);
                for phase in 0..p.loops.len() {
                    self.reduce_along(phase);
                    (self.first, self.lanes) = (0, 1);
                    self.segment(&p.stages[phase + 1], 1, false);
                }
                self.next();
            }
        }
    }

    /// One loop over the tiles of a row.
    unsafe fn reduce_along(&mut self, phase: usize) {
        let p = self.program;
        let (points, block_len) = (p.points[1], p.space.order.block);
        // SAFETY: as `drive`.
        unsafe {
            self.first = 0;
            self.begin(phase, 1, points);
            let mut block = 0;
            while self.first < points {
                if block > 0 {
                    self.begin(phase, 1, points);
                }
                let end = (self.first + block_len).min(points);
                let full = (end - self.first) / TILE;
                if full > 0 {
                    self.lanes = TILE;
                    self.segment(&p.loops[phase], full, false);
                    self.first += full * TILE;
                }
                if self.first < end {
                    self.lanes = end - self.first;
                    self.segment(&p.loops[phase], 1, false);
                    self.first = end;
                }
                self.fold(phase);
                self.end(phase, block, 1, 1);
                block += 1;
            }
            self.finish(phase, block, 1);
        }
    }

    /// Fills partial results with what changes nothing (or the result over no points).
    unsafe fn begin(&mut self, phase: usize, tiles: usize, points: usize) {
        for r in self.program.reductions.iter().filter(|r| r.phase == phase) {
            let mut bits = if points == 0 { r.combine.empty() } else { r.combine.identity() };
            if r.combine.instr().result() == Ty::Bool {
                bits = 0u64.wrapping_sub(bits);
            }
            let lanes = tiles.max(1) * TILE;
            // SAFETY: the frame has room for `lanes` lanes of partial results.
            unsafe {
                let at = self.frame.add(r.partial as usize);
                if r.size == 8 {
                    std::slice::from_raw_parts_mut(at.cast::<u64>(), lanes).fill(bits);
                } else {
                    std::slice::from_raw_parts_mut(at.cast::<u32>(), lanes).fill(bits as u32);
                }
            }
        }
    }

    /// `x = x ∘ y` over lanes.
    unsafe fn combine(&mut self, r: usize, x: *mut u8, y: *mut u8, lanes: usize) {
        let p = self.program;
        // SAFETY: x and y are lanes of the frame.
        unsafe {
            if p.reductions[r].size == 8 {
                let args = [(x.cast_const(), 8), (y.cast_const(), 8), (std::ptr::null(), 0)];
                return (p.machine.long)(p.reductions[r].combine.instr(), args, x, lanes);
            }
            *self.table.add(p.pair[0] as usize) = x;
            *self.table.add(p.pair[1] as usize) = y;
            self.exec(lanes)(p.code.as_ptr().add(p.combines[r] as usize), self.table, &[], 1, lanes);
        }
    }

    /// Combines the lanes of one tile by halving, into lane 0.
    unsafe fn fold(&mut self, phase: usize) {
        let p = self.program;
        for (i, r) in p.reductions.iter().enumerate().filter(|(_, r)| r.phase == phase) {
            let at = self.frame.wrapping_add(r.partial as usize);
            if p.combines[i] != u32::MAX {
                let code = p.code[p.combines[i] as usize + 1].code;
                // SAFETY: the tile is the frame's.
                unsafe { (p.machine.fold_rows)(code, at, at, TILE, TILE) };
                continue;
            }
            let mut half = TILE / 2;
            while half > 0 {
                // SAFETY: both halves are within the tile and apart.
                unsafe { self.combine(i, at, at.add(half * r.size), half) };
                half /= 2;
            }
        }
    }

    /// Ends a block: combines its `tiles` lane tiles by halving, then neighbouring blocks.
    unsafe fn end(&mut self, phase: usize, block: usize, tiles: usize, lanes: usize) {
        let p = self.program;
        for (i, r) in p.reductions.iter().enumerate().filter(|(_, r)| r.phase == phase) {
            let at = self.frame.wrapping_add(r.partial as usize);
            let size = TILE * r.size;
            // SAFETY: tiles of partial results and of the stack are within the frame.
            unsafe {
                let mut half = p.space.order.lanes / 2;
                while half > 0 {
                    for j in 0..half.min(tiles.saturating_sub(half)) {
                        self.combine(i, at.add(j * size), at.add((j + half) * size), lanes);
                    }
                    half /= 2;
                }
                if p.points[1].max(p.points[2]) <= p.space.order.block {
                    continue; // a single block: the result is in place
                }
                // The stack holds one result per set bit of `block`.
                let mut depth = block.count_ones() as usize;
                let stack = self.frame.wrapping_add(r.stack as usize);
                let slot = |d: usize| stack.add(d * size);
                let merges = block.trailing_ones() as usize;
                slot(depth).copy_from_nonoverlapping(at, lanes * r.size);
                for _ in 0..merges {
                    let (x, y) = (slot(depth - 1), slot(depth));
                    depth -= 1;
                    self.combine(i, x, y, lanes);
                }
            }
        }
    }

    /// Combines what is left on the stack after `blocks` blocks into the result.
    unsafe fn finish(&mut self, phase: usize, blocks: usize, lanes: usize) {
        let p = self.program;
        if p.points[1].max(p.points[2]) <= p.space.order.block || blocks == 0 {
            return;
        }
        for (i, r) in p.reductions.iter().enumerate().filter(|(_, r)| r.phase == phase) {
            let size = TILE * r.size;
            let stack = self.frame.wrapping_add(r.stack as usize);
            // SAFETY: tiles of the stack are within the frame.
            unsafe {
                for depth in (1..blocks.count_ones() as usize).rev() {
                    self.combine(i, stack.add((depth - 1) * size), stack.add(depth * size), lanes);
                }
                self.frame.add(r.partial as usize).copy_from_nonoverlapping(stack, lanes * r.size);
            }
        }
    }

    /// Goes to a point of the loops.
    fn seek(&mut self, mut point: usize) {
        let loops = &self.program.space.loops;
        for (a, &len) in self.at.iter_mut().zip(loops).rev() {
            *a = point % len;
            point /= len;
        }
    }

    /// Goes to the next point of the loops.
    fn next(&mut self) {
        let loops = &self.program.space.loops;
        for axis in (0..loops.len()).rev() {
            self.at[axis] += 1;
            if self.at[axis] < loops[axis] {
                return;
            }
            self.at[axis] = 0;
        }
    }
}
