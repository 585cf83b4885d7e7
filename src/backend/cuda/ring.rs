//! Parameter blocks on their way to the device: a ring of pinned slots.
//!
//! A block is written into a pinned slot and copied from there when the stream gets to it. The slot is written again only
//! once an event behind its copy was reached; with all slots under way the launch waits (back-pressure, counted).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::backend::cuda::sys::context::{Context, Event, Stream};
use crate::backend::cuda::sys::memory::{Address, Pinned};
use crate::base::Result;

/// Copies under way at most.
const SLOTS: usize = 16;

/// The slots.
pub struct Ring {
    context: Arc<Context>,
    state: Mutex<State>,
    waits: AtomicU64,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    /// Words that every slot has room for.
    room: usize,
    next: usize,
}

struct Slot {
    pinned: Pinned,
    copied: Event,
}

impl Ring {
    /// A ring without slots: they are made when they are first needed.
    pub fn new(context: &Arc<Context>) -> Ring {
        Ring { context: context.clone(), state: Mutex::default(), waits: AtomicU64::new(0) }
    }

    /// Enqueues the copy of `words` to the device.
    pub fn send(&self, words: &[u64], stream: &Stream, to: Address) -> Result<()> {
        let mut state = self.state.lock();
        if state.room < words.len() {
            self.grow(&mut state, words.len())?;
        }
        let State { slots, next, .. } = &mut *state;
        let slot = &mut slots[*next % SLOTS];
        if !slot.copied.reached()? {
            self.waits.fetch_add(1, Relaxed);
            slot.copied.wait()?;
        }
        slot.pinned.send(words, stream, to)?;
        if let Err(e) = slot.copied.record(stream) {
            // The next user of the slot must not believe that this copy is done: it has to be.
            let _ = stream.synchronize();
            return Err(e.into());
        }
        *next += 1;
        Ok(())
    }

    /// Makes all slots, or larger ones, so that only a plan's first launch may have to: pinning memory takes the driver long.
    fn grow(&self, state: &mut State, words: usize) -> Result<()> {
        let room = words.next_power_of_two().max(64);
        for i in 0..SLOTS {
            match state.slots.get_mut(i) {
                None => {
                    let (pinned, copied) = (Pinned::new(&self.context, room)?, Event::new(&self.context, false)?);
                    state.slots.push(Slot { pinned, copied });
                }
                Some(slot) if slot.pinned.words() < room => {
                    slot.copied.wait()?;
                    slot.pinned = Pinned::new(&self.context, room)?;
                }
                Some(_) => {}
            }
        }
        state.room = room;
        Ok(())
    }

    /// How often a launch waited for a slot.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }
}
