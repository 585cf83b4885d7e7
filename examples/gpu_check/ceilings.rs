//! What the device can do at most, as far as it can be measured: copying memory, multiplying matrices.

use stepgraph::backend::cuda::CudaBackend;
use stepgraph::{DType, Device, Result, Rng, Tensor, jit};

use crate::Size;
use crate::items;
use crate::output::{Output, median, round};

/// Median seconds of device time of one replay of `f`.
fn replayed(device: &Device, times: usize, f: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut frozen = items::freeze(&mut jit::Step::new(), f)?;
    let mut seconds = Vec::new();
    for _ in 0..times {
        // Two in a row: the second starts when the first ends, not when the host gets to it.
        let (_, both) = device.time(|| {
            frozen.replay()?;
            frozen.replay().map(drop)
        })?;
        seconds.push(both.as_secs_f64() / 2.0);
    }
    Ok(median(&seconds))
}

fn copies(backend: &CudaBackend, device: &Device, size: Size, out: &Output) -> Result<()> {
    let sizes: &[usize] = match size {
        Size::Tiny => &[1 << 12],
        Size::Quick => &[1 << 28],
        Size::Full => &[1 << 26, 1 << 28, 1 << 30, 1 << 32],
    };
    let times = if size == Size::Full { 11 } else { 3 };
    for &bytes in sizes {
        let say = |what: &str, seconds: f64| {
            let rate = round(2.0 * bytes as f64 / seconds / 1e9);
            out.line(serde_json::json!({ "section": "ceilings", "what": what, "bytes": bytes, "gb_s": rate }));
            out.say(&format!("{what:<28} {:>6} MiB  {rate:>8} GB/s", bytes >> 20));
        };
        let seconds: Vec<f64> =
            (0..times).map(|_| Ok(backend.copy_time(bytes)?.as_secs_f64())).collect::<Result<_>>()?;
        say("copy by the driver", median(&seconds));
        let x = Tensor::ones([bytes / 4], DType::F32, device)?;
        say("copy by a kernel (negation)", replayed(device, times, || x.neg())?);
    }
    Ok(())
}

fn products(size: Size, out: &Output) -> Result<()> {
    let (sizes, times): (&[usize], usize) = match size {
        Size::Tiny => (&[16], 2),
        Size::Quick => (&[4096], 3),
        Size::Full => (&[4096, 8192], 11),
    };
    for (name, dtype, tf32) in [
        ("f32", DType::F32, false),
        ("tf32", DType::F32, true),
        ("bf16", DType::BF16, false),
        ("f16", DType::F16, false),
    ] {
        let device = crate::open(tf32)?;
        for &n in sizes {
            let rng = Rng::seed_from(1);
            let matrix = || rng.uniform([n, n], &device)?.sub(0.5)?.to_dtype(dtype);
            let (a, b) = (matrix()?, matrix()?);
            let seconds = replayed(&device, times, || a.matmul(&b))?;
            let rate = round(2.0 * (n as f64).powi(3) / seconds / 1e12);
            out.line(serde_json::json!({
                "section": "ceilings", "what": "matmul", "dtype": name, "n": n, "tflop_s": rate,
            }));
            out.say(&format!("matmul {name:<5} {n:>5}  {rate:>8} TFLOP/s"));
        }
    }
    Ok(())
}

/// Measures them.
pub fn run(backend: &CudaBackend, size: Size, out: &mut Output) {
    out.title("ceilings");
    let measured = crate::open(false).and_then(|device| copies(backend, &device, size, out));
    out.check("ceilings", "copies", measured.map_err(|e| e.to_string()));
    let measured = products(size, out);
    out.check("ceilings", "products", measured.map_err(|e| e.to_string()));
}
