//! Floor 11: what a step did, and why.

pub mod explain;
pub mod report;
