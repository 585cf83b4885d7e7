//! A compiled kernel: what [`super::lower`] makes and [`super::drive`] runs.

use crate::backend::cpu::vm::code::{Code, Machine, Op, Step};
use crate::backend::cpu::vm::isa::Isa;
use crate::backend::cpu::vm::space::{Few, Role, Space};
use crate::kernel::{Combine, Instr, Ty};

pub(super) use crate::backend::cpu::vm::code::Kind;

/// An operand: an entry of the pointer table, a tile or one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operand {
    pub entry: u16,
    pub kind: Kind,
}

/// What the executor does not do: one call per tile.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Machine code from here to its end.
    Code(u32),
    /// An access that is not a contiguous tile, into a tile.
    Load { stream: u32, into: u16 },
    /// Elements at computed indices.
    Gather { stream: u32, index: Operand, stride: i64, len: i64, into: u16 },
    /// Coordinates along an axis, 64-bit.
    Index { role: Role, axis: u8, into: u16 },
    /// An instruction with 64-bit lanes.
    Long { instr: Instr, args: [Operand; 3], into: u16 },
    /// A store that is not a contiguous tile of 32-bit lanes.
    Store { stream: u32, value: Operand },
    /// The rows of a tile, each combined: the result in all lanes of its row.
    Fold { code: Code, from: u16, into: u16 },
    /// A 64-bit value into a reduction's partial results.
    Combine { combine: Combine, value: Operand, into: u16 },
}

/// A pointer that is set at each tile or loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Set otherwise: a parameter's word, an operand of a tree.
    Fixed,
    /// An access; `Unit` if true, else the same element for all lanes.
    Access(u32, bool),
    /// A periodic access, expanded into the frame.
    Periodic(u32),
    /// A value kept for later loops, at this offset of the frame; one tile per repetition.
    Kept(u32),
    /// The partial results of a reduction.
    Partial(u32),
}

/// A run of actions over tiles.
#[derive(Clone, Default, Debug)]
pub(super) struct Segment {
    pub actions: Vec<Action>,
    /// The whole segment is machine code from here: repetitions run inside the executor.
    pub direct: Option<u32>,
    /// Table entries to set before the first repetition.
    pub streams: Vec<(u16, Source)>,
    /// How they move between repetitions.
    pub steps: Vec<Step>,
}

impl Segment {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty() && self.direct.is_none()
    }
}

/// An access that repeats along the group, expanded once per launch so that tiles of it are contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Periodic {
    pub stream: u32,
    pub period: usize,
    /// Where in the frame, and how many elements.
    pub at: u32,
    pub len: usize,
}

/// Tiles that can be run in one go past any point of an expanded period.
pub(super) const PERIODIC_TILES: usize = 8;

/// A reduction.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub combine: Combine,
    /// The loop that feeds it.
    pub phase: usize,
    /// Partial results, one tile per lane that is in its own tile; the first one ends as the result.
    pub partial: u32,
    /// The table entry of the first partial tile: where users of the result read it.
    pub result: u16,
    /// Block results on their way up the tree, one tile each.
    pub stack: u32,
    /// Bytes of a lane.
    pub size: usize,
}

/// A kernel compiled for the vector machine; see [`Program::compile`] and [`Program::run`].
#[derive(Debug)]
pub struct Program {
    pub(super) isa: Isa,
    pub(super) machine: Machine,
    pub(super) space: Space,
    /// Points of the loops, of the group and of the inner loop.
    pub(super) points: [usize; 3],
    pub(super) code: Vec<Op>,
    /// Some code is too long for the fastest executor.
    pub(super) long: bool,
    /// Fixed values, 64 bits each.
    pub(super) consts: Vec<u64>,
    /// Offsets of tiles in the frame, in table order after the constants.
    pub(super) tiles: Vec<u32>,
    /// Entries of the table after constants and tiles.
    pub(super) pointers: usize,
    pub(super) frame_bytes: usize,
    /// Parameter pointers: entry and parameter.
    pub(super) params: Vec<(u16, u32)>,
    /// Truth-valued parameters: tile entry that gets the mask, and parameter.
    pub(super) bool_params: Vec<(u16, u32)>,
    /// Stage `p` computes what exists once per outer point before loop `p`.
    pub(super) stages: Vec<Segment>,
    pub(super) loops: Vec<Segment>,
    pub(super) periodics: Vec<Periodic>,
    pub(super) reductions: Vec<Reduction>,
    /// Snippets `x = x ∘ y` for the trees, by reduction (`u32::MAX` for 64-bit ones).
    pub(super) combines: Vec<u32>,
    /// The entries the snippets use for x and y.
    pub(super) pair: [u16; 2],
    pub(super) arg_slots: Vec<u32>,
    pub(super) param_words: Vec<u32>,
    pub(super) cost_ns: f64,
}

/// Bytes of a lane of this type in a tile.
pub(super) fn lane_bytes(ty: Ty) -> usize {
    if ty.is_wide() { 8 } else { 4 }
}

/// Product of lengths.
pub(super) fn count(lens: &Few<usize>) -> usize {
    lens.iter().product()
}
