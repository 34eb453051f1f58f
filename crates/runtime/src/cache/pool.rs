//! Blocks of keys and values, and the sequences that share them.

use super::KvType;
use crate::ops::attention::{CopyBlock, Shape};
use crate::{Error, Result, memory};
use candle_core::{DType, Device, Tensor};
use std::sync::{Arc, Mutex, PoisonError};
use store::Config;

/// Indices of blocks that no sequence holds.
#[derive(Debug, Default)]
struct Free(Mutex<Vec<u32>>);

impl Free {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A block in use. The last sequence that lets go of it gives it back to its pool.
#[derive(Debug)]
struct Block {
    index: u32,
    free: Arc<Free>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.free.with(|free| free.push(self.index));
    }
}

/// A paged KV cache: blocks of a fixed number of tokens, that sequences take as they grow.
#[derive(Debug)]
pub struct Pool {
    /// For each layer `[blocks, kv_heads, elements]`; [`crate::ops::attention`] has the layout.
    pub(crate) layers: Vec<Tensor>,
    ty: KvType,
    block_tokens: usize,
    blocks: usize,
    /// Layers, heads and their width, of the model it was made for.
    made_for: [usize; 3],
    free: Arc<Free>,
}

/// One sequence's tokens in a [`Pool`]: a table of blocks and a length. Dropping it gives its
/// blocks back.
///
/// A clone shares the blocks, which are counted once, until either of the two writes into the
/// last of them: that one then copies it.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    table: Vec<Arc<Block>>,
    len: usize,
    block_tokens: usize,
}

impl Sequence {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Blocks held, those that are shared too.
    pub fn blocks(&self) -> usize {
        self.table.len()
    }

    /// Forgets the tokens from `len` on (such as rejected drafts).
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.table.truncate(self.len.div_ceil(self.block_tokens.max(1)));
    }

    /// Indices of the sequence's blocks.
    pub(crate) fn table(&self) -> Vec<u32> {
        self.table.iter().map(|b| b.index).collect()
    }

    /// Counts `n` tokens that were written into reserved room.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
    }
}

impl Pool {
    pub(crate) fn new(
        config: &Config,
        ty: KvType,
        block_tokens: usize,
        blocks: usize,
        device: &Device,
    ) -> Result<Self> {
        let too_large = || Error::CacheMemory { blocks, block_tokens };
        let bytes = ty.bytes_per_token(config).checked_mul(block_tokens).and_then(|b| b.checked_mul(blocks));
        let fits = |&n: &usize| {
            // A GPU says for itself what it has.
            !device.is_cpu()
                || memory::available().is_none_or(|most| n as u64 <= most)
                    && Vec::<u8>::new().try_reserve_exact(n).is_ok()
        };
        bytes.filter(fits).ok_or_else(too_large)?;
        let last = u32::try_from(blocks).map_err(|_| too_large())?;
        // Less than all bytes, so it doesn't wrap.
        let shape = Shape::from_config(config, block_tokens);
        let (dtype, plane) = match ty {
            KvType::F16 => (DType::F16, shape.plane::<half::f16>()),
            KvType::Int8 => (DType::U8, shape.plane::<u8>()),
        };
        let layer = || Tensor::zeros((blocks, config.kv_heads, plane), dtype, device);
        let layers = (0..config.layers).map(|_| layer()).collect::<Result<Vec<_>, _>>()?;
        // The first blocks are given out first.
        let free = Arc::new(Free(Mutex::new((0..last).rev().collect())));
        let made_for = [config.layers, config.kv_heads, config.head_dim];
        Ok(Pool { layers, ty, block_tokens, blocks, made_for, free })
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        Sequence { table: Vec::new(), len: 0, block_tokens: self.block_tokens }
    }

    /// Type of stored keys and values.
    pub fn kv_type(&self) -> KvType {
        self.ty
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks, in use or not.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks that no sequence holds.
    pub fn free_blocks(&self) -> usize {
        self.free.with(|free| free.len())
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|t| t.elem_count() * t.dtype().size_in_bytes()).sum()
    }

    /// Refuses the cache of another model.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let needed = [config.layers, config.kv_heads, config.head_dim];
        if self.made_for == needed {
            return Ok(());
        }
        let of = |[layers, heads, width]: [usize; 3]| format!("{layers} layers of {heads} heads {width} wide");
        Err(Error::CacheShape(of(self.made_for), of(needed)))
    }

    /// Blocks that `n` more tokens of a sequence take from the pool.
    pub fn missing(&self, sequence: &Sequence, n: usize) -> usize {
        let needed = (sequence.len + n).div_ceil(self.block_tokens);
        needed.saturating_sub(sequence.table.len()) + usize::from(n > 0 && self.shared(sequence).is_some())
    }

    /// The place of the block that the next token goes into, where other sequences hold it too.
    fn shared(&self, sequence: &Sequence) -> Option<usize> {
        let next = sequence.len / self.block_tokens;
        sequence.table.get(next).is_some_and(|block| Arc::strong_count(block) > 1).then_some(next)
    }

    /// Makes room for `n` more tokens of a sequence, in blocks of its own. Where there is none,
    /// the sequence stays as it was.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, n: usize) -> Result<()> {
        if sequence.table.first().is_some_and(|b| !Arc::ptr_eq(&b.free, &self.free)) {
            return Err(Error::ForeignSequence);
        }
        sequence.block_tokens = self.block_tokens;
        let mut taken = self.take(self.missing(sequence, n))?;
        let shared = self.shared(sequence).filter(|_| n > 0);
        if let Some(at) = shared
            && let Some(own) = taken.pop()
        {
            let op = CopyBlock { from: sequence.table[at].index as usize, to: own.index as usize };
            for layer in &self.layers {
                layer.inplace_op1(&op)?;
            }
            sequence.table[at] = own;
        }
        sequence.table.extend(taken);
        Ok(())
    }

    /// Takes `n` free blocks.
    fn take(&self, n: usize) -> Result<Vec<Arc<Block>>> {
        let indices = self.free.with(|free| {
            let left = free.len().checked_sub(n).ok_or_else(|| n - free.len())?;
            Ok(free.split_off(left))
        });
        let (blocks, block_tokens) = (self.blocks, self.block_tokens);
        let indices = indices.map_err(|missing: usize| Error::CacheExhausted { blocks, block_tokens, missing })?;
        Ok(indices.into_iter().map(|index| Arc::new(Block { index, free: Arc::clone(&self.free) })).collect())
    }
}
