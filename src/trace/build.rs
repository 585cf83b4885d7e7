//! Building a segment: its graph from the events, compiled.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::{Error, ErrorKind, Result, Type};
use crate::ir::{Graph, InputKind, NodeId};
use crate::pass;
use crate::plan::OutputStorage;
use crate::tensor::Tensor;
use crate::trace::reference::Reference;
use crate::trace::segment::{Explained, PlanInput, SegmentPlan, Source};
use crate::trace::session::Session;
use crate::trace::tree::{Def, Kind, ValId};

impl Session {
    pub fn build(
        &mut self,
        path: u32,
        at: usize,
        end: u32,
        outputs: Vec<ValId>,
        last: bool,
        begun: Instant,
    ) -> Result<SegmentPlan> {
        let dirty: Vec<(u32, ValId)> = self
            .vars
            .iter()
            .enumerate()
            .filter(|(_, b)| b.dirty)
            .filter_map(|(slot, b)| Some((slot as u32, b.written?)))
            .collect();
        let mut b = Builder {
            session: self,
            graph: Graph::new(format!("path{path}_{at}")),
            nodes: FxHashMap::default(),
            inputs: Vec::new(),
        };
        for dtype in b.session.param_dtypes() {
            b.graph.param(dtype);
        }
        for ordinal in b.session.seg_base..end {
            let e = b.session.event(ordinal);
            if e.kind != Kind::Op {
                continue;
            }
            let mut operands: SmallVec<[NodeId; 3]> = SmallVec::new();
            for i in 0..b.session.event(ordinal).operands.len() {
                let v = b.session.event(ordinal).operands[i];
                operands.push(b.resolve(v)?);
            }
            let e = b.session.event(ordinal);
            let node = b.graph.op(e.op, &operands, e.loc)?;
            b.nodes.insert(e.out, node);
        }
        for &v in &outputs {
            let node = b.resolve(v)?;
            b.graph.output(node);
        }
        let mut writes = Vec::new();
        let written: Vec<ValId> = dirty.iter().map(|d| d.1).collect();
        for &(slot, v) in &dirty {
            let node = b.resolve(v)?;
            let position = b.graph.outputs().len() as u32;
            writes.push((slot, position));
            b.graph.output(node);
        }
        let slots: FxHashMap<u32, u32> =
            writes.iter().enumerate().map(|(k, w): (usize, &(u32, u32))| (w.0, k as u32)).collect();
        let mut donors = vec![None; writes.len()];
        // Only a call's last segment may overwrite a `Var`'s buffer in place.
        for i in 0..b.inputs.len() {
            if let Some(var) = b.inputs[i].var {
                let write = slots.get(&var).copied().filter(|_| last);
                let written_by = write.map(|k| writes[k as usize].1);
                b.graph.set_input_kind(i, InputKind::Var { written_by })?;
                b.inputs[i].donor = write;
                if let Some(k) = write {
                    donors[k as usize] = Some(i as u32);
                }
            }
        }
        let (graph, inputs) = (b.graph, b.inputs);
        let params = self.params.len();
        let nothing = graph.outputs().is_empty();
        let Some(device) = self.device.clone().filter(|_| !nothing) else {
            let compile_time = begun.elapsed();
            let (targets, layouts, executable, compiled) = (Vec::new(), Vec::new(), None, None);
            return Ok(SegmentPlan {
                outputs,
                writes,
                written,
                donors,
                inputs: Vec::new(),
                kept: Vec::new(),
                targets,
                shared: false,
                layouts,
                executable,
                params,
                compile_time,
                compiled,
                index_error: None,
                reference: None,
                used: AtomicU64::new(0),
            });
        };
        let compiled = pass::compile(&graph, &self.options)?;
        let targets = compiled.plan.plan().outputs.clone();
        let dump = crate::base::config::config().dump.clone();
        let texts = dump.as_ref().map(|_| [graph.to_string(), fused_text(&compiled), compiled.plan.plan().to_string()]);
        let explained = explain(&graph, &compiled);
        let executable = device.backend().compile(compiled.plan)?;
        if let (Some(dir), Some([before, after, plan])) = (dump, texts) {
            let parts =
                [("graph.ir", before), ("fused.ir", after), ("plan.txt", plan), ("code.txt", executable.listing())];
            write_dump(&dir, &format!("step{}_{}", self.stamp, graph.name), &parts)?;
        }
        let mut kept = vec![false; self.held.len()];
        for i in &inputs {
            if let (Source::Held(k), None) = (i.source, i.var) {
                kept[k as usize] = true;
            }
        }
        Ok(SegmentPlan {
            outputs,
            writes,
            written,
            donors,
            inputs,
            kept,
            shared: targets.iter().any(|t| matches!(t.storage, OutputStorage::Output(_))),
            layouts: targets.iter().map(|t| Arc::new(t.layout)).collect(),
            targets,
            executable: Some(executable),
            params,
            compile_time: begun.elapsed(),
            compiled: Some(explained),
            index_error: self.index_error(end),
            reference: self.verify.then(|| Reference { graph, device: device.clone() }),
            used: AtomicU64::new(0),
        })
    }

    /// What is told when a launch found an index out of range. Which op's it was is not known then: the first
    /// that may raise it is named.
    fn index_error(&self, end: u32) -> Option<Error> {
        (self.seg_base..end).map(|ordinal| self.event(ordinal)).find_map(|e| {
            if e.kind != Kind::Op {
                return None;
            }
            let operands: Vec<&Tensor> = e.operands.iter().filter_map(|&v| self.handle(v).ok()).collect();
            let types: Vec<Type> = operands.iter().map(|t| t.ty()).collect();
            e.op.rules().indexed_axis(&types)?;
            Some(crate::tensor::eager::index_error(&e.op, &operands).at(e.loc))
        })
    }
}

/// Builds the graph of a segment.
struct Builder<'a> {
    session: &'a Session,
    graph: Graph,
    nodes: FxHashMap<ValId, NodeId>,
    inputs: Vec<PlanInput>,
}

impl Builder<'_> {
    /// The node of a value; one from before the segment becomes an input.
    fn resolve(&mut self, v: ValId) -> Result<NodeId> {
        if let Some(&n) = self.nodes.get(&v) {
            return Ok(n);
        }
        let def = self.session.def(v);
        let source = match def {
            Def::External { held, .. } | Def::Snapshot { held, .. } => Source::Held(held),
            Def::Leaf { of, event, .. } if event >= self.session.seg_base => {
                let node = self.resolve(of)?;
                self.nodes.insert(v, node);
                return Ok(node);
            }
            Def::Made { event } | Def::Leaf { event, .. } => Source::Event(event),
        };
        let t = self.session.handle(v)?;
        let layout = t.ready_state()?.layout.from_start();
        let node = self.graph.input(t.ty(), InputKind::External, layout, t.0.made);
        let var = if let Def::Snapshot { var, .. } = def { Some(var) } else { None };
        self.inputs.push(PlanInput { value: v, source, layout, var, donor: None });
        self.nodes.insert(v, node);
        Ok(node)
    }
}
/// The graph after the passes, then every decision.
fn fused_text(compiled: &pass::Compiled) -> String {
    let mut out = compiled.graph.to_string();
    for note in &compiled.notes {
        out.push_str(&format!("; {note}\n"));
    }
    out
}

/// What is told of a compilation; also streamed, as it happens, to the log.
fn explain(graph: &Graph, compiled: &pass::Compiled) -> Explained {
    let plan = compiled.plan.plan();
    let notes: Vec<String> = compiled.notes.iter().map(|n| n.to_string()).collect();
    for n in &notes {
        tracing::debug!(target: "stepgraph::pass", "{n}");
    }
    let lines = |step: &crate::plan::Step| {
        let lines: Vec<String> = step.locs.iter().map(|l| l.to_string()).collect();
        format!("{} ({})", step.label, lines.join(", "))
    };
    let bytes = plan.steps.iter().flat_map(|s| &s.args).map(|&slot| plan.slots[slot as usize].bytes as u64).sum();
    Explained { ops: graph.len() - graph.inputs().len(), steps: plan.steps.iter().map(lines).collect(), notes, bytes }
}

fn write_dump(dir: &std::path::Path, name: &str, parts: &[(&str, String)]) -> Result<()> {
    for (ending, text) in parts {
        let path = dir.join(format!("{name}.{ending}"));
        let io =
            |e: std::io::Error| Error::new(ErrorKind::Io { path: path.display().to_string(), detail: e.to_string() });
        std::fs::create_dir_all(dir).map_err(io)?;
        std::fs::write(&path, text).map_err(io)?;
    }
    Ok(())
}
