//! Packed weights, a chunk of 16 bytes of a row at a time, as `cuda/formats.cuh` has them.

use crate::gpu::packed::{Format, Packed};
use half::{bf16, f16};
use schemes::FloatType;

/// Some columns of a row.
pub(super) struct Chunk {
    /// Columns and weights without their scale, in the order in which they are summed. A column may
    /// lie beyond the row's end.
    pub weights: Vec<(usize, f32)>,
    /// Their scale.
    pub scale: f32,
}

/// The chunks of a row.
pub(super) fn chunks(w: &Packed, row: usize) -> Vec<Chunk> {
    let codes = &w.codes[row * w.row_bytes..][..w.row_bytes];
    match w.format {
        Format::Q4K => codes.as_chunks::<144>().0.iter().enumerate().flat_map(|(i, b)| q4_k(b, 256 * i)).collect(),
        _ => codes.as_chunks::<16>().0.iter().enumerate().map(|(i, b)| straight(w, row, i, b)).collect(),
    }
}

/// A chunk whose columns follow each other.
fn straight(w: &Packed, row: usize, index: usize, bytes: &[u8; 16]) -> Chunk {
    let nibbles = || bytes.iter().flat_map(|b| [b & 15, b >> 4]);
    let values: Vec<f32> = match w.format {
        Format::I8 => bytes.iter().map(|&b| f32::from(b as i8)).collect(),
        Format::U4 => nibbles().map(|n| f32::from(n) - 8.0).collect(),
        Format::Lut4 => nibbles().map(|n| float(&w.levels, usize::from(n))).collect(),
        Format::Float(FloatType::F16) => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        Format::Float(FloatType::BF16) => {
            bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
        }
        Format::Float(FloatType::F32) | Format::Q4K => (0..4).map(|i| float(bytes, i)).collect(),
    };
    let first = index * values.len();
    let (zero, scale) = if w.scales.is_empty() { (0.0, 1.0) } else { group(w, row, first) };
    let weights = values.into_iter().enumerate().map(|(i, v)| (first + i, v - zero)).collect();
    Chunk { weights, scale }
}

/// The zero and the scale of a column.
fn group(w: &Packed, row: usize, column: usize) -> (f32, f32) {
    let at = if w.group == 0 { row } else { row * w.cols.div_ceil(w.group) + column / w.group };
    let zero = w.zeros.as_chunks().0.get(at).map_or(0.0, |&b| f32::from(i16::from_le_bytes(b)));
    let scale = if w.half_scales {
        f16::from_le_bytes([w.scales[2 * at], w.scales[2 * at + 1]]).to_f32()
    } else {
        float(&w.scales, at)
    };
    (zero, scale)
}

fn float(bytes: &[u8], i: usize) -> f32 {
    f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// The chunks of a block of 256 columns: each has 16, and 16 that lie 32 later.
fn q4_k(block: &[u8; 144], first: usize) -> impl Iterator<Item = Chunk> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (d, min, s) = (half(0), half(2), &block[4..16]);
    let factors = move |g: usize| {
        let (scale, least) = match g {
            0..4 => (s[g] & 63, s[g + 4] & 63),
            _ => (s[g + 4] & 15 | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4),
        };
        (d * f32::from(scale), min * f32::from(least))
    };
    (0..8).map(move |i| {
        let (pair, start) = (i / 2, i / 2 * 64 + i % 2 * 16);
        let weights = (0..32).map(|k| {
            let (high, j) = (k / 16, k % 16);
            let (factor, least) = factors(2 * pair + high);
            let code = block[16 + 16 * i + j] >> (4 * high) & 15;
            (first + start + 32 * high + j, factor.mul_add(f32::from(code), -least))
        });
        Chunk { weights: weights.collect(), scale: 1.0 }
    })
}
