//! Groups as text, for explanations and dumps.

use std::fmt::Write;

use crate::ir::Graph;
use crate::ir::print::Names;
use crate::pass::fuse::Fusion;

impl Fusion {
    /// One paragraph per group: its space, its nodes, which of them are stored (`>`).
    pub fn text(&self, graph: &Graph) -> String {
        let names = Names::new(graph);
        let mut out = String::new();
        for (g, group) in self.groups.iter().enumerate() {
            let _ = match (group.library, group.space.reduced) {
                (true, _) => write!(out, "{g}: library call"),
                (false, 0) => write!(out, "{g}: kernel over {}", group.space.domain),
                (false, mask) => {
                    let axes: Vec<usize> = (0..8).filter(|a| mask >> a & 1 == 1).collect();
                    write!(out, "{g}: kernel over {}, reducing {axes:?}", group.space.domain)
                }
            };
            if !group.after.is_empty() {
                let _ = write!(out, ", after {:?}", group.after);
            }
            out.push('\n');
            for &v in &group.nodes {
                let mark = if group.stored.contains(&v) { '>' } else { ' ' };
                let _ = writeln!(out, " {mark} {}", names.line(graph, v));
            }
        }
        out
    }
}
