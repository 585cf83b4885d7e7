//! Reverse-mode differentiation, and the tape of plain eager code.
//!
//! [`differentiate`] walks a list of ops backwards and emits gradient ops through [`Emit`]; it is
//! used by the eager tape (which hangs on the tensors) and by sessions (whose trace is the tape). Gradient rules are
//! written in ops, so what it emits can be differentiated again ([`crate::tensor::autograd`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::base::location::Scope;
use crate::base::{Error, ErrorKind, Loc, Result, Scalar, Type};
use crate::op::elementwise::arith::ADD;
use crate::op::{Elementwise, Emit, Grad, Op, Val};
use crate::tensor::autograd::{Request, Wrt};
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
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
/// let gradients = w.get().mul(w.get())?.sum(())?.backward()?;
/// assert_eq!(gradients.get(&w).unwrap().to_string(), "[4. 6.]");
/// # Ok(())
/// # }
/// ```
pub struct Gradients(pub(crate) Arc<GradTable>);

/// The table behind [`Gradients`]: filled at once in eager code, at the session's end in a step.
pub(crate) struct GradTable {
    pub stamp: u64,
    /// Which `backward` of the session it belongs to.
    pub event: (u32, u32),
    pub entries: OnceLock<Vec<(u64, Tensor)>>,
}

impl GradTable {
    /// Entries as they are kept: in the order of ids, one of each, the last one given.
    pub fn sorted(mut entries: Vec<(u64, Tensor)>) -> Vec<(u64, Tensor)> {
        entries.reverse();
        entries.sort_by_key(|e| e.0);
        entries.dedup_by_key(|e| e.0);
        entries
    }
}

impl Gradients {
    /// The gradient with respect to `var`, of its shape and dtype; `None` when the scalar does not depend on it.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let other = Var::new(&Tensor::new(1.0f32, device)?)?;
    /// let gradients = w.get().sum(())?.backward()?;
    /// assert!(gradients.get(&w).is_some() && gradients.get(&other).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, var: &Var) -> Option<Tensor> {
        if let Some(entries) = self.0.entries.get() {
            let at = entries.binary_search_by_key(&var.id(), |e| e.0).ok()?;
            return Some(entries[at].1.clone());
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
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let w = Var::new(&Tensor::new([2.0f32, 3.0], device)?)?;
    /// let loss = w.get().mul(w.get())?.mean(())?;
    /// assert_eq!(loss.backward()?.get(&w).unwrap().to_string(), "[2. 3.]");
    /// # Ok(())
    /// # }
    /// ```
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
            "the value made at {} depends on no trainable Var; compute it from `Var::get` of a Var made with `Var::new`, or from a tensor marked with `.require_grad()`",
            t.0.made
        ),
        Origin::Leaf { .. } | Origin::Tracked | Origin::Tape(_) => return None,
    };
    Some(Error::new(ErrorKind::Backward { detail }))
}

/// Whether a gradient flows from the op's result to one of its operands.
pub(crate) fn flows(prepared: &eager::Prepared, operands: &[&Tensor]) -> bool {
    prepared.op.starts_gradient()
        || (prepared.ty.dtype.is_float()
            && prepared.op.carries_gradient()
            && operands.iter().any(|t| t.dtype().is_float() && t.0.origin.is_taped()))
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
    /// Whether the gradients are on the tape themselves.
    graph: bool,
}

impl EagerEmit {
    fn add(&mut self, t: Tensor) -> Val {
        self.values.push(t);
        Val(self.values.len() as u32 - 1)
    }

    fn value(&self, v: Val) -> Tensor {
        self.values[v.0 as usize].clone()
    }
}

impl Emit for EagerEmit {
    fn emit(&mut self, op: Op, operands: &[Val]) -> Result<Val> {
        let operands: SmallVec<[&Tensor; 3]> = operands.iter().map(|v| &self.values[v.0 as usize]).collect();
        let loc = Loc::caller();
        let prepared = eager::prepare(&op, &operands, &self.device)?;
        let (ready, flag) = eager::compute(&prepared, &operands, &self.device)?;
        if let Some(f) = flag {
            self.device.flag(f.at(loc));
        }
        let origin = eager::origin(&prepared, &operands, loc, self.graph);
        let t = Tensor::ready(prepared.ty, self.device.clone(), ready, origin, loc);
        drop(operands);
        Ok(self.add(t))
    }

    fn ty(&self, v: Val) -> Type {
        self.values[v.0 as usize].ty()
    }
}

/// The eager tape behind a value, as a list.
struct Tape {
    cx: EagerEmit,
    /// The values met, by address.
    ids: FxHashMap<usize, Val>,
    /// In the order of the program.
    entries: Vec<Entry>,
    /// Snapshots of trainable `Var`s, by the `Var`'s id, in the order they were set.
    leaves: Vec<(u64, Val)>,
    /// A value computed before the walk may begin, where it ended since a gradient is wanted there.
    stopped: Option<Tensor>,
}

impl Tape {
    /// The tape behind `output`, as far back as to the op number `since`; what lies further back is refused unless it
    /// is `wanted` (addresses) itself.
    fn of(output: &Tensor, since: u64, wanted: &[usize], graph: bool) -> Result<Tape> {
        output.check_owner(0)?;
        if let Some(e) = no_tape(output) {
            return Err(e);
        }
        let mut ids: FxHashMap<usize, Val> = FxHashMap::default();
        let mut cx = EagerEmit { values: Vec::new(), device: output.device().clone(), graph };
        let (mut entries, mut leaves, mut stopped) = (Vec::new(), Vec::new(), None);
        // Depth-first, results after operands; then in the order of the program.
        let mut stack: Vec<(Tensor, bool)> = vec![(output.clone(), false)];
        let mut seen: FxHashSet<usize> = FxHashSet::default();
        let outside_here = |t: &Tensor| match &t.0.origin {
            Origin::Tape(node) => node.order < since,
            origin => matches!(origin, Origin::Step { taped: true }),
        };
        while let Some((t, done)) = stack.pop() {
            if !done {
                if !seen.insert(t.addr()) {
                    continue;
                }
                if outside_here(&t) {
                    if !wanted.contains(&t.addr()) {
                        return Err(no_tape(&t).unwrap_or_else(|| outside(&t)));
                    }
                    ids.insert(t.addr(), cx.add(t.clone()));
                    stopped = Some(t);
                    continue;
                }
                stack.push((t.clone(), true));
                if let Origin::Tape(node) = &t.0.origin {
                    stack.extend(node.operands.iter().map(|o| (o.clone(), false)));
                }
                continue;
            }
            let v = cx.add(t.clone());
            ids.insert(t.addr(), v);
            match &t.0.origin {
                Origin::Leaf { var, order } => leaves.push((*order, (*var, v))),
                Origin::Tape(node) => {
                    let operands = node.operands.iter().map(|o| ids[&o.addr()]).collect();
                    entries.push((node.order, Entry { op: node.op, operands, result: v, loc: node.loc }));
                }
                _ => {}
            }
        }
        entries.sort_unstable_by_key(|e| e.0);
        leaves.sort_unstable_by_key(|l| l.0);
        let entries = entries.into_iter().map(|e| e.1).collect();
        let leaves = leaves.into_iter().map(|l| l.1).collect();
        Ok(Tape { cx, ids, entries, leaves, stopped })
    }
}

/// `backward` over the eager tape, as far back as to the op number `since`: a step refuses what was computed before
/// it began, whether it traces or not. Also gives the number of ops it ran.
pub(crate) fn eager_backward(loss: &Tensor, since: u64) -> Result<(Gradients, u32)> {
    let Tape { mut cx, ids, entries, leaves, .. } = Tape::of(loss, since, &[], false)?;
    if leaves.is_empty() {
        let detail =
            "the value depends on no trainable Var; take the gradient with respect to tensors with `autograd::grad`";
        return Err(ErrorKind::Backward { detail: detail.into() }.into());
    }
    let wanted: Vec<Val> = leaves.iter().map(|&(_, v)| v).collect();
    let known = cx.values.len();
    let grads = differentiate(&mut cx, &entries, ids[&loss.addr()], None, &wanted)?;
    let sums = sum_by_target(&mut cx, &leaves, &grads)?;
    let ops = (cx.values.len() - known) as u32;
    let entries = OnceLock::from(GradTable::sorted(sums.into_iter().map(|(id, g)| (id, cx.value(g))).collect()));
    Ok((Gradients(Arc::new(GradTable { stamp: 0, event: (0, 0), entries })), ops))
}

/// [`crate::tensor::autograd::grad`] over the eager tape, as far back as to the op number `since`. Also gives the number
/// of ops it ran.
pub(crate) fn eager_grad(request: &Request<'_>, since: u64) -> Result<(Vec<Option<Tensor>>, u32)> {
    let Request { output, wrt, upstream, graph } = request;
    let addresses: SmallVec<[usize; 8]> =
        wrt.iter().filter_map(|w| if let Wrt::Tensor(t) = w { Some(t.addr()) } else { None }).collect();
    let Tape { mut cx, ids, entries, leaves, stopped } = Tape::of(output, since, &addresses, *graph)?;
    let mut wanted: Vec<(usize, Val)> = Vec::new();
    for (k, w) in wrt.iter().enumerate() {
        let before = wanted.len();
        match w {
            Wrt::Tensor(t) => wanted.extend(ids.get(&t.addr()).map(|&v| (k, v))),
            Wrt::Var(var) => wanted.extend(leaves.iter().filter(|l| l.0 == var.id()).map(|&(_, v)| (k, v))),
        }
        check_cut(w, wanted.len() > before, stopped.as_ref())?;
    }
    let seed = upstream.map(|t| cx.add(if *graph { t.clone() } else { constant(t) }));
    let values: Vec<Val> = wanted.iter().map(|w| w.1).collect();
    let known = cx.values.len();
    let grads = differentiate(&mut cx, &entries, ids[&output.addr()], seed, &values)?;
    let mut out = vec![None; wrt.len()];
    for (k, grad) in sum_by_target(&mut cx, &wanted, &grads)? {
        out[k] = Some(cx.value(grad));
    }
    Ok((out, (cx.values.len() - known) as u32))
}

/// Where the walk ended at a value from outside the step (`stopped`), the gradient with respect to anything that may lie
/// behind it would be short of a part.
pub(crate) fn check_cut(w: &Wrt<'_>, reached: bool, stopped: Option<&Tensor>) -> Result<()> {
    match (w, stopped) {
        (Wrt::Var(var), Some(t)) if var.is_trainable() => Err(outside(t)),
        (Wrt::Tensor(_), Some(t)) if !reached => Err(outside(t)),
        _ => Ok(()),
    }
}

/// The same value with no tape.
fn constant(t: &Tensor) -> Tensor {
    match t.ready_state() {
        Ok(ready) if t.0.origin.is_taped() => {
            Tensor::ready(t.ty(), t.device().clone(), ready.clone(), Origin::Constant, t.0.made)
        }
        _ => t.clone(),
    }
}

/// One gradient per target (a variable): the sum over its leaves, in the order of `leaves`.
pub(crate) fn sum_by_target<K: Copy + PartialEq>(
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

/// Gradients of `output` with respect to `wanted`, for those it depends on, given that of `output` (`seed`; `None`:
/// ones). `entries` in forward order.
pub(crate) fn differentiate(
    cx: &mut dyn Emit,
    entries: &[Entry],
    output: Val,
    seed: Option<Val>,
    wanted: &[Val],
) -> Result<FxHashMap<Val, Val>> {
    let mut requires: FxHashSet<Val> = wanted.iter().copied().collect();
    for e in entries {
        let flows = cx.ty(e.result).dtype.is_float() && e.op.carries_gradient();
        if flows && e.operands.iter().any(|o| requires.contains(o)) {
            requires.insert(e.result);
        }
    }
    let mut grads: FxHashMap<Val, Val> = FxHashMap::default();
    if !requires.contains(&output) {
        return Ok(grads);
    }
    let seed = match seed {
        Some(seed) => seed,
        None => {
            let Type { dtype, shape } = cx.ty(output);
            let value = Scalar::f32(1.0).constant().cast(dtype);
            cx.emit(Op::Full { shape, value }, &[])?
        }
    };
    grads.insert(output, seed);
    for e in entries.iter().rev() {
        let Some(&grad) = grads.get(&e.result) else { continue };
        let needs: SmallVec<[bool; 3]> = e.operands.iter().map(|o| requires.contains(o)).collect();
        if !requires.contains(&e.result) || !e.op.carries_gradient() || !needs.contains(&true) {
            continue;
        }
        let _scope = Scope::at(e.loc.gradient());
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
