//! Whole steps, eager, traced and frozen: W1, W3 and W4 of `peers/README.md`.
//!
//! `cargo bench --bench steps`; W4 reads its loss on the host, as the peers do.

use std::hint::black_box;

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use items::{Chain, CosCos, Training, W3_N, W3_OPS, W3_TINY, W4_BATCHES};
use stepgraph::{Device, Result, Tensor, jit};

#[path = "../examples/workloads/items.rs"]
#[allow(dead_code)]
mod items;

/// A benchmark's item cannot fail but by a bug; then the run should stop.
fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn function<I>(group: &mut BenchmarkGroup<'_, WallTime>, item: &I, run: impl Fn(&I) -> Result<Tensor>) {
    group.bench_function("eager", |b| b.iter(|| ok(run(item))));
    let mut step = jit::Step::new();
    group.bench_function("traced", |b| b.iter(|| ok(step.run(|| run(item)))));
    let mut frozen = ok(items::freeze(&mut jit::Step::new(), || run(item)));
    group.bench_function("frozen", |b| {
        b.iter(|| {
            black_box(ok(frozen.replay()));
        })
    });
}

fn w1(c: &mut Criterion) {
    let device = Device::cpu();
    for n in [1 << 10, 1 << 16, 1 << 20] {
        let mut group = c.benchmark_group(format!("W1_coscos_{n}"));
        function(&mut group, &ok(CosCos::new(n, &device)), CosCos::run);
        group.finish();
    }
}

fn w3(c: &mut Criterion) {
    let device = Device::cpu();
    let mut group = c.benchmark_group("W3_chain50");
    function(&mut group, &ok(Chain::mixed(W3_N, &device)), Chain::run);
    group.finish();
    let mut group = c.benchmark_group("W3_add50");
    function(&mut group, &ok(Chain::adds(W3_TINY, W3_OPS, &device)), Chain::run);
    group.finish();
}

fn w4(c: &mut Criterion) {
    let device = Device::cpu();
    for batch in W4_BATCHES {
        let mut group = c.benchmark_group(format!("W4_mlp_b{batch}"));
        let mut item = ok(Training::new(batch, &device));
        group.bench_function("eager", |b| b.iter(|| ok(ok(item.run()).item::<f32>())));
        let (mut item, mut step) = (ok(Training::new(batch, &device)), jit::Step::new());
        group.bench_function("traced", |b| b.iter(|| ok(ok(step.run(|| item.run())).item::<f32>())));
        let mut item = ok(Training::new(batch, &device));
        let mut frozen = ok(items::freeze(&mut jit::Step::new(), || item.run()));
        group.bench_function("frozen", |b| b.iter(|| ok(ok(frozen.replay())[0].item::<f32>())));
        group.finish();
    }
}

criterion_group!(benches, w1, w3, w4);
criterion_main!(benches);
