//! A replay is one launch: no kernel of its own, no memory, no waiting, and a copy only if something changed.

use stepgraph::{Device, Result};

use crate::measure::{Calls, Counter, Mode, WORKLOADS, Workload};
use crate::{device, turn};

fn workload(name: &str) -> &'static Workload {
    WORKLOADS.iter().find(|w| w.name == name).expect("a workload of this name")
}

/// What a replay may and may not do.
#[track_caller]
fn assert_one_launch(workload: &Workload, mode: Mode, calls: &Calls) {
    let count = |name: &str| calls.get(name).copied().unwrap_or(0);
    let what = format!("{} {}: {calls:?}", workload.name, mode.name());
    assert_eq!(count("cuGraphLaunch"), 1, "{what}");
    let copies = count("cuMemcpyHtoDAsync_v2");
    // The parameter block: one copy when a tensor from outside is another one.
    assert_eq!(copies, workload.changes as u64, "copies to the device; {what}");
    let rest = ["cuCtxSetCurrent", "cuEventQuery", "cuEventRecord", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2"];
    let more: Vec<_> = calls.iter().filter(|(name, _)| !rest.contains(&name.as_str())).collect();
    assert!(more.is_empty(), "more than one launch: {more:?}; {what}");
    assert!(count("cuEventQuery") <= copies && count("cuEventRecord") <= copies, "events are of copies; {what}");
}

/// In both modes; eagerly it takes many launches, so that the counters count.
fn replays(name: &str, device: &Device) -> Result<()> {
    let workload = workload(name);
    for mode in [Mode::Traced, Mode::Frozen] {
        assert_one_launch(workload, mode, &workload.calls(mode, device, Counter::Driver)?);
    }
    let eager = workload.calls(Mode::Eager, device, Counter::Driver)?;
    assert!(eager["cuLaunchKernel"] >= 50 && !eager.contains_key("cuGraphLaunch"), "{name} eager: {eager:?}");
    Ok(())
}

macro_rules! replays {
    ($($test:ident $name:literal,)*) => { $(
        #[test]
        fn $test() -> Result<()> {
            let Some(_turn) = turn() else { return Ok(()) };
            replays($name, &device())
        }
    )* };
}

replays! {
    digits_in_batches "digits",
    digits_one_batch "digits_one_batch",
    w3 "W3_chain50",
    w4 "W4_mlp_b32",
    w5 "W5_gpt",
}

/// stepgraph's own log of its calls counts what the driver counts.
#[test]
fn the_log_counts_alike() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let device = device();
    for mode in Mode::ALL {
        let workload = workload("digits");
        let (driver, log) =
            (workload.calls(mode, &device, Counter::Driver)?, workload.calls(mode, &device, Counter::Log)?);
        assert_eq!(driver, log, "{}", mode.name());
    }
    Ok(())
}
