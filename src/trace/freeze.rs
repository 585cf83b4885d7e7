//! Freezing: replaying the last call's launch without running the closure.

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::{Error, ErrorKind, Loc, Result, scalar};
use crate::op::Op;
use crate::tensor::{Device, Origin, Ready, Rng, Tensor, Var, eager, recorder};
use crate::trace::launch::{Scratch, launch_plan};
use crate::trace::reference;
use crate::trace::segment::{PlanInput, SegmentPlan, Source};
use crate::trace::session::{Mode, Session};
use crate::trace::tree::{Def, Kind, ValId};

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;

/// What is remembered of a call, to tell whether the step can be frozen.
#[derive(Default)]
pub(crate) struct CallRecord {
    /// Path and end of the call.
    path: u32,
    at: u32,
    /// It only replayed; else it recorded, here.
    replayed: bool,
    segments: u32,
    plan: Option<Arc<SegmentPlan>>,
    survivors: Vec<ValId>,
    params: Vec<u64>,
    vars: Vec<Var>,
    /// Whether each of `vars` was trainable at the call's end.
    trainable: Vec<bool>,
    draws: Vec<(u32, Rng)>,
    /// The tensors from outside, by their place in the session's list; `None`: none that the plan reads.
    inputs: Vec<Option<Tensor>>,
}

impl CallRecord {
    /// The tensor that the call bound to an input; `None`: a `Var`'s value.
    fn input(&self, i: &PlanInput) -> Option<&Tensor> {
        match (i.source, i.var) {
            (Source::Held(k), None) => self.inputs.get(k as usize)?.as_ref(),
            _ => None,
        }
    }
}

impl Session {
    /// Keeps what `freeze` needs of the call that has just ended.
    pub fn remember(&mut self) {
        let mut r = self.records[0].take().unwrap_or_default();
        self.records.swap(0, 1);
        r.path = self.path;
        r.at = self.cursor as u32;
        r.replayed = self.mode == Mode::Shadow;
        r.segments = self.last.segments;
        r.survivors.clear();
        r.inputs.clear();
        r.plan = self.launched.pop();
        std::mem::swap(&mut r.params, &mut self.params);
        std::mem::swap(&mut r.draws, &mut self.draws);
        r.vars.clear();
        r.vars.extend(self.vars.drain(..).map(|b| b.var));
        r.trainable.clear();
        r.trainable.extend(r.vars.iter().map(Var::is_trainable));
        if let Some(plan) = &r.plan {
            r.survivors.extend(plan.outputs.iter().copied().filter(|&v| {
                // The handle is set and somebody holds it besides the template.
                self.handle(v).is_ok_and(|t| Arc::strong_count(&t.0) > 1)
            }));
            let kept = |(k, t)| plan.kept.get(k).is_some_and(|&k: &bool| k).then_some(t);
            r.inputs.extend(self.held.drain(..).enumerate().map(kept));
        }
        self.records[1] = Some(r);
    }

    /// The last call's launch as a thing of its own, or why it cannot be.
    pub fn freeze(&self) -> Result<Frozen> {
        let refuse = |detail: String| Error::new(ErrorKind::Freeze { detail });
        let (Some(a), Some(b)) = (&self.records[0], &self.records[1]) else {
            return Err(refuse(
                "call the step at least three times first: one records, one compiles, one more must repeat it".into(),
            ));
        };
        if !a.replayed || !b.replayed {
            let why = self
                .stats
                .divergences
                .entries
                .last()
                .map(|(loc, text, _)| format!(" (last divergence at {loc}: {text})"));
            return Err(refuse(format!(
                "the last two calls must both be replays; call the step again{}",
                why.unwrap_or_default()
            )));
        }
        if (a.path, a.at) != (b.path, b.at) {
            let why = self.stats.divergences.entries.last().map(|(loc, ..)| format!(" (they part at {loc})"));
            return Err(refuse(format!("the last two calls took different paths{}", why.unwrap_or_default())));
        }
        if b.segments != 1 {
            let read = self.stats.reads.entries.first().map(|(loc, ..)| format!("{loc}"));
            return Err(refuse(format!(
                "a call has {} segments, since a value is read on the host at {}; move the read after the step",
                b.segments,
                read.unwrap_or_else(|| "an unknown place".into())
            )));
        }
        let (Some(plan), Some(device)) = (&b.plan, &self.device) else {
            return Err(refuse("the step does no tensor work".into()));
        };
        if a.survivors != b.survivors {
            let (old, new) = (&a.survivors, &b.survivors);
            let one = new.iter().find(|v| !old.contains(v)).or_else(|| old.iter().find(|v| !new.contains(v)));
            let at = one.map_or(Loc::NONE, |&v| self.made_at(b.path, v));
            return Err(refuse(format!(
                "only one of the last two calls kept the value made at {at}; keep the same ones at every call"
            )));
        }
        let made_inside = |t: &&Tensor| matches!(t.0.origin, Origin::HostData { stamp } if stamp == self.stamp);
        let mut read = plan.inputs.iter().filter_map(|i| b.input(i));
        if let Some(loc) = read.find(made_inside).map(|t| t.0.made) {
            return Err(refuse(format!(
                "a tensor is made from host data inside the closure at {loc}; make it outside, or put it into a Var with `set` before each replay"
            )));
        }
        for (k, (x, y)) in a.params.iter().zip(&b.params).enumerate() {
            let draw = b.draws.iter().any(|d| d.0 as usize == k);
            if x != y && !draw {
                let at = self.param_loc(b.path, k as u32);
                return Err(refuse(format!(
                    "the host number at {at} changed between the last two calls; a frozen step would keep it"
                )));
            }
        }
        let position = |&v: &ValId| Some((plan.outputs.iter().position(|&o| o == v)?, self.taped(b.path, v)));
        let positions = b.survivors.iter().filter_map(position).collect();
        let input = |i: &PlanInput| match b.input(i) {
            Some(t) => Input::Tensor(t.clone()),
            None => Input::Var(i.var.unwrap_or(0)),
        };
        let inputs = plan.inputs.iter().map(input).collect();
        Ok(Frozen {
            script: self.script(b.path, b.at),
            verify: 0,
            plan: plan.clone(),
            device: device.clone(),
            inputs,
            vars: b.vars.clone(),
            trainable: b.trainable.clone(),
            params: b.params.clone(),
            draws: b.draws.clone(),
            positions,
            outputs: Vec::new(),
            scratch: Scratch::default(),
            replays: 0,
            copies: 0,
        })
    }

    /// The ops of the path that ends at event `at` of `path`, for verification.
    fn script(&self, path: u32, at: u32) -> Vec<Line> {
        let mut pieces = vec![(path, at)];
        while let Some(parent) = self.tree.paths[pieces[pieces.len() - 1].0 as usize].parent {
            let child = &self.tree.paths[pieces[pieces.len() - 1].0 as usize];
            pieces.push((parent, child.base_event - self.tree.paths[parent as usize].base_event));
        }
        let mut out = Vec::new();
        for &(p, upto) in pieces.iter().rev() {
            let path = &self.tree.paths[p as usize];
            for e in &path.events[..(upto as usize).min(path.events.len())] {
                let op = match e.kind {
                    Kind::Op => Some(e.op),
                    // A read after a write: the written value under another id.
                    Kind::VarGet if e.template.is_some() => None,
                    _ => continue,
                };
                let operands = match e.out.checked_sub(path.base_value).and_then(|i| path.defs.get(i as usize)) {
                    Some(Def::Leaf { of, .. }) => smallvec::smallvec![*of],
                    _ => e.operands.clone(),
                };
                out.push(Line { op, operands, out: e.out, loc: e.loc });
            }
        }
        out
    }

    /// The line that makes value `v` on the path that ends in `path`.
    fn made_at(&self, path: u32, v: ValId) -> Loc {
        let mut at = Some(path);
        while let Some(p) = at {
            let known = &self.tree.paths[p as usize];
            if let Some(e) = known.events.iter().find(|e| e.out == v && e.template.is_some()) {
                return e.loc;
            }
            at = known.parent;
        }
        Loc::NONE
    }

    /// Whether value `v` of the path that ends in `path` depends on a trainable `Var`.
    fn taped(&self, path: u32, v: ValId) -> bool {
        let mut at = Some(path);
        while let Some(p) = at {
            let known = &self.tree.paths[p as usize];
            if let Some(t) = known.events.iter().filter(|e| e.out == v).find_map(|e| e.template.as_ref()) {
                return t.0.origin.is_taped();
            }
            at = known.parent;
        }
        false
    }

    /// The line of the op that takes parameter `k`, on the path that ends in `path`.
    fn param_loc(&self, path: u32, k: u32) -> Loc {
        let mut at = Some(path);
        while let Some(p) = at {
            let known = &self.tree.paths[p as usize];
            let takes =
                |op: &Op| op.rules().scalars().iter().any(|s| s.origin == crate::base::scalar::Origin::Param(k));
            if let Some(e) = known.events.iter().find(|e| !e.inner && takes(&e.op)) {
                return e.loc;
            }
            at = known.parent;
        }
        Loc::NONE
    }
}

/// One op of a frozen step, as it is run eagerly to verify a replay. `op` `None`: the operand itself.
struct Line {
    op: Option<Op>,
    operands: SmallVec<[ValId; 3]>,
    out: ValId,
    loc: Loc,
}

enum Input {
    Tensor(Tensor),
    Var(u32),
}

/// A step reduced to its launch: the closure does not run any more.
///
/// Host code in the closure is *suspended*: schedules, counters, prints and branches do nothing, and host
/// numbers keep the values of the last call. `Var`s are read and written as always, and each
/// [`crate::Rng`] advances by the step's own draws.
pub struct Frozen {
    script: Vec<Line>,
    /// Every so many replays one is verified; 0: none.
    verify: u64,
    plan: Arc<SegmentPlan>,
    device: Device,
    inputs: Vec<Input>,
    vars: Vec<Var>,
    /// Whether each of `vars` was trainable.
    trainable: Vec<bool>,
    params: Vec<u64>,
    draws: Vec<(u32, Rng)>,
    /// Of what is given out: the output of the plan, and whether it depends on a trainable `Var`.
    positions: Vec<(usize, bool)>,
    outputs: Vec<Tensor>,
    scratch: Scratch,
    replays: u64,
    copies: u64,
}

impl Frozen {
    /// Runs the launch once and gives the values that the last call kept, in the order they were made.
    ///
    /// Errors: called while a step is open on this thread; a `Var` whose trainable flag has changed; out of memory; an
    /// index out of range.
    pub fn replay(&mut self) -> Result<&[Tensor]> {
        if recorder::stamp() != 0 {
            let detail = "replayed inside an open step of this thread; call it outside the closure";
            return Err(ErrorKind::Freeze { detail: detail.into() }.into());
        }
        if self.vars.iter().zip(&self.trainable).any(|(v, &was)| v.is_trainable() != was) {
            let detail =
                "a Var was made trainable, or not, since the step was frozen; call the step again and freeze it anew";
            return Err(ErrorKind::Freeze { detail: detail.into() }.into());
        }
        // Buffers that nobody else holds go back to the pool before the launch asks for new ones.
        self.outputs.clear();
        for (k, rng) in &self.draws {
            self.params[*k as usize] = rng.advance(1);
            if let Some(seed) = (*k as usize).checked_sub(1).and_then(|s| self.params.get_mut(s)) {
                *seed = rng.seed();
            }
        }
        let mut values: SmallVec<[Tensor; 32]> = SmallVec::new();
        for (i, known) in self.inputs.iter().zip(&self.plan.inputs) {
            let t = match i {
                Input::Tensor(t) => t.clone(),
                Input::Var(slot) => self.vars[*slot as usize].lock().clone(),
            };
            if t.ready_state()?.layout.same_strides(&known.layout) {
                values.push(t);
            } else {
                // Somebody put a differently strided value in: copied to the layout the plan knows.
                let ready = eager::contiguous(&t)?;
                self.copies += 1;
                values.push(Tensor::ready(t.ty(), t.device().clone(), ready, Origin::Constant, t.0.made));
            }
        }
        let expected = match self.verify {
            n if n > 0 && self.replays % n == n - 1 => Some(self.run_eagerly(&values)?),
            _ => None,
        };
        let sources: SmallVec<[&Tensor; 32]> = values.iter().collect();
        let vars: SmallVec<[&Var; 16]> = self.plan.writes.iter().map(|w| &self.vars[w.0 as usize]).collect();
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome =
            launch_plan(&self.plan, &self.device, &sources, &vars, &self.params[..self.plan.params], 2, &mut scratch)?;
        if outcome.index_flag {
            return Err(self.plan.flagged(&outcome));
        }
        for &(p, taped) in &self.positions {
            if let Some(ready) = scratch.ready.get(p) {
                let (ty, origin) = (self.plan.targets[p].ty, Origin::Step { taped });
                self.outputs.push(Tensor::ready(ty, self.device.clone(), ready.clone(), origin, Loc::NONE));
            }
        }
        if let Some(expected) = expected {
            self.compare(&expected, &scratch.ready)?;
        }
        scratch.ready.clear();
        self.scratch = scratch;
        self.replays += 1;
        Ok(&self.outputs)
    }

    /// Has every `n`-th replay run eagerly too, op by op, and compared bit for bit: values and `Var`s. 0 turns it off.
    /// A difference is an error of kind [`ErrorKind::Bug`] that names the line of the first differing value.
    pub fn verify_every(&mut self, n: u64) {
        self.verify = n;
    }

    /// What the plan's outputs and `Var` writes should be, from the same inputs.
    fn run_eagerly(&self, inputs: &[Tensor]) -> Result<Vec<(Tensor, Loc)>> {
        let mut values: FxHashMap<ValId, (Tensor, Loc)> =
            self.plan.inputs.iter().zip(inputs).map(|(i, t)| (i.value, (t.clone(), t.0.made))).collect();
        let missing = || Error::bug("freeze", "a value of the frozen path is not known");
        for line in &self.script {
            let mut operands: SmallVec<[Tensor; 3]> = SmallVec::new();
            for v in &line.operands {
                match values.get(v) {
                    Some((t, _)) => operands.push(t.clone()),
                    // Dead in the plan: its inputs were not bound.
                    None => break,
                }
            }
            if operands.len() < line.operands.len() {
                continue;
            }
            let t = match &line.op {
                None => operands[0].clone(),
                Some(op) => {
                    let refs: SmallVec<[&Tensor; 3]> = operands.iter().collect();
                    let mut scalars = op.rules().scalars();
                    for s in scalars.iter_mut() {
                        if let scalar::Origin::Param(k) = s.origin {
                            s.bits = self.params.get(k as usize).copied().unwrap_or(s.bits);
                        }
                    }
                    let prepared = eager::prepare(&op.rules().with_scalars(&scalars), &refs, &self.device)?;
                    let (ready, _) = eager::compute(&prepared, &refs, &self.device)?;
                    Tensor::ready(prepared.ty, self.device.clone(), ready, Origin::Constant, line.loc)
                }
            };
            values.insert(line.out, (t, line.loc));
        }
        let written = self.plan.written.iter();
        self.plan.outputs.iter().chain(written).map(|v| values.get(v).cloned().ok_or_else(missing)).collect()
    }

    fn compare(&self, expected: &[(Tensor, Loc)], ready: &[Ready]) -> Result<()> {
        let mut given: Vec<Tensor> = Vec::new();
        for (r, (t, _)) in ready.iter().zip(expected) {
            given.push(Tensor::ready(t.ty(), self.device.clone(), r.clone(), Origin::Constant, t.0.made));
        }
        given.extend(self.plan.writes.iter().map(|w| self.vars[w.0 as usize].load()));
        for ((e, loc), g) in expected.iter().zip(&given) {
            if !reference::same(&e.to_host()?, &g.to_host()?, e.ty()) {
                let detail = "a replay differs from eager execution: a frozen step is not what was recorded";
                return Err(Error::bug("freeze", detail).at(*loc));
            }
        }
        Ok(())
    }

    /// The input tensors, by first touch in the closure. `Var`s are not among them: they are read at each replay.
    pub fn inputs(&self) -> Vec<Tensor> {
        self.inputs.iter().filter_map(|i| if let Input::Tensor(t) = i { Some(t.clone()) } else { None }).collect()
    }

    /// Replaces input `index` (as in [`Frozen::inputs`]) for the following replays.
    ///
    /// Errors: no such input; another shape, dtype or device.
    pub fn set_input(&mut self, index: usize, value: &Tensor) -> Result<()> {
        value.check_owner(0)?;
        let known = self.inputs.iter_mut().filter_map(|i| if let Input::Tensor(t) = i { Some(t) } else { None });
        let (count, found) = {
            let mut all: Vec<&mut Tensor> = known.collect();
            (all.len(), if index < all.len() { Some(all.swap_remove(index)) } else { None })
        };
        let Some(slot) = found else {
            return Err(Error::argument("set_input", format!("an index below {count}"), index.to_string()));
        };
        if slot.ty() != value.ty() || slot.device() != value.device() {
            let expected = format!("a {slot:?}");
            return Err(Error::argument("set_input", expected, format!("{value:?}")));
        }
        *slot = value.clone();
        Ok(())
    }

    /// Replays `replays` times and tells where the time goes: the label of each kernel and library call with its
    /// shortest time, in the order of the launch. The calls are timed one by one, so the host's part is not in it.
    ///
    /// ```
    /// use stepgraph::{DType, Device, Result, Tensor, jit};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::ones([64, 64], DType::F32, &Device::cpu())?;
    /// let mut step = jit::trace(|| x.matmul(&x)?.relu());
    /// for _ in 0..3 {
    ///     step.call()?;
    /// }
    /// for (kernel, time) in step.freeze()?.profile(10)? {
    ///     println!("{time:?} {kernel}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: as [`Frozen::replay`].
    pub fn profile(&mut self, replays: usize) -> Result<Vec<(String, Duration)>> {
        let mut all: Vec<(String, Duration)> = Vec::new();
        for _ in 0..replays {
            self.scratch.times = Some(Vec::new());
            self.replay()?;
            for (i, (label, time)) in self.scratch.times.take().unwrap_or_default().into_iter().enumerate() {
                match all.get_mut(i) {
                    Some((_, least)) => *least = time.min(*least),
                    None => all.push((label, time)),
                }
            }
        }
        Ok(all)
    }

    /// Replays so far.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Kernels and library calls of one replay.
    pub fn kernels(&self) -> usize {
        self.plan.executable.as_ref().map_or(0, |e| e.kernels())
    }
}
