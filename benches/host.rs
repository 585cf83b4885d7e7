//! What the host pays: a shadowed op, a call, a replay, a compilation.
//!
//! `cargo bench --bench host`. The null device runs the whole pipeline and computes nothing, so what is left is the
//! host's part. Slopes are taken inside one measurement: long and short steps take turns, and the difference is
//! divided by the number of ops between them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use items::{Chain, Training, W3_N};
use stepgraph::{Device, Result, Tensor, Var, jit};

#[path = "../examples/workloads/items.rs"]
#[allow(dead_code)]
mod items;

/// A benchmark's item cannot fail but by a bug; then the run should stop.
fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// Time of `calls` calls of `long` less that of `calls` calls of `short`, taking turns.
fn difference(calls: u64, mut long: impl FnMut(), mut short: impl FnMut()) -> Duration {
    let (mut more, mut less) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..calls {
        let start = Instant::now();
        long();
        let middle = Instant::now();
        short();
        more += middle - start;
        less += middle.elapsed();
    }
    more.saturating_sub(less)
}

/// Nanoseconds per shadowed op: a chain of 550 adds less one of 50, per op.
fn shadowed_op(c: &mut Criterion) {
    let mut group = c.benchmark_group("shadowed_op");
    for (name, device, n) in [("null_1", Device::null(), 1), ("null_16", Device::null(), 16)] {
        let (long, short) = (ok(Chain::adds(n, 550, &device)), ok(Chain::adds(n, 50, &device)));
        let (mut a, mut b) = (jit::Step::new(), jit::Step::new());
        for _ in 0..4 {
            ok(a.run(|| long.run()));
            ok(b.run(|| short.run()));
        }
        group.bench_function(name, |bench| {
            bench.iter_custom(|iters| {
                let long = || drop(black_box(ok(a.run(|| long.run()))));
                let short = || drop(black_box(ok(b.run(|| short.run()))));
                difference(iters, long, short) / 500
            })
        });
    }
    group.finish();
}

/// Nanoseconds per op run eagerly on 16 elements: a chain of 550 adds less one of 50, per op.
fn eager_op(c: &mut Criterion) {
    let mut group = c.benchmark_group("eager_op");
    for (name, device) in [("cpu_16", Device::cpu()), ("null_16", Device::null())] {
        let (long, short) = (ok(Chain::adds(16, 550, &device)), ok(Chain::adds(16, 50, &device)));
        group.bench_function(name, |bench| {
            bench.iter_custom(|iters| {
                difference(iters, || drop(black_box(ok(long.run()))), || drop(black_box(ok(short.run())))) / 500
            })
        });
    }
    group.finish();
}

/// Nanoseconds per `Var` read and written in a step: 250 `Var`s less 50, per `Var`.
fn var_update(c: &mut Criterion) {
    let device = Device::null();
    let zeros = ok(Tensor::zeros([4], stepgraph::DType::F32, &device));
    let vars: Vec<Var> = (0..250).map(|_| ok(Var::state(&zeros))).collect();
    let update = |vars: &[Var]| vars.iter().try_for_each(|v| v.set(&(v.get() + 1.0)?));
    let (mut a, mut b) = (jit::Step::new(), jit::Step::new());
    for _ in 0..4 {
        ok(a.run(|| update(&vars)));
        ok(b.run(|| update(&vars[..50])));
    }
    c.bench_function("var_get_add_set", |bench| {
        bench.iter_custom(|iters| {
            difference(iters, || ok(a.run(|| update(&vars))), || ok(b.run(|| update(&vars[..50])))) / 200
        })
    });
}

/// A call of a step that does nothing, and of one with a single op on the null device.
fn call(c: &mut Criterion) {
    let mut step = jit::Step::new();
    c.bench_function("call_empty", |b| b.iter(|| ok(step.run(|| Ok(())))));
    let device = Device::null();
    let (mut step, item) = (jit::Step::new(), ok(Chain::adds(16, 1, &device)));
    c.bench_function("call_one_op_null", |b| b.iter(|| ok(step.run(|| item.run()))));
}

/// A frozen replay without its kernels: host code alone.
fn replay(c: &mut Criterion) {
    let device = Device::null();
    let mut group = c.benchmark_group("replay_null");
    let chain = ok(Chain::mixed(W3_N, &device));
    let mut frozen = ok(items::freeze(&mut jit::Step::new(), || chain.run()));
    group.bench_function("W3_chain50", |b| {
        b.iter(|| {
            black_box(ok(frozen.replay()));
        })
    });
    let mut item = ok(Training::new(32, &device));
    let mut frozen = ok(items::freeze(&mut jit::Step::new(), || item.run()));
    group.bench_function("W4_mlp_b32", |b| {
        b.iter(|| {
            black_box(ok(frozen.replay()));
        })
    });
    let mut step = jit::Step::new();
    group.bench_function("W4_mlp_b32_traced", |b| b.iter(|| ok(step.run(|| item.run()))));
    group.finish();
}

/// From a step never run to its first launch: one recorded call, passes, kernels, host code, one launch.
fn compile(c: &mut Criterion) {
    let device = Device::cpu();
    let mut group = c.benchmark_group("trace_and_compile");
    group.sample_size(20);
    let mut item = ok(Training::new(32, &device));
    group.bench_function("W4_mlp_b32", |b| {
        b.iter(|| {
            let mut step = jit::Step::new();
            ok(step.run(|| item.run()));
            ok(step.run(|| item.run()));
        })
    });
    // The part that the report calls compile time.
    group.bench_function("W4_mlp_b32_compile_only", |b| {
        b.iter_custom(|iters| {
            let compile = |_| {
                let mut step = jit::Step::new();
                ok(step.run(|| item.run()));
                ok(step.run(|| item.run()));
                step.report().compile_time
            };
            (0..iters).map(compile).sum()
        })
    });
    group.finish();
}

criterion_group!(benches, shadowed_op, eager_op, var_update, call, replay, compile);
criterion_main!(benches);
