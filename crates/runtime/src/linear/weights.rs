//! Where the rows of a product come from: packed weights, decoded a tile at a time.

use crate::simd::Simd;
use schemes::{FloatType, Grouping, IntStorage, Matrix, Packing, RowOrder, Storage};
use store::Bytes;

/// Rows of weights `[rows, cols]`, of which the kernels ask for tiles.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Decoded with their scales.
    Matrix(&'a Matrix<Bytes>),
    /// Integer codes whose scale is one for the row or the matrix, and multiplies the sum.
    Codes(&'a IntStorage<Bytes>, RowOrder),
    /// F16 rows of so many columns.
    Halves(&'a [u8], usize, RowOrder),
}

/// The products that a matrix is made of, each with the columns of the input it takes.
pub fn parts(matrix: &Matrix<Bytes>) -> Vec<(Weights<'_>, Columns<'_>)> {
    let order = matrix.order();
    match matrix.storage() {
        Storage::Float(FloatType::F16, data) => vec![(Weights::Halves(data, matrix.cols(), order), Columns::All)],
        Storage::Int(int) if !matches!(int.grouping, Grouping::Group(_)) => {
            vec![(Weights::Codes(int, order), Columns::All)]
        }
        Storage::Outlier(o) if o.columns.is_empty() => vec![(Weights::Codes(&o.inner, order), Columns::All)],
        Storage::Outlier(o) => {
            let halves = Weights::Halves(&o.outliers, o.columns.len(), order);
            let mut all = vec![(halves, Columns::Only(&o.columns))];
            if o.columns.len() < matrix.cols() {
                all.insert(0, (Weights::Codes(&o.inner, order), Columns::Without(&o.columns)));
            }
            all
        }
        _ => vec![(Weights::Matrix(matrix), Columns::All)],
    }
}

/// Which columns of the input a product takes; the lists ascend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Columns<'a> {
    /// All.
    All,
    /// All but these.
    Without(&'a [u32]),
    /// These, unquantized whatever happens to the others.
    Only(&'a [u32]),
}

impl Weights<'_> {
    /// The factor of the sums of natural row `row`.
    pub fn row_scale(&self, row: usize) -> Option<f32> {
        match self {
            Weights::Codes(int, order) => Some(match int.grouping {
                Grouping::Tensor => int.scales.factor(0),
                _ => int.scales.factor(order.stored(row)),
            }),
            _ => None,
        }
    }

    /// Columns `start..start + out.len()` of natural row `row`, to be multiplied with
    /// [`Weights::row_scale`]. `start` is a multiple of [`schemes::DECODE_ALIGN`].
    #[inline(always)]
    pub fn decode<S: Simd>(&self, s: S, row: usize, start: usize, out: &mut [f32]) {
        match self {
            Weights::Matrix(m) => match m.storage() {
                Storage::Int(int) => {
                    let stored = m.order().stored(row);
                    codes(s, int, stored, start, out);
                    scale_groups(s, int, stored * int.grouping.per_row(m.cols()), start, out);
                }
                _ => m.decode_range(row, start, out),
            },
            Weights::Codes(int, order) => codes(s, int, order.stored(row), start, out),
            Weights::Halves(data, cols, order) => {
                let at = 2 * (order.stored(row) * cols + start);
                s.widen_f16(data[at..at + 2 * out.len()].as_chunks::<2>().0, out);
            }
        }
    }
}

#[inline(always)]
fn codes<S: Simd>(s: S, int: &IntStorage<Bytes>, stored: usize, start: usize, out: &mut [f32]) {
    let row = &int.codes[stored * int.row_bytes..(stored + 1) * int.row_bytes];
    match int.packing {
        Packing::I8 => s.widen_i8(&row[start..], 0, out),
        Packing::Offset8 => s.widen_i8(&row[start..], 0x80, out),
        Packing::Nibble => s.widen_nibbles(&row[start / 2..], out),
    }
}

/// Multiplies codes with the scales of their groups, as [`Matrix::decode_range`] does;
/// `base` is the index of the row's first scale.
#[inline(always)]
fn scale_groups<S: Simd>(s: S, int: &IntStorage<Bytes>, base: usize, start: usize, out: &mut [f32]) {
    let Grouping::Group(n) = int.grouping else { return };
    let (mut at, mut rest) = (start, out);
    while !rest.is_empty() {
        let take = (n - at % n).min(rest.len());
        let (now, later) = rest.split_at_mut(take);
        let scale = int.scales.factor(base + at / n);
        let whole = take / S::LANES * S::LANES;
        let v = s.splat(scale);
        for c in s.chunks_mut(&mut now[..whole]) {
            let scaled = s.mul(s.load(c), v);
            s.store(scaled, c);
        }
        now[whole..].iter_mut().for_each(|c| *c *= scale);
        (at, rest) = (at + take, later);
    }
}
