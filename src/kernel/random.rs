//! Random kernels and memory for tests: every kind of instruction, access and domain, verified.

use crate::base::DType;
use crate::kernel::build::Builder;
use crate::kernel::eval::Memory;
use crate::kernel::instr::{Instr, Ty};
use crate::kernel::ir::{Access, Combine, Dynamic, Guard, Inst, Kernel, Val};

/// A small generator (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.word() >> 32) as usize) % n.max(1)
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// An f32 that is often an edge of the format.
    fn float(&mut self) -> f32 {
        match self.below(8) {
            0 => self.pick(&[0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE]),
            1 => f32::from_bits(self.word() as u32),
            _ => (self.word() as i32) as f32 / (1 << 28) as f32,
        }
    }

    fn double(&mut self) -> f64 {
        match self.below(8) {
            0 => f64::from_bits(self.word()),
            1 => self.pick(&[f64::MAX, f64::MIN_POSITIVE, 1e300, -1e-320, 1e19, -709.0]),
            _ => self.float() as f64 * (1.0 + f64::EPSILON),
        }
    }

    fn integer(&mut self) -> i64 {
        match self.below(8) {
            0 => self.pick(&[0, -1, 1, i64::MIN, i64::MAX]),
            1 => self.word() as i64,
            _ => self.below(9) as i64 - 2,
        }
    }
}

/// A random verified kernel with at least one store.
pub fn kernel(r: &mut Random) -> Kernel {
    loop {
        if let Ok(k) = draft(r).finish() {
            return k;
        }
    }
}

/// A kernel that is nearly always right.
pub fn draft(r: &mut Random) -> Builder {
    let rank = r.below(4);
    let domain: Vec<usize> = (0..rank).map(|_| r.pick(&[0, 1, 1, 2, 3, 4, 5, 70, 130])).collect();
    let domain: Vec<usize> = match domain.iter().product::<usize>() {
        0..=20_000 => domain,
        _ => domain.iter().map(|d| d % 8 + 1).collect(),
    };
    let reduced: Vec<bool> = (0..rank).map(|_| r.below(2) == 1).collect();
    let mut b = Builder::new(&domain, &reduced);
    let mut values: Vec<Val> = Vec::new();
    for _ in 0..r.below(30) + 4 {
        if let Some(v) = value(r, &mut b, &values) {
            values.push(v);
        }
    }
    for _ in 0..r.below(3) + 1 {
        store(r, &mut b, &values);
    }
    b
}

/// A random value of `ty` made before.
fn operand(r: &mut Random, b: &Builder, values: &[Val], ty: Ty) -> Option<Val> {
    let fit: Vec<Val> = values.iter().copied().filter(|&v| b.ty(v) == Some(ty)).collect();
    // Recent ones more often, so that chains grow.
    let recent = fit.len().saturating_sub(4);
    if fit.is_empty() { None } else { Some(if r.below(2) == 0 { r.pick(&fit[recent..]) } else { r.pick(&fit) }) }
}

fn value(r: &mut Random, b: &mut Builder, values: &[Val]) -> Option<Val> {
    let rank = b.kernel().domain.len();
    Some(match r.below(12) {
        0 => match r.below(5) {
            4 => {
                let v = r.double();
                b.f64(v)
            }
            0 => {
                let v = r.float();
                b.f32(v)
            }
            1 => {
                let v = r.word() as u32;
                b.u32(v)
            }
            2 => {
                let v = r.integer();
                b.i64(v)
            }
            _ => {
                let v = r.below(2) == 1;
                b.bool(v)
            }
        },
        1 => {
            let ty = r.pick(&Ty::ALL);
            b.param(ty)
        }
        2 if rank > 0 => {
            let axis = r.below(rank);
            b.index(axis)
        }
        3 | 4 => load(r, b),
        5 => {
            let index = operand(r, b, values, Ty::I64)?;
            let (stride, len) = (r.below(5) as i64 - 2, r.below(6) as i64 + 1);
            let dtype = r.pick(&DType::ALL);
            let access = input(r, b, dtype, &[], stride * (len - 1));
            b.gather(access, index, stride, len)
        }
        6 => {
            let combine = r.pick(&Combine::ALL);
            let v = operand(r, b, values, combine.instr().result())?;
            b.reduce(combine, v)
        }
        _ => {
            let instr = r.pick(Instr::ALL);
            let mut operands = Vec::new();
            for &ty in instr.operands() {
                operands.push(operand(r, b, values, ty)?);
            }
            b.op(instr, &operands)
        }
    })
}

fn load(r: &mut Random, b: &mut Builder) -> Val {
    let rank = b.kernel().domain.len();
    let mut guards = Vec::new();
    while rank > 0 && r.below(3) == 0 {
        let axis = r.below(rank);
        let lo = r.below(4) as i64 - 1;
        let hi = r.below(b.kernel().domain[axis] + 2) as i64;
        guards.push(Guard { axis: axis as u32, lo, hi });
    }
    let dtype = r.pick(&DType::ALL);
    let access = input(r, b, dtype, &guards, 0);
    b.load_where(access, guards)
}

/// An access to a new input that is just long enough.
fn input(r: &mut Random, b: &mut Builder, dtype: DType, guards: &[Guard], extra: i64) -> Access {
    let domain = b.kernel().domain.clone();
    // Row-major, broadcast along some axes, or any strides.
    let mut access = Access::row_major(0, &domain);
    for s in &mut access.strides {
        match r.below(6) {
            0 => *s = 0,
            1 => *s = r.below(7) as i64 - 3,
            _ => {}
        }
    }
    let (mut lo, mut hi) = (extra.min(0), extra.max(0));
    for (axis, &s) in access.strides.iter().enumerate() {
        let (mut from, mut to) = (0, (domain[axis] as i64 - 1).max(0));
        for g in guards.iter().filter(|g| g.axis as usize == axis) {
            (from, to) = (from.max(g.lo), to.min(g.hi - 1));
        }
        if from <= to {
            (lo, hi) = (lo + (s * from).min(s * to), hi + (s * from).max(s * to));
        }
    }
    if r.below(5) == 0 {
        let (stride, max) = (r.below(5) as i64 - 2, r.below(4) as i64);
        let param = b.add_param(Ty::I64);
        access.dynamic.push(Dynamic { param, stride, max });
        (lo, hi) = (lo + (stride * max).min(0), hi + (stride * max).max(0));
    }
    let gap = r.below(3) as i64;
    access.offset = gap - lo;
    access.arg = b.input(dtype, (hi - lo + 1 + gap) as usize + r.below(3));
    access
}

/// Stores some value to a new output with a random order of axes.
fn store(r: &mut Random, b: &mut Builder, values: &[Val]) {
    let storable: Vec<Val> = values.iter().copied().filter(|&v| b.ty(v) != Some(Ty::U32)).collect();
    let v = if storable.is_empty() { b.f32(1.0) } else { r.pick(&storable) };
    let k = b.kernel().clone();
    let row = k.levels()[v.0 as usize] == crate::kernel::Level::Row;
    let mut axes: Vec<usize> = (0..k.domain.len()).filter(|&a| !row || !k.reduced[a]).collect();
    for i in 1..axes.len() {
        axes.swap(i, r.below(i + 1));
    }
    let mut access = Access::strided(0, 0, &vec![0; k.domain.len()]);
    let mut step = r.below(8) as i64 / 7 + 1;
    for &axis in &axes {
        access.strides[axis] = step;
        step *= k.domain[axis].max(1) as i64;
        if r.below(6) == 0 {
            access.strides[axis] *= -1;
            access.offset += -access.strides[axis] * (k.domain[axis].max(1) as i64 - 1);
        }
    }
    let ty = b.ty(v);
    let fit: Vec<DType> = DType::ALL.into_iter().filter(|&d| Some(Ty::of(d)) == ty).collect();
    let dtype = r.pick(&fit);
    access.arg = b.output(dtype, step as usize);
    b.store(access, v);
}

/// Random parameters that keep the bounds of dynamic accesses.
pub fn params(r: &mut Random, kernel: &Kernel) -> Vec<u64> {
    let mut params: Vec<u64> = kernel
        .params
        .iter()
        .map(|ty| match ty {
            Ty::F32 => r.float().to_bits() as u64,
            Ty::F64 => r.double().to_bits(),
            Ty::U32 => r.word() as u32 as u64,
            Ty::I64 => r.integer() as u64,
            Ty::Bool => r.below(2) as u64,
        })
        .collect();
    for inst in &kernel.body {
        if let Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } = inst {
            for d in &access.dynamic {
                params[d.param as usize] = r.below(d.max as usize + 1) as u64;
            }
        }
    }
    params
}

/// Random contents for every argument; outputs hold 0xa5 bytes.
pub fn buffers(r: &mut Random, kernel: &Kernel) -> Vec<Vec<u8>> {
    let fill = |r: &mut Random, dtype: DType, len: usize| {
        let lane = |r: &mut Random| match Ty::of(dtype) {
            Ty::F64 => r.double().to_bits(),
            Ty::I64 => r.integer() as u64,
            Ty::Bool => r.below(2) as u64,
            _ => r.float().to_bits() as u64,
        };
        let mut bytes = vec![0; len * dtype.size()];
        bytes.chunks_exact_mut(dtype.size()).for_each(|c| dtype.write(lane(r), c));
        bytes
    };
    let args = kernel.args.iter();
    args.map(|a| if a.output { vec![0xa5; a.len * a.dtype.size()] } else { fill(r, a.dtype, a.len) }).collect()
}

/// `buffers` as the memory of a launch.
pub fn memory<'a>(kernel: &Kernel, buffers: &'a mut [Vec<u8>]) -> Vec<Memory<'a>> {
    let pairs = kernel.args.iter().zip(buffers);
    pairs.map(|(a, bytes)| if a.output { Memory::Out(bytes) } else { Memory::In(bytes) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::eval;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// One random change to a kernel, often for the worse.
    fn spoil(r: &mut Random, k: &mut Kernel) {
        let axis = r.below(k.domain.len());
        match r.below(5) {
            0 if !k.args.is_empty() => {
                let a = r.below(k.args.len());
                k.args[a].len = k.args[a].len.saturating_sub(1);
            }
            1 if !k.domain.is_empty() => k.domain[axis] += r.below(2),
            2 if !k.reduced.is_empty() => k.reduced[axis] ^= true,
            _ => {
                let i = r.below(k.body.len());
                let delta = r.below(3) as i64 - 1;
                match &mut k.body[i] {
                    Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } => {
                        match access.strides.get_mut(axis) {
                            Some(s) => *s += delta,
                            None => access.offset += delta,
                        }
                    }
                    Inst::Op { args, .. } => args[0] = Val(r.below(i + 2) as u32),
                    Inst::Reduce { value, .. } => *value = Val(r.below(i + 2) as u32),
                    _ => {}
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_the_verifier_accepts_runs(seed: u64, spoils in 0..4usize) {
            let r = &mut Random::new(seed);
            let mut k = draft(r).kernel().clone();
            for _ in 0..spoils {
                spoil(r, &mut k);
            }
            if k.verify().is_ok() {
                let params = params(r, &k);
                let mut buffers = buffers(r, &k);
                prop_assert!(eval::run(&k, &params, &mut memory(&k, &mut buffers)).is_ok(), "{}", k);
            }
        }
    }

    #[test]
    fn drafts_are_varied_and_mostly_right() {
        let r = &mut Random::new(1);
        let (mut right, mut seen) = (0, HashSet::new());
        for _ in 0..2000 {
            let draft = draft(r);
            for inst in &draft.kernel().body {
                match inst {
                    Inst::Op { instr, .. } => seen.insert(instr.name()),
                    Inst::Reduce { combine, .. } => seen.insert(combine.name()),
                    Inst::Gather { .. } => seen.insert("gather"),
                    Inst::Load { guards, .. } if !guards.is_empty() => seen.insert("guarded load"),
                    _ => false,
                };
            }
            right += draft.finish().is_ok() as usize;
        }
        assert!(right > 1900, "{right}");
        // Some of the ways to combine share their names with instructions.
        let names = Combine::ALL.iter().filter(|c| Instr::from_name(c.name()).is_none()).count();
        assert!(seen.len() >= Instr::ALL.len() + names + 2, "{}", seen.len());
    }
}
