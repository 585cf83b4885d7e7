//! How a kernel's domain is walked: axes merged, and one group of axes chosen for the lanes.
//!
//! Lanes are 128 consecutive points of the *group*, a few axes taken as one flat index. In
//! [`Walk::Across`] the group is made of kept axes, and a reduction runs over its inner points one after
//! another, each lane for itself. In [`Walk::Along`] the group is all the reduced axes, and a
//! reduction combines across lanes too. In [`Walk::Rows`] whole rows lie in a tile, and a reduction is one
//! more instruction on tiles.

use smallvec::SmallVec;

use crate::backend::cpu::vm::code::{TILE, combine_code};
use crate::backend::cpu::vm::lower::is_long;
use crate::backend::cpu::vm::program::lane_bytes;
use crate::base::{DType, Error, Result};
use crate::kernel::order::Order;
use crate::kernel::{Access, Guard, Inst, Instr, Kernel, Ty};

/// A few numbers per axis.
pub(super) type Few<T> = SmallVec<[T; 4]>;

/// Which points share a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Walk {
    /// Kept axes.
    Across,
    /// All the reduced axes.
    Along,
    /// Kept axes, then all the reduced ones, whose points divide a tile.
    Rows,
}

/// The three roles of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A loop around the tiles.
    Loop,
    /// Lanes of a tile.
    Group,
    /// A loop over inner points for one tile ([`Walk::Across`]).
    Inner,
}

/// Where an axis of the kernel went: `None` if it has length 1.
pub(super) type Place = Option<(Role, usize)>;

/// How an access moves along the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Contiguous lanes.
    Unit,
    /// The same element for every lane.
    Same,
    /// Repeats after so many points of the group, and depends on no other axis.
    Periodic(usize),
    /// The same element for all points of a row, rows contiguous ([`Walk::Rows`]).
    PerRow,
    /// Anything else, or guarded.
    General,
}

/// A guard on a placed axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub role: Role,
    pub axis: usize,
    pub lo: i64,
    pub hi: i64,
}

/// An access with strides in bytes, by role.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub arg: u32,
    pub dtype: DType,
    pub class: Class,
    /// A guard on a unit axis fails: never loaded.
    pub never: bool,
    pub offset: i64,
    /// Parameters and what they are multiplied with, in bytes.
    pub dynamic: Few<(u32, i64)>,
    pub loops: Few<i64>,
    pub group: Few<i64>,
    pub inner: Few<i64>,
    pub bounds: Few<Bound>,
}

impl Stream {
    /// Whether a value loaded so depends on the inner points.
    pub fn varies(&self, walk: Walk) -> bool {
        let (role, strides) = match walk {
            Walk::Across | Walk::Rows => (Role::Inner, &self.inner),
            Walk::Along => (Role::Group, &self.group),
        };
        strides.iter().any(|&s| s != 0) || self.bounds.iter().any(|b| b.role == role)
    }

    /// Bytes of a lane of a tile loaded so.
    pub fn lane_bytes(&self) -> usize {
        lane_bytes(Ty::of(self.dtype))
    }

    /// Whether elements lie in memory as they do in a tile.
    pub fn is_direct(&self) -> bool {
        matches!(self.dtype, DType::F32 | DType::F64 | DType::I64)
    }

    /// Whether both touch the same element wherever their memory is the same.
    pub fn may_alias(&self, other: &Stream) -> bool {
        self.dtype.size() == other.dtype.size()
            && self.loops == other.loops
            && self.group == other.group
            && self.inner == other.inner
    }
}

/// The walk over a kernel's domain.
#[derive(Debug)]
pub(super) struct Space {
    pub walk: Walk,
    pub order: Order,
    pub loops: Few<usize>,
    pub group: Few<usize>,
    pub inner: Few<usize>,
    /// Points of a row in [`Walk::Rows`], else 0.
    pub row: usize,
    /// The accesses of the body, in body order.
    pub streams: Vec<Stream>,
    /// The stream of each body instruction that has one.
    pub stream_of: Vec<u32>,
    /// Where each axis of the kernel went.
    pub places: Few<Place>,
    /// The estimated time of a launch on one thread.
    pub cost_ns: f64,
}

/// One axis while the walk is being chosen: its length and the kernel axes merged into it.
#[derive(Clone)]
struct Merged {
    len: usize,
    /// The innermost kernel axis: its strides are the merged axis's.
    axis: usize,
    pinned: bool,
}

fn access(inst: &Inst) -> Option<(&Access, &[Guard])> {
    match inst {
        Inst::Load { access, guards } => Some((access, guards)),
        Inst::Gather { access, .. } | Inst::Store { access, .. } => Some((access, &[])),
        _ => None,
    }
}

/// Axes of one kind, outermost first: unit axes dropped, neighbours merged where every access allows.
fn merge(kernel: &Kernel, axes: impl Iterator<Item = usize>, pinned: &[bool], accesses: &[&Access]) -> Vec<Merged> {
    let mut out: Vec<Merged> = Vec::new();
    for axis in axes {
        let len = kernel.domain[axis];
        let next = Merged { len, axis, pinned: pinned[axis] };
        if let Some(last) = out.last_mut()
            && !last.pinned
            && !next.pinned
            && accesses.iter().all(|a| a.strides[last.axis] == a.strides[axis] * len as i64)
        {
            *last = Merged { len: last.len * len, ..next };
            continue;
        }
        out.push(next);
    }
    out
}

impl Space {
    /// Chooses the walk of `kernel`.
    pub fn of(kernel: &Kernel) -> Result<Space> {
        let order = Order::of(&kernel.domain, &kernel.reduced);
        let rank = kernel.domain.len();
        let accesses: Vec<&Access> = kernel.body.iter().filter_map(|i| access(i).map(|a| a.0)).collect();
        let mut pinned = vec![false; rank];
        for inst in &kernel.body {
            match inst {
                Inst::Index { axis } => pinned[*axis as usize] = true,
                Inst::Load { guards, .. } => guards.iter().for_each(|g| pinned[g.axis as usize] = true),
                _ => {}
            }
        }
        // Kept axes may be walked in any order: largest output strides outermost.
        let mut kept: Few<usize> = (0..rank).filter(|&a| !kernel.reduced[a] && kernel.domain[a] != 1).collect();
        let first_store = kernel.body.iter().find_map(|i| match i {
            Inst::Store { access, .. } => Some(access),
            _ => None,
        });
        if let Some(store) = first_store {
            kept.sort_by_key(|&a| std::cmp::Reverse(store.strides[a].unsigned_abs()));
        }
        let outer = merge(kernel, kept.into_iter(), &pinned, &accesses);
        let reduced = (0..rank).filter(|&a| kernel.reduced[a] && kernel.domain[a] != 1);
        let inner = merge(kernel, reduced, &pinned, &accesses);
        let too_big = outer.len() > 16 || inner.len() > 16 || kernel.body.len() > 1 << 20;
        if too_big {
            return Err(Error::bug("vm", "a kernel with more axes or instructions than a backend takes"));
        }

        let mut best: Option<(f64, Walk, usize)> = None;
        let mut consider = |walk: Walk, split: usize| {
            let ns = estimate(kernel, order, walk, &Roles::of(walk, split, &outer, &inner), &accesses);
            if best.is_none_or(|(b, ..)| ns < b) {
                best = Some((ns, walk, split));
            }
        };
        consider(Walk::Across, outer.len().saturating_sub(1));
        for split in (0..outer.len().saturating_sub(1)).rev() {
            consider(Walk::Across, split);
        }
        if !inner.is_empty() && order.lanes == TILE {
            consider(Walk::Along, outer.len());
            let points: usize = inner.iter().map(|m| m.len).product();
            if points.is_power_of_two() && points <= TILE && folds(kernel) {
                for split in (0..=outer.len()).rev() {
                    consider(Walk::Rows, split);
                }
            }
        }
        let (cost_ns, walk, split) = best.unwrap_or((0.0, Walk::Across, 0));
        let space = Space::build(kernel, order, walk, &Roles::of(walk, split, &outer, &inner));
        Ok(Space { cost_ns, ..space })
    }

    fn build(k: &Kernel, order: Order, walk: Walk, roles: &Roles) -> Space {
        let (loops, group, inner) = (&roles.loops[..], &roles.group[..], &roles.inner[..]);
        let mut places: Few<Place> = SmallVec::from_elem(None, k.domain.len());
        for (role, axes) in [(Role::Loop, loops), (Role::Group, group), (Role::Inner, inner)] {
            for (i, m) in axes.iter().enumerate() {
                places[m.axis] = Some((role, i));
            }
        }
        let mut streams = Vec::new();
        let mut stream_of = vec![u32::MAX; k.body.len()];
        for (at, inst) in k.body.iter().enumerate() {
            let Some((access, guards)) = access(inst) else { continue };
            stream_of[at] = streams.len() as u32;
            let dtype = k.args[access.arg as usize].dtype;
            let size = dtype.size() as i64;
            let pick = |axes: &[Merged]| -> Few<i64> { axes.iter().map(|m| access.strides[m.axis] * size).collect() };
            let mut never = false;
            let mut bounds: Few<Bound> = Few::new();
            for g in guards {
                let len = k.domain[g.axis as usize] as i64;
                if g.lo <= 0 && g.hi >= len {
                    continue;
                }
                match places[g.axis as usize] {
                    Some((role, axis)) => bounds.push(Bound { role, axis, lo: g.lo, hi: g.hi }),
                    None => never = true,
                }
            }
            let group_strides = pick(group);
            let mut class = roles.class(walk, access);
            if let Inst::Load { .. } = inst
                && let Some(period) = period(walk, group, &[loops, inner], access)
                && bounds.iter().all(|b| b.role == Role::Group && group[..b.axis].len() >= leading(group, access))
            {
                class = Class::Periodic(period);
            } else if never || !bounds.is_empty() || matches!(inst, Inst::Gather { .. }) {
                class = Class::General;
            }
            streams.push(Stream {
                arg: access.arg,
                dtype,
                class,
                never,
                offset: access.offset * size,
                dynamic: access.dynamic.iter().map(|d| (d.param, d.stride * size)).collect(),
                loops: pick(loops),
                group: group_strides,
                inner: pick(inner),
                bounds,
            });
        }
        let lens = |axes: &[Merged]| axes.iter().map(|m| m.len).collect();
        Space {
            walk,
            order,
            loops: lens(loops),
            group: lens(group),
            inner: lens(inner),
            row: if walk == Walk::Rows { roles.row() } else { 0 },
            streams,
            stream_of,
            places,
            cost_ns: 0.0,
        }
    }
}

/// Which axes have which role.
struct Roles {
    loops: Few<Merged>,
    group: Few<Merged>,
    inner: Few<Merged>,
    /// How many axes of the group are kept ones.
    kept: usize,
}

impl Roles {
    /// The kept axes from `split` on are of the group, unless it is of the reduced ones only.
    fn of(walk: Walk, split: usize, outer: &[Merged], inner: &[Merged]) -> Roles {
        let (loops, rest) = outer.split_at(split);
        let (group, inner) = match walk {
            Walk::Across => (rest.into(), inner.into()),
            Walk::Along => (inner.into(), Few::new()),
            Walk::Rows => (rest.iter().chain(inner).cloned().collect(), Few::new()),
        };
        Roles { loops: loops.into(), group, inner, kept: rest.len() }
    }

    /// Points of the group's reduced axes.
    fn row(&self) -> usize {
        self.group[self.kept..].iter().map(|m| m.len).product()
    }

    /// How an access moves along the group, guards aside.
    fn class(&self, walk: Walk, access: &Access) -> Class {
        let stride = |m: &Merged| access.strides[m.axis];
        match class(&self.group, stride) {
            Class::General if walk == Walk::Rows => {
                let (kept, reduced) = self.group.split_at(self.kept);
                let per_row = reduced.iter().all(|m| stride(m) == 0) && class(kept, stride) == Class::Unit;
                if per_row { Class::PerRow } else { Class::General }
            }
            class => class,
        }
    }
}

/// Whether every reduction of the kernel can be an instruction on tiles.
fn folds(kernel: &Kernel) -> bool {
    kernel.body.iter().all(|i| match i {
        Inst::Reduce { combine, .. } => combine_code(combine.instr()).is_some(),
        _ => true,
    })
}

/// How many axes of the group an access does not depend on before the first that it does.
fn leading(group: &[Merged], access: &Access) -> usize {
    group.iter().take_while(|m| access.strides[m.axis] == 0).count()
}

/// The points after which an access repeats, if that is so and worth expanding.
fn period(walk: Walk, group: &[Merged], others: &[&[Merged]; 2], access: &Access) -> Option<usize> {
    let fixed = others.iter().all(|axes| axes.iter().all(|m| access.strides[m.axis] == 0));
    let (before, after) = group.split_at(leading(group, access));
    let product = |axes: &[Merged]| axes.iter().map(|m| m.len).product::<usize>();
    let (times, period) = (product(before), product(after));
    (walk != Walk::Along && fixed && !after.is_empty() && times > 1 && (1..=4096).contains(&period)).then_some(period)
}

/// How an access with these strides in elements moves along the group.
fn class(group: &[Merged], stride: impl Fn(&Merged) -> i64) -> Class {
    if group.iter().all(|m| stride(m) == 0) {
        return Class::Same;
    }
    let mut expected = 1;
    for m in group.iter().rev() {
        if stride(m) != expected {
            return Class::General;
        }
        expected *= m.len as i64;
    }
    Class::Unit
}

/// Nanoseconds of one instruction on a full tile.
pub(super) const INSTR_NS: f64 = 2.8;
/// Nanoseconds of one element that does not come as a contiguous tile.
pub(super) const ELEMENT_NS: f64 = 0.5;

/// The time of an instruction, in simple instructions.
fn weight(instr: Instr) -> f64 {
    match instr {
        // About 20 ns a lane.
        _ if instr.is_call() => 800.0,
        _ if is_long(instr) => 16.0,
        Instr::Div | Instr::Sqrt => 5.0,
        Instr::SinArg | Instr::CosArg => 6.0,
        Instr::Min | Instr::Max | Instr::Scale | Instr::Mantissa | Instr::Exponent => 1.7,
        Instr::Eq | Instr::Ne | Instr::Lt | Instr::Le | Instr::UEq | Instr::ULt | Instr::ILt => 1.7,
        Instr::Bits | Instr::FromBits => 0.0,
        _ => 1.0,
    }
}

/// A guess at the time of one walk, good enough to choose between walks.
fn estimate(kernel: &Kernel, order: Order, walk: Walk, roles: &Roles, accesses: &[&Access]) -> f64 {
    let size = |axes: &[Merged]| axes.iter().map(|m| m.len as f64).product::<f64>();
    let Roles { loops, group, inner, .. } = roles;
    let len = size(group);
    let run = group.last().map_or(1.0, |m| m.len as f64).clamp(1.0, TILE as f64);
    let mut instrs = 2.0;
    let mut reductions = 0.0;
    for inst in &kernel.body {
        match inst {
            Inst::Op { instr, .. } => instrs += weight(*instr),
            Inst::Reduce { .. } => reductions += 1.0,
            Inst::Gather { .. } => instrs += 16.0,
            _ => {}
        }
    }
    let mut general = 0.0;
    let mut per_row = 0.0;
    let mut expand = 0.0;
    for a in accesses {
        match period(walk, group, &[loops, inner], a) {
            Some(period) => expand += 20.0 + (period as f64 + 1024.0).min(len) * ELEMENT_NS,
            None => match roles.class(walk, a) {
                Class::General => general += 1.0,
                Class::PerRow => per_row += 1.0,
                _ => {}
            },
        }
    }
    // A fold costs about as much as a few instructions, and ends the code before it.
    let fold = if walk == Walk::Rows { 4.0 } else { 1.0 };
    let row = if walk == Walk::Rows { roles.row() as f64 } else { 1.0 };
    let lanes = |n: f64| {
        let width = if n == TILE as f64 { 1.0 } else { ((n / 32.0).ceil() * 0.35).min(1.4) };
        let general = general * n * (ELEMENT_NS + 4.0 / run) + per_row * (8.0 + 3.0 * n / row);
        (instrs + reductions * fold) * INSTR_NS * width + general
    };
    let (full, tail) = ((len / TILE as f64).floor(), len % TILE as f64);
    let mut tiles = full * (lanes(TILE as f64) + 1.0);
    if tail > 0.0 {
        tiles += lanes(tail) + 8.0;
    }
    let around = size(loops);
    match walk {
        Walk::Along => around * (tiles + 20.0 + reductions * 60.0),
        Walk::Rows => expand + around * (tiles + 20.0),
        Walk::Across => {
            let inner_points = size(inner);
            // Lane partials of a row order want a tile each and soon leave the L1 cache.
            let spread = if reductions > 0.0 && order.lanes > 1 && inner_points > 64.0 { 2.0 } else { 1.0 };
            let trees = if order.lanes > 1 { inner_points.min(TILE as f64) * reductions * 12.0 } else { 0.0 };
            let groups = (len / TILE as f64).ceil();
            expand + around * (tiles * inner_points * spread + trees * groups + 20.0)
        }
    }
}
