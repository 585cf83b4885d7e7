//! Matrix products of a plan as calls of cuBLASLt.
//!
//! What is called, and whether an operand is copied first, follows from the shape and the layouts alone, so an eager
//! op and a fused plan call the same algorithm. An operand is copied when the library cannot take it as it lies: neither rows
//! nor columns without gaps, not at a multiple of 16 bytes, or batches that don't follow one stride.

use crate::backend::cuda::sys::blas::{ALIGNMENT, Matrix, Product};
use crate::base::{DType, Error, Result};
use crate::kernel::build::Builder;
use crate::kernel::ir::{Access, Kernel};
use crate::kernel::library::{Matmul, Operand};

/// Calls for one product at most; operands of batches that would need more are copied.
const MOST_CALLS: usize = 16;

/// How a [`Matmul`] is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub dtype: DType,
    /// Of a, b, c: the copy to make before (after, for c); the product works on the copy then.
    pub copies: [Option<Kernel>; 3],
    /// Bytes of each copy.
    pub copy_bytes: [usize; 3],
    pub calls: Vec<Call>,
    /// Nothing to multiply (k is 0), but c to be filled with zeros: by this kernel.
    pub zeros: Option<Kernel>,
}

/// One call of the library.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub product: Product,
    /// Byte offsets into the plan's a, b, c.
    pub offsets: [i64; 3],
}

/// Which operands must be copied although their layout is fine: those at addresses that are not aligned.
pub type Unaligned = [bool; 3];

/// Plans a product.
pub fn plan(m: &Matmul, unaligned: Unaligned, tf32: bool) -> Result<Planned> {
    let sizes = [[m.m, m.k], [m.k, m.n], [m.m, m.n]];
    let operands = [&m.a, &m.b, &m.c];
    let batches: usize = m.batch.iter().product();
    let mut planned =
        Planned { dtype: m.dtype, copies: [None, None, None], copy_bytes: [0; 3], calls: Vec::new(), zeros: None };
    if batches == 0 || m.m == 0 || m.n == 0 {
        return Ok(planned);
    }
    if m.k == 0 {
        planned.zeros = Some(zeros(m)?);
        return Ok(planned);
    }
    let mut copied = unaligned;
    for i in 0..3 {
        copied[i] |= lay(operands[i], sizes[i]).is_none() || !aligned(operands[i], m.dtype);
    }
    // Batches that need many calls as they lie: the operands that do not follow one stride are copied.
    if outer_batches(m, &copied).iter().product::<usize>() > MOST_CALLS {
        for i in 0..3 {
            let alone: Axes = axes(m, &copied).iter().map(|a| (a.0, [a.1[i]; 3])).collect();
            copied[i] |= merged(alone).len() > 1;
        }
    }
    for i in 0..3 {
        if copied[i] {
            let (kernel, elements) = copy(m, operands[i], sizes[i], i == 2)?;
            planned.copies[i] = Some(kernel);
            planned.copy_bytes[i] = elements * m.dtype.size();
        }
    }
    let plain: Vec<Operand> =
        (0..3).map(|i| if copied[i] { row_major(&m.batch, sizes[i]) } else { operands[i].clone() }).collect();
    let mut axes = merged(axes(m, &copied));
    // One weight for all batches: they are rows of one product.
    let (mut rows, mut a_row, mut c_row) = (m.m, plain[0].row, plain[2].row);
    if let Some(&(len, [a, b, c])) = axes.last()
        && b == 0
        && plain[0].col == 1
        && plain[2].col == 1
        && (m.m == 1 || (a == a_row * m.m as i64 && c == c_row * m.m as i64))
    {
        if m.m == 1 {
            (a_row, c_row) = (a, c);
        }
        if a_row >= m.k as i64 && c_row >= m.n as i64 {
            rows *= len;
            axes.pop();
        } else {
            (a_row, c_row) = (plain[0].row, plain[2].row);
        }
    }
    let with = |o: &Operand, row: i64| Operand { row, ..o.clone() };
    let laid = [
        lay(&with(&plain[0], a_row), [rows, m.k]),
        lay(&plain[1], sizes[1]),
        lay(&with(&plain[2], c_row), [rows, m.n]),
    ];
    let [Some(a), Some(b), Some(c)] = laid else {
        return Err(Error::bug("cuda", "a matrix operand has no layout after all"));
    };
    let (batch, strides) = axes.pop().unwrap_or((1, [0; 3]));
    let mut product = product(m.dtype, tf32, a, b, c, [rows, m.k, m.n], batch, strides);
    let [x, y, z] = [0, 1, 2].map(|i| alignment(&axes, i, m.dtype));
    product.alignment = if product.swapped { [y, x, z] } else { [x, y, z] };
    let size = m.dtype.size() as i64;
    let starts = [plain[0].offset, plain[1].offset, plain[2].offset];
    for index in 0..axes.iter().map(|a| a.0).product::<usize>() {
        let (mut left, mut offsets) = (index, starts);
        for &(len, strides) in axes.iter().rev() {
            let at = (left % len) as i64;
            left /= len;
            for (o, s) in offsets.iter_mut().zip(strides) {
                *o += at * s;
            }
        }
        planned.calls.push(Call { product, offsets: offsets.map(|o| o * size) });
    }
    Ok(planned)
}

/// Batch axes: length, and elements from one matrix to the next in a, b, c.
type Axes = Vec<(usize, [i64; 3])>;

fn axes(m: &Matmul, copied: &[bool; 3]) -> Axes {
    let sizes = [[m.m, m.k], [m.k, m.n], [m.m, m.n]];
    let strides: Vec<Vec<i64>> = [&m.a, &m.b, &m.c]
        .into_iter()
        .enumerate()
        .map(|(i, o)| if copied[i] { row_major(&m.batch, sizes[i]).batch } else { o.batch.clone() })
        .collect();
    (0..m.batch.len()).map(|x| (m.batch[x], [strides[0][x], strides[1][x], strides[2][x]])).collect()
}

/// Without axes of length 1, neighbours that follow one stride made one.
fn merged(axes: Axes) -> Axes {
    let mut out: Axes = Vec::new();
    for (len, strides) in axes.into_iter().filter(|a| a.0 != 1) {
        match out.last_mut() {
            Some(last) if (0..3).all(|i| last.1[i] == strides[i] * len as i64) => *last = (last.0 * len, strides),
            _ => out.push((len, strides)),
        }
    }
    out
}

/// Lengths of the batch axes that take a call each.
fn outer_batches(m: &Matmul, copied: &[bool; 3]) -> Vec<usize> {
    let mut axes = merged(axes(m, copied));
    axes.pop();
    axes.iter().map(|a| a.0).collect()
}

fn row_major(batch: &[usize], [rows, cols]: [usize; 2]) -> Operand {
    let mut step = (rows * cols) as i64;
    let mut strides = vec![0; batch.len()];
    for (s, &len) in strides.iter_mut().zip(batch).rev() {
        *s = step;
        step *= len as i64;
    }
    Operand { offset: 0, batch: strides, row: cols as i64, col: 1 }
}

/// How a matrix lies: whether its rows have no gaps (else its columns), and the elements from one to the next.
#[derive(Clone, Copy, Debug)]
struct Laid {
    by_rows: bool,
    ld: i64,
}

fn lay(o: &Operand, [rows, cols]: [usize; 2]) -> Option<Laid> {
    let ld = |many: usize, stride: i64, len: usize| if many == 1 { len as i64 } else { stride };
    let by_rows = (o.col == 1 || cols == 1).then(|| ld(rows, o.row, cols)).filter(|&l| l >= cols as i64);
    let by_cols = (o.row == 1 || rows == 1).then(|| ld(cols, o.col, rows)).filter(|&l| l >= rows as i64);
    let rows = by_rows.map(|ld| Laid { by_rows: true, ld });
    rows.or(by_cols.map(|ld| Laid { by_rows: false, ld }))
}

/// Whether the first matrix starts at an aligned address if the operand's memory does.
fn aligned(o: &Operand, dtype: DType) -> bool {
    o.offset * dtype.size() as i64 % ALIGNMENT as i64 == 0
}

/// What the addresses of all calls are multiples of, up to [`ALIGNMENT`]: their first matrix is aligned.
fn alignment(axes: &Axes, operand: usize, dtype: DType) -> u32 {
    let steps = axes.iter().filter(|a| a.0 > 1).map(|a| a.1[operand].unsigned_abs() * dtype.size() as u64);
    steps.fold(ALIGNMENT, |least, s| if s == 0 { least } else { least.min(1 << s.trailing_zeros()) }) as u32
}

/// The product as the library is to be called: it thinks in columns, so rows of c without gaps make it compute
/// c^T = b^T a^T.
#[allow(clippy::too_many_arguments)]
fn product(
    dtype: DType,
    tf32: bool,
    a: Laid,
    b: Laid,
    c: Laid,
    [m, k, n]: [usize; 3],
    batch: usize,
    strides: [i64; 3],
) -> Product {
    let matrix = |rows: usize, cols: usize, ld: i64, batch_stride: i64| Matrix {
        rows: rows as u64,
        cols: cols as u64,
        ld,
        batch_stride,
    };
    let by_rows = c.by_rows;
    let base = |a: Matrix, b: Matrix, c: Matrix, transpose_a: bool, transpose_b: bool| Product {
        dtype,
        tf32: tf32 && dtype == DType::F32,
        a,
        b,
        c,
        transpose_a,
        transpose_b,
        batch: batch as u32,
        swapped: by_rows,
        alignment: [ALIGNMENT as u32; 3],
    };
    // A matrix by rows is, to the library, its transpose by columns.
    let seen = |l: Laid, rows: usize, cols: usize, stride: i64| {
        if l.by_rows { matrix(cols, rows, l.ld, stride) } else { matrix(rows, cols, l.ld, stride) }
    };
    let (x, y) = (seen(a, m, k, strides[0]), seen(b, k, n, strides[1]));
    if c.by_rows {
        base(y, x, matrix(n, m, c.ld, strides[2]), !b.by_rows, !a.by_rows)
    } else {
        base(x, y, matrix(m, n, c.ld, strides[2]), a.by_rows, b.by_rows)
    }
}

/// A kernel that copies an operand to a place without gaps (`back`: from there to where it lies), and its elements.
fn copy(m: &Matmul, o: &Operand, [rows, cols]: [usize; 2], back: bool) -> Result<(Kernel, usize)> {
    let mut domain = m.batch.clone();
    domain.extend([rows, cols]);
    let mut strides = o.batch.clone();
    strides.extend([o.row, o.col]);
    let elements = domain.iter().product();
    let reach = o.offset + domain.iter().zip(&strides).map(|(&d, &s)| (d as i64 - 1) * s.max(0)).sum::<i64>() + 1;
    let mut b = Builder::new(&domain, &vec![false; domain.len()]);
    let (lens, there) = ([reach as usize, elements], [o.offset, 0]);
    let (from, to) = if back { (1, 0) } else { (0, 1) };
    let access = |arg: u32, which: usize, domain: &[usize]| match which {
        0 => Access::strided(arg, there[0], &strides),
        _ => Access::row_major(arg, domain),
    };
    let x = b.input(m.dtype, lens[from]);
    let y = b.output(m.dtype, lens[to]);
    let v = b.load(access(x, from, &domain));
    b.store(access(y, to, &domain), v);
    Ok((b.finish()?, elements))
}

/// A kernel that fills c with zeros.
fn zeros(m: &Matmul) -> Result<Kernel> {
    let mut domain = m.batch.clone();
    domain.extend([m.m, m.n]);
    let mut strides = m.c.batch.clone();
    strides.extend([m.c.row, m.c.col]);
    let reach = m.c.offset + domain.iter().zip(&strides).map(|(&d, &s)| (d as i64 - 1) * s.max(0)).sum::<i64>() + 1;
    let mut b = Builder::new(&domain, &vec![false; domain.len()]);
    let y = b.output(m.dtype, reach as usize);
    let zero = match m.dtype {
        DType::F64 => b.f64(0.0),
        _ => b.f32(0.0),
    };
    b.store(Access::strided(y, m.c.offset, &strides), zero);
    b.finish()
}

#[cfg(test)]
#[path = "matmul_tests.rs"]
mod tests;
