//! Packing given codes into `q8_0` and `q4_0` blocks, and ggml's own ways of choosing codes and scales.

mod affine;
mod block32;
mod lanes;
mod nonlinear;
mod symmetric;

use super::GgmlType;
use super::decode::half;
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

/// Encoder of a type.
struct Rule {
    /// From whole blocks of weights to their bytes.
    encode: fn(&[f32], &mut [u8]),
    /// The largest weight over the largest f16 scale that it may need, about.
    levels: f32,
    /// Offsets of the f16 scales in a block.
    scales: &'static [usize],
}

fn rule(ty: GgmlType) -> Option<Rule> {
    let of = |encode, levels, scales| Some(Rule { encode, levels, scales });
    match ty {
        GgmlType::Q8_0 => of(block32::q8_0, 127.0, &[0]),
        GgmlType::Q4_0 => of(block32::q4_0, 8.0, &[0]),
        GgmlType::Q4_1 => of(block32::q4_1, 15.0, &[0, 2]),
        GgmlType::Q5_0 => of(block32::q5_0, 16.0, &[0]),
        GgmlType::Q5_1 => of(block32::q5_1, 31.0, &[0, 2]),
        GgmlType::IQ4_NL => of(nonlinear::iq4_nl, 127.0, &[0]),
        GgmlType::Q2_K => of(affine::q2_k, 3.0 * 15.0, &[80, 82]),
        GgmlType::Q3_K => of(symmetric::q3_k, 4.0 * 32.0, &[108]),
        GgmlType::Q4_K => of(affine::q4_k, 15.0 * 63.0, &[0, 2]),
        GgmlType::Q5_K => of(affine::q5_k, 31.0 * 63.0, &[0, 2]),
        GgmlType::Q6_K => of(symmetric::q6_k, 32.0 * 128.0, &[208]),
        GgmlType::IQ4_XS => of(nonlinear::iq4_xs, 127.0 * 32.0, &[0]),
        _ => None,
    }
}

/// Returns whether [`encode_rows`] knows the type.
pub fn is_encodable(ty: GgmlType) -> bool {
    rule(ty).is_some()
}

/// Quantizes whole rows by ggml's own rule for the type, without an importance matrix, and appends the blocks.
///
/// The bytes are those of ggml's reference quantizers (`quantize_row_*_ref`) compiled for plain IEEE arithmetic.
///
/// # Errors
/// [`Error::Shape`] when the rows are no whole blocks, [`Error::NotFinite`],
/// [`Error::ScaleRange`] when a scale overflows f16, [`Error::UnsupportedGgml`]; rows
/// are counted from `first_row`.
pub fn encode_rows(ty: GgmlType, src: &[f32], cols: usize, first_row: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let rule = rule(ty).ok_or_else(|| Error::UnsupportedGgml(format!("{ty} (encoding)")))?;
    let row_bytes = ty.row_bytes(cols).filter(|_| cols > 0 && src.len().is_multiple_of(cols));
    let Some(row_bytes) = row_bytes else {
        let why = format!("rows must be multiples of {}", ty.block_len());
        return Err(Error::Shape { what: ty.to_string(), rows: src.len() / cols.max(1), cols, why });
    };
    for (r, row) in src.chunks_exact(cols).enumerate() {
        let max = block32::row_magnitude(row);
        if !max.is_finite() {
            return Err(int::not_finite(row, first_row + r, 0));
        }
        if f16::from_f32(max / rule.levels).is_infinite() {
            return Err(Error::ScaleRange { row: first_row + r, value: max / rule.levels, ty: FloatType::F16 });
        }
    }
    let start = out.len();
    out.resize(start + src.len() / cols * row_bytes, 0);
    (rule.encode)(src, &mut out[start..]);
    // A search may end with a scale above the estimate.
    let blocks = out[start..].chunks_exact(ty.block_bytes());
    let overflow = |b: &[u8]| rule.scales.iter().map(|&at| half(b, at)).find(|s| !s.is_finite());
    if let Some((b, value)) = blocks.enumerate().find_map(|(b, block)| Some((b, overflow(block)?))) {
        out.truncate(start);
        return Err(Error::ScaleRange { row: first_row + b * ty.block_bytes() / row_bytes, value, ty: FloatType::F16 });
    }
    Ok(())
}

/// Appends `src` as `q8_0` by the rule of ggml's `quantize_row_q8_0_ref`: `d = absmax / 127`
/// in f32, codes `round(x * (1 / d))`, halves away from zero; then `d` is rounded to f16.
///
/// Panics when the length is no multiple of 32. Non-finite weights give meaningless codes;
/// [`encode_rows`] refuses them.
pub fn encode_q8_0(src: &[f32], out: &mut Vec<u8>) {
    let start = reserve(src, 34, out);
    block32::q8_0(src, &mut out[start..]);
}

/// Appends `src` as `q4_0` by the rule of ggml's `quantize_row_q4_0_ref`: `d` is the weight
/// of the largest magnitude (the first of equals, with its sign) over -8, codes
/// `min(15, trunc(x * (1 / d) + 8.5))`; then `d` is rounded to f16.
///
/// Panics when the length is no multiple of 32. Non-finite weights give meaningless codes;
/// [`encode_rows`] refuses them.
pub fn encode_q4_0(src: &[f32], out: &mut Vec<u8>) {
    let start = reserve(src, 18, out);
    block32::q4_0(src, &mut out[start..]);
}

fn reserve(src: &[f32], block_bytes: usize, out: &mut Vec<u8>) -> usize {
    assert!(src.len().is_multiple_of(BLOCK), "{} weights are no whole blocks of {BLOCK}", src.len());
    let start = out.len();
    out.resize(start + src.len() / BLOCK * block_bytes, 0);
    start
}

/// Stores a scale.
#[inline(always)]
fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// 2-bit codes, 128 in 32 bytes: the first 32 lowest.
#[inline(always)]
fn put_two_bits(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (l, o) in out.iter_mut().enumerate() {
            *o = (0..4).fold(0, |bits, g| bits | (codes[32 * g + l] & 3) << (2 * g));
        }
    }
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
        // The step fits f16 and the minimum doesn't.
        src[70] = -1e5;
        let e = encode_rows(GgmlType::Q4_1, &src, 64, 5, &mut out);
        assert!(matches!(e, Err(Error::ScaleRange { row: 6, value, .. }) if value.is_infinite()), "{e:?}");
        assert_eq!(out.len(), 4 * 34);
        assert!(matches!(encode_rows(GgmlType::Q8_0, &src, 48, 0, &mut out), Err(Error::Shape { .. })));
        assert!(matches!(encode_rows(GgmlType::Q4_K, &src, 64, 0, &mut out), Err(Error::Shape { .. })));
        assert!(matches!(encode_rows(GgmlType::IQ1_S, &src, 64, 0, &mut out), Err(Error::UnsupportedGgml(_))));
    }
}
