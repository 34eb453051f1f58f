//! Rows of a product: packed weights, decoded a tile at a time.

use super::codes::Codes;
use crate::simd::Simd;
use schemes::{FloatType, Grouping, IntStorage, Matrix, Nf4Storage, Packing, RowOrder, Storage};
use store::Bytes;

/// Rows of weights `[rows, cols]`, of which the kernels ask for tiles.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Decoded with their scales.
    Matrix(&'a Matrix<Bytes>),
    /// F16 rows of so many columns.
    Halves(&'a [u8], usize, RowOrder),
}

/// One of the products that a matrix is made of.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// In f32.
    Float(Weights<'a>),
    /// In integers.
    Integer(Codes<'a>),
}

/// The products that a matrix is made of, each with the columns of the input it takes. An input
/// that an engine's rounding made is not to be `rounded` again, so it is multiplied in f32: small
/// blocks beside a large one would lose more to 16-bit codes than to the engine's 8 bits.
pub fn parts(matrix: &Matrix<Bytes>, rounded: bool) -> Vec<(Part<'_>, Columns<'_>)> {
    let order = matrix.order();
    if let Some(codes) = Codes::from_matrix(matrix).filter(|_| !rounded) {
        return vec![(Part::Integer(codes), Columns::All)];
    }
    let halves = |data, cols| Part::Float(Weights::Halves(data, cols, order));
    match matrix.storage() {
        Storage::Float(FloatType::F16, data) => vec![(halves(data, matrix.cols()), Columns::All)],
        Storage::Outlier(o) => {
            let kept = matrix.cols() - o.columns.len();
            let inner = Part::Integer(Codes::by_row(&o.inner, order, kept));
            let outliers = halves(&o.outliers, o.columns.len());
            match (kept, o.columns.len()) {
                (_, 0) => vec![(inner, Columns::All)],
                (0, _) => vec![(outliers, Columns::Only(&o.columns))],
                _ => vec![(inner, Columns::Without(&o.columns)), (outliers, Columns::Only(&o.columns))],
            }
        }
        _ => vec![(Part::Float(Weights::Matrix(matrix)), Columns::All)],
    }
}

/// Columns of the input that a product takes; the lists ascend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Columns<'a> {
    /// All.
    All,
    /// All but these.
    Without(&'a [u32]),
    /// The columns listed, unquantized whatever happens to the others.
    Only(&'a [u32]),
}

impl Weights<'_> {
    /// The bytes of the codes and of one row of them; none where they are of two kinds.
    pub fn bytes(&self) -> Option<(&[u8], usize)> {
        match self {
            Weights::Halves(data, cols, _) => Some((data, 2 * cols)),
            Weights::Matrix(m) => {
                let data: &[u8] = match m.storage() {
                    Storage::Float(_, data) | Storage::Ggml(_, data) => data,
                    Storage::Int(int) => &int.codes,
                    Storage::Affine(affine) => &affine.int.codes,
                    Storage::Float8(float) => &float.codes,
                    Storage::Nf4(n) => &n.codes,
                    Storage::Outlier(_) | Storage::Scaled(_) => return None,
                };
                Some((data, data.len() / m.rows().max(1)))
            }
        }
    }

    /// Order of the rows.
    pub fn order(&self) -> RowOrder {
        match self {
            Weights::Halves(_, _, order) => *order,
            Weights::Matrix(m) => m.order(),
        }
    }

    /// Columns `start..start + out.len()` of natural row `row`, `start` is a multiple of [`schemes::DECODE_ALIGN`].
    #[inline(always)]
    pub fn decode<S: Simd>(&self, s: S, row: usize, start: usize, out: &mut [f32]) {
        match self {
            Weights::Matrix(m) => {
                let stored = m.order().stored(row);
                match m.storage() {
                    Storage::Int(int @ IntStorage { grouping: Grouping::Group(n), .. }) => {
                        groups(s, int, *n, stored, m.cols(), start, out);
                    }
                    Storage::Nf4(n) if n.block.is_multiple_of(2) && m.cols().is_multiple_of(2) => {
                        levels(s, n, stored * m.cols() + start, out);
                    }
                    _ => m.decode_range(row, start, out),
                }
            }
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

/// Codes times the scales of their groups of `n`, as [`Matrix::decode_range`] has it (a factor of
/// absmax / 127 is rounded once more here).
#[inline(always)]
fn groups<S: Simd>(s: S, int: &IntStorage<Bytes>, n: usize, stored: usize, cols: usize, start: usize, out: &mut [f32]) {
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
