//! A small training step, with a product, an index flag and an optimizer.

use stepgraph::base::HostValue;
use stepgraph::optim::{Adam, AdamConfig};
use stepgraph::{Device, Result, Tensor, Var, jit};

/// The parameters, the optimizer, one batch, and the step.
pub struct Model {
    pub w: Var,
    pub b: Var,
    pub adam: Adam,
    pub x: Tensor,
    pub labels: Tensor,
    pub step: jit::Step,
}

const ROWS: usize = 6;
const COLS: usize = 4;

impl Model {
    pub fn new(device: &Device) -> Result<Model> {
        let some = |n: usize, seed: f32| (0..n).map(|i| (i as f32 * 0.37 + seed).sin()).collect::<Vec<f32>>();
        let w = Var::new(&Tensor::from_slice(&some(5 * COLS, 1.0), [5, COLS], device)?)?;
        let b = Var::new(&Tensor::from_slice(&some(COLS, 2.0), [COLS], device)?)?;
        let adam = Adam::new(vec![w.clone(), b.clone()], AdamConfig::default())?;
        let x = Tensor::from_slice(&some(ROWS * 5, 3.0), [ROWS, 5], device)?;
        let labels = Model::labels(&[0, 3, 1, 2, 2, 0], device)?;
        Ok(Model { w, b, adam, x, labels, step: jit::Step::new() })
    }

    pub fn labels(labels: &[i64], device: &Device) -> Result<Tensor> {
        Tensor::from_slice(labels, [ROWS], device)
    }

    fn update(w: &Var, b: &Var, adam: &mut Adam, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let loss = x.matmul(&w.get())?.add(b.get())?.relu()?.cross_entropy(labels)?;
        adam.step(&loss.backward()?)?;
        Ok(loss)
    }

    /// The `k`th call, traced. The learning rate changes from call to call, and with it the parameter block.
    pub fn call(&mut self, k: usize) -> Result<Tensor> {
        let Model { w, b, adam, x, labels, step } = self;
        adam.set_lr(0.1 / (k + 1) as f64);
        step.run(|| Model::update(w, b, adam, x, labels))
    }

    /// The same, untraced.
    pub fn eager(&mut self, k: usize) -> Result<Tensor> {
        let Model { w, b, adam, x, labels, .. } = self;
        adam.set_lr(0.1 / (k + 1) as f64);
        Model::update(w, b, adam, x, labels)
    }

    /// All that a call writes.
    pub fn vars(&self) -> Vec<Var> {
        [self.w.clone(), self.b.clone()].into_iter().chain(self.adam.state()).collect()
    }

    /// The values of [`Model::vars`].
    pub fn state(&self) -> Result<Vec<HostValue>> {
        self.vars().iter().map(|v| v.get().to_host()).collect()
    }
}
