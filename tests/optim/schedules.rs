//! Schedules against their formulas and PyTorch's figures.

use stepgraph::optim::Schedule;

#[track_caller]
fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-12 * want.abs().max(1e-3), "{got} instead of {want}");
}

#[test]
fn cosine() {
    let s = Schedule::cosine(0.1, 0.001, 50);
    for t in 0..=50 {
        near(s.at(t), 0.001 + 0.099 * (1.0 + (std::f64::consts::PI * t as f64 / 50.0).cos()) / 2.0);
    }
    assert_eq!((s.at(0), s.at(50), s.at(51), s.at(1_000_000)), (0.1, 0.001, 0.001, 0.001));
}

#[test]
fn linear_and_step() {
    let s = Schedule::linear(1.0, 0.5, 10);
    (0..=10).for_each(|t| near(s.at(t), 1.0 - 0.05 * t as f64));
    assert_eq!(s.at(11), 0.5);
    let s = Schedule::step(0.8, 3, 0.1);
    let want = [0.8, 0.8, 0.8, 0.08, 0.08, 0.08, 0.008];
    want.iter().enumerate().for_each(|(t, &w)| near(s.at(t as u64), w));
    near(Schedule::step(1.0, 1, 0.9).at(7), 0.9f64.powi(7));
}

#[test]
fn warm_up() {
    let s = Schedule::cosine(0.4, 0.0, 100).warm_up(8);
    (0..8).for_each(|t| near(s.at(t), 0.05 * (t + 1) as f64));
    assert_eq!((s.at(8), s.at(108)), (0.4, 0.0));
    near(s.at(58), 0.2);
}

/// The phases that `torch.optim.lr_scheduler.OneCycleLR` documents, written out: 20 steps, so the maximum is at step 5.
#[test]
fn one_cycle() {
    let s = Schedule::one_cycle(0.5, 20);
    let cos = |from: f64, to: f64, part: f64| to + (from - to) / 2.0 * (1.0 + (std::f64::consts::PI * part).cos());
    for t in 0..20 {
        let want = match t {
            0..=5 => cos(0.02, 0.5, t as f64 / 5.0),
            _ => cos(0.5, 2e-6, (t - 5) as f64 / 14.0),
        };
        near(s.at(t), want);
    }
    assert_eq!((s.at(0), s.at(5)), (0.02, 0.5));
    near(s.at(19), 2e-6);
    near(s.at(500), 2e-6);
}

/// Lengths of nothing neither divide by it nor panic.
#[test]
fn no_steps() {
    for s in [
        Schedule::linear(1.0, 2.0, 0),
        Schedule::cosine(1.0, 2.0, 0),
        Schedule::step(2.0, 0, 1.0),
        Schedule::constant(2.0).warm_up(0),
    ] {
        assert_eq!((s.at(0), s.at(9)), (2.0, 2.0));
    }
    for steps in 0..5 {
        let s = Schedule::one_cycle(1.0, steps);
        assert!((0..6).all(|t| s.at(t).is_finite() && s.at(t) >= 0.0 && s.at(t) <= 1.0), "{steps}");
    }
}
