//! The decoder: Llama, Qwen2, Qwen3.

use crate::linear::{PackedLinear, Project};
use crate::ops::{attention, norm::RmsNorm, rope, swiglu::SwiGlu};
use crate::{Error, KvCache, Math, Options, Result};
use candle_core::{DType, Device, Storage, Tensor};
use rayon::prelude::*;
use std::{ops::Range, sync::Arc};
use store::{Config, Family};

/// Sees what flows through a model.
pub trait Observer {
    /// The input of a linear layer, `[tokens, cols]`; `module` is such as
    /// `model.layers.0.mlp.down_proj`. `lm_head` comes last.
    fn linear_input(&mut self, module: &str, rows: &[f32], cols: usize);
    /// The residual stream after block `layer`, `[tokens, cols]`.
    fn residual(&mut self, layer: usize, rows: &[f32], cols: usize);
}

/// A decoder whose weights stay packed.
#[derive(Debug)]
pub struct Transformer {
    config: Config,
    device: Device,
    embedding: PackedLinear,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: PackedLinear,
    rope: rope::Rope,
    bytes: usize,
}

#[derive(Debug)]
struct Block {
    input_norm: RmsNorm,
    /// q, k, v.
    qkv: Vec<PackedLinear>,
    /// Norms of q and k.
    head_norms: Option<(RmsNorm, RmsNorm)>,
    o: PackedLinear,
    post_norm: RmsNorm,
    /// gate, up.
    gate_up: Vec<PackedLinear>,
    down: PackedLinear,
}

/// Reads a model's tensors and counts their bytes.
struct Loader<'a> {
    model: &'a store::Model,
    config: &'a Config,
    math: Math,
    bytes: usize,
}

impl Loader<'_> {
    fn linear(&mut self, module: &str, rows: usize, cols: usize) -> Result<PackedLinear> {
        let linear = self.model.linear(module)?;
        let found = [linear.matrix.rows(), linear.matrix.cols()];
        if found != [rows, cols] {
            return Err(Error::Shape { name: module.into(), found: found.into(), expected: vec![rows, cols] });
        }
        if let Some(bias) = linear.bias.as_ref().filter(|b| b.len() != rows) {
            let name = format!("{module}.bias");
            return Err(Error::Shape { name, found: vec![bias.len()], expected: vec![rows] });
        }
        let layer = PackedLinear::new(module, Arc::new(linear), self.math);
        self.bytes += layer.bytes();
        Ok(layer)
    }

    fn norm(&mut self, module: &str, len: usize) -> Result<RmsNorm> {
        let name = format!("{module}.weight");
        let weight = self.model.dense(&name)?.ok_or_else(|| Error::Missing(name.clone()))?;
        if weight.len() != len {
            return Err(Error::Shape { name, found: vec![weight.len()], expected: vec![len] });
        }
        self.bytes += 4 * len;
        Ok(RmsNorm { weight, eps: self.config.rms_norm_eps })
    }

    fn block(&mut self, layer: usize) -> Result<Block> {
        let c = self.config;
        let at = format!("model.layers.{layer}");
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let (h, inner) = (c.hidden_size, c.intermediate_size);
        let head_norms = match c.family {
            Family::Qwen3 => Some((
                self.norm(&format!("{at}.self_attn.q_norm"), c.head_dim)?,
                self.norm(&format!("{at}.self_attn.k_norm"), c.head_dim)?,
            )),
            Family::Llama | Family::Qwen2 => None,
        };
        Ok(Block {
            input_norm: self.norm(&format!("{at}.input_layernorm"), h)?,
            qkv: vec![
                self.linear(&format!("{at}.self_attn.q_proj"), q, h)?,
                self.linear(&format!("{at}.self_attn.k_proj"), kv, h)?,
                self.linear(&format!("{at}.self_attn.v_proj"), kv, h)?,
            ],
            head_norms,
            o: self.linear(&format!("{at}.self_attn.o_proj"), h, q)?,
            post_norm: self.norm(&format!("{at}.post_attention_layernorm"), h)?,
            gate_up: vec![
                self.linear(&format!("{at}.mlp.gate_proj"), inner, h)?,
                self.linear(&format!("{at}.mlp.up_proj"), inner, h)?,
            ],
            down: self.linear(&format!("{at}.mlp.down_proj"), h, inner)?,
        })
    }
}

/// Tensors that one pass keeps from block to block.
struct Workspace {
    /// The residual stream.
    x: Tensor,
    normed: Tensor,
    qkv: Tensor,
    attended: Tensor,
    gate_up: Tensor,
    inner: Tensor,
    /// Keys and values, where there is no cache.
    keys: Option<Tensor>,
}

/// What one pass computes, beside its tensors.
struct Pass<'a> {
    cache: Option<&'a mut KvCache>,
    turns: rope::Turns,
    shape: attention::Shape,
    work: Workspace,
}

impl Transformer {
    /// Takes a model's weights; they stay views into its files.
    ///
    /// # Errors
    /// What [`store::Model`] says of its tensors, or [`Error::Missing`], [`Error::Shape`].
    pub fn load(model: &store::Model, device: &Device) -> Result<Self> {
        Self::load_with(model, device, &Options::default())
    }

    /// [`Transformer::load`] with options.
    ///
    /// # Errors
    /// As [`Transformer::load`].
    pub fn load_with(model: &store::Model, device: &Device, options: &Options) -> Result<Self> {
        let config = model.config()?;
        let mut loader = Loader { model, config: &config, math: options.math, bytes: 0 };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = loader.linear("model.embed_tokens", vocab, hidden)?;
        let blocks = (0..config.layers).map(|i| loader.block(i)).collect::<Result<Vec<_>>>()?;
        let norm = loader.norm("model.norm", hidden)?;
        let head = if config.tie_word_embeddings {
            PackedLinear::new("lm_head", Arc::clone(embedding.linear()), options.math)
        } else {
            loader.linear("lm_head", vocab, hidden)?
        };
        let (bytes, rope) = (loader.bytes, rope::Rope::new(&config));
        Ok(Transformer { config, device: device.clone(), embedding, blocks, norm, head, rope, bytes })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights as they are held: packed matrices, biases and norms; an embedding
    /// that is also the output projection counts once.
    pub fn resident_weight_bytes(&self) -> usize {
        self.bytes
    }

    /// An empty cache for `batch` sequences of up to `capacity` tokens.
    ///
    /// # Errors
    /// When it can't be allocated.
    pub fn new_cache(&self, batch: usize, capacity: usize) -> Result<KvCache> {
        KvCache::new(&self.config, batch, capacity, &self.device)
    }

    /// Hidden states after the final norm, `[batch, n, hidden]`, of sequences of equal length.
    /// With a cache the tokens continue what it holds, and are added to it; keys and values
    /// are then read back from its f16.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::Uneven`], [`Error::Empty`], [`Error::CacheFull`],
    /// [`Error::CacheShape`].
    pub fn hidden(&self, tokens: &[&[u32]], cache: Option<&mut KvCache>) -> Result<Tensor> {
        // On a thread of the pool, so that the many short parallel loops start without a handover.
        rayon::scope(|_| self.pass(tokens, cache, None))
    }

    /// [`Transformer::hidden`] without a cache, showing `observer` what flows through.
    ///
    /// # Errors
    /// As [`Transformer::hidden`].
    pub fn hidden_observed(&self, tokens: &[&[u32]], observer: &mut dyn Observer) -> Result<Tensor> {
        self.pass(tokens, None, Some(observer))
    }

    /// Logits `[.., vocab]` of hidden states `[.., hidden]`.
    ///
    /// # Errors
    /// When the last dimension is another.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let mut shape = hidden.dims().to_vec();
        let per_sequence = shape.iter().rev().nth(1).copied().unwrap_or(1);
        if let Some(last) = shape.last_mut() {
            *last = self.config.vocab_size;
        }
        let out = Tensor::zeros(shape, DType::F32, &self.device)?;
        let op = Project { layers: std::slice::from_ref(&self.head), per_sequence, accumulate: false };
        out.inplace_op2(&hidden.contiguous()?, &op)?;
        Ok(out)
    }

    /// Hands the logits `[positions, vocab]` of some positions of the first sequence to `see`, where they lie.
    ///
    /// # Errors
    /// As [`Transformer::logits`]; or the positions lie outside.
    pub fn see_logits<R>(&self, hidden: &Tensor, positions: Range<usize>, see: impl FnOnce(&[f32]) -> R) -> Result<R> {
        let logits = self.logits(&hidden.get(0)?.narrow(0, positions.start, positions.len())?)?;
        let (storage, layout) = logits.storage_and_layout();
        if let (Storage::Cpu(cpu), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
            return Ok(see(&cpu.as_slice::<f32>()?[start..end]));
        }
        drop(storage);
        Ok(see(&logits.flatten_all()?.to_vec1::<f32>()?))
    }

    fn pass(
        &self,
        tokens: &[&[u32]],
        cache: Option<&mut KvCache>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Tensor> {
        let n = self.check(tokens, cache.as_deref())?;
        let mut pass = self.start(tokens, n, cache)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let mut see = |layers: &[PackedLinear], x: &Tensor| observe(&mut observer, layers, x);
            self.attention(&mut pass, layer, block, &mut see)?;
            self.feed_forward(&pass, block, &mut see)?;
            if let Some(observer) = &mut observer {
                observer.residual(layer, &flat(&pass.work.x)?, self.config.hidden_size);
            }
        }
        let work = &pass.work;
        work.normed.inplace_op2(&work.x, &self.norm)?;
        observe(&mut observer, std::slice::from_ref(&self.head), &work.normed)?;
        if let Some(cache) = pass.cache {
            cache.len += n;
        }
        Ok(work.normed.reshape((tokens.len(), n, self.config.hidden_size))?)
    }

    /// The length of the sequences.
    fn check(&self, tokens: &[&[u32]], cache: Option<&KvCache>) -> Result<usize> {
        let n = tokens.first().map_or(0, |t| t.len());
        if n == 0 {
            return Err(Error::Empty);
        }
        if let Some(other) = tokens.iter().find(|t| t.len() != n) {
            return Err(Error::Uneven(n, other.len()));
        }
        let vocab = self.config.vocab_size;
        if let Some(&id) = tokens.iter().flat_map(|t| t.iter()).find(|&&id| id as usize >= vocab) {
            return Err(Error::Token { id, vocab });
        }
        if let Some(cache) = cache {
            if cache.batch != tokens.len() || cache.layers.len() != self.blocks.len() {
                let of = |batch, layers| format!("{batch} sequences and {layers} layers");
                let (made, needed) = (of(cache.batch, cache.layers.len()), of(tokens.len(), self.blocks.len()));
                return Err(Error::CacheShape(made, needed));
            }
            if cache.len + n > cache.capacity {
                return Err(Error::CacheFull { capacity: cache.capacity, needed: cache.len + n });
            }
        }
        Ok(n)
    }

    /// Embeds the tokens and makes room for what follows.
    fn start<'a>(&self, tokens: &[&[u32]], n: usize, cache: Option<&'a mut KvCache>) -> Result<Pass<'a>> {
        let c = &self.config;
        let (h, all) = (c.hidden_size, tokens.len() * n);
        let mut x = vec![0f32; all * h];
        let ids: Vec<u32> = tokens.concat();
        let matrix = &self.embedding.linear().matrix;
        x.par_chunks_mut(h).zip(&ids).with_min_len(16).for_each(|(row, &id)| matrix.decode_row(id as usize, row));
        let (past, capacity) = cache.as_deref().map_or((0, n), |cache| (cache.len, cache.capacity));
        let room = |cols: usize| Tensor::zeros((all, cols), DType::F32, &self.device);
        let keys = match cache {
            Some(_) => None,
            None => Some(Tensor::zeros((tokens.len(), c.kv_heads, 2, c.head_dim * n), DType::F32, &self.device)?),
        };
        let work = Workspace {
            x: Tensor::from_vec(x, (all, h), &self.device)?,
            normed: room(h)?,
            qkv: room((c.heads + 2 * c.kv_heads) * c.head_dim)?,
            attended: room(c.heads * c.head_dim)?,
            gate_up: room(2 * c.intermediate_size)?,
            inner: room(c.intermediate_size)?,
            keys,
        };
        let (heads, kv_heads, head_dim) = (c.heads, c.kv_heads, c.head_dim);
        let shape = attention::Shape { heads, kv_heads, head_dim, tokens: n, past, capacity };
        Ok(Pass { cache, turns: self.rope.turns(past, n), shape, work })
    }

    fn attention(&self, pass: &mut Pass<'_>, layer: usize, block: &Block, see: &mut See<'_>) -> Result<()> {
        let (work, shape) = (&pass.work, pass.shape);
        let project = |layers, accumulate| Project { layers, per_sequence: shape.tokens, accumulate };
        work.normed.inplace_op2(&work.x, &block.input_norm)?;
        see(&block.qkv, &work.normed)?;
        work.qkv.inplace_op2(&work.normed, &project(&block.qkv, false))?;
        work.qkv.inplace_op1(&rope::TurnHeads {
            turns: &pass.turns,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            norms: block.head_norms.as_ref(),
        })?;
        let cached = pass.cache.as_deref().map(|c| &c.layers[layer]);
        let Some(keys) = cached.or(work.keys.as_ref()) else { return Ok(()) };
        keys.inplace_op2(&work.qkv, &attention::StoreKeys(shape))?;
        work.attended.inplace_op3(&work.qkv, keys, &attention::Attend(shape))?;
        let o = std::slice::from_ref(&block.o);
        see(o, &work.attended)?;
        Ok(work.x.inplace_op2(&work.attended, &project(o, true))?)
    }

    fn feed_forward(&self, pass: &Pass<'_>, block: &Block, see: &mut See<'_>) -> Result<()> {
        let work = &pass.work;
        let project = |layers, accumulate| Project { layers, per_sequence: pass.shape.tokens, accumulate };
        work.normed.inplace_op2(&work.x, &block.post_norm)?;
        see(&block.gate_up, &work.normed)?;
        work.gate_up.inplace_op2(&work.normed, &project(&block.gate_up, false))?;
        work.inner.inplace_op2(&work.gate_up, &SwiGlu { width: self.config.intermediate_size })?;
        let down = std::slice::from_ref(&block.down);
        see(down, &work.inner)?;
        Ok(work.x.inplace_op2(&work.inner, &project(down, true))?)
    }
}

/// Shows the input of some layers.
type See<'a> = dyn FnMut(&[PackedLinear], &Tensor) -> Result<()> + 'a;

fn observe(observer: &mut Option<&mut dyn Observer>, layers: &[PackedLinear], x: &Tensor) -> Result<()> {
    let Some(observer) = observer else { return Ok(()) };
    let rows = flat(x)?;
    for layer in layers {
        observer.linear_input(&layer.name, &rows, layer.cols());
    }
    Ok(())
}

fn flat(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.flatten_all()?.to_vec1()?)
}
