//! Weights in 8-bit floats, E4M3, with scales for blocks.

use crate::ScaleArray;

/// Codes of one byte, and a scale for each block of rows and columns: `w = value(code) * scale`.
#[derive(Debug, Clone)]
pub struct Float8Storage<B> {
    /// E4M3 codes, row by row.
    pub codes: B,
    /// Rows and columns that share a scale. Larger than the matrix, it has one.
    pub block: (usize, usize),
    /// The scales, row of blocks by row of blocks.
    pub scales: ScaleArray<B>,
}

/// The value of an E4M3 code (Micikevicius et al. 2022, "FP8 formats for deep learning"): four bits
/// of exponent with bias 7, three of mantissa, no infinities; 0x7F and 0xFF are NaN.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

impl<B: AsRef<[u8]>> Float8Storage<B> {
    /// Blocks across and down a matrix of `rows x cols`.
    pub fn blocks(&self, rows: usize, cols: usize) -> (usize, usize) {
        (rows.div_ceil(self.block.0.max(1)), cols.div_ceil(self.block.1.max(1)))
    }

    /// Decodes columns `start..` of stored row `row`.
    pub(crate) fn decode(&self, row: usize, start: usize, cols: usize, out: &mut [f32]) {
        let values = &*VALUES;
        let first = row / self.block.0 * self.blocks(1, cols).1;
        let codes = &self.codes.as_ref()[row * cols + start..][..out.len()];
        let width = self.block.1;
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let take = (width - at % width).min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            let scale = self.scales.factor(first + at / width);
            for (o, c) in now.iter_mut().zip(&codes[at - start..]) {
                *o = values[usize::from(*c)] * scale;
            }
            (at, rest) = (at + take, later);
        }
    }
}

static VALUES: std::sync::LazyLock<[f32; 256]> = std::sync::LazyLock::new(|| std::array::from_fn(|i| e4m3(i as u8)));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FloatType, Matrix, RowOrder, ScaleUse, Storage};

    #[test]
    fn known_codes() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7E, 448.0),
            (0xB8, -1.0),
        ] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7F).is_nan() && e4m3(0xFF).is_nan());
        assert!((0..0x7E).all(|c| e4m3(c) < e4m3(c + 1)), "codes ascend");
    }

    #[test]
    fn a_scale_for_each_block() {
        let data = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scales = ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data };
        let storage = Float8Storage { codes: vec![0x38u8; 15], block: (2, 3), scales };
        let matrix = Matrix::new(3, 5, Storage::Float8(storage), RowOrder::Natural).expect("fits");
        assert_eq!(matrix.decode_all(), [1., 1., 1., 2., 2., 1., 1., 1., 2., 2., 3., 3., 3., 4., 4.]);
        let scales = ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: vec![0u8; 12] };
        let short = Float8Storage { codes: vec![0x38u8; 15], block: (2, 3), scales };
        assert!(Matrix::new(3, 5, Storage::Float8(short), RowOrder::Natural).is_err());
    }
}
