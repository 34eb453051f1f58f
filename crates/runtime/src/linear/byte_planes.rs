//! Activations whose 16-bit codes are taken apart into two planes of bytes, for processors that
//! multiply bytes: `code = 256 high + low`, both signed.
//!
//! Bytes of weights are multiplied as unsigned ones, each larger than its code by an offset.
//! What that adds to a sum depends on the activations alone, so it is where the sums start.

use multiversion::multiversion;

/// Columns of a chunk: two vectors of 64 bytes.
pub const CHUNK: usize = 128;

/// Columns of a chunk that the first vector of weights holds; the second vector holds the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first half.
    Halves,
    /// The even ones.
    Even,
    /// The first half of each block of 32, as ggml's blocks have them.
    Blocks,
}

/// Column order and unsigned offset that the u8 x i8 dot product expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    /// The order of columns.
    pub order: Order,
    /// Difference between the weights' bytes and their codes.
    pub offset: i32,
}

/// The activations of one token in [`CHUNK`] columns, in the order of their [`Meeting`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Chunk {
    /// Starting values of the sums: of each block of 32 columns (or four parts of the chunk) in the first of four
    /// lanes.
    pub start: [i32; 16],
    /// The high bytes of the codes that meet the first and the second vector.
    pub high: [[i8; 64]; 2],
    /// The low bytes.
    pub low: [[i8; 64]; 2],
}

impl Chunk {
    /// Activations of zero.
    pub const ZERO: Chunk = Chunk { start: [0; 16], high: [[0; 64]; 2], low: [[0; 64]; 2] };
}

/// The chunks of a row of codes; those past its end count nothing.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub fn planes(codes: &[i16], meeting: Meeting, out: &mut [Chunk]) {
    for (codes, chunk) in codes.chunks(CHUNK).zip(out) {
        let mut whole = [0i16; CHUNK];
        whole[..codes.len()].copy_from_slice(codes);
        let halves = match meeting.order {
            Order::Halves => halves(&whole),
            Order::Even => even(&whole),
            Order::Blocks => blocks(&whole),
        };
        chunk.start = [0; 16];
        for ((half, high), low) in halves.iter().zip(&mut chunk.high).zip(&mut chunk.low) {
            for ((code, high), low) in half.iter().zip(high).zip(low) {
                *low = *code as i8;
                *high = ((i32::from(*code) - i32::from(*low)) >> 8) as i8;
            }
            for (part, start) in half.chunks_exact(16).zip(chunk.start.iter_mut().step_by(4)) {
                *start -= meeting.offset * part.iter().map(|code| i32::from(*code)).sum::<i32>();
            }
        }
    }
}

#[inline(always)]
fn halves(codes: &[i16; CHUNK]) -> [[i16; 64]; 2] {
    let mut out = [[0; 64]; 2];
    out[0].copy_from_slice(&codes[..64]);
    out[1].copy_from_slice(&codes[64..]);
    out
}

#[inline(always)]
fn even(codes: &[i16; CHUNK]) -> [[i16; 64]; 2] {
    let mut out = [[0; 64]; 2];
    for (i, [a, b]) in codes.as_chunks::<2>().0.iter().enumerate() {
        (out[0][i], out[1][i]) = (*a, *b);
    }
    out
}

#[inline(always)]
fn blocks(codes: &[i16; CHUNK]) -> [[i16; 64]; 2] {
    let mut out = [[0; 64]; 2];
    for (i, block) in codes.as_chunks::<32>().0.iter().enumerate() {
        out[0][16 * i..][..16].copy_from_slice(&block[..16]);
        out[1][16 * i..][..16].copy_from_slice(&block[16..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn planes_are_the_codes(codes in prop::collection::vec(-32639i16..=32639, 1..400), which in 0usize..3, offset in 0i32..=128) {
            let order = [Order::Halves, Order::Even, Order::Blocks][which];
            let mut out = vec![Chunk::ZERO; codes.len().div_ceil(CHUNK)];
            planes(&codes, Meeting { order, offset }, &mut out);
            for (codes, chunk) in codes.chunks(CHUNK).zip(&out) {
                for c in 0..CHUNK {
                    let (half, i) = match order {
                        Order::Halves => (c / 64, c % 64),
                        Order::Even => (c % 2, c / 2),
                        Order::Blocks => (c / 16 % 2, c / 32 * 16 + c % 16),
                    };
                    let code = 256 * i32::from(chunk.high[half][i]) + i32::from(chunk.low[half][i]);
                    prop_assert_eq!(code, codes.get(c).map_or(0, |c| i32::from(*c)), "column {}", c);
                }
                let sum: i32 = codes.iter().map(|c| i32::from(*c)).sum();
                prop_assert_eq!(chunk.start.iter().sum::<i32>(), -offset * sum);
                if order != Order::Halves {
                    for (q, block) in codes.chunks(32).enumerate() {
                        let sum: i32 = block.iter().map(|c| i32::from(*c)).sum();
                        prop_assert_eq!(chunk.start[4 * q], -offset * sum, "block {}", q);
                    }
                }
            }
        }
    }
}
