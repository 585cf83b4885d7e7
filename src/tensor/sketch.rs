//! Sketches: tensor code run once on values that are not there, to learn which ops it is made of.
//!
//! That is how a user's gradient, written in tensor code, becomes a rule over [`Emit`](crate::op::Emit): the same in
//! eager code, in a step and in a graph, and differentiable again. What is run must be a pure function of the sketch's
//! own values: reading one, `Var`s, random draws and tensors from outside are refused, and host numbers are fixed.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::{Error, ErrorKind, Loc, Result, Scalar, Type, scalar};
use crate::op::{Grad, Op, Val};
use crate::tensor::autograd::Request;
use crate::tensor::recorder::{self, Recorder, SKETCHING};
use crate::tensor::tape::{GradTable, Gradients};
use crate::tensor::{At, Device, Origin, Rng, Tensor, Var, eager};

/// The ops of tensor code, in order.
#[derive(Default)]
pub(crate) struct Sketch {
    /// Places of the values, by address; the first ones are given, the others results of `lines`.
    places: FxHashMap<usize, usize>,
    /// Keeps addresses from being used again.
    values: Vec<Tensor>,
    given: usize,
    lines: Vec<(Op, SmallVec<[usize; 3]>)>,
    /// Something that cannot be sketched.
    refused: Option<Error>,
}

/// A value that is not there.
fn blank(ty: Type, made: Loc) -> Tensor {
    static NOWHERE: OnceLock<Device> = OnceLock::new();
    let device = NOWHERE.get_or_init(Device::null).clone();
    Tensor::pending(ty, device, SKETCHING, Origin::Constant, made)
}

fn refusal(what: &str) -> Error {
    let detail =
        format!("a gradient of a custom op must compute tensors from the tensors it is given; it may not {what}");
    ErrorKind::Backward { detail }.into()
}

impl Sketch {
    fn add(&mut self, t: Tensor) -> Tensor {
        self.places.insert(t.addr(), self.values.len());
        self.values.push(t.clone());
        t
    }

    fn place(&self, t: &Tensor) -> Result<usize> {
        self.places
            .get(&t.addr())
            .copied()
            .ok_or_else(|| refusal("use tensors from elsewhere: make them inputs of the op"))
    }

    fn line(&mut self, op: &Op, operands: &[&Tensor]) -> Result<Tensor> {
        if let Some(e) = &self.refused {
            return Err(e.clone());
        }
        let places = operands.iter().map(|t| self.place(t)).collect::<Result<SmallVec<[usize; 3]>>>()?;
        let op = eager::cast_scalars(op, operands)?;
        let mut scalars = op.rules().scalars();
        for s in scalars.iter_mut().filter(|s| s.origin == scalar::Origin::Host) {
            *s = s.constant();
        }
        let op = op.rules().with_scalars(&scalars);
        let types: SmallVec<[Type; 3]> = operands.iter().map(|t| t.ty()).collect();
        let t = blank(op.rules().infer(&types)?, Loc::NONE);
        self.lines.push((op, places));
        Ok(self.add(t))
    }

    /// Emits the ops behind `wanted` (places), with `vals` in the places of the given values.
    fn emit(&self, g: &mut Grad<'_>, vals: &[Val], wanted: &[usize]) -> Result<Vec<Option<Val>>> {
        let mut needed = vec![false; self.values.len()];
        wanted.iter().for_each(|&p| needed[p] = true);
        for (k, (_, operands)) in self.lines.iter().enumerate().rev() {
            if needed[self.given + k] {
                operands.iter().for_each(|&p| needed[p] = true);
            }
        }
        let mut known: Vec<Option<Val>> = vals.iter().copied().map(Some).collect();
        for (k, (op, operands)) in self.lines.iter().enumerate() {
            let operands: Option<SmallVec<[Val; 3]>> = operands.iter().map(|&p| known[p]).collect();
            known.push(match operands.filter(|_| needed[self.given + k]) {
                Some(operands) => Some(g.emit(*op, &operands)?),
                None => None,
            });
        }
        Ok(known)
    }
}

/// Runs `code` on blank values of the types of `vals`, and of 0-d ones with the values of `scalars`; emits what it is
/// made of. The results are values, or `None`.
pub(crate) fn emit(
    g: &mut Grad<'_>,
    vals: &[Val],
    scalars: &[Scalar],
    code: impl FnOnce(&[Tensor], &[Tensor]) -> Result<Vec<Option<Tensor>>>,
) -> Result<Vec<Option<Val>>> {
    let mut sketch = Sketch::default();
    let inputs: Vec<Tensor> = vals.iter().map(|&v| sketch.add(blank(g.ty(v), Loc::NONE))).collect();
    sketch.given = inputs.len();
    let mut numbers = Vec::with_capacity(scalars.len());
    for &value in scalars {
        // Not through `line`: a parameter stays one.
        let op = Op::Full { shape: crate::base::Shape::SCALAR, value };
        let t = blank(op.rules().infer(&[])?, Loc::NONE);
        sketch.lines.push((op, SmallVec::new()));
        numbers.push(sketch.add(t));
    }
    let run = recorder::sketch(Box::new(sketch), || code(&inputs, &numbers));
    let Some((results, sketch)) = run else { return Err(refusal("differentiate")) };
    let results = results?;
    let Ok(sketch) = sketch.into_any().downcast::<Sketch>() else {
        return Err(Error::bug("sketch", "another recorder came back"));
    };
    if let Some(e) = &sketch.refused {
        return Err(e.clone());
    }
    let places = results.iter().map(|t| t.as_ref().map(|t| sketch.place(t)).transpose()).collect::<Result<Vec<_>>>()?;
    let wanted: Vec<usize> = places.iter().flatten().copied().collect();
    let known = sketch.emit(g, vals, &wanted)?;
    Ok(places.into_iter().map(|p| p.and_then(|p| known[p])).collect())
}

impl Recorder for Sketch {
    fn op(&mut self, op: &Op, operands: &[&Tensor], _: &Device, at: At) -> Result<Tensor> {
        self.line(op, operands).map_err(|e| e.at(Loc::resolve(at)))
    }

    fn var_get(&mut self, var: &Var, at: At) -> Tensor {
        let e = refusal("read a Var: make its value an input of the op");
        let t = blank(var.ty(), Loc::resolve(at));
        let _ = t.0.state.set(Err(e.clone()));
        self.refused.get_or_insert(e);
        t
    }

    fn var_set(&mut self, _: &Var, _: &Tensor, _: At) -> Result<()> {
        Err(refusal("write a Var"))
    }

    fn read(&mut self, _: &Tensor, _: At) -> Result<()> {
        Err(refusal("read values: there are none yet"))
    }

    fn backward(&mut self, _: &Tensor, _: At) -> Result<Gradients> {
        Err(refusal("differentiate"))
    }

    fn grad(&mut self, _: &Request<'_>, _: At) -> Result<Vec<Option<Tensor>>> {
        Err(refusal("differentiate"))
    }

    fn var_flagged(&mut self, _: &Var) {}

    fn gradient(&mut self, _: &Arc<GradTable>, _: &Var) -> Option<Tensor> {
        None
    }

    fn gradients(&mut self, _: &Arc<GradTable>) -> Vec<(u64, Tensor)> {
        Vec::new()
    }

    fn draw(&mut self, _: &Rng) {
        self.refused.get_or_insert(refusal("draw random numbers"));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
