use stepgraph::{
    Device, Result, Rng, Tensor, Var, jit,
    nn::{Linear, Module},
    optim,
};

#[test]
fn steps() -> Result<()> {
    let device = Device::cpu_with(&Default::default())?;
    let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    let y = (&x * &x)?.sum(())?;
    assert_eq!(y.item::<f32>()?, 30.0);
    let mut n = 0;
    let mut step = jit::trace(|| {
        n += 1;
        &x + n
    });
    for k in 1..=5 {
        let v = step.call()?.to_vec::<f32>()?;
        assert_eq!(v, [1.0 + k as f32, 2.0 + k as f32, 3.0 + k as f32, 4.0 + k as f32]);
    }
    println!("{}", step.report());
    println!("{:?}", device.counts());
    Ok(())
}

#[test]
fn lr() -> Result<()> {
    let device = Device::cpu_with(&Default::default())?;
    let w = Var::new(&Tensor::from_vec(vec![3.0f32], [1], &device)?)?;
    let mut step = jit::Step::new();
    let mut lr = 0.4;
    for _ in 0..6 {
        step.run(|| {
            let grads = w.get().sum(())?.backward()?;
            let g = grads.get(&w).unwrap();
            w.set(&(w.get() - &(g * lr)?)?)
        })?;
        lr /= 2.0;
        println!("{}", w.get());
    }
    println!("{}", step.report());
    assert!((w.get().item::<f32>()? - 2.2125).abs() < 1e-6);
    assert_eq!(device.counts().launches, 5);
    Ok(())
}

#[test]
fn mlp() -> Result<()> {
    let run = |traced: bool| -> Result<Vec<u32>> {
        let device = Device::cpu_with(&Default::default())?;
        let rng = Rng::seed_from(1);
        let (a, b) = (Linear::new(64, 128, &rng, &device)?, Linear::new(128, 10, &rng, &device)?);
        let mut params = a.parameters();
        params.extend(b.parameters());
        let mut adam = optim::Adam::new(params.clone(), Default::default())?;
        let x = rng.uniform([32, 64], &device)?;
        let y = Tensor::from_vec((0..32).map(|i| i % 10).collect::<Vec<i64>>(), [32], &device)?;
        let mut step = jit::Step::new();
        let mut out = vec![];
        for _ in 0..10 {
            let mut f = || {
                let loss = b.forward(&a.forward(&x)?.relu()?)?.cross_entropy(&y)?;
                adam.step(&loss.backward()?)?;
                Ok(loss)
            };
            let loss = if traced { step.run(f)? } else { f()? };
            out.push(loss.item::<f32>()?.to_bits());
        }
        for v in params.iter().chain(&adam.state()) {
            out.push(
                v.get()
                    .to_host()?
                    .data
                    .to_f64()
                    .iter()
                    .map(|x| (*x as f32).to_bits())
                    .fold(0, |a, b| a.rotate_left(3) ^ b),
            );
        }
        if traced {
            println!("{}\n{:?}", step.report(), device.counts());
        }
        Ok(out)
    };
    let (e, t) = (run(false)?, run(true)?);
    println!("{:?}", e.iter().map(|b| f32::from_bits(*b)).take(10).collect::<Vec<_>>());
    assert_eq!(e, t);
    Ok(())
}
