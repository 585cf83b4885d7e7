//! Exponential moving averages.

use stepgraph::optim::{Ema, Sgd, SgdConfig};
use stepgraph::{Error, ErrorKind, Result, Tensor, Var};

use crate::harness::{Expect, assert_close, compare, own_device, values, vector};

/// The average against its recursion in double precision, eager, traced and frozen.
#[test]
fn follows_its_formula() {
    let device = &own_device();
    let log = compare(
        device,
        &Expect::steady(20).frozen(),
        || {
            let w = Var::new(&vector(&[1.0, -2.0], device))?;
            let ema = Ema::new(vec![w.clone()], 0.9)?;
            let sgd = Sgd::new(vec![w.clone()], SgdConfig { lr: 0.125, ..Default::default() })?;
            Ok((w, ema, sgd))
        },
        |_, _| Ok(()),
        |(w, ema, sgd), _, _| {
            sgd.step(&w.get().sum(())?.backward()?)?;
            ema.update()
        },
        |(w, ema, _)| vec![w.clone(), ema.named_state()[0].1.clone()],
    );
    let (mut p, mut a) = ([1.0f64, -2.0], [1.0f64, -2.0]);
    for k in 0..20 {
        p = p.map(|p| p - 0.125);
        a = [0, 1].map(|i| 0.9 * a[i] + 0.1 * p[i]);
        assert_close("the average", log.f32(k, 1), &a, 1e-6);
    }
}

#[test]
fn stands_in_and_is_put_back() {
    let device = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], device)).expect("a Var");
    let ema = Ema::new(vec![w.clone()], 0.5).expect("averages");
    w.set(&vector(&[3.0, 6.0], device)).expect("a write");
    ema.update().expect("an update");
    let seen = ema.averaged(|| Ok(values(&w.get()))).expect("a value");
    assert_eq!((seen, values(&w.get())), (vec![2.0, 4.0], vec![3.0, 6.0]));
    // An error and a panic put the parameters back, too.
    let failed: Result<()> = ema.averaged(|| Err(Error::new(ErrorKind::Backward { detail: "on purpose".into() })));
    assert!(failed.is_err());
    assert_eq!(values(&w.get()), [3.0, 6.0]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<()> = ema.averaged(|| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    assert_eq!(values(&w.get()), [3.0, 6.0]);
    let other = Var::new(&Tensor::full((), 1.0, device).expect("a number")).expect("a Var");
    assert!(ema.average(&other).is_none());
    assert_eq!(values(&ema.average(&w).expect("an average")), [2.0, 4.0]);
}
