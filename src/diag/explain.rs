//! The explanation of a step: its trace tree, and what was compiled from it, with the user's lines.

use crate::base::Loc;
use crate::trace::segment::SegmentPlan;
use crate::trace::session::Session;
use crate::trace::tree::{Def, Event, ExternalGuard, Kind, Path, Tape};

/// What a step recorded and what became of it, in words. `Display` prints it.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut step = jit::Step::new();
/// for _ in 0..3 {
///     step.run(|| x.exp()?.add(1.0))?;
/// }
/// println!("{}", step.explain()); // or field by field
/// assert_eq!(step.explain().paths.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// One a path; the first is the root.
    pub paths: Vec<PathExplanation>,
}

/// A path of the trace tree.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut step = jit::Step::new();
/// for _ in 0..3 {
///     step.run(|| x.exp()?.add(1.0))?;
/// }
/// let path = &step.explain().paths[0];
/// assert_eq!((path.id, path.parent), (0, None));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PathExplanation {
    /// Position among the paths, and that of the path it branches from.
    pub id: u32,
    pub parent: Option<u32>,
    /// Number of events before it branches off, and of its own.
    pub base: u32,
    pub events: usize,
    /// What is compared at first touch, and the line of it: types and layouts of tensors from outside, types of `Var`s.
    pub guards: Vec<String>,
    /// Every segment that ends on this path.
    pub segments: Vec<SegmentExplanation>,
}

/// A segment and its plans.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut step = jit::Step::new();
/// for _ in 0..3 {
///     step.run(|| x.exp()?.add(1.0))?;
/// }
/// assert_eq!(step.explain().paths[0].segments[0].plans.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct SegmentExplanation {
    /// The host read that ends it (`file:line`), or "the closure's end".
    pub ends_at: String,
    pub plans: Vec<PlanExplanation>,
}

/// One plan of a segment.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([1.0f32, 2.0], device)?;
/// let mut step = jit::Step::new();
/// for _ in 0..3 {
///     step.run(|| x.exp()?.add(1.0))?;
/// }
/// let plan = &step.explain().paths[0].segments[0].plans[0];
/// assert_eq!((plan.ops, plan.kernels.len()), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PlanExplanation {
    /// Values that survive the segment: type and the line that made them.
    pub survivors: Vec<String>,
    /// Ops before the passes.
    pub ops: usize,
    /// One line a kernel or library call.
    pub kernels: Vec<String>,
    /// What the passes decided, and why.
    pub decisions: Vec<String>,
    /// `Var`s that may be updated in place, those that get new memory, and why; with the lines that write them.
    pub writes: Vec<String>,
}

impl Explanation {
    pub(crate) fn of(s: &Session) -> Explanation {
        let known = s.tree.paths.iter().enumerate().filter(|(i, p)| *i == 0 || p.parent.is_some());
        Explanation { paths: known.map(|(i, p)| explain_path(s, i as u32, p)).collect() }
    }
}

fn explain_path(s: &Session, id: u32, p: &Path) -> PathExplanation {
    // The line of the first event that does something with it.
    let first = |touches: &dyn Fn(&Event) -> bool| p.events.iter().find(|e| touches(e)).map_or(Loc::NONE, |e| e.loc);
    let mut guards = Vec::new();
    let externals = p.defs.iter().zip(p.base_value..).filter_map(|(def, v)| match def {
        Def::External { guard, .. } => Some((v, p.externals.get(*guard as usize)?)),
        _ => None,
    });
    for (v, ExternalGuard { ty, layout, tape }) in externals {
        let strided = if layout.is_contiguous() { "" } else { ", strided" };
        let tape = match tape {
            Tape::None => "",
            Tape::Tracked => ", tracked",
            Tape::Outside => ", on the eager tape",
        };
        let at = first(&|e| e.operands.contains(&v));
        guards.push(format!("tensor {ty}{strided}{tape} ({at})"));
    }
    for (slot, v) in (p.base_var..).zip(&p.vars) {
        let at = first(&|e| matches!(e.kind, Kind::VarGet | Kind::VarSet) && e.var == slot);
        guards.push(format!("Var {}{} ({at})", v.ty, if v.trainable { "" } else { ", not trained" }));
    }
    let ends = p.events.iter().enumerate().filter(|(_, e)| matches!(e.kind, Kind::Read | Kind::End));
    let segments = ends
        .map(|(at, e)| SegmentExplanation {
            ends_at: if e.kind == Kind::Read {
                format!("the host read at {}", e.loc)
            } else {
                "the closure's end".into()
            },
            plans: e.extra.iter().flat_map(|x| &x.plans).map(|plan| explain_plan(s, (id, at), e, plan)).collect(),
        })
        .collect();
    PathExplanation { id, parent: p.parent, base: p.base_event, events: p.events.len(), guards, segments }
}

fn explain_plan(s: &Session, at: (u32, usize), end: &Event, plan: &SegmentPlan) -> PlanExplanation {
    let survivors = plan.outputs.iter().map(|&v| value(s, at.0, v)).collect();
    let write = |&(slot, position): &(u32, u32)| {
        let t = plan.targets.get(position as usize)?;
        let how = match t.in_place {
            Some(_) => "in place when nobody else holds the old value",
            None if end.kind == Kind::Read => "into new memory, since only the last segment writes in place",
            None if !s.options.in_place => "into new memory, as the options say",
            None => "into new memory, since the old value cannot be overwritten where it is",
        };
        Some(format!("{}: {how} ({})", t.ty, write_loc(s, at, slot)))
    };
    let writes = plan.writes.iter().filter_map(write).collect();
    let (ops, kernels, decisions) =
        plan.compiled.as_ref().map(|c| (c.ops, c.steps.clone(), c.notes.clone())).unwrap_or_default();
    PlanExplanation { survivors, ops, kernels, decisions, writes }
}

/// The line that last writes the `Var` in `slot` before event `upto` of `path`.
fn write_loc(s: &Session, (path, mut upto): (u32, usize), slot: u32) -> Loc {
    let mut at = Some(path);
    while let Some(id) = at {
        let p = &s.tree.paths[id as usize];
        let before = &p.events[..upto.min(p.events.len())];
        if let Some(e) = before.iter().rev().find(|e| e.kind == Kind::VarSet && e.var == slot) {
            return e.loc;
        }
        at = p.parent;
        upto = at.map_or(0, |parent| (p.base_event - s.tree.paths[parent as usize].base_event) as usize);
    }
    Loc::NONE
}

/// The type of a value of `path`, and the line that made it.
fn value(s: &Session, path: u32, v: u32) -> String {
    let mut at = Some(path);
    while let Some(id) = at {
        let p = &s.tree.paths[id as usize];
        if let Some(e) = p.events.iter().find(|e| e.out == v && e.template.is_some()) {
            let ty = e.template.as_ref().map(|t| t.0.ty.to_string()).unwrap_or_default();
            return format!("{ty} made at {}", e.loc);
        }
        at = p.parent;
    }
    format!("value {v}")
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for p in &self.paths {
            match p.parent {
                None => writeln!(f, "path {}: {} events", p.id, p.events)?,
                Some(parent) => writeln!(
                    f,
                    "path {}: branches from path {parent} after {} events, {} of its own",
                    p.id, p.base, p.events
                )?,
            }
            list(f, 1, "guards", &p.guards)?;
            for s in &p.segments {
                writeln!(f, "  segment up to {}", s.ends_at)?;
                for (i, plan) in s.plans.iter().enumerate() {
                    writeln!(f, "    plan {i}: {} ops in {} kernels", plan.ops, plan.kernels.len())?;
                    list(f, 3, "survivors", &plan.survivors)?;
                    list(f, 3, "Var writes", &plan.writes)?;
                    list(f, 3, "kernels", &plan.kernels)?;
                    list(f, 3, "decisions", &plan.decisions)?;
                }
            }
        }
        Ok(())
    }
}

fn list(f: &mut std::fmt::Formatter<'_>, depth: usize, title: &str, lines: &[String]) -> std::fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "{:1$}{title}", "", depth * 2)?;
    lines.iter().try_for_each(|l| writeln!(f, "{:1$}{l}", "", depth * 2 + 2))
}
