//! Element types of tensors, and how they promote.
//!
//! # Lanes
//! Kernels, host scalars and parameter words hold an element as a *lane*, 64 bits or the low 32 of them:
//! `f64` as its bits; `f32` as its bits, and a 16-bit float as those of the `f32` of the same value; integers as
//! `i64`; truth values as 0 or 1. [`DType::read`] and [`DType::write`] go between lanes and memory.

pub use half::{bf16, f16};

/// The element type of a tensor.
///
/// | | bytes | values |
/// |---|---|---|
/// | `bool` | 1 | truth values, stored as 0 or 1 |
/// | `u8` | 1 | 0..=255; arithmetic wraps |
/// | `i8`, `i32`, `i64` | 1, 4, 8 | two's complement; arithmetic wraps |
/// | `f16` | 2 | IEEE 754 binary16: 11 bits of precision, up to 65504 |
/// | `bf16` | 2 | the upper half of an `f32`: 8 bits of precision, the range of `f32` |
/// | `f32`, `f64` | 4, 8 | IEEE 754 binary32, binary64 |
///
/// Each operation on 16-bit floats computes in `f32` and rounds its result once, to nearest even.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::ones([2], DType::BF16, device)?;
/// assert_eq!((x.dtype(), x.dtype().size()), (DType::BF16, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum DType {
    /// Truth values, one byte each, 0 or 1.
    Bool,
    /// 8-bit unsigned integers; arithmetic wraps.
    U8,
    /// 8-bit signed integers; arithmetic wraps.
    I8,
    /// 32-bit signed integers; arithmetic wraps.
    I32,
    /// 64-bit signed integers (labels, indices); arithmetic wraps.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

/// What kind of number a dtype holds; each kind promotes to the next.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// use stepgraph::base::dtype::NumberKind;
/// assert!(NumberKind::Bool < NumberKind::Int && NumberKind::Int < NumberKind::Float);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NumberKind {
    /// Truth values.
    Bool,
    /// Integers.
    Int,
    /// Floating-point numbers.
    Float,
}

impl DType {
    /// All dtypes, in promotion order.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(DType::ALL.contains(&DType::F16));
    /// # Ok(())
    /// # }
    /// ```
    pub const ALL: [DType; 9] =
        [DType::Bool, DType::U8, DType::I8, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64];

    /// Bytes of one element.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!((DType::F16.size(), DType::I64.size()), (2, 8));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// What kind of number it holds.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(DType::U8.kind(), DType::I64.kind());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn kind(self) -> NumberKind {
        match self {
            DType::Bool => NumberKind::Bool,
            DType::U8 | DType::I8 | DType::I32 | DType::I64 => NumberKind::Int,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => NumberKind::Float,
        }
    }

    /// Whether gradients can flow through values of this type.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(DType::BF16.is_float() && !DType::I64.is_float());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), NumberKind::Float)
    }

    /// Whether it holds integers (truth values are none).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(DType::U8.is_int() && !DType::Bool.is_int());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn is_int(self) -> bool {
        matches!(self.kind(), NumberKind::Int)
    }

    /// Whether it is a 16-bit float: computed in `f32` and rounded after each operation.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(DType::BF16.is_half() && !DType::F32.is_half());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Smallest and largest value of an integer dtype.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!((DType::I8.int_range(), DType::F32.int_range()), (Some((-128, 127)), None));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn int_range(self) -> Option<(i64, i64)> {
        match self {
            DType::U8 => Some((0, u8::MAX as i64)),
            DType::I8 => Some((i8::MIN as i64, i8::MAX as i64)),
            DType::I32 => Some((i32::MIN as i64, i32::MAX as i64)),
            DType::I64 => Some((i64::MIN, i64::MAX)),
            _ => None,
        }
    }

    /// The dtype in which elements of both are computed together, by PyTorch's rule:
    ///
    /// | | with | gives |
    /// |---|---|---|
    /// | any | itself | itself |
    /// | `bool` | any | the other |
    /// | integer | integer | the wider; `u8` with `i8`: `i32` |
    /// | integer | float | the float |
    /// | float | float | the wider; `f16` with `bf16`: `f32` |
    ///
    /// ```
    /// use stepgraph::DType;
    /// assert_eq!(DType::I64.promote(DType::F16), DType::F16);
    /// assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
    /// ```
    pub fn promote(self, other: DType) -> DType {
        let (low, high) = (self.min(other), self.max(other));
        match (low, high) {
            (DType::U8, DType::I8) => DType::I32,
            (DType::F16, DType::BF16) => DType::F32,
            // Otherwise the order of the variants is the order of promotion.
            _ => high,
        }
    }

    /// The dtype of an operation on tensors and host numbers, by PyTorch's rule. Tensors with axes are promoted
    /// among themselves, so are 0-d tensors, so are host numbers (`bool`, `i64` or `f32`); a later group raises the result of
    /// the earlier only if its kind is higher ([`NumberKind`]).
    ///
    /// So `f16[2] + f32[]` is `f16`, `i32[2] * 2.5` is `f32`, `i32[2] * f64[]` is `f64`, `bool[2] + 1` is `i64`.
    /// Operands are (dtype, whether 0-d). Of no operands: `None`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let kinds = [base::Scalar::from(2.5).kind()];
    /// assert_eq!(DType::common([(DType::I32, false)], kinds), Some(DType::F32)); // i32[2] * 2.5
    /// # Ok(())
    /// # }
    /// ```
    pub fn common(
        tensors: impl IntoIterator<Item = (DType, bool)>,
        numbers: impl IntoIterator<Item = NumberKind>,
    ) -> Option<DType> {
        let join = |a: Option<DType>, b: DType| Some(a.map_or(b, |a| a.promote(b)));
        let (mut wide, mut single, mut host) = (None, None, None);
        for (dtype, is_single) in tensors {
            if is_single {
                single = join(single, dtype);
            } else {
                wide = join(wide, dtype);
            }
        }
        for kind in numbers {
            host = join(host, DType::of_number(kind));
        }
        let raise = |a: Option<DType>, b: Option<DType>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.kind() > a.kind() { a.promote(b) } else { a }),
            (a, b) => a.or(b),
        };
        raise(raise(wide, single), host)
    }

    /// The dtype that a host number of this kind has where no tensor decides.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(DType::of_number(base::Scalar::from(1i64).kind()), DType::I64);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn of_number(kind: NumberKind) -> DType {
        match kind {
            NumberKind::Bool => DType::Bool,
            NumberKind::Int => DType::I64,
            NumberKind::Float => DType::F32,
        }
    }

    /// The name in the text form and in messages.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(DType::F32.name(), "f32");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// All names, for messages.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert!(DType::names().starts_with("bool, u8"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn names() -> String {
        DType::ALL.map(DType::name).join(", ")
    }

    /// The dtype called `name`, if there is one.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!((DType::from_name("bf16"), DType::from_name("f8")), (Some(DType::BF16), None));
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The lane of the element stored in `bytes` (as many as its size; missing ones count as zero).
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(DType::I8.read(&[0xff]), -1i64 as u64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(self, bytes: &[u8]) -> u64 {
        let mut w = [0; 8];
        for (w, &b) in w.iter_mut().zip(bytes) {
            *w = b;
        }
        match self {
            DType::Bool => (w[0] != 0) as u64,
            DType::U8 => w[0] as u64,
            DType::I8 => w[0] as i8 as i64 as u64,
            DType::I32 => i32::from_ne_bytes([w[0], w[1], w[2], w[3]]) as i64 as u64,
            DType::I64 | DType::F64 => u64::from_ne_bytes(w),
            DType::F16 => f16::from_ne_bytes([w[0], w[1]]).to_f32().to_bits() as u64,
            DType::BF16 => bf16::from_ne_bytes([w[0], w[1]]).to_f32().to_bits() as u64,
            DType::F32 => u32::from_ne_bytes([w[0], w[1], w[2], w[3]]) as u64,
        }
    }

    /// Stores a lane in `bytes` (as many as its size): 16-bit floats round to nearest even, integers wrap.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let mut bytes = [0; 2];
    /// DType::F16.write(1.0f32.to_bits() as u64, &mut bytes);
    /// assert_eq!(f16::from_ne_bytes(bytes), f16::from_f32(1.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(self, lane: u64, bytes: &mut [u8]) {
        let float = f32::from_bits(lane as u32);
        let put = |from: &[u8], to: &mut [u8]| to.iter_mut().zip(from).for_each(|(t, f)| *t = *f);
        match self {
            DType::Bool => put(&[(lane != 0) as u8], bytes),
            DType::U8 | DType::I8 => put(&[lane as u8], bytes),
            DType::I32 | DType::F32 => put(&(lane as u32).to_ne_bytes(), bytes),
            DType::I64 | DType::F64 => put(&lane.to_ne_bytes(), bytes),
            DType::F16 => put(&f16::from_f32(float).to_ne_bytes(), bytes),
            DType::BF16 => put(&bf16::from_f32(float).to_ne_bytes(), bytes),
        }
    }

    /// The lane that [`DType::write`] and then [`DType::read`] give: rounded or wrapped to this dtype.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// assert_eq!(DType::U8.round(300), 44); // wraps
    /// # Ok(())
    /// # }
    /// ```
    pub fn round(self, lane: u64) -> u64 {
        let mut bytes = [0; 8];
        self.write(lane, &mut bytes);
        self.read(&bytes)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the element of a tensor.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// fn sum<T: Element + std::iter::Sum>(x: &Tensor) -> Result<T> {
///     Ok(x.iter::<T>()?.sum())
/// }
/// assert_eq!(sum::<i64>(&Tensor::new([1i64, 2], device)?)?, 3);
/// # Ok(())
/// # }
/// ```
pub trait Element: Copy + Send + Sync + 'static + PartialEq + std::fmt::Debug {
    /// The dtype it is stored as.
    const DTYPE: DType;
    /// The bytes of `values`, in the tensor's memory format (native endian, `bool` as 0 or 1).
    fn to_bytes(values: &[Self]) -> Vec<u8>;
    /// The values stored in `bytes`; the inverse of [`Element::to_bytes`].
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),*) => { $(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|v| v.to_ne_bytes()).collect()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes
                    .chunks_exact(size_of::<$ty>())
                    .map(|c| <$ty>::from_ne_bytes(c.try_into().unwrap_or_default()))
                    .collect()
            }
        }
    )* };
}
element!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i8 => I8, u8 => U8);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_bytes(values: &[Self]) -> Vec<u8> {
        values.iter().map(|&v| v as u8).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PyTorch 2 `torch.promote_types` over our dtypes, rows and columns in the order of `ALL` (its `int16` for
    /// `u8` with `i8` is our `i32`).
    #[test]
    fn promotion_is_pytorchs_table() {
        let table = [
            "bool u8  i8  i32 i64 f16 bf16 f32 f64",
            "u8   u8  i32 i32 i64 f16 bf16 f32 f64",
            "i8   i32 i8  i32 i64 f16 bf16 f32 f64",
            "i32  i32 i32 i32 i64 f16 bf16 f32 f64",
            "i64  i64 i64 i64 i64 f16 bf16 f32 f64",
            "f16  f16 f16 f16 f16 f16 f32 f32 f64",
            "bf16 bf16 bf16 bf16 bf16 f32 bf16 f32 f64",
            "f32  f32 f32 f32 f32 f32 f32 f32 f64",
            "f64  f64 f64 f64 f64 f64 f64 f64 f64",
        ];
        for (a, row) in DType::ALL.into_iter().zip(table) {
            for (b, want) in DType::ALL.into_iter().zip(row.split_whitespace()) {
                assert_eq!(a.promote(b).name(), want, "{a} with {b}");
                assert_eq!(b.promote(a), a.promote(b));
            }
        }
    }

    #[test]
    fn single_elements_and_host_numbers_raise_only_the_kind() {
        use DType::*;
        let (t, zero) = (|d| (d, false), |d| (d, true));
        assert_eq!(DType::common([t(F16), zero(F32)], []), Some(F16));
        assert_eq!(DType::common([t(I32), zero(F64)], []), Some(F64));
        assert_eq!(DType::common([t(U8), zero(I64)], []), Some(U8));
        assert_eq!(DType::common([zero(F16), zero(F32)], []), Some(F32));
        assert_eq!(DType::common([t(I32)], [NumberKind::Float]), Some(F32));
        assert_eq!(DType::common([t(BF16)], [NumberKind::Float]), Some(BF16));
        assert_eq!(DType::common([t(Bool)], [NumberKind::Int]), Some(I64));
        assert_eq!(DType::common([t(Bool)], [NumberKind::Bool]), Some(Bool));
        assert_eq!(DType::common([t(Bool), zero(I8)], [NumberKind::Float]), Some(F32));
        assert_eq!(DType::common([], [NumberKind::Int, NumberKind::Float]), Some(F32));
        assert_eq!(DType::common([], []), None);
    }

    #[test]
    fn lanes_round_and_wrap() {
        let f = |v: f32| v.to_bits() as u64;
        assert_eq!(DType::U8.round(300), 44);
        assert_eq!(DType::I8.round(200) as i64, -56);
        assert_eq!(DType::I32.round(1 << 31) as i64, i32::MIN as i64);
        assert_eq!(DType::BF16.round(f(2.333_333_3)), f(2.328_125));
        assert_eq!(DType::F16.round(f(1.0 / 3.0)), f(0.333_251_95));
        assert_eq!(DType::F16.round(f(65520.0)), f(f32::INFINITY));
        assert_eq!(DType::Bool.round(7), 1);
    }
}
