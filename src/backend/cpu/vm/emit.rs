//! Emission of one segment: which operand is in the accumulator, what is spilled where.

use crate::backend::cpu::vm::code::{Code, Forms, Kind, Op, Step, TILE, combine_code, forms};
use crate::backend::cpu::vm::lower::{Lower, NO_ENTRY, NONE, POINTER_TAG, Root, is_long, operands};
use crate::backend::cpu::vm::program::{Action, Operand, Segment, Source};
use crate::backend::cpu::vm::space::Class;
use crate::base::DType;
use crate::kernel::{Inst, Instr};

/// The code that loads contiguous elements which lie in memory in fewer bits than in a tile of 32-bit lanes.
fn load_code(dtype: DType) -> Option<Code> {
    match dtype {
        DType::Bool => Some(Code::LoadBools),
        DType::BF16 => Some(Code::LoadBf16),
        DType::F16 => Some(Code::LoadF16),
        _ => None,
    }
}

/// The code that stores a tile of 32-bit lanes to contiguous elements.
fn store_code(dtype: DType) -> Option<Code> {
    if dtype == DType::F32 {
        return Some(Code::Store);
    }
    match load_code(dtype)? {
        Code::LoadBf16 => Some(Code::StoreBf16),
        Code::LoadF16 => Some(Code::StoreF16),
        _ => Some(Code::StoreBools),
    }
}

impl Lower<'_> {
    fn root_value(&self, root: Root) -> u32 {
        match root {
            Root::Home(v) | Root::Keep(v) | Root::Flag(v) => v,
            Root::Reduce(r) => self.reduced[r],
            Root::Store(s) => self.same[operands(self.inst(s))[0].0 as usize],
        }
    }

    /// Emits one segment: the stage (`in_loop` none) or the loop of a phase.
    pub(super) fn emit(&mut self, roots: &[Root], in_loop: Option<usize>) -> Segment {
        self.in_loop = in_loop;
        self.out = Segment::default();
        self.epilogue.clear();
        (self.acc, self.open) = (NONE, false);
        let wanted: Vec<u32> = roots.iter().map(|&r| self.root_value(r)).collect();
        let (order, ends) = self.order(&wanted, |l, v| l.kept_before(v).is_some());
        let loads = self.count_uses(&order, &wanted);
        self.hoist(&order);
        let stores = roots.iter().filter(|r| matches!(r, Root::Store(_))).count();
        let mut waiting: Vec<u32> = Vec::new();
        let mut at = 0;
        for (i, &root) in roots.iter().enumerate() {
            for &v in &order[at..ends[i]] {
                if !self.values[v as usize].early {
                    self.compute(v);
                }
            }
            at = ends[i];
            let v = wanted[i];
            match root {
                // Never released: the tile lives on.
                Root::Home(_) => {
                    let entry = self.own_tile(v);
                    let kind = self.row_kind();
                    self.values[v as usize].home = Some(Operand { entry, kind });
                }
                Root::Keep(_) => {
                    if let Some((_, entry)) = self.values[v as usize].kept {
                        self.bring(v);
                        self.touch(entry);
                        self.op(Code::Spill, entry, 0);
                    }
                    self.release(v);
                }
                Root::Flag(_) => self.release(v),
                Root::Reduce(r) => self.reduce(r, v),
                Root::Store(s) if self.by_machine(s) => {
                    let stream = &self.space.streams[self.space.stream_of[s as usize] as usize];
                    let unread = |&x: &u32| {
                        let value = &self.values[x as usize];
                        let left = if value.home.is_some() { value.uses > 0 } else { !value.early && !value.done };
                        x != v
                            && left
                            && self.space.streams[self.space.stream_of[x as usize] as usize].may_alias(stream)
                    };
                    if loads.iter().any(unread) {
                        self.own_tile(v);
                        waiting.push(s);
                    } else {
                        self.store(s, v);
                    }
                }
                // Never released: the epilogue reads it.
                Root::Store(s) => {
                    let stream = self.space.stream_of[s as usize];
                    let operand = self.values[v as usize].home.is_some_and(|h| h.entry & POINTER_TAG != 0);
                    if stores > 1 && operand && matches!(self.inst(v), Inst::Load { .. }) {
                        self.load_early(v);
                    }
                    let value = self.in_memory(v);
                    self.epilogue.push(Action::Store { stream, value });
                }
            }
        }
        for s in waiting {
            let v = self.root_value(Root::Store(s));
            self.store(s, v);
        }
        self.close();
        let epilogue = std::mem::take(&mut self.epilogue);
        self.out.actions.extend(epilogue);
        // Scratch tiles of this segment are free for the next.
        for &v in order.iter().chain(&wanted) {
            let value = &mut self.values[v as usize];
            let (tile, ty) = (std::mem::replace(&mut value.tile, NO_ENTRY), value.ty);
            if tile != NO_ENTRY && Some(tile) != value.home.map(|h| h.entry) {
                self.free[ty.is_wide() as usize].push(tile);
            }
        }
        let mut out = std::mem::take(&mut self.out);
        if let [Action::Code(start)] = out.actions[..] {
            out.direct = Some(start);
        }
        self.steps(&mut out);
        out
    }

    /// The buffer of a value that an earlier loop kept.
    fn kept_before(&self, v: u32) -> Option<u16> {
        let (first, entry) = self.values[v as usize].kept?;
        self.in_loop.filter(|&p| p > first as usize).map(|_| entry)
    }

    /// Counts uses within the segment; returns the loads among the values it uses.
    fn count_uses(&mut self, order: &[u32], wanted: &[u32]) -> Vec<u32> {
        let stamp = self.segment;
        let mut loads = Vec::new();
        for &v in order {
            self.values[v as usize].ordered = stamp;
        }
        let body = &self.kernel.body;
        let args = order.iter().flat_map(|&v| operands(&body[v as usize])).map(|a| self.same[a.0 as usize]);
        for v in args.chain(wanted.iter().copied()) {
            let value = &mut self.values[v as usize];
            if value.counted != stamp {
                value.counted = stamp;
                (value.uses, value.tile, value.early, value.done) = (0, NO_ENTRY, false, false);
                if matches!(self.kernel.body[v as usize], Inst::Load { .. }) {
                    loads.push(v);
                }
            }
            value.uses += 1;
        }
        loads
    }

    /// Emits what needs no accumulator and depends on nothing that does: general loads, index arithmetic.
    fn hoist(&mut self, order: &[u32]) {
        let stamp = self.segment;
        for &v in order {
            let inst = self.inst(v);
            let fit = match inst {
                Inst::Load { .. } => !self.is_machine_load(v),
                Inst::Index { .. } | Inst::Gather { .. } => true,
                Inst::Op { instr, .. } => is_long(*instr),
                _ => false,
            };
            let ready = |&a: &crate::kernel::Val| {
                let a = &self.values[self.same[a.0 as usize] as usize];
                a.ordered != stamp || a.early
            };
            if fit && operands(inst).iter().all(ready) {
                let tile = self.new_tile(self.values[v as usize].ty);
                self.values[v as usize].tile = tile;
                self.act(v, tile);
                self.values[v as usize].early = true;
            }
        }
    }

    /// A contiguous load of truth values or 16-bit floats: machine code of its own rather than an operand.
    fn is_machine_load(&self, v: u32) -> bool {
        let s = &self.space.streams[self.space.stream_of[v as usize] as usize];
        s.class == Class::Unit && load_code(s.dtype).is_some()
    }

    /// Whether a store is machine code.
    fn by_machine(&self, store: u32) -> bool {
        let s = &self.space.streams[self.space.stream_of[store as usize] as usize];
        s.class == Class::Unit && store_code(s.dtype).is_some()
    }

    /// A tile loaded before everything else, for a load that could have been an operand.
    fn load_early(&mut self, v: u32) {
        let tile = self.new_tile(self.values[v as usize].ty);
        let stream = self.space.stream_of[v as usize];
        self.out.actions.insert(0, Action::Load { stream, into: tile });
        self.values[v as usize].tile = tile;
    }

    /// Emits the action for `v` into `tile`; operands are in memory.
    fn act(&mut self, v: u32, tile: u16) {
        let stream = self.space.stream_of[v as usize];
        let action = match self.inst(v) {
            Inst::Load { .. } => Action::Load { stream, into: tile },
            Inst::Index { axis } => {
                let Some((role, axis)) = self.space.places[*axis as usize] else { return };
                Action::Index { role, axis: axis as u8, into: tile }
            }
            Inst::Gather { index, stride, len, .. } => {
                let index = self.in_memory(self.same[index.0 as usize]);
                let stride = stride * self.space.streams[stream as usize].dtype.size() as i64;
                Action::Gather { stream, index, stride, len: *len, into: tile }
            }
            Inst::Op { instr, args } => {
                let mut list = [Operand { entry: 0, kind: Kind::Word }; 3];
                for (slot, a) in list.iter_mut().zip(&args[..instr.operands().len()]) {
                    *slot = self.in_memory(self.same[a.0 as usize]);
                }
                Action::Long { instr: *instr, args: list, into: tile }
            }
            _ => return,
        };
        self.out.actions.push(action);
        for a in operands(self.inst(v)) {
            self.release(self.same[a.0 as usize]);
        }
    }

    fn compute(&mut self, v: u32) {
        match self.inst(v) {
            Inst::Load { .. } => {
                self.spill();
                let stream = self.space.stream_of[v as usize];
                let code = load_code(self.space.streams[stream as usize].dtype).unwrap_or(Code::LoadT);
                let entry = self.pointer(Source::Access(stream, true));
                self.touch(entry);
                self.op(code, entry, 0);
                self.acc = v;
            }
            Inst::Op { instr, args } if !is_long(*instr) => {
                let args = args.map(|a| self.same.get(a.0 as usize).copied().unwrap_or(NONE));
                self.scalar(v, *instr, args);
            }
            Inst::Reduce { combine, value } => {
                let value = self.same[value.0 as usize];
                // A tile of the frame: memory elsewhere may end with the last lane.
                let from = self.own_tile(value);
                self.close();
                self.release(value);
                let into = self.scratch(self.values[v as usize].ty);
                if let Some(code) = combine_code(combine.instr()) {
                    self.out.actions.push(Action::Fold { code, from, into });
                }
                self.values[v as usize].tile = into;
            }
            inst => {
                for a in operands(inst) {
                    self.in_memory(self.same[a.0 as usize]);
                }
                self.close();
                let tile = self.scratch(self.values[v as usize].ty);
                self.act(v, tile);
                self.values[v as usize].tile = tile;
            }
        }
        self.values[v as usize].done = true;
    }

    /// Emits a 32-bit instruction; its result is then in the accumulator.
    fn scalar(&mut self, v: u32, instr: Instr, args: [u32; 3]) {
        let [x, y, z] = args;
        match forms(instr) {
            Forms::Unary(code) => {
                self.bring(x);
                self.consume(x, 1);
                self.op(code, 0, 0);
                self.release(x);
            }
            Forms::Both(t, b) if x != y => {
                if let Some((code, x, y)) = self.with_constant(instr, x, y) {
                    self.bring(x);
                    self.consume(x, 1);
                    let y = if code == Code::Relu { 0 } else { self.operand(y).entry };
                    self.op(code, y, 0);
                } else {
                    let first = if self.acc == y || self.acc != x && self.kind(y) == Kind::Word { y } else { x };
                    let other = if first == x { y } else { x };
                    self.bring(first);
                    self.consume(first, 1);
                    self.binary(t, b, other);
                }
                self.release(x);
                self.release(y);
            }
            Forms::Ordered(t, b, tr, br) if x != y => {
                let reverse = self.acc == y;
                let (first, other) = if reverse { (y, x) } else { (x, y) };
                self.bring(first);
                self.consume(first, 1);
                if reverse {
                    self.binary(tr, br, other)
                } else {
                    self.binary(t, b, other)
                }
                self.release(x);
                self.release(y);
            }
            Forms::Both(t, b) | Forms::Ordered(t, b, ..) => {
                self.bring(x);
                if instr == Instr::Mul {
                    self.consume(x, 2);
                    self.op(Code::Square, 0, 0);
                } else {
                    self.in_memory(x);
                    self.binary(t, b, x);
                }
                self.release(x);
                self.release(x);
            }
            Forms::Special => {
                // The operand in the accumulator, or the one to bring there.
                let fma = instr == Instr::Fma;
                let first = if args.contains(&self.acc) {
                    self.acc
                } else if fma {
                    [x, y, z].into_iter().find(|&a| self.kind(a) == Kind::Word).unwrap_or(x)
                } else {
                    x
                };
                self.bring(first);
                let times = args.iter().filter(|&&a| a == first).count() as u32;
                self.consume(first, if times > 1 { 0 } else { 1 });
                let words = |l: &mut Self, a: u32, b: u32| {
                    let (a, b) = (l.operand(a), l.operand(b));
                    (a.entry, b.entry, a.kind == Kind::Word, b.kind == Kind::Word)
                };
                let code = |word_a: bool, word_b: bool, tt, tb, bt, bb| match (word_a, word_b) {
                    (false, false) => tt,
                    (false, true) => tb,
                    (true, false) => bt,
                    (true, true) => bb,
                };
                let (code, a, b) = if fma && (first == x || first == y) {
                    let (a, b, wa, wb) = words(self, if first == x { y } else { x }, z);
                    (code(wa, wb, Code::FmaTT, Code::FmaTB, Code::FmaBT, Code::FmaBB), a, b)
                } else if fma {
                    let (mut a, mut b, wa, wb) = words(self, x, y);
                    if wa && !wb {
                        std::mem::swap(&mut a, &mut b); // factors may be exchanged
                    }
                    let tb = Code::FmaAccTB;
                    (code(wa, wb, Code::FmaAccTT, tb, tb, Code::FmaAccBB), a, b)
                } else if first == x {
                    let (a, b, wa, wb) = words(self, y, z);
                    (code(wa, wb, Code::SelTT, Code::SelTB, Code::SelBT, Code::SelBB), a, b)
                } else if first == y {
                    let (a, b, wa, wb) = words(self, x, z);
                    (code(wa, wb, Code::SelThenTT, Code::SelThenTB, Code::SelThenBT, Code::SelThenBB), a, b)
                } else {
                    let (a, b, wa, wb) = words(self, x, y);
                    (code(wa, wb, Code::SelElseTT, Code::SelElseTB, Code::SelElseBT, Code::SelElseBB), a, b)
                };
                self.op(code, a, b);
                for a in args {
                    self.release(a);
                }
            }
        }
        self.acc = v;
    }

    /// Cheaper codes of `min` and `max` with a constant: code, variable operand, constant.
    fn with_constant(&self, instr: Instr, x: u32, y: u32) -> Option<(Code, u32, u32)> {
        let constant = |v: u32| match self.inst(v) {
            Inst::Const { bits, .. } => Some(*bits as u32),
            _ => None,
        };
        let (x, y, bits) = match (constant(x), constant(y)) {
            (None, Some(c)) => (x, y, c),
            (Some(c), None) => (y, x, c),
            _ => return None,
        };
        const MINUS_ZERO: u32 = 0x8000_0000;
        match instr {
            _ if f32::from_bits(bits).is_nan() => None,
            Instr::Max if bits == 0 => Some((Code::Relu, x, y)),
            Instr::Max => Some((Code::MaxK, x, y)),
            Instr::Min if bits != MINUS_ZERO => Some((Code::MinK, x, y)),
            _ => None,
        }
    }

    fn binary(&mut self, tile: Code, word: Code, other: u32) {
        let o = self.operand(other);
        self.op(if o.kind == Kind::Tile { tile } else { word }, o.entry, 0);
    }

    fn reduce(&mut self, r: usize, v: u32) {
        let red = &self.reductions[r];
        let (combine, mut into) = (red.combine, red.result);
        if self.across() && self.space.order.lanes > 1 {
            into = self.pointer(Source::Partial(r as u32));
            self.touch(into);
        }
        match combine_code(combine.instr()) {
            Some(code) => {
                self.bring(v);
                self.op(code, into, 0);
            }
            None => {
                let value = self.in_memory(v);
                self.close();
                self.out.actions.push(Action::Combine { combine, value, into });
            }
        }
        self.release(v);
    }

    fn store(&mut self, store: u32, v: u32) {
        let id = self.space.stream_of[store as usize];
        let entry = self.pointer(Source::Access(id, true));
        self.bring(v);
        self.touch(entry);
        let code = store_code(self.space.streams[id as usize].dtype).unwrap_or(Code::Store);
        self.op(code, entry, 0);
        self.release(v);
    }
}

// ---- where values are ----

impl Lower<'_> {
    fn op(&mut self, code: Code, a: u16, b: u16) {
        if !self.open {
            self.open = true;
            self.out.actions.push(Action::Code(self.code.len() as u32));
        }
        self.code.push(Op { code, a, b });
    }

    /// Ends the code under way, so that an action can follow.
    fn close(&mut self) {
        self.spill();
        if self.open {
            self.op(Code::End, 0, 0);
            self.open = false;
        }
        self.acc = NONE;
    }

    /// Notes that the segment uses a pointer.
    fn touch(&mut self, entry: u16) {
        if entry & POINTER_TAG == 0 {
            return;
        }
        let i = (entry & !POINTER_TAG) as usize;
        if self.touched[i] != self.segment {
            self.touched[i] = self.segment;
            let source = self.pointers[i];
            if !matches!(source, Source::Fixed) {
                self.out.streams.push((entry, source));
            }
        }
    }

    /// Whether a value can be read from memory.
    fn is_in_memory(&self, v: u32) -> bool {
        let value = &self.values[v as usize];
        value.tile != NO_ENTRY || value.home.is_some() || self.kept_before(v).is_some()
    }

    /// How a value in memory is read.
    fn operand(&mut self, v: u32) -> Operand {
        let value = self.values[v as usize];
        let operand = if value.tile != NO_ENTRY {
            Operand { entry: value.tile, kind: Kind::Tile }
        } else if let Some(entry) = self.kept_before(v) {
            Operand { entry, kind: Kind::Tile }
        } else {
            value.home.unwrap_or(Operand { entry: 0, kind: Kind::Word })
        };
        self.touch(operand.entry);
        operand
    }

    fn kind(&self, v: u32) -> Kind {
        let value = &self.values[v as usize];
        if value.tile != NO_ENTRY || self.kept_before(v).is_some() {
            Kind::Tile
        } else {
            value.home.map_or(Kind::Tile, |h| h.kind)
        }
    }

    /// Makes sure that a value can be read from memory; it stays in the accumulator if it was there.
    fn in_memory(&mut self, v: u32) -> Operand {
        if !self.is_in_memory(v) {
            self.own_tile(v);
        }
        self.operand(v)
    }

    /// Gives a value a tile of its own.
    fn own_tile(&mut self, v: u32) -> u16 {
        if self.values[v as usize].tile == NO_ENTRY {
            self.bring(v);
            let tile = self.scratch(self.values[v as usize].ty);
            self.op(Code::Spill, tile, 0);
            self.values[v as usize].tile = tile;
        }
        self.values[v as usize].tile
    }

    /// Saves the accumulator if its value is still wanted and is nowhere else.
    fn spill(&mut self) {
        let v = self.acc;
        if v != NONE && self.values[v as usize].uses > 0 && !self.is_in_memory(v) {
            self.own_tile(v);
        }
    }

    /// Before an instruction overwrites the accumulator using its value `times` times.
    fn consume(&mut self, v: u32, times: u32) {
        if self.values[v as usize].uses > times && !self.is_in_memory(v) {
            self.own_tile(v);
        }
    }

    /// Makes a value the accumulator's.
    fn bring(&mut self, v: u32) {
        if self.acc == v {
            return;
        }
        self.spill();
        let o = self.operand(v);
        self.op(if o.kind == Kind::Tile { Code::LoadT } else { Code::LoadB }, o.entry, 0);
        self.acc = v;
    }

    /// One use less; a scratch tile without uses is free.
    fn release(&mut self, v: u32) {
        let value = &mut self.values[v as usize];
        value.uses = value.uses.saturating_sub(1);
        if value.uses == 0 && value.tile != NO_ENTRY && !value.early {
            let (tile, ty) = (std::mem::replace(&mut value.tile, NO_ENTRY), value.ty);
            self.free[ty.is_wide() as usize].push(tile);
        }
    }

    /// How the segment's pointers move from one repetition to the next.
    fn steps(&mut self, out: &mut Segment) {
        let over_inner = self.in_loop.is_some() && self.across();
        for &(entry, source) in &out.streams {
            let bytes = match source {
                Source::Fixed => 0,
                Source::Access(id, unit) => {
                    let s = &self.space.streams[id as usize];
                    if over_inner {
                        s.inner.last().map_or(0, |&s| s as isize)
                    } else if unit {
                        (TILE * s.dtype.size()) as isize
                    } else {
                        0
                    }
                }
                Source::Periodic(_) if over_inner => 0,
                Source::Periodic(i) => {
                    let id = self.periodics[i as usize].stream;
                    (TILE * self.space.streams[id as usize].lane_bytes()) as isize
                }
                Source::Kept(_) => (TILE * 4) as isize,
                Source::Partial(r) => (TILE * self.reductions[r as usize].size) as isize,
            };
            if bytes != 0 {
                out.steps.push(Step { entry, bytes });
            }
        }
    }
}
