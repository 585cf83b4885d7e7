//! Every public item of the interface has an example in its documentation (which `cargo test --doc` runs).
//!
//! The interface is what a program is written with: the modules of [`INTERFACE`]. The modules below it are open for reading
//! and testing, and described by their module's text; they are listed in [`BELOW`], each with the reason, and a new
//! file that is in neither list fails the test.

use std::path::{Path, PathBuf};

/// Files and folders whose public items need examples.
const INTERFACE: [&str; 10] = [
    "base/dtype.rs",
    "base/error.rs",
    "base/scalar.rs",
    "base/shape.rs",
    "checkpoint",
    "diag",
    "jit.rs",
    "nn",
    "optim",
    "tensor",
];

/// What is not part of it, and why.
const BELOW: [(&str, &str); 16] = [
    ("lib.rs", "the tour: re-exports"),
    ("base/config.rs", "the one reader of environment variables"),
    ("base/host.rs", "host values between tests, interpreter and reads"),
    ("base/layout.rs", "strides: how backends see memory"),
    ("base/location.rs", "places in the user's program: used by the library's own methods"),
    ("base/mod.rs", "re-exports, and the type of a graph's value"),
    ("base/text.rs", "the parser of text forms"),
    ("kernel", "the IR of one fused kernel"),
    ("op", "what an operation is: one row or file each"),
    ("ir", "the graph of a segment"),
    ("plan", "plans and their checker"),
    ("interp", "the reference evaluator"),
    ("pass", "the passes"),
    ("backend", "what runs plans"),
    ("trace", "private"),
    ("embed", "reserved"),
];

/// A public item without an example.
#[derive(Debug)]
struct Missing {
    file: String,
    line: usize,
    item: String,
}

/// The public items of a file without an example, and how many have one. A text scan: an item's documentation is what
/// stands before it; methods count when their type is public (`types`); what a macro makes counts where the macro is
/// given its documentation and name.
fn scan(file: &str, source: &str, types: &[String]) -> (Vec<Missing>, usize) {
    let (mut missing, mut found) = (Vec::new(), 0);
    let (mut example, mut documented, mut owner, mut list) = (false, false, None::<String>, false);
    for (i, line) in source.lines().enumerate() {
        let text = line.trim();
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        if let Some(doc) = text.strip_prefix("///") {
            example |= doc.trim_start().starts_with("```");
            documented = true;
            continue;
        }
        if text.starts_with("#[") || text.starts_with("//") {
            example |= text.starts_with("#[doc = example!(");
            continue;
        }
        if let Some(rest) = text.strip_prefix("impl")
            && text.ends_with('{')
        {
            owner = Some(implemented(rest));
        }
        let other = ["macro_rules", "thread_local"].iter().any(|m| line.starts_with(m));
        list |= line.ends_with("! {") && !line.starts_with(' ') && !other;
        if line.starts_with('}') {
            (owner, list) = (None, false);
        }
        let indented = line.starts_with("    ");
        let first = text.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|w| !w.is_empty());
        let made = list && documented && line.len() == text.len() + 4;
        let item = declared(text).or(first.filter(|_| made)).filter(|name| !name.starts_with('$'));
        let private = |o: &String| !o.starts_with('$') && (!types.contains(o) || declares_privately(source, o));
        if let Some(item) = item.filter(|_| !(indented && owner.as_ref().is_some_and(private))) {
            if example {
                found += 1;
            } else {
                missing.push(Missing { file: file.to_string(), line: i + 1, item: item.to_string() });
            }
        }
        (example, documented) = (false, false);
    }
    (missing, found)
}

/// Whether a file has a type of this name that is not public, whatever other files have.
fn declares_privately(source: &str, name: &str) -> bool {
    let kinds = ["struct ", "enum ", "trait "];
    source.lines().any(|line| {
        let text = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let rest = kinds.iter().find_map(|k| text.strip_prefix(k));
        rest.is_some_and(|r| r.starts_with(name) && !r[name.len()..].starts_with(|c: char| c.is_alphanumeric()))
    })
}

/// The type that an `impl` is for: what follows `impl`, without generics and trait.
fn implemented(rest: &str) -> String {
    let target = rest.rsplit(" for ").next().unwrap_or(rest);
    let target = if rest.contains(" for ") { target } else { skip_generics(rest.trim_start()) };
    target.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '$').collect()
}

/// What follows a leading `<…>`.
fn skip_generics(text: &str) -> &str {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // The arrow of a closure's type is no bracket.
            '>' if !text[..i].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if i == 0 { text } else { &text[i + 1..] };
        }
    }
    text
}

/// The name of the public item that a line declares.
fn declared(text: &str) -> Option<&str> {
    let mut words = text.strip_prefix("pub ")?.split_whitespace().filter(|w| !matches!(*w, "unsafe" | "async"));
    let mut kind = words.next()?;
    let mut name = words.next()?;
    if kind == "const" && name == "fn" {
        (kind, name) = ("fn", words.next()?);
    }
    let known = ["fn", "struct", "enum", "trait", "type", "const", "static"].contains(&kind);
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next()?;
    known.then_some(name)
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()) {
        if entry.is_dir() {
            files(&entry, out);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            out.push(entry);
        }
    }
}

#[test]
fn every_public_item_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&root, &mut paths);
    paths.sort();
    let name = |p: &Path| p.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
    let within = |file: &str, place: &str| file == place || file.starts_with(&format!("{place}/"));
    let sources: Vec<(String, String)> =
        paths.iter().map(|p| (name(p), std::fs::read_to_string(p).expect("a source"))).collect();
    let types: Vec<String> = sources
        .iter()
        .flat_map(|(_, s)| s.lines())
        .filter_map(|l| {
            let text = l.trim();
            let is_type = ["pub struct ", "pub enum ", "pub trait "].iter().any(|k| text.starts_with(k));
            declared(text).filter(|_| is_type).map(str::to_string)
        })
        .collect();
    let (mut missing, mut found) = (Vec::new(), 0);
    for (file, source) in &sources {
        let listed = BELOW.iter().any(|(place, _)| within(file, place));
        if INTERFACE.iter().any(|place| within(file, place)) {
            assert!(!listed, "{file} is listed twice");
            let (m, n) = scan(file, source, &types);
            missing.extend(m);
            found += n;
        } else {
            assert!(listed, "{file}: put it into INTERFACE, or into BELOW with a reason");
        }
    }
    for (place, why) in BELOW {
        println!("no examples asked for in {place}: {why}");
    }
    let lines: Vec<String> = missing.iter().map(|m| format!("src/{}:{}: {}", m.file, m.line, m.item)).collect();
    assert!(lines.is_empty(), "public items without an example:\n{}", lines.join("\n"));
    assert!(found > 500, "{found} items with an example");
}

/// The scan sees what it has to see.
#[test]
fn the_scan() {
    let source = "\
/// Good.
///
/// ```
/// ```
#[derive(Debug)]
pub struct Good;
/// Bad.
pub struct Bad;
impl<'a, R, F: FnMut() -> Result<R>> Good<F> {
    /// Bad.
    pub const fn method(&self) {}
    /// ```
    /// ```
    pub fn fine(&self) {}
    fn private(&self) {}
}
impl Hidden {
    pub fn of_a_private_type() {}
}
unary_methods! {
    /// Bad.
    neg = arith::NEG;
    /// Good.
    ///
    /// ```
    /// ```
    abs = arith::ABS;
}
macro_rules! made {
    ($name:ident) => {
        pub struct $name;
    };
}
enum Good2 {}
impl Good2 {
    pub fn of_a_type_that_is_public_elsewhere() {}
}
pub(crate) fn inner() {}
#[cfg(test)]
pub fn tested() {}
";
    let (missing, found) = scan("x.rs", source, &["Good".into(), "Bad".into(), "Good2".into()]);
    let names: Vec<&str> = missing.iter().map(|m| m.item.as_str()).collect();
    assert_eq!((names, found), (vec!["Bad", "method", "neg"], 3));
}
