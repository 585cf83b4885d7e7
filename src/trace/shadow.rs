//! Shadow: events compared with a recorded path; nothing runs.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result, scalar};
use crate::op::Op;
use crate::tensor::autograd::{self, Request, Wrt};
use crate::tensor::tape::{GradTable, Gradients, no_tape};
use crate::tensor::{At, Device, Tensor, Var, eager};
use crate::trace::session::{Mode, Session};
use crate::trace::tree::{Def, Event, ExternalGuard, Kind, NONE, Path, PathId, Tape, ValId, VarGuard, Want};

/// Appends the op's host scalars, each in the dtype that the event's parameter has. Fixed numbers are no parameters.
#[inline]
fn collect(op: &Op, event: &Event, params: &mut Vec<u64>) {
    match (op, &event.op) {
        (Op::Elementwise(given), Op::Elementwise(known)) => {
            if let (Some((_, g)), Some((_, k))) = (given.scalar, known.scalar)
                && g.origin == scalar::Origin::Host
            {
                params.push(g.cast(k.dtype).bits);
            }
        }
        (Op::Full { value, .. }, _) if value.origin == scalar::Origin::Host => params.push(value.bits),
        (Op::Custom(c), _) => {
            params.extend(c.given().iter().filter(|s| s.origin == scalar::Origin::Host).map(|s| s.bits));
        }
        (Op::Random { seed, counter, .. }, _) => params.extend([seed.bits, counter.bits]),
        (Op::Slice { start, .. } | Op::Unslice { start, .. }, _) if start.origin == scalar::Origin::Host => {
            params.push(start.bits);
        }
        _ => {}
    }
}

/// A host number that the op would refuse must not match: the slow path tells the user.
#[inline]
fn scalar_fits(op: &Op, event: &Event) -> bool {
    match (op, &event.op) {
        (Op::Elementwise(given), Op::Elementwise(known)) => match (given.scalar, known.scalar) {
            (Some((_, g)), Some((_, k))) => k.dtype.is_float() || g.fits(k.dtype),
            _ => true,
        },
        _ => true,
    }
}

impl Session {
    /// The hot path: the next event is this op on these promised handles.
    #[inline]
    pub fn shadow_op(&mut self, op: &Op, operands: &[&Tensor], device: &Device) -> Option<Tensor> {
        let e = self.tree.paths[self.path as usize].events.get(self.cursor)?;
        if e.kind != Kind::Op
            || e.constant == autograd::is_enabled()
            || !op.same_structure(&e.op)
            || e.operands.len() != operands.len()
        {
            return None;
        }
        for (t, &v) in operands.iter().zip(&e.operands) {
            if self.ptrs.get(v as usize) != Some(&t.addr()) {
                return None;
            }
        }
        // An op without operands says its device itself.
        if !scalar_fits(op, e) || (operands.is_empty() && self.device.as_ref() != Some(device)) {
            return None;
        }
        self.answer(op)
    }

    /// The promised handle of the event at the cursor, which is `op`: its scalars are collected, the event is passed.
    #[inline]
    fn answer(&mut self, op: &Op) -> Option<Tensor> {
        let e = &self.tree.paths[self.path as usize].events[self.cursor];
        let t = e.template.as_ref()?.clone();
        collect(op, e, &mut self.params);
        self.ptrs.push(t.addr());
        self.cursor += 1;
        if matches!(op, Op::Random { .. }) {
            self.note_draw();
        }
        Some(t)
    }

    /// Ties the pending draw to the counter parameter just collected.
    pub fn note_draw(&mut self) {
        if let Some(rng) = self.pending_draw.take() {
            self.draws.push((self.params.len() as u32 - 1, rng));
        }
    }

    /// First touches and branches; else the op is none that was recorded here.
    #[inline(never)]
    pub fn shadow_op_slow(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor> {
        if self.enter(|s, path, at| s.match_op(path, at, op, operands, device))
            && let Some(t) = self.answer(op)
        {
            return Ok(t);
        }
        self.unmatched_op(op, operands, device, at)
    }

    #[cold]
    fn unmatched_op(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor> {
        let loc = Loc::resolve(at);
        for t in operands {
            t.check_owner(self.stamp).map_err(|e| e.at(loc))?;
        }
        if !self.on_device(device) {
            return self.foreign_op(op, operands, device, at);
        }
        // An op that fails leaves no event.
        eager::prepare(op, operands, device).map_err(|e| e.at(loc))?;
        self.diverge(loc, || describe(op, operands))?;
        self.record_op(op, operands, device, at)
    }

    /// Looks for the present event at the cursor and among the branches there; on a match the session
    /// stands on it (`path`, `cursor`), bindings made.
    pub fn enter(&mut self, mut matches: impl FnMut(&mut Session, PathId, usize) -> bool) -> bool {
        let (path, at) = (self.path, self.cursor);
        if at < self.tree.paths[path as usize].events.len() && matches(self, path, at) {
            return true;
        }
        for i in 0..self.tree.paths[path as usize].children.len() {
            let (pos, child) = self.tree.paths[path as usize].children[i];
            if pos as usize == at && !self.tree.paths[child as usize].events.is_empty() && matches(self, child, 0) {
                self.trail.push((path, at as u32));
                self.path = child;
                self.cursor = 0;
                return true;
            }
        }
        false
    }

    /// Whether the event is this op, binding externals met here for the first time.
    fn match_op(&mut self, path: PathId, at: usize, op: &Op, operands: &[&Tensor], device: &Device) -> bool {
        let p = &self.tree.paths[path as usize];
        let e = &p.events[at];
        if e.kind != Kind::Op
            || e.constant == autograd::is_enabled()
            || !op.same_structure(&e.op)
            || e.operands.len() != operands.len()
            || !scalar_fits(op, e)
            // An op without operands says its device itself.
            || (operands.is_empty() && self.device.as_ref() != Some(device))
        {
            return false;
        }
        let known = self.ptrs.len() as u32;
        let mut new: SmallVec<[&Tensor; 3]> = SmallVec::new();
        for (&t, &v) in operands.iter().zip(&e.operands) {
            let matched = if v < known {
                self.ptrs[v as usize] == t.addr()
            } else if let Some(bound) = new.get((v - known) as usize) {
                bound.addr() == t.addr()
            } else if v == known + new.len() as u32 && self.fits(p, v, t, &new) {
                new.push(t);
                true
            } else {
                false
            };
            if !matched {
                return false;
            }
        }
        for t in new {
            self.hold(t);
        }
        true
    }

    /// Whether `t` may be bound to the external `v` of path `p` here: guards, and distinct from all others.
    fn fits(&self, p: &Path, v: ValId, t: &Tensor, new: &[&Tensor]) -> bool {
        let def = v.checked_sub(p.base_value).and_then(|i| p.defs.get(i as usize));
        let Some(&Def::External { guard, .. }) = def else { return false };
        let ExternalGuard { ty, layout, tape } = &p.externals[guard as usize];
        // Neither promised by this step nor owned by another thread's open one.
        t.0.stamp.load(std::sync::atomic::Ordering::Relaxed) == 0
            && t.0.ty == *ty
            && self.device.as_ref() == Some(t.device())
            && matches!(t.0.state.get(), Some(Ok(r)) if r.layout.same_strides(layout))
            && Tape::of(t) == *tape
            && !self.is_bound(t.addr())
            && new.iter().all(|o| o.addr() != t.addr())
    }

    /// Gives `t` the next value id, and keeps it alive.
    pub fn hold(&mut self, t: &Tensor) {
        self.ptrs.push(t.addr());
        self.keep(t);
    }

    pub fn shadow_get(&mut self, var: &Var, at: At) -> Result<Tensor> {
        if let Some(slot) = self.slot(var)
            && let Some(v) = self.vars[slot as usize].current
        {
            return self.again(v).map_err(|e| e.at(Loc::resolve(at)));
        }
        if self.enter(|s, path, at| s.match_get(path, at, var)) {
            let e = &self.tree.paths[self.path as usize].events[self.cursor];
            let (slot, out) = (e.var as usize, e.out);
            if let Some(t) = &e.template {
                self.ptrs.push(t.addr());
            }
            self.cursor += 1;
            self.vars[slot].current = Some(out);
            return self.handle(out).cloned();
        }
        self.diverge(Loc::resolve(at), || format!("read of a Var {}", var.ty()))?;
        self.record_get(var, at)
    }

    /// The handle of a value that `get` gave before. Perhaps only the `Var` knew it when its segment ended, or when
    /// the paths parted: then it is computed now.
    #[inline]
    pub fn again(&mut self, v: ValId) -> Result<Tensor> {
        if self.handle(v)?.0.state.get().is_none() && (self.mode == Mode::Record || self.made_before_segment(v)) {
            self.materialize(&[v])?;
        }
        self.handle(v).cloned()
    }

    /// Whether the event is a `get` of `var`; binds its first snapshot.
    fn match_get(&mut self, path: PathId, at: usize, var: &Var) -> bool {
        let p = &self.tree.paths[path as usize];
        let e = &p.events[at];
        if e.kind != Kind::VarGet {
            return false;
        }
        let (e_var, e_out, is_leaf) = (e.var, e.out, e.template.is_some());
        match self.slot(var) {
            // Read after a write in this call, or after its flag changed.
            Some(slot) => {
                let taped = e.template.as_ref().is_some_and(|t| t.0.origin.is_taped());
                slot == e_var && is_leaf && taped == var.is_trainable()
            }
            None => {
                if is_leaf || e_var as usize != self.vars.len() || !self.var_fits(path, e_var, var) {
                    return false;
                }
                let value = var.lock().clone();
                let known = self.ptrs.len() as u32;
                let same = if e_out < known {
                    // Its value is an operand already: an alias.
                    self.ptrs[e_out as usize] == value.addr()
                } else {
                    let def = e_out.checked_sub(p.base_value).and_then(|i| p.defs.get(i as usize));
                    let Some(&Def::Snapshot { guard, .. }) = def else { return false };
                    let layout = &p.snapshots[guard as usize];
                    e_out == known
                        && !self.is_bound(value.addr())
                        && matches!(value.0.state.get(), Some(Ok(r)) if r.layout.same_strides(layout))
                };
                if same {
                    self.bind_var(var);
                    if e_out == known {
                        self.hold(&value);
                    }
                }
                same
            }
        }
    }

    fn var_fits(&self, path: PathId, slot: u32, var: &Var) -> bool {
        let p = &self.tree.paths[path as usize];
        let guard = VarGuard { ty: var.ty(), trainable: var.is_trainable() };
        self.device.as_ref() == Some(var.device())
            && p.vars.get((slot - p.base_var) as usize).is_some_and(|g| *g == guard)
    }

    pub fn shadow_set(&mut self, var: &Var, value: &Tensor, at: At) -> Result<()> {
        if self.enter(|s, path, at| s.match_set(path, at, var, value)) {
            let e = &self.tree.paths[self.path as usize].events[self.cursor];
            let (slot, v) = (e.var as usize, e.operands[0]);
            self.cursor += 1;
            let b = &mut self.vars[slot];
            (b.current, b.written, b.dirty) = (None, Some(v), true);
            return Ok(());
        }
        self.diverge(Loc::resolve(at), || format!("write of a Var {}", var.ty()))?;
        self.record_set(var, value, at)
    }

    fn match_set(&mut self, path: PathId, at: usize, var: &Var, value: &Tensor) -> bool {
        let p = &self.tree.paths[path as usize];
        let e = &p.events[at];
        if e.kind != Kind::VarSet {
            return false;
        }
        let (e_var, v) = (e.var, e.operands[0]);
        let known = self.ptrs.len() as u32;
        let bind = v == known && self.fits(p, v, value, &[]);
        if !bind && self.ptrs.get(v as usize) != Some(&value.addr()) {
            return false;
        }
        match self.slot(var) {
            Some(slot) if slot == e_var => {}
            None if e_var as usize == self.vars.len() && self.var_fits(path, e_var, var) => {
                self.bind_var(var);
            }
            _ => return false,
        }
        if bind {
            self.hold(value);
        }
        true
    }

    pub fn shadow_read(&mut self, t: &Tensor, at: At) -> Result<()> {
        if t.0.state.get().is_some() {
            return Ok(());
        }
        let addr = t.addr();
        let entered = self.enter(|s, path, at| {
            let e = &s.tree.paths[path as usize].events[at];
            e.kind == Kind::Read && s.ptrs.get(e.operands[0] as usize) == Some(&addr)
        });
        if entered {
            let loc = Loc::resolve(at);
            self.stats.reads.add(loc, || format!("host read of {}: ended a segment", t.ty()));
            let result = self.launch_segment(false);
            // Also when it failed: the event has happened.
            self.cursor += 1;
            self.seg_base = self.ordinal();
            return result;
        }
        let Some(v) = self.ptrs.iter().position(|&p| p == addr) else {
            return Ok(());
        };
        if self.made_before_segment(v as u32) {
            return self.materialize(&[v as u32]);
        }
        self.diverge(Loc::resolve(at), || format!("host read of {}", t.ty()))?;
        self.record_read(t, at)
    }

    /// Whether the value was made in an earlier segment of this call.
    pub fn made_before_segment(&self, v: u32) -> bool {
        match self.def(v) {
            Def::Made { event } | Def::Leaf { event, .. } => event < self.seg_base,
            _ => true,
        }
    }

    pub fn shadow_backward(&mut self, loss: &Tensor, at: At) -> Result<Gradients> {
        let addr = loss.addr();
        let entered = self.enter(|s, path, at| {
            let e = &s.tree.paths[path as usize].events[at];
            e.kind == Kind::Backward && s.ptrs.get(e.operands[0] as usize) == Some(&addr)
        });
        if !entered {
            if !self.ptrs.contains(&addr)
                && let Some(e) = no_tape(loss)
            {
                return Err(e);
            }
            let _scope = Scope::at(Loc::resolve(at));
            self.diverge(Loc::resolve(at), || "backward".to_string())?;
            return self.record_backward(loss, at);
        }
        let (path, at) = self.pass_gradients()?;
        self.backwards.push((path, at as u32));
        let stamp = self.stamp;
        let Some(extra) = &mut self.tree.paths[path as usize].events[at].extra else { return Err(no_table()) };
        let new = || Arc::new(GradTable { stamp, event: (path, at as u32), entries: std::sync::OnceLock::new() });
        let table = extra.table.get_or_insert_with(new).clone();
        Ok(Gradients(table))
    }

    /// Passes the `Backward` or `Grad` event at the cursor with its gradient ops; where it is.
    ///
    /// The gradient ops are the library's own: with the same prefix they are the same, so one comparison stands for
    /// them all.
    fn pass_gradients(&mut self) -> Result<(PathId, usize)> {
        let (path, at) = (self.path, self.cursor);
        let events = &self.tree.paths[path as usize].events;
        let Some(extra) = &events[at].extra else { return Err(no_table()) };
        let inner = &events[at + 1..][..extra.inner as usize];
        let count = inner.len();
        self.ptrs.extend(inner.iter().filter_map(|e| e.template.as_ref()).map(|t| t.addr()));
        self.cursor += 1 + count;
        if cfg!(debug_assertions) {
            self.verify_gradients(at, count)?;
        }
        Ok((path, at))
    }

    /// `seed`: the upstream gradient as a value of this step.
    pub fn shadow_grad(&mut self, request: &Request<'_>, seed: Option<&Tensor>, at: At) -> Result<Vec<Option<Tensor>>> {
        if self.enter(|s, path, at| s.match_grad(path, at, request, seed)) {
            let (path, at) = self.pass_gradients()?;
            let mut out = vec![None; request.wrt.len()];
            let Some(extra) = &self.tree.paths[path as usize].events[at].extra else { return Err(no_table()) };
            for &(k, v) in &extra.grads {
                out[k as usize] = Some(self.handle(v)?.clone());
            }
            return Ok(out);
        }
        if !self.ptrs.contains(&request.output.addr())
            && let Some(e) = no_tape(request.output)
        {
            return Err(e);
        }
        let _scope = Scope::at(Loc::resolve(at));
        self.diverge(Loc::resolve(at), || "gradients".to_string())?;
        self.record_grad(request, seed, at)
    }

    /// Whether the event differentiates the same value by the same ones.
    fn match_grad(&mut self, path: PathId, at: usize, request: &Request<'_>, seed: Option<&Tensor>) -> bool {
        let e = &self.tree.paths[path as usize].events[at];
        let (Kind::Grad, Some(extra)) = (e.kind, &e.extra) else { return false };
        let is = |v: ValId, t: &Tensor| self.ptrs.get(v as usize) == Some(&t.addr());
        let wants = |(w, want): (&Wrt<'_>, &Want)| match (*w, *want) {
            (Wrt::Tensor(t), Want::Value(v)) => is(v, t),
            (Wrt::Tensor(t), Want::Unknown) => !self.ptrs.contains(&t.addr()),
            (Wrt::Var(v), Want::Var(slot)) => self.slot(v) == Some(slot),
            (Wrt::Var(v), Want::Unknown) => self.slot(v).is_none(),
            _ => false,
        };
        extra.graph == request.graph
            && extra.wants.len() == request.wrt.len()
            && e.operands.len() == 1 + seed.is_some() as usize
            && e.operands.iter().zip([request.output].into_iter().chain(seed)).all(|(&v, t)| is(v, t))
            && request.wrt.iter().zip(&extra.wants).all(wants)
    }

    /// The closure has ended: launches the last segment.
    pub fn close_shadow(&mut self) -> Result<()> {
        let entered = self.enter(|s, path, at| s.tree.paths[path as usize].events[at].kind == Kind::End);
        if !entered {
            // Ended earlier than any call before it: a split of the path.
            self.branch();
            self.push_end();
        }
        self.stats.replayed += 1;
        self.last.events = self.ordinal();
        let result = self.launch_segment(true);
        self.cursor += 1;
        result
    }

    /// Leaves the recorded path: promised values are produced, and recording begins.
    #[cold]
    pub fn diverge(&mut self, loc: Loc, got: impl Fn() -> String) -> Result<()> {
        let expected = match self.tree.paths[self.path as usize].events.get(self.cursor) {
            Some(e) if e.loc == Loc::NONE => describe_event(e),
            Some(e) => format!("{} ({})", describe_event(e), e.loc),
            None => "nothing more".to_string(),
        };
        let reason = || format!("recorded: {expected}; now: {}", got());
        tracing::debug!(target: "stepgraph::trace", at = %loc, "{}", reason());
        self.stats.divergences.add(loc, reason);
        self.catch_up()?;
        // Without memory to catch up, the call stays on its path.
        self.stats.recorded += 1;
        self.branch();
        self.mode = Mode::Record;
        self.ids = self.ptrs.iter().enumerate().map(|(v, &p)| (p, v as u32)).collect();
        Ok(())
    }
}

fn no_table() -> Error {
    Error::bug("trace", "a gradient event without its table")
}

fn describe(op: &Op, operands: &[&Tensor]) -> String {
    let types: Vec<String> = operands.iter().map(|t| t.ty().to_string()).collect();
    format!("{}({})", op.rules().name(), types.join(", "))
}

fn describe_event(e: &Event) -> String {
    match e.kind {
        Kind::Op => {
            let ty = e.template.as_ref().map(|t| t.ty().to_string()).unwrap_or_default();
            format!("{} -> {ty}", e.op.rules().name())
        }
        Kind::VarGet => "read of a Var".to_string(),
        Kind::VarSet => "write of a Var".to_string(),
        Kind::Read => "host read".to_string(),
        Kind::Backward => "backward".to_string(),
        Kind::Grad => "gradients".to_string(),
        Kind::End => "the closure's end".to_string(),
    }
}

/// An event of `kind` that defines nothing yet.
pub(crate) fn blank(kind: Kind, loc: Loc) -> Event {
    Event {
        kind,
        inner: false,
        constant: false,
        op: Op::Matmul,
        operands: SmallVec::new(),
        out: NONE,
        var: 0,
        template: None,
        loc,
        extra: None,
    }
}
