//! Uniform draws in [0, 1) from a counter-based generator: a pure function of (element, seed, counter).

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Result, Scalar, Shape, Type};
use crate::kernel::{self, Builder, Ty, math};
use crate::op::{Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Uniform`].
#[derive(Clone, Copy)]
pub struct Uniform {
    pub shape: Shape,
    pub seed: Scalar,
    pub counter: Scalar,
}

/// The draw at row-major element `index`; all operands i64.
fn draw(b: &mut Builder, index: kernel::Val, seed: kernel::Val, counter: kernel::Val) -> kernel::Val {
    let (index, counter, seed) = (words(b, index), words(b, counter), words(b, seed));
    let out = math::philox4x32_10(b, [index[0], index[1], counter[0], counter[1]], seed);
    let eight = b.u32(8);
    let bits = b.ushr(out[0], eight);
    let value = b.itof(bits);
    let unit = b.f32(1.0 / (1 << 24) as f32);
    b.mul(value, unit)
}

/// Low and high 32 bits.
fn words(b: &mut Builder, v: kernel::Val) -> [kernel::Val; 2] {
    let half = b.i64(32);
    let high = b.lshr(v, half);
    [b.ltou(v), b.ltou(high)]
}

impl Rules for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [] = super::operands(self.name(), operands)?;
        for s in [self.seed, self.counter] {
            if s.dtype != DType::I64 {
                return Err(Error::argument(self.name(), "an i64 seed and counter", format!("{s:?}")));
            }
        }
        Ok(Type::new(DType::F32, self.shape))
    }

    fn grad(&self, _: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        Ok(smallvec![])
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        self.infer(&host::types(operands))?;
        let n = self.shape.numel();
        let f = host::formula(&[Ty::I64; 3], |b, v| draw(b, v[0], v[1], v[2]));
        let columns = [(0..n as u64).collect(), vec![self.seed.bits], vec![self.counter.bits]];
        Ok(HostValue::new(self.shape, HostData::from_lanes(DType::F32, &host::run_formula(&f, &columns, n)?)))
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
        Ok(draw(cx.builder(), index, seed, counter))
    }

    fn scalars(&self) -> SmallVec<[Scalar; 2]> {
        smallvec![self.seed, self.counter]
    }

    fn with_scalars(&self, scalars: &[Scalar]) -> Op {
        Op::Uniform { shape: self.shape, seed: scalars[0], counter: scalars[1] }
    }
}
