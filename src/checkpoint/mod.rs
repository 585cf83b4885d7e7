//! Floor 10: saving and loading what training needs, in one safetensors file.
//!
//! A [`Checkpoint`] lists what belongs together: `Var`s by name (of a module, of an optimizer), generators, notes such
//! as the number of the epoch. Training that goes on from a file gives the same bits as training that was never
//! interrupted. May rely on floors 0 to 9.
//!
//! Guarantees: a file is there as a whole or not at all (written beside its place, then renamed); loading checks
//! everything before it writes the first `Var`. Files are little-endian and plain safetensors: other tools read them,
//! and [`read`] reads theirs. The state of generators and notes are in its metadata, under `rng.NAME` and `note.NAME`.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::base::location::Scope;
use crate::base::{Error, ErrorKind, Loc, Result};
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::tensor::{Device, Rng, Tensor, Var};

/// What is saved together, and put back together.
///
/// ```
/// use stepgraph::checkpoint::Checkpoint;
/// use stepgraph::nn::{Linear, Module};
/// use stepgraph::optim::{Adam, AdamConfig};
/// use stepgraph::{Device, Result, Rng};
/// # fn main() -> Result<()> {
/// let (device, rng) = (Device::cpu(), Rng::seed_from(0));
/// let model = Linear::new(4, 2, &rng, &device)?;
/// let adam = Adam::new(model.parameters(), AdamConfig::default())?;
/// let state = Checkpoint::new().module("model", &model).optimizer("adam", &adam).rng("dropout", &rng);
/// let path = std::env::temp_dir().join(format!("stepgraph-doc-{}.safetensors", std::process::id()));
/// state.clone().note("epoch", 7).save(&path)?;
///
/// let notes = state.load(&path)?; // also into a fresh model and optimizer of the same kind
/// assert_eq!(notes.get::<u32>("epoch")?, 7);
/// # let _ = std::fs::remove_file(&path);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    vars: Vec<(String, Var)>,
    rngs: Vec<(String, Rng)>,
    notes: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Nothing as yet.
    ///
    /// ```
    /// let empty = stepgraph::checkpoint::Checkpoint::new();
    /// assert!(empty.names().is_empty());
    /// ```
    pub fn new() -> Checkpoint {
        Checkpoint::default()
    }

    /// `Var`s by name; `prefix` and a dot come before each name, unless it is empty.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var, checkpoint::Checkpoint};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full([2], 1.0, &Device::cpu())?)?;
    /// assert_eq!(Checkpoint::new().vars("layer", [("w", w)]).names(), ["layer.w"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn vars<N: Into<String>>(mut self, prefix: &str, named: impl IntoIterator<Item = (N, Var)>) -> Checkpoint {
        self.vars.extend(named.into_iter().map(|(name, var)| (dotted(prefix, &name.into()), var)));
        self
    }

    /// A module's parameters and buffers by their paths.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Rng, checkpoint::Checkpoint, nn::Linear};
    /// # fn main() -> Result<()> {
    /// let layer = Linear::new(2, 2, &Rng::seed_from(0), &Device::cpu())?;
    /// assert_eq!(Checkpoint::new().module("model", &layer).names(), ["model.weight", "model.bias"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn module(self, prefix: &str, module: &dyn Module) -> Checkpoint {
        self.vars(prefix, module.named_parameters()).vars(prefix, module.named_buffers())
    }

    /// An optimizer's state. Its configuration is code, and no part of the file.
    ///
    /// ```
    /// use stepgraph::optim::{Lion, LionConfig};
    /// use stepgraph::{Device, Result, Tensor, Var, checkpoint::Checkpoint};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full([2], 1.0, &Device::cpu())?)?;
    /// let lion = Lion::new(vec![w], LionConfig::default())?;
    /// assert_eq!(Checkpoint::new().optimizer("lion", &lion).names(), ["lion.momentum.0"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn optimizer(self, prefix: &str, optimizer: &dyn Optimizer) -> Checkpoint {
        self.vars(prefix, optimizer.named_state())
    }

    /// A generator's seed and counter.
    ///
    /// ```
    /// use stepgraph::{Rng, checkpoint::Checkpoint};
    /// let state = Checkpoint::new().rng("dropout", &Rng::seed_from(3));
    /// ```
    pub fn rng(mut self, name: &str, rng: &Rng) -> Checkpoint {
        self.rngs.push((name.to_string(), rng.clone()));
        self
    }

    /// A text or number to be kept with it: the number of the step, a learning rate. Loading gives the file's
    /// notes and does not look at these.
    ///
    /// ```
    /// use stepgraph::checkpoint::Checkpoint;
    /// let state = Checkpoint::new().note("step", 1200).note("run", "a");
    /// ```
    pub fn note(mut self, name: &str, value: impl ToString) -> Checkpoint {
        self.notes.insert(name.to_string(), value.to_string());
        self
    }

    /// The names of its `Var`s.
    ///
    /// ```
    /// assert!(stepgraph::checkpoint::Checkpoint::new().names().is_empty());
    /// ```
    pub fn names(&self) -> Vec<&str> {
        self.vars.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Writes the file: beside its place first, so that an older one is replaced as a whole or not at all. A host read of
    /// every `Var`.
    ///
    /// Errors: a name given twice; a file that cannot be written.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var, checkpoint::Checkpoint};
    /// # fn main() -> Result<()> {
    /// let w = Var::new(&Tensor::full([2], 1.0, &Device::cpu())?)?;
    /// let path = std::env::temp_dir().join(format!("stepgraph-save-{}.safetensors", std::process::id()));
    /// Checkpoint::new().vars("", [("w", w)]).save(&path)?;
    /// assert!(path.exists());
    /// # let _ = std::fs::remove_file(&path);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let (at, path) = (Loc::caller(), path.as_ref());
        let _scope = Scope::enter();
        let save = || {
            self.check_names(path)?;
            let rngs = self.rngs.iter().map(|(name, rng)| {
                let (seed, counter) = rng.state();
                (format!("{RNG}{name}"), format!("{seed} {counter}"))
            });
            let notes = self.notes.iter().map(|(name, value)| (format!("{NOTE}{name}"), value.clone()));
            // Snapshots of all first: nobody trains between the first and the last.
            let values: Vec<(&str, Tensor)> = self.vars.iter().map(|(n, v)| (n.as_str(), v.get())).collect();
            file::write(path, &values, rngs.chain(notes).collect())
        };
        save().map_err(|e| e.at(at))
    }

    /// Puts a file's values into the `Var`s and generators, and gives its notes.
    ///
    /// Errors, before anything is written: a file that cannot be read, is no safetensors file or is cut short; `Var`s or
    /// generators that the file lacks, tensors in it that nothing asks for, other dtypes or shapes, all of them
    /// named; a name given twice.
    ///
    /// ```
    /// use stepgraph::{Device, Result, Tensor, Var, checkpoint::Checkpoint};
    /// # fn main() -> Result<()> {
    /// let var = |v: f64| Var::new(&Tensor::full([2], v, &Device::cpu())?);
    /// let path = std::env::temp_dir().join(format!("stepgraph-load-{}.safetensors", std::process::id()));
    /// Checkpoint::new().vars("", [("w", var(1.0)?)]).save(&path)?;
    /// let w = var(0.0)?;
    /// Checkpoint::new().vars("", [("w", w.clone())]).load(&path)?;
    /// assert_eq!(w.get().to_vec::<f32>()?, [1.0, 1.0]);
    /// let error = Checkpoint::new().vars("", [("v", w)]).load(&path).unwrap_err().to_string();
    /// assert!(error.contains("missing v") && error.contains("unexpected w"));
    /// # let _ = std::fs::remove_file(&path);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Notes> {
        let (at, path) = (Loc::caller(), path.as_ref());
        let _scope = Scope::enter();
        self.load_from(path).map_err(|e| e.at(at))
    }

    fn load_from(&self, path: &Path) -> Result<Notes> {
        self.check_names(path)?;
        let bytes = file::bytes(path)?;
        let content = file::Content::parse(path, &bytes)?;
        let mut wrong = Vec::new();
        for (name, var) in &self.vars {
            match content.find(name) {
                None => wrong.push(format!("missing {name}")),
                Some(t) if !t.is(var.dtype(), var.shape()) => {
                    wrong.push(format!("{name} is {t}, expected {}{}", var.dtype(), var.shape()));
                }
                Some(_) => {}
            }
        }
        let mut states = Vec::new();
        for (name, rng) in &self.rngs {
            let text = content.metadata.get(&format!("{RNG}{name}"));
            match text.and_then(|t| t.split_once(' ')).map(|(s, c)| (s.parse(), c.parse())) {
                Some((Ok(seed), Ok(counter))) => states.push((rng, seed, counter)),
                _ if text.is_some() => wrong.push(format!("generator {name} is no pair of numbers")),
                _ => wrong.push(format!("missing generator {name}")),
            }
        }
        let known: BTreeSet<&str> = self.names().into_iter().collect();
        let strangers = content.names().filter(|n| !known.contains(n));
        wrong.extend(strangers.map(|n| format!("unexpected {n}")));
        if !wrong.is_empty() {
            return Err(io(path, format!("does not fit what is to be loaded: {}", wrong.join("; "))));
        }
        // All of them are on the device before the first is written.
        let mut values = Vec::with_capacity(self.vars.len());
        for (name, var) in &self.vars {
            values.push((var, content.tensor(name, var.device())?));
        }
        values.iter().try_for_each(|(var, value)| var.set(value))?;
        states.into_iter().for_each(|(rng, seed, counter)| rng.set_state(seed, counter));
        Ok(Notes { path: path.to_path_buf(), entries: content.notes() })
    }

    fn check_names(&self, path: &Path) -> Result<()> {
        let mut seen = BTreeSet::new();
        let names = self.names().into_iter().map(|n| ("", n));
        let rngs = self.rngs.iter().map(|(n, _)| ("generator ", n.as_str()));
        match names.chain(rngs).find(|&n| !seen.insert(n)) {
            Some((kind, name)) => {
                Err(io(path, format!("{kind}{name} is given twice; give each its own name or prefix")))
            }
            None => Ok(()),
        }
    }
}

/// Metadata keys begin so.
const RNG: &str = "rng.";
const NOTE: &str = "note.";

fn dotted(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") }
}

fn io(path: &Path, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io { path: path.display().to_string(), detail: detail.into() })
}

/// The notes of a file.
///
/// ```
/// use stepgraph::{Result, checkpoint::Checkpoint};
/// # fn main() -> Result<()> {
/// let path = std::env::temp_dir().join(format!("stepgraph-notes-{}.safetensors", std::process::id()));
/// Checkpoint::new().note("epoch", 3).note("rate", 0.125).save(&path)?;
/// let notes = Checkpoint::new().load(&path)?;
/// assert_eq!((notes.get::<u64>("epoch")?, notes.get::<f64>("rate")?), (3, 0.125));
/// # let _ = std::fs::remove_file(&path);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notes {
    path: PathBuf,
    entries: BTreeMap<String, String>,
}

impl Notes {
    /// The note `name`, read as a `T`.
    ///
    /// Errors: there is none, or it does not read as a `T`.
    ///
    /// ```no_run
    /// # fn main() -> stepgraph::Result<()> {
    /// let notes = stepgraph::checkpoint::Checkpoint::new().load("run.safetensors")?;
    /// let epoch: u64 = notes.get("epoch")?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        let at = Loc::caller();
        let Some(text) = self.entries.get(name) else {
            let there = self.entries.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let there = if there.is_empty() { "none".to_string() } else { there };
            return Err(io(&self.path, format!("no note {name}; there are: {there}")).at(at));
        };
        let wrong = || io(&self.path, format!("note {name} is {text:?}, no {}", std::any::type_name::<T>())).at(at);
        text.parse().map_err(|_| wrong())
    }

    /// All notes by name.
    ///
    /// ```no_run
    /// # fn main() -> stepgraph::Result<()> {
    /// let notes = stepgraph::checkpoint::Checkpoint::new().load("run.safetensors")?;
    /// for (name, text) in notes.entries() {
    ///     println!("{name}: {text}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }
}

/// Writes `Var`s by name: the short form of [`Checkpoint::save`].
///
/// Errors: as there.
///
/// ```
/// use stepgraph::{Device, Result, Rng, checkpoint, nn::{Linear, Module}};
/// # fn main() -> Result<()> {
/// let model = Linear::new(4, 2, &Rng::seed_from(0), &Device::cpu())?;
/// let path = std::env::temp_dir().join(format!("stepgraph-short-{}.safetensors", std::process::id()));
/// checkpoint::save(&path, &model.named_parameters())?;
/// checkpoint::load(&path, &model.named_parameters())?;
/// # let _ = std::fs::remove_file(&path);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn save<N: AsRef<str>>(path: impl AsRef<Path>, vars: &[(N, Var)]) -> Result<()> {
    Checkpoint::new().vars("", vars.iter().map(|(n, v)| (n.as_ref(), v.clone()))).save(path)
}

/// Puts a file's values into `Var`s by name: the short form of [`Checkpoint::load`].
///
/// Errors: as there.
///
/// ```
/// use stepgraph::{Device, Result, Tensor, Var, checkpoint};
/// # fn main() -> Result<()> {
/// let w = Var::new(&Tensor::full([2], 1.0, &Device::cpu())?)?;
/// let path = std::env::temp_dir().join(format!("stepgraph-vars-{}.safetensors", std::process::id()));
/// checkpoint::save(&path, &[("w", w.clone())])?;
/// checkpoint::load(&path, &[("w", w)])?;
/// # let _ = std::fs::remove_file(&path);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn load<N: AsRef<str>>(path: impl AsRef<Path>, vars: &[(N, Var)]) -> Result<()> {
    Checkpoint::new().vars("", vars.iter().map(|(n, v)| (n.as_ref(), v.clone()))).load(path).map(|_| ())
}

/// All tensors of a safetensors file by name, on `device`: for weights that others have written.
///
/// Errors: a file that cannot be read, is no safetensors file or is cut short; a dtype that there is none of here.
///
/// ```no_run
/// use stepgraph::{Device, Result, checkpoint};
/// # fn main() -> Result<()> {
/// for (name, tensor) in checkpoint::read("weights.safetensors", &Device::cpu())? {
///     println!("{name}: {tensor:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn read(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    let (at, path) = (Loc::caller(), path.as_ref());
    let _scope = Scope::enter();
    let read = || {
        let bytes = file::bytes(path)?;
        let content = file::Content::parse(path, &bytes)?;
        content.names().map(|name| Ok((name.to_string(), content.tensor(name, device)?))).collect::<Result<_>>()
    };
    read().map_err(|e| e.at(at))
}
