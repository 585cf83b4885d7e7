//! Values get to the device and back; ops, products and steps compute there.

use stepgraph::{DType, Device, Result, Tensor, Var, jit};

use crate::harness::{filled, own_device, values, vector};
use crate::ready;

#[test]
fn values_come_back() {
    if !ready() {
        return;
    }
    let d = &own_device();
    assert_eq!(d.name(), "cuda:0");
    assert_eq!(values(&vector(&[1.0, -2.5, 3.0], d)), [1.0, -2.5, 3.0]);
    assert!(values(&Tensor::zeros([0], DType::F32, d).unwrap()).is_empty());
}

#[test]
fn an_op_and_a_product() -> Result<()> {
    if !ready() {
        return Ok(());
    }
    let (d, c) = (&own_device(), &Device::cpu());
    let on = |d: &Device| -> Result<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let (a, b) = (filled(&[5, 7], 1, d), filled(&[7, 9], 2, d));
        Ok((values(&(&a * 2.0)?.exp()?), values(&a.matmul(&b)?), values(&a.softmax(1)?)))
    };
    assert_eq!(on(d)?, on(c)?);
    Ok(())
}

#[test]
fn a_step_is_one_launch() -> Result<()> {
    if !ready() {
        return Ok(());
    }
    let on = |d: &Device| -> Result<Vec<f32>> {
        let (x, w) = (filled(&[8, 4], 1, d), Var::new(&filled(&[4, 3], 2, d))?);
        let mut step = jit::Step::new();
        let mut losses = Vec::new();
        for _ in 0..5 {
            let loss = step.run(|| {
                let loss = x.matmul(&w.get())?.powi(2)?.mean(())?;
                let g = loss.backward()?;
                w.set(&w.get().sub(&g.get(&w).unwrap().mul(0.1)?)?)?;
                Ok(loss)
            })?;
            losses.push(loss.item::<f32>()?);
        }
        losses.extend(values(&w.get()));
        Ok(losses)
    };
    assert_eq!(on(&own_device())?, on(&Device::cpu())?);
    Ok(())
}
