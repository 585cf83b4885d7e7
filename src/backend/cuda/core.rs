//! What a CUDA backend and everything compiled for it share: the context, the stream, memory, the compiler.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard};

use crate::backend::Counters;
use crate::backend::cuda::compile::Compiler;
use crate::backend::cuda::flags::Flags;
use crate::backend::cuda::pool::{Block, Pool};
use crate::backend::cuda::ring::Ring;
use crate::backend::cuda::sys::blas::{Algorithm, Blas, Product};
use crate::backend::cuda::sys::context::{Context, Facts, Stream};
use crate::base::{Error, ErrorKind, Result};

/// One device in use.
///
/// The lock `queue` orders all work: addresses of tensors are read, and work on them is enqueued, while it is held. Fields are
/// dropped in order: the context, retained by everything above it, last.
pub struct Core {
    pub name: String,
    pub facts: Facts,
    queue: Mutex<()>,
    /// What a call inside dispatch failed with; the launch that made it takes it.
    failure: Mutex<Option<Error>>,
    lost: OnceLock<Error>,
    pub ring: Ring,
    pub flags: Flags,
    pub compiler: Compiler,
    pub blas: Blas,
    algorithms: Mutex<HashMap<Product, Algorithm>>,
    /// The arena that plans compiled from now on share, unless they need a larger one.
    arena: Mutex<Option<(usize, std::sync::Weak<Block>)>>,
    pub tf32: bool,
    pub counters: Counters,
    pub moves: AtomicU64,
    pub pool: Arc<Pool>,
    /// For capturing library calls.
    pub side: Stream,
    pub stream: Arc<Stream>,
    pub context: Arc<Context>,
}

impl Drop for Core {
    fn drop(&mut self) {
        // Modules and memory go now: nothing may use them any more.
        let _ = self.context.enter();
        let _ = self.stream.synchronize();
    }
}

impl Core {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        name: String,
        facts: Facts,
        context: Arc<Context>,
        stream: Stream,
        compiler: Compiler,
        limit: Option<usize>,
        tf32: bool,
    ) -> Result<Core> {
        let stream = Arc::new(stream);
        context.keep_freed_memory()?;
        let pool = Pool::new(context.clone(), stream.clone(), limit);
        let flags = Flags::new(&compiler, &context, &pool, &stream)?;
        Ok(Core {
            name,
            facts,
            queue: Mutex::new(()),
            failure: Mutex::new(None),
            lost: OnceLock::new(),
            ring: Ring::new(&context),
            flags,
            compiler,
            blas: Blas::new()?,
            algorithms: Mutex::default(),
            arena: Mutex::new(None),
            tf32,
            counters: Counters::default(),
            moves: AtomicU64::new(0),
            pool,
            side: Stream::new(&context)?,
            stream,
            context,
        })
    }

    /// Runs `f` with the queue locked and the context current. An error that the device does not survive is told at
    /// every later call.
    pub fn locked<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _queue: MutexGuard<'_, ()> = self.queue.lock();
        self.entered(f)
    }

    /// As [`Core::locked`], for what enqueues nothing.
    pub fn entered<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(e) = self.lost.get() {
            return Err(e.clone());
        }
        let result = self.context.enter().map_err(Error::from).and_then(|()| f());
        result.inspect_err(|e| {
            if matches!(e.kind(), ErrorKind::DeviceLost { .. }) {
                tracing::error!(device = self.name, error = %e, "the device is lost");
                let _ = self.lost.set(e.clone());
            }
        })
    }

    /// Keeps an error of a call inside dispatch, the first one.
    pub fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    /// Whether a call inside dispatch failed: later ones have nothing to work on.
    pub fn failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// What a call inside dispatch failed with.
    pub fn take_failure(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }

    /// The library's algorithm for a product, kept per process and device.
    pub fn algorithm(&self, product: &Product) -> Result<Algorithm> {
        let mut algorithms = self.algorithms.lock();
        if let Some(a) = algorithms.get(product) {
            return Ok(a.clone());
        }
        let algorithm = self.blas.algorithm(product)?;
        algorithms.insert(*product, algorithm.clone());
        Ok(algorithm)
    }

    /// An arena of at least `bytes` bytes, shared by plans: launches follow each other on the stream.
    pub fn arena(&self, bytes: usize) -> Result<Option<Arc<Block>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut arena = self.arena.lock();
        if let Some((size, block)) = &*arena
            && *size >= bytes
            && let Some(block) = block.upgrade()
        {
            return Ok(Some(block));
        }
        let block = Arc::new(self.pool.alloc(bytes)?);
        *arena = Some((bytes, Arc::downgrade(&block)));
        Ok(Some(block))
    }
}
