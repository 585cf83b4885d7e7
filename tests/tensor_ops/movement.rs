//! Views backwards, pieces, paddings.

use super::*;
use stepgraph::DType;

#[test]
fn backwards() {
    let x = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    assert_eq!(numbers(|| x.flip(1)), [3., 2., 1., 6., 5., 4.]);
    assert_eq!(numbers(|| x.flip(-2)), [4., 5., 6., 1., 2., 3.]);
    assert_eq!(numbers(|| x.flip([0, 1])), [6., 5., 4., 3., 2., 1.]);
    assert_eq!(numbers(|| x.flip(())?.flip(())), [1., 2., 3., 4., 5., 6.]);
    assert_eq!(numbers(|| x.flip(1)?.add(&x)), [4., 4., 4., 10., 10., 10.]);
    assert_eq!(numbers(|| x.flip(1)?.sum(0)), [9., 7., 5.]);
    let v = Tensor::arange(0.0, 10.0, &cpu()).unwrap();
    // As numpy's v[8:1:-3], v[9::-4], v[2::-1].
    assert_eq!(numbers(|| v.slice_step(0, 8, 3, -3)), [8., 5., 2.]);
    assert_eq!(numbers(|| v.slice_step(0, 9, 3, -4)), [9., 5., 1.]);
    assert_eq!(numbers(|| v.slice_step(0, 2, 3, -1)), [2., 1., 0.]);
    assert_eq!(numbers(|| v.slice_step(0, 7, 1, -100)), [7.]);
    assert_eq!(numbers(|| v.slice_step(0, 10, 0, -1)), [0.0; 0]);
    assert!(message(v.slice_step(0, 2, 4, -1)).contains("4 from 2 in steps of -1"));
    assert!(message(v.slice_step(0, 10, 1, -1)).contains("a range within the 10 elements of axis 0"));
    assert!(message(v.slice_step(0, 0, 1, 0)).contains("its step not 0"));
    assert!(message(v.slice_step(0, 9, 3, isize::MIN)).contains("a range within"));
    assert!(message(x.flip(2)).contains("flip: expected an axis in -2..2"));
}

#[test]
fn slopes_backwards() {
    let x = f32s(&[2, 3], &[0.0; 6]);
    assert_eq!(gradient(&x, |x| x.flip(1)), [3., 2., 1., 6., 5., 4.]);
    let v = f32s(&[7], &[0.0; 7]);
    assert_eq!(gradient(&v, |v| v.slice_step(0, 6, 3, -2)), [0., 0., 3., 0., 2., 0., 1.]);
    assert_eq!(gradient(&v, |v| v.slice_step(0, 4, 3, -1)), [0., 0., 3., 2., 1., 0., 0.]);
    assert_eq!(gradient(&v, |v| v.roll(0, 2)?.flip(0)), [5., 4., 3., 2., 1., 7., 6.]);
}

/// A view that runs backwards in its buffer, given to a step from outside: its lowest element is not its first.
#[test]
fn backward_views_as_inputs() {
    let data = Tensor::arange(0.0, 60.0, &cpu()).unwrap().reshape([15, 4]).unwrap();
    let mut step = jit::Step::new();
    let mut kept = Vec::new();
    for k in 0..6 {
        // Another place in the buffer at each call.
        let batch = data.slice_step(0, 14 - k, 3, -1).unwrap().flip(1).unwrap();
        let out = step.run(|| Ok((batch.mul(2.0)?, batch.slice(0, 1, 2)?, batch.t()?.matmul(&batch)?))).unwrap();
        kept.push((k, out));
    }
    for (k, (double, view, gram)) in kept {
        let element = |r: usize, c: usize| ((14 - k - r) * 4 + 3 - c) as f32;
        let rows: Vec<f32> = (0..3).flat_map(|r| (0..4).map(move |c| element(r, c))).collect();
        assert_eq!(double.to_vec::<f32>().unwrap(), rows.iter().map(|v| v * 2.0).collect::<Vec<_>>());
        assert_eq!(view.to_vec::<f32>().unwrap(), rows[4..]);
        let product = |i: usize, j: usize| (0..3).map(|r| element(r, i) * element(r, j)).sum::<f32>();
        let want: Vec<f32> = (0..4).flat_map(|i| (0..4).map(move |j| product(i, j))).collect();
        assert_eq!(gram.to_vec::<f32>().unwrap(), want);
    }
    assert_eq!(step.report().paths, 1, "{}", step.report());
    // And as the value of a Var, which is then replaced.
    let var = Var::state(&data.flip(0).unwrap()).unwrap();
    let mut step = jit::Step::new();
    for _ in 0..5 {
        step.run(|| var.set(&var.get().add(1.0)?)).unwrap();
    }
    assert_eq!(var.get().to_vec::<f32>().unwrap()[..5], [61., 62., 63., 64., 57.]);
}

#[test]
fn pieces() {
    let x = Tensor::arange(0, 10, &cpu()).unwrap();
    let sizes = |parts: Vec<Tensor>| parts.iter().map(|t| t.numel()).collect::<Vec<_>>();
    // torch.chunk(arange(10), 4): 3, 3, 3, 1; of 6 in 4: 2, 2, 2.
    assert_eq!(sizes(x.chunk(0, 4).unwrap()), [3, 3, 3, 1]);
    assert_eq!(sizes(x.slice(0, 0, 6).unwrap().chunk(0, 4).unwrap()), [2, 2, 2]);
    assert_eq!(sizes(x.split(0, 4).unwrap()), [4, 4, 2]);
    assert_eq!(sizes(x.split(0, 20).unwrap()), [10]);
    assert_eq!(sizes(x.slice(0, 0, 0).unwrap().split(0, 3).unwrap()), [0]);
    let parts = x.split_sizes(0, &[1, 0, 9]).unwrap();
    assert_eq!(parts[2].to_vec::<i64>().unwrap(), (1..10).collect::<Vec<i64>>());
    let m = filled(&[3, 6], 0);
    let (values, _) = both(|| m.chunk(-1, 3)?.iter().map(|t| t.mul(1.0)).collect());
    let source = m.to_vec::<f32>().unwrap();
    for (k, v) in values.iter().enumerate() {
        let want: Vec<f64> =
            (0..3).flat_map(|r| [source[r * 6 + 2 * k], source[r * 6 + 2 * k + 1]].map(f64::from)).collect();
        assert_eq!(v.data.to_f64(), want);
    }
    let again = Tensor::concat(&m.chunk(1, 4).unwrap().iter().collect::<Vec<_>>(), 1).unwrap();
    assert_eq!(again.to_vec::<f32>().unwrap(), source);
    assert!(message(x.split(0, 0)).contains("pieces of at least one element"));
    assert!(message(x.chunk(0, 0)).contains("at least one piece"));
    assert!(message(x.split_sizes(0, &[4, 5])).contains("sizes that add up to 10"));
    assert!(message(x.split_sizes(0, &[usize::MAX, 11])).contains("sizes that add up to 10"));
    assert!(message(x.split(1, 2)).contains("split: expected an axis in -1..1"));
}

/// Where pieces begin is fixed by shapes; another cut is another path, not a stale one.
#[test]
fn another_cut_is_another_path() {
    let x = Tensor::arange(0.0, 8.0, &cpu()).unwrap();
    let mut step = jit::Step::new();
    for k in 0..12 {
        let sizes = if k % 2 == 0 { [2, 2, 4] } else { [4, 2, 2] };
        let shift = 1 + k % 2;
        let got = step
            .run(|| Ok((x.split_sizes(0, &sizes)?[1].mul(1.0)?, x.roll(0, shift)?.slice(0, k as usize / 3, 2)?)))
            .unwrap();
        let first = sizes[0] as f32;
        assert_eq!(got.0.to_vec::<f32>().unwrap(), [first, first + 1.0]);
        let rolled = |i: isize| (i + k / 3 - shift).rem_euclid(8) as f32;
        assert_eq!(got.1.to_vec::<f32>().unwrap(), [rolled(0), rolled(1)]);
    }
    // A fixed start where a host number was: not the same op.
    let mut step = jit::Step::new();
    for k in 0..8 {
        let got = step.run(|| if k % 2 == 0 { x.slice(0, k, 4) } else { Ok(x.chunk(0, 2)?[0].clone()) }).unwrap();
        let from = if k % 2 == 0 { k as f32 } else { 0.0 };
        assert_eq!(got.to_vec::<f32>().unwrap()[0], if k % 2 == 0 { from } else { 0.0 }, "call {k}");
        if k >= 4 {
            break;
        }
    }
}

#[test]
fn stacks() {
    let (a, b) = (f32s(&[2], &[1., 2.]), f32s(&[2], &[3., 4.]));
    assert_eq!(numbers(|| Tensor::stack(&[&a, &b], 0)), [1., 2., 3., 4.]);
    assert_eq!(numbers(|| Tensor::stack(&[&a, &b], -1)), [1., 3., 2., 4.]);
    assert_eq!(Tensor::stack(&[&a, &b, &a], 1).unwrap().dims(), [2, 3]);
    assert_eq!(Tensor::stack(&[&f32s(&[], &[1.0])], 0).unwrap().dims(), [1]);
    assert!(message(Tensor::stack(&[], 0)).contains("stack: expected at least one tensor"));
    assert!(message(Tensor::stack(&[&a, &f32s(&[1], &[0.])], 0)).contains("stack: expected tensors of one shape, [2]"));
    assert!(message(Tensor::stack(&[&a, &b], 2)).contains("an axis in -2..2"));
}

#[test]
fn rolls() {
    let x = f32s(&[2, 4], &[0., 1., 2., 3., 4., 5., 6., 7.]);
    // torch.roll(x, 1, 1), (x, -1, 1), (x, 5, 1), (x, 1, 0).
    assert_eq!(numbers(|| x.roll(1, 1)), [3., 0., 1., 2., 7., 4., 5., 6.]);
    assert_eq!(numbers(|| x.roll(1, -1)), [1., 2., 3., 0., 5., 6., 7., 4.]);
    assert_eq!(numbers(|| x.roll(1, 5)), [3., 0., 1., 2., 7., 4., 5., 6.]);
    assert_eq!(numbers(|| x.roll(0, 1)), [4., 5., 6., 7., 0., 1., 2., 3.]);
    assert_eq!(numbers(|| x.roll(0, isize::MIN)), [0., 1., 2., 3., 4., 5., 6., 7.]);
    assert_eq!(Tensor::zeros([0, 2], DType::F32, &cpu()).unwrap().roll(0, 3).unwrap().dims(), [0, 2]);
}

#[test]
fn paddings() {
    let x = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    assert_eq!(numbers(|| x.pad(1, 1, 2, 0.0)), [0., 1., 2., 3., 0., 0., 0., 4., 5., 6., 0., 0.]);
    assert_eq!(numbers(|| x.pad(0, 1, 0, -1.5)), [-1.5, -1.5, -1.5, 1., 2., 3., 4., 5., 6.]);
    assert_eq!(numbers(|| x.pad(0, 0, 0, 7.0)), [1., 2., 3., 4., 5., 6.]);
    // torch.nn.functional.pad(x, (2, 1), mode='reflect') and 'replicate'.
    assert_eq!(numbers(|| x.pad_reflect(1, 2, 1)), [3., 2., 1., 2., 3., 2., 6., 5., 4., 5., 6., 5.]);
    assert_eq!(numbers(|| x.pad_replicate(-1, 2, 1)), [1., 1., 1., 2., 3., 3., 4., 4., 4., 5., 6., 6.]);
    assert_eq!(gradient(&x, |x| x.pad(1, 1, 1, 5.0)), [2., 3., 4., 7., 8., 9.]);
    assert_eq!(gradient(&f32s(&[3], &[0.; 3]), |x| x.pad_reflect(0, 1, 2)), [2. + 6., 3. + 1. + 5., 4.]);
    assert_eq!(gradient(&f32s(&[2], &[0.; 2]), |x| x.pad_replicate(0, 2, 1)), [1. + 2. + 3., 4. + 5.]);
    let i = i64s(&[2], &[1, 2]);
    assert_eq!(i.pad(0, 1, 1, 9).unwrap().to_vec::<i64>().unwrap(), [9, 1, 2, 9]);
    assert!(message(i.pad(0, 1, 1, 0.5)).contains("a host number that i64 can hold"));
    assert!(message(x.pad_reflect(1, 3, 0)).contains("paddings below 3"));
    assert!(message(x.pad(2, 1, 1, 0.0)).contains("pad: expected an axis in -2..2"));
    // The value is a host number: another one at each call.
    let mut step = jit::Step::new();
    for k in 0..6 {
        let y = step.run(|| x.pad(0, 1, 0, k as f32)).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap()[..3], [k as f32; 3]);
    }
    assert_eq!(step.report().paths, 1);
    assert_eq!(kernels(|| x.mul(3.0)?.pad(1, 1, 1, 3.0)?.mul(2.0)), 1, "a padding is fused");
}

#[test]
fn repeats() {
    let x = f32s(&[2, 2], &[1., 2., 3., 4.]);
    // torch's x.repeat(2, 1), x.repeat(1, 2), x.repeat(2, 1, 1), repeat_interleave(x, 2, dim=1).
    assert_eq!(numbers(|| x.repeat(&[2, 1])), [1., 2., 3., 4., 1., 2., 3., 4.]);
    assert_eq!(numbers(|| x.repeat(&[1, 2])), [1., 2., 1., 2., 3., 4., 3., 4.]);
    assert_eq!(x.repeat(&[2, 1, 1]).unwrap().dims(), [2, 2, 2]);
    assert_eq!(numbers(|| x.repeat_interleave(1, 2)), [1., 1., 2., 2., 3., 3., 4., 4.]);
    assert_eq!(numbers(|| x.repeat_interleave(0, 2)), [1., 2., 1., 2., 3., 4., 3., 4.]);
    assert_eq!(x.repeat(&[0, 3]).unwrap().dims(), [0, 6]);
    assert!(message(x.repeat(&[2])).contains("at least 2 counts"));
    assert_eq!(filled(&[2, 3, 4], 0).movedim(0, -1).unwrap().dims(), [3, 4, 2]);
    assert_eq!(filled(&[2, 3, 4], 0).movedim(2, 0).unwrap().dims(), [4, 2, 3]);
}

#[test]
fn picks() {
    let x = Tensor::arange(0.0, 24.0, &cpu()).unwrap().reshape([2, 3, 4]).unwrap();
    assert_eq!(numbers(|| x.i(1)?.i(2)), [20., 21., 22., 23.]);
    assert_eq!(numbers(|| x.i((.., 1, 2..))), [6., 7., 18., 19.]);
    assert_eq!(numbers(|| x.i((-1, ..2, ..=0))), [12., 16.]);
    assert_eq!(numbers(|| x.i((0usize, -1isize, 1))), [9.]);
    assert_eq!(x.i((.., 1..1)).unwrap().dims(), [2, 0, 4]);
    assert_eq!(x.narrow(2, 1, 2).unwrap().dims(), [2, 3, 2]);
    assert!(message(x.i((0, 3))).contains("i: expected an element of the 3 of axis 1, got 3"));
    assert!(message(x.i(-3)).contains("an element of the 2 of axis 0, got -3"));
    assert!(message(x.i(usize::MAX)).contains("an element of the 2 of axis 0"));
    assert!(message(x.i((.., 2..5))).contains("a range within the 3 elements of axis 1, got 2..5"));
    assert!(message(x.i((0, 0, 0, 0))).contains("at most 3 picks"));
    let mut step = jit::Step::new();
    for k in 0..6 {
        let y = step.run(|| x.i((k % 2, .., k % 4))?.mul(1.0)).unwrap();
        let first = (k % 2 * 12 + k % 4) as f32;
        assert_eq!(y.to_vec::<f32>().unwrap(), [first, first + 4.0, first + 8.0]);
    }
    assert_eq!(step.report().paths, 1, "where they begin is no part of the path");
}
