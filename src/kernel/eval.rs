//! The reference interpreter of a kernel: one point at a time, the oracle of every backend.
//!
//! It runs verified kernels on byte buffers. It is simple rather than fast.

use crate::base::{DType, Error, Result};
use crate::kernel::instr::Ty;
use crate::kernel::ir::{Access, Guard, Inst, Kernel, Level, Val};
use crate::kernel::order::Order;

/// The memory behind one argument of a kernel.
#[derive(Debug)]
pub enum Memory<'a> {
    /// An argument that is loaded.
    In(&'a [u8]),
    /// An argument that is stored.
    Out(&'a mut [u8]),
}

/// Runs `kernel` with one word per parameter and one memory per argument, by position.
/// Returns whether an index was out of range (the launch's index flag).
pub fn run(kernel: &Kernel, params: &[u64], memory: &mut [Memory]) -> Result<bool> {
    kernel.verify()?;
    check_launch(kernel, params, memory)?;
    let levels = kernel.levels();
    let axes = |r: bool| (0..kernel.domain.len()).filter(|&a| kernel.reduced[a] == r).collect::<Vec<_>>();
    let (kept, inner) = (axes(false), axes(true));
    let mut point = Point {
        kernel,
        params,
        at: vec![0; kernel.domain.len()],
        values: vec![Vec::new(); kernel.body.len()],
        flag: false,
    };
    for row in 0..kernel.outer() {
        point.set(&kept, row);
        for (i, inst) in kernel.body.iter().enumerate() {
            // A row value is computed once, whatever the number of inner points, even for none.
            let copies = if levels[i] == Level::Row { 1 } else { kernel.inner() };
            let mut values = Vec::with_capacity(copies);
            for j in 0..copies {
                point.set(&inner, j);
                values.push(point.step(inst, j, memory)?);
            }
            point.values[i] = values;
        }
    }
    Ok(point.flag)
}

/// The launch's side of the contract: sizes, and the ranges of dynamic parameters.
fn check_launch(kernel: &Kernel, params: &[u64], memory: &[Memory]) -> Result<()> {
    let bad = |detail: String| Err(Error::bug("kernel launch", detail));
    if params.len() != kernel.params.len() || memory.len() != kernel.args.len() {
        return bad(format!("{} parameters and {} arguments were given", params.len(), memory.len()));
    }
    for (i, (m, arg)) in memory.iter().zip(&kernel.args).enumerate() {
        let (len, output) = match m {
            Memory::In(bytes) => (bytes.len(), false),
            Memory::Out(bytes) => (bytes.len(), true),
        };
        if output != arg.output || len < arg.len * arg.dtype.size() {
            return bad(format!("argument {i}: {len} bytes given for {arg:?}"));
        }
    }
    for inst in &kernel.body {
        if let Inst::Load { access, .. } | Inst::Gather { access, .. } | Inst::Store { access, .. } = inst {
            for d in &access.dynamic {
                let p = params[d.param as usize] as i64;
                if !(0..=d.max).contains(&p) {
                    return bad(format!("parameter {} is {p}, expected 0..={}", d.param, d.max));
                }
            }
        }
    }
    Ok(())
}

/// One outer point: its coordinates and the values made so far.
struct Point<'k> {
    kernel: &'k Kernel,
    params: &'k [u64],
    at: Vec<usize>,
    /// Per instruction one value (a row's) or one per inner point.
    values: Vec<Vec<u64>>,
    flag: bool,
}

impl Point<'_> {
    /// Sets the coordinates of `axes` from a row-major linear index.
    fn set(&mut self, axes: &[usize], mut linear: usize) {
        for &a in axes.iter().rev() {
            let len = self.kernel.domain[a].max(1);
            self.at[a] = linear % len;
            linear /= len;
        }
    }

    /// A value as the inner point `j` sees it.
    fn get(&self, v: Val, j: usize) -> u64 {
        let values = &self.values[v.0 as usize];
        values.get(j).or(values.first()).copied().unwrap_or(0)
    }

    /// Runs one instruction at the current point, inner point number `j`.
    fn step(&mut self, inst: &Inst, j: usize, memory: &mut [Memory]) -> Result<u64> {
        Ok(match inst {
            Inst::Const { bits, .. } => *bits,
            Inst::Param { param } => canonical(self.kernel.params[*param as usize], self.params[*param as usize]),
            Inst::Index { axis } => self.at[*axis as usize] as u64,
            Inst::Load { access, guards } => {
                if guards.iter().all(|g| self.holds(g)) {
                    self.load(access, 0, memory)?
                } else {
                    0
                }
            }
            Inst::Gather { access, index, stride, len } => {
                let index = self.get(*index, j) as i64;
                self.flag |= !(0..*len).contains(&index);
                self.load(access, index.clamp(0, len - 1).wrapping_mul(*stride), memory)?
            }
            Inst::Op { instr, args } => instr.eval(&args.map(|a| self.get(a, j))),
            Inst::Reduce { combine, value } => {
                let order = Order::of(&self.kernel.domain, &self.kernel.reduced);
                order.combine(*combine, (0..self.kernel.inner()).map(|j| self.get(*value, j)))
            }
            Inst::Store { access, value } => {
                self.store(access, self.get(*value, j), memory)?;
                0
            }
        })
    }

    fn holds(&self, g: &Guard) -> bool {
        (g.lo..g.hi).contains(&(self.at[g.axis as usize] as i64))
    }

    /// Byte range of the element of `access` at the current point.
    fn element(&self, access: &Access, extra: i64) -> Result<(DType, std::ops::Range<usize>)> {
        // The sum is in range, as verified; parts of it may wrap on the way.
        let mut index = access.offset.wrapping_add(extra);
        for (&c, &s) in self.at.iter().zip(&access.strides) {
            index = index.wrapping_add((c as i64).wrapping_mul(s));
        }
        for d in &access.dynamic {
            index = index.wrapping_add((self.params[d.param as usize] as i64).wrapping_mul(d.stride));
        }
        let arg = &self.kernel.args[access.arg as usize];
        if index < 0 || index >= arg.len as i64 {
            return Err(Error::bug("kernel", format!("element {index} of argument {} ({arg:?})", access.arg)));
        }
        let size = arg.dtype.size();
        Ok((arg.dtype, index as usize * size..(index as usize + 1) * size))
    }

    fn load(&self, access: &Access, extra: i64, memory: &[Memory]) -> Result<u64> {
        let (dtype, range) = self.element(access, extra)?;
        let Memory::In(bytes) = &memory[access.arg as usize] else {
            return Err(Error::bug("kernel", "load from an output"));
        };
        Ok(dtype.read(&bytes[range]))
    }

    fn store(&self, access: &Access, value: u64, memory: &mut [Memory]) -> Result<()> {
        let (dtype, range) = self.element(access, 0)?;
        let Memory::Out(bytes) = &mut memory[access.arg as usize] else {
            return Err(Error::bug("kernel", "store to an input"));
        };
        dtype.write(value, &mut bytes[range]);
        Ok(())
    }
}

/// A parameter's word as a lane: unused high bits dropped, truth values 0 or 1.
fn canonical(ty: Ty, word: u64) -> u64 {
    match ty {
        Ty::F32 | Ty::U32 => word as u32 as u64,
        Ty::I64 | Ty::F64 => word,
        Ty::Bool => (word != 0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::Element;
    use crate::kernel::build::Builder;
    use crate::kernel::ir::{Combine, Dynamic};

    #[test]
    fn normalise_rows() {
        // out = x / sum(x), and the row maxima, over [2, 3].
        let mut b = Builder::new(&[2, 3], &[false, true]);
        let (x, y, m) = (b.input(DType::F32, 6), b.output(DType::F32, 6), b.output(DType::F32, 2));
        let v = b.load(Access::row_major(x, &[2, 3]));
        let s = b.reduce(Combine::Sum, v);
        let q = b.div(v, s);
        b.store(Access::row_major(y, &[2, 3]), q);
        let max = b.reduce(Combine::Max, v);
        b.store(Access::strided(m, 0, &[1, 0]), max);
        let k = b.finish().unwrap();
        let input = f32::to_bytes(&[1.0, 2.0, 5.0, 4.0, 4.0, -4.0]);
        let (mut out, mut maxima) = (vec![0; 24], vec![0; 8]);
        let memory = &mut [Memory::In(&input), Memory::Out(&mut out), Memory::Out(&mut maxima)];
        assert!(!run(&k, &[], memory).unwrap());
        assert_eq!(f32::from_bytes(&out), [0.125, 0.25, 0.625, 1.0, 1.0, -1.0]);
        assert_eq!(f32::from_bytes(&maxima), [5.0, 4.0]);
    }

    #[test]
    fn a_row_value_reduces_as_copies() {
        let mut b = Builder::new(&[2, 3], &[false, true]);
        let y = b.output(DType::I64, 2);
        let i = b.index(0);
        let s = b.reduce(Combine::LSum, i);
        b.store(Access::strided(y, 0, &[1, 0]), s);
        let k = b.finish().unwrap();
        let mut out = vec![0; 16];
        run(&k, &[], &mut [Memory::Out(&mut out)]).unwrap();
        assert_eq!(i64::from_bytes(&out), [0, 3]);
    }

    #[test]
    fn empty_reductions_and_empty_outputs() {
        let mut b = Builder::new(&[2, 0], &[false, true]);
        let (x, y) = (b.input(DType::F32, 0), b.output(DType::F32, 2));
        let v = b.load(Access::strided(x, 0, &[0, 1]));
        let m = b.reduce(Combine::Max, v);
        b.store(Access::strided(y, 0, &[1, 0]), m);
        let k = b.finish().unwrap();
        let mut out = vec![0; 8];
        run(&k, &[], &mut [Memory::In(&[]), Memory::Out(&mut out)]).unwrap();
        assert_eq!(f32::from_bytes(&out), [f32::NEG_INFINITY; 2]);
    }

    #[test]
    fn guards_gathers_and_parameters() {
        // out[i] = (0 < i < 3 ? x[i - 1 + p] : 0) + x[clamp(t[i])] over [4].
        let mut b = Builder::new(&[4], &[false]);
        let (x, t, y) = (b.input(DType::F32, 4), b.input(DType::I64, 4), b.output(DType::F32, 4));
        let p = b.add_param(Ty::I64);
        let mut shifted = Access::strided(x, -1, &[1]);
        shifted.dynamic.push(Dynamic { param: p, stride: 1, max: 2 });
        let v = b.load_where(shifted, vec![Guard { axis: 0, lo: 1, hi: 3 }]);
        let index = b.load(Access::strided(t, 0, &[1]));
        let g = b.gather(Access::strided(x, 0, &[0]), index, 1, 4);
        let s = b.add(v, g);
        b.store(Access::strided(y, 0, &[1]), s);
        let k = b.finish().unwrap();
        let x = f32::to_bytes(&[10.0, 20.0, 30.0, 40.0]);
        let go = |t: [i64; 4], p: u64| {
            let (t, mut out) = (i64::to_bytes(&t), vec![0; 16]);
            let flag = run(&k, &[p], &mut [Memory::In(&x), Memory::In(&t), Memory::Out(&mut out)])?;
            Ok::<_, Error>((f32::from_bytes(&out), flag))
        };
        assert_eq!(go([3, 2, 1, 0], 2).unwrap(), (vec![40.0, 60.0, 60.0, 10.0], false));
        assert_eq!(go([3, -1, 9, 0], 0).unwrap(), (vec![40.0, 20.0, 60.0, 10.0], true));
        assert!(go([0; 4], 3).is_err(), "a parameter above its maximum");
    }

    #[test]
    fn short_buffers_are_refused() {
        let mut b = Builder::new(&[4], &[false]);
        let y = b.output(DType::F32, 4);
        let one = b.f32(1.0);
        b.store(Access::row_major(y, &[4]), one);
        let k = b.finish().unwrap();
        assert!(run(&k, &[], &mut [Memory::Out(&mut [0; 15])]).is_err());
        assert!(run(&k, &[], &mut []).is_err());
    }
}
