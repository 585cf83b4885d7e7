//! Saving and loading: other tools' files, refusals, training that goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use stepgraph::base::HostValue;
use stepgraph::base::dtype::{bf16, f16};
use stepgraph::checkpoint::{self, Checkpoint};
use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig, Ema, Sgd, SgdConfig};
use stepgraph::{Device, ErrorKind, Result, Rng, Tensor, Var, jit};

use crate::harness::{filled, own_device, values, vector};

/// A folder of this test, removed with what is in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("stepgraph-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn refused<T>(result: Result<T>, path: &Path, words: &[&str]) {
    let e = result.err().expect("an error");
    assert!(matches!(e.kind(), ErrorKind::Io { .. }), "{e}");
    let text = e.to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains("checkpoints.rs:"), "{text}");
    words.iter().for_each(|w| assert!(text.contains(w), "no `{w}` in: {text}"));
}

/// Every dtype, several shapes; NaNs keep their bits, zeros their sign.
fn all_dtypes(device: &Device) -> Vec<(&'static str, Tensor)> {
    let f = [0.0f64, -0.0, 1.5, -3.25e4, f64::INFINITY, f64::NAN];
    let odd = f32::from_bits(0x7fa1_2345);
    vec![
        ("a.f32", Tensor::from_vec(vec![1.0f32, -0.0, odd, f32::MIN_POSITIVE / 2.0], [2, 2], device)),
        ("a.f64", Tensor::from_vec(f.to_vec(), [3, 1, 2], device)),
        ("f16", Tensor::from_vec(f.map(f16::from_f64).to_vec(), [6], device)),
        ("bf16", Tensor::from_vec(f.map(bf16::from_f64).to_vec(), [2, 3], device)),
        ("i64", Tensor::from_vec(vec![i64::MIN, -1, i64::MAX], [3], device)),
        ("i32", Tensor::from_vec(vec![i32::MIN, i32::MAX], [2], device)),
        ("i8", Tensor::from_vec(vec![-128i8, 127], [2, 1], device)),
        ("u8", Tensor::from_vec(vec![0u8, 255], [1, 2], device)),
        ("bool", Tensor::from_vec(vec![true, false, true], [3], device)),
        ("single", Tensor::from_vec(vec![2.5f32], (), device)),
        ("empty", Tensor::from_vec(Vec::<f32>::new(), [0, 3], device)),
    ]
    .into_iter()
    .map(|(name, t)| (name, t.expect("a tensor")))
    .collect()
}

fn vars(tensors: &[(&'static str, Tensor)]) -> Vec<(&'static str, Var)> {
    tensors.iter().map(|(n, t)| (*n, Var::state(t).expect("a Var"))).collect()
}

fn host(vars: &[(&'static str, Var)]) -> Vec<HostValue> {
    vars.iter().map(|(_, v)| v.get().to_host().expect("a value")).collect()
}

#[test]
fn every_dtype_comes_back() {
    let (device, folder) = (&own_device(), Folder::new());
    let path = folder.file("all.safetensors");
    let saved = vars(&all_dtypes(device));
    checkpoint::save(&path, &saved).expect("a file");
    let zeros: Vec<(&str, Tensor)> = all_dtypes(device)
        .into_iter()
        .map(|(n, t)| (n, Tensor::zeros(t.shape(), t.dtype(), device).expect("zeros")))
        .collect();
    let loaded = vars(&zeros);
    checkpoint::load(&path, &loaded).expect("values");
    for (((name, _), got), want) in saved.iter().zip(host(&loaded)).zip(host(&saved)) {
        assert_eq!(got.shape, want.shape);
        assert_eq!(got.data.to_bytes(), want.data.to_bytes(), "{name}");
    }
    // As plain tensors, too; and nothing else is left in the folder.
    let read = checkpoint::read(&path, device).expect("tensors");
    assert_eq!(read.len(), saved.len());
    for (name, var) in &saved {
        let (got, want) = (read[*name].to_host().expect("a value"), var.get().to_host().expect("a value"));
        assert_eq!((got.shape, got.data.to_bytes()), (want.shape, want.data.to_bytes()), "{name}");
    }
    assert_eq!(folder.names(), ["all.safetensors"]);
}

/// The bytes that the Python package `safetensors` 0.8.0 writes for a = f32 [[1, 2], [3, 4]], b = i64 [-1, 7],
/// mask = bool [true, false, true], half = f16 [0.5, -2], with metadata {"format": "pt"}.
const OTHERS: &str = include_str!("others.hex");

#[test]
fn a_file_of_another_tool() {
    let (device, folder) = (&own_device(), Folder::new());
    let path = folder.file("others.safetensors");
    let hex: Vec<u8> = OTHERS.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |c: u8| (c as char).to_digit(16).expect("a digit") as u8;
    let bytes: Vec<u8> = hex.chunks(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect();
    fs::write(&path, &bytes).expect("a file");
    let read = checkpoint::read(&path, device).expect("tensors");
    assert_eq!(read.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "half", "mask"]);
    assert_eq!((values(&read["a"]), read["a"].dims()), (vec![1.0, 2.0, 3.0, 4.0], &[2, 2][..]));
    assert_eq!(read["b"].to_vec::<i64>().expect("values"), [-1, 7]);
    assert_eq!(read["half"].to_vec::<f16>().expect("values"), [0.5, -2.0].map(f16::from_f32));
    assert_eq!(read["mask"].to_vec::<bool>().expect("values"), [true, false, true]);
    let a = Var::new(&vector(&[0.0; 2], device)).expect("a Var");
    refused(
        Checkpoint::new().vars("", [("a", a.clone()), ("c", a)]).rng("dropout", &Rng::seed_from(1)).load(&path),
        &path,
        &[
            "a is f32[2,2], expected f32[2]",
            "missing c",
            "missing generator dropout",
            "unexpected b",
            "unexpected half",
        ],
    );
}

/// Our files by the format's own rule: 8 bytes of length, a JSON header, then the elements where it says.
#[test]
fn the_bytes_of_our_files() {
    let (device, folder) = (&own_device(), Folder::new());
    let path = folder.file("ours.safetensors");
    let w = Var::new(&vector(&[1.0, -2.0], device)).expect("a Var");
    let rng = Rng::seed_from(9);
    rng.uniform([3], device).expect("a draw");
    Checkpoint::new().vars("m", [("w", w)]).rng("r", &rng).note("epoch", 3).save(&path).expect("a file");
    let bytes = fs::read(&path).expect("a file");
    let n = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n]).expect("JSON");
    assert_eq!(
        header,
        serde_json::json!({
            "__metadata__": {"rng.r": "9 1", "note.epoch": "3"},
            "m.w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        })
    );
    assert_eq!(bytes[8 + n..], [1.0f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
}

/// What does not fit is named, all of it, and nothing is written.
#[test]
fn what_does_not_fit() {
    let (device, folder) = (&own_device(), Folder::new());
    let path = folder.file("x.safetensors");
    let saved = vars(&all_dtypes(device));
    Checkpoint::new()
        .vars("", saved.clone())
        .rng("r", &Rng::seed_from(4))
        .note("epoch", "two")
        .save(&path)
        .expect("a file");
    for (_, v) in &saved {
        v.set(&Tensor::zeros(v.shape(), v.dtype(), device).expect("zeros")).expect("a write");
    }
    let untouched = |rng: &Rng| {
        assert!(host(&saved).iter().all(|v| v.data.to_bytes().iter().all(|&b| b == 0)));
        assert_eq!(rng.state(), (77, 0));
    };
    let rng = Rng::seed_from(77);
    let full = || Checkpoint::new().vars("", saved.clone()).rng("r", &rng);
    // One too many, one too few, another name, dtype, shape.
    let extra = Var::state(&vector(&[1.0], device)).expect("a Var");
    refused(full().vars("", [("more", extra.clone())]).load(&path), &path, &["missing more"]);
    refused(Checkpoint::new().vars("", saved[1..].to_vec()).load(&path), &path, &["unexpected a.f32"]);
    let mut other = saved.clone();
    other[0] = ("a.f32", extra.clone());
    other[4].0 = "i64s";
    let wrong = Checkpoint::new().vars("", other).rng("q", &rng).load(&path);
    let words = ["a.f32 is f32[2,2], expected f32[1]", "missing i64s", "unexpected i64", "missing generator q"];
    refused(wrong, &path, &words);
    let mut other = saved.clone();
    other[8] = ("bool", Var::state(&Tensor::from_vec(vec![1u8, 0, 1], [3], device).expect("a tensor")).expect("a Var"));
    refused(Checkpoint::new().vars("", other).load(&path), &path, &["bool is bool[3], expected u8[3]"]);
    refused(full().vars("", [("i64", extra.clone())]).load(&path), &path, &["i64 is given twice"]);
    refused(full().rng("r", &rng).save(&path), &path, &["generator r is given twice"]);
    untouched(&rng);
    // Notes that are not there, or no numbers.
    let notes = full().load(&path).expect("values");
    assert_eq!(rng.state(), (4, 0));
    assert_eq!(notes.get::<String>("epoch").expect("a note"), "two");
    refused(notes.get::<u32>("epoch"), &path, &["note epoch is \"two\"", "u32"]);
    refused(notes.get::<u32>("step"), &path, &["no note step", "epoch"]);
}

/// A file cut short anywhere, or changed in its header, or of another kind, is refused and changes nothing.
#[test]
fn broken_files() {
    let (device, folder) = (&own_device(), Folder::new());
    let (path, cut) = (folder.file("whole.safetensors"), folder.file("cut.safetensors"));
    let w = Var::new(&vector(&[1.0, 2.0, 3.0], device)).expect("a Var");
    let b = Var::new(&vector(&[4.0], device)).expect("a Var");
    let all = [("w", w.clone()), ("b", b.clone())];
    checkpoint::save(&path, &all).expect("a file");
    w.set(&vector(&[9.0, 9.0, 9.0], device)).expect("a write");
    let bytes = fs::read(&path).expect("a file");
    for n in 0..bytes.len() {
        fs::write(&cut, &bytes[..n]).expect("a file");
        refused(checkpoint::load(&cut, &all), &cut, &["no safetensors file, or not all of it"]);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    for wrong in [longer, b"PK\x03\x04 something else entirely, and longer than eight bytes".to_vec(), vec![0xff; 64]] {
        fs::write(&cut, wrong).expect("a file");
        refused(checkpoint::load(&cut, &all), &cut, &["no safetensors file"]);
        refused(checkpoint::read(&cut, device), &cut, &["no safetensors file"]);
    }
    // Any one byte changed: an error, or values of the right shape; never a panic.
    for i in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[i] ^= 0x11;
        fs::write(&cut, changed).expect("a file");
        let result = checkpoint::load(&cut, &all);
        assert!(result.is_err() || i + 16 >= bytes.len(), "byte {i}");
        if result.is_err() {
            assert_eq!(values(&w.get()), [9.0, 9.0, 9.0], "byte {i}");
        }
    }
    let missing = folder.file("nowhere.safetensors");
    refused(checkpoint::load(&missing, &all), &missing, &["cannot be read"]);
    refused(checkpoint::load(&folder.0, &all), &folder.0, &["cannot be read"]);
}

/// A file that cannot be written leaves what was there, and nothing beside it.
#[test]
fn writing_that_fails() {
    let (device, folder) = (&own_device(), Folder::new());
    let w = Var::new(&vector(&[1.0], device)).expect("a Var");
    let all = [("w", w.clone())];
    let nowhere = folder.file("missing/x.safetensors");
    refused(checkpoint::save(&nowhere, &all), &nowhere, &["cannot be written"]);
    let taken = folder.file("taken");
    fs::create_dir_all(taken.join("inside")).expect("a folder");
    refused(checkpoint::save(&taken, &all), &taken, &["cannot be written"]);
    refused(checkpoint::save(Path::new("/"), &all), Path::new("/"), &["names no file"]);
    assert_eq!(folder.names(), ["taken"]);
    // Replacing a file replaces it.
    let path = folder.file("x.safetensors");
    checkpoint::save(&path, &all).expect("a file");
    w.set(&vector(&[2.0], device)).expect("a write");
    checkpoint::save(&path, &all).expect("a file");
    w.set(&vector(&[3.0], device)).expect("a write");
    checkpoint::load(&path, &all).expect("values");
    assert_eq!(values(&w.get()), [2.0]);
    assert_eq!(folder.names(), ["taken", "x.safetensors"]);
}

/// A model with dropout, Adam, averages and a generator.
struct Training {
    layers: [Linear; 2],
    adam: Adam,
    ema: Ema,
    rng: Rng,
    x: Tensor,
    y: Tensor,
    step: Option<jit::Step>,
}

impl Training {
    fn new(seed: u64, traced: bool, device: &Device) -> Result<Training> {
        let rng = Rng::seed_from(seed);
        let layers = [Linear::new(6, 16, &rng, device)?, Linear::new(16, 3, &rng, device)?];
        let parameters = layers.parameters();
        Ok(Training {
            adam: Adam::new(parameters.clone(), AdamConfig { lr: 0.01, ..Default::default() })?,
            ema: Ema::new(parameters, 0.9)?,
            x: filled(&[8, 6], 1, device),
            y: filled(&[8, 3], 2, device),
            step: traced.then(jit::Step::new),
            layers,
            rng,
        })
    }

    fn one(&mut self, k: u32) -> Result<Tensor> {
        let Training { layers, adam, ema, rng, x, y, step } = self;
        let mut body = || {
            adam.set_lr(0.01 / (1.0 + k as f64));
            let h = layers[0].forward(x)?.tanh()?;
            let keep = rng.uniform(h.shape(), h.device())?.lt(0.75)?;
            let h = keep.select(h.mul(1.0 / 0.75)?, 0.0)?;
            let loss = layers[1].forward(&h)?.mse(y)?;
            adam.step(&loss.backward()?)?;
            ema.update()?;
            Ok(loss)
        };
        match step {
            Some(step) => step.run(body),
            None => body(),
        }
    }

    fn state(&self) -> Checkpoint {
        Checkpoint::new()
            .module("model", &self.layers)
            .optimizer("adam", &self.adam)
            .vars("ema", self.ema.named_state())
            .rng("all", &self.rng)
    }

    fn bits(&self) -> Vec<u32> {
        let vars = self.layers.parameters().into_iter().chain(self.ema.named_state().into_iter().map(|(_, v)| v));
        vars.flat_map(|v| values(&v.get())).map(f32::to_bits).collect()
    }
}

/// Training resumed from a file, in a fresh model with a fresh step, is training that went on: bit for bit, whether
/// either half is traced or not.
#[test]
fn resumed_training_is_the_same() {
    let (device, folder) = (&own_device(), Folder::new());
    let mut whole = Training::new(5, false, device).expect("a model");
    let losses: Vec<u32> =
        (0..20).map(|k| whole.one(k).expect("a step").item::<f32>().expect("a loss").to_bits()).collect();
    for (first, second) in [(false, false), (true, true), (true, false), (false, true)] {
        let path = folder.file("run.safetensors");
        let mut before = Training::new(5, first, device).expect("a model");
        (0..9).for_each(|k| {
            assert_eq!(before.one(k).expect("a step").item::<f32>().expect("a loss").to_bits(), losses[k as usize])
        });
        before.state().note("step", 9).save(&path).expect("a file");
        drop(before);
        // Another seed: everything that matters comes from the file.
        let mut after = Training::new(1234, second, device).expect("a model");
        let start: u32 = after.state().load(&path).expect("values").get("step").expect("a number");
        for k in start..20 {
            let loss = after.one(k).expect("a step").item::<f32>().expect("a loss");
            assert_eq!(loss.to_bits(), losses[k as usize], "step {k}, traced {first} {second}");
        }
        assert_eq!(after.bits(), whole.bits(), "traced {first} {second}");
    }
}

/// Loading between calls of a step that is already compiled takes effect at the next call, with nothing recorded.
#[test]
fn loading_into_a_compiled_step() {
    let (device, folder) = (&own_device(), Folder::new());
    let path = folder.file("w.safetensors");
    let w = Var::new(&vector(&[8.0, 4.0], device)).expect("a Var");
    let mut sgd = Sgd::new(vec![w.clone()], SgdConfig { lr: 0.5, momentum: 0.5, ..Default::default() }).expect("one");
    let state = Checkpoint::new().vars("", [("w", w.clone())]).optimizer("sgd", &sgd);
    let mut step = jit::Step::new();
    let mut seen = Vec::new();
    for k in 0..8 {
        if k == 3 {
            state.save(&path).expect("a file");
        }
        if k == 6 {
            state.load(&path).expect("values");
        }
        step.run(|| sgd.step(&w.get().mul(w.get())?.sum(())?.backward()?)).expect("a call");
        seen.push(values(&w.get()));
    }
    assert_eq!(seen[6..8], seen[3..5]);
    assert_eq!(step.report().recorded, 1);
}
