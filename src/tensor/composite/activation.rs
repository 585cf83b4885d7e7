//! Activation functions.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::base::Result;
use crate::base::location::Scope;
use crate::tensor::Tensor;
use crate::tensor::composite::{fixed, narrow, need_float, wide};

impl Tensor {
    /// `f` of a float tensor, 16-bit floats in f32 and the result rounded once.
    #[track_caller]
    fn activation(&self, op: &'static str, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        need_float(op, &[self])?;
        narrow(f(&wide(self)?)?, self.dtype())
    }

    /// `x` above 0, else `slope · x`; the gradient at 0 is `slope` (PyTorch's).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-2.0f32, 3.0], device)?;
    /// assert_eq!(format!("{:.3}", x.leaky_relu(0.1)?), "[-0.2  3. ]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("leaky_relu", |x| x.gt(fixed(0.0))?.select(x, &x.mul(slope)?))
    }

    /// `x` above 0, else `alpha · (eˣ - 1)` (Clevert et al. 2015); the gradient at 0 is `alpha` (PyTorch's).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-2.0f32, 3.0], device)?;
    /// assert_eq!(format!("{:.3}", x.elu(1.0)?), "[-0.865  3.   ]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("elu", |x| {
            let above = x.gt(fixed(0.0))?;
            // What is not chosen must not overflow: its gradient would be 0 times infinity.
            let below = above.select(fixed(0.0), x)?;
            above.select(x, &below.expm1()?.mul(alpha)?)
        })
    }

    /// The Gaussian error linear unit (Hendrycks & Gimpel 2016): `x/2 · (1 + erf(x/√2))`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.gelu()?), "[-0.159  1.954]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn gelu(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("gelu", |x| {
            let phi = x.mul(fixed(FRAC_1_SQRT_2))?.erf()?.add(fixed(1.0))?;
            x.mul(fixed(0.5))?.mul(&phi)
        })
    }

    /// [`Tensor::gelu`] in its tanh form, GPT-2's: `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`; within 5e-4 of the other.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.gelu_tanh()?), "[-0.159  1.955]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("gelu_tanh", |x| {
            let cube = x.mul(x)?.mul(x)?;
            let inner = x.add(&cube.mul(fixed(0.044715))?)?.mul(fixed((2.0 / PI).sqrt()))?;
            x.mul(fixed(0.5))?.mul(&inner.tanh()?.add(fixed(1.0))?)
        })
    }

    /// `x · sigmoid(x)`, also called swish (Ramachandran et al. 2017).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.silu()?), "[-0.269  1.762]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn silu(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("silu", |x| x.mul(&x.sigmoid()?))
    }

    /// `log(1 + eˣ)`, without overflow; its gradient is the sigmoid.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.softplus()?), "[0.313 2.127]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn softplus(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("softplus", softplus)
    }

    /// `log(sigmoid(x)) = -softplus(-x)`, without overflow.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([-1.0f32, 2.0], device)?;
    /// assert_eq!(format!("{:.3}", x.log_sigmoid()?), "[-1.313 -0.127]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn log_sigmoid(&self) -> Result<Tensor> {
        let _scope = Scope::enter();
        self.activation("log_sigmoid", |x| softplus(&x.neg()?)?.neg())
    }
}

/// `max(x, 0) + log(1 + exp(-|x|))`. At 0 half of the first one's gradient and none of the second's: a half.
pub(super) fn softplus(x: &Tensor) -> Result<Tensor> {
    x.maximum(fixed(0.0))?.add(&x.abs()?.neg()?.exp()?.log1p()?)
}
