//! What launching costs by the number of nodes: chains of small kernels, not fused, as one graph.

use std::time::Instant;

use stepgraph::backend::{Backend, InputBinding, Launch};
use stepgraph::base::{Error, Result};
use stepgraph::ir::Graph;
use stepgraph::pass::{Options, compile};

use crate::Size;
use crate::output::{Output, median, round};

/// `n` additions, one after the other.
fn chain(n: usize) -> Result<Graph> {
    let mut text = "graph @chain(%x: f32[32]) {\n".to_string();
    for i in 0..n {
        let operand = if i == 0 { "%x".to_string() } else { format!("%{}", i - 1) };
        text += &format!("  %{i}: f32[32] = add {operand}, %x\n");
    }
    text += &format!("  return %{}\n}}", n - 1);
    text.parse().map_err(|e| Error::bug("latency", format!("{e}")))
}

fn measure(backend: &dyn Backend, nodes: usize, size: Size, out: &Output) -> Result<()> {
    // One kernel for each addition.
    let options = Options { fuse: false, ..Options::default() };
    let plan = compile(&chain(nodes)?, &options)?.plan;
    let input = plan.plan().inputs[0].clone();
    let executable = backend.compile(plan)?;
    let buffer = backend.upload(&[0; 128])?;
    let bindings = [InputBinding { buffer: &buffer, layout: &input.layout, dtype: input.ty.dtype, exclusive: false }];
    let mut outputs = Vec::new();
    let mut launch = || {
        outputs.clear();
        executable.launch(&mut Launch { inputs: &bindings, params: &[], outputs: &mut outputs }).map(drop)
    };
    let start = Instant::now();
    launch()?;
    let first = start.elapsed();
    backend.synchronize()?;
    let samples = if size == Size::Full { 200 } else { 5 };
    let (mut host, mut device) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        let start = Instant::now();
        launch()?;
        host.push(start.elapsed().as_secs_f64() * 1e6);
        backend.synchronize()?;
    }
    for _ in 0..samples.min(20) {
        let time = backend.timed(&mut || (0..10).try_for_each(|_| launch()))?;
        device.push(time.as_secs_f64() * 1e6 / 10.0);
    }
    let least = host.iter().copied().fold(f64::INFINITY, f64::min);
    let kernels = executable.kernels();
    let (host, device) = (round(median(&host)), round(median(&device)));
    out.line(serde_json::json!({
        "section": "latency", "nodes": kernels, "host_us": host, "host_min_us": round(least), "device_us": device,
        "first_launch_ms": round(first.as_secs_f64() * 1e3),
    }));
    out.say(&format!(
        "{kernels:>5} nodes: {host:>8} us on the host (least {}), {device:>8} us on the device; built in {:.2} ms",
        round(least),
        first.as_secs_f64() * 1e3
    ));
    if kernels != nodes {
        return Err(Error::bug("latency", format!("{kernels} kernels instead of {nodes}")));
    }
    Ok(())
}

/// Measures 1 to 1000 nodes.
pub fn run(backend: &dyn Backend, size: Size, out: &mut Output) {
    out.title("launches by the number of nodes");
    for nodes in [1, 10, 100, 1000] {
        let measured = measure(backend, nodes, size, out);
        out.check("latency", &format!("{nodes} nodes"), measured.map_err(|e| e.to_string()));
    }
}
