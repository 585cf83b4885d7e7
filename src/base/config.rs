//! The environment variables the library honours; the only place that reads them.
//!
//! | variable | meaning |
//! |---|---|
//! | `STEPGRAPH_THREADS` | number of CPU threads a kernel may use (default: all the process may run on) |
//! | `STEPGRAPH_ISA` | `avx512`, `avx2` or `portable`: forces an instruction set (default: the best there is) |
//! | `STEPGRAPH_DUMP` | a folder: graphs, plans and machine code are written there as text |
//! | `STEPGRAPH_DISPATCH` | `loop`: the interpreting dispatcher instead of the compiled one |
//! | `STEPGRAPH_CUDA_LIBS` | folders that hold NVRTC and cuBLASLt, separated by `:`, where the loader does not find them |
//! | `STEPGRAPH_CACHE` | a folder for compiled kernels (default: `stepgraph` in `XDG_CACHE_HOME` or `~/.cache`); `off`: none |
//! | `CUDA_HOME`, `CUDA_PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX` | where toolkits and Python packages of NVIDIA's lie |
//! | `STEPGRAPH_LOG` | filter of the log that the examples print |

use std::path::PathBuf;
use std::sync::OnceLock;

/// Values read once, at first use.
#[derive(Debug, Default, Clone)]
pub struct Config {
    pub threads: Option<usize>,
    pub isa: Option<String>,
    pub dump: Option<PathBuf>,
    pub dispatch_loop: bool,
    pub log: Option<String>,
    /// Folders with NVIDIA's libraries.
    pub cuda_libs: Vec<PathBuf>,
    /// Roots of CUDA toolkits.
    pub cuda_homes: Vec<PathBuf>,
    /// Roots of Python environments.
    pub python_envs: Vec<PathBuf>,
    /// Where compiled kernels are kept.
    pub cache: Option<PathBuf>,
}

/// The process's configuration.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        Config {
            threads: var("STEPGRAPH_THREADS").and_then(|v| match v.parse() {
                Ok(n) if n > 0 => Some(n),
                _ => {
                    tracing::warn!("STEPGRAPH_THREADS is `{v}`, not a number of threads: it is ignored");
                    None
                }
            }),
            isa: var("STEPGRAPH_ISA"),
            dump: var("STEPGRAPH_DUMP").map(PathBuf::from),
            dispatch_loop: var("STEPGRAPH_DISPATCH").is_some_and(|v| v == "loop"),
            log: var("STEPGRAPH_LOG"),
            cuda_libs: var("STEPGRAPH_CUDA_LIBS").iter().flat_map(|v| std::env::split_paths(v)).collect(),
            cuda_homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var).map(PathBuf::from).collect(),
            python_envs: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(var).map(PathBuf::from).collect(),
            cache: match var("STEPGRAPH_CACHE") {
                Some(v) if v == "off" => None,
                Some(v) => Some(PathBuf::from(v)),
                None => var("XDG_CACHE_HOME")
                    .map(PathBuf::from)
                    .or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache")))
                    .map(|c| c.join("stepgraph")),
            },
        }
    })
}
