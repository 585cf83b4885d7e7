//! Printing: the text that NumPy gives.
//!
//! The rules are those of `print(array)` in NumPy 2.4 with its default options: 8 digits after the point at most, of the
//! shortest text that reads back to the same value; scientific when the range of the finite values asks for it; columns
//! aligned; lines of at most 75 characters; more than 1000 elements abridged to three at each end of an axis.

use crate::base::DType;
use crate::base::dtype::{bf16, f16};
use crate::base::host::HostData;
use crate::base::location::Scope;
use crate::tensor::Tensor;

/// NumPy's `threshold`, `edgeitems`, `linewidth` and `precision`.
const THRESHOLD: usize = 1000;
const EDGE: usize = 3;
const LINE: usize = 75;
const PRECISION: usize = 8;

/// More digits than any number has.
const ALL: usize = 2000;

/// Prints values as NumPy does; `{:.3}` is NumPy's `precision=3`. A host read: inside a step it ends a segment.
///
/// ```
/// use stepgraph::{Device, Result, Tensor};
/// # fn main() -> Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, -2.5, 1.0 / 3.0, 10.0], [2, 2], &Device::cpu())?;
/// assert_eq!(x.to_string(), "[[ 1.         -2.5       ]\n [ 0.33333334 10.        ]]");
/// assert_eq!(format!("{x:.2}"), "[[ 1.   -2.5 ]\n [ 0.33 10.  ]]");
/// # Ok(())
/// # }
/// ```
impl std::fmt::Display for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Formatting hides the caller: the read is attributed to the line that made the value.
        let _scope = Scope::at(self.0.made);
        match self.to_host() {
            Ok(value) => f.write_str(&text(self.dims(), &value.data, f.precision().unwrap_or(PRECISION))),
            Err(_) => write!(f, "{self:?} (no value)"),
        }
    }
}

/// The text of row-major `data` of shape `dims`.
fn text(dims: &[usize], data: &HostData, precision: usize) -> String {
    if data.is_empty() {
        return "[]".to_string();
    }
    let abridged = data.len() > THRESHOLD;
    let mut shown = Vec::new();
    positions(dims, abridged, 0, &mut shown);
    let mut cells = cells(data, &shown, dims.is_empty(), precision).into_iter();
    block(dims, abridged, &mut cells, 1, LINE)
}

/// The places along an axis of length `n` that are printed; `None`: dots.
fn places(n: usize, abridged: bool) -> impl Iterator<Item = Option<usize>> {
    let dots = abridged && n > 2 * EDGE;
    let (head, tail) = if dots { (EDGE, n - EDGE) } else { (n, n) };
    (0..head).map(Some).chain(dots.then_some(None)).chain((tail..n).map(Some))
}

/// Row-major positions of the printed elements.
fn positions(dims: &[usize], abridged: bool, from: usize, out: &mut Vec<usize>) {
    match dims.split_first() {
        None => out.push(from),
        Some((&n, rest)) => {
            let size: usize = rest.iter().product();
            places(n, abridged).flatten().for_each(|i| positions(rest, abridged, from + i * size, out));
        }
    }
}

/// The bracketed text of the next elements of `cells`: all lines but the first begin with `indent` spaces.
fn block(
    dims: &[usize],
    abridged: bool,
    cells: &mut impl Iterator<Item = String>,
    indent: usize,
    width: usize,
) -> String {
    let Some((&n, rest)) = dims.split_first() else { return cells.next().unwrap_or_default() };
    let mut out = "[".to_string();
    let mut column = indent;
    for (k, place) in places(n, abridged).enumerate() {
        let piece = match place {
            Some(_) => block(rest, abridged, cells, indent + 1, width - 1),
            None => "...".to_string(),
        };
        if k > 0 && !rest.is_empty() {
            out.push_str(&"\n".repeat(rest.len()));
            out.push_str(&" ".repeat(indent));
        } else if rest.is_empty() {
            // A line is broken before an element that does not fit, unless it is the line's first.
            let gap = (k > 0) as usize;
            if column > indent && column + gap + piece.chars().count() > width - 1 {
                out.truncate(out.trim_end().len());
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            } else if gap == 1 {
                out.push(' ');
                column += 1;
            }
            column += piece.chars().count();
        }
        out.push_str(&piece);
    }
    out.push(']');
    out
}

/// The aligned texts of the elements at `shown`; `single`: of a 0-d tensor, which has no column.
fn cells(data: &HostData, shown: &[usize], single: bool, precision: usize) -> Vec<String> {
    fn floats(values: impl Iterator<Item = f64>, dtype: DType, single: bool, precision: usize) -> Vec<String> {
        let numbers: Vec<Number> = values.map(|value| Number { value, dtype }).collect();
        if single { numbers.iter().map(Number::alone).collect() } else { column(&numbers, precision) }
    }
    fn integers(values: impl Iterator<Item = i64>) -> Vec<String> {
        let texts: Vec<String> = values.map(|v| v.to_string()).collect();
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        texts.iter().map(|t| format!("{t:>width$}")).collect()
    }
    let at = shown.iter();
    match data {
        HostData::Bool(v) => {
            let truth = if single { "True" } else { " True" };
            at.map(|&i| if v[i] { truth } else { "False" }.to_string()).collect()
        }
        HostData::U8(v) => integers(at.map(|&i| v[i] as i64)),
        HostData::I8(v) => integers(at.map(|&i| v[i] as i64)),
        HostData::I32(v) => integers(at.map(|&i| v[i] as i64)),
        HostData::I64(v) => integers(at.map(|&i| v[i])),
        HostData::F16(v) => floats(at.map(|&i| v[i].to_f64()), DType::F16, single, precision),
        HostData::BF16(v) => floats(at.map(|&i| v[i].to_f64()), DType::BF16, single, precision),
        HostData::F32(v) => floats(at.map(|&i| v[i] as f64), DType::F32, single, precision),
        HostData::F64(v) | HostData::Real(_, v) => floats(at.map(|&i| v[i]), DType::F64, single, precision),
    }
}

/// A float of a dtype; `value` is exact.
#[derive(Clone, Copy)]
struct Number {
    value: f64,
    dtype: DType,
}

/// The text of a finite number, in its parts. `exponent`: sign and digits, in scientific form.
struct Parts {
    whole: String,
    fraction: String,
    exponent: Option<(char, String)>,
}

impl Number {
    /// `v` rounded to `dtype`.
    fn rounded(v: f64, dtype: DType) -> f64 {
        match dtype {
            DType::F16 => f16::from_f64(v).to_f64(),
            DType::BF16 => bf16::from_f64(v).to_f64(),
            DType::F32 => v as f32 as f64,
            _ => v,
        }
    }

    /// Digits and exponent of the shortest decimal `d.ddd·10^e` that reads back to the same value.
    fn shortest(&self) -> (String, i32) {
        let v = self.value.abs();
        let parts = |text: &str| {
            let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
            (digits.replace('.', ""), exponent.parse().unwrap_or(0))
        };
        // Of two that are equally near, the even one, as in NumPy: that is how exact values are rounded.
        let even = |text: String, same: fn(&str, f64) -> bool| {
            let (digits, _) = parts(&text);
            let exact = format!("{v:.*e}", digits.len() - 1);
            parts(if same(&exact, v) { &exact } else { &text })
        };
        match self.dtype {
            DType::F64 => even(format!("{v:e}"), |text, v| text.parse() == Ok(v)),
            DType::F32 => even(format!("{:e}", v as f32), |text, v| text.parse() == Ok(v as f32)),
            dtype => {
                // 16 bits: the first length at which the nearest decimal, or a neighbour of it, reads back.
                for n in 0..8 {
                    let (digits, exponent) = parts(&format!("{v:.n$e}"));
                    let whole: i64 = digits.parse().unwrap_or(0);
                    for near in [whole, whole + 1, whole - 1] {
                        let text = format!("{near}e{}", exponent - n as i32);
                        if text.parse::<f64>().is_ok_and(|d| Number::rounded(d, dtype) == v) {
                            let text: f64 = text.parse().unwrap_or(v);
                            return parts(&format!("{text:e}"));
                        }
                    }
                }
                parts(&format!("{v:e}"))
            }
        }
    }

    fn sign(&self) -> &'static str {
        if self.value.is_sign_negative() { "-" } else { "" }
    }

    /// Without an exponent, at most `precision` digits after the point, no zeros at the end.
    fn positional(&self, precision: usize) -> Parts {
        let (digits, exponent) = self.shortest();
        let behind = digits.len() as i32 - 1 - exponent;
        let text = if behind > precision as i32 {
            // What is cut off is rounded from the exact value.
            format!("{:.precision$}", self.value.abs())
        } else if behind <= 0 {
            format!("{digits}{}", "0".repeat(-behind as usize))
        } else {
            let padded = format!("{}{digits}", "0".repeat((-exponent).max(0) as usize));
            let point = padded.len() - behind as usize;
            format!("{}.{}", &padded[..point], &padded[point..])
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let fraction = fraction.trim_end_matches('0').to_string();
        Parts { whole: format!("{}{whole}", self.sign()), fraction, exponent: None }
    }

    /// One digit before the point, at most `precision` after it, no zeros at the end, an exponent of two digits or more;
    /// `full`: as many digits as that, those beyond the shortest being the exact value's.
    fn scientific(&self, precision: usize, full: bool) -> Parts {
        let (mut digits, mut exponent) = self.shortest();
        if full || digits.len() > precision + 1 {
            let text = format!("{:.precision$e}", self.value.abs());
            let (exact, e) = text.split_once('e').unwrap_or((&text, "0"));
            (digits, exponent) = (exact.replace('.', ""), e.parse().unwrap_or(0));
        }
        let (whole, fraction) = digits.split_at(1.min(digits.len()));
        let sign = if exponent < 0 { '-' } else { '+' };
        Parts {
            whole: format!("{}{whole}", self.sign()),
            fraction: if full { fraction } else { fraction.trim_end_matches('0') }.to_string(),
            exponent: Some((sign, format!("{:02}", exponent.abs()))),
        }
    }

    fn not_finite(&self) -> &'static str {
        match self.value {
            v if v.is_nan() => "nan",
            v if v < 0.0 => "-inf",
            _ => "inf",
        }
    }

    /// The text of a 0-d tensor: all digits, scientific below 1e-4 and from as many digits on as the dtype has.
    fn alone(&self) -> String {
        if !self.value.is_finite() {
            return self.not_finite().to_string();
        }
        let size = self.value.abs();
        let limit = if self.dtype == DType::F64 { 1e16 } else { limit(self.dtype) };
        if size == 0.0 || (1e-4..limit).contains(&size) {
            let p = self.positional(ALL);
            return format!("{}.{}", p.whole, if p.fraction.is_empty() { "0" } else { &p.fraction });
        }
        let p = self.scientific(ALL, false);
        let (sign, exponent) = p.exponent.unwrap_or(('+', String::new()));
        let point = if p.fraction.is_empty() { "" } else { "." };
        format!("{}{point}{}e{sign}{exponent}", p.whole, p.fraction)
    }
}

/// Texts of equal length.
fn column(numbers: &[Number], precision: usize) -> Vec<String> {
    let finite = || numbers.iter().filter(|n| n.value.is_finite());
    let scientific = needs_exponent(finite());
    let parts = |n: &Number| if scientific { n.scientific(precision, false) } else { n.positional(precision) };
    let all: Vec<Parts> = finite().map(parts).collect();
    let longest = |f: &dyn Fn(&Parts) -> usize| all.iter().map(f).max().unwrap_or(0);
    let mut whole = longest(&|p| p.whole.len());
    let fraction = longest(&|p| p.fraction.len());
    let exponent = longest(&|p| p.exponent.as_ref().map_or(0, |e| e.1.len()));
    // What follows the point, with `e` and the sign of the exponent.
    let behind = if scientific { fraction + 2 + exponent } else { fraction };
    if all.len() < numbers.len() {
        let negative = numbers.iter().any(|n| n.value == f64::NEG_INFINITY) as usize;
        whole = whole.max((3 + negative).saturating_sub(behind + 1));
    }
    let width = whole + 1 + behind;
    let mut all = all.into_iter();
    let text = |n: &Number| {
        let Some(mut p) = n.value.is_finite().then(|| all.next()).flatten() else {
            return format!("{:>width$}", n.not_finite());
        };
        if scientific && p.fraction.len() < fraction {
            p = n.scientific(fraction, true);
        }
        match p.exponent {
            Some((sign, e)) => format!("{:>whole$}.{}e{sign}{e:0>exponent$}", p.whole, p.fraction),
            None => format!("{:>whole$}.{:<fraction$}", p.whole, p.fraction),
        }
    };
    numbers.iter().map(text).collect()
}

/// Whether NumPy would print these finite numbers in scientific form, by the range of those that are not zero.
fn needs_exponent<'a>(numbers: impl Iterator<Item = &'a Number>) -> bool {
    let (mut largest, mut smallest, mut dtype) = (0.0f64, f64::INFINITY, DType::F64);
    for n in numbers.filter(|n| n.value != 0.0) {
        (largest, smallest, dtype) = (largest.max(n.value.abs()), smallest.min(n.value.abs()), n.dtype);
    }
    if largest == 0.0 {
        return false;
    }
    largest >= limit(dtype)
        || smallest < Number::rounded(0.0001, dtype)
        || Number::rounded(largest / smallest, dtype) > 1000.0
}

/// From here on numbers are printed in scientific form: as many digits as the dtype has, 8 at most.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e8,
        DType::F32 => 1e6,
        _ => 1e3,
    }
}
