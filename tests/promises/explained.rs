//! What `Step::explain` tells, and what is streamed to the log, each with the user's line.

use std::sync::{Arc, Mutex};

use stepgraph::{Device, Result, Tensor, Var, jit};

use crate::harness::{filled, scalar, vector};

/// The lines of [`work`].
#[derive(Default)]
struct Lines {
    count: u32,
    product: u32,
    read: u32,
    result: u32,
    write: u32,
    other: u32,
}

/// Two segments, a `Var` written in each; in other calls a branch at the end.
fn work(x: &Tensor, w: &Var, n: &Var, k: usize, at: &mut Lines) -> Result<Tensor> {
    (at.count, _) = (line!(), n.set(&(n.get() + 1.0)?)?);
    let y;
    (at.product, y) = (line!(), (x * &w.get())?);
    (at.read, _) = (line!(), y.sum(())?.item::<f32>()?);
    let z;
    (at.result, z) = (line!(), (&y + k as f64)?.exp()?);
    (at.write, _) = (line!(), w.set(&(w.get() * 0.5)?)?);
    if k % 4 == 3 {
        let last;
        (at.other, last) = (line!(), z.sum(()));
        return last;
    }
    Ok(z)
}

fn run(device: &Device) -> (jit::Step, Lines) {
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let n = Var::state(&scalar(0.0, device)).expect("a Var");
    let x = filled(&[3, 2], 1, device);
    let (mut step, mut at) = (jit::Step::new(), Lines::default());
    for k in 0..9 {
        step.run(|| work(&x, &w, &n, k, &mut at)).expect("a call");
    }
    (step, at)
}

/// Paths, guards, segments, survivors, decisions, updates in place or not: each with its line.
pub fn a_step_is_explained(device: &Device) {
    let (step, at) = run(device);
    let told = step.explain();
    let place = |line: u32| format!("{}:{line}", file!());
    let any = |list: &[String], parts: &[&str]| {
        let found = list.iter().any(|l| parts.iter().all(|p| l.contains(p)));
        assert!(found, "{parts:?} in {list:?}\n{told}");
    };
    let [root, branch] = &told.paths[..] else { panic!("two paths: {told}") };
    assert_eq!((root.parent, branch.parent), (None, Some(root.id)));
    assert!(branch.base > 0 && branch.events > 0);
    any(&root.guards, &["tensor f32[3,2]", &place(at.product)]);
    any(&root.guards, &["Var f32[2]", &place(at.product)]);
    any(&root.guards, &["Var f32[]", "not trained", &place(at.count)]);
    let [first, last] = &root.segments[..] else { panic!("two segments: {told}") };
    assert!(first.ends_at.contains(&place(at.read)), "{told}");
    assert_eq!(last.ends_at, "the closure's end");
    // The product is read later, the sum by the host.
    any(&first.plans[0].survivors, &["f32[3,2]", &place(at.product)]);
    any(&first.plans[0].survivors, &["f32[]", &place(at.read)]);
    any(&first.plans[0].writes, &["new memory", "only the last segment", &place(at.count)]);
    any(&last.plans[0].survivors, &["f32[3,2]", &place(at.result)]);
    any(&last.plans[0].writes, &["in place", &place(at.write)]);
    any(&last.plans[0].kernels, &[&place(at.result)]);
    any(&last.plans[0].decisions, &["fuse", &place(at.result)]);
    let other = &branch.segments[0].plans[0];
    any(&other.survivors, &["f32[]", &place(at.other)]);
    // And all of it as text.
    let text = told.to_string();
    for line in [at.count, at.product, at.read, at.result, at.write, at.other] {
        assert!(text.contains(&place(line)), "{text}");
    }
    // Without leave to write in place, that is the reason.
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let mut step = jit::Step::with_options(jit::Options::new().in_place(false));
    for _ in 0..3 {
        step.run(|| w.set(&(w.get() * 0.5)?)).expect("a call");
    }
    any(&step.explain().paths[0].segments[0].plans[0].writes, &["new memory, as the options say", file!()]);
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a lock").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// As the examples install it: compilations, decisions and divergences are logged as they happen, with their lines.
pub fn decisions_are_streamed(device: &Device) {
    // With a single dispatcher `tracing` asks whichever thread comes first to an event, and here the others have none.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let out = Buffer::default();
    let writer = out.clone();
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("stepgraph=debug"))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let (_, at) = tracing::subscriber::with_default(log, || run(device));
    let text = String::from_utf8(out.0.lock().expect("a lock").clone()).expect("text");
    let line = |parts: &[&str]| {
        assert!(text.lines().any(|l| parts.iter().all(|p| l.contains(p))), "{parts:?} in\n{text}");
    };
    line(&["INFO", "compiled a segment"]);
    line(&["DEBUG", "fuse", &format!("{}:{}", file!(), at.result)]);
    line(&["DEBUG", "recorded: the closure's end", &format!("{}:{}", file!(), at.other)]);
}

scenarios!(a_step_is_explained, decisions_are_streamed);
