//! Rendered texts, compiled by g++ and compared with the reference interpreter bit for bit.

mod graphs;
mod kernels;
mod library;

use std::fmt::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::cuda::render::{Place, Rendered, Signature};
use crate::base::DType;

/// A rendered step with what it is launched on.
pub struct Case {
    pub rendered: Rendered,
    pub signature: Signature,
    pub params: Vec<u64>,
    /// Of each argument its bytes; of the place of argument k in argument j's memory `(k, j)`.
    pub buffers: Vec<Vec<u8>>,
    pub shared: Vec<(usize, usize)>,
    pub flag: u32,
    /// Bytes by which buffers are off a multiple of 64.
    pub shift: usize,
}

/// Runs cases; gives back each one's buffers and flag.
pub fn run(cases: &[Case]) -> Vec<(Vec<Vec<u8>>, u32)> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("stepgraph-render-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(unique);
    std::fs::create_dir_all(&dir).unwrap();
    let mut text = String::from(include_str!("threads.h"));
    let mut input = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        writeln!(text, "namespace n{i} {{\n{}}}", case.rendered.source).unwrap();
        writeln!(text, "{}", driver(i, case)).unwrap();
        case.buffers.iter().for_each(|b| input.extend(b));
    }
    writeln!(text, "int main(int, char** argv) {{").unwrap();
    writeln!(text, "std::vector<unsigned char> all({}); FILE* f = fopen(argv[1], \"rb\"); if (fread(all.data(), 1, all.size(), f) != all.size()) return 2; input = all.data(); output = fopen(argv[2], \"wb\");", input.len()).unwrap();
    for i in 0..cases.len() {
        writeln!(text, "case{i}();").unwrap();
    }
    text.push_str("fclose(output); return 0; }\n");
    let path = |name: &str| dir.join(name);
    std::fs::write(path("k.cpp"), text).unwrap();
    std::fs::write(path("in"), input).unwrap();
    let built = Command::new("g++")
        .args(["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-o"])
        .args([path("k"), path("k.cpp")])
        .output()
        .expect("g++");
    assert!(built.status.success(), "{}: {}", path("k.cpp").display(), String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(path("k")).args([path("in"), path("out")]).output().unwrap();
    assert!(
        ran.status.success(),
        "{}: {:?} {}",
        path("k.cpp").display(),
        ran.status,
        String::from_utf8_lossy(&ran.stdout)
    );
    let output = std::fs::read(path("out")).unwrap();
    let mut at = output.as_slice();
    let mut take = |n: usize| {
        let (head, tail) = at.split_at(n);
        at = tail;
        head.to_vec()
    };
    let results = cases
        .iter()
        .map(|case| {
            let buffers = case.buffers.iter().map(|b| take(b.len())).collect();
            let flag = take(4);
            (buffers, u32::from_ne_bytes([flag[0], flag[1], flag[2], flag[3]]))
        })
        .collect();
    if let Ok(keep) = std::env::var("STEPGRAPH_KEEP_CUDA") {
        for (i, case) in cases.iter().enumerate() {
            std::fs::create_dir_all(&keep).unwrap();
            let name = case.rendered.stages.first().map_or("none", |s| &s.entry);
            std::fs::write(format!("{keep}/{i}_{name}.cu"), &case.rendered.source).unwrap();
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    results
}

/// The C++ function that launches a case.
fn driver(i: usize, case: &Case) -> String {
    let mut out = format!("static void case{i}() {{ backwards = {};\n", i % 2);
    let mut block = Vec::new();
    let mut arguments = Vec::new();
    let address = |k: usize| {
        let owner = case.shared.iter().find(|s| s.0 == k).map_or(k, |s| s.1);
        format!("b{owner}.at()")
    };
    for (k, bytes) in case.buffers.iter().enumerate() {
        writeln!(out, "Buffer b{k}({}, {}, true);", bytes.len(), case.shift).unwrap();
        match case.signature.args[k] {
            Place::Direct => arguments.push(address(k)),
            Place::Block => {
                arguments.push(format!("{}u", block.len()));
                block.push(format!("(unsigned long long){}.p", address(k)));
            }
        }
    }
    for p in &case.params {
        match case.signature.params {
            Place::Direct => arguments.push(format!("{p}ull")),
            Place::Block => {
                arguments.push(format!("{}u", block.len()));
                block.push(format!("{p}ull"));
            }
        }
    }
    if case.signature.has_block(case.params.len()) {
        arguments.insert(0, "block".into());
    }
    writeln!(out, "unsigned flag = {};", case.flag).unwrap();
    writeln!(out, "unsigned long long block[] = {{{}}};", [block, vec!["0".to_string()]].concat().join(", ")).unwrap();
    if case.rendered.flag {
        arguments.push("&flag".into());
    }
    let scratch = case.rendered.scratch_bytes;
    writeln!(out, "Buffer scratch({scratch}, 0, false); memset(scratch.at(), 0xa5, {scratch});").unwrap();
    if scratch > 0 {
        arguments.push("scratch.at()".into());
    }
    for s in &case.rendered.stages {
        let synchronises = case.rendered.source.contains("sync");
        let list = arguments.join(", ");
        writeln!(out, "launch({}, {}, {synchronises}, [&] {{ n{i}::{}({list}); }});", s.grid, s.threads, s.entry)
            .unwrap();
    }
    for k in 0..case.buffers.len() {
        let owner = case.shared.iter().find(|s| s.0 == k).map_or(k, |s| s.1);
        writeln!(out, "b{k}.check(\"case {i}, argument {k}\"); b{owner}.write();").unwrap();
    }
    writeln!(out, "scratch.check(\"case {i}, scratch\"); fwrite(&flag, 4, 1, output);\n}}").unwrap();
    out
}

/// The first element at which two memories differ (NaN are all alike).
pub fn difference(dtype: DType, got: &[u8], want: &[u8]) -> Option<String> {
    let lanes = |bytes: &[u8]| bytes.chunks_exact(dtype.size()).map(|c| dtype.read(c)).collect::<Vec<_>>();
    let nan = |lane: u64| match dtype {
        DType::F64 => f64::from_bits(lane).is_nan(),
        d if d.is_float() => f32::from_bits(lane as u32).is_nan(),
        _ => false,
    };
    let (got, want) = (lanes(got), lanes(want));
    let at = got.iter().zip(&want).position(|(&g, &w)| g != w && !(nan(g) && nan(w)))?;
    Some(format!("element {at} is {:#x}, expected {:#x}", got[at], want[at]))
}
