//! The reference evaluator against double precision and finite differences.

use stepgraph::base::host::HostData;
use stepgraph::base::{DType, HostValue, Layout, Loc, Scalar, Type};
use stepgraph::interp::{Precision, run};
use stepgraph::ir::emit::gradient;
use stepgraph::ir::{Graph, InputKind, NodeId, NodeOp};
use stepgraph::op::samples::{Random, Sample, samples};
use stepgraph::op::text;

/// The graph of one op on inputs of the sample's types, contiguous.
pub fn graph_of(sample: &Sample) -> Graph {
    let mut graph = Graph::new("sample");
    let inputs: Vec<NodeId> = sample.operands.iter().map(|o| input(&mut graph, o.ty)).collect();
    let out = graph.op(sample.op, &inputs, Loc::NONE).unwrap_or_else(|e| panic!("{:?}: {e}", sample));
    graph.output(out);
    graph
}

pub fn input(graph: &mut Graph, ty: Type) -> NodeId {
    graph.input(ty, InputKind::External, Layout::contiguous(ty.shape), Loc::NONE)
}

fn evaluate(graph: &Graph, inputs: &[HostValue], precision: Precision) -> Vec<HostValue> {
    run(graph, inputs, &[], precision).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

fn widen(inputs: &[HostValue]) -> Vec<HostValue> {
    let wide = |v: &HostValue| HostValue::new(v.shape, v.data.clone().widen());
    inputs.iter().map(wide).collect()
}

#[test]
fn evaluated_types_are_inferred_types() {
    for sample in samples() {
        let graph = graph_of(&sample);
        let out = &evaluate(&graph, &sample.inputs(1), Precision::Exact)[0];
        let ty = graph.node(graph.outputs()[0]).ty;
        assert_eq!((out.shape, out.data.dtype()), (ty.shape, ty.dtype), "{graph}");
        assert!(!matches!(out.data, HostData::Real(..)), "{graph}");
        assert_eq!(out.data.len(), ty.shape.numel(), "{graph}");
    }
}

#[test]
fn values_are_near_double_precision() {
    for (i, sample) in samples().iter().enumerate().filter(|(_, s)| !s.is_special()) {
        let graph = graph_of(sample);
        let inputs = sample.inputs(i as u64);
        let exact = &evaluate(&graph, &inputs, Precision::Exact)[0];
        let double = &evaluate(&graph, &widen(&inputs), Precision::F64)[0];
        if !exact.data.dtype().is_float() {
            // Comparisons, casts and integer arithmetic have one right answer.
            assert_eq!(exact, double, "{graph}");
            continue;
        }
        for (got, want) in exact.data.to_f64().iter().zip(double.data.to_f64()) {
            let bound = sample.relative * want.abs() + sample.absolute;
            assert!((got - want).abs() <= bound, "got {got}, expected {want} ± {bound}\n{graph}");
        }
    }
}

/// Rows and casts at infinities, NaN, zeros, denormals and the largest numbers of each dtype: the double reference,
/// rounded to the dtype, to within the bound of ordinary values (and the spacing of denormals).
#[test]
fn special_values_are_right() {
    let mut checked = 0;
    for (i, sample) in samples().iter().enumerate().filter(|(_, s)| s.is_special()) {
        if !matches!(sample.op, stepgraph::op::Op::Elementwise(_) | stepgraph::op::Op::Cast(_)) {
            continue;
        }
        let (graph, inputs) = (graph_of(sample), sample.inputs(i as u64));
        let exact = &evaluate(&graph, &inputs, Precision::Exact)[0];
        let dtype = exact.data.dtype();
        if inputs.iter().all(|v| v.data.dtype().is_int()) && !dtype.is_float() {
            continue; // see `integers_are_right`
        }
        let double = &evaluate(&graph, &widen(&inputs), Precision::F64)[0];
        if !dtype.is_float() {
            assert_eq!(exact, double, "{graph}");
            continue;
        }
        let spacing = match dtype {
            DType::F16 => 2f64.powi(-24),
            DType::BF16 => 2f64.powi(-133),
            DType::F64 => 5e-324,
            _ => 2f64.powi(-149),
        };
        for (k, (got, want)) in exact.data.to_f64().into_iter().zip(double.data.to_f64()).enumerate() {
            let rounded = Scalar::f64(want).cast(dtype).as_f64();
            let near = (got - want).abs() <= sample.relative * want.abs() + 4.0 * spacing;
            let same = if rounded.is_finite() { near } else { got == rounded || got.is_nan() && rounded.is_nan() };
            assert!(
                same,
                "element {k}: {got:e}, expected {want:e} of {:?}\n{graph}",
                inputs.iter().map(|v| v.data.to_f64()[k]).collect::<Vec<_>>()
            );
            checked += 1;
        }
    }
    assert!(checked > 10000, "{checked}");
}

/// What a row does on integers of any size; `None`: not said here.
fn integer(name: &str, x: &[i128]) -> Option<i128> {
    Some(match name {
        "add" => x[0] + x[1],
        "sub" => x[0] - x[1],
        "mul" => x[0] * x[1],
        "div" if x[1] == 0 => 0,
        "div" => x[0] / x[1],
        "neg" => -x[0],
        "abs" => x[0].abs(),
        "maximum" => x[0].max(x[1]),
        "minimum" => x[0].min(x[1]),
        "detach" => x[0],
        "eq" => (x[0] == x[1]) as i128,
        "ne" => (x[0] != x[1]) as i128,
        "lt" => (x[0] < x[1]) as i128,
        "le" => (x[0] <= x[1]) as i128,
        "gt" => (x[0] > x[1]) as i128,
        "ge" => (x[0] >= x[1]) as i128,
        "select" => x[if x[0] != 0 { 1 } else { 2 }],
        "fmod" | "rem" if x[1] == 0 => 0,
        "fmod" => x[0] % x[1],
        "rem" => (x[0] % x[1] + x[1]) % x[1],
        "and" => x[0] & x[1],
        "or" => x[0] | x[1],
        "xor" => x[0] ^ x[1],
        "not" => !x[0],
        "shl" => {
            if (0..64).contains(&x[1]) {
                x[0] << x[1]
            } else {
                0
            }
        }
        "shr" => x[0] >> if x[1] < 0 { 127 } else { x[1].min(127) },
        "sign" => x[0].signum(),
        "floor" | "ceil" | "round" | "trunc" => x[0],
        "clamp_min" => x[0].max(x[1]),
        "clamp_max" => x[0].min(x[1]),
        _ => return None,
    })
}

/// The lane of an integer wrapped to `dtype` (for bool it is 0 or 1).
fn wrapped(dtype: DType, v: i128) -> u64 {
    let bits = 8 * dtype.size() as u32;
    let low = v.rem_euclid(1 << bits);
    if dtype != DType::U8 && dtype != DType::Bool && low >= 1 << (bits - 1) {
        (low - (1 << bits)) as u64
    } else {
        low as u64
    }
}

/// Integer rows of every dtype, the extreme values too, against exact arithmetic that is wrapped once; rows not known to
/// [`integer`] against the doubles of their reference, cut to whole numbers, where all values are small.
#[test]
fn integers_are_right() {
    let mut checked = std::collections::HashMap::new();
    for (i, sample) in samples().iter().enumerate() {
        let stepgraph::op::Op::Elementwise(e) = sample.op else { continue };
        let Some(data) = sample.operands.iter().map(|o| o.ty.dtype).find(|d| d.is_int()) else { continue };
        let graph = graph_of(sample);
        let result = graph.node(graph.outputs()[0]).ty;
        let inputs = sample.inputs(i as u64);
        let wide = |v: &HostValue| {
            let layout = Layout::contiguous(v.shape).expand(result.shape);
            let strides = result.shape.strides();
            let at = |i: usize| {
                let axis = |a: usize| (i / strides[a] as usize % result.shape[a]) as isize * layout.strides()[a];
                (0..result.shape.rank()).map(axis).sum::<isize>() as usize
            };
            let lanes = v.data.lanes();
            (0..result.shape.numel()).map(|i| lanes[at(i)] as i64 as i128).collect::<Vec<_>>()
        };
        let mut next = inputs.iter();
        let columns: Vec<Vec<i128>> = (0..e.row.arity)
            .map(|p| match e.scalar {
                Some((at, s)) if at as usize == p => vec![s.cast(data).bits as i64 as i128; result.shape.numel()],
                _ => wide(next.next().unwrap()),
            })
            .collect();
        let want: Option<Vec<u64>> = (0..result.shape.numel())
            .map(|i| {
                let x: Vec<i128> = columns.iter().map(|c| c[i]).collect();
                let reals = || x.iter().map(|&v| v as f64).collect::<Vec<_>>();
                let by_doubles = || (!sample.is_special()).then(|| (e.row.reference)(&reals()).trunc() as i128);
                Some(wrapped(result.dtype, integer(e.row.name, &x).or_else(by_doubles)?))
            })
            .collect();
        let Some(want) = want else { continue };
        let out = &evaluate(&graph, &inputs, Precision::Exact)[0];
        assert_eq!(out.data, HostData::from_lanes(result.dtype, &want), "{graph}");
        *checked.entry(data).or_insert(0) += want.len();
    }
    assert!(checked.len() == 4 && checked.values().all(|&n| n > 5000), "{checked:?}");
}

/// Sums of integers and truth values are exact in i64, whatever their dtype.
#[test]
fn integer_sums_are_right() {
    let mut checked = 0;
    for (i, sample) in samples().iter().enumerate() {
        let stepgraph::op::Op::Reduce { kind: stepgraph::op::ReduceKind::Sum, axes, .. } = sample.op else { continue };
        let ty = sample.operands[0].ty;
        // All axes at once: the sum is of every element.
        if ty.dtype.is_float() || axes != ((1u16 << ty.shape.rank()) - 1) as u8 {
            continue;
        }
        let inputs = sample.inputs(i as u64);
        let sum: i128 = inputs[0].data.lanes().iter().map(|&v| v as i64 as i128).sum();
        let out = &evaluate(&graph_of(sample), &inputs, Precision::Exact)[0];
        assert_eq!(out.data, HostData::I64(vec![sum as i64]), "{ty}");
        checked += 1;
    }
    assert!(checked > 10, "{checked}");
}

/// Sum of all outputs, each times a fixed weight.
fn weighted(outputs: &[HostValue], weights: &[f64]) -> f64 {
    outputs.iter().flat_map(|o| o.data.to_f64()).zip(weights).map(|(v, w)| v * w).sum()
}

#[test]
fn gradients_are_finite_differences() {
    let step = 1e-6;
    let mut checked = 0;
    for (i, sample) in samples().iter().enumerate().filter(|(_, s)| !s.is_special()) {
        let forward = graph_of(sample);
        let out = forward.outputs()[0];
        // The rules are the same for all dtypes, but fixed numbers in them are rounded to 16 bits.
        if sample.operands.iter().any(|o| o.ty.dtype.is_half()) {
            continue;
        }
        // Ops without a gradient rule (`detach`) stop gradients, whatever their slope.
        if !sample.op.carries_gradient() {
            continue;
        }
        let inputs = widen(&sample.inputs(1000 + i as u64));
        let float = |k: usize| matches!(inputs[k].data, HostData::Real(..));
        if !forward.node(out).ty.dtype.is_float() || !(0..inputs.len()).any(float) {
            continue;
        }
        // The backward graph, its seed a further input.
        let mut graph = forward.clone();
        let seed = input(&mut graph, forward.node(out).ty);
        let leaves: Vec<NodeId> = graph.inputs()[..inputs.len()].iter().map(|i| i.node).collect();
        let grads = gradient(&mut graph, out, seed, &leaves).unwrap_or_else(|e| panic!("{e}\n{forward}"));
        let mut random = Random(i as u64);
        let n = forward.node(out).ty.shape.numel();
        let weights: Vec<f64> = (0..n).map(|_| random.unit() - 0.5).collect();
        for k in (0..inputs.len()).filter(|&k| float(k)) {
            let Some(grad) = grads[k] else { panic!("no gradient for operand {k}\n{forward}") };
            assert_eq!(graph.node(grad).ty, graph.node(leaves[k]).ty, "{graph}");
            let mut backward = graph.clone();
            backward.output(grad);
            let mut given = inputs.clone();
            let ty = forward.node(out).ty;
            given.push(HostValue::new(ty.shape, HostData::Real(ty.dtype, weights.clone())));
            let analytic = evaluate(&backward, &given, Precision::F64).pop().unwrap().data.to_f64();
            // Some elements of large operands, all of small ones.
            let count = analytic.len();
            for p in (0..count).step_by((count / 12).max(1)) {
                let at = |delta: f64| {
                    let mut moved = inputs.clone();
                    if let HostData::Real(_, v) = &mut moved[k].data {
                        v[p] += delta;
                    }
                    weighted(&evaluate(&forward, &moved, Precision::F64), &weights)
                };
                let numeric = (at(step) - at(-step)) / (2.0 * step);
                let bound = 1e-5 * numeric.abs().max(1.0);
                assert!(
                    (analytic[p] - numeric).abs() <= bound,
                    "operand {k}, element {p}: gradient {}, finite difference {numeric}\n{graph}",
                    analytic[p]
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 2000, "{checked}");
}

/// Gradients of gradients: those of Σ u·(∂ Σ v·op(x) / ∂x) by every operand and by v, against finite differences of the
/// first gradient, in f64.
#[test]
fn gradients_of_gradients_are_finite_differences() {
    let step = 1e-6;
    let (mut checked, mut not_zero) = (0, 0);
    for (i, sample) in samples().iter().enumerate().filter(|(_, s)| !s.is_special()) {
        let forward = graph_of(sample);
        let out = forward.outputs()[0];
        let inputs = widen(&sample.inputs(2000 + i as u64));
        let float = |k: &usize| matches!(inputs[*k].data, HostData::Real(..));
        let floats: Vec<usize> = (0..inputs.len()).filter(float).collect();
        let half = sample.operands.iter().any(|o| o.ty.dtype.is_half());
        let small = !half && inputs.iter().all(|v| v.data.len() <= 300);
        if !sample.op.carries_gradient() || !forward.node(out).ty.dtype.is_float() || floats.is_empty() || !small {
            continue;
        }
        // The first gradient, by all float operands at once: its outputs are those of `first`, its inputs the
        // operands and the seed v.
        let mut first = forward.clone();
        let seed = input(&mut first, forward.node(out).ty);
        let leaves: Vec<NodeId> = first.inputs().iter().map(|i| i.node).collect();
        let by: Vec<NodeId> = floats.iter().map(|&k| leaves[k]).collect();
        let slopes = gradient(&mut first, out, seed, &by).unwrap_or_else(|e| panic!("{e}\n{forward}"));
        let slopes: Vec<NodeId> = slopes.into_iter().flatten().collect();
        let mut random = Random(i as u64);
        let mut draw = |ty: Type| {
            let values = (0..ty.shape.numel()).map(|_| random.unit() - 0.5).collect();
            HostValue::new(ty.shape, HostData::Real(ty.dtype, values))
        };
        let mut given = inputs.clone();
        given.push(draw(forward.node(out).ty));
        let weights: Vec<HostValue> = slopes.iter().map(|&s| draw(first.node(s).ty)).collect();
        let flat: Vec<f64> = weights.iter().flat_map(|w| w.data.to_f64()).collect();
        let mut slopes_of = first.clone();
        slopes.iter().for_each(|&s| slopes_of.output(s));
        let total = |given: &[HostValue]| weighted(&evaluate(&slopes_of, given, Precision::F64)[1..], &flat);
        // The second, by the same operands and the seed: a sum over the first one's results.
        let mut second = first.clone();
        let upstream: Vec<NodeId> = slopes.iter().map(|&s| input(&mut second, first.node(s).ty)).collect();
        let targets: Vec<(usize, NodeId)> =
            floats.iter().map(|&k| (k, leaves[k])).chain([(inputs.len(), seed)]).collect();
        let nodes: Vec<NodeId> = targets.iter().map(|t| t.1).collect();
        let mut parts: Vec<Vec<NodeId>> = vec![Vec::new(); targets.len()];
        for (&slope, &u) in slopes.iter().zip(&upstream) {
            let grads = gradient(&mut second, slope, u, &nodes).unwrap_or_else(|e| panic!("{e}\n{second}"));
            for (part, grad) in parts.iter_mut().zip(grads) {
                part.extend(grad);
            }
        }
        let all = given.iter().cloned().chain(weights.iter().cloned()).collect::<Vec<_>>();
        for ((k, _), parts) in targets.iter().zip(&parts) {
            let count = given[*k].data.len();
            let mut analytic = vec![0.0; count];
            if !parts.is_empty() {
                let mut backward = second.clone();
                parts.iter().for_each(|&p| backward.output(p));
                for part in &evaluate(&backward, &all, Precision::F64)[1..] {
                    analytic.iter_mut().zip(part.data.to_f64()).for_each(|(a, p)| *a += p);
                }
            }
            for p in (0..count).step_by((count / 6).max(1)) {
                let at = |delta: f64| {
                    let mut moved = given.clone();
                    if let HostData::Real(_, v) = &mut moved[*k].data {
                        v[p] += delta;
                    }
                    total(&moved)
                };
                let numeric = (at(step) - at(-step)) / (2.0 * step);
                let bound = 1e-4 * numeric.abs().max(1.0);
                assert!(
                    (analytic[p] - numeric).abs() <= bound,
                    "operand {k}, element {p}: second gradient {}, finite difference {numeric}\n{second}",
                    analytic[p]
                );
                checked += 1;
                not_zero += (*k < inputs.len() && numeric.abs() > 1e-3) as usize;
            }
        }
    }
    assert!(checked > 2000 && not_zero > 200, "{checked} checked, {not_zero} not zero by an operand");
}

#[test]
fn ties_and_kinks_have_the_documented_gradients() {
    // Graph, inputs, gradient of the first operand for a seed of ones.
    let nan = f32::NAN;
    let inf = f64::INFINITY;
    let cases: [(&str, Vec<f32>, Vec<f64>); 25] = [
        ("%r: f32[4] = relu %x", vec![-1.0, 0.0, 2.0, nan], vec![0.0, 0.0, 1.0, 1.0]),
        ("%r: f32[4] = abs %x", vec![-1.0, 0.0, 2.0, -0.0], vec![-1.0, 0.0, 1.0, 0.0]),
        ("%r: f32[4] = maximum(scalar1=1.0:f32) %x", vec![1.0, 0.0, 2.0, 1.0], vec![0.5, 0.0, 1.0, 0.5]),
        ("%r: f32[4] = minimum(scalar0=1.0:f32) %x", vec![1.0, 0.0, 2.0, 1.0], vec![0.5, 1.0, 0.0, 0.5]),
        (
            "%r: f32[1] = max(axes=[0], keepdim=true) %x",
            vec![3.0, 1.0, 3.0, 3.0],
            vec![1.0 / 3.0, 0.0, 1.0 / 3.0, 1.0 / 3.0],
        ),
        // Bounds are inside; NaN is not.
        ("%r: f32[4] = clamp_min(scalar1=1.0:f32) %x", vec![1.0, 0.0, 2.0, nan], vec![1.0, 0.0, 1.0, 0.0]),
        ("%r: f32[4] = clamp_max(scalar1=1.0:f32) %x", vec![1.0, 0.0, 2.0, nan], vec![1.0, 1.0, 0.0, 0.0]),
        ("%r: f32[4] = clamp_min(scalar0=1.0:f32) %x", vec![1.0, 0.0, 2.0, nan], vec![0.0, 0.0, 1.0, 0.0]),
        ("%r: f32[4] = clamp_max(scalar0=1.0:f32) %x", vec![1.0, 0.0, 2.0, nan], vec![0.0, 1.0, 0.0, 0.0]),
        ("%r: f32[4] = sign %x", vec![1.0, 0.0, -2.0, nan], vec![0.0; 4]),
        ("%r: f32[4] = floor %x", vec![1.0, 0.5, -2.0, nan], vec![0.0; 4]),
        ("%r: f32[4] = ceil %x", vec![1.0, 0.5, -2.0, nan], vec![0.0; 4]),
        ("%r: f32[4] = round %x", vec![1.0, 0.5, -2.5, nan], vec![0.0; 4]),
        ("%r: f32[4] = trunc %x", vec![1.0, 0.5, -2.0, nan], vec![0.0; 4]),
        // y x^(y-1), but 0 for y = 0.
        ("%r: f32[4] = pow(scalar1=2.0:f32) %x", vec![0.0, -0.0, -3.0, nan], vec![0.0, 0.0, -6.0, f64::NAN]),
        ("%r: f32[4] = pow(scalar1=1.0:f32) %x", vec![0.0, -0.0, -3.0, 2.0], vec![1.0; 4]),
        ("%r: f32[4] = pow(scalar1=0.0:f32) %x", vec![0.0, -0.0, -3.0, nan], vec![0.0; 4]),
        ("%r: f32[4] = pow(scalar1=0.5:f32) %x", vec![0.0, 4.0, 1.0, -1.0], vec![inf, 0.25, 0.5, f64::NAN]),
        ("%r: f32[4] = pow(scalar1=-1.0:f32) %x", vec![0.0, 2.0, -2.0, 1.0], vec![-inf, -0.25, -0.25, -1.0]),
        // x^y ln x, but 0 for x = 0 and y >= 0.
        ("%r: f32[4] = pow(scalar0=0.0:f32) %x", vec![0.0, 2.0, -1.0, 0.5], vec![0.0, 0.0, -inf, 0.0]),
        ("%r: f32[4] = pow(scalar0=1.0:f32) %x", vec![0.0, 2.0, -1.0, 0.5], vec![0.0; 4]),
        // -trunc and -floor of the quotient.
        ("%r: f32[4] = fmod(scalar0=7.0:f32) %x", vec![2.0, -2.0, 7.0, 9.0], vec![-3.0, 3.0, -1.0, 0.0]),
        ("%r: f32[4] = rem(scalar0=7.0:f32) %x", vec![2.0, -2.0, 7.0, 9.0], vec![-3.0, 4.0, -1.0, 0.0]),
        ("%r: f32[4] = rem(scalar1=2.0:f32) %x", vec![2.0, -2.0, 7.0, 9.0], vec![1.0; 4]),
        ("%r: f32[4] = atan2(scalar1=0.0:f32) %x", vec![0.0, 1.0, -1.0, 2.0], vec![f64::NAN, 0.0, 0.0, 0.0]),
    ];
    for (line, x, want) in cases {
        let text = format!("graph @t(%x: f32[4]) {{ {line}\nreturn %r }}");
        let mut graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let out = graph.outputs()[0];
        let ty = graph.node(out).ty;
        let seed = input(&mut graph, ty);
        let leaf = graph.inputs()[0].node;
        let grad = gradient(&mut graph, out, seed, &[leaf]).unwrap()[0].unwrap();
        graph.output(grad);
        let ones = HostValue::new(graph.node(out).ty.shape, HostData::F32(vec![1.0; graph.node(out).ty.shape.numel()]));
        let x = HostValue::new(graph.node(leaf).ty.shape, HostData::F32(x));
        let got = evaluate(&graph, &[x, ones], Precision::Exact).pop().unwrap();
        let same = |g: f64, w: f64| (g - w).abs() < 1e-7 || g == w || g.is_nan() && w.is_nan();
        let close = got.data.to_f64().iter().zip(&want).all(|(&g, &w)| same(g, w));
        assert!(close, "{line}: {got:?}, expected {want:?}");
    }
}

#[test]
fn text_of_each_op_reads_back() {
    for sample in samples() {
        let printed = text::print(&sample.op);
        let read = text::parse(&printed).unwrap_or_else(|e| panic!("{printed}: {e}"));
        assert_eq!(read, sample.op, "{printed}");
        let graph = graph_of(&sample);
        let again: Graph = graph.to_string().parse().unwrap_or_else(|e| panic!("{e}\n{graph}"));
        let op = |g: &Graph| g.node(g.outputs()[0]).op;
        assert_eq!(op(&again), NodeOp::Op(sample.op), "{graph}");
    }
}

/// A scalar attribute that is a parameter of the trace stays that parameter in the gradient: never a copy of its value.
#[test]
fn gradients_keep_the_origin_of_scalars() {
    use stepgraph::base::scalar::Origin;
    let text = "graph @t(%x: f32[4]) params($0: f32, $1: i64) {
  %0: f32[4] = mul(scalar1=$0) %x
  %1: f32[4] = div(scalar0=$0) %0
  %2: f32[4] = maximum(scalar0=$0) %1
  %3: f32[2] = slice(axis=0, start=$1, len=2, step=1) %2
  return %3
}";
    let mut graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let out = graph.outputs()[0];
    let ty = graph.node(out).ty;
    let (seed, forward) = (input(&mut graph, ty), graph.len());
    let leaf = graph.inputs()[0].node;
    gradient(&mut graph, out, seed, &[leaf]).unwrap();
    let mut params = 0;
    for id in graph.ids().skip(forward) {
        let NodeOp::Op(op) = graph.node(id).op else { continue };
        for s in op.rules().scalars() {
            assert_ne!(s.origin, Origin::Host, "{graph}");
            params += matches!(s.origin, Origin::Param(_)) as usize;
        }
    }
    assert!(params >= 4, "{graph}");
}
