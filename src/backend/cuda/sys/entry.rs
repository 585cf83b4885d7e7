//! What dispatch calls: enqueueing work, given the addresses of a plan's slots.

use crate::backend::dispatch::Call;

/// Work that a launch enqueues on the device's stream.
pub trait Enqueue: Send + Sync + 'static {
    /// Number of slots and of parameters of the plan it belongs to.
    fn sizes(&self) -> (usize, usize);
    /// Enqueues it. Failures are kept where the launch finds them.
    fn enqueue(&self, slots: &[u64], params: &[u64]);
}

/// The call of a script that enqueues `work`.
pub fn call<E: Enqueue>(symbol: &'static str, work: E) -> Call {
    // SAFETY: dispatch hands over one address per slot of the plan and one word per parameter, as `sizes` says, all of
    // them written before the first call. `enqueue` takes no memory for anything else, may run on any thread, and
    // the extern function does not unwind: a panic in it ends the process.
    unsafe { Call::new(symbol, entry::<E>, work) }
}

/// # Safety
/// `work` is alive; `slots` and `params` are as long as its sizes say.
unsafe extern "C" fn entry<E: Enqueue>(work: *const E, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the caller's promise. Addresses of the device are numbers to the host.
    let (work, slots, params) = unsafe {
        let work = &*work;
        let (s, p) = work.sizes();
        let words = |at: *const u64, n: usize| if n == 0 { &[][..] } else { std::slice::from_raw_parts(at, n) };
        (work, words(slots.cast(), s), words(params, p))
    };
    work.enqueue(slots, params);
    0
}
