//! Cases of every op for conformance tests: rows of the elementwise table get theirs from
//! their arity, dtype rule and domain; structural ops list theirs here.

use crate::base::dtype::NumberKind;
use crate::base::host::HostData;
use crate::base::{DType, HostValue, Scalar, Shape, Type};
use crate::op::custom::{self, Custom, Definition};
use crate::op::elementwise::{DTypes, Elementwise, Row, rows};
use crate::op::random::Draw;
use crate::op::{AxisList, Op, ReduceKind, ScanKind};

/// One application of an op.
#[derive(Clone, Debug)]
pub struct Sample {
    pub op: Op,
    pub operands: Vec<Operand>,
    /// Bound on the error of float results against double precision: `relative * |value| + absolute`.
    pub relative: f64,
    pub absolute: f64,
}

/// An operand of a sample: its type, and which values it may hold.
#[derive(Clone, Debug)]
pub struct Operand {
    pub ty: Type,
    pub values: Values,
}

/// Values of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Drawn evenly from a range.
    Range(f64, f64),
    /// Indices `0..len`.
    Index(usize),
    /// Among others infinities, NaN, zeros of both signs, denormals, or the extreme integers.
    Special,
}

/// A small generator (splitmix64), so that samples are the same in every run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A double in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Special values as doubles; each dtype takes them by [`Scalar::cast`], so that its own limits are among them.
const SPECIAL: [f64; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f32::MIN_POSITIVE as f64,
    -1.0e-40,
    1.0e-45,
    f32::MAX as f64,
    f32::MIN as f64,
    88.8,
    -103.5,
    65504.0,
    -6.0e-8,
    f64::MAX,
    f64::MIN_POSITIVE,
    -5.0e-324,
    -745.2,
    709.8,
    3.0e9,
];
const SPECIAL_INTEGERS: [i64; 12] = [0, 1, -1, i64::MIN, i64::MAX, 1 << 40, -3, 127, -128, 255, 1 << 31, (1 << 31) - 1];

impl Operand {
    /// Values for the operand.
    pub fn fill(&self, random: &mut Random) -> HostValue {
        let (n, dtype) = (self.ty.shape.numel(), self.ty.dtype);
        let mut real = || match self.values {
            Values::Range(lo, hi) => lo + (hi - lo) * random.unit(),
            Values::Index(len) => (random.unit() * len as f64).floor(),
            Values::Special => f64::NAN,
        };
        let reals: Vec<f64> = (0..n).map(|_| real()).collect();
        let special = self.values == Values::Special;
        let mut pick = |len: usize| (random.next_u64() % len as u64) as usize;
        let value = |v: &f64| match dtype.kind() {
            NumberKind::Bool => Scalar::bool(pick(2) == 1),
            NumberKind::Float if special => Scalar::f64(SPECIAL[pick(SPECIAL.len())]),
            NumberKind::Int if special => Scalar::i64(SPECIAL_INTEGERS[pick(SPECIAL_INTEGERS.len())]),
            NumberKind::Float => Scalar::f64(*v),
            NumberKind::Int => Scalar::i64(v.floor() as i64),
        };
        let lanes: Vec<u64> = reals.iter().map(value).map(|s| s.cast(dtype).bits).collect();
        HostValue::new(self.ty.shape, HostData::from_lanes(dtype, &lanes))
    }
}

/// What rounding to `dtype` adds to the relative error of a result, with some room.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-15,
        DType::F16 => 1.01 * 2f64.powi(-11) + 3e-7,
        DType::BF16 => 1.01 * 2f64.powi(-8) + 3e-7,
        _ => 3e-7,
    }
}

impl Sample {
    fn new(op: Op, operands: Vec<Operand>) -> Sample {
        let types: Vec<Type> = operands.iter().map(|o| o.ty).collect();
        let result = op.rules().infer(&types).map_or(DType::F32, |t| t.dtype);
        // Denormals of f16 are 2^-24 apart.
        let absolute = if result == DType::F16 { 2f64.powi(-25) } else { 0.0 };
        Sample { op, operands, relative: rounding(result), absolute }
    }

    /// The same with an error bound for sums of `n` terms of about 1, made in f32, or in f64 as their reference is.
    fn summed(self, n: usize, each: f64) -> Sample {
        let wide = self.operands.iter().any(|o| o.ty.dtype == DType::F64);
        Sample { absolute: self.absolute + n as f64 * each * if wide { 4e-9 } else { 1.0 }, ..self }
    }

    /// Values of the operands; another seed gives others.
    pub fn inputs(&self, seed: u64) -> Vec<HostValue> {
        let mut random = Random(seed);
        self.operands.iter().map(|o| o.fill(&mut random)).collect()
    }

    /// Whether the operands hold infinities, NaN and the like: then only bits can be compared.
    pub fn is_special(&self) -> bool {
        self.operands.iter().any(|o| o.values == Values::Special)
    }
}

fn ty(dtype: DType, dims: &[usize]) -> Type {
    Type::new(dtype, Shape::new(dims).unwrap_or(Shape::SCALAR))
}

/// An operand of `dtype`: floats of about 1, integers up to 50 (no negative ones in u8).
fn operand(dtype: DType, dims: &[usize]) -> Operand {
    let values = match dtype.kind() {
        NumberKind::Float => Values::Range(-2.0, 2.0),
        NumberKind::Int => Values::Range(if dtype == DType::U8 { 0.0 } else { -50.0 }, 50.0),
        NumberKind::Bool => Values::Range(0.0, 1.0),
    };
    Operand { ty: ty(dtype, dims), values }
}

fn floats(dims: &[usize]) -> Operand {
    operand(DType::F32, dims)
}

/// The dtypes whose samples are the full list; the others get a few of each, since their lanes and code are these
/// but for loads, stores and rounding.
const THOROUGH: [DType; 3] = [DType::F32, DType::I64, DType::Bool];

/// Samples of `dtype`: all of `list`, or every fourth.
fn thinned(dtype: DType, list: Vec<Sample>) -> impl Iterator<Item = Sample> {
    let all = THOROUGH.contains(&dtype);
    list.into_iter().enumerate().filter(move |(i, _)| all || i % 4 == 3).map(|(_, sample)| sample)
}

fn indices(dims: &[usize], len: usize) -> Operand {
    Operand { ty: ty(DType::I64, dims), values: Values::Index(len) }
}

/// Every sample of every op.
pub fn samples() -> Vec<Sample> {
    let structural = [
        sources(),
        casts(),
        movements(),
        unslices(),
        windows(),
        concats(),
        reductions(),
        matmuls(),
        gathers(),
        scans(),
        sorts(),
        customs(),
    ];
    rows().flat_map(row_samples).chain(structural.into_iter().flatten()).collect()
}

/// The data dtypes that a dtype rule takes.
pub fn dtypes(rule: DTypes) -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(move |d| match rule {
        DTypes::Float => d.is_float(),
        DTypes::Number => *d != DType::Bool,
        DTypes::Compare | DTypes::Select => true,
        DTypes::Logic => *d == DType::Bool,
        DTypes::Bits => !d.is_float(),
        DTypes::Integer => d.is_int(),
    })
}

/// Shapes of up to three operands that broadcast.
const SHAPES: [[&[usize]; 3]; 13] = [
    [&[], &[], &[]],
    [&[1], &[1], &[1]],
    [&[0], &[0], &[0]],
    [&[3, 0], &[1, 0], &[3, 1]],
    [&[7], &[7], &[7]],
    [&[127], &[], &[127]],
    [&[128], &[128], &[1]],
    [&[129], &[129], &[129]],
    [&[5, 1], &[1, 7], &[5, 7]],
    [&[3, 4], &[4], &[3, 4]],
    [&[2, 1, 3], &[4, 1], &[2, 4, 3]],
    [&[33, 31], &[33, 1], &[31]],
    [&[1, 257], &[2, 1], &[257]],
];

fn row_samples(row: &'static Row) -> Vec<Sample> {
    let mut out = Vec::new();
    for data in dtypes(row.dtypes) {
        let operand = |p: usize, dims: &[usize], values: Values| {
            let condition = row.dtypes == DTypes::Select && p == 0;
            Operand { ty: ty(if condition { DType::Bool } else { data }, dims), values }
        };
        let (lo, hi) = row.domain;
        // Whole numbers in a wider range, so that integer rows see more than a few values.
        let range = match data {
            DType::U8 => Values::Range((lo * 8.0).max(1.0), hi * 8.0),
            d if d.is_int() => Values::Range(lo * 8.0, hi * 8.0),
            _ => Values::Range(lo, hi),
        };
        let of_shapes = |shapes: &[&[usize]; 3]| {
            let operands = (0..row.arity).map(|p| operand(p, shapes[p], range)).collect();
            Sample::new(Op::Elementwise(Elementwise::new(row)), operands)
        };
        out.extend(thinned(data, SHAPES.iter().map(of_shapes).collect()));
        let special = (0..row.arity).map(|p| operand(p, &[400], Values::Special)).collect();
        out.push(Sample::new(Op::Elementwise(Elementwise::new(row)), special));
        if row.arity < 2 {
            continue;
        }
        let first = (row.dtypes == DTypes::Select) as usize;
        for p in first..row.arity {
            let with_scalar = |(dims, s): (&[usize], Scalar)| {
                let op = Op::Elementwise(Elementwise { row, scalar: Some((p as u8, s.constant())) });
                let operands = (0..row.arity).filter(|&q| q != p).map(|q| operand(q, dims, range)).collect();
                Sample::new(op, operands)
            };
            let mut list = vec![with_scalar((&[2, 65], Scalar::f64(1.5)))];
            if THOROUGH.contains(&data) {
                list.extend([(&[6][..], Scalar::i64(1)), (&[], Scalar::f64(0.75))].map(with_scalar));
            }
            out.extend(list);
        }
    }
    out
}

fn sources() -> Vec<Sample> {
    let shapes: [&[usize]; 5] = [&[], &[0, 3], &[5], &[129], &[3, 7, 11]];
    let values: Vec<Scalar> =
        DType::ALL.into_iter().map(|d| Scalar::f64(if d.is_float() { 0.1 } else { 3.0 }).cast(d)).collect();
    let mut out = Vec::new();
    for dims in shapes {
        let shape = ty(DType::F32, dims).shape;
        let all = (1u8 << dims.len()) - 1;
        for axes in [0, all, all & 0b10, all & 0b101] {
            out.push(Sample::new(Op::Iota { shape, axes }, vec![]));
        }
        out.extend(values.iter().map(|v| Sample::new(Op::Full { shape, value: v.constant() }, vec![])));
        for (seed, counter) in [(0, 0), (7, 1 << 33), (-5, 2)] {
            let [seed, counter] = [seed, counter].map(|v| Scalar::i64(v).constant());
            out.extend(Draw::ALL.map(|draw| Sample::new(Op::Random { draw, shape, seed, counter }, vec![])));
        }
    }
    out
}

fn casts() -> Vec<Sample> {
    let mut out = Vec::new();
    for from in DType::ALL {
        for to in DType::ALL {
            for (dims, values) in
                [(&[131][..], Values::Range(-9.0, 9.0)), (&[], Values::Range(-9.0, 9.0)), (&[200], Values::Special)]
            {
                out.push(Sample::new(Op::Cast(to), vec![Operand { ty: ty(from, dims), values }]));
            }
        }
    }
    out
}

fn movements() -> Vec<Sample> {
    let shape = |dims: &[usize]| ty(DType::F32, dims).shape;
    let reshapes: [(&[usize], &[usize]); 7] = [
        (&[6], &[2, 3]),
        (&[2, 3, 4], &[6, 4]),
        (&[2, 3, 4], &[4, 6]),
        (&[5, 1, 7], &[35]),
        (&[], &[1, 1]),
        (&[0, 3], &[3, 0, 2]),
        (&[4, 6], &[2, 2, 3, 2]),
    ];
    let permutes: [(&[usize], &[usize]); 5] =
        [(&[3, 5], &[1, 0]), (&[2, 3, 4], &[2, 0, 1]), (&[2, 3, 4], &[0, 2, 1]), (&[7], &[0]), (&[0, 3], &[1, 0])];
    let expands: [(&[usize], &[usize]); 5] =
        [(&[3, 1], &[3, 5]), (&[4], &[2, 3, 4]), (&[], &[6]), (&[1], &[0]), (&[2, 1, 3], &[2, 130, 3])];
    let slices: [(&[usize], u8, i64, usize, isize); 12] = [
        (&[10], 0, 2, 5, 1),
        (&[10], 0, 1, 3, 4),
        (&[4, 9], 1, 3, 6, 1),
        (&[4, 9, 2], 1, 0, 4, 2),
        (&[5, 3], 0, 5, 0, 1),
        (&[300], 0, 17, 257, 1),
        (&[3, 3], 0, 2, 1, 1),
        (&[7], 0, 0, 7, -1),
        (&[4, 9], 1, 3, 6, -1),
        (&[4, 131, 2], 1, 0, 44, -3),
        (&[5, 3], 0, 5, 0, -2),
        (&[3, 3], 0, 2, 1, -1),
    ];
    let mut out = Vec::new();
    for dtype in DType::ALL {
        let operand = |dims: &[usize]| vec![operand(dtype, dims)];
        let slice = |(dims, axis, start, len, step): (&[usize], u8, i64, usize, isize)| {
            Sample::new(Op::Slice { axis, start: Scalar::i64(start).constant(), len, step }, operand(dims))
        };
        let mut list = Vec::new();
        list.extend(reshapes.map(|(from, to)| Sample::new(Op::Reshape { shape: shape(to) }, operand(from))));
        list.extend(permutes.map(|(d, o)| Sample::new(Op::Permute { order: AxisList::new(o) }, operand(d))));
        list.extend(expands.map(|(from, to)| Sample::new(Op::Expand { shape: shape(to) }, operand(from))));
        list.extend(slices.map(slice));
        out.extend(thinned(dtype, list));
    }
    out
}

fn unslices() -> Vec<Sample> {
    let cases: [(&[usize], u8, i64, usize, isize); 12] = [
        (&[5], 0, 2, 10, 1),
        (&[3], 0, 1, 10, 4),
        (&[4, 6], 1, 3, 9, 1),
        (&[4, 4, 2], 1, 0, 9, 2),
        (&[0, 3], 0, 2, 5, 1),
        (&[257], 0, 17, 300, 1),
        (&[3, 3], 0, 0, 3, 1),
        (&[2, 0], 0, 1, 4, 2),
        (&[7], 0, 0, 7, -1),
        (&[4, 6], 1, 2, 9, -1),
        (&[4, 44, 2], 1, 1, 131, -3),
        (&[1, 3], 0, 2, 5, -1),
    ];
    let mut out = Vec::new();
    for dtype in DType::ALL {
        let sample = |(dims, axis, start, len, step): (&[usize], u8, i64, usize, isize)| {
            let start = Scalar::i64(start).constant();
            Sample::new(Op::Unslice { axis, start, len, step }, vec![operand(dtype, dims)])
        };
        out.extend(thinned(dtype, cases.map(sample).into()));
    }
    out
}

fn windows() -> Vec<Sample> {
    // (operand, axis, [count, size], [step, dilation])
    type Case = (&'static [usize], u8, [usize; 2], [usize; 2]);
    let cases: [Case; 10] = [
        (&[10], 0, [8, 3], [1, 1]),
        (&[10], 0, [4, 3], [2, 1]),
        (&[10], 0, [2, 4], [3, 2]),
        (&[3, 8], 1, [4, 2], [2, 1]),
        (&[3, 9], 1, [3, 2], [3, 1]),
        (&[2, 9, 3], 1, [2, 3], [1, 3]),
        (&[7], 0, [7, 1], [1, 1]),
        (&[300], 0, [130, 3], [2, 1]),
        (&[4, 0], 0, [2, 2], [1, 2]),
        (&[3], 0, [0, 5], [1, 1]),
    ];
    let mut out = Vec::new();
    for dtype in DType::ALL {
        let mut list = Vec::new();
        for (dims, axis, [count, size], [step, dilation]) in cases {
            let op = Op::Window { axis, count, size, step, dilation };
            list.push(Sample::new(op, vec![operand(dtype, dims)]));
            let mut windows = dims.to_vec();
            windows.splice(axis as usize..=axis as usize, [count, size]);
            let op = Op::Fold { axis, len: dims[axis as usize], step, dilation };
            if dtype != DType::Bool {
                list.push(Sample::new(op, vec![operand(dtype, &windows)]).summed(size, 1e-6));
            }
        }
        out.extend(thinned(dtype, list));
    }
    out
}

fn concats() -> Vec<Sample> {
    let cases: [(&[&[usize]], u8); 7] = [
        (&[&[3]], 0),
        (&[&[3], &[4], &[1]], 0),
        (&[&[2, 3], &[2, 5]], 1),
        (&[&[2, 3], &[1, 3], &[4, 3]], 0),
        (&[&[3, 2, 2], &[3, 0, 2], &[3, 1, 2]], 1),
        (&[&[0, 3], &[0, 2]], 1),
        (&[&[129], &[128]], 0),
    ];
    let mut out = Vec::new();
    for dtype in DType::ALL {
        let sample = |(shapes, axis): (&[&[usize]], u8)| {
            Sample::new(Op::Concat { axis }, shapes.iter().map(|dims| operand(dtype, dims)).collect())
        };
        out.extend(thinned(dtype, cases.map(sample).into()));
    }
    out
}

fn reductions() -> Vec<Sample> {
    let cases: [(&[usize], u8); 16] = [
        (&[], 0),
        (&[5], 1),
        (&[1], 1),
        (&[127], 1),
        (&[128], 1),
        (&[129], 1),
        (&[4100], 1),
        (&[13000], 1),
        (&[7, 130], 0b10),
        (&[130, 7], 0b01),
        (&[33, 4], 0b11),
        (&[3, 5, 7], 0b101),
        (&[3, 5, 7], 0b010),
        (&[4, 1, 3], 0b010),
        (&[0, 3], 0b10),
        (&[6, 200], 0b01),
    ];
    let mut out = Vec::new();
    for kind in ReduceKind::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| kind.combine(d).is_some()) {
            let operand = |dims: &[usize]| operand(dtype, dims);
            let mut list = Vec::new();
            for (i, (dims, axes)) in cases.into_iter().enumerate() {
                let op = Op::Reduce { kind, axes, keepdim: i % 2 == 1 };
                let n = dims.iter().product();
                let mut x = operand(dims);
                if kind == ReduceKind::Prod && dtype.is_float() {
                    // Products neither too large nor denormal.
                    x.values = Values::Range(0.8, 1.2);
                }
                let sample = Sample::new(op, vec![x]).summed(n, 4e-8);
                let each = if dtype == DType::F64 { 3e-16 } else { 1.2e-7 };
                let factors = if kind == ReduceKind::Prod { n as f64 * each } else { 0.0 };
                list.push(Sample { relative: sample.relative + factors, ..sample });
            }
            out.extend(thinned(dtype, list));
            let reduce = |operand| Sample::new(Op::Reduce { kind, axes: 2, keepdim: false }, vec![operand]);
            if !matches!(kind, ReduceKind::Max | ReduceKind::Min) {
                out.push(reduce(operand(&[3, 0])));
            }
            out.push(reduce(Operand { values: Values::Special, ..operand(&[40, 6]) }));
        }
    }
    out
}

fn matmuls() -> Vec<Sample> {
    let cases: [(&[usize], &[usize]); 13] = [
        (&[1, 1], &[1, 1]),
        (&[3, 4], &[4, 5]),
        (&[17, 33], &[33, 9]),
        (&[1, 64], &[64, 7]),
        (&[7, 64], &[64, 1]),
        (&[2, 513], &[513, 3]),
        (&[3, 1030], &[1030, 2]),
        (&[4, 0], &[0, 3]),
        (&[0, 4], &[4, 3]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 3, 4], &[4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[5, 4, 2]),
    ];
    let mut out = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
        let sample = |(a, b): (&[usize], &[usize])| {
            let operands = vec![operand(dtype, a), operand(dtype, b)];
            Sample::new(Op::Matmul, operands).summed(a[a.len() - 1], 1e-6)
        };
        out.extend(cases.map(sample));
    }
    out
}

fn gathers() -> Vec<Sample> {
    // (operand, index, axis)
    let cases: [(&[usize], &[usize], u8); 6] = [
        (&[10], &[4], 0),
        (&[10, 3], &[5, 3], 0),
        (&[4, 7], &[4, 1], 1),
        (&[2, 5, 3], &[2, 129, 3], 1),
        (&[3, 4], &[0, 4], 0),
        (&[0, 4], &[0, 4], 0),
    ];
    let mut out = Vec::new();
    for (x, index, axis) in cases {
        let len = x[axis as usize];
        out.push(Sample::new(Op::ScatterIndex { axis, len }, vec![indices(index, len)]));
        // Indices out of range are clamped.
        let wild = || Operand { values: Values::Range(-3.0, len as f64 + 3.0), ..indices(index, len) };
        for dtype in DType::ALL {
            out.push(Sample::new(Op::Gather { axis }, vec![operand(dtype, x), indices(index, len)]));
            if dtype != DType::Bool {
                let op = Op::ScatterAdd { axis, len };
                let sample = |i: Operand| Sample::new(op, vec![i, operand(dtype, index)]).summed(1, 4e-5);
                out.extend([sample(indices(index, len)), sample(wild())]);
            }
        }
        out.push(Sample::new(Op::Gather { axis }, vec![floats(x), wild()]));
        out.push(Sample::new(Op::ScatterIndex { axis, len }, vec![wild()]));
    }
    out
}

/// Shapes and axes of ops along one axis.
const ALONG: [(&[usize], u8); 12] = [
    (&[1], 0),
    (&[7], 0),
    (&[129], 0),
    (&[5, 3], 0),
    (&[5, 3], 1),
    (&[3, 65], 0),
    (&[9, 33], 1),
    (&[2, 7, 40], 1),
    (&[4, 1, 3], 1),
    (&[3, 0], 1),
    (&[0, 3], 1),
    (&[3, 2, 5, 2], 2),
];

/// A user's op: where the truth value holds a number plus `scalar0`, else three times it; i64, so that there is one right
/// answer.
fn customs() -> Vec<Sample> {
    use crate::kernel::custom::HostKernel;
    use std::sync::OnceLock;
    static MIX: OnceLock<&'static Definition> = OnceLock::new();
    let mix = MIX.get_or_init(|| {
        custom::register(Definition {
            kernel: HostKernel {
                name: "sample_mix",
                cpu: Some(Box::new(|k| {
                    let (x, c) = (k.inputs[0].as_slice::<i64>()?, k.inputs[1].as_slice::<bool>()?);
                    let s = k.scalars.first().map_or(0, |s| s.as_i64());
                    for ((y, &x), &c) in k.output.as_mut_slice::<i64>()?.iter_mut().zip(x).zip(c) {
                        *y = if c { x.wrapping_add(s) } else { x.wrapping_mul(3) };
                    }
                    Ok(())
                })),
                cuda: Some(
                    "__device__ void compute(long long i, long long* out, const long long* x, const bool* c, long long s) {
                        const unsigned long long v = (unsigned long long)x[i];
                        out[i] = (long long)(c[i] ? v + (unsigned long long)s : v * 3);
                    }"
                    .to_string(),
                ),
            },
            inputs: vec![DType::I64, DType::Bool],
            output: DType::I64,
            scalars: vec![DType::I64],
            shape: Box::new(|shapes| Ok(shapes.first().copied().unwrap_or(Shape::SCALAR))),
            gradient: None,
        })
    });
    let shapes: [&[usize]; 5] = [&[], &[7], &[0, 3], &[5, 40], &[2, 1, 130]];
    let sample = |dims| {
        let op = Op::Custom(Custom::new(mix, &[Scalar::i64(-9).constant()]));
        Sample::new(op, vec![operand(DType::I64, dims), operand(DType::Bool, dims)])
    };
    shapes.map(sample).into()
}

fn scans() -> Vec<Sample> {
    let mut out = Vec::new();
    for kind in ScanKind::ALL {
        for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
            // Factors that keep results small, and out of the denormals.
            let factors = |dims: &[usize]| match kind {
                ScanKind::Product if dtype.is_float() => {
                    Operand { values: Values::Range(0.7, 1.4), ..operand(dtype, dims) }
                }
                ScanKind::Recurrence if dtype.is_float() => {
                    Operand { values: Values::Range(-0.9, 0.9), ..operand(dtype, dims) }
                }
                _ => operand(dtype, dims),
            };
            let mut list = Vec::new();
            for (i, (dims, axis)) in ALONG.into_iter().enumerate() {
                let op = Op::Scan { kind, axis, reverse: i % 2 == 1 };
                let operands =
                    if kind.inputs() == 2 { vec![factors(dims), operand(dtype, dims)] } else { vec![factors(dims)] };
                let n = dims[axis as usize];
                let sample = Sample::new(op, operands).summed(n, 2e-6);
                list.push(Sample {
                    relative: sample.relative + n as f64 * if dtype == DType::F64 { 1e-15 } else { 2e-7 },
                    ..sample
                });
            }
            out.extend(thinned(dtype, list));
            let special = || Operand { values: Values::Special, ..operand(dtype, &[6, 40]) };
            let operands = (0..kind.inputs()).map(|_| special()).collect();
            out.push(Sample::new(Op::Scan { kind, axis: 0, reverse: false }, operands));
        }
    }
    out
}

fn sorts() -> Vec<Sample> {
    let mut out = Vec::new();
    for dtype in DType::ALL {
        let sample = |(i, (dims, axis)): (usize, (&[usize], u8))| {
            let op = Op::Argsort { axis, descending: i % 3 == 1 };
            // Few different numbers, so that there are ties.
            let x = operand(dtype, dims);
            Sample::new(op, vec![if i % 2 == 0 { Operand { values: Values::Index(5), ..x } } else { x }])
        };
        out.extend(thinned(dtype, ALONG.into_iter().enumerate().map(sample).collect()));
        for descending in [false, true] {
            let special = Operand { values: Values::Special, ..operand(dtype, &[6, 40]) };
            out.push(Sample::new(Op::Argsort { axis: 1, descending }, vec![special]));
        }
    }
    out
}
