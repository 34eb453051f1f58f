//! From rows of weights to the bytes of an artifact, a chunk at a time.

use crate::layout::bitsandbytes::QuantState;
use half::f16;
use schemes::{Bits, Error, FloatType, GgmlType, Grouping, Overflow, Packing, encode_floats, ggml, int, nf4, outlier};
use std::ops::Range;

/// Layout of the integer codes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeLayout {
    /// Codes in a tensor of their own, `row_bytes` apart, scales in another.
    Rows {
        /// Packing of codes into bytes.
        packing: Packing,
        /// Bytes from one row to the next.
        row_bytes: usize,
    },
    /// ggml blocks that repeat the scale: Q8_0 or Q4_0.
    Blocks,
}

/// Encoding of one weight. Streams are numbered as the layouts list their tensors.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoding {
    /// Bytes as stored, row by row.
    Copy,
    /// Values rounded to a float type: one stream.
    Float(FloatType),
    /// Symmetric integers: codes, then scales (none of the latter in blocks).
    Int {
        /// Width of a code.
        bits: Bits,
        /// Weights that share a scale.
        grouping: Grouping,
        /// Type of the scales.
        scale: FloatType,
        /// Layout of the codes.
        layout: CodeLayout,
        /// Write the one scale of a matrix once for each row.
        repeat: bool,
    },
    /// bitsandbytes int8: codes, then the rows' absmax in f32, not divided.
    Scb,
    /// NF4: codes, absmax in the given type.
    Nf4(FloatType),
    /// NF4 with double-quantized scales: codes, scale codes, nested scales, and the offset as
    /// F32, or within the JSON of a bitsandbytes `quant_state`.
    Nf4Nested(Option<QuantState>),
    /// int8 by row with f16 outlier columns: codes, scales, outliers.
    Outlier {
        /// The outlier columns, ascending.
        columns: Vec<u32>,
        /// Type of the scales.
        scale: FloatType,
    },
    /// A ggml type with its own rule for scales.
    Ggml(GgmlType),
    /// Decoded values of another encoding, rounded to a float type: one stream.
    Emulated(Box<Encoding>, FloatType),
}

/// Statistics of the whole matrix that encoding its rows needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepass {
    /// The one scale of the matrix, rounded.
    pub tensor_scale: f32,
    /// Double-quantized block scales.
    pub nested: Option<nf4::NestedAbsmax>,
}

/// Codes of some rows, before they are laid out.
#[derive(Debug, Clone, PartialEq)]
pub enum Codes {
    /// Floats in their bytes.
    Float(FloatType, Vec<u8>),
    /// Integers.
    Int(int::IntRows),
    /// NF4 blocks.
    Nf4(nf4::Nf4Blocks),
    /// Integers beside f16 outliers.
    Outlier(int::IntRows, Vec<u8>),
    /// ggml blocks.
    Ggml(GgmlType, Vec<u8>),
}

/// Rows of one matrix as f32, in the order of the output.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// Number of the first row.
    pub first_row: usize,
    /// Input features.
    pub cols: usize,
    /// `[rows, cols]`.
    pub values: &'a [f32],
}

/// Receives bytes: stream, offset within the stream's tensor, bytes.
pub type Emit<'a, E> = dyn FnMut(usize, u64, &[u8]) -> Result<(), E> + 'a;

impl Encoding {
    /// The encoding that makes the codes: of an emulated one the one that it stands for.
    pub fn codes(&self) -> &Encoding {
        match self {
            Encoding::Emulated(inner, _) => inner,
            other => other,
        }
    }

    /// Rows of a chunk are a multiple of this, so that blocks and bytes don't straddle chunks.
    pub fn row_multiple(&self, cols: usize) -> usize {
        match self.codes() {
            Encoding::Nf4(_) | Encoding::Nf4Nested(_) => {
                (1..=nf4::BLOCK).find(|r| (r * cols).is_multiple_of(nf4::BLOCK)).unwrap_or(nf4::BLOCK)
            }
            _ => 1,
        }
    }

    /// Returns whether encoding needs a `Prepass` over the whole matrix.
    pub fn needs_prepass(&self) -> bool {
        matches!(self.codes(), Encoding::Int { grouping: Grouping::Tensor, .. } | Encoding::Nf4Nested(_))
    }

    /// Turns what the first pass saw into a `Prepass`: the absmax of each NF4 block, or of
    /// each row, in order.
    ///
    /// # Errors
    /// [`Error::ScaleRange`] when the scale's type does not carry the scale.
    pub fn prepass(&self, absmax: &[f32]) -> Result<Prepass, Error> {
        match self.codes() {
            Encoding::Int { bits, grouping: Grouping::Tensor, scale, .. } => {
                let max = rowmath::absmax(absmax);
                let unrounded = max / f32::from(bits.qmax());
                if max.is_finite() && !int::scale_fits(unrounded, *scale) {
                    return Err(Error::ScaleRange { row: 0, value: unrounded, ty: *scale });
                }
                Ok(Prepass { tensor_scale: scale.round(unrounded), nested: None })
            }
            Encoding::Nf4Nested(_) => Ok(Prepass { nested: Some(nf4::nest(absmax)), ..Prepass::default() }),
            _ => Ok(Prepass::default()),
        }
    }

    /// Counts the values of a chunk that are beyond the float type that is to hold them, and so are clamped.
    pub fn clamped(&self, chunk: Chunk<'_>) -> u64 {
        let beyond = |ty: FloatType, v: f32| v.is_finite() && ty.round(v).is_infinite();
        let count = match self {
            Encoding::Float(ty) => chunk.values.iter().filter(|v| beyond(*ty, **v)).count(),
            Encoding::Outlier { columns, .. } => {
                let rows = chunk.values.chunks_exact(chunk.cols.max(1));
                let kept = rows.flat_map(|row| columns.iter().filter_map(|c| row.get(*c as usize)));
                kept.filter(|v| beyond(FloatType::F16, **v)).count()
            }
            _ => 0,
        };
        count as u64
    }

    /// Encodes a chunk.
    ///
    /// # Errors
    /// [`Error::NotFinite`], [`Error::ScaleRange`] or [`Error::Overflow`].
    pub fn encode(&self, chunk: Chunk<'_>, prepass: &Prepass, overflow: Overflow) -> Result<Codes, Error> {
        let Chunk { first_row, cols, values } = chunk;
        match self {
            Encoding::Copy => Ok(Codes::Float(FloatType::F32, Vec::new())),
            Encoding::Float(ty) => {
                let mut bytes = Vec::new();
                encode_floats(*ty, values, overflow, &mut bytes).map_err(|e| at_chunk(e, first_row, cols))?;
                Ok(Codes::Float(*ty, bytes))
            }
            Encoding::Int { bits, grouping, scale, .. } => {
                let mut rows = int::IntRows::default();
                let scheme = int::IntScheme {
                    bits: *bits,
                    grouping: *grouping,
                    scale: *scale,
                    tensor_scale: prepass.tensor_scale,
                };
                scheme.quantize(values, cols, first_row, &mut rows)?;
                Ok(Codes::Int(rows))
            }
            Encoding::Scb => {
                let mut rows = int::IntRows::default();
                int::quantize_rows_scb(values, cols, first_row, &mut rows)?;
                Ok(Codes::Int(rows))
            }
            Encoding::Nf4(_) | Encoding::Nf4Nested(_) => {
                let ty = if let Encoding::Nf4(ty) = self { *ty } else { FloatType::F32 };
                let mut blocks = nf4::Nf4Blocks::default();
                nf4::quantize_blocks(values, nf4::BLOCK, ty, &mut blocks).map_err(|e| at_chunk(e, first_row, cols))?;
                Ok(Codes::Nf4(blocks))
            }
            Encoding::Outlier { columns, scale } => {
                let (mut kept, mut out) = (Vec::new(), Vec::new());
                outlier::split_rows(values, cols, columns, &mut kept, &mut out);
                let mut rows = int::IntRows::default();
                outlier::quantize_kept(&kept, cols - columns.len(), first_row, *scale, &mut rows)?;
                let mut bytes = Vec::new();
                encode_floats(FloatType::F16, &out, overflow, &mut bytes)
                    .map_err(|e| at_chunk(e, first_row, columns.len()))?;
                Ok(Codes::Outlier(rows, bytes))
            }
            Encoding::Ggml(ty) => {
                let mut bytes = Vec::new();
                ggml::encode_rows(*ty, values, cols, first_row, &mut bytes)?;
                Ok(Codes::Ggml(*ty, bytes))
            }
            Encoding::Emulated(inner, ty) => {
                let codes = inner.encode(chunk, prepass, overflow)?;
                let mut decoded = vec![0f32; values.len()];
                let rows = first_row..first_row + values.len() / cols.max(1);
                codes.decode(inner, rows, cols, prepass, &mut decoded);
                Encoding::Float(*ty).encode(Chunk { values: &decoded, ..chunk }, prepass, overflow)
            }
        }
    }
}

/// Errors of chunk-relative indices become those of the matrix.
fn at_chunk(e: Error, first_row: usize, cols: usize) -> Error {
    match e {
        Error::Overflow { index, value, ty } => Error::Overflow { index: index + first_row * cols, value, ty },
        Error::NotFinite { row: _, col, value } => {
            Error::NotFinite { row: first_row + col / cols.max(1), col: col % cols.max(1), value }
        }
        other => other,
    }
}

impl Codes {
    /// Decodes rows `rows` (as [`Chunk`] numbered them) to the values that a reader of the artifact gets.
    pub fn decode(&self, encoding: &Encoding, rows: Range<usize>, cols: usize, prepass: &Prepass, out: &mut [f32]) {
        match (self, encoding) {
            (Codes::Float(ty, bytes), _) => schemes::decode_floats(*ty, bytes, out),
            (Codes::Ggml(ty, bytes), _) => ggml::decode(*ty, bytes, out),
            (Codes::Int(q), Encoding::Int { grouping, .. }) => {
                decode_ints(q, *grouping, cols, prepass.tensor_scale, out)
            }
            (Codes::Int(q), _) => {
                for ((row, codes), scb) in out.chunks_exact_mut(cols).zip(q.codes.chunks_exact(cols)).zip(&q.scales) {
                    row.iter_mut().zip(codes).for_each(|(o, &c)| *o = f32::from(c) * scb * schemes::INV_127);
                }
            }
            (Codes::Nf4(blocks), _) => {
                let first = rows.start * cols / nf4::BLOCK;
                let map = nf4::dynamic_map();
                for (b, (now, codes)) in out.chunks_mut(nf4::BLOCK).zip(blocks.codes.chunks(nf4::BLOCK)).enumerate() {
                    let absmax = prepass.nested.as_ref().map_or(blocks.absmax[b], |n| n.absmax(&map, first + b));
                    now.iter_mut().zip(codes).for_each(|(o, &c)| *o = nf4::LEVELS[usize::from(c)] * absmax);
                }
            }
            (Codes::Outlier(q, bytes), Encoding::Outlier { columns, .. }) => {
                decode_outliers(q, bytes, columns, cols, out)
            }
            (Codes::Outlier(..), _) => unreachable!("outlier codes come from an outlier encoding"),
        }
    }

    /// Lays the codes of rows `rows` out and hands their bytes to `emit`.
    ///
    /// # Errors
    /// Those of `emit`.
    pub fn emit<E>(
        &self,
        encoding: &Encoding,
        rows: Range<usize>,
        cols: usize,
        prepass: &Prepass,
        emit: &mut Emit<'_, E>,
    ) -> Result<(), E> {
        let first = rows.start as u64;
        match (self, encoding) {
            (Codes::Float(ty, bytes), _) => emit(0, first * (cols * ty.size()) as u64, bytes),
            (Codes::Ggml(ty, bytes), _) => emit(0, first * ty.row_bytes(cols).unwrap_or(0) as u64, bytes),
            (Codes::Int(q), Encoding::Int { bits, grouping, scale, layout: CodeLayout::Blocks, .. }) => {
                let mut bytes = Vec::new();
                debug_assert_eq!(*scale, FloatType::F16);
                // The scales are f16 values already: nothing is rounded here.
                let factor = |row: usize, col: usize| {
                    f16::from_f32(match grouping {
                        Grouping::Tensor => prepass.tensor_scale,
                        Grouping::Row => q.scales[row],
                        Grouping::Group(n) => q.scales[row * cols.div_ceil(*n) + col / n],
                    })
                };
                for (row, codes) in q.codes.chunks_exact(cols).enumerate() {
                    match bits {
                        Bits::Eight => ggml::write_q8_0(codes, |block| factor(row, 32 * block), &mut bytes),
                        Bits::Four => ggml::write_q4_0(codes, |block| factor(row, 32 * block), &mut bytes),
                    }
                }
                let row_bytes = bytes.len() / rows.len().max(1);
                emit(0, first * row_bytes as u64, &bytes)
            }
            (
                Codes::Int(q),
                Encoding::Int { grouping, scale, layout: CodeLayout::Rows { packing, row_bytes }, repeat, .. },
            ) => {
                emit(0, first * *row_bytes as u64, &pack_rows(q, *packing, *row_bytes, cols))?;
                match grouping {
                    Grouping::Tensor if *repeat => {
                        emit(1, first * scale.size() as u64, &floats(*scale, &vec![prepass.tensor_scale; rows.len()]))
                    }
                    Grouping::Tensor if rows.start == 0 => emit(1, 0, &floats(*scale, &[prepass.tensor_scale])),
                    Grouping::Tensor => Ok(()),
                    _ => emit(1, first * (grouping.per_row(cols) * scale.size()) as u64, &floats(*scale, &q.scales)),
                }
            }
            (Codes::Int(q), _) => {
                emit(0, first * cols as u64, &pack_rows(q, Packing::I8, cols, cols))?;
                emit(1, first * 4, &floats(FloatType::F32, &q.scales))
            }
            (Codes::Nf4(blocks), encoding) => emit_nf4(blocks, encoding, rows.start * cols, prepass, emit),
            (Codes::Outlier(q, bytes), Encoding::Outlier { columns, scale }) => {
                let kept = cols - columns.len();
                emit(0, first * kept as u64, &pack_rows(q, Packing::I8, kept, kept))?;
                emit(1, first * scale.size() as u64, &floats(*scale, &q.scales))?;
                if columns.is_empty() { Ok(()) } else { emit(2, first * 2 * columns.len() as u64, bytes) }
            }
            (Codes::Outlier(..), _) => unreachable!("outlier codes come from an outlier encoding"),
        }
    }
}

fn decode_ints(q: &int::IntRows, grouping: Grouping, cols: usize, tensor_scale: f32, out: &mut [f32]) {
    let group = if let Grouping::Group(n) = grouping { n } else { cols };
    let mut next = 0;
    for (row, codes) in out.chunks_exact_mut(cols).zip(q.codes.chunks_exact(cols)) {
        for (now, codes) in row.chunks_mut(group).zip(codes.chunks(group)) {
            let scale = if grouping == Grouping::Tensor { tensor_scale } else { q.scales[next] };
            next += 1;
            now.iter_mut().zip(codes).for_each(|(o, &c)| *o = f32::from(c) * scale);
        }
    }
}

fn decode_outliers(q: &int::IntRows, outliers: &[u8], columns: &[u32], cols: usize, out: &mut [f32]) {
    let kept = cols - columns.len();
    for (r, row) in out.chunks_exact_mut(cols).enumerate() {
        let mut codes = q.codes[r * kept..(r + 1) * kept].iter();
        let mut columns = columns.iter().enumerate().peekable();
        for (c, o) in row.iter_mut().enumerate() {
            if let Some((k, _)) = columns.next_if(|(_, col)| **col as usize == c) {
                *o = FloatType::F16.get(outliers, r * (cols - kept) + k);
            } else if let Some(code) = codes.next() {
                *o = f32::from(*code) * q.scales[r];
            }
        }
    }
}

fn emit_nf4<E>(
    blocks: &nf4::Nf4Blocks,
    encoding: &Encoding,
    first: usize,
    prepass: &Prepass,
    emit: &mut Emit<'_, E>,
) -> Result<(), E> {
    let mut codes = Vec::with_capacity(blocks.codes.len() / 2 + 1);
    nf4::pack(&blocks.codes, &mut codes);
    emit(0, first as u64 / 2, &codes)?;
    let block = first / nf4::BLOCK;
    match (encoding, &prepass.nested) {
        (Encoding::Nf4(ty), _) => emit(1, (block * ty.size()) as u64, &floats(*ty, &blocks.absmax)),
        (_, Some(nested)) => {
            emit(1, block as u64, &nested.codes[block..block + blocks.absmax.len()])?;
            if first == 0 {
                emit(2, 0, &floats(FloatType::F32, &nested.absmax))?;
                match encoding {
                    Encoding::Nf4Nested(Some(state)) => emit(3, 0, &state.json(Some(nested.offset)))?,
                    _ => emit(3, 0, &floats(FloatType::F32, &[nested.offset]))?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn pack_rows(q: &int::IntRows, packing: Packing, row_bytes: usize, cols: usize) -> Vec<u8> {
    if cols == 0 {
        return Vec::new();
    }
    let mut bytes = vec![0u8; q.codes.len() / cols * row_bytes];
    for (codes, row) in q.codes.chunks_exact(cols).zip(bytes.chunks_exact_mut(row_bytes)) {
        packing.pack_row(codes, row);
    }
    bytes
}

/// Scales are rounded to their type already, so this loses nothing.
fn floats(ty: FloatType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let fits = encode_floats(ty, values, Overflow::Clamp, &mut bytes);
    debug_assert!(fits.is_ok());
    bytes
}
