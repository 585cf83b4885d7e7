//! What one launch does on the host, as data.

use std::any::Any;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::backend::{InputBinding, Launch};
use crate::base::{Error, ErrorKind, Layout, Result};
use crate::kernel::Inst;
use crate::kernel::ir::Kernel;
use crate::plan::{OutputStorage, Plan, PlanInput, SlotKind, StepKind};

use super::Bound;

/// The machine's side of a step: `entry(descriptor, slots, params)` does its work and returns its
/// index flag. `slots` holds the address of every slot of the plan, `params` the plan's parameter block.
pub type Entry<D = c_void> = unsafe extern "C" fn(*const D, *const *mut u8, *const u64) -> u32;

/// One call of a launch.
pub struct Call {
    pub(super) entry: Entry,
    /// The entry's name in listings.
    pub(super) symbol: &'static str,
    pub(super) descriptor: *const c_void,
    /// Keeps the descriptor alive.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the descriptor is only handed to the entry, and its owner may be shared between threads.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    /// A call of `entry` with `descriptor`.
    ///
    /// # Safety
    /// `entry` must be safe to call, from several threads at a time, with this descriptor, slot addresses that are valid for
    /// the plan's slots and one word for each parameter of the plan; and it must not unwind.
    pub unsafe fn new<D: Send + Sync + 'static>(symbol: &'static str, entry: Entry<D>, descriptor: D) -> Call {
        let owner = Arc::new(descriptor);
        // SAFETY: thin pointers to different types are passed alike.
        let entry = unsafe { std::mem::transmute::<Entry<D>, Entry>(entry) };
        Call { entry, symbol, descriptor: Arc::as_ptr(&owner).cast(), _owner: owner }
    }
}

/// One action of a launch, after the guards.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A call, by its position.
    Call(u32),
    /// If an index was out of range so far, the output (a position among the owned ones) that was to be
    /// written in place gets a buffer of its own: a step with a bad index must not overwrite a `Var`.
    Spare(u32),
}

/// An output that owns its storage.
#[derive(Debug)]
pub(super) struct Output {
    /// Position among the plan's outputs.
    pub position: u32,
    pub bytes: usize,
    pub in_place: Option<u32>,
    /// The slots that lie in it.
    pub slots: Vec<u32>,
}

/// The host side of a launch.
pub struct Script {
    name: String,
    pub(super) inputs: Vec<PlanInput>,
    /// Number of parameter words.
    pub(super) params: usize,
    /// Parameters that move an access: the word and its largest value, as i64 from 0.
    pub(super) bounds: Vec<(u32, u64)>,
    pub(super) arena_bytes: usize,
    pub(super) slots: Vec<SlotKind>,
    pub(super) outputs: Vec<Output>,
    /// Number of the plan's outputs, views among them.
    pub(super) all_outputs: usize,
    pub(super) calls: Vec<Call>,
    pub(super) actions: Vec<Action>,
    labels: Vec<String>,
    /// Whether a call can raise the index flag.
    pub(super) flagging: Vec<bool>,
}

impl Script {
    /// The script of a plan, given one call per step, made for that step.
    pub fn new(plan: &Plan, calls: Vec<Call>) -> Result<Script> {
        if calls.len() != plan.steps.len() {
            let detail = format!("{} calls for {} steps", calls.len(), plan.steps.len());
            return Err(Error::bug("dispatch", detail));
        }
        let mut script = Script::without_calls(plan)?;
        let outputs = &script.outputs;
        let mut owner = vec![None; plan.slots.len()];
        for (o, output) in outputs.iter().enumerate() {
            output.slots.iter().for_each(|&s| owner[s as usize] = Some(o));
        }
        let flagging: Vec<bool> = plan.steps.iter().map(|s| s.kind.may_flag()).collect();
        let mut actions = Vec::new();
        let mut spared = vec![false; outputs.len()];
        let mut flagged = false;
        for (i, step) in plan.steps.iter().enumerate() {
            for o in step.args.iter().filter_map(|&slot| owner[slot as usize]) {
                if !std::mem::replace(&mut spared[o], true) && flagged && outputs[o].in_place.is_some() {
                    actions.push(Action::Spare(o as u32));
                }
            }
            actions.push(Action::Call(i as u32));
            flagged |= flagging[i];
        }
        script.labels = plan.steps.iter().map(|s| s.label.clone()).collect();
        (script.calls, script.actions, script.flagging) = (calls, actions, flagging);
        Ok(script)
    }

    /// Guards, slots and outputs.
    fn without_calls(plan: &Plan) -> Result<Script> {
        let bug = |detail: String| Err(Error::bug("dispatch", detail));
        let mut outputs: Vec<Output> = Vec::new();
        // Of each of the plan's outputs, its position among the owned ones.
        let mut owned = vec![None; plan.outputs.len()];
        for (position, output) in plan.outputs.iter().enumerate() {
            if let OutputStorage::Own { bytes } = output.storage {
                owned[position] = Some(outputs.len());
                let (position, in_place) = (position as u32, output.in_place);
                outputs.push(Output { position, bytes, in_place, slots: Vec::new() });
            }
        }
        let owner = |slot: u32| match plan.slots.get(slot as usize)?.kind {
            SlotKind::Output(position) => owned.get(position as usize).copied()?,
            _ => None,
        };
        for slot in 0..plan.slots.len() as u32 {
            if let Some(o) = owner(slot) {
                outputs[o].slots.push(slot);
            }
        }
        let mut taken = vec![false; plan.inputs.len()];
        for o in &outputs {
            let Some(input) = o.in_place.map(|i| i as usize) else { continue };
            if plan.inputs.get(input).is_none_or(|i| i.bytes < o.bytes) {
                return bug(format!("output {} does not fit into input {input}", o.position));
            }
            if std::mem::replace(&mut taken[input], true) {
                return bug(format!("two outputs in place of input {input}"));
            }
        }
        Ok(Script {
            name: plan.name.clone(),
            inputs: plan.inputs.clone(),
            params: plan.params.len(),
            bounds: bounds(plan),
            arena_bytes: plan.arena_bytes,
            slots: plan.slots.iter().map(|s| s.kind).collect(),
            outputs,
            all_outputs: plan.outputs.len(),
            calls: Vec::new(),
            actions: Vec::new(),
            labels: Vec::new(),
            flagging: Vec::new(),
        })
    }

    /// The script of a plan that one call runs as a whole: the backend keeps the steps' order, and what a bad index must
    /// not overwrite.
    pub fn whole(plan: &Plan, call: Call) -> Result<Script> {
        let mut script = Script::without_calls(plan)?;
        (script.calls, script.actions) = (vec![call], vec![Action::Call(0)]);
        (script.labels, script.flagging) = (vec!["graph".to_string()], vec![false]);
        Ok(script)
    }

    /// The plan's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of calls of a launch.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Bytes by which a binding begins later in its buffer than the plan's layout says; `None`: earlier.
    #[inline]
    pub(super) fn moved(&self, input: usize, given: &InputBinding<'_>) -> Option<usize> {
        let elements = usize::try_from(given.layout.offset - self.inputs[input].layout.offset).ok()?;
        Some(elements * given.dtype.size())
    }

    /// Whether an input fits: what the compiled guards check too.
    pub(super) fn fits(&self, input: usize, bound: &Bound) -> bool {
        let want = &self.inputs[input];
        // SAFETY: `launch` points it at the binding's layout, which outlives the run.
        let layout = unsafe { &*bound.layout };
        bound.dtype == want.ty.dtype as u32 && bound.bytes >= want.bytes && same_elements(layout, &want.layout)
    }

    /// The error of a launch with the wrong number of inputs or parameters.
    #[cold]
    pub(super) fn miscounted(&self, launch: &Launch<'_>) -> Error {
        self.error(
            format!("{} inputs and {} parameters", self.inputs.len(), self.params),
            format!("{} inputs and {} parameters", launch.inputs.len(), launch.params.len()),
        )
    }

    /// The error of an input that another backend made.
    #[cold]
    pub(super) fn foreign(&self, input: usize) -> Error {
        self.error(format!("input {input} on the plan's own device"), "a buffer of another device".into())
    }

    /// The error of a launch that the guards refused.
    #[cold]
    pub(super) fn misfit(&self, launch: &Launch<'_>) -> Error {
        for (i, (want, given)) in self.inputs.iter().zip(launch.inputs).enumerate() {
            let bytes = self.moved(i, given).map_or(0, |m| given.buffer.bytes().saturating_sub(m));
            if given.dtype != want.ty.dtype || bytes < want.bytes || !same_elements(given.layout, &want.layout) {
                return self.error(
                    format!("input {i}: {} of at least {} bytes", describe(want.ty.dtype, &want.layout), want.bytes),
                    format!("{} of {bytes} bytes", describe(given.dtype, given.layout)),
                );
            }
        }
        for &(word, max) in &self.bounds {
            let given = launch.params[word as usize];
            if given > max {
                return self.error(format!("parameter {word} in 0..={max}"), format!("{}", given as i64));
            }
        }
        Error::bug("dispatch", format!("plan {}: a guard failed for inputs that fit", self.name))
    }

    fn error(&self, expected: String, given: String) -> Error {
        Error::new(ErrorKind::Argument { op: "launch", expected: format!("{expected} (plan {})", self.name), given })
    }

    /// The step's number and label, for listings.
    pub(super) fn step_name(&self, call: usize) -> String {
        match self.labels[call].as_str() {
            "" => format!("step{call}"),
            label => format!("step{call}:{label}"),
        }
    }
}

/// Whether two layouts lie alike from their first element on: shape, and the strides that matter.
fn same_elements(given: &Layout, want: &Layout) -> bool {
    given.shape == want.shape
        && (given.strides == want.strides || checked_axes(want).all(|a| given.strides[a] == want.strides[a]))
}

/// The axes whose stride matters.
pub(super) fn checked_axes(layout: &Layout) -> impl Iterator<Item = usize> + use<> {
    let shape = layout.shape;
    (0..shape.rank()).filter(move |&a| shape[a] > 1 && shape.numel() > 0)
}

fn describe(dtype: crate::base::DType, layout: &Layout) -> String {
    let mut text = format!("{dtype}{}", layout.shape);
    if !layout.is_contiguous() {
        let _ = write!(text, " with strides {:?}", layout.strides());
    }
    if layout.offset != 0 {
        let _ = write!(text, " at element {}", layout.offset);
    }
    text
}

/// The parameters that move an access, with the largest value that all steps allow.
fn bounds(plan: &Plan) -> Vec<(u32, u64)> {
    let mut max = vec![u64::MAX; plan.params.len()];
    for step in &plan.steps {
        let StepKind::Kernel(kernel) = &step.kind else { continue };
        for dynamic in accesses(kernel).flat_map(|a| &a.dynamic) {
            if let Some(max) = step.params.get(dynamic.param as usize).and_then(|&w| max.get_mut(w as usize)) {
                *max = (*max).min(dynamic.max.max(0) as u64);
            }
        }
    }
    max.iter().enumerate().filter(|&(_, &m)| m != u64::MAX).map(|(w, &m)| (w as u32, m)).collect()
}

fn accesses(kernel: &Kernel) -> impl Iterator<Item = &crate::kernel::ir::Access> {
    kernel.body.iter().filter_map(|i| match i {
        Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => Some(access),
        _ => None,
    })
}

/// The script as text: guards, slots, outputs, actions.
impl std::fmt::Display for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "script @{} {{", self.name)?;
        for (i, input) in self.inputs.iter().enumerate() {
            writeln!(f, "  guard input{i}: {}, {} bytes", describe(input.ty.dtype, &input.layout), input.bytes)?;
        }
        for (word, max) in &self.bounds {
            writeln!(f, "  guard param{word} in 0..={max}")?;
        }
        for (i, slot) in self.slots.iter().enumerate() {
            match slot {
                SlotKind::Arena { offset } => writeln!(f, "  slot{i} = arena + {offset}")?,
                SlotKind::Input(n) => writeln!(f, "  slot{i} = input{n}")?,
                SlotKind::Output(n) => writeln!(f, "  slot{i} = output{n}")?,
            }
        }
        for o in &self.outputs {
            match o.in_place {
                Some(input) => {
                    writeln!(f, "  output{} = input{input} if exclusive, else {} bytes", o.position, o.bytes)?
                }
                None => writeln!(f, "  output{} = {} bytes", o.position, o.bytes)?,
            }
        }
        for action in &self.actions {
            match action {
                Action::Call(c) => {
                    writeln!(f, "  call {} {}", self.calls[*c as usize].symbol, self.step_name(*c as usize))?;
                }
                Action::Spare(o) => writeln!(f, "  if flagged: output{} is new", self.outputs[*o as usize].position)?,
            }
        }
        writeln!(f, "}}")
    }
}
