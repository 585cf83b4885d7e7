//! The bytes that a step touches, derived from its kernel or library call.
//!
//! Reads are taken as the smallest range that holds them; writes exactly, as runs of bytes, where there are
//! not too many. May rely on floors 0 and 1. Guarantees: no access lies outside the ranges given; `all` and
//! `runs` hold only bytes that are written whatever the data.

use smallvec::SmallVec;

use crate::base::{DType, Layout};
use crate::kernel::ir::{Access, Dynamic, Guard};
use crate::kernel::library::{Block, Library, Lines, Operand};
use crate::kernel::{Inst, Kernel, Level};
use crate::plan::StepKind;

/// Alignment of slots in the arena.
pub(in crate::plan) const ALIGN: usize = 64;

/// More runs than this are given as one range that may be written only in part.
const MOST_RUNS: usize = 1 << 12;

/// What one step touches.
pub(in crate::plan) struct Touches {
    pub args: SmallVec<[ArgInfo; 8]>,
    pub list: SmallVec<[Touch; 8]>,
}

/// One argument of a step.
pub(in crate::plan) struct ArgInfo {
    pub dtype: DType,
    pub output: bool,
    /// Bytes from its start that may be touched.
    pub bytes: usize,
}

/// One access of a step: bytes `lo..hi` of an argument, not empty.
pub(in crate::plan) struct Touch {
    pub arg: u32,
    pub write: bool,
    pub lo: usize,
    pub hi: usize,
    /// A write of every byte of the range.
    pub all: bool,
    /// A write of exactly these runs of bytes.
    pub runs: Option<Vec<(usize, usize)>>,
    /// Where it happens, for an access of a kernel that can be in place.
    element: Option<Element>,
}

/// The element that a point of the domain touches: size, offset and strides (of axes longer than 1, else 0).
#[derive(PartialEq)]
struct Element {
    size: usize,
    offset: i64,
    strides: SmallVec<[i64; 4]>,
    dynamic: SmallVec<[Dynamic; 1]>,
}

/// Why a step cannot be described.
pub(in crate::plan) enum Misfit {
    Signature(String),
    Kernel(String),
    Bounds(String),
    Overlap(String),
}

impl Touches {
    /// Whether the write and the read are of one element at each point of the kernel.
    pub fn same_element(&self, w: &Touch, r: &Touch) -> bool {
        w.element.is_some() && w.element == r.element
    }
}

impl Touch {
    /// Whether two writes have no byte in common.
    pub fn apart(&self, other: &Touch, base: usize, other_base: usize) -> bool {
        let (Some(a), Some(b)) = (&self.runs, &other.runs) else { return false };
        let (mut i, mut j) = (0, 0);
        while let (Some(&(alo, ahi)), Some(&(blo, bhi))) = (a.get(i), b.get(j)) {
            let (alo, ahi, blo, bhi) = (alo + base, ahi + base, blo + other_base, bhi + other_base);
            if alo < bhi && blo < ahi {
                return false;
            }
            if ahi <= bhi { i += 1 } else { j += 1 }
        }
        true
    }
}

/// A strided set of elements, in bytes: `offset + Σ i_a * stride_a`, `0 <= i_a < len_a`.
struct Nest {
    lo: i128,
    /// (stride > 0, len > 1), ascending; axes of stride 0 are left out.
    axes: SmallVec<[(i128, i128); 4]>,
    size: i128,
    /// Some axis longer than 1 has stride 0.
    repeats: bool,
}

impl Nest {
    /// `None`: no elements.
    fn new(offset: i64, axes: impl Iterator<Item = (i64, usize)>, size: usize) -> Option<Nest> {
        let size = size as i128;
        let mut nest = Nest { lo: offset as i128 * size, axes: SmallVec::new(), size, repeats: false };
        for (stride, len) in axes {
            if len == 0 {
                return None;
            }
            if len == 1 {
                continue;
            }
            let (stride, len) = (stride as i128 * size, len as i128);
            match stride {
                0 => nest.repeats = true,
                s if s < 0 => {
                    nest.lo = nest.lo.saturating_add(s.saturating_mul(len - 1));
                    nest.axes.push((-s, len));
                }
                s => nest.axes.push((s, len)),
            }
        }
        nest.axes.sort_unstable();
        Some(nest)
    }

    fn hi(&self) -> i128 {
        self.axes
            .iter()
            .fold(self.lo.saturating_add(self.size), |hi, &(s, n)| hi.saturating_add(s.saturating_mul(n - 1)))
    }

    /// Whether no two points give one element (sufficient: each stride spans what lies inside it).
    fn injective(&self) -> bool {
        let mut span = self.size;
        !self.repeats
            && self.axes.iter().all(|&(s, n)| {
                let fits = s >= span;
                span = span.saturating_add(s.saturating_mul(n - 1));
                fits
            })
    }

    /// Runs of bytes that together are the nest; `None` if there are too many. Only of a nest in bounds.
    /// Ascending if the nest is injective.
    fn runs(&self) -> Option<Vec<(usize, usize)>> {
        let mut run = self.size;
        let mut outer = 0;
        for &(s, n) in &self.axes {
            if s != run {
                break;
            }
            run *= n;
            outer += 1;
        }
        let outer = &self.axes[outer..];
        let count = outer.iter().try_fold(1i128, |c, &(_, n)| c.checked_mul(n))?;
        if count > MOST_RUNS as i128 {
            return None;
        }
        let mut out = vec![self.lo];
        for &(s, n) in outer.iter().rev() {
            out = out.iter().flat_map(|&lo| (0..n).map(move |i| lo + i * s)).collect();
        }
        Some(out.into_iter().map(|lo| (lo as usize, (lo + run) as usize)).collect())
    }
}

/// First byte and one past the last that a layout touches.
pub(in crate::plan) fn layout_bytes(layout: &Layout, dtype: DType) -> Option<(i128, i128)> {
    layout_nest(layout, dtype).map(|n| (n.lo, n.hi()))
}

/// Runs of bytes that a layout touches; the whole range if they are many.
pub(in crate::plan) fn layout_runs(layout: &Layout, dtype: DType) -> Vec<(usize, usize)> {
    let Some(nest) = layout_nest(layout, dtype) else { return Vec::new() };
    match nest.runs() {
        Some(runs) => runs,
        None => vec![(nest.lo as usize, nest.hi() as usize)],
    }
}

fn layout_nest(layout: &Layout, dtype: DType) -> Option<Nest> {
    let axes = layout.strides().iter().map(|&s| s as i64).zip(layout.shape.dims().iter().copied());
    Nest::new(layout.offset as i64, axes, dtype.size())
}

/// The bytes that a step with `given` arguments touches.
pub(in crate::plan) fn touches(kind: &StepKind, given: usize) -> Result<Touches, Misfit> {
    let touches = match kind {
        StepKind::Kernel(kernel) => of_kernel(kernel)?,
        StepKind::Library(library) => of_library(library)?,
    };
    if touches.args.len() != given {
        return Err(Misfit::Signature(format!("{given} arguments for {}", touches.args.len())));
    }
    Ok(touches)
}

fn of_kernel(kernel: &Kernel) -> Result<Touches, Misfit> {
    well_formed(kernel)?;
    let args = kernel
        .args
        .iter()
        .map(|a| {
            let bytes = a.len.checked_mul(a.dtype.size());
            let bytes = bytes.ok_or_else(|| Misfit::Bounds("an argument's length overflows".into()))?;
            Ok(ArgInfo { dtype: a.dtype, output: a.output, bytes })
        })
        .collect::<Result<_, _>>()?;
    let mut out = Touches { args, list: SmallVec::new() };
    let reduces = kernel.reduced.contains(&true);
    let levels = if reduces { kernel.levels() } else { Vec::new() };
    for inst in &kernel.body {
        match inst {
            Inst::Load { access, guards } => {
                let inner = reduces
                    && (kernel.reduced.iter().zip(&access.strides).any(|(&r, &s)| r && s != 0)
                        || guards.iter().any(|g| kernel.reduced[g.axis as usize]));
                out.list.extend(of_access(kernel, access, guards, None, false, inner)?);
            }
            Inst::Gather { access, stride, len, .. } => {
                let inner = kernel.reduced.iter().zip(&access.strides).any(|(&r, &s)| r && s != 0);
                out.list.extend(of_access(kernel, access, &[], Some((*stride, *len)), false, inner)?);
            }
            Inst::Store { access, value } => {
                let inner = reduces && levels[value.0 as usize] == Level::Full;
                out.list.extend(of_access(kernel, access, &[], None, true, inner)?);
            }
            _ => {}
        }
    }
    // Types, and the other rules that backends rely on.
    kernel.verify().map_err(|e| Misfit::Kernel(e.kind().to_string()))?;
    Ok(out)
}

/// What the accesses below index with exists.
fn well_formed(kernel: &Kernel) -> Result<(), Misfit> {
    let bad = |detail: String| Err(Misfit::Kernel(detail));
    let axes = kernel.domain.len();
    if kernel.reduced.len() != axes {
        return bad(format!("{} reduction flags for {axes} axes", kernel.reduced.len()));
    }
    for (i, inst) in kernel.body.iter().enumerate() {
        let value =
            |v: crate::kernel::Val| (v.0 as usize) < i && !matches!(kernel.body[v.0 as usize], Inst::Store { .. });
        let axis = |a: u32| (a as usize) < axes;
        let access = |a: &Access, output: bool| {
            a.strides.len() == axes
                && kernel.args.get(a.arg as usize).is_some_and(|arg| arg.output == output)
                && a.dynamic.iter().all(|d| {
                    d.max >= 0 && kernel.params.get(d.param as usize).is_some_and(|&t| t == crate::kernel::Ty::I64)
                })
        };
        let ok = match inst {
            Inst::Const { .. } => true,
            Inst::Param { param } => (*param as usize) < kernel.params.len(),
            Inst::Index { axis: a } => axis(*a),
            Inst::Load { access: a, guards } => access(a, false) && guards.iter().all(|g| axis(g.axis)),
            Inst::Gather { access: a, index, len, .. } => access(a, false) && value(*index) && *len >= 1,
            Inst::Op { instr, args } => args[..instr.operands().len()].iter().all(|&a| value(a)),
            Inst::Reduce { value: v, .. } => value(*v),
            Inst::Store { access: a, value: v } => access(a, true) && value(*v),
        };
        if !ok {
            return bad(format!("instruction {i} names what is not there, or what it may not touch"));
        }
    }
    Ok(())
}

/// `inner`: it happens at every inner point, else once per outer point.
fn of_access(
    kernel: &Kernel,
    access: &Access,
    guards: &[Guard],
    gather: Option<(i64, i64)>,
    write: bool,
    inner: bool,
) -> Result<Option<Touch>, Misfit> {
    let arg = &kernel.args[access.arg as usize];
    let size = arg.dtype.size();
    let mut offset = access.offset as i128;
    let mut axes: SmallVec<[(i64, usize); 8]> = SmallVec::new();
    for (a, (&len, &stride)) in kernel.domain.iter().zip(&access.strides).enumerate() {
        if kernel.reduced[a] && !inner {
            if stride != 0 && len > 1 {
                return Err(Misfit::Kernel("a value of the row is accessed at every inner point".into()));
            }
            continue;
        }
        let (mut lo, mut hi) = (0i64, i64::try_from(len).unwrap_or(i64::MAX));
        for g in guards.iter().filter(|g| g.axis as usize == a) {
            (lo, hi) = (lo.max(g.lo), hi.min(g.hi));
        }
        offset += lo as i128 * stride as i128;
        axes.push((stride, (hi as i128 - lo as i128).max(0) as usize));
    }
    let outside = || Misfit::Bounds(format!("an access to argument {} of {} elements", access.arg, arg.len));
    // Guards may move the start far away where nothing is accessed at all.
    if axes.iter().any(|&(_, len)| len == 0) {
        return Ok(None);
    }
    let start = i64::try_from(offset).map_err(|_| outside())?;
    let Some(nest) = Nest::new(start, axes.into_iter(), size) else { return Ok(None) };
    let (mut lo, mut hi) = (nest.lo, nest.hi());
    let moved = access.dynamic.iter().map(|d| d.stride as i128 * d.max as i128);
    let gathered = gather.map(|(stride, len)| stride as i128 * (len as i128 - 1));
    for reach in moved.chain(gathered) {
        let reach = reach.saturating_mul(size as i128);
        if reach < 0 { lo = lo.saturating_add(reach) } else { hi = hi.saturating_add(reach) }
    }
    if lo < 0 || hi > arg.len as i128 * size as i128 {
        return Err(outside());
    }
    let mut touch =
        Touch { arg: access.arg, write, lo: lo as usize, hi: hi as usize, all: false, runs: None, element: None };
    if guards.is_empty() && gather.is_none() {
        let strides = kernel.domain.iter().zip(&access.strides).map(|(&n, &s)| if n > 1 { s } else { 0 }).collect();
        let dynamic = access.dynamic.iter().copied().collect();
        touch.element = Some(Element { size, offset: access.offset, strides, dynamic });
    }
    if write {
        if !nest.injective() {
            return Err(Misfit::Overlap(format!("argument {} is stored to twice at one element", access.arg)));
        }
        if access.dynamic.iter().all(|d| d.stride == 0 || d.max == 0) {
            set_written(&mut touch, &nest);
        }
    }
    Ok(Some(touch))
}

fn set_written(touch: &mut Touch, nest: &Nest) {
    match nest.runs() {
        Some(runs) if runs.len() == 1 => touch.all = true,
        runs => touch.runs = runs,
    }
}

fn of_library(library: &Library) -> Result<Touches, Misfit> {
    // (dtype, written, offset, (stride, length) of each axis)
    type Part = (DType, bool, i64, SmallVec<[(i64, usize); 4]>);
    let whole = |dims: [usize; 3], dtype: DType| -> Result<Part, Misfit> {
        let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = count.ok_or_else(|| Misfit::Bounds("the output's length overflows".into()))?;
        Ok((dtype, true, 0, [(1, count)].into_iter().collect()))
    };
    let read = |dtype: DType, offset: i64, strides: [i64; 3], dims: [usize; 3]| -> Part {
        (dtype, false, offset, strides.into_iter().zip(dims).collect())
    };
    let along = |dtype: DType, l: &Lines, dims: [usize; 3]| read(dtype, l.offset, l.strides, dims);
    let parts: SmallVec<[Part; 3]> = match library {
        Library::Matmul(m) => {
            let part = |o: &Operand, rows: usize, cols: usize, output: bool| -> Result<Part, Misfit> {
                if o.batch.len() != m.batch.len() {
                    return Err(Misfit::Kernel("a matmul operand has other batch axes".into()));
                }
                let mut axes: SmallVec<[(i64, usize); 4]> =
                    o.batch.iter().copied().zip(m.batch.iter().copied()).collect();
                axes.extend([(o.row, rows), (o.col, cols)]);
                Ok((m.dtype, output, o.offset, axes))
            };
            [part(&m.a, m.m, m.k, false)?, part(&m.b, m.k, m.n, false)?, part(&m.c, m.m, m.n, true)?].into()
        }
        Library::ScatterAdd(s) => {
            let dims = [s.outer, s.count, s.inner];
            let out = whole([s.outer, s.len, s.inner], s.dtype)?;
            [read(DType::I64, 0, s.index, dims), read(s.dtype, 0, s.src, dims), out].into()
        }
        Library::ScatterIndex(s) => {
            let [outer, _, inner] = s.dims;
            SmallVec::from_iter([along(DType::I64, &s.index, s.dims), whole([outer, s.len, inner], DType::I64)?])
        }
        Library::Scan(s) => {
            if s.inputs.len() != s.kind.inputs() {
                return Err(Misfit::Kernel("a scan has another number of inputs".into()));
            }
            let inputs = s.inputs.iter().map(|l| Ok(along(s.dtype, l, s.dims)));
            inputs.chain([whole(s.dims, s.dtype)]).collect::<Result<_, _>>()?
        }
        Library::Custom(c) => {
            let block = |b: &Block, written: bool| -> Result<Part, Misfit> {
                let count = b.shape.dims().iter().try_fold(1usize, |n, &d| n.checked_mul(d));
                let count = count.ok_or_else(|| Misfit::Bounds("an argument's length overflows".into()))?;
                Ok((b.dtype, written, b.offset, [(1, count)].into_iter().collect()))
            };
            let inputs = c.inputs.iter().map(|b| block(b, false));
            inputs.chain([block(&c.output, true)]).collect::<Result<_, _>>()?
        }
        Library::Argsort(s) => SmallVec::from_iter([along(s.dtype, &s.input, s.dims), whole(s.dims, DType::I64)?]),
    };
    let mut out = Touches { args: SmallVec::new(), list: SmallVec::new() };
    for (k, (dtype, output, offset, axes)) in parts.into_iter().enumerate() {
        let nest = Nest::new(offset, axes.into_iter(), dtype.size());
        let bytes = match &nest {
            None => 0,
            Some(n) if n.lo < 0 || n.hi() > isize::MAX as i128 => {
                return Err(Misfit::Bounds(format!("argument {k} starts before its slot or overflows")));
            }
            Some(n) => n.hi() as usize,
        };
        out.args.push(ArgInfo { dtype, output, bytes });
        let Some(nest) = nest else { continue };
        let mut touch = Touch {
            arg: k as u32,
            write: output,
            lo: nest.lo as usize,
            hi: bytes,
            all: false,
            runs: None,
            element: None,
        };
        if output {
            if !nest.injective() {
                return Err(Misfit::Overlap(format!("argument {k} is written twice at one element")));
            }
            set_written(&mut touch, &nest);
        }
        out.list.push(touch);
    }
    Ok(out)
}
