//! Users' kernels in CUDA C++: a function that computes one element, called for each of them.
//!
//! The convention, which `CustomOpBuilder::cuda` documents: `__device__ void compute(long long i, T* out, const T0* in0, …, scalars…)`
//! writes `out[i]`, which is zero to begin with. Shapes are macros.

use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::library::Call;
use crate::backend::cuda::render::{Signature, scalar};
use crate::base::scalar::Origin;
use crate::base::{DType, Error, ErrorKind, Result, Scalar};
use crate::kernel::instr::Ty;
use crate::kernel::library::{Block, Custom};
use std::fmt::Write;

/// The type by which a user's function knows elements.
fn element(dtype: DType) -> &'static str {
    if dtype == DType::Bool { "bool" } else { scalar::element(dtype) }
}

pub fn custom(form: &mut Form, custom: &Custom, signature: &Signature) -> Result<()> {
    let kernel = custom.kernel.0;
    let Some(source) = &kernel.cuda else {
        let (op, device) = (kernel.name.to_string(), "cuda".to_string());
        let detail = "it has no kernel for CUDA; give it one with `.cuda(…)`".to_string();
        return Err(Error::new(ErrorKind::Unsupported { op, device, detail }));
    };
    let mut args: Vec<(&str, bool)> = custom.inputs.iter().map(|b| (element(b.dtype), false)).collect();
    args.push((element(custom.output.dtype), true));
    let params = custom.scalars.iter().filter(|s| matches!(s.origin, Origin::Param(_))).count();
    let call = Call { args, params, signature, flags: false, scratch: false };
    call.check()?;
    form.program.flag = call.flag();
    let count = custom.output.shape.numel();
    if count == 0 {
        return Ok(());
    }
    let mut before = shape("OUT", &custom.output);
    custom.inputs.iter().enumerate().for_each(|(k, b)| before.push_str(&shape(&format!("IN{k}"), b)));
    writeln!(before, "{}\n", source.trim_end()).map_err(|e| Error::bug("cuda", e.to_string()))?;
    form.program.user = before;
    let out_arg = custom.inputs.len();
    call.entry(form, count, |out| {
        let address = |(k, b): (usize, &Block)| format!("a{k} + {}ll", b.offset);
        let to = address((out_arg, &custom.output));
        let mut list = vec!["(i64)i".to_string(), to.clone()];
        list.extend(custom.inputs.iter().enumerate().map(address));
        list.extend(custom.scalars.iter().map(value));
        let keep = call.keep(out_arg);
        out.open(keep.trim_end());
        out.line(format!("({to})[i] = 0;"));
        out.line(format!("compute({});", list.join(", ")));
        out.close();
        Ok(())
    })
}

/// A host number in its declared dtype.
fn value(scalar: &Scalar) -> String {
    let ty = Ty::of(scalar.dtype);
    let lane = match scalar.origin {
        Origin::Param(k) => scalar::canonical(ty, &format!("p{k}")),
        _ => scalar::constant(ty, scalar.bits),
    };
    match scalar.dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Bool => lane,
        dtype => format!("({}){lane}", scalar::element(dtype)),
    }
}

/// Macros that tell a block's shape.
fn shape(name: &str, block: &Block) -> String {
    let mut out = format!("#define {name}_LEN {}ll\n#define {name}_RANK {}\n", block.shape.numel(), block.shape.rank());
    for (axis, len) in block.shape.dims().iter().enumerate() {
        out.push_str(&format!("#define {name}_DIM{axis} {len}ll\n"));
    }
    out
}
