//! Causal attention with grouped queries, blockwise, with an online softmax.
//!
//! Keys are kept transposed, so that scores and mixtures are both sums of broadcast products
//! along contiguous memory. The softmax takes blocks of keys at fixed positions: what comes
//! after a token, what else is in the batch, and where keys are stored never change a bit of its
//! output.

mod attend;
mod element;
mod store;

pub use attend::Attend;
pub use element::Element;
pub use store::{CopyBlock, StoreKeys};

use crate::gpu::attention::Plan;
use ::store::Config;
use candle_core::{Device, Result, Tensor, bail};
use std::ops::Range;

/// Shape of the attention of one layer.
///
/// Queries, keys and values of a token lie side by side, `[tokens, (heads + 2 kv_heads) *
/// head_dim]`. Stored keys and values are `[blocks, kv_heads]` of planes: keys `[head_dim, block]`,
/// values `[block, head_dim]`, and where codes have scales, those of keys `[block]` and of
/// values `[block]`.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of a block of the store.
    pub block: usize,
}

/// The new tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Span {
    /// Their rows in the batch.
    pub rows: Range<usize>,
    /// Tokens stored before them.
    pub past: usize,
    /// The blocks of the store that hold the sequence, in order, with room for the new tokens.
    pub blocks: Vec<u32>,
}

/// The sequences that one pass continues; their rows follow each other without gaps.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Heads and blocks.
    pub shape: Shape,
    /// The sequences.
    pub spans: &'a [Span],
    /// Lists that a GPU reads of the sequences.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub tables: Option<&'a Tables>,
}

/// A batch's plan, and its lists on a GPU.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub struct Tables {
    /// The plan.
    pub plan: Plan,
    /// [`Plan::slots`].
    pub slots: Tensor,
    /// [`Plan::tiles`].
    pub tiles: Tensor,
    /// [`Plan::table`].
    pub table: Tensor,
}

impl Shape {
    /// Shape of a model's attention, with blocks of `block` tokens.
    pub fn from_config(config: &Config, block: usize) -> Self {
        Shape { heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim, block }
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    pub(crate) fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of one head of a block.
    pub fn plane<E: Element>(&self) -> usize {
        2 * (self.head_dim + E::SCALE) * self.block
    }

    /// The plane of a head in a block.
    #[inline(always)]
    fn plane_of<'s, E: Element>(&self, store: &'s [E], block: usize, head: usize) -> &'s [E] {
        &store[(block * self.kv_heads + head) * self.plane::<E>()..][..self.plane::<E>()]
    }
}

impl<'a> Batch<'a> {
    /// For the CPU.
    pub fn new(shape: Shape, spans: &'a [Span]) -> Self {
        Batch { shape, spans, tables: None }
    }

    /// Uploads the plan's lists to a device; none where that is the CPU.
    ///
    /// # Errors
    /// When the device's memory is full.
    pub fn tables_on(&self, device: &Device) -> Result<Option<Tables>> {
        if device.is_cpu() {
            return Ok(None);
        }
        let plan = Plan::new(self, crate::device::processors(device));
        let place = |list: &[i32]| Tensor::from_slice(list, list.len(), device);
        let (slots, tiles, table) = (place(&plan.slots)?, place(&plan.tiles)?, place(&plan.table)?);
        Ok(Some(Tables { plan, slots, tiles, table }))
    }

    pub(crate) fn check<E: Element>(&self, qkv: usize, store: usize) -> Result<()> {
        let blocks = store / (self.shape.kv_heads * self.shape.plane::<E>()).max(1);
        let fits = |s: &Span| {
            s.past + s.rows.len() <= s.blocks.len() * self.shape.block
                && s.blocks.iter().all(|&b| (b as usize) < blocks)
        };
        let rows = self.spans.iter().try_fold(0, |at, s| (s.rows.start == at).then_some(s.rows.end));
        if rows.map(|n| n * self.shape.row()) != Some(qkv) || !self.spans.iter().all(fits) {
            bail!("attention: {qkv} values and a store of {store} don't fit {self:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
