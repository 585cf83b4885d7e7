//! Steps that keep doing something new, caches that are full, and options that a report tells of.

use stepgraph::{Device, ErrorKind, Result, Tensor, Var, jit, optim};

use crate::harness::{assert_close, filled, values, vector};

/// Paths that do not repeat: after eight calls, six of them new, calls run eagerly, and the report says so; a path met
/// again ends it, and is replayed from its fourth time on.
pub fn paths_that_do_not_repeat(device: &Device) {
    let w = Var::new(&vector(&[2.0], device)).expect("a Var");
    let mut step = jit::Step::new();
    let mut call = |n: usize| {
        let x = vector(&vec![1.0; n], device);
        let before = device.counts();
        let g = step.run(|| {
            let loss = (&x * &w.get())?.sum(())?;
            Ok(loss.backward()?.get(&w).expect("a gradient"))
        });
        assert_eq!(values(&g.expect("a call")), [n as f32]);
        (step.report(), device.counts() - before)
    };
    for n in 1..=8 {
        let (report, did) = call(n);
        assert_eq!((report.recorded, report.eager, did.launches), (n as u64, 0, 0));
    }
    for n in 9..=12 {
        let (report, did) = call(n);
        assert_eq!((report.recorded, report.eager, did.launches), (8, n as u64 - 8, 0));
        assert!(report.storms.len() == 1 && report.storms[0].at.contains(file!()), "{report}");
        // The product, its sum, and the gradients of both; the `Var` read and `backward` are events too.
        assert!(report.ops >= 4 && report.events == report.ops + 2, "{report}");
        assert_eq!((report.launches_per_call, report.kernels, report.segments), (0, 0, 0));
        let text = report.to_string();
        assert!(text.contains("eager") && text.contains("run one by one"), "{text}");
    }
    let seen: Vec<(u64, u64)> = (0..5)
        .map(|_| {
            let (report, did) = call(12);
            (report.eager, did.launches)
        })
        .collect();
    // Met again: eager once more; then recorded, and replayed.
    assert_eq!(seen, [(5, 0), (5, 0), (5, 1), (5, 1), (5, 1)]);
}

/// Two paths at most: what was not used for the longest time goes, its memory with it, and comes back when it is needed.
pub fn the_plan_cache_is_bounded(device: &Device) {
    let mut step = jit::Step::with_options(jit::Options::new().plan_cache(2));
    let x: Vec<Tensor> = (1..=5).map(|n| filled(&[n, 3], n as u32, device)).collect();
    let work = |x: &Tensor| -> Result<Tensor> { x.exp()?.matmul(&x.t()?)?.tanh() };
    let mut live = Vec::new();
    for round in 0..4 {
        for x in &x {
            let want = work(x).and_then(|y| y.to_host()).expect("eager");
            for k in 0..4 {
                let before = device.counts();
                let y = step.run(|| work(x)).and_then(|y| y.to_host()).expect("a call");
                crate::harness::assert_bits_eq("y", &y, &want);
                if k > 0 {
                    assert_eq!((device.counts() - before).launches, 1, "round {round}, call {k}");
                }
                assert!(step.report().paths <= 2, "{}", step.report());
            }
        }
        live.push(device.memory().live);
    }
    let report = step.report();
    assert!(report.evicted > 0, "{report}");
    assert_eq!(report.eager, 0);
    // Every shape came back three times, and was recorded again.
    assert!(report.recorded >= 15, "{report}");
    assert_eq!(live[1], live[3], "memory of paths that are gone");
}

/// Every launch compared with the reference evaluator, inputs overwritten in place among them.
pub fn launches_can_be_verified(device: &Device) {
    let run = |verify: bool| {
        let w = Var::new(&filled(&[4, 3], 1, device)).expect("a Var");
        let mut adam = optim::Adam::new(vec![w.clone()], optim::AdamConfig::default()).expect("an optimizer");
        let x = filled(&[5, 4], 2, device);
        let mut step = jit::Step::with_options(jit::Options::new().verify(verify));
        let mut read = 0;
        for _ in 0..6 {
            let before = device.counts();
            step.run(|| {
                let loss = x.matmul(&w.get())?.softmax(1)?.log()?.mean(())?;
                adam.step(&loss.backward()?)
            })
            .expect("a call");
            read = (device.counts() - before).downloads;
        }
        assert_eq!((step.report().in_place > 0, step.report().launches), (true, 5));
        (w.get().to_host().expect("w"), read)
    };
    let ((plain, none), (verified, some)) = (run(false), run(true));
    crate::harness::assert_bits_eq("w", &verified, &plain);
    // What is compared is read: the inputs before, what was written after.
    assert!(none == 0 && some >= 8, "{none} and {some} reads");
}

/// Fast math gives up the same bits, not the values, and the report says so.
pub fn fast_math_is_told(device: &Device) {
    let run = |options: jit::Options| {
        let w = Var::new(&filled(&[4, 3], 1, device)).expect("a Var");
        let x = filled(&[5, 4], 2, device);
        let mut step = jit::Step::with_options(options);
        for _ in 0..5 {
            step.run(|| {
                let loss = x.matmul(&w.get())?.tanh()?.mean(())?;
                let g = loss.backward()?.get(&w).expect("a gradient");
                w.set(&(w.get() - (&g * 0.5))?)
            })
            .expect("a call");
        }
        (values(&w.get()), step.report())
    };
    let (exact, quiet) = run(jit::Options::new());
    let (fast, told) = run(jit::Options::new().fast_math(true));
    assert_close("w", &fast, &exact.iter().map(|x| *x as f64).collect::<Vec<_>>(), 1e-5);
    assert!(!quiet.fast_math && !quiet.to_string().contains("fast math"));
    assert!(told.fast_math && told.to_string().contains("fast math"), "{told}");
}

/// A scatter_add whose result could not be added says so itself, before it looks at an index.
pub fn what_cannot_be_added_is_refused_first(device: &Device) {
    let (table, src) = (filled(&[3, 2], 1, device), filled(&[2, 3], 2, device));
    let far = Tensor::from_vec(vec![9i64; 6], [2, 3], device).expect("an index");
    let e = table.scatter_add(1, &far, &src).map(|_| ()).expect_err("other lengths");
    assert!(matches!(e.kind(), ErrorKind::Shape { op: "scatter_add", .. }), "{e}");
    assert!(table.to_host().is_ok(), "no index out of range is told");
    // A row of one would be broadcast.
    let one = Tensor::from_vec(vec![0i64, 1], [1, 2], device).expect("an index");
    assert!(table.scatter_add(1, &one, &filled(&[1, 2], 3, device)).is_err());
}

scenarios!(
    paths_that_do_not_repeat,
    the_plan_cache_is_bounded,
    launches_can_be_verified,
    fast_math_is_told,
    what_cannot_be_added_is_refused_first,
);
