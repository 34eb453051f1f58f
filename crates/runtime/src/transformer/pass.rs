//! One pass through the blocks.

use super::{Observer, Transformer, load::Block};
use crate::cache::Pool;
use crate::linear::{PackedLinear, Project};
use crate::ops::{attention, rope, swiglu::SwiGlu};
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

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

/// State of one pass, beside its tensors.
struct Pass<'a> {
    pool: Option<&'a Pool>,
    turns: rope::Turns,
    shape: attention::Shape,
    spans: &'a [attention::Span],
    tables: Option<attention::Tables>,
    /// New tokens of each sequence.
    sequences: Vec<usize>,
    work: Workspace,
}

impl Transformer {
    /// Runs the tokens of `spans`: hidden states after the final norm, `[tokens, hidden]`. Without
    /// a pool all of them begin, and keys and values are kept in f32.
    pub(super) fn pass(
        &self,
        tokens: &[&[u32]],
        spans: &[attention::Span],
        pool: Option<&Pool>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Tensor> {
        self.check(tokens)?;
        let longest = spans.iter().map(|s| s.past + s.rows.len()).max().unwrap_or(0);
        if let Some(window) = self.config.window.filter(|w| longest > *w) {
            return Err(Error::Window { window, longest });
        }
        let pass = self.start(&tokens.concat(), spans, pool)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let mut see = |layers: &[PackedLinear], x: &Tensor| observe(&mut observer, layers, x);
            self.attention(&pass, layer, block, &mut see)?;
            self.feed_forward(&pass, block, &mut see)?;
            if let Some(observer) = &mut observer {
                observer.residual(layer, &flat(&pass.work.x)?, self.config.hidden_size);
            }
        }
        let Workspace { x, normed, .. } = pass.work;
        normed.inplace_op2(&x, &self.norm)?;
        observe(&mut observer, std::slice::from_ref(&self.head), &normed)?;
        Ok(normed)
    }

    /// Refuses what can't be run.
    pub(crate) fn check(&self, tokens: &[&[u32]]) -> Result<()> {
        if tokens.is_empty() || tokens.iter().any(|t| t.is_empty()) {
            return Err(Error::Empty);
        }
        let vocab = self.config.vocab_size;
        match tokens.iter().flat_map(|t| t.iter()).find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(Error::Token { id, vocab }),
            None => Ok(()),
        }
    }

    /// Embeds the tokens and makes room for what follows.
    fn start<'a>(&self, ids: &[u32], spans: &'a [attention::Span], pool: Option<&'a Pool>) -> Result<Pass<'a>> {
        let c = &self.config;
        let (h, all) = (c.hidden_size, ids.len());
        let mut x = vec![0f32; all * h];
        let matrix = &self.embedding.linear().matrix;
        x.par_chunks_mut(h).zip(ids).with_min_len(16).for_each(|(row, &id)| matrix.decode_row(id as usize, row));
        let sequences: Vec<usize> = spans.iter().map(|s| s.rows.len()).collect();
        let longest = sequences.iter().copied().max().unwrap_or(1);
        let shape = attention::Shape::from_config(c, pool.map_or(longest, Pool::block_tokens));
        let room = |cols: usize| Tensor::zeros((all, cols), DType::F32, &self.device);
        let keys = match pool {
            Some(_) => None,
            None => {
                let store = (spans.len(), c.kv_heads, shape.plane::<f32>());
                Some(Tensor::zeros(store, DType::F32, &self.device)?)
            }
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
        let tables = attention::Batch::new(shape, spans).tables_on(&self.device)?;
        let turns = self.rope.turns(spans).on(&self.device)?;
        Ok(Pass { pool, turns, shape, spans, tables, sequences, work })
    }

    fn attention(&self, pass: &Pass<'_>, layer: usize, block: &Block, see: &mut See<'_>) -> Result<()> {
        let (work, shape, batch) = (&pass.work, pass.shape, pass.batch());
        work.normed.inplace_op2(&work.x, &block.input_norm)?;
        see(&block.qkv, &work.normed)?;
        work.qkv.inplace_op2(&work.normed, &pass.project(&block.qkv, false))?;
        work.qkv.inplace_op1(&rope::TurnHeads {
            turns: &pass.turns,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            norms: block.head_norms.as_ref(),
        })?;
        let Some(keys) = pass.pool.map(|p| &p.layers[layer]).or(work.keys.as_ref()) else { return Ok(()) };
        keys.inplace_op2(&work.qkv, &attention::StoreKeys(batch))?;
        work.attended.inplace_op3(&work.qkv, keys, &attention::Attend(batch))?;
        let o = std::slice::from_ref(&block.o);
        see(o, &work.attended)?;
        Ok(work.x.inplace_op2(&work.attended, &pass.project(o, true))?)
    }

    fn feed_forward(&self, pass: &Pass<'_>, block: &Block, see: &mut See<'_>) -> Result<()> {
        let work = &pass.work;
        work.normed.inplace_op2(&work.x, &block.post_norm)?;
        see(&block.gate_up, &work.normed)?;
        work.gate_up.inplace_op2(&work.normed, &pass.project(&block.gate_up, false))?;
        work.inner.inplace_op2(&work.gate_up, &SwiGlu { width: self.config.intermediate_size })?;
        let down = std::slice::from_ref(&block.down);
        see(down, &work.inner)?;
        Ok(work.x.inplace_op2(&work.inner, &pass.project(down, true))?)
    }
}

impl Pass<'_> {
    fn batch(&self) -> attention::Batch<'_> {
        attention::Batch { shape: self.shape, spans: self.spans, tables: self.tables.as_ref() }
    }

    fn project<'p>(&'p self, layers: &'p [PackedLinear], accumulate: bool) -> Project<'p> {
        Project { layers, sequences: &self.sequences, accumulate }
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
