//! Storms: when paths do not repeat, recording them is wasted. The step then runs plain eager for a while.
//!
//! Calls that run eagerly are still hashed; a hash met a second time means that paths do repeat, and ends it.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use crate::base::{Scalar, Type};
use crate::op::Op;

/// New paths among the last `WINDOW` calls that make a storm.
const NEW_PATHS: u32 = 6;
const WINDOW: u32 = 8;
/// Eager calls after the first storm; doubled after each one that no repetition ended.
const FIRST: u32 = 16;
const LONGEST: u32 = 1024;
/// Hashes remembered.
const HASHES: usize = 4096;

/// The state of the detector.
pub(crate) struct Storm {
    /// One bit a call, the last one lowest: it recorded a new path.
    recent: u32,
    calls: u32,
    left: u32,
    next: u32,
    seen: FxHashMap<u64, u32>,
    hasher: FxHasher,
}

impl Default for Storm {
    fn default() -> Self {
        Storm { recent: 0, calls: 0, left: 0, next: FIRST, seen: FxHashMap::default(), hasher: FxHasher::default() }
    }
}

impl Storm {
    /// Whether the next call runs eagerly.
    pub fn active(&self) -> bool {
        self.left > 0
    }

    /// A recorded or replayed call has ended. Gives the number of eager calls that follow, when it starts a storm.
    pub fn ended(&mut self, new_path: bool) -> Option<u32> {
        self.recent = (self.recent << 1 | new_path as u32) & ((1 << WINDOW) - 1);
        self.calls += 1;
        if self.calls < WINDOW || self.recent.count_ones() < NEW_PATHS {
            return None;
        }
        self.left = self.next;
        self.next = (self.next * 2).min(LONGEST);
        (self.recent, self.calls) = (0, 0);
        Some(self.left)
    }

    /// An op of an eager call.
    pub fn op(&mut self, op: &Op, operands: impl Iterator<Item = Type>) {
        let none: SmallVec<[Scalar; 2]> =
            op.rules().scalars().iter().map(|s| Scalar { bits: 0, origin: Default::default(), ..*s }).collect();
        op.rules().with_scalars(&none).hash(&mut self.hasher);
        operands.for_each(|t| t.hash(&mut self.hasher));
    }

    /// Another event of an eager call.
    pub fn event(&mut self, kind: u8, ty: Type) {
        (kind, ty).hash(&mut self.hasher);
    }

    /// An eager call has ended. True when its path was met before: tracing starts again.
    pub fn eager_ended(&mut self) -> bool {
        let hash = std::mem::take(&mut self.hasher).finish();
        if self.seen.len() >= HASHES {
            self.seen.clear();
        }
        let count = self.seen.entry(hash).or_insert(0);
        *count += 1;
        self.left = self.left.saturating_sub(1);
        if *count >= 2 {
            (self.left, self.next) = (0, FIRST);
            return true;
        }
        false
    }
}
