//! `Display` against what NumPy prints: `printing.txt`, written by `printing.py`.

use stepgraph::base::dtype::{bf16, f16};
use stepgraph::{DType, Device, Tensor};

use crate::harness::own_device;

/// A tensor of `dims` from a line of the file.
fn tensor(dtype: &str, dims: &[usize], form: &str, device: &Device) -> Tensor {
    let n: usize = dims.iter().product();
    let dtype = DType::from_name(dtype).expect("a dtype");
    let (kind, rest) = form.split_once(' ').unwrap_or((form, ""));
    let number = || rest.parse::<usize>().expect("a number");
    if kind == "range" {
        let values: Vec<f64> = (0..n).map(|i| i as f64 / number() as f64).collect();
        return Tensor::from_vec(values, dims, device).and_then(|t| t.to_dtype(dtype)).expect("a tensor");
    }
    if kind == "mod" || kind == "every" {
        let value = |i: usize| if kind == "mod" { i % number() } else { i.is_multiple_of(number()) as usize };
        let values: Vec<i64> = (0..n).map(|i| value(i) as i64).collect();
        return Tensor::from_vec(values, dims, device).and_then(|t| t.to_dtype(dtype)).expect("a tensor");
    }
    let digit = |c: u8| (c as char).to_digit(16).expect("a digit") as u8;
    let bytes: Vec<u8> = rest.as_bytes().chunks(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect();
    macro_rules! of {
        ($($name:ident $t:ty),*) => { match dtype {
            $(DType::$name => {
                let values = bytes.chunks(size_of::<$t>()).map(|c| <$t>::from_le_bytes(c.try_into().expect("bytes")));
                Tensor::from_vec(values.collect::<Vec<_>>(), dims, device)
            })*
            _ => Tensor::from_vec(bytes.iter().map(|&b| b != 0).collect::<Vec<_>>(), dims, device),
        } };
    }
    of!(U8 u8, I8 i8, I32 i32, I64 i64, F16 f16, F32 f32, F64 f64).expect("a tensor")
}

#[test]
fn as_numpy_prints() {
    let device = &own_device();
    let file = include_str!("printing.txt");
    let mut checked = 0;
    for case in file.split("===\n").filter(|c| !c.is_empty() && !c.starts_with('#')) {
        let (head, want) = case.split_once('\n').expect("two lines");
        let mut words = head.splitn(3, ' ');
        let mut word = || words.next().expect("a word");
        let (dtype, shape, form) = (word(), word(), word());
        let dims: Vec<usize> = shape.trim_matches(['[', ']']).split(',').filter_map(|d| d.parse().ok()).collect();
        let t = tensor(dtype, &dims, form, device);
        assert_eq!((t.dtype().name(), t.dims()), (dtype, &dims[..]));
        let want = want.strip_suffix('\n').expect("a line");
        assert_eq!(t.to_string(), want, "\n{head}\ngot\n{t}\nNumPy\n{want}\n");
        checked += 1;
    }
    assert_eq!(checked, 195);
}

/// NumPy's `precision`, views, and a 16-bit float that NumPy does not know.
#[test]
fn other_forms() {
    let device = &own_device();
    let t = Tensor::from_vec(vec![1.0f32, 0.123456, -20.5], [3], device).expect("a tensor");
    assert_eq!(format!("{t:.3}"), "[  1.      0.123 -20.5  ]");
    let t = Tensor::from_vec((0..6).map(|i| i as f32).collect(), [2, 3], device).expect("a tensor");
    assert_eq!(t.t().expect("a view").to_string(), "[[0. 3.]\n [1. 4.]\n [2. 5.]]");
    let b: Vec<bf16> = [0.1, 1.0, 200.0, 7.25].map(bf16::from_f32).to_vec();
    let t = Tensor::from_vec(b, [4], device).expect("a tensor");
    assert_eq!(t.to_string(), "[1.00e-01 1.00e+00 2.00e+02 7.25e+00]");
}

/// Every 16-bit float prints as the shortest decimal that reads back to it.
#[test]
fn shortest_of_16_bits() {
    let device = &own_device();
    for i in (0..=u16::MAX).step_by(7) {
        for (t, value) in [
            (Tensor::from_vec(vec![f16::from_bits(i)], (), device), f16::from_bits(i).to_f64()),
            (Tensor::from_vec(vec![bf16::from_bits(i)], (), device), bf16::from_bits(i).to_f64()),
        ] {
            let t = t.expect("a number");
            let text = t.to_string();
            let read: f64 = text.parse().expect("a number");
            if value.is_nan() {
                assert!(read.is_nan());
                continue;
            }
            let back =
                if t.dtype() == DType::F16 { f16::from_f64(read).to_f64() } else { bf16::from_f64(read).to_f64() };
            assert_eq!(back.to_bits(), value.to_bits(), "{text}");
            let digits = text.trim_start_matches('-').split('e').next().unwrap_or("").replace('.', "");
            let significant = digits.trim_start_matches('0').trim_end_matches('0').len();
            assert!(significant <= 5, "{text} of {value}");
        }
    }
}
