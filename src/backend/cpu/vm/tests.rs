//! Tests: random kernels against the reference interpreter, for every instruction set and several splits.

use super::program::{Action, Source};
use super::space::{Class, Walk};
use super::*;
use crate::base::DType;
use crate::kernel::build::Builder;
use crate::kernel::eval::{self, Memory};
use crate::kernel::ir::{Dynamic, Inst};
use crate::kernel::{Access, Combine, Guard, Instr, Level, Ty, Val};

/// A small generator of pseudo-random numbers (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    fn f32(&mut self) -> f32 {
        const ODD: [f32; 12] = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e-40,
            -1e-45,
            f32::MAX,
            2147483648.0,
            -2147483648.0,
            4294967296.0,
            1e30,
        ];
        match self.below(16) {
            0 => self.pick(&ODD),
            1 => f32::from_bits(self.next() as u32),
            2..6 => self.below(9) as f32 * 0.5 - 2.0,
            _ => (self.next() as i32 as f32) / (1u32 << 30) as f32,
        }
    }
    fn f64(&mut self) -> f64 {
        match self.below(8) {
            0 => f64::from_bits(self.next()),
            1 => self.pick(&[f64::MAX, f64::MIN_POSITIVE, -5e-324, 1e300, 9.3e18, -709.5]),
            2..5 => self.f32() as f64,
            _ => self.next() as i64 as f64 / (1u64 << 62) as f64,
        }
    }
    fn i64(&mut self) -> i64 {
        match self.below(8) {
            0 => self.next() as i64,
            1 => self.pick(&[i64::MIN, i64::MAX, 0, -1, 63, 64, 65]),
            _ => self.below(20) as i64 - 5,
        }
    }
}

/// Memory that ends (or starts) at an inaccessible page, so that any overrun faults.
struct Fenced {
    map: *mut u8,
    bytes: usize,
    data: *mut u8,
    len: usize,
}

const PAGE: usize = 4096;

impl Fenced {
    fn new(data: &[u8], at_end: bool) -> Fenced {
        let room = data.len().next_multiple_of(PAGE);
        let bytes = room + 2 * PAGE;
        // SAFETY: a fresh private mapping; only its middle becomes accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let map = map.cast::<u8>();
            if room > 0 {
                assert_eq!(libc::mprotect(map.add(PAGE).cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0);
            }
            let at = map.add(PAGE + if at_end { room - data.len() } else { 0 });
            at.copy_from_nonoverlapping(data.as_ptr(), data.len());
            Fenced { map, bytes, data: at, len: data.len() }
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `new` made it so.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.map.cast(), self.bytes) };
    }
}

/// Equal bytes, NaN payloads excepted.
fn same(dtype: DType, a: &[u8], b: &[u8]) -> Option<usize> {
    let size = dtype.size();
    (0..a.len() / size).find(|&i| {
        let (x, y) = (&a[i * size..(i + 1) * size], &b[i * size..(i + 1) * size]);
        let nan = |x: &[u8]| match Ty::of(dtype) {
            Ty::F64 => f64::from_bits(dtype.read(x)).is_nan(),
            Ty::F32 => f32::from_bits(dtype.read(x) as u32).is_nan(),
            _ => false,
        };
        x != y && !(nan(x) && nan(y))
    })
}

fn fill(r: &mut Random, dtype: DType, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len * dtype.size()];
    for element in bytes.chunks_exact_mut(dtype.size()) {
        let lane = match Ty::of(dtype) {
            Ty::F64 => r.f64().to_bits(),
            Ty::I64 => r.i64() as u64,
            Ty::Bool => r.one_in(2) as u64,
            _ => r.f32().to_bits() as u64,
        };
        dtype.write(lane, element);
    }
    bytes
}

/// Runs `kernel` on random memory by the reference and by every program; `alias` pairs outputs with inputs
/// that share their memory.
fn check(kernel: &Kernel, r: &mut Random, alias: &[(usize, usize)], what: &str) {
    let params: Vec<u64> = kernel.params.iter().enumerate().map(|(p, ty)| parameter(kernel, r, p, *ty)).collect();
    let mut contents: Vec<Vec<u8>> = kernel.args.iter().map(|a| fill(r, a.dtype, a.len)).collect();
    for &(out, input) in alias {
        contents[out] = contents[input].clone();
    }
    let mut expected = contents.clone();
    let mut memory: Vec<Memory> = expected
        .iter_mut()
        .zip(&kernel.args)
        .map(|(bytes, a)| if a.output { Memory::Out(bytes) } else { Memory::In(bytes) })
        .collect();
    let flag = eval::run(kernel, &params, &mut memory).unwrap_or_else(|e| panic!("{what}: {e}\n{kernel:?}"));

    // Slots and words in another order than the kernel's.
    let slots: Vec<u32> = (0..kernel.args.len() as u32).rev().collect();
    let words: Vec<u32> = (0..params.len() as u32).rev().collect();
    let block: Vec<u64> = params.iter().rev().copied().collect();
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let mut program = Program::compile(kernel, isa).unwrap();
        program.bind(&slots, &words);
        for parts in 1..=3 {
            let mut fenced: Vec<Fenced> =
                contents.iter().enumerate().map(|(i, c)| Fenced::new(c, (i + parts) % 2 == 0)).collect();
            let mut table: Vec<*mut u8> = fenced.iter().map(|f| f.data).collect();
            for &(out, input) in alias {
                table[out] = table[input];
            }
            table.reverse();
            let mut got = false;
            for part in 0..parts {
                // SAFETY: one block per argument, as long as it says.
                got |= unsafe { program.run(table.as_ptr(), block.as_ptr(), part, parts) };
            }
            let what = || format!("{what}, {isa:?}, {parts} parts, {:?}\n{kernel:?}", program.space.walk);
            assert_eq!(got, flag, "index flag: {}", what());
            for &(out, input) in alias {
                fenced.swap(out, input);
            }
            for (i, arg) in kernel.args.iter().enumerate() {
                if arg.output
                    && let Some(at) = same(arg.dtype, fenced[i].bytes(), &expected[i])
                {
                    let size = arg.dtype.size();
                    let show = |b: &[u8]| format!("{:x?}", &b[at * size..(at + 1) * size]);
                    let (a, b) = (show(fenced[i].bytes()), show(&expected[i]));
                    panic!("argument {i} element {at}: {a}, expected {b}: {}", what());
                }
            }
        }
    }
}

/// A word for a parameter, within the range its dynamic uses allow.
fn parameter(kernel: &Kernel, r: &mut Random, p: usize, ty: Ty) -> u64 {
    let max = kernel
        .body
        .iter()
        .filter_map(|i| match i {
            Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => Some(access),
            _ => None,
        })
        .flat_map(|a| &a.dynamic)
        .filter(|d| d.param as usize == p)
        .map(|d| d.max)
        .min();
    match (max, ty) {
        (Some(max), _) => r.below(max as usize + 1) as u64,
        (None, Ty::F32) => r.f32().to_bits() as u64,
        (None, Ty::F64) => r.f64().to_bits(),
        (None, Ty::U32) => r.next() as u32 as u64,
        (None, Ty::I64) => r.i64() as u64,
        (None, Ty::Bool) => r.below(2) as u64,
    }
}

/// A random access to a fresh argument that covers `axes` (others broadcast).
fn access(b: &mut Builder, r: &mut Random, domain: &[usize], axes: &[bool], dtype: DType, output: bool) -> Access {
    let mut order: Vec<usize> = (0..domain.len()).filter(|&a| axes[a]).collect();
    if r.one_in(3) {
        for i in (1..order.len()).rev() {
            order.swap(i, r.below(i + 1));
        }
    }
    let mut strides = vec![0i64; domain.len()];
    let (mut step, mut offset) = (if r.one_in(6) { 2 } else { 1 }, 0);
    for &a in order.iter().rev() {
        strides[a] = step;
        step *= domain[a].max(1) as i64;
        if r.one_in(8) {
            step += 3;
        }
        if r.one_in(10) {
            offset += strides[a] * (domain[a].max(1) as i64 - 1);
            strides[a] = -strides[a];
        }
    }
    offset += r.below(3) as i64;
    let reach: i64 = strides.iter().zip(domain).map(|(&s, &d)| s.max(0) * (d.max(1) as i64 - 1)).sum();
    let mut len = (offset + reach) as usize + 1;
    let mut dynamic = Vec::new();
    if r.one_in(6) {
        let (stride, max) = (r.pick(&[1, 3]), r.pick(&[0, 4]));
        dynamic.push(Dynamic { param: b.add_param(Ty::I64), stride, max });
        len += (stride * max) as usize;
    }
    let arg = b.arg(dtype, len, output);
    Access { arg, offset, strides, dynamic }
}

/// The dtype whose elements are stored as they are in lanes.
fn dtype_of(ty: Ty) -> DType {
    match ty {
        Ty::F32 | Ty::U32 => DType::F32,
        Ty::F64 => DType::F64,
        Ty::I64 => DType::I64,
        Ty::Bool => DType::Bool,
    }
}

/// Any dtype with lanes of `ty`, mostly that.
fn some_dtype_of(ty: Ty, r: &mut Random) -> DType {
    let fit: Vec<DType> = DType::ALL.into_iter().filter(|&d| Ty::of(d) == ty).collect();
    if fit.is_empty() || r.one_in(2) { dtype_of(ty) } else { r.pick(&fit) }
}

struct Pool<'r> {
    b: Builder,
    r: &'r mut Random,
    domain: Vec<usize>,
    values: Vec<Val>,
}

impl Pool<'_> {
    fn any(&mut self, ty: Ty) -> Val {
        let of: Vec<Val> = self.values.iter().copied().filter(|&v| self.b.ty(v) == Some(ty)).collect();
        // Mostly recent values, so that long chains arise.
        if !of.is_empty() && !self.r.one_in(12) {
            let recent = if self.r.one_in(2) { of.len().min(2) } else { of.len() };
            return of[of.len() - 1 - self.r.below(recent)];
        }
        match ty {
            Ty::F32 => {
                let v = self.r.f32();
                self.b.f32(v)
            }
            Ty::F64 => {
                let v = self.r.f64();
                self.b.f64(v)
            }
            Ty::U32 => {
                let v = self.r.next() as u32 % 70;
                self.b.u32(v)
            }
            Ty::I64 => {
                let v = self.r.i64();
                self.b.i64(v)
            }
            Ty::Bool => {
                let v = self.r.one_in(2);
                self.b.bool(v)
            }
        }
    }

    fn load(&mut self) {
        let dtype = if self.r.one_in(2) { DType::F32 } else { self.r.pick(&DType::ALL) };
        let axes: Vec<bool> = self.domain.iter().map(|_| !self.r.one_in(4)).collect();
        let domain = self.domain.clone();
        let access = access(&mut self.b, self.r, &domain, &axes, dtype, false);
        let mut guards = Vec::new();
        if self.r.one_in(5) && !domain.is_empty() {
            let axis = self.r.below(domain.len());
            let len = domain[axis] as i64;
            let lo = self.r.below(len as usize + 2) as i64 - 1;
            guards.push(Guard { axis: axis as u32, lo, hi: lo + self.r.below(len as usize + 2) as i64 });
        }
        let v = self.b.load_where(access, guards);
        self.values.push(v);
    }

    fn gather(&mut self) {
        let index = self.any(Ty::I64);
        let axes: Vec<bool> = self.domain.iter().map(|_| self.r.one_in(2)).collect();
        let domain = self.domain.clone();
        let dtype = self.r.pick(&DType::ALL);
        let access = access(&mut self.b, self.r, &domain, &axes, dtype, false);
        let (len, stride) = (1 + self.r.below(10) as i64, self.r.pick(&[1i64, 2]));
        // The argument was made for the access alone: one with room for the indices takes its place.
        let room = self.b.kernel().args[access.arg as usize].len + (len * stride) as usize;
        let arg = self.b.arg(dtype, room, false);
        let v = self.b.gather(Access { arg, ..access }, index, stride, len);
        self.values.push(v);
    }

    fn op(&mut self) {
        let instr = self.r.pick(Instr::ALL);
        let common = [Instr::Add, Instr::Sub, Instr::Mul, Instr::Fma, Instr::Max, Instr::Lt, Instr::Select];
        let instr = if self.r.one_in(2) { self.r.pick(&common) } else { instr };
        let mut args: Vec<Val> = instr.operands().iter().map(|&ty| self.any(ty)).collect();
        if instr == Instr::Bits {
            // NaN payloads may differ, so they must not become integers.
            let known = self.b.eq(args[0], args[0]);
            let zero = self.b.f32(0.0);
            args[0] = self.b.select(known, args[0], zero);
        }
        if instr == Instr::DBits {
            let known = self.b.deq(args[0], args[0]);
            let zero = self.b.f64(0.0);
            args[0] = self.b.dselect(known, args[0], zero);
        }
        let v = self.b.op(instr, &args);
        self.values.push(v);
    }

    fn reduce(&mut self) {
        let combine = self.r.pick(&Combine::ALL);
        let value = self.any(combine.instr().result());
        let v = self.b.reduce(combine, value);
        self.values.push(v);
    }
}

/// A random verified kernel.
fn random_kernel(r: &mut Random) -> Kernel {
    const LENGTHS: [usize; 21] = [0, 1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 32, 33, 64, 65, 100, 127, 128, 129, 256, 300];
    let rank = r.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4]);
    let mut domain: Vec<usize> = Vec::new();
    for _ in 0..rank {
        let mut len = r.pick(&LENGTHS);
        if len == 0 && !r.one_in(4) {
            len = 6;
        }
        if domain.iter().product::<usize>() * len > 6000 {
            len = 1 + r.below(3);
        }
        domain.push(len);
    }
    if rank > 0 && r.one_in(30) {
        // Several blocks.
        let a = r.below(rank);
        domain.iter_mut().for_each(|d| *d = 1 + *d % 2);
        domain[a] = r.pick(&[4096, 4097, 9000, 13000]);
    }
    let reduced: Vec<bool> = match r.below(4) {
        // Rows that divide a tile.
        3 if rank > 0 && domain.iter().product::<usize>() < 4096 => {
            domain[rank - 1] = r.pick(&[2, 4, 8, 16, 32, 64, 128]);
            (0..rank).map(|a| a + 1 == rank).collect()
        }
        0 => vec![false; rank],
        1 => (0..rank).map(|a| a + 1 == rank).collect(),
        _ => (0..rank).map(|_| r.one_in(2)).collect(),
    };
    let mut p = Pool { b: Builder::new(&domain, &reduced), r, domain: domain.clone(), values: Vec::new() };
    for _ in 0..1 + p.r.below(4) {
        p.load();
    }
    if p.r.one_in(3) && rank > 0 {
        let axis = p.r.below(rank);
        let v = p.b.index(axis);
        p.values.push(v);
    }
    if p.r.one_in(3) {
        let ty = p.r.pick(&Ty::ALL);
        let v = p.b.param(ty);
        p.values.push(v);
    }
    let reductions = if reduced.contains(&true) || p.r.one_in(20) { p.r.below(4) } else { 0 };
    let ops = p.r.pick(&[1, 3, 8, 20]);
    for phase in 0..=reductions {
        for _ in 0..p.r.below(ops) {
            if p.r.one_in(15) { p.gather() } else { p.op() }
        }
        if phase < reductions {
            p.reduce();
        }
    }
    let Pool { mut b, r, values, .. } = p;
    let mut stored: Vec<Val> = values.iter().copied().rev().take(1 + r.below(3)).collect();
    if r.one_in(3) {
        stored.extend(values.iter().copied().filter(|_| r.one_in(6)));
    }
    for mut v in stored {
        let ty = b.ty(v).unwrap();
        if ty == Ty::U32 {
            v = b.utof(v);
        }
        let full = b.kernel().levels()[v.0 as usize] == Level::Full;
        let axes: Vec<bool> = reduced.iter().map(|&red| !red || full).collect();
        let dtype = some_dtype_of(ty, r);
        let access = access(&mut b, r, &domain, &axes, dtype, true);
        b.store(access, v);
    }
    b.finish().unwrap()
}

/// Outputs and inputs that may share memory: every load of the input is at the output's one store's element.
fn aliases(kernel: &Kernel, r: &mut Random) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (o, arg) in kernel.args.iter().enumerate().filter(|(_, a)| a.output) {
        let stores: Vec<&Access> = kernel
            .body
            .iter()
            .filter_map(|i| match i {
                Inst::Store { access, .. } if access.arg as usize == o => Some(access),
                _ => None,
            })
            .collect();
        let [store] = stores[..] else { continue };
        for (i, input) in kernel.args.iter().enumerate().filter(|(_, a)| !a.output) {
            let fits = kernel.body.iter().all(|inst| match inst {
                Inst::Load { access, .. } if access.arg as usize == i => {
                    (access.offset, &access.strides, &access.dynamic) == (store.offset, &store.strides, &store.dynamic)
                }
                Inst::Gather { access, .. } => access.arg as usize != i,
                _ => true,
            });
            if fits
                && input.dtype == arg.dtype
                && input.len == arg.len
                && out.iter().all(|&(_, x)| x != i)
                && !r.one_in(4)
            {
                out.push((o, i));
                break;
            }
        }
    }
    out
}

#[test]
fn random_kernels_have_the_reference_bits() {
    let seeds = if cfg!(debug_assertions) { 2500 } else { 20000 };
    let mut seen = [0u32; 13];
    for seed in 0..seeds {
        let mut r = Random(seed * 7919);
        let kernel = random_kernel(&mut r);
        let alias = aliases(&kernel, &mut r);
        check(&kernel, &mut r, &alias, &format!("seed {seed}"));
        let p = Program::compile(&kernel, Isa::Portable).unwrap();
        let full = p.points.iter().all(|&n| n > 0);
        let actions = || p.stages.iter().chain(&p.loops).flat_map(|s| &s.actions);
        let met = [
            p.space.walk == Walk::Along,
            p.space.walk == Walk::Across && !p.loops.is_empty(),
            !p.periodics.is_empty() && p.points[1] > 1500,
            p.loops.iter().any(|l| l.streams.iter().any(|s| matches!(s.1, Source::Kept(_)))),
            !p.reductions.is_empty() && p.points[1].max(p.points[2]) > p.space.order.block,
            p.space.inner.len() > 1,
            p.space.group.len() > 1,
            actions().any(|a| matches!(a, Action::Gather { .. })),
            actions().any(|a| matches!(a, Action::Combine { .. })),
            !alias.is_empty(),
            actions().any(|a| matches!(a, Action::Fold { .. })),
            p.space.streams.iter().any(|s| s.class == Class::PerRow),
            p.stages.iter().chain(&p.loops).any(|s| s.direct.is_some() && !s.steps.is_empty()),
        ];
        for (count, met) in seen.iter_mut().zip(met) {
            *count += (met && full) as u32;
        }
    }
    assert!(seen.iter().all(|&n| n >= 20), "kernels that took each way: {seen:?}");
}

/// Every instruction in every operand form, over special values.
#[test]
fn every_instruction_has_the_reference_bits() {
    let mut r = Random(1);
    for &instr in Instr::ALL {
        for n in [7, 128, 1000] {
            let mut b = Builder::new(&[n], &[false]);
            let types = instr.operands();
            // One variant per set of operands that are words rather than tiles.
            for words in 0..1 << types.len() {
                let mut args = Vec::new();
                for (k, &ty) in types.iter().enumerate() {
                    let arg = b.input(dtype_of(ty), n);
                    let strides = if words >> k & 1 == 1 { [0] } else { [1] };
                    let v = b.load(Access::strided(arg, 0, &strides));
                    args.push(if ty != Ty::U32 {
                        v
                    } else if r.one_in(2) {
                        b.ftoi(v)
                    } else {
                        let known = b.eq(v, v);
                        let zero = b.f32(0.0);
                        let v = b.select(known, v, zero);
                        b.bits(v)
                    });
                }
                if instr == Instr::Bits {
                    args[0] = b.abs(args[0]);
                    let big = b.f32(f32::MAX);
                    args[0] = b.min(args[0], big);
                    let known = b.eq(args[0], args[0]);
                    args[0] = b.select(known, args[0], big);
                }
                if instr == Instr::DBits {
                    let (known, zero) = (b.deq(args[0], args[0]), b.f64(0.0));
                    args[0] = b.dselect(known, args[0], zero);
                }
                let v = b.op(instr, &args);
                let (ty, v) = if instr.result() == Ty::U32 {
                    // Both halves are exact as f32.
                    let sixteen = b.u32(16);
                    let low = b.u32(0xffff);
                    let (high, low) = (b.ushr(v, sixteen), b.uand(v, low));
                    let (high, low) = (b.utof(high), b.utof(low));
                    let out = b.output(DType::F32, n);
                    b.store(Access::strided(out, 0, &[1]), low);
                    (Ty::F32, high)
                } else {
                    (instr.result(), v)
                };
                let out = b.output(dtype_of(ty), n);
                b.store(Access::strided(out, 0, &[1]), v);
            }
            check(&b.finish().unwrap(), &mut r, &[], instr.name());
        }
    }
}

/// Kernels of another generator (the one of the kernel module's own tests).
#[test]
fn kernels_of_the_kernel_module_have_the_reference_bits() {
    for seed in 0..600 {
        let kernel = crate::kernel::random::kernel(&mut crate::kernel::random::Random::new(seed));
        // It may make integers of NaN payloads, which are not promised.
        if kernel.body.iter().any(|i| matches!(i, Inst::Op { instr: Instr::Bits | Instr::DBits, .. })) {
            continue;
        }
        check(&kernel, &mut Random(seed), &[], &format!("kernel module, seed {seed}"));
    }
}

/// Around the length from which code is run by the loop rather than by chained calls.
#[test]
fn long_kernels_have_the_reference_bits() {
    for ops in [1990, 5000] {
        let mut b = Builder::new(&[300], &[false]);
        let (x, y) = (b.input(DType::F32, 300), b.output(DType::F32, 300));
        let x = b.load(Access::row_major(x, &[300]));
        let (c, mut v) = (b.f32(0.75), x);
        for i in 0..ops {
            v = match i % 3 {
                0 => b.mul(v, c),
                1 => b.add(v, x),
                _ => b.sin_arg(v),
            };
        }
        b.store(Access::row_major(y, &[300]), v);
        let kernel = b.finish().unwrap();
        assert_eq!(Program::compile(&kernel, Isa::best()).unwrap().long, ops > 2000);
        check(&kernel, &mut Random(ops as u64), &[], &format!("{ops} ops"));
    }
}
