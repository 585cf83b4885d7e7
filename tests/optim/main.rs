//! Optimizers and what goes with them, against formulas written out again in double precision and figures of others.

#[path = "../harness/mod.rs"]
mod harness;

mod averages;
mod checkpoints;
mod clipping;
mod formulas;
mod groups;
mod mixed;
mod schedules;
