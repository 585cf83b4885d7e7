use super::*;

/// Bits for a seed: mostly numbers around 1, of both signs.
fn number(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let bits = (*seed >> 33) as u32;
    let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
    sign * (0.25 + (bits >> 1) as f32 / (1u64 << 29) as f32)
}

/// Infinities, NaN, signed zeros, denormals and huge numbers among ordinary ones.
fn odd_number(seed: &mut u64) -> f32 {
    let x = number(seed);
    match *seed >> 59 {
        0 => [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX][(*seed >> 40) as usize % 4],
        1..8 => 0.0f32.copysign(x),
        8..12 => x * 1e-40,
        12..16 => x * 1e-20,
        16..18 => x * 3e37,
        _ => x,
    }
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    Cols,
    /// Neither dimension contiguous, gaps between rows.
    Gaps,
    /// Rows and columns in falling order.
    Reversed,
    /// One row for all.
    SameRow,
    /// One column for all.
    SameCol,
    /// One matrix for all batches.
    SameBatch,
}

/// Memory for one operand: where (0, 0) lies, and its strides.
struct Operand {
    data: Vec<f32>,
    origin: usize,
    strides: Strides,
}

fn operand(batch: usize, rows: usize, cols: usize, layout: Layout, mut fill: impl FnMut() -> f32) -> Operand {
    let (r, c) = (rows as isize, cols as isize);
    let strides = match layout {
        Layout::Rows => Strides::row_major(rows, cols),
        Layout::Cols => Strides::col_major(rows, cols),
        Layout::Gaps => Strides { batch: r * (2 * c + 3), row: 2 * c + 3, col: 2 },
        Layout::Reversed => Strides { batch: r * c, row: -c, col: -1 },
        Layout::SameRow => Strides { batch: c, row: 0, col: 1 },
        Layout::SameCol => Strides { batch: r, row: 1, col: 0 },
        Layout::SameBatch => Strides { batch: 0, row: c, col: 1 },
    };
    let last = |count: usize, stride: isize| count.saturating_sub(1) as isize * stride;
    let reach = [(batch, strides.batch), (rows, strides.row), (cols, strides.col)];
    let low: isize = reach.iter().map(|&(count, stride)| last(count, stride).min(0)).sum();
    let high: isize = reach.iter().map(|&(count, stride)| last(count, stride).max(0)).sum();
    let data = (low..=high).map(|_| fill()).collect();
    Operand { data, origin: low.unsigned_abs(), strides }
}

impl Operand {
    fn at(&self, batch: usize, row: usize, col: usize) -> f32 {
        self.data[(self.origin as isize + self.strides.at(batch, row, col)) as usize]
    }
}

/// Equal bits; any NaN equals any other.
fn same(x: f32, y: f32) -> bool {
    x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()
}

const ISAS: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Portable];

struct Case {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
    layouts: [Layout; 3],
    odd: bool,
}

impl Case {
    /// Runs every instruction set serially and on both pools, and compares with the oracle.
    fn check(&self, pools: &[Pool], isas: &[Isa]) {
        let Case { batch, m, k, n, layouts, odd } = *self;
        let mut seed = (m * 31 + k * 17 + n * 7 + batch) as u64;
        let mut fill = || if odd { odd_number(&mut seed) } else { number(&mut seed) };
        let a = operand(batch, m, k, layouts[0], &mut fill);
        let b = operand(batch, k, n, layouts[1], &mut fill);
        let one = Matmul::row_major(1, 1, k, 1);
        let wanted: Vec<f32> = elements(batch, m, n)
            .map(|(x, i, j)| {
                let row: Vec<f32> = (0..k).map(|p| a.at(x, i, p)).collect();
                let col: Vec<f32> = (0..k).map(|p| b.at(x, p, j)).collect();
                let mut sum = [f32::NAN];
                one.reference(&row, &col, &mut sum);
                sum[0]
            })
            .collect();
        for (isa, pool) in isas.iter().flat_map(|&isa| pools.iter().map(move |pool| (isa, pool))) {
            // Untouched elements must stay, so C starts as a number that no product gives.
            let mut c = operand(batch, m, n, layouts[2], || 12345.678);
            let product = Matmul { batch, m, k, n, a: a.strides, b: b.strides, c: c.strides };
            let (pa, pb) = (a.data[a.origin..].as_ptr(), b.data[b.origin..].as_ptr());
            // SAFETY: `operand` allocates every element that the strides name.
            unsafe { product.run(isa, pool, pa, pb, c.data.as_mut_ptr().add(c.origin)) };
            for ((x, i, j), &want) in elements(batch, m, n).zip(&wanted) {
                let got = c.at(x, i, j);
                assert!(same(got, want), "{product:?} {isa:?} {layouts:?} at {x},{i},{j}: {got:e} for {want:e}");
            }
            let written = c.data.iter().filter(|x| x.to_bits() != 12345.678f32.to_bits()).count();
            assert!(written <= batch * m * n, "{product:?} wrote outside C");
        }
    }
}

fn pools() -> Vec<Pool> {
    vec![Pool::new(1), Pool::new(2)]
}

#[test]
fn lengths_of_k() {
    let pools = pools();
    for k in [0, 1, 2, 3, 5, 7, 16, 17, 31, 64, 100, 511, 512, 513, 1024, 1025] {
        for (m, n) in [(1, 1), (1, 37), (37, 1), (5, 19), (13, 40)] {
            for layouts in [
                [Layout::Rows; 3],
                [Layout::Cols; 3],
                [Layout::Cols, Layout::Rows, Layout::Rows],
                [Layout::Rows, Layout::Cols, Layout::Rows],
            ] {
                Case { batch: 1, m, k, n, layouts, odd: false }.check(&pools, &ISAS);
            }
        }
    }
}

#[test]
fn heights_and_widths() {
    let pools = pools();
    for m in [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 24, 25, 97] {
        for n in [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 100, 128, 129] {
            Case { batch: 1, m, k: 9, n, layouts: [Layout::Rows; 3], odd: false }.check(&pools, &ISAS);
        }
    }
}

#[test]
fn all_layouts() {
    use Layout::*;
    let pools = pools();
    for a in [Rows, Cols, Gaps, Reversed, SameRow, SameCol, SameBatch] {
        for b in [Rows, Cols, Gaps, Reversed, SameRow, SameCol, SameBatch] {
            for c in [Rows, Cols, Gaps, Reversed] {
                for (batch, m, k, n) in [(1, 1, 20, 33), (1, 14, 20, 1), (3, 7, 5, 18), (2, 14, 515, 9)] {
                    let isas: &[Isa] = if k > 100 { &ISAS[..2] } else { &ISAS };
                    Case { batch, m, k, n, layouts: [a, b, c], odd: false }.check(&pools, isas);
                }
            }
        }
    }
}

#[test]
fn blocks_and_packing() {
    let pools = pools();
    let shapes = [
        (1, 100, 600, 300),
        (1, 200, 33, 530),
        (2, 130, 70, 200),
        (1, 20, 64, 1024),
        (1, 1, 1025, 700),
        (1, 300, 1025, 3),
        (9, 40, 40, 40),
    ];
    for (batch, m, k, n) in shapes {
        for layouts in
            [[Layout::Rows; 3], [Layout::Cols; 3], [Layout::Cols, Layout::Cols, Layout::Rows], [Layout::Gaps; 3]]
        {
            Case { batch, m, k, n, layouts, odd: false }.check(&pools, &ISAS[..2]);
        }
    }
}

#[test]
fn odd_numbers() {
    let pools = pools();
    for k in [1, 2, 3, 17, 100, 513] {
        for (m, n) in [(1, 40), (40, 1), (13, 35), (70, 70)] {
            for layouts in [[Layout::Rows; 3], [Layout::Cols, Layout::Cols, Layout::Rows]] {
                Case { batch: 1, m, k, n, layouts, odd: true }.check(&pools, &ISAS);
            }
        }
    }
}

#[test]
fn slices_are_added_in_order() {
    // (1e8 + 1) loses the 1 in one chain; as a slice of its own it survives only if added last.
    let k = 2 * SLICE;
    let mut a = vec![0.0f32; k];
    (a[0], a[SLICE - 1], a[SLICE]) = (1e8, -1e8, 1.0);
    let b = vec![1.0f32; k];
    let product = Matmul::row_major(1, 1, k, 1);
    for isa in ISAS {
        let mut c = [f32::NAN];
        // SAFETY: the vectors have the lengths that the strides name.
        unsafe { product.run_serial(isa, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()) };
        assert_eq!(c, [1.0]);
    }
}

#[test]
fn a_negative_zero_product_gives_positive_zero() {
    let product = Matmul::row_major(1, 1, 1, 1);
    for isa in ISAS {
        let mut c = [f32::NAN];
        // SAFETY: one element each.
        unsafe { product.run_serial(isa, &-0.0, &1.0, c.as_mut_ptr()) };
        assert_eq!(c[0].to_bits(), 0);
    }
}

#[test]
fn the_portable_multiply_add_rounds_once() {
    let mut seed = 7;
    let mut any = || {
        let x = odd_number(&mut seed);
        // Half of all: any bits at all.
        if seed >> 63 == 0 { f32::from_bits((seed >> 20) as u32) } else { x }
    };
    for _ in 0..2_000_000 {
        let (a, b, mut c) = (any(), any(), any());
        if c.to_bits() & 3 == 0 {
            // Near cancellation, and halfway cases.
            c = -(a * b) * if c.to_bits() & 4 == 0 { 1.0 } else { 1.0 + f32::EPSILON };
        }
        let (got, want) = (isa::fma(a, b, c), a.mul_add(b, c));
        assert!(same(got, want), "{a:e} * {b:e} + {c:e}: {got:e} for {want:e}");
    }
}

#[test]
fn doubles_obey_the_rule_too() {
    let pools = pools();
    let shapes = [
        (1, 1, 0, 5),
        (1, 13, 20, 37),
        (1, 7, 1030, 9),
        (2, 30, 65, 130),
        (1, 1, 600, 70),
        (1, 70, 33, 1),
        (1, 100, 40, 400),
    ];
    for (batch, m, k, n) in shapes {
        for layout in [Layout::Rows, Layout::Cols, Layout::Gaps] {
            let mut seed = 3;
            let mut fill = || number(&mut seed);
            let (a, b) = (operand(batch, m, k, layout, &mut fill), operand(batch, k, n, layout, &mut fill));
            let c = operand(batch, m, n, layout, || 0.0);
            let product = Matmul { batch, m, k, n, a: a.strides, b: b.strides, c: c.strides };
            let double = |x: &Operand| x.data.iter().map(|&x| f64::from(x) / 3.0).collect::<Vec<f64>>();
            let (a, b, mut wanted) = (double(&a), double(&b), vec![-1.0f64; c.data.len()]);
            product.reference(&a, &b, &mut wanted);
            for (isa, pool) in ISAS.iter().flat_map(|&isa| pools.iter().map(move |pool| (isa, pool))) {
                let mut got = vec![-1.0f64; c.data.len()];
                // SAFETY: `operand` allocates every element that the strides name, from the origin on.
                unsafe { product.run(isa, pool, a.as_ptr(), b.as_ptr(), got.as_mut_ptr()) };
                assert!(got.iter().zip(&wanted).all(|(x, y)| x.to_bits() == y.to_bits()), "{product:?} {isa:?}");
            }
        }
    }
}
