//! Running a program eagerly, traced and frozen, and comparing all that a user sees; shrinking what fails.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use stepgraph::base::HostValue;
use stepgraph::{CpuOptions, Device};

use crate::program::{Dim, Host, Line, Options, Program, Stmt, When};
use crate::world::{Seen, World, same, same_value};

thread_local! {
    /// Devices are shared by a thread's programs, with their caches of eager ops.
    static DEVICES: RefCell<HashMap<usize, Device>> = RefCell::default();
}

/// The device whose memory is limited.
const STARVED: usize = 7;

/// Makes every device with `make`, given its memory limit, instead of the CPU's.
#[allow(dead_code)]
pub fn make_devices_with(make: fn(Option<usize>) -> Device) {
    MAKE.get_or_init(|| make);
}

static MAKE: std::sync::OnceLock<fn(Option<usize>) -> Device> = std::sync::OnceLock::new();

/// Device 0 is the one of the eager run; the others differ in instruction set and number of threads.
pub fn device(k: usize) -> Device {
    DEVICES.with(|all| {
        let make = || {
            let (isa, threads) = [
                (None, 1),
                (Some("avx2"), 1),
                (None, 2),
                (None, 1),
                (Some("portable"), 1),
                (None, 1),
                (None, 1),
                (None, 1),
            ][k];
            let memory_limit = (k == STARVED).then_some(32 << 20);
            let options = CpuOptions { threads: Some(threads), isa: isa.map(String::from), memory_limit };
            if let Some(make) = MAKE.get() {
                return make(memory_limit);
            }
            // An instruction set that this machine lacks is left out.
            Device::cpu_with(&options).or_else(|_| Device::cpu_with(&CpuOptions::default())).unwrap()
        };
        all.borrow_mut().entry(k).or_insert_with(make).clone()
    })
}

/// The device of the traced run.
fn traced_device(o: &Options) -> Device {
    device(match o.device {
        _ if o.starved != 0 => STARVED,
        k @ 1..4 => k,
        7 => 4,
        _ => 3,
    })
}

/// What was run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub programs: u64,
    pub calls: u64,
    pub recorded: u64,
    pub replayed: u64,
    pub eager: u64,
    pub launches: u64,
    pub compiles: u64,
    pub frozen: u64,
    /// Calls that an index out of range ended.
    pub flagged: u64,
    /// Calls that ran out of memory, and were made again.
    pub starved: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, o: Figures) {
        self.programs += o.programs;
        self.calls += o.calls;
        self.recorded += o.recorded;
        self.replayed += o.replayed;
        self.eager += o.eager;
        self.launches += o.launches;
        self.compiles += o.compiles;
        self.frozen += o.frozen;
        self.flagged += o.flagged;
        self.starved += o.starved;
    }
}

/// Runs a program in all ways. The error says what differs.
pub fn run(p: &Program) -> Result<Figures, String> {
    match catch_unwind(AssertUnwindSafe(|| run_all(p))) {
        Ok(result) => result,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

fn run_all(p: &Program) -> Result<Figures, String> {
    let traced_on = traced_device(&p.options);
    // What an eager op's plan needs to work in stays with the device, so a first run may leave something, but no more.
    let live = || traced_on.memory().live;
    let mut before = live();
    let figures = compare(p, &traced_on)?;
    for _ in 0..2 {
        if live() <= before {
            return Ok(figures);
        }
        before = live();
        compare(p, &traced_on)?;
    }
    Err(format!("{before} bytes live before the program, {} after it", live()))
}

fn compare(p: &Program, traced_on: &Device) -> Result<Figures, String> {
    let new = |device: &Device, traced| {
        World::new(p, device, &self::device(5 + traced as usize), traced).map_err(|e| format!("setup: {e}"))
    };
    let (mut eager, mut traced) = (new(&device(0), false)?, new(traced_on, true)?);
    let mut frozen = 0;
    // At the end the last call some times more, so that freezing is possible.
    let last = p.steps.len() - 1;
    for k in (0..=last).chain([last; 3]) {
        // A step whose first op is on the other device lives there.
        let count = || [traced_on.counts(), device(6).counts()];
        let (before, counted) = (traced.reported(), count());
        let seen = both(&mut eager, &mut traced, |w| w.call(p, k));
        let (after, now) = (traced.reported(), count());
        let (counts, there) = (now[0] - counted[0], now[1] - counted[1]);
        let [calls, recorded, replayed, plain, launches, compiles]: [u64; 6] =
            std::array::from_fn(|i| after[i] - before[i]);
        if plain > 0 && p.options.wild != 0 {
            // A storm: the call ran as plain eager code, which keeps what it wrote.
            return Ok(Figures::default());
        }
        seen?;
        if launches != counts.launches + there.launches || compiles != counts.compiles + there.compiles {
            return Err(format!(
                "call {k}: the report has {launches} launches and {compiles} compiled plans, the backend {counts:?}"
            ));
        }
        if traced.panics() == 0 && recorded + replayed + plain != calls {
            return Err(format!("call {k}: {calls} calls: {recorded} recorded, {replayed} replayed, {plain} eager"));
        }
        let plain_replay = p.before.is_empty()
            && p.steps[k] != 0
            && p.options.starved == 0
            && recorded == 0
            && plain == 0
            && traced.panics() == 0;
        if plain_replay && !host_code(p) && (counts.launches > 1 || counts.eager_kernels > 0) {
            return Err(format!("call {k} is a replay, the backend {counts:?}"));
        }
        both(&mut eager, &mut traced, |w| w.look())?;
    }
    let step = p.steps[last];
    if step != 0 && !host_code(p) {
        both(&mut eager, &mut traced, |w| w.call(p, last))?;
        let after = eager.snapshot();
        let held: Vec<(stepgraph::Tensor, HostValue)> = Vec::new();
        if let Ok(mut f) = traced.freeze(step) {
            frozen = 1;
            for i in 0..3 {
                let flagged = eager.hardships[0];
                let want = eager.again(p, last);
                let flagged = eager.hardships[0] > flagged;
                let counted = traced_on.counts();
                let got = match f.replay() {
                    Ok(got) if flagged => return Err(format!("replay {i} told of no index out of range: {got:?}")),
                    Ok(got) => got.iter().map(|t| t.to_host()).collect::<Result<Vec<HostValue>, _>>(),
                    Err(e) if flagged && matches!(e.kind(), stepgraph::ErrorKind::Index { .. }) => {
                        both(&mut eager, &mut traced, |w| w.look_state())?;
                        continue;
                    }
                    Err(e) => Err(e),
                };
                let got = got.map_err(|e| format!("replay {i}: {e}"))?;
                let counts = traced_on.counts() - counted;
                // A plan without outputs is not launched.
                if counts.launches > 1 {
                    return Err(format!("replay {i}: {counts:?}"));
                }
                if !alike(&want, &got) {
                    return Err(format!("replay {i} of the frozen step: {} values {got:?}, eager {want:?}", got.len()));
                }
                both(&mut eager, &mut traced, |w| w.look_state())?;
            }
            // What a replay gave stays what it is; and the step goes on as before.
            drop(f);
            for (t, v) in &held {
                if !t.to_host().is_ok_and(|now| same_value(&now, v)) {
                    return Err("a value of a frozen step has changed".into());
                }
            }
            eager.restore(&after);
            for _ in 0..2 {
                both(&mut eager, &mut traced, |w| w.call(p, last))?;
                both(&mut eager, &mut traced, |w| w.look())?;
            }
        }
    }
    if !traced.explained().contains("calls") {
        return Err("the report is empty".into());
    }
    let [calls, recorded, replayed, plain, launches, compiles] = traced.reported();
    let ([flagged, _], [_, starved]) = (eager.hardships, traced.hardships);
    Ok(Figures { programs: 1, calls, recorded, replayed, eager: plain, launches, compiles, frozen, flagged, starved })
}

/// Whether both lists hold the same values, in any order.
fn alike(a: &[HostValue], b: &[HostValue]) -> bool {
    let mut rest: Vec<&HostValue> = b.iter().collect();
    a.len() == b.len()
        && a.iter().all(|x| {
            let at = rest.iter().position(|y| same_value(x, y));
            at.map(|i| rest.swap_remove(i)).is_some()
        })
}

/// Whether the closure has host code that a frozen step would leave out, or does not come to its end.
fn host_code(p: &Program) -> bool {
    p.body.iter().any(|l| {
        l.0 == When::Positive
            || matches!(l.1, Stmt::Reseed { .. } | Stmt::Fork { .. } | Stmt::Away { .. } | Stmt::Fail | Stmt::Panic)
            || format!("{:?}", l.1).contains("Read")
    })
}

/// Does it in both worlds; what is seen must be the same.
fn both(eager: &mut World, traced: &mut World, act: impl Fn(&mut World)) -> Result<(), String> {
    act(eager);
    act(traced);
    let (want, got) = (eager.take(), traced.take());
    for (i, (at, w)) in want.iter().enumerate() {
        match got.get(i) {
            Some((there, g)) if at == there && same(w, g) => {}
            Some((there, g)) => return Err(format!("eager {at}: {}\ntraced {there}: {}", show(w), show(g))),
            None => return Err(format!("eager {at}: {}\ntraced: nothing", show(w))),
        }
    }
    match got.get(want.len()) {
        Some((at, g)) => Err(format!("eager: nothing\ntraced {at}: {}", show(g))),
        None => Ok(()),
    }
}

fn show(s: &Seen) -> String {
    let text = format!("{s:?}");
    if text.len() > 400 { format!("{}…", text.chars().take(400).collect::<String>()) } else { text }
}

/// Makes a failing program smaller while it fails.
pub fn shrink(mut p: Program) -> Program {
    let fails = |p: &Program| run(p).is_err();
    for _ in 0..12 {
        let before = p.clone();
        // Statements, many at a time first.
        let mut size = p.body.len().max(1);
        while size > 0 {
            let mut at = 0;
            while at < p.body.len() {
                let mut less = p.clone();
                less.body.drain(at..(at + size).min(less.body.len()));
                if fails(&less) { p = less } else { at += size }
            }
            size /= 2;
        }
        let mut at = 0;
        while at < p.before.len() {
            let mut less = p.clone();
            less.before.remove(at);
            if fails(&less) { p = less } else { at += 1 }
        }
        let mut at = 0;
        while p.steps.len() > 1 && at < p.steps.len() {
            let mut less = p.clone();
            less.steps.remove(at);
            // The numbers of the later calls move.
            let later = |mask: u32| (mask & ((1 << at) - 1)) | (mask >> (at + 1) << at);
            less.alt = later(less.alt);
            let o = &mut less.options;
            (o.wild, o.threads, o.starved) = (later(o.wild), later(o.threads), later(o.starved));
            for l in less.before.iter_mut().chain(&mut less.body) {
                if let When::Calls(mask) = &mut l.0 {
                    *mask = later(*mask);
                }
            }
            if fails(&less) { p = less } else { at += 1 }
        }
        for less in simpler(&p) {
            if fails(&less) {
                p = less;
            }
        }
        for i in 0..p.before.len() + p.body.len() {
            for change in changes(line_of(&p, i), p.steps.len()) {
                let mut less = p.clone();
                *line_of_mut(&mut less, i) = change;
                if less != p && fails(&less) {
                    p = less;
                }
            }
        }
        if p == before {
            break;
        }
    }
    p
}

fn line_of(p: &Program, i: usize) -> &Line {
    if i < p.before.len() { &p.before[i] } else { &p.body[i - p.before.len()] }
}

fn line_of_mut(p: &mut Program, i: usize) -> &mut Line {
    let k = p.before.len();
    if i < k { &mut p.before[i] } else { &mut p.body[i - k] }
}

/// Programs with one thing made plainer.
fn simpler(p: &Program) -> Vec<Program> {
    let mut out = Vec::new();
    let mut with = |change: &dyn Fn(&mut Program)| {
        let mut less = p.clone();
        change(&mut less);
        if less != *p {
            out.push(less);
        }
    };
    with(&|p| p.alt = 0);
    with(&|p| p.m.1 = p.m.0);
    with(&|p| p.steps.iter_mut().for_each(|s| *s = 1));
    with(&|p| p.options.plan_cache = 64);
    with(&|p| p.options.device = 0);
    with(&|p| p.options.fuse = true);
    with(&|p| p.options.in_place = true);
    with(&|p| p.options.wild = 0);
    with(&|p| p.options.threads = 0);
    with(&|p| p.options.starved = 0);
    for k in [1, 2, 3] {
        with(&|p| p.m = (k, k));
        with(&|p| p.m.0 = k);
        with(&|p| p.m.1 = k);
        with(&|p| p.n = k);
    }
    // One change must not undo another that was taken: later ones start from the first program, so only one is taken
    // in a round.
    out
}

/// A line made plainer.
fn changes(line: &Line, calls: usize) -> Vec<Line> {
    let Line(when, stmt) = line;
    let mut out = vec![Line(When::Always, stmt.clone())];
    if let When::Calls(mask) = when {
        let present = (1u32 << calls.min(31)) - 1;
        out.push(Line(When::Calls(mask & present), stmt.clone()));
        for k in 0..calls {
            out.push(Line(When::Calls(1 << k), stmt.clone()));
        }
    }
    let mut with = |s: Stmt| out.push(Line(*when, s));
    let fixed = Host::Fixed(0.5);
    match stmt {
        Stmt::Input { d, k } if k.len() > 1 => with(Stmt::Input { d: *d, k: vec![k[0]] }),
        Stmt::Get { d, v } if v.len() > 1 => with(Stmt::Get { d: *d, v: vec![v[0]] }),
        Stmt::Full { d, dims, value: _ } => {
            with(Stmt::Full { d: *d, dims: dims.clone(), value: fixed });
            with(Stmt::Full { d: *d, dims: vec![Dim::N], value: fixed });
        }
        Stmt::WithHost { d, op, a, left, .. } => {
            with(Stmt::WithHost { d: *d, op: *op, a: *a, host: fixed, left: *left })
        }
        Stmt::SelectHost { d, a, b, first, .. } => {
            with(Stmt::SelectHost { d: *d, a: *a, b: *b, host: fixed, first: *first });
        }
        Stmt::Slice { d, a, axis, len, step, .. } => {
            with(Stmt::Slice { d: *d, a: *a, axis: *axis, start: Host::Fixed(0.0), len: *len, step: *step });
        }
        Stmt::Adam { .. } => with(Stmt::Adam { lr: fixed }),
        Stmt::Sgd { .. } => with(Stmt::Sgd { lr: fixed }),
        _ => {}
    }
    out
}
