//! From the body in SSA form to machine code: segments, scheduling, registers.
//!
//! A kernel with reductions runs in *phases*: stage 0, loop 0, stage 1, loop 1, … A reduction
//! over values of phase `p` is fed by loop `p`, so its result belongs to phase `p + 1`. Values that
//! depend on inner points are computed again in each loop that wants them, unless that costs more than
//! keeping them. All stores come in the last phase, so a store can never touch what is still to be read.
//!
//! Within a segment, instructions are scheduled depth first, the dearer operand first, so that a value
//! mostly meets its user while still in the accumulator; otherwise it is spilled to a scratch tile.

use crate::backend::cpu::vm::code::{Code, Kind, Op, TILE, combine_code};
use crate::backend::cpu::vm::isa::Isa;
use crate::backend::cpu::vm::program::{
    Action, Operand, PERIODIC_TILES, Periodic, Program, Reduction, Segment, Source, count, lane_bytes,
};
use crate::backend::cpu::vm::space::{Class, Role, Space, Walk};
use crate::backend::cpu::vm::threaded::LONGEST;
use crate::base::{Error, Result};
use crate::kernel::{Combine, Inst, Instr, Kernel, Ty, Val};

/// Entries are numbered by kind until their final position is known: constants, tiles, pointers.
pub(super) const TILE_TAG: u16 = 0x4000;
pub(super) const POINTER_TAG: u16 = 0x8000;
const INDEX_MASK: u16 = 0x3fff;
/// No instruction, no entry.
pub(super) const NONE: u32 = u32::MAX;
pub(super) const NO_ENTRY: u16 = u16::MAX;
/// From this cost on, in instructions, a value is kept for later loops rather than computed again.
const KEEP_COST: u32 = 5;
/// The most bytes of kept values.
const KEEP_BYTES: usize = 1 << 20;

/// What is known of a value besides its instruction.
#[derive(Clone, Copy)]
pub(super) struct Value {
    pub ty: Ty,
    /// Depends on inner points.
    pub full: bool,
    pub phase: u16,
    /// Instructions to compute it again, as a tree.
    pub cost: u32,
    /// Where segments find it, if it needs no computing there.
    pub home: Option<Operand>,
    /// Gets a home in the stage that computes it.
    persistent: bool,
    /// The loop that keeps it for later ones, and the entry of its buffer.
    pub kept: Option<(u16, u16)>,
    /// The first loop that computes it.
    first_loop: u16,
    /// The segment it was last visited in.
    pub seen: u32,
    // The rest is about the segment under way.
    /// The segment in which `uses` was counted.
    pub counted: u32,
    /// The segment that computes it.
    pub ordered: u32,
    /// Uses still to come.
    pub uses: u32,
    /// Its scratch tile.
    pub tile: u16,
    /// Computed before the segment's code, off the accumulator.
    pub early: bool,
    pub done: bool,
}

/// What a segment has to deliver.
#[derive(Clone, Copy)]
pub(super) enum Root {
    /// Into a home tile.
    Home(u32),
    /// Into the buffer of a kept value.
    Keep(u32),
    /// Into the partial results of a reduction.
    Reduce(usize),
    /// To memory: the store instruction.
    Store(u32),
    /// Nowhere: only its index flag is wanted.
    Flag(u32),
}

/// The state of a compilation.
pub(super) struct Lower<'k> {
    pub kernel: &'k Kernel,
    pub space: Space,
    pub values: Vec<Value>,
    /// The value each instruction stands for (bit casts are free).
    pub same: Vec<u32>,
    pub code: Vec<Op>,
    consts: Vec<u64>,
    tiles: Vec<u32>,
    frame: usize,
    pub free: [Vec<u16>; 2],
    pub pointers: Vec<Source>,
    /// The segment in which each pointer was last used.
    pub touched: Vec<u32>,
    params: Vec<u16>,
    bool_params: Vec<(u16, u32)>,
    pub periodics: Vec<Periodic>,
    pub reductions: Vec<Reduction>,
    /// The value of each reduction.
    pub reduced: Vec<u32>,
    /// Stamps segments and visits.
    pub segment: u32,
    // The segment under way.
    pub out: Segment,
    pub in_loop: Option<usize>,
    pub epilogue: Vec<Action>,
    /// What the accumulator holds.
    pub acc: u32,
    /// Whether code is under way.
    pub open: bool,
}

pub(super) fn operands(inst: &Inst) -> &[Val] {
    match inst {
        Inst::Op { instr, args } => &args[..instr.operands().len()],
        Inst::Gather { index, .. } => std::slice::from_ref(index),
        Inst::Reduce { value, .. } | Inst::Store { value, .. } => std::slice::from_ref(value),
        _ => &[],
    }
}

impl<'k> Lower<'k> {
    fn new(kernel: &'k Kernel, space: Space) -> Lower<'k> {
        let n = kernel.body.len();
        Lower {
            kernel,
            space,
            values: Vec::with_capacity(n),
            same: (0..n as u32).collect(),
            code: Vec::with_capacity(2 * n + 16),
            consts: vec![0],
            tiles: Vec::new(),
            frame: 0,
            free: [Vec::new(), Vec::new()],
            pointers: Vec::new(),
            touched: Vec::new(),
            params: vec![NO_ENTRY; kernel.params.len()],
            bool_params: Vec::new(),
            periodics: Vec::new(),
            reductions: Vec::new(),
            reduced: Vec::new(),
            segment: 0,
            out: Segment::default(),
            in_loop: None,
            epilogue: Vec::new(),
            acc: NONE,
            open: false,
        }
    }

    pub(super) fn inst(&self, v: u32) -> &'k Inst {
        &self.kernel.body[v as usize]
    }

    pub(super) fn across(&self) -> bool {
        self.space.walk != Walk::Along
    }

    /// How a value that is one per outer point is read by other segments.
    pub(super) fn row_kind(&self) -> Kind {
        if self.across() { Kind::Tile } else { Kind::Word }
    }

    fn reserve(&mut self, bytes: usize) -> u32 {
        let at = self.frame;
        self.frame += bytes.next_multiple_of(64);
        at as u32
    }

    fn tile_at(&mut self, offset: u32) -> u16 {
        self.tiles.push(offset);
        (self.tiles.len() - 1) as u16 | TILE_TAG
    }

    pub(super) fn new_tile(&mut self, ty: Ty) -> u16 {
        let at = self.reserve(TILE * lane_bytes(ty));
        self.tile_at(at)
    }

    pub(super) fn scratch(&mut self, ty: Ty) -> u16 {
        match self.free[ty.is_wide() as usize].pop() {
            Some(t) => t,
            None => self.new_tile(ty),
        }
    }

    pub(super) fn pointer(&mut self, source: Source) -> u16 {
        self.pointers.push(source);
        self.touched.push(0);
        (self.pointers.len() - 1) as u16 | POINTER_TAG
    }

    fn constant(&mut self, ty: Ty, bits: u64) -> u16 {
        let bits = match ty {
            Ty::Bool => 0u64.wrapping_sub((bits != 0) as u64),
            Ty::I64 | Ty::F64 => bits,
            Ty::F32 | Ty::U32 => bits & 0xffff_ffff,
        };
        // Recent constants first: formulas repeat theirs.
        if let Some(i) = self.consts.iter().rposition(|&c| c == bits) {
            return i as u16;
        }
        self.consts.push(bits);
        (self.consts.len() - 1) as u16
    }

    /// Types, levels, phases, costs, and homes of what needs no computing.
    fn analyse(&mut self) {
        let walk = self.space.walk;
        for at in 0..self.kernel.body.len() {
            let inst = self.inst(at as u32);
            let ty = self.kernel.ty(Val(at as u32)).unwrap_or(Ty::F32);
            let mut v = Value {
                ty,
                full: false,
                phase: 0,
                cost: 0,
                home: None,
                persistent: false,
                kept: None,
                first_loop: u16::MAX,
                seen: 0,
                counted: 0,
                ordered: 0,
                uses: 0,
                tile: NO_ENTRY,
                early: false,
                done: false,
            };
            for a in operands(inst) {
                let a = self.values[self.same[a.0 as usize] as usize];
                v.full |= a.full;
                v.phase = v.phase.max(a.phase);
                v.cost = v.cost.saturating_add(a.cost);
            }
            let word = |entry| Some(Operand { entry, kind: Kind::Word });
            match inst {
                Inst::Const { ty, bits } => v.home = word(self.constant(*ty, *bits)),
                Inst::Param { param } => {
                    let p = *param as usize;
                    if self.params[p] == NO_ENTRY {
                        self.params[p] = if ty == Ty::Bool {
                            let tile = self.new_tile(Ty::Bool);
                            self.bool_params.push((tile, *param));
                            tile
                        } else {
                            self.pointer(Source::Fixed)
                        };
                    }
                    v.home = word(self.params[p]);
                }
                Inst::Index { axis } => {
                    v.cost = 16;
                    match self.space.places[*axis as usize] {
                        None => v.home = word(self.constant(Ty::I64, 0)),
                        Some((role, _)) => {
                            v.full = role == if walk == Walk::Along { Role::Group } else { Role::Inner };
                        }
                    }
                }
                Inst::Load { .. } => {
                    let id = self.space.stream_of[at];
                    let s = &self.space.streams[id as usize];
                    v.full = s.varies(walk);
                    let direct = s.is_direct() && matches!(s.class, Class::Unit | Class::Same);
                    v.cost = match s.class {
                        Class::General => 16,
                        Class::PerRow => 4,
                        _ => !s.is_direct() as u32,
                    };
                    if s.never {
                        v.home = word(self.constant(ty, 0));
                    } else if let Class::Periodic(period) = s.class {
                        v.cost = 0;
                        v.home = Some(Operand { entry: self.periodic(id, period), kind: Kind::Tile });
                    } else if direct {
                        let unit = s.class == Class::Unit;
                        let entry = self.pointer(Source::Access(id, unit));
                        v.home = Some(Operand { entry, kind: if unit { Kind::Tile } else { Kind::Word } });
                    }
                }
                Inst::Gather { .. } => {
                    let s = &self.space.streams[self.space.stream_of[at] as usize];
                    v.full |= s.varies(walk);
                    v.cost = v.cost.saturating_add(32);
                }
                Inst::Op { instr: Instr::Bits | Instr::FromBits | Instr::DBits | Instr::FromDBits, args } => {
                    self.same[at] = self.same[args[0].0 as usize];
                }
                Inst::Op { instr, .. } => {
                    let own = match instr {
                        Instr::Div | Instr::Sqrt => 4,
                        Instr::Rem => 16,
                        _ if instr.is_call() => 800,
                        _ if is_long(*instr) => 16,
                        _ => 1,
                    };
                    v.cost = v.cost.saturating_add(own);
                }
                Inst::Reduce { .. } if walk == Walk::Rows => v.cost = v.cost.saturating_add(8),
                Inst::Reduce { combine, value } => {
                    self.reduction(&mut v, *combine, self.same[value.0 as usize]);
                }
                Inst::Store { .. } => {}
            }
            self.values.push(v);
        }
    }

    /// The expanded form of a periodic access.
    fn periodic(&mut self, stream: u32, period: usize) -> u16 {
        let points = count(&self.space.group);
        let len = (period + PERIODIC_TILES * TILE).min(points).next_multiple_of(TILE);
        let at = self.reserve(len * self.space.streams[stream as usize].lane_bytes());
        self.periodics.push(Periodic { stream, period, at, len });
        self.pointer(Source::Periodic(self.periodics.len() as u32 - 1))
    }

    fn reduction(&mut self, v: &mut Value, combine: Combine, value: u32) {
        let size = lane_bytes(v.ty);
        let inner = count(&self.space.inner);
        let points = if self.across() { inner } else { count(&self.space.group) };
        let tiles = if self.across() { self.space.order.lanes.min(inner).max(1) } else { 1 };
        let partial = self.reserve(tiles * TILE * size);
        let levels = (usize::BITS - self.space.order.blocks(points).leading_zeros()) as usize;
        let stack = self.reserve((levels + 1) * TILE * size);
        let result = self.tile_at(partial);
        self.reductions.push(Reduction { combine, phase: v.phase as usize, partial, result, stack, size });
        self.reduced.push(value);
        v.home = Some(Operand { entry: result, kind: self.row_kind() });
        v.phase += 1;
        v.full = false;
        v.cost = 0;
    }

    /// Values in the order in which a segment computes them, and where each root's part ends. `stop` decides
    /// at each value that has no home: true if it is to be found elsewhere.
    pub(super) fn order(
        &mut self,
        roots: &[u32],
        mut stop: impl FnMut(&mut Self, u32) -> bool,
    ) -> (Vec<u32>, Vec<usize>) {
        self.segment += 1;
        let stamp = self.segment;
        let mut out = Vec::new();
        let mut ends = Vec::with_capacity(roots.len());
        // A value is pushed once to be opened and once to be closed.
        let mut stack: Vec<(u32, bool)> = Vec::new();
        for &root in roots {
            stack.push((self.same[root as usize], false));
            while let Some((v, close)) = stack.pop() {
                if close {
                    out.push(v);
                    continue;
                }
                let value = &self.values[v as usize];
                if value.seen == stamp || value.home.is_some() {
                    continue;
                }
                self.values[v as usize].seen = stamp;
                if stop(self, v) {
                    continue;
                }
                stack.push((v, true));
                let mut args: [u32; 3] = [NONE; 3];
                let list = operands(self.inst(v));
                for (slot, a) in args.iter_mut().zip(list) {
                    *slot = self.same[a.0 as usize];
                }
                let args = &mut args[..list.len()];
                // The dearest is popped, so computed, first.
                args.sort_by_key(|&a| self.values[a as usize].cost);
                for &a in args.iter() {
                    stack.push((a, false));
                }
            }
            ends.push(out.len());
        }
        (out, ends)
    }
}

/// Whether an instruction touches 64-bit lanes.
pub(super) fn is_long(instr: Instr) -> bool {
    instr.result().is_wide() || instr.operands().iter().any(|ty| ty.is_wide())
}

// ---- segments ----

impl Lower<'_> {
    /// Distributes the work over segments and emits them.
    fn segments(&mut self) -> (Vec<Segment>, Vec<Segment>) {
        let mut full_stores = Vec::new();
        let mut row_stores = Vec::new();
        let mut phases = self.reductions.iter().map(|r| r.phase + 1).max().unwrap_or(0);
        for (at, inst) in self.kernel.body.iter().enumerate() {
            if let Inst::Store { value, .. } = inst {
                let stream = &self.space.streams[self.space.stream_of[at] as usize];
                let v = self.values[self.same[value.0 as usize] as usize];
                if v.full || stream.varies(self.space.walk) {
                    phases = phases.max(v.phase as usize + 1);
                    full_stores.push(at as u32);
                } else {
                    row_stores.push(at as u32);
                }
            }
        }
        let flags = self.dead_gathers();
        let flag = |l: &Self, full: bool, p: usize| -> Vec<u32> {
            let here = |v: &u32| (l.values[*v as usize].full, l.values[*v as usize].phase as usize) == (full, p);
            flags.iter().copied().filter(here).collect()
        };
        for &v in &flags {
            phases = phases.max(self.values[v as usize].phase as usize + self.values[v as usize].full as usize);
        }
        let value_of = |l: &Self, store: u32| l.same[operands(l.inst(store))[0].0 as usize];

        // Which values each loop computes, which it wants from stages, which are kept.
        let mut stage_roots: Vec<Vec<u32>> = vec![Vec::new(); phases + 1];
        let mut keeps: Vec<Vec<u32>> = vec![Vec::new(); phases];
        let keep_room = |l: &Self| {
            let points =
                if l.across() { count(&l.space.inner) * TILE } else { count(&l.space.group).next_multiple_of(TILE) };
            points * 4
        };
        let mut kept_bytes = 0;
        for p in 0..phases {
            let mut roots: Vec<u32> = (0..self.reductions.len())
                .filter(|&r| self.reductions[r].phase == p)
                .map(|r| self.reduced[r])
                .collect();
            if p + 1 == phases {
                roots.extend(full_stores.iter().map(|&s| value_of(self, s)));
            }
            roots.extend(flag(self, true, p));
            let room = keep_room(self);
            self.order(&roots, |l, v| {
                let value = l.values[v as usize];
                if !value.full {
                    want(l, &mut stage_roots, v);
                    return true;
                }
                if (value.first_loop as usize) < p
                    && (value.kept.is_some()
                        || value.cost >= KEEP_COST && !value.ty.is_wide() && kept_bytes + room <= KEEP_BYTES)
                {
                    if value.kept.is_none() {
                        kept_bytes += room;
                        let at = l.reserve(room);
                        let entry = l.pointer(Source::Kept(at));
                        l.values[v as usize].kept = Some((value.first_loop, entry));
                        keeps[value.first_loop as usize].push(v);
                    }
                    return true;
                }
                if value.first_loop == u16::MAX {
                    l.values[v as usize].first_loop = p as u16;
                }
                false
            });
        }
        // What each stage computes, the last one first: it may want values of earlier ones.
        for p in (0..=phases).rev() {
            let mut roots = stage_roots[p].clone();
            roots.extend(flag(self, false, p));
            if p == phases {
                roots.extend(row_stores.iter().map(|&s| value_of(self, s)));
            }
            self.order(&roots, |l, v| {
                let elsewhere = (l.values[v as usize].phase as usize) < p;
                if elsewhere {
                    want(l, &mut stage_roots, v);
                }
                elsewhere
            });
        }

        let mut stages = Vec::new();
        let mut loops = Vec::new();
        for p in 0..=phases {
            let mut roots: Vec<Root> = stage_roots[p].iter().map(|&v| Root::Home(v)).collect();
            roots.extend(flag(self, false, p).into_iter().map(Root::Flag));
            if p == phases {
                roots.extend(row_stores.iter().map(|&s| Root::Store(s)));
            }
            stages.push(self.emit(&roots, None));
            if p == phases {
                break;
            }
            let mut roots: Vec<Root> =
                (0..self.reductions.len()).filter(|&r| self.reductions[r].phase == p).map(Root::Reduce).collect();
            roots.extend(keeps[p].iter().map(|&v| Root::Keep(v)));
            roots.extend(flag(self, true, p).into_iter().map(Root::Flag));
            if p + 1 == phases {
                roots.extend(full_stores.iter().map(|&s| Root::Store(s)));
            }
            loops.push(self.emit(&roots, Some(p)));
        }
        (stages, loops)
    }
}

impl Lower<'_> {
    /// Gathers that no store depends on: they are still to flag their indices.
    fn dead_gathers(&self) -> Vec<u32> {
        let body = &self.kernel.body;
        if !body.iter().any(|i| matches!(i, Inst::Gather { .. })) {
            return Vec::new();
        }
        let mut live: Vec<bool> = body.iter().map(|i| matches!(i, Inst::Store { .. })).collect();
        let mut dead = Vec::new();
        for (v, inst) in body.iter().enumerate().rev() {
            if !live[v] && matches!(inst, Inst::Gather { .. }) {
                dead.push(v as u32);
                live[v] = true;
            }
            if live[v] {
                operands(inst).iter().for_each(|a| live[a.0 as usize] = true);
            }
        }
        dead
    }
}

/// Marks a row value as wanted outside its stage.
fn want(l: &mut Lower<'_>, stage_roots: &mut [Vec<u32>], v: u32) {
    let value = &mut l.values[v as usize];
    if !value.persistent {
        value.persistent = true;
        stage_roots[value.phase as usize].push(v);
    }
}

// ---- the program ----

/// Compiles `kernel` for `isa`.
pub(super) fn compile(kernel: &Kernel, isa: Isa) -> Result<Program> {
    if !isa.available() {
        return Err(Error::bug("vm", format!("this CPU has no {}", isa.name())));
    }
    let mut l = Lower::new(kernel, Space::of(kernel)?);
    l.analyse();
    let (stages, loops) = l.segments();
    l.finish(isa, stages, loops)
}

impl Lower<'_> {
    fn finish(mut self, isa: Isa, mut stages: Vec<Segment>, mut loops: Vec<Segment>) -> Result<Program> {
        let combines: Vec<u32> = (0..self.reductions.len()).map(|r| self.snippet(r)).collect();
        let pair = [self.pointer(Source::Fixed), self.pointer(Source::Fixed)];
        for (r, &start) in combines.iter().enumerate() {
            if start != NONE {
                // LoadT y; Acc x
                self.code[start as usize].a = pair[1];
                self.code[start as usize + 1].a = pair[0];
            }
            debug_assert!(self.reductions[r].size == 8 || start != NONE);
        }
        let most = INDEX_MASK as usize - 1;
        if self.consts.len() > most || self.tiles.len() > most || self.pointers.len() > most {
            return Err(Error::bug("vm", "a kernel with more operands than the vector machine can name"));
        }
        let (consts, tiles) = (self.consts.len() as u16, self.tiles.len() as u16);
        let place = |e: &mut u16| {
            *e = match *e & !INDEX_MASK {
                TILE_TAG => (*e & INDEX_MASK) + consts,
                POINTER_TAG => (*e & INDEX_MASK) + consts + tiles,
                _ => *e,
            }
        };
        for op in &mut self.code {
            place(&mut op.a);
            place(&mut op.b);
        }
        for segment in stages.iter_mut().chain(&mut loops) {
            for action in &mut segment.actions {
                match action {
                    Action::Code(_) => {}
                    Action::Load { into, .. } | Action::Index { into, .. } => place(into),
                    Action::Gather { index, into, .. } => {
                        place(&mut index.entry);
                        place(into);
                    }
                    Action::Long { args, into, .. } => {
                        args.iter_mut().for_each(|a| place(&mut a.entry));
                        place(into);
                    }
                    Action::Store { value, .. } => place(&mut value.entry),
                    Action::Fold { from, into, .. } => {
                        place(from);
                        place(into);
                    }
                    Action::Combine { value, into, .. } => {
                        place(&mut value.entry);
                        place(into);
                    }
                }
            }
            segment.streams.iter_mut().for_each(|s| place(&mut s.0));
            segment.steps.iter_mut().for_each(|s| place(&mut s.entry));
        }
        self.reductions.iter_mut().for_each(|r| place(&mut r.result));
        self.bool_params.iter_mut().for_each(|b| place(&mut b.0));
        let mut pair = pair;
        pair.iter_mut().for_each(place);
        let mut params = Vec::new();
        for (p, &entry) in self.params.iter().enumerate() {
            if entry != NO_ENTRY && entry & POINTER_TAG != 0 {
                let mut entry = entry;
                place(&mut entry);
                params.push((entry, p as u32));
            }
        }
        let points = [count(&self.space.loops), count(&self.space.group), count(&self.space.inner)];
        Ok(Program {
            isa,
            machine: isa.machine(),
            points,
            long: self.code.split(|op| op.code == Code::End).any(|code| code.len() > LONGEST),
            code: self.code,
            consts: self.consts,
            tiles: self.tiles,
            pointers: self.pointers.len(),
            frame_bytes: self.frame,
            params,
            bool_params: self.bool_params,
            stages,
            loops,
            periodics: self.periodics,
            reductions: self.reductions,
            combines,
            pair,
            arg_slots: (0..self.kernel.args.len() as u32).collect(),
            param_words: (0..self.kernel.params.len() as u32).collect(),
            cost_ns: self.space.cost_ns,
            space: self.space,
        })
    }

    /// Code for `x = x ∘ y` over tiles.
    fn snippet(&mut self, r: usize) -> u32 {
        let Some(code) = combine_code(self.reductions[r].combine.instr()) else { return NONE };
        let start = self.code.len() as u32;
        for code in [Code::LoadT, code, Code::End] {
            self.code.push(Op { code, a: 0, b: 0 });
        }
        start
    }
}
