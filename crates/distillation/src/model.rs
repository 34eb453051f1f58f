//! The model that is trained: Llama or Qwen2, on candle's autograd.

use crate::error::Result;
use crate::memory;
use crate::ops::{Form, Operations};
use crate::random::{self, ChaCha8Rng};
use crate::recipe::Shape;
use candle_core::{DType, Device, Tensor, Var};

/// A trainable decoder.
#[derive(Debug, Clone)]
pub struct Student {
    shape: Shape,
    vocabulary: usize,
    embedding: Var,
    /// The output projection, unless it is the embedding.
    head: Option<Var>,
    layers: Vec<Block>,
    norm: Var,
    frozen: bool,
    form: Form,
}

#[derive(Debug, Clone)]
struct Block {
    input_norm: Var,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    post_norm: Var,
    gate: Linear,
    up: Linear,
    down: Linear,
}

#[derive(Debug, Clone)]
struct Linear {
    weight: Var,
    bias: Option<Var>,
}

/// The token embedding's name.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output projection's name, where it is a matrix of its own.
pub const HEAD: &str = "lm_head.weight";

/// Bytes beside a block's weights.
const RECORDS: u64 = 8 << 10;

/// Gives a tensor's values, row-major, for its name and dimensions.
pub type Values<'a> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>> + 'a;

/// One variable of a model.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Name of the parameter in a Hugging Face checkpoint.
    pub name: String,
    /// The variable itself.
    pub var: Var,
    /// True if weight decay applies: to projections, not to norms, biases and embeddings.
    pub decays: bool,
    /// True if it is trained.
    pub trained: bool,
}

/// One pass through the model, up to the hidden states.
#[derive(Debug)]
pub struct Pass {
    /// Hidden states after the last norm, `[rows * tokens, hidden]`.
    pub hidden: Tensor,
    /// The tokens' embeddings, where the graph begins.
    pub embedded: Var,
}

/// Randomly silences parts of a block's output while training.
#[derive(Debug)]
pub struct Dropout {
    rate: f64,
    rng: ChaCha8Rng,
}

impl Dropout {
    /// Drops `rate` of the values; the same `seed` and `stream` drop the same ones.
    pub fn new(rate: f64, seed: u64, stream: u64) -> Self {
        Self { rate, rng: random::stream(seed, stream) }
    }

    fn apply(&mut self, x: &Tensor) -> candle_core::Result<Tensor> {
        if self.rate <= 0.0 {
            return Ok(x.clone());
        }
        let keep = random::keep_mask(&mut self.rng, x.elem_count(), self.rate);
        x * Tensor::from_vec(keep, x.shape(), x.device())?.to_dtype(x.dtype())?
    }
}

impl Student {
    /// A model with random weights: normal, `1/sqrt(in_features)` wide, the projections that write to the residual
    /// stream narrower by `sqrt(2 * layers)`, embeddings and head 0.02 wide, norms one, biases zero.
    pub fn new(shape: &Shape, vocabulary: usize, dtype: DType, seed: u64) -> Result<Self> {
        let mut rng = random::stream(seed, random::WEIGHTS);
        let residual = (2.0 * shape.layers as f64).sqrt().recip();
        Self::build(shape, vocabulary, dtype, &mut |name, dims| {
            let &[rows, columns] = dims else {
                let value = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
                return Ok(vec![value; dims.iter().product()]);
            };
            let width = (columns as f64).sqrt().recip();
            let std = match name {
                EMBEDDING | HEAD => 0.02,
                _ if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => width * residual,
                _ => width,
            };
            Ok(random::normal(&mut rng, rows * columns, std))
        })
    }

    /// Bytes of activations that the gradients of so many tokens in windows of `context` need, about: the result of every
    /// operation in a block, in f32, and gradients on their way. It was within a fifth of what was measured. None where
    /// they overflow.
    pub(crate) fn activations(&self, tokens: u64, context: u64) -> Option<u64> {
        let Shape { hidden, layers, heads, kv_heads, head_dim, intermediate, .. } = self.shape;
        // How many of each size a block keeps: of the residual stream, queries, keys, neurons and scores. Composed, candle
        // keeps gradients of what needs none (largest values, the mask) until all are computed.
        let kept = match self.form {
            Form::Fused => [6, 5, 5, 3, 2],
            Form::Composed => [11, 9, 9, 4, 7],
        };
        let sizes = [hidden, heads * head_dim, kv_heads * head_dim, intermediate].map(|n| n as u64);
        let scores = context.checked_mul(heads as u64)?;
        let of = |(n, size): (u64, u64)| size.checked_mul(n);
        let each = kept.into_iter().zip(sizes.into_iter().chain([scores])).map(of);
        let each = each.into_iter().try_fold(0u64, |sum, n| sum.checked_add(n?))?;
        // Gradients of one block and a half are there at a time.
        tokens.checked_mul(each.checked_mul(2 * (2 * layers as u64 + 3))?)
    }

    /// A model whose values `weights` gives, by name and dimensions, one after the other.
    pub fn build(shape: &Shape, vocabulary: usize, dtype: DType, weights: &mut Values<'_>) -> Result<Self> {
        shape.check()?;
        // What candle keeps of each tensor counts where there are very many blocks.
        let bytes = shape.weights(vocabulary).and_then(|n| n.checked_mul(dtype.size_in_bytes() as u64));
        let records = (shape.layers as u64).checked_mul(RECORDS);
        let what = format!("a student of {} blocks, {} wide, with {vocabulary} tokens,", shape.layers, shape.hidden);
        let bytes = bytes.zip(records).and_then(|(bytes, records)| bytes.checked_add(records));
        memory::check(&Device::Cpu, &what, bytes, memory::SMALLER)?;
        let mut var = |name: &str, dims: &[usize]| -> Result<Var> {
            let values = weights(name, dims)?;
            Ok(Var::from_tensor(&Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?)?)
        };
        let (hidden, inner) = (shape.hidden, shape.intermediate);
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let embedding = var(EMBEDDING, &[vocabulary, hidden])?;
        let mut layers = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            let at = |name: &str| format!("model.layers.{layer}.{name}");
            let input_norm = var(&at("input_layernorm.weight"), &[hidden])?;
            let mut linear = |name: &str, rows: usize, columns: usize, bias: bool| -> Result<Linear> {
                let weight = var(&at(&format!("{name}.weight")), &[rows, columns])?;
                let bias = bias.then(|| var(&at(&format!("{name}.bias")), &[rows])).transpose()?;
                Ok(Linear { weight, bias })
            };
            let (q, k) = (
                linear("self_attn.q_proj", queries, hidden, shape.biases)?,
                linear("self_attn.k_proj", keys, hidden, shape.biases)?,
            );
            let (v, o) = (
                linear("self_attn.v_proj", keys, hidden, shape.biases)?,
                linear("self_attn.o_proj", hidden, queries, false)?,
            );
            let gate = linear("mlp.gate_proj", inner, hidden, false)?;
            let up = linear("mlp.up_proj", inner, hidden, false)?;
            let down = linear("mlp.down_proj", hidden, inner, false)?;
            let post_norm = var(&at("post_attention_layernorm.weight"), &[hidden])?;
            layers.push(Block { input_norm, q, k, v, o, post_norm, gate, up, down });
        }
        let norm = var("model.norm.weight", &[hidden])?;
        let head = (!shape.tied).then(|| var(HEAD, &[vocabulary, hidden])).transpose()?;
        Ok(Self { shape: shape.clone(), vocabulary, embedding, head, layers, norm, frozen: false, form: Form::Fused })
    }

    /// Freezes embeddings and output projection.
    #[must_use]
    pub fn with_frozen_embeddings(self) -> Self {
        Self { frozen: true, ..self }
    }

    /// Moves the model to a device, and its operations to the form that they have there.
    ///
    /// # Errors
    /// A GPU without room for it.
    pub fn on(mut self, device: &Device) -> Result<Self> {
        self.form = Form::on(device);
        if device.same_device(self.device()) {
            return Ok(self);
        }
        let layers = self.layers.iter_mut().flat_map(Block::vars);
        for var in [&mut self.embedding, &mut self.norm].into_iter().chain(&mut self.head).chain(layers) {
            *var = Var::from_tensor(&var.as_detached_tensor().to_device(device)?)?;
        }
        Ok(self)
    }

    /// Changes the form of the model's operations.
    #[must_use]
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Form of the model's operations.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Device of the model.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// The model's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Entries of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Every variable, in a fixed order, under its Hugging Face name.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        let mut add = |name: String, var: &Var, decays, trained| {
            all.push(Parameter { name, var: var.clone(), decays, trained });
        };
        add(EMBEDDING.into(), &self.embedding, false, !self.frozen);
        for (i, block) in self.layers.iter().enumerate() {
            let at = |name: &str| format!("model.layers.{i}.{name}");
            add(at("input_layernorm.weight"), &block.input_norm, false, true);
            for (name, linear) in block.linears() {
                add(at(&format!("{name}.weight")), &linear.weight, true, true);
                if let Some(bias) = &linear.bias {
                    add(at(&format!("{name}.bias")), bias, false, true);
                }
            }
            add(at("post_attention_layernorm.weight"), &block.post_norm, false, true);
        }
        add("model.norm.weight".into(), &self.norm, false, true);
        if let Some(head) = &self.head {
            add(HEAD.into(), head, false, !self.frozen);
        }
        all
    }

    /// The number of weights.
    pub fn weights(&self) -> usize {
        self.parameters().iter().map(|p| p.var.elem_count()).sum()
    }

    /// The output projection `[vocabulary, hidden]`, outside of any graph.
    pub fn head(&self) -> Tensor {
        self.head.as_ref().unwrap_or(&self.embedding).as_detached_tensor()
    }

    /// The name of the variable that is the output projection.
    pub fn head_name(&self) -> &'static str {
        if self.head.is_some() { HEAD } else { EMBEDDING }
    }

    /// Hidden states of `ids`, which holds whole rows of `tokens` ids each. The embeddings begin a graph: candle's
    /// gradient of a look-up would be a matrix of the whole vocabulary.
    pub fn hidden(&self, ids: &[u32], tokens: usize, mut dropout: Option<&mut Dropout>) -> Result<Pass> {
        let ids = Tensor::from_slice(ids, ids.len(), self.device())?;
        let Shape { head_dim, rope_theta, rms_norm_eps: eps, .. } = self.shape;
        let ops = Operations::new(self.form, tokens, head_dim, rope_theta, &self.embedding)?;
        let mut drop = |x: Tensor| match dropout.as_deref_mut() {
            Some(dropout) => dropout.apply(&x),
            None => Ok(x),
        };
        let embedded = Var::from_tensor(&self.embedding.as_detached_tensor().index_select(&ids, 0)?)?;
        let mut x = drop(embedded.as_tensor().clone())?;
        for block in &self.layers {
            let normed = ops.rms_norm(&x, &block.input_norm, eps)?;
            x = (x + drop(block.attention(&ops, &normed, &self.shape, tokens)?)?)?;
            let normed = ops.rms_norm(&x, &block.post_norm, eps)?;
            x = (x + drop(block.feed_forward(&ops, &normed)?)?)?;
        }
        Ok(Pass { hidden: ops.rms_norm(&x, &self.norm, eps)?, embedded })
    }

    /// Logits `[rows * tokens, vocabulary]` of `ids`, which holds whole rows of `tokens` ids each.
    pub fn logits(&self, ids: &[u32], tokens: usize) -> Result<Tensor> {
        Ok(self.hidden(ids, tokens, None)?.hidden.detach().matmul(&self.head().t()?)?)
    }
}

impl Block {
    /// The projections under their names, in the file's order.
    fn linears(&self) -> [(&'static str, &Linear); 7] {
        [
            ("self_attn.q_proj", &self.q),
            ("self_attn.k_proj", &self.k),
            ("self_attn.v_proj", &self.v),
            ("self_attn.o_proj", &self.o),
            ("mlp.gate_proj", &self.gate),
            ("mlp.up_proj", &self.up),
            ("mlp.down_proj", &self.down),
        ]
    }

    /// Every variable.
    fn vars(&mut self) -> impl Iterator<Item = &mut Var> {
        let linears =
            [&mut self.q, &mut self.k, &mut self.v, &mut self.o, &mut self.gate, &mut self.up, &mut self.down];
        let linears = linears.into_iter().flat_map(|l| std::iter::once(&mut l.weight).chain(&mut l.bias));
        [&mut self.input_norm, &mut self.post_norm].into_iter().chain(linears)
    }

    fn attention(&self, ops: &Operations, x: &Tensor, shape: &Shape, tokens: usize) -> candle_core::Result<Tensor> {
        let (kv, group, width) = (shape.kv_heads, shape.group(), shape.head_dim);
        let rows = x.dim(0)? / tokens;
        let q = ops.rotary(&self.q.forward(x)?)?;
        let k = ops.rotary(&self.k.forward(x)?)?;
        let v = self.v.forward(x)?;
        // The query heads that share a key head are stacked along the rows, so that keys needn't be repeated.
        let q = q.reshape((rows, tokens, kv, group, width))?.permute((0, 2, 3, 1, 4))?.contiguous()?;
        let q = q.reshape((rows * kv, group * tokens, width))?;
        let per_head = |t: Tensor| -> candle_core::Result<Tensor> {
            let t = t.reshape((rows, tokens, kv, width))?.transpose(1, 2)?.contiguous()?;
            t.reshape((rows * kv, tokens, width))
        };
        let (k, v) = (per_head(k)?, per_head(v)?);
        let scores = q.matmul(&k.t()?)?;
        let seen = ops.causal_softmax(&scores, (width as f64).sqrt().recip())?;
        let mixed = seen.matmul(&v)?.reshape((rows, kv, group, tokens, width))?;
        let mixed = mixed.permute((0, 3, 1, 2, 4))?.contiguous()?;
        self.o.forward(&mixed.reshape((rows * tokens, kv * group * width))?)
    }

    fn feed_forward(&self, ops: &Operations, x: &Tensor) -> candle_core::Result<Tensor> {
        self.down.forward(&ops.swiglu(&self.gate.forward(x)?, &self.up.forward(x)?)?)
    }
}

impl Linear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn later_tokens_are_out_of_sight() {
        let student = testing::student(5);
        let logits = |ids: &[u32]| testing::flat(&student.logits(ids, 6).expect("logits"));
        let (a, b) = (logits(&[1, 2, 3, 4, 5, 6]), logits(&[1, 2, 3, 9, 9, 9]));
        assert_eq!(a[..3 * 300], b[..3 * 300]);
        assert_ne!(a[3 * 300..4 * 300], b[3 * 300..4 * 300]);
        let two = logits(&[1, 2, 3, 9, 9, 9, 1, 2, 3, 4, 5, 6]);
        assert!(a.iter().zip(&two[6 * 300..]).all(|(a, b)| (a - b).abs() < 1e-5), "rows leak into each other");
    }

    #[test]
    fn activations_are_counted_by_form() {
        let student = testing::student(5);
        // Hidden 16, queries 16, keys 8, neurons 24, 4 heads over 32 tokens; 2 blocks in f32.
        let floats = |kept: [u64; 5]| kept.iter().zip([16, 16, 8, 24, 4 * 32]).map(|(n, size)| n * size).sum::<u64>();
        let fused = 64 * 7 * 2 * floats([6, 5, 5, 3, 2]);
        assert_eq!(student.activations(64, 32), Some(fused));
        assert_eq!(student.activations(u64::MAX / 4, 32), None);
        let composed = student.in_form(Form::Composed).activations(64, 32).expect("few");
        assert!(composed > fused * 3 / 2, "{composed} {fused}");
    }

    #[test]
    fn dropout_drops_its_share_and_keeps_the_mean() {
        let ones = Tensor::ones(100_000, DType::F32, &Device::Cpu).expect("ones");
        let drop = |seed| testing::flat(&Dropout::new(0.2, seed, 1).apply(&ones).expect("dropped"));
        let values = drop(7);
        let zeros = values.iter().filter(|v| **v == 0.0).count() as f64 / 1e5;
        assert!((zeros - 0.2).abs() < 0.01, "{zeros}");
        assert!((values.iter().map(|&v| f64::from(v)).sum::<f64>() / 1e5 - 1.0).abs() < 0.01);
        assert_eq!(values, drop(7));
        assert_ne!(values, drop(8));
    }
}
