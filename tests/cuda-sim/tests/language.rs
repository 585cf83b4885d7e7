//! What the simulated kernels' language means where C++ on a CPU would differ.

mod abi;

use abi::*;
use std::ptr::null_mut;

/// Runs one thread block of a body with `float* x` in and `T* y` out.
fn run<I: Copy, O: Copy + Default>(
    ty: &str,
    body: &str,
    threads: u32,
    input: &[I],
    outputs: usize,
    from: &str,
) -> Vec<O> {
    let module = Module::new(&format!(
        "extern \"C\" __global__ void f(const {from}* x, {ty}* y) {{ int t = threadIdx.x; {body} }}"
    ));
    let (x, y) = (Buffer::of(input), Buffer::new(outputs * size_of::<O>()));
    let code = launch(module.function("f"), 1, threads, 0, null_mut(), &mut params!(x.at, y.at));
    assert_eq!(code, 0, "{}", cuda_sim::diagnostics());
    y.read()
}

#[test]
fn float_to_integer_saturates() {
    let Some(_turn) = sim() else { return };
    // PTX ISA, cvt: clamped; a NaN is 0, or 1 << (bits - 1) if the source is f64 or the result has 64 bits.
    let x = [2.5f32, -2.5, 3e9, -3e9, f32::INFINITY, f32::NAN, 2f32.powi(63), 2e19];
    let n = x.len();
    let to_int: Vec<i32> = run("int", "y[t] = __float2int_rz(x[t]);", n as u32, &x, n, "float");
    assert_eq!(to_int, [2, -2, i32::MAX, i32::MIN, i32::MAX, 0, i32::MAX, i32::MAX]);
    let rounded: Vec<i32> = run("int", "y[t] = __float2int_rn(x[t]);", 2, &x, 2, "float");
    assert_eq!(rounded, [2, -2]);
    let to_uint: Vec<u32> = run("unsigned", "y[t] = __float2uint_rz(x[t]);", n as u32, &x, n, "float");
    assert_eq!(to_uint, [2, 0, 3_000_000_000, 0, u32::MAX, 0, u32::MAX, u32::MAX]);
    let to_ll: Vec<i64> = run("long long", "y[t] = __float2ll_rz(x[t]);", n as u32, &x, n, "float");
    assert_eq!(to_ll, [2, -2, 3_000_000_000, -3_000_000_000, i64::MAX, i64::MIN, i64::MAX, i64::MAX]);
    let d = x.map(f64::from);
    let to_ull: Vec<u64> = run("unsigned long long", "y[t] = __double2ull_rz(x[t]);", n as u32, &d, n, "double");
    assert_eq!(to_ull, [2, 0, 3_000_000_000, 0, u64::MAX, 1 << 63, 1 << 63, u64::MAX]);
    let to_int: Vec<i32> = run("int", "y[t] = __double2int_rz(x[t]);", n as u32, &d, n, "double");
    assert_eq!(to_int, [2, -2, i32::MAX, i32::MIN, i32::MAX, i32::MIN, i32::MAX, i32::MAX]);
}

#[test]
fn warps_exchange_values() {
    let Some(_turn) = sim() else { return };
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let y: Vec<f32> = run(
        "float",
        "y[t] = __shfl_down_sync(~0u, x[t], 1); y[32 + t] = __shfl_up_sync(~0u, x[t], 1, 8);
         y[64 + t] = __shfl_sync(~0u, x[t], 3, 8);
         unsigned half = t < 16 ? 0xffffu : 0xffff0000u;
         y[96 + t] = __shfl_xor_sync(half, x[t], 8);
         y[128 + t] = __popc(__ballot_sync(~0u, x[t] > 20.0f)) + 100 * __any_sync(half, t == 3) + 1000 * __all_sync(half, t < 16);
         y[160 + t] = (float)__reduce_add_sync(half, (unsigned)t);",
        32,
        &x,
        192,
        "float",
    );
    for t in 0..32usize {
        let f = |v: usize| v as f32;
        assert_eq!(y[t], f(if t == 31 { 31 } else { t + 1 }));
        assert_eq!(y[32 + t], f(if t % 8 == 0 { t } else { t - 1 }));
        assert_eq!(y[64 + t], f(t / 8 * 8 + 3));
        assert_eq!(y[96 + t], f(t ^ 8));
        assert_eq!(y[128 + t], 11.0 + if t < 16 { 1100.0 } else { 0.0 });
        assert_eq!(y[160 + t], f(if t < 16 { 120 } else { 376 }));
    }
}

#[test]
fn vectors_atomics_barriers_and_bits() {
    let Some(_turn) = sim() else { return };
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let y: Vec<u32> = run(
        "unsigned",
        "__shared__ unsigned sum, top; if (t == 0) { sum = 0; top = 0; } __syncthreads();
         float4 v = ((const float4*)x)[t]; float2 w = make_float2(v.x + v.y, v.z + v.w);
         atomicAdd(&sum, (unsigned)(w.x + w.y)); atomicMax(&top, (unsigned)v.w); atomicOr(y + 3, 1u << t);
         int any = __syncthreads_or(t == 5), all = __syncthreads_and(t < 15), count = __syncthreads_count(t & 1);
         if (t == 0) { y[0] = sum; y[1] = top; y[2] = any + 10 * all + 100 * count; }
         if (t == 0) { y[4] = __umulhi(0x80000000u, 6u); y[5] = __float_as_uint(1.0f); y[6] = __clz(1); y[7] = __brev(1u); }
         if (t == 0) { y[8] = __float_as_uint(fminf(0.0f, -0.0f)); y[9] = fmaxf(__uint_as_float(0x7fc00000u), 2.0f); }",
        16,
        &x,
        10,
        "float",
    );
    assert_eq!(y[..3], [2016, 63, 1 + 800]);
    assert_eq!(y[3], u32::MAX, "poisoned before, or-ed after");
    assert_eq!(y[4..], [3, 0x3f80_0000, 31, 1 << 31, 1 << 31, 2]);
}

#[test]
fn memory_that_nobody_wrote_holds_nans() {
    let Some(_turn) = sim() else { return };
    let y: Vec<u32> =
        run("unsigned", "__shared__ unsigned s[4]; y[t] = s[t]; __syncthreads(); s[t] = 1;", 4, &[0f32], 8, "float");
    assert_eq!(y, [u32::MAX; 8]);
}

#[test]
fn a_race_shows_in_reverse() {
    let Some(_turn) = sim() else { return };
    let mut seen = Vec::new();
    for reverse in [false, true] {
        cuda_sim::reverse_fibers(reverse);
        let y: Vec<f32> = run("float", "y[0] = x[t];", 2, &[1f32, 2.0], 1, "float");
        seen.extend(y);
    }
    assert_eq!(seen, [2.0, 1.0]);
}

#[test]
fn products_are_contracted_only_when_asked() {
    let Some(_turn) = sim() else { return };
    let source = r#"extern "C" __global__ void f(const float* x, float* y) {
        y[0] = x[0] * x[1] + x[2]; y[1] = fmaf(x[0], x[1], x[2]); y[2] = __fmul_rn(x[0], x[1]) + x[2]; }"#;
    let x = [1.0f32 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0];
    let (fused, apart) = (x[0].mul_add(x[1], x[2]), x[0] * x[1] + x[2]);
    assert_ne!(fused, apart);
    for (option, first) in [("--fmad=true", fused), ("--fmad=false", apart)] {
        let image = cubin(source, &[option]).unwrap();
        let mut module: Ptr = null_mut();
        assert_eq!(call!(cuModuleLoadData(&mut module, image.as_ptr())), 0);
        let module = Module(module);
        let (dx, dy) = (Buffer::of(&x), Buffer::new(12));
        assert_eq!(launch(module.function("f"), 1, 1, 0, null_mut(), &mut params!(dx.at, dy.at)), 0);
        assert_eq!(dy.read::<f32>(), [first, fused, apart], "{option}");
    }
}
