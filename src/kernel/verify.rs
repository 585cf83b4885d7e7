//! What a backend may rely on: [`Kernel::verify`].
//!
//! Accepted kernels are well typed, with operands before users; every access stays inside its
//! argument for all points of the domain and all allowed parameters; outputs are stored and
//! never loaded; no element is written twice. The test for the last is conservative: per store the
//! strides must nest, stores to one output must lie in disjoint index ranges.

use crate::base::{Error, Result};
use crate::kernel::instr::Ty;
use crate::kernel::ir::{Access, Guard, Inst, Kernel, Level, Val};

/// Elements an access may touch: first and last index.
type Range = (i128, i128);

impl Kernel {
    /// Checks every rule of the IR; the error names the instruction.
    pub fn verify(&self) -> Result<()> {
        self.verify_header().map_err(|e| Error::bug("kernel verifier", e))?;
        for i in 0..self.body.len() {
            self.verify_types(i).map_err(|e| self.located(i, e))?;
        }
        // Types hold, so that levels are defined.
        let levels = self.levels();
        let mut stores: Vec<Vec<(usize, Range)>> = vec![Vec::new(); self.args.len()];
        for (i, &level) in levels.iter().enumerate() {
            self.verify_memory(i, level, &mut stores).map_err(|e| self.located(i, e))?;
        }
        for (a, arg) in self.args.iter().enumerate() {
            if arg.output && stores[a].is_empty() {
                return Err(Error::bug("kernel verifier", format!("output {a} is never stored")));
            }
        }
        Ok(())
    }

    fn located(&self, i: usize, detail: String) -> Error {
        Error::bug("kernel verifier", format!("instruction {i}, {:?}: {detail}", self.body[i]))
    }

    fn verify_header(&self) -> Result<(), String> {
        if self.domain.len() != self.reduced.len() {
            return Err(format!("{} axes but {} reduced marks", self.domain.len(), self.reduced.len()));
        }
        let points = self.domain.iter().filter(|&&d| d != 0).try_fold(1usize, |p, &d| p.checked_mul(d));
        if points.is_none_or(|p| p > isize::MAX as usize) {
            return Err(format!("domain {:?} has too many points", self.domain));
        }
        if self.args.iter().any(|a| a.len > isize::MAX as usize / a.dtype.size()) {
            return Err("an argument is larger than memory".into());
        }
        if self.body.len() > u32::MAX as usize {
            return Err("too many instructions".into());
        }
        Ok(())
    }

    /// Operand order, types and positions of instruction `i`; those before it hold.
    fn verify_types(&self, i: usize) -> Result<(), String> {
        let value = |v: Val, want: Ty| {
            if v.0 as usize >= i {
                return Err(format!("operand {} is not made before", v.0));
            }
            match self.ty(v) {
                Some(ty) if ty == want => Ok(()),
                Some(ty) => Err(format!("operand {} is {}, expected {}", v.0, ty.name(), want.name())),
                None => Err(format!("operand {} is a store", v.0)),
            }
        };
        let access = |a: &Access, output: bool| {
            let arg = self.args.get(a.arg as usize).ok_or(format!("argument {} does not exist", a.arg))?;
            if arg.output != output {
                return Err(format!("argument {} is an {}", a.arg, if arg.output { "output" } else { "input" }));
            }
            if a.strides.len() != self.domain.len() {
                return Err(format!("{} strides for {} axes", a.strides.len(), self.domain.len()));
            }
            for d in &a.dynamic {
                if self.params.get(d.param as usize) != Some(&Ty::I64) {
                    return Err(format!("dynamic part: parameter {} is not an i64", d.param));
                }
                if d.max < 0 {
                    return Err(format!("dynamic part: max {} is negative", d.max));
                }
            }
            Ok(Ty::of(arg.dtype))
        };
        match &self.body[i] {
            Inst::Const { ty, bits } => {
                let canonical = match ty {
                    Ty::F32 | Ty::U32 => *bits <= u32::MAX as u64,
                    Ty::Bool => *bits <= 1,
                    Ty::I64 | Ty::F64 => true,
                };
                if canonical { Ok(()) } else { Err(format!("bits {bits:#x} do not fit {}", ty.name())) }
            }
            Inst::Param { param } => {
                self.params.get(*param as usize).map(|_| ()).ok_or(format!("parameter {param} does not exist"))
            }
            Inst::Index { axis } => self.verify_axis(*axis),
            Inst::Load { access: a, guards } => {
                access(a, false)?;
                guards.iter().try_for_each(|g| self.verify_axis(g.axis))
            }
            Inst::Gather { access: a, index, len, .. } => {
                access(a, false)?;
                value(*index, Ty::I64)?;
                if *len >= 1 { Ok(()) } else { Err(format!("gather from an axis of length {len}")) }
            }
            Inst::Op { instr, args } => {
                let wanted = instr.operands();
                for (&a, &ty) in args.iter().zip(wanted) {
                    value(a, ty)?;
                }
                // One way to write each instruction, so that equal kernels compare equal.
                if args[wanted.len()..].iter().any(|a| a.0 != 0) {
                    return Err("unused operand slots must be 0".into());
                }
                Ok(())
            }
            Inst::Reduce { combine, value: v } => value(*v, combine.instr().result()),
            Inst::Store { access: a, value: v } => {
                let ty = access(a, true)?;
                value(*v, ty)
            }
        }
    }

    fn verify_axis(&self, axis: u32) -> Result<(), String> {
        if (axis as usize) < self.domain.len() {
            Ok(())
        } else {
            Err(format!("axis {axis} of a domain with {} axes", self.domain.len()))
        }
    }

    fn verify_memory(&self, i: usize, level: Level, stores: &mut [Vec<(usize, Range)>]) -> Result<(), String> {
        match &self.body[i] {
            Inst::Load { access, guards } => {
                self.verify_bounds(access, level, guards, 0)?;
            }
            Inst::Gather { access, stride, len, .. } => {
                let reach = *stride as i128 * (*len as i128 - 1);
                self.verify_bounds(access, level, &[], reach)?;
            }
            Inst::Store { access, .. } => {
                if level == Level::Row && access.strides.iter().zip(&self.reduced).any(|(&s, &r)| r && s != 0) {
                    return Err("a value that is one per row, stored with a stride along a reduced axis".into());
                }
                let range = self.verify_bounds(access, level, &[], 0)?;
                let others = &mut stores[access.arg as usize];
                if let Some(range) = range {
                    self.verify_written_once(access, level)?;
                    if let Some((j, _)) = others.iter().find(|(_, r)| range.0 <= r.1 && r.0 <= range.1) {
                        return Err(format!("may write an element that instruction {j} writes"));
                    }
                    others.push((i, range));
                } else {
                    // Nothing is written; an empty range keeps the output counted as stored.
                    others.push((i, (0, -1)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The axes an instruction of `level` runs over: a row's run over the kept ones.
    fn runs_over(&self, level: Level) -> impl Iterator<Item = usize> {
        (0..self.domain.len()).filter(move |&axis| level == Level::Full || !self.reduced[axis])
    }

    /// The range of elements touched (`None`: none at all), checked against the argument's length.
    /// `extra` is the reach of a gather's index.
    fn verify_bounds(
        &self,
        access: &Access,
        level: Level,
        guards: &[Guard],
        extra: i128,
    ) -> Result<Option<Range>, String> {
        let overflow = || "the element index overflows".to_string();
        let mut range: Range = (access.offset as i128 + extra.min(0), access.offset as i128 + extra.max(0));
        let mut widen = |a: i128, b: i128| {
            range.0 = range.0.checked_add(a.min(b)).ok_or_else(overflow)?;
            range.1 = range.1.checked_add(a.max(b)).ok_or_else(overflow)?;
            Ok::<(), String>(())
        };
        for axis in self.runs_over(level) {
            let (mut lo, mut hi) = (0, self.domain[axis] as i64);
            for g in guards.iter().filter(|g| g.axis as usize == axis) {
                (lo, hi) = (lo.max(g.lo), hi.min(g.hi));
            }
            if lo >= hi {
                return Ok(None);
            }
            let stride = access.strides[axis] as i128;
            widen(stride * lo as i128, stride * (hi as i128 - 1))?;
        }
        for d in &access.dynamic {
            widen(0, d.stride as i128 * d.max as i128)?;
        }
        let len = self.args[access.arg as usize].len;
        if range.0 < 0 || range.1 >= len as i128 {
            return Err(format!("touches elements {}..={} of {len}", range.0, range.1));
        }
        Ok(Some(range))
    }

    /// Distinct points have distinct elements: each stride exceeds the reach of the smaller ones.
    fn verify_written_once(&self, access: &Access, level: Level) -> Result<(), String> {
        let mut axes: Vec<(i128, i128)> = self
            .runs_over(level)
            .filter(|&axis| self.domain[axis] > 1)
            .map(|axis| ((access.strides[axis] as i128).abs(), self.domain[axis] as i128 - 1))
            .collect();
        axes.sort_unstable();
        let mut reach = 0;
        for (stride, steps) in axes {
            if stride <= reach {
                return Err("two points may write the same element".into());
            }
            reach += stride * steps;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::base::DType;
    use crate::kernel::build::Builder;
    use crate::kernel::ir::{Access, Arg, Combine, Dynamic, Guard, Inst, Kernel, Val};
    use crate::kernel::{Instr, Ty};

    /// `out[i, j] = x[i, j]` over [2, 3] with the given accesses.
    fn copy(reduced: bool, len: usize, load: &[i64], store: &[i64]) -> Result<Kernel, String> {
        let mut b = Builder::new(&[2, 3], &[false, reduced]);
        let (x, y) = (b.input(DType::F32, len), b.output(DType::F32, len));
        let v = b.load(Access::strided(x, 0, load));
        b.store(Access::strided(y, 0, store), v);
        b.finish().map_err(|e| e.to_string())
    }

    #[track_caller]
    fn refused(r: Result<Kernel, String>, why: &str) {
        let e = r.expect_err("accepted");
        assert!(e.contains(why), "{e}");
    }

    #[test]
    fn bounds() {
        assert!(copy(false, 6, &[3, 1], &[3, 1]).is_ok());
        refused(copy(false, 5, &[0, 1], &[3, 1]), "touches elements 0..=5 of 5");
        refused(copy(false, 6, &[4, 1], &[3, 1]), "touches elements 0..=6 of 6");
        refused(copy(false, 6, &[-3, 1], &[3, 1]), "touches elements -3..=2 of 6");
    }

    #[test]
    fn bounds_with_guards_parameters_and_gathers() {
        let kernel = |lo, hi, max, glen| {
            let mut b = Builder::new(&[4], &[false]);
            let (x, y) = (b.input(DType::F32, 4), b.output(DType::F32, 4));
            let p = b.add_param(Ty::I64);
            let mut shifted = Access::strided(x, -1, &[1]);
            shifted.dynamic.push(Dynamic { param: p, stride: 1, max });
            let v = b.load_where(shifted, vec![Guard { axis: 0, lo, hi }]);
            let i = b.index(0);
            let g = b.gather(Access::strided(x, 0, &[0]), i, 2, glen);
            let s = b.add(v, g);
            b.store(Access::strided(y, 3, &[-1]), s);
            b.finish().map_err(|e| e.to_string())
        };
        assert!(kernel(1, 9, 1, 2).is_ok());
        assert!(kernel(7, 9, 100, 2).is_ok(), "a guard that never holds");
        refused(kernel(0, 9, 1, 2), "touches elements -1..=3 of 4");
        refused(kernel(1, 9, 2, 2), "touches elements 0..=4 of 4");
        refused(kernel(1, 9, 1, 3), "touches elements 0..=4 of 4");
        refused(kernel(1, 9, 1, 0), "gather from an axis of length 0");
        refused(kernel(1, 9, -1, 2), "max -1 is negative");
    }

    #[test]
    fn every_element_is_written_once() {
        refused(copy(false, 6, &[3, 1], &[0, 1]), "two points may write");
        refused(copy(false, 6, &[3, 1], &[2, 1]), "two points may write");
        assert!(copy(false, 6, &[3, 1], &[1, 2]).is_ok(), "transposed");
        let mut b = Builder::new(&[2], &[false]);
        let y = b.output(DType::F32, 4);
        let one = b.f32(1.0);
        b.store(Access::strided(y, 0, &[1]), one);
        let mut overlapping = b.clone();
        overlapping.store(Access::strided(y, 1, &[1]), one);
        b.store(Access::strided(y, 2, &[1]), one);
        assert!(b.finish().is_ok());
        refused(overlapping.finish().map_err(|e| e.to_string()), "that instruction 1 writes");
    }

    #[test]
    fn row_values_are_stored_once_per_row() {
        assert!(copy(true, 6, &[3, 1], &[3, 1]).is_ok());
        assert!(copy(true, 6, &[3, 0], &[3, 0]).is_ok());
        refused(copy(true, 6, &[3, 0], &[3, 1]), "one per row");
        refused(copy(true, 6, &[3, 1], &[3, 0]), "two points may write");
    }

    #[test]
    fn types_and_order() {
        let mut k = copy(false, 6, &[3, 1], &[3, 1]).unwrap();
        k.body.insert(0, Inst::Op { instr: Instr::Neg, args: [Val(0), Val(0), Val(0)] });
        refused(k.verify().map(|()| Kernel::default()).map_err(|e| e.to_string()), "operand 0 is not made before");
        let mut b = Builder::new(&[], &[]);
        let (one, two) = (b.f32(1.0), b.i64(2));
        b.op(Instr::Add, &[one, two]);
        refused(b.finish().map_err(|e| e.to_string()), "operand 1 is i64, expected f32");
        let mut b = Builder::new(&[2], &[true]);
        let one = b.f32(1.0);
        b.reduce(Combine::Any, one);
        refused(b.finish().map_err(|e| e.to_string()), "operand 0 is f32, expected bool");
        let mut b = Builder::new(&[2], &[true]);
        let y = b.output(DType::F32, 2);
        b.load(Access::strided(y, 0, &[1]));
        refused(b.finish().map_err(|e| e.to_string()), "argument 0 is an output");
        let k = Kernel { args: vec![Arg { dtype: DType::F32, len: 1, output: true }], ..Kernel::default() };
        refused(k.verify().map(|()| Kernel::default()).map_err(|e| e.to_string()), "output 0 is never stored");
    }

    #[test]
    fn empty_domains() {
        let mut b = Builder::new(&[2, 0], &[false, true]);
        let (x, y) = (b.input(DType::F32, 0), b.output(DType::F32, 2));
        let v = b.load(Access::strided(x, 0, &[0, 1]));
        let s = b.reduce(Combine::Sum, v);
        b.store(Access::strided(y, 0, &[1, 0]), s);
        assert!(b.finish().is_ok());
    }
}
