//! Kernels of the body IR.

use super::{Case, difference, run};
use crate::backend::cuda::render::form::Tuning;
use crate::backend::cuda::render::{Place, Signature, render_with};
use crate::base::DType;
use crate::kernel::random::{self, Random};
use crate::kernel::{Access, Builder, Combine, Inst, Instr, Kernel, Ty, Val, eval};
use crate::plan::StepKind;

/// A kernel to launch in some way, and what it is expected to leave.
pub struct Trial {
    kernel: Kernel,
    case: Case,
    want: Vec<Vec<u8>>,
    flag: bool,
}

fn places(r: &mut Random, n: usize) -> Vec<Place> {
    (0..n).map(|_| if r.below(3) == 0 { Place::Block } else { Place::Direct }).collect()
}

/// A launch of `kernel` on random memory.
pub fn trial(r: &mut Random, kernel: Kernel, name: &str, most_blocks: usize) -> Trial {
    let fill = [0, 1, 300, 1 << 20][r.below(4)];
    let tuning = Tuning { most_blocks, vector_from: [0, 1 << 14][r.below(2)], fill };
    let n = kernel.args.len();
    let signature =
        Signature { args: places(r, n), params: places(r, 1)[0], guarded: vec![false; n], may_alias: r.below(3) == 0 };
    let step = StepKind::Kernel(kernel.clone());
    let rendered = render_with(&step, name, &signature, tuning).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let params = random::params(r, &kernel);
    let mut buffers = random::buffers(r, &kernel);
    if r.below(8) > 0 && kernel.body.iter().any(|i| matches!(i, Inst::Reduce { .. })) {
        tame(r, &kernel, &mut buffers);
    }
    let mut want = buffers.clone();
    let flag = eval::run(&kernel, &params, &mut random::memory(&kernel, &mut want)).unwrap();
    let largest = kernel.args.iter().map(|a| a.dtype.size()).max().unwrap_or(1);
    let shift = r.below(2) * largest;
    Trial { kernel, case: Case { rendered, signature, params, buffers, shared: vec![], flag: 0, shift }, want, flag }
}

/// Numbers near one for floats: sums of many are numbers too, and depend on their order.
fn tame(r: &mut Random, kernel: &Kernel, buffers: &mut [Vec<u8>]) {
    for (arg, bytes) in kernel.args.iter().zip(buffers) {
        if arg.dtype.is_float() && !arg.output {
            for element in bytes.chunks_exact_mut(arg.dtype.size()) {
                let v = 0.25 + r.below(1 << 20) as f64 / (1 << 20) as f64;
                let v = if r.below(3) == 0 { -v } else { v };
                let lane = if arg.dtype == DType::F64 { v.to_bits() } else { (v as f32).to_bits() as u64 };
                arg.dtype.write(lane, element);
            }
        }
    }
}

pub fn check(trials: Vec<Trial>) {
    let (cases, wants): (Vec<Case>, Vec<_>) = trials.into_iter().map(|t| (t.case, (t.kernel, t.want, t.flag))).unzip();
    let mut failed = Vec::new();
    for (i, ((got, flag), (kernel, want, want_flag))) in run(&cases).into_iter().zip(wants).enumerate() {
        let parts = kernel.args.iter().zip(got.iter().zip(&want)).enumerate();
        let wrong = parts.filter_map(|(a, (arg, (g, w)))| Some((a, difference(arg.dtype, g, w)?))).next();
        if let Some((a, what)) = wrong {
            failed.push(format!("case {i}, argument {a}: {what}\n{kernel}\n{}", cases[i].rendered.source));
        } else if flag != want_flag as u32 {
            failed.push(format!("case {i}: the flag is {flag}\n{kernel}\n{}", cases[i].rendered.source));
        }
    }
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), cases.len(), failed[0]);
}

/// Without what has no bits to compare: functions of CUDA's own, and the bits of NaN.
pub fn comparable(mut kernel: Kernel) -> Kernel {
    for inst in &mut kernel.body {
        if let Inst::Op { instr, .. } = inst {
            *instr = match (*instr, instr.operands().len()) {
                (Instr::DRem, _) => Instr::DRem,
                (Instr::Bits, _) => Instr::FToI,
                (Instr::DBits, _) => Instr::DToL,
                (i, 1) if i.is_call() => Instr::DNeg,
                (i, _) if i.is_call() => Instr::DMin,
                (i, _) => i,
            };
        }
    }
    kernel
}

#[test]
fn random_kernels_have_the_bits_of_the_reference() {
    let r = &mut Random::new(11);
    let trials = (0..240)
        .map(|i| {
            let kernel = comparable(random::kernel(r));
            let most = if i % 5 == 0 { 2 } else { 1 << 20 };
            trial(r, kernel, &format!("random {i}"), most)
        })
        .collect();
    check(trials);
}

/// Bits of operands that meet every edge of their type.
fn edges(ty: Ty) -> Vec<u64> {
    let floats =
        [0.0f32, 1.0, 0.5, 1.5, 2.5, 0.75, 3.0, 126.5, 150.0, 300.0, 1e30, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY];
    let tiny = [
        1u32,
        2,
        0x7f_ffff,
        0x3f3f_ffff,
        0x3f40_0000,
        0x4f00_0000,
        0x5f00_0000,
        0x4700_0000,
        0x4780_0000,
        0x477f_efff,
        0x477f_f000,
        0x3880_0000,
        0x387f_ffff,
        0x3300_0000,
        0x3300_0001,
        0x3f80_8000,
        0x3f81_8000,
        0x7fc0_0000,
        0x5f63_8ee5,
    ];
    let halves = (0..64u32).map(|i| 0x3200_0000 + i * 0x0091_3579);
    let f32s: Vec<u32> =
        floats.iter().map(|f| f.to_bits()).chain(tiny).chain(halves).flat_map(|b| [b, b ^ 1 << 31]).collect();
    match ty {
        Ty::F32 => f32s.into_iter().map(u64::from).collect(),
        Ty::F64 => f32s
            .into_iter()
            .map(|b| (f32::from_bits(b) as f64).to_bits())
            .chain([
                1,
                1 << 52,
                0x43e0_0000_0000_0000,
                0xc3e0_0000_0000_0000,
                0x7fef_ffff_ffff_ffff,
                0x36a0_0000_0000_0001,
            ])
            .collect(),
        Ty::U32 => [
            0,
            1,
            2,
            7,
            31,
            32,
            33,
            63,
            64,
            0x7fff_ffff,
            0x8000_0000,
            0x8000_0001,
            0xffff_ffff,
            0x0100_0001,
            0xd251_1f53,
        ]
        .to_vec(),
        Ty::I64 => {
            let n = [
                0i64,
                1,
                -1,
                2,
                -2,
                3,
                7,
                63,
                64,
                65,
                127,
                128,
                255,
                256,
                1 << 31,
                (1 << 31) - 1,
                -(1 << 31),
                1 << 40,
                (1 << 53) + 1,
                i64::MAX,
                i64::MIN,
                i64::MIN + 1,
            ];
            n.map(|v| v as u64).to_vec()
        }
        Ty::Bool => vec![0, 1],
    }
}

/// All combinations of operands for one instruction, through memory.
fn instruction(instr: Instr) -> (Kernel, Vec<Vec<u8>>) {
    let mut tuples: Vec<Vec<u64>> = vec![vec![]];
    for (n, &ty) in instr.operands().iter().enumerate() {
        // A third operand is thinned out.
        let values: Vec<u64> = edges(ty).into_iter().step_by(if n == 2 { 5 } else { 1 }).collect();
        tuples = tuples.into_iter().flat_map(|t| values.iter().map(move |&v| [t.clone(), vec![v]].concat())).collect();
    }
    let n = tuples.len();
    let memory = |ty: Ty| match ty {
        Ty::F32 => DType::F32,
        Ty::F64 => DType::F64,
        Ty::Bool => DType::Bool,
        Ty::U32 | Ty::I64 => DType::I64,
    };
    let mut b = Builder::new(&[n], &[false]);
    let mut buffers = Vec::new();
    let mut operands: Vec<Val> = Vec::new();
    for (k, &ty) in instr.operands().iter().enumerate() {
        let dtype = memory(ty);
        let x = b.input(dtype, n);
        let v = b.load(Access::strided(x, 0, &[1]));
        operands.push(if ty == Ty::U32 { b.ltou(v) } else { v });
        let mut bytes = vec![0; n * dtype.size()];
        bytes.chunks_exact_mut(dtype.size()).zip(&tuples).for_each(|(c, t)| dtype.write(t[k], c));
        buffers.push(bytes);
    }
    let v = b.op(instr, &operands);
    let v = if instr.result() == Ty::U32 { b.utol(v) } else { v };
    let dtype = memory(instr.result());
    let y = b.output(dtype, n);
    b.store(Access::strided(y, 0, &[1]), v);
    buffers.push(vec![0; n * dtype.size()]);
    (b.finish().unwrap(), buffers)
}

#[test]
fn every_instruction_has_the_bits_of_its_meaning() {
    let r = &mut Random::new(5);
    let mut trials = Vec::new();
    for &instr in Instr::ALL {
        if instr.is_call() && instr != Instr::DRem {
            continue;
        }
        let (kernel, mut buffers) = instruction(instr);
        if matches!(instr, Instr::Bits | Instr::DBits) {
            // Not those of NaN.
            let size = kernel.args[0].dtype.size();
            buffers[0]
                .chunks_exact_mut(size)
                .filter(|c| difference(kernel.args[0].dtype, c, &vec![0; size]).is_some())
                .for_each(|c| {
                    if kernel.args[0].dtype.read(c) & 0x7f80_0000 == 0x7f80_0000 {
                        c.fill(0);
                    }
                });
        }
        let mut t = trial(r, kernel, instr.name(), 1 << 20);
        t.want = buffers.clone();
        t.flag = eval::run(&t.kernel, &[], &mut random::memory(&t.kernel, &mut t.want)).unwrap();
        t.case.buffers = buffers;
        trials.push(t);
    }
    check(trials);
}

/// Reductions of every kind over rows and columns of many lengths, with a second pass and stores of rows and points.
#[test]
fn reductions_have_the_order_of_the_reference() {
    let r = &mut Random::new(3);
    let mut trials = Vec::new();
    let shapes: &[(&[usize], &[bool])] = &[
        (&[3, 1], &[false, true]),
        (&[3, 0], &[false, true]),
        (&[5, 2], &[false, true]),
        (&[200, 17], &[false, true]),
        (&[3, 32], &[false, true]),
        (&[3, 33], &[false, true]),
        (&[5, 128], &[false, true]),
        (&[3, 700], &[false, true]),
        (&[2, 4096], &[false, true]),
        (&[2, 4097], &[false, true]),
        (&[1, 20000], &[false, true]),
        (&[40000], &[true]),
        (&[3, 5, 7, 9], &[true, false, true, false]),
        (&[3, 5, 7, 9], &[false, true, false, true]),
        (&[3, 50, 7, 30], &[false, true, false, true]),
        (&[64, 9], &[true, false]),
        (&[65, 9], &[true, false]),
        (&[1000, 3], &[true, false]),
        (&[2, 500, 3], &[false, true, false]),
        (&[300, 130], &[true, false]),
    ];
    for (i, (domain, reduced)) in shapes.iter().enumerate() {
        for (n, combine) in Combine::ALL.into_iter().enumerate() {
            if (n + i) % 3 != 0 && combine != Combine::Sum {
                continue;
            }
            let ty = combine.instr().result();
            let dtype = match ty {
                Ty::F32 => [DType::F32, DType::BF16, DType::F16][i % 3],
                Ty::F64 => DType::F64,
                Ty::I64 => DType::I32,
                _ => DType::Bool,
            };
            let mut b = Builder::new(domain, reduced);
            let count: usize = domain.iter().product();
            let x = b.input(dtype, count.max(1));
            let v = b.load(Access::row_major(x, domain));
            let s = b.reduce(combine, v);
            let w = if ty == Ty::Bool { b.xor(v, s) } else { b.on(ty, Instr::Sub, &[v, s]) };
            let second = b.reduce(combine, w);
            // Rows: the kept axes row-major.
            let rows: usize = domain.iter().zip(*reduced).filter(|d| !d.1).map(|d| d.0).product();
            let mut row = Access::strided(0, 0, &vec![0; domain.len()]);
            let mut step = 1;
            for a in (0..domain.len()).rev().filter(|&a| !reduced[a]) {
                row.strides[a] = step;
                step *= domain[a] as i64;
            }
            for value in [s, second] {
                let y = b.output(if dtype == DType::I32 { DType::I64 } else { dtype }, rows.max(1));
                b.store(Access { arg: y, ..row.clone() }, value);
            }
            if n % 2 == 0 {
                let z = b.output(dtype, count.max(1));
                b.store(Access::row_major(z, domain), w);
            }
            let kernel = b.finish().unwrap();
            trials.push(trial(r, kernel, &format!("{} {i}", combine.name()), if i % 4 == 1 { 2 } else { 1 << 20 }));
        }
    }
    check(trials);
}

/// y = (x - max) * sum, over rows in every form, with the output in the input's memory or a guarded one.
#[test]
fn outputs_in_the_memory_of_inputs_and_guarded_ones() {
    let r = &mut Random::new(9);
    let shapes: &[(&[usize], &[bool])] = &[
        (&[4000], &[false]),
        (&[40, 24], &[false, true]),
        (&[9, 1000], &[false, true]),
        (&[9, 1002], &[false, true]),
        (&[3, 5000], &[false, true]),
        (&[2, 20000], &[false, true]),
        (&[200, 70], &[true, false]),
        (&[50, 7], &[true, false]),
    ];
    let mut trials = Vec::new();
    for (n, (domain, reduced)) in shapes.iter().cycle().take(48).enumerate() {
        let count: usize = domain.iter().product();
        let dtype = [DType::F32, DType::BF16, DType::F64][n % 3];
        let mut b = Builder::new(domain, reduced);
        let (x, y) = (b.input(dtype, count), b.output(dtype, count));
        let v = b.load(Access::row_major(x, domain));
        let ty = Ty::of(dtype);
        let on = |c: [Combine; 2]| if dtype == DType::F64 { c[1] } else { c[0] };
        let max = b.reduce(on([Combine::Max, Combine::DMax]), v);
        let d = b.on(ty, Instr::Sub, &[v, max]);
        let sum = b.reduce(on([Combine::Sum, Combine::DSum]), d);
        let product = b.on(ty, Instr::Mul, &[d, sum]);
        b.store(Access::row_major(y, domain), product);
        let kernel = b.finish().unwrap();
        let mut t = trial(r, kernel, &format!("in place {n}"), [1 << 20, 3][n % 2]);
        let step = StepKind::Kernel(t.kernel.clone());
        let tuning = Tuning { most_blocks: [1 << 20, 3][n % 2], vector_from: 0, fill: [0, 1, 1 << 20][n % 3] };
        let signature = &mut t.case.signature;
        if n % 4 < 2 {
            signature.may_alias = true;
            t.case.shared = vec![(y as usize, x as usize)];
            t.want[x as usize] = t.want[y as usize].clone();
        } else {
            signature.guarded = vec![false, true];
            if n % 4 == 3 {
                t.case.flag = 1;
                t.flag = true;
                t.want[y as usize] = t.case.buffers[y as usize].clone();
            }
        }
        t.case.rendered = render_with(&step, &format!("in place {n}"), signature, tuning).unwrap();
        trials.push(t);
    }
    check(trials);
}
