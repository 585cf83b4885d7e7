//! A plan as a launch graph: one node per kernel, the plan's edges, library calls as child graphs.
//!
//! Kernels read tensors' addresses and host scalars from the parameter block, a struct in device memory that is copied there
//! only when it changed. Library calls have addresses built in: those of the arena never change, those of `Var`s seldom.
//! An operand whose address changed makes the graph be built again; one that keeps changing (a fresh batch at each call) is copied by
//! a node to a fixed place instead.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::backend::cuda::compile::Kernel;
use crate::backend::cuda::core::Core;
use crate::backend::cuda::pool::Block;
use crate::backend::cuda::sys::entry::Enqueue;
use crate::backend::cuda::sys::graph::{Graph, GraphExec, Node};
use crate::backend::cuda::sys::memory::Address;
use crate::backend::cuda::work::{self, Form, ProductWork, Work};
use crate::base::{Error, Result};
use crate::plan::{Plan, SlotKind, Step};

/// How often an operand of a library call may move before it is copied instead: tensors from outside, `Var`s.
const MOVES: [u32; 2] = [1, 3];

/// A plan's graph.
pub struct PlanGraph {
    state: Mutex<State>,
    plan: Plan,
    works: Vec<Work>,
    arena: Option<Arc<Block>>,
    core: Arc<Core>,
}

/// What changes from launch to launch; the graph is dropped before what it points to.
#[derive(Default)]
struct State {
    exec: Option<GraphExec>,
    /// The parameter block as the device has it; empty before the first copy.
    sent: Vec<u64>,
    block: Option<Block>,
    /// Scratch, workspaces, copies.
    _memory: Vec<Block>,
    /// Operands of library calls whose address can change.
    pins: Vec<Pin>,
}

/// A slot whose address is built into the graph.
#[derive(Clone, Debug)]
struct Pin {
    slot: u32,
    address: Address,
    moved: u32,
    /// Copied to a fixed place instead.
    staged: bool,
}

impl PlanGraph {
    /// The graph of a compiled plan; it is built at the first launch, when addresses are known.
    pub fn new(plan: &Plan, works: Vec<Work>, arena: Option<Arc<Block>>, core: Arc<Core>) -> PlanGraph {
        let mut pins: Vec<Pin> = Vec::new();
        for (step, work) in plan.steps.iter().zip(&works) {
            if let Work::Product(_) = work {
                for &slot in &step.args {
                    let fixed = matches!(plan.slots[slot as usize].kind, SlotKind::Arena { .. });
                    if !fixed && pins.iter().all(|p| p.slot != slot) {
                        pins.push(Pin { slot, address: 0, moved: 0, staged: false });
                    }
                }
            }
        }
        let state = State { pins, ..State::default() };
        PlanGraph { state: Mutex::new(state), plan: plan.clone(), works, arena, core }
    }

    /// Number of kernels and library calls.
    pub fn kernels(&self) -> usize {
        self.works.len()
    }

    /// The arena's address.
    pub fn arena(&self) -> Option<Address> {
        self.arena.as_ref().map(|a| a.address())
    }

    fn run(&self, slots: &[u64], params: &[u64]) -> Result<()> {
        if self.plan.steps.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let mut stale = state.exec.is_none();
        for pin in state.pins.iter_mut().filter(|p| !p.staged) {
            let address = slots[pin.slot as usize];
            if pin.address == address {
                continue;
            }
            if pin.address != 0 {
                pin.moved += 1;
                let var = matches!(self.plan.slots[pin.slot as usize].kind,
                    SlotKind::Input(i) if self.plan.inputs[i as usize].var);
                pin.staged = pin.moved >= MOVES[var as usize];
                tracing::debug!(
                    plan = self.plan.name,
                    slot = pin.slot,
                    staged = pin.staged,
                    "an operand of a library call moved: the graph is built anew"
                );
            }
            pin.address = address;
            stale = true;
        }
        if stale {
            self.build(&mut state, slots)?;
        }
        let same = state.sent.len() == slots.len() + params.len()
            && state.sent[..slots.len()] == *slots
            && state.sent[slots.len()..] == *params;
        if !same {
            let mut words = std::mem::take(&mut state.sent);
            words.clear();
            words.extend_from_slice(slots);
            words.extend_from_slice(params);
            let block = state.block.as_ref().map_or(0, Block::address);
            self.core.ring.send(&words, &self.core.stream, block)?;
            state.sent = words;
        }
        let exec = state.exec.as_ref().ok_or_else(|| Error::bug("cuda", "no graph was built"))?;
        Ok(exec.launch(&self.core.stream)?)
    }

    /// Builds the graph for the slots' present addresses.
    fn build(&self, state: &mut State, slots: &[u64]) -> Result<()> {
        let core = &*self.core;
        // The old graph goes first: both at once may be more than there is.
        state.exec = None;
        state._memory.clear();
        state.sent.clear();
        let block = match &state.block {
            Some(b) => b.address(),
            None => state.block.insert(core.pool.alloc((slots.len() + self.plan.params.len()) * 8)?).address(),
        };
        let mut builder = Builder {
            graph: Graph::new(&core.context)?,
            plan: &self.plan,
            core,
            slots,
            pins: &state.pins,
            block,
            memory: Vec::new(),
        };
        let mut before: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); self.plan.steps.len()];
        let mut last = vec![true; self.plan.steps.len()];
        for &(from, to) in &self.plan.edges {
            before[to as usize].push(from);
            last[from as usize] = false;
        }
        let mut ends: Vec<Node> = Vec::with_capacity(self.plan.steps.len());
        for (i, (step, work)) in self.plan.steps.iter().zip(&self.works).enumerate() {
            let mut after: SmallVec<[Node; 4]> = SmallVec::new();
            for &b in &before[i] {
                let node = ends[b as usize];
                if !after.contains(&node) {
                    after.push(node);
                }
            }
            ends.push(builder.step(step, work, &after)?);
        }
        if self.plan.steps.iter().any(|s| s.kind.may_flag()) {
            let sinks: Vec<Node> = ends.iter().zip(&last).filter(|e| *e.1).map(|e| *e.0).collect();
            let (kernel, args) = core.flags.settle();
            builder.stages(kernel, &sinks, &args)?;
        }
        state.exec = Some(builder.graph.instantiate(&core.stream)?);
        state._memory = builder.memory;
        Ok(())
    }
}

impl Enqueue for PlanGraph {
    fn sizes(&self) -> (usize, usize) {
        (self.plan.slots.len(), self.plan.params.len())
    }

    fn enqueue(&self, slots: &[u64], params: &[u64]) {
        if let Err(e) = self.run(slots, params) {
            // What the device has of the parameter block is not known any more.
            self.state.lock().sent.clear();
            self.core.fail(e);
        }
    }
}

/// A graph under construction.
struct Builder<'a> {
    graph: Graph,
    plan: &'a Plan,
    core: &'a Core,
    slots: &'a [u64],
    pins: &'a [Pin],
    block: Address,
    memory: Vec<Block>,
}

impl Builder<'_> {
    /// Adds a step; the node that ends it.
    fn step(&mut self, step: &Step, work: &Work, after: &[Node]) -> Result<Node> {
        match work {
            Work::Kernels(parts) => {
                let mut ends: SmallVec<[Node; 4]> = SmallVec::new();
                for part in parts {
                    let slots: SmallVec<[u32; 8]> = part.args.iter().map(|&a| step.args[a as usize]).collect();
                    let params: SmallVec<[u32; 4]> = part.params.iter().map(|&p| step.params[p as usize]).collect();
                    let args = self.arguments(&part.kernel, &slots, &params, [])?;
                    ends.push(self.stages(&part.kernel, after, &args)?);
                }
                match ends[..] {
                    [end] => Ok(end),
                    _ => Ok(self.graph.empty(&ends)?),
                }
            }
            Work::Product(product) => self.product(step, product, after),
        }
    }

    fn memory(&mut self, bytes: usize) -> Result<Address> {
        let block = self.core.pool.alloc(bytes)?;
        let address = block.address();
        self.memory.push(block);
        Ok(address)
    }

    fn is_fixed(&self, slot: u32) -> bool {
        matches!(self.plan.slots[slot as usize].kind, SlotKind::Arena { .. })
    }

    /// A kernel's arguments: slots in the arena directly, others by their word of the block, then `fixed` addresses.
    fn arguments<const N: usize>(
        &mut self,
        kernel: &Kernel,
        slots: &[u32],
        params: &[u32],
        fixed: [(usize, Address); N],
    ) -> Result<SmallVec<[u64; 16]>> {
        let scratch = if kernel.scratch_bytes > 0 { Some(self.memory(kernel.scratch_bytes)?) } else { None };
        let mut args: SmallVec<[u64; 16]> = SmallVec::new();
        if !params.is_empty() || slots.iter().any(|&s| !self.is_fixed(s)) {
            args.push(self.block);
        }
        let mut places: SmallVec<[u64; 16]> =
            slots.iter().map(|&s| if self.is_fixed(s) { self.slots[s as usize] } else { s as u64 }).collect();
        for (position, address) in fixed {
            places.insert(position, address);
        }
        args.extend(places);
        args.extend(params.iter().map(|&p| (self.slots.len() + p as usize) as u64));
        args.extend(work::trailing(kernel, self.core, scratch));
        Ok(args)
    }

    /// Adds a kernel's stages, one after the other.
    fn stages(&mut self, kernel: &Kernel, after: &[Node], args: &[u64]) -> Result<Node> {
        let mut after: SmallVec<[Node; 4]> = SmallVec::from_slice(after);
        for (function, grid) in &kernel.stages {
            let node = self.graph.kernel(&after, function, *grid, args)?;
            after = SmallVec::from_slice(&[node]);
        }
        match after[..] {
            [node] if !kernel.stages.is_empty() => Ok(node),
            // Nothing to run (an empty domain): a point that others can wait for.
            _ => Ok(self.graph.empty(&after)?),
        }
    }

    fn product(&mut self, step: &Step, product: &ProductWork, after: &[Node]) -> Result<Node> {
        let core = self.core;
        let Ok(slots) = <[u32; 3]>::try_from(&step.args[..]) else {
            return Err(Error::bug("cuda", "a product without three operands"));
        };
        let mut addresses = slots.map(|s| self.slots[s as usize]);
        let mut copied = work::unaligned(addresses);
        for (c, s) in copied.iter_mut().zip(slots) {
            *c |= self.pins.iter().any(|p| p.slot == s && p.staged);
        }
        let form: Arc<Form> = product.form(copied, core)?;
        if let Some(zeros) = &form.zeros {
            let args = self.arguments(zeros, &slots[2..], &[], [])?;
            return self.stages(zeros, after, &args);
        }
        let mut ready: SmallVec<[Node; 4]> = SmallVec::new();
        for i in 0..3 {
            let Some(copy) = &form.copies[i] else { continue };
            let to = self.memory(form.planned.copy_bytes[i])?;
            if i < 2 {
                let args = self.arguments(copy, &slots[i..i + 1], &[], [(1, to)])?;
                ready.push(self.stages(copy, after, &args)?);
            }
            addresses[i] = to;
        }
        if ready.is_empty() {
            ready = SmallVec::from_slice(after);
        }
        let workspace = form.algorithms.iter().map(|a| a.workspace).max().unwrap_or(0);
        let workspace = if workspace > 0 { self.memory(workspace)? } else { 0 };
        if form.planned.calls.is_empty() {
            return Ok(self.graph.empty(&ready)?);
        }
        let child = Graph::capture(&core.context, &core.side, || form.call(core, addresses, workspace, &core.side))?;
        let node = self.graph.child(&ready, &child)?;
        let Some(copy) = &form.copies[2] else { return Ok(node) };
        let args = self.arguments(copy, &slots[2..], &[], [(0, addresses[2])])?;
        self.stages(copy, &[node], &args)
    }
}
