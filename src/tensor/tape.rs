//! Reverse-mode differentiation, and the tape of plain eager code.
//!
//! [`differentiate`] walks a list of ops backwards and emits gradient ops through [`Emit`]; it is
//! used by the eager tape (which hangs on the tensors) and by sessions (whose trace is the tape).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::base::location::Scope;
use crate::base::{Error, ErrorKind, Loc, Result, Scalar, Type};
use crate::op::elementwise::arith::ADD;
use crate::op::{Elementwise, Emit, Grad, Op, Val};
use crate::tensor::recorder::{self, here};
use crate::tensor::{Device, Origin, Tensor, Var, eager};

/// One op of the eager tape: it hangs on its result.
pub(crate) struct TapeNode {
    pub op: Op,
    pub operands: Vec<Tensor>,
    pub loc: Loc,
    /// Its place in the program's order: see [`next_order`].
    pub order: u64,
}

/// Numbers ops and leaves in the order they are made. Gradients add up in the reverse of it, as they do in a step,
/// whose trace is in program order.
pub(crate) fn next_order() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// One op of a tape, for [`differentiate`].
pub(crate) struct Entry {
    pub op: Op,
    pub operands: SmallVec<[Val; 3]>,
    pub result: Val,
    pub loc: Loc,
}

/// Gradients of a scalar with respect to `Var`s.
///
/// Looked up by `Var`; the sum over all snapshots of the `Var` that the scalar depends on.
pub struct Gradients(pub(crate) Arc<GradTable>);

/// The table behind [`Gradients`]: filled at once in eager code, at the session's end in a step.
pub(crate) struct GradTable {
    pub stamp: u64,
    /// Which `backward` of the session it belongs to.
    pub event: (u32, u32),
    pub entries: OnceLock<Vec<(u64, Tensor)>>,
}

impl Gradients {
    /// The gradient with respect to `var`, of its shape and dtype; `None` when the scalar does not depend on it.
    pub fn get(&self, var: &Var) -> Option<Tensor> {
        if let Some(entries) = self.0.entries.get() {
            return entries.iter().find(|(id, _)| *id == var.id()).map(|(_, t)| t.clone());
        }
        if self.0.stamp != recorder::stamp() {
            return None;
        }
        recorder::with(|r| r.gradient(&self.0, var)).flatten()
    }
}

impl std::fmt::Debug for Gradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.entries.get() {
            Some(e) => write!(f, "Gradients({} vars)", e.len()),
            None => f.write_str("Gradients(of an open step)"),
        }
    }
}

impl Tensor {
    /// Gradients of this scalar with respect to every trainable `Var` it depends on.
    ///
    /// Errors: not a float tensor of one element; made from no trainable `Var`; made by a step that
    /// has ended (its tape ended with it).
    #[track_caller]
    pub fn backward(&self) -> Result<Gradients> {
        let at = here();
        let _scope = Scope::enter();
        let result = check_loss(self).and_then(|()| match recorder::with(|r| r.backward(self, at)) {
            Some(result) => result,
            None => eager_backward(self, 0).map(|(gradients, _)| gradients),
        });
        result.map_err(|e| e.at(Loc::resolve(at)))
    }
}

fn check_loss(loss: &Tensor) -> Result<()> {
    if loss.numel() != 1 {
        let expected = "a tensor of one element (reduce it with `.mean(())` or `.sum(())` first)";
        return Err(Error::shape("backward", expected, loss.ty().to_string()));
    }
    if !loss.dtype().is_float() {
        return Err(Error::dtype("backward", "a float tensor", loss.dtype()));
    }
    Ok(())
}

/// What is told when there is no tape behind `t`; `None` if there may be one.
pub(crate) fn no_tape(t: &Tensor) -> Option<Error> {
    let detail = match t.0.origin {
        Origin::Step { taped: true } => format!(
            "the value made at {} comes from a step that has ended, and the tape ends with its step; call `backward` inside the closure",
            t.0.made
        ),
        Origin::Constant | Origin::HostData { .. } | Origin::Step { taped: false } => format!(
            "the value made at {} depends on no trainable Var; compute it from `Var::get` of a Var made with `Var::new`",
            t.0.made
        ),
        Origin::Leaf { .. } | Origin::Tape(_) => return None,
    };
    Some(Error::new(ErrorKind::Backward { detail }))
}

/// Whether a gradient flows from the op's result to one of its operands.
pub(crate) fn flows(prepared: &eager::Prepared, operands: &[&Tensor]) -> bool {
    prepared.ty.dtype.is_float()
        && prepared.op.carries_gradient()
        && operands.iter().any(|t| t.dtype().is_float() && t.0.origin.is_taped())
}

/// What is told when a step's gradient would leave the step at `t`.
pub(crate) fn outside(t: &Tensor) -> Error {
    let what = match t.0.origin {
        Origin::Leaf { .. } => "a snapshot of a Var taken",
        _ => "a value computed",
    };
    let detail = format!(
        "it reaches {what} outside the step (made at {}), where the gradient would stop; get it inside the closure or call `.detach()` on it",
        t.0.made
    );
    Error::new(ErrorKind::Backward { detail })
}

/// Emits eagerly; values are tensors of the tape or new ones.
struct EagerEmit {
    values: Vec<Tensor>,
    device: Device,
}

impl Emit for EagerEmit {
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        let operands: SmallVec<[&Tensor; 3]> = operands.iter().map(|v| &self.values[v.0 as usize]).collect();
        let loc = Loc::caller();
        let prepared = eager::prepare(&op, &operands, &self.device)?;
        let (ready, _) = eager::compute(&prepared, &operands, &self.device)?;
        drop(operands);
        self.values.push(Tensor::ready(prepared.ty, self.device.clone(), ready, Origin::Constant, loc));
        Ok(Val(self.values.len() as u32 - 1))
    }

    fn ty(&self, v: Val) -> Type {
        self.values[v.0 as usize].ty()
    }
}

/// `backward` over the eager tape, as far back as to the op number `since`: a step refuses what was computed before
/// it began, whether it traces or not. Also gives the number of ops it ran.
pub(crate) fn eager_backward(loss: &Tensor, since: u64) -> Result<(Gradients, u32)> {
    loss.check_owner(0)?;
    if let Some(e) = no_tape(loss) {
        return Err(e);
    }
    // Depth-first over the tape, results after operands; then in the order of the program.
    let mut ids: FxHashMap<usize, Val> = FxHashMap::default();
    let mut cx = EagerEmit { values: Vec::new(), device: loss.device().clone() };
    let mut entries = Vec::new();
    let mut leaves: Vec<(u64, (u64, Val))> = Vec::new();
    let mut stack: Vec<(Tensor, bool)> = vec![(loss.clone(), false)];
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    while let Some((t, done)) = stack.pop() {
        if !done {
            if !seen.insert(t.addr()) {
                continue;
            }
            stack.push((t.clone(), true));
            if let Origin::Tape(node) = &t.0.origin {
                stack.extend(node.operands.iter().map(|o| (o.clone(), false)));
            }
            continue;
        }
        let v = Val(cx.values.len() as u32);
        ids.insert(t.addr(), v);
        match &t.0.origin {
            Origin::Leaf { var, order } => leaves.push((*order, (*var, v))),
            Origin::Tape(node) if node.order < since => return Err(outside(&t)),
            Origin::Step { taped: true } => return Err(no_tape(&t).unwrap_or_else(|| outside(&t))),
            Origin::Tape(node) => {
                let operands = node.operands.iter().map(|o| ids[&o.addr()]).collect();
                entries.push((node.order, Entry { op: node.op, operands, result: v, loc: node.loc }));
            }
            _ => {}
        }
        cx.values.push(t);
    }
    entries.sort_unstable_by_key(|e| e.0);
    leaves.sort_unstable_by_key(|l| l.0);
    let entries: Vec<Entry> = entries.into_iter().map(|e| e.1).collect();
    let leaves: Vec<(u64, Val)> = leaves.into_iter().map(|l| l.1).collect();
    let wanted: Vec<Val> = leaves.iter().map(|&(_, v)| v).collect();
    let known = cx.values.len();
    let grads = differentiate(&mut cx, &entries, ids[&loss.addr()], &wanted)?;
    let mut table: Vec<(u64, Tensor)> = Vec::new();
    for (id, grad) in sum_by_var(&mut cx, &leaves, &grads)? {
        table.push((id, cx.values[grad.0 as usize].clone()));
    }
    let entries = OnceLock::new();
    let _ = entries.set(table);
    let ops = (cx.values.len() - known) as u32;
    Ok((Gradients(Arc::new(GradTable { stamp: 0, event: (0, 0), entries })), ops))
}

/// One gradient per variable: the sum over its leaves, in leaf order.
pub(crate) fn sum_by_var<K: Copy + PartialEq>(
    cx: &mut dyn Emit,
    leaves: &[(K, Val)],
    grads: &FxHashMap<Val, Val>,
) -> Result<Vec<(K, Val)>> {
    let mut out: Vec<(K, Val)> = Vec::new();
    for (id, leaf) in leaves {
        let Some(&g) = grads.get(leaf) else { continue };
        match out.iter_mut().find(|(k, _)| k == id) {
            Some((_, sum)) => *sum = cx.emit(Op::Elementwise(Elementwise::new(&ADD)), &[*sum, g])?,
            None => out.push((*id, g)),
        }
    }
    Ok(out)
}

/// Gradients of `loss` with respect to `leaves`, for those it depends on. `entries` in forward order.
pub(crate) fn differentiate(
    cx: &mut dyn Emit,
    entries: &[Entry],
    loss: Val,
    leaves: &[Val],
) -> Result<FxHashMap<Val, Val>> {
    let mut requires: FxHashSet<Val> = leaves.iter().copied().collect();
    for e in entries {
        if cx.ty(e.result).dtype.is_float() && e.operands.iter().any(|o| requires.contains(o)) {
            requires.insert(e.result);
        }
    }
    let mut grads: FxHashMap<Val, Val> = FxHashMap::default();
    if !requires.contains(&loss) {
        return Ok(grads);
    }
    let Type { dtype, shape } = cx.ty(loss);
    let value = Scalar::f32(1.0).constant().cast(dtype);
    let seed = cx.emit(Op::Full { shape, value }, &[])?;
    grads.insert(loss, seed);
    for e in entries.iter().rev() {
        let Some(&grad) = grads.get(&e.result) else { continue };
        if !requires.contains(&e.result) {
            continue;
        }
        let _scope = Scope::at(e.loc.gradient());
        let needs: SmallVec<[bool; 3]> = e.operands.iter().map(|o| requires.contains(o)).collect();
        let operand_grads = {
            let mut g = Grad::new(cx, &e.operands, e.result, grad, &needs);
            e.op.rules().grad(&mut g)?
        };
        for (i, (operand, g)) in e.operands.iter().zip(operand_grads).enumerate() {
            let Some(g) = g.filter(|_| needs[i]) else { continue };
            let sum = match grads.get(operand) {
                Some(&before) => cx.emit(Op::Elementwise(Elementwise::new(&ADD)), &[before, g])?,
                None => g,
            };
            grads.insert(*operand, sum);
        }
    }
    Ok(grads)
}
