use std::cell::Cell;
use std::sync::{Arc, Mutex};

use super::*;
use crate::backend::{InputBinding, Memory, Storage};
use crate::base::{DType, ErrorKind, Shape, Type};
use crate::kernel::{Access, Builder, Dynamic, Ty};
use crate::plan::{OutputStorage, Plan, PlanInput, PlanOutput, Slot, SlotKind, Step, StepKind};

/// A small generator of pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// What a call saw: its number, the slots, the parameters.
type Seen = (usize, Vec<usize>, Vec<u64>);

/// A call that writes down what it is given.
struct Recorder {
    number: usize,
    slots: usize,
    params: usize,
    flag: u32,
    log: Arc<Mutex<Vec<Seen>>>,
}

unsafe extern "C" fn record(recorder: *const Recorder, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the descriptor belongs to this entry, and it knows the lengths of the tables.
    unsafe {
        let r = &*recorder;
        let slots = std::slice::from_raw_parts(slots, r.slots).iter().map(|s| s.addr()).collect();
        let params = std::slice::from_raw_parts(params, r.params).to_vec();
        r.log.lock().unwrap().push((r.number, slots, params));
        r.flag
    }
}

/// Another symbol, so that there are several callees.
unsafe extern "C" fn record_too(recorder: *const Recorder, slots: *const *mut u8, params: *const u64) -> u32 {
    // SAFETY: the same.
    unsafe { record(recorder, slots, params) }
}

/// Numbers addresses instead of having memory.
struct Paper {
    made: Cell<usize>,
    limit: usize,
}

// SAFETY: the calls look at the tables only, not at what the addresses say.
unsafe impl Host for Paper {
    type Lease<'a> = NoArena;

    fn address(&self, buffer: &Buffer) -> Option<*mut u8> {
        Some(Arc::as_ptr(buffer).cast_mut().cast())
    }

    fn alloc(&self, bytes: usize) -> Result<(Buffer, *mut u8)> {
        self.made.set(self.made.get() + 1);
        if self.made.get() > self.limit {
            return Err(Error::new(ErrorKind::OutOfMemory {
                need: bytes,
                live: 0,
                limit: Some(0),
                free: None,
                holders: Vec::new(),
            }));
        }
        let address = std::ptr::without_provenance_mut(self.made.get() * 64);
        Ok((Arc::new(Storage::new(Memory::Null, bytes)), address))
    }

    fn arena(&self, _bytes: usize) -> Result<NoArena> {
        Ok(NoArena)
    }
}

struct NoArena;

impl Lease for NoArena {
    fn start(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(1 << 40)
    }
}

fn random_type(r: &mut Random) -> (Type, Layout) {
    let dims: Vec<usize> = (0..r.below(4)).map(|_| [0, 1, 2, 3, 5_000_000_000][r.below(5)]).collect();
    let dims = if dims.iter().filter(|&&d| d > 3).count() > 1 { vec![2] } else { dims };
    let ty = Type::new(DType::ALL[r.below(3)], Shape::new(&dims).unwrap());
    let mut layout = Layout::contiguous(ty.shape);
    if r.below(2) == 0 {
        layout.offset = r.below(3) as isize;
        layout.strides.iter_mut().take(dims.len()).for_each(|s| *s += r.below(2) as isize);
    }
    (ty, layout)
}

/// A step that may raise the flag and whose kernel moves an access by parameter 0 of the plan.
fn gathering_kernel() -> StepKind {
    let mut k = Builder::new(&[2], &[false]);
    let (x, t, out) = (k.input(DType::F32, 10), k.input(DType::I64, 2), k.output(DType::F32, 2));
    let start = k.add_param(Ty::I64);
    let mut access = Access::strided(x, 0, &[0]);
    access.dynamic.push(Dynamic { param: start, stride: 1, max: 7 });
    let at = k.load(Access::row_major(t, &[2]));
    let v = k.gather(access, at, 1, 3);
    k.store(Access::row_major(out, &[2]), v);
    StepKind::Kernel(k.finish().unwrap())
}

fn plain_kernel() -> StepKind {
    let mut k = Builder::new(&[1], &[false]);
    let out = k.output(DType::F32, 1);
    let one = k.f32(1.0);
    k.store(Access::row_major(out, &[1]), one);
    StepKind::Kernel(k.finish().unwrap())
}

fn random_plan(r: &mut Random) -> Plan {
    let mut plan = Plan { name: "random".into(), params: vec![DType::I64; 1 + r.below(3)], ..Plan::default() };
    for i in 0..r.below(6) {
        let (ty, layout) = random_type(r);
        plan.inputs.push(PlanInput { ty, layout, bytes: r.below(100), var: false });
        plan.slots.push(Slot { kind: SlotKind::Input(i as u32), bytes: 0 });
    }
    let mut free: Vec<u32> = (0..plan.inputs.len() as u32).collect();
    for o in 0..r.below(5) {
        let (ty, layout) = random_type(r);
        let in_place = if r.below(2) == 0 { free.pop() } else { None };
        let bytes = in_place.map_or(8, |i| plan.inputs[i as usize].bytes);
        let storage = if r.below(5) == 0 && o > 0 { OutputStorage::Output(0) } else { OutputStorage::Own { bytes } };
        plan.outputs.push(PlanOutput { ty, storage, layout, in_place });
        plan.slots.push(Slot { kind: SlotKind::Output(o as u32), bytes: 0 });
    }
    if let Some(first) = plan.outputs.first_mut() {
        first.storage = OutputStorage::Own { bytes: 0 };
    }
    plan.slots.retain(|s| match s.kind {
        SlotKind::Output(o) => matches!(plan.outputs[o as usize].storage, OutputStorage::Own { .. }),
        _ => true,
    });
    for _ in 0..r.below(4) {
        let offset = 64 * r.below(1 << 28);
        plan.slots.insert(r.below(plan.slots.len() + 1), Slot { kind: SlotKind::Arena { offset }, bytes: 0 });
    }
    for s in 0..r.below(8) {
        let gathers = r.below(3) == 0;
        let args = (0..plan.slots.len() as u32).filter(|_| r.below(3) == 0).collect();
        plan.steps.push(Step {
            kind: if gathers { gathering_kernel() } else { plain_kernel() },
            args,
            params: if gathers { vec![0] } else { Vec::new() },
            locs: Vec::new(),
            label: format!("op{s}"),
        });
    }
    plan
}

/// What one launch does, as far as anyone can see.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: std::result::Result<LaunchResult, String>,
    seen: Vec<Seen>,
    /// For each output: the position of the input whose buffer it is, or the bytes of a new one.
    outputs: Vec<Option<std::result::Result<usize, usize>>>,
}

/// One given launch.
struct Given {
    buffers: Vec<Buffer>,
    layouts: Vec<Layout>,
    dtypes: Vec<DType>,
    exclusive: Vec<bool>,
    params: Vec<u64>,
    limit: usize,
}

fn outcome(dispatcher: &Dispatcher, log: &Mutex<Vec<Seen>>, given: &Given) -> Outcome {
    log.lock().unwrap().clear();
    let inputs: Vec<InputBinding> = (0..given.buffers.len())
        .map(|i| InputBinding {
            buffer: &given.buffers[i],
            layout: &given.layouts[i],
            dtype: given.dtypes[i],
            exclusive: given.exclusive[i],
        })
        .collect();
    let host = Paper { made: Cell::new(0), limit: given.limit };
    let mut outputs = Vec::new();
    let mut launch = Launch { inputs: &inputs, params: &given.params, outputs: &mut outputs };
    let result = dispatcher.launch(&host, &mut launch);
    let outputs = outputs
        .iter()
        .map(|o| {
            o.as_ref().map(|buffer| {
                given.buffers.iter().position(|b| Arc::ptr_eq(b, buffer)).ok_or(()).or(Err(buffer.bytes()))
            })
        })
        .collect();
    let seen = log.lock().unwrap().clone();
    Outcome { result: result.map_err(|e| e.to_string()), seen, outputs }
}

fn given(r: &mut Random, plan: &Plan) -> Given {
    Given {
        buffers: plan
            .inputs
            .iter()
            .map(|i| Arc::new(Storage::new(Memory::Null, i.bytes + [0, 50][r.below(2)])))
            .collect(),
        layouts: plan.inputs.iter().map(|i| i.layout).collect(),
        dtypes: plan.inputs.iter().map(|i| i.ty.dtype).collect(),
        exclusive: plan.inputs.iter().map(|_| r.below(2) == 0).collect(),
        params: plan.params.iter().map(|_| r.below(8) as u64).collect(),
        limit: usize::MAX,
    }
}

/// Changes one thing that a guard should notice (or need not).
fn disturb(r: &mut Random, given: &mut Given) {
    let n = given.buffers.len();
    match r.below(8) {
        0 => given.params[0] = [8, u64::MAX, 7][r.below(3)],
        1 => given.limit = r.below(3),
        _ if n == 0 => {}
        2 => given.layouts[r.below(n)].offset += 1,
        3 => {
            let layout = &mut given.layouts[r.below(n)];
            let axis = r.below(3);
            layout.strides[axis] += 1;
        }
        4 => given.dtypes[r.below(n)] = DType::ALL[r.below(3)],
        5 => {
            let layout = &mut given.layouts[r.below(n)];
            let mut dims = layout.shape.dims().to_vec();
            match (dims.last_mut(), r.below(2)) {
                (Some(last), 0) => *last ^= 1,
                (Some(_), _) => drop(dims.pop()),
                (None, _) => dims.push(1),
            }
            layout.shape = Shape::new(&dims).unwrap();
        }
        6 => given.buffers[r.below(n)] = Arc::new(Storage::new(Memory::Null, r.below(60))),
        _ => {
            let i = r.below(n);
            given.exclusive[i] = !given.exclusive[i];
        }
    }
}

#[test]
fn both_dispatchers_do_the_same() {
    let mut r = Random(1);
    let (mut fits, mut misfits, mut flagged, mut in_place) = (0, 0, 0, 0);
    for _ in 0..150 {
        let plan = random_plan(&mut r);
        let log = Arc::new(Mutex::new(Vec::new()));
        let flags: Vec<u32> = plan.steps.iter().map(|s| (s.kind.may_flag() && r.below(2) == 0) as u32).collect();
        let calls = || {
            let call = |(number, &flag): (usize, &u32)| {
                let (slots, params) = (plan.slots.len(), plan.params.len());
                let recorder = Recorder { number, slots, params, flag, log: log.clone() };
                // SAFETY: the recorder knows the lengths of the tables.
                unsafe {
                    if number % 2 == 0 {
                        Call::new("record", record, recorder)
                    } else {
                        Call::new("record_too", record_too, recorder)
                    }
                }
            };
            flags.iter().enumerate().map(call).collect::<Vec<_>>()
        };
        let script = || Script::new(&plan, calls()).unwrap();
        let [looping, compiled] = [Mode::Loop, Mode::Compiled].map(|mode| Dispatcher::new(script(), mode));
        #[cfg(all(target_arch = "x86_64", unix))]
        assert!(compiled.is_compiled());
        for disturbed in 0..12 {
            let mut given = given(&mut r, &plan);
            if disturbed > 0 {
                disturb(&mut r, &mut given);
            }
            let expected = outcome(&looping, &log, &given);
            assert_eq!(outcome(&compiled, &log, &given), expected, "{}", compiled.listing());
            if disturbed == 0 {
                assert!(expected.result.is_ok(), "{:?}", expected.result);
                assert_eq!(expected.seen.len(), plan.steps.len());
            }
            match &expected.result {
                Ok(result) => {
                    fits += 1;
                    flagged += result.index_flag as u32;
                    in_place += result.in_place;
                }
                Err(_) => {
                    misfits += 1;
                    assert!(expected.outputs.is_empty());
                }
            }
        }
    }
    assert!(fits > 500 && misfits > 300 && flagged > 100 && in_place > 100, "{fits} {misfits} {flagged} {in_place}");
}

/// A plan of three steps with one input, in place of which an output may go.
fn small() -> Plan {
    let ty = Type::new(DType::F32, Shape::new(&[2, 3]).unwrap());
    let step = |label: &str, args: &[u32]| Step {
        kind: plain_kernel(),
        args: args.to_vec(),
        params: Vec::new(),
        locs: Vec::new(),
        label: label.into(),
    };
    let layout = Layout::contiguous(ty.shape);
    Plan {
        name: "small".into(),
        slots: [SlotKind::Input(0), SlotKind::Arena { offset: 128 }, SlotKind::Output(0), SlotKind::Output(1)]
            .map(|kind| Slot { kind, bytes: 24 })
            .to_vec(),
        steps: vec![step("add", &[0, 1]), step("mul·tanh", &[1, 2]), step("", &[1, 3])],
        edges: vec![(0, 1), (1, 2)],
        arena_bytes: 192,
        inputs: vec![PlanInput { ty, layout, bytes: 24, var: true }],
        outputs: [None, Some(0)]
            .map(|in_place| PlanOutput { ty, storage: OutputStorage::Own { bytes: 24 }, layout, in_place })
            .to_vec(),
        params: Vec::new(),
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn the_listing_names_things_and_does_not_change() {
    let [a, b] = [(); 2].map(|()| Rehearsal::new(&small(), Mode::Compiled).unwrap());
    let text = a.dispatcher().listing();
    assert_eq!(text, b.dispatcher().listing());
    for part in
        ["run_nothing", "[step1:mul·tanh]", "[step2]", "guard input0: f32[2,3], 24 bytes", "slot1 = arena + 128"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("userextname"), "{text}");
}

#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn far_calls_work_too() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let plan = small();
    let recorder = |number| Recorder { number, slots: 4, params: 0, flag: 0, log: log.clone() };
    // SAFETY: the recorders know the lengths of the tables.
    let calls = (0..3).map(|n| unsafe { Call::new("record", record, recorder(n)) }).collect();
    let script = Script::new(&plan, calls).unwrap();
    let code = Some(compile::compile_with(&script, false).unwrap());
    let far = Dispatcher { script, code };
    let mut r = Random(7);
    assert!(outcome(&far, &log, &given(&mut r, &plan)).result.is_ok());
    assert_eq!(log.lock().unwrap().iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn two_outputs_in_place_of_one_input_are_refused() {
    let mut plan = small();
    plan.outputs[0].in_place = Some(0);
    assert!(Rehearsal::new(&plan, Mode::Loop).is_err());
}
