//! One body, run eagerly, traced and frozen from the same start.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stepgraph::base::HostValue;
use stepgraph::base::host::HostData;
use stepgraph::{Device, Result, Tensor, Var, jit};

use super::bits::assert_bits_eq;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    Err,
    Panic,
}

/// What a body shows: values it keeps (read after the call) and numbers it read itself.
#[derive(Default)]
pub struct Seen {
    kept: Vec<Tensor>,
    read: Vec<HostValue>,
}

impl Seen {
    /// Keeps a value alive beyond the call; it is read and compared afterwards.
    pub fn keep(&mut self, t: &Tensor) {
        self.kept.push(t.clone());
    }

    /// A host read inside the call; compared, too.
    #[track_caller]
    pub fn read(&mut self, t: &Tensor) -> Result<f32> {
        let value = t.to_host()?;
        let HostData::F32(v) = &value.data else { panic!("an f32 value") };
        let first = v.first().copied().unwrap_or(0.0);
        self.read.push(value);
        Ok(first)
    }
}

/// What the traced run is expected to do.
#[derive(Clone, Debug)]
pub struct Expect {
    calls: usize,
    /// Launches of each call that must be a replay; `None`: the call may record.
    launches: Vec<Option<u64>>,
    compiles: Option<u64>,
    uploads: u64,
    outcomes: Vec<Outcome>,
    /// Compare a frozen run, frozen after so many calls.
    frozen: Option<usize>,
}

impl Expect {
    /// One launch per call from the second on, one plan.
    pub fn steady(calls: usize) -> Expect {
        assert!(calls >= 5, "a scenario makes at least 5 calls");
        let launches = (0..calls).map(|k| (k > 0).then_some(1)).collect();
        let outcomes = vec![Outcome::Done; calls];
        Expect { calls, launches, compiles: Some(1), uploads: 0, outcomes, frozen: None }
    }

    /// So many launches (segments) in each replay, a plan for each.
    pub fn segments(mut self, segments: u64) -> Expect {
        self.launches.iter_mut().flatten().for_each(|n| *n = segments);
        self.compiles = Some(segments);
        self
    }

    /// Launches per call; 0: the call may record, and what it launches is not checked.
    pub fn launches(mut self, per_call: &[u64]) -> Expect {
        assert_eq!(per_call.len(), self.calls);
        self.launches = per_call.iter().map(|&n| (n > 0).then_some(n)).collect();
        self
    }

    /// Plans compiled in the whole run.
    pub fn compiles(mut self, plans: u64) -> Expect {
        self.compiles = Some(plans);
        self
    }

    /// The number of plans is not checked.
    pub fn any_compiles(mut self) -> Expect {
        self.compiles = None;
        self
    }

    /// Host data uploaded in each replay.
    pub fn uploads(mut self, uploads: u64) -> Expect {
        self.uploads = uploads;
        self
    }

    /// These calls (counted from 0) end so.
    pub fn ends(mut self, calls: &[usize], outcome: Outcome) -> Expect {
        calls.iter().for_each(|&k| self.outcomes[k] = outcome);
        self
    }

    /// Runs it frozen, too: traced for three calls, then replays.
    pub fn frozen(mut self) -> Expect {
        self.frozen = Some(3);
        self
    }
}

/// Values of one run: per call those the body showed, then the `Var`s.
pub struct Log {
    pub calls: Vec<Vec<HostValue>>,
}

impl Log {
    /// Value `i` of call `k` (from 0), which is f32.
    #[track_caller]
    pub fn f32(&self, k: usize, i: usize) -> &[f32] {
        match &self.calls[k][i].data {
            HostData::F32(v) => v,
            other => panic!("value {i} of call {k} is {other:?}"),
        }
    }

    /// Element 0 of value `i` of each call.
    #[track_caller]
    pub fn firsts(&self, i: usize) -> Vec<f32> {
        (0..self.calls.len()).map(|k| self.f32(k, i)[0]).collect()
    }
}

/// Runs `body` eagerly, traced and, if asked, frozen, each from its own `make`; compares whatever it
/// shows and every `Var` after every call, bit for bit, and checks the backend's counters. Gives the
/// eager values.
///
/// `between` is host work before call k, outside the step.
#[track_caller]
pub fn compare<S>(
    device: &Device,
    expect: &Expect,
    make: impl Fn() -> Result<S>,
    between: impl Fn(&mut S, usize) -> Result<()>,
    body: impl Fn(&mut S, usize, &mut Seen) -> Result<()>,
    vars: impl Fn(&S) -> Vec<Var>,
) -> Log {
    let eager = {
        let mut s = make().expect("the start");
        let mut calls = Vec::new();
        for k in 0..expect.calls {
            between(&mut s, k).expect("host work between calls");
            let mut seen = Seen::default();
            let outcome = run_guarded(|| body(&mut s, k, &mut seen));
            assert_outcome("eager", k, &outcome, expect.outcomes[k]);
            calls.push(values(seen, &vars(&s)));
        }
        Log { calls }
    };
    traced(device, expect, &make, &between, &body, &vars, &eager);
    if let Some(at) = expect.frozen {
        frozen(device, expect, at, &make, &between, &body, &vars, &eager);
    }
    eager
}

#[track_caller]
fn traced<S>(
    device: &Device,
    expect: &Expect,
    make: &impl Fn() -> Result<S>,
    between: &impl Fn(&mut S, usize) -> Result<()>,
    body: &impl Fn(&mut S, usize, &mut Seen) -> Result<()>,
    vars: &impl Fn(&S) -> Vec<Var>,
    eager: &Log,
) {
    let mut s = make().expect("the start");
    let mut step = jit::Step::new();
    let (mut launches, mut compiles) = (0, 0);
    for k in 0..expect.calls {
        between(&mut s, k).expect("host work between calls");
        let mut seen = Seen::default();
        let before = device.counts();
        let outcome = run_guarded(|| step.run(|| body(&mut s, k, &mut seen)));
        let did = device.counts() - before;
        launches += did.launches;
        compiles += did.compiles;
        assert_outcome("traced", k, &outcome, expect.outcomes[k]);
        assert_same(&format!("call {} of the traced run", k + 1), &values(seen, &vars(&s)), &eager.calls[k]);
        if let Some(segments) = expect.launches[k] {
            let report = step.report();
            assert_eq!(did.eager_kernels, 0, "call {} ran kernels eagerly: not a replay\n{report}", k + 1);
            assert_eq!(did.launches, segments, "launches of call {}\n{report}", k + 1);
            assert_eq!(did.uploads, expect.uploads, "uploads of call {}\n{report}", k + 1);
            assert_eq!(report.launches_per_call as u64, segments, "the report's launches of call {}", k + 1);
        }
    }
    let report = step.report();
    assert_eq!(report.calls, expect.calls as u64, "the report's calls");
    assert_eq!(report.launches, launches, "the report and the backend count launches alike\n{report}");
    assert_eq!(report.compiles, compiles, "the report and the backend count plans alike\n{report}");
    if let Some(plans) = expect.compiles {
        assert_eq!(compiles, plans, "plans compiled\n{report}");
    }
}

#[track_caller]
#[allow(clippy::too_many_arguments)]
fn frozen<S>(
    device: &Device,
    expect: &Expect,
    at: usize,
    make: &impl Fn() -> Result<S>,
    between: &impl Fn(&mut S, usize) -> Result<()>,
    body: &impl Fn(&mut S, usize, &mut Seen) -> Result<()>,
    vars: &impl Fn(&S) -> Vec<Var>,
    eager: &Log,
) {
    let mut s = make().expect("the start");
    let mut step = jit::Step::new();
    for k in 0..at {
        between(&mut s, k).expect("host work between calls");
        let mut seen = Seen::default();
        step.run(|| body(&mut s, k, &mut seen)).expect("a traced call");
    }
    let before = device.counts();
    let mut frozen = step.freeze().expect("a step that can be frozen");
    assert_eq!(device.counts(), before, "freezing runs nothing");
    for k in at..expect.calls {
        between(&mut s, k).expect("host work between calls");
        let before = device.counts();
        let kept = frozen.replay().expect("a replay").to_vec();
        let did = device.counts() - before;
        assert_eq!(
            (did.launches, did.eager_kernels, did.compiles, did.uploads),
            (1, 0, 0, 0),
            "replay {k} is one launch"
        );
        let seen = Seen { kept, read: Vec::new() };
        assert_same(&format!("call {} of the frozen run", k + 1), &values(seen, &vars(&s)), &eager.calls[k]);
    }
}

/// Everything that a call showed.
#[track_caller]
fn values(seen: Seen, vars: &[Var]) -> Vec<HostValue> {
    let kept = seen.kept.iter().map(|t| t.to_host().expect("a kept value"));
    let mut out: Vec<HostValue> = kept.collect();
    out.extend(seen.read);
    out.extend(vars.iter().map(|v| v.get().to_host().expect("the value of a Var")));
    out
}

#[track_caller]
fn assert_same(what: &str, got: &[HostValue], want: &[HostValue]) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_bits_eq(&format!("{what}, value {i}"), g, w);
    }
}

/// What a call gave: `None` when it panicked.
fn run_guarded(f: impl FnOnce() -> Result<()>) -> Option<Result<()>> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

#[track_caller]
fn assert_outcome(mode: &str, k: usize, got: &Option<Result<()>>, want: Outcome) {
    let outcome = match got {
        None => Outcome::Panic,
        Some(Err(_)) => Outcome::Err,
        Some(Ok(())) => Outcome::Done,
    };
    if outcome != want {
        let detail = got.as_ref().map(|r| format!("{r:?}")).unwrap_or_default();
        panic!("call {} of the {mode} run ended with {outcome:?} instead of {want:?}: {detail}", k + 1);
    }
}
