//! How an op's elements are computed inside a kernel.
//!
//! Lowering pulls: to get the value of a node at some index, the op's `lower` asks for its
//! operands at the indices they are needed at. An [`IndexMap`] is such an index: one affine
//! expression in the kernel's domain axes per axis of the value. Movement ops are nothing but
//! the [`IndexMap`] methods of their names, each going from the result's index to the operand's.

use smallvec::SmallVec;

use crate::base::{Error, ErrorKind, Layout, Result, Scalar, Shape, Type};
use crate::kernel::{self, Access, Builder, Guard, Inst, ir::Dynamic};

/// An affine index expression: `offset + Σ domain coordinate * stride + Σ param * stride`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Expr {
    pub offset: i64,
    /// (domain axis, stride), by ascending axis, no zero strides.
    pub terms: SmallVec<[(u32, i64); 4]>,
    pub dynamic: SmallVec<[Dynamic; 1]>,
}

/// At which index of a value a kernel's point reads it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexMap {
    /// The value's shape.
    pub shape: Shape,
    /// One expression per axis; or, when a reshape cannot be split by axes, see `linear`.
    pub axes: SmallVec<[Expr; 4]>,
    /// Set (and `axes` empty): the row-major linear index of the element.
    pub linear: Option<Expr>,
    /// Where the index is valid; loads outside are not made and give zero.
    pub guards: SmallVec<[Guard; 2]>,
}

/// What an op's `lower` can ask of the kernel under construction.
pub trait Lowering {
    /// The kernel's instructions.
    fn builder(&mut self) -> &mut Builder;
    /// Types of the op's operands, in order.
    fn operand_types(&self) -> SmallVec<[Type; 3]>;
    /// Operand `i` at `map`; computes it in place when it is fused, else loads it.
    /// An error (`Unsupported`) tells the fuser that this operand must be materialised.
    fn operand(&mut self, i: usize, map: &IndexMap) -> Result<kernel::Val>;
    /// Operand `i`, which is materialised, at `map` with the coordinate of `axis` replaced by the
    /// i64 value `index` (clamped to the axis and flagged). `map.axes[axis]` is ignored; `map.linear` is `None`
    /// and `map.guards` empty.
    fn gather(&mut self, i: usize, map: &IndexMap, axis: usize, index: kernel::Val) -> Result<kernel::Val>;
    /// The i64 operand `i`, which is materialised, at `map`: an index into an axis of length `len`, flagged if it is
    /// out of range (but not clamped).
    fn checked_index(&mut self, i: usize, map: &IndexMap, len: usize) -> Result<kernel::Val>;
    /// A host scalar: a parameter of the launch, or a constant.
    fn scalar(&mut self, s: Scalar) -> kernel::Val;
    /// Combines `value`, the operand at the current point, over the kernel's reduced axes.
    fn reduce(&mut self, combine: kernel::Combine, value: kernel::Val) -> Result<kernel::Val>;
    /// The map from the reduction's operand to the domain: identity over all domain axes.
    fn reduction_map(&mut self, i: usize, result: &IndexMap) -> Result<IndexMap>;

    /// The coordinate that `expr` gives, as an I64 value.
    fn coordinate(&mut self, expr: &Expr) -> kernel::Val {
        expr.emit(self.builder())
    }
    /// The row-major linear index that `map` gives, as an I64 value.
    fn linear_index(&mut self, map: &IndexMap) -> kernel::Val {
        map.linear_expr().emit(self.builder())
    }
    /// Lengths of the kernel's domain axes.
    fn domain(&mut self) -> SmallVec<[usize; 8]> {
        SmallVec::from_slice(&self.builder().kernel().domain)
    }
    /// The position of the kernel parameter that holds `s`; `None` when it became a constant.
    fn parameter(&mut self, s: Scalar) -> Option<u32> {
        let v = self.scalar(s);
        match self.builder().kernel().body[v.0 as usize] {
            Inst::Param { param } => Some(param),
            _ => None,
        }
    }
}

/// Whether a condition on the kernel's point holds everywhere, nowhere, or where a guard says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Within {
    Always,
    Never,
    Guarded(Guard),
}

/// The answer of an op that cannot be computed at an index: the fuser materialises it instead.
pub fn not_affine(op: &'static str, detail: &str) -> Error {
    Error::new(ErrorKind::Unsupported { op: op.into(), device: "a fused kernel".into(), detail: detail.into() })
}

impl Expr {
    /// A fixed coordinate.
    pub fn constant(offset: i64) -> Expr {
        Expr { offset, ..Expr::default() }
    }

    /// The coordinate along a domain axis.
    pub fn axis(axis: u32) -> Expr {
        Expr { terms: SmallVec::from_slice(&[(axis, 1)]), ..Expr::default() }
    }

    /// `self + other * factor`.
    pub fn plus(mut self, other: &Expr, factor: i64) -> Expr {
        self.offset += other.offset * factor;
        for &(axis, stride) in &other.terms {
            self.add_term(axis, stride * factor);
        }
        for d in &other.dynamic {
            self.dynamic.push(Dynamic { stride: d.stride * factor, ..*d });
        }
        self.dynamic.retain(|d| d.stride != 0);
        self
    }

    fn add_term(&mut self, axis: u32, stride: i64) {
        match self.terms.binary_search_by_key(&axis, |t| t.0) {
            Ok(i) => self.terms[i].1 += stride,
            Err(i) => self.terms.insert(i, (axis, stride)),
        }
        self.terms.retain(|t| t.1 != 0);
    }

    /// Smallest and largest value over the domain (axes of length 0 count as length 1).
    pub fn range(&self, domain: &[usize]) -> (i64, i64) {
        let steps = |axis: u32| domain.get(axis as usize).map_or(0, |&d| d.max(1) as i64 - 1);
        let reaches = self.terms.iter().map(|&(axis, stride)| stride * steps(axis));
        let moves = self.dynamic.iter().map(|d| d.stride * d.max);
        reaches.chain(moves).fold((self.offset, self.offset), |(lo, hi), r| (lo + r.min(0), hi + r.max(0)))
    }

    /// Splits `self = quotient * len + remainder` with `0 <= remainder < len` for the whole domain, if
    /// both parts are affine.
    fn split(&self, len: i64, domain: &[usize]) -> Option<(Expr, Expr)> {
        let (mut quotient, mut remainder) =
            (Expr::constant(self.offset.div_euclid(len)), Expr::constant(self.offset.rem_euclid(len)));
        for &(axis, stride) in &self.terms {
            let (part, stride) =
                if stride % len == 0 { (&mut quotient, stride / len) } else { (&mut remainder, stride) };
            part.add_term(axis, stride);
        }
        for &d in &self.dynamic {
            let (part, stride) =
                if d.stride % len == 0 { (&mut quotient, d.stride / len) } else { (&mut remainder, d.stride) };
            part.dynamic.push(Dynamic { stride, ..d });
        }
        let (lo, hi) = remainder.range(domain);
        (lo >= 0 && hi < len).then_some((quotient, remainder))
    }

    /// The coordinates along `dims` of the row-major index `self`, if they are affine.
    fn unravel(&self, dims: &[usize], domain: &[usize]) -> Option<SmallVec<[Expr; 4]>> {
        let mut out: SmallVec<[Expr; 4]> = SmallVec::from_elem(Expr::default(), dims.len());
        let mut rest = self.clone();
        if dims.contains(&0) {
            return None;
        }
        let Some(outermost) = dims.iter().position(|&d| d != 1) else { return Some(out) };
        for a in (outermost + 1..dims.len()).rev() {
            if dims[a] != 1 {
                (rest, out[a]) = rest.split(dims[a] as i64, domain)?;
            }
        }
        out[outermost] = rest;
        Some(out)
    }

    /// The instructions that compute it.
    pub fn emit(&self, b: &mut Builder) -> kernel::Val {
        let mut sum = None;
        let mut add = |b: &mut Builder, v: kernel::Val, stride: i64| {
            let stride_val = (stride != 1).then(|| b.i64(stride));
            let v = stride_val.map_or(v, |s| b.lmul(v, s));
            sum = Some(sum.map_or(v, |s| b.ladd(s, v)));
        };
        for &(axis, stride) in &self.terms {
            let v = b.index(axis as usize);
            add(b, v, stride);
        }
        for d in &self.dynamic {
            let v = b.param_value(d.param);
            add(b, v, d.stride);
        }
        match sum {
            Some(v) if self.offset == 0 => v,
            Some(v) => {
                let o = b.i64(self.offset);
                b.ladd(v, o)
            }
            None => b.i64(self.offset),
        }
    }
}

impl IndexMap {
    /// Domain axis `a` runs along axis `a` of the value.
    pub fn identity(shape: Shape) -> IndexMap {
        let axis = |(a, &d): (usize, &usize)| if d == 1 { Expr::default() } else { Expr::axis(a as u32) };
        let axes = shape.dims().iter().enumerate().map(axis).collect();
        IndexMap { shape, axes, linear: None, guards: SmallVec::new() }
    }

    fn with(&self, shape: Shape, axes: SmallVec<[Expr; 4]>) -> IndexMap {
        IndexMap { shape, axes, linear: None, guards: self.guards.clone() }
    }

    /// The row-major linear index.
    pub fn linear_expr(&self) -> Expr {
        let strides = self.shape.strides();
        let sum = |e: Expr, (a, x): (usize, &Expr)| e.plus(x, strides[a] as i64);
        self.linear.clone().unwrap_or_else(|| self.axes.iter().enumerate().fold(Expr::default(), sum))
    }

    /// The same map by axes; an error where a linear index cannot be split.
    pub fn by_axes(&self, domain: &[usize]) -> Result<IndexMap> {
        let Some(linear) = &self.linear else { return Ok(self.clone()) };
        let axes = linear.unravel(self.shape.dims(), domain);
        axes.map(|axes| self.with(self.shape, axes))
            .ok_or_else(|| not_affine("reshape", "the index is not affine in the kernel's axes"))
    }

    /// The index into the operand of `reshape`: by axes where runs of axes match or split evenly, else linear.
    pub fn reshape(&self, operand: Shape, domain: &[usize]) -> IndexMap {
        if operand == self.shape {
            return self.clone();
        }
        let axes = if operand.numel() == 0 { None } else { self.reshape_by_runs(operand, domain) };
        match axes {
            Some(axes) => self.with(operand, axes),
            None => {
                let linear = Some(self.linear_expr());
                IndexMap { shape: operand, axes: SmallVec::new(), linear, guards: self.guards.clone() }
            }
        }
    }

    fn reshape_by_runs(&self, operand: Shape, domain: &[usize]) -> Option<SmallVec<[Expr; 4]>> {
        if let Some(linear) = &self.linear {
            return linear.unravel(operand.dims(), domain);
        }
        let (from, to) = (self.shape.dims(), operand.dims());
        let mut axes: SmallVec<[Expr; 4]> = SmallVec::from_elem(Expr::default(), to.len());
        let (mut i, mut j) = (0, 0);
        while i < from.len() && j < to.len() {
            let (first_i, first_j) = (i, j);
            let (mut have, mut want) = (from[i], to[j]);
            (i, j) = (i + 1, j + 1);
            while have != want {
                if have < want {
                    have *= from[i];
                    i += 1;
                } else {
                    want *= to[j];
                    j += 1;
                }
            }
            // One run: `from[first_i..i]` has as many elements as `to[first_j..j]`.
            let run = (first_i..i).fold(Expr::default(), |e, a| {
                let inner: usize = from[a + 1..i].iter().product();
                e.plus(&self.axes[a], inner as i64)
            });
            if want != 1 {
                for (slot, e) in axes[first_j..j].iter_mut().zip(run.unravel(&to[first_j..j], domain)?) {
                    *slot = e;
                }
            }
        }
        Some(axes)
    }

    /// The index into the operand of `permute`, whose axis `order[a]` became axis `a`.
    pub fn permute(&self, order: &[usize], operand: Shape, domain: &[usize]) -> Result<IndexMap> {
        let map = self.by_axes(domain)?;
        let mut axes: SmallVec<[Expr; 4]> = SmallVec::from_elem(Expr::default(), order.len());
        for (a, &o) in order.iter().enumerate() {
            axes[o] = map.axes[a].clone();
        }
        Ok(map.with(operand, axes))
    }

    /// The index into an operand that was broadcast to this map's shape.
    pub fn broadcast(&self, operand: Shape, domain: &[usize]) -> Result<IndexMap> {
        if operand == self.shape {
            return Ok(self.clone());
        }
        if operand.numel() == 1 {
            return Ok(self.with(operand, SmallVec::from_elem(Expr::default(), operand.rank())));
        }
        if operand.numel() == self.shape.numel() {
            // Only leading axes of length 1 were added.
            return Ok(self.reshape(operand, domain));
        }
        let map = self.by_axes(domain)?;
        let lead = self.shape.rank().saturating_sub(operand.rank());
        let axis = |(a, &d): (usize, &usize)| if d == 1 { Expr::default() } else { map.axes[lead + a].clone() };
        let axes = operand.dims().iter().enumerate().map(axis).collect();
        Ok(map.with(operand, axes))
    }

    /// The index into the operand of a slice: `start + step * index` along `axis`.
    pub fn slice(&self, axis: usize, start: Expr, step: i64, operand: Shape, domain: &[usize]) -> Result<IndexMap> {
        let map = self.by_axes(domain)?;
        let mut axes = map.axes.clone();
        axes[axis] = start.plus(&axes[axis], step);
        Ok(map.with(operand, axes))
    }

    /// The index into the operand of windows over `axis`, which `axis` and the next one go through with these strides.
    pub fn window(&self, axis: usize, strides: [i64; 2], operand: Shape, domain: &[usize]) -> Result<IndexMap> {
        let map = self.by_axes(domain)?;
        let mut axes = map.axes.clone();
        let inner = axes.remove(axis + 1);
        axes[axis] = Expr::default().plus(&axes[axis], strides[0]).plus(&inner, strides[1]);
        Ok(map.with(operand, axes))
    }

    /// Where the coordinate along `axis` lies in `lo..hi`; an error if no guard can say.
    pub fn within(&self, axis: usize, lo: i64, hi: i64, domain: &[usize]) -> Result<Within> {
        let map = self.by_axes(domain)?;
        let e = &map.axes[axis];
        let (min, max) = e.range(domain);
        if min >= lo && max < hi {
            return Ok(Within::Always);
        }
        if max < lo || min >= hi {
            return Ok(Within::Never);
        }
        let (&[(axis, stride)], true) = (e.terms.as_slice(), e.dynamic.is_empty()) else {
            return Err(not_affine("concat", "the index along the joined axis depends on several axes"));
        };
        let ceil = |v: i64, d: i64| v.div_euclid(d) + (v.rem_euclid(d) != 0) as i64;
        // offset + stride * c in lo..hi, solved for c.
        let (lo, hi) = match stride {
            s if s > 0 => (ceil(lo - e.offset, s), ceil(hi - e.offset, s)),
            s => ((e.offset - hi).div_euclid(-s) + 1, (e.offset - lo).div_euclid(-s) + 1),
        };
        Ok(Within::Guarded(Guard { axis, lo: lo.max(0), hi }))
    }

    /// The same map, valid only where `guard` holds too.
    pub fn guarded(mut self, guard: Guard) -> IndexMap {
        if !self.guards.contains(&guard) {
            self.guards.push(guard);
        }
        self
    }

    /// The access to argument `arg`, whose elements lie as `layout` says, over `rank` domain axes.
    /// `None` for a linear index into elements that are not contiguous.
    pub fn access(&self, arg: u32, layout: &Layout, rank: usize) -> Option<Access> {
        let e = match &self.linear {
            Some(linear) if layout.is_contiguous() => linear.clone(),
            Some(_) => return None,
            None => {
                let sum = |e: Expr, (x, &s): (&Expr, &isize)| e.plus(x, s as i64);
                self.axes.iter().zip(layout.strides()).fold(Expr::default(), sum)
            }
        };
        let mut strides = vec![0; rank];
        for &(axis, stride) in &e.terms {
            *strides.get_mut(axis as usize)? = stride;
        }
        Some(Access { arg, offset: e.offset + layout.offset as i64, strides, dynamic: e.dynamic.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    /// The linear element index that `map` gives at each point of `domain`, row-major.
    fn indices(map: &IndexMap, domain: &[usize]) -> Vec<i64> {
        let access = map.access(0, &Layout::contiguous(map.shape), domain.len()).unwrap();
        let strides = shape(domain).strides();
        let n: usize = domain.iter().product();
        let at = |i: usize| (0..domain.len()).map(move |a| (i / strides[a] as usize % domain[a]) as i64);
        (0..n).map(|i| access.offset + at(i).zip(&access.strides).map(|(c, s)| c * s).sum::<i64>()).collect()
    }

    #[test]
    fn reshape_merges_and_splits_runs_of_axes() {
        let domain = [4, 6, 5];
        let map = IndexMap::identity(shape(&domain));
        let merged = map.reshape(shape(&[24, 1, 5]), &domain);
        assert!(merged.linear.is_none());
        assert_eq!(indices(&merged, &domain), (0..120).collect::<Vec<_>>());
        let back = merged.reshape(shape(&[4, 6, 5]), &domain);
        assert_eq!(back, map, "a merged run splits again");
        // A run that no axis boundary splits evenly: linear, and by axes again when it comes back.
        let odd = map.reshape(shape(&[8, 15]), &domain);
        assert!(odd.linear.is_some());
        assert_eq!(indices(&odd, &domain), (0..120).collect::<Vec<_>>());
        assert!(odd.by_axes(&domain).unwrap_err().to_string().contains("not affine"));
        assert_eq!(odd.reshape(shape(&domain), &domain), map);
        assert_eq!(indices(&map.reshape(shape(&[1, 4, 1, 30]), &domain), &domain), (0..120).collect::<Vec<_>>());
    }

    #[test]
    fn movement_composes() {
        // result[i, j] = x[j, 1 + 2 i] for x: [3, 7], i < 3.
        let domain = [3, 3];
        let map = IndexMap::identity(shape(&[3, 3])).permute(&[1, 0], shape(&[3, 3]), &domain).unwrap();
        let map = map.slice(1, Expr::constant(1), 2, shape(&[3, 7]), &domain).unwrap();
        let want: Vec<i64> = (0..3).flat_map(|i| (0..3).map(move |j| j * 7 + 1 + 2 * i)).collect();
        assert_eq!(indices(&map, &domain), want);
        let row = IndexMap::identity(shape(&[2, 3, 4])).broadcast(shape(&[3, 1]), &[2, 3, 4]).unwrap();
        let want: Vec<i64> = (0..24).map(|i| i / 4 % 3).collect();
        assert_eq!(indices(&row, &[2, 3, 4]), want);
    }

    #[test]
    fn guards_solve_for_the_domain_coordinate() {
        let domain = [10];
        for (offset, stride) in [(0i64, 1i64), (3, 1), (-4, 2), (12, -1), (20, -3), (1, 5)] {
            for (lo, hi) in [(0, 4), (3, 8), (-5, 5), (9, 30)] {
                let e = Expr::constant(offset).plus(&Expr::axis(0), stride);
                let map = IndexMap { axes: SmallVec::from_elem(e, 1), ..IndexMap::identity(shape(&[10])) };
                let holds = |c: i64| (lo..hi).contains(&(offset + stride * c));
                let within = map.within(0, lo, hi, &domain).unwrap();
                for c in 0..10 {
                    let got = match within {
                        Within::Always => true,
                        Within::Never => false,
                        Within::Guarded(g) => (g.lo..g.hi).contains(&c),
                    };
                    assert_eq!(got, holds(c), "{offset} + {stride} * {c} in {lo}..{hi}: {within:?}");
                }
            }
        }
    }

    #[test]
    fn empty_shapes_keep_their_strides() {
        let domain = [2, 0];
        let map = IndexMap::identity(shape(&domain)).reshape(shape(&[0]), &domain);
        let access = map.access(0, &Layout::contiguous(shape(&[0])), 2).unwrap();
        assert_ne!(access.strides[1], 0, "no load may look as if it did not depend on the empty axis");
    }
}
