//! Indices out of range, found by kernels and told later.
//!
//! A kernel that finds one raises the device's flag, a word of device memory. Whatever may raise it (a replay, or an
//! eager op) ends with a small kernel that counts it, and notes its number in a log that the host can read if the flag was
//! up. So a launch need not wait: it gets a [`Ticket`], and after the next synchronisation the log tells which
//! tickets were raised. All of it is in stream order, so the device's count is the host's.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::cuda::compile::{Compiler, Kernel};
use crate::backend::cuda::pool::{Block, Pool};
use crate::backend::cuda::render::{Rendered, Stage};
use crate::backend::cuda::sys::context::{Context, Stream};
use crate::backend::cuda::sys::memory::{self, Address, Pinned};
use crate::backend::{Raised, Ticket};
use crate::base::Result;

/// Entries of the log; raised tickets beyond these between two readings are lost but for their number.
const LOG: usize = 255;

const SOURCE: &str = r#"
extern "C" __global__ void stepgraph_settle(unsigned int* flag, unsigned long long* count, unsigned long long* log) {
    const unsigned long long ticket = *count + 1;
    *count = ticket;
    if (*flag != 0) {
        const unsigned long long raised = log[0];
        log[1 + raised % 255] = ticket;
        log[0] = raised + 1;
        *flag = 0;
    }
}
"#;

/// The device's flag and its log.
pub struct Flags {
    kernel: Arc<Kernel>,
    /// The flag, and 8 bytes on the count.
    words: Block,
    log: Pinned,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    issued: Ticket,
    settled: Ticket,
    /// Entries of the log read so far.
    read: u64,
}

impl Flags {
    /// Compiles the kernel and takes the memory.
    pub fn new(compiler: &Compiler, context: &Arc<Context>, pool: &Arc<Pool>, stream: &Stream) -> Result<Flags> {
        let stage = Stage { entry: "stepgraph_settle".to_string(), grid: 1, threads: 1, shared_bytes: 0 };
        let rendered = Rendered { source: SOURCE.to_string(), stages: vec![stage], scratch_bytes: 0, flag: true };
        let kernel = compiler.kernel(&rendered, "settle")?;
        let words = pool.alloc(16)?;
        memory::clear(stream, words.address(), 16)?;
        let log = Pinned::new(context, LOG + 1)?;
        Ok(Flags { kernel, words, log, state: Mutex::default() })
    }

    /// The flag's address.
    pub fn address(&self) -> Address {
        self.words.address()
    }

    /// Takes the flag down after work failed that may have raised it: what comes next must not be blamed.
    pub fn lower(&self, stream: &Stream) {
        let _ = memory::clear(stream, self.address(), 4);
    }

    /// The kernel that ends what may raise the flag, and its arguments.
    pub fn settle(&self) -> (&Kernel, [u64; 3]) {
        (&self.kernel, [self.words.address(), self.words.address() + 8, self.log.device_address()])
    }

    /// The ticket of a launch that was just enqueued, under the device's lock.
    pub fn issue(&self) -> Ticket {
        let mut state = self.state.lock();
        state.issued += 1;
        state.issued
    }

    /// The last ticket so far, to be [`Flags::settle_to`] once the stream was waited for.
    pub fn issued(&self) -> Ticket {
        self.state.lock().issued
    }

    /// The stream was waited for after `ticket` was issued.
    pub fn settle_to(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        state.settled = state.settled.max(ticket);
    }

    /// Tickets raised since this was last called, as far as the stream was waited for.
    pub fn take_raised(&self) -> Raised {
        let mut state = self.state.lock();
        let total = self.log.read(0);
        let first = state.read.max(total.saturating_sub(LOG as u64));
        state.read = total;
        let tickets = (first..total).map(|k| self.log.read(1 + (k % LOG as u64) as usize)).collect();
        Raised { tickets, settled: state.settled }
    }
}
