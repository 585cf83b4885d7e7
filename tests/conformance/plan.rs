//! A runner with nothing of a backend in it: the passes' plan, its kernels by the kernel interpreter, its library
//! calls by their definition.

use stepgraph::base::host::HostData;
use stepgraph::base::scalar::Origin;
use stepgraph::base::{DType, HostValue, Layout, Result, Scalar, Shape};
use stepgraph::ir::Graph;
use stepgraph::kernel::Ty;
use stepgraph::kernel::eval::{self, Memory};
use stepgraph::kernel::library::{self as calls, Library, Lines, MATMUL_SLICE, Matmul, ScatterAdd};
use stepgraph::op::{self, Op};
use stepgraph::pass::{Options, compile};
use stepgraph::plan::{OutputStorage, SlotKind, StepKind};

/// Byte offsets of a view's elements, in logical order.
pub fn positions(layout: &Layout) -> Vec<usize> {
    let strides = layout.shape.strides();
    (0..layout.shape.numel())
        .map(|i| {
            let at = |a: usize| (i / strides[a] as usize % layout.shape[a]) as isize * layout.strides[a];
            (layout.offset + (0..layout.shape.rank()).map(at).sum::<isize>()) as usize
        })
        .collect()
}

/// The bytes of a buffer in which `value` lies as `layout` says, the rest of it poison.
pub fn place(value: &HostValue, layout: &Layout, size: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0xa5; bytes];
    for (&p, element) in positions(layout).iter().zip(value.data.to_bytes().chunks(size)) {
        out[p * size..(p + 1) * size].copy_from_slice(element);
    }
    out
}

/// Runs `graph` as a plan; `in_place`: outputs that may use an input's buffer do.
pub fn run(
    graph: &Graph,
    inputs: &[HostValue],
    params: &[u64],
    options: &Options,
    in_place: bool,
) -> Result<Vec<HostValue>> {
    let checked = compile(graph, options)?.plan;
    let plan = checked.plan();
    // Buffer 0 is the arena, then the inputs', then the outputs'.
    let mut buffers: Vec<Vec<u8>> = vec![vec![0xa5; plan.arena_bytes]];
    for (value, input) in inputs.iter().zip(&plan.inputs) {
        buffers.push(place(value, &input.layout, input.ty.dtype.size(), input.bytes));
    }
    let mut output_buffers = Vec::new();
    for output in &plan.outputs {
        output_buffers.push(match (output.storage, output.in_place) {
            (OutputStorage::Own { .. }, Some(input)) if in_place => 1 + input as usize,
            (OutputStorage::Own { bytes }, _) => {
                buffers.push(vec![0xa5; bytes]);
                buffers.len() - 1
            }
            (OutputStorage::Input(k), _) => 1 + k as usize,
            (OutputStorage::Output(_), _) => usize::MAX,
        });
    }
    for step in &plan.steps {
        let slots: Vec<(usize, usize, usize)> = step
            .args
            .iter()
            .map(|&a| {
                let slot = &plan.slots[a as usize];
                match slot.kind {
                    SlotKind::Arena { offset } => (0, offset, slot.bytes),
                    SlotKind::Input(k) => (1 + k as usize, 0, slot.bytes),
                    SlotKind::Output(k) => (output_buffers[k as usize], 0, slot.bytes),
                }
            })
            .collect();
        let mut memory: Vec<Vec<u8>> = slots.iter().map(|&(b, o, n)| buffers[b][o..o + n].to_vec()).collect();
        let written: Vec<bool> = match &step.kind {
            StepKind::Kernel(kernel) => {
                let words: Vec<u64> = step.params.iter().map(|&p| params[p as usize]).collect();
                let mut views: Vec<Memory> = memory
                    .iter_mut()
                    .zip(&kernel.args)
                    .map(|(m, a)| if a.output { Memory::Out(m) } else { Memory::In(m) })
                    .collect();
                eval::run(kernel, &words, &mut views)?;
                kernel.args.iter().map(|a| a.output).collect()
            }
            StepKind::Library(call) => {
                let (last, rest) = memory.split_last_mut().unwrap();
                match call {
                    Library::Custom(c) => {
                        let words: Vec<u64> = step.params.iter().map(|&p| params[p as usize]).collect();
                        last.copy_from_slice(&custom(c, rest, &words));
                    }
                    _ => library(call, rest, last),
                }
                (0..slots.len()).map(|i| i + 1 == slots.len()).collect()
            }
        };
        for ((m, &(b, o, n)), written) in memory.iter().zip(&slots).zip(written) {
            if written {
                buffers[b][o..o + n].copy_from_slice(m);
            }
        }
    }
    let outputs = plan.outputs.iter().enumerate().map(|(i, output)| {
        let owner = if let OutputStorage::Output(k) = output.storage { k as usize } else { i };
        let (buffer, size) = (&buffers[output_buffers[owner]], output.ty.dtype.size());
        let bytes: Vec<u8> =
            positions(&output.layout).iter().flat_map(|&p| buffer[p * size..(p + 1) * size].to_vec()).collect();
        HostValue::new(output.ty.shape, HostData::from_bytes(output.ty.dtype, &bytes))
    });
    Ok(outputs.collect())
}

/// The elements as kernel lanes.
fn lanes(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(dtype.size()).map(|c| dtype.read(c)).collect()
}

/// A library call by its definition: 16-bit floats are computed in f32, integers in i64, and rounded or wrapped once.
pub fn library(call: &Library, operands: &[Vec<u8>], out: &mut [u8]) {
    if let Some(result) = along(call, operands) {
        out.copy_from_slice(&result);
        return;
    }
    let dtype = match call {
        Library::Matmul(m) => m.dtype,
        Library::ScatterAdd(s) => s.dtype,
        other => panic!("{other:?}"),
    };
    let mut result = lanes(dtype, out);
    match call {
        Library::Matmul(m) => {
            let [a, b] = [0, 1].map(|i| lanes(dtype, &operands[i]));
            if dtype == DType::F64 {
                let fma = |x: u64, y, sum| f64::from_bits(x).mul_add(f64::from_bits(y), f64::from_bits(sum)).to_bits();
                let add = |x: u64, y| (f64::from_bits(x) + f64::from_bits(y)).to_bits();
                matmul(m, &a, &b, &mut result, fma, add);
            } else {
                let f = |x: u64| f32::from_bits(x as u32);
                let fma = |x, y, sum| f(x).mul_add(f(y), f(sum)).to_bits() as u64;
                matmul(m, &a, &b, &mut result, fma, |x, y| (f(x) + f(y)).to_bits() as u64);
            }
        }
        Library::ScatterAdd(s) => {
            let (index, src) = (lanes(DType::I64, &operands[0]), lanes(dtype, &operands[1]));
            let f = |x: u64| f32::from_bits(x as u32);
            let add = |x: u64, y: u64| match Ty::of(dtype) {
                Ty::F64 => (f64::from_bits(x) + f64::from_bits(y)).to_bits(),
                Ty::F32 => (f(x) + f(y)).to_bits() as u64,
                _ => x.wrapping_add(y),
            };
            scatter_add(s, &index, &src, &mut result, add);
        }
        other => panic!("{other:?}"),
    }
    for (c, v) in out.chunks_exact_mut(dtype.size()).zip(result) {
        dtype.write(v, c);
    }
}

/// A user's kernel by its op's reference evaluation.
fn custom(c: &calls::Custom, operands: &[Vec<u8>], words: &[u64]) -> Vec<u8> {
    let value = |(bytes, b): (&Vec<u8>, &calls::Block)| {
        // Of no elements there is no offset either.
        let from = if b.shape.numel() == 0 { 0 } else { b.offset as usize * b.dtype.size() };
        let data = HostData::from_bytes(b.dtype, &bytes[from..from + b.shape.numel() * b.dtype.size()]);
        HostValue::new(b.shape, data)
    };
    let scalar = |s: &Scalar| match s.origin {
        Origin::Param(k) => Scalar { bits: words[k as usize], ..*s },
        _ => *s,
    };
    let definition = op::custom::named(c.kernel.0.name).expect("a registered op");
    let scalars: Vec<Scalar> = c.scalars.iter().map(scalar).collect();
    let op = Op::Custom(op::custom::Custom::new(definition, &scalars));
    let operands: Vec<HostValue> = operands.iter().zip(&c.inputs).map(value).collect();
    op.rules().eval(&operands).unwrap().data.to_bytes()
}

/// What an op's reference evaluation makes of the operands of a call along an axis, whose result has `size` bytes an element.
fn along_axis(op: Op, inputs: &[(&[u8], DType, &Lines)], dims: [usize; 3]) -> Vec<u8> {
    let shape = Shape::new(&dims).unwrap();
    let value = |&(bytes, dtype, lines): &(&[u8], DType, &Lines)| {
        let mut layout = Layout::contiguous(shape);
        layout.offset = lines.offset as isize;
        (0..3).for_each(|a| layout.strides[a] = lines.strides[a] as isize);
        let size = dtype.size();
        let elements: Vec<u8> =
            positions(&layout).iter().flat_map(|&p| bytes[p * size..(p + 1) * size].to_vec()).collect();
        HostValue::new(shape, HostData::from_bytes(dtype, &elements))
    };
    let operands: Vec<HostValue> = inputs.iter().map(value).collect();
    op.rules().eval(&operands).unwrap().data.to_bytes()
}

/// The calls along an axis, by the ops they come from; `None`: another call.
fn along(call: &Library, operands: &[Vec<u8>]) -> Option<Vec<u8>> {
    Some(match call {
        Library::ScatterIndex(s) => {
            let op = Op::ScatterIndex { axis: 1, len: s.len };
            along_axis(op, &[(&operands[0], DType::I64, &s.index)], s.dims)
        }
        Library::Scan(s) => {
            let inputs: Vec<_> =
                operands.iter().zip(&s.inputs).map(|(bytes, l)| (bytes.as_slice(), s.dtype, l)).collect();
            along_axis(Op::Scan { kind: s.kind, axis: 1, reverse: s.reverse }, &inputs, s.dims)
        }
        Library::Argsort(s) => {
            let op = Op::Argsort { axis: 1, descending: s.descending };
            along_axis(op, &[(&operands[0], s.dtype, &s.input)], s.dims)
        }
        _ => return None,
    })
}

fn matmul(
    m: &Matmul,
    a: &[u64],
    b: &[u64],
    c: &mut [u64],
    fma: impl Fn(u64, u64, u64) -> u64,
    add: impl Fn(u64, u64) -> u64,
) {
    let items: usize = m.batch.iter().product();
    for item in 0..items {
        let mut rest = item;
        let mut start = [m.a.offset, m.b.offset, m.c.offset];
        for axis in (0..m.batch.len()).rev() {
            let i = (rest % m.batch[axis]) as i64;
            rest /= m.batch[axis];
            start[0] += i * m.a.batch[axis];
            start[1] += i * m.b.batch[axis];
            start[2] += i * m.c.batch[axis];
        }
        for (i, j) in (0..m.m as i64).flat_map(|i| (0..m.n as i64).map(move |j| (i, j))) {
            let product = |l: i64, sum: u64| {
                let x = a[(start[0] + i * m.a.row + l * m.a.col) as usize];
                fma(x, b[(start[1] + l * m.b.row + j * m.b.col) as usize], sum)
            };
            let slices = (0..m.k)
                .step_by(MATMUL_SLICE)
                .map(|s| (s..(s + MATMUL_SLICE).min(m.k)).fold(0, |sum, l| product(l as i64, sum)));
            c[(start[2] + i * m.c.row + j * m.c.col) as usize] = slices.reduce(&add).unwrap_or(0);
        }
    }
}

fn scatter_add(s: &ScatterAdd, index: &[u64], src: &[u64], out: &mut [u64], add: impl Fn(u64, u64) -> u64) {
    out.fill(0);
    let at = |strides: [i64; 3], o: usize, j: usize, i: usize| {
        (o as i64 * strides[0] + j as i64 * strides[1] + i as i64 * strides[2]) as usize
    };
    for o in 0..s.outer {
        for j in 0..s.count {
            for i in 0..s.inner {
                let row = (index[at(s.index, o, j, i)] as i64).clamp(0, s.len as i64 - 1) as usize;
                let sum = &mut out[(o * s.len + row) * s.inner + i];
                *sum = add(*sum, src[at(s.src, o, j, i)]);
            }
        }
    }
}
