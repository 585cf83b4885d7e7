//! Each sample as graphs in several forms, so that an op meets operands that are views and values
//! computed in the same kernel, and consumers that read it at other indices.

use stepgraph::base::scalar::Origin;
use stepgraph::base::{DType, HostValue, Layout, Loc, Scalar, Shape, Type};
use stepgraph::interp::{self, Precision};
use stepgraph::ir::{Graph, InputKind, NodeId};
use stepgraph::op::elementwise::{Elementwise, row};
use stepgraph::op::samples::{Random, Sample, Values, samples};
use stepgraph::op::{AxisList, Op};

use crate::Run;

/// A graph with inputs.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<HostValue>,
    pub params: Vec<u64>,
}

impl Case {
    /// Whether `run` gives the reference evaluator's bits.
    pub fn check(&self, run: &Run<'_>) -> Result<(), String> {
        let want = interp::run(&self.graph, &self.inputs, &self.params, Precision::Exact)
            .map_err(|e| format!("reference: {e}"))?;
        let got = run(&self.graph, &self.inputs, &self.params).map_err(|e| e.to_string())?;
        if got.len() != want.len() {
            return Err(format!("{} outputs, expected {}", got.len(), want.len()));
        }
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            if let Some(difference) = difference(g, w) {
                return Err(format!("output {i}: {difference}"));
            }
        }
        Ok(())
    }
}

/// Where two values differ in a bit (NaN are all alike).
fn difference(got: &HostValue, want: &HostValue) -> Option<String> {
    if got.shape != want.shape {
        return Some(format!("shape {}, expected {}", got.shape, want.shape));
    }
    if got.data.dtype() != want.data.dtype() {
        return Some(format!("dtype {}, expected {}", got.data.dtype(), want.data.dtype()));
    }
    let at = got.data.difference(&want.data)?;
    let show = |v: &HostValue| v.data.to_text()[at].clone();
    Some(format!("element {at} is {}, expected {}", show(got), show(want)))
}

/// How an operand reaches the op.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// A contiguous input.
    Plain,
    /// A permuted view of an input.
    Permuted,
    /// A slice whose start is a parameter, with a step.
    Sliced,
    /// A length-1 axis stretched.
    Expanded,
    /// A reshaped input.
    Reshaped,
    /// An input that itself lies strided in memory.
    Strided,
    /// A value computed by another op.
    Computed,
    /// Two pieces joined.
    Joined,
}

const FORMS: [Form; 8] = [
    Form::Plain,
    Form::Permuted,
    Form::Sliced,
    Form::Expanded,
    Form::Reshaped,
    Form::Strided,
    Form::Computed,
    Form::Joined,
];

/// What becomes of the result.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    /// Computed on, permuted, and flat.
    Used,
    /// Sliced and put back, reduced.
    Reduced,
}

struct Making {
    case: Case,
    random: Random,
}

fn elementwise(name: &str) -> Op {
    Op::Elementwise(Elementwise::new(row(name).unwrap()))
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

impl Making {
    fn op(&mut self, op: Op, operands: &[NodeId]) -> NodeId {
        self.case.graph.op(op, operands, Loc::NONE).unwrap_or_else(|e| panic!("{op:?}: {e}"))
    }

    fn input(&mut self, ty: Type, layout: Layout, values: Values) -> NodeId {
        let value = stepgraph::op::samples::Operand { ty, values }.fill(&mut self.random);
        self.case.inputs.push(value);
        self.case.graph.input(ty, InputKind::External, layout, Loc::NONE)
    }

    fn plain(&mut self, ty: Type, values: Values) -> NodeId {
        self.input(ty, Layout::contiguous(ty.shape), values)
    }

    fn parameter(&mut self, value: i64) -> Scalar {
        let k = self.case.graph.param(DType::I64);
        self.case.params.push(value as u64);
        Scalar { bits: 0, dtype: DType::I64, origin: Origin::Param(k) }
    }

    /// An operand of type `ty` in the given form.
    fn operand(&mut self, ty: Type, values: Values, form: Form) -> NodeId {
        let dims = ty.shape.dims().to_vec();
        let rank = dims.len();
        let of = |dims: &[usize]| Type::new(ty.dtype, shape(dims));
        match form {
            Form::Permuted if rank >= 2 => {
                let x = self.plain(of(&dims.iter().rev().copied().collect::<Vec<_>>()), values);
                let order: Vec<usize> = (0..rank).rev().collect();
                self.op(Op::Permute { order: AxisList::new(&order) }, &[x])
            }
            Form::Sliced if rank >= 1 => {
                let axis = rank - 1;
                let (len, step) = (dims[axis], 2);
                let mut wide = dims.clone();
                wide[axis] = 2 * len + 3;
                let x = self.plain(of(&wide), values);
                let start = self.parameter(3);
                self.op(Op::Slice { axis: axis as u8, start, len, step }, &[x])
            }
            Form::Expanded if rank >= 1 => {
                let mut narrow = dims.clone();
                narrow[0] = 1;
                let x = self.plain(of(&narrow), values);
                self.op(Op::Expand { shape: ty.shape }, &[x])
            }
            Form::Reshaped => {
                let x = self.plain(of(&[ty.shape.numel()]), values);
                self.op(Op::Reshape { shape: ty.shape }, &[x])
            }
            Form::Strided if rank >= 1 => {
                // Every second element, the axes in reverse, the first of them backwards, after an offset.
                let reversed: Vec<usize> = dims.iter().rev().copied().collect();
                let order: Vec<usize> = (0..rank).rev().collect();
                let mut layout = Layout::contiguous(shape(&reversed)).permute(&order);
                layout.strides.iter_mut().for_each(|s| *s *= 2);
                layout.offset = 3 + layout.strides[0] * (dims[0] as isize - 1).max(0);
                layout.strides[0] *= -1;
                self.input(ty, layout, values)
            }
            Form::Computed => {
                let x = self.plain(ty, values);
                let twice = |m: &mut Making, name: &str| {
                    let once = m.op(elementwise(name), &[x]);
                    m.op(elementwise(name), &[once])
                };
                twice(self, if ty.dtype == DType::Bool { "not" } else { "neg" })
            }
            Form::Joined if rank >= 1 => {
                let mut parts = [dims.clone(), dims.clone()];
                parts[0][0] = dims[0] / 3;
                parts[1][0] = dims[0] - dims[0] / 3;
                let [a, b] = parts.map(|d| self.plain(of(&d), values));
                self.op(Op::Concat { axis: 0 }, &[a, b])
            }
            _ => self.plain(ty, values),
        }
    }

    fn finish(&mut self, result: NodeId, after: After) {
        let ty = self.case.graph.node(result).ty;
        let rank = ty.shape.rank();
        match after {
            After::Nothing => self.case.graph.output(result),
            After::Used => {
                let neg = self.op(elementwise(if ty.dtype == DType::Bool { "not" } else { "neg" }), &[result]);
                let order: Vec<usize> = (0..rank).rev().collect();
                let turned = self.op(Op::Permute { order: AxisList::new(&order) }, &[neg]);
                let flat = self.op(Op::Reshape { shape: shape(&[ty.shape.numel()]) }, &[turned]);
                let last = self.op(elementwise("eq"), &[flat, flat]);
                for out in [last, flat, result] {
                    self.case.graph.output(out);
                }
            }
            After::Reduced => {
                let float = self.op(Op::Cast(DType::F32), &[result]);
                let sum = |axes| Op::Reduce { kind: stepgraph::op::ReduceKind::Sum, axes, keepdim: false };
                let outputs = if rank == 0 {
                    vec![float]
                } else {
                    let len = ty.shape[0];
                    let start = self.parameter((len / 2) as i64);
                    let half = len - len / 2;
                    let axis = 0;
                    let part = self.op(Op::Slice { axis, start, len: half, step: 1 }, &[float]);
                    let back = self.op(Op::Unslice { axis, start, len, step: 1 }, &[part]);
                    let all = self.op(sum(((1u32 << rank) - 1) as u8), &[back]);
                    let rows = self.op(sum(1 << (rank - 1)), &[float]);
                    let columns = self.op(sum(1), &[float]);
                    vec![all, rows, columns, back]
                };
                for out in outputs {
                    self.case.graph.output(out);
                }
            }
        }
    }
}

fn case(sample: &Sample, form: Form, after: After, seed: u64) -> Case {
    let case = Case { graph: Graph::new("sample"), inputs: vec![], params: vec![] };
    let mut m = Making { case, random: Random(seed) };
    let operands: Vec<NodeId> = sample.operands.iter().map(|o| m.operand(o.ty, o.values, form)).collect();
    let op = with_params(&mut m.case, sample.op);
    let result = m.op(op, &operands);
    m.finish(result, after);
    m.case
}

/// The op with its scalars as parameters.
fn with_params(case: &mut Case, op: Op) -> Op {
    let mut scalars = op.rules().scalars();
    // Starts stay constants in half the cases, by their value: both lowerings are used.
    for s in scalars.iter_mut().filter(|s| s.bits % 2 == 1 || s.dtype.is_float()) {
        let k = case.graph.param(s.dtype);
        case.params.push(s.bits);
        *s = Scalar { bits: 0, dtype: s.dtype, origin: Origin::Param(k) };
    }
    if scalars.is_empty() { op } else { op.rules().with_scalars(&scalars) }
}

/// All samples in all forms.
pub fn cases() -> impl Iterator<Item = Case> {
    samples().into_iter().enumerate().flat_map(|(i, sample)| {
        let seed = 7 * i as u64;
        let mut out: Vec<Case> = FORMS
            .into_iter()
            // Without operands there is one form.
            .filter(|&f| f == Form::Plain || !sample.operands.is_empty())
            .map(|form| case(&sample, form, After::Nothing, seed))
            .collect();
        for form in [Form::Plain, Form::Computed, Form::Permuted] {
            for after in [After::Used, After::Reduced] {
                out.push(case(&sample, form, after, seed + 1));
            }
        }
        out
    })
}

/// Graphs large enough that kernels are split over threads.
pub fn large() -> impl Iterator<Item = Case> {
    let texts = [
        // A pointwise chain, its sums by rows, by columns and over all.
        "graph @chain(%x: f32[600,500], %y: f32[500]) {
          %0: f32[600,500] = mul %x, %y
          %1: f32[600,500] = tanh %0
          %2: f32[600,500] = exp %1
          %3: f32[600] = sum(axes=[1]) %2
          %4: f32[500] = sum(axes=[0]) %2
          %5: f32[] = sum(axes=[0,1]) %1
          %6: f32[500] = max(axes=[0]) %1
          return %2, %3, %4, %5, %6
        }",
        // Softmax of rows.
        "graph @softmax(%x: f32[300,1000]) {
          %0: f32[300,1] = max(axes=[1], keepdim=true) %x
          %1: f32[300,1000] = sub %x, %0
          %2: f32[300,1000] = exp %1
          %3: f32[300,1] = sum(axes=[1], keepdim=true) %2
          %4: f32[300,1000] = div %2, %3
          return %4
        }",
        // Products with transposed and batched operands.
        "graph @products(%a: f32[130,700], %b: f32[90,700], %c: f32[3,90,70]) {
          %0: f32[700,90] = permute(order=[1,0]) %b
          %1: f32[130,90] = matmul %a, %0
          %2: f32[3,130,70] = matmul %1, %c
          %3: f32[130] = sum(axes=[0,2]) %2
          return %1, %2, %3
        }",
        // The same in 16 bits and in f64.
        "graph @halves(%a: bf16[130,700], %b: bf16[90,700], %c: bf16[3,90,70], %h: f16[300,400], %v: f16[400,1]) {
          %0: bf16[700,90] = permute(order=[1,0]) %b
          %1: bf16[130,90] = matmul %a, %0
          %2: bf16[3,130,70] = matmul %1, %c
          %3: bf16[130] = sum(axes=[0,2]) %2
          %4: f16[300,1] = matmul %h, %v
          %5: f16[400,300] = permute(order=[1,0]) %h
          %6: f16[400,400] = matmul %5, %h
          %7: f16[400,400] = tanh %6
          %8: f16[400] = sum(axes=[0]) %7
          return %1, %2, %3, %4, %6, %8
        }",
        "graph @doubles(%a: f64[130,700], %b: f64[90,700], %x: f64[300,1000]) {
          %0: f64[700,90] = permute(order=[1,0]) %b
          %1: f64[130,90] = matmul %a, %0
          %2: f64[300,1] = max(axes=[1], keepdim=true) %x
          %3: f64[300,1000] = sub %x, %2
          %4: f64[300,1000] = exp %3
          %5: f64[300,1] = sum(axes=[1], keepdim=true) %4
          %6: f64[300,1000] = div %4, %5
          %7: f64[1000] = sum(axes=[0]) %6
          return %1, %6, %7
        }",
        // Integers of every width in one kernel; bytes and halves over several tiles.
        "graph @integers(%a: i32[300,400], %b: u8[300,400], %c: i8[400], %h: bf16[300,400]) {
          %0: i32[300,400] = cast(i32) %b
          %1: i32[300,400] = mul %a, %0
          %2: i8[300,400] = cast(i8) %1
          %3: i8[300,400] = add %2, %c
          %4: u8[300,400] = sub(scalar0=3:u8) %b
          %5: i64[300] = sum(axes=[1]) %4
          %6: i64[400] = sum(axes=[0]) %1
          %7: bf16[300,400] = cast(bf16) %3
          %8: bf16[300,400] = mul %7, %h
          %9: bool[300,400] = lt %8, %h
          return %1, %3, %4, %5, %6, %8, %9
        }",
        // Long rows, few of them; a long vector.
        "graph @long(%x: f32[3,100003], %u: f32[400000]) {
          %0: f32[3] = sum(axes=[1]) %x
          %1: f32[100003] = sum(axes=[0]) %x
          %2: f32[] = sum(axes=[0]) %u
          %3: f32[] = min(axes=[0]) %u
          %4: f32[400000] = relu %u
          return %0, %1, %2, %3, %4
        }",
        // Draws and a mask.
        "graph @dropout(%x: f32[512,300]) params($0: i64, $1: i64, $2: f32) {
          %0: f32[512,300] = uniform(shape=[512,300], seed=$0, counter=$1)
          %1: bool[512,300] = lt(scalar1=$2) %0
          %2: f32[512,300] = select(scalar2=0.0:f32) %1, %x
          return %2
        }",
    ];
    texts.into_iter().map(|text| {
        let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let mut random = Random(5);
        let fill = |i: &stepgraph::ir::Input| {
            let ty = graph.node(i.node).ty;
            stepgraph::op::samples::Operand { ty, values: Values::Range(-2.0, 2.0) }.fill(&mut random)
        };
        let inputs = graph.inputs().iter().map(fill).collect();
        let params = if graph.params().is_empty() { vec![] } else { vec![42, 1 << 35, 0.8f32.to_bits() as u64] };
        Case { graph, inputs, params }
    })
}
