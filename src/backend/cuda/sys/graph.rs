//! Graphs: explicit nodes, captured children, instances.

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys as cu;

use super::context::{Context, Stream};
use super::module::{Function, Grid, pointers};
use super::{Called, call};

/// A graph under construction.
#[derive(Debug)]
pub struct Graph {
    raw: cu::CUgraph,
    context: Arc<Context>,
}

/// A node of the graph that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Node(cu::CUgraphNode);

impl Graph {
    /// An empty graph.
    pub fn new(context: &Arc<Context>) -> Called<Graph> {
        let mut raw = null_mut();
        // SAFETY: the pointer is to a local, the context is current.
        unsafe { call!(cuGraphCreate(&mut raw, 0))? };
        Ok(Graph { raw, context: context.clone() })
    }

    /// What `enqueue` puts on `stream`, as a graph; nothing of it runs. No other thread may use the stream meanwhile.
    pub fn capture<E: From<super::Failure>>(
        context: &Arc<Context>,
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mode = cu::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and the callers' own.
        unsafe { call!(cuStreamBeginCapture_v2(stream.raw, mode))? };
        let enqueued = enqueue();
        let mut raw = null_mut();
        // SAFETY: the capture was begun above, on this thread.
        let ended = unsafe { call!(cuStreamEndCapture(stream.raw, &mut raw)) };
        if ended.is_err() && raw.is_null() {
            // The stream must not stay in a capture that failed to end: the next one could not begin.
            // SAFETY: as above; refused if the capture has ended after all.
            let _ = unsafe { call!(cuStreamEndCapture(stream.raw, &mut raw)) };
        }
        let graph = Graph { raw, context: context.clone() };
        enqueued?;
        ended?;
        Ok(graph)
    }

    /// Adds a kernel that runs after `after`. `args` as in [`Function::launch`]; they are copied.
    pub fn kernel(&mut self, after: &[Node], function: &Function, grid: Grid, args: &[u64]) -> Called<Node> {
        let mut pointers = pointers(args);
        // SAFETY: null pointers and zeros are valid for every field.
        let mut params: cu::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        params.func = function.raw;
        (params.gridDimX, params.gridDimY, params.gridDimZ) = (grid.blocks, 1, 1);
        (params.blockDimX, params.blockDimY, params.blockDimZ) = (grid.threads, 1, 1);
        params.sharedMemBytes = grid.shared_bytes;
        params.kernelParams = pointers.as_mut_ptr();
        let mut node = null_mut();
        // SAFETY: a `Node` is a driver's handle, so the slice is an array of them; the parameters are copied by the call.
        unsafe {
            call!(cuGraphAddKernelNode_v2(&mut node, self.raw, after.as_ptr().cast(), after.len(), &params))?;
        }
        Ok(Node(node))
    }

    /// Adds a copy of `child` that runs after `after`.
    pub fn child(&mut self, after: &[Node], child: &Graph) -> Called<Node> {
        let mut node = null_mut();
        // SAFETY: as above; the child is cloned by the call.
        unsafe {
            call!(cuGraphAddChildGraphNode(&mut node, self.raw, after.as_ptr().cast(), after.len(), child.raw))?;
        }
        Ok(Node(node))
    }

    /// Adds a node that runs nothing, after `after`.
    pub fn empty(&mut self, after: &[Node]) -> Called<Node> {
        let mut node = null_mut();
        // SAFETY: as above.
        unsafe {
            call!(cuGraphAddEmptyNode(&mut node, self.raw, after.as_ptr().cast(), after.len()))?;
        }
        Ok(Node(node))
    }

    /// Makes the graph executable and sends it to the device.
    pub fn instantiate(&self, stream: &Stream) -> Called<GraphExec> {
        let mut raw = null_mut();
        // SAFETY: the graph is alive, the pointer is to a local.
        unsafe { call!(cuGraphInstantiateWithFlags(&mut raw, self.raw, 0))? };
        let exec = GraphExec { raw, context: self.context.clone() };
        // SAFETY: both are alive.
        unsafe { call!(cuGraphUpload(exec.raw, stream.raw))? };
        Ok(exec)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            let _ = self.context.enter();
            // SAFETY: made above, by creation or capture.
            let _ = unsafe { call!(cuGraphDestroy(self.raw)) };
        }
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct GraphExec {
    raw: cu::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: launches are made under the device's lock; the handle itself is tied to no thread.
unsafe impl Send for GraphExec {}
// SAFETY: as above.
unsafe impl Sync for GraphExec {}

impl GraphExec {
    /// Enqueues one run. What its nodes point to must live until the run has ended: its owner's duty.
    #[inline]
    pub fn launch(&self, stream: &Stream) -> Called<()> {
        // SAFETY: both are alive.
        unsafe { call!(cuGraphLaunch(self.raw, stream.raw)) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `instantiate`; the driver keeps it until runs under way have ended.
        let _ = unsafe { call!(cuGraphExecDestroy(self.raw)) };
    }
}
