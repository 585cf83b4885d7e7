//! A kernel's instructions as statements at one point.
//!
//! [`Body`] knows which values have a name in the text at hand. What a form (one thread a point, a thread block a row)
//! adds is where a point's coordinates come from and how a pass over the inner points combines.

use crate::backend::cuda::render::text::Source;
use crate::backend::cuda::render::{Place, Signature, scalar};
use crate::base::{Error, Result};
use crate::kernel::ir::{Access, Guard, Inst, Kernel, Level, Val};

/// Largest index and number of points for which 32 bits are used.
const NARROW: usize = i32::MAX as usize;

/// One pass over the inner points of a row.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// The reductions that it computes.
    pub reduces: Vec<usize>,
    /// Stores, and gathers whose index must be looked at, of its points.
    pub roots: Vec<usize>,
}

pub struct Body<'k> {
    pub kernel: &'k Kernel,
    signature: &'k Signature,
    pub levels: Vec<Level>,
    pub passes: Vec<Pass>,
    /// Stores and gathers that happen once a row.
    pub row_roots: Vec<usize>,
    /// Whether indices take 64 bits.
    pub wide: bool,
    /// What stands for a value in the text at hand: a name, or a constant.
    names: Vec<Option<String>>,
    /// Of each axis the coordinate in the text at hand.
    pub coords: Vec<String>,
    /// Of loads whose element is at hand already.
    pub elements: Vec<Option<String>>,
    /// Where a store's element goes instead of to memory.
    pub sinks: Vec<Option<String>>,
}

impl<'k> Body<'k> {
    pub fn new(kernel: &'k Kernel, signature: &'k Signature) -> Body<'k> {
        let mut levels = kernel.levels();
        for (inst, level) in kernel.body.iter().zip(&mut levels) {
            // With fewer axes its value may have become one a row.
            if let Inst::Store { access, .. } = inst
                && access.strides.iter().zip(&kernel.reduced).any(|(&s, &r)| r && s != 0)
            {
                *level = Level::Full;
            }
        }
        let points = kernel.domain.iter().map(|&d| d.max(1)).product::<usize>();
        let wide = points > NARROW || kernel.args.iter().any(|a| a.len > NARROW);
        let none = vec![None; kernel.body.len()];
        let mut body = Body {
            kernel,
            signature,
            levels,
            passes: Vec::new(),
            row_roots: Vec::new(),
            wide,
            names: none.clone(),
            coords: vec![String::new(); kernel.domain.len()],
            elements: none.clone(),
            sinks: none,
        };
        body.plan();
        body.forget(|_| true);
        body
    }

    /// Values that `inst` uses.
    pub fn operands(inst: &Inst) -> &[Val] {
        match inst {
            Inst::Gather { index, .. } => std::slice::from_ref(index),
            Inst::Op { instr, args } => &args[..instr.operands().len()],
            Inst::Reduce { value, .. } | Inst::Store { value, .. } => std::slice::from_ref(value),
            Inst::Const { .. } | Inst::Param { .. } | Inst::Index { .. } | Inst::Load { .. } => &[],
        }
    }

    /// Sorts the work into passes: a reduction comes after those that its operand depends on, stores of points come in the last.
    fn plan(&mut self) {
        let k = self.kernel;
        let n = k.body.len();
        let reduces = k.inner() > 1;
        let effect = |i: &usize| matches!(k.body[*i], Inst::Store { .. } | Inst::Gather { .. });
        let live = self.closure(&(0..n).filter(effect).collect::<Vec<_>>());
        let mut depth = vec![0; n];
        for (i, inst) in k.body.iter().enumerate() {
            depth[i] = Self::operands(inst).iter().map(|v| depth[v.0 as usize]).max().unwrap_or(0);
            if let Inst::Reduce { .. } = inst
                && reduces
                && live[i]
            {
                let pass = depth[i];
                self.passes.resize(self.passes.len().max(pass + 1), Pass::default());
                self.passes[pass].reduces.push(i);
                depth[i] += 1;
            }
        }
        let mut roots: Vec<usize> = (0..n).filter(|&i| matches!(k.body[i], Inst::Store { .. })).collect();
        let reached: Vec<usize> =
            roots.iter().copied().chain(self.passes.iter().flat_map(|p| p.reduces.clone())).collect();
        let reached = self.closure(&reached);
        roots.extend((0..n).filter(|&i| matches!(k.body[i], Inst::Gather { .. }) && !reached[i]));
        let (full, row): (Vec<usize>, Vec<usize>) = roots.into_iter().partition(|&i| self.levels[i] == Level::Full);
        self.row_roots = row;
        if k.inner() > 0 && !full.is_empty() {
            let last = full.iter().map(|&i| depth[i]).max().unwrap_or(0).max(self.passes.len().saturating_sub(1));
            self.passes.resize(last + 1, Pass::default());
            self.passes[last].roots = full;
        }
    }

    /// What `roots` are computed from, themselves too.
    pub fn closure(&self, roots: &[usize]) -> Vec<bool> {
        let mut reached = vec![false; self.kernel.body.len()];
        roots.iter().for_each(|&i| reached[i] = true);
        for i in (0..reached.len()).rev() {
            if reached[i] {
                Self::operands(&self.kernel.body[i]).iter().for_each(|v| reached[v.0 as usize] = true);
            }
        }
        reached
    }

    /// Names that end with a scope.
    pub fn forget(&mut self, which: impl Fn(Level) -> bool) {
        for (i, name) in self.names.iter_mut().enumerate() {
            if which(self.levels[i]) {
                *name = match &self.kernel.body[i] {
                    Inst::Const { ty, bits } => Some(scalar::constant(*ty, *bits)),
                    _ => None,
                };
            }
        }
    }

    /// What stands for the value of an instruction.
    pub fn name(&self, i: usize) -> Result<&str> {
        self.names[i].as_deref().ok_or_else(|| Error::bug("cuda", format!("value {i} has no name yet")))
    }

    pub fn set_name(&mut self, i: usize, name: impl Into<String>) {
        self.names[i] = Some(name.into());
    }

    /// The type of a value.
    pub fn ty(&self, i: usize) -> &'static str {
        self.kernel.ty(Val(i as u32)).map_or("void", scalar::ty)
    }

    /// A number as an index.
    pub fn number(&self, n: u64) -> String {
        if self.wide { format!("{n}ull") } else { format!("{}u", n as u32) }
    }

    /// The type of indices.
    pub fn index_type(&self) -> &'static str {
        if self.wide { "u64" } else { "u32" }
    }

    /// Defines the coordinates of `axes` (outermost first) at the point of number `linear` among theirs.
    pub fn locate(&mut self, out: &mut Source, axes: &[usize], linear: &str) {
        let mut below = 1u64;
        for (n, &axis) in axes.iter().enumerate().rev() {
            let len = self.kernel.domain[axis] as u64;
            let quotient = if below == 1 { linear.to_string() } else { format!("{linear} / {}", self.number(below)) };
            let text = if n == 0 { quotient } else { format!("{quotient} % {}", self.number(len)) };
            if text == linear {
                self.coords[axis] = text;
            } else {
                let name = format!("c{axis}");
                out.line(format!("const {} {name} = {text};", self.index_type()));
                self.coords[axis] = name;
            }
            below *= len;
        }
    }

    /// Statements that define row values that `pass` needs.
    pub fn emit_rows(&mut self, out: &mut Source, pass: &Pass) -> Result<()> {
        let roots = self.pass_roots(pass);
        self.emit(out, &roots, true)
    }

    /// How often a loop over points that compute `roots` is worth unrolling, so that several loads are under way.
    pub fn unroll(&self, roots: &[usize]) -> String {
        let full = self.closure(roots).iter().zip(&self.levels).filter(|(r, l)| **r && **l == Level::Full).count();
        let times = match full {
            0..=8 => 16,
            9..=32 => 8,
            33..=128 => 4,
            _ => 1,
        };
        format!("#pragma unroll {times}")
    }

    /// The axes that are reduced, or those that are not.
    pub fn axes(&self, reduced: bool) -> Vec<usize> {
        (0..self.kernel.domain.len()).filter(|&a| self.kernel.reduced[a] == reduced).collect()
    }

    /// An element's index.
    pub fn index(&self, access: &Access, extra: Option<(String, i64)>) -> String {
        let (mut plus, mut minus) = (Vec::new(), Vec::new());
        let mut part = |what: &str, by: i64| {
            let text = match by.unsigned_abs() {
                0 => return,
                1 => what.to_string(),
                n => format!("{what} * {}", self.number(n)),
            };
            if by > 0 { plus.push(text) } else { minus.push(text) }
        };
        for (axis, &stride) in access.strides.iter().enumerate() {
            if !self.coords[axis].is_empty() {
                part(&self.coords[axis], stride);
            }
        }
        for d in &access.dynamic {
            part(&format!("({})p{}", self.index_type(), d.param), d.stride);
        }
        if let Some((what, by)) = extra {
            part(&what, by);
        }
        match access.offset {
            0 => {}
            n if n > 0 => plus.push(self.number(n as u64)),
            n => minus.push(self.number(n.unsigned_abs())),
        }
        let mut text = if plus.is_empty() { self.number(0) } else { plus.join(" + ") };
        for m in minus {
            text = format!("{text} - {m}");
        }
        text
    }

    /// The condition of guards; `None` if there are none.
    pub fn condition(&self, guards: &[Guard]) -> Option<String> {
        let mut parts = Vec::new();
        for g in guards {
            let (c, len) = (&self.coords[g.axis as usize], self.kernel.domain[g.axis as usize] as i64);
            if g.lo > 0 {
                parts.push(format!("{c} >= {}", self.number(g.lo as u64)));
            }
            if g.hi < len {
                parts.push(format!("{c} < {}", self.number(g.hi.max(0) as u64)));
            }
        }
        if parts.is_empty() { None } else { Some(parts.join(" && ")) }
    }

    /// Statements for all that `roots` need and has no name yet; with `rows` only what exists once a row.
    pub fn emit(&mut self, out: &mut Source, roots: &[usize], rows: bool) -> Result<()> {
        // A value with a name needs nothing.
        let mut needed = vec![false; self.kernel.body.len()];
        roots.iter().for_each(|&i| needed[i] = self.names[i].is_none());
        for i in (0..needed.len()).rev() {
            let inst = &self.kernel.body[i];
            // A reduction is named by its pass; what it combines is a root of that pass.
            let stop = matches!(inst, Inst::Reduce { .. }) && self.kernel.inner() > 1;
            if needed[i] && !stop {
                for v in Self::operands(inst) {
                    needed[v.0 as usize] |= self.names[v.0 as usize].is_none();
                }
            }
        }
        for (i, _) in needed.iter().enumerate().filter(|n| *n.1) {
            if !rows || self.levels[i] == Level::Row {
                self.statement(out, i)?;
            }
        }
        Ok(())
    }

    /// The values that the pass's reductions combine, and its other roots.
    pub fn pass_roots(&self, pass: &Pass) -> Vec<usize> {
        let values = pass.reduces.iter().map(|&r| self.combined(r));
        values.chain(pass.roots.iter().copied()).collect()
    }

    /// What a reduction combines.
    pub fn combined(&self, reduce: usize) -> usize {
        Self::operands(&self.kernel.body[reduce]).first().map_or(0, |v| v.0 as usize)
    }

    fn statement(&mut self, out: &mut Source, i: usize) -> Result<()> {
        let k = self.kernel;
        let value = match &k.body[i] {
            Inst::Const { .. } => return Ok(()),
            Inst::Param { param } => scalar::canonical(k.params[*param as usize], &format!("p{param}")),
            Inst::Index { axis } => format!("(i64){}", self.coords[*axis as usize]),
            Inst::Load { access, guards } => {
                let dtype = k.args[access.arg as usize].dtype;
                let element = match &self.elements[i] {
                    Some(at_hand) => at_hand.clone(),
                    None => format!("a{}[{}]", access.arg, self.index(access, None)),
                };
                let lane = scalar::widen(dtype, &element);
                // What is at hand was loaded under its guards.
                match self.condition(guards).filter(|_| self.elements[i].is_none()) {
                    Some(condition) => {
                        let zero = scalar::constant(crate::kernel::Ty::of(dtype), 0);
                        format!("{condition} ? {lane} : {zero}")
                    }
                    None => lane,
                }
            }
            Inst::Gather { access, index, stride, len } => {
                let at = self.name(index.0 as usize)?.to_string();
                out.line(format!("if ((u64){at} >= {len}ull) atomicOr(flag, 1u);"));
                let last = len - 1;
                let t = self.index_type();
                out.line(format!("const {t} g{i} = ({t})({at} < 0 ? 0ll : {at} > {last}ll ? {last}ll : {at});"));
                let element = format!("a{}[{}]", access.arg, self.index(access, Some((format!("g{i}"), *stride))));
                scalar::widen(k.args[access.arg as usize].dtype, &element)
            }
            Inst::Op { instr, args } => {
                let n = instr.operands().len();
                let mut texts = ["", "", ""];
                for (text, v) in texts.iter_mut().zip(&args[..n]) {
                    *text = self.name(v.0 as usize)?;
                }
                scalar::instr(*instr, texts)
            }
            Inst::Reduce { combine, value } => match k.inner() {
                0 => scalar::constant(combine.instr().result(), combine.empty()),
                1 => self.name(value.0 as usize)?.to_string(),
                _ => return Err(Error::bug("cuda", format!("reduction {i} is used before its pass"))),
            },
            Inst::Store { access, value } => {
                let element = scalar::narrow(k.args[access.arg as usize].dtype, self.name(value.0 as usize)?);
                let to = match &self.sinks[i] {
                    Some(sink) => sink.clone(),
                    None => self.place(access),
                };
                out.line(format!("{to} = {element};"));
                return Ok(());
            }
        };
        out.line(format!("const {} v{i} = {value};", self.ty(i)));
        self.set_name(i, format!("v{i}"));
        Ok(())
    }

    /// Where a store goes, with the condition that guards its argument.
    fn place(&self, access: &Access) -> String {
        format!("{}a{}[{}]", self.keep(access.arg), access.arg, self.index(access, None))
    }

    /// What stands before a store to an argument.
    pub fn keep(&self, arg: u32) -> &'static str {
        if self.signature.guarded[arg as usize] { "if (keep) " } else { "" }
    }

    /// The head of an entry and definitions of its arguments; what follows is inside.
    pub fn head(&self, out: &mut Source, name: &str, threads: u32, scratch: bool) {
        let flag = uses_flag(self.kernel, self.signature);
        let args: Vec<(&str, bool)> = self.kernel.args.iter().map(|a| (scalar::element(a.dtype), a.output)).collect();
        head(out, name, threads, &args, self.kernel.params.len(), self.signature, flag, scratch);
        if self.signature.guarded.iter().any(|&g| g) {
            out.line("const bool keep = *(const volatile u32*)flag == 0u;");
        }
    }
}

/// Whether a kernel's entries take the flag.
pub fn uses_flag(kernel: &Kernel, signature: &Signature) -> bool {
    signature.guarded.iter().any(|&g| g) || kernel.body.iter().any(|i| matches!(i, Inst::Gather { .. }))
}

/// The head of an entry: arguments are called `a0…` (element type, whether it is written), words of parameters `p0…`.
#[allow(clippy::too_many_arguments)]
pub fn head(
    out: &mut Source,
    name: &str,
    threads: u32,
    args: &[(&str, bool)],
    params: usize,
    signature: &Signature,
    flag: bool,
    scratch: bool,
) {
    let mut parameters = Vec::new();
    let mut definitions = Vec::new();
    // Of a pointer that comes from memory the compiler does not know that it is to global memory.
    let mut global = Vec::new();
    let restrict = if signature.may_alias { "" } else { " __restrict__" };
    if signature.has_block(params) {
        parameters.push("const u64* __restrict__ block".to_string());
    }
    for (i, (&(element, output), place)) in args.iter().zip(&signature.args).enumerate() {
        let pointer = format!("{}{element}*", if output { "" } else { "const " });
        match place {
            Place::Direct => parameters.push(format!("{pointer}{restrict} a{i}")),
            Place::Block => {
                parameters.push(format!("u32 at_a{i}"));
                definitions.push(format!("{pointer}{restrict} const a{i} = ({pointer})block[at_a{i}];"));
                global.push(format!("__builtin_assume(__isGlobal(a{i}));"));
            }
        }
    }
    for i in 0..params {
        match signature.params {
            Place::Direct => parameters.push(format!("u64 p{i}")),
            Place::Block => {
                parameters.push(format!("u32 at_p{i}"));
                definitions.push(format!("const u64 p{i} = block[at_p{i}];"));
            }
        }
    }
    if flag {
        parameters.push("u32* flag".into());
    }
    if scratch {
        parameters.push("u8* __restrict__ scratch".into());
    }
    let list = parameters.join(", ");
    out.open(format!("extern \"C\" __global__ void __launch_bounds__({threads}) {name}({list})"));
    definitions.iter().for_each(|d| out.line(d));
    if !global.is_empty() {
        out.line("#if defined(__CUDACC_RTC__) && !defined(STEPGRAPH_SIM)");
        global.iter().for_each(|g| out.line(g));
        out.line("#endif");
    }
}
