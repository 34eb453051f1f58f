//! Integer codes with zero points, as GPTQ, AWQ and asymmetric compressed-tensors have them.

use crate::{Grouping, IntStorage};

/// Codes with a zero point and a scale for each group: `w = (code - zero) * scale`.
#[derive(Debug, Clone)]
pub struct AffineStorage<B> {
    /// Codes and scales.
    pub int: IntStorage<B>,
    /// One zero point for each scale.
    pub zeros: Vec<i16>,
    /// The group of each column, where columns are not grouped in order (GPTQ's activation order,
    /// `g_idx`).
    pub groups: Option<Vec<u32>>,
}

impl<B: AsRef<[u8]>> AffineStorage<B> {
    /// Describes a mismatch of zero points and scales with the matrix, if there is one. The number of codes, `rows x
    /// cols`, is checked elsewhere.
    pub(crate) fn fault(&self, rows: usize, cols: usize) -> Option<String> {
        match self.int.grouping.checked_count(rows, cols) {
            Some(count) if count == self.zeros.len() => {}
            Some(count) => return Some(format!("{} zero points for {count} scales", self.zeros.len())),
            None => return Some("too many zero points".into()),
        }
        let groups = self.groups.as_ref()?;
        let per_row = self.int.grouping.per_row(cols);
        if groups.len() != cols || !matches!(self.int.grouping, Grouping::Group(_)) {
            return Some(format!("groups of {} columns for {cols}", groups.len()));
        }
        let outside = groups.iter().find(|g| **g as usize >= per_row)?;
        Some(format!("group {outside} of {per_row}"))
    }

    /// Decodes columns `start..` of stored row `row`; `start` is even.
    pub(crate) fn decode(&self, row: usize, start: usize, cols: usize, out: &mut [f32]) {
        self.int.codes(row, start, out);
        let first = row * self.int.grouping.per_row(cols);
        let dequantize = |values: &mut [f32], group: usize| {
            let (zero, scale) = (f32::from(self.zeros[group]), self.int.scales.factor(group));
            values.iter_mut().for_each(|v| *v = (*v - zero) * scale);
        };
        match (&self.groups, self.int.grouping) {
            (Some(groups), _) => {
                for (value, group) in out.iter_mut().zip(&groups[start..]) {
                    dequantize(std::slice::from_mut(value), first + *group as usize);
                }
            }
            (None, Grouping::Group(n)) => {
                let (mut at, mut rest) = (start, out);
                while !rest.is_empty() {
                    let (now, later) = rest.split_at_mut((n - at % n).min(rest.len()));
                    dequantize(now, first + at / n);
                    (at, rest) = (at + now.len(), later);
                }
            }
            (None, Grouping::Row | Grouping::Tensor) => dequantize(out, first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FloatType, Matrix, Packing, RowOrder, ScaleArray, ScaleUse, Storage};

    fn storage(groups: Option<Vec<u32>>, zeros: Vec<i16>) -> AffineStorage<Vec<u8>> {
        // Codes -8, -7, -6, ... of two rows of six columns, in nibbles.
        let codes = vec![0x10, 0x32, 0x54, 0x76, 0x98, 0xBA];
        let data = [1.0f32, 10.0, 100.0, 1000.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scales = ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data };
        let int = IntStorage { packing: Packing::Nibble, row_bytes: 3, codes, grouping: Grouping::Group(3), scales };
        AffineStorage { int, zeros, groups }
    }

    fn matrix(storage: AffineStorage<Vec<u8>>) -> Result<Matrix<Vec<u8>>, crate::Error> {
        Matrix::new(2, 6, Storage::Affine(storage), RowOrder::Natural)
    }

    #[test]
    fn zero_points_and_orders_of_groups() {
        let in_order = matrix(storage(None, vec![-8, 0, 1, -1])).expect("fits");
        let all = [0., 1., 2., -50., -40., -30., -300., -200., -100., 2000., 3000., 4000.];
        assert_eq!(in_order.decode_all(), all);
        let ordered = matrix(storage(Some(vec![1, 0, 1, 0, 1, 0]), vec![-8, 0, 1, -1])).expect("fits");
        assert_eq!(ordered.decode_all()[..6], [-80., 1., -60., 3., -40., 5.]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (groups, zeros) in
            [(None, vec![0; 3]), (Some(vec![0; 5]), vec![0; 4]), (Some(vec![0, 0, 0, 1, 1, 2]), vec![0; 4])]
        {
            assert!(matrix(storage(groups, zeros)).is_err());
        }
    }
}
