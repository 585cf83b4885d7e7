//! Batched matrix product of floats. 16-bit operands are widened to f32, and the result is rounded once.

use smallvec::{SmallVec, smallvec};

use crate::base::host::HostData;
use crate::base::{DType, Error, HostValue, Layout, Result, Scalar, Shape, Type};
use crate::kernel;
use crate::kernel::library::{self, Library, MATMUL_SLICE};
use crate::op::lowering::not_affine;
use crate::op::{AxisList, Class, Grad, IndexMap, Lowering, Op, Rules, Val, host};

/// [`Op::Matmul`].
#[derive(Clone, Copy)]
pub struct Matmul;

/// Batch axes and the last two.
fn split(shape: Shape) -> (Result<Shape>, usize, usize) {
    let (batch, matrix) = shape.dims().split_at(shape.rank() - 2);
    (Shape::new(batch), matrix[0], matrix[1])
}

/// `batch` followed by the axes of a matrix.
fn join(batch: Shape, rows: usize, columns: usize) -> Result<Shape> {
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(batch.dims());
    dims.extend([rows, columns]);
    Shape::new(&dims)
}

impl Matmul {
    /// The library call for operands and a result that lie as these layouts say.
    /// Batch axes along which `b` is repeated while `a` and `c` go on evenly become rows.
    pub fn call(dtype: DType, a: &Layout, b: &Layout, c: &Layout) -> Library {
        let rank = c.shape.rank();
        let operand = |l: &Layout| {
            let l = l.expand_batch(c.shape);
            library::Operand {
                offset: l.offset as i64,
                batch: l.strides[..rank - 2].iter().map(|&s| s as i64).collect(),
                row: l.strides[rank - 2] as i64,
                col: l.strides[rank - 1] as i64,
            }
        };
        let mut call = library::Matmul {
            dtype,
            batch: c.shape.dims()[..rank - 2].to_vec(),
            m: c.shape[rank - 2],
            k: a.shape[a.shape.rank() - 1],
            n: c.shape[rank - 1],
            a: operand(a),
            b: operand(b),
            c: operand(c),
        };
        while let Some(&len) = call.batch.last() {
            let last = call.batch.len() - 1;
            let follows = |o: &library::Operand| call.m == 1 || o.batch[last] == o.row * call.m as i64;
            if !(len == 1 || (call.b.batch[last] == 0 && follows(&call.a) && follows(&call.c))) {
                break;
            }
            if call.m == 1 && len != 1 {
                (call.a.row, call.c.row) = (call.a.batch[last], call.c.batch[last]);
            }
            call.m *= len;
            call.batch.pop();
            for o in [&mut call.a, &mut call.b, &mut call.c] {
                o.batch.pop();
            }
        }
        Library::Matmul(call)
    }
}

/// Broadcasting of the axes before the last two.
trait ExpandBatch {
    fn expand_batch(&self, result: Shape) -> Layout;
}

impl ExpandBatch for Layout {
    fn expand_batch(&self, result: Shape) -> Layout {
        let rank = self.shape.rank();
        let (batch, _, _) = split(result);
        let own = join(batch.unwrap_or(Shape::SCALAR), self.shape[rank - 2], self.shape[rank - 1]);
        self.expand(own.unwrap_or(self.shape))
    }
}

/// The last two axes exchanged.
fn transpose(g: &mut Grad<'_>, v: Val) -> Result<Val> {
    let rank = g.ty(v).shape.rank();
    let mut order: SmallVec<[usize; 8]> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    g.emit(Op::Permute { order: AxisList::new(&order) }, &[v])
}

/// All axes but the last as rows.
fn flatten(g: &mut Grad<'_>, v: Val) -> Result<Val> {
    let shape = g.ty(v).shape;
    let columns = shape[shape.rank() - 1];
    let rows: usize = shape.dims()[..shape.rank() - 1].iter().product();
    g.emit(Op::Reshape { shape: Shape::new(&[rows, columns])? }, &[v])
}

/// The sum of the slices' chains, in order.
fn by_slices<T: Default + std::ops::Add<Output = T>>(k: usize, chain: impl Fn(std::ops::Range<usize>) -> T) -> T {
    let slices = (0..k).step_by(MATMUL_SLICE).map(|s| chain(s..(s + MATMUL_SLICE).min(k)));
    slices.reduce(|x, y| x + y).unwrap_or_default()
}

impl Rules for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, operands: &[Type]) -> Result<Type> {
        let [a, b] = super::operands(self.name(), operands)?;
        for t in [a, b] {
            if !t.dtype.is_float() {
                return Err(Error::dtype(self.name(), "float operands (cast integers with `.to_dtype`)", t.dtype));
            }
            if t.dtype != a.dtype {
                return Err(Error::dtype(self.name(), format!("{} like the left operand", a.dtype), t.dtype));
            }
            if t.shape.rank() < 2 {
                let want = "matrices (at least 2 axes; reshape a vector to [1,n] or [n,1])";
                return Err(Error::shape(self.name(), want, t.shape.to_string()));
            }
        }
        let ((a_batch, m, k), (b_batch, rows, n)) = (split(a.shape), split(b.shape));
        if k != rows {
            let want = format!("{k} rows on the right, as many as {} has columns", a.shape);
            return Err(Error::shape(self.name(), want, b.shape.to_string()));
        }
        let Some(batch) = a_batch?.broadcast(&b_batch?) else {
            let want = format!("batch axes that broadcast with those of {}", a.shape);
            return Err(Error::shape(self.name(), want, b.shape.to_string()));
        };
        Ok(Type::new(a.dtype, join(batch, m, n)?))
    }

    fn grad(&self, g: &mut Grad<'_>) -> Result<SmallVec<[Option<Val>; 3]>> {
        let (a, b, grad) = (g.operands[0], g.operands[1], g.grad);
        let (a_shape, b_shape) = (g.ty(a).shape, g.ty(b).shape);
        let mut out = smallvec![None, None];
        if g.needs(0) {
            let bt = transpose(g, b)?;
            let da = g.emit(Op::Matmul, &[grad, bt])?;
            out[0] = Some(g.unbroadcast(da, a_shape)?);
        }
        if g.needs(1) {
            // One matrix shared by a batch: a longer product instead of a product per item and a sum.
            let shared = b_shape.rank() == 2 && a_shape.rank() > 2;
            let (a, grad) = if shared { (flatten(g, a)?, flatten(g, grad)?) } else { (a, grad) };
            let at = transpose(g, a)?;
            let db = g.emit(Op::Matmul, &[at, grad])?;
            out[1] = Some(g.unbroadcast(db, b_shape)?);
        }
        Ok(out)
    }

    fn eval(&self, operands: &[HostValue]) -> Result<HostValue> {
        let result = self.infer(&host::types(operands))?;
        let [a, b] = [0, 1].map(|i| &operands[i]);
        let layouts = [a, b].map(|v| Layout::contiguous(v.shape).expand_batch(result.shape));
        let (batch, m, n) = split(result.shape);
        let k = a.shape[a.shape.rank() - 1];
        let starts = layouts.map(|l| {
            let mut l = l;
            l.shape = batch.clone().unwrap_or(Shape::SCALAR);
            host::positions(&l)
        });
        // (position in a, position in b) of the k products of each result element.
        let elements = starts[0]
            .iter()
            .zip(&starts[1])
            .flat_map(move |(&pa, &pb)| (0..m).flat_map(move |i| (0..n).map(move |j| (pa + i * k, pb + j))));
        let data = if host::is_real(operands) {
            let (a, b) = (a.data.to_f64(), b.data.to_f64());
            let dot = |(pa, pb): (usize, usize)| (0..k).map(|l| a[pa + l] * b[pb + l * n]).sum();
            HostData::Real(result.dtype, elements.map(dot).collect())
        } else if let (HostData::F64(a), HostData::F64(b)) = (&a.data, &b.data) {
            let dot = |(pa, pb): (usize, usize)| {
                by_slices(k, |slice| slice.fold(0.0f64, |acc, l| a[pa + l].mul_add(b[pb + l * n], acc)))
            };
            HostData::F64(elements.map(dot).collect())
        } else {
            // f32 lanes, those of 16-bit floats too: rounded once, at the end.
            let (a, b) = (a.data.lanes(), b.data.lanes());
            let at = |lanes: &[u64], p: usize| f32::from_bits(lanes[p] as u32);
            let dot = |(pa, pb): (usize, usize)| {
                let chain = |acc: f32, l: usize| at(&a, pa + l).mul_add(at(&b, pb + l * n), acc);
                by_slices(k, |slice| slice.fold(0.0f32, chain)).to_bits() as u64
            };
            HostData::from_lanes(result.dtype, &elements.map(dot).collect::<Vec<_>>())
        };
        Ok(HostValue::new(result.shape, data))
    }

    fn flops(&self, operands: &[Type], result: Type) -> u64 {
        let k = operands.first().map_or(0, |t| t.shape[t.shape.rank() - 1]);
        2 * k as u64 * result.shape.numel() as u64
    }

    fn class(&self) -> Class {
        Class::Library
    }

    fn lower(&self, _: &mut dyn Lowering, _: Type, _: &IndexMap) -> Result<kernel::Val> {
        Err(not_affine(self.name(), "it is a library call"))
    }

    fn library(&self, operands: &[(DType, Layout)], result: &Layout) -> Option<Library> {
        let [(dtype, a), (_, b)] = operands else { return None };
        Some(Matmul::call(*dtype, a, b, result))
    }

    fn with_scalars(&self, _: &[Scalar]) -> Op {
        Op::Matmul
    }
}
