//! Pooling against loops over every index.

use stepgraph::nn::Pooling;
use stepgraph::{Tensor, Var, jit};

use crate::check::{Check, some};
use crate::harness::{own_device, values, vector};

/// The elements in each window of `[lead.., h, w]`; `None` where it is padding. What lies beyond the padding is left out.
fn windows(v: &[f64], [h, w]: [usize; 2], o: &Pooling<2>) -> Vec<Vec<Option<f64>>> {
    let padded: Vec<usize> = (0..2).map(|d| [h, w][d] + 2 * o.padding[d]).collect();
    // Where windows begin: within the padded axis; with `ceil` the last one may reach beyond, if it begins before the padding at the end.
    let begins = |d: usize| -> Vec<usize> {
        let reach = o.dilation[d] * (o.size[d] - 1) + 1;
        let fits = |at: usize| at + reach <= padded[d];
        let ceil = |at: usize| o.ceil && at < [h, w][d] + o.padding[d] && (at == 0 || fits(at - o.stride[d]));
        (0..padded[d]).step_by(o.stride[d]).filter(|&at| fits(at) || ceil(at)).collect()
    };
    let (rows, columns) = (begins(0), begins(1));
    let mut out = Vec::new();
    for plane in v.chunks(h * w) {
        for (y, x) in rows.iter().flat_map(|y| columns.iter().map(move |x| (y, x))) {
            let element = |(a, b): (usize, usize)| {
                let (row, column) = (y + a * o.dilation[0], x + b * o.dilation[1]);
                if row >= padded[0] || column >= padded[1] {
                    return None;
                }
                let (row, column) = (row.checked_sub(o.padding[0]), column.checked_sub(o.padding[1]));
                let inside = row.zip(column).filter(|&(row, column)| row < h && column < w);
                Some(inside.map(|(row, column)| plane[row * w + column]))
            };
            out.push((0..o.size[0]).flat_map(|a| (0..o.size[1]).map(move |b| (a, b))).filter_map(element).collect());
        }
    }
    out
}

fn forms() -> [Pooling<2>; 9] {
    [
        Pooling::new([2, 2]),
        Pooling { stride: [2, 1], ..Pooling::new([3, 2]) },
        Pooling { stride: [2, 2], padding: [1, 1], ..Pooling::new([3, 3]) },
        Pooling { padding: [0, 1], dilation: [2, 1], stride: [1, 3], ..Pooling::new([2, 3]) },
        Pooling { padding: [1, 0], count_padding: false, ..Pooling::new([2, 2]) },
        Pooling { ceil: true, ..Pooling::new([2, 2]) },
        Pooling { ceil: true, stride: [2, 2], padding: [1, 1], count_padding: false, ..Pooling::new([3, 3]) },
        Pooling { ceil: true, stride: [4, 3], padding: [1, 0], ..Pooling::new([3, 2]) },
        Pooling { ceil: true, stride: [3, 2], padding: [0, 1], dilation: [2, 1], ..Pooling::new([2, 3]) },
    ]
}

#[test]
fn avg_pool2d() {
    let device = &own_device();
    for o in forms() {
        let formula = |v: &[Vec<f64>]| {
            let mean = |w: Vec<Option<f64>>| {
                let there: Vec<f64> = w.iter().flatten().copied().collect();
                there.iter().sum::<f64>() / if o.count_padding { w.len() } else { there.len() } as f64
            };
            windows(&v[0], [6, 7], &o).into_iter().map(mean).collect()
        };
        Check::new("avg_pool2d", vec![some(&[2, 3, 6, 7], 1, device)], &formula).run(device, |v| v[0].avg_pool2d(&o));
    }
}

#[test]
fn max_pool2d() {
    let device = &own_device();
    for o in forms() {
        let formula = |v: &[Vec<f64>]| {
            let largest = |w: Vec<Option<f64>>| w.into_iter().flatten().fold(f64::NEG_INFINITY, f64::max);
            windows(&v[0], [6, 7], &o).into_iter().map(largest).collect()
        };
        Check::new("max_pool2d", vec![some(&[2, 3, 6, 7], 1, device)], &formula).run(device, |v| v[0].max_pool2d(&o));
    }
}

/// Windows that reach beyond the end, against PyTorch 2.15's `ceil_mode`: the maxima, and the means with and without the padding.
#[test]
fn windows_that_reach_beyond_the_end() {
    let device = &own_device();
    type Row = (usize, [usize; 3], &'static [f32], &'static [f32], &'static [f32]);
    let rows: [Row; 5] = [
        (5, [2, 2, 0], &[2.0, 4.0, 5.0], &[1.5, 3.5, 5.0], &[1.5, 3.5, 5.0]),
        (1, [2, 2, 0], &[1.0], &[1.0], &[1.0]),
        (4, [3, 2, 1], &[2.0, 4.0, 4.0], &[1.0, 3.0, 2.0], &[1.5, 3.0, 4.0]),
        (7, [3, 3, 1], &[2.0, 5.0, 7.0], &[1.0, 4.0, 13.0 / 3.0], &[1.5, 4.0, 6.5]),
        (5, [3, 4, 1], &[2.0, 5.0], &[1.0, 3.0], &[1.5, 4.5]),
    ];
    for (len, [size, stride, padding], most, with, without) in rows {
        let x = vector(&(1..=len).map(|i| i as f32).collect::<Vec<_>>(), device).reshape([1, 1, len]).expect("a row");
        let o = Pooling { ceil: true, stride: [stride], padding: [padding], ..Pooling::new([size]) };
        assert_eq!(values(&x.max_pool1d(&o).expect("maxima")), most, "{o:?}");
        assert_eq!(values(&x.avg_pool1d(&o).expect("means")), with, "{o:?}");
        let o = Pooling { count_padding: false, ..o };
        assert_eq!(values(&x.avg_pool1d(&o).expect("means")), without, "{o:?}");
    }
    // A window that would begin in the padding at the end is none, nor is one of a stride less.
    let x = vector(&[1.0, 2.0], device).reshape([1, 1, 2]).expect("a row");
    let o = Pooling { ceil: true, padding: [1], ..Pooling::new([3]) };
    assert_eq!(values(&x.max_pool1d(&o).expect("maxima")), [2.0]);
    let o = Pooling { ceil: true, stride: [1], ..Pooling::new([4]) };
    assert!(x.max_pool1d(&o).is_err_and(|e| e.to_string().contains("within 2 elements")));
}

/// Ties, NaN, infinities and signed zeros, as PyTorch: the first of the largest wins, and has the gradient.
#[test]
fn the_first_of_the_largest_has_the_gradient() {
    let device = &own_device();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows =
        [[7.0, 7.0, 7.0], [1.0, 2.0, 2.0], [nan, 5.0, nan], [0.0, -0.0, 0.0], [-0.0, 0.0, -1.0], [inf, inf, 0.0]];
    let x = Var::new(&Tensor::from_vec(rows.concat(), [6, 1, 3], device).expect("rows")).expect("a Var");
    let mut step = jit::Step::new();
    for traced in [false, true, true, true] {
        let run = || {
            let y = x.get().max_pool1d(&Pooling::new([3]))?;
            let g = y.sum(())?.backward()?.get(&x).expect("a gradient");
            Ok((y, g))
        };
        let (y, g) = if traced { step.run(run) } else { run() }.expect("a pool");
        let y: Vec<u32> = values(&y).iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect();
        assert_eq!(y, [7.0f32.to_bits(), 2.0f32.to_bits(), 1, 0.0f32.to_bits(), (-0.0f32).to_bits(), inf.to_bits()]);
        let first = [0, 1, 0, 0, 0, 0];
        for (r, g) in values(&g).chunks(3).enumerate() {
            let want: Vec<f32> = (0..3).map(|i| (i == first[r]) as u8 as f32).collect();
            assert_eq!(g, want, "row {r}");
        }
    }
}

#[test]
fn global_and_one_dimensional_means() {
    let device = &own_device();
    let formula = |v: &[Vec<f64>]| v[0].chunks(12).map(|c| c.iter().sum::<f64>() / 12.0).collect();
    Check::new("global_avg_pool", vec![some(&[2, 3, 4, 3], 1, device)], &formula)
        .run(device, |v| v[0].global_avg_pool());
    let formula =
        |v: &[Vec<f64>]| v[0].chunks(9).flat_map(|r| (0..4).map(|i| (r[2 * i] + r[2 * i + 1]) / 2.0)).collect();
    Check::new("avg_pool1d", vec![some(&[2, 3, 9], 1, device)], &formula)
        .run(device, |v| v[0].avg_pool1d(&Pooling::new([2])));
}

#[test]
fn wrong_windows_are_told() {
    let x = some(&[1, 2, 4, 4], 1, &own_device());
    let told = |o: Pooling<2>, says: &str| {
        let e = x.avg_pool2d(&o).expect_err("an error").to_string();
        assert!(e.contains("avg_pool2d") && e.contains(says) && e.contains("pooling.rs"), "{e}");
    };
    told(Pooling::new([5, 1]), "within 4 elements");
    told(Pooling { stride: [0, 1], ..Pooling::new([2, 2]) }, "at least 1");
    told(Pooling { padding: [2, 0], ..Pooling::new([2, 2]) }, "half of the size");
    told(Pooling::new([usize::MAX, 2]), "within 4 elements");
}
