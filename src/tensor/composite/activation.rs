//! Activation functions.

use crate::base::Result;
use crate::base::location::Scope;
use crate::tensor::Tensor;
use crate::tensor::composite::need_float;

impl Tensor {
    /// `x` above 0, else `slope · x`; the gradient at 0 is `slope` (PyTorch's).
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("leaky_relu", &[self])?;
        self.gt(0.0)?.select(self, &self.mul(slope)?)
    }

    /// The Gaussian error linear unit (Hendrycks & Gimpel 2016) in its tanh form, GPT-2's: `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    /// Within 5e-4 of [`Tensor::gelu`].
    #[track_caller]
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        need_float("gelu_tanh", &[self])?;
        let cube = self.mul(self)?.mul(self)?;
        let inner = self.add(&cube.mul(0.044715)?)?.mul((2.0 / std::f64::consts::PI).sqrt())?;
        self.mul(0.5)?.mul(&inner.tanh()?.add(1.0)?)
    }
}
