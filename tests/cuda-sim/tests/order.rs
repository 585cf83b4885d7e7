//! Streams, events and graphs: what is not ordered runs in any order, what is ordered does not.

mod abi;

use abi::*;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// `x = a * x + b` of one element: the result tells the order.
const STEP: &str = r#"extern "C" __global__ void step(float* x, float a, float b) { *x = a * *x + b; }
extern "C" __global__ void sum(const float* x, const float* y, float* z) { *z = *x + *y; }"#;

#[repr(C)]
struct KernelNode {
    function: Ptr,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *mut Ptr,
    extra: *mut Ptr,
    kern: Ptr,
    ctx: Ptr,
}

fn kernel_node(graph: Ptr, deps: &[Ptr], function: Ptr, params: &mut [Ptr]) -> Result<Ptr, i32> {
    let node_params = KernelNode {
        function,
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        params: params.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let mut node: Ptr = null_mut();
    match call!(cuGraphAddKernelNode_v2(&mut node, graph, deps.as_ptr(), deps.len(), &raw const node_params)) {
        0 => Ok(node),
        code => Err(code),
    }
}

fn graph() -> Ptr {
    let mut graph: Ptr = null_mut();
    assert_eq!(call!(cuGraphCreate(&mut graph, 0u32)), 0);
    graph
}

fn instantiate(graph: Ptr) -> Ptr {
    let mut exec: Ptr = null_mut();
    assert_eq!(call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0u64)), 0);
    exec
}

#[test]
fn a_diamond_with_all_its_edges_gives_one_result_and_without_one_several() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(STEP);
    let (step, sum) = (module.function("step"), module.function("sum"));
    let stream = stream(false);
    let (two, one, three) = (2f32, 1f32, 3f32);
    for (dropped, results) in [(-1, 1), (0, 2), (1, 2), (2, 2), (3, 2)] {
        let mut seen = BTreeSet::new();
        for seed in 0..40 {
            cuda_sim::set_order_seed(seed);
            let x = Buffer::of(&[1f32, 1.0, 1.0]);
            let (a, b, c) = (x.at, x.at + 4, x.at + 8);
            let graph = graph();
            cuda_sim::drop_edge(dropped);
            // a, then b and c from it, in two branches, then a again.
            let top = kernel_node(graph, &[], step, &mut params!(a, two, one)).unwrap();
            let left = kernel_node(graph, &[top], sum, &mut params!(a, b, b)).unwrap();
            let right = kernel_node(graph, &[top], sum, &mut params!(a, c, c)).unwrap();
            kernel_node(graph, &[left, right], step, &mut params!(a, three, one)).unwrap();
            let exec = instantiate(graph);
            assert_eq!(call!(cuGraphDestroy(graph)), 0);
            assert_eq!(cuda_sim::edges_seen(), 4);
            assert_eq!(call!(cuGraphLaunch(exec, stream)), 0);
            assert_eq!(call!(cuStreamSynchronize(stream)), 0);
            seen.insert(format!("{:?}", x.read::<f32>()));
            assert_eq!(call!(cuGraphExecDestroy(exec)), 0);
        }
        assert!(seen.len() >= results, "edge {dropped}: {seen:?}");
        if dropped < 0 {
            assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["[10.0, 4.0, 4.0]"]);
        }
    }
    cuda_sim::drop_edge(-1);
    call!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_graph_is_described_and_its_dependencies_are_checked() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(STEP);
    let step = module.function("step");
    let x = Buffer::of(&[1f32]);
    let one = 1f32;
    let (inner, outer) = (graph(), graph());
    let foreign = kernel_node(inner, &[], step, &mut params!(x.at, one, one)).unwrap();
    let mut empty: Ptr = null_mut();
    assert_eq!(call!(cuGraphAddEmptyNode(&mut empty, outer, null::<Ptr>(), 0usize)), 0);
    let mut child: Ptr = null_mut();
    assert_eq!(call!(cuGraphAddChildGraphNode(&mut child, outer, [empty].as_ptr(), 1usize, inner)), 0);
    kernel_node(outer, &[empty, child], step, &mut params!(x.at, one, one)).unwrap();
    // A node of another graph; a node twice.
    assert_eq!(kernel_node(outer, &[foreign], step, &mut params!(x.at, one, one)), Err(1));
    assert_eq!(kernel_node(outer, &[empty, empty], step, &mut params!(x.at, one, one)), Err(1));
    let exec = instantiate(outer);
    assert_eq!(cuda_sim::graph_edges(), [(0, 1), (0, 2), (1, 2)]);
    let nodes = cuda_sim::last_graph();
    assert_eq!(nodes.iter().map(|n| n.kind.as_str()).collect::<Vec<_>>(), ["empty", "child", "kernel"]);
    assert_eq!(nodes[1].inner[0].name.as_deref(), Some("step"));
    for _ in 0..3 {
        assert_eq!(call!(cuGraphLaunch(exec, null_mut::<c_void>())), 0);
    }
    assert_eq!(x.read::<f32>(), [7.0]);
    // Destroyed, it is none.
    assert_eq!(call!(cuGraphExecDestroy(exec)), 0);
    assert_eq!(call!(cuGraphLaunch(exec, null_mut::<c_void>())), 1);
    assert_eq!(call!(cuGraphDestroy(inner)), 0);
    assert_eq!(call!(cuGraphDestroy(outer)), 0);
    assert_eq!(call!(cuGraphDestroy(outer)), 1);
}

#[test]
fn streams_need_events_between_them() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(STEP);
    let step = module.function("step");
    let (s, t) = (stream(false), stream(false));
    let mut event: Ptr = null_mut();
    assert_eq!(call!(cuEventCreate(&mut event, 2u32)), 0);
    let (two, one, three) = (2f32, 1f32, 3f32);
    for (ordered, results) in [(true, 1), (false, 2)] {
        let mut seen = BTreeSet::new();
        for seed in 0..40 {
            cuda_sim::set_order_seed(seed);
            let x = Buffer::of(&[1f32]);
            assert_eq!(launch(step, 1, 1, 0, s, &mut params!(x.at, two, one)), 0);
            if ordered {
                assert_eq!(call!(cuEventRecord(event, s)), 0);
                assert_eq!(call!(cuStreamWaitEvent(t, event, 0u32)), 0);
            }
            assert_eq!(launch(step, 1, 1, 0, t, &mut params!(x.at, three, one)), 0);
            assert_eq!(call!(cuStreamSynchronize(t)), 0);
            assert_eq!(call!(cuStreamSynchronize(s)), 0);
            seen.insert(x.read::<f32>()[0] as i64);
        }
        assert_eq!(seen.len(), results, "{seen:?}");
        assert!(seen.contains(&10));
    }
    call!(cuEventDestroy_v2(event));
    call!(cuStreamDestroy_v2(s));
    call!(cuStreamDestroy_v2(t));
}

#[test]
fn nothing_runs_before_somebody_waits() {
    let Some(_turn) = sim() else { return };
    let s = stream(false);
    let mut device = 0u64;
    assert_eq!(call!(cuMemAlloc_v2(&mut device, 4usize)), 0);
    let mut pinned: *mut f32 = null_mut();
    assert_eq!(call!(cuMemHostAlloc(&mut pinned, 8usize, 0u32)), 0);
    // SAFETY: two floats of the simulated pinned memory, as the whole test.
    let slots = unsafe { std::slice::from_raw_parts_mut(pinned, 2) };
    let mut pageable = [5f32];
    slots.copy_from_slice(&[1.0, 0.0]);
    // A pinned slot is read when the copy runs: used again too early, it shows.
    assert_eq!(call!(cuMemcpyHtoDAsync_v2(device, slots.as_ptr(), 4usize, s)), 0);
    slots[0] = 2.0;
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(slots[1..].as_mut_ptr(), device, 4usize, s)), 0);
    assert_eq!(slots[1], 0.0);
    assert_eq!(call!(cuStreamSynchronize(s)), 0);
    assert_eq!(slots[1], 2.0);
    // Pageable memory is copied aside at the call.
    assert_eq!(call!(cuMemcpyHtoDAsync_v2(device, pageable.as_ptr(), 4usize, s)), 0);
    pageable[0] = 6.0;
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr(), device, 4usize, s)), 0);
    assert_eq!(pageable, [5.0]);
    // Asking often enough, one sees it done.
    let mut event: Ptr = null_mut();
    assert_eq!(call!(cuEventCreate(&mut event, 2u32)), 0);
    assert_eq!(call!(cuMemsetD8Async(device, 0u8, 4usize, s)), 0);
    assert_eq!(call!(cuEventRecord(event, s)), 0);
    assert_eq!((0..10).map(|_| call!(cuEventQuery(event))).min(), Some(0));
    call!(cuEventDestroy_v2(event));
    call!(cuMemFreeHost(pinned));
    call!(cuMemFree_v2(device));
    call!(cuStreamDestroy_v2(s));
}

#[test]
fn a_capture_runs_nothing_and_becomes_a_graph() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(STEP);
    let step = module.function("step");
    let (s, t) = (stream(false), stream(false));
    let x = Buffer::of(&[1f32]);
    let (two, one) = (2f32, 1f32);
    let mut events: [Ptr; 2] = [null_mut(); 2];
    for event in &mut events {
        assert_eq!(call!(cuEventCreate(event, 2u32)), 0);
    }
    assert_eq!(call!(cuStreamBeginCapture_v2(s, 1i32)), 0);
    let mut b = one;
    assert_eq!(launch(step, 1, 1, 0, s, &mut params!(x.at, two, b)), 0);
    b = 100.0; // copied at the call
    assert_eq!(b, 100.0);
    assert_eq!(call!(cuEventRecord(events[0], s)), 0);
    assert_eq!(call!(cuStreamWaitEvent(t, events[0], 0u32)), 0);
    assert_eq!(launch(step, 1, 1, 0, t, &mut params!(x.at, two, one)), 0);
    assert_eq!(call!(cuEventRecord(events[1], t)), 0);
    assert_eq!(call!(cuStreamWaitEvent(s, events[1], 0u32)), 0);
    let mut graph: Ptr = null_mut();
    assert_eq!(call!(cuStreamEndCapture(s, &mut graph)), 0);
    let mut nodes = 0usize;
    assert_eq!(call!(cuGraphGetNodes(graph, null_mut::<Ptr>(), &mut nodes)), 0);
    assert_eq!((nodes, x.read::<f32>()), (2, vec![1.0]));
    let exec = instantiate(graph);
    assert_eq!(cuda_sim::graph_edges(), [(0, 1)]);
    assert_eq!(call!(cuGraphUpload(exec, s)), 0);
    assert_eq!(call!(cuGraphLaunch(exec, s)), 0);
    assert_eq!(call!(cuStreamSynchronize(s)), 0);
    assert_eq!(x.read::<f32>(), [7.0]);

    // Waiting in a capture breaks it.
    assert_eq!(call!(cuStreamBeginCapture_v2(s, 1i32)), 0);
    assert_eq!(call!(cuStreamSynchronize(s)), 900);
    assert_eq!(launch(step, 1, 1, 0, s, &mut params!(x.at, two, one)), 901);
    let mut none: Ptr = null_mut();
    assert_eq!(call!(cuStreamEndCapture(s, &mut none)), 901);
    assert!(none.is_null());
    // Allocating too, in this thread, unless its mode is relaxed.
    let mut p = 0u64;
    assert_eq!(call!(cuStreamBeginCapture_v2(s, 1i32)), 0);
    let mut mode = 2i32;
    assert_eq!(call!(cuThreadExchangeStreamCaptureMode(&mut mode)), 0);
    assert_eq!(call!(cuMemAlloc_v2(&mut p, 4usize)), 0);
    assert_eq!(call!(cuThreadExchangeStreamCaptureMode(&mut mode)), 0);
    assert_eq!(call!(cuMemFree_v2(p)), 900);
    assert_eq!(call!(cuStreamEndCapture(s, &mut none)), 901);
    assert_eq!(call!(cuMemFree_v2(p)), 0);
    // A fork that is not joined; an end without a beginning.
    assert_eq!(call!(cuStreamBeginCapture_v2(s, 1i32)), 0);
    assert_eq!(call!(cuEventRecord(events[0], s)), 0);
    assert_eq!(call!(cuStreamWaitEvent(t, events[0], 0u32)), 0);
    assert_eq!(launch(step, 1, 1, 0, t, &mut params!(x.at, two, one)), 0);
    assert_eq!(call!(cuEventQuery(events[0])), 907);
    assert_eq!(call!(cuStreamEndCapture(t, &mut none)), 903);
    assert_eq!(call!(cuStreamEndCapture(s, &mut none)), 901);
    assert_eq!(call!(cuStreamEndCapture(s, &mut none)), 401);
    assert_eq!(call!(cuStreamBeginCapture_v2(null_mut::<c_void>(), 1i32)), 900);
    call!(cuGraphExecDestroy(exec));
    call!(cuGraphDestroy(graph));
    for event in events {
        call!(cuEventDestroy_v2(event));
    }
    call!(cuStreamDestroy_v2(s));
    call!(cuStreamDestroy_v2(t));
}
