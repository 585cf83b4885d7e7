//! Launching a compiled segment: inputs bound, `Var`s locked, outputs handed out.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::{Buffer, InputBinding, Launch, LaunchResult};
use crate::base::{Error, Layout, Result};
use crate::plan::OutputStorage;
use crate::tensor::eager::Flag;
use crate::tensor::{Device, Ready, Tensor, var};
use crate::trace::segment::{SegmentPlan, Source};
use crate::trace::session::Session;

impl Session {
    /// Runs a plan on this call's values; commits the `Var` writes.
    pub fn launch(&mut self, plan: &SegmentPlan) -> Result<()> {
        if plan.executable.is_none() {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut sources: SmallVec<[&Tensor; 32]> = SmallVec::new();
        for i in &plan.inputs {
            sources.push(match i.source {
                Source::Held(k) => &self.held[k as usize],
                Source::Event(e) => self.event(e).template.as_ref().ok_or_else(no_template)?,
            });
        }
        let device = self.device.as_ref().ok_or_else(|| Error::bug("trace", "a launch without a device"))?;
        let vars = self.vars_of(plan);
        let outcome = launch_plan(plan, device, &sources, &vars, &self.params[..plan.params], 2, &mut scratch);
        drop(vars);
        drop(sources);
        self.set_outputs(plan, &mut scratch.ready)?;
        self.scratch = scratch;
        let outcome = outcome?;
        self.last.launches += 1;
        self.stats.launches += 1;
        self.last.kernels += plan.executable.as_ref().map_or(0, |e| e.kernels()) as u32;
        self.last.arena_bytes = self.last.arena_bytes.max(plan.executable.as_ref().map_or(0, |e| e.arena_bytes()));
        self.last.ops += plan.compiled.as_ref().map_or(0, |c| c.ops) as u32;
        self.last.bytes += plan.compiled.as_ref().map_or(0, |c| c.bytes);
        self.last.in_place += outcome.in_place - outcome.moved;
        if outcome.index_flag {
            return Err(plan.flagged(&outcome));
        }
        Ok(())
    }

    fn set_outputs(&self, plan: &SegmentPlan, ready: &mut Vec<Ready>) -> Result<()> {
        for (&v, ready) in plan.outputs.iter().zip(ready.drain(..)) {
            let _ = self.handle(v)?.0.state.set(Ok(ready));
        }
        Ok(())
    }

    fn vars_of<'a>(&'a self, plan: &'a SegmentPlan) -> SmallVec<[&'a crate::tensor::Var; 16]> {
        plan.writes.iter().map(|&(slot, _)| &self.vars[slot as usize].var).collect()
    }
}

fn no_template() -> Error {
    Error::bug("trace", "an input of a segment has no handle")
}

/// Lists that are kept from launch to launch for their memory.
#[derive(Default)]
pub(crate) struct Scratch {
    /// What a launch made ready.
    pub ready: Vec<Ready>,
    buffers: Vec<Option<Buffer>>,
    /// Asks for the time of each kernel.
    pub times: Option<Vec<(String, Duration)>>,
}

/// Launches `plan` on `sources`, the written `Var`s (in the order of `plan.writes`) locked in id order; `scratch.ready` gets one
/// value per value the plan makes ready.
///
/// `own_handles`: how many handles of a `Var`'s old value belong to the `Var` and the launcher. With no more
/// than those, and no other holder of the buffer, the plan may overwrite it.
pub(crate) fn launch_plan(
    plan: &SegmentPlan,
    device: &Device,
    sources: &[&Tensor],
    vars: &[&crate::tensor::Var],
    params: &[u64],
    own_handles: usize,
    scratch: &mut Scratch,
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
    let Scratch { ready: outputs, buffers, times } = scratch;
    outputs.clear();
    buffers.clear();
    let expected = plan.reference.as_ref().map(|r| r.evaluate(&bindings, params)).transpose()?;
    let mut launch = Launch { inputs: &bindings, params, outputs: buffers };
    let mut result = match times {
        None => executable.launch(&mut launch)?,
        Some(times) => executable.launch_timed(&mut launch, times)?,
    };
    if let Some(ticket) = result.pending {
        let flag = Flag { error: plan.flagged(&result), ticket: Some(ticket) };
        // Values written in place look after themselves; others must not be committed before the device has told.
        let in_place = plan.donors.iter().all(Option::is_some) && result.in_place as usize == plan.writes.len();
        if in_place && plan.reference.is_none() {
            device.flag(flag);
        } else {
            result.index_flag = device.settled(vec![flag])?.is_some();
        }
    }
    if let Some((reference, expected)) = plan.reference.as_ref().zip(expected) {
        // A flag drops what would have been written to `Var`s.
        let given = if result.index_flag { plan.outputs.len() } else { plan.targets.len() };
        for (k, e) in expected.iter().enumerate().take(given) {
            reference.compare(k, e, &ready(plan, k, buffers, &bindings)?)?;
        }
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
            let value = ready(plan, position as usize, buffers, &bindings)?;
            if let Some(guard) = &mut guards[k] {
                let new = var::leaf_of(vars[k], value, guard.0.made);
                old.push(std::mem::replace(&mut **guard, new));
            }
        }
    }
    drop(guards);
    for k in 0..plan.outputs.len() {
        outputs.push(match buffers.get_mut(k).filter(|_| !plan.shared).and_then(|b| b.take()) {
            Some(buffer) => Ready { buffer, layout: plan.layouts[k].clone() },
            None => ready(plan, k, buffers, &bindings)?,
        });
    }
    buffers.clear();
    Ok(result)
}

/// Output `k` of a launch that filled `buffers`.
fn ready(plan: &SegmentPlan, k: usize, buffers: &[Option<Buffer>], bindings: &[InputBinding<'_>]) -> Result<Ready> {
    let target = &plan.targets[k];
    let buffer = match target.storage {
        OutputStorage::Own { .. } => buffers.get(k).cloned().flatten(),
        OutputStorage::Input(i) => bindings.get(i as usize).map(|b| b.buffer.clone()),
        OutputStorage::Output(o) => buffers.get(o as usize).cloned().flatten(),
    };
    let buffer = buffer.ok_or_else(|| Error::bug("trace", format!("output {k} has no buffer")))?;
    let mut layout = plan.layouts[k].clone();
    if let OutputStorage::Input(i) = target.storage {
        // The plan knows its inputs from their lowest element on.
        let moved = bindings[i as usize].layout.offset - plan.inputs[i as usize].layout.offset;
        if moved != 0 {
            layout = Layout { offset: layout.offset + moved, ..*layout }.into();
        }
    }
    Ok(Ready { buffer, layout })
}
