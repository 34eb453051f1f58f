//! The decoder: Llama, Qwen2, Qwen3.

mod load;
mod pass;

use crate::cache::{KvCache, KvType, Pool, Sequence};
use crate::linear::{PackedLinear, Placed, Project};
use crate::ops::{attention::Span, norm::RmsNorm, rope};
use crate::{Error, Result};
use candle_core::{DType, Device, Storage, Tensor};
use load::Block;
use std::{iter::repeat_n, ops::Range};
use store::Config;

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
    placed: Placed,
}

/// Tokens that one step adds to a sequence.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Tokens that are fed next.
    pub tokens: &'a [u32],
}

impl Transformer {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Device of the model.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights as they are held: packed matrices, biases and norms; an embedding
    /// that is also the output projection counts once. On a GPU these are the bytes there, without
    /// an embedding of its own, which stays in its file.
    pub fn resident_weight_bytes(&self) -> usize {
        self.placed.bytes
    }

    /// Matrices that a GPU holds decoded, since no kernel reads their form.
    pub fn decoded_matrices(&self) -> usize {
        self.placed.decoded
    }

    /// An empty f16 cache for `batch` sequences of up to `capacity` tokens.
    ///
    /// # Errors
    /// [`Error::CacheMemory`].
    pub fn new_cache(&self, batch: usize, capacity: usize) -> Result<KvCache> {
        self.new_cache_of(KvType::F16, batch, capacity)
    }

    /// [`Transformer::new_cache`] that stores keys and values as `ty`.
    ///
    /// # Errors
    /// [`Error::CacheMemory`].
    pub fn new_cache_of(&self, ty: KvType, batch: usize, capacity: usize) -> Result<KvCache> {
        KvCache::new(&self.config, ty, batch, capacity, &self.device)
    }

    /// A paged cache of `blocks` blocks, each with room for `block_tokens` tokens (at least 1).
    ///
    /// # Errors
    /// [`Error::CacheMemory`].
    pub fn new_pool(&self, ty: KvType, block_tokens: usize, blocks: usize) -> Result<Pool> {
        Pool::new(&self.config, ty, block_tokens.max(1), blocks, &self.device)
    }

    /// Hidden states after the final norm, `[batch, n, hidden]`, of sequences of equal length.
    /// With a cache the tokens continue what it holds, and are added to it; keys and values
    /// are then read back from it.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::Uneven`], [`Error::Empty`], [`Error::CacheFull`],
    /// [`Error::CacheShape`].
    pub fn hidden(&self, tokens: &[&[u32]], cache: Option<&mut KvCache>) -> Result<Tensor> {
        let n = even(tokens)?;
        let rows = match cache {
            // On a thread of the pool, so that the many short parallel loops start without a handover.
            None => rayon::scope(|_| self.pass(tokens, &uncached(tokens), None, None))?,
            Some(cache) => {
                if cache.batch() != tokens.len() {
                    let of = |batch| format!("{batch} sequences");
                    return Err(Error::CacheShape(of(cache.batch()), of(tokens.len())));
                }
                cache.check_room(n)?;
                let feeds = cache.sequences.iter_mut().zip(tokens);
                let mut feeds: Vec<Feed<'_>> = feeds.map(|(sequence, tokens)| Feed { sequence, tokens }).collect();
                self.step(&mut cache.pool, &mut feeds)?
            }
        };
        Ok(rows.reshape((tokens.len(), n, self.config.hidden_size))?)
    }

    /// [`Transformer::hidden`] without a cache, showing `observer` what flows through.
    ///
    /// # Errors
    /// As [`Transformer::hidden`].
    pub fn hidden_observed(&self, tokens: &[&[u32]], observer: &mut dyn Observer) -> Result<Tensor> {
        let n = even(tokens)?;
        let rows = self.pass(tokens, &uncached(tokens), None, Some(observer))?;
        Ok(rows.reshape((tokens.len(), n, self.config.hidden_size))?)
    }

    /// Continues sequences that may differ in what they hold and in how many tokens are added:
    /// hidden states after the final norm, `[all new tokens, hidden]`, one sequence after the
    /// other. A sequence's states don't depend on what else is in the step, where the model
    /// [is batch-invariant](Transformer::is_batch_invariant).
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::Empty`] where there are no tokens for a sequence,
    /// [`Error::CacheExhausted`], [`Error::CacheShape`], [`Error::ForeignSequence`]; the
    /// sequences then hold what they held.
    pub fn step(&self, pool: &mut Pool, feeds: &mut [Feed<'_>]) -> Result<Tensor> {
        pool.check(&self.config)?;
        for i in 0..feeds.len() {
            if let Err(e) = pool.reserve(feeds[i].sequence, feeds[i].tokens.len()) {
                feeds[..i].iter_mut().for_each(|f| f.sequence.truncate(usize::MAX));
                return Err(e);
            }
        }
        let tokens: Vec<&[u32]> = feeds.iter().map(|f| f.tokens).collect();
        let spans = spans(&tokens, |i| (feeds[i].sequence.len(), feeds[i].sequence.table()));
        let result = rayon::scope(|_| self.pass(&tokens, &spans, Some(pool), None));
        for feed in feeds {
            match &result {
                Ok(_) => feed.sequence.advance(feed.tokens.len()),
                Err(_) => feed.sequence.truncate(usize::MAX),
            }
        }
        result
    }

    /// Logits `[.., vocab]` of hidden states `[.., n, hidden]`, of sequences of `n` tokens.
    ///
    /// # Errors
    /// When the last dimension is another.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let mut shape = hidden.dims().to_vec();
        let tokens = shape.iter().rev().skip(1).product::<usize>();
        let per_sequence = shape.iter().rev().nth(1).copied().unwrap_or(1);
        let sequences: Vec<usize> = repeat_n(per_sequence, tokens / per_sequence.max(1)).collect();
        if let Some(last) = shape.last_mut() {
            *last = self.config.vocab_size;
        }
        let out = Tensor::zeros(shape, DType::F32, &self.device)?;
        let op = Project { layers: std::slice::from_ref(&self.head), sequences: &sequences, accumulate: false };
        out.inplace_op2(&hidden.contiguous()?, &op)?;
        Ok(out)
    }

    /// Returns whether what a token gets is the same, bit for bit, whatever runs beside it: on a GPU the order of sums,
    /// and the type of products, depends on the number of tokens.
    pub fn is_batch_invariant(&self) -> bool {
        self.device.is_cpu()
    }

    /// Hands the logits `[positions, vocab]` of some positions of the first sequence to `see`, where they lie.
    ///
    /// # Errors
    /// As [`Transformer::logits`]; or the positions lie outside.
    pub fn see_logits<R>(&self, hidden: &Tensor, positions: Range<usize>, see: impl FnOnce(&[f32]) -> R) -> Result<R> {
        if positions.is_empty() {
            return Ok(see(&[]));
        }
        let logits = self.logits(&hidden.get(0)?.narrow(0, positions.start, positions.len())?)?;
        let (storage, layout) = logits.storage_and_layout();
        if let (Storage::Cpu(cpu), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
            return Ok(see(&cpu.as_slice::<f32>()?[start..end]));
        }
        drop(storage);
        Ok(see(&logits.flatten_all()?.to_vec1::<f32>()?))
    }

    /// Logits `[rows, 1, vocab]` of some rows of what [`Transformer::step`] gives, each for itself.
    ///
    /// # Errors
    /// For a row that there isn't.
    pub fn logits_at(&self, hidden: &Tensor, rows: &[u32]) -> Result<Tensor> {
        let rows = Tensor::new(rows, &self.device)?;
        self.logits(&hidden.index_select(&rows, 0)?.unsqueeze(1)?)
    }
}

/// The length that all sequences have.
fn even(tokens: &[&[u32]]) -> Result<usize> {
    let n = tokens.first().map_or(0, |t| t.len());
    match tokens.iter().find(|t| t.len() != n) {
        Some(other) => Err(Error::Uneven(n, other.len())),
        None if n == 0 => Err(Error::Empty),
        None => Ok(n),
    }
}

/// Sequences from their beginning, each in a block of its own.
fn uncached(tokens: &[&[u32]]) -> Vec<Span> {
    spans(tokens, |i| (0, vec![i as u32]))
}

/// Sequences side by side; `held` gives the tokens before and the blocks of each.
fn spans(tokens: &[&[u32]], held: impl Fn(usize) -> (usize, Vec<u32>)) -> Vec<Span> {
    let mut end = 0;
    let span = |(i, tokens): (usize, &&[u32])| {
        let rows = end..end + tokens.len();
        end = rows.end;
        let (past, blocks) = held(i);
        Span { rows, past, blocks }
    };
    tokens.iter().enumerate().map(span).collect()
}
