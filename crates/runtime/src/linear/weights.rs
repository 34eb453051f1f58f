//! Where the rows of a product come from: packed weights, decoded a tile at a time.

use crate::simd::Simd;
use schemes::{FloatType, GgmlType, Grouping, IntStorage, Matrix, Nf4Storage, Packing, RowOrder, Storage};
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

    /// The bytes of the codes and of one row of them; none where they are of two kinds.
    pub fn bytes(&self) -> Option<(&[u8], usize)> {
        match self {
            Weights::Halves(data, cols, _) => Some((data, 2 * cols)),
            Weights::Codes(int, _) => Some((&int.codes, int.row_bytes)),
            Weights::Matrix(m) => {
                let data: &[u8] = match m.storage() {
                    Storage::Float(_, data) | Storage::Ggml(_, data) => data,
                    Storage::Int(int) => &int.codes,
                    Storage::Nf4(n) => &n.codes,
                    Storage::Outlier(_) => return None,
                };
                Some((data, data.len() / m.rows().max(1)))
            }
        }
    }

    /// How rows are ordered.
    pub fn order(&self) -> RowOrder {
        match self {
            Weights::Halves(_, _, order) | Weights::Codes(_, order) => *order,
            Weights::Matrix(m) => m.order(),
        }
    }

    /// Columns `start..start + out.len()` of natural row `row`, to be multiplied with
    /// [`Weights::row_scale`]. `start` is a multiple of [`schemes::DECODE_ALIGN`].
    #[inline(always)]
    pub fn decode<S: Simd>(&self, s: S, row: usize, start: usize, out: &mut [f32]) {
        match self {
            Weights::Matrix(m) => {
                let stored = m.order().stored(row);
                match m.storage() {
                    Storage::Int(int) => groups(s, int, stored, m.cols(), start, out),
                    Storage::Ggml(ty, data) if matches!(*ty, GgmlType::Q8_0 | GgmlType::Q4_0) => {
                        let bytes = ty.block_bytes();
                        let first = (stored * m.cols() + start) / 32 * bytes;
                        blocks(s, &data[first..first + out.len() / 32 * bytes], bytes, out);
                    }
                    Storage::Nf4(n) if n.block.is_multiple_of(2) && m.cols().is_multiple_of(2) => {
                        levels(s, n, stored * m.cols() + start, out);
                    }
                    _ => m.decode_range(row, start, out),
                }
            }
            Weights::Codes(int, order) => codes(s, int, order.stored(row), start, 1.0, out),
            Weights::Halves(data, cols, order) => {
                let at = 2 * (order.stored(row) * cols + start);
                s.widen_f16(data[at..at + 2 * out.len()].as_chunks::<2>().0, out);
            }
        }
    }
}

/// Codes of stored row `stored` from column `start` on, times `scale`; `start` is even where
/// two share a byte.
#[inline(always)]
fn codes<S: Simd>(s: S, int: &IntStorage<Bytes>, stored: usize, start: usize, scale: f32, out: &mut [f32]) {
    let row = &int.codes[stored * int.row_bytes..(stored + 1) * int.row_bytes];
    match int.packing {
        Packing::I8 => s.widen_i8(&row[start..], 0, scale, out),
        Packing::Offset8 => s.widen_i8(&row[start..], 0x80, scale, out),
        Packing::Nibble => s.widen_nibbles(&row[start / 2..], scale, out),
    }
}

/// Codes times the scales of their groups, as [`Matrix::decode_range`] has it (a factor of
/// absmax / 127 is rounded once more here).
#[inline(always)]
fn groups<S: Simd>(s: S, int: &IntStorage<Bytes>, stored: usize, cols: usize, start: usize, out: &mut [f32]) {
    let Grouping::Group(n) = int.grouping else { return };
    let base = stored * cols.div_ceil(n);
    // A group that begins within a byte is widened with its row and scaled later.
    let whole_bytes = int.packing != Packing::Nibble || n.is_multiple_of(2);
    if !whole_bytes {
        codes(s, int, stored, start, 1.0, out);
    }
    let (mut at, mut rest) = (start, out);
    while !rest.is_empty() {
        let take = (n - at % n).min(rest.len());
        let (now, later) = rest.split_at_mut(take);
        let scale = int.scales.factor(base + at / n);
        if whole_bytes {
            codes(s, int, stored, at, scale, now);
        } else {
            now.iter_mut().for_each(|c| *c *= scale);
        }
        (at, rest) = (at + take, later);
    }
}

/// Blocks of Q8_0 or Q4_0, told apart by their bytes.
#[inline(always)]
fn blocks<S: Simd>(s: S, data: &[u8], bytes: usize, out: &mut [f32]) {
    for (block, out) in data.chunks_exact(bytes).zip(out.as_chunks_mut::<32>().0) {
        let scale = s.half([block[0], block[1]]);
        match block[2..].first_chunk::<16>() {
            Some(nibbles) if bytes == 18 => s.widen_halves_of_bytes(nibbles, scale, out),
            _ => s.widen_i8(&block[2..], 0, scale, out),
        }
    }
}

/// Levels of NF4 from the `at`-th weight of the flattened matrix on; `at` is even.
#[inline(always)]
fn levels<S: Simd>(s: S, n: &Nf4Storage<Bytes>, at: usize, out: &mut [f32]) {
    let (mut at, mut rest) = (at, out);
    while !rest.is_empty() {
        let take = (n.block - at % n.block).min(rest.len());
        let (now, later) = rest.split_at_mut(take);
        let (mut table, absmax) = (n.levels, n.absmax(at / n.block));
        table.iter_mut().for_each(|level| *level *= absmax);
        s.look_up(&n.codes[at / 2..], &table, now);
        (at, rest) = (at + take, later);
    }
}
