//! The text form of a graph, and Graphviz.
//!
//! ```text
//! graph @step(%x0: f32[32,784], %x1: f32[784,10] var -> out 1) params($0: f32) {
//!   %0: f32[32,10] = matmul %x0, %x1        ; mlp.rs:41
//!   %1: f32[32,10] = mul(scalar1=$0) %0
//!   return %1, %x1
//! }
//! ```
//!
//! `var`: the value of a `Var`; `-> out k`: output `k` may overwrite it; `strided [s, …] offset n`: not contiguous from its
//! buffer's start. Places are comments. [`crate::ir::parse`] reads it back, with the inputs first among the nodes.

use std::fmt::Write;

use crate::base::{Layout, Loc};
use crate::ir::{Graph, Input, InputKind, NodeId, NodeOp};
use crate::op::text;

/// The names that the nodes of a graph have in its text: `%x0, %x1, …` for inputs, `%0, %1, …` for ops.
pub struct Names {
    of: Vec<String>,
}

impl Names {
    /// The names of `graph`.
    pub fn new(graph: &Graph) -> Names {
        let mut ops = 0;
        let of = graph
            .ids()
            .map(|id| match graph.node(id).op {
                NodeOp::Input(k) => format!("%x{k}"),
                NodeOp::Op(_) => {
                    ops += 1;
                    format!("%{}", ops - 1)
                }
            })
            .collect();
        Names { of }
    }

    /// The name of a node.
    pub fn get(&self, id: NodeId) -> &str {
        self.of.get(id.index()).map_or("%?", String::as_str)
    }

    /// The names of nodes, separated by commas.
    fn list(&self, ids: &[NodeId]) -> String {
        ids.iter().map(|&o| self.get(o)).collect::<Vec<_>>().join(", ")
    }

    /// One node as one line.
    pub fn line(&self, graph: &Graph, id: NodeId) -> String {
        let node = graph.node(id);
        let NodeOp::Op(op) = &node.op else {
            return format!("{}: {}", self.get(id), node.ty);
        };
        let mut line = format!("{}: {} = {}", self.get(id), node.ty, text::print(op));
        if !node.operands.is_empty() {
            line.push(' ');
            line.push_str(&self.list(&node.operands));
        }
        if node.loc != Loc::NONE {
            let width = line.chars().count();
            let _ = write!(line, "{}; {}", " ".repeat(40usize.saturating_sub(width).max(2)), node.loc);
        }
        line
    }
}

/// Prints the graph; see the module.
impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Names::new(self);
        let inputs: Vec<String> = self.inputs().iter().map(|i| self.print_input(&names, i)).collect();
        let line = inputs.join(", ");
        if line.len() <= 90 {
            write!(f, "graph @{}({line})", self.name)?;
        } else {
            write!(f, "graph @{}(\n  {}\n)", self.name, inputs.join(",\n  "))?;
        }
        if !self.params().is_empty() {
            let params: Vec<String> = self.params().iter().enumerate().map(|(k, d)| format!("${k}: {d}")).collect();
            write!(f, " params({})", params.join(", "))?;
        }
        f.write_str(" {\n")?;
        for id in self.ids() {
            if let NodeOp::Op(_) = self.node(id).op {
                writeln!(f, "  {}", names.line(self, id))?;
            }
        }
        if !self.outputs().is_empty() {
            writeln!(f, "  return {}", names.list(self.outputs()))?;
        }
        f.write_str("}\n")
    }
}

impl Graph {
    fn print_input(&self, names: &Names, input: &Input) -> String {
        let ty = self.node(input.node).ty;
        let mut out = format!("{}: {ty}", names.get(input.node));
        if let InputKind::Var { written_by } = input.kind {
            out.push_str(" var");
            if let Some(o) = written_by {
                let _ = write!(out, " -> out {o}");
            }
        }
        out.push_str(&layout(&input.layout));
        out
    }

    /// The graph in Graphviz's language.
    pub fn dot(&self) -> String {
        let names = Names::new(self);
        let escape = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"");
        let mut out = format!("digraph \"{}\" {{\n  node [shape=box, fontname=monospace];\n", escape(&self.name));
        for id in self.ids() {
            let node = self.node(id);
            let (what, style) = match &node.op {
                NodeOp::Input(_) => ("input".to_string(), ", style=filled"),
                NodeOp::Op(op) => (text::print(op), ""),
            };
            let label = escape(&format!("{} {what}", names.get(id)));
            let _ = writeln!(out, "  n{} [label=\"{label}\\n{}\"{style}];", id.0, node.ty);
            for (k, o) in node.operands.iter().enumerate() {
                let _ = writeln!(out, "  n{} -> n{} [label=\"{k}\"];", o.0, id.0);
            }
        }
        for (k, o) in self.outputs().iter().enumerate() {
            let _ = writeln!(out, "  out{k} [shape=ellipse];\n  n{} -> out{k};", o.0);
        }
        out.push_str("}\n");
        out
    }
}

/// ` strided [s, …] offset n`, or nothing for the usual layout.
pub(crate) fn layout(layout: &Layout) -> String {
    let usual = Layout::contiguous(layout.shape);
    let mut out = String::new();
    if layout.strides() != usual.strides() {
        let strides: Vec<String> = layout.strides().iter().map(|s| s.to_string()).collect();
        let _ = write!(out, " strided [{}]", strides.join(","));
    }
    if layout.offset != 0 {
        let _ = write!(out, " offset {}", layout.offset);
    }
    out
}
