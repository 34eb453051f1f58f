//! Keys and values of tokens already seen.
//!
//! There is one cache: a [`Pool`] of blocks, of which every [`Sequence`] has a table. A
//! [`KvCache`] is a pool with one block for each sequence of a batch: contiguous storage.

mod pool;

pub use pool::{Pool, Sequence};

use crate::{Error, Result};
use candle_core::Device;
use std::fmt;
use store::Config;

/// Type of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// In f16.
    #[default]
    F16,
    /// In 8-bit codes: the key and the value of a token and head each have one f16 scale, their
    /// largest magnitude over 127.
    Int8,
}

/// `f16` or `int8`.
impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F16 => "f16",
            KvType::Int8 => "int8",
        })
    }
}

impl KvType {
    /// Bytes of one token: `2 x layers x kv_heads x head_dim x 2` in f16, and
    /// `2 x layers x kv_heads x (head_dim + 2)` in int8.
    pub fn bytes_per_token(self, config: &Config) -> usize {
        self.bytes_of(config.layers, config.kv_heads, config.head_dim)
    }

    /// Bytes of a token in the cache of a model of this shape.
    pub fn bytes_of(self, layers: usize, kv_heads: usize, head_dim: usize) -> usize {
        let head = match self {
            KvType::F16 => 2 * head_dim,
            KvType::Int8 => head_dim + 2,
        };
        2 * layers * kv_heads * head
    }
}

/// The KV cache of a batch of sequences of equal length.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) pool: Pool,
    pub(crate) sequences: Vec<Sequence>,
    capacity: usize,
}

impl KvCache {
    pub(crate) fn new(config: &Config, ty: KvType, batch: usize, capacity: usize, device: &Device) -> Result<Self> {
        let pool = Pool::new(config, ty, capacity.max(1), batch, device)?;
        let sequences = (0..batch).map(|_| pool.sequence()).collect();
        Ok(KvCache { pool, sequences, capacity })
    }

    /// Tokens held, of each sequence.
    pub fn len(&self) -> usize {
        self.sequences.first().map_or(0, Sequence::len)
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of each sequence that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.sequences.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Forgets the tokens of each sequence from `len` on (such as rejected drafts).
    pub fn truncate(&mut self, len: usize) {
        self.sequences.iter_mut().for_each(|s| s.truncate(len));
    }

    /// Refuses `n` more tokens of each sequence where there is no room.
    pub(crate) fn check_room(&self, n: usize) -> Result<()> {
        let (capacity, needed) = (self.capacity, self.len() + n);
        if needed > capacity { Err(Error::CacheFull { capacity, needed }) } else { Ok(()) }
    }
}
