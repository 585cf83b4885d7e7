//! Text tests: `tests/filetests/<pipeline>/*.ir`, each an input, a line `-->`, and what the pipeline makes of it.
//!
//! `STEPGRAPH_BLESS=1` rewrites what is expected; read the difference before you commit it.

use std::path::{Path, PathBuf};

use stepgraph::backend::Backend;
use stepgraph::backend::cpu::{self, CpuBackend, Isa};
use stepgraph::backend::cuda::render::{Place, Signature, render};
use stepgraph::base::{Error, Result};
use stepgraph::ir::Graph;
use stepgraph::kernel::{Kernel, parse::parse as parse_kernel, print::Named};
use stepgraph::pass;
use stepgraph::plan::{Plan, StepKind, check::check as check_plan};

/// Runs the pipeline called as the folder. Where it refuses the input, the error is the result.
fn run(pipeline: &str, input: &str) -> Option<Result<String>> {
    let graph = |f: fn(Graph) -> Result<String>| input.parse::<Graph>().and_then(f);
    Some(match pipeline {
        "print" => graph(|g| Ok(g.to_string())),
        "verify" => graph(|g| g.verify().map(|()| "ok".to_string())),
        "dot" => graph(|g| Ok(g.dot())),
        "kernel" => parse_kernel(input).map(|(name, k)| Named { name: &name, kernel: &k }.to_string()),
        // One pass that rewrites the graph.
        "simplify" | "cse" | "dce" => graph_by(pipeline, input),
        // What is computed together.
        "fuse" => compiled(input).map(|c| c.groups.text(&c.graph)),
        // The kernels, and where values lie.
        "memory" => compiled(input).map(|c| c.plan.plan().to_string()),
        // The host code of a launch, as text; the same on every machine of this architecture.
        "dispatch" => compiled(input).and_then(|c| Ok(portable_cpu()?.compile(c.plan)?.listing())),
        // A kernel as CUDA C++, with its launches.
        "cuda" => parse_kernel(input).and_then(|(name, k)| cuda(&name, k)),
        // A plan, and the checker's verdict.
        "check" => input.parse::<Plan>().map(|p| match check_plan(p) {
            Ok(_) => "ok".to_string(),
            Err(refused) => format!("{:?}\n{refused}", refused.fault),
        }),
        _ => return None,
    })
}

fn graph_by(pass: &str, input: &str) -> Result<String> {
    let graph: Graph = input.parse()?;
    let rewrite =
        pass::REWRITES.iter().find(|p| p.0 == pass).map(|p| p.1).ok_or_else(|| Error::bug(pass, "no such pass"))?;
    Ok(rewrite(&graph, &pass::Options::default(), &mut Vec::new())?.to_string())
}

fn compiled(input: &str) -> Result<pass::Compiled> {
    pass::compile(&input.parse()?, &pass::Options::default())
}

fn cuda(name: &str, kernel: Kernel) -> Result<String> {
    let n = kernel.args.len();
    let signature =
        Signature { args: vec![Place::Direct; n], params: Place::Block, guarded: vec![false; n], may_alias: false };
    let rendered = render(&StepKind::Kernel(kernel), name, &signature)?;
    let mut text = String::new();
    for s in &rendered.stages {
        text += &format!("// {} blocks of {} threads: {}\n", s.grid, s.threads, s.entry);
    }
    Ok(format!("// {} bytes of scratch\n{text}\n{}", rendered.scratch_bytes, rendered.source))
}

/// One thread and the portable instruction set: nothing depends on the machine.
fn portable_cpu() -> Result<std::sync::Arc<CpuBackend>> {
    CpuBackend::new(cpu::Options { threads: Some(1), isa: Some(Isa::Portable), ..cpu::Options::default() })
}

const MARK: &str = "-->";

/// One test file; gives the difference, if there is one.
fn check(pipeline: &str, path: &Path, bless: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (input, expected) = split(&text)?;
    let output = match run(pipeline, input) {
        Some(Ok(output)) => output,
        Some(Err(e)) => format!("error: {e}"),
        None => return Err(format!("no pipeline is called `{pipeline}`")),
    };
    let (output, expected) = (output.trim_end(), expected.trim_end());
    if output == expected {
        return Ok(());
    }
    if bless {
        let new = format!("{}\n{MARK}\n{output}\n", input.trim_end());
        return std::fs::write(path, new).map_err(|e| e.to_string());
    }
    Err(format!("expected:\n{expected}\n\ngot:\n{output}\n"))
}

/// The text before and after the line `-->`.
fn split(text: &str) -> Result<(&str, &str), String> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == MARK {
            return Ok((&text[..at], &text[at + line.len()..]));
        }
        at += line.len();
    }
    Err(format!("there is no line `{MARK}`"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut out: Vec<PathBuf> = read.map(|e| e.unwrap().path()).collect();
    out.sort();
    out
}

#[test]
fn text_files() {
    let bless = std::env::var("STEPGRAPH_BLESS").is_ok_and(|v| v == "1");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let (mut count, mut failed) = (0, Vec::new());
    for folder in entries(&root).into_iter().filter(|p| p.is_dir()) {
        let pipeline = folder.file_name().unwrap().to_string_lossy().into_owned();
        if pipeline == "dispatch" && !cfg!(all(target_arch = "x86_64", unix)) {
            println!("skipped: {pipeline}, machine code of x86-64");
            continue;
        }
        for file in entries(&folder) {
            assert!(file.extension().is_some_and(|e| e == "ir"), "{} is not a text test", file.display());
            count += 1;
            if let Err(detail) = check(&pipeline, &file, bless) {
                failed.push(format!("{}:\n{detail}", file.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(count > 0, "no text tests in {}", root.display());
    assert!(failed.is_empty(), "{} of {count} text tests failed:\n\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_wrong_expectation_fails() {
    let path = std::env::temp_dir().join(format!("stepgraph-filetest-{}.ir", std::process::id()));
    let verdict = |text: &str, bless| {
        std::fs::write(&path, text).unwrap();
        let verdict = check("print", &path, bless);
        (verdict.is_ok(), std::fs::read_to_string(&path).unwrap())
    };
    let right = "graph @g(%x: f32[2]) { return %x }\n-->\ngraph @g(%x0: f32[2]) {\n  return %x0\n}\n";
    let wrong = right.replace("%x0: f32[2]", "%x0: f32[3]");
    assert!(verdict(right, false).0);
    assert!(!verdict(&wrong, false).0);
    assert!(!verdict("graph @g() {}\n", false).0);
    assert!(!verdict("graph @g() {}\n-->\n", true).1.ends_with("-->\n"));
    assert_eq!(verdict(&wrong, true), (true, right.to_string()));
    std::fs::remove_file(&path).unwrap();
    assert!(run("no_such_pipeline", "").is_none());
}
