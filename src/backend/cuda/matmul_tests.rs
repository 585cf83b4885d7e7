use super::*;
use crate::base::dtype::Element;
use crate::kernel::eval::{self, Memory};
use crate::kernel::library::Operand;

/// What cuBLASLt documents of a call, in f64 on host arrays: column-major, batches by stride.
fn multiply(p: &Product, [a, b]: [&[f64]; 2], c: &mut [f64]) {
    let at = |m: &Matrix, batch: u32, row: u64, col: u64| {
        (batch as i64 * m.batch_stride + row as i64 + col as i64 * m.ld) as usize
    };
    for batch in 0..p.batch {
        for row in 0..p.c.rows {
            for col in 0..p.c.cols {
                let depth = if p.transpose_a { p.a.rows } else { p.a.cols };
                let depth_b = if p.transpose_b { p.b.cols } else { p.b.rows };
                assert_eq!(depth, depth_b, "{p:?}");
                let mut sum = 0.0;
                for k in 0..depth {
                    let x = if p.transpose_a { at(&p.a, batch, k, row) } else { at(&p.a, batch, row, k) };
                    let y = if p.transpose_b { at(&p.b, batch, col, k) } else { at(&p.b, batch, k, col) };
                    sum += a[x] * b[y];
                }
                c[at(&p.c, batch, row, col)] = sum;
            }
        }
    }
}

/// Runs a plan on host arrays.
fn run(planned: &Planned, a: &[f64], b: &[f64], c: &mut [f64]) {
    if let Some(k) = &planned.zeros {
        return apply(k, &[], c);
    }
    let copied = |i: usize, from: &[f64]| -> Vec<f64> {
        let Some(k) = &planned.copies[i] else { return from.to_vec() };
        let mut to = vec![f64::NAN; planned.copy_bytes[i] / 8];
        apply(k, from, &mut to);
        to
    };
    let (a, b) = (copied(0, a), copied(1, b));
    let mut work = match planned.copies[2] {
        Some(_) => vec![f64::NAN; planned.copy_bytes[2] / 8],
        None => c.to_vec(),
    };
    for call in &planned.calls {
        let [x, y, z] = call.offsets.map(|o| (o / 8) as usize);
        let (a, b) = (&a[x..], &b[y..]);
        multiply(&call.product, if call.product.swapped { [b, a] } else { [a, b] }, &mut work[z..]);
    }
    match &planned.copies[2] {
        Some(k) => apply(k, &work, c),
        None => c.copy_from_slice(&work),
    }
}

fn apply(kernel: &Kernel, from: &[f64], to: &mut [f64]) {
    let (from, mut out) = (f64::to_bytes(from), f64::to_bytes(to));
    let mut memory = Vec::new();
    if kernel.args.len() == 2 {
        memory.push(Memory::In(&from));
    }
    memory.push(Memory::Out(&mut out));
    eval::run(kernel, &[], &mut memory).unwrap();
    to.copy_from_slice(&f64::from_bytes(&out));
}

fn operand(offset: i64, batch: &[i64], row: i64, col: i64) -> Operand {
    Operand { offset, batch: batch.to_vec(), row, col }
}

/// Plans and runs a product of small whole numbers, and compares with the definition.
fn check(m: &Matmul, unaligned: Unaligned) -> Planned {
    let planned = plan(m, unaligned, false).unwrap();
    let value = |i: usize| ((i * 7 + 3) % 11) as f64 - 5.0;
    let a: Vec<f64> = (0..4000).map(value).collect();
    let b: Vec<f64> = (0..4000).map(|i| value(i * 3 + 1)).collect();
    let mut c = vec![99.0; 4000];
    let mut want = c.clone();
    let batches: usize = m.batch.iter().product();
    for index in 0..batches {
        let (mut left, mut start) = (index, [m.a.offset, m.b.offset, m.c.offset]);
        for (x, &len) in m.batch.iter().enumerate().rev() {
            let at = (left % len) as i64;
            left /= len;
            start[0] += at * m.a.batch[x];
            start[1] += at * m.b.batch[x];
            start[2] += at * m.c.batch[x];
        }
        for i in 0..m.m as i64 {
            for j in 0..m.n as i64 {
                let term = |k: i64| {
                    let x = start[0] + i * m.a.row + k * m.a.col;
                    let y = start[1] + k * m.b.row + j * m.b.col;
                    a[x as usize] * b[y as usize]
                };
                want[(start[2] + i * m.c.row + j * m.c.col) as usize] = (0..m.k as i64).map(term).sum();
            }
        }
    }
    run(&planned, &a, &b, &mut c);
    assert_eq!(c, want, "{m:?}\n{planned:?}");
    planned
}

fn matmul(batch: &[usize], [m, k, n]: [usize; 3], a: Operand, b: Operand, c: Operand) -> Matmul {
    Matmul { dtype: DType::F64, batch: batch.to_vec(), m, k, n, a, b, c }
}

#[test]
fn transposed_operands_are_not_copied() {
    let dims = [4, 6, 8];
    for (a_row, a_col) in [(6, 1), (1, 4)] {
        for (b_row, b_col) in [(8, 1), (1, 6)] {
            for (c_row, c_col) in [(8, 1), (1, 4)] {
                let (a, b, c) =
                    (operand(0, &[], a_row, a_col), operand(2, &[], b_row, b_col), operand(4, &[], c_row, c_col));
                let planned = check(&matmul(&[], dims, a, b, c), [false; 3]);
                assert_eq!((planned.calls.len(), planned.copies), (1, [None, None, None]));
            }
        }
    }
}

#[test]
fn what_the_library_cannot_take_is_copied() {
    let dims = [4, 6, 8];
    let plain = || (operand(0, &[], 6, 1), operand(0, &[], 8, 1), operand(0, &[], 8, 1));
    let copied = |m: &Matmul, u: Unaligned| check(m, u).copies.map(|c| c.is_some());
    let (a, b, c) = plain();
    assert_eq!(copied(&matmul(&[], dims, a, b, c), [true, false, true]), [true, false, true], "addresses");
    let (_, b, c) = plain();
    assert_eq!(copied(&matmul(&[], dims, operand(0, &[], 24, 2), b, c), [false; 3]), [true, false, false], "gaps");
    let (_, b, c) = plain();
    assert_eq!(
        copied(&matmul(&[], dims, operand(0, &[], 0, 1), b, c), [false; 3]),
        [true, false, false],
        "a repeated row"
    );
    let (a, _, c) = plain();
    assert_eq!(
        copied(&matmul(&[], dims, a, operand(100, &[], -8, 1), c), [false; 3]),
        [false, true, false],
        "backwards"
    );
    let (a, b, _) = plain();
    assert_eq!(copied(&matmul(&[], dims, a, b, operand(0, &[], 16, 2)), [false; 3]), [false, false, true], "gaps in c");
    let (_, b, c) = plain();
    assert_eq!(
        copied(&matmul(&[], dims, operand(1, &[], 6, 1), b, c), [false; 3]),
        [true, false, false],
        "an odd start"
    );
}

#[test]
fn batches_follow_one_stride_or_become_rows() {
    // Heads of attention: [2, 3] batches of [4, 6] inside rows of 18 for a; b and c without gaps.
    let a = operand(0, &[72, 6], 18, 1);
    let planned =
        check(&matmul(&[2, 3], [4, 6, 8], a, operand(0, &[144, 48], 8, 1), operand(0, &[96, 32], 8, 1)), [false; 3]);
    assert_eq!((planned.calls.len(), planned.calls[0].product.batch), (2, 3), "one call per outer batch");
    // A weight for all: one product of 24 rows.
    let planned = check(
        &matmul(
            &[2, 3],
            [4, 6, 8],
            operand(0, &[72, 24], 6, 1),
            operand(0, &[0, 0], 8, 1),
            operand(0, &[96, 32], 8, 1),
        ),
        [false; 3],
    );
    assert_eq!((planned.calls.len(), planned.calls[0].product.batch, planned.calls[0].product.c.cols), (1, 1, 24));
    // Vectors times a weight: rows too.
    let planned = check(
        &matmul(&[5], [1, 6, 8], operand(0, &[6], 0, 1), operand(0, &[0], 8, 1), operand(0, &[8], 0, 1)),
        [false; 3],
    );
    assert_eq!((planned.calls.len(), planned.calls[0].product.batch), (1, 1));
    // Many outer batches that do not follow one stride: copied, then one call.
    let planned = check(
        &matmul(
            &[20, 3],
            [2, 4, 2],
            operand(0, &[24, 4], 12, 1),
            operand(0, &[24, 8], 2, 1),
            operand(0, &[12, 4], 2, 1),
        ),
        [false; 3],
    );
    assert_eq!((planned.calls.len(), planned.copies[0].is_some()), (1, true));
    // Broadcast in the outer axis only.
    let planned = check(
        &matmul(
            &[2, 3],
            [4, 6, 8],
            operand(0, &[0, 24], 6, 1),
            operand(0, &[144, 48], 8, 1),
            operand(0, &[96, 32], 8, 1),
        ),
        [false; 3],
    );
    assert_eq!(planned.calls.len(), 2);
}

#[test]
fn nothing_to_multiply() {
    let empty = |batch: &[usize], dims| {
        let b = vec![0; batch.len()];
        check(&matmul(batch, dims, operand(0, &b, 1, 1), operand(0, &b, 1, 1), operand(0, &b, 3, 1)), [false; 3])
    };
    assert!(empty(&[], [2, 0, 3]).zeros.is_some());
    assert!(empty(&[0], [2, 4, 3]).calls.is_empty());
    assert!(empty(&[], [0, 4, 3]).calls.is_empty());
}

#[test]
fn ones() {
    // Lengths of one leave strides without meaning.
    check(&matmul(&[], [1, 6, 1], operand(0, &[], 77, 1), operand(0, &[], 1, 55), operand(0, &[], 33, 44)), [false; 3]);
    check(&matmul(&[1], [1, 1, 1], operand(0, &[9], 5, 3), operand(0, &[1], 2, 7), operand(0, &[4], 3, 3)), [false; 3]);
    check(
        &matmul(&[3], [4, 1, 8], operand(0, &[4], 1, 1), operand(0, &[8], 99, 1), operand(0, &[32], 8, 1)),
        [false; 3],
    );
}
