//! Equality of bits: the one comparison that promises and cases use.

use stepgraph::base::HostValue;

/// Where two values differ: `None` when dtype, shape and every element's bits agree (NaNs by class; the
/// sign of zero counts).
pub fn same_bits(got: &HostValue, want: &HostValue) -> Option<String> {
    if got.shape != want.shape {
        return Some(format!("shape {} instead of {}", got.shape, want.shape));
    }
    if got.data.dtype() != want.data.dtype() {
        return Some(format!("dtype {} instead of {}", got.data.dtype(), want.data.dtype()));
    }
    let i = got.data.difference(&want.data)?;
    Some(format!("element {i} is {} instead of {}", got.data.to_text()[i], want.data.to_text()[i]))
}

/// Panics unless `got` and `want` are the same bits: see [`same_bits`].
#[track_caller]
pub fn assert_bits_eq(what: &str, got: &HostValue, want: &HostValue) {
    if let Some(difference) = same_bits(got, want) {
        panic!("{what}: {difference}");
    }
}
