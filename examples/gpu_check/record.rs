//! A fixed program's calls of the driver, NVRTC and cuBLASLt, and what they returned; and whether another log of it tells the
//! same. A log made on a GPU shows whether the simulated driver answers as the real one does.

use stepgraph::backend::cuda::sys::calls;
use stepgraph::{CudaOptions, DType, Device, ErrorKind, KernelCache, Result, Tensor, Var, jit};

use crate::items::{self, Training};

/// Calls and statuses, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log(Vec<(String, u32)>);

/// Calls whose number depends on how fast the device is.
const TIMING: [&str; 2] = ["cuEventQuery", "cuEventSynchronize"];

/// Calls that succeed as often as a library wants workspace.
const MEMORY: [&str; 2] = ["cuMemAllocAsync", "cuMemFreeAsync"];

/// The program: it opens a device, computes eagerly, trains traced and frozen, keeps old values, feeds other batches, runs out
/// of memory, meets a bad index, and closes the device.
fn program() -> Result<()> {
    let options = CudaOptions { kernel_cache: KernelCache::Off, ..CudaOptions::default() };
    let device = &Device::cuda_with(&options)?;
    let x = Tensor::from_vec(items::uniform(1, 96, 1.0, 0.0), [8, 12], device)?;
    let w = Var::new(&Tensor::from_vec(items::uniform(2, 48, 1.0, 0.0), [12, 4], device)?)?;
    x.softmax(1)?.sum(0)?.to_vec::<f32>()?;
    x.matmul(&w.get())?.tanh()?.to_vec::<f32>()?;

    let mut step = jit::Step::new();
    let train = |x: &Tensor| -> Result<Tensor> {
        let loss = x.matmul(&w.get())?.powi(2)?.mean(())?;
        let gradients = loss.backward()?;
        if let Some(g) = gradients.get(&w) {
            w.set(&w.get().sub(&g.mul(0.1)?)?)?;
        }
        Ok(loss)
    };
    for k in 0..4 {
        let batch = Tensor::from_vec(items::uniform(k, 96, 1.0, 0.0), [8, 12], device)?;
        let old = w.get();
        step.run(|| train(&batch))?.item::<f32>()?;
        old.to_vec::<f32>()?;
    }
    let mut training = Training::new(8, device)?;
    let mut frozen = items::freeze(&mut jit::Step::new(), || training.run())?;
    for _ in 0..20 {
        frozen.replay()?;
    }
    frozen.replay()?[0].item::<f32>()?;

    // 4 TiB: more than any device has.
    match Tensor::zeros([1 << 40], DType::F32, device) {
        Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => {}
        Err(e) => return Err(e),
        Ok(_) => return Err(stepgraph::Error::bug("record", "4 TiB were allocated")),
    }
    let wrong = Tensor::from_vec(vec![99i64], [1], device)?;
    // An index out of range, told at the next read of the host.
    let told = x.index_select(0, &wrong)?.to_vec::<f32>().is_err();
    device.trim();
    device.synchronize()?;
    if told { Ok(()) } else { Err(stepgraph::Error::bug("record", "an index out of range was not told")) }
}

/// Runs the program and gives its log. Nothing else may use a CUDA device of this process meanwhile.
pub fn make() -> Result<Log> {
    calls::record();
    let ended = program();
    let log = calls::recorded().into_iter().map(|(call, status)| (call.to_string(), status)).collect();
    ended.map(|()| Log(log))
}

impl Log {
    /// One call a line, with its status; repeated lines as `call status times`.
    pub fn text(&self, header: &str) -> String {
        let mut out = format!("# {header}\n");
        for same in self.0.chunk_by(|a, b| a == b) {
            let (call, status) = &same[0];
            out += &match same.len() {
                1 => format!("{call} {status}\n"),
                n => format!("{call} {status} {n}\n"),
            };
        }
        out
    }

    /// The log of a text.
    pub fn parse(text: &str) -> std::result::Result<Log, String> {
        let mut calls = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.starts_with('#') && !l.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |k: usize| words.get(k).map_or(Ok(1), |w| w.parse::<u32>());
            match (words.len(), number(1), number(2)) {
                (2 | 3, Ok(status), Ok(times)) => {
                    calls.extend((0..times).map(|_| (words[0].to_string(), status)));
                }
                _ => return Err(format!("line {}: expected `call status` or `call status times`: {line}", i + 1)),
            }
        }
        Ok(Log(calls))
    }

    /// What two logs have in common on different devices: without what depends on time and on libraries' workspace; the
    /// compiler's calls, made on several threads at once, in the order of the alphabet.
    fn comparable(&self) -> Vec<&(String, u32)> {
        let depends = |c: &&(String, u32)| {
            let name = c.0.as_str();
            TIMING.contains(&name) || (MEMORY.contains(&name) && c.1 == 0)
        };
        let mut kept: Vec<&(String, u32)> = self.0.iter().filter(|c| !depends(c)).collect();
        let nvrtc = |c: &(String, u32)| c.0.starts_with("nvrtc");
        kept.chunk_by_mut(|a, b| nvrtc(a) == nvrtc(b)).filter(|run| nvrtc(run[0])).for_each(|run| run.sort());
        kept
    }

    /// Whether another log tells the same; where it does not, both at that place.
    pub fn same(&self, other: &Log) -> std::result::Result<(), String> {
        let (a, b) = (self.comparable(), other.comparable());
        let at = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        if at == a.len() && at == b.len() {
            return Ok(());
        }
        let around = |log: &[&(String, u32)]| {
            let part = &log[at.saturating_sub(3).min(log.len())..(at + 3).min(log.len())];
            part.iter().map(|(call, status)| format!("{call} {status}")).collect::<Vec<_>>().join(", ")
        };
        Err(format!("call {at} differs: … {} … and … {} …", around(&a), around(&b)))
    }
}
