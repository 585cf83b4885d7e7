//! Section F: scale, limits, caches.

use stepgraph::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use stepgraph::{DType, Device, Result, Tensor, Var, jit};

use crate::harness::{assert_bits_eq, filled, scalar, values, vector};

/// A number for the CPU, and a smaller one for a simulated GPU, whose kernels a C++ compiler compiles.
fn at_most(simulated: usize, cpu: usize, device: &Device) -> usize {
    if device.name() == "cpu" { cpu } else { simulated }
}

/// Runs on a thread with half a MiB of stack.
fn on_a_small_stack(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(512 << 10);
        small.spawn_scoped(scope, f).expect("a thread").join().expect("no overflow");
    });
}

pub fn very_deep_chain(device: &Device) {
    // (a) forward, backward, drop: 20,000 times a product and a sum
    let times = at_most(2_000, 20_000, device);
    on_a_small_stack(|| {
        let start = Var::new(&scalar(0.0, device)).expect("a Var");
        let chain = || -> Result<(Tensor, Tensor)> {
            let mut y = start.get();
            for _ in 0..times {
                y = ((&y * 0.999)? + 0.001)?;
            }
            let g = y.backward()?.get(&start).expect("a gradient");
            Ok((y, g))
        };
        let (y, g) = chain().expect("eager");
        // In f32, step by step.
        let by_hand = (0..times).fold(0.0f32, |y, _| y * 0.999 + 0.001);
        // Rounding at each step leaves it a little below 1 - 0.999^n.
        assert!((by_hand as f64 - (1.0 - 0.999f64.powi(times as i32))).abs() < 1e-4, "{by_hand}");
        assert_eq!(values(&y), [by_hand]);
        // 0.999^n, of the f32 nearest to 0.999.
        assert!((values(&g)[0] as f64 / (0.999f32 as f64).powi(times as i32) - 1.0).abs() < 1e-3, "{}", values(&g)[0]);
        let mut step = jit::Step::new();
        for _ in 0..5 {
            let traced = step.run(chain).expect("a call");
            assert_bits_eq("y", &traced.0.to_host().expect("y"), &y.to_host().expect("y"));
            assert_bits_eq("the gradient", &traced.1.to_host().expect("g"), &g.to_host().expect("g"));
        }
        drop((y, g, step));
    });
    // (d) what is compiled grows with the number of ops: kernels, and the instructions in them. How long that takes is
    // measured in benches/tracer.rs.
    let x = filled(&[64], 3, device);
    let sizes = [5_000, 10_000, 20_000].map(|ops| {
        let ops = at_most(ops / 10, ops, device);
        let mut step = jit::Step::new();
        for _ in 0..3 {
            step.run(|| (0..ops / 2).try_fold(x.clone(), |y, _| (&y * 0.999)? + 0.001)).expect("a call");
        }
        // The sizes of its kernels: "(160 ops)".
        let explained = step.explain().to_string();
        let sizes = explained.split('(').filter_map(|part| part.split_once(" ops)")?.0.parse::<usize>().ok());
        let instructions: usize = sizes.sum();
        (step.report().ops, step.report().kernels, instructions)
    });
    for (i, pair) in sizes.windows(2).enumerate() {
        let [(ops, kernels, instructions), (more_ops, more_kernels, more_instructions)] = [pair[0], pair[1]];
        let first = at_most(500, 5_000, device) as u32;
        assert_eq!((ops, more_ops), (first << i, first << (i + 1)));
        assert!(more_kernels <= 2 * kernels + 1, "{sizes:?}");
        assert!(instructions >= ops as usize && more_instructions <= 2 * instructions, "{sizes:?}");
    }
    // (b) shared values are not expanded
    let one = scalar(1.0, device);
    let doubled = || -> Result<Tensor> { (0..60).try_fold(one.clone(), |y, _| &y + &y) };
    let mut step = jit::Step::new();
    for _ in 0..5 {
        assert_eq!(values(&step.run(doubled).expect("a call")), [(1u64 << 60) as f32]);
    }
    assert!(step.report().kernels <= 4, "{}", step.report());
    // (c) 400 live values, combined pairwise
    let x = filled(&[33], 1, device);
    let wide = || -> Result<Tensor> {
        let parts = (0..400).map(|i| &x * (1.0 + i as f64)).collect::<Result<Vec<_>>>()?;
        (0..400).try_fold(x.clone(), |sum, i| &sum + &(&parts[i] * &parts[(i * 7 + 3) % 400])?)
    };
    let want = wide().and_then(|y| y.to_host()).expect("eager");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        assert_bits_eq("400 live values", &step.run(wide).and_then(|y| y.to_host()).expect("a call"), &want);
    }
}

pub fn kernel_parameter_limit(device: &Device) {
    // (a) 600 operands in one expression, (d) joined
    let few = at_most(200, 600, device);
    let all: Vec<Tensor> = (1..=few).map(|i| vector(&[i as f32; 7], device)).collect();
    let mut step = jit::Step::new();
    for _ in 0..5 {
        let (sum, joined, stacked) = step
            .run(|| {
                let sum = all[1..].iter().try_fold(all[0].clone(), |s, t| &s + t)?;
                let refs: Vec<&Tensor> = all.iter().collect();
                Ok((sum, Tensor::concat(&refs, 0)?, Tensor::stack(&refs, 1)?))
            })
            .expect("a call");
        assert_eq!(values(&sum), [(few * (few + 1) / 2) as f32; 7]);
        let v = values(&joined);
        assert!(v.len() == 7 * few && v.iter().enumerate().all(|(i, x)| *x == (i / 7 + 1) as f32));
        let v = values(&stacked);
        assert!(v.len() == 7 * few && v.iter().enumerate().all(|(i, x)| *x == (i % few + 1) as f32));
    }
    // (b) 600 results of one region
    let x = vector(&[1.0, 2.0, 3.0], device);
    let mut step = jit::Step::new();
    for _ in 0..4 {
        let out = step.run(|| (0..few).map(|i| &x * i as f64).collect::<Result<Vec<_>>>()).expect("a call");
        assert!(out.iter().enumerate().all(|(i, t)| values(t) == [i as f32, 2.0 * i as f32, 3.0 * i as f32]));
    }
    // (c) 1500 parameters of different sizes, some 0-d, some frozen
    let n = at_most(300, 1500, device);
    let dims = |i: usize| if i.is_multiple_of(41) { vec![] } else { vec![i % 41] };
    let all: Vec<Var> =
        (0..n).map(|i| Var::new(&Tensor::full(dims(i), i as f32, device).expect("a value")).expect("a Var")).collect();
    let trained = |i: usize| !i.is_multiple_of(10);
    let chosen: Vec<Var> = (0..n).filter(|&i| trained(i)).map(|i| all[i].clone()).collect();
    let mut sgd = Sgd::new(chosen.clone(), SgdConfig { lr: 0.5, ..SgdConfig::default() }).expect("an optimizer");
    let mut step = jit::Step::new();
    for k in 1..=4 {
        step.run(|| {
            let mut loss = all[0].get().sum(())?;
            for v in &all[1..] {
                loss = (&loss + &v.get().sum(())?)?;
            }
            sgd.step(&loss.backward()?)
        })
        .expect("a call");
        let moved = |i: usize| i as f32 - if trained(i) { 0.5 * k as f32 } else { 0.0 };
        let wrong = (0..n).filter(|&i| values(&all[i].get()).iter().any(|v| *v != moved(i))).count();
        assert_eq!(wrong, 0, "call {k}");
    }
    let mut adam = Adam::new(chosen, AdamConfig::default()).expect("an optimizer");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        step.run(|| {
            let sums = all.iter().map(|v| v.get().sum(())).collect::<Result<Vec<_>>>()?;
            let loss = sums[1..].iter().try_fold(sums[0].clone(), |s, t| &s + t)?;
            adam.step(&loss.backward()?)
        })
        .expect("a call");
    }
    // Adam's first steps with a gradient of 1 are of length lr.
    let still = (0..n).filter(|&i| {
        trained(i) && (values(&all[i].get()).first().copied().unwrap_or(0.0) - (i as f32 - 2.0)).abs() < 1e-4
    });
    assert_eq!(still.count(), 0, "every parameter moved");
}

/// The case with `n` elements, `rows` rows of `columns`, and `wide` f32 elements.
fn elements(device: &Device, n: usize, rows: usize, columns: usize, wide: usize) {
    // x[i] = i mod 251, made on the device.
    let cycle: Vec<u8> = (0..251).collect();
    let times = n.div_ceil(251);
    let x = Tensor::from_vec(cycle, [251], device)
        .and_then(|c| c.expand([times, 251])?.flatten()?.slice(0, 0, n))
        .expect("x");
    let part = |t: &Tensor, at: usize| t.slice(0, at, 5).and_then(|t| t.to_vec::<u8>()).expect("values");
    let mut step = jit::Step::new();
    for _ in 0..3 {
        let (y, most, sum, both) = step
            .run(|| {
                let y = x.add(1i64)?;
                Ok((y.clone(), y.max(())?, x.sum(())?, (&y - &x)?.min(())?))
            })
            .expect("a call");
        let half = (1 << 31).min(n / 2);
        for at in [0, half - 6, half - 3, half, n - 5] {
            let want: Vec<u8> = (at..at + 5).map(|i| (i % 251) as u8 + 1).collect();
            assert_eq!(part(&y, at), want, "from {at}");
        }
        assert_eq!((most.item::<u8>().expect("a value"), both.item::<u8>().expect("a value")), (251, 1));
        let rest = (n % 251) as i64;
        assert_eq!(sum.item::<i64>().expect("a sum"), (n / 251) as i64 * 31375 + rest * (rest - 1) / 2);
    }
    drop(x);
    // Rows of a table, where r is filled with r mod 251; a concat that crosses 2^31.
    let filled: Vec<u8> = (0..rows).map(|r| (r % 251) as u8).collect();
    let narrow = Tensor::from_vec(filled, [rows, 1], device).expect("a column");
    let table = narrow.expand([rows, columns]).and_then(|t| t.add(0i64)).expect("a table");
    let split = 16384 * rows / 24001;
    let picks: Vec<i64> = [0, split - 1, split, rows - 1].iter().map(|&r| r as i64).collect();
    let index = Tensor::from_slice(&picks, [4], device).expect("indices");
    let got = table.index_select(0, &index).and_then(|t| t.slice(1, columns - 1, 1)?.to_vec::<u8>()).expect("rows");
    assert_eq!(got, picks.iter().map(|r| (r % 251) as u8).collect::<Vec<_>>());
    let joined = Tensor::concat(&[&table, &table.slice(0, 0, 3).expect("rows")], 0).expect("joined");
    drop(table);
    let last = joined.slice(0, rows - 1, 3).and_then(|t| t.slice(1, columns - 1, 1)?.to_vec::<u8>()).expect("rows");
    assert_eq!(last, [((rows - 1) % 251) as u8, 0, 1]);
    drop(joined);
    // Fewer elements than 2^31, more bytes than 2^32.
    let ones = Tensor::ones([wide], DType::F32, device).expect("ones");
    let y = ones.add(0.5).expect("a sum");
    drop(ones);
    assert_eq!(values(&y.slice(0, wide - 2, 2).expect("a slice")), [1.5, 1.5]);
    assert_eq!(values(&y.max(()).expect("a maximum")), [1.5]);
}

/// Bytes that the system could give; `None` where it does not say.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// 2^31 + 96 elements of one byte: views, gathers and a maximum with places on both sides of 2^31.
fn places_beyond_2_31(device: &Device) {
    let n = (1usize << 31) + 96;
    let mut data = Vec::with_capacity(n);
    let cycle: Vec<u8> = (0..251).collect();
    while data.len() < n {
        data.extend_from_slice(&cycle[..251.min(n - data.len())]);
    }
    data[n - 2] = 255;
    let at = |i: usize| if i == n - 2 { 255 } else { (i % 251) as u8 };
    let x = Tensor::from_vec(data, [n], device).expect("x");
    let places = [0, (1 << 31) - 2, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, n - 2, n - 1];
    let index = Tensor::from_vec(places.iter().map(|&p| p as i64).collect::<Vec<_>>(), [7], device).expect("places");
    let far = n / 3;
    let mut step = jit::Step::new();
    for _ in 0..3 {
        let out = step
            .run(|| {
                let end = x.slice(0, n - 6, 6)?;
                let across = x.slice(0, (1 << 31) - 5, 10)?;
                let apart = x.slice_step(0, 0, 4, far as isize)?;
                let back = x.flip(0)?.slice(0, 0, 4)?;
                [end, across, apart, back, x.index_select(0, &index)?]
                    .iter()
                    .map(|t| t.add(1i64))
                    .collect::<Result<Vec<_>>>()
            })
            .expect("a call");
        let want: [Vec<usize>; 5] = [
            (n - 6..n).collect(),
            ((1 << 31) - 5..(1 << 31) + 5).collect(),
            (0..4).map(|i| i * far).collect(),
            (0..4).map(|i| n - 1 - i).collect(),
            places.to_vec(),
        ];
        for (got, want) in out.iter().zip(want) {
            let want: Vec<u8> = want.into_iter().map(|i| at(i).wrapping_add(1)).collect();
            assert_eq!(got.to_vec::<u8>().expect("bytes"), want);
        }
    }
    // In one pass: the largest element is beyond 2^31, and so is its place.
    assert_eq!(x.max(()).and_then(|m| m.item::<u8>()).expect("a maximum"), 255);
}

/// What needs no more than 2^31 bytes at full size; the rest scaled down by 2^12, so that it is fast: `the_full_size` runs
/// the case as it is.
pub fn more_than_2_31_elements(device: &Device) {
    eprintln!("not run at full size (15 GiB): cargo test --release --test cases the_full_size -- --ignored");
    elements(device, (1 << 19) + 96, 2401, 128, 1 << 18);
    if device.name() != "cpu" || available().is_some_and(|bytes| bytes < 5 << 30) {
        return eprintln!("not run: views and gathers of 2^31 elements; on the CPU only, with 5 GiB of free memory");
    }
    places_beyond_2_31(device);
}

#[test]
#[ignore = "takes 15 GiB of memory and minutes; run it in release mode"]
fn the_full_size() {
    elements(&crate::harness::own_device(), (1 << 31) + 96, 24001, 131072, 1_200_000_000);
}

scenarios!(very_deep_chain, kernel_parameter_limit, more_than_2_31_elements);
