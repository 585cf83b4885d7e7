//! Kernels compile, run and compute what CUDA C++ says.

mod abi;

use abi::*;
use std::ptr::null_mut;

#[test]
fn every_listed_function_is_there() {
    let Some(_turn) = sim() else { return };
    for name in cuda_sim::calls() {
        assert!(!cuda_sim::symbol(name).is_null(), "{name}");
    }
}

#[test]
fn vector_add() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(
        r#"extern "C" __global__ void __launch_bounds__(256) add(const float* __restrict__ a, const float* __restrict__ b, float* c, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) c[i] = a[i] + b[i];
        }"#,
    );
    let n = 1000i32;
    let (a, b): (Vec<f32>, Vec<f32>) = (0..n).map(|i| (i as f32, 0.5 * i as f32)).unzip();
    let (da, db, dc) = (Buffer::of(&a), Buffer::of(&b), Buffer::new(4 * n as usize));
    let code = launch(module.function("add"), 4, 256, 0, null_mut(), &mut params!(da.at, db.at, dc.at, n));
    assert_eq!(code, 0, "{}", cuda_sim::diagnostics());
    let want: Vec<f32> = (0..n).map(|i| 1.5 * i as f32).collect();
    assert_eq!(dc.read::<f32>(), want);
    // More threads than the kernel's bound.
    assert_eq!(launch(module.function("add"), 4, 512, 0, null_mut(), &mut params!(da.at, db.at, dc.at, n)), 1);
}

const SOFTMAX: &str = r#"
__device__ __forceinline__ float warp_max(float v) {
    #pragma unroll
    for (int d = 16; d; d >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    return __shfl_sync(0xffffffffu, v, 0);
}
extern "C" __global__ void softmax(const float* x, float* y, int n) {
    __shared__ float part[8];
    extern __shared__ __align__(16) float row[];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    x += (long long)blockIdx.x * n; y += (long long)blockIdx.x * n;
    float m = -3.0e38f;
    for (int i = t; i < n; i += blockDim.x) { row[i] = x[i]; m = max(m, row[i]); }
    m = warp_max(m);
    if (lane == 0) part[warp] = m;
    __syncthreads();
    m = part[0];
    for (int w = 1; w < blockDim.x / 32; w++) m = max(m, part[w]);
    __syncthreads();
    float s = 0;
    for (int i = t; i < n; i += blockDim.x) { row[i] = expf(row[i] - m); s += row[i]; }
    s = warp_sum(s);
    if (lane == 0) part[warp] = s;
    __syncthreads();
    s = part[0];
    for (int w = 1; w < blockDim.x / 32; w++) s += part[w];
    for (int i = t; i < n; i += blockDim.x) y[i] = row[i] / s;
}"#;

#[test]
fn softmax_with_shuffles_and_shared_memory() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(SOFTMAX);
    let (rows, n) = (7usize, 300i32);
    let x: Vec<f32> = (0..rows * n as usize).map(|i| ((i * 37 % 101) as f32) * 0.1 - 5.0).collect();
    let mut results = Vec::new();
    for reverse in [false, true] {
        cuda_sim::reverse_fibers(reverse);
        let (dx, dy) = (Buffer::of(&x), Buffer::new(4 * x.len()));
        let f = module.function("softmax");
        assert_eq!(launch(f, rows as u32, 256, 4 * n as u32, null_mut(), &mut params!(dx.at, dy.at, n)), 0);
        let y = dy.read::<f32>();
        for (row, got) in x.chunks(n as usize).zip(y.chunks(n as usize)) {
            let m = row.iter().fold(f64::MIN, |m, &v| m.max(f64::from(v)));
            let s: f64 = row.iter().map(|&v| (f64::from(v) - m).exp()).sum();
            for (&v, &g) in row.iter().zip(got) {
                let want = (f64::from(v) - m).exp() / s;
                assert!((f64::from(g) - want).abs() < 1e-6, "{g} for {want}");
            }
        }
        results.push(y);
    }
    assert_eq!(results[0], results[1]);
}
