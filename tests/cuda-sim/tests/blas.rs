//! Matrix products of the simulated cublasLt.

mod abi;

use abi::*;
use std::collections::BTreeSet;
use std::ptr::null_mut;

const F32: i32 = 0;
const F64: i32 = 1;
const F16: i32 = 2;
const BF16: i32 = 14;
const WORKSPACE: usize = 1024;

/// `D = op(A) op(B)`, column-major, with everything cublasLt needs for it.
struct Product {
    handle: Ptr,
    desc: Ptr,
    layouts: [Ptr; 4],
    preference: Ptr,
    workspace: Buffer,
    algo: [u64; 8],
}

impl Product {
    fn new(compute: i32, types: [i32; 2], [m, n, k]: [u64; 3], trans: [bool; 2], batch: i32, align: u32) -> Product {
        let (mut handle, mut desc, mut preference): (Ptr, Ptr, Ptr) = (null_mut(), null_mut(), null_mut());
        assert_eq!(call!(cublasLtCreate(&mut handle)), 0);
        let scale = if compute == 70 { F64 } else { F32 };
        assert_eq!(call!(cublasLtMatmulDescCreate(&mut desc, compute, scale)), 0);
        for (which, t) in [(3i32, trans[0]), (4, trans[1])] {
            assert_eq!(call!(cublasLtMatmulDescSetAttribute(desc, which, &i32::from(t), 4usize)), 0);
        }
        assert_eq!(call!(cublasLtMatmulPreferenceCreate(&mut preference)), 0);
        assert_eq!(call!(cublasLtMatmulPreferenceSetAttribute(preference, 1i32, &WORKSPACE, 8usize)), 0);
        for which in 5i32..9 {
            assert_eq!(call!(cublasLtMatmulPreferenceSetAttribute(preference, which, &align, 4usize)), 0);
        }
        let mut layouts: [Ptr; 4] = [null_mut(); 4];
        let a = if trans[0] { (k, m) } else { (m, k) };
        let b = if trans[1] { (n, k) } else { (k, n) };
        for (i, (rows, columns)) in [a, b, (m, n), (m, n)].into_iter().enumerate() {
            let of = types[i / 2];
            assert_eq!(call!(cublasLtMatrixLayoutCreate(&mut layouts[i], of, rows, columns, rows as i64)), 0);
            let stride = (rows * columns) as i64;
            assert_eq!(call!(cublasLtMatrixLayoutSetAttribute(layouts[i], 5i32, &batch, 4usize)), 0);
            assert_eq!(call!(cublasLtMatrixLayoutSetAttribute(layouts[i], 6i32, &stride, 8usize)), 0);
        }
        let mut result = [0u64; 12];
        let mut found = 0i32;
        let [a, b, c, d] = layouts;
        assert_eq!(
            call!(cublasLtMatmulAlgoGetHeuristic(
                handle,
                desc,
                a,
                b,
                c,
                d,
                preference,
                1i32,
                result.as_mut_ptr(),
                &mut found
            )),
            0,
            "{}",
            cuda_sim::diagnostics()
        );
        assert_eq!((found, result[8] as usize), (1, WORKSPACE));
        let algo = result[..8].try_into().unwrap();
        Product { handle, desc, layouts, preference, workspace: Buffer::new(WORKSPACE), algo }
    }

    fn run<S>(&self, [alpha, beta]: [S; 2], at: [u64; 4], workspace_bytes: usize, stream: Ptr) -> i32 {
        let ([la, lb, lc, ld], [a, b, c, d]) = (self.layouts, at);
        call!(cublasLtMatmul(
            self.handle,
            self.desc,
            &alpha,
            a,
            la,
            b,
            lb,
            &beta,
            c,
            lc,
            d,
            ld,
            self.algo.as_ptr(),
            self.workspace.at,
            workspace_bytes,
            stream
        ))
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        for layout in self.layouts {
            call!(cublasLtMatrixLayoutDestroy(layout));
        }
        call!(cublasLtMatmulPreferenceDestroy(self.preference));
        call!(cublasLtMatmulDescDestroy(self.desc));
        call!(cublasLtDestroy(self.handle));
    }
}

/// Numbers in [-1, 1] that differ.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (s >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn bf16(v: f32) -> u16 {
    let u = v.to_bits();
    ((u + 0x7fff + (u >> 16 & 1)) >> 16) as u16
}
fn of_bf16(v: u16) -> f32 {
    f32::from_bits(u32::from(v) << 16)
}

/// The defined order, one element.
fn element(k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let slice = |from: usize| (from..k.min(from + 512)).fold(0f32, |sum, p| a(p).mul_add(b(p), sum));
    (512..k).step_by(512).fold(slice(0), |sum, from| sum + slice(from))
}

#[test]
fn f32_products_are_chains_of_slices() {
    let Some(_turn) = sim() else { return };
    let (m, n, k, batch) = (5usize, 27, 1100, 2);
    let (a, b) = (numbers(m * k * batch, 1), numbers(k * n * batch, 2));
    let c = numbers(m * n * batch, 3);
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        let product = Product::new(68, [F32; 2], [m as u64, n as u64, k as u64], [ta, tb], batch as i32, 16);
        let (da, db, dc) = (Buffer::of(&a), Buffer::of(&b), Buffer::of(&c));
        let dd = Buffer::new(4 * m * n * batch);
        for (alpha, beta) in [(1f32, 0f32), (0.5, 2.0)] {
            assert_eq!(product.run([alpha, beta], [da.at, db.at, dc.at, dd.at], WORKSPACE, null_mut()), 0);
            let d = dd.read::<f32>();
            for (at, &got) in d.iter().enumerate() {
                let (l, i, j) = (at / (m * n), at % m, at / m % n);
                let ea = |p: usize| a[l * m * k + if ta { i * k + p } else { p * m + i }];
                let eb = |p: usize| b[l * n * k + if tb { p * n + j } else { j * k + p }];
                let mut want = alpha * element(k, ea, eb);
                if beta != 0.0 {
                    want += beta * c[at];
                }
                assert_eq!(got.to_bits(), want.to_bits(), "{l} {i} {j}");
            }
        }
    }
}

#[test]
fn sixteen_bit_f64_and_tf32_products() {
    let Some(_turn) = sim() else { return };
    let (m, n, k) = (7usize, 9, 600);
    let dims = [m as u64, n as u64, k as u64];
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    // bf16 in and out: widened, added in f32, rounded once.
    let (ha, hb): (Vec<u16>, Vec<u16>) = (a.iter().map(|&v| bf16(v)).collect(), b.iter().map(|&v| bf16(v)).collect());
    let (da, db, dd) = (Buffer::of(&ha), Buffer::of(&hb), Buffer::new(2 * m * n));
    let product = Product::new(68, [BF16; 2], dims, [false; 2], 1, 2);
    assert_eq!(product.run([1f32, 0.0], [da.at, db.at, 0, dd.at], WORKSPACE, null_mut()), 0);
    for (at, got) in dd.read::<u16>().into_iter().enumerate() {
        let want = element(k, |p| of_bf16(ha[p * m + at % m]), |p| of_bf16(hb[at / m * k + p]));
        assert_eq!(got, bf16(want));
    }
    // f16: small integers are exact, and sums beyond its range are infinite.
    let product = Product::new(68, [F16; 2], [1, 1, 4], [false; 2], 1, 2);
    let one_two_half_big = [0x3c00u16, 0x4000, 0x3800, 0x7bff];
    for (other, want) in [([0x3c00u16, 0x4000, 0x4400, 0], 0x4700u16), ([0, 0, 0, 0x4000], 0x7c00)] {
        let (da, db, dd) = (Buffer::of(&one_two_half_big), Buffer::of(&other), Buffer::new(2));
        assert_eq!(product.run([1f32, 0.0], [da.at, db.at, 0, dd.at], WORKSPACE, null_mut()), 0);
        assert_eq!(dd.read::<u16>(), [want]);
    }
    // f64.
    let (wa, wb): (Vec<f64>, Vec<f64>) = (a.iter().map(|&v| v.into()).collect(), b.iter().map(|&v| v.into()).collect());
    let (da, db, dd) = (Buffer::of(&wa), Buffer::of(&wb), Buffer::new(8 * m * n));
    let product = Product::new(70, [F64; 2], dims, [false; 2], 1, 8);
    assert_eq!(product.run([1f64, 0.0], [da.at, db.at, 0, dd.at], WORKSPACE, null_mut()), 0);
    for (at, got) in dd.read::<f64>().into_iter().enumerate() {
        let slice = |r: std::ops::Range<usize>| r.fold(0f64, |s, p| wa[p * m + at % m].mul_add(wb[at / m * k + p], s));
        assert_eq!(got, slice(0..512) + slice(512..k));
    }
    // TF32 really rounds its operands.
    let product = Product::new(77, [F32; 2], [1, 1, 1], [false; 2], 1, 4);
    let (da, db, dd) =
        (Buffer::of(&[1f32 + f32::EPSILON * 4096.0]), Buffer::of(&[1f32 + f32::EPSILON]), Buffer::new(4));
    assert_eq!(product.run([1f32, 0.0], [da.at, db.at, 0, dd.at], WORKSPACE, null_mut()), 0);
    assert_eq!(dd.read::<f32>(), [1f32 + f32::EPSILON * 8192.0]);
}

#[test]
fn products_are_checked_and_captured() {
    let Some(_turn) = sim() else { return };
    let product = Product::new(68, [F32; 2], [2, 2, 2], [false; 2], 1, 16);
    let (a, b, d) = (Buffer::of(&[1f32, 2.0, 3.0, 4.0]), Buffer::of(&[1f32, 0.0, 0.0, 1.0, 0.0]), Buffer::new(16));
    let run = |at, bytes, stream| product.run([1f32, 0.0], at, bytes, stream);
    assert_eq!(run([a.at, b.at, 0, d.at], WORKSPACE - 1, null_mut()), 7);
    assert_eq!(run([a.at, b.at + 4, 0, d.at], WORKSPACE, null_mut()), 7);
    assert!(cuda_sim::diagnostics().contains("B is aligned worse"));
    assert_eq!(run([a.at, b.at, 0, d.at + 16], WORKSPACE, null_mut()), 7);
    let s = stream(false);
    assert_eq!(call!(cuStreamBeginCapture_v2(s, 1i32)), 0);
    assert_eq!(run([a.at, b.at, 0, d.at], WORKSPACE, s), 0);
    let (mut graph, mut exec): (Ptr, Ptr) = (null_mut(), null_mut());
    assert_eq!(call!(cuStreamEndCapture(s, &mut graph)), 0);
    assert_eq!(d.read::<u32>(), [u32::MAX; 4], "nothing ran");
    assert_eq!(call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0u64)), 0);
    let kinds: BTreeSet<String> = cuda_sim::last_graph().into_iter().map(|n| n.kind).collect();
    assert!(kinds.contains("kernel"));
    assert_eq!(call!(cuGraphLaunch(exec, s)), 0);
    assert_eq!(call!(cuStreamSynchronize(s)), 0);
    assert_eq!(d.read::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(product.workspace.read::<u32>(), [u32::MAX; WORKSPACE / 4]);
    call!(cuGraphExecDestroy(exec));
    call!(cuGraphDestroy(graph));
    call!(cuStreamDestroy_v2(s));
    // Without workspace there is no algorithm.
    let [la, lb, lc, ld] = product.layouts;
    assert_eq!(call!(cublasLtMatmulPreferenceSetAttribute(product.preference, 1i32, &0usize, 8usize)), 0);
    let (mut result, mut found) = ([0u64; 12], 9i32);
    let code = call!(cublasLtMatmulAlgoGetHeuristic(
        product.handle,
        product.desc,
        la,
        lb,
        lc,
        ld,
        product.preference,
        1i32,
        result.as_mut_ptr(),
        &mut found
    ));
    assert_eq!((code, found), (15, 0));
}
