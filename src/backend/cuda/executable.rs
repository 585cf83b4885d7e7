//! Compiled plans of the CUDA backend.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use crate::backend::cuda::core::Core;
use crate::backend::cuda::graph::PlanGraph;
use crate::backend::cuda::sys::entry::{self, Enqueue};
use crate::backend::cuda::sys::host;
use crate::backend::cuda::sys::memory;
use crate::backend::cuda::work::{self, Work};
use crate::backend::dispatch::{Dispatcher, Mode, Script};
use crate::backend::{Buffer, Executable, InputBinding, Launch, LaunchResult, Memory, Storage};
use crate::base::Result;
use crate::plan::check::Checked;
use crate::plan::{OutputStorage, Plan};

/// A plan of one op, whose steps are enqueued one by one.
pub struct EagerExecutable {
    dispatcher: Dispatcher,
    arena_bytes: usize,
    may_flag: bool,
    core: Arc<Core>,
}

/// One step of an eager plan.
struct EagerStep {
    work: Work,
    slots: SmallVec<[u32; 4]>,
    params: SmallVec<[u32; 2]>,
    /// Slots and parameters of the plan.
    sizes: (usize, usize),
    core: Arc<Core>,
}

impl Enqueue for EagerStep {
    fn sizes(&self) -> (usize, usize) {
        self.sizes
    }

    fn enqueue(&self, slots: &[u64], params: &[u64]) {
        if self.core.failed() {
            return;
        }
        let addresses: SmallVec<[u64; 8]> = self.slots.iter().map(|&s| slots[s as usize]).collect();
        let words: SmallVec<[u64; 4]> = self.params.iter().map(|&p| params[p as usize]).collect();
        if let Err(e) = self.work.enqueue(&self.core, &addresses, &words) {
            self.core.fail(e);
        }
    }
}

fn may_flag(plan: &Plan) -> bool {
    plan.steps.iter().any(|s| s.kind.may_flag())
}

impl EagerExecutable {
    pub fn new(checked: &Checked, core: &Arc<Core>) -> Result<EagerExecutable> {
        let plan = checked.plan();
        let works = core.entered(|| work::compile(plan, core, false))?;
        let calls = plan.steps.iter().zip(works).map(|(step, work)| {
            let step = EagerStep {
                work,
                slots: step.args.iter().copied().collect(),
                params: step.params.iter().copied().collect(),
                sizes: (plan.slots.len(), plan.params.len()),
                core: core.clone(),
            };
            entry::call("enqueue", step)
        });
        let script = Script::new(plan, calls.collect())?;
        Ok(EagerExecutable {
            dispatcher: Dispatcher::new(script, Mode::Loop),
            arena_bytes: plan.arena_bytes,
            may_flag: may_flag(plan),
            core: core.clone(),
        })
    }
}

impl Executable for EagerExecutable {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        let core = &*self.core;
        core.locked(|| {
            let host = host::Device { pool: &core.pool, arena: None };
            let enqueued = run(&self.dispatcher, &host, core, launch).and_then(|result| {
                if self.may_flag {
                    let (kernel, args) = core.flags.settle();
                    for (function, grid) in &kernel.stages {
                        function.launch(*grid, &args, &core.stream)?;
                    }
                }
                Ok(result)
            });
            let mut result = enqueued.inspect_err(|_| {
                if self.may_flag {
                    core.flags.lower(&core.stream);
                }
            })?;
            if self.may_flag {
                result.pending = Some(core.flags.issue());
            }
            core.counters.eager_kernels.fetch_add(self.kernels() as u64, Relaxed);
            Ok(result)
        })
    }

    fn kernels(&self) -> usize {
        self.dispatcher.script().calls()
    }

    fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    fn listing(&self) -> String {
        self.dispatcher.listing()
    }
}

/// Dispatches; what a call failed with is the launch's error.
fn run(dispatcher: &Dispatcher, host: &host::Device<'_>, core: &Core, launch: &mut Launch<'_>) -> Result<LaunchResult> {
    let result = dispatcher.launch(host, launch);
    core.take_failure().inspect_err(|_| launch.outputs.clear())?;
    result
}

/// A plan of a step: one graph launch.
pub struct StepExecutable {
    dispatcher: Dispatcher,
    graph: GraphHandle,
    arena_bytes: usize,
    may_flag: bool,
    /// (output, bytes, the input that it overwrites)
    donors: Vec<(usize, usize)>,
    core: Arc<Core>,
}

/// The graph, shared with the call that enqueues it.
struct GraphHandle(Arc<PlanGraph>);

impl Enqueue for GraphHandle {
    fn sizes(&self) -> (usize, usize) {
        self.0.sizes()
    }

    fn enqueue(&self, slots: &[u64], params: &[u64]) {
        self.0.enqueue(slots, params);
    }
}

impl StepExecutable {
    pub fn new(checked: &Checked, core: &Arc<Core>, mode: Mode) -> Result<StepExecutable> {
        let plan = checked.plan();
        let (works, arena) = core.entered(|| Ok((work::compile(plan, core, true)?, core.arena(plan.arena_bytes)?)))?;
        let graph = Arc::new(PlanGraph::new(plan, works, arena, core.clone()));
        let script = Script::whole(plan, entry::call("launch_graph", GraphHandle(graph.clone())))?;
        let donor = |o: &crate::plan::PlanOutput| match o.storage {
            OutputStorage::Own { bytes } => o.in_place.map(|i| (i as usize, bytes)),
            _ => None,
        };
        Ok(StepExecutable {
            dispatcher: Dispatcher::new(script, mode),
            graph: GraphHandle(graph),
            arena_bytes: plan.arena_bytes,
            may_flag: may_flag(plan),
            donors: plan.outputs.iter().filter_map(donor).collect(),
            core: core.clone(),
        })
    }

    /// Gives each `Var` buffer that somebody else still holds a new place, so that the plan can write to its home: the old value
    /// is copied away, in stream order, and its holders see it there.
    fn move_away(&self, inputs: &[InputBinding<'_>]) -> Result<SmallVec<[(usize, Buffer); 2]>> {
        let core = &*self.core;
        let mut moved = SmallVec::new();
        for &(i, bytes) in &self.donors {
            let Some(input) = inputs.get(i).filter(|b| !b.exclusive) else { continue };
            let Memory::Cuda(home) = &input.buffer.memory else { continue };
            // A view into a larger buffer stays where it is; the new value gets a buffer of its own.
            if input.layout.offset != 0 || input.buffer.bytes() != bytes || !home.is_of(&core.pool) {
                continue;
            }
            let fresh = core.pool.alloc(bytes)?;
            memory::copy(&core.stream, fresh.address(), home.address(), bytes)?;
            home.exchange(&fresh);
            core.moves.fetch_add(1, Relaxed);
            moved.push((i, Buffer::new(Storage::new(Memory::Cuda(fresh), bytes))));
        }
        Ok(moved)
    }
}

impl Executable for StepExecutable {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<LaunchResult> {
        let core = &*self.core;
        core.locked(|| {
            let host = host::Device { pool: &core.pool, arena: self.graph.0.arena() };
            let moved = self.move_away(launch.inputs)?;
            let mut result = if moved.is_empty() {
                run(&self.dispatcher, &host, core, launch)?
            } else {
                let mut inputs: SmallVec<[InputBinding<'_>; 32]> = SmallVec::from_slice(launch.inputs);
                for (i, home) in &moved {
                    inputs[*i] = InputBinding { buffer: home, exclusive: true, ..inputs[*i] };
                }
                let mut there = Launch { inputs: &inputs, params: launch.params, outputs: &mut *launch.outputs };
                run(&self.dispatcher, &host, core, &mut there)?
            };
            result.moved = moved.len() as u32;
            if self.may_flag {
                result.pending = Some(core.flags.issue());
            }
            core.counters.launches.fetch_add(1, Relaxed);
            core.counters.kernels.fetch_add(self.kernels() as u64, Relaxed);
            Ok(result)
        })
    }

    fn kernels(&self) -> usize {
        self.graph.0.kernels()
    }

    fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    fn listing(&self) -> String {
        self.dispatcher.listing()
    }
}
