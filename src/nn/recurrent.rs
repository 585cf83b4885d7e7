//! Recurrent cells: one step of a sequence.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::nn::{impl_module, init};
use crate::tensor::{Device, Rng, Tensor, Var};

/// Weights and biases of `gates` gates, drawn evenly over ±1/√hidden: PyTorch's default.
#[track_caller]
fn parameters(
    op: &'static str,
    gates: usize,
    [inputs, hidden]: [usize; 2],
    rng: &Rng,
    device: &Device,
) -> Result<[Var; 4]> {
    if inputs == 0 || hidden == 0 {
        let given = format!("{inputs} and {hidden}");
        return Err(Error::argument(op, "at least one input and one hidden unit", given).at(Loc::caller()));
    }
    let wide = gates * hidden;
    let draw = |shape: &[usize]| Var::new(&init::uniform(shape, init::default_bound(hidden), rng, device)?);
    Ok([draw(&[inputs, wide])?, draw(&[hidden, wide])?, draw(&[wide])?, draw(&[wide])?])
}

/// Refuses inputs and states that do not fit together.
#[track_caller]
fn check(op: &'static str, x: &Tensor, states: &[&Tensor], weights: [&Var; 2]) -> Result<()> {
    let (inputs, hidden) = (weights[0].shape()[0], weights[1].shape()[0]);
    let fits = |t: &Tensor, width: usize| t.rank() == 2 && t.dims()[1] == width && t.dims()[0] == x.dims()[0];
    if let Some(bad) = [x].iter().find(|t| !fits(t, inputs)).or(states.iter().find(|t| !fits(t, hidden))) {
        let expected = format!("an input [n, {inputs}] and states [n, {hidden}]");
        return Err(Error::shape(op, expected, bad.ty().to_string()).at(Loc::caller()));
    }
    Ok(())
}

/// What an input or a state adds to each gate.
fn gates(x: &Tensor, weight: &Var, bias: &Var) -> Result<Tensor> {
    x.matmul(&weight.get())?.add(bias.get())
}

/// The gates side by side, each for itself.
fn split<const N: usize>(t: &Tensor) -> Result<[Tensor; N]> {
    t.chunk(1, N)?.try_into().map_err(|_| Error::bug("nn", "a width that is no multiple of the gates"))
}

/// A long short-term memory cell (Hochreiter & Schmidhuber 1997), with PyTorch's four gates in its order: input, forget, cell, output.
///
/// ```
/// use stepgraph::nn::LstmCell;
/// # use stepgraph::{DType, Device, Result, Rng, Tensor};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let cell = LstmCell::new(3, 4, &Rng::seed_from(0), &device)?;
/// let (mut h, mut c) = cell.zeros(2)?;
/// for _ in 0..5 {
///     (h, c) = cell.forward(&Tensor::ones([2, 3], DType::F32, &device)?, &h, &c)?;
/// }
/// assert_eq!((h.dims(), c.dims()), (&[2, 4][..], &[2, 4][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LstmCell {
    /// `[inputs, 4 hidden]`: PyTorch's, transposed.
    pub weight_input: Var,
    /// `[hidden, 4 hidden]`.
    pub weight_hidden: Var,
    /// `[4 hidden]`.
    pub bias_input: Var,
    /// `[4 hidden]`.
    pub bias_hidden: Var,
}
impl_module!(LstmCell { weight_input, weight_hidden, bias_input, bias_hidden });

impl LstmCell {
    /// Drawn evenly over ±1/√hidden. f32.
    ///
    /// Errors: no inputs or no hidden units.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let cell = nn::LstmCell::new(3, 5, &rng, device)?;
    /// assert_eq!(cell.weight_input.shape().numel(), 3 * 4 * 5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(inputs: usize, hidden: usize, rng: &Rng, device: &Device) -> Result<LstmCell> {
        let _scope = Scope::enter();
        let [weight_input, weight_hidden, bias_input, bias_hidden] =
            parameters("LstmCell::new", 4, [inputs, hidden], rng, device)?;
        Ok(LstmCell { weight_input, weight_hidden, bias_input, bias_hidden })
    }

    /// A hidden state and a cell state of zeros, `[n, hidden]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let (h, c) = nn::LstmCell::new(3, 5, &rng, device)?.zeros(2)?;
    /// assert_eq!((h.dims(), c.dims()), (&[2, 5][..], &[2, 5][..]));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn zeros(&self, n: usize) -> Result<(Tensor, Tensor)> {
        let _scope = Scope::enter();
        let zeros = zeros(n, &self.weight_hidden)?;
        Ok((zeros.clone(), zeros))
    }

    /// The hidden state and the cell state after `x`, `[n, inputs]`: `c' = f c + i g`, `h' = o tanh(c')`.
    ///
    /// Errors: an input or states of other shapes.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let cell = nn::LstmCell::new(3, 5, &rng, device)?;
    /// let (h, c) = cell.zeros(2)?;
    /// let (h, c) = cell.forward(&rng.normal([2, 3], device)?, &h, &c)?;
    /// assert_eq!((h.dims(), c.dims()), (&[2, 5][..], &[2, 5][..]));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let _scope = Scope::enter();
        check("LstmCell", x, &[h, c], [&self.weight_input, &self.weight_hidden])?;
        let from_h = gates(h, &self.weight_hidden, &self.bias_hidden)?;
        let all = gates(x, &self.weight_input, &self.bias_input)?.add(&from_h)?;
        let [input, forget, cell, output] = split(&all)?;
        let c = forget.sigmoid()?.mul(c)?.add(&input.sigmoid()?.mul(&cell.tanh()?)?)?;
        Ok((output.sigmoid()?.mul(&c.tanh()?)?, c))
    }
}

/// A gated recurrent unit (Cho et al. 2014) as PyTorch has it, with gates in its order: reset, update, new.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let rng = Rng::seed_from(0);
/// let cell = nn::GruCell::new(3, 5, &rng, device)?;
/// let h = cell.forward(&rng.normal([2, 3], device)?, &cell.zeros(2)?)?;
/// assert_eq!(h.dims(), [2, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GruCell {
    /// `[inputs, 3 hidden]`: PyTorch's, transposed.
    pub weight_input: Var,
    /// `[hidden, 3 hidden]`.
    pub weight_hidden: Var,
    /// `[3 hidden]`.
    pub bias_input: Var,
    /// `[3 hidden]`.
    pub bias_hidden: Var,
}
impl_module!(GruCell { weight_input, weight_hidden, bias_input, bias_hidden });

impl GruCell {
    /// Drawn evenly over ±1/√hidden. f32.
    ///
    /// Errors: no inputs or no hidden units.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let cell = nn::GruCell::new(3, 5, &rng, device)?;
    /// assert_eq!(cell.weight_input.shape().numel(), 3 * 3 * 5);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new(inputs: usize, hidden: usize, rng: &Rng, device: &Device) -> Result<GruCell> {
        let _scope = Scope::enter();
        let [weight_input, weight_hidden, bias_input, bias_hidden] =
            parameters("GruCell::new", 3, [inputs, hidden], rng, device)?;
        Ok(GruCell { weight_input, weight_hidden, bias_input, bias_hidden })
    }

    /// A hidden state of zeros, `[n, hidden]`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// assert_eq!(nn::GruCell::new(3, 5, &rng, device)?.zeros(2)?.dims(), [2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn zeros(&self, n: usize) -> Result<Tensor> {
        let _scope = Scope::enter();
        zeros(n, &self.weight_hidden)
    }

    /// The hidden state after `x`, `[n, inputs]`: `h' = (1 - z) tanh(x Wₙ + bₙ + r (h Uₙ + dₙ)) + z h`.
    ///
    /// Errors: an input or a state of another shape.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let rng = Rng::seed_from(0);
    /// let cell = nn::GruCell::new(3, 5, &rng, device)?;
    /// let h = cell.forward(&rng.normal([2, 3], device)?, &cell.zeros(2)?)?;
    /// assert_eq!(h.dims(), [2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        let _scope = Scope::enter();
        check("GruCell", x, &[h], [&self.weight_input, &self.weight_hidden])?;
        let [reset_x, update_x, new_x] = split(&gates(x, &self.weight_input, &self.bias_input)?)?;
        let [reset_h, update_h, new_h] = split(&gates(h, &self.weight_hidden, &self.bias_hidden)?)?;
        let (reset, update) = (reset_x.add(&reset_h)?.sigmoid()?, update_x.add(&update_h)?.sigmoid()?);
        let new = new_x.add(&reset.mul(&new_h)?)?.tanh()?;
        // (1 - z) n + z h
        new.add(&update.mul(&h.sub(&new)?)?)
    }
}

/// `[n, hidden]` zeros of the weight's dtype and device.
fn zeros(n: usize, weight_hidden: &Var) -> Result<Tensor> {
    Tensor::zeros([n, weight_hidden.shape()[0]], weight_hidden.dtype(), weight_hidden.device())
}
