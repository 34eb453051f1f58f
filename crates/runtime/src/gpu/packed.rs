//! Weights in the forms that kernels read.

use crate::ComputeType;
use rayon::prelude::*;
use schemes::{
    FloatType, GgmlType, Grouping, IntStorage, Matrix, Nf4Absmax, Nf4Storage, Packing, RowOrder, ScaleArray, ScaleUse,
    Storage, encode_floats, ggml,
};
use std::fmt;
use store::Bytes;

/// Rows start at multiples of this, so that kernels load 16 bytes at a time.
const ALIGN: usize = 16;

/// Layout of the codes of a row in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Signed bytes.
    I8,
    /// Nibbles, code + 8, the first in the low nibble.
    U4,
    /// Nibbles that are indices into a table.
    Lut4,
    /// ggml's Q4_K as it is.
    Q4K,
    /// Floats.
    Float(FloatType),
}

/// Formats the name that kernels have for the format.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::I8 => f.write_str("i8"),
            Format::U4 => f.write_str("u4"),
            Format::Lut4 => f.write_str("lut4"),
            Format::Q4K => f.write_str("q4k"),
            Format::Float(ty) => write!(f, "{ty}"),
        }
    }
}

/// Rows `[rows, cols]` in natural order, in memory of some kind. What is absent is empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Packed<B = Vec<u8>> {
    /// Layout of the codes.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features that it takes.
    pub cols: usize,
    /// Bytes from row to row.
    pub row_bytes: usize,
    /// Columns that share a scale; 0 for one a row.
    pub group: usize,
    /// True if scales are f16, not f32.
    pub half_scales: bool,
    /// `[rows, row_bytes]`.
    pub codes: B,
    /// `[rows, groups]`, little-endian.
    pub scales: B,
    /// I16 `[rows, groups]`, little-endian.
    pub zeros: B,
    /// F32 `[16]`, little-endian.
    pub levels: B,
}

impl Packed {
    /// Bytes of everything.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.zeros.len() + self.levels.len()
    }

    /// Moves the lists to other memory; `place` uploads each of them.
    pub fn placed<C, E>(&self, place: impl Fn(&[u8]) -> Result<C, E>) -> Result<Packed<C>, E> {
        let Packed { format, rows, cols, row_bytes, group, half_scales, .. } = *self;
        let (codes, scales) = (place(&self.codes)?, place(&self.scales)?);
        let (zeros, levels) = (place(&self.zeros)?, place(&self.levels)?);
        Ok(Packed { format, rows, cols, row_bytes, group, half_scales, codes, scales, zeros, levels })
    }

    /// Returns whether rows of both can be rows of one matrix.
    fn joins(&self, other: &Packed) -> bool {
        let form = |p: &Packed| (p.format, p.cols, p.row_bytes, p.group, p.half_scales, p.zeros.is_empty());
        form(self) == form(other) && self.levels == other.levels
    }

    fn join(&mut self, other: Packed) {
        self.rows += other.rows;
        self.codes.extend(other.codes);
        self.scales.extend(other.scales);
        self.zeros.extend(other.zeros);
    }
}

/// One of the products that a matrix is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The weights.
    pub weights: Packed,
    /// The columns of the input that it takes, ascending; none for all.
    pub columns: Option<Vec<u32>>,
    /// True if its input is never quantized, whatever the layer asks for.
    pub exact: bool,
}

impl Part {
    fn whole(weights: Packed) -> Vec<Part> {
        vec![Part { weights, columns: None, exact: false }]
    }

    /// Returns whether the rows of `other` can be appended.
    pub fn fits(&self, other: &Part) -> bool {
        self.weights.joins(&other.weights) && self.columns == other.columns && self.exact == other.exact
    }

    /// Appends the rows of a part that fits.
    pub fn join(&mut self, other: Part) {
        self.weights.join(other.weights);
    }
}

/// The products of a matrix, and whether it had to be decoded: to f16, or to f32 where that is
/// what is computed in.
pub fn parts(matrix: &Matrix<Bytes>, compute: ComputeType) -> (Vec<Part>, bool) {
    if let Some(parts) = stored(matrix) {
        return (parts, false);
    }
    let ty = if compute == ComputeType::F32 { FloatType::F32 } else { FloatType::F16 };
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let codes = rows_of(rows, cols * ty.size(), RowOrder::Natural, |row, out| {
        let (mut values, mut bytes) = (vec![0f32; cols], Vec::with_capacity(out.len()));
        matrix.decode_row(row, &mut values);
        // Clamping never fails.
        let _ = encode_floats(ty, &values, schemes::Overflow::Clamp, &mut bytes);
        out.copy_from_slice(&bytes);
    });
    (Part::whole(bare(Format::Float(ty), rows, cols, codes)), true)
}

/// The type that products are computed in.
pub fn float_of(compute: ComputeType) -> FloatType {
    match compute {
        ComputeType::F32 => FloatType::F32,
        ComputeType::F16 => FloatType::F16,
        ComputeType::BF16 => FloatType::BF16,
    }
}

/// Weights without scales.
fn bare(format: Format, rows: usize, cols: usize, codes: Vec<u8>) -> Packed {
    let row_bytes = codes.len() / rows.max(1);
    let empty = Vec::new;
    let (scales, zeros, levels) = (empty(), empty(), empty());
    Packed { format, rows, cols, row_bytes, group: 0, half_scales: false, codes, scales, zeros, levels }
}

/// Rows in natural order, padded with zeros: `write` fills row `i` from stored row `s`.
fn rows_of(rows: usize, used: usize, order: RowOrder, write: impl Fn(usize, &mut [u8]) + Sync) -> Vec<u8> {
    let width = used.next_multiple_of(ALIGN);
    let mut out = vec![0u8; rows * width];
    out.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, out)| write(order.stored(row), &mut out[..used]));
    out
}

/// Parts as they are stored; none where no kernel reads the form.
fn stored(matrix: &Matrix<Bytes>) -> Option<Vec<Part>> {
    let (rows, cols, order) = (matrix.rows(), matrix.cols(), matrix.order());
    Some(match matrix.storage() {
        Storage::Float(ty, data) => Part::whole(floats(*ty, data, rows, cols, order)),
        Storage::Ggml(ty, data) => Part::whole(blocks(*ty, data, rows, cols, order)?),
        Storage::Int(int) => Part::whole(integers(int, None, rows, cols, order)?),
        Storage::Affine(a) if a.groups.is_none() => Part::whole(integers(&a.int, Some(&a.zeros), rows, cols, order)?),
        Storage::Nf4(n) => Part::whole(nf4(n, rows, cols, order)?),
        Storage::Outlier(o) => {
            let n = o.columns.len();
            let kept = (0..cols as u32).filter(|c| o.columns.binary_search(c).is_err()).collect();
            let inner = || integers(&o.inner, None, rows, cols - n, order);
            let outliers = || floats(FloatType::F16, &o.outliers, rows, n, order);
            let inner = |columns| Some(Part { weights: inner()?, columns, exact: false });
            let outliers = |columns| Part { weights: outliers(), columns, exact: true };
            match n {
                0 => vec![inner(None)?],
                _ if n == cols => vec![outliers(None)],
                _ => vec![inner(Some(kept))?, outliers(Some(o.columns.clone()))],
            }
        }
        Storage::Affine(_) | Storage::Float8(_) | Storage::Scaled(_) => return None,
    })
}

fn floats(ty: FloatType, data: &[u8], rows: usize, cols: usize, order: RowOrder) -> Packed {
    let used = cols * ty.size();
    let codes = rows_of(rows, used, order, |row, out| out.copy_from_slice(&data[row * used..(row + 1) * used]));
    bare(Format::Float(ty), rows, cols, codes)
}

fn integers(
    int: &IntStorage<Bytes>,
    zeros: Option<&[i16]>,
    rows: usize,
    cols: usize,
    order: RowOrder,
) -> Option<Packed> {
    let (format, multiple, flip) = match int.packing {
        Packing::I8 => (Format::I8, 16, 0),
        Packing::Offset8 => (Format::I8, 16, 0x80),
        Packing::Nibble => (Format::U4, 32, 0),
    };
    let group = match int.grouping {
        Grouping::Row | Grouping::Tensor => 0,
        Grouping::Group(n) if n.is_multiple_of(multiple) => n,
        Grouping::Group(_) => return None,
    };
    let used = int.packing.row_bytes(cols);
    let codes = rows_of(rows, used, order, |row, out| {
        let from = &int.codes[row * int.row_bytes..];
        out.iter_mut().zip(from).for_each(|(o, b)| *o = b ^ flip);
    });
    let groups = int.grouping.per_row(cols).max(1);
    let of = |row: usize, g: usize| if int.grouping == Grouping::Tensor { 0 } else { order.stored(row) * groups + g };
    let all = || (0..rows).flat_map(|row| (0..groups).map(move |g| (row, g))).map(|(row, g)| of(row, g));
    let (half_scales, scales) = factors(&int.scales, all());
    let zeros = zeros.map_or(Vec::new(), |zeros| all().flat_map(|i| zeros[i].to_le_bytes()).collect());
    Some(Packed { group, half_scales, scales, zeros, ..bare(format, rows, cols, codes) })
}

/// The factors of codes, as stored where they are f16, else in f32; whether they are f16.
fn factors(scales: &ScaleArray<Bytes>, all: impl Iterator<Item = usize>) -> (bool, Vec<u8>) {
    if scales.ty == FloatType::F16 && scales.usage == ScaleUse::Multiply {
        return (true, all.flat_map(|i| [scales.data[2 * i], scales.data[2 * i + 1]]).collect());
    }
    (false, all.flat_map(|i| scales.factor(i).to_le_bytes()).collect())
}

fn nf4(n: &Nf4Storage<Bytes>, rows: usize, cols: usize, order: RowOrder) -> Option<Packed> {
    // Rows that are whole blocks: else a block would span rows.
    if !n.block.is_multiple_of(32) || !cols.is_multiple_of(n.block) {
        return None;
    }
    let used = cols / 2;
    let codes = rows_of(rows, used, order, |row, out| {
        out.iter_mut().zip(&n.codes[row * used..]).for_each(|(o, b)| *o = b.rotate_left(4));
    });
    let groups = cols / n.block;
    let all = (0..rows).flat_map(|row| (0..groups).map(move |g| (row, g)));
    let all = all.map(|(row, g)| order.stored(row) * groups + g);
    let (half_scales, scales) = match &n.absmax {
        Nf4Absmax::Plain(scales) => factors(scales, all),
        Nf4Absmax::Nested { .. } => (false, all.flat_map(|i| n.absmax(i).to_le_bytes()).collect()),
    };
    let levels = n.levels.iter().flat_map(|l| l.to_le_bytes()).collect();
    Some(Packed { group: n.block, half_scales, scales, levels, ..bare(Format::Lut4, rows, cols, codes) })
}

/// Parts of ggml's types whose blocks can be taken apart, and of Q4_K.
fn blocks(ty: GgmlType, data: &[u8], rows: usize, cols: usize, order: RowOrder) -> Option<Packed> {
    let stride = ty.row_bytes(cols)?;
    let row_of = |row: usize| &data[row * stride..(row + 1) * stride];
    match ty {
        GgmlType::F16 => return Some(floats(FloatType::F16, data, rows, cols, order)),
        GgmlType::BF16 => return Some(floats(FloatType::BF16, data, rows, cols, order)),
        GgmlType::F32 => return Some(floats(FloatType::F32, data, rows, cols, order)),
        GgmlType::Q4_K => {
            let codes = rows_of(rows, stride, order, |row, out| out.copy_from_slice(row_of(row)));
            return Some(bare(Format::Q4K, rows, cols, codes));
        }
        _ => {}
    }
    let (format, levels) = match ty {
        GgmlType::Q8_0 => (Format::I8, Vec::new()),
        GgmlType::Q4_0 => (Format::U4, Vec::new()),
        GgmlType::IQ4_NL => (Format::Lut4, levels_of(ty)),
        _ => return None,
    };
    // An f16 scale, then the codes of 32 columns.
    let (size, bytes) = (ty.block_bytes(), ty.block_bytes() - 2);
    let codes = rows_of(rows, cols / 32 * bytes, order, |row, out| {
        for (block, out) in row_of(row).chunks_exact(size).zip(out.chunks_exact_mut(bytes)) {
            match format {
                Format::I8 => out.copy_from_slice(&block[2..]),
                _ => side_by_side(&block[2..], out),
            }
        }
    });
    let scales = (0..rows).flat_map(|row| row_of(order.stored(row)).chunks_exact(size).flat_map(|b| [b[0], b[1]]));
    let scales = scales.collect();
    Some(Packed { group: 32, half_scales: true, scales, levels, ..bare(format, rows, cols, codes) })
}

/// ggml's 32 nibbles, the first 16 in low nibbles and the others in high ones, in order.
fn side_by_side(block: &[u8], out: &mut [u8]) {
    let nibble = |i: usize| block[i % 16] >> (i / 16 * 4) & 15;
    out.iter_mut().enumerate().for_each(|(i, o)| *o = nibble(2 * i) | nibble(2 * i + 1) << 4);
}

/// The levels of a table's type: a block with scale 1 that has each code once.
fn levels_of(ty: GgmlType) -> Vec<u8> {
    let mut block = half::f16::ONE.to_le_bytes().to_vec();
    block.extend(0..16u8);
    let mut levels = [0f32; 32];
    ggml::decode(ty, &block, &mut levels);
    levels[..16].iter().flat_map(|l| l.to_le_bytes()).collect()
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
