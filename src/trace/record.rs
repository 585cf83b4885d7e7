//! Record: ops run eagerly and are written down as events of a new path.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::{SmallVec, smallvec};

use crate::base::{Error, ErrorKind, Loc, Result, Scalar, Type, scalar};
use crate::op::{Emit, Op, Val};
use crate::tensor::autograd::{self, Request, Wrt};
use crate::tensor::tape::{self, Entry, GradTable, Gradients, no_tape};
use crate::tensor::{At, Device, Origin, Tensor, Var, eager, var};
use crate::trace::session::{Mode, Session};
use crate::trace::shadow::blank;
use crate::trace::tree::{Def, Event, ExternalGuard, Extra, Kind, Path, Tape, ValId, VarGuard, Want};

/// For whom an op is recorded.
#[derive(Clone, Copy)]
enum Role {
    User,
    /// A gradient; with `graph` it can be differentiated itself.
    Gradient {
        graph: bool,
    },
}

impl Session {
    /// Starts a new path at the cursor, unless the present one has nothing behind it.
    pub fn branch(&mut self) {
        let (path, at) = (self.path, self.cursor as u32);
        let p = &self.tree.paths[path as usize];
        if self.cursor == p.events.len() && p.children.is_empty() && p.events.is_empty() {
            return;
        }
        let child = Path {
            parent: Some(path),
            base_event: self.ordinal(),
            base_value: self.ptrs.len() as u32,
            base_param: self.params.len() as u32,
            base_var: self.vars.len() as u32,
            ..Path::default()
        };
        let id = self.tree.add(path, at, child);
        self.trail.push((path, at));
        self.path = id;
        self.cursor = 0;
    }

    fn push(&mut self, event: Event) {
        self.tree.paths[self.path as usize].events.push(event);
        self.cursor += 1;
    }

    fn define(&mut self, def: Def, addr: usize) -> ValId {
        let v = self.ptrs.len() as u32;
        self.tree.paths[self.path as usize].defs.push(def);
        self.ptrs.push(addr);
        self.ids.insert(addr, v);
        v
    }

    /// The id of a handle; a handle from outside is bound as a new external.
    fn id_of(&mut self, t: &Tensor) -> Result<ValId> {
        if let Some(&v) = self.ids.get(&t.addr()) {
            return Ok(v);
        }
        let layout = t.ready_state()?.layout.from_start();
        let held = self.held.len() as u32;
        let externals = &mut self.tree.paths[self.path as usize].externals;
        externals.push(ExternalGuard { ty: t.ty(), layout, tape: Tape::of(t) });
        let guard = externals.len() as u32 - 1;
        let v = self.define(Def::External { guard, held }, t.addr());
        self.keep(t);
        Ok(v)
    }

    pub fn record_op(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor> {
        let loc = Loc::resolve(at);
        for t in operands {
            t.check_owner(self.stamp).map_err(|e| e.at(loc))?;
        }
        self.record_op_at(op, operands, device, loc, Role::User).map_err(|e| e.at(loc))
    }

    fn record_op_at(&mut self, op: &Op, operands: &[&Tensor], device: &Device, loc: Loc, role: Role) -> Result<Tensor> {
        let prepared = eager::prepare(op, operands, device)?;
        let (ready, flag) = eager::compute(&prepared, operands, device)?;
        self.note_flag(flag, loc);
        let mut ids: SmallVec<[ValId; 3]> = SmallVec::new();
        for t in operands {
            ids.push(self.id_of(t)?);
        }
        let (inner, constant) = match role {
            Role::User => (false, !autograd::is_enabled()),
            Role::Gradient { graph } => (true, !graph),
        };
        let op = self.adopt_scalars(&prepared.op, inner);
        let taped = op.starts_gradient() || (!constant && tape::flows(&prepared, operands));
        let t = Tensor::ready(prepared.ty, device.clone(), ready, Origin::Step { taped }, loc);
        t.0.stamp.store(self.stamp, Relaxed);
        let event = self.ordinal();
        let out = self.define(Def::Made { event }, t.addr());
        let template = Some(t.clone());
        self.push(Event { inner, constant, op, operands: ids, out, template, ..blank(Kind::Op, loc) });
        Ok(t)
    }

    /// Gives host scalars their place in the parameter block. Inside a `backward` there are none:
    /// its scalars are constants and copies.
    fn adopt_scalars(&mut self, op: &Op, inner: bool) -> Op {
        let mut scalars = op.rules().scalars();
        if scalars.is_empty() {
            return *op;
        }
        for s in scalars.iter_mut().filter(|s| s.origin == scalar::Origin::Host) {
            debug_assert!(!inner, "a gradient rule made a host scalar in {}", op.rules().name());
            s.origin = scalar::Origin::Param(self.params.len() as u32);
            self.params.push(s.bits);
            self.tree.paths[self.path as usize].params.push(s.dtype);
        }
        if matches!(op, Op::Random { .. }) {
            self.note_draw();
        }
        op.rules().with_scalars(&scalars)
    }

    fn slot_or_bind(&mut self, v: &Var) -> u32 {
        if let Some(slot) = self.slot(v) {
            return slot;
        }
        let guard = VarGuard { ty: v.ty(), trainable: v.is_trainable() };
        self.tree.paths[self.path as usize].vars.push(guard);
        self.bind_var(v)
    }

    pub fn record_get(&mut self, v: &Var, at: At) -> Result<Tensor> {
        let loc = Loc::resolve(at);
        let slot = self.slot_or_bind(v);
        let binding = &self.vars[slot as usize];
        if let Some(value) = binding.current {
            return self.again(value).map_err(|e| e.at(loc));
        }
        let event = self.ordinal();
        if let Some(of) = binding.written {
            self.materialize(&[of])?;
            let t = var::leaf(self.handle(of)?, v.id(), v.is_trainable())?;
            t.0.stamp.store(self.stamp, Relaxed);
            let out = self.define(Def::Leaf { event, of }, t.addr());
            self.push(Event { out, var: slot, template: Some(t.clone()), ..blank(Kind::VarGet, loc) });
            self.vars[slot as usize].current = Some(out);
            return Ok(t);
        }
        let value = v.load();
        let layout = value.ready_state()?.layout.from_start();
        let out = match self.ids.get(&value.addr()) {
            Some(&known) => known,
            None => {
                let held = self.held.len() as u32;
                let snapshots = &mut self.tree.paths[self.path as usize].snapshots;
                snapshots.push(layout);
                let guard = snapshots.len() as u32 - 1;
                let out = self.define(Def::Snapshot { var: slot, guard, held }, value.addr());
                self.keep(&value);
                out
            }
        };
        self.push(Event { out, var: slot, ..blank(Kind::VarGet, loc) });
        self.vars[slot as usize].current = Some(out);
        Ok(value)
    }

    pub fn record_set(&mut self, v: &Var, value: &Tensor, at: At) -> Result<()> {
        let loc = Loc::resolve(at);
        value.ready_state().map_err(|e| e.at(loc))?;
        let slot = self.slot_or_bind(v);
        let id = self.id_of(value).map_err(|e| e.at(loc))?;
        self.push(Event { var: slot, operands: smallvec![id], ..blank(Kind::VarSet, loc) });
        let b = &mut self.vars[slot as usize];
        (b.current, b.written, b.dirty) = (None, Some(id), true);
        Ok(())
    }

    pub fn record_read(&mut self, t: &Tensor, at: At) -> Result<()> {
        let Some(&v) = self.ids.get(&t.addr()) else { return Ok(()) };
        self.materialize(&[v])?;
        if self.made_before_segment(v) {
            return Ok(());
        }
        let loc = Loc::resolve(at);
        self.stats.reads.add(loc, || format!("host read of {}: ended a segment", t.ty()));
        self.push(Event { operands: smallvec![v], extra: Some(Box::default()), ..blank(Kind::Read, loc) });
        self.last.segments += 1;
        self.seg_base = self.ordinal();
        self.commit_writes()
    }

    /// Puts the values written in this segment into their `Var`s, all together.
    pub fn commit_writes(&mut self) -> Result<()> {
        if let Err(e) = self.take_flagged() {
            for b in &mut self.vars {
                b.dirty = false;
            }
            return Err(e);
        }
        let dirty: Vec<(usize, ValId)> = (0..self.vars.len())
            .filter(|&i| self.vars[i].dirty)
            .filter_map(|i| Some((i, self.vars[i].written?)))
            .collect();
        let values: Vec<ValId> = dirty.iter().map(|d| d.1).collect();
        self.materialize(&values)?;
        let mut writes = Vec::with_capacity(dirty.len());
        for &(i, v) in &dirty {
            let var = self.vars[i].var.clone();
            let new = var::leaf(self.handle(v)?, var.id(), var.is_trainable())?;
            writes.push((var, new));
            self.vars[i].dirty = false;
        }
        writes.sort_by_key(|(v, _)| v.id());
        let mut guards: Vec<_> = writes.iter().map(|(v, _)| v.lock()).collect();
        let mut old = Vec::with_capacity(guards.len());
        for (g, (_, new)) in guards.iter_mut().zip(&writes) {
            old.push(std::mem::replace(&mut **g, new.clone()));
        }
        drop(guards);
        Ok(())
    }

    pub fn push_end(&mut self) {
        // `cursor` stays on the event: the caller decides whether it is launched or only recorded.
        let event = Event { extra: Some(Box::<Extra>::default()), ..blank(Kind::End, Loc::NONE) };
        self.tree.paths[self.path as usize].events.push(event);
    }

    /// The closure has ended: what it wrote is committed.
    pub fn close_record(&mut self) -> Result<()> {
        self.last.events = self.ordinal();
        self.last.ops = (0..self.ordinal()).filter(|&o| self.event(o).kind == Kind::Op).count() as u32;
        self.push_end();
        self.cursor += 1;
        self.last.segments += 1;
        self.commit_writes()
    }

    pub fn record_backward(&mut self, loss: &Tensor, at: At) -> Result<Gradients> {
        let loss_id = self.output_id(loss)?;
        let (entries, leaves) = self.tape(self.ordinal());
        let reach = self.reach(&entries, &leaves, loss_id, &[])?;
        if !leaves.iter().any(|l| reach.contains(l.1.0)) {
            let detail = "the value depends on no trainable Var read in this step; compute it from `Var::get` of a Var made with `Var::new`";
            return Err(ErrorKind::Backward { detail: detail.into() }.into());
        }
        let head = Event { operands: smallvec![loss_id], ..blank(Kind::Backward, Loc::resolve(at)) };
        let (head, mut extra) = self.record_gradients(head, &entries, &leaves, false)?;
        self.backwards.push((self.path, head as u32));
        let event = (self.path, head as u32);
        let table = Arc::new(GradTable { stamp: self.stamp, event, entries: Default::default() });
        extra.table = Some(table.clone());
        extra.grads.sort_unstable_by_key(|g| g.0);
        self.tree.paths[self.path as usize].events[head].extra = Some(Box::new(extra));
        Ok(Gradients(table))
    }

    /// `seed`: the upstream gradient as a value of this step.
    pub fn record_grad(&mut self, request: &Request<'_>, seed: Option<&Tensor>, at: At) -> Result<Vec<Option<Tensor>>> {
        let output = self.output_id(request.output)?;
        let known = |t: &Tensor| self.ids.get(&t.addr()).copied();
        let seed = seed.map(|t| known(t).ok_or_else(|| Error::bug("trace", "a seed without an id"))).transpose()?;
        let want = |w: &Wrt<'_>| match w {
            Wrt::Tensor(t) => self.ids.get(&t.addr()).map_or(Want::Unknown, |&v| Want::Value(v)),
            Wrt::Var(v) => self.slot(v).map_or(Want::Unknown, Want::Var),
        };
        let wants: Vec<Want> = request.wrt.iter().map(want).collect();
        let (entries, leaves) = self.tape(self.ordinal());
        let reach = self.reach(&entries, &leaves, output, request.wrt)?;
        for (w, want) in request.wrt.iter().zip(&wants) {
            let reached = matches!(want, Want::Value(v) if reach.contains(*v));
            tape::check_cut(w, reached, reach.stopped.as_ref())?;
        }
        let operands = [output].into_iter().chain(seed).collect();
        let head = Event { operands, ..blank(Kind::Grad, Loc::resolve(at)) };
        let (head, extra) = self.record_gradients(head, &entries, &wanted(&wants, &leaves), request.graph)?;
        let mut out = vec![None; wants.len()];
        for &(k, v) in &extra.grads {
            out[k as usize] = Some(self.handle(v)?.clone());
        }
        let extra = Extra { wants, graph: request.graph, ..extra };
        self.tree.paths[self.path as usize].events[head].extra = Some(Box::new(extra));
        Ok(out)
    }

    /// Writes down a `Backward` or `Grad` event and its gradient ops; where it is, and what it gave.
    fn record_gradients(
        &mut self,
        event: Event,
        entries: &[Entry],
        wanted: &[(u32, Val)],
        graph: bool,
    ) -> Result<(usize, Extra)> {
        let (head, values) = (self.cursor, self.ptrs.len());
        let (output, seed) = (event.operands[0], event.operands.get(1).map(|&v| Val(v)));
        let device = self.handle(output)?.device().clone();
        self.push(event);
        let values_of: Vec<Val> = wanted.iter().map(|w| w.1).collect();
        let mut cx = Inner { session: self, device, graph };
        let grads = tape::differentiate(&mut cx, entries, Val(output), seed, &values_of);
        match grads.and_then(|g| tape::sum_by_target(&mut cx, wanted, &g)) {
            Ok(sums) => {
                let inner = (self.cursor - head - 1) as u32;
                let grads = sums.into_iter().map(|(k, v)| (k, v.0)).collect();
                Ok((head, Extra { inner, grads, ..Extra::default() }))
            }
            Err(e) => {
                // What fails leaves no event.
                self.forget(head, values);
                Err(e)
            }
        }
    }

    /// The id of a value to differentiate.
    fn output_id(&self, t: &Tensor) -> Result<ValId> {
        if let Some(&v) = self.ids.get(&t.addr()) {
            return Ok(v);
        }
        let outside = ErrorKind::Backward {
            detail: format!(
                "the value made at {} was computed outside the step; compute it inside the closure",
                t.0.made
            ),
        };
        Err(no_tape(t).unwrap_or_else(|| outside.into()))
    }

    /// Takes back the events from position `head` of the present path on, before which there were `values` values.
    fn forget(&mut self, head: usize, values: usize) {
        let path = &mut self.tree.paths[self.path as usize];
        path.events.truncate(head);
        path.defs.truncate(values - path.base_value as usize);
        self.cursor = head;
        self.ptrs.truncate(values);
        self.ids.retain(|_, v| (*v as usize) < values);
    }

    /// The ops and the trainable leaves of the trace before event `end`: the trace is the tape.
    fn tape(&self, end: u32) -> (Vec<Entry>, Vec<(u32, Val)>) {
        let (mut entries, mut leaves) = (Vec::new(), Vec::new());
        for ordinal in 0..end {
            let e = self.event(ordinal);
            match e.kind {
                Kind::Op if !e.constant => entries.push(Entry {
                    op: e.op,
                    operands: e.operands.iter().map(|&v| Val(v)).collect(),
                    result: Val(e.out),
                    loc: e.loc,
                }),
                // The handle is a leaf if the `Var` was trainable when it was read.
                Kind::VarGet
                    if self.handle(e.out).is_ok_and(|t| t.0.origin.is_taped())
                        && !leaves.contains(&(e.var, Val(e.out))) =>
                {
                    leaves.push((e.var, Val(e.out)));
                }
                _ => {}
            }
        }
        (entries, leaves)
    }

    /// The oracle of debug builds for "a gradient is one event": the rules run again and must give the
    /// `count` events after the one at `head` of the present path.
    pub fn verify_gradients(&mut self, head: usize, count: usize) -> Result<()> {
        let first = self.tree.paths[self.path as usize].base_event + head as u32;
        let event = self.event(first);
        let (output, seed) = (event.operands[0], event.operands.get(1).map(|&v| Val(v)));
        let (entries, leaves) = self.tape(first);
        let wanted = match &self.event(first).extra {
            Some(x) if event.kind == Kind::Grad => wanted(&x.wants, &leaves),
            _ => leaves,
        };
        let values: Vec<Val> = wanted.iter().map(|w| w.1).collect();
        let mut cx = Oracle { session: self, next: first + 1, end: first + 1 + count as u32 };
        let grads = tape::differentiate(&mut cx, &entries, Val(output), seed, &values)?;
        tape::sum_by_target(&mut cx, &wanted, &grads)?;
        if cx.next != cx.end {
            return Err(Error::bug("trace", "a replayed gradient has more events than its rules give"));
        }
        Ok(())
    }

    /// The values through which a gradient of `output` flows. A value that has a tape or is of a `Var` outside the step is
    /// refused, unless it is itself in `wrt`.
    fn reach(&self, entries: &[Entry], leaves: &[(u32, Val)], output: ValId, wrt: &[Wrt<'_>]) -> Result<Reach> {
        let mut reached = vec![false; self.ptrs.len()];
        reached[output as usize] = true;
        for e in entries.iter().rev() {
            let flows = e.op.carries_gradient() && self.handle(e.result.0).is_ok_and(|t| t.dtype().is_float());
            if flows && reached[e.result.0 as usize] {
                e.operands.iter().for_each(|o| reached[o.0 as usize] = true);
            }
        }
        let mut stopped = None;
        let is_leaf = |v: usize| leaves.iter().any(|l| l.1.0 as usize == v);
        for (v, _) in reached.iter().enumerate().filter(|&(v, &r)| r && !is_leaf(v)) {
            let Def::External { held, .. } = self.def(v as u32) else { continue };
            let t = &self.held[held as usize];
            if Tape::of(t) != Tape::Outside {
                continue;
            }
            if !wrt.iter().any(|w| matches!(w, Wrt::Tensor(w) if w.same(t))) {
                return Err(tape::outside(t));
            }
            let alone = match t.0.origin {
                Origin::Leaf { var, .. } => !wrt.iter().any(|w| matches!(w, Wrt::Var(w) if w.id() == var)),
                _ => false,
            };
            if !alone {
                stopped = Some(t.clone());
            }
        }
        Ok(Reach { reached, stopped })
    }
}

/// Where a gradient flows.
struct Reach {
    /// By value id.
    reached: Vec<bool>,
    /// A value from outside with a tape of its own.
    stopped: Option<Tensor>,
}

impl Reach {
    fn contains(&self, v: ValId) -> bool {
        self.reached.get(v as usize).copied().unwrap_or(false)
    }
}

/// The values behind `wants`, with the positions they are wanted at.
fn wanted(wants: &[Want], leaves: &[(u32, Val)]) -> Vec<(u32, Val)> {
    let mut out = Vec::new();
    for (k, want) in wants.iter().enumerate() {
        match *want {
            Want::Value(v) => out.push((k as u32, Val(v))),
            Want::Var(slot) => out.extend(leaves.iter().filter(|l| l.0 == slot).map(|l| (k as u32, l.1))),
            Want::Unknown => {}
        }
    }
    out
}

/// Emits gradient ops as events of the session; values are the session's ids.
struct Inner<'a> {
    session: &'a mut Session,
    device: Device,
    graph: bool,
}

impl Emit for Inner<'_> {
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        debug_assert!(self.session.mode == Mode::Record);
        let ids: SmallVec<[ValId; 3]> = operands.iter().map(|v| v.0).collect();
        self.session.materialize(&ids)?;
        let handles: SmallVec<[Tensor; 3]> =
            ids.iter().map(|&v| self.session.handle(v).cloned()).collect::<Result<_>>()?;
        let refs: SmallVec<[&Tensor; 3]> = handles.iter().collect();
        let op = self.session.resolve_scalars(&op);
        let role = Role::Gradient { graph: self.graph };
        let t = self.session.record_op_at(&op, &refs, &self.device, Loc::caller(), role)?;
        self.session.ids.get(&t.addr()).map(|&v| Val(v)).ok_or_else(|| Error::bug("trace", "a value without an id"))
    }

    fn ty(&self, v: Val) -> Type {
        self.session
            .handle(v.0)
            .map(|t| t.ty())
            .unwrap_or(Type::new(crate::base::DType::F32, crate::base::Shape::SCALAR))
    }
}

/// Compares gradient ops with the events recorded for them.
struct Oracle<'a> {
    session: &'a Session,
    next: u32,
    end: u32,
}

impl Emit for Oracle<'_> {
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        if self.next == self.end {
            return Err(Error::bug("trace", "a replayed gradient has fewer events than its rules give"));
        }
        let e = self.session.event(self.next);
        // Where scalars come from; and the library's own are the same at every call.
        let same_scalar = |(a, b): (&Scalar, &Scalar)| {
            a.origin == b.origin && (a.origin != scalar::Origin::Constant || a.bits == b.cast(a.dtype).bits)
        };
        let (known, given) = (e.op.rules().scalars(), op.rules().scalars());
        let same = e.inner
            && e.op.same_structure(&op)
            && e.operands.iter().copied().eq(operands.iter().map(|v| v.0))
            && known.len() == given.len()
            && known.iter().zip(&given).all(same_scalar);
        if !same {
            let detail =
                format!("a replayed gradient: recorded {:?}{:?}, the rules give {op:?}{operands:?}", e.op, e.operands);
            return Err(Error::bug("trace", detail));
        }
        self.next += 1;
        Ok(Val(e.out))
    }

    fn ty(&self, v: Val) -> Type {
        self.session
            .handle(v.0)
            .map(|t| t.ty())
            .unwrap_or(Type::new(crate::base::DType::F32, crate::base::Shape::SCALAR))
    }
}

impl Session {
    /// The op with the present call's values of its parameters.
    pub fn resolve_scalars(&self, op: &Op) -> Op {
        let scalars = op.rules().scalars();
        if scalars.is_empty() {
            return *op;
        }
        let now: SmallVec<[Scalar; 2]> = scalars
            .iter()
            .map(|s| match s.origin {
                scalar::Origin::Param(k) => Scalar { bits: self.params[k as usize], ..*s },
                _ => *s,
            })
            .collect();
        op.rules().with_scalars(&now)
    }
}
