//! Fusion: which nodes are computed together, by one kernel.
//!
//! Nothing here knows an op by name. A node is a library call, a kernel node, or *inline*: a view or a
//! constant, computed where it is used. Kernel nodes start as kernels of their own; two kernels
//! become one ([`merge`]) when they can share one iteration space in which every value that passes between them is
//! made once and used at the place it is made (see [`Space::place`]), and when no third kernel would then have to
//! run between their halves. From these two rules alone follow chains and DAGs of pointwise ops, several outputs,
//! prologues and epilogues of reductions, and several reductions in one kernel. Cheap values are then computed again
//! by each user instead of being stored ([`inline`], [`recompute`]), and kernels that do not depend on one another are joined where
//! that saves reads or launches.
//! May rely on floors 0 to 3. Guarantees: the groups form an acyclic graph, and each is computable by one kernel
//! unless [`crate::pass::lower`] names the node that has to be materialised.

pub mod inline;
pub mod merge;
pub mod print;
pub mod quotient;
pub mod reads;
pub mod recompute;
pub mod space;

use rustc_hash::FxHashSet;

use crate::ir::{Graph, NodeId};
use crate::op::{Class, Lowering as _};
use crate::pass::{Decision, Options};
pub use reads::Role;
pub use space::{Per, Space};

use reads::{class_of, is_library, op_of, view};

/// What is computed where.
#[derive(Clone, Debug, Default)]
pub struct Fusion {
    pub groups: Vec<Group>,
    /// Per node what becomes of it.
    pub roles: Vec<Role>,
    /// Per node its group, for kernel and library nodes.
    pub home: Vec<Option<u32>>,
}

/// Nodes computed by one step.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its kernel's domain and reduced axes; of a library call, the result's shape.
    pub space: Space,
    /// A library call (then of one node).
    pub library: bool,
    /// Its nodes, operands before users.
    pub nodes: Vec<NodeId>,
    /// Those whose values other steps or the caller need, in order.
    pub stored: Vec<NodeId>,
    /// The groups it reads from, ascending.
    pub after: Vec<u32>,
}

impl Fusion {
    /// Whether group `number` computes `node` itself rather than loading it.
    pub fn computed_in(&self, node: NodeId, number: u32) -> bool {
        match self.roles[node.index()] {
            Role::Inline => true,
            Role::Kernel => self.home[node.index()] == Some(number),
            Role::Input | Role::Library => false,
        }
    }
}

/// Groups the graph's nodes. Nodes in `apart` are never computed inside their users' kernels.
pub fn fuse(graph: &Graph, options: &Options, apart: &FxHashSet<NodeId>, notes: &mut Vec<Decision>) -> Fusion {
    let roles = roles(graph, apart, notes);
    let mut state = merge::State::new(graph, roles, apart);
    if options.fuse {
        state.merge(false, notes);
        state.merge(true, notes);
        if inline::inline(&mut state, notes) {
            state.merge(true, notes);
        }
        state.join(notes);
        recompute::recompute(&mut state, notes);
    }
    state.finish()
}

/// One kernel per kernel node, in the graph's order.
pub fn apart(graph: &Graph, materialised: &FxHashSet<NodeId>) -> Fusion {
    merge::State::new(graph, roles(graph, materialised, &mut Vec::new()), materialised).finish()
}

/// Decides which nodes are inline, and which views must be copied since they are needed in memory where
/// strides cannot express them.
fn roles(graph: &Graph, apart: &FxHashSet<NodeId>, notes: &mut Vec<Decision>) -> Vec<Role> {
    let mut roles: Vec<Role> = graph
        .ids()
        .map(|v| match class_of(graph, v) {
            None => Role::Input,
            Some(Class::Library) if is_library(graph, v) => Role::Library,
            Some(_) if apart.contains(&v) => Role::Kernel,
            Some(Class::Movement) => Role::Inline,
            Some(Class::Source) if is_constant(graph, v) => Role::Inline,
            Some(_) => Role::Kernel,
        })
        .collect();
    for v in graph.ids() {
        let operands = &graph.node(v).operands;
        match (roles[v.index()], class_of(graph, v)) {
            (Role::Library, _) => {
                for &o in operands {
                    in_memory(graph, &mut roles, o, v, "operand of a library call", notes);
                }
            }
            // The index of a scatter is checked where it lies.
            (_, Some(Class::Gather | Class::Library)) => {
                in_memory(graph, &mut roles, operands[0], v, "operand of a gather", notes);
            }
            _ => {}
        }
    }
    for &o in graph.outputs() {
        in_memory(graph, &mut roles, o, o, "output", notes);
    }
    roles
}

fn in_memory(
    graph: &Graph,
    roles: &mut [Role],
    node: NodeId,
    user: NodeId,
    what: &'static str,
    notes: &mut Vec<Decision>,
) {
    if roles[node.index()] == Role::Inline && view(graph, roles, node).is_none() {
        roles[node.index()] = Role::Kernel;
        notes.push(Decision::new("fuse", graph, &[node, user], format!("copied: {what} that strides cannot express")));
    }
}

/// A source that costs no more than a constant: a single instruction.
fn is_constant(graph: &Graph, node: NodeId) -> bool {
    let shape = graph.node(node).ty.shape;
    let mut probe = reads::Probe::new(graph, node, &Space::pointwise(shape));
    let map = crate::op::IndexMap::identity(shape);
    let lowered = op_of(graph, node).map(|op| op.rules().lower(&mut probe, graph.node(node).ty, &map));
    matches!(lowered, Some(Ok(_))) && probe.builder().kernel().body.len() <= 2
}
