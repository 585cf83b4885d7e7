//! Random training-like programs, run eagerly, traced and frozen: a user must see the same, bit for bit, at every call.
//! Each launch is also compared with the interpreter, calls move between threads, indices go out of range (the step then
//! writes nothing and says so), and memory runs out in the middle (the call made again is right).
//!
//! `STEPGRAPH_PROGRAMS` and `STEPGRAPH_SEED` say how many and from which number on (see `tests/soak.sh`).

#[path = "random_programs/check.rs"]
mod check;
#[path = "random_programs/generate.rs"]
mod generate;
#[path = "random_programs/ops.rs"]
mod ops;
#[path = "random_programs/program.rs"]
mod program;
#[path = "random_programs/regressions.rs"]
mod regressions;
#[path = "random_programs/world.rs"]
mod world;

use std::collections::HashSet;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use check::Figures;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn programs_are_the_same_eager_traced_and_frozen() {
    let (count, first) = (number("STEPGRAPH_PROGRAMS", 2000), number("STEPGRAPH_SEED", 0));
    let most = number("STEPGRAPH_FAILURES", 5) as usize;
    let used = Mutex::new(HashSet::new());
    let (next, total, failures) = (AtomicU64::new(0), Mutex::new(Figures::default()), Mutex::new(Vec::<String>::new()));
    let begun = Instant::now();
    // Panics of the library are failures of a program; of the workers, told by their shrunk programs.
    let hook = std::panic::take_hook();
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == main {
            hook(info);
        }
    }));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let k = next.fetch_add(1, Relaxed);
                    if k >= count || failures.lock().unwrap().len() >= most {
                        break;
                    }
                    if k > 0 && k % 10_000 == 0 {
                        eprintln!("{k} programs, {} fail, {:?}", failures.lock().unwrap().len(), begun.elapsed());
                    }
                    let p = generate::program(first + k, &check::device(0), &check::device(5));
                    used.lock().unwrap().extend(p.body.iter().filter_map(|l| match l.1 {
                        program::Stmt::Op { name, .. } => Some(name),
                        _ => None,
                    }));
                    match check::run(&p) {
                        Ok(figures) => *total.lock().unwrap() += figures,
                        Err(why) => report(first + k, p, &why, &failures),
                    }
                }
            });
        }
    });
    let (total, failures) = (total.into_inner().unwrap(), failures.into_inner().unwrap());
    println!("{total:?}, {} fail, {:?}", failures.len(), begun.elapsed());
    assert!(failures.is_empty(), "{} programs fail:\n{}", failures.len(), failures.join("\n"));
    let unused: Vec<&str> = ops::OPS.iter().map(|r| r.0).filter(|n| !used.lock().unwrap().contains(n)).collect();
    assert!(count < 2000 || unused.is_empty(), "no program uses {unused:?}");
    // The programs are worth something only if most calls are replays, and some steps freeze.
    assert!(count < 500 || (total.replayed > total.recorded && total.launches > total.calls / 3), "{total:?}");
    assert!(count < 500 || total.frozen > total.programs / 20, "{total:?}");
    assert!(count < 500 || (total.flagged > count / 20 && total.starved > count / 50), "{total:?}");
}

fn report(seed: u64, p: program::Program, first: &str, failures: &Mutex<Vec<String>>) {
    let small = check::shrink(p);
    let why = check::run(&small).err().unwrap_or_else(|| format!("not when it is run again; at first: {first}"));
    let text = format!("// Program {seed}: {}\n{small}\n", why.replace('\n', "\n// "));
    if let Ok(path) = std::env::var("STEPGRAPH_FAILED")
        && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{text}");
    }
    failures.lock().unwrap().push(text);
}
