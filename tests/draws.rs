//! Random draws: the words of Philox, the distributions made of them, and how they go with steps.

// Of the harness only a part is used here.
#[path = "harness/mod.rs"]
#[macro_use]
mod harness;

use harness::{Expect, compare, own_device};
use stepgraph::{CpuOptions, DType, Device, Rng, Tensor};

/// Philox4x32-10, written from its description (Salmon et al. 2011): the reference here.
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (p, q) = (0xd251_1f53u64 * a as u64, 0xcd9e_8d57u64 * c as u64);
        (a, b, c, d) = ((q >> 32) as u32 ^ b ^ k, q as u32, (p >> 32) as u32 ^ d ^ l, p as u32);
        (k, l) = (k.wrapping_add(0x9e37_79b9), l.wrapping_add(0xbb67_ae85));
    }
    [a, b, c, d]
}

/// The words of element `i` of a draw.
fn words(i: u64, seed: u64, counter: u64) -> [u32; 4] {
    philox([i as u32, (i >> 32) as u32, counter as u32, (counter >> 32) as u32], [seed as u32, (seed >> 32) as u32])
}

/// The uniform number of a word.
fn unit(word: u32) -> f64 {
    (word >> 8) as f64 / 2f64.powi(24)
}

fn f64s(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).and_then(|t| t.to_vec::<f64>()).expect("numbers")
}

/// The known-answer vectors that Random123 publishes.
#[test]
fn the_reference_has_the_published_words() {
    for (counter, key, want) in [
        ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
        ([!0; 4], [!0; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
        (
            [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
            [0xa4093822, 0x299f31d0],
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
        ),
    ] {
        assert_eq!(philox(counter, key), want);
    }
}

const SEEDS: [u64; 4] = [0, 7, 0x2545_f491_4f6c_dd1d, u64::MAX];

/// Element i of the k-th draw takes the block of (i, k) under the seed: its first word for uniform numbers, the first two
/// for normal ones and integers, on every instruction set.
#[test]
fn draws_are_made_of_the_documented_words() {
    for isa in ["avx512", "avx2", "portable"] {
        let options = CpuOptions { isa: Some(isa.into()), ..CpuOptions::default() };
        let Ok(device) = Device::cpu_with(&options) else { continue };
        for seed in SEEDS {
            let rng = Rng::seed_from(seed);
            let n = 700;
            let uniform = f64s(&rng.uniform([n], &device).expect("a draw"));
            let normal = f64s(&rng.normal([7, 100], &device).expect("a draw"));
            let integers = rng.randint([n], i64::MIN, i64::MAX, &device).expect("a draw");
            let integers = integers.to_vec::<i64>().expect("integers");
            assert_eq!(rng.counter(), 3, "one each");
            for i in 0..n as u64 {
                assert_eq!(uniform[i as usize], unit(words(i, seed, 0)[0]));
                let [u, v, ..] = words(i, seed, 1).map(unit);
                let want = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                let got = normal[i as usize];
                // The angle is rounded to f32.
                assert!((got - want).abs() <= 3e-6, "{got}, expected {want}");
                let [high, low, ..] = words(i, seed, 2);
                let bits = (high as u128) << 32 | low as u128;
                let want = ((bits * u64::MAX as u128) >> 64) as i64;
                assert_eq!(integers[i as usize], want.wrapping_add(i64::MIN));
            }
        }
    }
}

#[test]
fn integers_are_the_high_half_of_the_product() {
    let device = own_device();
    let ranges = [
        (0, 1),
        (0, 6),
        (-3, 4),
        (10, 11 + (1 << 31)),
        (0, (1 << 31) - 1),
        (5, (1 << 40) + 8),
        (i64::MIN, 1),
        (-1, i64::MAX),
    ];
    for (k, (lo, hi)) in ranges.into_iter().enumerate() {
        let rng = Rng::seed_from(k as u64);
        let got = rng.randint([500], lo, hi, &device).and_then(|t| t.to_vec::<i64>()).expect("a draw");
        let width = hi.wrapping_sub(lo) as u64 as u128;
        for (i, got) in got.into_iter().enumerate() {
            let [high, low, ..] = words(i as u64, k as u64, 0);
            let want = ((((high as u128) << 32 | low as u128) * width) >> 64) as i64;
            assert_eq!(got, lo.wrapping_add(want), "{lo}..{hi}");
            assert!((lo..hi).contains(&got));
        }
    }
}

/// Asserts that a mean of `n` draws of standard deviation `sigma` is `want`, to five standard errors.
#[track_caller]
fn near(what: &str, got: f64, want: f64, sigma: f64, n: usize) {
    let off = 5.0 * sigma / (n as f64).sqrt();
    assert!((got - want).abs() <= off, "{what} is {got}, expected {want} ± {off}");
}

fn mean(v: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = v.len() as f64;
    v.sum::<f64>() / n
}

/// Asserts that counts are those of equally likely bins: chi-square within five standard deviations of its mean, on both sides.
#[track_caller]
fn even(what: &str, bins: usize, draws: impl Iterator<Item = usize>) {
    let mut counts = vec![0u64; bins];
    draws.for_each(|d| counts[d] += 1);
    let n = counts.iter().sum::<u64>() as f64;
    let expected = n / bins as f64;
    let chi2: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
    let (freedom, sd) = (bins as f64 - 1.0, (2.0 * (bins as f64 - 1.0)).sqrt());
    assert!((chi2 - freedom).abs() <= 5.0 * sd, "{what}: chi-square {chi2} for {freedom} degrees of freedom");
}

const N: usize = 400_000;

#[test]
fn uniform_numbers_are_even() {
    let device = own_device();
    let v = f64s(&Rng::seed_from(1).uniform([N], &device).expect("a draw"));
    assert!(v.iter().all(|u| (0.0..1.0).contains(u) && (u * 2f64.powi(24)).fract() == 0.0));
    near("the mean", mean(v.iter().copied()), 0.5, 1.0 / 12f64.sqrt(), N);
    near("the mean square", mean(v.iter().map(|u| u * u)), 1.0 / 3.0, (4.0f64 / 45.0).sqrt(), N);
    even("the leading 8 bits", 256, v.iter().map(|u| (u * 256.0) as usize));
    even("the last 8 bits", 256, v.iter().map(|u| (u * 2f64.powi(24)) as usize % 256));
    even("pairs", 256, v.chunks_exact(2).map(|p| (p[0] * 16.0) as usize * 16 + (p[1] * 16.0) as usize));
}

#[test]
fn uniform_numbers_of_a_range() {
    let device = own_device();
    let rng = Rng::seed_from(2);
    let v = f64s(&rng.uniform_in([N], -3.0, 5.0, &device).expect("a draw"));
    assert!(v.iter().all(|u| (-3.0..5.0).contains(u)));
    near("the mean", mean(v.iter().copied()), 1.0, 8.0 / 12f64.sqrt(), N);
    even("eighths", 64, v.iter().map(|u| ((u + 3.0) * 8.0) as usize));
    // A range of one and of two numbers: the upper bound is never met.
    let next = 1f32.next_up() as f64;
    assert!(f64s(&rng.uniform_in([5000], 1.0, next, &device).expect("a draw")).iter().all(|u| *u == 1.0));
    assert!(f64s(&rng.uniform_in([5000], 1.0, 2.0, &device).expect("a draw")).iter().all(|u| *u < 2.0));
    for (lo, hi) in [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (-3e38, 3e38), (1.0, 1.0 + 1e-12)] {
        let e = rng.uniform_in([2], lo, hi, &device).expect_err("refused").to_string();
        assert!(e.contains("uniform_in: expected bounds lo < hi"), "{e}");
    }
}

#[test]
fn normal_numbers_have_the_moments_and_tails() {
    let v = f64s(&Rng::seed_from(3).normal([N], &own_device()).expect("a draw"));
    near("the mean", mean(v.iter().copied()), 0.0, 1.0, N);
    near("the variance", mean(v.iter().map(|z| z * z)), 1.0, 2f64.sqrt(), N);
    near("the third moment", mean(v.iter().map(|z| z.powi(3))), 0.0, 15f64.sqrt(), N);
    near("the fourth moment", mean(v.iter().map(|z| z.powi(4))), 3.0, 96f64.sqrt(), N);
    for x in [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] {
        for sign in [1.0, -1.0] {
            let p = 0.5 * libm::erfc(x / 2f64.sqrt());
            let beyond = mean(v.iter().map(|z| (z * sign > x) as u8 as f64));
            near(&format!("the part beyond {}", x * sign), beyond, p, (p * (1.0 - p)).sqrt(), N);
        }
    }
    assert!(v.iter().all(|z| z.abs() <= 5.77));
    near("the product of neighbours", mean(v.chunks_exact(2).map(|p| p[0] * p[1])), 0.0, 1.0, N / 2);
}

#[test]
fn truth_values_have_their_chances() {
    let device = own_device();
    let rng = Rng::seed_from(4);
    let share = |t: &Tensor| mean(t.to_vec::<bool>().expect("truth values").into_iter().map(|b| b as u8 as f64));
    for p in [0.01, 0.3, 0.5, 0.875] {
        near("the share", share(&rng.bernoulli([N], p, &device).expect("a draw")), p, (p * (1.0 - p)).sqrt(), N);
    }
    for (p, want) in [(0.0, 0.0), (1.0, 1.0), (-0.5, 0.0), (2.0, 1.0), (f64::NAN, 0.0)] {
        assert_eq!(share(&rng.bernoulli([5000], p, &device).expect("a draw")), want, "{p}");
    }
    let chances = [0.1f32, 0.6, 1.0];
    let p = Tensor::from_slice(&chances, [3, 1], &device).expect("chances");
    let t = rng.bernoulli([3, 50_000], &p, &device).expect("a draw");
    for (row, &p) in chances.iter().enumerate() {
        let p = p as f64;
        near("a row", share(&t.slice(0, row, 1).expect("a row")), p, (p * (1.0 - p)).sqrt(), 50_000);
    }
    let e = rng.bernoulli([2], &p, &device).expect_err("refused").to_string();
    assert!(e.contains("bernoulli: expected probabilities that broadcast to [2], got [3,1]"), "{e}");
}

#[test]
fn integers_are_even() {
    let device = own_device();
    let rng = Rng::seed_from(5);
    for (lo, hi) in [(0, 6), (-500, 500)] {
        let v = rng.randint([N], lo, hi, &device).and_then(|t| t.to_vec::<i64>()).expect("a draw");
        even("a die", (hi - lo) as usize, v.iter().map(|&i| (i - lo) as usize));
    }
    let v = rng.randint([N], 0, 1 << 62, &device).and_then(|t| t.to_vec::<i64>()).expect("a draw");
    even("a wide range", 128, v.iter().map(|&i| (i >> 55) as usize));
    even("its low bits", 128, v.iter().map(|&i| (i & 127) as usize));
    for (lo, hi) in [(3, 3), (4, 3)] {
        let e = rng.randint([2], lo, hi, &device).expect_err("refused").to_string();
        assert!(e.contains("randint: expected bounds lo < hi"), "{e}");
    }
}

#[test]
fn permutations_are_even() {
    let device = own_device();
    let rng = Rng::seed_from(6);
    let draw = |n| rng.permutation(n, &device).and_then(|t| t.to_vec::<i64>()).expect("a draw");
    for n in [0, 1, 2, 1000] {
        let mut order = draw(n);
        assert!(n < 1000 || !order.is_sorted());
        order.sort();
        assert_eq!(order, (0..n as i64).collect::<Vec<_>>());
    }
    // All orders of four, by their rank.
    let rank = |p: &[i64]| (0..4).fold(0, |r, i| r * (4 - i) + p[i + 1..].iter().filter(|&&q| q < p[i]).count());
    even("orders of four", 24, (0..12_000).map(|_| rank(&draw(4))));
    let order = draw(50_000);
    let fixed = order.iter().enumerate().filter(|(i, o)| *i as i64 == **o).count();
    assert!(fixed <= 8, "{fixed} of a mean of 1 stay in place");
}

#[test]
fn classes_have_their_chances() {
    let device = own_device();
    let rng = Rng::seed_from(7);
    let inf = f32::INFINITY;
    let logits = [0.0f32, 1.0, -inf, -2.0, 0.5, 0.0];
    let total: f64 = logits.iter().map(|&l| (l as f64).exp()).sum();
    let n = 100_000;
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let rows = Tensor::from_slice(&logits, [1, 6], &device).and_then(|t| t.to_dtype(dtype)?.expand([n, 6]));
        let classes = rng.categorical(&rows.expect("logits")).expect("a draw");
        assert_eq!((classes.dims(), classes.dtype()), (&[n][..], DType::I64));
        let classes = classes.to_vec::<i64>().expect("classes");
        for (c, &l) in logits.iter().enumerate() {
            let p = (l as f64).exp() / total;
            let share = classes.iter().filter(|&&k| k == c as i64).count() as f64 / n as f64;
            near(&format!("class {c}"), share, p, (p * (1.0 - p)).sqrt(), n);
        }
    }
    let one = |v: &[f32]| {
        let t = Tensor::from_slice(v, [v.len()], &device).expect("logits");
        rng.categorical(&t).and_then(|c| c.item::<i64>())
    };
    assert_eq!(one(&[-inf, -inf]).expect("a class"), 0);
    assert_eq!(one(&[0.0, f32::NAN, 90.0]).expect("a class"), 1);
    assert!(one(&[]).expect_err("refused").to_string().contains("categorical: expected logits of shape [.., classes]"));
    let integers = Tensor::from_vec(vec![1i64, 2], [2], &device).expect("integers");
    let e = rng.categorical(&integers).expect_err("refused").to_string();
    assert!(e.contains("categorical: expected float logits, got i64"), "{e}");
}

/// Streams of different seeds, successive draws of one stream, and numbers a stride apart do not go together.
#[test]
fn streams_are_independent() {
    let device = own_device();
    let n = 100_000;
    let draw = |rng: &Rng| f64s(&rng.uniform([n], &device).expect("a draw"));
    let (a, b) = (Rng::seed_from(0), Rng::seed_from(1));
    let draws = [draw(&a), draw(&a), draw(&b), draw(&Rng::seed_from(1 << 32)), draw(&Rng::seed_from(1 << 63))];
    let together = |x: &[f64], y: &[f64]| {
        let pairs = x.iter().zip(y).map(|(x, y)| (x - 0.5) * (y - 0.5));
        near("a correlation", mean(pairs.collect::<Vec<_>>().into_iter()) * 12.0, 0.0, 1.0, x.len().min(y.len()));
    };
    for (i, x) in draws.iter().enumerate() {
        draws[..i].iter().for_each(|y| together(x, y));
        [1, 2, 128, 4096].into_iter().for_each(|stride| together(x, &x[stride..]));
    }
    let equal = draws[0].iter().zip(&draws[1]).filter(|(x, y)| x == y).count();
    assert!(equal <= 2, "{equal} of {n} numbers of 24 bits are the same");
}

/// Eager, traced and frozen draws are the same, and no call repeats another's.
#[test]
fn draws_in_steps() {
    let device = own_device();
    let n = 500;
    let log = compare(
        &device,
        &Expect::steady(6).frozen(),
        || Ok(Rng::seed_from(11)),
        |_, _| Ok(()),
        |rng, _, seen| {
            let kept = rng.bernoulli([n], 0.4, &device)?;
            let noise = (rng.normal([n], &device)? * 0.1)?;
            let noise = kept.select(&noise, 2.0)?;
            let die = rng.randint([n], 1, 7, &device)?.to_dtype(DType::F32)?;
            let angle = rng.uniform_in([n], -1.0, 1.0, &device)?;
            let order = rng.permutation(n, &device)?.to_dtype(DType::F32)?;
            let classes = rng.categorical(&noise.reshape([n / 5, 5])?)?.to_dtype(DType::F32)?;
            // In the order they were made, as a frozen step gives them.
            for t in [noise, die, angle, order, classes] {
                seen.keep(&t);
            }
            Ok(())
        },
        |_| vec![],
    );
    for k in 0..6 {
        for j in 0..k {
            for i in 0..5 {
                let same = log.f32(k, i).iter().zip(log.f32(j, i)).filter(|(a, b)| a == b).count();
                // Masks agree where both are 2, at 36 % of places; dice at 17 %.
                let len = log.f32(k, i).len();
                assert!(same < len / 2, "value {i} of calls {j} and {k}: {same} of {len} are the same");
            }
        }
    }
}

#[test]
fn draws_fuse_with_what_they_feed() {
    let device = own_device();
    let mut step = stepgraph::jit::Step::new();
    let rng = Rng::seed_from(12);
    let x = Tensor::ones([64, 100], DType::F32, &device).expect("ones");
    for _ in 0..3 {
        step.run(|| rng.bernoulli([64, 100], 0.5, &device)?.select(&(&x + &rng.normal([64, 100], &device)?)?, 0.0))
            .expect("a call");
    }
    assert_eq!(step.report().kernels, 1, "{}", step.report());
}
