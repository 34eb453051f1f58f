//! Packing of integer codes into bytes.

use crate::Bits;

/// Packing of the codes of one row into bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// One two's-complement byte for each code.
    I8,
    /// One byte for each code, stored as code + 128 (compressed-tensors `pack-quantized`, 8 bits).
    Offset8,
    /// Two codes a byte, stored as code + 8, the first in the low nibble
    /// (compressed-tensors `pack-quantized`, 4 bits).
    Nibble,
}

impl Packing {
    /// Bytes that `cols` codes take, without padding.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Packing::I8 | Packing::Offset8 => cols,
            Packing::Nibble => cols.div_ceil(2),
        }
    }

    /// The width of a code.
    pub fn bits(self) -> Bits {
        match self {
            Packing::I8 | Packing::Offset8 => Bits::Eight,
            Packing::Nibble => Bits::Four,
        }
    }

    /// Writes the codes of one row to `out`, whose length may exceed [`Packing::row_bytes`]:
    /// the rest becomes zero bytes.
    pub fn pack_row(self, codes: &[i8], out: &mut [u8]) {
        let used = self.row_bytes(codes.len());
        match self {
            Packing::I8 => out.iter_mut().zip(codes).for_each(|(o, &c)| *o = c as u8),
            Packing::Offset8 => out.iter_mut().zip(codes).for_each(|(o, &c)| *o = (c as u8) ^ 0x80),
            Packing::Nibble => {
                let (pairs, rest) = codes.as_chunks::<2>();
                pack_nibbles(pairs, out);
                if let [last] = rest {
                    out[pairs.len()] = (last + 8) as u8;
                }
            }
        }
        out[used..].fill(0);
    }

    /// Decodes codes `start..start + out.len()` of a row as floats. `start` must be even.
    pub fn unpack(self, row: &[u8], start: usize, out: &mut [f32]) {
        match self {
            Packing::I8 => out.iter_mut().zip(&row[start..]).for_each(|(o, &b)| *o = f32::from(b as i8)),
            Packing::Offset8 => out.iter_mut().zip(&row[start..]).for_each(|(o, &b)| *o = f32::from((b ^ 0x80) as i8)),
            Packing::Nibble => {
                debug_assert!(start.is_multiple_of(2));
                for (pair, &b) in out.chunks_mut(2).zip(&row[start / 2..]) {
                    pair[0] = f32::from((b & 15) as i8 - 8);
                    if let Some(second) = pair.get_mut(1) {
                        *second = f32::from((b >> 4) as i8 - 8);
                    }
                }
            }
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn pack_nibbles(pairs: &[[i8; 2]], out: &mut [u8]) {
    for (o, [low, high]) in out.iter_mut().zip(pairs) {
        *o = (low + 8) as u8 | ((high + 8) as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpack_undoes_pack(codes in prop::collection::vec(-7i8..=7, 1..100), pad in 0usize..5, which in 0usize..3) {
            let packing = [Packing::I8, Packing::Offset8, Packing::Nibble][which];
            let mut bytes = vec![0xAA; packing.row_bytes(codes.len()) + pad];
            packing.pack_row(&codes, &mut bytes);
            let mut back = vec![0f32; codes.len()];
            packing.unpack(&bytes, 0, &mut back);
            prop_assert!(back.iter().zip(&codes).all(|(b, c)| *b == f32::from(*c)));
        }
    }
}
