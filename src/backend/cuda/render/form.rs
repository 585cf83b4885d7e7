//! What the forms of a kernel share: entries, grids, loops.

use crate::backend::cuda::render::Stage;
use crate::backend::cuda::render::body::Body;
use crate::backend::cuda::render::text::{Program, Source};

/// Sizes at which another form is chosen; results depend on none.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Most thread blocks of a launch.
    pub most_blocks: usize,
    /// From how many points on a thread computes several.
    pub vector_from: usize,
    /// Thread blocks that fill a device: with fewer rows, rows are split.
    pub fill: usize,
}

impl Tuning {
    pub const DEFAULT: Tuning = Tuning { most_blocks: i32::MAX as usize, vector_from: 1 << 14, fill: 256 };
}

/// A program in the making, with the names of its entries.
pub struct Form {
    pub program: Program,
    name: String,
    pub tuning: Tuning,
}

/// A name that a profiler shows, from what a step computes.
fn identifier(label: &str) -> String {
    let mut name = String::from("sg");
    for word in label.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| !w.is_empty()) {
        if name.len() + word.len() > 60 {
            name.push_str("_etc");
            break;
        }
        name.push('_');
        name.push_str(word);
    }
    name
}

impl Form {
    pub fn new(label: &str, tuning: Tuning) -> Form {
        Form { program: Program::default(), name: identifier(label), tuning }
    }

    /// The name of the next entry.
    pub fn entry(&self) -> String {
        match self.program.stages.len() {
            0 => self.name.clone(),
            n => format!("{}_{}", self.name, n + 1),
        }
    }

    /// Adds a finished entry, launched with `blocks` blocks or the most there may be.
    pub fn stage(&mut self, entry: Source, name: String, blocks: usize, threads: u32) {
        if !self.program.entries.is_empty() {
            self.program.entries.push('\n');
        }
        self.program.entries.push_str(&entry.text);
        let grid = blocks.min(self.tuning.most_blocks) as u32;
        self.program.stages.push(Stage { entry: name, grid, threads, shared_bytes: 0 });
    }

    /// Opens the work of one thread for each of `count`: `name` is its number.
    pub fn each(&self, out: &mut Source, body: &Body, name: &str, count: usize, threads: u32) {
        let t = body.index_type();
        let count_text = body.number(count as u64);
        let first = format!("({t})blockIdx.x * {threads}u + threadIdx.x");
        if count.div_ceil(threads as usize) <= self.tuning.most_blocks {
            out.line(format!("const {t} {name} = {first};"));
            out.open(format!("if ({name} < {count_text})"));
        } else {
            let step = format!("({t})gridDim.x * {threads}u");
            out.open(format!("for ({t} {name} = {first}; {name} < {count_text}; {name} += {step})"));
        }
    }

    /// Opens the work of one thread block for each of `count`.
    pub fn each_block(&self, out: &mut Source, body: &Body, name: &str, count: usize) {
        let t = body.index_type();
        if count <= self.tuning.most_blocks {
            out.open("");
            out.line(format!("const {t} {name} = blockIdx.x;"));
        } else {
            let count = body.number(count as u64);
            out.open(format!("for ({t} {name} = blockIdx.x; {name} < {count}; {name} += gridDim.x)"));
        }
    }
}
