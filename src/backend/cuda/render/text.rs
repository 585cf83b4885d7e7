//! Source text: lines with indentation, and whole programs with the pieces that they use.

use crate::backend::cuda::render::scalar;
use crate::backend::cuda::render::{Rendered, Stage};
use crate::kernel::ir::Combine;

/// Indented lines.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub text: String,
    depth: usize,
}

impl Source {
    pub fn line(&mut self, line: impl AsRef<str>) {
        (0..self.depth).for_each(|_| self.text.push_str("    "));
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// A line that is not indented.
    pub fn pragma(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// `line {`; the lines that follow are inside.
    pub fn open(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        self.line(if line.is_empty() { "{".to_string() } else { format!("{line} {{") });
        self.depth += 1;
    }

    pub fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }
}

/// A program in the making.
#[derive(Default)]
pub struct Program {
    /// Entries and what only they use.
    pub entries: String,
    /// A user's source, which comes before them.
    pub user: String,
    pub stages: Vec<Stage>,
    pub scratch_bytes: usize,
    pub flag: bool,
}

const TYPES: &str = "typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
";

/// In the order in which pieces may use each other.
const PIECES: [&str; 3] = [
    include_str!("../../../../kernels/scalar.cu"),
    include_str!("../../../../kernels/reduce.cu"),
    include_str!("../../../../kernels/sort.cu"),
];

impl Program {
    /// The text, with the pieces it uses.
    pub fn finish(self) -> Rendered {
        let entries = without_unused(&self.entries);
        let combines = Combine::ALL.into_iter().filter(|&c| mentions(&entries, combine_name(c)));
        let mut used: String = combines.map(combine_text).collect();
        for (name, text) in pieces().into_iter().rev() {
            let by_user = CONVERSIONS.contains(&name) && mentions(&self.user, name);
            if mentions(&used, name) || mentions(&entries, name) || by_user {
                used.insert_str(0, &format!("{}\n\n", text.trim()));
            }
        }
        let source = format!("{TYPES}\n{used}{}{entries}", self.user);
        Rendered { source, stages: self.stages, scratch_bytes: self.scratch_bytes, flag: self.flag }
    }
}

/// What a user's source may use without defining it.
const CONVERSIONS: [&str; 4] = ["from_f16", "to_f16", "from_bf16", "to_bf16"];

/// Names and texts of the pieces.
fn pieces() -> Vec<(&'static str, &'static str)> {
    let parts = PIECES.iter().flat_map(|p| p.split("\n//: ").skip(1));
    parts.filter_map(|p| p.split_once('\n')).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// How often `word` stands in `text` as a whole word.
fn count(text: &str, word: &str) -> usize {
    let whole =
        |&(at, _): &(usize, &str)| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word);
    text.match_indices(word).filter(whole).count()
}

fn mentions(text: &str, word: &str) -> bool {
    count(text, word) > 0
}

/// Drops the definitions `const T name = …;` of names that nothing else mentions.
fn without_unused(text: &str) -> String {
    let mut text = text.to_string();
    loop {
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        let mut dropped = false;
        while let Some((line, tail)) = rest.split_once('\n') {
            let name = definition(line);
            let unused = name.is_some_and(|n| !mentions(scope(line, tail), n));
            if unused {
                dropped = true;
            } else {
                out.push_str(line);
                out.push('\n');
            }
            rest = tail;
        }
        out.push_str(rest);
        if !dropped {
            return out;
        }
        text = out;
    }
}

/// The lines after `line` up to the end of the brackets that it stands in.
fn scope<'a>(line: &str, after: &'a str) -> &'a str {
    let indent = |l: &str| l.len() - l.trim_start().len();
    let mut end = 0;
    for next in after.split_inclusive('\n') {
        if indent(next) < indent(line) && !next.starts_with('#') {
            break;
        }
        end += next.len();
    }
    &after[..end]
}

/// The name that a line defines, if defining it is all that the line does.
fn definition(line: &str) -> Option<&str> {
    let (left, right) = line.trim_start().split_once(" = ")?;
    let constant = left.starts_with("const ") || left.contains("* const ") || left.contains("__restrict__ const ");
    if !constant || !right.ends_with(';') {
        return None;
    }
    left.rsplit(|c: char| !is_word(c)).next().filter(|n| !n.is_empty())
}

/// The struct that stands for a way to combine.
pub fn combine_name(combine: Combine) -> &'static str {
    match combine {
        Combine::Sum => "Sum",
        Combine::Max => "Max",
        Combine::Min => "Min",
        Combine::Prod => "Prod",
        Combine::DSum => "DSum",
        Combine::DMax => "DMax",
        Combine::DMin => "DMin",
        Combine::DProd => "DProd",
        Combine::LSum => "LSum",
        Combine::LMax => "LMax",
        Combine::LMin => "LMin",
        Combine::LProd => "LProd",
        Combine::Any => "Any",
        Combine::All => "All",
    }
}

fn combine_text(combine: Combine) -> String {
    let ty = combine.instr().result();
    let both = scalar::instr(combine.instr(), ["a", "b", ""]);
    let (name, t, identity) = (combine_name(combine), scalar::ty(ty), scalar::constant(ty, combine.identity()));
    let function = "    static __device__ __forceinline__";
    format!(
        "struct {name} {{\n    typedef {t} type;\n{function} {t} identity() {{ return {identity}; }}\n{function} {t} both({t} a, {t} b) {{ return {both}; }}\n}};\n\n"
    )
}
