//! The model that is trained: Llama with tied embeddings, on candle's autograd.

use crate::error::Result;
use crate::ops;
use crate::random::{self, ChaCha8Rng};
use crate::recipe::Shape;
use candle_core::{DType, Device, Tensor, Var};

/// A trainable Llama.
#[derive(Debug, Clone)]
pub struct Student {
    shape: Shape,
    embedding: Var,
    layers: Vec<Block>,
    norm: Var,
}

#[derive(Debug, Clone)]
struct Block {
    input_norm: Var,
    q: Var,
    k: Var,
    v: Var,
    o: Var,
    post_norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

/// One variable of a model.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Its name in a Hugging Face checkpoint.
    pub name: String,
    /// The variable itself.
    pub var: Var,
    /// Whether weight decay applies: to projections, not to norms and embeddings.
    pub decays: bool,
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
    /// stream narrower by `sqrt(2 * layers)`, embeddings 0.02 wide, norms one.
    pub fn new(shape: &Shape, vocabulary: usize, dtype: DType, seed: u64) -> Result<Self> {
        shape.check()?;
        let mut rng = random::stream(seed, random::WEIGHTS);
        let mut matrix = |rows: usize, columns: usize, std: f64| -> Result<Var> {
            let values = random::normal(&mut rng, rows * columns, std);
            Ok(Var::from_tensor(&Tensor::from_vec(values, (rows, columns), &Device::Cpu)?.to_dtype(dtype)?)?)
        };
        let ones = || -> Result<Var> { Ok(Var::from_tensor(&Tensor::ones(shape.hidden, dtype, &Device::Cpu)?)?) };
        let (hidden, inner) = (shape.hidden, shape.intermediate);
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let width = |inputs: usize| (inputs as f64).sqrt().recip();
        let residual = (2.0 * shape.layers as f64).sqrt().recip();
        let embedding = matrix(vocabulary, hidden, 0.02)?;
        let mut layers = Vec::with_capacity(shape.layers);
        for _ in 0..shape.layers {
            layers.push(Block {
                input_norm: ones()?,
                q: matrix(queries, hidden, width(hidden))?,
                k: matrix(keys, hidden, width(hidden))?,
                v: matrix(keys, hidden, width(hidden))?,
                o: matrix(hidden, queries, width(queries) * residual)?,
                post_norm: ones()?,
                gate: matrix(inner, hidden, width(hidden))?,
                up: matrix(inner, hidden, width(hidden))?,
                down: matrix(hidden, inner, width(inner) * residual)?,
            });
        }
        Ok(Self { shape: shape.clone(), embedding, layers, norm: ones()? })
    }

    /// The model's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Every variable, in a fixed order, under its Hugging Face name.
    pub fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: String, var: &Var, decays| Parameter { name, var: var.clone(), decays };
        let mut all = vec![parameter("model.embed_tokens.weight".into(), &self.embedding, false)];
        for (i, block) in self.layers.iter().enumerate() {
            for (name, var, decays) in [
                ("input_layernorm", &block.input_norm, false),
                ("self_attn.q_proj", &block.q, true),
                ("self_attn.k_proj", &block.k, true),
                ("self_attn.v_proj", &block.v, true),
                ("self_attn.o_proj", &block.o, true),
                ("post_attention_layernorm", &block.post_norm, false),
                ("mlp.gate_proj", &block.gate, true),
                ("mlp.up_proj", &block.up, true),
                ("mlp.down_proj", &block.down, true),
            ] {
                all.push(parameter(format!("model.layers.{i}.{name}.weight"), var, decays));
            }
        }
        all.push(parameter("model.norm.weight".into(), &self.norm, false));
        all
    }

    /// The number of weights.
    pub fn weights(&self) -> usize {
        self.parameters().iter().map(|p| p.var.elem_count()).sum()
    }

    /// Logits `[rows * tokens, vocabulary]` of `ids`, which holds whole rows of `tokens` ids each.
    pub fn forward(&self, ids: &[u32], tokens: usize, mut dropout: Option<&mut Dropout>) -> Result<Tensor> {
        let device = self.embedding.device();
        let ids = Tensor::from_slice(ids, ids.len(), device)?;
        let eps = self.shape.rms_norm_eps;
        let mut drop = |x: Tensor| match dropout.as_deref_mut() {
            Some(dropout) => dropout.apply(&x),
            None => Ok(x),
        };
        let mut x = drop(self.embedding.index_select(&ids, 0)?)?;
        for block in &self.layers {
            let normed = ops::rms_norm(&x, &block.input_norm, eps)?;
            x = (x + drop(block.attention(&normed, &self.shape, tokens)?)?)?;
            let normed = ops::rms_norm(&x, &block.post_norm, eps)?;
            x = (x + drop(block.feed_forward(&normed)?)?)?;
        }
        Ok(linear(&ops::rms_norm(&x, &self.norm, eps)?, &self.embedding)?)
    }

    /// The mean loss, in nats, of predicting each row's next token; `rows` holds rows of `tokens + 1` ids.
    pub fn loss(&self, rows: &[u32], tokens: usize, dropout: Option<&mut Dropout>) -> Result<Tensor> {
        let pairs = || rows.chunks_exact(tokens + 1);
        let inputs: Vec<u32> = pairs().flat_map(|r| &r[..tokens]).copied().collect();
        let targets: Vec<u32> = pairs().flat_map(|r| &r[1..]).copied().collect();
        Ok(ops::cross_entropy(&self.forward(&inputs, tokens, dropout)?, &targets)?)
    }
}

impl Block {
    fn attention(&self, x: &Tensor, shape: &Shape, tokens: usize) -> candle_core::Result<Tensor> {
        let (kv, group, width) = (shape.kv_heads, shape.group(), shape.head_dim);
        let rows = x.dim(0)? / tokens;
        let q = ops::rotary(&linear(x, &self.q)?, tokens, width, shape.rope_theta)?;
        let k = ops::rotary(&linear(x, &self.k)?, tokens, width, shape.rope_theta)?;
        let v = linear(x, &self.v)?;
        // The query heads that share a key head are stacked along the rows, so that keys needn't be repeated.
        let q = q.reshape((rows, tokens, kv, group, width))?.permute((0, 2, 3, 1, 4))?.contiguous()?;
        let q = q.reshape((rows * kv, group * tokens, width))?;
        let per_head = |t: Tensor| -> candle_core::Result<Tensor> {
            let t = t.reshape((rows, tokens, kv, width))?.transpose(1, 2)?.contiguous()?;
            t.reshape((rows * kv, tokens, width))
        };
        let (k, v) = (per_head(k)?, per_head(v)?);
        let scores = q.matmul(&k.t()?)?;
        let seen = ops::causal_softmax(&scores, (width as f64).sqrt().recip())?;
        let mixed = seen.matmul(&v)?.reshape((rows, kv, group, tokens, width))?;
        let mixed = mixed.permute((0, 3, 1, 2, 4))?.contiguous()?;
        linear(&mixed.reshape((rows * tokens, kv * group * width))?, &self.o)
    }

    fn feed_forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        linear(&ops::swiglu(&linear(x, &self.gate)?, &linear(x, &self.up)?)?, &self.down)
    }
}

fn linear(x: &Tensor, weight: &Var) -> candle_core::Result<Tensor> {
    x.matmul(&weight.t()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const ROWS: [u32; 14] = [5, 9, 2, 299, 7, 7, 1, 0, 4, 3, 250, 11, 12, 13];

    #[test]
    fn every_variable_gets_a_gradient() {
        let student = testing::student(3);
        let grads = student.loss(&ROWS, 6, None).and_then(|l| Ok(l.backward()?)).expect("a loss");
        for parameter in student.parameters() {
            let grad = grads.get(parameter.var.as_tensor()).expect(&parameter.name);
            assert!(testing::flat(grad).iter().any(|g| *g != 0.0), "{} is never moved", parameter.name);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let student = Student::new(&testing::shape(), 300, DType::F64, 4).expect("a valid shape");
        let loss = |student: &Student| student.loss(&ROWS, 6, None).expect("a loss");
        let value = |student: &Student| loss(student).to_scalar::<f64>().expect("one number");
        let grads = loss(&student).backward().expect("backward");
        for parameter in student.parameters() {
            let flat = |t: &Tensor| t.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
            let (weights, grad) =
                (flat(&parameter.var), flat(grads.get(parameter.var.as_tensor()).expect("a gradient")));
            let set = |at: usize, by: f64| {
                let mut moved = weights.clone();
                moved[at] += by;
                let moved = Tensor::from_vec(moved, parameter.var.shape(), &Device::Cpu).expect("same shape");
                parameter.var.set(&moved).expect("same shape");
                value(&student)
            };
            // The largest gradient, and a few more.
            let largest = (0..grad.len()).max_by(|&a, &b| grad[a].abs().total_cmp(&grad[b].abs())).expect("not empty");
            for at in [largest, 0, grad.len() / 2, grad.len() - 1] {
                let slope = (set(at, 1e-5) - set(at, -1e-5)) / 2e-5;
                assert!((slope - grad[at]).abs() < 1e-8 + 1e-5 * slope.abs(), "{}[{at}]: {slope}", parameter.name);
            }
            set(0, 0.0);
        }
    }

    #[test]
    fn later_tokens_are_out_of_sight() {
        let student = testing::student(5);
        let logits = |ids: &[u32]| testing::flat(&student.forward(ids, 6, None).expect("logits"));
        let (a, b) = (logits(&[1, 2, 3, 4, 5, 6]), logits(&[1, 2, 3, 9, 9, 9]));
        assert_eq!(a[..3 * 300], b[..3 * 300]);
        assert_ne!(a[3 * 300..4 * 300], b[3 * 300..4 * 300]);
        let two = logits(&[1, 2, 3, 9, 9, 9, 1, 2, 3, 4, 5, 6]);
        assert!(a.iter().zip(&two[6 * 300..]).all(|(a, b)| (a - b).abs() < 1e-5), "rows leak into each other");
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
