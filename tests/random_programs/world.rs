//! The evaluator: runs a program against the public interface, eagerly or traced, and writes down what a user sees.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stepgraph::base::dtype::NumberKind;
use stepgraph::base::host::HostData;
use stepgraph::base::{HostValue, Scalar, Shape};
use stepgraph::{DType, Device, Error, ErrorKind, Gradients, Result, Rng, Tensor, Var, jit, optim};

#[path = "functions.rs"]
mod functions;
#[path = "hardship.rs"]
mod hardship;

use crate::ops::{self, Args};
use crate::program::{Dim, Host, Line, Options, Program, Reduction, Stmt, Type, When};

pub const REGISTERS: usize = 8;
pub const SLOTS: usize = 4;
pub const INPUTS: u8 = 14;
/// So many of the values pushed are still there when a call begins.
const PUSHED: usize = 6;

/// Something a user can see.
#[derive(Clone, Debug)]
pub enum Seen {
    Value(HostValue),
    /// The kind of an error.
    Error(String),
    /// A gradient that is not there.
    Nothing,
    Counter(u64),
}

/// All that a program's calls share.
pub struct World {
    device: Device,
    other: Device,
    options: Options,
    traced: bool,
    steps: [jit::Step; 2],
    /// Counts of steps that are gone.
    gone: [u64; 6],
    nested: jit::Step,
    vars: Vec<Var>,
    inputs: Vec<[Option<Tensor>; 2]>,
    rngs: [Rng; 2],
    kept: Vec<Option<Tensor>>,
    pushed: Vec<Tensor>,
    grads: Vec<Option<Arc<Gradients>>>,
    adam: Option<optim::Adam>,
    sgd: Option<optim::Sgd>,
    call: usize,
    alt: bool,
    m: usize,
    n: usize,
    /// Since the last [`World::take`]: where, and what.
    log: Vec<(String, Seen)>,
    /// Values that the call did not make: inputs, and what it found in variables.
    outside: Vec<Tensor>,
    panics: u64,
    /// What the last body began with, of an eager world: who holds what must not change a traced one.
    entry: Arc<Snapshot>,
    /// Indices are out of range in this call.
    wild: bool,
    /// Memory is short: what fails for want of it ends the closure.
    starving: bool,
    /// Results of this call that come of indices, in wild programs.
    indexed: Vec<Tensor>,
    /// Calls that an index out of range ended, and attempts that memory ended.
    pub hardships: [u64; 2],
    /// What attempts without memory kept, and what it was.
    lost: Vec<(Option<HostValue>, Tensor)>,
    /// Of `rngs`.
    seeds: [u64; 2],
}

/// What one call has.
struct Call {
    regs: Vec<Option<Tensor>>,
    grads: Option<Arc<Gradients>>,
    read: f32,
    returned: Vec<Tensor>,
}

/// The payload of panics that programs raise.
pub struct Deliberate;

fn kind(e: &Error) -> String {
    if let ErrorKind::Bug { .. } = e.kind() {
        panic!("{e}");
    }
    let text = format!("{:?}", e.kind());
    text.split([' ', '(', '{']).next().unwrap_or_default().to_string()
}

/// Reproducible numbers: element `i` of data set `seed`.
fn number(seed: u64, i: usize) -> u64 {
    let mut z = (seed << 32 | i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn real(seed: u64, i: usize) -> f32 {
    (number(seed, i) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

fn data(ty: Type, dims: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    let (shape, dtype) = (Shape::new(dims)?, dtype(ty));
    let element = |i: usize| match dtype.kind() {
        NumberKind::Float => Scalar::f32(real(seed, i)),
        NumberKind::Int => Scalar::i64((number(seed, i) % 9) as i64 - 2),
        NumberKind::Bool => Scalar::bool(number(seed, i) & 1 == 1),
    };
    let lanes: Vec<u64> = (0..shape.numel()).map(|i| element(i).cast(dtype).bits).collect();
    Tensor::from_host(&HostValue::new(shape, HostData::from_lanes(dtype, &lanes)), device)
}

impl World {
    /// `other` is a device that some values visit.
    pub fn new(p: &Program, device: &Device, other: &Device, traced: bool) -> Result<World> {
        let step = || step(&p.options);
        let n = p.n;
        let f32s = |dims: &[usize], seed| data(Type::F32, dims, seed, device);
        let vars = vec![
            Var::new(&f32s(&[n], 1)?)?,
            Var::new(&f32s(&[n], 2)?)?,
            Var::new(&f32s(&[n, 3], 3)?)?,
            Var::new(&f32s(&[], 4)?)?,
            Var::state(&f32s(&[n], 5)?)?,
            Var::state(&data(Type::I64, &[], 6, device)?)?,
            Var::new(&f32s(&[p.m.0, n], 7)?)?,
        ];
        let mut w = World {
            device: device.clone(),
            other: other.clone(),
            options: p.options,
            traced,
            gone: [0; 6],
            steps: [step(), step()],
            nested: step(),
            vars,
            inputs: vec![[None, None]; INPUTS as usize],
            rngs: [Rng::seed_from(1), Rng::seed_from(2)],
            kept: vec![None; SLOTS],
            pushed: Vec::new(),
            grads: vec![None; 2],
            adam: None,
            sgd: None,
            call: 0,
            alt: false,
            m: p.m.0,
            n,
            log: Vec::new(),
            outside: Vec::new(),
            panics: 0,
            entry: Arc::default(),
            wild: false,
            starving: false,
            indexed: Vec::new(),
            hardships: [0; 2],
            lost: Vec::new(),
            seeds: [1, 2],
        };
        for (alt, m) in [(false, p.m.0), (true, p.m.1)] {
            w.m = m;
            w.prepare(p.before.iter().chain(&p.body), alt)?;
        }
        Ok(w)
    }

    /// Makes what the statements use but do not make.
    pub fn prepare<'a>(&mut self, lines: impl Iterator<Item = &'a Line>, alt: bool) -> Result<()> {
        for Line(_, stmt) in lines {
            match stmt {
                Stmt::Input { k, .. } => {
                    for &k in k {
                        if self.inputs[k as usize][alt as usize].is_none() {
                            self.inputs[k as usize][alt as usize] = Some(self.input(k)?);
                        }
                    }
                }
                Stmt::Adam { .. } if self.adam.is_none() => {
                    let trained = [0, 1, 2, 3].map(|v: usize| self.vars[v].clone());
                    self.adam = Some(optim::Adam::new(trained.to_vec(), optim::AdamConfig::default())?);
                }
                Stmt::Sgd { .. } if self.sgd.is_none() => {
                    let trained = [1, 2, 6].map(|v: usize| self.vars[v].clone());
                    let config = optim::SgdConfig { lr: 0.1, momentum: 0.5, ..optim::SgdConfig::default() };
                    self.sgd = Some(optim::Sgd::new(trained.to_vec(), config)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Input number `k`, of the present `m`: several types, and views of several strides.
    fn input(&self, k: u8) -> Result<Tensor> {
        let (m, n, seed) = (self.m, self.n, 100 + k as u64);
        let f32s = |dims: &[usize]| data(Type::F32, dims, seed, &self.device);
        match k {
            0 | 1 => f32s(&[m, n]),
            2 => f32s(&[n, m])?.t(),
            3 => f32s(&[m, 2 * n + 1])?.slice_step(1, 1, n, 2),
            4 => f32s(&[1, n])?.expand([m, n]),
            5 => f32s(&[n]),
            6 => f32s(&[m, 1]),
            7 => f32s(&[]),
            8 => data(Type::I64, &[m], seed, &self.device),
            9 => data(Type::Bool, &[m, n], seed, &self.device),
            10 => data(Type::I64, &[m, n], seed, &self.device),
            11 => f32s(&[2, m, n]),
            12 => f32s(&[n, 2, m])?.permute(&[1, 2, 0]),
            _ => f32s(&[m + 3, n])?.slice(0, 2, m),
        }
    }

    /// What was seen since the last time.
    pub fn take(&mut self) -> Vec<(String, Seen)> {
        std::mem::take(&mut self.log)
    }

    pub fn panics(&self) -> u64 {
        self.panics
    }

    /// (calls, recorded, replayed, eager, launches, compiles) over all steps.
    pub fn reported(&self) -> [u64; 6] {
        let mut out = self.gone;
        for s in self.steps.iter().chain([&self.nested]) {
            out.iter_mut().zip(counts(s)).for_each(|(o, x)| *o += x);
        }
        out
    }

    /// Call number `k`: what comes before it, then the body. On another thread, when the program says so: steps,
    /// values and optimizers may move.
    pub fn call(&mut self, p: &Program, k: usize) {
        if !self.traced || p.options.threads >> k & 1 == 0 {
            return self.call_here(p, k);
        }
        if let Err(payload) = std::thread::scope(|s| s.spawn(|| self.call_here(p, k)).join()) {
            std::panic::resume_unwind(payload);
        }
    }

    fn call_here(&mut self, p: &Program, k: usize) {
        self.enter(p, k);
        self.outside.clear();
        self.pushed.drain(..self.pushed.len().saturating_sub(PUSHED));
        let mut outer = Call::new();
        if let Err(e) = self.lines(&p.before, &mut outer) {
            self.see("before", Seen::Error(kind(&e)));
        }
        drop(outer);
        if !self.traced {
            self.entry = self.snapshot();
        }
        if p.options.starved >> k & 1 == 0 || !self.starve(p, k) {
            self.body(p, p.steps[k]);
        }
    }

    /// Without what comes before.
    fn body(&mut self, p: &Program, step: u8) {
        let before = self.before_flags(step);
        let result = self.run_body(p, step);
        match self.after_flags(before, result) {
            Ok(Ok(values)) => {
                for t in values {
                    self.push(t);
                }
            }
            Ok(Err(e)) => self.see("result", Seen::Error(kind(&e))),
            Err(payload) if payload.is::<Deliberate>() => {
                self.panics += self.traced as u64;
                self.see("panic", Seen::Nothing);
            }
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    fn run_body(&mut self, p: &Program, step: u8) -> Ended {
        self.run_body_until(p, step, &mut false)
    }

    /// `finished`: the closure came to its end.
    fn run_body_until(&mut self, p: &Program, step: u8, finished: &mut bool) -> Ended {
        self.indexed.clear();
        let mut open = match step {
            0 => None,
            s => Some(std::mem::take(&mut self.steps[s as usize - 1])),
        };
        let traced = self.traced;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut run = || {
                let mut call = Call::new();
                let done = self.lines(&p.body, &mut call);
                *finished = done.is_ok();
                done.map(|()| call.returned)
            };
            match &mut open {
                Some(step) if traced => step.run(run),
                _ => run(),
            }
        }));
        if let Some(open) = open {
            self.steps[step as usize - 1] = open;
        }
        result
    }

    fn enter(&mut self, p: &Program, k: usize) {
        self.call = k;
        self.alt = p.alt >> k & 1 == 1;
        self.m = if self.alt { p.m.1 } else { p.m.0 };
        self.wild = p.options.wild >> k & 1 == 1;
    }

    /// Everything that lasts: variables, positions of the streams, values kept, gradients kept.
    pub fn look(&mut self) {
        self.look_lost();
        self.look_state();
        for slot in 0..SLOTS {
            if let Some(t) = self.kept[slot].clone() {
                self.see_tensor(&format!("kept {slot}"), &t);
            }
        }
        for (i, t) in self.pushed.clone().iter().enumerate() {
            self.see_tensor(&format!("pushed {i}"), t);
        }
        for slot in 0..2 {
            if let Some(g) = self.grads[slot].clone() {
                for (i, v) in self.vars.clone().iter().enumerate() {
                    match g.get(v) {
                        Some(t) => self.see_tensor(&format!("gradient {i} of kept {slot}"), &t),
                        None => self.see(&format!("gradient {i} of kept {slot}"), Seen::Nothing),
                    }
                }
            }
        }
    }

    /// Variables and streams.
    pub fn look_state(&mut self) {
        let mut all: Vec<Var> = self.vars.clone();
        all.extend(self.adam.iter().flat_map(|a| a.state()));
        all.extend(self.sgd.iter().flat_map(|s| s.state()));
        for (i, v) in all.iter().enumerate() {
            let t = v.get();
            self.see_tensor(&format!("variable {i}"), &t);
        }
        for i in 0..2 {
            self.see(&format!("stream {i}"), Seen::Counter(self.rngs[i].counter()));
        }
    }

    fn see(&mut self, at: &str, what: Seen) {
        self.log.push((format!("call {}: {at}", self.call), what));
    }

    fn see_tensor(&mut self, at: &str, t: &Tensor) {
        match t.to_host() {
            Ok(v) => self.see(at, Seen::Value(v)),
            Err(e) => self.see(at, Seen::Error(kind(&e))),
        }
    }

    fn push(&mut self, t: Tensor) {
        self.pushed.push(t);
    }

    fn host(&self, h: Host, call: &Call) -> f32 {
        match h {
            Host::Fixed(v) => v,
            Host::Schedule(v) => v * (self.call as f32 + 1.0),
            Host::LastRead => call.read,
        }
    }

    fn shape(&self, dims: &[Dim]) -> Result<Shape> {
        let dims: Vec<usize> = dims
            .iter()
            .map(|d| match *d {
                Dim::M => self.m,
                Dim::N => self.n,
                Dim::Of(k) => k,
            })
            .collect();
        Shape::new(&dims)
    }

    fn lines(&mut self, lines: &[Line], call: &mut Call) -> Result<()> {
        let mut at = 0;
        while at < lines.len() {
            let Line(when, stmt) = &lines[at];
            at += 1;
            let runs = match when {
                When::Always => true,
                When::Calls(mask) => mask >> self.call & 1 == 1,
                When::Positive => call.read > 0.0,
            };
            if !runs {
                continue;
            }
            match stmt {
                Stmt::Fail => {
                    return Err(
                        ErrorKind::Argument { op: "program", expected: String::new(), given: String::new() }.into()
                    );
                }
                Stmt::Panic => std::panic::resume_unwind(Box::new(Deliberate)),
                Stmt::Nested { len } => {
                    let inner = &lines[at..lines.len().min(at + *len as usize)];
                    at += inner.len();
                    if self.traced {
                        let mut step = std::mem::take(&mut self.nested);
                        let result = catch_unwind(AssertUnwindSafe(|| step.run(|| self.lines(inner, call))));
                        self.nested = step;
                        match result {
                            Ok(result) => result?,
                            Err(payload) => std::panic::resume_unwind(payload),
                        }
                    } else {
                        self.lines(inner, call)?;
                    }
                }
                _ => {
                    if let Err(e) = self.stmt(stmt, call) {
                        if self.starving && matches!(e.kind(), ErrorKind::OutOfMemory { .. }) {
                            return Err(e);
                        }
                        self.see(&format!("{stmt:?}"), Seen::Error(kind(&e)));
                    }
                }
            }
        }
        Ok(())
    }

    /// A statement in plain eager code, as generators try them.
    pub fn try_stmt(
        &mut self,
        stmt: &Stmt,
        regs: &mut Vec<Option<Tensor>>,
        grads: &mut Option<Arc<Gradients>>,
    ) -> Result<()> {
        let mut call = Call { regs: std::mem::take(regs), grads: grads.take(), ..Call::new() };
        let result = self.stmt(stmt, &mut call);
        (*regs, *grads) = (call.regs, call.grads);
        result
    }

    fn stmt(&mut self, stmt: &Stmt, call: &mut Call) -> Result<()> {
        let missing = || Error::argument("program", "a register with a value", "an empty one");
        let reg = |r: u8| call.regs[r as usize].clone().ok_or_else(missing);
        let by_call = |k: &[u8]| k[self.call % k.len()];
        let axis = |t: &Tensor, a: u8| a as isize % t.rank().max(1) as isize;
        let (d, value) = match stmt {
            Stmt::Input { d, k } => {
                let t = self.inputs[by_call(k) as usize][self.alt as usize].clone().ok_or_else(missing)?;
                self.outside.push(t.clone());
                (d, t)
            }
            Stmt::Fresh { d, ty, dims, seed } => {
                let shape = self.shape(dims)?;
                let t = data(*ty, shape.dims(), 1000 + *seed as u64 * 64 + self.call as u64, &self.device)?;
                self.outside.push(t.clone());
                (d, t)
            }
            Stmt::Full { d, dims, value } => {
                (d, Tensor::full(self.shape(dims)?, self.host(*value, call), &self.device)?)
            }
            Stmt::DrawOther { d, rng, dims, how } => {
                (d, functions::draw(&self.rngs[*rng as usize], *how, self.shape(dims)?, &self.device)?)
            }
            Stmt::Draw { d, rng, dims } => (d, self.rngs[*rng as usize].uniform(self.shape(dims)?, &self.device)?),
            Stmt::Get { d, v } => {
                let v = by_call(v);
                (d, self.vars[v as usize].get())
            }
            Stmt::Set { v, a } => {
                let v = by_call(v);
                self.vars[v as usize].set(&reg(*a)?)?;
                return Ok(());
            }
            Stmt::Swap { v, w } => {
                let (x, y) = (self.vars[*v as usize].get(), self.vars[*w as usize].get());
                self.vars[*v as usize].set(&y)?;
                self.vars[*w as usize].set(&x)?;
                return Ok(());
            }
            Stmt::Fork { d, a } => {
                let a = reg(*a)?;
                let own = if a.dtype().is_float() { Var::new(&a)? } else { Var::state(&a)? };
                let t = own.get();
                self.outside.push(t.clone());
                (d, t)
            }
            Stmt::Copy { d, a } => (d, reg(*a)?),
            Stmt::Unary { d, op, a } => (d, functions::unary(*op, &reg(*a)?)?),
            Stmt::Binary { d, op, a, b } => (d, functions::binary(*op, &reg(*a)?, &reg(*b)?)?),
            Stmt::WithHost { d, op, a, host, left } => {
                (d, functions::with_host(*op, &reg(*a)?, self.host(*host, call), *left)?)
            }
            Stmt::Select { d, a, b, c } => (d, reg(*a)?.select(&reg(*b)?, &reg(*c)?)?),
            Stmt::SelectHost { d, a, b, host, first } => {
                let (c, x, h) = (reg(*a)?, reg(*b)?, self.host(*host, call));
                (d, if *first { c.select(h, &x)? } else { c.select(&x, h)? })
            }
            Stmt::Cast { d, a, to } => (d, reg(*a)?.to_dtype(dtype(*to))?),
            Stmt::Reshape { d, a, dims } => (d, reg(*a)?.reshape(self.shape(dims)?)?),
            Stmt::Flatten { d, a } => (d, reg(*a)?.flatten()?),
            Stmt::Transpose { d, a, x, y } => {
                let a = reg(*a)?;
                (d, a.transpose(axis(&a, *x), axis(&a, *y))?)
            }
            Stmt::Expand { d, a, dims } => (d, reg(*a)?.expand(self.shape(dims)?)?),
            Stmt::Unsqueeze { d, a, axis } => {
                let a = reg(*a)?;
                (d, a.unsqueeze(*axis as isize % (a.rank() as isize + 1))?)
            }
            Stmt::Squeeze { d, a, axis: x } => {
                let a = reg(*a)?;
                (d, a.squeeze(axis(&a, *x))?)
            }
            Stmt::Slice { d, a, axis: x, start, len, step } => {
                let a = reg(*a)?;
                let x = axis(&a, *x);
                let have = a.dims().get(x as usize).copied().unwrap_or(0);
                let (back, step) = (*step > 2, 1 + (*step % 3) as usize);
                // The length is the same in every call; the start is not.
                let most = have.div_ceil(step);
                let len = (*len as usize).min(most);
                let room = have.saturating_sub(len.max(1) * step - (step - 1)) + 1;
                let start = self.host(*start, call).abs().min(1e6) as usize % room;
                let reach = len.saturating_sub(1) * step;
                let (start, step) = if back { (start + reach, -(step as isize)) } else { (start, step as isize) };
                (d, a.slice_step(x, start, len, step)?)
            }
            Stmt::Concat { d, a, b, c, axis: x } => {
                let (a, b) = (reg(*a)?, reg(*b)?);
                let x = axis(&a, *x);
                match c {
                    Some(c) => (d, Tensor::concat(&[&a, &b, &reg(*c)?], x)?),
                    None => (d, Tensor::concat(&[&a, &b], x)?),
                }
            }
            Stmt::Matmul { d, a, b } => (d, reg(*a)?.matmul(&reg(*b)?)?),
            Stmt::Gather { d, a, b, axis: x } => {
                let (a, b) = (reg(*a)?, reg(*b)?);
                let x = axis(&a, *x);
                let index = self.index(&b, a.dims().get(x as usize).copied().unwrap_or(0))?;
                (d, if index.rank() == 1 { a.index_select(x, &index)? } else { a.gather(x, &index)? })
            }
            Stmt::ScatterAdd { d, a, b, c, axis: x } => {
                let (a, b, c) = (reg(*a)?, reg(*b)?, reg(*c)?);
                let x = axis(&a, *x);
                let index = self.index(&b, a.dims().get(x as usize).copied().unwrap_or(0))?;
                (d, a.scatter_add(x, &index, &c)?)
            }
            Stmt::Reduce { d, op, a, axes, keepdim } => {
                let a = reg(*a)?;
                let axes: Vec<isize> = (0..a.rank() as isize).filter(|&x| *axes >> x & 1 == 1).collect();
                let axes = &axes[..];
                let t = match (op, keepdim) {
                    (Reduction::Sum, false) => a.sum(axes)?,
                    (Reduction::Sum, true) => a.sum_keepdim(axes)?,
                    (Reduction::Max, false) => a.max(axes)?,
                    (Reduction::Max, true) => a.max_keepdim(axes)?,
                    (Reduction::Min, false) => a.min(axes)?,
                    (Reduction::Min, true) => a.min_keepdim(axes)?,
                    (Reduction::Mean, false) => a.mean(axes)?,
                    (Reduction::Mean, true) => a.mean_keepdim(axes)?,
                };
                (d, t)
            }
            Stmt::Op { d, name, a, b, c, axis: x, k, host, rng } => {
                let (a, b, c) = (reg(*a)?, reg(*b)?, reg(*c)?);
                let h = self.host(*host, call) as f64;
                let (axis, rng) = (axis(&a, *x), &self.rngs[*rng as usize]);
                let args = Args { a: &a, b: &b, c: &c, axis, k: *k as usize, h, rng, device: &self.device };
                (d, (ops::row(name).ok_or_else(missing)?.1)(&args)?)
            }
            Stmt::Softmax { d, a, axis: x } => {
                let a = reg(*a)?;
                (d, a.softmax(axis(&a, *x))?)
            }
            Stmt::LogSoftmax { d, a, axis: x } => {
                let a = reg(*a)?;
                (d, a.log_softmax(axis(&a, *x))?)
            }
            Stmt::Mse { d, a, b } => (d, reg(*a)?.mse(&reg(*b)?)?),
            Stmt::CrossEntropy { d, a, b } => {
                let (a, b) = (reg(*a)?, reg(*b)?);
                let labels = self.index(&b, a.dims().get(1).copied().unwrap_or(0))?;
                (d, a.cross_entropy(&labels)?)
            }
            Stmt::Read { a } => {
                let v = reg(*a)?.to_host()?;
                let first = v.data.to_f64().first().copied().unwrap_or(0.0) as f32;
                call.read = if first.is_finite() { first } else { 0.5 };
                self.see(&format!("{stmt:?}"), Seen::Value(v));
                return Ok(());
            }
            Stmt::Keep { slot, a } => {
                self.kept[*slot as usize] = Some(reg(*a)?);
                return Ok(());
            }
            Stmt::Push { a } => {
                let t = reg(*a)?;
                self.push(t);
                return Ok(());
            }
            Stmt::Unkeep { slot } => {
                self.kept[*slot as usize] = None;
                if *slot == 0 {
                    self.pushed.clear();
                    self.grads = vec![None; 2];
                }
                return Ok(());
            }
            Stmt::Load { d, slot, detach } => {
                let t = self.kept[*slot as usize].clone().ok_or_else(missing)?;
                if *detach { (d, t.detach()?) } else { (d, t) }
            }
            Stmt::Return { a } => {
                let t = reg(*a)?;
                call.returned.push(t);
                return Ok(());
            }
            Stmt::Backward { a } => {
                let a = reg(*a)?;
                let loss = if a.numel() == 1 { a } else { a.sin()?.mean(())? };
                call.grads = Some(Arc::new(loss.backward()?));
                return Ok(());
            }
            Stmt::Grad { d, v } => {
                let g = call.grads.as_ref().ok_or_else(missing)?;
                match g.get(&self.vars[*v as usize]) {
                    Some(t) => (d, t),
                    None => {
                        self.see(&format!("{stmt:?}"), Seen::Nothing);
                        return Ok(());
                    }
                }
            }
            Stmt::KeepGrads { slot } => {
                self.grads[*slot as usize] = call.grads.clone();
                return Ok(());
            }
            Stmt::LoadGrads { slot } => {
                call.grads = self.grads[*slot as usize].clone();
                return Ok(());
            }
            Stmt::Adam { lr } => {
                let lr = self.host(*lr, call);
                if let (Some(adam), Some(g)) = (&mut self.adam, &call.grads) {
                    adam.set_lr(lr as f64);
                    adam.step(g)?;
                }
                return Ok(());
            }
            Stmt::Sgd { lr } => {
                let lr = self.host(*lr, call);
                if let (Some(sgd), Some(g)) = (&mut self.sgd, &call.grads) {
                    sgd.set_lr(lr as f64);
                    sgd.step(g)?;
                }
                return Ok(());
            }
            Stmt::Reseed { rng, seed } => {
                self.rngs[*rng as usize].reseed(*seed as u64);
                self.seeds[*rng as usize] = *seed as u64;
                return Ok(());
            }
            Stmt::Away { d, a } => {
                let there = reg(*a)?.to_device(&self.other)?;
                let twice = if there.dtype() == DType::Bool { there.not()? } else { (&there + &there)? };
                let back = twice.to_device(&self.device)?;
                self.outside.push(back.clone());
                (d, back)
            }
            Stmt::Replace { v, seed } => {
                let old = &self.vars[*v as usize];
                let dims = old.shape();
                let ty = if old.dtype() == DType::F32 { Type::F32 } else { Type::I64 };
                let value = data(ty, dims.dims(), 500 + *seed as u64, &self.device)?;
                let new = if old.is_trainable() { Var::new(&value)? } else { Var::state(&value)? };
                self.vars[*v as usize] = new;
                return Ok(());
            }
            Stmt::Renew { step: k } => {
                let fresh = step(&self.options);
                let old = std::mem::replace(&mut self.steps[*k as usize - 1], fresh);
                self.gone.iter_mut().zip(counts(&old)).for_each(|(o, x)| *o += x);
                return Ok(());
            }
            Stmt::Nested { .. } | Stmt::Fail | Stmt::Panic => return Ok(()),
        };
        if self.options.wild != 0
            && matches!(stmt, Stmt::Gather { .. } | Stmt::ScatterAdd { .. } | Stmt::CrossEntropy { .. })
        {
            // What nobody uses is not computed, and finds no index out of range.
            self.indexed.push(value.clone());
        }
        call.regs[*d as usize] = Some(value);
        Ok(())
    }

    // ---- freezing ----

    /// What a frozen step takes from the host at its call: values kept, gradients kept.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::new(Snapshot { kept: self.kept.clone(), pushed: self.pushed.clone(), grads: self.grads.clone() })
    }

    /// The last call again, as a frozen step does it; gives the values it kept.
    pub fn again(&mut self, p: &Program, k: usize) -> Vec<HostValue> {
        let at = self.entry.clone();
        self.enter(p, k);
        let Snapshot { kept, pushed, grads } = &*at;
        self.restore(&at);
        self.outside = self.vars.iter().map(|v| v.get()).collect();
        self.body(p, p.steps[k]);
        self.log.clear();
        let mut made: Vec<Tensor> = Vec::new();
        let mut known: Vec<Tensor> = kept.iter().flatten().chain(pushed).cloned().collect();
        known.extend(grads.iter().flatten().flat_map(|g| self.vars.iter().filter_map(|v| g.get(v))));
        let before = |t: &Tensor| known.iter().any(|o| o.same(t));
        let mut add = |t: Tensor, outside: &[Tensor]| {
            if !outside.iter().any(|o| o.same(&t)) && !made.iter().any(|o| o.same(&t)) {
                made.push(t);
            }
        };
        for t in self.kept.iter().flatten().chain(&self.pushed).chain(&self.indexed).filter(|t| !before(t)) {
            add(t.clone(), &self.outside);
        }
        for (g, old) in self.grads.iter().zip(grads) {
            if let Some(g) = g.as_ref().filter(|g| !old.as_ref().is_some_and(|o| Arc::ptr_eq(o, g))) {
                self.vars.iter().filter_map(|v| g.get(v)).filter(|t| !before(t)).for_each(|t| add(t, &self.outside));
            }
        }
        made.iter().filter_map(|t| t.to_host().ok()).collect()
    }

    pub fn restore(&mut self, at: &Snapshot) {
        (self.kept, self.pushed, self.grads) = (at.kept.clone(), at.pushed.clone(), at.grads.clone());
    }

    /// The report and the explanation as text.
    pub fn explained(&self) -> String {
        self.steps.iter().chain([&self.nested]).map(|s| format!("{}\n{}", s.report(), s.explain())).collect()
    }

    pub fn freeze(&self, step: u8) -> Result<jit::Frozen> {
        self.steps[step as usize - 1].freeze()
    }
}

/// How a body ended: with values, an error, or a panic.
type Ended = std::thread::Result<Result<Vec<Tensor>>>;

/// What lasts besides variables.
#[derive(Default)]
pub struct Snapshot {
    kept: Vec<Option<Tensor>>,
    pushed: Vec<Tensor>,
    grads: Vec<Option<Arc<Gradients>>>,
}

fn step(o: &Options) -> jit::Step {
    let options = jit::Options::new().fuse(o.fuse).in_place(o.in_place).plan_cache(o.plan_cache);
    // Each launch is compared with the interpreter.
    jit::Step::with_options(options.verify(true))
}

fn counts(s: &jit::Step) -> [u64; 6] {
    let r = s.report();
    [r.calls, r.recorded, r.replayed, r.eager, r.launches, r.compiles]
}

impl Call {
    fn new() -> Call {
        Call { regs: vec![None; REGISTERS], grads: None, read: 0.5, returned: Vec::new() }
    }
}

fn dtype(ty: Type) -> DType {
    match ty {
        Type::F64 => DType::F64,
        Type::F32 => DType::F32,
        Type::BF16 => DType::BF16,
        Type::F16 => DType::F16,
        Type::I64 => DType::I64,
        Type::I32 => DType::I32,
        Type::I8 => DType::I8,
        Type::U8 => DType::U8,
        Type::Bool => DType::Bool,
    }
}

/// Indices below `len`, whatever `t` holds.
pub fn in_range(t: &Tensor, len: usize) -> Result<Tensor> {
    t.to_dtype(DType::I64)?.maximum(0i64)?.minimum(len.max(1) as i64 - 1)
}

/// Whether two users saw the same; NaN are all alike.
pub fn same(a: &Seen, b: &Seen) -> bool {
    match (a, b) {
        (Seen::Value(a), Seen::Value(b)) => same_value(a, b),
        (Seen::Error(a), Seen::Error(b)) => a == b,
        (Seen::Nothing, Seen::Nothing) => true,
        (Seen::Counter(a), Seen::Counter(b)) => a == b,
        _ => false,
    }
}

pub fn same_value(a: &HostValue, b: &HostValue) -> bool {
    a.shape == b.shape && a.data.difference(&b.data).is_none()
}
