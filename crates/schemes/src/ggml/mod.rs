//! The ggml block types: sizes, decoding, and the two that hold other schemes exactly.

use crate::Error;
use std::{fmt, str::FromStr};

/// A ggml tensor type, by its number in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(u32);

/// Decodes whole blocks into `out`, whose length is a multiple of the type's block.
///
/// Panics when the type is not [`GgmlType::is_decodable`] or the lengths don't match.
pub fn decode(ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    let _ = (ty, blocks, out);
    todo!()
}

impl GgmlType {
    /// Weights of one block.
    pub fn block_len(self) -> usize {
        todo!()
    }
    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        todo!()
    }
    /// Whether [`decode`] knows the type.
    pub fn is_decodable(self) -> bool {
        todo!()
    }
    /// Bytes of a row of `cols` weights; none when the block doesn't divide it.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.block_len()).then(|| cols / self.block_len() * self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for GgmlType {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Err(Error::UnknownScheme(s.to_string()))
    }
}
