//! A plain executor of plans, right or wrong: kernels by the kernel interpreter, in any order, in any memory.

use stepgraph::base::HostValue;
use stepgraph::kernel::Inst;
use stepgraph::kernel::eval::{self, Memory};
use stepgraph::plan::{OutputStorage, Plan, SlotKind, StepKind};

use crate::plan::{library, place, positions};

/// An output's elements in the memory format; NaN are all alike.
pub type Bytes = Vec<u8>;

/// Where slots lie, and what is in memory to begin with.
#[derive(Clone, Copy)]
pub struct How {
    /// Every slot in memory of its own.
    pub apart: bool,
    /// Outputs that may use an input's buffer do.
    pub in_place: bool,
    pub rubbish: u8,
}

/// The bytes of a value, its NaN made alike.
pub fn bytes(v: &HostValue) -> Bytes {
    alike(v.data.to_bytes(), matches!(v.data, stepgraph::base::host::HostData::F32(_)))
}

fn alike(mut bytes: Vec<u8>, float: bool) -> Bytes {
    if float {
        for c in bytes.chunks_mut(4) {
            if f32::from_ne_bytes([c[0], c[1], c[2], c[3]]).is_nan() {
                c.copy_from_slice(&f32::NAN.to_ne_bytes());
            }
        }
    }
    bytes
}

/// An order that the edges allow: the plan's own for `seed` 0, else drawn. `None` if they allow none.
pub fn order(plan: &Plan, seed: u64) -> Option<Vec<usize>> {
    let n = plan.steps.len();
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    // Steps by random rank: some run as early as they can, some as late.
    let rank: Vec<u64> = (0..n as u64)
        .map(|t| match seed {
            0 => t,
            // As late as can be first, then drawn.
            1 => u64::MAX - t,
            _ => draw(),
        })
        .collect();
    let mut waiting = vec![0usize; n];
    let mut after = vec![Vec::new(); n];
    for &(a, b) in &plan.edges {
        if a as usize >= n || b as usize >= n {
            return None;
        }
        waiting[b as usize] += 1;
        after[a as usize].push(b as usize);
    }
    let mut ready: Vec<usize> = (0..n).filter(|&t| waiting[t] == 0).collect();
    let mut out = Vec::new();
    while let Some(i) = (0..ready.len()).min_by_key(|&i| rank[ready[i]]) {
        let t = ready.swap_remove(i);
        out.push(t);
        for &b in &after[t] {
            waiting[b] -= 1;
            if waiting[b] == 0 {
                ready.push(b);
            }
        }
    }
    (out.len() == n).then_some(out)
}

/// Whether a launch would refuse the parameters: one that moves an access is larger than its kernel takes.
fn refused(plan: &Plan, params: &[u64]) -> bool {
    plan.steps.iter().any(|step| {
        let StepKind::Kernel(kernel) = &step.kind else { return false };
        let word = |k: u32| step.params.get(k as usize).and_then(|&p| params.get(p as usize));
        let accesses = kernel.body.iter().filter_map(|i| match i {
            Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => Some(access),
            _ => None,
        });
        accesses.flat_map(|a| &a.dynamic).any(|d| word(d.param).is_some_and(|&w| w as i64 > d.max || (w as i64) < 0))
    })
}

/// The outputs (none, if the launch is refused), or `None` where something is touched that is not there.
pub fn run(plan: &Plan, inputs: &[HostValue], params: &[u64], how: How, order: &[usize]) -> Option<Vec<Bytes>> {
    if refused(plan, params) {
        return Some(Vec::new());
    }
    let mut memory: Vec<Vec<u8>> = vec![vec![how.rubbish; plan.arena_bytes]];
    for (value, input) in inputs.iter().zip(&plan.inputs) {
        memory.push(place(value, &input.layout, input.ty.dtype.size(), input.bytes));
    }
    // By output: the memory it lies in.
    let mut homes = Vec::new();
    for o in &plan.outputs {
        homes.push(match (o.storage, o.in_place) {
            (OutputStorage::Own { .. }, Some(i)) if how.in_place && !how.apart => 1 + i as usize,
            (OutputStorage::Own { bytes }, _) => {
                memory.push(vec![how.rubbish; bytes]);
                memory.len() - 1
            }
            (OutputStorage::Input(i), _) => 1 + i as usize,
            (OutputStorage::Output(_), _) => usize::MAX,
        });
    }
    for (o, output) in plan.outputs.iter().enumerate() {
        if let OutputStorage::Output(p) = output.storage {
            homes[o] = *homes.get(p as usize)?;
        }
    }
    // By slot: memory, and where it begins.
    let mut places = Vec::new();
    for s in &plan.slots {
        places.push(match s.kind {
            SlotKind::Arena { .. } if how.apart => {
                memory.push(vec![how.rubbish; s.bytes]);
                (memory.len() - 1, 0)
            }
            SlotKind::Arena { offset } => (0, offset),
            SlotKind::Input(i) => (1 + i as usize, 0),
            SlotKind::Output(o) => (*homes.get(o as usize)?, 0),
        });
    }
    for &t in order {
        let step = plan.steps.get(t)?;
        let mut ranges = Vec::new();
        for &a in &step.args {
            let (&(m, at), slot) = (places.get(a as usize)?, &plan.slots[a as usize]);
            ranges.push((m, at..at.checked_add(slot.bytes)?));
        }
        let mut args: Vec<Vec<u8>> = Vec::new();
        for (m, r) in &ranges {
            args.push(memory.get(*m)?.get(r.clone())?.to_vec());
        }
        let before = args.clone();
        let written: Vec<bool> = match &step.kind {
            StepKind::Kernel(k) => {
                let mut words = Vec::new();
                for &p in &step.params {
                    words.push(*params.get(p as usize)?);
                }
                if k.args.len() != args.len() {
                    return None;
                }
                let mut views: Vec<Memory> = args
                    .iter_mut()
                    .zip(&k.args)
                    .map(|(m, a)| if a.output { Memory::Out(m) } else { Memory::In(m) })
                    .collect();
                eval::run(k, &words, &mut views).ok()?;
                k.args.iter().map(|a| a.output).collect()
            }
            StepKind::Library(call) => {
                let (last, rest) = args.split_last_mut()?;
                library(call, rest, last);
                (0..ranges.len()).map(|i| i + 1 == ranges.len()).collect()
            }
        };
        // Only what changed: two outputs of a step may lie beside each other in one range.
        for (((m, r), written), (new, old)) in ranges.iter().zip(written).zip(args.iter().zip(&before)) {
            if written {
                let to = &mut memory[*m][r.clone()];
                to.iter_mut().zip(new.iter().zip(old)).for_each(|(to, (n, o))| {
                    if n != o {
                        *to = *n
                    }
                });
            }
        }
    }
    let mut out = Vec::new();
    for (o, output) in plan.outputs.iter().enumerate() {
        let (from, size) = (memory.get(homes[o])?, output.ty.dtype.size());
        let mut bytes = Vec::new();
        for p in positions(&output.layout) {
            bytes.extend_from_slice(from.get(p.checked_mul(size)?..(p + 1) * size)?);
        }
        out.push(alike(bytes, output.ty.dtype == stepgraph::DType::F32));
    }
    Some(out)
}
