//! Random numbers: counter-based generators owned by the user.
//!
//! A draw is a pure op of (seed, counter): Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", 2011) with the seed as key; the counter is a host scalar that each draw advances by one. So draws
//! differ from call to call, eager and traced agree, and forward and backward share one draw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::location::Scope;
use crate::base::shape::IntoShape;
use crate::base::{Error, Loc, Result, Scalar};
use crate::op::Op;
use crate::op::random::Draw;
use crate::tensor::arith::Operand;
use crate::tensor::recorder::{self, emit_on, here};
use crate::tensor::{At, Device, Tensor};

/// The lower half of an i64.
const LOW: i64 = 0xffff_ffff;

/// A stream of random draws. Clones share the stream.
///
/// ```
/// use stepgraph::{Device, Result, Rng};
/// # fn main() -> Result<()> {
/// let (a, b) = (Rng::seed_from(7), Rng::seed_from(7));
/// let x = a.uniform([4], &Device::cpu())?.to_vec::<f32>()?;
/// assert_eq!(x, b.uniform([4], &Device::cpu())?.to_vec::<f32>()?);
/// assert_ne!(x, a.uniform([4], &Device::cpu())?.to_vec::<f32>()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Rng(Arc<State>);

#[derive(Debug)]
struct State {
    seed: AtomicU64,
    counter: AtomicU64,
}

impl Rng {
    /// A stream that starts at counter 0 of `seed`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let (a, b) = (Rng::seed_from(7), Rng::seed_from(7));
    /// assert_eq!(a.uniform([3], device)?.to_string(), b.uniform([3], device)?.to_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seed_from(seed: u64) -> Rng {
        Rng(Arc::new(State { seed: AtomicU64::new(seed), counter: AtomicU64::new(0) }))
    }

    /// Starts over with another seed.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(7);
    /// let first = rng.uniform([3], device)?;
    /// rng.reseed(7);
    /// assert_eq!(rng.uniform([3], device)?.to_string(), first.to_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reseed(&self, seed: u64) {
        self.0.seed.store(seed, Relaxed);
        self.0.counter.store(0, Relaxed);
    }

    /// Number of draws made so far.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(7);
    /// rng.uniform([3], device)?;
    /// assert_eq!(rng.counter(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn counter(&self) -> u64 {
        self.0.counter.load(Relaxed)
    }

    /// Seed and counter: all there is to a generator.
    ///
    /// ```
    /// assert_eq!(stepgraph::Rng::seed_from(7).state(), (7, 0));
    /// ```
    pub fn state(&self) -> (u64, u64) {
        (self.seed(), self.counter())
    }

    /// Goes on from a [`Rng::state`].
    ///
    /// ```
    /// use stepgraph::{Device, Result, Rng};
    /// # fn main() -> Result<()> {
    /// let rng = Rng::seed_from(7);
    /// let (seed, counter) = rng.state();
    /// let first = rng.uniform([4], &Device::cpu())?.to_vec::<f32>()?;
    /// rng.set_state(seed, counter);
    /// assert_eq!(rng.uniform([4], &Device::cpu())?.to_vec::<f32>()?, first);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_state(&self, seed: u64, counter: u64) {
        self.0.seed.store(seed, Relaxed);
        self.0.counter.store(counter, Relaxed);
    }

    pub(crate) fn advance(&self, draws: u64) -> u64 {
        self.0.counter.fetch_add(draws, Relaxed)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.0.seed.load(Relaxed)
    }

    fn draw(&self, draw: Draw, shape: impl IntoShape, device: &Device, at: At) -> Result<Tensor> {
        let shape = shape.into_shape().map_err(|e| e.at(Loc::resolve(at)))?;
        recorder::with(|r| r.draw(self));
        let (seed, counter) = (Scalar::i64(self.seed() as i64), Scalar::i64(self.advance(1) as i64));
        emit_on(device, &Op::Random { draw, shape, seed, counter }, &[], at)
    }

    /// Independent f32 draws from [0, 1): the multiples of 2^-24, each equally likely.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Rng::seed_from(7).uniform([100], device)?;
    /// assert!(x.iter::<f32>()?.all(|v| (0.0..1.0).contains(&v)));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn uniform(&self, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        self.draw(Draw::Uniform, shape, device, here())
    }

    /// Independent f32 draws from `lo..hi` (`hi` excluded): `lo + u * (hi - lo)` for a draw `u` of [`Rng::uniform`]. Inside
    /// a step the bounds are taken anew at each call.
    ///
    /// Errors: not `lo < hi`, or bounds whose difference is no finite f32.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Rng::seed_from(7).uniform_in([100], -2.0, 3.0, device)?;
    /// assert!(x.iter::<f32>()?.all(|v| (-2.0..3.0).contains(&v)));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn uniform_in(&self, shape: impl IntoShape, lo: f64, hi: f64, device: &Device) -> Result<Tensor> {
        let at = here();
        let (lo, hi) = (lo as f32, hi as f32);
        let width = hi - lo;
        if !(lo < hi && width.is_finite()) {
            let want = "bounds lo < hi with a finite difference, as f32";
            return Err(Error::argument("uniform_in", want, format!("{lo} and {hi}")).at(Loc::resolve(at)));
        }
        // Rounding could reach `hi`.
        self.draw(Draw::Uniform, shape, device, at)?.mul(width)?.add(lo)?.minimum(hi.next_down())
    }

    /// Independent f32 draws from the standard normal distribution, by Box and Muller's transform of two uniform numbers of 24 bits:
    /// so none is larger than 5.77 in magnitude (the true chance of that is 8e-9).
    ///
    /// ```
    /// use stepgraph::{Device, Result, Rng};
    /// # fn main() -> Result<()> {
    /// let weights = (Rng::seed_from(7).normal([784, 128], &Device::cpu())? * 0.05)?;
    /// assert!(weights.mean(())?.item::<f32>()?.abs() < 1e-3);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn normal(&self, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        self.draw(Draw::Normal, shape, device, here())
    }

    /// Independent truth values, true with probability `p`: a host number, or a float tensor that broadcasts to `shape`.
    ///
    /// It is `uniform < p`: so always true from 1 up, never true from 0 down and for NaN, and between as often as `p`
    /// rounded up to a multiple of 2^-24.
    ///
    /// Errors: a tensor of another shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let coins = Rng::seed_from(7).bernoulli([1000], 0.25, device)?;
    /// let heads = coins.to_dtype(DType::I64)?.sum(())?.item::<i64>()?;
    /// assert!((180..320).contains(&heads));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn bernoulli<'a>(&self, shape: impl IntoShape, p: impl Into<Operand<'a>>, device: &Device) -> Result<Tensor> {
        let at = here();
        let (shape, p) = (shape.into_shape().map_err(|e| e.at(Loc::resolve(at)))?, p.into());
        if let Some(t) = p.tensor()
            && t.shape().broadcast(&shape) != Some(shape)
        {
            let want = format!("probabilities that broadcast to {shape}");
            return Err(Error::shape("bernoulli", want, t.shape().to_string()).at(Loc::resolve(at)));
        }
        self.draw(Draw::Uniform, shape, device, at)?.lt(p)
    }

    /// Independent i64 draws from `lo..hi` (`hi` excluded): the high half of the product of 64 random bits and `hi - lo`,
    /// plus `lo` (Lemire, "Fast random integer generation in an interval", 2019, without its rejection). No number is more or less likely than
    /// it should be by more than `(hi - lo) / 2^64` of its chance. Inside a step the bounds are taken anew at each call.
    ///
    /// Errors: not `lo < hi`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let dice = Rng::seed_from(7).randint([100], 1, 7, device)?;
    /// assert!(dice.iter::<i64>()?.all(|v| (1..=6).contains(&v)));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn randint(&self, shape: impl IntoShape, lo: i64, hi: i64, device: &Device) -> Result<Tensor> {
        let at = here();
        if lo >= hi {
            let given = format!("{lo} and {hi}");
            return Err(Error::argument("randint", "bounds lo < hi", given).at(Loc::resolve(at)));
        }
        let _scope = Scope::enter();
        let low = |t: &Tensor| t.and(LOW);
        // Unsigned, whatever the sign.
        let high = |t: &Tensor| t.shr(32i64)?.and(LOW);
        let bits = self.draw(Draw::Bits, shape, device, at)?;
        let (x0, x1) = (low(&bits)?, high(&bits)?);
        let n = hi.wrapping_sub(lo);
        let product = if (0..1 << 31).contains(&n) {
            // All sums stay below 2^63.
            x1.mul(n)?.add(&x0.mul(n)?.shr(32i64)?)?.shr(32i64)?
        } else {
            let (n0, n1) = (n & LOW, n >> 32 & LOW);
            let (p01, p10) = (x0.mul(n1)?, x1.mul(n0)?);
            let middle = high(&x0.mul(n0)?)?.add(&low(&p01)?)?.add(&low(&p10)?)?;
            x1.mul(n1)?.add(&high(&p01)?)?.add(&high(&p10)?)?.add(&middle.shr(32i64)?)?
        };
        product.add(lo)
    }

    /// The numbers `0..n` (i64) in random order, every order equally likely: the order of `n` random keys of 64 bits, equal ones
    /// (a chance of `n² / 2^65`) as they come.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Rng};
    /// # fn main() -> Result<()> {
    /// let mut order = Rng::seed_from(7).permutation(5, &Device::cpu())?.to_vec::<i64>()?;
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn permutation(&self, n: usize, device: &Device) -> Result<Tensor> {
        self.draw(Draw::Bits, [n], device, here())?.argsort(0, false)
    }

    /// Independent draws of classes, one per row of the float tensor `logits` of shape `[.., classes]`: i64 of shape `[..]`, class `c` with
    /// probability `softmax(logits)[.., c]`.
    ///
    /// It is the place of the largest of `logits` plus Gumbel noise, `-log(-log u)` of a uniform number `u` of 24 bits each
    /// (Gumbel 1954; at least 2^-25): so chances below 2^-24 are coarse. A class with logit -inf is never drawn, unless all
    /// are: then the first is. NaN is drawn. No gradient flows. Logits divided by a temperature, or with all but the largest replaced by -inf, give the
    /// usual variants.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Rng, Tensor};
    /// # fn main() -> Result<()> {
    /// let inf = f32::INFINITY;
    /// let logits = Tensor::from_vec(vec![-inf, 0.0, -inf, 3.0, -inf, -inf], [2, 3], &Device::cpu())?;
    /// assert_eq!(Rng::seed_from(7).categorical(&logits)?.to_vec::<i64>()?, [1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: not a float tensor; no axis, or no classes.
    #[track_caller]
    pub fn categorical(&self, logits: &Tensor) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        if !logits.dtype().is_float() {
            return Err(Error::dtype("categorical", "float logits", logits.dtype()).at(Loc::resolve(at)));
        }
        if logits.dims().last().is_none_or(|&classes| classes == 0) {
            let given = logits.ty().to_string();
            return Err(Error::shape("categorical", "logits of shape [.., classes]", given).at(Loc::resolve(at)));
        }
        let u = self.draw(Draw::Uniform, logits.shape(), logits.device(), at)?.maximum(2f64.powi(-25))?;
        let noise = u.log()?.neg()?.log()?.neg()?;
        logits.add(&noise)?.argmax(-1)
    }
}
