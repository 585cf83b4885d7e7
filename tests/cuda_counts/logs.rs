//! Logs of driver calls: one made here, and any made on a GPU (`gpu_check --record`), tell what the simulated driver does.

use std::path::Path;

use crate::record::{self, Log};
use crate::turn;

#[test]
fn a_log_is_reproduced() {
    let Some(_turn) = turn() else { return };
    let make = || record::make().unwrap_or_else(|e| panic!("{e}"));
    let log = make();
    let text = log.text("made here");
    assert_eq!(Log::parse(&text).unwrap(), log, "text and back");
    log.same(&make()).unwrap_or_else(|e| panic!("a second run: {e}"));
    // What cannot be the same is seen: a call more, a call less, another status.
    for (from, to) in [
        ("cuGraphCreate 0\n", ""),
        ("cuGraphCreate 0\n", "cuGraphCreate 0\ncuGraphCreate 0\n"),
        ("cuMemAllocAsync 2\n", "cuMemAllocAsync 1\n"),
    ] {
        assert!(text.contains(from), "{from} is in the log:\n{text}");
        let other = Log::parse(&text.replacen(from, to, 1)).unwrap();
        assert!(log.same(&other).is_err(), "{from:?} became {to:?}");
    }
    // What depends on the device's speed and on libraries' workspace does not count.
    let faster = text.lines().filter(|l| !l.starts_with("cuEventSynchronize") && *l != "cuMemAllocAsync 0");
    log.same(&Log::parse(&faster.collect::<Vec<_>>().join("\n")).unwrap()).unwrap();
}

#[test]
fn logs_of_gpus_are_reproduced() {
    let Some(_turn) = turn() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results");
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path());
    let logs: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    if logs.is_empty() {
        println!("NOT RUN: no log of a GPU is in benches/results; gpu_check --record makes one");
        return;
    }
    let here = record::make().unwrap_or_else(|e| panic!("{e}"));
    for file in logs {
        let text = std::fs::read_to_string(&file).unwrap();
        let log = Log::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        log.same(&here).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}
