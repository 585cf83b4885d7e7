//! A plain executor of plans that trusts nothing: whatever goes wrong is an error.

use stepgraph::base::HostValue;
use stepgraph::base::host::HostData;
use stepgraph::kernel::eval::{self, Memory};
use stepgraph::kernel::library::{Library, Lines, Matmul};
use stepgraph::op::samples::Random;
use stepgraph::plan::{OutputStorage, Plan, SlotKind, StepKind};

use crate::generate::below;
use crate::plan::{library, positions};

/// One way to execute a plan.
pub struct How {
    order: Option<Vec<usize>>,
    /// Whether outputs use their input's buffer, one bit each.
    in_place: u64,
    /// What memory is full of: a NaN, or a small number.
    rubbish: u8,
}

/// Ways to execute a plan: as written, the last steps first, single steps as early as they may, and at random.
pub fn ways(plan: &Plan, early: Option<u32>, thorough: bool, seed: u64) -> Vec<How> {
    let n = plan.steps.len();
    let mut r = Random(seed.wrapping_mul(77) | 1);
    let mut ways = Vec::new();
    let mut way = |rank: &dyn Fn(usize) -> usize, k: usize| {
        let (in_place, rubbish) = ([!0, 0, 0b0101, 0b1010][k % 4], if k % 3 == 2 { 0xa5 } else { 0xff });
        ways.push(How { order: order(plan, rank), in_place, rubbish });
    };
    way(&|s| s, 0);
    way(&|s| s, 1);
    way(&|s| n - s, 0);
    for e in early.into_iter().map(|e| e as usize).chain(0..if thorough { n } else { 0 }).filter(|&e| e < n) {
        let first = ancestors(plan, e);
        for k in 0..if thorough { 2 } else { 1 } {
            way(&|s| if first[s] { s } else { n + s }, k);
        }
    }
    for k in 0..if thorough { 6 } else { 3 } {
        let ranks: Vec<usize> = (0..n).map(|_| below(&mut r, 1 << 20)).collect();
        way(&|s| ranks[s], k);
    }
    ways
}

/// The step and all that it waits for.
fn ancestors(plan: &Plan, of: usize) -> Vec<bool> {
    let mut found = vec![false; plan.steps.len()];
    let mut stack = vec![of];
    while let Some(s) = stack.pop() {
        if !std::mem::replace(&mut found[s], true) {
            stack.extend(plan.edges.iter().filter(|e| e.1 as usize == s).map(|e| e.0 as usize));
        }
    }
    found
}

/// Of the steps that may run, always the one of lowest rank; `None`: there is no order.
fn order(plan: &Plan, rank: &dyn Fn(usize) -> usize) -> Option<Vec<usize>> {
    let n = plan.steps.len();
    let mut waiting = vec![0; n];
    for e in &plan.edges {
        *waiting.get_mut(e.1 as usize)? += 1;
    }
    let mut ready: Vec<usize> = (0..n).filter(|&s| waiting[s] == 0).collect();
    let mut out = Vec::new();
    while let Some(at) = (0..ready.len()).min_by_key(|&i| rank(ready[i])) {
        let s = ready.swap_remove(at);
        out.push(s);
        for e in plan.edges.iter().filter(|e| e.0 as usize == s) {
            waiting[e.1 as usize] -= 1;
            if waiting[e.1 as usize] == 0 {
                ready.push(e.1 as usize);
            }
        }
    }
    (out.len() == n).then_some(out)
}

/// Executes the plan; steps see copies of their slots, and what they changed is copied back.
pub fn run(plan: &Plan, inputs: &[HostValue], params: &[u64], how: &How) -> Result<Vec<HostValue>, String> {
    let order = how.order.as_ref().ok_or("no order")?;
    // Buffer 0 is the arena, then the inputs', then the outputs'.
    let mut buffers = vec![vec![how.rubbish; plan.arena_bytes]];
    for (value, input) in inputs.iter().zip(&plan.inputs) {
        let size = input.ty.dtype.size();
        // What lies between an input's elements is the caller's, and the same in every execution.
        let mut bytes = vec![0xff; input.bytes];
        for (&p, element) in positions(&input.layout).iter().zip(value.data.to_bytes().chunks(size)) {
            bytes[p * size..(p + 1) * size].copy_from_slice(element);
        }
        buffers.push(bytes);
    }
    let before = buffers.clone();
    let mut of_output = Vec::new();
    for (o, output) in plan.outputs.iter().enumerate() {
        of_output.push(match (output.storage, output.in_place) {
            (OutputStorage::Own { bytes }, Some(i)) if how.in_place >> (o % 64) & 1 == 1 => {
                let input = plan.inputs.get(i as usize).ok_or("no such input")?;
                if input.bytes < bytes {
                    return Err("the input's buffer is too small for the output".into());
                }
                1 + i as usize
            }
            (OutputStorage::Own { bytes }, _) => {
                buffers.push(vec![how.rubbish; bytes]);
                buffers.len() - 1
            }
            (OutputStorage::Input(i), _) => 1 + i as usize,
            (OutputStorage::Output(_), _) => usize::MAX,
        });
    }
    for &s in order {
        let step = &plan.steps[s];
        let mut places = Vec::new();
        let mut memory = Vec::new();
        for &a in &step.args {
            let slot = plan.slots.get(a as usize).ok_or("no such slot")?;
            let (b, at) = match slot.kind {
                SlotKind::Arena { offset } => (0, offset),
                SlotKind::Input(i) => (1 + i as usize, 0),
                SlotKind::Output(o) => (of_output[o as usize], 0),
            };
            if !at.is_multiple_of(64) {
                return Err("a misaligned slot".into());
            }
            let range = at..at.checked_add(slot.bytes).ok_or("beyond memory")?;
            memory.push(buffers.get(b).and_then(|b| b.get(range)).ok_or("a slot beyond its buffer")?.to_vec());
            places.push((b, at, matches!(slot.kind, SlotKind::Input(_))));
        }
        let old = memory.clone();
        let written: Vec<bool> = match &step.kind {
            StepKind::Kernel(kernel) => {
                let words: Vec<u64> = step.params.iter().map(|&p| params[p as usize]).collect();
                let mut views: Vec<Memory> = memory
                    .iter_mut()
                    .zip(&kernel.args)
                    .map(|(m, a)| if a.output { Memory::Out(m) } else { Memory::In(m) })
                    .collect();
                eval::run(kernel, &words, &mut views).map_err(|e| e.to_string())?;
                kernel.args.iter().map(|a| a.output).collect()
            }
            StepKind::Library(call) => {
                let needed = needs(call);
                if memory.len() != needed.len() || needed.iter().zip(&memory).any(|(&n, m)| m.len() < n) {
                    return Err("operands of a library call beyond their slots".into());
                }
                // Whole elements only.
                memory.iter_mut().for_each(|m| m.truncate(m.len() / 4 * 4));
                if let Library::ScatterAdd(_) = call {
                    let whole = memory[0].len() / 8 * 8;
                    memory[0].truncate(whole);
                }
                let (last, rest) = memory.split_last_mut().unwrap();
                // A call writes its result, not what may lie behind it in the slot.
                last.truncate(needed[rest.len()]);
                library(call, rest, last);
                (0..needed.len()).map(|i| i + 1 == needed.len()).collect()
            }
        };
        for (((m, old), &(b, at, input)), written) in memory.iter().zip(&old).zip(&places).zip(written) {
            if written && input {
                return Err("an input is written".into());
            }
            for (i, (new, old)) in m.iter().zip(old).enumerate().filter(|_| written) {
                if new != old {
                    buffers[b][at + i] = *new;
                }
            }
        }
    }
    for (i, input) in plan.inputs.iter().enumerate() {
        if !input.var && buffers[1 + i] != before[1 + i] {
            return Err("a foreign input is overwritten".into());
        }
    }
    let read = |(o, output): (usize, &stepgraph::plan::PlanOutput)| {
        let owner = if let OutputStorage::Output(k) = output.storage { k as usize } else { o };
        let buffer = of_output.get(owner).and_then(|&b| buffers.get(b)).ok_or("no storage")?;
        let size = output.ty.dtype.size();
        let mut bytes = Vec::new();
        for p in positions(&output.layout) {
            let at = p.checked_mul(size).ok_or("an output beyond its buffer")?;
            bytes.extend_from_slice(buffer.get(at..at + size).ok_or("an output beyond its buffer")?);
        }
        Ok(HostValue::new(output.ty.shape, HostData::from_bytes(output.ty.dtype, &bytes)))
    };
    plan.outputs.iter().enumerate().map(read).collect()
}

/// Bytes that each operand of a library call must have.
fn needs(call: &Library) -> Vec<usize> {
    let last = |axes: &[(usize, i64)]| {
        if axes.iter().any(|a| a.0 == 0) {
            return None;
        }
        Some(axes.iter().map(|&(n, s)| (n as i64 - 1) * s.max(0)).sum::<i64>() as usize + 1)
    };
    let along = |dims: [usize; 3], l: &Lines| {
        let axes: Vec<(usize, i64)> = dims.into_iter().zip(l.strides).collect();
        last(&axes).map_or(0, |e| e + l.offset as usize)
    };
    match call {
        Library::Matmul(Matmul { batch, m, k, n, a, b, c, .. }) => [(a, *m, *k), (b, *k, *n), (c, *m, *n)]
            .map(|(o, r, l)| {
                let axes: Vec<(usize, i64)> =
                    batch.iter().copied().zip(o.batch.iter().copied()).chain([(r, o.row), (l, o.col)]).collect();
                last(&axes).map_or(0, |e| (e + o.offset as usize) * 4)
            })
            .to_vec(),
        Library::ScatterAdd(s) => {
            let operand = |st: &[i64; 3]| last(&[(s.outer, st[0]), (s.count, st[1]), (s.inner, st[2])]).unwrap_or(0);
            vec![operand(&s.index) * 8, operand(&s.src) * 4, s.outer * s.len * s.inner * 4]
        }
        Library::ScatterIndex(s) => {
            vec![along(s.dims, &s.index) * 8, s.dims[0] * s.len * s.dims[2] * 8]
        }
        Library::Scan(s) => {
            let out = s.dims.iter().product::<usize>() * s.dtype.size();
            s.inputs.iter().map(|l| along(s.dims, l) * s.dtype.size()).chain([out]).collect()
        }
        Library::Custom(c) => {
            let bytes = |b: &stepgraph::kernel::library::Block| (b.offset as usize + b.shape.numel()) * b.dtype.size();
            c.inputs.iter().chain([&c.output]).map(bytes).collect()
        }
        Library::Argsort(s) => {
            vec![along(s.dims, &s.input) * s.dtype.size(), s.dims.iter().product::<usize>() * 8]
        }
    }
}

/// Equal bits, any NaN equal to any other.
pub fn same(a: &[HostValue], b: &[HostValue]) -> bool {
    a.iter().zip(b).all(|(a, b)| match (&a.data, &b.data) {
        (HostData::F32(x), HostData::F32(y)) => {
            a.shape == b.shape && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()))
        }
        _ => a == b,
    })
}
