//! A log of the calls made to the driver, NVRTC and cuBLASLt, with what they returned.
//!
//! Off unless somebody records; then a call costs one relaxed load more. A log is one for the process: whoever records
//! runs nothing else beside.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

static RECORDING: AtomicBool = AtomicBool::new(false);
static LOG: Mutex<Vec<(&str, u32)>> = Mutex::new(Vec::new());

/// Notes a call and its status.
#[inline]
pub(super) fn note(call: &'static str, status: u32) {
    if RECORDING.load(Relaxed) {
        LOG.lock().push((call, status));
    }
}

/// Starts an empty log.
pub fn record() {
    LOG.lock().clear();
    RECORDING.store(true, Relaxed);
}

/// Ends the log: each call's name and status (0: success), in the order in which they returned.
pub fn recorded() -> Vec<(&'static str, u32)> {
    RECORDING.store(false, Relaxed);
    std::mem::take(&mut *LOG.lock())
}
