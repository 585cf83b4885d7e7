//! What a step did, for its report: counters and notes with the user's lines.

use std::time::Duration;

use crate::base::Loc;

/// Notes kept of each kind; further ones are only counted.
const NOTES: usize = 32;

/// Counters and notes of one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub calls: u64,
    /// Calls that recorded a new path, wholly or from a divergence on.
    pub recorded: u64,
    /// Calls that only replayed.
    pub replayed: u64,
    /// Calls that ran plain eager, since paths did not repeat.
    pub eager: u64,
    /// Plans and paths that went to make room.
    pub evicted: u64,
    pub launches: u64,
    /// Events answered without running anything.
    pub shadowed: u64,
    pub compiles: u64,
    pub compile_time: Duration,
    pub divergences: Notes,
    pub reads: Notes,
    pub kept: Notes,
    pub copies: Notes,
    pub storms: Notes,
    /// Of the last call.
    pub last: Last,
}

/// Figures of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    /// All that was recorded: ops, `Var` reads and writes, host reads, `backward`s.
    pub events: u32,
    /// Tensor ops alone, gradients included.
    pub ops: u32,
    pub segments: u32,
    pub launches: u32,
    pub kernels: u32,
    pub in_place: u32,
    pub arena_bytes: usize,
    /// Read and written by the kernels of its launches.
    pub bytes: u64,
}

/// A bounded list of notes, the same line and text counted together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    pub entries: Vec<(Loc, String, u64)>,
    pub total: u64,
}

impl Notes {
    pub fn add(&mut self, loc: Loc, text: impl FnOnce() -> String) {
        self.total += 1;
        if let Some(e) = self.entries.iter_mut().find(|e| e.0 == loc) {
            e.2 += 1;
            return;
        }
        if self.entries.len() < NOTES {
            self.entries.push((loc, text(), 1));
        }
    }
}
