//! Convolutions against loops over every index.

use stepgraph::nn::Convolution;
use stepgraph::{Tensor, Var, jit};

use crate::check::{Check, some};
use crate::harness::{assert_bits_eq, own_device};

/// `[n, channels, h, w]` with `[outputs, channels / groups, r, c]`, by definition.
struct Loops {
    x: [usize; 4],
    weight: [usize; 4],
    padding: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
}

impl Loops {
    fn places(&self) -> [usize; 2] {
        [0, 1].map(|d| {
            let reach = self.dilation[d] * (self.weight[2 + d] - 1) + 1;
            (self.x[2 + d] + 2 * self.padding[d] - reach) / self.stride[d] + 1
        })
    }

    /// Calls `f` with the positions in x, in the weight and in the result of every product.
    fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        let ([n, channels, h, w], [outputs, per_group, r, c]) = (self.x, self.weight);
        let [ph, pw] = self.places();
        for i in 0..n {
            for o in 0..outputs {
                let group = o / (outputs / self.groups);
                for (y, x) in (0..ph).flat_map(|y| (0..pw).map(move |x| (y, x))) {
                    for q in 0..per_group {
                        for (a, b) in (0..r).flat_map(|a| (0..c).map(move |b| (a, b))) {
                            let row = y * self.stride[0] + a * self.dilation[0];
                            let column = x * self.stride[1] + b * self.dilation[1];
                            let (Some(row), Some(column)) =
                                (row.checked_sub(self.padding[0]), column.checked_sub(self.padding[1]))
                            else {
                                continue;
                            };
                            if row < h && column < w {
                                let from = ((i * channels + group * per_group + q) * h + row) * w + column;
                                let by = ((o * per_group + q) * r + a) * c + b;
                                f(from, by, ((i * outputs + o) * ph + y) * pw + x);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn forms() -> Vec<Loops> {
    let form = |x, weight, padding, stride, dilation, groups| Loops { x, weight, padding, stride, dilation, groups };
    vec![
        form([2, 3, 5, 6], [4, 3, 3, 3], [1, 1], [1, 1], [1, 1], 1),
        form([2, 2, 7, 6], [3, 2, 3, 2], [0, 1], [2, 2], [1, 1], 1),
        form([1, 4, 6, 7], [6, 2, 2, 3], [2, 1], [1, 3], [2, 1], 2),
        form([2, 3, 4, 5], [3, 1, 3, 3], [1, 1], [1, 1], [1, 1], 3),
        form([3, 2, 3, 4], [5, 2, 1, 1], [0, 0], [1, 1], [1, 1], 1),
        form([1, 1, 1, 9], [2, 1, 1, 4], [0, 2], [1, 2], [1, 2], 1),
        form([2, 2, 4, 4], [2, 2, 2, 2], [0, 0], [2, 2], [1, 1], 1),
    ]
}

fn options(l: &Loops) -> Convolution<2> {
    Convolution { stride: l.stride, padding: l.padding, dilation: l.dilation, groups: l.groups }
}

#[test]
fn conv2d() {
    let device = &own_device();
    for l in forms() {
        let outputs = l.weight[0];
        let operands = vec![some(&l.x, 1, device), some(&l.weight, 2, device), some(&[outputs], 3, device)];
        let places: usize = l.places().iter().product();
        let formula = |v: &[Vec<f64>]| {
            let mut out: Vec<f64> = (0..l.x[0] * outputs * places).map(|i| v[2][i / places % outputs]).collect();
            l.products(|x, w, y| out[y] += v[0][x] * v[1][w]);
            out
        };
        Check::new("conv2d", operands, &formula).run(device, |v| v[0].conv2d(&v[1], Some(&v[2]), &options(&l)));
    }
}

#[test]
fn conv1d_is_conv2d_of_one_row() {
    let device = &own_device();
    let l =
        Loops { x: [2, 4, 1, 9], weight: [6, 2, 1, 3], padding: [0, 2], stride: [1, 2], dilation: [1, 2], groups: 2 };
    let places: usize = l.places().iter().product();
    let formula = |v: &[Vec<f64>]| {
        let mut out: Vec<f64> = (0..12 * places).map(|i| v[2][i / places % 6]).collect();
        l.products(|x, w, y| out[y] += v[0][x] * v[1][w]);
        out
    };
    let operands = vec![some(&[2, 4, 9], 1, device), some(&[6, 2, 3], 2, device), some(&[6], 3, device)];
    let options = Convolution { stride: [2], padding: [2], dilation: [2], groups: 2 };
    Check::new("conv1d", operands, &formula).run(device, |v| v[0].conv1d(&v[1], Some(&v[2]), &options));
}

/// The transposed convolution takes products the other way round: from the places of the result to those of the input.
#[test]
fn conv_transpose2d() {
    let device = &own_device();
    // `x` of the loops is the result here; its size may leave a rest, which is the output padding.
    for l in forms() {
        let places = l.places();
        let rest = [0, 1].map(|d| {
            let reach = l.dilation[d] * (l.weight[2 + d] - 1) + 1;
            l.x[2 + d] + 2 * l.padding[d] - reach - (places[d] - 1) * l.stride[d]
        });
        let input = [l.x[0], l.weight[0], places[0], places[1]];
        let operands = vec![some(&input, 1, device), some(&l.weight, 2, device), some(&[l.x[1]], 3, device)];
        let (area, channels) = (l.x[2] * l.x[3], l.x[1]);
        let formula = |v: &[Vec<f64>]| {
            let mut out: Vec<f64> = (0..l.x.iter().product()).map(|i| v[2][i / area % channels]).collect();
            l.products(|x, w, y| out[x] += v[0][y] * v[1][w]);
            out
        };
        Check::new("conv_transpose2d", operands, &formula).run(device, |v| {
            let y = v[0].conv_transpose2d(&v[1], Some(&v[2]), rest, &options(&l))?;
            assert_eq!(y.dims(), l.x);
            Ok(y)
        });
    }
}

/// An input that is a window of another tensor, overlapping in memory, is only read.
#[test]
fn windows_that_overlap_as_inputs_of_a_step() {
    let device = &own_device();
    let x = some(&[12], 1, device);
    let windows = x.window(0, 4, 2, 1).expect("windows");
    let before = windows.to_host().expect("values");
    let mut step = jit::Step::new();
    let w = Var::new(&some(&[5, 4], 2, device)).expect("a Var");
    for _ in 0..4 {
        let y = step
            .run(|| {
                let y = (w.get() * &windows)?;
                w.set(&y)?;
                (&windows + 1.0)?.fold(0, 12, 2, 1)
            })
            .expect("a call");
        assert_bits_eq("the windows", &windows.to_host().expect("values"), &before);
        let want: Vec<f32> = {
            let one = (&windows + 1.0).and_then(|t| t.to_vec::<f32>()).expect("values");
            let mut out = vec![0.0f32; 12];
            for w in 0..4 {
                (0..5).for_each(|i| out[2 * i + w] += one[4 * i + w]);
            }
            out
        };
        assert_eq!(y.to_vec::<f32>().expect("values"), want);
    }
}

#[test]
fn wrong_shapes_are_told() {
    let device = &own_device();
    let x = some(&[2, 4, 5, 5], 1, device);
    let told = |w: &[usize], options: Convolution<2>, says: &str| {
        let e = x.conv2d(&some(w, 2, device), None, &options).expect_err("an error").to_string();
        assert!(e.contains("conv2d") && e.contains(says) && e.contains("convolutions.rs"), "{e}");
    };
    let plain = Convolution::default();
    told(&[3, 4, 3], plain, "a weight of 4 axes");
    told(&[3, 3, 3, 3], plain, "4 channels in 1 groups");
    told(&[3, 2, 3, 3], Convolution { groups: 2, ..plain }, "channels in 2 groups");
    told(&[3, 4, 7, 1], plain, "within the 5 elements");
    told(&[3, 4, 3, 3], Convolution { stride: [0, 1], ..plain }, "at least 1");
    told(&[3, 4, 3, 3], Convolution { groups: 0, ..plain }, "at least 1");
    let bias = some(&[2], 3, device);
    assert!(
        x.conv2d(&some(&[3, 4, 3, 3], 2, device), Some(&bias), &plain).is_err_and(|e| e.to_string().contains("[3]"))
    );
    let up = |w: &[usize], extra, options: Convolution<2>| -> String {
        x.conv_transpose2d(&some(w, 2, device), None, extra, &options).expect_err("an error").to_string()
    };
    assert!(up(&[3, 2, 3, 3], [0, 0], plain).contains("4 channels"));
    assert!(up(&[4, 2, 3, 3], [1, 0], plain).contains("output padding below 1"));
    assert!(up(&[4, 2, 3, 3], [0, 0], Convolution { padding: [4, 4], ..plain }).contains("at least one element"));
    let _: Tensor = x;
}
