//! The independent checker of plans.
//!
//! [`check`] trusts nothing that the passes believe: from the kernels' own accesses it derives the
//! bytes that every step touches, and walks the steps once, keeping for each range of memory who
//! wrote it last, through which slot, and who has read it since. Each read needs a path from that
//! writer, each write a path from that writer and from those readers; by transitivity any two
//! steps that touch common bytes, one of them writing, are then ordered by a path, so every topological order
//! gives the same values. An output that may be written in place is walked twice: in memory of its own, and in
//! that of its input.
//! May rely on floors 0 and 1 and on the plan's own types. Guarantees: what is inside a [`Checked`] touches
//! memory only in bounds, never reads what was not written, and writes every output, in any allowed order.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use crate::base::{DType, Error};
use crate::plan::access::{self, Touch, Touches};
use crate::plan::{OutputStorage, Plan, SlotKind, StepKind};

/// A plan that [`check`] accepted; only such a plan can be executed.
#[derive(Clone, Debug)]
pub struct Checked(Plan);

impl Checked {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }

    /// Gives the plan back, to be changed (and checked again).
    pub fn into_plan(self) -> Plan {
        self.0
    }
}

/// What is wrong with a plan. Numbers are positions in the plan's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A position that does not exist.
    BadIndex { what: &'static str, index: u32 },
    /// A slot that is misaligned or does not fit the arena.
    Offset { slot: u32 },
    /// An access beyond its argument, slot, buffer or storage.
    Bounds { what: &'static str, index: u32 },
    /// An edge that does not lead from a lower to a higher step (so also every cycle).
    Order { from: u32, to: u32 },
    /// Two steps that touch common bytes, at least one writing, with no path between them.
    Race { a: u32, b: u32 },
    /// The step reads bytes that nothing wrote.
    Uninitialised { step: u32, slot: u32 },
    /// The step reads through the slot what step `by` has overwritten through another one.
    Clobbered { step: u32, slot: u32, by: u32 },
    /// An output of which some bytes are never written.
    Unwritten { output: u32 },
    /// The step stores twice to one place, or stores over its own input other than element by element.
    Overlap { step: u32 },
    /// The output must not overwrite the input in place.
    InPlace { output: u32, input: u32 },
    /// Number, dtype or role of a step's arguments or parameters.
    Signature { step: u32 },
    /// The step's kernel is not well formed.
    Kernel { step: u32 },
}

/// Why a plan was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The plan's name.
    pub plan: String,
    pub fault: Fault,
    /// The same in words.
    pub detail: String,
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "plan @{}: {}", self.plan, self.detail)
    }
}

impl std::error::Error for Rejected {}

impl From<Rejected> for Error {
    fn from(r: Rejected) -> Error {
        Error::bug("plan", r.to_string())
    }
}

/// A fault and its explanation, before the plan's name is added.
pub(in crate::plan) type Found<T = ()> = Result<T, (Fault, String)>;

/// Proves that the plan is right for every order of steps that its edges allow.
pub fn check(plan: Plan) -> Result<Checked, Rejected> {
    match examine(&plan) {
        Ok(()) => Ok(Checked(plan)),
        Err((fault, detail)) => Err(Rejected { plan: plan.name, fault, detail }),
    }
}

fn examine(plan: &Plan) -> Found {
    inputs_and_outputs(plan)?;
    slots(plan)?;
    let paths = Paths::new(plan)?;
    let touches = signatures(plan)?;
    memory(plan, &paths, &touches)
}

/// Inputs and outputs fit their buffers; views and in-place pairs make sense.
fn inputs_and_outputs(plan: &Plan) -> Found {
    for (i, input) in plan.inputs.iter().enumerate() {
        let fits = access::layout_bytes(&input.layout, input.ty.dtype)
            .is_none_or(|(lo, hi)| lo >= 0 && hi <= input.bytes as i128);
        if !fits || input.layout.shape != input.ty.shape {
            let detail = format!("input {i} ({}) does not lie in its {} bytes", input.ty, input.bytes);
            return Err((Fault::Bounds { what: "input", index: i as u32 }, detail));
        }
    }
    let mut overwritten: SmallVec<[Option<u32>; 16]> = smallvec![None; plan.inputs.len()];
    for (o, output) in plan.outputs.iter().enumerate() {
        let o = o as u32;
        let bytes = match output.storage {
            OutputStorage::Own { bytes } => bytes,
            OutputStorage::Input(i) => match plan.inputs.get(i as usize) {
                Some(input) => input.bytes,
                None => return Err(bad_index("input", i, format!("the storage of output {o}"))),
            },
            OutputStorage::Output(p) => match plan.outputs.get(p as usize).map(|p| p.storage) {
                Some(OutputStorage::Own { bytes }) => bytes,
                _ => return Err(bad_index("output", p, format!("the storage of output {o}, which must be its own"))),
            },
        };
        let fits =
            access::layout_bytes(&output.layout, output.ty.dtype).is_none_or(|(lo, hi)| lo >= 0 && hi <= bytes as i128);
        if !fits || output.layout.shape != output.ty.shape {
            let detail = format!("output {o} ({}) does not lie in the {bytes} bytes of its storage", output.ty);
            return Err((Fault::Bounds { what: "output", index: o }, detail));
        }
        let Some(i) = output.in_place else { continue };
        let Some(input) = plan.inputs.get(i as usize) else {
            return Err(bad_index("input", i, format!("the one that output {o} overwrites")));
        };
        let fault = Fault::InPlace { output: o, input: i };
        if !matches!(output.storage, OutputStorage::Own { .. }) {
            return Err((fault, format!("output {o} is a view and cannot overwrite input {i}")));
        }
        if !input.var {
            return Err((fault, format!("output {o} overwrites input {i}, which is not a `Var`'s value")));
        }
        if input.bytes < bytes {
            return Err((fault, format!("output {o} needs {bytes} bytes, input {i} has only {}", input.bytes)));
        }
        if let Some(other) = overwritten[i as usize].replace(o) {
            return Err((fault, format!("outputs {other} and {o} both overwrite input {i}")));
        }
    }
    for (o, output) in plan.outputs.iter().enumerate() {
        if let OutputStorage::Input(i) = output.storage
            && let Some(by) = overwritten[i as usize]
        {
            let detail = format!("output {o} is a view of input {i}, which output {by} overwrites");
            return Err((Fault::InPlace { output: by, input: i }, detail));
        }
    }
    Ok(())
}

/// Slots lie where they may.
fn slots(plan: &Plan) -> Found {
    for (s, slot) in plan.slots.iter().enumerate() {
        let s = s as u32;
        match slot.kind {
            SlotKind::Arena { offset } => {
                let end = offset.checked_add(slot.bytes);
                if offset % access::ALIGN != 0 || end.is_none_or(|e| e > plan.arena_bytes) {
                    let detail = format!(
                        "slot {s} ({} bytes at {offset}) is misaligned or beyond the arena of {} bytes",
                        slot.bytes, plan.arena_bytes
                    );
                    return Err((Fault::Offset { slot: s }, detail));
                }
            }
            SlotKind::Input(i) => match plan.inputs.get(i as usize) {
                None => return Err(bad_index("input", i, format!("that of slot {s}"))),
                Some(input) if input.bytes < slot.bytes => return Err(beyond(s, "input", i, input.bytes)),
                Some(_) => {}
            },
            SlotKind::Output(o) => match plan.outputs.get(o as usize).map(|o| o.storage) {
                Some(OutputStorage::Own { bytes }) if bytes < slot.bytes => return Err(beyond(s, "output", o, bytes)),
                Some(OutputStorage::Own { .. }) => {}
                _ => return Err(bad_index("output", o, format!("that of slot {s}, which must own its storage"))),
            },
        }
    }
    Ok(())
}

fn beyond(slot: u32, what: &'static str, index: u32, bytes: usize) -> (Fault, String) {
    let detail = format!("slot {slot} is larger than the {bytes} bytes of {what} {index}");
    (Fault::Bounds { what: "slot", index: slot }, detail)
}

fn bad_index(what: &'static str, index: u32, of: String) -> (Fault, String) {
    (Fault::BadIndex { what, index }, format!("there is no {what} {index} ({of})"))
}

/// Each step's arguments and parameters match its kernel; gives the bytes each step touches.
fn signatures(plan: &Plan) -> Found<Vec<Touches>> {
    // The dtype a slot holds: that of the input or output, else of its first use.
    let mut held: Vec<Option<DType>> = plan
        .slots
        .iter()
        .map(|s| match s.kind {
            SlotKind::Arena { .. } => None,
            SlotKind::Input(i) => Some(plan.inputs[i as usize].ty.dtype),
            SlotKind::Output(o) => Some(plan.outputs[o as usize].ty.dtype),
        })
        .collect();
    let mut all = Vec::with_capacity(plan.steps.len());
    for (t, step) in plan.steps.iter().enumerate() {
        let t = t as u32;
        let signature = |detail: String| (Fault::Signature { step: t }, format!("step {t} ({}): {detail}", step.label));
        for &s in &step.args {
            if s as usize >= plan.slots.len() {
                return Err(bad_index("slot", s, format!("an argument of step {t}")));
            }
        }
        for &p in &step.params {
            if p as usize >= plan.params.len() {
                return Err(bad_index("param", p, format!("a parameter of step {t}")));
            }
        }
        if let StepKind::Kernel(kernel) = &step.kind {
            if kernel.params.len() != step.params.len() {
                return Err(signature(format!("{} parameters for {}", step.params.len(), kernel.params.len())));
            }
            for (k, (&p, &ty)) in step.params.iter().zip(&kernel.params).enumerate() {
                let dtype = plan.params[p as usize];
                if crate::kernel::Ty::of(dtype) != ty {
                    return Err(signature(format!("parameter {k} is {}, word {p} is {dtype}", ty.name())));
                }
            }
        } else if let StepKind::Library(library) = &step.kind {
            let wanted = library.params();
            let given = step.params.iter().map(|&p| plan.params[p as usize]);
            if !given.eq(wanted.iter().copied()) {
                return Err(signature(format!("{} parameters for {}", step.params.len(), wanted.len())));
            }
        }
        let touches = access::touches(&step.kind, step.args.len()).map_err(|fault| match fault {
            access::Misfit::Signature(detail) => signature(detail),
            access::Misfit::Kernel(detail) => {
                (Fault::Kernel { step: t }, format!("step {t} ({}): {detail}", step.label))
            }
            access::Misfit::Bounds(detail) => {
                (Fault::Bounds { what: "step", index: t }, format!("step {t} ({}): {detail}", step.label))
            }
            access::Misfit::Overlap(detail) => {
                (Fault::Overlap { step: t }, format!("step {t} ({}): {detail}", step.label))
            }
        })?;
        for (k, (arg, &s)) in touches.args.iter().zip(&step.args).enumerate() {
            let slot = &plan.slots[s as usize];
            match held[s as usize] {
                Some(dtype) if dtype != arg.dtype => {
                    return Err(signature(format!("argument {k} is {}, slot {s} holds {dtype}", arg.dtype)));
                }
                _ => held[s as usize] = Some(arg.dtype),
            }
            if arg.output && matches!(slot.kind, SlotKind::Input(_)) {
                return Err(signature(format!("argument {k} is written, but slot {s} is an input")));
            }
            if arg.bytes > slot.bytes {
                let detail = format!(
                    "step {t} ({}): argument {k} spans {} bytes, slot {s} has {}",
                    step.label, arg.bytes, slot.bytes
                );
                return Err((Fault::Bounds { what: "step", index: t }, detail));
            }
        }
        all.push(touches);
    }
    Ok(all)
}

/// Which steps come before which.
enum Paths {
    /// Row `b` of the bit matrix holds every step with a path to `b`.
    Closure { words: usize, rows: Vec<u64> },
    /// Too many steps for the matrix: predecessors, searched from the later step down.
    Search { before: Vec<SmallVec<[u32; 4]>> },
}

/// Steps up to which the bit matrix is kept (32 MiB at most).
const CLOSURE_LIMIT: usize = 1 << 14;

impl Paths {
    fn new(plan: &Plan) -> Found<Paths> {
        Paths::with_limit(plan, CLOSURE_LIMIT)
    }

    fn with_limit(plan: &Plan, limit: usize) -> Found<Paths> {
        let n = plan.steps.len();
        let mut before: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); n];
        for &(from, to) in &plan.edges {
            if from as usize >= n || to as usize >= n {
                return Err(bad_index("step", from.max(to), format!("in the edge {from} -> {to}")));
            }
            if from >= to {
                let detail = format!("the edge {from} -> {to} does not lead to a later step");
                return Err((Fault::Order { from, to }, detail));
            }
            before[to as usize].push(from);
        }
        if n > limit {
            return Ok(Paths::Search { before });
        }
        let words = n.div_ceil(64);
        let mut rows = vec![0u64; n * words];
        for (b, preds) in before.iter().enumerate() {
            let (earlier, rest) = rows.split_at_mut(b * words);
            let row = &mut rest[..words];
            for &a in preds {
                // A path that is known already brings nothing new.
                if row[a as usize / 64] >> (a % 64) & 1 == 1 {
                    continue;
                }
                let used = a as usize / 64 + 1;
                for (to, from) in row[..used].iter_mut().zip(&earlier[a as usize * words..][..used]) {
                    *to |= from;
                }
                row[a as usize / 64] |= 1 << (a % 64);
            }
        }
        Ok(Paths::Closure { words, rows })
    }

    /// Whether a path leads from `a` to `b` (a step reaches itself).
    fn reaches(&self, a: u32, b: u32) -> bool {
        if a >= b {
            return a == b;
        }
        match self {
            Paths::Closure { words, rows } => rows[b as usize * words + a as usize / 64] >> (a % 64) & 1 == 1,
            Paths::Search { before } => {
                let mut seen = rustc_hash::FxHashSet::default();
                let mut stack = vec![b];
                while let Some(s) = stack.pop() {
                    for &p in &before[s as usize] {
                        if p == a {
                            return true;
                        }
                        // A step below `a` cannot come after it.
                        if p > a && seen.insert(p) {
                            stack.push(p);
                        }
                    }
                }
                false
            }
        }
    }
}

/// A range of bytes with one history.
#[derive(Clone)]
struct Segment {
    end: usize,
    /// Through what it was last written; `None`: overwritten in part, no value can be read.
    owner: Option<u32>,
    /// The last writer; `None`: the launch itself (inputs).
    writer: Option<u32>,
    /// Steps that have read it since.
    readers: SmallVec<[u32; 4]>,
}

/// One piece of memory, by ascending byte; what is absent was never written.
#[derive(Default)]
struct Memory {
    segments: BTreeMap<usize, Segment>,
}

/// What a walk ran into.
enum Conflict {
    Unordered { with: u32 },
    Uninitialised,
    Clobbered { by: u32 },
}

impl Memory {
    /// Cuts segments so that none crosses `at`.
    fn cut(&mut self, at: usize) {
        if let Some((&start, segment)) = self.segments.range_mut(..at).next_back()
            && start < at
            && segment.end > at
        {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }

    fn read(&mut self, lo: usize, hi: usize, owner: u32, step: u32, paths: &Paths) -> Result<(), Conflict> {
        self.cut(lo);
        self.cut(hi);
        let mut reached = lo;
        for (&start, segment) in self.segments.range_mut(lo..hi) {
            if start != reached {
                return Err(Conflict::Uninitialised);
            }
            reached = segment.end;
            if segment.owner != Some(owner) {
                return Err(match segment.writer {
                    Some(by) if !paths.reaches(by, step) => Conflict::Unordered { with: by },
                    Some(by) => Conflict::Clobbered { by },
                    None => Conflict::Uninitialised,
                });
            }
            if let Some(w) = segment.writer
                && !paths.reaches(w, step)
            {
                return Err(Conflict::Unordered { with: w });
            }
            if segment.readers.last() != Some(&step) {
                segment.readers.push(step);
            }
        }
        if reached != hi { Err(Conflict::Uninitialised) } else { Ok(()) }
    }

    /// `all`: every byte of the range is written, else perhaps only some.
    fn write(
        &mut self,
        (lo, hi): (usize, usize),
        all: bool,
        owner: u32,
        step: u32,
        paths: &Paths,
    ) -> Result<(), Conflict> {
        self.cut(lo);
        self.cut(hi);
        let unordered = |s: &u32| !paths.reaches(*s, step);
        let mut touched: SmallVec<[(usize, usize, bool); 8]> = SmallVec::new();
        for (&start, segment) in self.segments.range(lo..hi) {
            if let Some(&with) = segment.writer.iter().chain(&segment.readers).find(|s| unordered(s)) {
                return Err(Conflict::Unordered { with });
            }
            touched.push((start, segment.end, segment.owner == Some(owner)));
        }
        for &(start, ..) in &touched {
            self.segments.remove(&start);
        }
        let fresh = |end, owner| Segment { end, owner, writer: Some(step), readers: SmallVec::new() };
        if all {
            self.segments.insert(lo, fresh(hi, Some(owner)));
            return Ok(());
        }
        // Where it may or may not have been written: the old value is gone, unless it was this slot's own.
        let mut at = lo;
        for (start, end, own) in touched {
            if at < start {
                self.segments.insert(at, fresh(start, None));
            }
            self.segments.insert(start, fresh(end, own.then_some(owner)));
            at = end;
        }
        if at < hi {
            self.segments.insert(at, fresh(hi, None));
        }
        Ok(())
    }

    /// Whether every byte of the range holds what was written through `owner`.
    fn holds(&self, lo: usize, hi: usize, owner: u32) -> bool {
        let mut at = lo;
        let first = self.segments.range(..=lo).next_back().map_or(lo, |(&s, _)| s);
        for (&start, segment) in self.segments.range(first..hi) {
            if segment.end <= lo {
                continue;
            }
            if start > at || segment.owner != Some(owner) {
                return false;
            }
            at = segment.end;
        }
        at >= hi
    }
}

/// The walk over the steps: races, reads of what is not there, outputs.
fn memory(plan: &Plan, paths: &Paths, touches: &[Touches]) -> Found {
    let mut arena = Memory::default();
    // Each output in memory of its own.
    let mut own: Vec<Memory> = plan.outputs.iter().map(|_| Memory::default()).collect();
    // The same where it overwrites its input: by input, (the output, the common memory).
    let mut shared: Vec<Option<(u32, Memory)>> = plan.inputs.iter().map(|_| None).collect();
    for (o, output) in plan.outputs.iter().enumerate() {
        if let Some(i) = output.in_place {
            let whole = Segment {
                end: plan.inputs[i as usize].bytes,
                owner: Some(OLD),
                writer: None,
                readers: SmallVec::new(),
            };
            shared[i as usize] = Some((o as u32, Memory { segments: BTreeMap::from([(0, whole)]) }));
        }
    }
    for (t, (step, touches)) in plan.steps.iter().zip(touches).enumerate() {
        let t = t as u32;
        same_step(plan, t, touches)?;
        // A step reads before it writes.
        for writing in [false, true] {
            for touch in touches.list.iter().filter(|x| x.write == writing) {
                let s = step.args[touch.arg as usize];
                let fault = |c: Conflict| conflict(plan, t, s, c);
                match plan.slots[s as usize].kind {
                    SlotKind::Arena { offset } => access(&mut arena, touch, offset, s, t, paths).map_err(fault)?,
                    SlotKind::Input(i) => {
                        if let Some((o, memory)) = &mut shared[i as usize] {
                            let fault = |c| in_place(t, *o, i, c);
                            access(memory, touch, 0, OLD, t, paths).map_err(fault)?;
                        }
                    }
                    SlotKind::Output(o) => {
                        access(&mut own[o as usize], touch, 0, NEW, t, paths).map_err(fault)?;
                        if let Some(i) = plan.outputs[o as usize].in_place
                            && let Some((_, memory)) = &mut shared[i as usize]
                        {
                            let fault = |c| in_place(t, o, i, c);
                            access(memory, touch, 0, NEW, t, paths).map_err(fault)?;
                        }
                    }
                }
            }
        }
    }
    for (o, output) in plan.outputs.iter().enumerate() {
        let storage = match output.storage {
            OutputStorage::Own { .. } => o,
            OutputStorage::Output(p) => p as usize,
            OutputStorage::Input(_) => continue,
        };
        let written = access::layout_runs(&output.layout, output.ty.dtype)
            .iter()
            .all(|&(lo, hi)| own[storage].holds(lo, hi, NEW));
        if !written {
            let detail = format!("output {o} ({}) is not written, or not all of it", output.ty);
            return Err((Fault::Unwritten { output: o as u32 }, detail));
        }
    }
    Ok(())
}

/// Owners in memory that an input and an output share.
const OLD: u32 = 0;
const NEW: u32 = 1;

fn access(
    memory: &mut Memory,
    touch: &Touch,
    base: usize,
    owner: u32,
    step: u32,
    paths: &Paths,
) -> Result<(), Conflict> {
    if !touch.write {
        return memory.read(base + touch.lo, base + touch.hi, owner, step, paths);
    }
    match &touch.runs {
        None => memory.write((base + touch.lo, base + touch.hi), touch.all, owner, step, paths),
        Some(runs) => {
            runs.iter().try_for_each(|&(lo, hi)| memory.write((base + lo, base + hi), true, owner, step, paths))
        }
    }
}

fn conflict(plan: &Plan, step: u32, slot: u32, c: Conflict) -> (Fault, String) {
    let label = |s: u32| plan.steps[s as usize].label.as_str();
    match c {
        Conflict::Unordered { with } => (
            Fault::Race { a: with, b: step },
            format!(
                "steps {with} ({}) and {step} ({}) touch the same bytes of slot {slot} and neither comes first",
                label(with),
                label(step)
            ),
        ),
        Conflict::Uninitialised => (
            Fault::Uninitialised { step, slot },
            format!("step {step} ({}) reads bytes of slot {slot} that nothing wrote", label(step)),
        ),
        Conflict::Clobbered { by } => (
            Fault::Clobbered { step, slot, by },
            format!(
                "step {step} ({}) reads slot {slot}, whose bytes step {by} ({}) has overwritten",
                label(step),
                label(by)
            ),
        ),
    }
}

fn in_place(step: u32, output: u32, input: u32, c: Conflict) -> (Fault, String) {
    let detail = match c {
        Conflict::Unordered { with } => format!("steps {with} and {step} are not ordered"),
        Conflict::Clobbered { by } => format!("step {step} reads the old value, which step {by} has overwritten"),
        Conflict::Uninitialised => format!("step {step} reads the new value before it is written"),
    };
    (Fault::InPlace { output, input }, format!("output {output} overwrites input {input} in place, but {detail}"))
}

/// A step that writes over what it reads or writes itself does so element by element.
fn same_step(plan: &Plan, t: u32, touches: &Touches) -> Found {
    let step = &plan.steps[t as usize];
    for (k, w) in touches.list.iter().enumerate().filter(|(_, w)| w.write) {
        let ws = plan.slots[step.args[w.arg as usize] as usize].kind;
        for (j, r) in touches.list.iter().enumerate() {
            // Of two writes each pair is looked at once.
            if j == k || (r.write && j < k) {
                continue;
            }
            let rs = plan.slots[step.args[r.arg as usize] as usize].kind;
            let (wbase, rbase, pair) = match (ws, rs) {
                (SlotKind::Arena { offset: a }, SlotKind::Arena { offset: b }) => (a, b, None),
                (SlotKind::Output(a), SlotKind::Output(b)) if a == b => (0, 0, None),
                (SlotKind::Output(o), SlotKind::Input(i)) if plan.outputs[o as usize].in_place == Some(i) => {
                    (0, 0, Some((o, i)))
                }
                _ => continue,
            };
            if wbase + w.lo >= rbase + r.hi || rbase + r.lo >= wbase + w.hi {
                continue;
            }
            if !r.write && wbase as i128 - rbase as i128 == 0 && touches.same_element(w, r) {
                continue;
            }
            if r.write && w.apart(r, wbase, rbase) {
                continue;
            }
            let detail = format!("step {t} ({}) overwrites other elements than the one it reads or writes", step.label);
            return Err(match pair {
                Some((output, input)) => (Fault::InPlace { output, input }, detail),
                None => (Fault::Overlap { step: t }, detail),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "check_random.rs"]
mod random;
#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
