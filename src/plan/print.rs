//! The text form of a plan; [`crate::plan::parse`] reads it back.
//!
//! ```text
//! plan @step arena 448 params($0: f32) {
//!   input 0: f32[100] var, 400 bytes
//!   output 0: f32[100], 400 bytes, may overwrite input 0
//!   output 1: f32[10] offset 90, view of output 0
//!   slot %0: input 0, 400 bytes
//!   slot %1: arena 0, 400 bytes
//!   slot %2: output 0, 400 bytes
//!   step 0 "neg" (%0, %1)                 ; mlp.rs:41
//!     kernel @k(…) domain [100] { … }
//!   step 1 "matmul" (%1, %1, %2) after 0
//!     matmul f32 10 x 10 x 10, a [10,1], b [10,1], c [10,1] + 0
//! }
//! ```
//!
//! A scalar of a user's kernel is a parameter (`f32 $0`) or the bits of its lane (`f32 #1065353216`).
//! A matrix operand gives its strides (batch axes, rows, columns), then its offset; one of a call along an axis those before the
//! axis, along it and after it. Places are comments.

use std::fmt::{self, Display, Formatter, Write};

use crate::base::Scalar;
use crate::base::scalar::Origin;
use crate::ir::print::layout;
use crate::kernel::library::{Argsort, Block, Library, Lines, Matmul, Operand, Scan, ScatterAdd, ScatterIndex};
use crate::plan::{OutputStorage, Plan, SlotKind, Step, StepKind};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "plan @{} arena {}", self.name, self.arena_bytes)?;
        if !self.params.is_empty() {
            let params: Vec<String> = self.params.iter().enumerate().map(|(k, d)| format!("${k}: {d}")).collect();
            write!(f, " params({})", params.join(", "))?;
        }
        f.write_str(" {\n")?;
        for (i, input) in self.inputs.iter().enumerate() {
            let var = if input.var { " var" } else { "" };
            writeln!(f, "  input {i}: {}{var}{}, {} bytes", input.ty, layout(&input.layout), input.bytes)?;
        }
        for (o, output) in self.outputs.iter().enumerate() {
            write!(f, "  output {o}: {}{}, ", output.ty, layout(&output.layout))?;
            match output.storage {
                OutputStorage::Own { bytes } => write!(f, "{bytes} bytes")?,
                OutputStorage::Input(i) => write!(f, "view of input {i}")?,
                OutputStorage::Output(p) => write!(f, "view of output {p}")?,
            }
            match output.in_place {
                Some(i) => writeln!(f, ", may overwrite input {i}")?,
                None => f.write_str("\n")?,
            }
        }
        for (s, slot) in self.slots.iter().enumerate() {
            let (kind, number) = match slot.kind {
                SlotKind::Arena { offset } => ("arena", offset),
                SlotKind::Input(i) => ("input", i as usize),
                SlotKind::Output(o) => ("output", o as usize),
            };
            writeln!(f, "  slot %{s}: {kind} {number}, {} bytes", slot.bytes)?;
        }
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); self.steps.len()];
        for &(from, to) in &self.edges {
            if let Some(list) = after.get_mut(to as usize) {
                list.push(from);
            }
        }
        for (t, (step, after)) in self.steps.iter().zip(&mut after).enumerate() {
            after.sort_unstable();
            print_step(f, t, step, after)?;
        }
        f.write_str("}\n")
    }
}

fn print_step(f: &mut Formatter<'_>, t: usize, step: &Step, after: &[u32]) -> fmt::Result {
    let label: String = step.label.chars().map(|c| if c == '"' || c == '\n' { '\'' } else { c }).collect();
    let mut line = format!("  step {t} \"{label}\" ({})", list(&step.args, "%"));
    if !step.params.is_empty() {
        let _ = write!(line, " params({})", list(&step.params, "$"));
    }
    if !after.is_empty() {
        let _ = write!(line, " after {}", list(after, ""));
    }
    if !step.locs.is_empty() {
        let locs: Vec<String> = step.locs.iter().map(|l| l.to_string()).collect();
        let _ = write!(line, "{:1$}; {2}", "", 40usize.saturating_sub(line.chars().count()).max(2), locs.join(", "));
    }
    writeln!(f, "{line}")?;
    let text = match &step.kind {
        StepKind::Kernel(kernel) => kernel.to_string(),
        StepKind::Library(library) => print_library(library),
    };
    text.lines().try_for_each(|line| writeln!(f, "    {line}"))
}

fn list<T: Display>(items: &[T], sigil: &str) -> String {
    items.iter().map(|i| format!("{sigil}{i}")).collect::<Vec<_>>().join(", ")
}

fn numbers<T: Display>(items: &[T]) -> String {
    items.iter().map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}

fn lines(l: &Lines) -> String {
    let offset = if l.offset == 0 { String::new() } else { format!(" + {}", l.offset) };
    format!("[{}]{offset}", numbers(&l.strides))
}

fn print_library(library: &Library) -> String {
    match library {
        Library::Matmul(Matmul { dtype, batch, m, k, n, a, b, c }) => {
            let mut out = format!("matmul {dtype} ");
            if !batch.is_empty() {
                let _ = write!(out, "batch [{}] ", numbers(batch));
            }
            let _ = write!(out, "{m} x {k} x {n}");
            for (name, Operand { offset, batch, row, col }) in [("a", a), ("b", b), ("c", c)] {
                let strides: Vec<i64> = batch.iter().chain([row, col]).copied().collect();
                let _ = write!(out, ", {name} [{}]", numbers(&strides));
                if *offset != 0 {
                    let _ = write!(out, " + {offset}");
                }
            }
            out
        }
        Library::ScatterAdd(ScatterAdd { dtype, outer, count, len, inner, index, src }) => format!(
            "scatter_add {dtype} outer {outer} count {count} len {len} inner {inner}, index [{}], src [{}]",
            numbers(index),
            numbers(src)
        ),
        Library::ScatterIndex(ScatterIndex { dims, len, index }) => {
            format!("scatter_index [{}] len {len}, {}", numbers(dims), lines(index))
        }
        Library::Scan(Scan { dtype, kind, reverse, dims, inputs }) => {
            let inputs: Vec<String> = inputs.iter().map(lines).collect();
            let backward = if *reverse { " reverse" } else { "" };
            format!("scan {} {dtype} [{}]{backward}, {}", kind.name(), numbers(dims), inputs.join(", "))
        }
        Library::Custom(c) => {
            let block = |b: &Block| {
                let offset = if b.offset == 0 { String::new() } else { format!(" + {}", b.offset) };
                format!("{}{}{offset}", b.dtype, b.shape)
            };
            let inputs: Vec<String> = c.inputs.iter().map(block).collect();
            let mut out = format!("custom {}({}) -> {}", c.kernel.0.name, inputs.join(", "), block(&c.output));
            if !c.scalars.is_empty() {
                let scalar = |s: &Scalar| match s.origin {
                    Origin::Param(k) => format!("{} ${k}", s.dtype),
                    _ => format!("{} #{}", s.dtype, s.bits),
                };
                let scalars: Vec<String> = c.scalars.iter().map(scalar).collect();
                let _ = write!(out, " scalars [{}]", scalars.join(", "));
            }
            out
        }
        Library::Argsort(Argsort { dtype, descending, dims, input }) => {
            let down = if *descending { " descending" } else { "" };
            format!("argsort {dtype} [{}]{down}, {}", numbers(dims), lines(input))
        }
    }
}
