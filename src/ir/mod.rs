//! Floor 3: the graph of a step.
//!
//! A [`Graph`] is a petgraph directed graph behind an append-only surface: nodes are added in
//! topological order and never removed; passes rebuild through [`rewrite::Rewriter`]. Ordered operands
//! live in the node, edges only carry users.
//! May rely on floors 0 to 2. Guarantees: what [`Graph::verify`] accepts, the interpreter and every pass take.

pub mod emit;
pub mod graph;
pub mod parse;
pub mod print;
pub mod rewrite;
#[cfg(test)]
mod tests;
pub mod verify;

pub use graph::{Graph, Input, InputKind, Node, NodeId, NodeOp};
