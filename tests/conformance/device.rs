//! Runs a graph on a backend, as a step's plan or op by op.

use stepgraph::backend::{Backend, Buffer, InputBinding, Launch};
use stepgraph::base::host::HostData;
use stepgraph::base::{HostValue, Result};
use stepgraph::ir::Graph;
use stepgraph::pass::{Options, compile};
use stepgraph::plan::OutputStorage;

use crate::plan::{place, positions};

/// How a graph is run on a backend.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// As an eager plan rather than a step's.
    pub eager: bool,
    /// Inputs' buffers may be overwritten.
    pub exclusive: bool,
    pub options: Options,
}

/// Compiles `graph`, launches it twice and gives the second launch's outputs.
pub fn run(
    backend: &dyn Backend,
    graph: &Graph,
    inputs: &[HostValue],
    params: &[u64],
    how: How,
) -> Result<Vec<HostValue>> {
    let checked = compile(graph, &how.options)?.plan;
    let plan = checked.plan().clone();
    let executable = if how.eager { backend.compile_eager(checked)? } else { backend.compile(checked)? };
    let mut results = Vec::new();
    for _ in 0..2 {
        let buffers: Vec<Buffer> = inputs
            .iter()
            .zip(&plan.inputs)
            .map(|(v, i)| backend.upload(&place(v, &i.layout, i.ty.dtype.size(), i.bytes)))
            .collect::<Result<_>>()?;
        let bindings: Vec<InputBinding<'_>> = buffers
            .iter()
            .zip(&plan.inputs)
            .map(|(buffer, i)| InputBinding { buffer, layout: &i.layout, dtype: i.ty.dtype, exclusive: how.exclusive })
            .collect();
        let mut outputs = Vec::new();
        executable.launch(&mut Launch { inputs: &bindings, params, outputs: &mut outputs })?;
        results.clear();
        for (i, output) in plan.outputs.iter().enumerate() {
            let owned = |k: usize| outputs[k].as_ref().expect("an output of its own has a buffer");
            let buffer = match output.storage {
                OutputStorage::Own { .. } => owned(i),
                OutputStorage::Input(k) => &buffers[k as usize],
                OutputStorage::Output(k) => owned(k as usize),
            };
            let size = output.ty.dtype.size();
            let mut memory = vec![0; buffer.bytes()];
            backend.download(buffer, 0, &mut memory)?;
            let bytes: Vec<u8> =
                positions(&output.layout).iter().flat_map(|&p| memory[p * size..(p + 1) * size].to_vec()).collect();
            results.push(HostValue::new(output.ty.shape, HostData::from_bytes(output.ty.dtype, &bytes)));
        }
    }
    Ok(results)
}
