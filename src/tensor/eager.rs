//! Running one op now: "a plan of one op" through the same kernels as a compiled step.
//!
//! Compiled ops are cached by op, operand types and layouts. Movement ops are views and run nothing.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::backend::{Executable, InputBinding, Launch, LaunchResult, Ticket};
use crate::base::dtype::NumberKind;
use crate::base::{DType, Error, ErrorKind, Layout, Loc, Result, Scalar, Type, scalar};
use crate::ir::{Graph, InputKind};
use crate::kernel::custom::take_failure;
use crate::op::elementwise::{DTypes, Elementwise};
use crate::op::{Class, Op};
use crate::pass;
use crate::tensor::tape::{self, TapeNode};
use crate::tensor::{Device, Origin, Ready, Tensor, autograd};

/// Executables of single ops, by what they were compiled for.
#[derive(Default)]
pub(crate) struct EagerCache(Mutex<FxHashMap<Key, Entry>>);

/// A compiled op, and the layout of its result.
#[derive(Clone)]
struct Entry {
    executable: Arc<dyn Executable>,
    layout: Arc<Layout>,
}

/// Beyond this many entries the cache starts over.
const CACHE_ENTRIES: usize = 4096;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    op: Op,
    operands: SmallVec<[(DType, Layout); 3]>,
}

/// Applies `op` in plain eager code: computes it, and writes it on the tape when a gradient may flow.
pub(crate) fn op(op: &Op, operands: &[&Tensor], device: &Device, loc: Loc) -> Result<Tensor> {
    for t in operands {
        t.check_owner(0).map_err(|e| e.at(loc))?;
    }
    let prepared = prepare(op, operands, device).map_err(|e| e.at(loc))?;
    let (ready, flag) = compute(&prepared, operands, device).map_err(|e| e.at(loc))?;
    if let Some(f) = flag {
        device.flag(f.at(loc));
    }
    let origin = origin(&prepared, operands, loc, autograd::is_enabled());
    Ok(Tensor::ready(prepared.ty, device.clone(), ready, origin, loc))
}

/// How the result of an op in plain eager code was made; with `on` false nothing goes on the tape.
pub(crate) fn origin(prepared: &Prepared, operands: &[&Tensor], loc: Loc, on: bool) -> Origin {
    if prepared.op.starts_gradient() {
        return Origin::Tracked;
    }
    if !on || !tape::flows(prepared, operands) {
        return Origin::Constant;
    }
    let here = |t: &&Tensor| matches!(t.0.origin, Origin::Leaf { .. } | Origin::Tracked | Origin::Tape(_));
    if !operands.iter().any(here) {
        // Of values of ended steps alone: there is no tape to be held.
        return Origin::Step { taped: true };
    }
    let operands = operands.iter().map(|&t| t.clone()).collect();
    Origin::Tape(Box::new(TapeNode { op: prepared.op, operands, loc, order: tape::next_order() }))
}

/// An op with its scalars in their final dtype, and the type of its result.
pub(crate) struct Prepared {
    pub op: Op,
    pub ty: Type,
}

/// Checks devices and types, and casts host scalars to the operands' dtype.
pub(crate) fn prepare(op: &Op, operands: &[&Tensor], device: &Device) -> Result<Prepared> {
    if let Some(t) = operands.iter().find(|t| t.device() != device) {
        let (left, right) = (device.name().to_string(), t.device().name().to_string());
        return Err(Error::new(ErrorKind::Device { op: op.rules().name(), left, right }));
    }
    let op = cast_scalars(op, operands)?;
    let types: SmallVec<[Type; 3]> = operands.iter().map(|t| t.ty()).collect();
    let ty = op.rules().infer(&types)?;
    Ok(Prepared { op, ty })
}

/// The op with its host scalar, if it stands for an operand, in the dtype of the others.
pub(crate) fn cast_scalars(op: &Op, operands: &[&Tensor]) -> Result<Op> {
    Ok(match op {
        Op::Elementwise(e) if e.scalar.is_some() => Op::Elementwise(cast_scalar(e, operands)?),
        _ => *op,
    })
}

/// The scalar operand in the dtype of the tensor operands beside it.
fn cast_scalar(e: &Elementwise, operands: &[&Tensor]) -> Result<Elementwise> {
    let data = if e.row.dtypes == DTypes::Select { operands.last() } else { operands.first() };
    let (Some(t), Some((position, s))) = (data, e.scalar) else { return Ok(*e) };
    let dtype = if e.row.dtypes == DTypes::Select && position == 0 { DType::Bool } else { t.dtype() };
    if !s.fits(dtype) {
        let cast = match s.kind() {
            NumberKind::Float => "cast the tensor with `.to_dtype(DType::F32)` to compute in floats",
            _ => "cast the tensor with `.to_dtype` to one that can",
        };
        let expected = format!("a host number that {dtype} can hold ({cast})");
        return Err(Error::argument(e.row.name, expected, format!("{s}")));
    }
    Ok(Elementwise { row: e.row, scalar: Some((position, s.cast(dtype))) })
}

/// What is told when an index was out of range.
pub(crate) fn index_error(op: &Op, operands: &[&Tensor]) -> Error {
    let types: SmallVec<[Type; 3]> = operands.iter().map(|t| t.ty()).collect();
    let len = op.rules().indexed_axis(&types).unwrap_or(0);
    Error::new(ErrorKind::Index { op: op.rules().name().to_string(), len })
}

/// What is told of a user's kernel that failed on this thread just now.
pub(crate) fn kernel_error() -> Error {
    match take_failure() {
        Some(f) => Error::new(ErrorKind::Custom { op: f.op.to_string(), detail: f.detail }).at(f.loc),
        None => Error::bug("eager", "a user's kernel failed and left no message"),
    }
}

/// What is told besides the result: an index was out of range (and clamped), or a user's kernel failed (and gave zeros).
pub(crate) struct Flag {
    pub error: Error,
    /// The device does not know yet: it tells by this ticket.
    pub ticket: Option<Ticket>,
}

impl Flag {
    /// The same at the user's line.
    pub fn at(self, loc: Loc) -> Flag {
        Flag { error: self.error.at(loc), ..self }
    }
}

/// Computes a prepared op.
pub(crate) fn compute(prepared: &Prepared, operands: &[&Tensor], device: &Device) -> Result<(Ready, Option<Flag>)> {
    let (op, ty) = (&prepared.op, prepared.ty);
    let mut inputs: SmallVec<[&Ready; 3]> = SmallVec::new();
    for t in operands {
        inputs.push(t.ready_state()?);
    }
    if let [t] = operands
        && op.keeps_value(t.dtype())
    {
        return Ok((inputs[0].clone(), None));
    }
    if op.rules().class() == Class::Movement
        && let Some(layout) = view(op, &inputs[0].layout, ty)
    {
        return Ok((Ready { buffer: inputs[0].buffer.clone(), layout: layout.into() }, None));
    }
    run_kernel(prepared, operands, &inputs, device)
}

/// Launches the op's cached plan.
fn run_kernel(
    prepared: &Prepared,
    operands: &[&Tensor],
    inputs: &[&Ready],
    device: &Device,
) -> Result<(Ready, Option<Flag>)> {
    let (op, ty) = (&prepared.op, prepared.ty);
    let scalars = op.rules().scalars();
    // Fixed numbers of the library's are part of the code: a border of fixed width is cheaper than one computed.
    let mut params: SmallVec<[u64; 2]> = SmallVec::new();
    let mut parameter = |s: &Scalar| {
        if s.origin == scalar::Origin::Constant {
            return *s;
        }
        params.push(s.bits);
        Scalar { bits: 0, dtype: s.dtype, origin: scalar::Origin::Param(params.len() as u32 - 1) }
    };
    let zeroed: SmallVec<[Scalar; 2]> = scalars.iter().map(&mut parameter).collect();
    let key = Key {
        op: op.rules().with_scalars(&zeroed),
        // Where in its buffer an operand begins is no part of the code.
        operands: operands.iter().zip(inputs).map(|(t, r)| (t.dtype(), r.layout.from_start())).collect(),
    };
    let cached = device.eager_cache().0.lock().get(&key).cloned();
    let Entry { executable, layout } = match cached {
        Some(e) => e,
        None => {
            let executable = compile(&key, &zeroed, device)?;
            let e = Entry { executable, layout: Layout::contiguous(ty.shape).into() };
            let mut cache = device.eager_cache().0.lock();
            if cache.len() >= CACHE_ENTRIES {
                cache.clear();
            }
            cache.insert(key, e.clone());
            e
        }
    };
    let bindings: SmallVec<[InputBinding<'_>; 3]> = operands
        .iter()
        .zip(inputs)
        .map(|(t, r)| InputBinding { buffer: &r.buffer, layout: &r.layout, dtype: t.dtype(), exclusive: false })
        .collect();
    let mut outputs = Vec::with_capacity(1);
    let result = executable.launch(&mut Launch { inputs: &bindings, params: &params, outputs: &mut outputs })?;
    let buffer =
        outputs.pop().flatten().ok_or_else(|| Error::bug("eager", format!("{} gave no buffer", op.rules().name())))?;
    let flag = match result {
        LaunchResult { kernel_failed: true, .. } => Some(Flag { error: kernel_error(), ticket: None }),
        LaunchResult { index_flag: true, .. } => Some(Flag { error: index_error(op, operands), ticket: None }),
        LaunchResult { pending: Some(t), .. } => Some(Flag { error: index_error(op, operands), ticket: Some(t) }),
        _ => None,
    };
    Ok((Ready { buffer, layout }, flag))
}

/// The layout of a movement op's result as a view of its operand, when strides can express it.
pub(crate) fn view(op: &Op, operand: &Layout, ty: Type) -> Option<Layout> {
    match op {
        Op::Reshape { shape } => operand.reshape(*shape),
        Op::Permute { order } => Some(operand.permute(&order.to_vec())),
        Op::Expand { shape } => Some(operand.expand(*shape)),
        Op::Window { axis, count, size, step, dilation } => {
            Some(operand.window(*axis as usize, [*count, *size], [*step, *dilation]))
        }
        Op::Slice { axis, start, len, step } => {
            Some(operand.slice(*axis as usize, start.as_i64().max(0) as usize, *len, *step))
        }
        _ => None,
    }
    .filter(|l| l.shape == ty.shape)
}

fn compile(key: &Key, scalars: &[Scalar], device: &Device) -> Result<Arc<dyn Executable>> {
    let mut graph = Graph::new(key.op.rules().name());
    let mut operands: SmallVec<[_; 3]> = SmallVec::new();
    for (dtype, layout) in &key.operands {
        let ty = Type::new(*dtype, layout.shape);
        operands.push(graph.input(ty, InputKind::External, *layout, Loc::NONE));
    }
    for s in scalars.iter().filter(|s| s.origin != scalar::Origin::Constant) {
        graph.param(s.dtype);
    }
    let node = graph.op(key.op, &operands, Loc::NONE)?;
    graph.output(node);
    device.backend().compile_eager(pass::compile_op(&graph)?)
}

/// A contiguous copy of a strided tensor.
pub(crate) fn contiguous(t: &Tensor) -> Result<Ready> {
    // A cast to the same dtype copies every element as it is.
    let prepared = prepare(&Op::Cast(t.dtype()), &[t], t.device())?;
    Ok(run_kernel(&prepared, &[t], &[t.ready_state()?], t.device())?.0)
}
