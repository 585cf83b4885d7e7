//! Neighbouring points of a thread: what lies in a row for them is loaded and stored at once.

use crate::backend::cuda::render::body::Body;
use crate::backend::cuda::render::scalar;
use crate::backend::cuda::render::text::Source;
use crate::kernel::ir::{Access, Inst};

/// The accesses of `width` neighbours along an axis that are made at once.
#[derive(Clone, Debug, Default)]
pub struct Packs {
    pub width: usize,
    axis: usize,
    loads: Vec<usize>,
    stores: Vec<usize>,
}

/// The access of a load or store.
fn access(inst: &Inst) -> Option<&Access> {
    match inst {
        Inst::Load { access, .. } | Inst::Store { access, .. } => Some(access),
        _ => None,
    }
}

impl Packs {
    /// With a width by which the largest element fills 16 bytes.
    pub fn widest(body: &Body, axis: usize) -> Packs {
        let k = body.kernel;
        let sizes = k.body.iter().filter_map(access).filter(|a| a.strides[axis] == 1);
        let size = sizes.map(|a| k.args[a.arg as usize].dtype.size()).max().unwrap_or(16);
        Packs::new(body, axis, 16 / size)
    }

    pub fn new(body: &Body, axis: usize, width: usize) -> Packs {
        let k = body.kernel;
        let w = width as i64;
        let fits = |inst: &Inst| {
            let Some(a) = access(inst) else { return false };
            let whole = a.strides.iter().enumerate().all(|(n, s)| n == axis || s % w == 0);
            let dynamic = a.dynamic.iter().all(|d| d.stride % w == 0);
            let guards = match inst {
                Inst::Load { guards, .. } => guards.iter().all(|g| {
                    let ends = g.hi >= k.domain[axis] as i64 || g.hi % w == 0;
                    g.axis as usize != axis || (g.lo <= 0 || g.lo % w == 0) && ends
                }),
                _ => true,
            };
            w > 1 && a.strides[axis] == 1 && a.offset % w == 0 && whole && dynamic && guards
        };
        let all = |store: bool| {
            let at = k.body.iter().enumerate();
            at.filter(|(_, i)| matches!(i, Inst::Store { .. }) == store && fits(i)).map(|p| p.0).collect()
        };
        Packs { width, axis, loads: all(false), stores: all(true) }
    }

    pub fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.stores.is_empty()
    }

    /// Registers of 32 bits that `copies` of the loaded elements take.
    pub fn registers(&self, body: &Body, copies: usize) -> usize {
        let bytes: usize = self.loads.iter().map(|&i| self.size(body, i) * self.width).sum();
        copies * bytes.div_ceil(4)
    }

    fn arg(&self, body: &Body, i: usize) -> usize {
        access(&body.kernel.body[i]).map_or(0, |a| a.arg as usize)
    }

    fn size(&self, body: &Body, i: usize) -> usize {
        body.kernel.args[self.arg(body, i)].dtype.size()
    }

    fn ty(&self, body: &Body, i: usize) -> String {
        format!("Pack<{}, {}>", scalar::element(body.kernel.args[self.arg(body, i)].dtype), self.width)
    }

    /// Defines whether all that is packed begins at multiples of 16 bytes.
    pub fn alignment(&self, body: &Body, out: &mut Source) {
        let mut args: Vec<usize> = self.loads.iter().chain(&self.stores).map(|&i| self.arg(body, i)).collect();
        args.sort_unstable();
        args.dedup();
        if !args.is_empty() {
            let all: Vec<String> = args.iter().map(|a| format!("(u64)a{a}")).collect();
            out.line(format!("const bool aligned = (({}) & 15ull) == 0ull;", all.join(" | ")));
        }
    }

    /// Declares what is kept of the loads among `live`, `copies` of each.
    pub fn keep(&self, body: &Body, out: &mut Source, live: &[bool], copies: usize) {
        for &i in self.loads.iter().filter(|&&i| live[i]) {
            out.line(format!("{} x{i}[{copies}];", self.ty(body, i)));
        }
    }

    /// Loads those among `live` at the point `base` along the axis, of which `left` are there; into copy `copy` of what is kept,
    /// unless it is there already (`kept`).
    #[allow(clippy::too_many_arguments)]
    pub fn load(
        &self,
        body: &mut Body,
        out: &mut Source,
        live: &[bool],
        base: &str,
        left: &str,
        copy: Option<&str>,
        kept: &[bool],
    ) {
        if self.is_empty() {
            return;
        }
        body.coords[self.axis] = base.to_string();
        for &i in self.loads.iter().filter(|&&i| live[i]) {
            if let Inst::Load { access, guards } = &body.kernel.body[i]
                && !kept[i]
            {
                let at = format!("a{} + ({})", access.arg, body.index(access, None));
                let ty = self.ty(body, i);
                let (element, width) = (scalar::element(body.kernel.args[access.arg as usize].dtype), self.width);
                let load = format!("load_pack<{element}, {width}>({at}, aligned, {left})");
                let value = match body.condition(guards) {
                    Some(condition) => format!("{condition} ? {load} : {ty}{{}}"),
                    None => load,
                };
                match copy {
                    Some(copy) => out.line(format!("x{i}[{copy}] = {value};")),
                    None => out.line(format!("const {ty} x{i} = {value};")),
                }
            }
            body.elements[i] = Some(match copy {
                Some(copy) => format!("x{i}[{copy}].at[k]"),
                None => format!("x{i}.at[k]"),
            });
        }
    }

    /// Declares what the stores among `live` gather.
    pub fn begin_stores(&self, body: &mut Body, out: &mut Source, live: &[bool]) {
        for &i in self.stores.iter().filter(|&&i| live[i]) {
            out.line(format!("{} y{i} = {{}};", self.ty(body, i)));
            body.sinks[i] = Some(format!("y{i}.at[k]"));
        }
    }

    /// Stores them.
    pub fn store(&self, body: &mut Body, out: &mut Source, live: &[bool], base: &str, left: &str) {
        if self.is_empty() {
            return;
        }
        body.coords[self.axis] = base.to_string();
        for &i in self.stores.iter().filter(|&&i| live[i]) {
            if let Inst::Store { access, .. } = &body.kernel.body[i] {
                let to = body.index(access, None);
                let (element, width) = (scalar::element(body.kernel.args[access.arg as usize].dtype), self.width);
                let (keep, arg) = (body.keep(access.arg), access.arg);
                out.line(format!("{keep}store_pack<{element}, {width}>(a{arg} + ({to}), y{i}, aligned, {left});"));
            }
        }
        body.elements.fill(None);
        body.sinks.fill(None);
    }
}
