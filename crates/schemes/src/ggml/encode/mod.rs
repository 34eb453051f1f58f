//! Packing given codes into `q8_0` and `q4_0` blocks, and ggml's own way of choosing them.

use super::GgmlType;
use crate::{Error, FloatType, int};
use half::f16;

/// Weights of one block of `q8_0` and `q4_0`.
const BLOCK: usize = 32;

/// Appends `codes` as `q8_0` blocks; block `b` (counted from the start of `codes`) gets the
/// scale `scale_of_block(b)`. An exact container for every symmetric 8-bit scheme whose
/// groups are whole blocks.
///
/// Panics when the length is no multiple of 32.
pub fn write_q8_0(codes: &[i8], scale_of_block: impl Fn(usize) -> f16, out: &mut Vec<u8>) {
    let (blocks, rest) = codes.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "{} codes are no whole blocks of {BLOCK}", codes.len());
    out.reserve(blocks.len() * 34);
    for (b, codes) in blocks.iter().enumerate() {
        let mut block = [0u8; 34];
        block[..2].copy_from_slice(&scale_of_block(b).to_le_bytes());
        block[2..].iter_mut().zip(codes).for_each(|(o, &c)| *o = c as u8);
        out.extend_from_slice(&block);
    }
}

/// Appends `codes` in `[-8, 7]` as `q4_0` blocks, as [`write_q8_0`] does.
///
/// Panics when the length is no multiple of 32.
pub fn write_q4_0(codes: &[i8], scale_of_block: impl Fn(usize) -> f16, out: &mut Vec<u8>) {
    let (blocks, rest) = codes.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "{} codes are no whole blocks of {BLOCK}", codes.len());
    out.reserve(blocks.len() * 18);
    for (b, codes) in blocks.iter().enumerate() {
        debug_assert!(codes.iter().all(|c| (-8..=7).contains(c)));
        let mut block = [0u8; 18];
        block[..2].copy_from_slice(&scale_of_block(b).to_le_bytes());
        let (low, high) = codes.split_at(BLOCK / 2);
        for (o, (&l, &h)) in block[2..].iter_mut().zip(low.iter().zip(high)) {
            *o = (l.wrapping_add(8) as u8 & 15) | (h.wrapping_add(8) as u8) << 4;
        }
        out.extend_from_slice(&block);
    }
}

/// Whether [`encode_rows`] knows the type.
pub fn is_encodable(ty: GgmlType) -> bool {
    ty.is_encodable()
}

type Encoder = fn(&[f32], &mut Vec<u8>);

/// Quantizes whole rows by ggml's own rule for the type and appends the blocks.
///
/// # Errors
/// [`Error::Shape`] when the rows are no whole blocks, [`Error::NotFinite`],
/// [`Error::ScaleRange`] when a scale overflows f16, [`Error::UnsupportedGgml`]; rows
/// are counted from `first_row`.
pub fn encode_rows(ty: GgmlType, src: &[f32], cols: usize, first_row: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let (encode, divisor): (Encoder, f32) = match ty {
        GgmlType::Q8_0 => (encode_q8_0, 127.0),
        GgmlType::Q4_0 => (encode_q4_0, 8.0),
        other => return Err(Error::UnsupportedGgml(format!("{other} (encoding)"))),
    };
    if cols == 0 || !cols.is_multiple_of(ty.block_len()) || !src.len().is_multiple_of(cols) {
        let why = format!("rows must be multiples of {}", ty.block_len());
        return Err(Error::Shape { what: ty.to_string(), rows: src.len() / cols.max(1), cols, why });
    }
    for (r, row) in src.chunks_exact(cols).enumerate() {
        let max = row_magnitude(row);
        if !max.is_finite() {
            return Err(int::not_finite(row, first_row + r, 0));
        }
        if f16::from_f32(max / divisor).is_infinite() {
            return Err(Error::ScaleRange { row: first_row + r, value: max / divisor, ty: FloatType::F16 });
        }
    }
    encode(src, out);
    Ok(())
}

/// Appends `src` as `q8_0` by the rule of ggml's `quantize_row_q8_0_ref`: `d = absmax / 127`
/// in f32, codes `round(x * (1 / d))`, halves away from zero; then `d` is rounded to f16.
///
/// Panics when the length is no multiple of 32. Non-finite weights give meaningless codes;
/// [`encode_rows`] refuses them.
pub fn encode_q8_0(src: &[f32], out: &mut Vec<u8>) {
    let start = reserve(src, 34, out);
    blocks_q8_0(src, &mut out[start..]);
}

/// Appends `src` as `q4_0` by the rule of ggml's `quantize_row_q4_0_ref`: `d` is the weight
/// of the largest magnitude (the first of equals, with its sign) over -8, codes
/// `min(15, trunc(x * (1 / d) + 8.5))`; then `d` is rounded to f16.
///
/// Panics when the length is no multiple of 32. Non-finite weights give meaningless codes;
/// [`encode_rows`] refuses them.
pub fn encode_q4_0(src: &[f32], out: &mut Vec<u8>) {
    let start = reserve(src, 18, out);
    blocks_q4_0(src, &mut out[start..]);
}

fn reserve(src: &[f32], block_bytes: usize, out: &mut Vec<u8>) -> usize {
    assert!(src.len().is_multiple_of(BLOCK), "{} weights are no whole blocks of {BLOCK}", src.len());
    let start = out.len();
    out.resize(start + src.len() / BLOCK * block_bytes, 0);
    start
}

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

/// The weight of the largest magnitude, the first of equals.
#[inline(always)]
fn extreme(x: &[f32; BLOCK]) -> f32 {
    let max = magnitude(x);
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

/// 1.5 * 2^23: adding it rounds to the nearest integer, which then stands in the low bits.
/// Unlike float-to-integer casts, which saturate, this vectorizes.
const ROUND: f32 = 12_582_912.0;

/// The nearest integer, halves away from zero, as C's `roundf`; for |x| below 2^21.
#[inline(always)]
fn round_half_away(x: f32) -> f32 {
    let a = x.abs();
    let even = (a + ROUND) - ROUND;
    (even + f32::from(u8::from(a - even == 0.5))).copysign(x)
}

/// The integer at or below `x`, for `x` in 0 to 2^21.
#[inline(always)]
fn floor(x: f32) -> f32 {
    let near = (x + ROUND) - ROUND;
    near - f32::from(u8::from(near > x))
}

/// The low byte of a float that is a small integer.
#[inline(always)]
fn low_byte(integer: f32) -> u8 {
    (integer + ROUND).to_bits() as u8
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn blocks_q8_0(src: &[f32], out: &mut [u8]) {
    for (x, block) in src.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<34>().0) {
        let d = magnitude(x) / 127.0;
        let id = inverse(d);
        let mut codes = [0u8; BLOCK];
        for (c, x) in codes.iter_mut().zip(x) {
            *c = low_byte(round_half_away(x * id));
        }
        block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        block[2..].copy_from_slice(&codes);
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn blocks_q4_0(src: &[f32], out: &mut [u8]) {
    for (x, block) in src.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<18>().0) {
        let d = extreme(x) / -8.0;
        let id = inverse(d);
        let mut codes = [0u8; BLOCK];
        for (c, x) in codes.iter_mut().zip(x) {
            *c = low_byte(floor(x * id + 8.5).min(15.0)) & 15;
        }
        let mut packed = [0u8; BLOCK / 2];
        let (low, high) = codes.split_at(BLOCK / 2);
        for (p, (l, h)) in packed.iter_mut().zip(low.iter().zip(high)) {
            *p = l | h << 4;
        }
        block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        block[2..].copy_from_slice(&packed);
    }
}

/// The largest magnitude of a row of whole blocks; NaN or infinity when there is one.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn row_magnitude(row: &[f32]) -> f32 {
    let blocks = row.as_chunks::<BLOCK>().0;
    f32::from_bits(blocks.iter().fold(0, |m, x| m.max(magnitude(x).to_bits())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::decode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn given_codes_come_back_exactly(
            codes in prop::collection::vec(-8i8..=7, 1..6 * 32), scales in prop::collection::vec(-4f32..4.0, 6),
        ) {
            let codes = &codes[..codes.len() / 32 * 32];
            let scale = |b: usize| f16::from_f32(scales[b]);
            let (mut eight, mut four) = (Vec::new(), Vec::new());
            write_q8_0(codes, scale, &mut eight);
            write_q4_0(codes, scale, &mut four);
            for (ty, bytes) in [(GgmlType::Q8_0, eight), (GgmlType::Q4_0, four)] {
                let mut back = vec![0f32; codes.len()];
                decode(ty, &bytes, &mut back);
                for (i, (b, c)) in back.iter().zip(codes).enumerate() {
                    prop_assert_eq!(*b, f32::from(*c) * scale(i / 32).to_f32());
                }
            }
        }

        #[test]
        fn rounding_is_the_c_library_s(x in -127f32..127.0, half in -127i32..127) {
            for x in [x, half as f32 + 0.5, (half as f32 + 0.5).next_down(), (half as f32 + 0.5).next_up()] {
                prop_assert_eq!(round_half_away(x).to_bits(), x.round().to_bits());
                prop_assert_eq!(low_byte(x.round()), x.round() as i32 as u8);
                prop_assert_eq!(floor(x.abs()), x.abs().floor());
            }
        }

        #[test]
        fn any_floats_encode(bits in prop::collection::vec(any::<u32>(), 32)) {
            let src: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let mut out = Vec::new();
            encode_q8_0(&src, &mut out);
            encode_q4_0(&src, &mut out);
            prop_assert_eq!(out.len(), 52);
        }
    }

    #[test]
    fn faults_name_the_row() {
        let mut src = vec![1f32; 128];
        let mut out = Vec::new();
        assert!(encode_rows(GgmlType::Q8_0, &src, 64, 0, &mut out).is_ok() && out.len() == 4 * 34);
        src[70] = f32::INFINITY;
        let e = encode_rows(GgmlType::Q4_0, &src, 64, 5, &mut out);
        assert!(matches!(e, Err(Error::NotFinite { row: 6, col: 6, .. })), "{e:?}");
        src[70] = -1e7;
        let e = encode_rows(GgmlType::Q8_0, &src, 64, 5, &mut out);
        assert!(matches!(e, Err(Error::ScaleRange { row: 6, .. })), "{e:?}");
        assert!(matches!(encode_rows(GgmlType::Q8_0, &src, 48, 0, &mut out), Err(Error::Shape { .. })));
        assert!(matches!(encode_rows(GgmlType::Q4_K, &src, 64, 0, &mut out), Err(Error::UnsupportedGgml(_))));
    }
}
