//! Learning rate schedules: plain host code, a function of the step's number.

use std::f64::consts::PI;

/// A learning rate for every step, counted from 0: `optimizer.set_lr(schedule.at(t))`, inside a step or outside.
///
/// Behind its last step a schedule stays where it ended.
///
/// ```
/// use stepgraph::optim::Schedule;
/// let schedule = Schedule::cosine(1e-3, 1e-5, 1000).warm_up(100);
/// assert_eq!(schedule.at(49), 0.5e-3); // half of the warm-up
/// assert_eq!(schedule.at(100), 1e-3);
/// assert!((schedule.at(600) - (1e-3 + 1e-5) / 2.0).abs() < 1e-12); // half of the cosine
/// assert_eq!(schedule.at(5000), 1e-5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    shape: Shape,
    warm_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Constant { lr: f64 },
    Linear { from: f64, to: f64, steps: u64 },
    Cosine { from: f64, to: f64, steps: u64 },
    Step { lr: f64, every: u64, factor: f64 },
    OneCycle { max: f64, steps: u64 },
}

impl Schedule {
    fn of(shape: Shape) -> Schedule {
        Schedule { shape, warm_up: 0 }
    }

    /// `lr` at every step.
    ///
    /// ```
    /// assert_eq!(stepgraph::optim::Schedule::constant(0.1).at(12), 0.1);
    /// ```
    pub fn constant(lr: f64) -> Schedule {
        Schedule::of(Shape::Constant { lr })
    }

    /// A straight line from `from` at step 0 to `to` at step `steps`.
    ///
    /// ```
    /// assert_eq!(stepgraph::optim::Schedule::linear(1.0, 0.0, 4).at(1), 0.75);
    /// ```
    pub fn linear(from: f64, to: f64, steps: u64) -> Schedule {
        Schedule::of(Shape::Linear { from, to, steps })
    }

    /// Half a cosine from `from` at step 0 to `to` at step `steps`: `to + (from - to)(1 + cos(πt/steps))/2`
    /// (Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017, equation 5, one period).
    ///
    /// ```
    /// assert_eq!(stepgraph::optim::Schedule::cosine(1.0, 0.0, 100).at(100), 0.0);
    /// ```
    pub fn cosine(from: f64, to: f64, steps: u64) -> Schedule {
        Schedule::of(Shape::Cosine { from, to, steps })
    }

    /// `lr` times `factor` once more after each `every` steps (`every` 1: an exponential decay).
    ///
    /// ```
    /// assert_eq!(stepgraph::optim::Schedule::step(1.0, 10, 0.5).at(29), 0.25);
    /// ```
    pub fn step(lr: f64, every: u64, factor: f64) -> Schedule {
        Schedule::of(Shape::Step { lr, every, factor })
    }

    /// Up from `max / 25` to `max` over the first 30 % of `steps`, then down to `max / 250000`, both along cosines
    /// (Smith & Topin, "Super-convergence", 2018; the phases and defaults of `torch.optim.lr_scheduler.OneCycleLR`: the
    /// maximum is at step `0.3 steps - 1`, the end at step `steps - 1`).
    ///
    /// ```
    /// let schedule = stepgraph::optim::Schedule::one_cycle(1.0, 100);
    /// assert_eq!((schedule.at(0), schedule.at(29)), (0.04, 1.0));
    /// ```
    pub fn one_cycle(max: f64, steps: u64) -> Schedule {
        Schedule::of(Shape::OneCycle { max, steps })
    }

    /// Before the schedule, `steps` steps at `1/steps`, `2/steps`, … of its first rate.
    ///
    /// ```
    /// let schedule = stepgraph::optim::Schedule::constant(0.4).warm_up(4);
    /// assert_eq!([0, 1, 2, 3, 4].map(|t| schedule.at(t)), [0.1, 0.2, 0.30000000000000004, 0.4, 0.4]);
    /// ```
    pub fn warm_up(self, steps: u64) -> Schedule {
        Schedule { warm_up: steps, ..self }
    }

    /// The rate at step `t`.
    ///
    /// ```
    /// assert_eq!(stepgraph::optim::Schedule::linear(0.0, 1.0, 8).at(2), 0.25);
    /// ```
    pub fn at(&self, t: u64) -> f64 {
        if t < self.warm_up {
            return self.shape.at(0) * (t + 1) as f64 / self.warm_up as f64;
        }
        self.shape.at(t - self.warm_up)
    }
}

impl Shape {
    fn at(&self, t: u64) -> f64 {
        match *self {
            Shape::Constant { lr } => lr,
            Shape::Linear { from, to, steps } if t < steps => from + (to - from) * (t as f64 / steps as f64),
            Shape::Cosine { from, to, steps } if t < steps => between(from, to, t as f64 / steps as f64),
            Shape::Linear { to, .. } | Shape::Cosine { to, .. } => to,
            Shape::Step { lr, every, factor } => lr * factor.powf((t / every.max(1)) as f64),
            Shape::OneCycle { max, steps } => {
                let (first, last) = (max / RISE, max / RISE / FALL);
                let (t, top, end) = (t as f64, RISING * steps as f64 - 1.0, steps as f64 - 1.0);
                match t {
                    t if t < top => between(first, max, t / top),
                    t if t < end => between(max, last, (t - top.max(0.0)) / (end - top.max(0.0))),
                    _ => last,
                }
            }
        }
    }
}

/// PyTorch's defaults of a cycle: how far it rises, how far it falls below its start, and the part that rises.
const RISE: f64 = 25.0;
const FALL: f64 = 1e4;
const RISING: f64 = 0.3;

/// Half a cosine from `from` at 0 to `to` at 1.
fn between(from: f64, to: f64, at: f64) -> f64 {
    from + (to - from) * (1.0 - (PI * at).cos()) / 2.0
}
