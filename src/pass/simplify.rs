//! Rewrites of single nodes that are exact in IEEE arithmetic.
//!
//! `x * 1`, `-(-x)` and views that change nothing are dropped; `x + 0` is not (it turns -0 into +0), nor is `x * 0` (NaN),
//! and nothing is re-associated. Only fixed numbers of the library count as known: a host scalar may be
//! another one at the next call.

use smallvec::SmallVec;

use crate::base::host::HostData;
use crate::base::scalar::{Origin, Scalar};
use crate::base::{DType, HostValue, Loc, Result, Shape};
use crate::ir::rewrite::Rewriter;
use crate::ir::{Graph, NodeId, NodeOp};
use crate::op::elementwise::{Row, arith, logic};
use crate::op::{Class, IndexMap, Op};
use crate::pass::fuse::Space;
use crate::pass::fuse::reads::Probe;
use crate::pass::{Decision, Options};

/// What stands for a node.
enum Instead {
    Node(NodeId),
    Op(Op, SmallVec<[NodeId; 3]>),
}

/// Simplifies every node, operands first.
pub fn simplify(graph: &Graph, options: &Options, notes: &mut Vec<Decision>) -> Result<Graph> {
    let mut out = Rewriter::new(graph);
    for v in graph.ids() {
        let n = graph.node(v);
        let NodeOp::Op(op) = &n.op else {
            out.copy(v)?;
            continue;
        };
        let (mut op, mut operands, mut found) = (*op, out.operands(v)?, None);
        while let Some((instead, why)) = rewrite(out.graph(), &op, &operands, n.ty, options) {
            notes.push(Decision::new("simplify", graph, &[v], why));
            match instead {
                Instead::Node(node) => {
                    found = Some(node);
                    break;
                }
                Instead::Op(o, args) => (op, operands) = (o, args),
            }
        }
        let made = match found {
            Some(node) => node,
            None => match push_gather(&mut out, &op, &operands, n.loc)? {
                Some(node) => {
                    notes.push(Decision::new("simplify", graph, &[v], "gathers before the arithmetic"));
                    node
                }
                None => out.op(op, &operands, n.loc)?,
            },
        };
        out.replace(v, made)?;
    }
    out.finish()
}

fn op_at(graph: &Graph, v: NodeId) -> Option<(&Op, &[NodeId])> {
    let n = graph.node(v);
    match &n.op {
        NodeOp::Op(op) => Some((op, &n.operands)),
        NodeOp::Input(_) => None,
    }
}

fn rewrite(
    graph: &Graph,
    op: &Op,
    operands: &[NodeId],
    ty: crate::base::Type,
    options: &Options,
) -> Option<(Instead, &'static str)> {
    let first = *operands.first()?;
    let class = op.rules().class();
    if class == Class::Pointwise
        && let Some(value) = folded(graph, op, operands)
    {
        return Some((Instead::Op(Op::Full { shape: ty.shape, value }, SmallVec::new()), "of fixed numbers only"));
    }
    if class == Class::Movement {
        if graph.node(first).ty == ty && keeps_all(graph, op, operands, ty) {
            return Some((Instead::Node(first), "a view that changes nothing"));
        }
        match (op, op_at(graph, first)) {
            (Op::Reshape { .. }, Some((Op::Reshape { .. }, _))) => {
                if let Some(node) = reshaped_from(graph, first, ty) {
                    return Some((Instead::Node(node), "reshaped back"));
                }
            }
            (_, Some((Op::Full { value, .. }, _))) => {
                let full = Op::Full { shape: ty.shape, value: *value };
                return Some((Instead::Op(full, SmallVec::new()), "a view of a repeated value"));
            }
            _ => {}
        }
    }
    match op {
        op if op.keeps_value(graph.node(first).ty.dtype) => Some((Instead::Node(first), "the same value")),
        Op::Elementwise(e) => {
            let kept = |node: NodeId| graph.node(node).ty == ty;
            for involution in [&arith::NEG, &logic::NOT] {
                if is(e.row, involution)
                    && let Some((Op::Elementwise(inner), args)) = op_at(graph, first)
                    && is(inner.row, involution)
                    && args.len() == 1
                    && kept(args[0])
                {
                    return Some((Instead::Node(args[0]), "undone by the same again"));
                }
            }
            // The arguments with a scalar one in its place.
            let argument = |i: usize| match e.scalar {
                Some((at, s)) if at as usize == i => Argument::Known(s),
                Some((at, _)) if (at as usize) < i => Argument::of(graph, operands.get(i - 1)),
                _ => Argument::of(graph, operands.get(i)),
            };
            let pairs: &[(usize, usize)] = match e.row {
                r if is(r, &arith::MUL) => &[(0, 1), (1, 0)],
                r if is(r, &arith::DIV) => &[(0, 1)],
                _ => &[],
            };
            for &(x, one) in pairs {
                if let (Some(node), Some(1.0)) = (argument(x).node(), argument(one).fixed())
                    && kept(node)
                {
                    return Some((Instead::Node(node), "times or over one"));
                }
            }
            let zeros: &[(usize, usize)] = match e.row {
                _ if !options.fast_math => &[],
                r if is(r, &arith::ADD) => &[(0, 1), (1, 0)],
                r if is(r, &arith::SUB) => &[(0, 1)],
                _ => &[],
            };
            for &(x, zero) in zeros {
                if let (Some(node), Some(0.0)) = (argument(x).node(), argument(zero).fixed())
                    && kept(node)
                {
                    return Some((Instead::Node(node), "plus or minus zero (fast math)"));
                }
            }
            if is(e.row, &logic::SELECT)
                && let Some(condition) = argument(0).fixed()
                && let Some(node) = argument(if condition != 0.0 { 1 } else { 2 }).node()
                && kept(node)
            {
                return Some((Instead::Node(node), "the condition is known"));
            }
            None
        }
        _ => None,
    }
}

/// The value of type `ty` that `v` is a reshape of, by way of others. (Reshapes are not merged otherwise: a copy of one
/// may serve all that view it.)
fn reshaped_from(graph: &Graph, v: NodeId, ty: crate::base::Type) -> Option<NodeId> {
    let mut at = v;
    while let Some((Op::Reshape { .. }, operands)) = op_at(graph, at) {
        at = *operands.first()?;
        if graph.node(at).ty == ty {
            return Some(at);
        }
    }
    None
}

/// The value of a pointwise op of which everything is a fixed number, by its own reference, whose bits
/// are those of every backend.
fn folded(graph: &Graph, op: &Op, operands: &[NodeId]) -> Option<Scalar> {
    let fixed = |s: &Scalar| s.origin == Origin::Constant;
    if !op.rules().scalars().iter().all(fixed) {
        return None;
    }
    let value = |v: &NodeId| match op_at(graph, *v) {
        Some((Op::Full { value, .. }, _)) if fixed(value) => {
            Some(HostValue::new(Shape::SCALAR, HostData::from_lanes(value.dtype, &[value.bits])))
        }
        _ => None,
    };
    let operands: Option<SmallVec<[HostValue; 3]>> = operands.iter().map(value).collect();
    let result = op.rules().eval(&operands?).ok()?;
    if matches!(result.data, HostData::Real(..)) {
        return None;
    }
    let (dtype, bits) = (result.data.dtype(), *result.data.lanes().first()?);
    let scalar = Scalar { bits, dtype, origin: Origin::Constant };
    Some(scalar)
}

/// An argument of an elementwise op.
enum Argument {
    Node(NodeId, Option<Scalar>),
    Known(Scalar),
    None,
}

impl Argument {
    fn of(graph: &Graph, node: Option<&NodeId>) -> Argument {
        match node {
            None => Argument::None,
            Some(&v) => match op_at(graph, v) {
                Some((Op::Full { value, .. }, _)) => Argument::Node(v, Some(*value)),
                _ => Argument::Node(v, None),
            },
        }
    }

    fn node(&self) -> Option<NodeId> {
        if let Argument::Node(v, _) = self { Some(*v) } else { None }
    }

    /// The number it always is.
    fn fixed(&self) -> Option<f64> {
        let (Argument::Known(s) | Argument::Node(_, Some(s))) = self else { return None };
        (s.origin == Origin::Constant && (s.dtype != DType::I64 || s.as_i64().unsigned_abs() < 1 << 52))
            .then(|| s.as_f64())
    }
}

fn is(a: &'static Row, b: &'static Row) -> bool {
    std::ptr::eq(a, b)
}

/// Whether a view reads each element where it was.
fn keeps_all(graph: &Graph, op: &Op, operands: &[NodeId], ty: crate::base::Type) -> bool {
    let types = operands.iter().map(|&o| graph.node(o).ty).collect();
    let mut probe = Probe::of_types(types, &Space::pointwise(ty.shape));
    let map = IndexMap::identity(ty.shape);
    op.rules().lower(&mut probe, ty, &map).is_ok() && matches!(probe.asked(), [(0, m, false)] if *m == map)
}

/// Gathers the operands of an elementwise op instead of its result, when that leaves less to compute: the op then
/// need not be computed at elements that nobody reads, nor stored for the gather to read from.
fn push_gather(out: &mut Rewriter<'_>, op: &Op, operands: &[NodeId], loc: Loc) -> Result<Option<NodeId>> {
    let Op::Gather { axis } = op else { return Ok(None) };
    let [x, index] = operands else { return Ok(None) };
    let (x_ty, index_ty) = (out.graph().node(*x).ty, out.graph().node(*index).ty);
    if index_ty.shape.numel().saturating_mul(4) > x_ty.shape.numel() {
        return Ok(None);
    }
    if x_ty.shape[*axis as usize] == 1 {
        return Ok(None);
    }
    // An operand of the whole shape is gathered; one that is the same along the axis is used as it is.
    let mut chain: Vec<(Op, SmallVec<[NodeId; 3]>, usize, Loc)> = Vec::new();
    let mut at = *x;
    while chain.len() < 64
        && let Some((inner @ Op::Elementwise(_), args)) = op_at(out.graph(), at)
    {
        let whole = |v: &NodeId| out.graph().node(*v).ty.shape == x_ty.shape;
        let repeats = |v: &NodeId| {
            let s = out.graph().node(*v).ty.shape;
            let lead = x_ty.shape.rank() - s.rank();
            (*axis as usize) < lead || s[*axis as usize - lead] == 1
        };
        let mut wholes = (0..args.len()).filter(|&i| whole(&args[i]));
        let (Some(i), None) = (wholes.next(), wholes.next()) else { break };
        if !args.iter().all(|v| whole(v) || repeats(v)) {
            break;
        }
        chain.push((*inner, args.into(), i, out.graph().node(at).loc));
        at = args[i];
    }
    if chain.is_empty() {
        return Ok(None);
    }
    let mut made = out.op(*op, &[at, *index], loc)?;
    for (inner, mut args, i, loc) in chain.into_iter().rev() {
        args[i] = made;
        made = out.op(inner, &args, loc)?;
    }
    Ok(Some(made))
}
