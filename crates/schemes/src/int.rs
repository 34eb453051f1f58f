//! Symmetric integer schemes: absmax over a matrix, a row or a group.

use crate::{Bits, Error, FloatType, Grouping, measure};
use rowmath::absmax;
use rowmath::round::{nearest, nearest_i8};

/// Codes and scales of some rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntRows {
    /// One code a weight, in `[-qmax, qmax]`.
    pub codes: Vec<i8>,
    /// The scales of these rows in order, already rounded to their stored type
    /// (empty when one scale serves the whole matrix).
    pub scales: Vec<f32>,
}

/// `absmax / qmax`, rounded to the stored type.
pub fn scale_of(absmax: f32, bits: Bits, ty: FloatType) -> f32 {
    ty.round(absmax / f32::from(bits.qmax()))
}

/// Scales below this keep fewer than 6 bits in f16, whose steps end at 2^-24.
const SMALLEST_F16_SCALE: f32 = 3.814_697_3e-6;

/// Returns whether the type carries the scale: finite, and with its precision (an f16 scale below 2^-18 has lost it).
/// Scale 0 is that of a group of zeros.
pub fn scale_fits(unrounded: f32, ty: FloatType) -> bool {
    match ty {
        FloatType::F16 => unrounded == 0.0 || (SMALLEST_F16_SCALE..65520.0).contains(&unrounded),
        FloatType::F32 | FloatType::BF16 => {
            unrounded == 0.0 || (unrounded.is_normal() && ty.round(unrounded).is_finite())
        }
    }
}

/// Quantization of rows to integers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntScheme {
    /// Width of a code.
    pub bits: Bits,
    /// Weights that share a scale.
    pub grouping: Grouping,
    /// Type of the scales.
    pub scale: FloatType,
    /// The scale of the matrix, rounded, for [`Grouping::Tensor`].
    pub tensor_scale: f32,
}

impl IntScheme {
    /// Quantizes whole rows of `cols` weights, the first of them number `first_row`, and
    /// appends to `out`. A group of zeros gets scale 0 and codes 0.
    ///
    /// # Errors
    /// [`Error::NotFinite`], or [`Error::ScaleRange`] when a scale's type does not carry it.
    pub fn quantize(&self, src: &[f32], cols: usize, first_row: usize, out: &mut IntRows) -> Result<(), Error> {
        let start = out.codes.len();
        out.codes.resize(start + src.len(), 0);
        let mut rest = &mut out.codes[start..];
        let scales = &mut out.scales;
        self.each_group(src, cols, first_row, |weights, scale| {
            let codes = rest.split_off_mut(..weights.len()).unwrap_or_default();
            if self.grouping != Grouping::Tensor {
                scales.push(scale);
            }
            if scale != 0.0 {
                quantize(weights, scale, f32::from(self.bits.qmax()), codes);
            }
        })
    }

    /// Error of the same rows: the sum of squared differences to their decoded values.
    ///
    /// # Errors
    /// Those of [`Self::quantize`].
    pub fn loss(&self, src: &[f32], cols: usize, first_row: usize) -> Result<f64, Error> {
        let mut scales = Vec::new();
        self.each_group(src, cols, first_row, |_, scale| scales.push(scale))?;
        if cols == 0 {
            return Ok(0.0);
        }
        let (group, qmax) = (self.group(cols), f32::from(self.bits.qmax()));
        let rows = src.chunks_exact(cols).zip(scales.chunks_exact(cols.div_ceil(group)));
        Ok(rows.map(|(row, scales)| lost(row, group, scales, qmax)).sum())
    }

    /// Weights of a row that share a scale.
    fn group(&self, cols: usize) -> usize {
        match self.grouping {
            Grouping::Tensor | Grouping::Row => cols,
            Grouping::Group(n) => n,
        }
    }

    /// Hands out the weights that share a scale, with it.
    fn each_group(
        &self,
        src: &[f32],
        cols: usize,
        first_row: usize,
        mut see: impl FnMut(&[f32], f32),
    ) -> Result<(), Error> {
        let group = self.group(cols);
        if cols == 0 {
            return Ok(());
        }
        for (r, row) in src.chunks_exact(cols).enumerate() {
            for (g, weights) in row.chunks(group).enumerate() {
                let max = absmax(weights);
                if !max.is_finite() {
                    return Err(not_finite(weights, first_row + r, g * group));
                }
                let scale = match self.grouping {
                    Grouping::Tensor => self.tensor_scale,
                    _ => row_scale(max, self.bits, self.scale, first_row + r)?,
                };
                see(weights, scale);
            }
        }
        Ok(())
    }
}

/// bitsandbytes' rule for int8: the scale is the row's absmax itself, and the codes are
/// `round(w * (127 / absmax))` in f32, which differs from true division by one code in a few
/// thousand. Appends to `out`.
///
/// # Errors
/// [`Error::NotFinite`] with the row counted from `first_row`.
pub fn quantize_rows_scb(src: &[f32], cols: usize, first_row: usize, out: &mut IntRows) -> Result<(), Error> {
    for (r, row) in src.chunks_exact(cols.max(1)).enumerate() {
        let max = absmax(row);
        if !max.is_finite() {
            return Err(not_finite(row, first_row + r, 0));
        }
        out.scales.push(max);
        let factor = if max == 0.0 { 0.0 } else { 127.0 / max };
        out.codes.extend(row.iter().map(|w| nearest_i8((w * factor).clamp(-127.0, 127.0))));
    }
    Ok(())
}

fn row_scale(max: f32, bits: Bits, ty: FloatType, row: usize) -> Result<f32, Error> {
    let unrounded = max / f32::from(bits.qmax());
    if !scale_fits(unrounded, ty) {
        return Err(Error::ScaleRange { row, value: unrounded, ty });
    }
    Ok(ty.round(unrounded))
}

/// Names the first weight of `weights` that is not finite.
pub fn not_finite(weights: &[f32], row: usize, first_col: usize) -> Error {
    let col = weights.iter().position(|w| !w.is_finite()).unwrap_or(0);
    Error::NotFinite { row, col: first_col + col, value: weights.get(col).copied().unwrap_or(f32::NAN) }
}

/// `round(w / scale)`, ties to even, clamped to `[-qmax, qmax]`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub fn quantize(weights: &[f32], scale: f32, qmax: f32, codes: &mut [i8]) {
    for (c, w) in codes.iter_mut().zip(weights) {
        *c = nearest_i8((w / scale).clamp(-qmax, qmax));
    }
}

/// Squared error of a row.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn lost(row: &[f32], group: usize, scales: &[f32], qmax: f32) -> f64 {
    measure::group_losses(row, group, scales, scales, |x| nearest(x.clamp(-qmax, qmax)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(src: &[f32], cols: usize, bits: Bits, grouping: Grouping) -> IntRows {
        let mut out = IntRows::default();
        let scale = scale_of(absmax(src), bits, FloatType::F16);
        let scheme = IntScheme { bits, grouping, scale: FloatType::F16, tensor_scale: scale };
        scheme.quantize(src, cols, 0, &mut out).expect("finite");
        out
    }

    #[test]
    fn zeros_tiny_rows_and_the_negative_maximum() {
        let got = rows(&[0.0; 8], 4, Bits::Four, Grouping::Row);
        assert_eq!(got, IntRows { codes: vec![0; 8], scales: vec![0.0; 2] });
        let got = rows(&[-7.0, 3.5, 2.5, 7.0], 4, Bits::Four, Grouping::Row);
        assert_eq!(got.codes, [-7, 4, 2, 7], "ties go to even");
        assert!(!scale_fits(1e-30, FloatType::F16) && scale_fits(1e-30, FloatType::F32));
        assert!(!scale_fits(1e6, FloatType::F16) && !scale_fits(f32::INFINITY, FloatType::F32));
        assert!(scale_fits(0.0, FloatType::F16) && !scale_fits(f32::NAN, FloatType::F16));
    }

    #[test]
    fn not_finite_names_row_and_column() {
        let mut src = vec![1.0; 12];
        src[10] = f32::NAN;
        let mut out = IntRows::default();
        let scheme =
            IntScheme { bits: Bits::Eight, grouping: Grouping::Group(2), scale: FloatType::F16, tensor_scale: 0.0 };
        let e = scheme.quantize(&src, 4, 5, &mut out);
        assert!(matches!(e, Err(Error::NotFinite { row: 7, col: 2, .. })), "{e:?}");
    }

    /// Squared error of a run of weights by its definition, in f64.
    fn by_definition(src: &[f32], cols: usize, scheme: IntScheme) -> f64 {
        let mut out = IntRows::default();
        scheme.quantize(src, cols, 0, &mut out).expect("finite");
        let group = scheme.group(cols);
        let groups_of_row = cols.div_ceil(group);
        let scale = |i: usize| match scheme.grouping {
            Grouping::Tensor => scheme.tensor_scale,
            _ => out.scales[i / cols * groups_of_row + i % cols / group],
        };
        let term = |(i, w): (usize, &f32)| (f64::from(*w) - f64::from(out.codes[i]) * f64::from(scale(i))).powi(2);
        src.iter().enumerate().map(term).sum()
    }

    #[test]
    fn losses_of_any_size_and_of_zeros() {
        for magnitude in [1e-25f32, 1e-3, 1e25] {
            let src: Vec<f32> = (0..9000).map(|i| magnitude * ((i * 7919 % 2003) as f32 / 1001.0 - 1.0)).collect();
            let scheme =
                IntScheme { bits: Bits::Four, grouping: Grouping::Row, scale: FloatType::F32, tensor_scale: 0.0 };
            let (found, wanted) = (scheme.loss(&src, 9000, 0).expect("finite"), by_definition(&src, 9000, scheme));
            assert!((found / wanted - 1.0).abs() < 1e-5, "{found} {wanted}");
            assert_eq!(scheme.loss(&[0.0; 12], 6, 0), Ok(0.0));
        }
    }

    proptest! {
        #[test]
        fn codes_are_the_nearest(src in prop::collection::vec(-3072i32..3072, 1..200), four in any::<bool>(), group in 1usize..70) {
            // No group so small that f16 can't carry its scale.
            let src: Vec<f32> = src.into_iter().map(|i| i as f32 / 1024.0).collect();
            let bits = if four { Bits::Four } else { Bits::Eight };
            let got = rows(&src, src.len(), bits, Grouping::Group(group));
            for (g, (w, c)) in src.chunks(group).zip(got.codes.chunks(group)).enumerate() {
                let scale = got.scales[g];
                for (w, c) in w.iter().zip(c) {
                    prop_assert!(c.abs() <= bits.qmax());
                    let want = if scale == 0.0 { 0.0 } else { (w / scale).round_ties_even().clamp(-f32::from(bits.qmax()), f32::from(bits.qmax())) };
                    prop_assert_eq!(f32::from(*c), want);
                }
            }
        }

        #[test]
        fn losses_are_those_of_the_codes(src in prop::collection::vec(-3072i32..3072, 12..400), four in any::<bool>(), group in 1usize..70, kind in 0usize..3) {
            let src: Vec<f32> = src[..src.len() / 4 * 4].iter().map(|i| *i as f32 / 1024.0).collect();
            let bits = if four { Bits::Four } else { Bits::Eight };
            let grouping = [Grouping::Tensor, Grouping::Row, Grouping::Group(group)][kind];
            let tensor_scale = scale_of(absmax(&src), bits, FloatType::F16);
            let scheme = IntScheme { bits, grouping, scale: FloatType::F16, tensor_scale };
            let cols = src.len() / 4;
            let (found, wanted) = (scheme.loss(&src, cols, 0).expect("finite"), by_definition(&src, cols, scheme));
            // Each difference of f32s of size 3 is known to 2.4e-7; its square to twice that times itself.
            let n = src.len() as f64;
            let known = 1e-5 * wanted + 5e-7 * (n * wanted).sqrt() + 1e-12 * n;
            prop_assert!((found - wanted).abs() <= known, "{} {}", found, wanted);
        }
    }
}
