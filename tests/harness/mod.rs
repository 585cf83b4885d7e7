//! What promises, cases and plain binaries share: running one body eagerly, traced and frozen from the
//! same start, comparing everything bit for bit, and counting launches where they happen, in the backend.
//!
//! Everything here is a function of a [`Device`], so that any device can be put to the same tests.

// Each test binary uses a part of it.
#![allow(dead_code)]

pub mod bits;
pub mod compare;

#[allow(unused_imports)]
pub use bits::{assert_bits_eq, same_bits};
#[allow(unused_imports)]
pub use compare::{Expect, Log, Outcome, Seen, compare};

use std::sync::OnceLock;

use stepgraph::{CpuOptions, DType, Device, Tensor};

/// A scenario: panics when the device breaks its promise.
pub type Scenario = fn(&Device);

/// A device with counters of its own: of the CPU, unless this test binary is for another kind.
#[track_caller]
pub fn own_device() -> Device {
    match MAKE.get() {
        Some(make) => make(),
        None => Device::cpu_with(&CpuOptions::default()).expect("a CPU device"),
    }
}

static MAKE: OnceLock<fn() -> Device> = OnceLock::new();

/// Makes every device of this process's tests with `make`.
pub fn make_devices_with(make: fn() -> Device) {
    MAKE.get_or_init(|| make);
}

/// An f32 vector.
#[track_caller]
pub fn vector(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, [values.len()], device).expect("a vector")
}

/// An f32 tensor of `shape` with small, distinct, non-trivial values that depend on `seed`.
#[track_caller]
pub fn filled(dims: &[usize], seed: u32, device: &Device) -> Tensor {
    let n: usize = dims.iter().product();
    let value = |i: usize| {
        let h = (i as u32).wrapping_add(seed.wrapping_mul(977)).wrapping_mul(2654435761) >> 8;
        h as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..n).map(value).collect();
    Tensor::from_slice(&values, dims, device).expect("a tensor")
}

/// A 0-d f32 tensor.
#[track_caller]
pub fn scalar(value: f32, device: &Device) -> Tensor {
    Tensor::from_slice(&[value], (), device).expect("a scalar")
}

/// Zeros.
#[track_caller]
pub fn zeros(dims: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(dims, DType::F32, device).expect("zeros")
}

/// The elements of an f32 tensor.
#[track_caller]
pub fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().expect("a value")
}

/// Asserts that `got` is `want` to within `tolerance` everywhere.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (*g as f64 - w).abs();
        assert!(off <= tolerance * w.abs().max(1.0), "{what}: element {i} is {g}, expected {w} (off by {off:e})");
    }
}

/// One `#[test]` per scenario on a device of its own, and the list `ALL` for other callers.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        /// The scenarios of this file, by name.
        #[allow(dead_code)]
        pub const ALL: &[(&str, $crate::harness::Scenario)] = &[$((stringify!($name), $name)),*];

        #[cfg(test)]
        mod run {
            $(
                #[test]
                fn $name() {
                    // The crate says on which devices it tests, if on any here.
                    if $crate::ready() {
                        super::$name(&$crate::harness::own_device());
                    }
                }
            )*
        }
    };
}
