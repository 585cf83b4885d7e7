//! Segments: the events between two host reads, compiled once per set of survivors, launched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Executable, LaunchResult};
use crate::base::{Error, Layout, Result};
use crate::plan::PlanOutput;
use crate::tensor::eager;
use crate::trace::reference::Reference;
use crate::trace::session::Session;
use crate::trace::tree::{Def, Kind, ValId};

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;

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
    /// Which of the session's held tensors are inputs, and no `Var`'s value: that nobody may hold but the `Var`.
    pub kept: Vec<bool>,
    pub targets: Vec<PlanOutput>,
    /// An output is a view of another one.
    pub shared: bool,
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
    /// What its launches are compared with, in steps that verify.
    pub reference: Option<Reference>,
    /// The call that last launched it.
    pub used: AtomicU64,
}

impl SegmentPlan {
    /// The error of a launch that found an index out of range, or a user's kernel that failed.
    pub fn flagged(&self, outcome: &LaunchResult) -> Error {
        if outcome.kernel_failed {
            return eager::kernel_error();
        }
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
    /// The slot of the `Var` whose value it is.
    pub var: Option<u32>,
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
        let mut survivors = std::mem::take(&mut self.survivors);
        self.find_survivors(end, &mut survivors);
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
        self.survivors = survivors;
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
    fn find_survivors(&self, end: u32, out: &mut Vec<ValId>) {
        out.clear();
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
}

fn plans_of(e: &crate::trace::tree::Event) -> usize {
    e.extra.as_ref().map_or(0, |x| x.plans.len())
}

/// Whether ascending `a` is contained in ascending `b`.
fn is_subset(a: &[ValId], b: &[ValId]) -> bool {
    let mut rest = b.iter();
    a.iter().all(|x| rest.any(|y| y == x))
}
