//! What every optimizer does with its parameters: checks them, makes state for them, pairs them with gradients.

use rustc_hash::FxHashSet;

use crate::base::{DType, Error, ErrorKind, Result};
use crate::optim::group::Group;
use crate::tensor::{Device, Gradients, Tensor, Var};

/// The dtype in which values of `dtype` are updated, and their state is kept: f32 for 16 bits.
pub(crate) fn working(dtype: DType) -> DType {
    if dtype.size() < DType::F32.size() { DType::F32 } else { dtype }
}

/// `t` as `dtype`; nothing is done when it is that already.
pub(crate) fn cast(t: Tensor, dtype: DType) -> Result<Tensor> {
    if t.dtype() == dtype { Ok(t) } else { t.to_dtype(dtype) }
}

/// The parameters of an optimizer.
#[derive(Debug)]
pub(crate) struct Target {
    groups: Vec<Group>,
    device: Device,
}

/// One parameter with its gradient, both in the working dtype.
pub(crate) struct Update<'a> {
    /// The parameter's number, through all groups.
    pub index: usize,
    /// Its number in its group.
    pub place: usize,
    var: &'a Var,
    pub value: Tensor,
    pub gradient: Tensor,
}

impl Update<'_> {
    /// Writes the parameter, rounded to its dtype.
    pub fn write(&self, value: Tensor) -> Result<()> {
        self.var.set(&cast(value, self.var.dtype())?)
    }
}

/// A group at a step.
pub(crate) struct Work<'a> {
    pub group: &'a Group,
    /// The group's number.
    pub number: usize,
    pub updates: Vec<Update<'a>>,
}

impl Target {
    /// Errors: no parameters, one twice, or parameters on different devices.
    pub fn new(op: &'static str, groups: Vec<Group>) -> Result<Target> {
        let all = || groups.iter().flat_map(|g| &g.parameters);
        let Some(first) = all().next() else {
            return Err(Error::argument(op, "at least one parameter", "none"));
        };
        if let Some(p) = all().find(|p| p.device() != first.device()) {
            let (left, right) = (first.device().name().to_string(), p.device().name().to_string());
            return Err(ErrorKind::Device { op, left, right }.into());
        }
        if let Some(p) = all().find(|p| !p.dtype().is_float()) {
            return Err(Error::dtype(op, "float parameters", p.dtype()));
        }
        let mut seen = FxHashSet::default();
        if let Some((i, p)) = all().enumerate().find(|(_, p)| !seen.insert(p.id())) {
            return Err(Error::argument(op, "each parameter once", format!("{p:?} again as number {i}")));
        }
        let device = first.device().clone();
        Ok(Target { groups, device })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn groups_mut(&mut self) -> &mut [Group] {
        &mut self.groups
    }

    pub fn parameters(&self) -> Vec<Var> {
        self.groups.iter().flat_map(|g| g.parameters.iter().cloned()).collect()
    }

    /// State at zero of each parameter's shape, in its working dtype.
    pub fn zeros(&self) -> Result<Vec<Var>> {
        let zero = |p: &Var| Var::state(&Tensor::zeros(p.shape(), working(p.dtype()), &self.device)?);
        self.groups.iter().flat_map(|g| &g.parameters).map(zero).collect()
    }

    /// The groups with a parameter that has a gradient, and these parameters.
    pub fn work(&self, op: &'static str, gradients: &Gradients) -> Result<Vec<Work<'_>>> {
        let (mut out, mut index) = (Vec::with_capacity(self.groups.len()), 0);
        for (number, group) in self.groups.iter().enumerate() {
            let mut updates = Vec::with_capacity(group.parameters.len());
            for (place, var) in group.parameters.iter().enumerate() {
                if let Some(gradient) = gradients.get(var) {
                    if gradient.shape() != var.shape() {
                        let given = format!("{} for parameter {index}", gradient.shape());
                        return Err(Error::shape(op, format!("a gradient of shape {}", var.shape()), given));
                    }
                    let dtype = working(var.dtype());
                    let (value, gradient) = (cast(var.get(), dtype)?, cast(gradient, dtype)?);
                    updates.push(Update { index: index + place, place, var, value, gradient });
                }
            }
            index += group.parameters.len();
            if !updates.is_empty() {
                out.push(Work { group, number, updates });
            }
        }
        Ok(out)
    }
}

/// Names `state.0`, `state.1`, … for one `Var` per parameter.
pub(crate) fn numbered<'a>(state: &'a str, vars: &'a [Var]) -> impl Iterator<Item = (String, Var)> + 'a {
    vars.iter().enumerate().map(move |(i, v)| (format!("{state}.{i}"), v.clone()))
}

/// Refuses a configured number outside its range.
pub(crate) fn check_number(
    op: &'static str,
    name: &str,
    value: f64,
    range: impl std::ops::RangeBounds<f64> + std::fmt::Debug,
) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} in {range:?}"), format!("{value:?}")))
}
