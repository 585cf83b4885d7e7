//! The interpreting dispatcher: a loop over a [`Script`].

use super::script::{Action, Script};
use super::{DONE, Frame, MISFIT, NO_MEMORY};
use crate::plan::SlotKind;

/// Runs the script; the meaning that compiled code must match. `after` hears of each call that has returned.
///
/// # Safety
/// The frame's pointers must be valid as its fields say, and the arena for the plan's arena bytes.
pub(super) unsafe fn run(script: &Script, frame: &mut Frame, mut after: impl FnMut(usize)) -> u32 {
    // SAFETY: the frame holds one entry per input, parameter and slot; the calls' own condition is
    // met once the guards hold, since the plan was checked.
    unsafe {
        for i in 0..script.inputs.len() {
            if !script.fits(i, &*frame.bound.add(i)) {
                return MISFIT;
            }
        }
        for &(word, max) in &script.bounds {
            if *frame.params.add(word as usize) > max {
                return MISFIT;
            }
        }
        for (i, slot) in script.slots.iter().enumerate() {
            let address = match *slot {
                SlotKind::Arena { offset } => frame.arena.wrapping_add(offset),
                SlotKind::Input(n) => (*frame.bound.add(n as usize)).address,
                SlotKind::Output(_) => continue,
            };
            *frame.slots.add(i) = address;
        }
        for (o, output) in script.outputs.iter().enumerate() {
            let input = output.in_place.map(|i| &*frame.bound.add(i as usize));
            let address = match input {
                Some(bound) if bound.exclusive != 0 => bound.address,
                _ => (frame.alloc)(frame.context, o as u32),
            };
            if address.is_null() {
                return NO_MEMORY;
            }
            for &slot in &output.slots {
                *frame.slots.add(slot as usize) = address;
            }
        }
        let mut flags = 0;
        for action in &script.actions {
            match *action {
                Action::Call(c) => {
                    let call = &script.calls[c as usize];
                    flags |= (call.entry)(call.descriptor, frame.slots, frame.params);
                    after(c as usize);
                }
                Action::Spare(o) => {
                    let output = &script.outputs[o as usize];
                    let exclusive = output.in_place.is_some_and(|i| (*frame.bound.add(i as usize)).exclusive != 0);
                    if flags == 0 || !exclusive {
                        continue;
                    }
                    let address = (frame.alloc)(frame.context, o);
                    if address.is_null() {
                        return NO_MEMORY;
                    }
                    for &slot in &output.slots {
                        *frame.slots.add(slot as usize) = address;
                    }
                }
            }
        }
        frame.flags = flags;
    }
    DONE
}
