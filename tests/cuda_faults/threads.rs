//! Threads, devices and a shared folder of kernels.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use stepgraph::{CudaOptions, Device, KernelCache, Result, Tensor, Var, jit};

use crate::harness::{filled, values};
use crate::{device, open, turn};

/// One training run; with `traced`, as steps.
fn train(d: &Device, seed: u32, traced: bool) -> Result<Vec<f32>> {
    let w = Var::new(&filled(&[6, 6], seed, d))?;
    let x = filled(&[6, 6], seed + 1, d);
    let mut step = jit::Step::new();
    let mut out = Vec::new();
    for k in 0..20 {
        let rate = 0.1 / (k + 1) as f64;
        let body = || {
            let loss = x.matmul(&w.get())?.tanh()?.powi(2)?.mean(())?;
            let g = loss.backward()?;
            w.set(&w.get().sub(&g.get(&w).expect("a gradient").mul(rate)?)?)?;
            Ok(loss)
        };
        let loss = if traced { step.run(body)? } else { body()? };
        if k % 3 == 0 {
            out.push(loss.item()?);
        }
    }
    out.extend(values(&w.get()));
    Ok(out)
}

#[test]
fn two_threads_on_one_device_and_on_two() {
    let Some(_turn) = turn() else { return };
    let want: Vec<Vec<f32>> = (0..2).map(|t| train(&device(), 10 * t + 1, false).unwrap()).collect();
    for devices in [[0, 0], [0, 1]] {
        let opened: Vec<Device> = if devices == [0, 0] {
            let one = device();
            vec![one.clone(), one]
        } else {
            devices.iter().map(|&o| open(o, None).unwrap()).collect()
        };
        thread::scope(|scope| {
            for (t, d) in opened.iter().enumerate() {
                let want = &want;
                scope.spawn(move || assert_eq!(train(d, 10 * t as u32 + 1, true).unwrap(), want[t], "{devices:?}"));
            }
        });
    }
}

/// Giving memory and unused kernels back at any time disturbs nobody.
#[test]
fn one_thread_trims_while_another_trains() {
    let Some(_turn) = turn() else { return };
    let want = train(&device(), 1, false).unwrap();
    let d = device();
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                d.trim();
            }
        });
        let got: Result<Vec<_>> = (0..5).map(|_| train(&d, 1, true)).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(got.unwrap().iter().all(|g| *g == want));
    });
}

/// A step recorded on one thread is replayed on another, and its device's last holder is a third.
#[test]
fn a_replay_on_another_thread() {
    let Some(_turn) = turn() else { return };
    let before = cuda_sim::outstanding();
    {
        let d = device();
        let w = Var::new(&filled(&[6, 6], 1, &d)).unwrap();
        let x = filled(&[6, 6], 2, &d);
        let mut step = jit::Step::new();
        let (mut want, y) = (filled(&[6, 6], 1, &d), x.clone());
        let mut call = move || step.run(|| w.set(&x.matmul(&w.get())?.tanh()?)).map(|()| values(&w.get()));
        for _ in 0..3 {
            want = y.matmul(&want).unwrap().tanh().unwrap();
            assert_eq!(call().unwrap(), values(&want));
        }
        drop(d);
        let rest = thread::spawn(move || {
            for _ in 0..3 {
                want = y.matmul(&want).unwrap().tanh().unwrap();
                assert_eq!(call().unwrap(), values(&want));
            }
            drop((want, y));
            call
        });
        let call = rest.join().unwrap();
        thread::spawn(move || drop(call)).join().unwrap();
    }
    assert_eq!(cuda_sim::outstanding(), before);
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("stepgraph-faults-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect()
}

/// Kernels kept in a folder are compiled once; files that are damaged, empty, or of something else are made anew.
#[test]
fn a_shared_folder_of_kernels_is_repaired() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let at = folder("kernels");
    let on = |ordinal: u32| {
        let kernel_cache = KernelCache::At(at.clone());
        Device::cuda_with(&CudaOptions { ordinal, kernel_cache, ..CudaOptions::default() })
    };
    let compiled = || cuda_sim::counts().get("nvrtcCompileProgram").copied().unwrap_or(0);
    let mut before = compiled();
    let mut since = || compiled() - std::mem::replace(&mut before, compiled());
    let want = train(&on(0)?, 1, true)?;
    let all = since();
    assert!(all > 3, "{all}");
    let kept = files(&at);
    assert_eq!(kept.len() as u64, all);
    assert_eq!((train(&on(1)?, 1, true)?, since()), (want.clone(), 0), "the other device compiles nothing");
    // Files of each kind of damage; and one that is whole, but of another kernel.
    let images: Vec<Vec<u8>> = kept.iter().map(|p| fs::read(p).unwrap()).collect();
    for (i, path) in kept.iter().enumerate() {
        let image = &images[i];
        match i % 5 {
            0 => fs::write(path, &images[(i + 1) % images.len()]).unwrap(),
            1 => fs::write(path, &image[..image.len() / 2]).unwrap(),
            2 => fs::write(path, []).unwrap(),
            3 => {
                let mut image = image.clone();
                let middle = image.len() - 20;
                image[middle] ^= 0x40;
                fs::write(path, image).unwrap();
            }
            _ => fs::write(path, "not an image").unwrap(),
        }
    }
    assert_eq!((train(&on(0)?, 1, true)?, since()), (want.clone(), all), "all made anew");
    assert_eq!(kept.iter().map(|p| fs::read(p).unwrap()).collect::<Vec<_>>(), images, "repaired");
    // An image that the driver refuses although its file is whole.
    for nth in 1..=3 {
        cuda_sim::fail("cuModuleLoadData", nth, 200);
        assert_eq!((train(&on(0)?, 1, true)?, since()), (want.clone(), 1), "the one that was refused");
    }
    // Two at a time, from nothing.
    fs::remove_dir_all(&at).unwrap();
    thread::scope(|scope| {
        for ordinal in 0..2 {
            let (on, want) = (&on, &want);
            scope.spawn(move || assert_eq!(&train(&on(ordinal).unwrap(), 1, true).unwrap(), want));
        }
    });
    assert_eq!(files(&at), kept);
    fs::remove_dir_all(at).unwrap();
    Ok(())
}

/// A folder that cannot be written to costs nothing but time.
#[test]
fn a_folder_that_is_a_file() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let at = folder("file");
    fs::write(&at, "a file").unwrap();
    let options = CudaOptions { kernel_cache: KernelCache::At(at.clone()), ..CudaOptions::default() };
    let d = Device::cuda_with(&options)?;
    assert_eq!(values(&Tensor::from_slice(&[1f32, 2.0], [2], &d)?.mul(2.0)?), [2.0, 4.0]);
    assert_eq!(fs::read_to_string(&at).unwrap(), "a file");
    fs::remove_file(at).unwrap();
    Ok(())
}
