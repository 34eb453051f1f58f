//! Rounding of activations as other engines do it before they multiply.
//!
//! The products are then computed as always: what is reproduced is what an engine loses, not
//! the order of its sums.

use rayon::prelude::*;
use rowmath::absmax;
use schemes::{Activation, FloatType, GgmlType, ScaleUse, Storage};
use store::Linear;

/// Activations of this magnitude make their column an outlier in bitsandbytes, unless it is told
/// otherwise (Dettmers et al. 2022, LLM.int8()).
const OUTLIER: f32 = 6.0;

/// Engine whose arithmetic is reproduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Math {
    /// None: activations are rounded as the scheme says, and otherwise not.
    #[default]
    Exact,
    /// llama.cpp on a CPU: activations of a quantized layer become 8-bit blocks (32 columns, or 256
    /// for the types with blocks of 256), those of an F16 or BF16 layer that type.
    LlamaCpp,
    /// compressed-tensors: 8-bit activations by token have the scale absmax/127.5.
    CompressedTensors,
    /// bitsandbytes' LLM.int8: columns with a value of 6 or more stay as they are, the others become
    /// 8 bits by token. Layers in other layouts are multiplied in full precision there.
    Bitsandbytes,
}

/// One rounding of rows of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To a float type.
    To(FloatType),
    /// To 8-bit codes in blocks of 32 columns, with F16 scales (ggml's Q8_0 and Q8_1).
    Blocks32,
    /// To 8-bit codes in blocks of 256 columns, with F32 scales (ggml's Q8_K).
    Blocks256,
    /// To 8-bit codes by token, scale absmax/127.5.
    TokenHalfStep,
    /// LLM.int8: 8-bit codes by token, beside columns that are not rounded.
    Outliers,
}

impl Math {
    /// Rounding of a layer's input; none where the engine does as the layer's scheme says.
    pub fn rounding(self, layer: &Linear) -> Option<Rounding> {
        let storage = match (self, layer.matrix.storage()) {
            // llama.cpp scales the product, not the weights.
            (Math::LlamaCpp, Storage::Scaled(scaled)) => &*scaled.inner,
            (_, storage) => storage,
        };
        match (self, storage) {
            (Math::LlamaCpp, Storage::Float(FloatType::F32, _)) => None,
            (Math::LlamaCpp, Storage::Float(ty, _)) => Some(Rounding::To(*ty)),
            (Math::LlamaCpp, Storage::Ggml(ty, _)) => Some(ggml(*ty)),
            (Math::CompressedTensors, _) if layer.activation == Activation::Int8Token => Some(Rounding::TokenHalfStep),
            (Math::Bitsandbytes, Storage::Int(int)) if int.scales.usage == ScaleUse::Absmax127 => {
                Some(Rounding::Outliers)
            }
            _ => None,
        }
    }
}

/// Type to which ggml rounds activations that meet weights of a type.
fn ggml(ty: GgmlType) -> Rounding {
    if ty.block_len() == 256 { Rounding::Blocks256 } else { Rounding::Blocks32 }
}

impl Rounding {
    /// Rounded rows of `cols` values; those of a sequence, whose numbers are in `sequences`, are one
    /// call of the engine.
    pub fn round(self, rows: &[f32], cols: usize, sequences: &[usize]) -> Vec<f32> {
        let mut out = rows.to_vec();
        match self {
            Rounding::Outliers => {
                let mut rest = &mut out[..];
                for n in sequences {
                    let (rows, later) = rest.split_at_mut(n * cols);
                    outliers(rows, cols);
                    rest = later;
                }
            }
            _ => out.par_chunks_mut(cols).with_min_len(16).for_each(|row| self.row(row)),
        }
        out
    }

    fn row(self, row: &mut [f32]) {
        match self {
            Rounding::To(ty) => row.iter_mut().for_each(|x| *x = ty.round(*x)),
            Rounding::Blocks32 => row.chunks_mut(32).for_each(|block| {
                let top = absmax(block);
                let (scale, inverse) = (half::f16::from_f32(top / 127.0).to_f32(), inverse(127.0, top));
                block.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even() * scale);
            }),
            Rounding::Blocks256 => row.chunks_mut(256).for_each(|block| {
                // The code of the largest is -127, whatever its sign.
                let top = block.iter().fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
                let inverse = inverse(-127.0, top);
                let scale = if top == 0.0 { 0.0 } else { 1.0 / inverse };
                block.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even().min(127.0) * scale);
            }),
            Rounding::TokenHalfStep => {
                let scale = absmax(row) / 127.5;
                if scale > 0.0 {
                    row.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even().clamp(-128.0, 127.0) * scale);
                }
            }
            Rounding::Outliers => outliers(row, row.len()),
        }
    }
}

/// `of / top`; 0 where `top` is 0.
fn inverse(of: f32, top: f32) -> f32 {
    if top == 0.0 { 0.0 } else { of / top }
}

/// Rows that bitsandbytes multiplies in one call: it looks for outliers and rounds in F16, and a
/// column with one outlier is apart, in the model's own type, in all of them. A row's scale comes
/// from what is below the threshold.
fn outliers(rows: &mut [f32], cols: usize) {
    let f16 = |x: f32| FloatType::F16.round(x);
    let mut apart = vec![false; cols];
    for row in rows.chunks(cols) {
        row.iter().zip(&mut apart).for_each(|(x, apart)| *apart |= f16(*x).abs() >= OUTLIER);
    }
    for row in rows.chunks_mut(cols) {
        let top = row.iter().map(|x| f16(*x).abs()).filter(|x| *x < OUTLIER).fold(0f32, f32::max);
        for (x, _) in row.iter_mut().zip(&apart).filter(|(_, apart)| !**apart) {
            *x = (f16(*x) * inverse(127.0, top)).round_ties_even() * (top / 127.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 - n as f32 / 3.0) * 0.01).collect()
    }

    #[test]
    fn codes_are_whole_and_near() {
        let x = ramp(512);
        for (rounding, block, steps) in
            [(Rounding::Blocks32, 32, 127.0), (Rounding::Blocks256, 256, 127.0), (Rounding::TokenHalfStep, 512, 127.5)]
        {
            for (x, r) in x.chunks(block).zip(rounding.round(&x, 512, &[1]).chunks(block)) {
                let step = absmax(x) / steps;
                // F16 scales are off by 2^-11; the half step clips one end by half a step.
                x.iter().zip(r).for_each(|(x, r)| assert!((x - r).abs() <= 0.5 * step + x.abs() / 2000.0, "{x} {r}"));
                let codes: std::collections::BTreeSet<i32> = r.iter().map(|r| (r / step).round() as i32).collect();
                assert!(codes.len() <= 256 && codes.iter().all(|c| (-128..=128).contains(c)));
            }
        }
        assert_eq!(Rounding::Blocks32.round(&[0.0; 64], 64, &[1]), [0.0; 64]);
        assert_eq!(Rounding::Blocks256.round(&[0.0; 64], 64, &[1]), [0.0; 64]);
        assert_eq!(Rounding::To(FloatType::F16).round(&[1.0 + 1e-5], 1, &[1]), [1.0]);
    }

    #[test]
    fn outliers_keep_their_columns_in_every_row_of_a_call() {
        // Column 1 has an outlier in the first row only.
        let rows = [0.51, 7.0, 1.27, -0.26, 0.333, 1.27];
        let together = Rounding::Outliers.round(&rows, 3, &[2]);
        assert_eq!((together[1], together[4]), (7.0, 0.333));
        assert!((together[0] - 0.51).abs() < 1e-3 && (together[2] - 1.27).abs() < 1e-3);
        let alone = Rounding::Outliers.round(&rows, 3, &[1, 1]);
        assert!((alone[4] - 0.33).abs() < 1e-3, "{}", alone[4]);
    }
}
