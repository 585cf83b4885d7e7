//! Every call of the driver, of NVRTC and of cuBLASLt fails once, at every place where it is made.

use std::collections::BTreeMap;

use stepgraph::base::HostValue;
use stepgraph::{Device, Error, ErrorKind, Result, Tensor};

use crate::model::Model;
use crate::{device, open, release, retain, turn};

const CALLS: usize = 4;

/// What a run without faults gives: losses, and the state before the first and after each call.
struct Reference {
    losses: Vec<HostValue>,
    states: Vec<Vec<HostValue>>,
}

/// Calls whose failure nobody is told of: what they give back is lost, and there is nothing to do about it.
fn silent(call: &str) -> bool {
    call.contains("Destroy")
        || matches!(
            call,
            "cuMemFreeAsync" | "cuMemFreeHost" | "cuModuleUnload" | "cuDevicePrimaryCtxRelease_v2" | "cuMemPoolTrimTo"
        )
}

/// Operations one after the other; one that fails is tried once more, and its error kept.
#[derive(Default)]
struct Attempts {
    told: Vec<Error>,
}

impl Attempts {
    fn of<T>(&mut self, what: &str, mut f: impl FnMut() -> Result<T>) -> T {
        f().or_else(|e| {
            self.told.push(e);
            f()
        })
        .unwrap_or_else(|e| panic!("{what} fails again, after {:?}: {e}", self.told))
    }
}

/// The whole life of a device; with no more than one fault on the way. The errors that were seen.
fn live(reference: Option<&Reference>) -> (Reference, Vec<Error>) {
    let mut attempts = Attempts::default();
    let mut seen = Reference { losses: Vec::new(), states: Vec::new() };
    let d = attempts.of("opening", || open(0, None));
    let mut model = attempts.of("setting up", || Model::new(&d));
    seen.states.push(attempts.of("reading", || model.state()));
    for k in 0..CALLS {
        let loss = match model.call(k) {
            Ok(loss) => Some(loss),
            Err(e) => {
                attempts.told.push(e);
                recover(&mut model, k, reference.expect("a reference"), &d)
            }
        };
        let expected = reference.map(|r| &r.losses[k]);
        seen.losses.push(match loss {
            Some(loss) => attempts.of("reading a loss", || loss.to_host()),
            None => expected.expect("a reference").clone(),
        });
        if k + 1 < CALLS {
            // A read of everything would hide what a later call finds first.
            seen.states.push(reference.map_or_else(|| model.state().expect("no fault"), |r| r.states[k + 1].clone()));
        }
    }
    seen.states.push(attempts.of("reading", || model.state()));
    attempts.of("waiting", || d.synchronize());
    drop(model);
    d.trim();
    (seen, attempts.told)
}

/// After call `k` failed: it wrote nothing or everything, but the recorded one, whose ops ran one by one. Called again
/// if it must be; the loss, unless everything was written.
fn recover(model: &mut Model, k: usize, reference: &Reference, device: &Device) -> Option<Tensor> {
    let now = model.state().expect("the state can be read");
    let (before, after) = (&reference.states[k], &reference.states[k + 1]);
    if now == *after {
        return None;
    }
    if k == 0 {
        for ((var, now), (old, new)) in model.vars().iter().zip(&now).zip(before.iter().zip(after)) {
            assert!(now == old || now == new, "half a write");
            var.set(&Tensor::from_host(old, device).expect("an upload")).expect("a write");
        }
    } else {
        assert!(now == *before, "call {k}, a replay, wrote a part");
    }
    Some(model.call(k).expect("the second attempt"))
}

/// Up to ten of `1..=n`: all, or the first and last ones and some in between.
fn places(n: u64) -> Vec<u64> {
    if n <= 10 {
        return (1..=n).collect();
    }
    let mut out: Vec<u64> = (1..=3).chain((1..=4).map(|i| 3 + i * (n - 5) / 5)).chain([n - 1, n]).collect();
    out.dedup();
    out
}

/// A code that the call may well give, and that does not break the device.
fn recoverable(call: &str) -> i32 {
    match call {
        "cuMemAllocAsync" | "cuMemHostAlloc" => 2,
        c if c.starts_with("nvrtc") => 11,
        c if c.starts_with("cublas") => 14,
        "cuGraphLaunch" | "cuLaunchKernel" | "cuModuleLoadData" => 701,
        "cuEventRecord" | "cuStreamEndCapture" => 400,
        _ => 999,
    }
}

fn counted() -> (Reference, BTreeMap<String, u64>) {
    let (reference, told) = live(None);
    assert!(told.is_empty(), "{told:?}");
    cuda_sim::reset_counts();
    live(Some(&reference));
    (reference, cuda_sim::counts())
}

fn left(before: &[String]) -> Vec<String> {
    cuda_sim::outstanding().into_iter().filter(|o| !before.contains(o)).collect()
}

#[test]
fn a_call_that_fails_once_is_told_and_the_next_attempt_is_right() {
    let Some(_turn) = turn() else { return };
    // Tests before may have lost a device, and with it what lived there.
    let before = cuda_sim::outstanding();
    let (reference, counts) = counted();
    assert_eq!(left(&before), [""; 0], "without a fault");
    // What training without tracing gives.
    let d = device();
    let mut model = Model::new(&d).unwrap();
    for k in 0..CALLS {
        assert_eq!(model.eager(k).unwrap().to_host().unwrap(), reference.losses[k]);
    }
    assert_eq!(model.state().unwrap(), reference.states[CALLS]);
    drop((model, d));
    let mut wrong = Vec::new();
    let mut runs = 0;
    for (call, &n) in &counts {
        for nth in places(n) {
            let before = cuda_sim::outstanding();
            cuda_sim::reset_counts();
            cuda_sim::fail(call, nth, recoverable(call));
            let (seen, told) = match std::panic::catch_unwind(|| live(Some(&reference))) {
                Ok(done) => done,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    wrong.push(format!("{call}, {nth} of {n}: a panic: {}", text.unwrap_or_default()));
                    cuda_sim::clear_failures();
                    continue;
                }
            };
            runs += 1;
            let happened = cuda_sim::counts().get(call).is_some_and(|&c| c >= nth);
            cuda_sim::clear_failures();
            let mut complain = |what: String| wrong.push(format!("{call}, {nth} of {n}: {what}"));
            if !happened {
                complain("the fault was never met".to_string());
            }
            if seen.losses != reference.losses || seen.states != reference.states {
                complain("other numbers".to_string());
            }
            // Out of memory: the library has given back what it kept, and tried again.
            let untold = silent(call) || call == "cuMemAllocAsync";
            match &told[..] {
                [] if untold => {}
                [] => {
                    // Where objects are given back, and in `trim`, nobody is there to be told.
                    if !["cuCtxSetCurrent", "cuStreamSynchronize", "cuDeviceGetDefaultMemPool"].contains(&call.as_str())
                    {
                        complain("nobody was told".to_string());
                    }
                }
                [e] => {
                    let typed = matches!(
                        e.kind(),
                        ErrorKind::Driver { .. } | ErrorKind::Unavailable { .. } | ErrorKind::Failed { .. }
                    );
                    if !typed || !e.to_string().contains(call.as_str()) {
                        complain(format!("told as: {e}"));
                    }
                }
                more => complain(format!("told {} times: {more:?}", more.len())),
            }
            let lost = left(&before);
            if call == "cuDevicePrimaryCtxRelease_v2" {
                release();
            } else if lost.len() > silent(call) as usize {
                complain(format!("left behind: {lost:?}"));
            }
        }
    }
    println!("{runs} runs with a fault");
    assert!(wrong.is_empty(), "{} of {runs}:\n{}", wrong.len(), wrong.join("\n"));
}

/// How far a run came.
#[derive(Default)]
struct World {
    device: Option<Device>,
    model: Option<Model>,
}

fn straight(world: &mut World) -> Result<()> {
    let d = world.device.insert(open(0, None)?).clone();
    let model = world.model.insert(Model::new(&d)?);
    for k in 0..3 {
        model.call(k)?.to_host()?;
    }
    model.state()?;
    d.synchronize()
}

fn is_lost(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::DeviceLost { .. } => true,
        ErrorKind::Failed { cause, .. } => cause.contains("the device is lost"),
        _ => false,
    }
}

#[test]
fn a_device_that_is_lost_says_so_from_then_on() {
    let Some(_turn) = turn() else { return };
    cuda_sim::reset_counts();
    let mut world = World::default();
    straight(&mut world).unwrap();
    let counts = cuda_sim::counts();
    drop(world);
    let mut wrong = Vec::new();
    let mut runs = 0;
    let drivers = counts.iter().filter(|(c, _)| !c.starts_with("nvrtc") && !c.starts_with("cublas"));
    for (call, &n) in drivers.filter(|(c, _)| *c != "cuDevicePrimaryCtxRelease_v2") {
        let mut all = places(n);
        if all.len() > 5 {
            all = vec![all[0], all[1], all[all.len() / 2], all[all.len() - 2], all[all.len() - 1]];
        }
        for (nth, code) in all.into_iter().zip([700, 719].into_iter().cycle()) {
            let before = cuda_sim::outstanding();
            retain();
            cuda_sim::fail(call, nth, code);
            let checked = std::panic::catch_unwind(|| {
                let mut world = World::default();
                let ended = straight(&mut world);
                after_loss(call, ended, &mut world)
            });
            runs += 1;
            cuda_sim::clear_failures();
            match checked {
                Ok(Ok(())) => {}
                Ok(Err(what)) => wrong.push(format!("{call}, {nth} of {n}, {code}: {what}")),
                Err(_) => wrong.push(format!("{call}, {nth} of {n}, {code}: a panic")),
            }
            cuda_sim::reset_device();
            release();
            // Host memory belongs to no context here, and cannot be freed while it is broken.
            let lost: Vec<String> = left(&before).into_iter().filter(|o| !o.starts_with("host memory")).collect();
            if lost.len() > silent(call) as usize {
                wrong.push(format!("{call}, {nth} of {n}, {code}: left behind: {lost:?}"));
            }
        }
    }
    println!("{runs} runs with a device that is lost");
    assert!(wrong.is_empty(), "{} of {runs}:\n{}", wrong.len(), wrong.join("\n"));
    // And the next device is a good one.
    assert_eq!(Tensor::from_slice(&[1.5f32], [1], &device()).unwrap().to_vec::<f32>().unwrap(), [1.5]);
}

/// What is wrong with a run that ended so.
fn after_loss(call: &str, ended: Result<()>, world: &mut World) -> Result<(), String> {
    match (ended, &world.device) {
        (Ok(()), _) if silent(call) || call == "cuCtxSetCurrent" => return Ok(()),
        (Ok(()), _) => return Err("nobody was told".to_string()),
        (Err(e), None) => {
            let told = is_lost(&e) || matches!(e.kind(), ErrorKind::Unavailable { .. });
            return if told && e.to_string().contains(call) { Ok(()) } else { Err(format!("opening tells: {e}")) };
        }
        (Err(e), _) if !is_lost(&e) => return Err(format!("told as: {e}")),
        // What a silent call broke is found by the next one.
        (Err(e), _) if !silent(call) && !e.to_string().contains(call) => return Err(format!("told as: {e}")),
        (Err(_), Some(_)) => {}
    }
    let d = world.device.clone().ok_or("no device")?;
    let mut later: Vec<(&str, Option<Error>)> =
        vec![("upload", Tensor::from_slice(&[1f32; 3], [3], &d).err()), ("synchronize", d.synchronize().err())];
    if let Some(model) = &mut world.model {
        later.push(("read", model.w.get().to_host().err()));
        later.push(("eager op", model.w.get().exp().err()));
        later.push(("step", model.call(0).err()));
        later.push(("the step again", model.call(1).err()));
    }
    d.trim();
    let _ = d.memory_report();
    for (what, e) in later {
        match e {
            None => return Err(format!("{what} succeeds later")),
            Some(e) if !is_lost(&e) => return Err(format!("{what} tells later: {e}")),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Memory runs out, and giving back what is kept fails too: told, and what was kept is not forgotten.
#[test]
fn giving_back_fails_too() {
    let Some(_turn) = turn() else { return };
    for (call, code) in [("cuMemFreeAsync", 1), ("cuStreamSynchronize", 999), ("cuMemPoolTrimTo", 1)] {
        let before = cuda_sim::outstanding();
        let d = device();
        drop(Tensor::from_slice(&[1f32; 3000], [3000], &d).unwrap());
        cuda_sim::fail("cuMemAllocAsync", 1, 2);
        cuda_sim::fail(call, 1, code);
        let e = Tensor::from_slice(&[2f32; 5000], [5000], &d).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Driver { call: c, .. } if c == call), "{e}");
        let again = Tensor::from_slice(&[2f32; 5000], [5000], &d).unwrap();
        assert_eq!(again.to_vec::<f32>().unwrap(), [2f32; 5000]);
        drop((again, d));
        assert_eq!(left(&before), [""; 0], "{call}");
    }
}

/// A bad index, and then the call fails that would have noted it: nobody else is blamed for it.
#[test]
fn a_failure_after_a_bad_index_blames_nobody() {
    let Some(_turn) = turn() else { return };
    let d = device();
    let table = Tensor::from_slice(&[1f32, 2.0, 3.0], [3], &d).unwrap();
    let index = |i: i64| Tensor::from_slice(&[0, i], [2], &d).unwrap();
    let (good, bad) = (index(2), index(5));
    assert_eq!(table.index_select(0, &good).unwrap().to_vec::<f32>().unwrap(), [1.0, 3.0]);
    // The op's kernel, and the one that notes.
    cuda_sim::fail("cuLaunchKernel", 2, 701);
    let e = table.index_select(0, &bad).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Driver { call, .. } if call == "cuLaunchKernel"), "{e}");
    assert_eq!(table.index_select(0, &good).unwrap().to_vec::<f32>().unwrap(), [1.0, 3.0]);
    d.synchronize().unwrap();
    // It still tells of bad ones.
    let rows = table.index_select(0, &bad).unwrap();
    assert!(matches!(rows.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Index { .. }));
}
