//! Library calls other than matrix products: what [`crate::kernel::library`] says, with hand-written pieces.

use crate::backend::cuda::render::body::head;
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::sort::{self, Keys};
use crate::backend::cuda::render::text::Source;
use crate::backend::cuda::render::{Signature, custom, scalar};
use crate::base::{DType, Error, ErrorKind, Result};
use crate::kernel::instr::Ty;
use crate::kernel::library::{Argsort, Library, Lines, Scan, ScanKind, ScatterAdd, ScatterIndex};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// A call's entries: its arguments and how they are given.
pub struct Call<'s> {
    /// Element types, and whether they are written.
    pub args: Vec<(&'static str, bool)>,
    /// Number of parameters.
    pub params: usize,
    pub signature: &'s Signature,
    /// Whether an index may be out of range.
    pub flags: bool,
    pub scratch: bool,
}

/// A library call as source.
pub fn library(form: &mut Form, library: &Library, signature: &Signature) -> Result<()> {
    match library {
        Library::Scan(scan) => render_scan(form, scan, signature),
        Library::ScatterIndex(scatter) => scatter_index(form, scatter, signature),
        Library::ScatterAdd(scatter) => scatter_add(form, scatter, signature),
        Library::Argsort(argsort) => render_argsort(form, argsort, signature),
        Library::Custom(c) => custom::custom(form, c, signature),
        Library::Matmul(_) => Err(Error::bug("cuda", "matrix products are not rendered")),
    }
}

impl Call<'_> {
    /// Whether entries take the flag.
    pub fn flag(&self) -> bool {
        self.flags || self.signature.guarded.iter().any(|&g| g)
    }

    /// An entry whose body is the work of one of `count` threads, number `i`; `stores` says whether it writes outputs.
    pub fn entry(&self, form: &mut Form, count: usize, write: impl FnOnce(&mut Source) -> Result<()>) -> Result<()> {
        let mut out = Source::default();
        let name = form.entry();
        self.head(&mut out, &name, THREADS);
        let blocks = count.div_ceil(THREADS as usize);
        let first = format!("(u64)blockIdx.x * {THREADS}u + threadIdx.x");
        if blocks <= form.tuning.most_blocks {
            out.line(format!("const u64 i = {first};"));
            out.open(format!("if (i < {count}ull)"));
        } else {
            let step = format!("(u64)gridDim.x * {THREADS}u");
            out.open(format!("for (u64 i = {first}; i < {count}ull; i += {step})"));
        }
        write(&mut out)?;
        out.close();
        out.close();
        form.stage(out, name, blocks, THREADS);
        Ok(())
    }

    /// The head of an entry.
    pub fn head(&self, out: &mut Source, name: &str, threads: u32) {
        head(out, name, threads, &self.args, self.params, self.signature, self.flag(), self.scratch);
        if self.signature.guarded.iter().any(|&g| g) {
            out.line("const bool keep = *(const volatile u32*)flag == 0u;");
        }
    }

    /// What stands before a store to an argument.
    pub fn keep(&self, arg: usize) -> &'static str {
        if self.signature.guarded[arg] { "if (keep) " } else { "" }
    }

    pub fn check(&self) -> Result<()> {
        let n = self.args.len();
        if self.signature.args.len() != n || self.signature.guarded.len() != n {
            let given = self.signature.args.len();
            return Err(Error::bug("cuda", format!("a signature of {given} arguments for {n}")));
        }
        Ok(())
    }
}

/// `offset + Σ coordinate * stride` in two's complement.
pub fn sum_of(offset: i64, parts: &[(&str, i64)]) -> String {
    let mut text = format!("{offset}ll");
    for (what, stride) in parts.iter().filter(|p| p.1 != 0) {
        text = format!("{text} + (i64){what} * {stride}ll");
    }
    text
}

/// An element of lines, at coordinates before, along and after the axis.
pub fn at(lines: &Lines, coords: [&str; 3]) -> String {
    sum_of(lines.offset, &[0, 1, 2].map(|k| (coords[k], lines.strides[k])))
}

/// How elements of a dtype add up and multiply: the type, an element as one, a sum, a product, one as an element.
struct Arithmetic {
    lane: &'static str,
    dtype: DType,
}

impl Arithmetic {
    fn of(dtype: DType, op: &str) -> Result<Arithmetic> {
        let lane = match dtype {
            DType::Bool => {
                let (op, device) = (op.into(), "cuda".into());
                return Err(Error::new(ErrorKind::Unsupported { op, device, detail: "dtype bool".into() }));
            }
            DType::U8 | DType::I8 | DType::I32 => "u32",
            DType::I64 => "u64",
            DType::F16 | DType::BF16 | DType::F32 => "float",
            DType::F64 => "double",
        };
        Ok(Arithmetic { lane, dtype })
    }

    fn load(&self, element: &str) -> String {
        match Ty::of(self.dtype) {
            Ty::I64 => format!("({}){element}", self.lane),
            _ => scalar::widen(self.dtype, element),
        }
    }

    fn store(&self, lane: &str) -> String {
        match self.dtype {
            DType::I64 => format!("(i64){lane}"),
            dtype => scalar::narrow(dtype, lane),
        }
    }
}

/// Each line is a chain in the order of its elements, so it is the work of one thread.
fn render_scan(form: &mut Form, scan: &Scan, signature: &Signature) -> Result<()> {
    let how = Arithmetic::of(scan.dtype, "scan")?;
    let element = scalar::element(scan.dtype);
    let inputs = scan.kind.inputs();
    let mut args = vec![(element, false); inputs];
    args.push((element, true));
    let call = Call { args, params: 0, signature, flags: false, scratch: false };
    call.check()?;
    form.program.flag = call.flag();
    let [outer, len, inner] = scan.dims;
    if outer * len * inner == 0 {
        return Ok(());
    }
    call.entry(form, outer * inner, |out| {
        out.line(format!("const i64 o = (i64)(i / {inner}ull);"));
        out.line(format!("const i64 n = (i64)(i % {inner}ull);"));
        let first = if scan.reverse { len as i64 - 1 } else { 0 };
        let step = if scan.reverse { -1 } else { 1 };
        let axis = first.to_string();
        let contiguous = Lines { offset: 0, strides: [(len * inner) as i64, inner as i64, 1] };
        for (k, lines) in scan.inputs.iter().enumerate() {
            out.line(format!("const {element}* x{k} = a{k} + ({});", at(lines, ["o", &axis, "n"])));
        }
        out.line(format!("{element}* y = a{inputs} + ({});", at(&contiguous, ["o", &axis, "n"])));
        let x = inputs - 1;
        out.line(format!("{} before = {};", how.lane, how.load(&format!("x{x}[0]"))));
        out.line(format!("{}y[0] = {};", call.keep(inputs), how.store("before")));
        out.pragma("#pragma unroll 8");
        out.open(format!("for (i64 j = 1; j < {len}ll; ++j)"));
        for (k, lines) in scan.inputs.iter().enumerate() {
            let value = how.load(&format!("x{k}[j * {}ll]", lines.strides[1] * step));
            out.line(format!("const {} e{k} = {value};", how.lane));
        }
        out.line(match scan.kind {
            ScanKind::Sum => "before = before + e0;",
            ScanKind::Product => "before = before * e0;",
            ScanKind::Recurrence => "before = e0 * before + e1;",
        });
        let to = inner as i64 * step;
        out.line(format!("{}y[j * {to}ll] = {};", call.keep(inputs), how.store("before")));
        out.close();
        Ok(())
    })
}

/// The clamped index `at`, which raises the flag where it is out of range.
fn clamped(out: &mut Source, at: &str, len: usize) {
    out.line(format!("i64 to = {at};"));
    out.open(format!("if ((u64)to >= {len}ull)"));
    out.line("atomicOr(flag, 1u);");
    out.line(format!("to = to < 0 ? 0ll : {}ll;", len as i64 - 1));
    out.close();
}

/// A stage that raises the flag: there is an index, and nothing that it could name.
fn raise(form: &mut Form, call: &Call) -> Result<()> {
    call.entry(form, 1, |out| {
        out.line("atomicOr(flag, 1u);");
        Ok(())
    })
}

fn scatter_index(form: &mut Form, scatter: &ScatterIndex, signature: &Signature) -> Result<()> {
    let call = Call { args: vec![("i64", false), ("i64", true)], params: 0, signature, flags: true, scratch: false };
    call.check()?;
    form.program.flag = true;
    let [outer, count, inner] = scatter.dims;
    if scatter.len == 0 {
        return if outer * count * inner > 0 { raise(form, &call) } else { Ok(()) };
    }
    if outer * inner == 0 {
        return Ok(());
    }
    let len = scatter.len;
    call.entry(form, outer * len * inner, |out| {
        out.line(format!("{}a1[i] = -1ll;", call.keep(1)));
        Ok(())
    })?;
    if count == 0 {
        return Ok(());
    }
    // The last position is the largest.
    call.entry(form, outer * count * inner, |out| {
        out.line(format!(
            "const u64 n = i % {inner}ull, j = i / {inner}ull % {count}ull, o = i / {}ull;",
            count * inner
        ));
        clamped(out, &format!("a0[{}]", at(&scatter.index, ["o", "j", "n"])), len);
        out.line(format!("{}atomicMax(a1 + ((o * {len}ull + (u64)to) * {inner}ull + n), (i64)j);", call.keep(1)));
        Ok(())
    })
}

/// The indices of a line are sorted with their positions; then each element of the output adds what its run of them names.
fn scatter_add(form: &mut Form, scatter: &ScatterAdd, signature: &Signature) -> Result<()> {
    let how = Arithmetic::of(scatter.dtype, "scatter_add")?;
    let element = scalar::element(scatter.dtype);
    let args = vec![("i64", false), (element, false), (element, true)];
    let &ScatterAdd { outer, count, len, inner, .. } = scatter;
    let mut call = Call { args, params: 0, signature, flags: true, scratch: false };
    call.check()?;
    form.program.flag = true;
    if len == 0 {
        return if outer * count * inner > 0 { raise(form, &call) } else { Ok(()) };
    }
    if outer * inner == 0 {
        return Ok(());
    }
    let zero = how.store(&format!("({})0", how.lane));
    if count == 0 {
        return call.entry(form, outer * len * inner, |out| {
            out.line(format!("{}a2[i] = {zero};", call.keep(2)));
            Ok(())
        });
    }
    // Lists of indices that are apart: along an axis on which the index does not depend there is one.
    let own = |axis: usize, n: usize| if scatter.index[axis] == 0 { 1 } else { n };
    let lists = [own(0, outer), own(2, inner)];
    let keys = Keys { lines: lists[0] * lists[1], len: count, long: count.max(len) > u32::MAX as usize };
    call.scratch = true;
    let index = Lines { offset: 0, strides: scatter.index };
    let key = |out: &mut Source| {
        let (o, n) = (format!("(line / {}ull)", lists[1]), format!("(line % {}ull)", lists[1]));
        clamped(out, &format!("a0[{}]", at(&index, [&o, "j", &n])), len);
        Ok("(u64)to".to_string())
    };
    let sorted = sort::sort(form, &call, &keys, &key, None)?;
    // Of each list where the run of each index begins, and the end.
    let starts = keys.bytes(2);
    form.program.scratch_bytes = starts + keys.lines * (len + 1) * 8;
    let k = keys.name();
    call.entry(form, keys.lines * (len + 1), |out| {
        out.line(format!("const u64 line = i / {}ull, at = i % {}ull;", len + 1, len + 1));
        out.line(format!("const {k}* sorted = ({k}*)(scratch + {sorted}ull) + line * {count}ull;"));
        out.line(format!("((u64*)(scratch + {starts}ull))[i] = first_of<{k}>(sorted, {count}ull, at);"));
        Ok(())
    })?;
    call.entry(form, outer * len * inner, |out| {
        out.line(format!("const u64 n = i % {inner}ull;"));
        out.line(format!("const u64 to = i / {inner}ull % {len}ull;"));
        out.line(format!("const u64 o = i / {}ull;", len * inner));
        let part = |axis: usize, what: &str| if lists[axis] == 1 { "0ull".to_string() } else { what.to_string() };
        out.line(format!("const u64 line = {} * {}ull + {};", part(0, "o"), lists[1], part(1, "n")));
        out.line(format!("const {k}* __restrict__ sorted = (const {k}*)(scratch + {sorted}ull) + line * {count}ull;"));
        let row = format!("((const u64*)(scratch + {starts}ull))[line * {}ull + to", len + 1);
        out.line(format!("const u64 begin = {row}], end = {row} + 1ull];"));
        let from = sum_of(0, &[("o", scatter.src[0]), ("n", scatter.src[2])]);
        out.line(format!("const {element}* __restrict__ from = a1 + ({from});"));
        out.line(format!("{} sum = 0;", how.lane));
        out.pragma("#pragma unroll 4");
        out.open("for (u64 p = begin; p < end; ++p)");
        let src = format!("from[(i64)sorted[p].position() * {}ll]", scatter.src[1]);
        out.line(format!("sum = sum + {};", how.load(&src)));
        out.close();
        out.line(format!("{}a2[i] = {};", call.keep(2), how.store("sum")));
        Ok(())
    })
}

fn render_argsort(form: &mut Form, argsort: &Argsort, signature: &Signature) -> Result<()> {
    let element = scalar::element(argsort.dtype);
    let [outer, len, inner] = argsort.dims;
    let mut call =
        Call { args: vec![(element, false), ("i64", true)], params: 0, signature, flags: false, scratch: false };
    call.check()?;
    form.program.flag = call.flag();
    if outer * len * inner == 0 {
        return Ok(());
    }
    let (function, bits) = match argsort.dtype {
        DType::Bool | DType::U8 => ("(u64)", 8),
        DType::I8 | DType::I32 => ("order_i32", 32),
        DType::I64 => ("order_i64", 64),
        DType::F16 | DType::BF16 | DType::F32 => ("order_f32", 32),
        DType::F64 => ("order_f64", 64),
    };
    let keys = Keys { lines: outer * inner, len, long: bits == 64 || len > u32::MAX as usize };
    call.scratch = keys.merges() > 0;
    form.program.scratch_bytes = if call.scratch { keys.bytes(2) } else { 0 };
    let flip = if argsort.descending { format!(" ^ {:#x}ull", u64::MAX >> (64 - bits)) } else { String::new() };
    let key = |out: &mut Source| {
        let (o, n) = (format!("(line / {inner}ull)"), format!("(line % {inner}ull)"));
        let element = format!("a0[{}]", at(&argsort.input, [&o, "j", &n]));
        let value = match argsort.dtype {
            DType::F16 | DType::BF16 => scalar::widen(argsort.dtype, &element),
            _ => element,
        };
        out.line(format!("const u64 key = {function}({value}){flip};"));
        Ok("key".to_string())
    };
    let keep = call.keep(1);
    let put = |out: &mut Source, at: &str, key: &str| {
        let to = format!("((line / {inner}ull) * {len}ull + {at}) * {inner}ull + line % {inner}ull");
        out.line(format!("{keep}a1[{to}] = (i64){key}.position();"));
    };
    sort::sort(form, &call, &keys, &key, Some(&put))?;
    Ok(())
}
