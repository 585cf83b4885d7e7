//! The rules of the source tree that the compiler does not check.
//!
//! A file imports lower floors and its own folder, nothing else; `unsafe` only where the design allows it; the
//! library never prints; files stay short and have names that say something. Code under `#[cfg(test)]` may import and
//! print what it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Top-level modules, by floor. Two modules of one floor do not import each other.
const FLOORS: [(&str, u32); 19] = [
    ("base", 0),
    ("kernel", 1),
    ("op", 2),
    ("ir", 3),
    ("plan", 4),
    ("interp", 5),
    ("pass", 6),
    ("backend", 7),
    ("tensor", 8),
    ("nn", 9),
    ("optim", 9),
    ("checkpoint", 10),
    ("trace", 10),
    ("diag", 11),
    ("jit", 12),
    ("embed", 13),
    ("bench", 13),
    ("bin", 13),
    ("main", 13),
];

/// Where `unsafe` may be written: these files, or files in these folders.
const UNSAFE: [&str; 7] = [
    "backend/cpu/memory",
    "backend/cpu/vm",
    "backend/cpu/matmul",
    "backend/cpu/threads",
    "backend/dispatch",
    "backend/cuda/sys",
    "embed/raw",
];

/// Files that see less than their floor would let them: the checker must not trust what it checks.
const NARROWER: [(&str, &[&str]); 2] =
    [("plan/check.rs", &["base", "kernel", "plan"]), ("plan/access.rs", &["base", "kernel", "plan"])];

/// Lines of code (not blank, not only a comment) a file may have.
const MOST_LINES: usize = 650;

const NO_NAMES: [&str; 7] = ["utils", "util", "common", "helpers", "helper", "misc", "base"];

const PRINTING: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];

/// A broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A token that matters here: a word, `::`, a quoted text, or one other character.
#[derive(Debug, Clone, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// Tokens of Rust source, without comments; texts and characters are one token that starts with `"`.
fn tokens(source: &str) -> Vec<Token> {
    let s: Vec<char> = source.chars().collect();
    let (mut i, mut line, mut out) = (0, 1, Vec::new());
    let at = |i: usize| s.get(i).copied().unwrap_or('\0');
    while i < s.len() {
        let (c, start, first) = (s[i], i, line);
        let raw = raw_string(&s, i);
        if c == '/' && at(i + 1) == '/' {
            while i < s.len() && s[i] != '\n' {
                i += 1;
            }
            continue;
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= s.len() {
                    break;
                }
            }
            line += s[start..i.min(s.len())].iter().filter(|&&c| c == '\n').count();
            continue;
        } else if let Some((open, hashes)) = raw {
            let close: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let rest: String = s[i + open..].iter().collect();
            let len = rest.find(&close).map_or(rest.chars().count(), |b| rest[..b].chars().count() + close.len());
            i += open + len;
        } else if c == '"' {
            i += 1;
            while i < s.len() && s[i] != '"' {
                i += if s[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character; a lifetime has no closing quote.
            i += 2;
            while i < s.len() && s[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else if c.is_alphanumeric() || c == '_' {
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
        } else if c == ':' && at(i + 1) == ':' {
            i += 2;
        } else {
            i += 1;
        }
        let i_end = i.min(s.len());
        line += s[start..i_end].iter().filter(|&&c| c == '\n').count();
        if !c.is_whitespace() {
            let mut text: String = s[start..i_end].iter().collect();
            if raw.is_some() || (c == '\'' && text.len() > 1) {
                text = format!("\"{text}");
            }
            out.push(Token { text, line: first });
        }
    }
    out
}

/// For a raw (or byte, or C) string at `i`: characters before its contents, and its hashes.
fn raw_string(s: &[char], i: usize) -> Option<(usize, usize)> {
    let before = i > 0 && (s[i - 1].is_alphanumeric() || s[i - 1] == '_');
    let mut at = i;
    while at < s.len() && matches!(s[at], 'b' | 'c' | 'r') {
        at += 1;
    }
    let prefix: String = s[i..at].iter().collect();
    if before || !["r", "br", "cr"].contains(&prefix.as_str()) {
        return None;
    }
    let hashes = s[at..].iter().take_while(|&&c| c == '#').count();
    (s.get(at + hashes) == Some(&'"')).then_some((at + hashes + 1 - i, hashes))
}

/// What a scan of one file finds.
#[derive(Default)]
struct Scan {
    /// (line, top-level module, whole path) of everything named by path from the crate's root.
    imports: Vec<(usize, String, String)>,
    /// Macro calls that print.
    prints: Vec<(usize, String)>,
    /// `unsafe`, test code included.
    unsafes: Vec<usize>,
    /// Modules under `#[cfg(test)]` in files of their own: module name, or file name by `#[path]`.
    test_files: Vec<String>,
}

/// Scans the source of the module `module` (`["plan", "check"]`).
fn scan(source: &str, module: &[String]) -> Scan {
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let unsafes = tokens.iter().filter(|t| t.text == "unsafe").map(|t| t.line).collect();
    let mut out = Scan { unsafes, ..Scan::default() };
    // Inline modules that are open: name, and the brace depth inside.
    let mut inline: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut i) = (0, 0);
    while i < tokens.len() {
        let line = tokens[i].line;
        match text(i) {
            "{" => depth += 1,
            "}" => {
                if inline.last().is_some_and(|m| m.1 == depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            "mod" if text(i + 2) == "{" => {
                inline.push((text(i + 1).to_string(), depth + 1));
            }
            "#" => {
                let end = matching(&tokens, i + 1);
                let attribute: String = tokens[i..end].iter().map(|t| t.text.as_str()).collect();
                if attribute == "#[cfg(test)]" {
                    i = skip_item(&tokens, end, &mut out.test_files);
                    continue;
                }
            }
            "(" if text(i + 1) == "in" => {
                // pub(in crate::plan)
                i = matching(&tokens, i);
                continue;
            }
            "crate" | "super" if text(i + 1) == "::" && (i == 0 || text(i - 1) != "::") => {
                let mut base: Vec<String> = module.to_vec();
                base.extend(inline.iter().map(|m| m.0.clone()));
                let mut at = i;
                if text(at) == "crate" {
                    base.clear();
                    at += 2;
                }
                while text(at) == "super" && text(at + 1) == "::" {
                    base.pop();
                    at += 2;
                }
                tree(&tokens, &mut at, &base, &mut out.imports);
                i = at.max(i + 1);
                continue;
            }
            name if PRINTING.contains(&name) && text(i + 1) == "!" => out.prints.push((line, name.to_string())),
            _ => {}
        }
        i += 1;
    }
    out
}

/// The token after the bracket that closes the one at `i`.
fn matching(tokens: &[Token], mut i: usize) -> usize {
    let mut depth = 0usize;
    while i < tokens.len() {
        match tokens[i].text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
        if depth == 0 {
            break;
        }
    }
    i
}

/// The token after the item at `i`, which is test code; its attributes come first.
fn skip_item(tokens: &[Token], mut i: usize, test_files: &mut Vec<String>) -> usize {
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let mut path = None;
    while text(i) == "#" {
        let end = matching(tokens, i + 1);
        if text(i + 2) == "path" {
            path = Some(text(i + 4).trim_matches('"').to_string());
        }
        i = end;
    }
    let mut name = None;
    while i < tokens.len() {
        match text(i) {
            "mod" => name = Some(text(i + 1).to_string()),
            ";" => {
                test_files.extend(path.or(name));
                return i + 1;
            }
            "{" => return matching(tokens, i),
            "(" | "[" => {
                i = matching(tokens, i);
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    i
}

/// A path, or a tree of paths in braces, that goes on from `base`.
fn tree(tokens: &[Token], at: &mut usize, base: &[String], out: &mut Vec<(usize, String, String)>) {
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let mut path = base.to_vec();
    let line = tokens.get(*at).map_or(0, |t| t.line);
    loop {
        match text(*at) {
            "{" => {
                *at += 1;
                while *at < tokens.len() && text(*at) != "}" {
                    let before = *at;
                    tree(tokens, at, &path, out);
                    if text(*at) == "as" {
                        *at += 2;
                    }
                    if text(*at) == "," || *at == before {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "super" => drop(path.pop()),
            "self" | "*" => {}
            word => path.push(word.to_string()),
        }
        *at += 1;
        if text(*at) != "::" || text(*at + 1) == "<" {
            break;
        }
        *at += 1;
    }
    if text(*at) == "!" && path.len() == 1 {
        // A macro of the crate.
        return;
    }
    out.push((line, path.first().cloned().unwrap_or_default(), path.join("::")));
}

fn floor(module: &str) -> Option<u32> {
    FLOORS.iter().find(|f| f.0 == module).map(|f| f.1)
}

/// The module of a file: `plan/check.rs` is `plan::check`, `plan/mod.rs` is `plan`.
fn module(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if parts.last().is_some_and(|p| p == "mod") {
        parts.pop();
    }
    parts
}

/// What breaks the rules in one file, unless it holds only test code.
fn check(file: &str, source: &str) -> Vec<Violation> {
    let mut out = Vec::new();
    let mut found = |line: usize, what: String| out.push(Violation { file: file.to_string(), line, what });
    let module = module(file);
    let scan = scan(source, &module);
    let own = module.first().cloned().unwrap_or_default();
    if file != "lib.rs" && own != "bin" {
        let at = floor(&own);
        if at.is_none() {
            found(1, format!("the module `{own}` has no floor"));
        }
        let narrower = NARROWER.iter().find(|n| n.0 == file).map(|n| n.1);
        for (line, top, path) in &scan.imports {
            let allowed = match narrower {
                Some(list) => list.contains(&top.as_str()),
                None => *top == own || floor(top).zip(at).is_some_and(|(below, at)| below < at),
            };
            if !allowed {
                found(*line, format!("`{own}` must not name `crate::{path}`"));
            }
        }
        for (line, name) in &scan.prints {
            found(*line, format!("the library does not print (`{name}!`); use `tracing`"));
        }
    }
    let stem = file.trim_end_matches(".rs");
    if !UNSAFE.iter().any(|u| stem == *u || stem.strip_prefix(u).is_some_and(|rest| rest.starts_with('/'))) {
        for line in scan.unsafes {
            found(line, "`unsafe` where the design does not allow it".to_string());
        }
    }
    let code = code_lines(source);
    if code > MOST_LINES {
        found(1, format!("{code} lines of code, more than {MOST_LINES}: cut it along a seam"));
    }
    let name = stem.rsplit('/').next().unwrap_or(stem);
    if NO_NAMES.contains(&name) {
        found(1, "a name that says nothing".to_string());
    }
    out
}

fn code_lines(source: &str) -> usize {
    source.lines().map(str::trim_start).filter(|l| !l.is_empty() && !l.starts_with("//")).count()
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Every file of the library, by its path under `src`.
fn sources() -> BTreeMap<String, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&src).unwrap().to_string_lossy().replace('\\', "/");
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// Files that hold only test code.
fn test_files(sources: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (file, source) in sources {
        let folder = file.rsplit_once('/').map_or("", |f| f.0);
        let inside = if file.ends_with("/mod.rs") { folder } else { file.trim_end_matches(".rs") };
        for name in scan(source, &module(file)).test_files {
            if name.ends_with(".rs") {
                out.insert(format!("{folder}/{name}"));
            } else {
                out.insert(format!("{inside}/{name}.rs"));
                out.insert(format!("{inside}/{name}/mod.rs"));
            }
        }
    }
    out
}

#[test]
fn the_source_tree_keeps_the_rules() {
    let sources = sources();
    assert!(sources.len() > 20, "only {} files found", sources.len());
    let tests = test_files(&sources);
    let mut broken: Vec<Violation> = sources
        .iter()
        .flat_map(|(file, source)| check(file, source))
        .filter(|v| !tests.contains(&v.file) || v.what.contains("unsafe"))
        .collect();
    broken.sort();
    let list: Vec<String> = broken.iter().map(|v| v.to_string()).collect();
    assert!(broken.is_empty(), "{} broken rules:\n{}", list.len(), list.join("\n"));
}

/// Lines and words of what `check` finds.
fn found(file: &str, source: &str) -> Vec<(usize, String)> {
    check(file, source).into_iter().map(|v| (v.line, v.what)).collect()
}

#[test]
fn imports_are_resolved() {
    let source = r##"
use crate::base::{DType, Layout as L, text::{self, Cursor}};
use crate::{kernel::Kernel, trace::Tree, tensor::{Tensor, Var}};
use super::super::backend::cpu;
use super::check::Checked;
pub(in crate::jit) fn f(x: crate::diag::Report) -> Vec<crate::pass::Fuse> {
    // crate::nn::Linear
    let s = "crate::nn::Linear"; let r = r#"crate::optim"#; let c = '"'; let b = b'\'';
    /* crate::nn /* nested */ crate::nn */
    crate::unknown::g::<crate::optim::Adam>(s);
    crate::a_macro!(x)
}
fn lifetime<'a>(x: &'a crate::nn::Linear) {}
mod inner {
    use super::super::print::X;
    use super::super::super::interp::run;
    use self::super::Y;
}
#[cfg(test)]
use crate::embed::raw;
#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
#[cfg(test)]
mod more { use crate::jit::Step; fn f() { println!("{}", 1); } }
use crate::jit::trace;
"##;
    let names: Vec<(usize, String)> = found("plan/deep/file.rs", source)
        .into_iter()
        .map(|(line, what)| (line, what.split("crate::").nth(1).unwrap_or(&what).trim_end_matches('`').to_string()))
        .collect();
    let expected = [
        (3, "trace::Tree"),
        (3, "tensor::Tensor"),
        (3, "tensor::Var"),
        (4, "backend::cpu"),
        (6, "diag::Report"),
        (6, "pass::Fuse"),
        (10, "unknown::g"),
        (10, "optim::Adam"),
        (13, "nn::Linear"),
        (16, "interp::run"),
        (26, "jit::trace"),
    ];
    // `super::super::backend` of plan::deep::file is plan::backend: its own folder.
    let expected: Vec<(usize, String)> =
        expected.iter().filter(|e| e.0 != 4 && e.0 != 16).map(|&(l, s)| (l, s.to_string())).collect();
    assert_eq!(names, expected);
    assert_eq!(scan(source, &module("plan/deep/file.rs")).test_files, ["check_tests.rs"]);
}

#[test]
fn super_reaches_other_folders() {
    assert_eq!(found("plan/check.rs", "use super::super::kernel::Kernel;"), []);
    assert_eq!(
        found("plan/print.rs", "use super::super::pass::Fuse;\nuse super::super::ir::Graph;"),
        [(1, "`plan` must not name `crate::pass::Fuse`".to_string())]
    );
    assert_eq!(found("plan/mod.rs", "use super::tensor::Tensor;").len(), 1);
    assert_eq!(found("jit.rs", "use super::tensor::Tensor; use crate::jit::Step; use crate::embed::x;").len(), 1);
}

#[test]
fn floors_are_ordered() {
    let one = |file: &str, source: &str| found(file, source).len();
    assert_eq!(one("op/add.rs", "use crate::op::Op; use crate::base::DType; use crate::kernel::Instr;"), 0);
    assert_eq!(one("op/add.rs", "use crate::ir::Graph;"), 1);
    // Neighbours on one floor, the narrower view of the checker, a module without a floor, re-exports.
    assert_eq!(one("nn/linear.rs", "use crate::optim::Adam;"), 1);
    assert_eq!(one("plan/check.rs", "use crate::op::Op;"), 1);
    assert_eq!(one("plan/print.rs", "use crate::op::Op;"), 0);
    assert_eq!(one("stuff/a.rs", ""), 1);
    assert_eq!(one("tensor/a.rs", "use crate::Result;"), 1);
    // The root and binaries are free.
    assert_eq!(one("lib.rs", "pub use crate::jit::Step;"), 0);
    assert_eq!(one("bin/stepgraph.rs", "fn main() { println!(\"{}\", crate::jit::x()); }"), 0);
}

#[test]
fn unsafe_printing_length_and_names() {
    let f = "fn f() { unsafe { g() } }";
    assert_eq!(found("tensor/var.rs", f).len(), 1);
    assert_eq!(found("tensor/var.rs", "// unsafe\nconst S: &str = \"unsafe\";").len(), 0);
    assert_eq!(found("tensor/var.rs", "#[cfg(test)] mod t { fn f() { unsafe { g() } } }").len(), 1);
    for file in ["backend/cpu/memory.rs", "backend/cpu/vm/avx512.rs", "backend/dispatch/arena.rs", "embed/raw.rs"] {
        assert_eq!(found(file, f), [], "{file}");
    }
    for file in ["backend/cpu/memory_pool.rs", "backend/cpu/mod.rs", "embed/raws.rs"] {
        assert_eq!(found(file, f).len(), 1, "{file}");
    }
    assert_eq!(found("nn/a.rs", "fn f() {\n  println!(\"x\");\n  dbg!(1); }").len(), 2);
    assert_eq!(found("nn/a.rs", "fn print() { print(1); writeln!(f, \"println!()\"); }").len(), 0);
    let long = |n: usize| "// a comment\n\nfn f() {}\n".repeat(n);
    assert_eq!(found("nn/a.rs", &long(650)).len(), 0);
    assert_eq!(found("nn/a.rs", &long(651)).len(), 1);
    for file in ["nn/utils.rs", "nn/common.rs", "tensor/base.rs", "pass/helpers.rs"] {
        assert_eq!(found(file, "").len(), 1, "{file}");
    }
    assert_eq!(found("base/mod.rs", "").len(), 0);
}
