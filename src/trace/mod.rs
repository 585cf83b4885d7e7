//! Floor 10: the tracer. Sessions record, shadow, diverge and launch.
//!
//! A step's calls form a *trace tree*: [`tree::Path`]s of events that branch where calls differ. A
//! [`session::Session`] is open on one thread while a closure runs and is the thread's
//! [`crate::tensor::recorder::Recorder`]:
//!
//! - *record* (`record.rs`): a path never seen. Ops run eagerly and are written down.
//! - *shadow* (`shadow.rs`): ops run nothing; each is compared with the next event of the path and
//!   answered with the handle the event owns, its *template*.
//! - *diverge* (`catch_up.rs`): the values promised so far are produced by eager runs of the pending
//!   events; recording goes on as a new branch.
//! - *storm* (`storm.rs`): when paths do not repeat, calls run plain eager for a while.
//! - *segments* (`segment.rs`, `build.rs`, `launch.rs`): at a host read and at the closure's end the pending events are compiled
//!   (once) and launched. What is alive then must be an output of the plan.
//!
//! Guarantees: the closure's host code runs at every call; effects on `Var`s happen exactly once;
//! values are those of plain eager execution, bit for bit.

mod build;
mod catch_up;
pub(crate) mod freeze;
mod launch;
mod record;
mod reference;
pub(crate) mod segment;
pub(crate) mod session;
mod shadow;
pub(crate) mod stats;
mod storm;
pub(crate) mod tree;
