//! From source code to kernels: NVRTC, in parallel, behind a cache in memory and one on disk.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::cuda::cubins::{Cubins, KernelCache};
use crate::backend::cuda::render::Rendered;
use crate::backend::cuda::sys::context::{Context, Facts};
use crate::backend::cuda::sys::load;
use crate::backend::cuda::sys::module::{self, CompileFailure, Function, Grid, Module};
use crate::base::{Error, ErrorKind, Result};

/// A compiled step: its stages, ready to be enqueued.
#[derive(Debug)]
pub struct Kernel {
    pub stages: Vec<(Function, Grid)>,
    pub scratch_bytes: usize,
    pub flag: bool,
}

/// Compiles for one device.
pub struct Compiler {
    context: Arc<Context>,
    options: Vec<String>,
    /// What else a compiled image depends on: options and the compiler's version.
    key: String,
    cubins: Cubins,
    modules: Mutex<HashMap<String, Arc<Module>>>,
}

impl Compiler {
    /// A compiler for the device with these facts; the error says when NVRTC is newer than the driver can take.
    pub fn new(context: &Arc<Context>, facts: &Facts, cache: &KernelCache) -> Result<Compiler, String> {
        let (major, minor) = module::nvrtc_version().map_err(|f| format!("{} failed with {f}", f.call))?;
        let driver = (facts.driver / 1000, facts.driver % 1000 / 10);
        if major > driver.0 {
            return Err(format!(
                "the driver supports CUDA {}.{}, but the NVRTC that was found is {major}.{minor}, whose code it cannot load; \
                 update the driver, or install NVRTC {}.x (`pip install nvidia-cuda-nvrtc-cu12` for 12.x) and name its folder \
                 in STEPGRAPH_CUDA_LIBS",
                driver.0, driver.1, driver.0
            ));
        }
        let (a, b) = facts.capability;
        let options = vec![
            format!("--gpu-architecture=sm_{a}{b}"),
            // No contraction of a * b + c: results must not depend on what is fused.
            "--fmad=false".to_string(),
            "--std=c++17".to_string(),
        ];
        // The library too: another one of the same version may give other code.
        let key = format!("{} {major}.{minor} {}", load::nvrtc_path(), options.join(" "));
        Ok(Compiler { context: context.clone(), options, key, cubins: Cubins::new(cache), modules: Mutex::default() })
    }

    /// The kernel of one rendered step; `label` names it in errors.
    pub fn kernel(&self, rendered: &Rendered, label: &str) -> Result<Arc<Kernel>> {
        let mut kernels = self.kernels(&[(rendered, label)])?;
        kernels.pop().ok_or_else(|| Error::bug("cuda", "no kernel was compiled"))
    }

    /// Kernels of rendered steps, those not seen before compiled in parallel.
    pub fn kernels(&self, steps: &[(&Rendered, &str)]) -> Result<Vec<Arc<Kernel>>> {
        let mut wanted: Vec<(&str, &str)> = Vec::new();
        // Held until their functions are made: another thread may trim meanwhile.
        let mut held: HashMap<&str, Arc<Module>> = HashMap::new();
        {
            let modules = self.modules.lock();
            for (r, label) in steps {
                match modules.get(&r.source) {
                    Some(module) => drop(held.insert(&r.source, module.clone())),
                    None if wanted.iter().any(|w| w.0 == r.source) => {}
                    None => wanted.push((&r.source, label)),
                }
            }
        }
        if !wanted.is_empty() {
            let _span = tracing::info_span!("compile", kernels = wanted.len()).entered();
            let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(wanted.len());
            let next = std::sync::atomic::AtomicUsize::new(0);
            let done = Mutex::new(Vec::new());
            let work = || {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(&(source, label)) = wanted.get(i) else { break };
                    let image = self.image(source, label);
                    let failed = image.is_err();
                    done.lock().push((source, image));
                    if failed {
                        next.store(wanted.len(), std::sync::atomic::Ordering::Relaxed);
                    }
                }
            };
            if workers == 1 {
                work();
            } else {
                std::thread::scope(|scope| {
                    for _ in 0..workers {
                        scope.spawn(work);
                    }
                });
            }
            for (source, image) in done.into_inner() {
                let (image, stored) = image?;
                let module = match Module::load(&self.context, &image) {
                    // The driver refuses an image that came from the disk: it is made anew.
                    Err(_) if stored => {
                        self.cubins.remove(&self.key, source);
                        let (image, _) = self.image(source, "a cached kernel")?;
                        Module::load(&self.context, &image)?
                    }
                    other => other?,
                };
                // Another thread may have been faster. Its module stays: work of its may be under way.
                let kept = self.modules.lock().entry(source.to_string()).or_insert(module).clone();
                held.insert(source, kept);
            }
        }
        steps
            .iter()
            .map(|(r, _)| {
                let module =
                    held.get(r.source.as_str()).ok_or_else(|| Error::bug("cuda", "a kernel was not compiled"))?;
                let stage = |s: &crate::backend::cuda::render::Stage| {
                    let grid = Grid { blocks: s.grid, threads: s.threads, shared_bytes: s.shared_bytes };
                    Ok((module.function(&s.entry, s.shared_bytes)?, grid))
                };
                let stages = r.stages.iter().map(stage).collect::<Result<_>>()?;
                Ok(Arc::new(Kernel { stages, scratch_bytes: r.scratch_bytes, flag: r.flag }))
            })
            .collect()
    }

    /// The image of a source, and whether it came from the disk.
    fn image(&self, source: &str, label: &str) -> Result<(Vec<u8>, bool)> {
        if let Some(image) = self.cubins.get(&self.key, source) {
            return Ok((image, true));
        }
        let image = module::compile(source, &self.options).map_err(|e| match e {
            CompileFailure::Refused(log) => Error::new(ErrorKind::Compile { kernel: label.to_string(), log }),
            CompileFailure::Call(f) => f.into(),
        })?;
        self.cubins.put(&self.key, source, &image);
        Ok((image, false))
    }

    /// Lets go of modules that no kernel uses.
    pub fn trim(&self) {
        self.modules.lock().retain(|_, m| Arc::strong_count(m) > 1);
    }
}
