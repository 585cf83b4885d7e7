//! Measures the accuracy of the crate's own exp, log, sin, … against f64.
//!
//! `cargo run --release --example math_ulp -- [name] [--step N]` walks all 2^32 f32 arguments (or every
//! N-th, N odd) and prints the largest error in units of the last place and where it is. All 2^32 take
//! minutes a function, less with `RUSTFLAGS=-Ctarget-cpu=native`.

use stepgraph::base::DType;
use stepgraph::kernel::{Access, Builder, Inst, Kernel, Val, math};

/// A formula, the true function and the error that its documentation states.
pub struct Function {
    pub name: &'static str,
    pub formula: fn(&mut Builder, Val) -> Val,
    pub reference: fn(f64) -> f64,
    pub limit: f64,
}

pub const FUNCTIONS: &[Function] = &[
    Function { name: "exp", formula: math::exp, reference: f64::exp, limit: 1.0 },
    Function { name: "exp2", formula: math::exp2, reference: f64::exp2, limit: 1.0 },
    Function { name: "expm1", formula: math::expm1, reference: f64::exp_m1, limit: 2.0 },
    Function { name: "log", formula: math::log, reference: f64::ln, limit: 1.0 },
    Function { name: "log10", formula: math::log10, reference: f64::log10, limit: 2.0 },
    Function { name: "log2", formula: math::log2, reference: f64::log2, limit: 2.0 },
    Function { name: "log1p", formula: math::log1p, reference: f64::ln_1p, limit: 1.0 },
    Function { name: "sin", formula: math::sin, reference: f64::sin, limit: 2.1 },
    Function { name: "cos", formula: math::cos, reference: f64::cos, limit: 2.1 },
    Function { name: "tan", formula: math::tan, reference: f64::tan, limit: 2.2 },
    Function { name: "asin", formula: math::asin, reference: f64::asin, limit: 1.5 },
    Function { name: "acos", formula: math::acos, reference: f64::acos, limit: 1.5 },
    Function { name: "atan", formula: math::atan, reference: f64::atan, limit: 1.5 },
    Function { name: "sinh", formula: math::sinh, reference: f64::sinh, limit: 1.5 },
    Function { name: "cosh", formula: math::cosh, reference: f64::cosh, limit: 1.5 },
    Function { name: "tanh", formula: math::tanh, reference: f64::tanh, limit: 1.5 },
    Function { name: "erf", formula: math::erf, reference: erf, limit: 1.5 },
    Function { name: "erfc", formula: math::erfc, reference: libm::erfc, limit: 2.0 },
    Function { name: "sigmoid", formula: math::sigmoid, reference: |x| 1.0 / (1.0 + (-x).exp()), limit: 2.0 },
    Function { name: "rsqrt", formula: rsqrt, reference: |x| 1.0 / x.sqrt(), limit: 1.5 },
];

/// As the row has it.
fn rsqrt(b: &mut Builder, x: Val) -> Val {
    let (one, root) = (b.f32(1.0), b.sqrt(x));
    b.div(one, root)
}

/// erf by its series, or its continued fraction.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() {
        return x;
    }
    let y = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        let mut n = 1.0;
        while term.abs() > 1e-17 * sum {
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
            n += 1.0;
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a < 7.0 {
        let tail = (1..80).rev().fold(0.0, |tail, n| n as f64 / 2.0 / (a + tail));
        1.0 - (-a * a).exp() / (a + tail) / std::f64::consts::PI.sqrt()
    } else {
        1.0
    };
    y.copysign(x)
}

impl Function {
    /// The formula as a kernel of one element.
    pub fn kernel(&self) -> Kernel {
        let mut b = Builder::new(&[1], &[false]);
        let (x, y) = (b.input(DType::F32, 1), b.output(DType::F32, 1));
        let v = b.load(Access::strided(x, 0, &[1]));
        let r = (self.formula)(&mut b, v);
        b.store(Access::strided(y, 0, &[1]), r);
        b.finish().expect("a formula gives a kernel")
    }

    /// The largest error over the arguments with these bits, and where it is.
    pub fn worst(&self, bits: impl Iterator<Item = u32>) -> (f64, f32) {
        let kernel = self.kernel();
        let mut registers: Vec<Vec<u64>> = vec![Vec::new(); kernel.body.len()];
        let (mut worst, mut at) = (0.0, 0.0);
        let mut bits = bits.peekable();
        while bits.peek().is_some() {
            let xs: Vec<f32> = bits.by_ref().take(1024).map(f32::from_bits).collect();
            for (&x, y) in xs.iter().zip(apply(&kernel, &mut registers, &xs)) {
                let error = ulp(y, (self.reference)(x as f64));
                if error > worst {
                    (worst, at) = (error, x);
                }
            }
        }
        (worst, at)
    }
}

fn apply(kernel: &Kernel, registers: &mut [Vec<u64>], xs: &[f32]) -> Vec<f32> {
    let mut result = 0;
    for (i, inst) in kernel.body.iter().enumerate() {
        let (made, rest) = registers.split_at_mut(i);
        let out = &mut rest[0];
        out.resize(xs.len(), 0);
        match inst {
            Inst::Load { .. } => out.iter_mut().zip(xs).for_each(|(o, x)| *o = x.to_bits() as u64),
            Inst::Const { bits, .. } => out.fill(*bits),
            Inst::Op { instr, args } => {
                // Unused operands are instruction 0, the load.
                instr.eval_lanes(args.map(|a| made[a.0 as usize].as_slice()), out);
            }
            Inst::Store { value, .. } => result = value.0 as usize,
            other => unreachable!("{other:?} in a formula"),
        }
    }
    registers[result].iter().map(|&v| f32::from_bits(v as u32)).collect()
}

/// Distance from the true value in units of the last place of an f32 there; infinity counts as 2^128, so that an
/// early overflow shows. NaN, zeros and infinities must be met exactly.
fn ulp(got: f32, want: f64) -> f64 {
    let exact = |same: bool| if same { 0.0 } else { f64::INFINITY };
    if want.is_nan() || got.is_nan() {
        return exact(want.is_nan() && got.is_nan());
    }
    if want.is_infinite() || want == 0.0 {
        return exact(got as f64 == want && got.is_sign_negative() == want.is_sign_negative());
    }
    let limit = 2f64.powi(128);
    let got = if got.is_infinite() { limit.copysign(got as f64) } else { got as f64 };
    let want = want.clamp(-limit, limit);
    let exponent = ((want.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    (got - want).abs() / 2f64.powi(exponent - 23)
}

#[allow(dead_code)] // The tests use the rest of this file.
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let step = words.iter().position(|w| w == "--step").and_then(|i| words.get(i + 1)?.parse().ok()).unwrap_or(1usize);
    let chosen: Vec<&Function> = FUNCTIONS.iter().filter(|f| words.iter().any(|w| w == f.name)).collect();
    let chosen = if chosen.is_empty() { FUNCTIONS.iter().collect() } else { chosen };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    for function in chosen {
        let start = std::time::Instant::now();
        let parts: Vec<(f64, f32)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    let (from, to) = ((t << 32) / threads, ((t + 1) << 32) / threads);
                    scope.spawn(move || function.worst((from..to).step_by(step).map(|b| b as u32)))
                })
                .collect();
            workers.into_iter().map(|w| w.join().unwrap_or((f64::NAN, f32::NAN))).collect()
        });
        let (error, at) = parts.into_iter().fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
        let instructions = function.kernel().body.iter().filter(|i| matches!(i, Inst::Op { .. })).count();
        println!(
            "{:8} {instructions:3} instructions  {error:.4} ulp at {at:e} (bits {:#010x}), stated {}; {:.0?}",
            function.name,
            at.to_bits(),
            function.limit,
            start.elapsed()
        );
    }
}
