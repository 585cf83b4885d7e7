//! Little memory, and values that many launches under way must not touch.

use stepgraph::base::HostValue;
use stepgraph::{Device, Error, ErrorKind, Result, Tensor, Var, jit};

use crate::harness::{filled, scalar, values, vector};
use crate::{device, open, turn};

fn count(call: &str) -> u64 {
    cuda_sim::counts().get(call).copied().unwrap_or(0)
}

#[track_caller]
fn assert_out_of_memory(e: &Error, least: usize, says_free: bool) {
    let ErrorKind::OutOfMemory { need, live, free, holders, .. } = e.kind() else { panic!("{e}") };
    assert!(*need >= least && *live > 0, "{e}");
    assert!(!holders.is_empty(), "{e}");
    assert_eq!(free.is_some(), says_free, "{e}");
}

/// What is kept for later goes before memory is said to be out.
#[test]
fn what_is_kept_is_given_back_first() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    for limit in [None, Some(1 << 20)] {
        let d = &open(0, limit)?;
        cuda_sim::set_memory_limit(if limit.is_none() { 1 << 20 } else { 8 << 30 });
        let kept = filled(&[50_000], 1, d);
        drop((filled(&[60_000], 2, d), filled(&[61_000], 3, d)));
        assert!(d.memory().cached > 400_000);
        let before = count("cuMemFreeAsync");
        let large = filled(&[150_000], 4, d);
        assert!(count("cuMemFreeAsync") > before);
        assert_eq!(d.memory().cached, 0);
        let e = Tensor::from_slice(&vec![1f32; 150_000], [150_000], d).expect_err("no memory");
        assert_out_of_memory(&e, 600_000, true);
        // The largest holder first.
        let ErrorKind::OutOfMemory { holders, limit: told, .. } = e.kind() else { unreachable!() };
        assert!(holders[0].starts_with("1 of 6"), "{holders:?}");
        assert_eq!(*told, limit);
        drop(large);
        assert_eq!(values(&filled(&[150_000], 4, d)), values(&filled(&[150_000], 4, &Device::cpu())));
        assert_eq!(values(&kept), values(&filled(&[50_000], 1, &Device::cpu())));
        cuda_sim::set_memory_limit(8 << 30);
    }
    Ok(())
}

/// A step for which there is no memory fails, and is right once there is some: at its recording, when it is compiled, at a
/// launch.
#[test]
fn a_step_goes_on_when_memory_is_there_again() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let n = 40_000;
    let body = |w: &Var, x: &Tensor| -> Result<(Tensor, Tensor)> {
        let y = (&w.get() * x)?.sin()?;
        let z = y.cumsum(0)?;
        w.set(&(w.get() + (&z * 1e-3)?)?)?;
        Ok((y, z))
    };
    let host = |t: &Tensor| t.to_host();
    let want: Vec<[HostValue; 3]> = {
        let d = &device();
        let (w, x) = (Var::new(&filled(&[n], 1, d))?, filled(&[n], 2, d));
        (0..4)
            .map(|_| {
                let (y, z) = body(&w, &x)?;
                Ok([host(&y)?, host(&z)?, host(&w.get())?])
            })
            .collect::<Result<_>>()?
    };
    for failing in 0..4 {
        let d = &open(0, Some(8 << 20))?;
        let (w, x) = (Var::new(&filled(&[n], 1, d))?, filled(&[n], 2, d));
        let mut step = jit::Step::new();
        for (k, want) in want.iter().enumerate() {
            if k == failing {
                d.trim();
                let hog = || Tensor::from_slice(&vec![0u8; 1 << 16], [1 << 16], d).ok();
                let hogs: Vec<Tensor> = std::iter::from_fn(hog).collect();
                let e = step.run(|| body(&w, &x)).expect_err("no memory");
                assert_out_of_memory(&e, 1, true);
                drop(hogs);
            }
            let (y, z) = step.run(|| body(&w, &x))?;
            assert_eq!([host(&y)?, host(&z)?, host(&w.get())?], *want, "call {k}, without memory at {failing}");
        }
    }
    Ok(())
}

/// More launches under way than there are slots for their parameters; their outputs are held meanwhile.
#[test]
fn forty_launches_under_way() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let d = &device();
    let run = |traced: bool, read: bool| -> Result<Vec<Vec<f32>>> {
        let w = Var::new(&filled(&[5, 5], 1, d))?;
        let x = filled(&[5, 5], 2, d);
        let mut step = jit::Step::new();
        let mut outputs = Vec::new();
        for k in 0..40 {
            let rate = 0.01 * (k + 1) as f64;
            let body = || {
                let y = x.matmul(&w.get())?.tanh()?;
                w.set(&w.get().sub(&y.mul(rate)?)?)?;
                Ok(y)
            };
            let y = if traced { step.run(body)? } else { body()? };
            if read {
                d.synchronize()?;
            }
            outputs.push(y);
        }
        if traced {
            assert_eq!((step.report().recorded, step.report().launches), (1, 39));
        }
        outputs.push(w.get());
        Ok(outputs.iter().map(values).collect())
    };
    let want = run(false, true)?;
    for seed in 1..4 {
        cuda_sim::set_order_seed(seed);
        let waited = count("cuEventSynchronize");
        assert_eq!(run(true, false)?, want, "order {seed}");
        assert!(count("cuEventSynchronize") > waited, "the slots were all under way");
    }
    Ok(())
}

/// A `Var`'s value that is held across launches stays; it is moved away once, not at each launch.
#[test]
fn a_held_snapshot_stays() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let d = &device();
    let w = Var::new(&vector(&[1.0, 2.0, 3.0], d))?;
    let one = scalar(1.0, d);
    let mut step = jit::Step::new();
    let mut call = || step.run(|| w.set(&w.get().add(&one)?));
    for _ in 0..3 {
        call()?;
    }
    let before = count("cuMemcpyDtoDAsync_v2");
    let held = w.get();
    for _ in 0..5 {
        call()?;
    }
    assert_eq!(count("cuMemcpyDtoDAsync_v2") - before, 1, "one move");
    assert_eq!(values(&held), [4.0, 5.0, 6.0]);
    let again = w.get();
    call()?;
    assert_eq!(count("cuMemcpyDtoDAsync_v2") - before, 2);
    assert_eq!((values(&held), values(&again)), (vec![4.0, 5.0, 6.0], vec![9.0, 10.0, 11.0]));
    assert_eq!(values(&w.get()), [10.0, 11.0, 12.0]);
    Ok(())
}
