//! Library calls, against their definitions in `kernel/library.rs` written down naively.

use super::{Case, difference, run};
use crate::backend::cuda::render::form::Tuning;
use crate::backend::cuda::render::{Place, Signature, render_with};
use crate::base::scalar::Origin;
use crate::base::{DType, Scalar, Shape};
use crate::kernel::custom::{HostKernel, KernelRef};
use crate::kernel::library::{Argsort, Block, Custom, Library, Lines, Scan, ScanKind, ScatterAdd, ScatterIndex};
use crate::kernel::random::Random;
use crate::kernel::{Instr, Ty};
use crate::plan::StepKind;

struct Trial {
    case: Case,
    dtype: DType,
    want: Vec<u8>,
    flag: bool,
    what: String,
}

fn check(trials: Vec<Trial>) {
    let (cases, wants): (Vec<Case>, Vec<_>) =
        trials.into_iter().map(|t| (t.case, (t.dtype, t.want, t.flag, t.what))).unzip();
    for (i, ((got, flag), (dtype, want, want_flag, what))) in run(&cases).into_iter().zip(wants).enumerate() {
        let difference = difference(dtype, got.last().unwrap(), &want);
        assert!(difference.is_none(), "{what}: {difference:?}\n{}", cases[i].rendered.source);
        assert_eq!(flag & 1, want_flag as u32, "{what}: the flag");
    }
}

fn trial(r: &mut Random, library: Library, buffers: Vec<Vec<u8>>, dtype: DType, want: Vec<u8>, flag: bool) -> Trial {
    let what = format!("{library:?}");
    let place = |r: &mut Random| if r.below(3) == 0 { Place::Block } else { Place::Direct };
    let args = buffers.iter().map(|_| place(r)).collect();
    let signature =
        Signature { args, params: place(r), guarded: vec![false; buffers.len()], may_alias: r.below(3) == 0 };
    let most = if r.below(3) == 0 { 3 } else { 1 << 20 };
    let unique = r.word();
    let rendered = render_with(
        &StepKind::Library(library),
        &format!("call {unique}"),
        &signature,
        Tuning { most_blocks: most, ..Tuning::DEFAULT },
    )
    .unwrap();
    let case = Case { rendered, signature, params: vec![], buffers, shared: vec![], flag: 0, shift: 0 };
    Trial { case, dtype, want, flag, what }
}

fn lane(r: &mut Random, dtype: DType) -> u64 {
    let whole = r.below(7) as f64 - 3.0;
    let value = if r.below(3) == 0 { whole } else { whole + r.word() as f64 / 2f64.powi(63) };
    match Ty::of(dtype) {
        Ty::F32 if r.below(40) == 0 => f32::NAN.to_bits() as u64,
        Ty::F32 => dtype.round((value as f32).to_bits() as u64),
        Ty::F64 if r.below(40) == 0 => f64::NAN.to_bits(),
        Ty::F64 => value.to_bits(),
        Ty::Bool => r.below(2) as u64,
        _ => dtype.round(if r.below(4) == 0 { r.word() } else { whole as i64 as u64 }),
    }
}

fn bytes(dtype: DType, lanes: &[u64]) -> Vec<u8> {
    let mut out = vec![0; lanes.len() * dtype.size()];
    out.chunks_exact_mut(dtype.size()).zip(lanes).for_each(|(c, &l)| dtype.write(l, c));
    out
}

fn fill(r: &mut Random, dtype: DType, n: usize) -> Vec<u64> {
    (0..n).map(|_| lane(r, dtype)).collect()
}

/// Lines over `dims` in one of several layouts, and the number of elements they lie in.
fn lines(r: &mut Random, dims: [usize; 3]) -> (Lines, usize) {
    let [a, b, c] = dims.map(|d| d.max(1) as i64);
    match r.below(4) {
        0 => (Lines { offset: 2, strides: [1, a * c, a] }, (a * b * c + 2) as usize),
        1 => (Lines { offset: 0, strides: [0, c, 1] }, (b * c) as usize),
        2 => (Lines { offset: (b - 1) * c, strides: [b * c, -c, 1] }, (a * b * c) as usize),
        _ => (Lines { offset: 0, strides: [b * c, c, 1] }, (a * b * c) as usize),
    }
}

fn element(l: &Lines, at: [usize; 3]) -> usize {
    (l.offset + (0..3).map(|k| l.strides[k] * at[k] as i64).sum::<i64>()) as usize
}

/// Every combination of coordinates before and after the axis.
fn across(dims: [usize; 3]) -> impl Iterator<Item = (usize, usize)> {
    (0..dims[0]).flat_map(move |o| (0..dims[2]).map(move |i| (o, i)))
}

const NUMBERS: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I8, DType::U8];

fn on(dtype: DType, instr: Instr, a: u64, b: u64) -> u64 {
    instr.on(Ty::of(dtype)).unwrap().eval(&[a, b])
}

#[test]
fn scans() {
    let r = &mut Random::new(21);
    let mut trials = Vec::new();
    for n in 0..40 {
        let dtype = NUMBERS[n % 8];
        let kind = ScanKind::ALL[n % 3];
        let dims = [[3, 17, 1], [1, 40, 5], [2, 1, 3], [4, 9, 2], [2, 0, 2]][n % 5];
        let inputs: Vec<(Lines, usize)> = (0..kind.inputs()).map(|_| lines(r, dims)).collect();
        let data: Vec<Vec<u64>> = inputs.iter().map(|(_, n)| fill(r, dtype, *n)).collect();
        let reverse = r.below(2) == 1;
        let mut out = vec![0; dims.iter().product()];
        for (o, i) in across(dims) {
            let mut before = 0;
            for k in 0..dims[1] {
                let j = if reverse { dims[1] - 1 - k } else { k };
                let value = |n: usize| data[n][element(&inputs[n].0, [o, j, i])];
                let x = value(inputs.len() - 1);
                before = match kind {
                    _ if k == 0 => x,
                    ScanKind::Sum => on(dtype, Instr::Add, before, x),
                    ScanKind::Product => on(dtype, Instr::Mul, before, x),
                    ScanKind::Recurrence => on(dtype, Instr::Add, on(dtype, Instr::Mul, value(0), before), x),
                };
                out[(o * dims[1] + j) * dims[2] + i] = before;
            }
        }
        let mut buffers: Vec<Vec<u8>> = data.iter().map(|d| bytes(dtype, d)).collect();
        buffers.push(vec![0x77; out.len() * dtype.size()]);
        let inputs = inputs.into_iter().map(|i| i.0).collect();
        let call = Library::Scan(Scan { dtype, kind, reverse, dims, inputs });
        trials.push(trial(r, call, buffers, dtype, bytes(dtype, &out), false));
    }
    check(trials);
}

/// Indices, now and then out of range.
fn indices(r: &mut Random, n: usize, len: usize, wrong: bool) -> Vec<u64> {
    let all = r.below(6) == 0;
    (0..n)
        .map(|_| match r.below(30) {
            0 if wrong => -1i64 as u64,
            1 if wrong => len as u64 + 3,
            _ if all => 0,
            _ => r.below(len) as u64,
        })
        .collect()
}

fn clamp(index: u64, len: usize, flag: &mut bool) -> usize {
    *flag |= index >= len as u64;
    (index as i64).clamp(0, len as i64 - 1) as usize
}

#[test]
fn scatter_indices() {
    let r = &mut Random::new(22);
    let mut trials = Vec::new();
    for n in 0..15 {
        let dims = [[3, 17, 1], [1, 40, 5], [2, 0, 3], [4, 9, 2], [1, 2000, 1]][n % 5];
        let len = [7, 1, 30][n % 3];
        let (index, size) = lines(r, dims);
        let data = indices(r, size, len, n % 2 == 0);
        let mut out = vec![-1i64 as u64; dims[0] * len * dims[2]];
        let mut flag = false;
        for (o, i) in across(dims) {
            for j in 0..dims[1] {
                let to = clamp(data[element(&index, [o, j, i])], len, &mut flag);
                out[(o * len + to) * dims[2] + i] = j as u64;
            }
        }
        let buffers = vec![bytes(DType::I64, &data), vec![0x77; out.len() * 8]];
        let call = Library::ScatterIndex(ScatterIndex { dims, len, index });
        trials.push(trial(r, call, buffers, DType::I64, bytes(DType::I64, &out), flag));
    }
    check(trials);
}

#[test]
fn scatter_additions() {
    let r = &mut Random::new(23);
    let mut trials = Vec::new();
    for n in 0..32 {
        let dtype = NUMBERS[n % 8];
        let dims = [[3, 17, 1], [1, 40, 5], [2, 0, 3], [4, 9, 2], [1, 3000, 2], [1, 1100, 1]][n % 6];
        let [outer, count, inner] = dims;
        let len = [7, 1, 300][n % 3];
        let index = match n % 4 {
            0 => Lines { offset: 0, strides: [0, 1, 0] },
            1 => Lines { offset: 0, strides: [count as i64, 1, 0] },
            2 => Lines { offset: 0, strides: [0, inner as i64, 1] },
            _ => Lines { offset: 0, strides: [(count * inner) as i64, inner as i64, 1] },
        };
        let data = indices(r, outer * count * inner, len, n % 2 == 0);
        let (src, size) = loop {
            let (l, size) = lines(r, dims);
            if l.offset == 0 {
                break (l, size);
            }
        };
        let values = fill(r, dtype, size);
        let mut out = vec![0; outer * len * inner];
        let mut flag = false;
        for (o, i) in across(dims) {
            for j in 0..count {
                let to = clamp(data[element(&index, [o, j, i])], len, &mut flag);
                let sum = &mut out[(o * len + to) * inner + i];
                *sum = on(dtype, Instr::Add, *sum, values[element(&src, [o, j, i])]);
            }
        }
        let want = bytes(dtype, &out);
        let buffers = vec![bytes(DType::I64, &data), bytes(dtype, &values), vec![0x77; want.len()]];
        let call = ScatterAdd { dtype, outer, count, len, inner, index: index.strides, src: src.strides };
        trials.push(trial(r, Library::ScatterAdd(call), buffers, dtype, want, flag));
    }
    check(trials);
}

#[test]
fn sorts() {
    let r = &mut Random::new(24);
    let mut trials = Vec::new();
    for n in 0..36 {
        let dtype = DType::ALL[n % 9];
        let dims = [[3, 17, 1], [1, 40, 5], [50, 1, 3], [4, 1024, 2], [1, 1025, 1], [2, 5000, 1], [40, 32, 3]][n % 7];
        let (input, size) = lines(r, dims);
        let data = fill(r, dtype, size);
        let descending = r.below(2) == 1;
        let mut out = vec![0; dims.iter().product()];
        for (o, i) in across(dims) {
            let mut order: Vec<usize> = (0..dims[1]).collect();
            let value = |j: usize| data[element(&input, [o, j, i])];
            order.sort_by(|&a, &b| {
                let (a, b) = if descending { (value(b), value(a)) } else { (value(a), value(b)) };
                match Ty::of(dtype) {
                    Ty::F32 | Ty::F64 => {
                        let number = |l: u64| {
                            if dtype == DType::F64 { f64::from_bits(l) } else { f32::from_bits(l as u32) as f64 }
                        };
                        let (a, b) = (number(a), number(b));
                        a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()))
                    }
                    _ => (a as i64).cmp(&(b as i64)),
                }
            });
            order.iter().enumerate().for_each(|(k, &j)| out[(o * dims[1] + k) * dims[2] + i] = j as u64);
        }
        let buffers = vec![bytes(dtype, &data), vec![0x77; out.len() * 8]];
        let call = Library::Argsort(Argsort { dtype, descending, dims, input });
        trials.push(trial(r, call, buffers, DType::I64, bytes(DType::I64, &out), false));
    }
    check(trials);
}

fn users(name: &'static str, cuda: Option<&str>) -> KernelRef {
    KernelRef(Box::leak(Box::new(HostKernel { name, cpu: None, cuda: cuda.map(str::to_string) })))
}

fn block(dtype: DType, dims: &[usize], offset: i64) -> Block {
    Block { dtype, shape: Shape::new(dims).unwrap(), offset }
}

#[test]
fn users_functions() {
    // Rows of x times w, and a shift; half-precision input.
    let source = "__device__ float scale(float x) { return 2.0f * x; }
__device__ void compute(long long i, float* out, const unsigned short* x, const float* w, float shift, int n) {
    if (i % 2 == 0) return;
    float sum = shift;
    for (long long k = 0; k < IN1_LEN; ++k) sum += from_bf16(x[i * IN0_DIM1 + k]) * w[k];
    out[i] = scale(sum) + (float)n;
}";
    let kernel = users("rows", Some(source));
    let scalar = |dtype, bits, origin| Scalar { bits, dtype, origin };
    let custom = Custom {
        kernel,
        inputs: vec![block(DType::BF16, &[4, 3], 1), block(DType::F32, &[3], 0)],
        output: block(DType::F32, &[4], 2),
        scalars: vec![
            scalar(DType::F32, 0.5f32.to_bits() as u64, Origin::Host),
            scalar(DType::I32, 0, Origin::Param(0)),
        ],
    };
    let x: Vec<u64> = (0..13).map(|v| (v as f32).to_bits() as u64).collect();
    let w: Vec<u64> = [1.0f32, 10.0, 100.0].map(|v| v.to_bits() as u64).to_vec();
    let sum =
        |i: usize| 2.0 * (0.5 + (1 + 3 * i) as f32 + 10.0 * (2 + 3 * i) as f32 + 100.0 * (3 + 3 * i) as f32) - 7.0;
    let want: Vec<u64> = [9.0, 9.0, 0.0, sum(1), 0.0, sum(3)].map(|v: f32| v.to_bits() as u64).to_vec();
    let nines = bytes(DType::F32, &[9f32.to_bits() as u64; 6]);
    let mut trials = Vec::new();
    for (n, (params, guarded, flag)) in
        [(Place::Direct, false, 0), (Place::Block, false, 1), (Place::Block, true, 0), (Place::Direct, true, 1)]
            .into_iter()
            .enumerate()
    {
        let args = vec![Place::Direct, Place::Block, [Place::Direct, Place::Block][n % 2]];
        let signature = Signature { args, params, guarded: vec![false, false, guarded], may_alias: false };
        let step = StepKind::Library(Library::Custom(custom.clone()));
        let rendered = render_with(&step, &format!("rows {n}"), &signature, Tuning::DEFAULT).unwrap();
        assert_eq!(rendered.flag, guarded);
        let buffers = vec![bytes(DType::BF16, &x), bytes(DType::F32, &w), nines.clone()];
        let case = Case { rendered, signature, params: vec![-7i64 as u64], buffers, shared: vec![], flag, shift: 0 };
        let want = if guarded && flag == 1 { nines.clone() } else { bytes(DType::F32, &want) };
        trials.push(Trial { case, dtype: DType::F32, want, flag: flag == 1, what: format!("custom {n}") });
    }
    check(trials);
    let none = Custom { kernel: users("host_only", None), ..custom };
    let signature =
        Signature { args: vec![Place::Direct; 3], params: Place::Direct, guarded: vec![false; 3], may_alias: false };
    let refused = render_with(&StepKind::Library(Library::Custom(none)), "x", &signature, Tuning::DEFAULT).unwrap_err();
    assert!(refused.to_string().contains("host_only is not supported on cuda"), "{refused}");
}
