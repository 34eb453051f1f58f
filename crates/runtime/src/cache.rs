//! Keys and values of tokens already seen.

use crate::Result;
use candle_core::{DType, Device, Tensor};
use store::Config;

/// The KV cache of a batch, in f16.
#[derive(Debug)]
pub struct KvCache {
    /// For each layer `[batch, kv_heads, 2, head_dim * capacity]`: keys transposed, then values.
    pub(crate) layers: Vec<Tensor>,
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    pub(crate) len: usize,
    bytes: usize,
}

impl KvCache {
    pub(crate) fn new(config: &Config, batch: usize, capacity: usize, device: &Device) -> Result<Self> {
        let shape = (batch, config.kv_heads, 2, config.head_dim * capacity);
        let layers = (0..config.layers).map(|_| Tensor::zeros(shape, DType::F16, device));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let bytes = layers.iter().map(|t| t.elem_count() * DType::F16.size_in_bytes()).sum();
        Ok(KvCache { layers, batch, capacity, len: 0, bytes })
    }

    /// Tokens held, of each sequence.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of each sequence that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the tokens from `len` on (such as rejected drafts).
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
