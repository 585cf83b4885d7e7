//! One number per parameter of a group, such as a bias correction, together in one `Var`.
//!
//! All of them move in one op at a step; apart from each other only in a step where some parameters of the group
//! have no gradient.

use crate::base::{DType, Result};
use crate::optim::target::{Update, Work, cast, working};
use crate::tensor::{Device, Tensor, Var};

use super::Group;

/// The numbers of one group.
#[derive(Debug)]
pub(crate) struct Numbers(Var);

impl Numbers {
    /// Zeros for the parameters of `group`, as wide as the widest of them.
    pub fn zeros(group: &Group, device: &Device) -> Result<Numbers> {
        let widest = group.parameters.iter().map(|p| working(p.dtype())).max_by_key(|d| d.size());
        Numbers::of(group, widest.unwrap_or(DType::F32), device)
    }

    /// Integers at zero for the parameters of `group`.
    pub fn counts(group: &Group, device: &Device) -> Result<Numbers> {
        Numbers::of(group, DType::I64, device)
    }

    fn of(group: &Group, dtype: DType, device: &Device) -> Result<Numbers> {
        Ok(Numbers(Var::state(&Tensor::zeros([group.parameters.len()], dtype, device)?)?))
    }

    pub fn var(&self) -> &Var {
        &self.0
    }

    /// Moves the numbers of the parameters of `work` by `f`; the numbers of all, afterwards.
    pub fn advance(&self, work: &Work<'_>, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let old = self.0.get();
        let mut new = f(&old)?;
        let n = old.numel();
        if work.updates.len() < n {
            let mut moved = vec![false; n];
            work.updates.iter().for_each(|u| moved[u.place] = true);
            let (mut pieces, mut start) = (Vec::new(), 0);
            for run in moved.chunk_by(|a, b| a == b) {
                let from = if run[0] { &new } else { &old };
                pieces.push(from.slice(0, start, run.len())?);
                start += run.len();
            }
            new = Tensor::concat(&pieces.iter().collect::<Vec<_>>(), 0)?;
        }
        self.0.set(&new)?;
        Ok(new)
    }
}

/// The number of one parameter among those of its group: broadcasts against the parameter, in its working dtype.
pub(crate) fn number_of(numbers: &Tensor, update: &Update<'_>) -> Result<Tensor> {
    let one = numbers.slice(0, update.place, 1)?;
    let one = if update.value.rank() == 0 { one.reshape(())? } else { one };
    cast(one, update.value.dtype())
}
