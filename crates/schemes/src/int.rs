//! Symmetric integer schemes: absmax over a matrix, a row or a group.

use crate::{Bits, Error, FloatType, Grouping};

/// Codes and scales of some rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntRows {
    /// One code a weight, in `[-qmax, qmax]`.
    pub codes: Vec<i8>,
    /// The scales of these rows in order, already rounded to their stored type
    /// (empty when one scale serves the whole matrix).
    pub scales: Vec<f32>,
}

/// The largest absolute value; NaN when any value is NaN.
pub fn absmax(values: &[f32]) -> f32 {
    // A maximum over bit patterns without the sign: vectorizes, and NaN comes out on top.
    let mut lanes = [0u32; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (m, v) in lanes.iter_mut().zip(chunk) {
            *m = (*m).max(v.to_bits() & 0x7FFF_FFFF);
        }
    }
    let rest = chunks.remainder().iter().map(|v| v.to_bits() & 0x7FFF_FFFF);
    f32::from_bits(lanes.into_iter().chain(rest).max().unwrap_or(0))
}

/// `absmax / qmax`, rounded to the stored type.
pub fn scale_of(absmax: f32, bits: Bits, ty: FloatType) -> f32 {
    ty.round(absmax / f32::from(bits.qmax()))
}

/// Scales below this keep fewer than 6 bits in f16, whose steps end at 2^-24.
const SMALLEST_F16_SCALE: f32 = 3.814_697_3e-6;

/// Whether the type carries the scale: finite, and with its precision (an f16 scale below
/// 2^-18 has lost it). Scale 0 is that of a group of zeros.
pub fn scale_fits(unrounded: f32, ty: FloatType) -> bool {
    match ty {
        FloatType::F16 => unrounded == 0.0 || (SMALLEST_F16_SCALE..65520.0).contains(&unrounded),
        FloatType::F32 | FloatType::BF16 => {
            unrounded == 0.0 || (unrounded.is_normal() && ty.round(unrounded).is_finite())
        }
    }
}

/// How rows are quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntScheme {
    /// Width of a code.
    pub bits: Bits,
    /// Which weights share a scale.
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
        let IntScheme { bits, grouping, scale: ty, tensor_scale } = *self;
        let start = out.codes.len();
        out.codes.resize(start + src.len(), 0);
        let group = match grouping {
            Grouping::Tensor | Grouping::Row => cols,
            Grouping::Group(n) => n,
        };
        if cols == 0 {
            return Ok(());
        }
        let rows = src.chunks_exact(cols).zip(out.codes[start..].chunks_exact_mut(cols));
        for (r, (row, codes)) in rows.enumerate() {
            for (g, (weights, codes)) in row.chunks(group).zip(codes.chunks_mut(group)).enumerate() {
                let max = absmax(weights);
                if !max.is_finite() {
                    return Err(not_finite(weights, first_row + r, g * group));
                }
                let scale =
                    if grouping == Grouping::Tensor { tensor_scale } else { row_scale(max, bits, ty, first_row + r)? };
                if grouping != Grouping::Tensor {
                    out.scales.push(scale);
                }
                if scale != 0.0 {
                    quantize(weights, scale, f32::from(bits.qmax()), codes);
                }
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
        out.codes.extend(row.iter().map(|w| rounded((w * factor).clamp(-127.0, 127.0))));
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

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for
/// |x| < 2^22, and unlike `round_ties_even` it vectorizes on every target.
const ROUND: f32 = 12_582_912.0;

/// The nearest integer to `x` in [-127, 127], ties to even: the sum's low byte is the integer in
/// two's complement. (A cast from float would check its range and keep loops scalar.)
#[inline(always)]
fn rounded(x: f32) -> i8 {
    (x + ROUND).to_bits() as i8
}

/// `round(w / scale)`, ties to even, clamped to `[-qmax, qmax]`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub fn quantize(weights: &[f32], scale: f32, qmax: f32, codes: &mut [i8]) {
    for (c, w) in codes.iter_mut().zip(weights) {
        *c = rounded((w / scale).clamp(-qmax, qmax));
    }
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
    }
}
