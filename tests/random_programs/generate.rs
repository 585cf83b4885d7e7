//! The generator: statements are drawn, tried in plain eager code, and mostly kept when they work.

use std::sync::Arc;

use stepgraph::{Device, Gradients, Tensor};

use crate::ops;
use crate::program::{Binary, Dim, Host, Line, Options, Program, Reduction, Stmt, Type, Unary, When};
use crate::world::{INPUTS, REGISTERS, SLOTS, World};

/// splitmix64.
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// What kind of program it is.
struct Traits {
    backward: bool,
    nested: bool,
    reads: bool,
    schedules: bool,
    fresh: bool,
    varied: bool,
    wild: bool,
}

/// Program number `seed`.
pub fn program(seed: u64, device: &Device, other: &Device) -> Program {
    let mut r = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let r = &mut r;
    let lengths = [1, 2, 3, 5, 7, 13];
    let length = |r: &mut Draws| match r.below(40) {
        0 => 0,
        1 => 131,
        2 | 3 => 33,
        _ => r.of(&lengths),
    };
    let m = length(r);
    let with_alt = r.percent(25);
    let t = Traits {
        backward: r.percent(65),
        nested: r.percent(15),
        reads: r.percent(45),
        schedules: r.percent(70),
        fresh: r.percent(50),
        varied: r.percent(65),
        wild: r.percent(10),
    };
    // What a host read inside the step has told is not told again at its end.
    let t = Traits { reads: t.reads && !t.wild, ..t };
    let calls = 5 + r.below(5);
    let steps = match r.below(10) {
        0 => (0..calls).map(|_| 1 + r.below(2) as u8).collect(),
        1 if !(t.backward && t.nested || t.wild) => (0..calls).map(|_| r.below(3) as u8).collect(),
        _ => vec![1; calls],
    };
    let mut p = Program {
        m: (m, if with_alt { length(r) } else { m }),
        alt: if with_alt { mask(r) } else { 0 },
        n: length(r),
        steps,
        options: Options {
            fuse: r.percent(90),
            in_place: r.percent(90),
            plan_cache: if r.percent(15) { 1 + r.below(4) } else { 64 },
            device: r.below(8),
            wild: if t.wild { mask(r) } else { 0 },
            threads: if r.percent(15) { mask(r) } else { 0 },
            starved: if r.percent(5) { 0b11 << r.below(8) } else { 0 },
        },
        before: vec![],
        body: vec![],
    };
    let Ok(mut w) = World::new(&p, device, other, false) else { return p };
    let (mut regs, mut grads) = (vec![None; REGISTERS], None);
    if r.percent(40) {
        for _ in 0..1 + r.below(4) {
            if let Some(s) = attempt(r, &t, &mut w, &mut regs, &mut grads, before) {
                let when = if r.percent(40) { When::Always } else { When::Calls(mask(r)) };
                p.before.push(Line(when, s));
            }
        }
    }
    let (mut regs, mut grads) = (vec![None; REGISTERS], None);
    // Something to begin with.
    for d in 0..3 {
        let s = if r.percent(50) { input(r, &t, d) } else { Stmt::Get { d, v: vec![r.below(7) as u8] } };
        if w.prepare([Line(When::Always, s.clone())].iter(), false).is_ok()
            && w.try_stmt(&s, &mut regs, &mut grads).is_ok()
        {
            p.body.push(Line(When::Always, s));
        }
    }
    let long = r.percent(3);
    for _ in 0..4 + r.below(if long { 120 } else { 22 }) {
        if let Some(s) = attempt(r, &t, &mut w, &mut regs, &mut grads, inside) {
            let when = match r.below(100) {
                0..15 if t.varied => When::Calls(mask(r)),
                15..22 if t.reads => When::Positive,
                _ => When::Always,
            };
            p.body.push(Line(when, s));
        }
    }
    if t.backward && r.percent(70) {
        // As training steps end.
        let a = some(r, &regs);
        p.body.push(Line(When::Always, Stmt::Backward { a }));
        let lr = host(r, &t);
        p.body.push(Line(When::Always, if r.percent(50) { Stmt::Adam { lr } } else { Stmt::Sgd { lr } }));
        for _ in 0..r.below(4) {
            if let Some(s) = attempt(r, &t, &mut w, &mut regs, &mut grads, inside) {
                p.body.push(Line(if r.percent(20) { When::Calls(mask(r)) } else { When::Always }, s));
            }
        }
    }
    if r.percent(50) {
        p.body.push(Line(When::Always, Stmt::Return { a: some(r, &regs) }));
    }
    if t.nested {
        let at = r.below(p.body.len() + 1);
        p.body.insert(at, Line(When::Always, Stmt::Nested { len: 1 + r.below(6) as u8 }));
    }
    if r.percent(8) {
        let at = r.below(p.body.len() + 1);
        let s = if r.percent(50) { Stmt::Fail } else { Stmt::Panic };
        p.body.insert(at, Line(When::Calls(mask(r)), s));
    }
    p
}

/// Calls: one, some in a row, every other one, or any.
fn mask(r: &mut Draws) -> u32 {
    match r.below(5) {
        0 => 1 << r.below(8),
        1 => 0b11 << r.below(8),
        2 => 0x5555_5555 << r.below(2),
        3 => !0 << r.below(8),
        _ => r.next() as u32,
    }
}

/// A statement that works, or sometimes one that does not.
fn attempt(
    r: &mut Draws,
    t: &Traits,
    w: &mut World,
    regs: &mut Vec<Option<Tensor>>,
    grads: &mut Option<Arc<Gradients>>,
    draw: fn(&mut Draws, &Traits, &[Option<Tensor>], bool) -> Stmt,
) -> Option<Stmt> {
    for _ in 0..6 {
        let s = draw(r, t, regs, grads.is_some());
        w.prepare([Line(When::Always, s.clone())].iter(), false).ok()?;
        let old = regs.clone();
        match w.try_stmt(&s, regs, grads) {
            Ok(()) => {
                let changed = regs.iter().zip(&old).find_map(|(new, old)| match (new, old) {
                    (Some(n), Some(o)) if n.same(o) => None,
                    (n, _) => n.clone(),
                });
                let wild = changed.is_some_and(|t| t.numel() > 20_000 || !finite(&t));
                if !wild || r.percent(10) {
                    return Some(s);
                }
                *regs = old;
            }
            Err(_) if r.percent(4) => return Some(s),
            Err(_) => {}
        }
    }
    None
}

/// Values that overflow hide what comes after them.
fn finite(t: &Tensor) -> bool {
    match t.to_host().map(|v| v.data) {
        Ok(v) if v.dtype().is_float() => v.to_f64().iter().all(|x| x.abs() < 1e6),
        _ => true,
    }
}

/// A register, preferably one with a value.
fn some(r: &mut Draws, regs: &[Option<Tensor>]) -> u8 {
    for _ in 0..6 {
        let k = r.below(REGISTERS);
        if regs[k].is_some() {
            return k as u8;
        }
    }
    0
}

/// A register with a value of this type.
fn typed(r: &mut Draws, regs: &[Option<Tensor>], dtype: stepgraph::DType) -> u8 {
    for _ in 0..10 {
        let k = some(r, regs);
        if regs[k as usize].as_ref().is_some_and(|t| t.dtype() == dtype) {
            return k;
        }
    }
    some(r, regs)
}

fn host(r: &mut Draws, t: &Traits) -> Host {
    // Some schedules come to a quarter, with which integers are computed as floats.
    let v = r.of(&[0.5, -1.0, 2.0, 0.1, 0.0, 1.0, 3.0, 0.75]);
    match r.below(10) {
        0 | 1 if t.reads => Host::LastRead,
        2..6 if t.schedules => Host::Schedule(v),
        _ => Host::Fixed(v),
    }
}

fn dims(r: &mut Draws) -> Vec<Dim> {
    match r.below(9) {
        0 => vec![],
        1 => vec![Dim::N],
        2 => vec![Dim::M],
        3 => vec![Dim::M, Dim::Of(1)],
        4 => vec![Dim::Of(2), Dim::M, Dim::N],
        5 => vec![Dim::N, Dim::M],
        6 => vec![Dim::N, Dim::Of(3)],
        _ => vec![Dim::M, Dim::N],
    }
}

fn input(r: &mut Draws, t: &Traits, d: u8) -> Stmt {
    let k = r.below(INPUTS as usize) as u8;
    // Inputs of one type, so that a call may see one twice and the next two.
    let k = if t.varied && k < 5 && r.percent(50) { vec![k, r.of(&[0, 1, k])] } else { vec![k] };
    Stmt::Input { d, k }
}

fn before(r: &mut Draws, _: &Traits, regs: &[Option<Tensor>], _: bool) -> Stmt {
    let d = r.below(REGISTERS) as u8;
    match r.below(12) {
        10 => Stmt::Replace { v: r.below(7) as u8, seed: r.below(3) as u8 },
        11 => Stmt::Renew { step: 1 + r.below(2) as u8 },
        0 | 1 => Stmt::Fresh {
            d,
            ty: Type::F32,
            dims: r.of(&[&[Dim::N][..], &[], &[Dim::N, Dim::Of(3)], &[Dim::M, Dim::N]]).to_vec(),
            seed: r.below(4) as u8,
        },
        2 | 3 => Stmt::Set { v: vec![r.below(7) as u8], a: some(r, regs) },
        4 => Stmt::Reseed { rng: r.below(2) as u8, seed: r.below(3) as u8 },
        5 => Stmt::Unkeep { slot: r.below(SLOTS) as u8 },
        6 => Stmt::Keep { slot: r.below(SLOTS) as u8, a: some(r, regs) },
        7 => Stmt::Get { d, v: vec![r.below(7) as u8] },
        8 => Stmt::WithHost {
            d,
            op: r.of(&[Binary::Add, Binary::Mul]),
            a: some(r, regs),
            host: Host::Schedule(0.5),
            left: false,
        },
        _ => Stmt::Load { d, slot: r.below(SLOTS) as u8, detach: true },
    }
}

const TYPES: [Type; 9] =
    [Type::F64, Type::F32, Type::BF16, Type::F16, Type::I64, Type::I32, Type::I8, Type::U8, Type::Bool];
const UNARY: [Unary; 38] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Exp,
    Unary::Log,
    Unary::Sin,
    Unary::Cos,
    Unary::Tanh,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Relu,
    Unary::Detach,
    Unary::Not,
    Unary::Exp2,
    Unary::Expm1,
    Unary::Log1p,
    Unary::Log2,
    Unary::Log10,
    Unary::Rsqrt,
    Unary::Sigmoid,
    Unary::Erf,
    Unary::Erfc,
    Unary::Tan,
    Unary::Asin,
    Unary::Acos,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::Trunc,
    Unary::Sign,
    Unary::IsNan,
    Unary::IsInf,
    Unary::IsFinite,
    Unary::Square,
    Unary::Cube,
    Unary::Clamp,
];
const BINARY: [Binary; 18] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Maximum,
    Binary::Minimum,
    Binary::Eq,
    Binary::Ne,
    Binary::Lt,
    Binary::Le,
    Binary::Gt,
    Binary::Ge,
    Binary::Pow,
    Binary::Atan2,
    Binary::Rem,
    Binary::Fmod,
    Binary::ClampMin,
    Binary::ClampMax,
];

fn inside(r: &mut Draws, t: &Traits, regs: &[Option<Tensor>], grads: bool) -> Stmt {
    use stepgraph::DType::{BF16, Bool, F16, F32, F64, I8, I32, I64, U8};
    let d = r.below(REGISTERS) as u8;
    let any = |r: &mut Draws| some(r, regs);
    // Mostly f32, which most values are.
    let floats = |r: &mut Draws| {
        let dtype = if r.percent(70) { F32 } else { r.of(&[F32, F64, BF16, F16]) };
        typed(r, regs, dtype)
    };
    let ints = |r: &mut Draws| {
        let dtype = r.of(&[I64, I64, I32, I8, U8]);
        typed(r, regs, dtype)
    };
    let small = |r: &mut Draws, n: usize| r.below(n) as u8;
    if t.backward && r.percent(if grads { 20 } else { 6 }) {
        return match r.below(if grads { 10 } else { 1 }) {
            0 => Stmt::Backward { a: floats(r) },
            1..5 => Stmt::Grad { d, v: small(r, 7) },
            5 | 6 => Stmt::KeepGrads { slot: small(r, 2) },
            7 => Stmt::LoadGrads { slot: small(r, 2) },
            8 => Stmt::Adam { lr: host(r, t) },
            _ => Stmt::Sgd { lr: host(r, t) },
        };
    }
    let choice = if t.wild && r.percent(15) { r.of(&[75, 76, 82]) } else { r.below(100) };
    match choice {
        0..5 => input(r, t, d),
        5..7 if t.fresh => Stmt::Fresh {
            d,
            ty: if r.percent(60) { r.of(&[Type::F32, Type::F32, Type::I64, Type::Bool]) } else { r.of(&TYPES) },
            dims: dims(r),
            seed: small(r, 4),
        },
        7..9 => Stmt::Full { d, dims: dims(r), value: host(r, t) },
        9 => Stmt::DrawOther { d, rng: small(r, 2), dims: dims(r), how: small(r, 6) },
        10..12 => Stmt::Draw { d, rng: small(r, 2), dims: dims(r) },
        12..19 => {
            let v = small(r, 7);
            Stmt::Get { d, v: if v < 2 && t.varied && r.percent(25) { vec![v, r.of(&[0, 1, 4])] } else { vec![v] } }
        }
        19..25 => {
            let v = small(r, 7);
            Stmt::Set {
                v: if v < 2 && t.varied && r.percent(25) { vec![v, r.of(&[0, 1, 4])] } else { vec![v] },
                a: any(r),
            }
        }
        25 => {
            let (v, w) = r.of(&[(0, 1), (0, 4), (1, 0), (4, 1), (0, 0)]);
            Stmt::Swap { v, w }
        }
        26 if t.reads => {
            if t.backward || r.percent(50) {
                Stmt::Fork { d, a: floats(r) }
            } else {
                Stmt::Away { d, a: any(r) }
            }
        }
        27 => Stmt::Copy { d, a: any(r) },
        28..33 | 95 | 96 | 99 => Stmt::Op {
            d,
            name: r.of(ops::OPS).0,
            a: if r.percent(60) { floats(r) } else { any(r) },
            b: any(r),
            c: any(r),
            axis: small(r, 3),
            k: 1 + small(r, 4),
            host: host(r, t),
            rng: small(r, 2),
        },
        33..37 => Stmt::Unary { d, op: r.of(&UNARY), a: floats(r) },
        37..50 => {
            let kinds = if r.percent(60) { 6 } else { BINARY.len() };
            let op = r.of(&BINARY[..kinds]);
            Stmt::Binary { d, op, a: any(r), b: any(r) }
        }
        50 if r.percent(40) => Stmt::Binary {
            d,
            op: r.of(&[Binary::And, Binary::Or, Binary::Xor, Binary::Shl, Binary::Shr]),
            a: ints(r),
            b: ints(r),
        },
        50 => Stmt::Binary {
            d,
            op: r.of(&[Binary::And, Binary::Or, Binary::Xor]),
            a: typed(r, regs, Bool),
            b: typed(r, regs, Bool),
        },
        92 => Stmt::WithHost { d, op: r.of(&BINARY), a: ints(r), host: host(r, t), left: r.percent(50) },
        93 | 94 => Stmt::Transpose { d, a: any(r), x: 0, y: 1 },
        51..56 => Stmt::WithHost { d, op: r.of(&BINARY), a: any(r), host: host(r, t), left: r.percent(50) },
        56 => Stmt::Select { d, a: typed(r, regs, Bool), b: any(r), c: any(r) },
        57 => Stmt::SelectHost { d, a: typed(r, regs, Bool), b: floats(r), host: host(r, t), first: r.percent(50) },
        58..60 => Stmt::Cast {
            d,
            a: any(r),
            to: if r.percent(40) { r.of(&[Type::F32, Type::I64, Type::Bool]) } else { r.of(&TYPES) },
        },
        60..62 => Stmt::Reshape { d, a: any(r), dims: dims(r) },
        62 => Stmt::Flatten { d, a: any(r) },
        63..65 => Stmt::Transpose { d, a: any(r), x: small(r, 3), y: small(r, 3) },
        65 => Stmt::Expand { d, a: any(r), dims: dims(r) },
        66 => Stmt::Unsqueeze { d, a: any(r), axis: small(r, 3) },
        67 => Stmt::Squeeze { d, a: any(r), axis: small(r, 3) },
        68..71 => {
            Stmt::Slice { d, a: any(r), axis: small(r, 3), start: host(r, t), len: 1 + small(r, 4), step: small(r, 5) }
        }
        71 => Stmt::Concat {
            d,
            a: any(r),
            b: any(r),
            c: if r.percent(30) { Some(any(r)) } else { None },
            axis: small(r, 3),
        },
        72..75 => Stmt::Matmul { d, a: floats(r), b: floats(r) },
        75 => Stmt::Gather { d, a: any(r), b: typed(r, regs, I64), axis: small(r, 3) },
        76 => Stmt::ScatterAdd { d, a: floats(r), b: any(r), c: floats(r), axis: small(r, 3) },
        77..81 => Stmt::Reduce {
            d,
            op: r.of(&[Reduction::Sum, Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Mean]),
            a: any(r),
            axes: small(r, 8),
            keepdim: r.percent(50),
        },
        81 => Stmt::Softmax { d, a: floats(r), axis: small(r, 3) },
        82 => match r.below(3) {
            0 => Stmt::LogSoftmax { d, a: floats(r), axis: small(r, 3) },
            1 => Stmt::Mse { d, a: floats(r), b: floats(r) },
            _ => Stmt::CrossEntropy { d, a: floats(r), b: typed(r, regs, I64) },
        },
        83..86 if t.reads => Stmt::Read { a: any(r) },
        86..88 => Stmt::Keep { slot: small(r, SLOTS), a: any(r) },
        88 => Stmt::Push { a: any(r) },
        89 => Stmt::Unkeep { slot: small(r, SLOTS) },
        90..92 => Stmt::Load { d, slot: small(r, SLOTS), detach: t.backward || r.percent(50) },
        97 => Stmt::Return { a: any(r) },
        98 if t.varied => Stmt::Reseed { rng: small(r, 2), seed: small(r, 3) },
        _ => Stmt::Unary { d, op: Unary::Tanh, a: floats(r) },
    }
}
