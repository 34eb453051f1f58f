//! Weights that are integer codes with scales, as the integer kernels take them.

use schemes::{AffineStorage, GgmlType, Grouping, IntStorage, Matrix, Packing, RowOrder, Storage};
use store::Bytes;

/// Columns of activations that share a scale. No more than 515 products of an 8-bit and a 16-bit
/// code fit into 32 bits.
pub const BLOCK: usize = 128;

/// Rows of integer codes. Consecutive columns share a scale, [`Codes::segment`] of them.
#[derive(Debug, Clone, Copy)]
pub struct Codes<'a> {
    form: Form<'a>,
    order: RowOrder,
    cols: usize,
}

#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    Int(&'a IntStorage<Bytes>),
    /// With zero points, the columns of a group side by side.
    Affine(&'a AffineStorage<Bytes>),
    /// Q8_0 or Q4_0.
    Ggml(GgmlType, &'a [u8]),
}

impl<'a> Codes<'a> {
    /// The codes of a matrix; none where it has no codes, or groups that blocks of
    /// activations don't divide and that don't divide them.
    pub fn of(matrix: &'a Matrix<Bytes>) -> Option<Self> {
        let (order, cols) = (matrix.order(), matrix.cols());
        let form = match matrix.storage() {
            Storage::Int(int) if fits(int.grouping) => Form::Int(int),
            Storage::Affine(a) if fits(a.int.grouping) && a.groups.is_none() => Form::Affine(a),
            Storage::Ggml(ty, data) if matches!(*ty, GgmlType::Q8_0 | GgmlType::Q4_0) => Form::Ggml(*ty, data),
            _ => return None,
        };
        Some(Codes { form, order, cols })
    }

    /// Codes with one scale a row, of `cols` columns.
    pub fn by_row(int: &'a IntStorage<Bytes>, order: RowOrder, cols: usize) -> Self {
        Codes { form: Form::Int(int), order, cols }
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a weight scale and an activation scale: a divisor of [`BLOCK`] and a
    /// multiple of 32.
    pub fn segment(&self) -> usize {
        match self.int().map(|int| int.grouping) {
            Some(Grouping::Group(n)) => BLOCK.min(n),
            Some(_) => BLOCK,
            None => 32,
        }
    }

    /// Codes that are not ggml's.
    fn int(&self) -> Option<&'a IntStorage<Bytes>> {
        match self.form {
            Form::Int(int) => Some(int),
            Form::Affine(a) => Some(&a.int),
            Form::Ggml(..) => None,
        }
    }

    /// Segments of a row.
    pub fn segments(&self) -> usize {
        self.cols.div_ceil(self.segment())
    }

    /// Where the bytes of natural row `row` start, in all of them, and how many they are.
    pub fn bytes(&self, row: usize) -> (&'a [u8], usize, usize) {
        let (data, len): (&[u8], _) = match self.form {
            Form::Int(int) | Form::Affine(AffineStorage { int, .. }) => (&int.codes, int.row_bytes),
            Form::Ggml(ty, data) => (data, self.cols / 32 * ty.block_bytes()),
        };
        (data, self.order.stored(row) * len, len)
    }

    /// The factor of the codes of natural row `row` in segment `segment`.
    #[inline(always)]
    pub fn scale(&self, row: usize, segment: usize) -> f32 {
        let stored = self.order.stored(row);
        match self.form {
            Form::Int(int) | Form::Affine(AffineStorage { int, .. }) => {
                int.scales.factor(self.group(int.grouping, stored, segment * self.segment()))
            }
            Form::Ggml(ty, data) => {
                let at = (stored * (self.cols / 32) + segment) * ty.block_bytes();
                half::f16::from_le_bytes([data[at], data[at + 1]]).to_f32()
            }
        }
    }

    /// Which of all scales a column of a stored row has.
    #[inline(always)]
    fn group(&self, grouping: Grouping, stored: usize, column: usize) -> usize {
        match grouping {
            Grouping::Tensor => 0,
            Grouping::Row => stored,
            Grouping::Group(n) => stored * self.cols.div_ceil(n) + column / n,
        }
    }

    /// Codes of columns `start..start + out.len()` of natural row `row`; `start` is a multiple of 32.
    ///
    /// The loops are plain, so that the compiler vectorizes them for whichever instruction set
    /// this is inlined into.
    #[inline(always)]
    pub fn decode(&self, row: usize, start: usize, out: &mut [i16]) {
        let (data, at, len) = self.bytes(row);
        let bytes = &data[at..at + len];
        match self.form {
            Form::Int(int) => unpack(int, bytes, start, out),
            Form::Affine(AffineStorage { int, zeros, .. }) => {
                unpack(int, bytes, start, out);
                let stored = self.order.stored(row);
                // `start` is a multiple of a segment or within one: both are multiples of 32.
                for (part, column) in out.chunks_mut(32).zip((start..).step_by(32)) {
                    let zero = zeros[self.group(int.grouping, stored, column)];
                    for code in part {
                        *code -= zero;
                    }
                }
            }
            Form::Ggml(GgmlType::Q4_0, _) => {
                for (block, out) in bytes.as_chunks::<18>().0[start / 32..].iter().zip(out.as_chunks_mut::<32>().0) {
                    let (low, high) = out.split_at_mut(16);
                    for (i, &b) in block[2..].iter().enumerate() {
                        low[i] = i16::from(b & 15) - 8;
                        high[i] = i16::from(b >> 4) - 8;
                    }
                }
            }
            Form::Ggml(..) => {
                for (block, out) in bytes.as_chunks::<34>().0[start / 32..].iter().zip(out.as_chunks_mut::<32>().0) {
                    widen(&block[2..], 0, out);
                }
            }
        }
    }
}

fn fits(grouping: Grouping) -> bool {
    match grouping {
        Grouping::Group(n) => n.is_multiple_of(32) && (n.is_multiple_of(BLOCK) || BLOCK.is_multiple_of(n)),
        Grouping::Row | Grouping::Tensor => true,
    }
}

#[inline(always)]
fn unpack(int: &IntStorage<Bytes>, bytes: &[u8], start: usize, out: &mut [i16]) {
    match int.packing {
        Packing::I8 => widen(&bytes[start..], 0, out),
        Packing::Offset8 => widen(&bytes[start..], 0x80, out),
        Packing::Nibble => nibbles(&bytes[start / 2..], out),
    }
}

/// Signed bytes, each flipped by `xor` first.
#[inline(always)]
fn widen(bytes: &[u8], xor: u8, out: &mut [i16]) {
    for (o, b) in out.iter_mut().zip(bytes) {
        *o = i16::from((b ^ xor) as i8);
    }
}

/// Nibbles less 8, the low one of a byte first.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [i16]) {
    let (pairs, rest) = out.as_chunks_mut::<2>();
    let (whole, last) = bytes.split_at(pairs.len());
    for (pair, &b) in pairs.iter_mut().zip(whole) {
        *pair = [i16::from(b & 15) - 8, i16::from(b >> 4) - 8];
    }
    if let (Some(o), Some(b)) = (rest.first_mut(), last.first()) {
        *o = i16::from(b & 15) - 8;
    }
}
