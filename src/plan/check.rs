//! The plan checker (to be written).

use crate::base::Result;
use crate::plan::Plan;

/// A plan that was checked.
#[derive(Clone, Debug)]
pub struct Checked(Plan);

/// Checks a plan.
pub fn check(plan: Plan) -> Result<Checked> {
    Ok(Checked(plan))
}

impl Checked {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}
