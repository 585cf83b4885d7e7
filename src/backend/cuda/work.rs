//! The steps of a plan as work for the device: kernels, and products with the copies around them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::backend::cuda::compile::Kernel;
use crate::backend::cuda::core::Core;
use crate::backend::cuda::matmul::{self, Planned, Unaligned};
use crate::backend::cuda::pool::Block;
use crate::backend::cuda::render::{self, Place, Rendered, Signature};
use crate::backend::cuda::split;
use crate::backend::cuda::sys::blas::{ALIGNMENT, Algorithm};
use crate::backend::cuda::sys::memory::Address;
use crate::base::{Error, Result};
use crate::kernel::Kernel as KernelIr;
use crate::kernel::library::{Library, Matmul};
use crate::plan::{Plan, SlotKind, Step, StepKind};

/// What a step is to the device.
pub enum Work {
    /// Kernels that may run side by side; nearly always one.
    Kernels(Vec<Part>),
    Product(Box<ProductWork>),
}

/// A kernel of a step.
pub struct Part {
    pub kernel: Arc<Kernel>,
    /// Which of the step's arguments and parameters it takes.
    pub args: SmallVec<[u32; 8]>,
    pub params: SmallVec<[u32; 4]>,
}

/// A product, in the forms that its operands' alignment asked for so far.
pub struct ProductWork {
    matmul: Matmul,
    /// The copies' own signature: how each of a, b, c is reached.
    places: [Place; 3],
    forms: Mutex<HashMap<Unaligned, Arc<Form>>>,
}

/// A product for operands of some alignment.
pub struct Form {
    pub planned: Planned,
    pub copies: [Option<Arc<Kernel>>; 3],
    pub zeros: Option<Arc<Kernel>>,
    /// One per call.
    pub algorithms: Vec<Algorithm>,
}

impl ProductWork {
    /// The form for operands that are to be copied for reasons of their address.
    pub fn form(&self, unaligned: Unaligned, core: &Core) -> Result<Arc<Form>> {
        if let Some(form) = self.forms.lock().get(&unaligned) {
            return Ok(form.clone());
        }
        let planned = matmul::plan(&self.matmul, unaligned, core.tf32)?;
        // A copy's arguments: from, to. The operand is the first of a and b's, the second of c's.
        let copy = |i: usize| -> Result<Option<Arc<Kernel>>> {
            let Some(kernel) = &planned.copies[i] else { return Ok(None) };
            let args = if i == 2 { vec![Place::Direct, self.places[2]] } else { vec![self.places[i], Place::Direct] };
            single(kernel, args, "copy", core).map(Some)
        };
        let form = Arc::new(Form {
            copies: [copy(0)?, copy(1)?, copy(2)?],
            zeros: planned.zeros.as_ref().map(|k| single(k, vec![self.places[2]], "zeros", core)).transpose()?,
            algorithms: planned.calls.iter().map(|c| core.algorithm(&c.product)).collect::<Result<_>>()?,
            planned,
        });
        self.forms.lock().insert(unaligned, form.clone());
        Ok(form)
    }
}

/// Compiles one kernel of the backend's own.
fn single(kernel: &KernelIr, args: Vec<Place>, label: &str, core: &Core) -> Result<Arc<Kernel>> {
    let guarded = vec![false; args.len()];
    let signature = Signature { args, params: Place::Direct, guarded, may_alias: false };
    core.compiler.kernel(&render::render(&StepKind::Kernel(kernel.clone()), label, &signature)?, label)
}

/// Compiles the steps of a plan; `block`: tensors' addresses and host scalars are read from the parameter block.
pub fn compile(plan: &Plan, core: &Core, block: bool) -> Result<Vec<Work>> {
    // Of each step its parts: source, arguments, parameters. Products have none.
    type Source = (Rendered, SmallVec<[u32; 8]>, SmallVec<[u32; 4]>);
    let mut rendered: Vec<Vec<Source>> = Vec::new();
    for step in &plan.steps {
        let whole = signature(plan, step, block);
        let all = |n: usize| 0..n as u32;
        let mut parts = Vec::new();
        match &step.kind {
            StepKind::Library(Library::Matmul(_)) => {}
            StepKind::Kernel(kernel) => {
                let slot = |a: u32| step.args[a as usize];
                for part in split::split(kernel, |a, b| shared(plan, slot(a), slot(b)))? {
                    let signature = Signature {
                        args: part.args.iter().map(|&a| whole.args[a as usize]).collect(),
                        params: whole.params,
                        guarded: part.args.iter().map(|&a| whole.guarded[a as usize]).collect(),
                        may_alias: whole.may_alias,
                    };
                    let source = render::render(&StepKind::Kernel(part.kernel), &step.label, &signature)?;
                    parts.push((source, part.args.into(), part.params.into()));
                }
            }
            kind => {
                let source = render::render(kind, &step.label, &whole)?;
                parts.push((source, all(step.args.len()).collect(), all(step.params.len()).collect()));
            }
        }
        rendered.push(parts);
    }
    let labels = plan.steps.iter().map(|s| s.label.as_str());
    let wanted: Vec<(&Rendered, &str)> =
        rendered.iter().zip(labels).flat_map(|(parts, label)| parts.iter().map(move |p| (&p.0, label))).collect();
    let mut kernels = core.compiler.kernels(&wanted)?.into_iter();
    plan.steps
        .iter()
        .zip(rendered)
        .map(|(step, parts)| match &step.kind {
            StepKind::Library(Library::Matmul(m)) => {
                let places = signature(plan, step, block).args;
                let places = places.try_into().map_err(|_| Error::bug("cuda", "a product without three operands"))?;
                let product = ProductWork { matmul: m.clone(), places, forms: Mutex::default() };
                // Algorithms and copies for the usual form, before the first launch.
                product.form([false; 3], core)?;
                Ok(Work::Product(Box::new(product)))
            }
            _ => {
                let part = |(_, args, params)| {
                    let kernel = kernels.next().ok_or_else(|| Error::bug("cuda", "a kernel is missing"))?;
                    Ok(Part { kernel, args, params })
                };
                Ok(Work::Kernels(parts.into_iter().map(part).collect::<Result<_>>()?))
            }
        })
        .collect()
}

/// How a step's kernel is reached by its operands.
fn signature(plan: &Plan, step: &Step, block: bool) -> Signature {
    let kind = |slot: u32| plan.slots[slot as usize].kind;
    let in_place = |slot: u32| match kind(slot) {
        SlotKind::Output(o) => plan.outputs[o as usize].in_place,
        _ => None,
    };
    let place = |slot: u32| match kind(slot) {
        SlotKind::Arena { .. } => Place::Direct,
        _ if block => Place::Block,
        _ => Place::Direct,
    };
    let flagging = plan.steps.iter().any(|s| s.kind.may_flag());
    Signature {
        args: step.args.iter().map(|&s| place(s)).collect(),
        params: if block { Place::Block } else { Place::Direct },
        guarded: step.args.iter().map(|&s| flagging && in_place(s).is_some()).collect(),
        may_alias: step.args.iter().enumerate().any(|(i, &a)| step.args[..i].iter().any(|&b| shared(plan, a, b))),
    }
}

/// Whether two slots may share memory.
fn shared(plan: &Plan, a: u32, b: u32) -> bool {
    let slot = |s: u32| &plan.slots[s as usize];
    match (slot(a).kind, slot(b).kind) {
        (SlotKind::Arena { offset: x }, SlotKind::Arena { offset: y }) => {
            x < y + slot(b).bytes && y < x + slot(a).bytes
        }
        (SlotKind::Output(o), SlotKind::Input(i)) | (SlotKind::Input(i), SlotKind::Output(o)) => {
            plan.outputs[o as usize].in_place == Some(i)
        }
        (x, y) => x == y,
    }
}

/// The arguments of a kernel's entry after those that its signature places: flag and scratch.
pub fn trailing(kernel: &Kernel, core: &Core, scratch: Option<Address>) -> SmallVec<[u64; 2]> {
    let mut out = SmallVec::new();
    if kernel.flag {
        out.push(core.flags.address());
    }
    out.extend(scratch);
    out
}

/// Memory for a kernel's stages, if it wants any.
pub fn scratch(kernel: &Kernel, core: &Core) -> Result<Option<Block>> {
    (kernel.scratch_bytes > 0).then(|| core.pool.alloc(kernel.scratch_bytes)).transpose()
}

/// Which operands lie at addresses that the library cannot take.
pub fn unaligned(addresses: [Address; 3]) -> Unaligned {
    addresses.map(|a| a % ALIGNMENT != 0)
}

impl Work {
    /// Enqueues the step on the stream, its arguments at `addresses`.
    pub fn enqueue(&self, core: &Core, addresses: &[Address], params: &[u64]) -> Result<()> {
        match self {
            Work::Kernels(parts) => parts.iter().try_for_each(|part| {
                let args: SmallVec<[Address; 16]> = part.args.iter().map(|&a| addresses[a as usize]).collect();
                let words: SmallVec<[u64; 4]> = part.params.iter().map(|&p| params[p as usize]).collect();
                launch(&part.kernel, core, &args, &words)
            }),
            Work::Product(product) => {
                let Ok(addresses) = <[Address; 3]>::try_from(addresses) else {
                    return Err(Error::bug("cuda", "a product without three operands"));
                };
                let form = product.form(unaligned(addresses), core)?;
                form.enqueue(core, addresses)
            }
        }
    }
}

/// Enqueues a kernel with direct arguments.
fn launch(kernel: &Kernel, core: &Core, addresses: &[Address], params: &[u64]) -> Result<()> {
    let scratch = scratch(kernel, core)?;
    let mut args: SmallVec<[u64; 16]> = SmallVec::from_slice(addresses);
    args.extend_from_slice(params);
    args.extend(trailing(kernel, core, scratch.as_ref().map(Block::address)));
    for (function, grid) in &kernel.stages {
        function.launch(*grid, &args, &core.stream)?;
    }
    Ok(())
}

impl Form {
    /// Enqueues a product eagerly.
    fn enqueue(&self, core: &Core, mut addresses: [Address; 3]) -> Result<()> {
        if let Some(zeros) = &self.zeros {
            return launch(zeros, core, &addresses[2..], &[]);
        }
        let mut blocks: SmallVec<[Block; 4]> = SmallVec::new();
        let mut place = |bytes: usize| -> Result<Address> {
            let block = core.pool.alloc(bytes)?;
            let address = block.address();
            blocks.push(block);
            Ok(address)
        };
        let c = addresses[2];
        for (i, address) in addresses.iter_mut().enumerate() {
            if let Some(copy) = &self.copies[i] {
                let to = place(self.planned.copy_bytes[i])?;
                if i < 2 {
                    launch(copy, core, &[*address, to], &[])?;
                }
                *address = to;
            }
        }
        let workspace = self.algorithms.iter().map(|a| a.workspace).max().unwrap_or(0);
        let workspace = if workspace > 0 { place(workspace)? } else { 0 };
        self.call(core, addresses, workspace, &core.stream)?;
        if let Some(copy) = &self.copies[2] {
            launch(copy, core, &[addresses[2], c], &[])?;
        }
        Ok(())
    }

    /// Enqueues the library's calls, all copies made.
    pub fn call(
        &self,
        core: &Core,
        [a, b, c]: [Address; 3],
        workspace: Address,
        stream: &crate::backend::cuda::sys::context::Stream,
    ) -> Result<()> {
        for (call, algorithm) in self.planned.calls.iter().zip(&self.algorithms) {
            let [x, y, z] = call.offsets;
            let (x, y, z) = (a.wrapping_add_signed(x), b.wrapping_add_signed(y), c.wrapping_add_signed(z));
            let at = if call.product.swapped { [y, x, z] } else { [x, y, z] };
            core.blas.enqueue(&call.product, algorithm, at, workspace, stream)?;
        }
        Ok(())
    }
}
