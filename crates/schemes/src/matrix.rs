//! A matrix in packed form, decoded a row at a time.

use crate::{AffineStorage, Error, Float8Storage, FloatType, GgmlType, Grouping, Packing, decode_floats, ggml, nf4};
use std::borrow::Cow;

/// Order of stored rows relative to the natural (Hugging Face) order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Stored as is.
    Natural,
    /// llama.cpp's order of q and k rows: within a head of `head_dim` rows, the halves that
    /// rotate together are interleaved.
    Interleaved {
        /// Rows of one head; even.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Index at which the natural row `row` is stored.
    pub fn stored(self, row: usize) -> usize {
        match self {
            RowOrder::Natural => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, r) = (row / head_dim, row % head_dim);
                let (half, i) = (r / (head_dim / 2), r % (head_dim / 2));
                head * head_dim + 2 * i + half
            }
        }
    }

    /// The natural row that is stored as `stored`: the inverse of [`RowOrder::stored`].
    pub fn natural(self, stored: usize) -> usize {
        match self {
            RowOrder::Natural => stored,
            RowOrder::Interleaved { head_dim } => {
                let (head, r) = (stored / head_dim, stored % head_dim);
                head * head_dim + (r % 2) * (head_dim / 2) + r / 2
            }
        }
    }
}

/// Operation that turns a code and a stored scale into a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleUse {
    /// `w = code * scale`.
    Multiply,
    /// `w = code * absmax / 127`, computed as bitsandbytes does: `(code * absmax) * (1/127)`.
    Absmax127,
}

/// Scales as stored.
#[derive(Debug, Clone)]
pub struct ScaleArray<B> {
    /// Element type.
    pub ty: FloatType,
    /// Operation that applies a scale.
    pub usage: ScaleUse,
    /// The bytes, little-endian.
    pub data: B,
}

/// 1/127 in f32, as bitsandbytes has it.
pub const INV_127: f32 = 7.874_016e-3;

impl<B: AsRef<[u8]>> ScaleArray<B> {
    /// Scale `i` as stored.
    pub fn get(&self, i: usize) -> f32 {
        self.ty.get(self.data.as_ref(), i)
    }

    /// The factor of a code under scale `i`, rounded to f32.
    pub fn factor(&self, i: usize) -> f32 {
        match self.usage {
            ScaleUse::Multiply => self.get(i),
            ScaleUse::Absmax127 => self.get(i) * INV_127,
        }
    }

    fn apply(&self, i: usize, codes: &mut [f32]) {
        let scale = self.get(i);
        match self.usage {
            ScaleUse::Multiply => codes.iter_mut().for_each(|c| *c *= scale),
            ScaleUse::Absmax127 => codes.iter_mut().for_each(|c| *c = *c * scale * INV_127),
        }
    }
}

/// Symmetric integer codes with their scales.
#[derive(Debug, Clone)]
pub struct IntStorage<B> {
    /// Packing of codes into bytes.
    pub packing: Packing,
    /// Bytes from one row to the next.
    pub row_bytes: usize,
    /// The codes.
    pub codes: B,
    /// Weights that share a scale.
    pub grouping: Grouping,
    /// One scale for each group, row by row.
    pub scales: ScaleArray<B>,
}

/// Block scales of NF4.
#[derive(Debug, Clone)]
pub enum Nf4Absmax<B> {
    /// Stored as floats.
    Plain(ScaleArray<B>),
    /// Double-quantized: `absmax = map[code] * nested[i / 256] + offset`.
    Nested {
        /// One code a block.
        codes: B,
        /// The 256 levels of the codes.
        map: Box<[f32; 256]>,
        /// F32 little-endian, one for 256 blocks.
        nested: B,
        /// Mean of the block scales.
        offset: f32,
    },
}

/// NF4 codes over the row-major flattened matrix, the first of a pair in the high nibble.
#[derive(Debug, Clone)]
pub struct Nf4Storage<B> {
    /// Two codes a byte.
    pub codes: B,
    /// Weights that share a scale, over the flattened matrix.
    pub block: usize,
    /// The scales of the blocks.
    pub absmax: Nf4Absmax<B>,
    /// The 16 levels.
    pub levels: [f32; 16],
}

/// `int8-outlier`: some columns in f16, the rest int8 by row.
#[derive(Debug, Clone)]
pub struct OutlierStorage<B> {
    /// Codes of the other columns, `[rows, cols - columns.len()]`, in their order.
    pub inner: IntStorage<B>,
    /// The outlier columns, ascending.
    pub columns: Vec<u32>,
    /// Their weights, F16 `[rows, columns.len()]`.
    pub outliers: B,
}

/// The packed forms.
#[derive(Debug, Clone)]
pub enum Storage<B> {
    /// Not quantized.
    Float(FloatType, B),
    /// ggml blocks along rows.
    Ggml(GgmlType, B),
    /// Symmetric integers.
    Int(IntStorage<B>),
    /// Integers with zero points.
    Affine(AffineStorage<B>),
    /// 8-bit floats.
    Float8(Float8Storage<B>),
    /// NormalFloat4.
    Nf4(Nf4Storage<B>),
    /// int8 with f16 outlier columns.
    Outlier(OutlierStorage<B>),
    /// Any of the others, its weights multiplied by further factors.
    Scaled(ScaledStorage<B>),
}

/// Weights with factors beside those of their own form: `w = decoded * factor * columns[column]`.
#[derive(Debug, Clone)]
pub struct ScaledStorage<B> {
    /// The weights before the factors; not itself [`Storage::Scaled`].
    pub inner: Box<Storage<B>>,
    /// One factor for all weights (the second scale of NVFP4 in GGUF).
    pub factor: f32,
    /// One factor for each column (`pre_quant_scale`).
    pub columns: Option<Vec<f32>>,
}

/// A matrix `[rows, cols]` = `[out, in]` in packed form over bytes of type `B`
/// (`&[u8]`, `Vec<u8>`, or a view into a memory map).
#[derive(Debug, Clone)]
pub struct Matrix<B> {
    rows: usize,
    cols: usize,
    order: RowOrder,
    storage: Storage<B>,
}

/// Ranges given to [`Matrix::decode_range`] start at a multiple of this.
pub const DECODE_ALIGN: usize = 256;

impl<B: AsRef<[u8]>> Matrix<B> {
    /// Checks that every buffer has exactly the length that the shape needs.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Shape`], or [`Error::UnsupportedGgml`].
    pub fn new(rows: usize, cols: usize, storage: Storage<B>, order: RowOrder) -> Result<Self, Error> {
        let matrix = Matrix { rows, cols, order, storage };
        matrix.check_order()?;
        // Positions inside the matrix are computed as products of its sides.
        if rows.checked_mul(cols).is_none() {
            return Err(matrix.shape("a matrix".into(), "it has too many weights".into()));
        }
        matrix.check_storage(&matrix.storage)?;
        Ok(matrix)
    }

    fn check_storage(&self, storage: &Storage<B>) -> Result<(), Error> {
        let (rows, cols) = (self.rows, self.cols);
        match storage {
            Storage::Float(ty, data) => {
                self.check("weights", data, rows.checked_mul(cols).and_then(|n| n.checked_mul(ty.size())))
            }
            Storage::Ggml(ty, data) => {
                if !ty.is_decodable() {
                    return Err(Error::UnsupportedGgml(ty.to_string()));
                }
                let row = ty.row_bytes(cols).ok_or_else(|| {
                    self.shape(ty.to_string(), format!("rows must be multiples of {}", ty.block_len()))
                })?;
                self.check("blocks", data, rows.checked_mul(row))
            }
            Storage::Int(int) => self.check_int(int, cols),
            Storage::Affine(affine) => {
                self.check_int(&affine.int, cols)?;
                match affine.fault(rows, cols) {
                    Some(fault) => Err(self.shape("integer codes with zero points".into(), fault)),
                    None => Ok(()),
                }
            }
            Storage::Float8(f) => {
                if f.block.0 == 0 || f.block.1 == 0 {
                    return Err(self.shape("8-bit floats".into(), "the block is empty".into()));
                }
                self.check("codes", &f.codes, rows.checked_mul(cols))?;
                let (down, across) = f.blocks(rows, cols);
                let bytes = down.checked_mul(across).and_then(|n| n.checked_mul(f.scales.ty.size()));
                self.check("scales", &f.scales.data, bytes)
            }
            Storage::Nf4(nf4) => self.check_nf4(nf4),
            Storage::Outlier(o) => {
                let ascending = o.columns.windows(2).all(|w| w[0] < w[1]);
                if !ascending || o.columns.last().is_some_and(|&c| c as usize >= cols) {
                    return Err(self.shape("int8-outlier".into(), "outlier columns must ascend and lie inside".into()));
                }
                let bytes = o.columns.len().checked_mul(2).and_then(|row| row.checked_mul(rows));
                self.check("outlier columns", &o.outliers, bytes)?;
                self.check_int(&o.inner, cols - o.columns.len())
            }
            Storage::Scaled(s) => {
                if matches!(*s.inner, Storage::Scaled(_)) {
                    return Err(self.shape("scaled weights".into(), "they are scaled twice".into()));
                }
                if let Some(found) = s.columns.as_ref().map(Vec::len).filter(|n| *n != cols) {
                    return Err(self.shape("scaled weights".into(), format!("{found} factors for the columns")));
                }
                self.check_storage(&s.inner)
            }
        }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The packed form.
    pub fn storage(&self) -> &Storage<B> {
        &self.storage
    }

    /// Gives up the packed form.
    pub fn into_storage(self) -> Storage<B> {
        self.storage
    }

    /// Order of the rows in the packed form.
    pub fn order(&self) -> RowOrder {
        self.order
    }

    /// Bytes of codes and scales.
    pub fn packed_bytes(&self) -> usize {
        self.storage.packed_bytes()
    }

    /// Decodes natural row `row` into `out`, whose length is [`Matrix::cols`].
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one whole row");
        self.decode_range(row, 0, out);
    }

    /// Decodes columns `start..start + out.len()` of natural row `row`. `start` is a multiple
    /// of [`DECODE_ALIGN`], and the range ends at such a multiple or at the end of the row.
    ///
    /// Panics when the range lies outside the matrix.
    pub fn decode_range(&self, row: usize, start: usize, out: &mut [f32]) {
        let end = start + out.len();
        assert!(
            row < self.rows && end <= self.cols,
            "row {row}, columns {start}..{end} of {} x {}",
            self.rows,
            self.cols
        );
        debug_assert!(start.is_multiple_of(DECODE_ALIGN) && (end.is_multiple_of(DECODE_ALIGN) || end == self.cols));
        self.storage.decode(self.order.stored(row), start, self.cols, out);
    }

    /// The whole matrix, row by row in natural order. For small matrices and tests.
    pub fn decode_all(&self) -> Vec<f32> {
        let mut out = vec![0f32; self.rows * self.cols];
        if self.cols > 0 {
            out.chunks_exact_mut(self.cols).enumerate().for_each(|(r, row)| self.decode_row(r, row));
        }
        out
    }

    fn shape(&self, what: String, why: String) -> Error {
        Error::Shape { what, rows: self.rows, cols: self.cols, why }
    }

    fn check(&self, what: &'static str, data: &B, expected: Option<usize>) -> Result<(), Error> {
        let found = data.as_ref().len();
        match expected {
            Some(n) if n == found => Ok(()),
            _ => Err(Error::Length {
                what,
                expected: expected.unwrap_or(usize::MAX),
                found,
                rows: self.rows,
                cols: self.cols,
            }),
        }
    }

    fn check_order(&self) -> Result<(), Error> {
        match self.order {
            RowOrder::Interleaved { head_dim }
                if head_dim == 0 || head_dim % 2 == 1 || !self.rows.is_multiple_of(head_dim) =>
            {
                Err(self.shape(
                    "the interleaved rotary order".into(),
                    format!("rows must be heads of an even size, not {head_dim}"),
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_int(&self, int: &IntStorage<B>, cols: usize) -> Result<(), Error> {
        if int.row_bytes < int.packing.row_bytes(cols) || matches!(int.grouping, Grouping::Group(0)) {
            return Err(self.shape("integer codes".into(), format!("{} bytes a row", int.row_bytes)));
        }
        self.check("codes", &int.codes, self.rows.checked_mul(int.row_bytes))?;
        let scales = int.grouping.checked_count(self.rows, cols).and_then(|n| n.checked_mul(int.scales.ty.size()));
        self.check("scales", &int.scales.data, scales)
    }

    fn check_nf4(&self, n: &Nf4Storage<B>) -> Result<(), Error> {
        if n.block == 0 {
            return Err(self.shape("nf4".into(), "the block is empty".into()));
        }
        let total = self.rows.checked_mul(self.cols);
        self.check("codes", &n.codes, total.map(|t| t.div_ceil(2)))?;
        let blocks = total.map(|t| t.div_ceil(n.block));
        match &n.absmax {
            Nf4Absmax::Plain(s) => self.check("absmax", &s.data, blocks.and_then(|b| b.checked_mul(s.ty.size()))),
            Nf4Absmax::Nested { codes, nested, .. } => {
                self.check("absmax", codes, blocks)?;
                self.check("nested absmax", nested, blocks.and_then(|b| b.div_ceil(nf4::NESTED_BLOCK).checked_mul(4)))
            }
        }
    }
}

impl<B: AsRef<[u8]>> Storage<B> {
    /// Bytes of codes and scales.
    pub fn packed_bytes(&self) -> usize {
        let len = |b: &B| b.as_ref().len();
        match self {
            Storage::Float(_, b) | Storage::Ggml(_, b) => len(b),
            Storage::Int(i) => len(&i.codes) + len(&i.scales.data),
            Storage::Affine(a) => {
                let order = a.groups.as_ref().map_or(0, |g| 4 * g.len());
                len(&a.int.codes) + len(&a.int.scales.data) + 2 * a.zeros.len() + order
            }
            Storage::Float8(f) => len(&f.codes) + len(&f.scales.data),
            Storage::Nf4(n) => {
                len(&n.codes)
                    + match &n.absmax {
                        Nf4Absmax::Plain(s) => len(&s.data),
                        Nf4Absmax::Nested { codes, nested, .. } => len(codes) + len(nested),
                    }
            }
            Storage::Outlier(o) => {
                len(&o.inner.codes) + len(&o.inner.scales.data) + len(&o.outliers) + 4 * o.columns.len()
            }
            Storage::Scaled(s) => s.inner.packed_bytes() + 4 + s.columns.as_ref().map_or(0, |c| 4 * c.len()),
        }
    }

    /// Decodes columns `start..` of stored row `row` of a matrix with `cols` columns.
    fn decode(&self, row: usize, start: usize, cols: usize, out: &mut [f32]) {
        match self {
            Storage::Float(ty, data) => {
                let at = (row * cols + start) * ty.size();
                decode_floats(*ty, &data.as_ref()[at..], out);
            }
            Storage::Ggml(ty, data) => {
                let width = cols / ty.block_len() * ty.block_bytes();
                let at = row * width + start / ty.block_len() * ty.block_bytes();
                ggml::decode(*ty, &data.as_ref()[at..at + out.len() / ty.block_len() * ty.block_bytes()], out);
            }
            Storage::Int(int) => int.decode(row, start, cols, out),
            Storage::Affine(a) => a.decode(row, start, cols, out),
            Storage::Float8(f) => f.decode(row, start, cols, out),
            Storage::Nf4(n) => n.decode(row * cols + start, out),
            Storage::Outlier(o) => o.decode(row, start, cols, out),
            Storage::Scaled(s) => {
                s.inner.decode(row, start, cols, out);
                out.iter_mut().for_each(|v| *v *= s.factor);
                if let Some(columns) = &s.columns {
                    out.iter_mut().zip(&columns[start..]).for_each(|(v, c)| *v *= c);
                }
            }
        }
    }
}

impl<B: AsRef<[u8]>> IntStorage<B> {
    /// Codes `start..` of stored row `row`, as floats, without their scales. `start` is even.
    pub fn codes(&self, row: usize, start: usize, out: &mut [f32]) {
        let at = row * self.row_bytes;
        self.packing.unpack(&self.codes.as_ref()[at..at + self.row_bytes], start, out);
    }

    fn decode(&self, row: usize, start: usize, cols: usize, out: &mut [f32]) {
        self.codes(row, start, out);
        match self.grouping {
            Grouping::Tensor => self.scales.apply(0, out),
            Grouping::Row => self.scales.apply(row, out),
            Grouping::Group(n) => {
                let base = row * cols.div_ceil(n);
                let (mut at, mut rest) = (start, out);
                while !rest.is_empty() {
                    let take = (n - at % n).min(rest.len());
                    let (now, later) = rest.split_at_mut(take);
                    self.scales.apply(base + at / n, now);
                    (at, rest) = (at + take, later);
                }
            }
        }
    }
}

impl<B: AsRef<[u8]>> Nf4Storage<B> {
    /// The scale of block `i`.
    pub fn absmax(&self, i: usize) -> f32 {
        match &self.absmax {
            Nf4Absmax::Plain(s) => s.get(i),
            Nf4Absmax::Nested { codes, map, nested, offset } => {
                map[usize::from(codes.as_ref()[i])] * FloatType::F32.get(nested.as_ref(), i / nf4::NESTED_BLOCK)
                    + offset
            }
        }
    }

    fn decode(&self, at: usize, out: &mut [f32]) {
        let codes = self.codes.as_ref();
        let (mut at, mut rest) = (at, out);
        while !rest.is_empty() {
            let take = (self.block - at % self.block).min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            let absmax = self.absmax(at / self.block);
            let scaled = self.levels.map(|l| l * absmax);
            if at.is_multiple_of(2) {
                for (pair, &b) in now.chunks_mut(2).zip(&codes[at / 2..]) {
                    pair[0] = scaled[usize::from(b >> 4)];
                    if let Some(second) = pair.get_mut(1) {
                        *second = scaled[usize::from(b & 15)];
                    }
                }
            } else {
                for (i, o) in (at..).zip(now.iter_mut()) {
                    *o = scaled[usize::from(codes[i / 2] >> (4 * (1 - i % 2)) & 15)];
                }
            }
            (at, rest) = (at + take, later);
        }
    }
}

impl<B: AsRef<[u8]>> OutlierStorage<B> {
    /// The f16 weights of stored row `row` at the outlier columns.
    pub fn outlier_row(&self, row: usize) -> Cow<'_, [u8]> {
        let n = 2 * self.columns.len();
        Cow::Borrowed(&self.outliers.as_ref()[row * n..(row + 1) * n])
    }

    fn decode(&self, row: usize, start: usize, cols: usize, out: &mut [f32]) {
        // Inner and outlier columns interleave, so the inner codes that the range needs
        // start at an index that may be odd: decode the row's inner part whole.
        let mut inner = vec![0f32; cols - self.columns.len()];
        self.inner.codes(row, 0, &mut inner);
        let scale = self.inner.scales.factor(row);
        let first = self.columns.partition_point(|&c| (c as usize) < start);
        let (mut next_outlier, mut next_inner) = (first, start - first);
        for (col, o) in (start..).zip(out.iter_mut()) {
            if self.columns.get(next_outlier).is_some_and(|&c| c as usize == col) {
                *o = FloatType::F16.get(self.outliers.as_ref(), row * self.columns.len() + next_outlier);
                next_outlier += 1;
            } else {
                *o = inner[next_inner] * scale;
                next_inner += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_a_permutation_of_each_head() {
        let order = RowOrder::Interleaved { head_dim: 8 };
        let stored: Vec<usize> = (0..16).map(|r| order.stored(r)).collect();
        assert_eq!(stored, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
        assert!((0..16).all(|r| order.natural(order.stored(r)) == r));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let short = Storage::Float(FloatType::F16, vec![0u8; 11]);
        assert!(matches!(
            Matrix::new(2, 3, short, RowOrder::Natural),
            Err(Error::Length { expected: 12, found: 11, .. })
        ));
        let huge = Storage::Float(FloatType::F32, vec![0u8; 4]);
        assert!(Matrix::new(usize::MAX, 2, huge, RowOrder::Natural).is_err());
        // Products of sides that do not fit a word are errors, not panics.
        let data = || ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: vec![0u8; 4] };
        for grouping in [Grouping::Group(1), Grouping::Row, Grouping::Tensor] {
            let int =
                IntStorage { packing: Packing::I8, row_bytes: 1 << 40, codes: vec![0u8; 4], grouping, scales: data() };
            assert!(Matrix::new(1 << 40, 1 << 40, Storage::Int(int), RowOrder::Natural).is_err());
        }
        let nf4 =
            Nf4Storage { codes: vec![0u8; 4], block: 1, absmax: Nf4Absmax::Plain(data()), levels: crate::nf4::LEVELS };
        assert!(Matrix::new(1 << 40, 1 << 40, Storage::Nf4(nf4), RowOrder::Natural).is_err());
    }

    #[test]
    fn factors_beside_a_form() {
        let values: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scaled = |columns: Option<Vec<f32>>| {
            let inner = Box::new(Storage::Float(FloatType::F32, values.clone()));
            Matrix::new(2, 2, Storage::Scaled(ScaledStorage { inner, factor: 0.5, columns }), RowOrder::Natural)
        };
        assert_eq!(scaled(None).expect("fits").decode_all(), [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(scaled(Some(vec![2.0, 10.0])).expect("fits").decode_all(), [1.0, 10.0, 3.0, 20.0]);
        assert!(scaled(Some(vec![1.0])).is_err());
    }
}
