//! Types with blocks of 32: one scale from the extremes of the block, no search.

use super::put_half;
use rowmath::round::{nearest, nearest_u8};

/// Weights of a block.
const BLOCK: usize = 32;

/// `1 / d` as ggml computes it.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The largest magnitude; NaN or infinity when there is one.
#[inline(always)]
fn magnitude(x: &[f32; BLOCK]) -> f32 {
    // Bit patterns without the sign order like the magnitudes, and their maximum vectorizes.
    let mut lanes = [0u32; BLOCK / 2];
    for half in x.as_chunks::<{ BLOCK / 2 }>().0 {
        for (m, v) in lanes.iter_mut().zip(half) {
            *m = (*m).max(v.to_bits() & 0x7FFF_FFFF);
        }
    }
    f32::from_bits(lanes.into_iter().fold(0, u32::max))
}

/// The weight of the largest magnitude, the first of equals; zeros have no sign.
#[inline(always)]
fn extreme(x: &[f32; BLOCK]) -> f32 {
    let max = magnitude(x);
    if max == 0.0 {
        return 0.0;
    }
    let (mut positive, mut negative) = (0u32, 0u32);
    for v in x {
        positive += u32::from(*v == max);
        negative += u32::from(*v == -max);
    }
    match (positive > 0, negative > 0) {
        (true, false) => max,
        (false, true) => -max,
        _ => x.iter().copied().find(|v| v.abs() == max).unwrap_or(0.0),
    }
}

/// The least and the greatest weight.
#[inline(always)]
fn range(x: &[f32; BLOCK]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::MAX; BLOCK / 2], [f32::MIN; BLOCK / 2]);
    for half in x.as_chunks::<{ BLOCK / 2 }>().0 {
        for (l, v) in half.iter().enumerate() {
            low[l] = if *v < low[l] { *v } else { low[l] };
            high[l] = if *v > high[l] { *v } else { high[l] };
        }
    }
    let low = low.into_iter().fold(f32::MAX, |m, v| if v < m { v } else { m });
    let high = high.into_iter().fold(f32::MIN, |m, v| if v > m { v } else { m });
    // Of zeros with different signs the first is stored.
    let low = if low == 0.0 { x.iter().copied().find(|v| *v == 0.0).unwrap_or(low) } else { low };
    (low, high)
}

/// The nearest integer, halves away from zero, as C's `roundf`; for |x| below 2^21.
#[inline(always)]
fn round_half_away(x: f32) -> f32 {
    let a = x.abs();
    let even = nearest(a);
    (even + f32::from(u8::from(a - even == 0.5))).copysign(x)
}

/// The integer at or below `x`, for `x` in 0 to 2^21.
#[inline(always)]
fn floor(x: f32) -> f32 {
    let near = nearest(x);
    near - f32::from(u8::from(near > x))
}

/// The low byte of a float that is a small integer.
#[inline(always)]
fn low_byte(integer: f32) -> u8 {
    nearest_u8(integer)
}

/// Codes `min(levels, trunc(x * id + shift))`.
#[inline(always)]
fn truncated(x: &[f32; BLOCK], id: f32, shift: f32, levels: f32) -> [u8; BLOCK] {
    let mut codes = [0u8; BLOCK];
    for (c, x) in codes.iter_mut().zip(x) {
        *c = low_byte(floor(x * id + shift).min(levels));
    }
    codes
}

/// Codes of the distances from `low`.
#[inline(always)]
fn above(x: &[f32; BLOCK], low: f32, id: f32, levels: f32) -> [u8; BLOCK] {
    let mut distances = *x;
    distances.iter_mut().for_each(|d| *d -= low);
    truncated(&distances, id, 0.5, levels)
}

/// The low four bits of the codes: the first half of the block low in the bytes, the second high.
#[inline(always)]
pub(super) fn put_nibbles(out: &mut [u8], codes: &[u8; BLOCK]) {
    let (low, high) = codes.split_at(BLOCK / 2);
    for (o, (l, h)) in out.iter_mut().zip(low.iter().zip(high)) {
        *o = l & 15 | h << 4;
    }
}

/// Bit 4 of each code.
#[inline(always)]
fn put_fifth_bits(out: &mut [u8], codes: &[u8; BLOCK]) {
    let mut bits = 0u32;
    for (j, c) in codes.iter().enumerate() {
        bits |= u32::from(c >> 4 & 1) << j;
    }
    out.copy_from_slice(&bits.to_le_bytes());
}

#[inline(always)]
fn each<const BYTES: usize>(src: &[f32], out: &mut [u8], encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES])) {
    for (x, block) in src.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<BYTES>().0) {
        encode(x, block);
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q8_0(src: &[f32], out: &mut [u8]) {
    each(src, out, |x, block: &mut [u8; 34]| {
        let d = magnitude(x) / 127.0;
        let id = inverse(d);
        let mut codes = [0u8; BLOCK];
        for (c, x) in codes.iter_mut().zip(x) {
            *c = low_byte(round_half_away(x * id));
        }
        put_half(block, 0, d);
        block[2..].copy_from_slice(&codes);
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_0(src: &[f32], out: &mut [u8]) {
    each(src, out, |x, block: &mut [u8; 18]| {
        let d = extreme(x) / -8.0;
        put_half(block, 0, d);
        put_nibbles(&mut block[2..], &truncated(x, inverse(d), 8.5, 15.0));
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_1(src: &[f32], out: &mut [u8]) {
    each(src, out, |x, block: &mut [u8; 20]| {
        let (low, high) = range(x);
        let d = (high - low) / 15.0;
        put_half(block, 0, d);
        put_half(block, 2, low);
        put_nibbles(&mut block[4..], &above(x, low, inverse(d), 15.0));
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_0(src: &[f32], out: &mut [u8]) {
    each(src, out, |x, block: &mut [u8; 22]| {
        let d = extreme(x) / -16.0;
        let codes = truncated(x, inverse(d), 16.5, 31.0);
        put_half(block, 0, d);
        put_fifth_bits(&mut block[2..6], &codes);
        put_nibbles(&mut block[6..], &codes);
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_1(src: &[f32], out: &mut [u8]) {
    each(src, out, |x, block: &mut [u8; 24]| {
        let (low, high) = range(x);
        let d = (high - low) / 31.0;
        let codes = above(x, low, inverse(d), 31.0);
        put_half(block, 0, d);
        put_half(block, 2, low);
        put_fifth_bits(&mut block[4..8], &codes);
        put_nibbles(&mut block[8..], &codes);
    });
}

/// The largest magnitude of a row of whole blocks; NaN or infinity when there is one.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn row_magnitude(row: &[f32]) -> f32 {
    let blocks = row.as_chunks::<BLOCK>().0;
    f32::from_bits(blocks.iter().fold(0, |m, x| m.max(magnitude(x).to_bits())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_is_the_c_library_s(x in -127f32..127.0, half in -127i32..127) {
            for x in [x, half as f32 + 0.5, (half as f32 + 0.5).next_down(), (half as f32 + 0.5).next_up()] {
                prop_assert_eq!(round_half_away(x).to_bits(), x.round().to_bits());
                prop_assert_eq!(low_byte(x.round()), x.round() as i32 as u8);
                prop_assert_eq!(floor(x.abs()), x.abs().floor());
            }
        }
    }
}
