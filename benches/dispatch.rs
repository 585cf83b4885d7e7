//! Host dispatch: machine code against the loop, in one run.
//!
//! `cargo bench --bench dispatch`. Medians of interleaved samples: nanoseconds a call and a launch, and
//! what compiling costs. "nothing" rehearses plans (calls that return at once); "cpu" runs kernels of 8 elements.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use stepgraph::backend::cpu::{CpuBackend, Options};
use stepgraph::backend::dispatch::{Mode, Rehearsal};
use stepgraph::backend::null::NullBackend;
use stepgraph::backend::{Backend, Buffer, InputBinding, Launch, LaunchResult};
use stepgraph::base::{DType, Layout, Result, Shape, Type};
use stepgraph::kernel::{Access, Builder, Kernel};
use stepgraph::plan::check::check;
use stepgraph::plan::{OutputStorage, Plan, PlanInput, PlanOutput, Slot, SlotKind, Step, StepKind};

const SAMPLES: usize = 41;

/// Medians, in nanoseconds, of the functions called in turn.
fn medians<const N: usize>(repeats: usize, mut functions: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..SAMPLES {
        for (function, times) in functions.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..repeats {
                function();
            }
            times.push(start.elapsed().as_nanos() as f64 / repeats as f64);
        }
    }
    times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[SAMPLES / 2]
    })
}

fn add(n: usize) -> Kernel {
    let mut k = Builder::new(&[n], &[false]);
    let (a, b, out) = (k.input(DType::F32, n), k.input(DType::F32, n), k.output(DType::F32, n));
    let (a, b) = (k.load(Access::row_major(a, &[n])), k.load(Access::row_major(b, &[n])));
    let sum = k.add(a, b);
    k.store(Access::row_major(out, &[n]), sum);
    k.finish().unwrap()
}

fn f32s(dims: &[usize]) -> Type {
    Type::new(DType::F32, Shape::new(dims).unwrap())
}

fn input(ty: Type) -> PlanInput {
    PlanInput { ty, layout: Layout::contiguous(ty.shape), bytes: ty.bytes(), var: true }
}

fn output(ty: Type, in_place: Option<u32>) -> PlanOutput {
    PlanOutput { ty, storage: OutputStorage::Own { bytes: ty.bytes() }, layout: Layout::contiguous(ty.shape), in_place }
}

fn step(args: Vec<u32>, kernel: &Kernel) -> Step {
    let kind = StepKind::Kernel(kernel.clone());
    Step { kind, args, params: Vec::new(), locs: Vec::new(), label: String::new() }
}

/// `steps` additions in a row, of 8 elements.
fn chain(steps: usize) -> Plan {
    let (ty, kernel) = (f32s(&[8]), add(8));
    let mut slots = vec![SlotKind::Input(0), SlotKind::Output(0)];
    slots.extend((0..2).map(|i| SlotKind::Arena { offset: 64 * i }));
    let at = |i: usize| if i == steps { 1 } else { 2 + i as u32 % 2 };
    Plan {
        name: "chain".into(),
        slots: slots.into_iter().map(|kind| Slot { kind, bytes: 32 }).collect(),
        steps: (0..steps).map(|i| step(vec![if i == 0 { 0 } else { at(i) }, 0, at(i + 1)], &kernel)).collect(),
        edges: (1..steps as u32).map(|i| (i - 1, i)).collect(),
        arena_bytes: 128,
        inputs: vec![input(ty)],
        outputs: vec![output(ty, None)],
        params: Vec::new(),
    }
}

/// One kernel over `vars` `Var`s updated in place and a batch, with a fresh loss: a small training step's interface.
fn update(vars: usize) -> Plan {
    let ty = f32s(&[2, 4]);
    let n = 8;
    let mut k = Builder::new(&[n], &[false]);
    let ins: Vec<u32> = (0..=vars).map(|_| k.input(DType::F32, n)).collect();
    let batch = k.load(Access::row_major(ins[vars], &[n]));
    let mut sum = batch;
    for &i in &ins[..vars] {
        let v = k.load(Access::row_major(i, &[n]));
        sum = k.add(v, batch);
        let out = k.output(DType::F32, n);
        k.store(Access::row_major(out, &[n]), sum);
    }
    let loss = k.output(DType::F32, n);
    k.store(Access::row_major(loss, &[n]), sum);
    let kernel = k.finish().unwrap();
    let slots = (0..=vars as u32).map(SlotKind::Input).chain((0..=vars as u32).map(SlotKind::Output));
    Plan {
        name: "update".into(),
        slots: slots.map(|kind| Slot { kind, bytes: 32 }).collect(),
        steps: vec![step((0..2 * vars as u32 + 2).collect(), &kernel)],
        inputs: vec![input(ty); vars + 1],
        outputs: (0..=vars as u32).map(|v| output(ty, (v < vars as u32).then_some(v))).collect(),
        ..Plan::default()
    }
}

struct Bench {
    buffers: Vec<Buffer>,
    layouts: Vec<Layout>,
    exclusive: usize,
    outputs: Vec<Option<Buffer>>,
}

impl Bench {
    fn new(backend: &dyn Backend, plan: &Plan) -> Bench {
        Bench {
            buffers: plan.inputs.iter().map(|i| backend.upload(&vec![0; i.bytes]).unwrap()).collect(),
            layouts: plan.inputs.iter().map(|i| i.layout).collect(),
            exclusive: plan.outputs.iter().filter(|o| o.in_place.is_some()).count(),
            outputs: Vec::new(),
        }
    }

    fn run(&mut self, launch: impl Fn(&mut Launch) -> Result<LaunchResult>) {
        let inputs: Vec<InputBinding> = self
            .buffers
            .iter()
            .zip(&self.layouts)
            .enumerate()
            .map(|(i, (buffer, layout))| InputBinding {
                buffer,
                layout,
                dtype: DType::F32,
                exclusive: i < self.exclusive,
            })
            .collect();
        launch(&mut Launch { inputs: &inputs, params: &[], outputs: &mut self.outputs }).unwrap();
        black_box(&self.outputs);
    }
}

fn backends() -> [Arc<CpuBackend>; 2] {
    [true, false].map(|compiled| {
        let options = Options { threads: Some(1), compiled_dispatch: Some(compiled), ..Options::default() };
        CpuBackend::new(options).unwrap()
    })
}

fn main() {
    let null = NullBackend::new();
    println!("{:>22} {:>10} {:>10} {:>12}", "ns per call", "code", "loop", "compile us");
    for steps in [10, 50, 200, 2000] {
        let plan = chain(steps);
        let [code, looping] = [Mode::Compiled, Mode::Loop].map(|mode| Rehearsal::new(&plan, mode).unwrap());
        let (mut a, mut b) = (Bench::new(&*null, &plan), Bench::new(&*null, &plan));
        let [t_code, t_loop] =
            medians(200_000 / steps, [&mut || a.run(|l| code.launch(l)), &mut || b.run(|l| looping.launch(l))]);
        let [compile, setup] = medians(
            1,
            [&mut || drop(black_box(Rehearsal::new(&plan, Mode::Compiled).unwrap())), &mut || {
                drop(black_box(Rehearsal::new(&plan, Mode::Loop).unwrap()))
            }],
        );
        let n = steps as f64;
        let name = format!("nothing, {steps} steps");
        println!("{name:>22} {:10.2} {:10.2} {:12.0}", t_code / n, t_loop / n, (compile - setup) / 1e3);
    }
    for steps in [10, 200, 2000] {
        let plan = chain(steps);
        let checked = check(plan.clone()).unwrap();
        let [code, looping] = backends().map(|b| (b.compile(checked.clone()).unwrap(), b));
        let (mut a, mut b) = (Bench::new(&*code.1, &plan), Bench::new(&*looping.1, &plan));
        let [t_code, t_loop] =
            medians(20_000 / steps, [&mut || a.run(|l| code.0.launch(l)), &mut || b.run(|l| looping.0.launch(l))]);
        let n = steps as f64;
        println!("{:>22} {:10.2} {:10.2}", format!("cpu, {steps} steps"), t_code / n, t_loop / n);
    }
    println!("{:>22} {:>10} {:>10}", "ns per launch", "code", "loop");
    for vars in [0, 4, 20] {
        let plan = update(vars);
        let [code, looping] = [Mode::Compiled, Mode::Loop].map(|mode| Rehearsal::new(&plan, mode).unwrap());
        let (mut a, mut b, mut c) = (Bench::new(&*null, &plan), Bench::new(&*null, &plan), Bench::new(&*null, &plan));
        let [t_code, t_loop, t_bind] = medians(
            2000,
            [&mut || a.run(|l| code.launch(l)), &mut || b.run(|l| looping.launch(l)), &mut || {
                c.run(|_| Ok(LaunchResult::default()))
            }],
        );
        let name = format!("nothing, {} inputs", vars + 1);
        println!(
            "{name:>22} {:10.1} {:10.1}  (binding them, in the benchmark: {t_bind:.1})",
            t_code - t_bind,
            t_loop - t_bind
        );
    }
    for (name, plan) in [("cpu, one add", chain(1)), ("cpu, 5 inputs", update(4))] {
        let checked = check(plan.clone()).unwrap();
        let [code, looping] = backends().map(|b| (b.compile(checked.clone()).unwrap(), b));
        let eager = code.1.compile_eager(checked.clone()).unwrap();
        let mut benches = [(); 3].map(|()| Bench::new(&*code.1, &plan));
        let [a, b, c] = &mut benches;
        let [t_code, t_loop, t_eager] = medians(
            2000,
            [&mut || a.run(|l| code.0.launch(l)), &mut || b.run(|l| looping.0.launch(l)), &mut || {
                c.run(|l| eager.launch(l))
            }],
        );
        println!("{name:>22} {t_code:10.1} {t_loop:10.1}  (eager: {t_eager:.1})");
    }
}
