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

#[test]
fn threads_compile_and_launch_beside_each_other() {
    let Some(_turn) = sim() else { return };
    let mut ctx: Ptr = null_mut();
    assert_eq!(call!(cuCtxGetCurrent(&mut ctx)), 0);
    let ctx = ctx as usize;
    std::thread::scope(|scope| {
        for t in 0..4i32 {
            scope.spawn(move || {
                assert_eq!(call!(cuCtxSetCurrent(ctx as Ptr)), 0);
                let module = Module::new(&format!(
                    "extern \"C\" __global__ void f(int* x, int a) {{ x[threadIdx.x] += a + {t}; __syncthreads(); }}"
                ));
                let (f, s, x) = (module.function("f"), stream(false), Buffer::of(&[0i32; 8]));
                for a in 0..50i32 {
                    assert_eq!(launch(f, 1, 8, 0, s, &mut params!(x.at, a)), 0);
                }
                assert_eq!(call!(cuStreamSynchronize(s)), 0);
                assert_eq!(x.read::<i32>(), [1225 + 50 * t; 8]);
                assert_eq!(call!(cuStreamDestroy_v2(s)), 0);
            });
        }
    });
}

#[test]
fn a_kernel_of_a_thousand_parameters_compiles_in_time_and_one_of_too_many_is_refused() {
    let Some(_turn) = sim() else { return };
    let source = |n: usize, ty: &str| {
        let params: Vec<String> = (0..n).map(|i| format!("{ty} parameter_of_a_long_name_{i}")).collect();
        let terms: Vec<String> = (0..n).map(|i| format!("(long long)parameter_of_a_long_name_{i}")).collect();
        format!(
            "extern \"C\" __global__ void f({}, long long* sum) {{ *sum = {}; }}",
            params.join(", "),
            terms.join(" + ")
        )
    };
    let values: Vec<u64> = (0..1000).collect();
    let sum = Buffer::of(&[0i64]);
    let mut pointers: Vec<Ptr> = values.iter().map(|v| (&raw const *v).cast_mut().cast()).collect();
    pointers.push((&raw const sum.at).cast_mut().cast());
    let module = Module::new(&source(1000, "unsigned long long"));
    assert_eq!(launch(module.function("f"), 1, 1, 0, null_mut(), &mut pointers), 0);
    assert_eq!(sum.read::<i64>(), [499_500]);
    // Drivers before 12.1 take 4 KiB.
    cuda_sim::set_version(cuda_sim::Versioned::Driver, 12, 0);
    let code = launch(module.function("f"), 1, 1, 0, null_mut(), &mut pointers);
    cuda_sim::set_version(cuda_sim::Versioned::Driver, 13, 0);
    assert_eq!(code, 1);
    assert!(cuda_sim::diagnostics().contains("4096 bytes"));
}
