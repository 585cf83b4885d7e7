//! The operations of a random program that take registers, an axis, a small number and a host number, and give one
//! value: one row each. Those with statements of their own are in `world.rs`.

use stepgraph::nn::{Attention, Convolution, Pooling, Reduction};
use stepgraph::{DType, Device, Result, Rng, Tensor};

use crate::world::in_range;

/// What an operation may take.
pub struct Args<'a> {
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub c: &'a Tensor,
    pub axis: isize,
    /// 1 to 4.
    pub k: usize,
    /// A host number, new at each call.
    pub h: f64,
    pub rng: &'a Rng,
    pub device: &'a Device,
}

/// A name, and what it does.
pub type Row = (&'static str, fn(&Args<'_>) -> Result<Tensor>);

/// `b` as indices along the axis of `a`.
fn index(x: &Args<'_>) -> Result<Tensor> {
    in_range(x.b, x.a.dims().get(x.axis as usize).copied().unwrap_or(0))
}

/// The list: rows may be added anywhere, since programs name them.
pub const OPS: &[Row] = &[
    // Functions.
    ("powi", |x| x.a.powi(x.k as i32 - 1)),
    ("pow", |x| x.a.abs()?.pow(x.b)),
    ("pow_host", |x| x.a.pow(x.h)),
    ("rem_host", |x| x.a.rem(x.k as i64 + 1)),
    ("clamp", |x| x.a.clamp(-x.h.abs(), x.h.abs())),
    ("clamp_tensors", |x| x.a.clamp(x.b, x.c)),
    ("shl", |x| x.a.shl(x.k as i64)),
    ("leaky_relu", |x| x.a.leaky_relu(x.h)),
    ("elu", |x| x.a.elu(x.h)),
    ("gelu", |x| x.a.gelu()),
    ("gelu_tanh", |x| x.a.gelu_tanh()),
    ("silu", |x| x.a.silu()),
    ("softplus", |x| x.a.softplus()),
    ("log_sigmoid", |x| x.a.log_sigmoid()),
    // Reductions and what runs along an axis.
    ("prod", |x| x.a.prod(x.axis)),
    ("any", |x| x.a.to_dtype(DType::Bool)?.any(x.axis)),
    ("all", |x| x.a.to_dtype(DType::Bool)?.all_keepdim(x.axis)),
    ("argmax", |x| x.a.argmax(x.axis)),
    ("argmin", |x| x.a.argmin(())),
    ("logsumexp", |x| x.a.logsumexp(x.axis)),
    ("var", |x| x.a.var(x.axis)),
    ("var_with", |x| x.a.var_with((), 0.0, false)),
    ("std", |x| x.a.std_keepdim(x.axis)),
    ("norm", |x| x.a.norm(x.k as f64, x.axis)),
    ("norm_inf", |x| x.a.norm(f64::INFINITY, ())),
    ("cumsum", |x| x.a.cumsum(x.axis)),
    ("cumsum_reverse", |x| x.a.cumsum_reverse(x.axis)),
    ("cumprod", |x| x.a.cumprod(x.axis)),
    ("recurrence", |x| x.a.recurrence(x.axis, &x.b.tanh()?)),
    ("argsort", |x| x.a.argsort(x.axis, x.k > 2)),
    ("sort", |x| Ok(x.a.sort(x.axis, x.k > 2)?.0)),
    ("topk", |x| Ok(x.a.topk(x.axis, x.k, true)?.0)),
    // Movement.
    ("flip", |x| x.a.flip(x.axis)),
    ("roll", |x| x.a.roll(x.axis, x.k as isize - 2)),
    ("pad", |x| x.a.pad(x.axis, x.k, 1, x.h)),
    ("pad_replicate", |x| x.a.pad_replicate(x.axis, x.k, 1)),
    ("pad_reflect", |x| x.a.pad_reflect(x.axis, 1, x.k)),
    ("repeat_interleave", |x| x.a.repeat_interleave(x.axis, x.k)),
    ("stack", |x| Tensor::stack(&[x.a, x.b], x.axis)),
    ("chunks", |x| {
        let parts = x.a.chunk(x.axis, x.k)?;
        Tensor::concat(&parts.iter().rev().collect::<Vec<_>>(), x.axis)
    }),
    ("backwards", |x| {
        let n = x.a.dims().get(x.axis as usize).copied().unwrap_or(0);
        x.a.slice_step(x.axis, n.saturating_sub(1), n.div_ceil(x.k), -(x.k as isize))
    }),
    ("tril", |x| x.a.tril(x.k as i64 - 2)),
    ("triu", |x| x.a.triu(x.k as i64 - 2)),
    ("window", |x| x.a.window(x.axis, x.k, 1 + x.k % 2, 1)),
    ("fold", |x| {
        let n = x.a.dims().get(x.axis as usize).copied().unwrap_or(0);
        x.a.window(x.axis, x.k, 1, 1)?.fold(x.axis, n, 1, 1)
    }),
    // Indexing, products.
    ("scatter", |x| x.a.scatter(x.axis, &index(x)?, x.c)),
    ("scatter_host", |x| x.a.scatter(x.axis, &index(x)?, x.h)),
    ("masked_fill", |x| x.a.masked_fill(&x.b.to_dtype(DType::Bool)?, x.h)),
    ("where", |x| x.a.to_dtype(DType::Bool)?.where_cond(x.b, x.c)),
    ("one_hot", |x| in_range(x.a, x.k)?.one_hot(x.k)),
    ("embedding", |x| x.a.embedding(&in_range(x.b, x.a.dims().first().copied().unwrap_or(0))?)),
    ("einsum", |x| Tensor::einsum("ij,kj->ik", &[x.a, x.b])),
    ("einsum_batched", |x| Tensor::einsum("...i,...i->...", &[x.a, x.b])),
    ("einsum_trace", |x| Tensor::einsum("ii->i", &[x.a])),
    // Made from nothing.
    ("arange", |x| Tensor::arange(x.h, x.h + 3.0, x.device)),
    ("linspace", |x| Tensor::linspace(x.h, 1.0, x.k + 1, x.device)),
    ("eye", |x| Tensor::eye(x.k, DType::F32, x.device)),
    ("categorical", |x| x.rng.categorical(x.a)),
    ("dropout", |x| x.a.dropout(0.25, x.rng)),
    // Layers.
    ("layer_norm", |x| x.a.layer_norm(x.axis, None, None, 1e-5)),
    ("rms_norm", |x| x.a.rms_norm(x.axis, None, 1e-5)),
    ("huber", |x| x.a.huber(x.b, 1.0, Reduction::Mean)),
    ("bce", |x| x.a.binary_cross_entropy_with_logits(&x.b.sigmoid()?, None, Reduction::Mean)),
    ("attention", |x| x.a.scaled_dot_product_attention(x.b, x.c, &Attention::default())),
    ("causal_attention", |x| {
        x.a.scaled_dot_product_attention(x.a, x.a, &Attention { causal: true, ..Attention::default() })
    }),
    ("conv1d", |x| {
        let options = Convolution { stride: [1 + x.k % 2], padding: [1], ..Convolution::default() };
        x.a.conv1d(x.b, None, &options)
    }),
    ("max_pool1d", |x| x.a.max_pool1d(&Pooling::new([x.k]))),
    ("avg_pool1d", |x| x.a.avg_pool1d(&Pooling::new([x.k]))),
];

/// The row called `name`.
pub fn row(name: &str) -> Option<&'static Row> {
    OPS.iter().find(|r| r.0 == name)
}
