//! Weights that are integer codes with scales, as the integer kernels take them.

use super::byte_planes::{Meeting, Order};
use crate::simd::Simd;
use schemes::{
    AffineStorage, FloatType, GgmlType, Grouping, INV_127, IntStorage, Matrix, Packing, RowOrder, ScaleUse, Storage,
};
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
    /// The bytes of all rows.
    pub data: &'a [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    segment: usize,
    segments: usize,
}

#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    Int(&'a IntStorage<Bytes>),
    /// Codes with zero points, the columns of a group side by side.
    Affine(&'a AffineStorage<Bytes>),
    /// Q8_0 or Q4_0.
    Ggml(GgmlType, &'a [u8]),
}

impl<'a> Codes<'a> {
    /// The codes of a matrix; none where it has no codes, or groups that blocks of
    /// activations don't divide and that don't divide them.
    pub fn from_matrix(matrix: &'a Matrix<Bytes>) -> Option<Self> {
        let (order, cols) = (matrix.order(), matrix.cols());
        let form = match matrix.storage() {
            Storage::Int(int) if fits(int.grouping) => Form::Int(int),
            Storage::Affine(a) if fits(a.int.grouping) && a.groups.is_none() => Form::Affine(a),
            Storage::Ggml(ty, data) if matches!(*ty, GgmlType::Q8_0 | GgmlType::Q4_0) => Form::Ggml(*ty, data),
            _ => return None,
        };
        Some(Codes::new(form, order, cols))
    }

    /// Codes with one scale a row, of `cols` columns.
    pub fn by_row(int: &'a IntStorage<Bytes>, order: RowOrder, cols: usize) -> Self {
        Codes::new(Form::Int(int), order, cols)
    }

    fn new(form: Form<'a>, order: RowOrder, cols: usize) -> Self {
        let (data, row_bytes, segment): (&[u8], _, _) = match form {
            Form::Int(int) | Form::Affine(AffineStorage { int, .. }) => {
                let segment = match int.grouping {
                    Grouping::Group(n) => BLOCK.min(n),
                    Grouping::Row | Grouping::Tensor => BLOCK,
                };
                (&int.codes, int.row_bytes, segment)
            }
            Form::Ggml(ty, data) => (data, cols / 32 * ty.block_bytes(), 32),
        };
        Codes { form, order, cols, data, row_bytes, segment, segments: cols.div_ceil(segment) }
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a weight scale and an activation scale: a divisor of [`BLOCK`] and a
    /// multiple of 32.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Segments of a row.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Offset of natural row `row` in [`Codes::data`].
    #[inline(always)]
    pub fn start(&self, row: usize) -> usize {
        self.order.stored(row) * self.row_bytes
    }

    /// The bytes of natural row `row`.
    #[inline(always)]
    pub fn bytes(&self, row: usize) -> &'a [u8] {
        &self.data[self.start(row)..][..self.row_bytes]
    }

    /// The factor of the codes of natural row `row` in segment `segment`.
    #[inline(always)]
    fn scale(&self, row: usize, segment: usize) -> f32 {
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

    /// Bytes of factors that are stored as halves, one segment after the other, and their distance in bytes.
    #[inline(always)]
    fn halves(&self) -> Option<(&'a [u8], usize, ScaleUse)> {
        match self.form {
            Form::Int(int) | Form::Affine(AffineStorage { int, .. }) => {
                let own = matches!(int.grouping, Grouping::Group(n) if n == self.segment);
                let scales = &int.scales;
                (own && scales.ty == FloatType::F16).then_some((&scales.data, 2, scales.usage))
            }
            Form::Ggml(ty, data) => Some((data, ty.block_bytes(), ScaleUse::Multiply)),
        }
    }

    /// Layout of codes in the bytes of a row, where vectors of them can be loaded directly.
    pub fn stored(&self) -> Option<Stored> {
        match self.form {
            Form::Int(int) => Some(match int.packing {
                Packing::I8 => Stored::Bytes(0),
                Packing::Offset8 => Stored::Bytes(0x80),
                Packing::Nibble => Stored::Nibbles,
            }),
            Form::Ggml(GgmlType::Q4_0, _) => Some(Stored::Q4_0),
            Form::Ggml(..) => Some(Stored::Q8_0),
            Form::Affine(_) => None,
        }
    }

    /// Column order and unsigned offset for multiplying bytes, where vectors of them can be loaded directly.
    pub fn meeting(&self) -> Option<Meeting> {
        let (order, offset) = match self.stored()? {
            Stored::Bytes(_) if self.segment < BLOCK => return None,
            Stored::Bytes(_) => (Order::Halves, 128),
            Stored::Nibbles => (Order::Even, 8),
            Stored::Q8_0 => (Order::Blocks, 128),
            Stored::Q4_0 => (Order::Blocks, 8),
        };
        Some(Meeting { order, offset })
    }

    /// Index of the scale of a column of a stored row.
    #[inline(always)]
    fn group(&self, grouping: Grouping, stored: usize, column: usize) -> usize {
        match grouping {
            Grouping::Tensor => 0,
            Grouping::Row => stored,
            Grouping::Group(n) => stored * self.cols.div_ceil(n) + column / n,
        }
    }

    /// Codes of columns `start..start + out.len()` of natural row `row`; `start` is a multiple of 32.
    #[inline(always)]
    pub fn decode<S: Simd>(&self, s: S, row: usize, start: usize, out: &mut [i16]) {
        let bytes = self.bytes(row);
        match self.form {
            Form::Int(int) => unpack(s, int, bytes, start, out),
            Form::Affine(AffineStorage { int, zeros, .. }) => {
                unpack(s, int, bytes, start, out);
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
                    widen(s, &q4_0(block), 0x80, out);
                }
            }
            Form::Ggml(..) => {
                for (block, out) in bytes.as_chunks::<34>().0[start / 32..].iter().zip(out.as_chunks_mut::<32>().0) {
                    widen(s, &block[2..], 0, out);
                }
            }
        }
    }
}

/// The factors of some rows: of each segment those of all rows, so many lanes.
pub struct Factors<'a> {
    /// Rows, those that there aren't among them.
    pub lanes: usize,
    /// The factors, once all rows are taken.
    pub floats: &'a mut [f32],
    /// Working memory of the same size.
    pub halves: &'a mut [[u8; 2]],
}

impl Factors<'_> {
    /// Takes those of natural row `row` as lane `lane`.
    #[inline(always)]
    pub fn take(&mut self, codes: &Codes<'_>, row: usize, lane: usize) {
        let stored = codes.order.stored(row);
        if let Some((data, step, _)) = codes.halves() {
            let data = data[stored * codes.segments * step..].chunks_exact(step);
            for (half, out) in data.take(codes.segments).zip(self.halves[lane..].iter_mut().step_by(self.lanes)) {
                *out = [half[0], half[1]];
            }
            return;
        }
        for (segment, out) in self.floats[lane..].iter_mut().step_by(self.lanes).enumerate() {
            *out = codes.scale(row, segment);
        }
    }

    /// When all rows are taken.
    #[inline(always)]
    pub fn finish<S: Simd>(&mut self, s: S, codes: &Codes<'_>) {
        // All at once: what was just written in small parts can't be read in large ones at once.
        if let Some((_, _, usage)) = codes.halves() {
            s.widen_f16(self.halves, self.floats);
            if usage == ScaleUse::Absmax127 {
                self.floats.iter_mut().for_each(|scale| *scale *= INV_127);
            }
        }
    }
}

/// Codes that a kernel can take as they are stored.
#[derive(Debug, Clone, Copy)]
pub enum Stored {
    /// Signed bytes, each to be flipped by this first.
    Bytes(u8),
    /// Nibbles less 8, the low one of a byte first.
    Nibbles,
    /// ggml's Q8_0: blocks of a scale and 32 signed bytes.
    Q8_0,
    /// ggml's Q4_0: blocks of a scale and 32 nibbles plus 8, the low ones of all bytes first.
    Q4_0,
}

fn fits(grouping: Grouping) -> bool {
    match grouping {
        Grouping::Group(n) => n.is_multiple_of(32) && (n.is_multiple_of(BLOCK) || BLOCK.is_multiple_of(n)),
        Grouping::Row | Grouping::Tensor => true,
    }
}

#[inline(always)]
fn unpack<S: Simd>(s: S, int: &IntStorage<Bytes>, bytes: &[u8], start: usize, out: &mut [i16]) {
    match int.packing {
        Packing::I8 => widen(s, &bytes[start..], 0, out),
        Packing::Offset8 => widen(s, &bytes[start..], 0x80, out),
        Packing::Nibble => nibbles(s, &bytes[start / 2..], out),
    }
}

/// Signed bytes, each flipped by `xor` first.
// In vectors by hand: compilers unroll short loops before they vectorize.
#[inline(always)]
fn widen<S: Simd>(s: S, bytes: &[u8], xor: u8, out: &mut [i16]) {
    let whole = out.len() / (2 * S::LANES) * (2 * S::LANES);
    let (vectors, rest) = out.split_at_mut(whole);
    for (o, b) in s.pairs_mut(vectors).iter_mut().zip(bytes.chunks_exact(2 * S::LANES)) {
        s.store_pairs(s.byte_pairs(b, xor), o);
    }
    for (o, b) in rest.iter_mut().zip(&bytes[whole..]) {
        *o = i16::from((b ^ xor) as i8);
    }
}

/// Nibbles less 8, the low one of a byte first.
#[inline(always)]
fn nibbles<S: Simd>(s: S, bytes: &[u8], out: &mut [i16]) {
    let whole = out.len() / (2 * S::LANES) * (2 * S::LANES);
    let (vectors, rest) = out.split_at_mut(whole);
    for (o, b) in s.pairs_mut(vectors).iter_mut().zip(bytes.chunks_exact(S::LANES)) {
        s.store_pairs(s.nibble_pairs(b), o);
    }
    for (i, o) in rest.iter_mut().enumerate() {
        *o = i16::from(bytes[(whole + i) / 2] >> (4 * (i % 2)) & 15) - 8;
    }
}

/// The nibbles of a block of ggml's Q4_0 in their order, plus 0x78: flipped by 0x80 they are
/// less 8, as signed bytes.
#[inline(always)]
fn q4_0(block: &[u8; 18]) -> [u8; 32] {
    let (mut out, mask) = ([0; 32], u64::from_ne_bytes([15; 8]));
    for (i, bytes) in block[2..].as_chunks::<8>().0.iter().enumerate() {
        for (half, shift) in [(0, 0), (16, 4)] {
            let nibbles = (u64::from_le_bytes(*bytes) >> shift & mask) + u64::from_ne_bytes([0x78; 8]);
            out[half + 8 * i..][..8].copy_from_slice(&nibbles.to_le_bytes());
        }
    }
    out
}
