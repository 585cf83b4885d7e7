//! One composite against its formula in double precision.

use stepgraph::{Device, Result, Tensor, Var};

use crate::harness::{Expect, assert_close, compare, filled};

/// A composite under test: its operands, the formula in f64 (of the operands' elements), how close.
pub struct Check<'a> {
    pub name: &'a str,
    pub operands: Vec<Tensor>,
    pub formula: &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>,
    pub tolerance: f64,
    /// Bound for gradients; finite differences are good to about 1e-6.
    pub gradient: f64,
}

impl<'a> Check<'a> {
    pub fn new(name: &'a str, operands: Vec<Tensor>, formula: &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>) -> Check<'a> {
        Check { name, operands, formula, tolerance: 2e-6, gradient: 2e-5 }
    }

    /// Runs `f` eagerly, traced and frozen, with the operands in trainable `Var`s; compares bits between these, the result with the formula
    /// and the gradients of a weighted sum of the result with finite differences of the formula. Gives the eager result.
    #[track_caller]
    pub fn run(&self, device: &Device, f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<f32> {
        let log = compare(
            device,
            &Expect::steady(5).frozen(),
            || self.operands.iter().map(Var::new).collect::<Result<Vec<Var>>>(),
            |_, _| Ok(()),
            |vars, _, seen| {
                let given: Vec<Tensor> = vars.iter().map(Var::get).collect();
                let y = f(&given)?;
                let loss = y.mul(&weights(&y)?)?.sum(())?;
                let gradients = loss.backward()?;
                seen.keep(&y);
                for v in vars.iter() {
                    // A frozen step gives values in the order in which they were made: here that of the operands.
                    let g = gradients.get(v).expect("a gradient");
                    seen.keep(&g.reshape(g.dims())?);
                }
                Ok(())
            },
            |_| vec![],
        );
        let at: Vec<Vec<f64>> = self.operands.iter().map(doubles).collect();
        let want = (self.formula)(&at);
        assert_close(self.name, log.f32(0, 0), &want, self.tolerance);
        let loss = |at: &[Vec<f64>]| (self.formula)(at).iter().enumerate().map(|(i, y)| y * weight(i)).sum::<f64>();
        for (k, operand) in at.iter().enumerate() {
            let slope = |i: usize| {
                let moved = |h: f64| {
                    let mut at = at.clone();
                    at[k][i] += h;
                    loss(&at)
                };
                let h = 1e-5;
                (moved(h) - moved(-h)) / (2.0 * h)
            };
            let slopes: Vec<f64> = (0..operand.len()).map(slope).collect();
            assert_close(&format!("{}: gradient {k}", self.name), log.f32(0, 1 + k), &slopes, self.gradient);
        }
        log.f32(0, 0).to_vec()
    }
}

/// The elements in double precision.
#[track_caller]
pub fn doubles(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f32>().expect("f32").into_iter().map(f64::from).collect()
}

/// The weight of element `i` of a result in the loss: distinct, no powers of two.
fn weight(i: usize) -> f64 {
    0.3 + (i % 7) as f64 * 0.25 - (i % 3) as f64 * 0.5
}

/// The weights of all elements, made by the step itself: no host data.
fn weights(y: &Tensor) -> Result<Tensor> {
    let n = y.numel();
    // Periods of 21, repeated by expanding and cutting.
    let row: Vec<Tensor> =
        (0..21.min(n.max(1))).map(|i| Tensor::full([1], weight(i) as f32, y.device())).collect::<Result<_>>()?;
    let row = Tensor::concat(&row.iter().collect::<Vec<_>>(), 0)?;
    let periods = n.div_ceil(row.numel());
    row.unsqueeze(0)?.expand([periods, row.numel()])?.flatten()?.slice(0, 0, n)?.reshape(y.dims())
}

/// An operand of small numbers.
pub fn some(dims: &[usize], seed: u32, device: &Device) -> Tensor {
    filled(dims, seed, device)
}

/// Rows of `n` elements: (first element's position) of each.
pub fn rows(len: usize, n: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len / n).map(move |r| r * n..(r + 1) * n)
}
