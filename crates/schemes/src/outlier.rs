//! `int8-outlier`: the static form of LLM.int8 (Dettmers et al. 2022).

use crate::{Bits, Error, FloatType, Grouping, int};

/// The calibrated activation absmax from which on an input column is an outlier.
pub const THRESHOLD: f32 = 6.0;

/// Columns whose calibrated activation absmax reaches `threshold`, ascending.
pub fn outlier_columns(activation_absmax: &[f32], threshold: f32) -> Vec<u32> {
    (0u32..).zip(activation_absmax).filter(|(_, m)| **m >= threshold).map(|(i, _)| i).collect()
}

/// Splits rows `[n, cols]` into the columns kept for int8 and those in `columns` (ascending).
/// Both are appended row by row.
pub fn split_rows(src: &[f32], cols: usize, columns: &[u32], kept: &mut Vec<f32>, outliers: &mut Vec<f32>) {
    if cols == 0 {
        return;
    }
    for row in src.chunks_exact(cols) {
        let mut from = 0;
        for &c in columns {
            let c = c as usize;
            kept.extend_from_slice(&row[from..c]);
            outliers.push(row[c]);
            from = c + 1;
        }
        kept.extend_from_slice(&row[from..]);
    }
}

/// Quantizes the kept columns by row; see [`int::IntScheme::quantize`].
///
/// # Errors
/// [`Error::NotFinite`], the column counted among the kept ones.
pub fn quantize_kept(
    kept: &[f32],
    kept_cols: usize,
    first_row: usize,
    ty: FloatType,
    out: &mut int::IntRows,
) -> Result<(), Error> {
    let scheme = int::IntScheme { bits: Bits::Eight, grouping: Grouping::Row, scale: ty, tensor_scale: 0.0 };
    scheme.quantize(kept, kept_cols, first_row, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_split_by_column() {
        let columns = outlier_columns(&[0.5, 6.0, 5.9, 80.0], THRESHOLD);
        assert_eq!(columns, [1, 3]);
        let (mut kept, mut out) = (Vec::new(), Vec::new());
        split_rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 4, &columns, &mut kept, &mut out);
        assert_eq!(kept, [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(out, [2.0, 4.0, 6.0, 8.0]);
    }
}
