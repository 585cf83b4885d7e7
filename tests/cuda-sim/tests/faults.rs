//! Errors: found where a driver finds them, made on request, and staying where they stay.

mod abi;

use abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const LEGACY: *mut c_void = null_mut();

#[test]
fn accesses_beyond_an_allocation() {
    let Some(_turn) = sim() else { return };
    // Far out: a guard page. Just behind, and just before: the pattern there.
    for (at, sign) in [(1i64 << 18, "kernel put"), (3, "guard zone"), (-1, "guard zone")] {
        let module = Module::new(r#"extern "C" __global__ void put(float* x, long long at) { x[at] = 1; }"#);
        let put = module.function("put");
        let x = Buffer::of(&[0f32; 3]);
        assert_eq!(launch(put, 1, 1, 0, LEGACY, &mut params!(x.at, at)), 0);
        assert_eq!(call!(cuCtxSynchronize()), 700, "{at}");
        let said = cuda_sim::diagnostics();
        assert!(said.contains(sign), "{said}");
        // It stays, whatever is called.
        let mut p = 0u64;
        assert_eq!(call!(cuMemAlloc_v2(&mut p, 4usize)), 700);
        assert_eq!(call!(cuCtxSynchronize()), 700);
        cuda_sim::reset_device();
        assert_eq!(call!(cuMemAlloc_v2(&mut p, 4usize)), 0);
        assert_eq!(call!(cuMemFree_v2(p)), 0);
        // What lived in the context went with it.
        assert_eq!(launch(put, 1, 1, 0, LEGACY, &mut params!(p, at)), 400);
        assert_eq!(call!(cuModuleUnload(module.0)), 400);
    }
}

#[test]
fn freed_memory_is_gone() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(r#"extern "C" __global__ void put(float* x) { *x = 1; }"#);
    let s = stream(false);
    let mut p = 0u64;
    assert_eq!(call!(cuMemAllocAsync(&mut p, 4usize, s)), 0);
    let mut word = 0u32;
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(&mut word, p, 4usize, s)), 0);
    assert_eq!(word, u32::MAX, "fresh memory is poisoned");
    assert_eq!(call!(cuMemFreeAsync(p, s)), 0);
    // Twice; and used after.
    assert_eq!(call!(cuMemFreeAsync(p, s)), 1);
    assert_eq!(call!(cuMemsetD8Async(p, 0u8, 4usize, s)), 1);
    assert_eq!(launch(module.function("put"), 1, 1, 0, s, &mut params!(p)), 0);
    assert_eq!(call!(cuStreamSynchronize(s)), 700);
}

#[test]
fn a_barrier_that_not_all_reach() {
    let Some(_turn) = sim() else { return };
    let sources = [
        "if (threadIdx.x < 16) __syncthreads(); else { x[1] = 1; __syncthreads(); }",
        "if (threadIdx.x < 16) __shfl_sync(0xffffffffu, x[0], 0); else __syncthreads();",
        "__shfl_sync(0xfffffffeu, x[0], 0);",
        "if (threadIdx.x == 7) __trap();",
    ];
    for body in sources {
        let module = Module::new(&format!("extern \"C\" __global__ void f(float* x) {{ {body} __syncwarp(); }}"));
        let x = Buffer::of(&[0f32; 8]);
        assert_eq!(launch(module.function("f"), 1, 32, 0, LEGACY, &mut params!(x.at)), 0);
        assert_eq!(call!(cuCtxSynchronize()), 719, "{body}");
        cuda_sim::reset_device();
    }
}

#[test]
fn calls_fail_on_request() {
    let Some(_turn) = sim() else { return };
    let mut p = 0u64;
    cuda_sim::fail("cuMemAlloc_v2", 2, 2);
    cuda_sim::reset_counts();
    assert_eq!(call!(cuMemAlloc_v2(&mut p, 4usize)), 0);
    let mut q = 0u64;
    assert_eq!(call!(cuMemAlloc_v2(&mut q, 4usize)), 2);
    assert_eq!((q, call!(cuMemAlloc_v2(&mut q, 4usize))), (0, 0));
    assert_eq!(cuda_sim::counts().get("cuMemAlloc_v2"), Some(&3));
    assert_eq!(cuda_sim::counts().get("cuMemFree_v2"), None);
    call!(cuMemFree_v2(p));
    call!(cuMemFree_v2(q));
    // A code that stays.
    cuda_sim::fail("cuLaunchKernel", 1, 719);
    assert_eq!(launch(LEGACY, 1, 1, 0, LEGACY, &mut []), 719);
    assert_eq!(call!(cuMemAlloc_v2(&mut p, 4usize)), 719);
    cuda_sim::reset_device();
}

#[test]
fn what_is_left_is_listed() {
    let Some(_turn) = sim() else { return };
    let before = cuda_sim::outstanding();
    let module = Module::new(r#"extern "C" __global__ void nop() {}"#);
    let (x, s) = (Buffer::new(12), stream(false));
    let now: Vec<String> = cuda_sim::outstanding().into_iter().filter(|o| !before.contains(o)).collect();
    let kinds: Vec<&str> = now.iter().map(|o| o.split(' ').next().unwrap()).collect();
    assert_eq!(kinds, ["memory", "module", "stream"]);
    assert!(now[0].ends_with("12 bytes"), "{now:?}");
    drop((module, x));
    call!(cuStreamDestroy_v2(s));
    assert_eq!(cuda_sim::outstanding(), before);
}

#[test]
fn memory_has_an_end() {
    let Some(_turn) = sim() else { return };
    cuda_sim::set_memory_limit(1 << 20);
    let s = stream(false);
    let (mut p, mut q) = (0u64, 0u64);
    assert_eq!(call!(cuMemAllocAsync(&mut p, 1usize << 19, s)), 0);
    assert_eq!(call!(cuMemAllocAsync(&mut q, (1usize << 19) + 1, s)), 2);
    let (mut free, mut total) = (0usize, 0usize);
    assert_eq!(call!(cuMemGetInfo_v2(&mut free, &mut total)), 0);
    assert_eq!((free, total), (1 << 19, 1 << 20));
    // What the stream freed can be had again.
    assert_eq!(call!(cuMemFreeAsync(p, s)), 0);
    assert_eq!(call!(cuMemAllocAsync(&mut q, 1usize << 20, s)), 0);
    assert_eq!(call!(cuMemFreeAsync(q, s)), 0);
    assert_eq!(call!(cuStreamSynchronize(s)), 0);
    call!(cuStreamDestroy_v2(s));
}

#[test]
fn images_are_checked() {
    let Some(_turn) = sim() else { return };
    let image = cubin(r#"extern "C" __global__ void nop() {}"#, &[]).unwrap();
    let mut module: Ptr = null_mut();
    let mut damaged = image.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(call!(cuModuleLoadData(&mut module, damaged.as_ptr())), 200);
    assert_eq!(call!(cuModuleLoadData(&mut module, c"not an image".as_ptr())), 200);
    cuda_sim::set_version(cuda_sim::Versioned::Compute, 8, 0);
    let other_device = call!(cuModuleLoadData(&mut module, image.as_ptr()));
    cuda_sim::set_version(cuda_sim::Versioned::Compute, 9, 0);
    assert_eq!(other_device, 209);
    assert_eq!(call!(cuModuleLoadData(&mut module, image.as_ptr())), 0);
    let mut f: Ptr = null_mut();
    assert_eq!(call!(cuModuleGetFunction(&mut f, module, c"missing".as_ptr())), 500);
    call!(cuModuleUnload(module));
}

#[test]
fn sources_and_options_are_checked() {
    let Some(_turn) = sim() else { return };
    cuda_sim::real_nvrtc("");
    let (code, log) = cubin("extern \"C\" __global__ void f(float* x) {\n  x[0] = y;\n}", &[]).unwrap_err();
    assert_eq!(code, 6);
    assert!(log.contains("test.cu:2") && log.contains("'y'"), "{log}");
    let (code, log) = cubin("", &["--no-such-option"]).unwrap_err();
    assert_eq!(code, 5);
    assert!(log.contains("--no-such-option"), "{log}");
    assert_eq!(cubin("#include <cuda_fp16.h>", &[]).unwrap_err().0, 6);
}

#[test]
fn launches_are_checked() {
    let Some(_turn) = sim() else { return };
    let module =
        Module::new(r#"extern "C" __global__ void f(int* x) { extern __shared__ int s[]; s[0] = 1; *x = s[0]; }"#);
    let f = module.function("f");
    let x = Buffer::of(&[0i32]);
    for (grid, block, shared, code) in
        [(0, 1, 4, 1), (1, 0, 4, 1), (1, 1025, 4, 1), (1, 1, 49153, 1), (1, 1024, 49152, 0)]
    {
        assert_eq!(launch(f, grid, block, shared, LEGACY, &mut params!(x.at)), code, "{grid} {block} {shared}");
    }
    // More shared memory after asking for it, up to the device's limit.
    assert_eq!(call!(cuFuncSetAttribute(f, 8i32, 232449i32)), 1);
    assert_eq!(call!(cuFuncSetAttribute(f, 8i32, 232448i32)), 0);
    assert_eq!(launch(f, 1, 1, 232448, LEGACY, &mut params!(x.at)), 0);
    // A stream that is none; a thread without a context.
    let nonsense = 0x1234usize as Ptr;
    assert_eq!(launch(f, 1, 1, 4, nonsense, &mut params!(x.at)), 400);
    let code = std::thread::spawn(|| call!(cuCtxSynchronize())).join().unwrap();
    assert_eq!(code, 201);
    assert_eq!(x.read::<i32>(), [1]);
}
