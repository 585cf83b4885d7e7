//! Equality of bits: the one comparison that promises and cases use.

use stepgraph::base::HostValue;
use stepgraph::base::host::HostData;

/// Whether two f32 are the same bits; a NaN equals any NaN.
fn same_f32(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Where two values differ: `None` when dtype, shape and every element's bits agree (NaNs by class; the
/// sign of zero counts).
pub fn same_bits(got: &HostValue, want: &HostValue) -> Option<String> {
    if got.shape != want.shape {
        return Some(format!("shape {} instead of {}", got.shape, want.shape));
    }
    let differing = match (&got.data, &want.data) {
        (HostData::F32(a), HostData::F32(b)) => a
            .iter()
            .zip(b)
            .position(|(a, b)| !same_f32(*a, *b))
            .map(|i| (i, format!("{:?}", a[i]), format!("{:?}", b[i]))),
        (HostData::I64(a), HostData::I64(b)) => {
            a.iter().zip(b).position(|(a, b)| a != b).map(|i| (i, a[i].to_string(), b[i].to_string()))
        }
        (HostData::Bool(a), HostData::Bool(b)) => {
            a.iter().zip(b).position(|(a, b)| a != b).map(|i| (i, a[i].to_string(), b[i].to_string()))
        }
        (a, b) => return Some(format!("another dtype: {a:?} instead of {b:?}")),
    };
    differing.map(|(i, a, b)| format!("element {i} is {a} instead of {b}"))
}

/// Panics unless `got` and `want` are the same bits: see [`same_bits`].
#[track_caller]
pub fn assert_bits_eq(what: &str, got: &HostValue, want: &HostValue) {
    if let Some(difference) = same_bits(got, want) {
        panic!("{what}: {difference}");
    }
}
