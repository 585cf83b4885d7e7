//! Devices, contexts, versions, pools, the legacy stream, errors' names.

mod abi;

use abi::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

#[test]
fn two_devices_with_what_a_library_asks_of_them() {
    let Some(_turn) = sim() else { return };
    let (mut count, mut device, mut version) = (0i32, 9i32, 0i32);
    assert_eq!((call!(cuDeviceGetCount(&mut count)), count), (0, 2));
    assert_eq!((call!(cuDeviceGet(&mut device, 1i32)), device), (0, 1));
    assert_eq!(call!(cuDeviceGet(&mut device, 2i32)), 101);
    assert_eq!((call!(cuDriverGetVersion(&mut version)), version), (0, 13000));
    let mut name = [0 as c_char; 64];
    assert_eq!(call!(cuDeviceGetName(name.as_mut_ptr(), 64i32, 0i32)), 0);
    // SAFETY: the call ended the name with NUL.
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"Simulated GPU");
    let mut total = 0usize;
    assert_eq!((call!(cuDeviceTotalMem_v2(&mut total, 0i32)), total), (0, 8 << 30));
    let attribute = |which: i32| {
        let mut value = -1i32;
        (call!(cuDeviceGetAttribute(&mut value, which, 0i32)), value)
    };
    assert_eq!([75, 76, 1, 10, 97].map(attribute), [(0, 9), (0, 0), (0, 1024), (0, 32), (0, 232448)]);
    assert_eq!(attribute(100_000).0, 1);
    cuda_sim::set_attribute(16, 7);
    assert_eq!(attribute(16), (0, 7));
    for (code, want) in [(0, Some(c"CUDA_SUCCESS")), (700, Some(c"CUDA_ERROR_ILLEGAL_ADDRESS")), (12345, None)] {
        let mut text: *const c_char = null_mut();
        assert_eq!(call!(cuGetErrorName(code, &mut text)), i32::from(want.is_none()));
        // SAFETY: a name is a constant text that ends in NUL.
        assert_eq!((!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }), want);
    }
}

#[test]
fn handles_belong_to_the_current_context() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(r#"extern "C" __global__ void f(float* x) { *x = 1; }"#);
    let (f, s, x) = (module.function("f"), stream(false), Buffer::of(&[0f32]));
    let (mut other, mut own): (Ptr, Ptr) = (null_mut(), null_mut());
    assert_eq!(call!(cuCtxGetCurrent(&mut own)), 0);
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut other, 1i32)), 0);
    assert_eq!(call!(cuCtxSetCurrent(other)), 0);
    assert_eq!(launch(f, 1, 1, 0, null_mut(), &mut params!(x.at)), 400);
    assert_eq!(call!(cuStreamSynchronize(s)), 400);
    assert_eq!(call!(cuMemFree_v2(x.at)), 1);
    assert_eq!(call!(cuModuleUnload(module.0)), 400);
    assert_eq!(call!(cuCtxSetCurrent(own)), 0);
    assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(1i32)), 0);
    assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(1i32)), 201);
    assert_eq!(call!(cuCtxSetCurrent(other)), 201);
    call!(cuStreamDestroy_v2(s));
}

#[test]
fn a_program_newer_than_the_driver_is_refused() {
    let Some(_turn) = sim() else { return };
    let image = cubin(r#"extern "C" __global__ void f() {}"#, &[]).unwrap();
    let mut module: Ptr = null_mut();
    cuda_sim::set_version(cuda_sim::Versioned::Driver, 12, 8);
    let mut version = 0i32;
    assert_eq!((call!(cuDriverGetVersion(&mut version)), version), (0, 12080));
    let code = call!(cuModuleLoadData(&mut module, image.as_ptr()));
    cuda_sim::set_version(cuda_sim::Versioned::Driver, 13, 0);
    assert_eq!(code, 200);
    let (mut major, mut minor) = (0i32, 0i32);
    assert_eq!((call!(nvrtcVersion(&mut major, &mut minor)), major, minor), (0, 13, 0));
}

#[test]
fn ptx_is_for_virtual_architectures_too() {
    let Some(_turn) = sim() else { return };
    let mut program: Ptr = null_mut();
    let none: *const Ptr = std::ptr::null();
    let source = c"extern \"C\" __global__ void f() {}";
    assert_eq!(call!(nvrtcCreateProgram(&mut program, source.as_ptr(), null_mut::<c_char>(), 0i32, none, none)), 0);
    let mut bytes = 0usize;
    assert_eq!(call!(nvrtcGetPTXSize(program, &mut bytes)), 4, "before compiling");
    let option = c"--gpu-architecture=compute_90".as_ptr();
    assert_eq!(call!(nvrtcCompileProgram(program, 1i32, &option)), 0);
    assert_eq!((call!(nvrtcGetCUBINSize(program, &mut bytes)), bytes), (0, 0));
    assert_eq!(call!(nvrtcGetPTXSize(program, &mut bytes)), 0);
    let mut ptx = vec![7u8; bytes];
    assert_eq!(call!(nvrtcGetPTX(program, ptx.as_mut_ptr())), 0);
    assert_eq!(ptx.last(), Some(&0));
    assert_eq!(call!(nvrtcDestroyProgram(&mut program)), 0);
    let mut module: Ptr = null_mut();
    let mut load = |driver: (i32, i32), compute: (i32, i32)| {
        cuda_sim::set_version(cuda_sim::Versioned::Driver, driver.0, driver.1);
        cuda_sim::set_version(cuda_sim::Versioned::Compute, compute.0, compute.1);
        call!(cuModuleLoadData(&mut module, ptx.as_ptr()))
    };
    assert_eq!(
        [load((12, 9), (9, 0)), load((13, 0), (8, 6)), load((13, 0), (12, 0)), load((13, 0), (9, 0))],
        [222, 218, 0, 0]
    );
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let Some(_turn) = sim() else { return };
    let module = Module::new(r#"extern "C" __global__ void f(float* x, float a) { *x = *x * a + 1; }"#);
    let f = module.function("f");
    for (blocking, results) in [(true, 1), (false, 2)] {
        let s = stream(blocking);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..30 {
            cuda_sim::set_order_seed(seed);
            let x = Buffer::of(&[1f32]);
            let (two, three) = (2f32, 3f32);
            assert_eq!(launch(f, 1, 1, 0, s, &mut params!(x.at, two)), 0);
            assert_eq!(launch(f, 1, 1, 0, null_mut(), &mut params!(x.at, three)), 0);
            assert_eq!(launch(f, 1, 1, 0, s, &mut params!(x.at, two)), 0);
            assert_eq!(call!(cuStreamSynchronize(s)), 0);
            assert_eq!(call!(cuCtxSynchronize()), 0);
            seen.insert(x.read::<f32>()[0] as i64);
        }
        assert!(if results == 1 { seen.len() == 1 && seen.contains(&21) } else { seen.len() > 1 }, "{seen:?}");
        call!(cuStreamDestroy_v2(s));
    }
}

#[test]
fn events_measure_when_they_may() {
    let Some(_turn) = sim() else { return };
    let s = stream(false);
    let (mut a, mut b, mut untimed): (Ptr, Ptr, Ptr) = (null_mut(), null_mut(), null_mut());
    assert_eq!(call!(cuEventCreate(&mut a, 0u32)), 0);
    assert_eq!(call!(cuEventCreate(&mut b, 0u32)), 0);
    assert_eq!(call!(cuEventCreate(&mut untimed, 2u32)), 0);
    let mut ms = -1f32;
    assert_eq!(call!(cuEventElapsedTime_v2(&mut ms, a, b)), 400, "not recorded");
    assert_eq!(call!(cuEventQuery(a)), 0, "of nothing, all is done");
    for event in [a, b, untimed] {
        assert_eq!(call!(cuEventRecord(event, s)), 0);
    }
    assert_eq!(call!(cuEventElapsedTime_v2(&mut ms, a, b)), 600, "not there yet");
    assert_eq!(call!(cuEventSynchronize(b)), 0);
    assert_eq!(call!(cuEventElapsedTime(&mut ms, a, b)), 0);
    assert!(ms >= 0.0);
    assert_eq!(call!(cuEventElapsedTime(&mut ms, a, untimed)), 400);
    for event in [a, b, untimed] {
        assert_eq!(call!(cuEventDestroy_v2(event)), 0);
    }
    assert_eq!(call!(cuEventRecord(a, s)), 400);
    call!(cuStreamDestroy_v2(s));
}

#[test]
fn the_pool_says_what_is_used() {
    let Some(_turn) = sim() else { return };
    let (mut pool, mut p) = (null_mut::<c_void>(), 0u64);
    assert_eq!(call!(cuDeviceGetDefaultMemPool(&mut pool, 0i32)), 0);
    let get = |pool: Ptr, which: i32| {
        let mut value = 0u64;
        assert_eq!(call!(cuMemPoolGetAttribute(pool, which, &mut value)), 0);
        value
    };
    let before = get(pool, 7);
    assert_eq!(call!(cuMemAllocAsync(&mut p, 1000usize, null_mut::<c_void>())), 0);
    assert_eq!(get(pool, 7) - before, 1000);
    assert_eq!(call!(cuMemPoolSetAttribute(pool, 4i32, &u64::MAX)), 0);
    assert_eq!(get(pool, 4), u64::MAX);
    assert_eq!(call!(cuMemPoolSetAttribute(pool, 99i32, &0u64)), 1);
    assert_eq!(call!(cuMemFreeAsync(p, null_mut::<c_void>())), 0);
    assert_eq!(get(pool, 7) - before, 1000, "freed in order, so not yet");
    assert_eq!(call!(cuCtxSynchronize()), 0);
    assert_eq!((get(pool, 7), call!(cuMemPoolTrimTo(pool, 0usize))), (before, 0));
    assert!(get(pool, 8) >= before + 1000);
}
