//! Dropout and embedding layers.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::nn::{Mode, impl_module, init};
use crate::tensor::{Device, Rng, Tensor, Var};

/// Dropout while it trains (see [`Mode`]): [`Tensor::dropout`]; else it does nothing.
///
/// ```
/// use stepgraph::nn::{Dropout, Module};
/// # use stepgraph::{DType, Device, Result, Rng, Tensor};
/// # fn main() -> Result<()> {
/// let layer = Dropout::new(0.5, &Rng::seed_from(1));
/// let x = Tensor::ones([8], DType::F32, &Device::cpu())?;
/// assert!(layer.forward(&x)?.to_vec::<f32>()?.iter().all(|&v| v == 0.0 || v == 2.0));
/// layer.eval();
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [1.0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The probability that an element is dropped.
    pub p: f64,
    /// Where the masks are drawn.
    pub rng: Rng,
    /// Whether it drops anything.
    pub mode: Mode,
}
impl_module!(Dropout { mode });

impl Dropout {
    /// With probability `p`; masks come from the stream of `rng`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let dropout = nn::Dropout::new(0.1, &Rng::seed_from(0));
    /// assert_eq!(dropout.p, 0.1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(p: f64, rng: &Rng) -> Dropout {
        Dropout { p, rng: rng.clone(), mode: Mode::default() }
    }

    /// Elements dropped and the others scaled while it trains, else `x` itself.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// use stepgraph::nn::Module;
    /// let dropout = nn::Dropout::new(0.5, &Rng::seed_from(0));
    /// let x = Tensor::ones([8], DType::F32, device)?;
    /// assert!(dropout.forward(&x)?.iter::<f32>()?.all(|v| v == 0.0 || v == 2.0));
    /// dropout.eval();
    /// assert_eq!(dropout.forward(&x)?.to_string(), x.to_string());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        if self.mode.is_training() { x.dropout(self.p, &self.rng) } else { Ok(x.clone()) }
    }
}

/// A table of vectors, looked up by integer ids: [`Tensor::embedding`].
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let rng = Rng::seed_from(0);
/// let embedding = nn::Embedding::new(10, 4, &rng, device)?;
/// assert_eq!(embedding.forward(&Tensor::new([[1i64, 2, 3]], device)?)?.dims(), [1, 3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[entries, width]`.
    pub weight: Var,
    /// An id that stands for no entry, whose row gets no gradient: [`Tensor::embedding_padded`].
    pub padding: Option<usize>,
}
impl_module!(Embedding { weight });

impl Embedding {
    /// Drawn from the normal distribution of mean 0 and standard deviation 1 (PyTorch's default). f32.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// assert_eq!(nn::Embedding::new(10, 4, &rng, device)?.weight.shape().dims(), [10, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(entries: usize, width: usize, rng: &Rng, device: &Device) -> Result<Embedding> {
        let _scope = Scope::enter();
        Ok(Embedding { weight: Var::new(&init::normal([entries, width], 1.0, rng, device)?)?, padding: None })
    }

    /// The same, with zeros in row `padding`, which training leaves as they are.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let embedding = nn::Embedding::with_padding(10, 2, 0, &Rng::seed_from(0), device)?;
    /// assert_eq!(embedding.forward(&Tensor::new([0i64], device)?)?.to_string(), "[[0. 0.]]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a padding that is not below `entries`.
    #[track_caller]
    pub fn with_padding(entries: usize, width: usize, padding: usize, rng: &Rng, device: &Device) -> Result<Embedding> {
        let _scope = Scope::enter();
        if padding >= entries {
            let expected = format!("a padding below {entries}, the number of entries");
            return Err(Error::argument("embedding", expected, padding.to_string()).at(Loc::caller()));
        }
        let drawn = init::normal([entries, width], 1.0, rng, device)?;
        let kept: Vec<bool> = (0..entries).map(|i| i != padding).collect();
        let kept = Tensor::from_vec(kept, [entries, 1], device)?;
        Ok(Embedding { weight: Var::new(&kept.select(&drawn, 0.0)?)?, padding: Some(padding) })
    }

    /// Ids of any shape; the result is `[ids.., width]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let embedding = nn::Embedding::new(10, 4, &rng, device)?;
    /// assert_eq!(embedding.forward(&Tensor::new([1i64, 2], device)?)?.dims(), [2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        match self.padding {
            Some(padding) => self.weight.get().embedding_padded(ids, padding),
            None => self.weight.get().embedding(ids),
        }
    }
}
