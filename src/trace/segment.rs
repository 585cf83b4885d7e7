//! Segments: the events between two host reads, compiled once per set of survivors, launched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::backend::{Buffer, Executable, InputBinding, Launch, LaunchResult};
use crate::base::{Error, ErrorKind, Layout, Result};
use crate::ir::{Graph, InputKind, NodeId};
use crate::pass;
use crate::plan::{OutputStorage, PlanOutput};
use crate::tensor::{Ready, Tensor, var};
use crate::trace::session::Session;
use crate::trace::tree::{Def, Kind, ValId};

/// Plans of one segment before one plan for the union of all survivors is made.
const PLANS: usize = 4;

/// A compiled segment.
pub(crate) struct SegmentPlan {
    /// Values it makes ready, ascending.
    pub outputs: Vec<ValId>,
    /// (var slot, output position) of the `Var` writes.
    pub writes: Vec<(u32, u32)>,
    /// The values written, in the order of `writes`.
    pub written: Vec<ValId>,
    /// The input with the old value, per write.
    pub donors: Vec<Option<u32>>,
    pub inputs: Vec<PlanInput>,
    pub targets: Vec<PlanOutput>,
    /// Those of `targets`, to share.
    pub layouts: Vec<Arc<Layout>>,
    /// Nothing survives and nothing is written: no launch.
    pub executable: Option<Arc<dyn Executable>>,
    /// Host scalars it reads: the first so many of the call.
    pub params: usize,
    pub compile_time: Duration,
    pub compiled: Option<Explained>,
    /// What is told when it found an index out of range.
    pub index_error: Option<Error>,
    /// The call that last launched it.
    pub used: AtomicU64,
}

impl SegmentPlan {
    /// The error of a launch that found an index out of range.
    pub fn out_of_range(&self) -> Error {
        self.index_error.clone().unwrap_or_else(|| Error::bug("trace", "an index flag without an op that indexes"))
    }
}

/// What is kept of a compilation for reports.
pub(crate) struct Explained {
    /// Ops before the passes, the dead ones included.
    pub ops: usize,
    /// One line a kernel or library call: what it computes, and the user's lines.
    pub steps: Vec<String>,
    /// Decisions of the passes, each with its lines.
    pub notes: Vec<String>,
    /// Bytes that a launch reads and writes, counted once per operand of each kernel.
    pub bytes: u64,
}

/// Where an input of the plan comes from.
pub(crate) struct PlanInput {
    pub value: ValId,
    pub source: Source,
    pub layout: Layout,
    /// The write (position in `writes`) of the `Var` whose old value it is, when the plan may overwrite it.
    pub donor: Option<u32>,
}

#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Position in the session's held tensors.
    Held(u32),
    /// The template of an event of an earlier segment.
    Event(u32),
}

impl Session {
    /// Launches the events since the last segment's end. The cursor stands on the event that ends it.
    pub fn launch_segment(&mut self, last: bool) -> Result<()> {
        let (path, at) = (self.path, self.cursor);
        let end = self.ordinal();
        let mut survivors = self.survivors(end);
        if !last {
            survivors.extend(self.escapes(path, at, end));
            survivors.sort_unstable();
            survivors.dedup();
        }
        self.last.segments += 1;
        self.stats.shadowed += (end - self.seg_base) as u64;
        let result = self.run_segment(path, at, end, &survivors, last);
        for b in &mut self.vars {
            b.dirty = false;
        }
        if let Err(e) = &result {
            // What was promised and is not there failed with it.
            for &v in &survivors {
                if let Ok(t) = self.handle(v) {
                    let _ = t.0.state.set(Err(e.clone()));
                }
            }
        }
        result
    }

    fn run_segment(&mut self, path: u32, at: usize, end: u32, survivors: &[ValId], last: bool) -> Result<()> {
        self.ready_inputs(end)?;
        let plan = match self.find_plan(path, at, survivors) {
            Some(plan) => plan,
            None => self.compile(path, at, end, survivors.to_vec(), last)?,
        };
        plan.used.store(self.stats.calls, Ordering::Relaxed);
        let result = self.launch(&plan);
        self.launched.push(plan);
        result
    }

    /// Values of the segment that somebody outside the trace holds.
    fn survivors(&self, end: u32) -> Vec<ValId> {
        let mut out = Vec::new();
        let mut ordinal = self.seg_base;
        while ordinal < end {
            let (path, at) = self.locate(ordinal);
            // The run of events of this path.
            let run_end = self
                .trail
                .iter()
                .find(|t| t.0 == path)
                .map_or(usize::MAX, |t| t.1 as usize)
                .min(at + (end - ordinal) as usize);
            for e in &self.tree.paths[path as usize].events[at..run_end] {
                if let Some(t) = &e.template {
                    if Arc::strong_count(&t.0) > 1 {
                        out.push(e.out);
                    }
                } else if let Some(x) = &e.extra
                    && x.table.as_ref().is_some_and(|t| Arc::strong_count(t) > 1)
                {
                    out.extend(x.grads.iter().map(|g| g.1));
                }
            }
            ordinal += (run_end - at) as u32;
        }
        // A gradient may also be held itself.
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Values made before `end` in this segment that later events of known continuations use.
    fn escapes(&mut self, path: u32, at: usize, end: u32) -> Vec<ValId> {
        let generation = self.tree.generation;
        if let Some(x) = &self.tree.paths[path as usize].events[at].extra
            && x.generation == generation + 1
        {
            return x.escapes.clone();
        }
        let mut out = Vec::new();
        let mut stack = vec![(path, at + 1)];
        while let Some((p, from)) = stack.pop() {
            let known = &self.tree.paths[p as usize];
            for e in &known.events[from.min(known.events.len())..] {
                out.extend(e.operands.iter().copied());
                if let Def::Leaf { of, .. } = e
                    .template
                    .as_ref()
                    .and_then(|_| e.out.checked_sub(known.base_value))
                    .and_then(|i| known.defs.get(i as usize).copied())
                    .unwrap_or(Def::Made { event: 0 })
                {
                    out.push(of);
                }
            }
            stack.extend(known.children.iter().filter(|c| c.0 as usize >= from).map(|&(_, c)| (c, 0)));
        }
        let known = self.ptrs.len() as u32;
        let base = self.seg_base;
        out.retain(|&v| {
            v < known
                && matches!(self.def(v), Def::Made { event } | Def::Leaf { event, .. } if (base..end).contains(&event))
        });
        out.sort_unstable();
        out.dedup();
        if let Some(x) = &mut self.tree.paths[path as usize].events[at].extra {
            x.escapes = out.clone();
            x.generation = generation + 1;
        }
        out
    }

    /// Makes values of earlier segments ready that this one reads and no plan kept.
    fn ready_inputs(&mut self, end: u32) -> Result<()> {
        if self.seg_base == 0 {
            return Ok(());
        }
        let mut missing = Vec::new();
        for ordinal in self.seg_base..end {
            let e = self.event(ordinal);
            let leaf = match (e.kind, e.out) {
                (Kind::VarGet, out) if e.template.is_some() => match self.def(out) {
                    Def::Leaf { of, .. } => Some(of),
                    _ => None,
                },
                _ => None,
            };
            for v in e.operands.iter().copied().chain(leaf) {
                if let Def::Made { event } | Def::Leaf { event, .. } = self.def(v)
                    && event < self.seg_base
                    && self.handle(v)?.0.state.get().is_none()
                {
                    missing.push(v);
                }
            }
        }
        if missing.is_empty() { Ok(()) } else { self.materialize(&missing) }
    }

    /// A plan that keeps all survivors, for inputs laid out as they are now.
    fn find_plan(&self, path: u32, at: usize, survivors: &[ValId]) -> Option<Arc<SegmentPlan>> {
        let extra = self.tree.paths[path as usize].events[at].extra.as_ref()?;
        extra.plans.iter().find(|p| is_subset(survivors, &p.outputs) && self.layouts_fit(p)).cloned()
    }

    fn layouts_fit(&self, plan: &SegmentPlan) -> bool {
        plan.inputs.iter().all(|i| match i.source {
            // Externals and snapshots were guarded at first touch.
            Source::Held(_) => true,
            Source::Event(e) => {
                let state = self.event(e).template.as_ref().and_then(|t| t.0.state.get());
                matches!(state, Some(Ok(r)) if r.layout.same_strides(&i.layout))
            }
        })
    }

    fn compile(
        &mut self,
        path: u32,
        at: usize,
        end: u32,
        mut outputs: Vec<ValId>,
        last: bool,
    ) -> Result<Arc<SegmentPlan>> {
        let begun = Instant::now();
        let known = self.tree.paths[path as usize].events[at].extra.as_ref().map_or(0, |x| x.plans.len());
        if known > 0 {
            let seen: Vec<ValId> = self.known_outputs(path, at);
            for &v in outputs.iter().filter(|v| !seen.contains(v)) {
                let t = self.handle(v)?;
                let (made, ty) = (t.0.made, t.ty());
                self.stats.kept.add(made, || format!("kept value at {made} ({ty}): a second plan of the same path"));
            }
            if known >= PLANS {
                outputs.extend(seen);
                outputs.sort_unstable();
                outputs.dedup();
            }
        }
        let span = tracing::info_span!("compile", name = %format!("path{path}_{at}"));
        let _entered = span.enter();
        let plan = Arc::new(self.build(path, at, end, outputs, last, begun)?);
        // A segment that makes nothing is not compiled.
        self.stats.compiles += plan.executable.is_some() as u64;
        self.stats.compile_time += plan.compile_time;
        tracing::info!(
            target: "stepgraph::trace",
            ops = end - self.seg_base,
            kernels = plan.executable.as_ref().map_or(0, |e| e.kernels()),
            ms = plan.compile_time.as_secs_f64() * 1e3,
            "compiled a segment"
        );
        if let Some(x) = &mut self.tree.paths[path as usize].events[at].extra {
            if x.plans.len() > PLANS {
                self.plans -= x.plans.len();
                x.plans.clear();
            }
            x.plans.push(plan.clone());
            self.plans += 1;
        }
        Ok(plan)
    }

    fn known_outputs(&self, path: u32, at: usize) -> Vec<ValId> {
        let extra = self.tree.paths[path as usize].events[at].extra.as_ref();
        extra.map(|x| x.plans.iter().flat_map(|p| p.outputs.iter().copied()).collect()).unwrap_or_default()
    }

    fn build(
        &mut self,
        path: u32,
        at: usize,
        end: u32,
        outputs: Vec<ValId>,
        last: bool,
        begun: Instant,
    ) -> Result<SegmentPlan> {
        let dirty: Vec<(u32, ValId)> = self
            .vars
            .iter()
            .enumerate()
            .filter(|(_, b)| b.dirty)
            .filter_map(|(slot, b)| Some((slot as u32, b.written?)))
            .collect();
        let mut b = Builder {
            session: self,
            graph: Graph::new(format!("path{path}_{at}")),
            nodes: FxHashMap::default(),
            inputs: Vec::new(),
        };
        for dtype in b.session.param_dtypes() {
            b.graph.param(dtype);
        }
        for ordinal in b.session.seg_base..end {
            let e = b.session.event(ordinal);
            if e.kind != Kind::Op {
                continue;
            }
            let mut operands: SmallVec<[NodeId; 3]> = SmallVec::new();
            for i in 0..b.session.event(ordinal).operands.len() {
                let v = b.session.event(ordinal).operands[i];
                operands.push(b.resolve(v)?);
            }
            let e = b.session.event(ordinal);
            let node = b.graph.op(e.op, &operands, e.loc)?;
            b.nodes.insert(e.out, node);
        }
        for &v in &outputs {
            let node = b.resolve(v)?;
            b.graph.output(node);
        }
        let mut writes = Vec::new();
        let written: Vec<ValId> = dirty.iter().map(|d| d.1).collect();
        for &(slot, v) in &dirty {
            let node = b.resolve(v)?;
            let position = b.graph.outputs().len() as u32;
            writes.push((slot, position));
            b.graph.output(node);
        }
        let slots: FxHashMap<u32, u32> =
            writes.iter().enumerate().map(|(k, w): (usize, &(u32, u32))| (w.0, k as u32)).collect();
        let mut donors = vec![None; writes.len()];
        // Only a call's last segment may overwrite a `Var`'s buffer in place.
        for i in 0..b.inputs.len() {
            if let Def::Snapshot { var, .. } = b.session.def(b.inputs[i].value) {
                let write = slots.get(&var).copied().filter(|_| last);
                let written_by = write.map(|k| writes[k as usize].1);
                b.graph.set_input_kind(i, InputKind::Var { written_by })?;
                b.inputs[i].donor = write;
                if let Some(k) = write {
                    donors[k as usize] = Some(i as u32);
                }
            }
        }
        let (graph, inputs) = (b.graph, b.inputs);
        let params = self.params.len();
        let nothing = graph.outputs().is_empty();
        let Some(device) = self.device.clone().filter(|_| !nothing) else {
            let compile_time = begun.elapsed();
            let (targets, layouts, executable, compiled) = (Vec::new(), Vec::new(), None, None);
            return Ok(SegmentPlan {
                outputs,
                writes,
                written,
                donors,
                inputs: Vec::new(),
                targets,
                layouts,
                executable,
                params,
                compile_time,
                compiled,
                index_error: None,
                used: AtomicU64::new(0),
            });
        };
        let compiled = pass::compile(&graph, &self.options)?;
        let targets = compiled.plan.plan().outputs.clone();
        let dump = crate::base::config::config().dump.clone();
        let texts = dump.as_ref().map(|_| [graph.to_string(), fused_text(&compiled), compiled.plan.plan().to_string()]);
        let explained = explain(&graph, &compiled);
        let executable = device.backend().compile(compiled.plan)?;
        if let (Some(dir), Some([before, after, plan])) = (dump, texts) {
            let parts =
                [("graph.ir", before), ("fused.ir", after), ("plan.txt", plan), ("code.txt", executable.listing())];
            write_dump(&dir, &format!("step{}_{}", self.stamp, graph.name), &parts)?;
        }
        Ok(SegmentPlan {
            outputs,
            writes,
            written,
            donors,
            inputs,
            layouts: targets.iter().map(|t| Arc::new(t.layout)).collect(),
            targets,
            executable: Some(executable),
            params,
            compile_time: begun.elapsed(),
            compiled: Some(explained),
            index_error: self.index_error(end),
            used: AtomicU64::new(0),
        })
    }

    /// Runs a plan on this call's values; commits the `Var` writes.
    fn launch(&mut self, plan: &SegmentPlan) -> Result<()> {
        if plan.executable.is_none() {
            return Ok(());
        }
        let mut ready = std::mem::take(&mut self.ready);
        let mut sources: SmallVec<[&Tensor; 32]> = SmallVec::new();
        for i in &plan.inputs {
            sources.push(match i.source {
                Source::Held(k) => &self.held[k as usize],
                Source::Event(e) => self.event(e).template.as_ref().ok_or_else(no_template)?,
            });
        }
        let outcome = launch_plan(plan, &sources, &self.vars_of(plan), &self.params[..plan.params], 2, &mut ready);
        drop(sources);
        self.set_outputs(plan, &mut ready)?;
        self.ready = ready;
        let outcome = outcome?;
        self.last.launches += 1;
        self.stats.launches += 1;
        self.last.kernels += plan.executable.as_ref().map_or(0, |e| e.kernels()) as u32;
        self.last.arena_bytes = self.last.arena_bytes.max(plan.executable.as_ref().map_or(0, |e| e.arena_bytes()));
        self.last.bytes += plan.compiled.as_ref().map_or(0, |c| c.bytes);
        self.last.in_place += outcome.in_place;
        if outcome.index_flag {
            return Err(plan.out_of_range());
        }
        Ok(())
    }

    fn set_outputs(&self, plan: &SegmentPlan, ready: &mut Vec<Ready>) -> Result<()> {
        for (&v, ready) in plan.outputs.iter().zip(ready.drain(..)) {
            let _ = self.handle(v)?.0.state.set(Ok(ready));
        }
        Ok(())
    }

    /// Keeps paths and plans within their bound: the ones not used for the longest time go, their memory with them.
    pub fn evict(&mut self) {
        let bound = self.plan_cache;
        while self.tree.len() > bound.max(1) {
            let Some(oldest) = self.tree.oldest_leaf(self.path) else { break };
            let lost: usize = self.tree.paths[oldest as usize].events.iter().map(plans_of).sum();
            self.plans -= lost;
            self.stats.evicted += 1 + lost as u64;
            tracing::debug!(target: "stepgraph::trace", path = oldest, plans = lost, "evicted a path");
            self.tree.remove(oldest);
        }
        while self.plans > bound.max(1) {
            let all = self.tree.paths.iter().enumerate().flat_map(|(p, path)| {
                path.events.iter().enumerate().filter_map(move |(e, event)| {
                    let plans = &event.extra.as_ref()?.plans;
                    let (i, plan) = plans.iter().enumerate().min_by_key(|(_, p)| p.used.load(Ordering::Relaxed))?;
                    Some((plan.used.load(Ordering::Relaxed), p, e, i))
                })
            });
            let Some((_, p, e, i)) = all.min() else { break };
            if let Some(x) = &mut self.tree.paths[p].events[e].extra {
                x.plans.swap_remove(i);
            }
            self.plans -= 1;
            self.stats.evicted += 1;
        }
    }

    fn vars_of<'a>(&'a self, plan: &'a SegmentPlan) -> SmallVec<[&'a crate::tensor::Var; 16]> {
        plan.writes.iter().map(|&(slot, _)| &self.vars[slot as usize].var).collect()
    }

    /// What is told when a launch found an index out of range. Which op's it was is not known then: the first
    /// that may raise it is named.
    fn index_error(&self, end: u32) -> Option<Error> {
        (self.seg_base..end).map(|ordinal| self.event(ordinal)).find_map(|e| {
            if e.kind != Kind::Op || !matches!(e.op, crate::op::Op::Gather { .. } | crate::op::Op::ScatterAdd { .. }) {
                return None;
            }
            let operands: Vec<&Tensor> = e.operands.iter().filter_map(|&v| self.handle(v).ok()).collect();
            Some(crate::tensor::eager::index_error(&e.op, &operands).at(e.loc))
        })
    }
}

fn plans_of(e: &crate::trace::tree::Event) -> usize {
    e.extra.as_ref().map_or(0, |x| x.plans.len())
}

fn no_template() -> Error {
    Error::bug("trace", "an input of a segment has no handle")
}

/// Launches `plan` on `sources`, the written `Var`s (in the order of `plan.writes`) locked in id order; `outputs` gets one
/// value per value the plan makes ready.
///
/// `own_handles`: how many handles of a `Var`'s old value belong to the `Var` and the launcher. With no more
/// than those, and no other holder of the buffer, the plan may overwrite it.
pub(crate) fn launch_plan(
    plan: &SegmentPlan,
    sources: &[&Tensor],
    vars: &[&crate::tensor::Var],
    params: &[u64],
    own_handles: usize,
    outputs: &mut Vec<Ready>,
) -> Result<LaunchResult> {
    let Some(executable) = &plan.executable else {
        return Ok(LaunchResult::default());
    };
    // Locks are taken in id order, whoever launches; nearly always that is the order of the writes.
    let mut guards: SmallVec<[Option<_>; 16]> = SmallVec::new();
    if vars.is_sorted_by_key(|v| v.id()) {
        guards.extend(vars.iter().map(|v| Some(v.lock())));
    } else {
        let mut order: SmallVec<[usize; 16]> = (0..vars.len()).collect();
        order.sort_by_key(|&i| vars[i].id());
        guards.extend(vars.iter().map(|_| None));
        for i in order {
            guards[i] = Some(vars[i].lock());
        }
    }
    let mut bindings: SmallVec<[InputBinding<'_>; 32]> = SmallVec::new();
    for (t, i) in sources.iter().zip(&plan.inputs) {
        let ready = t.ready_state()?;
        let exclusive = i.donor.is_some_and(|write| {
            let held_by_var = guards[write as usize].as_ref().is_some_and(|g| g.same(t));
            // The plan writes from the buffer's start on.
            let whole = ready.layout.offset == 0;
            whole && held_by_var && Arc::strong_count(&t.0) == own_handles && Arc::strong_count(&ready.buffer) == 1
        });
        bindings.push(InputBinding { buffer: &ready.buffer, layout: &ready.layout, dtype: t.dtype(), exclusive });
    }
    // The counts were read without ordering; whoever dropped the other handles did so before.
    fence(Ordering::Acquire);
    let mut buffers: Vec<Option<Buffer>> = Vec::with_capacity(plan.targets.len());
    let result = executable.launch(&mut Launch { inputs: &bindings, params, outputs: &mut buffers })?;
    let ready = |k: usize| -> Result<Ready> {
        let target = &plan.targets[k];
        let buffer = match target.storage {
            OutputStorage::Own { .. } => buffers.get(k).cloned().flatten(),
            OutputStorage::Input(i) => bindings.get(i as usize).map(|b| b.buffer.clone()),
            OutputStorage::Output(o) => buffers.get(o as usize).cloned().flatten(),
        };
        let buffer = buffer.ok_or_else(|| Error::bug("trace", format!("output {k} has no buffer")))?;
        let mut layout = plan.layouts[k].clone();
        if let OutputStorage::Input(i) = target.storage
            && bindings[i as usize].layout.offset != 0
        {
            // The plan knows its inputs from their first element on.
            let offset = layout.offset + bindings[i as usize].layout.offset;
            layout = Layout { offset, ..*layout }.into();
        }
        Ok(Ready { buffer, layout })
    };
    for k in 0..plan.outputs.len() {
        outputs.push(ready(k)?);
    }
    let mut old: SmallVec<[Tensor; 16]> = SmallVec::new();
    if !result.index_flag {
        for (k, &(_, position)) in plan.writes.iter().enumerate() {
            // Written in place, and nobody else can see the handle: it stands for the new value now.
            let own = plan.donors[k].and_then(|i| bindings.get(i as usize)).filter(|b| b.exclusive);
            let written = buffers.get(position as usize).and_then(|b| b.as_ref());
            if own.zip(written).is_some_and(|(b, w)| Arc::ptr_eq(b.buffer, w)) {
                continue;
            }
            let value = ready(position as usize)?;
            if let Some(guard) = &mut guards[k] {
                let new = var::leaf_of(vars[k], value, guard.0.made);
                old.push(std::mem::replace(&mut **guard, new));
            }
        }
    }
    drop(guards);
    Ok(result)
}

/// Builds the graph of a segment.
struct Builder<'a> {
    session: &'a Session,
    graph: Graph,
    nodes: FxHashMap<ValId, NodeId>,
    inputs: Vec<PlanInput>,
}

impl Builder<'_> {
    /// The node of a value; one from before the segment becomes an input.
    fn resolve(&mut self, v: ValId) -> Result<NodeId> {
        if let Some(&n) = self.nodes.get(&v) {
            return Ok(n);
        }
        let def = self.session.def(v);
        let source = match def {
            Def::External { held, .. } | Def::Snapshot { held, .. } => Source::Held(held),
            Def::Leaf { of, event, .. } if event >= self.session.seg_base => {
                let node = self.resolve(of)?;
                self.nodes.insert(v, node);
                return Ok(node);
            }
            Def::Made { event } | Def::Leaf { event, .. } => Source::Event(event),
        };
        let t = self.session.handle(v)?;
        let layout = t.ready_state()?.layout.from_start();
        let node = self.graph.input(t.ty(), InputKind::External, layout, t.0.made);
        self.inputs.push(PlanInput { value: v, source, layout, donor: None });
        self.nodes.insert(v, node);
        Ok(node)
    }
}

/// Whether ascending `a` is contained in ascending `b`.
fn is_subset(a: &[ValId], b: &[ValId]) -> bool {
    let mut rest = b.iter();
    a.iter().all(|x| rest.any(|y| y == x))
}

/// The graph after the passes, then every decision.
fn fused_text(compiled: &pass::Compiled) -> String {
    let mut out = compiled.graph.to_string();
    for note in &compiled.notes {
        out.push_str(&format!("; {note}\n"));
    }
    out
}

/// What is told of a compilation; also streamed, as it happens, to the log.
fn explain(graph: &Graph, compiled: &pass::Compiled) -> Explained {
    let plan = compiled.plan.plan();
    let notes: Vec<String> = compiled.notes.iter().map(|n| n.to_string()).collect();
    for n in &notes {
        tracing::debug!(target: "stepgraph::pass", "{n}");
    }
    let lines = |step: &crate::plan::Step| {
        let lines: Vec<String> = step.locs.iter().map(|l| l.to_string()).collect();
        format!("{} ({})", step.label, lines.join(", "))
    };
    let bytes = plan.steps.iter().flat_map(|s| &s.args).map(|&slot| plan.slots[slot as usize].bytes as u64).sum();
    Explained { ops: graph.len() - graph.inputs().len(), steps: plan.steps.iter().map(lines).collect(), notes, bytes }
}

fn write_dump(dir: &std::path::Path, name: &str, parts: &[(&str, String)]) -> Result<()> {
    for (ending, text) in parts {
        let path = dir.join(format!("{name}.{ending}"));
        let io =
            |e: std::io::Error| Error::new(ErrorKind::Io { path: path.display().to_string(), detail: e.to_string() });
        std::fs::create_dir_all(dir).map_err(io)?;
        std::fs::write(&path, text).map_err(io)?;
    }
    Ok(())
}
