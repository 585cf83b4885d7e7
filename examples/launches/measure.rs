//! Which calls of the driver one step makes, once it is warm: the workloads, the modes, the counting.

use std::collections::BTreeMap;

use stepgraph::backend::cuda::sys::calls;
use stepgraph::{Device, Result, Tensor, jit};

use crate::digits::{Digits, Trainer};
use crate::gpt::Gpt;
use crate::items::{self, Chain, Training};

/// Calls by name.
pub type Calls = BTreeMap<String, u64>;

/// How a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Eager,
    Traced,
    Frozen,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Eager, Mode::Traced, Mode::Frozen];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Eager => "eager",
            Mode::Traced => "traced",
            Mode::Frozen => "frozen",
        }
    }
}

/// A step that can be repeated.
pub trait Repeat {
    /// Step `k`.
    fn step(&mut self, k: usize) -> Result<Tensor>;
    /// Gives a frozen step what step `k` reads.
    fn feed(&mut self, _frozen: &mut jit::Frozen, _k: usize) -> Result<()> {
        Ok(())
    }
}

impl Repeat for Chain {
    fn step(&mut self, _: usize) -> Result<Tensor> {
        self.run()
    }
}

impl Repeat for Training {
    fn step(&mut self, _: usize) -> Result<Tensor> {
        self.run()
    }
}

impl Repeat for Gpt {
    fn step(&mut self, _: usize) -> Result<Tensor> {
        self.run()
    }
}

/// The network of the digits, on batches that take turns.
struct Turns {
    trainer: Trainer,
    batches: Vec<(Tensor, Tensor)>,
}

impl Turns {
    fn new(batches: usize, device: &Device) -> Result<Turns> {
        let (train, _) = Digits::load();
        let rows: Vec<usize> = (0..64 * batches).collect();
        let batches = rows.chunks(64).map(|b| train.tensors(b, device)).collect::<Result<_>>()?;
        Ok(Turns { trainer: Trainer::new(device)?, batches })
    }
}

impl Repeat for Turns {
    fn step(&mut self, k: usize) -> Result<Tensor> {
        let (x, y) = &self.batches[k % self.batches.len()];
        self.trainer.step(x, y)
    }

    fn feed(&mut self, frozen: &mut jit::Frozen, k: usize) -> Result<()> {
        let (x, y) = &self.batches[k % self.batches.len()];
        frozen.set_input(0, x)?;
        frozen.set_input(1, y)
    }
}

/// A workload: its name, and whether anything that a step reads changes from one to the next.
pub struct Workload {
    pub name: &'static str,
    pub changes: bool,
    make: fn(&Device) -> Result<Box<dyn Repeat>>,
}

pub const WORKLOADS: [Workload; 5] = [
    Workload { name: "digits", changes: true, make: |d| Ok(Box::new(Turns::new(3, d)?)) },
    Workload { name: "digits_one_batch", changes: false, make: |d| Ok(Box::new(Turns::new(1, d)?)) },
    Workload { name: "W3_chain50", changes: false, make: |d| Ok(Box::new(Chain::mixed(items::W3_N, d)?)) },
    Workload { name: "W4_mlp_b32", changes: false, make: |d| Ok(Box::new(Training::new(32, d)?)) },
    Workload { name: "W5_gpt", changes: false, make: |d| Ok(Box::new(Gpt::new(d)?)) },
];

/// Who counts the calls.
#[derive(Clone, Copy)]
pub enum Counter {
    /// The simulated driver.
    Driver,
    /// stepgraph's own log of its calls, on any driver.
    Log,
}

impl Counter {
    /// The calls that `f` makes.
    fn count<R>(self, f: impl FnOnce() -> Result<R>) -> Result<Calls> {
        match self {
            Counter::Driver => {
                let before = cuda_sim::counts();
                f()?;
                let mut calls = cuda_sim::counts();
                calls.iter_mut().for_each(|(name, n)| *n -= before.get(name).unwrap_or(&0));
                calls.retain(|_, n| *n > 0);
                Ok(calls)
            }
            Counter::Log => {
                calls::record();
                let result = f();
                let mut counted = Calls::new();
                for (name, _) in calls::recorded() {
                    *counted.entry(name.to_string()).or_default() += 1;
                }
                result.map(|_| counted)
            }
        }
    }
}

/// Steps before the first that counts: batches of every length come by, addresses that change have shown that they do.
const WARM_UP: usize = 7;

impl Workload {
    /// The calls of one step on a device, nothing of an earlier one being held.
    pub fn calls(&self, mode: Mode, device: &Device, counter: Counter) -> Result<Calls> {
        let mut work = (self.make)(device)?;
        let warm_up = if self.changes { WARM_UP } else { WARM_UP.min(3) };
        match mode {
            Mode::Eager => {
                work.step(0)?;
                device.synchronize()?;
                counter.count(|| work.step(1))
            }
            Mode::Traced => {
                let mut step = jit::Step::new();
                for k in 0..warm_up {
                    step.run(|| work.step(k))?;
                }
                device.synchronize()?;
                counter.count(|| step.run(|| work.step(warm_up)))
            }
            Mode::Frozen => {
                let (mut step, mut k) = (jit::Step::new(), 0);
                let mut frozen = items::freeze(&mut step, || {
                    k += 1;
                    work.step(k - 1)
                })?;
                for k in k..k + warm_up - 1 {
                    work.feed(&mut frozen, k)?;
                    frozen.replay()?;
                }
                device.synchronize()?;
                counter.count(|| {
                    work.feed(&mut frozen, k + warm_up - 1)?;
                    frozen.replay().map(drop)
                })
            }
        }
    }
}
