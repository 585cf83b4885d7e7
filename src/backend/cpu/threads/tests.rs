use super::*;

fn each_once(pool: &Pool, parts: usize) {
    let hits: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    pool.run(parts, &|part| {
        hits[part].fetch_add(1, Ordering::Relaxed);
    });
    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{parts} parts");
}

#[test]
fn every_part_runs_once() {
    for threads in [0, 1, 2, 3, 5] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for parts in [0, 1, 2, 3, 7, 64, 1000, MAX_CHUNKS, MAX_CHUNKS + 1, 3 * MAX_CHUNKS + 5] {
            each_once(&pool, parts);
        }
    }
}

#[test]
fn many_small_jobs() {
    let pool = Pool::new(2);
    let sum = AtomicUsize::new(0);
    for _ in 0..100_000 {
        pool.run(2, &|part| {
            sum.fetch_add(part + 1, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.into_inner(), 300_000);
}

#[test]
fn jobs_after_the_workers_parked() {
    let pool = Pool::new(3);
    for _ in 0..20 {
        std::thread::sleep(3 * SPIN);
        each_once(&pool, 3);
    }
}

#[test]
fn nested_runs_are_serial() {
    let (pool, other) = (Pool::new(3), Pool::new(2));
    let sum = AtomicUsize::new(0);
    pool.run(6, &|_| {
        let here = std::thread::current().id();
        for inner in [&pool, &other] {
            inner.run(5, &|part| {
                assert_eq!(std::thread::current().id(), here);
                sum.fetch_add(part, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(sum.into_inner(), 120);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(2);
    for bad in 0..8 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|part| {
                if part == bad {
                    std::panic::panic_any(part);
                }
            });
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<usize>(), Some(&bad));
        each_once(&pool, 16);
    }
}

#[test]
fn several_callers() {
    let pool = Pool::new(2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..2000).for_each(|i| each_once(&pool, 1 + i % 5)));
        }
    });
}

#[test]
fn dropping_joins_the_workers() {
    let alive = Arc::new(());
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads);
        let held = alive.clone();
        pool.run(8, &|_| {
            let _ = &held;
        });
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        assert_eq!(shared.strong_count(), 0);
    }
}

#[test]
fn more_threads_than_processors() {
    let pool = Pool::new(affinity::allowed().len() + 3);
    assert!(!pool.shared.spin.load(Ordering::Relaxed));
    for parts in 0..200 {
        each_once(&pool, parts);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn workers_keep_off_the_callers_processor() {
    let allowed = affinity::allowed();
    if allowed.len() < 2 {
        return;
    }
    let pool = Pool::new(2);
    for round in 0..4 {
        let mine = allowed[round % 2];
        // A caller of its own, so that no other test's affinity changes.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                affinity::pin(affinity::thread_id(), mine);
                std::thread::yield_now();
                while pool.workers[0].state.tid.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                each_once(&pool, 4);
                assert_eq!(pool.pinned_for.load(Ordering::Relaxed), mine);
                let at = pool.pins.lock().cpu_of[0];
                assert!(at.is_some_and(|cpu| cpu != mine));
            });
        });
    }
}

#[test]
fn the_global_pool_is_sized_once() {
    assert_eq!(Pool::set_global_threads(2), Ok(()));
    assert_eq!(Pool::global().threads(), 2);
    assert_eq!(Pool::set_global_threads(2), Ok(()));
    assert_eq!(Pool::set_global_threads(3), Err(AlreadyStarted { threads: 2 }));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_control_word_is_set_and_restored() {
    let flush = control_word::DEFAULT | 0x8040;
    let before = control_word::read();
    control_word::write(flush);
    let tiny = std::hint::black_box(1e-40f32);
    {
        let _fp = FpGuard::new();
        assert_eq!(std::hint::black_box(tiny * std::hint::black_box(1.0)).to_bits(), tiny.to_bits());
    }
    assert_eq!(control_word::read() & control_word::CONTROL, flush & control_word::CONTROL);
    let pool = Pool::new(2);
    pool.run(4, &|_| {
        assert_eq!(control_word::read() & control_word::CONTROL, control_word::DEFAULT);
        // Left behind on a worker: must not reach the next part.
        if std::thread::current().name().is_some_and(|n| n.starts_with("stepgraph-cpu")) {
            control_word::write(flush);
        }
    });
    assert_eq!(control_word::read() & control_word::CONTROL, flush & control_word::CONTROL);
    control_word::write(before);
}
