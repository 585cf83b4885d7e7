//! W1 to W7 of `benches/peers/README.md`: eager, traced and frozen, taking turns.
//!
//! Of a step three times are taken: until the call returns (`host_us`: what the host pays), until its result is there
//! (`median_us`, as the peers'; W4 and W5 read the loss), and, of several in a row without waiting, the device's own
//! (`device_us`: from event to event, divided).

use std::time::Instant;

use stepgraph::{Device, Result, Tensor, Var, jit};

use crate::Size;
use crate::gpt::Gpt;
use crate::items::{self, Chain, CosCos, Doubling, NormGelu, Product, Softmax, Training};
use crate::output::{Output, median, round};

/// A workload on a device.
trait Item {
    /// One step; what it computes, a loss if it trains.
    fn run(&mut self) -> Result<Tensor>;
    /// The `Var`s, if it trains.
    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

macro_rules! functions {
    ($($item:ty),*) => { $(
        impl Item for $item {
            fn run(&mut self) -> Result<Tensor> {
                <$item>::run(self)
            }
        }
    )* };
}
functions!(Chain, CosCos, Doubling, NormGelu, Product, Softmax);

impl Item for Training {
    fn run(&mut self) -> Result<Tensor> {
        Training::run(self)
    }

    fn vars(&self) -> Vec<Var> {
        self.vars.clone()
    }
}

impl Item for Gpt {
    fn run(&mut self) -> Result<Tensor> {
        Gpt::run(self)
    }

    fn vars(&self) -> Vec<Var> {
        Gpt::vars(self)
    }
}

/// A workload to be made.
struct Work<'a> {
    name: String,
    /// Bytes that one step must move, and floating-point operations, where they are counted.
    bytes: usize,
    flops: usize,
    make: Box<dyn Fn() -> Result<Box<dyn Item>> + 'a>,
}

impl<'a> Work<'a> {
    fn new<I: Item + 'static>(name: String, make: impl Fn() -> Result<I> + 'a) -> Work<'a> {
        let make = move || Ok(Box::new(make()?) as Box<dyn Item>);
        Work { name, bytes: 0, flops: 0, make: Box::new(make) }
    }

    fn bytes(self, bytes: usize) -> Work<'a> {
        Work { bytes, ..self }
    }

    fn flops(self, flops: usize) -> Work<'a> {
        Work { flops, ..self }
    }
}

/// All of them, in the peers' sizes or smaller ones.
fn works(device: &Device, size: Size) -> Vec<Work<'_>> {
    let tiny = size == Size::Tiny;
    let mut all = Vec::new();
    for n in if tiny { vec![1 << 10] } else { items::W1_SIZES.to_vec() } {
        all.push(Work::new(format!("W1_coscos_{n}"), move || CosCos::new(n, device)).bytes(8 * n));
    }
    let (sizes, repeats) = match size {
        Size::Tiny => (vec![1 << 10], vec![4]),
        Size::Quick => (vec![1 << 24], vec![1, 16]),
        Size::Full => (items::W2_SIZES.to_vec(), items::W2_REPEATS.to_vec()),
    };
    for n in sizes {
        for &r in &repeats {
            let work = Work::new(format!("W2_mul2_{n}_r{r}"), move || Doubling::new(n, r, device));
            all.push(work.bytes(8 * n).flops(r * n));
        }
    }
    all.push(Work::new("W3_chain50".into(), move || Chain::mixed(items::W3_N, device)));
    all.push(Work::new("W3_add50".into(), move || Chain::adds(items::W3_TINY, items::W3_OPS, device)));
    for batch in if tiny { vec![1] } else { items::W4_BATCHES.to_vec() } {
        all.push(Work::new(format!("W4_mlp_b{batch}"), move || Training::new(batch, device)));
    }
    if !tiny {
        all.push(Work::new("W5_gpt".into(), move || Gpt::new(device)));
    }
    let shape = if tiny { [8, 64] } else { items::W6_SHAPE };
    let bytes = 8 * shape[0] * shape[1];
    all.push(Work::new("W6_lngelures".into(), move || NormGelu::new(shape, device)).bytes(bytes));
    all.push(Work::new("W6_softmax".into(), move || Softmax::new(shape, device)).bytes(bytes));
    for [m, k, n] in if tiny { vec![[16, 16, 16]] } else { items::W7_SHAPES.to_vec() } {
        let work = Work::new(format!("W7_gemm_{m}x{k}x{n}"), move || Product::new([m, k, n], device));
        all.push(work.flops(2 * m * k * n));
    }
    all
}

/// A workload in one mode, and what was measured of it.
struct Way {
    mode: &'static str,
    item: Box<dyn Item>,
    step: jit::Step,
    frozen: Option<jit::Frozen>,
    first_call: f64,
    losses: Vec<f32>,
    host: Vec<f64>,
    whole: Vec<f64>,
    device: Vec<f64>,
    launches: u64,
    kernels: u64,
}

impl Way {
    /// As far as the first call: compiled, and frozen with the initial `Var`s set back.
    fn new(mode: &'static str, work: &Work<'_>) -> Result<Way> {
        let item = (work.make)()?;
        let mut way = Way {
            mode,
            item,
            step: jit::Step::new(),
            frozen: None,
            first_call: 0.0,
            losses: Vec::new(),
            host: Vec::new(),
            whole: Vec::new(),
            device: Vec::new(),
            launches: 0,
            kernels: 0,
        };
        let start = Instant::now();
        if mode == "frozen" {
            let vars = way.item.vars();
            let initial: Vec<Tensor> = vars.iter().map(Var::get).collect();
            way.frozen = Some(items::freeze(&mut way.step, || way.item.run())?);
            vars.iter().zip(&initial).try_for_each(|(var, value)| var.set(value))?;
        }
        way.first_call = start.elapsed().as_secs_f64();
        Ok(way)
    }

    fn call(&mut self) -> Result<Tensor> {
        match (&mut self.frozen, self.mode) {
            (Some(frozen), _) => Ok(frozen.replay()?[0].clone()),
            (None, "eager") => self.item.run(),
            _ => self.step.run(|| self.item.run()),
        }
    }

    fn warm_up(&mut self, device: &Device, size: Size) -> Result<()> {
        let trains = !self.item.vars().is_empty();
        let calls = if trains && size != Size::Tiny { 20 } else { 5 };
        for k in 0..calls {
            let start = Instant::now();
            let result = self.call()?;
            if trains {
                self.losses.push(result.item()?);
            }
            device.synchronize()?;
            if k == 0 {
                self.first_call += start.elapsed().as_secs_f64();
            }
        }
        let before = device.counts();
        self.call()?;
        let did = device.counts() - before;
        (self.launches, self.kernels) = (did.launches, did.kernels + did.eager_kernels);
        Ok(())
    }

    /// One turn: `calls` times one by one, then as many in a row for the device's time.
    fn turn(&mut self, device: &Device, calls: usize) -> Result<()> {
        let trains = !self.losses.is_empty();
        device.synchronize()?;
        for _ in 0..calls {
            let start = Instant::now();
            let result = self.call()?;
            self.host.push(start.elapsed().as_secs_f64() * 1e6);
            if trains {
                result.item::<f32>()?;
            } else {
                device.synchronize()?;
            }
            self.whole.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let (_, time) = device.time(|| (0..calls).try_for_each(|_| self.call().map(drop)))?;
        self.device.push(time.as_secs_f64() * 1e6 / calls as f64);
        Ok(())
    }

    fn line(&self, work: &Work<'_>, device: &str) -> serde_json::Value {
        let device_us = median(&self.device);
        let least = self.whole.iter().copied().fold(f64::INFINITY, f64::min);
        let mut line = serde_json::json!({
            "section": "workloads", "peer": "stepgraph", "mode": self.mode, "workload": work.name, "threads": 1,
            "median_us": round(median(&self.whole)), "min_us": round(least), "host_us": round(median(&self.host)),
            "device_us": round(device_us), "first_call_ms": round(self.first_call * 1e3), "iters": self.whole.len(),
            "launches": self.launches, "kernels": self.kernels, "device": device,
            "notes": concat!("stepgraph ", env!("CARGO_PKG_VERSION")),
        });
        if work.bytes > 0 {
            line["gb_s"] = round(work.bytes as f64 / device_us / 1e3).into();
        }
        if work.flops > 0 {
            line["gflop_s"] = round(work.flops as f64 / device_us / 1e3).into();
        }
        if let (Some(first), Some(last)) = (self.losses.first(), self.losses.last()) {
            line["loss1"] = (*first as f64).into();
            line["loss20"] = (*last as f64).into();
        }
        line
    }
}

fn measure(work: &Work<'_>, device: &Device, size: Size, out: &mut Output) -> Result<()> {
    let mut ways = Vec::new();
    for mode in ["eager", "traced", "frozen"] {
        let mut way = Way::new(mode, work)?;
        way.warm_up(device, size)?;
        ways.push(way);
    }
    let (rounds, seconds) = match size {
        Size::Tiny => (1, 0.0),
        Size::Quick => (5, 0.02),
        Size::Full => (15, 0.05),
    };
    for round in 0..rounds {
        // Another one first in each round, so that whatever disturbs is unfair to none.
        for turn in 0..ways.len() {
            let way = &mut ways[(round + turn) % 3];
            let known = median(&way.whole);
            let calls = if known > 0.0 { (seconds * 1e6 / known) as usize } else { 3 };
            way.turn(device, calls.clamp(2, 500))?;
        }
    }
    for way in &ways {
        out.line(way.line(work, device.name()));
        out.say(&format!(
            "{:<22} {:<7} {:>10.2} us  host {:>9.2}  device {:>10.2}  {:>4} kernels in {} launches",
            work.name,
            way.mode,
            median(&way.whole),
            median(&way.host),
            median(&way.device),
            way.kernels,
            way.launches
        ));
    }
    let bits = |w: &Way| w.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
    let other = ways[1..].iter().find(|w| bits(w) != bits(&ways[0]));
    let outcome =
        other.map_or(Ok(()), |w| Err(format!("losses: {:?} eager, {:?} {}", ways[0].losses, w.losses, w.mode)));
    out.check("workloads", &work.name, outcome);
    Ok(())
}

/// Measures those of the groups named; all of them if none is.
pub fn run(device: &Device, groups: &[String], size: Size, out: &mut Output) {
    out.title("workloads: median time of a step until its result is there, on the host, on the device");
    let wanted =
        |w: &Work<'_>| groups.is_empty() || groups.iter().any(|g| w.name.split('_').next() == Some(g.as_str()));
    for work in works(device, size).into_iter().filter(wanted) {
        if let Err(e) = measure(&work, device, size, out) {
            out.check("workloads", &work.name, Err(e.to_string()));
        }
    }
}
