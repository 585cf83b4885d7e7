//! One call of a step: what is open on the thread while the closure runs.
//!
//! Value ids number the values of a path in order of first appearance. `ptrs[v]` is the address
//! of the handle that stands for value `v` in this call; an operand matches when its address is that of
//! the id the event names. Addresses are only compared, never followed; the handles behind them are
//! alive, held by `held` or by an event's template.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::base::{Error, Loc, Result};
use crate::op::Op;
use crate::op::elementwise::{Elementwise, arith::DETACH};
use crate::pass;
use crate::tensor::autograd::{self, Request};
use crate::tensor::eager::Flag;
use crate::tensor::recorder::Recorder;
use crate::tensor::tape::{self, GradTable, Gradients, next_order};
use crate::tensor::{At, Device, Origin, Rng, Tensor, Var, eager};
use crate::trace::freeze::CallRecord;
use crate::trace::launch::Scratch;
use crate::trace::stats::{Last, Stats};
use crate::trace::storm::Storm;
use crate::trace::tree::{Def, Event, PathId, Tree, ValId};

/// What happens to the closure's ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// They are compared with a recorded path.
    Shadow,
    /// They run eagerly and are written down.
    Record,
    /// They run eagerly, as without a step: the paths of late did not repeat.
    Eager,
}

/// A `Var` of the call.
pub(crate) struct VarBinding {
    pub var: Var,
    /// The value `get` gives, if it was read since the last write.
    pub current: Option<ValId>,
    /// The last value written in this call, or the one read before its trainable flag changed.
    pub written: Option<ValId>,
    /// Written in the current segment: not committed yet.
    pub dirty: bool,
}

/// The state of a step, and of its open call.
pub(crate) struct Session {
    pub tree: Tree,
    /// The step's identity, on the handles it promised.
    pub stamp: u64,
    pub options: pass::Options,
    /// Every launch is compared with the interpreter.
    pub verify: bool,
    /// Paths and plans kept at most.
    pub plan_cache: usize,
    pub device: Option<Device>,
    pub stats: Stats,
    pub storm: Storm,
    /// Plans in the tree.
    pub plans: usize,

    // Of the open call.
    pub mode: Mode,
    pub path: PathId,
    /// Next event of `path`.
    pub cursor: usize,
    /// Paths left, root first, with the position they were left at.
    pub trail: Vec<(PathId, u32)>,
    pub ptrs: Vec<usize>,
    pub held: Vec<Tensor>,
    /// Addresses of `held`, when these are many.
    bound: FxHashSet<usize>,
    pub params: Vec<u64>,
    pub vars: Vec<VarBinding>,
    pub slots: FxHashMap<u64, u32>,
    /// Ids by address, kept while recording.
    pub ids: FxHashMap<usize, ValId>,
    /// First event of the current segment, counted from the root.
    pub seg_base: u32,
    /// Draws of the call: (parameter of the counter, stream).
    pub draws: Vec<(u32, Rng)>,
    pub pending_draw: Option<Rng>,
    /// The `backward` events of the call: path and position.
    pub backwards: Vec<(PathId, u32)>,
    /// An index was out of range: told at the segment's end.
    pub flagged: Option<Error>,
    /// Ops of this segment of which the device has not told yet whether an index was out of range.
    pub unsettled: Vec<Flag>,
    pub last: Last,
    /// The last two calls, for `freeze`.
    pub records: [Option<Box<CallRecord>>; 2],
    pub scratch: Scratch,
    /// Kept from segment to segment for its memory.
    pub survivors: Vec<ValId>,
    /// Eager mode: ops from this number on are the call's.
    pub since: u64,
    /// Compiled segments launched by this call.
    pub launched: Vec<Arc<crate::trace::segment::SegmentPlan>>,
}

/// So many addresses are found faster by looking at each.
const FEW: usize = 12;

static NEXT_STAMP: AtomicU64 = AtomicU64::new(1);

impl Session {
    pub fn new(options: pass::Options, plan_cache: usize, verify: bool) -> Session {
        Session {
            tree: Tree::new(),
            stamp: NEXT_STAMP.fetch_add(1, Relaxed),
            options,
            verify,
            plan_cache,
            device: None,
            stats: Stats::default(),
            storm: Storm::default(),
            plans: 0,
            mode: Mode::Record,
            path: 0,
            cursor: 0,
            trail: Vec::new(),
            ptrs: Vec::new(),
            held: Vec::new(),
            bound: FxHashSet::default(),
            params: Vec::new(),
            vars: Vec::new(),
            slots: FxHashMap::default(),
            ids: FxHashMap::default(),
            seg_base: 0,
            draws: Vec::new(),
            pending_draw: None,
            backwards: Vec::new(),
            flagged: None,
            unsettled: Vec::new(),
            last: Last::default(),
            records: [None, None],
            scratch: Scratch::default(),
            survivors: Vec::new(),
            since: 0,
            launched: Vec::new(),
        }
    }

    /// Starts a call.
    pub fn begin(&mut self) {
        let fresh = self.tree.paths[0].events.is_empty() && self.tree.paths[0].children.is_empty();
        self.mode = if fresh { Mode::Record } else { Mode::Shadow };
        self.path = 0;
        self.cursor = 0;
        self.seg_base = 0;
        self.last = Last::default();
        self.stats.calls += 1;
        if self.storm.active() {
            self.mode = Mode::Eager;
            self.since = next_order();
            self.stats.eager += 1;
        } else if fresh {
            self.stats.recorded += 1;
        }
    }

    /// Keeps what an op run in this segment tells besides its result, for the segment's end.
    pub fn note_flag(&mut self, flag: Option<Flag>, loc: Loc) {
        match flag {
            Some(Flag { error, ticket: None }) => drop(self.flagged.get_or_insert(error.at(loc))),
            Some(later) => self.unsettled.push(later.at(loc)),
            None => {}
        }
    }

    /// Before writes are committed: whether an index was out of range, waiting for the device if it must tell.
    pub fn take_flagged(&mut self) -> Result<()> {
        if let Some(device) = self.device.as_ref().filter(|_| !self.unsettled.is_empty()) {
            let told = device.settled(std::mem::take(&mut self.unsettled))?;
            self.flagged = self.flagged.take().or(told);
        }
        self.flagged.take().map_or(Ok(()), Err)
    }

    /// Ends a call whose closure returned: launches or commits what is pending.
    pub fn close(&mut self) -> Result<()> {
        let result = match self.mode {
            Mode::Shadow => self.close_shadow(),
            Mode::Record => self.close_record(),
            Mode::Eager => {
                if self.storm.eager_ended() {
                    tracing::info!(target: "stepgraph::trace", "a path was met again: tracing goes on");
                }
                self.records = [None, None];
                self.stats.last = self.last;
                // An index out of range is told at the step's end, as when it is traced.
                return self.device.as_ref().map_or(Ok(()), |d| d.take_flag());
            }
        };
        self.settle_gradients();
        if result.is_ok() {
            self.remember();
        } else {
            self.records = [None, None];
        }
        if let Some(calls) = self.storm.ended(self.mode == Mode::Record) {
            let loc = self.stats.divergences.entries.last().map_or(Loc::NONE, |e| e.0);
            self.stats.storms.add(loc, || {
                format!(
                    "paths do not repeat: most of the last calls were new ones, they part here; running eagerly for {calls} calls. Give tensors that change shape a few fixed shapes, or take what varies out of the step"
                )
            });
            tracing::warn!(target: "stepgraph::trace", at = %loc, calls, "paths do not repeat: running eagerly");
        }
        self.evict();
        self.reset();
        result
    }

    /// Ends a call whose closure panicked: effects so far are kept, as eager code would have it.
    pub fn abort(&mut self) {
        self.records = [None, None];
        if self.mode == Mode::Eager {
            self.storm.eager_ended();
            self.stats.last = self.last;
            return;
        }
        let result = if self.mode == Mode::Shadow { self.catch_up() } else { Ok(()) };
        if let Err(e) = &result {
            self.fail_promised(e);
        }
        if let Err(e) = result.and_then(|()| self.commit_writes()) {
            tracing::error!("closing a step after a panic: {e}");
        }
        self.settle_gradients();
        self.reset();
    }

    /// The handles of gradients, by `Var` id.
    fn by_var(&self, grads: &[(u32, ValId)]) -> Vec<(u64, Tensor)> {
        let pair =
            |&(slot, v): &(u32, ValId)| Some((self.vars.get(slot as usize)?.var.id(), self.handle(v).ok()?.clone()));
        grads.iter().filter_map(pair).collect()
    }

    /// Fills the tables of `Gradients` that outlive the call.
    fn settle_gradients(&self) {
        for &(path, at) in &self.backwards {
            let Some(x) = &self.tree.paths[path as usize].events[at as usize].extra else { continue };
            let Some(table) = x.table.as_ref().filter(|t| Arc::strong_count(t) > 1) else { continue };
            let _ = table.entries.set(GradTable::sorted(self.by_var(&x.grads)));
        }
    }

    /// Marks what was promised in this call and is not there: a later call must not promise the same handles again.
    fn fail_promised(&self, error: &Error) {
        for ordinal in 0..self.ordinal() {
            if let Some(t) = &self.event(ordinal).template {
                let _ = t.0.state.set(Err(error.clone()));
            }
        }
    }

    /// Clears the call's state and replaces the templates it used up.
    fn reset(&mut self) {
        let stamp = self.stamp;
        let mut trail = std::mem::take(&mut self.trail);
        trail.push((self.path, self.tree.paths[self.path as usize].events.len() as u32));
        for &(path, upto) in &trail {
            self.tree.paths[path as usize].used = self.stats.calls;
            for e in &mut self.tree.paths[path as usize].events[..upto as usize] {
                if let Some(t) = &mut e.template
                    && t.0.state.get().is_some()
                {
                    t.0.stamp.store(0, Relaxed);
                    let origin = Origin::Step { taped: t.0.origin.is_taped() };
                    *t = Tensor::pending(t.ty(), t.device().clone(), stamp, origin, e.loc);
                }
                if let Some(x) = &mut e.extra
                    && x.table.as_ref().is_some_and(|t| Arc::strong_count(t) > 1 || t.entries.get().is_some())
                {
                    x.table = None;
                }
            }
        }
        trail.clear();
        self.trail = trail;
        self.ptrs.clear();
        self.held.clear();
        if !self.bound.is_empty() {
            self.bound.clear();
        }
        self.params.clear();
        self.vars.clear();
        self.slots.clear();
        self.ids.clear();
        self.draws.clear();
        self.launched.clear();
        self.backwards.clear();
        self.pending_draw = None;
        self.flagged = None;
        self.unsettled.clear();
        self.stats.last = self.last;
    }

    // ---- places in the tree ----

    /// The next event's number, counted from the root.
    pub fn ordinal(&self) -> u32 {
        self.tree.paths[self.path as usize].base_event + self.cursor as u32
    }

    /// Path and position of the event with this number on the present trail.
    pub fn locate(&self, ordinal: u32) -> (PathId, usize) {
        let mut path = self.path;
        if ordinal < self.tree.paths[path as usize].base_event {
            path = self
                .trail
                .iter()
                .rev()
                .map(|&(p, _)| p)
                .find(|&p| self.tree.paths[p as usize].base_event <= ordinal)
                .unwrap_or(0);
        }
        (path, (ordinal - self.tree.paths[path as usize].base_event) as usize)
    }

    pub fn event(&self, ordinal: u32) -> &Event {
        let (path, at) = self.locate(ordinal);
        &self.tree.paths[path as usize].events[at]
    }

    /// How value `v` comes to be.
    pub fn def(&self, v: ValId) -> Def {
        let mut path = self.path;
        if v < self.tree.paths[path as usize].base_value {
            path = self
                .trail
                .iter()
                .rev()
                .map(|&(p, _)| p)
                .find(|&p| self.tree.paths[p as usize].base_value <= v)
                .unwrap_or(0);
        }
        let p = &self.tree.paths[path as usize];
        p.defs[(v - p.base_value) as usize]
    }

    /// The handle that stands for value `v`.
    pub fn handle(&self, v: ValId) -> Result<&Tensor> {
        match self.def(v) {
            Def::External { held, .. } | Def::Snapshot { held, .. } => Ok(&self.held[held as usize]),
            Def::Made { event } | Def::Leaf { event, .. } => self
                .event(event)
                .template
                .as_ref()
                .ok_or_else(|| Error::bug("trace", format!("event {event} has no template"))),
        }
    }

    /// dtype of each host scalar on the present trail.
    pub fn param_dtypes(&self) -> Vec<crate::base::DType> {
        let mut out = Vec::with_capacity(self.params.len());
        for &(p, _) in self.trail.iter().chain(std::iter::once(&(self.path, 0))) {
            let path = &self.tree.paths[p as usize];
            out.truncate(path.base_param as usize);
            out.extend_from_slice(&path.params);
        }
        out.truncate(self.params.len());
        out
    }

    /// The slot of `var` in this call, if it was met.
    pub fn slot(&self, var: &Var) -> Option<u32> {
        let hint = var.hint();
        if self.vars.get(hint as usize).is_some_and(|b| b.var.same(var)) {
            return Some(hint);
        }
        self.slots.get(&var.id()).copied()
    }

    /// Keeps a handle from outside for the call.
    pub fn keep(&mut self, t: &Tensor) {
        self.held.push(t.clone());
        if self.held.len() > FEW + 1 {
            self.bound.insert(t.addr());
        } else if self.held.len() > FEW {
            self.bound.extend(self.held.iter().map(|t| t.addr()));
        }
    }

    /// Whether a handle from outside is one of those kept.
    pub fn is_bound(&self, addr: usize) -> bool {
        if self.held.len() > FEW { self.bound.contains(&addr) } else { self.held.iter().any(|t| t.addr() == addr) }
    }

    /// Enters `var` into the call's table.
    pub fn bind_var(&mut self, var: &Var) -> u32 {
        let slot = self.vars.len() as u32;
        var.set_hint(slot);
        self.slots.insert(var.id(), slot);
        self.vars.push(VarBinding { var: var.clone(), current: None, written: None, dirty: false });
        slot
    }

    /// Whether ops on `device` belong to the step: one device per step, the first op's.
    pub fn on_device(&mut self, device: &Device) -> bool {
        self.device.get_or_insert_with(|| device.clone()) == device
    }
}

impl Recorder for Session {
    #[inline]
    fn op(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor> {
        if self.mode == Mode::Shadow {
            if let Some(t) = self.shadow_op(op, operands, device) {
                return Ok(t);
            }
            return self.shadow_op_slow(op, operands, device, at);
        }
        if self.mode == Mode::Eager {
            self.storm.op(op, operands.iter().map(|t| t.ty()));
            self.last.ops += 1;
            self.last.events += 1;
            return eager::op(op, operands, device, Loc::resolve(at));
        }
        if !self.on_device(device) {
            return self.foreign_op(op, operands, device, at);
        }
        self.record_op(op, operands, device, at)
    }

    fn var_get(&mut self, var: &Var, at: At) -> Tensor {
        if self.mode != Mode::Eager && !self.on_device(var.device()) {
            self.note_foreign("read of a Var", var.device(), Loc::resolve(at));
            return var.load();
        }
        let result = match self.mode {
            Mode::Shadow => self.shadow_get(var, at),
            Mode::Record => self.record_get(var, at),
            Mode::Eager => {
                self.storm.event(1, var.ty());
                self.last.events += 1;
                Ok(var.load())
            }
        };
        result.unwrap_or_else(|e| {
            // `get` cannot fail: the handle carries the error to whoever uses it.
            let device = var.device().clone();
            let origin = Origin::Step { taped: var.is_trainable() };
            let t = Tensor::pending(var.ty(), device, 0, origin, Loc::resolve(at));
            let _ = t.0.state.set(Err(e));
            t
        })
    }

    fn var_set(&mut self, var: &Var, value: &Tensor, at: At) -> Result<()> {
        value.check_owner(self.stamp).map_err(|e| e.at(Loc::resolve(at)))?;
        if self.mode != Mode::Eager && !self.on_device(var.device()) {
            self.note_foreign("write of a Var", var.device(), Loc::resolve(at));
            return var.store(value).map_err(|e| e.at(Loc::resolve(at)));
        }
        match self.mode {
            Mode::Shadow => self.shadow_set(var, value, at),
            Mode::Record => self.record_set(var, value, at),
            Mode::Eager => {
                self.storm.event(2, var.ty());
                self.last.events += 1;
                var.store(value).map_err(|e| e.at(Loc::resolve(at)))
            }
        }
    }

    fn read(&mut self, t: &Tensor, at: At) -> Result<()> {
        match self.mode {
            Mode::Shadow => self.shadow_read(t, at),
            Mode::Record => self.record_read(t, at),
            Mode::Eager => Ok(()),
        }
    }

    fn backward(&mut self, loss: &Tensor, at: At) -> Result<Gradients> {
        loss.check_owner(self.stamp)?;
        match self.mode {
            Mode::Shadow => self.shadow_backward(loss, at),
            Mode::Record => self.record_backward(loss, at),
            Mode::Eager => {
                let (gradients, ops) = tape::eager_backward(loss, self.since)?;
                self.last.ops += ops;
                self.last.events += 1 + ops;
                Ok(gradients)
            }
        }
    }

    fn grad(&mut self, request: &Request<'_>, at: At) -> Result<Vec<Option<Tensor>>> {
        request.output.check_owner(self.stamp)?;
        if self.mode == Mode::Eager {
            let (gradients, ops) = tape::eager_grad(request, self.since)?;
            self.last.ops += ops;
            self.last.events += 1 + ops;
            return Ok(gradients);
        }
        // The upstream gradient becomes a value of the step, like any operand.
        let seed = match request.upstream {
            None => None,
            Some(t) => {
                let _on = autograd::Enabled::set(request.graph);
                let detach = Op::Elementwise(Elementwise::new(&DETACH));
                let op = if request.graph { Op::Cast(t.dtype()) } else { detach };
                Some(self.op(&op, &[t], request.output.device(), at)?)
            }
        };
        match self.mode {
            Mode::Shadow => self.shadow_grad(request, seed.as_ref(), at),
            _ => self.record_grad(request, seed.as_ref(), at),
        }
    }

    fn var_flagged(&mut self, var: &Var) {
        // The next read gives the same value as another leaf.
        if let Some(slot) = self.slot(var)
            && let Some(v) = self.vars[slot as usize].current.take()
        {
            self.vars[slot as usize].written = Some(v);
        }
    }

    fn gradient(&mut self, table: &Arc<GradTable>, var: &Var) -> Option<Tensor> {
        let slot = self.slot(var)?;
        let event = &self.tree.paths[table.event.0 as usize].events[table.event.1 as usize];
        let grads = &event.extra.as_ref()?.grads;
        let (_, v) = grads[grads.binary_search_by_key(&slot, |g| g.0).ok()?];
        self.handle(v).ok().cloned()
    }

    fn gradients(&mut self, table: &Arc<GradTable>) -> Vec<(u64, Tensor)> {
        let event = &self.tree.paths[table.event.0 as usize].events[table.event.1 as usize];
        self.by_var(event.extra.as_ref().map_or(&[], |x| &x.grads))
    }

    fn draw(&mut self, rng: &Rng) {
        self.pending_draw = Some(rng.clone());
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Session {
    fn note_foreign(&mut self, what: &str, device: &Device, loc: Loc) {
        let own = self.device.as_ref().map_or("none", |d| d.name());
        let text =
            || format!("{what} on {}, not on the step's device {own}: done at once, outside the trace", device.name());
        self.stats.copies.add(loc, text);
    }

    /// An op on another device than the step's: runs eagerly in its place, its result is a new input.
    pub fn foreign_op(&mut self, op: &Op, operands: &[&Tensor], device: &Device, at: At) -> Result<Tensor> {
        let loc = Loc::resolve(at);
        for t in operands {
            t.check_owner(self.stamp).map_err(|e| e.at(loc))?;
        }
        self.note_foreign(op.rules().name(), device, loc);
        let prepared = eager::prepare(op, operands, device).map_err(|e| e.at(loc))?;
        let (ready, flag) = eager::compute(&prepared, operands, device).map_err(|e| e.at(loc))?;
        if let Some(f) = flag {
            device.flag(f.at(loc));
        }
        let origin = Origin::HostData { stamp: self.stamp };
        Ok(Tensor::ready(prepared.ty, device.clone(), ready, origin, loc))
    }
}
