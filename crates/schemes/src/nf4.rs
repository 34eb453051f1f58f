//! NF4: the 4-bit NormalFloat of QLoRA (Dettmers et al. 2023), as bitsandbytes stores it.

use crate::{Error, FloatType, int, measure};

pub use crate::dynamic_map::dynamic_map;

/// Weights that share one scale.
pub const BLOCK: usize = 64;

/// Block scales that share one second-level scale under double quantization.
pub const NESTED_BLOCK: usize = 256;

/// The 16 levels, as published (with more digits than f32 holds).
#[allow(clippy::excessive_precision)]
pub const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// Codes and scales of a run of whole blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Nf4Blocks {
    /// One code a weight, 0 to 15.
    pub codes: Vec<u8>,
    /// One scale a block, rounded to the stored type.
    pub absmax: Vec<f32>,
}

/// Midpoints between neighbouring levels: a value above `MIDPOINTS[i]` is nearer to level `i + 1`.
fn midpoints() -> [f32; 15] {
    std::array::from_fn(|i| ((f64::from(LEVELS[i]) + f64::from(LEVELS[i + 1])) / 2.0) as f32)
}

/// Quantizes consecutive blocks of the flattened matrix; the last may be short. Appends to `out`.
///
/// # Errors
/// [`Error::NotFinite`] with row 0 and the index in `src` as column; the caller knows where
/// `src` lies.
pub fn quantize_blocks(src: &[f32], block: usize, ty: FloatType, out: &mut Nf4Blocks) -> Result<(), Error> {
    let start = out.codes.len();
    out.codes.resize(start + src.len(), 0);
    let mids = midpoints();
    let Nf4Blocks { codes, absmax } = out;
    let mut rest = &mut codes[start..];
    each_block(src, block, ty, |weights, scale| {
        absmax.push(scale);
        nearest(weights, scale, &mids, rest.split_off_mut(..weights.len()).unwrap_or_default());
    })
}

/// Error of the same blocks: the sum of squared differences to their decoded values, with the scales that readers
/// compute where these are not the blocks' own (`nested`, one a block).
///
/// # Errors
/// Those of [`quantize_blocks`].
pub fn loss(src: &[f32], block: usize, ty: FloatType, nested: Option<&[f32]>) -> Result<f64, Error> {
    let mut scales = Vec::new();
    each_block(src, block, ty, |_, scale| scales.push(scale))?;
    Ok(lost(src, block, &scales, nested.unwrap_or(&scales), &midpoints()))
}

/// Hands out blocks with their scales.
fn each_block(src: &[f32], block: usize, ty: FloatType, mut see: impl FnMut(&[f32], f32)) -> Result<(), Error> {
    for (b, weights) in src.chunks(block).enumerate() {
        let max = rowmath::absmax(weights);
        if !max.is_finite() {
            return Err(int::not_finite(weights, 0, b * block));
        }
        if !int::scale_fits(max, ty) {
            return Err(Error::ScaleRange { row: 0, value: max, ty });
        }
        see(weights, ty.round(max));
    }
    Ok(())
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn lost(src: &[f32], block: usize, scales: &[f32], decoded: &[f32], mids: &[f32; 15]) -> f64 {
    measure::group_losses(src, block, scales, decoded, |x| {
        let above = mids.iter().zip(&LEVELS[1..]);
        above.fold(LEVELS[0], |level, (mid, next)| if x > *mid { *next } else { level })
    })
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn nearest(weights: &[f32], absmax: f32, mids: &[f32; 15], codes: &mut [u8]) {
    if absmax == 0.0 {
        codes.fill(7);
        return;
    }
    for (c, w) in codes.iter_mut().zip(weights) {
        let x = w / absmax;
        let mut code = 0u32;
        for m in mids {
            code += u32::from(x > *m);
        }
        *c = code as u8;
    }
}

/// Packs codes two a byte, the first in the high nibble; an odd last one is padded with zero.
pub fn pack(codes: &[u8], out: &mut Vec<u8>) {
    out.extend(codes.chunks(2).map(|p| p[0] << 4 | p.get(1).copied().unwrap_or(0)));
}

/// Double-quantized block scales.
#[derive(Debug, Clone, PartialEq)]
pub struct NestedAbsmax {
    /// One code a block, an index into [`dynamic_map`].
    pub codes: Vec<u8>,
    /// One scale for each [`NESTED_BLOCK`] blocks.
    pub absmax: Vec<f32>,
    /// Mean of the block scales, subtracted before quantization.
    pub offset: f32,
}

impl NestedAbsmax {
    /// The scale of block `i` as readers compute it; `map` is [`dynamic_map`].
    pub fn absmax(&self, map: &[f32; 256], i: usize) -> f32 {
        map[usize::from(self.codes[i])] * self.absmax[i / NESTED_BLOCK] + self.offset
    }
}

/// Quantizes the block scales of one matrix to 8 bits, as QLoRA's double quantization does.
pub fn nest(absmax: &[f32]) -> NestedAbsmax {
    let sum: f64 = absmax.iter().map(|&a| f64::from(a)).sum();
    let offset = if absmax.is_empty() { 0.0 } else { (sum / absmax.len() as f64) as f32 };
    let map = dynamic_map();
    let mids: Vec<f32> = map.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
    let mut nested = NestedAbsmax { codes: Vec::with_capacity(absmax.len()), absmax: Vec::new(), offset };
    for block in absmax.chunks(NESTED_BLOCK) {
        let centred: Vec<f32> = block.iter().map(|a| a - offset).collect();
        let max = rowmath::absmax(&centred);
        nested.absmax.push(max);
        nested.codes.extend(centred.iter().map(|c| {
            let x = if max == 0.0 { 0.0 } else { c / max };
            mids.partition_point(|m| *m < x) as u8
        }));
    }
    nested
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_decode_to_zero() {
        let mut out = Nf4Blocks::default();
        quantize_blocks(&[0.0; 70], 64, FloatType::F16, &mut out).expect("finite");
        assert_eq!(out.absmax, [0.0, 0.0]);
        assert!(out.codes.iter().all(|&c| c == 7));
    }

    #[test]
    fn nested_scales_are_near() {
        let absmax: Vec<f32> = (0..1000).map(|i| 0.1 + 0.05 * (i as f32 * 0.7).sin()).collect();
        let nested = nest(&absmax);
        let map = dynamic_map();
        for (i, a) in absmax.iter().enumerate() {
            let back = map[usize::from(nested.codes[i])] * nested.absmax[i / NESTED_BLOCK] + nested.offset;
            assert!((back - a).abs() < 0.001, "{back} {a}");
        }
    }

    proptest! {
        #[test]
        fn codes_are_the_nearest(src in prop::collection::vec(-3f32..3.0, 1..150)) {
            let mut out = Nf4Blocks::default();
            quantize_blocks(&src, 64, FloatType::F32, &mut out).expect("finite");
            for (i, (w, c)) in src.iter().zip(&out.codes).enumerate() {
                let x = w / out.absmax[i / 64];
                let d = |l: f32| (f64::from(l) - f64::from(x)).abs();
                let best = LEVELS.iter().map(|&l| d(l)).fold(f64::MAX, f64::min);
                prop_assert!(d(LEVELS[usize::from(*c)]) <= best + 1e-7);
            }
        }

        #[test]
        fn losses_are_those_of_the_codes(src in prop::collection::vec(-3f32..3.0, 1..300), block in 1usize..70, shift in 0.9f32..1.1) {
            let mut out = Nf4Blocks::default();
            quantize_blocks(&src, block, FloatType::F32, &mut out).expect("finite");
            let nested: Vec<f32> = out.absmax.iter().map(|a| a * shift).collect();
            for decoded in [None, Some(&nested[..])] {
                let found = loss(&src, block, FloatType::F32, decoded).expect("finite");
                let scale = |i: usize| f64::from(decoded.unwrap_or(&out.absmax)[i / block]);
                let term = |(i, w): (usize, &f32)| (f64::from(*w) - f64::from(LEVELS[usize::from(out.codes[i])]) * scale(i)).powi(2);
                let wanted: f64 = src.iter().enumerate().map(term).sum();
                // Each difference of f32s of size 3 is known to 2.4e-7; its square to twice that times itself.
                let n = src.len() as f64;
                let known = 1e-5 * wanted + 5e-7 * (n * wanted).sqrt() + 1e-12 * n;
                prop_assert!((found - wanted).abs() <= known, "{} {}", found, wanted);
            }
        }
    }
}
