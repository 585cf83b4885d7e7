//! Draws from a counter-based generator: pure functions of (element, seed, counter).
//!
//! Element `i` of a draw has the block of four words `w0..w3` that Philox4x32-10 gives for the counter
//! (low word of `i`, high word of `i`, low word of `counter`, high word of `counter`) and the key (low word of
//! `seed`, high word of `seed`), in the order of Salmon et al. 2011. What a [`Draw`] makes of the block is said at it. All is f32
//! and integer arithmetic over the scalar instructions: the same bits on every backend.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Result, Scalar, Shape, Type};
use crate::kernel::{self, Builder, Ty, math};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// What a draw makes of an element's four words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Draw {
    /// f32 in [0, 1): the upper 24 bits of `w0`, times 2^-24.
    Uniform,
    /// f32 of the standard normal distribution, by Box and Muller 1958: √(-2 ln(1 - u)) cos 2πv with u and v the
    /// uniform numbers of `w0` and `w1` as for [`Draw::Uniform`]. In magnitude at most √(48 ln 2) = 5.77.
    Normal,
    /// i64, all 64 bits random: `w0` is the high half, `w1` the low one.
    Bits,
}

impl Draw {
    /// Every kind.
    pub const ALL: [Draw; 3] = [Draw::Uniform, Draw::Normal, Draw::Bits];

    /// Name in the text form, in reports and errors.
    pub fn name(self) -> &'static str {
        match self {
            Draw::Uniform => "uniform",
            Draw::Normal => "normal",
            Draw::Bits => "random_bits",
        }
    }

    /// dtype of the draws.
    pub fn dtype(self) -> DType {
        match self {
            Draw::Uniform | Draw::Normal => DType::F32,
            Draw::Bits => DType::I64,
        }
    }

    /// The draw from an element's words.
    fn formula(self, b: &mut Builder, words: [kernel::Val; 4]) -> kernel::Val {
        match self {
            Draw::Uniform => math::unit_interval(b, words[0]),
            Draw::Normal => {
                let (u, v) = (math::unit_interval(b, words[0]), math::unit_interval(b, words[1]));
                let (one, minus_two, turn) = (b.f32(1.0), b.f32(-2.0), b.f32(std::f32::consts::TAU));
                // 1 - u is exact and not 0.
                let rest = b.sub(one, u);
                let log = math::log(b, rest);
                let square = b.mul(minus_two, log);
                let (radius, angle) = (b.sqrt(square), b.mul(turn, v));
                let cosine = math::cos(b, angle);
                b.mul(radius, cosine)
            }
            Draw::Bits => {
                let (high, low, half) = (b.utol(words[0]), b.utol(words[1]), b.i64(32));
                let high = b.lshl(high, half);
                b.lor(high, low)
            }
        }
    }
}

/// [`Op::Random`].
#[derive(Clone, Copy)]
pub struct Random {
    pub draw: Draw,
    pub shape: Shape,
    pub seed: Scalar,
    pub counter: Scalar,
}

/// The draw at the row-major element with this index, given as words; seed and counter i64.
fn draw(b: &mut Builder, kind: Draw, index: [kernel::Val; 2], seed: kernel::Val, counter: kernel::Val) -> kernel::Val {
    let (counter, seed) = (words(b, counter), words(b, seed));
    let out = math::philox4x32_10(b, [index[0], index[1], counter[0], counter[1]], seed);
    kind.formula(b, out)
}

/// Low and high 32 bits.
fn words(b: &mut Builder, v: kernel::Val) -> [kernel::Val; 2] {
    let half = b.i64(32);
    let high = b.lshr(v, half);
    [b.ltou(v), b.ltou(high)]
}

impl Rules for Random {
    fn name(&self) -> &'static str {
        self.draw.name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [] = super::operands(self.name(), operands)?;
        for s in [self.seed, self.counter] {
            if s.dtype != DType::I64 {
                return Err(Error::argument(self.name(), "an i64 seed and counter", format!("{s:?}")));
            }
        }
        Ok(Type::new(self.draw.dtype(), self.shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(smallvec![])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let ty = self.infer(&host::types(operands))?;
        let n = self.shape.numel();
        let f = host::formula(&[Ty::I64; 3], |b, v| {
            let index = words(b, v[0]);
            draw(b, self.draw, index, v[1], v[2])
        });
        let columns = [(0..n as u64).collect(), vec![self.seed.bits], vec![self.counter.bits]];
        Ok(HostValue::new(self.shape, HostData::from_lanes(ty.dtype, &host::run_formula(&f, &columns, n)?)))
    }

    fn flops(&self, _: &[Type], _: Type) -> u64 {
        0
    }

    fn class(&self) -> Class {
        Class::Source
    }

    fn lower(&self, cx: &mut dyn Lowering, _: Type, map: &IndexMap) -> Result<kernel::Val> {
        let (seed, counter) = (cx.scalar(self.seed), cx.scalar(self.counter));
        let index = cx.linear_index(map);
        let b = cx.builder();
        // Of a shape this small the high word is zero everywhere.
        let index = if self.shape.numel() as u64 <= 1 << 32 { [b.ltou(index), b.u32(0)] } else { words(b, index) };
        Ok(draw(b, self.draw, index, seed, counter))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        smallvec![self.seed, self.counter]
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        Op::Random { draw: self.draw, shape: self.shape, seed: scalars[0], counter: scalars[1] }
    }
}
