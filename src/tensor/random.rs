//! Random numbers: counter-based generators owned by the user.
//!
//! A draw is a pure op of (seed, counter): Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", 2011) with the seed as key; the counter is a host scalar that each draw advances by one. So draws
//! differ from call to call, eager and traced agree, and forward and backward share one draw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::shape::IntoShape;
use crate::base::{Loc, Result, Scalar};
use crate::op::Op;
use crate::tensor::recorder::{self, emit_on, here};
use crate::tensor::{Device, Tensor};

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
    pub fn seed_from(seed: u64) -> Rng {
        Rng(Arc::new(State { seed: AtomicU64::new(seed), counter: AtomicU64::new(0) }))
    }

    /// Starts over with another seed.
    pub fn reseed(&self, seed: u64) {
        self.0.seed.store(seed, Relaxed);
        self.0.counter.store(0, Relaxed);
    }

    /// Number of draws made so far.
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

    /// An f32 tensor of independent draws from [0, 1), multiples of 2^-24.
    #[track_caller]
    pub fn uniform(&self, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let at = here();
        let shape = shape.into_shape().map_err(|e| e.at(Loc::resolve(at)))?;
        recorder::with(|r| r.draw(self));
        let (seed, counter) = (Scalar::i64(self.seed() as i64), Scalar::i64(self.advance(1) as i64));
        emit_on(device, &Op::Uniform { shape, seed, counter }, &[], at)
    }
}
