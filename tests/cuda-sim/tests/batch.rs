//! Programs compiled together, and programs that a real NVRTC compiles too.

mod abi;

use abi::*;
use std::ptr::null_mut;

/// Each with names, macros and shared memory that the others have too, of other types.
fn source(i: usize) -> String {
    let ty = ["int", "float", "double"][i % 3];
    format!(
        r#"#define N {i}
#define T {ty}
struct Pair {{ T a, b; }};
__constant__ T factor = 2;
__device__ T helper(T x) {{ return factor * x + N; }}
extern "C" __global__ void f(double* out) {{
    __shared__ T s[4 + N];
    s[threadIdx.x + N] = helper((T)threadIdx.x);
    __syncthreads();
    Pair p = {{s[N], s[1 + N]}};
    if (threadIdx.x == 0) *out = (double)p.a + (double)p.b;
}}"#
    )
}

#[test]
fn many_programs_are_compiled_at_once() {
    let Some(_turn) = sim() else { return };
    cuda_sim::set_batching(true);
    cuda_sim::real_nvrtc("");
    let bad = cubin("extern \"C\" __global__ void f() { undefined(); }", &[]).unwrap();
    let modules: Vec<Module> = (0..60).map(|i| Module::new(&source(i))).collect();
    let out = Buffer::new(8 * modules.len());
    for (i, module) in modules.iter().enumerate() {
        let at = out.at + 8 * i as u64;
        assert_eq!(
            launch(module.function("f"), 1, 4, 0, null_mut(), &mut params!(at)),
            0,
            "{}",
            cuda_sim::diagnostics()
        );
    }
    let want: Vec<f64> = (0..modules.len()).map(|i| 2.0 + 2.0 * i as f64).collect();
    assert_eq!(out.read::<f64>(), want);
    // The one at fault, alone, cannot be launched.
    let mut module: Ptr = null_mut();
    assert_eq!(call!(cuModuleLoadData(&mut module, bad.as_ptr())), 0);
    let module = Module(module);
    cuda_sim::diagnostics();
    assert_eq!(launch(module.function("f"), 1, 1, 0, null_mut(), &mut []), 300);
    assert!(cuda_sim::diagnostics().contains("undefined"));
}

#[test]
fn a_real_compiler_sees_every_source() {
    let Some(_turn) = sim() else { return };
    let Ok(path) = std::env::var("STEPGRAPH_SIM_NVRTC") else {
        eprintln!("not run: name a real libnvrtc in STEPGRAPH_SIM_NVRTC");
        return;
    };
    cuda_sim::reset_counts();
    for i in 0..3 {
        cubin(&source(i), &["--fmad=false"]).unwrap();
    }
    assert_eq!(cuda_sim::counts().get("real nvrtcCompileProgram"), Some(&3), "{path}");
    // Its log comes back.
    let source = r#"extern "C" __global__ void f(unsigned* x) { unknown_to_nvcc<<<1, 1>>>(); }"#;
    let (code, log) = cubin(source, &[]).unwrap_err();
    assert_eq!(code, 6);
    assert!(log.contains("unknown_to_nvcc"), "{log}");
}
