//! The report of a step: what was recorded, replayed, launched, compiled, and why not.

use std::time::Duration;

use crate::trace::session::Session;
use crate::trace::stats::Notes;

/// A line of the user's program at which something worth knowing happened.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let mut step = jit::Step::new();
/// for n in [1, 2] {
///     step.run(|| Tensor::ones([n], DType::F32, device)?.add(1.0))?;
/// }
/// let note = &step.report().divergences[0];
/// assert!(note.at.contains(".rs:") && note.count == 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// `file:line`, or `gradient of file:line`.
    pub at: String,
    pub text: String,
    /// How often.
    pub count: u64,
}

/// What a step did so far. `Display` prints it for people.
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
/// let report = step.report();
/// println!("{report}"); // or field by field
/// assert_eq!((report.calls, report.recorded, report.replayed), (3, 1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Calls of the step.
    pub calls: u64,
    /// Calls that recorded, wholly or from a divergence on.
    pub recorded: u64,
    /// Calls that only replayed.
    pub replayed: u64,
    /// Calls that ran plain eager, since paths did not repeat.
    pub eager: u64,
    /// Paths and plans dropped to keep within [`crate::jit::Options::plan_cache`].
    pub evicted: u64,
    /// Launches of compiled plans.
    pub launches: u64,
    /// Plans compiled, and the time it took: passes, kernels, host code.
    pub compiles: u64,
    pub compile_time: Duration,
    /// Recorded paths (one, if every call did the same).
    pub paths: usize,
    /// Of the last call: tensor ops (gradients included), events (`Var` reads and writes too), segments, launches, kernels, `Var`s written in place, arena bytes, bytes that the
    /// kernels read and wrote.
    pub ops: u32,
    pub events: u32,
    pub segments: u32,
    pub launches_per_call: u32,
    pub kernels: u32,
    pub in_place: u32,
    pub arena_bytes: usize,
    pub bytes: u64,
    /// Rewrites may have changed bits: [`crate::jit::Options::fast_math`].
    pub fast_math: bool,
    /// Where calls left the recorded path, and how.
    pub divergences: Vec<Note>,
    /// Where values were read on the host inside the step.
    pub host_reads: Vec<Note>,
    /// Values kept alive for the first time after a plan was made.
    pub kept: Vec<Note>,
    /// Copies and ops that left the step's device.
    pub copies: Vec<Note>,
    /// Where paths that do not repeat part: the step ran eagerly for a while.
    pub storms: Vec<Note>,
}

fn notes(n: &Notes) -> Vec<Note> {
    n.entries.iter().map(|(loc, text, count)| Note { at: loc.to_string(), text: text.clone(), count: *count }).collect()
}

impl Report {
    pub(crate) fn of(s: &Session) -> Report {
        let (t, last) = (&s.stats, &s.stats.last);
        Report {
            calls: t.calls,
            recorded: t.recorded,
            replayed: t.replayed,
            eager: t.eager,
            evicted: t.evicted,
            launches: t.launches,
            compiles: t.compiles,
            compile_time: t.compile_time,
            paths: s.tree.len(),
            ops: last.ops,
            events: last.events,
            segments: last.segments,
            launches_per_call: last.launches,
            kernels: last.kernels,
            in_place: last.in_place,
            arena_bytes: last.arena_bytes,
            bytes: last.bytes,
            fast_math: s.options.fast_math,
            divergences: notes(&t.divergences),
            host_reads: notes(&t.reads),
            kept: notes(&t.kept),
            copies: notes(&t.copies),
            storms: notes(&t.storms),
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "calls        {} ({} recorded, {} replayed{}) on {} path{}",
            self.calls,
            self.recorded,
            self.replayed,
            if self.eager > 0 { format!(", {} eager", self.eager) } else { String::new() },
            self.paths,
            if self.paths == 1 { "" } else { "s" }
        )?;
        write!(f, "a call       {} ops ({} events)", self.ops, self.events)?;
        if self.launches_per_call == 0 && self.ops > 0 {
            // Recorded, or eager in a storm.
            writeln!(f, ", run one by one")?;
        } else {
            let launches = if self.launches_per_call == 1 { "launch" } else { "launches" };
            let segments = if self.segments == 1 { "segment" } else { "segments" };
            let (n, k) = (self.launches_per_call, self.segments);
            writeln!(f, " -> {} kernels in {n} {launches} ({k} {segments})", self.kernels)?;
        }
        writeln!(
            f,
            "memory       {} bytes read and written, arena {} bytes, {} outputs written in place",
            self.bytes, self.arena_bytes, self.in_place
        )?;
        write!(
            f,
            "compiled     {} plan{} in {:.2} ms",
            self.compiles,
            if self.compiles == 1 { "" } else { "s" },
            self.compile_time.as_secs_f64() * 1e3
        )?;
        if self.fast_math {
            write!(f, "\nnumbers      fast math: they may differ from eager ones")?;
        }
        let lists = [
            ("divergences", &self.divergences),
            ("host reads", &self.host_reads),
            ("kept values", &self.kept),
            ("copies", &self.copies),
            ("storms", &self.storms),
        ];
        for (title, list) in lists {
            for (i, n) in list.iter().enumerate() {
                let title = if i == 0 { title } else { "" };
                write!(f, "\n{title:<12} {}: {} ({}x)", n.at, n.text, n.count)?;
            }
        }
        Ok(())
    }
}
