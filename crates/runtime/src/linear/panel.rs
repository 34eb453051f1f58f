//! Activations as the kernels take them: packed, and quantized where asked.

use super::{
    byte_planes::Meeting,
    product::Term,
    quantized::Quantized,
    rounding::Rounding,
    weights::{Columns, Part},
};
use crate::simd::Tile;
use rayon::prelude::*;
use rowmath::absmax;
use rowmath::round::nearest;
use schemes::Activation;
use std::borrow::Cow;

/// Rows are padded with zeros to a multiple of this, the widest vector.
pub const PAD: usize = 16;

/// Rows of activations in the order in which a kernel reads them: of each group of tokens that
/// it takes at a time, the first vector of each token, then the second of each, and so on.
#[derive(Debug)]
pub struct Packed {
    buffer: Vec<f32>,
    /// Offset of the values.
    start: usize,
    tile: Tile,
    tokens: usize,
    /// Columns in use.
    pub cols: usize,
    /// Columns with their padding.
    padded: usize,
}

impl Packed {
    /// Packs `rows`, each of `cols` values.
    pub fn new(rows: &[f32], cols: usize, tile: Tile) -> Self {
        let (tokens, padded) = (rows.len() / cols, cols.next_multiple_of(PAD));
        let mut buffer = vec![0f32; tokens * padded + PAD];
        // Vectors that straddle cache lines cost twice.
        let start = buffer.as_ptr().align_offset(64).min(PAD);
        buffer.truncate(start + tokens * padded);
        let groups = buffer[start..].par_chunks_mut(tile.tokens * padded);
        groups.zip(rows.par_chunks(tile.tokens * cols)).with_min_len(4).for_each(|(out, rows)| {
            let count = rows.len() / cols;
            for (t, row) in rows.chunks_exact(cols).enumerate() {
                for (i, x) in row.chunks(tile.lanes).enumerate() {
                    out[(i * count + t) * tile.lanes..][..x.len()].copy_from_slice(x);
                }
            }
        });
        Packed { buffer, start, tile, tokens, cols, padded }
    }

    /// Columns `column..column + len` of the group of tokens that starts with `token`. `column` and
    /// `len` are multiples of the vector.
    #[inline(always)]
    pub fn group(&self, token: usize, column: usize, len: usize) -> &[f32] {
        let count = self.tile.tokens.min(self.tokens - token);
        &self.buffer[self.start + token * self.padded + column * count..][..len * count]
    }
}

/// Quantization of rows, over some of their columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe<'a> {
    /// The columns.
    pub columns: Columns<'a>,
    /// The quantization.
    pub activation: Activation,
    /// An engine's rounding, which then stands for the quantization.
    pub rounding: Option<Rounding>,
}

/// Rows of activations, and what kernels have asked of them so far: layers share what they
/// have in common.
#[derive(Debug)]
pub struct Prepared<'a> {
    rows: &'a [f32],
    cols: usize,
    sequences: &'a [usize],
    tile: Tile,
    /// In f32.
    floats: Vec<(Recipe<'a>, Packed)>,
    /// Rows as integer codes.
    codes: Vec<((Recipe<'a>, Option<Meeting>), Quantized)>,
}

impl<'a> Prepared<'a> {
    /// Prepares `rows` of `cols` values. The tokens of a sequence, whose numbers are in `sequences`, share one scale
    /// under [`Activation::Int8Tensor`].
    pub fn new(rows: &'a [f32], cols: usize, sequences: &'a [usize], tile: Tile) -> Self {
        Prepared { rows, cols, sequences, tile, floats: Vec::new(), codes: Vec::new() }
    }

    /// Prepares the columns for `part`, unless that is done; gives their place.
    pub fn insert(&mut self, part: Part<'_>, recipe: Recipe<'a>) -> usize {
        let Prepared { rows, cols, sequences, tile, .. } = *self;
        let activation = if recipe.rounding.is_some() { Activation::Float } else { recipe.activation };
        let values = || match recipe.rounding {
            Some(rounding) => {
                let rounded = rounding.round(rows, cols, sequences);
                let (values, used) = select(&rounded, cols, recipe.columns);
                (Cow::Owned(values.into_owned()), used)
            }
            None => select(rows, cols, recipe.columns),
        };
        match part {
            Part::Float(_) => find(&mut self.floats, recipe, || {
                let (mut values, used) = values();
                if activation != Activation::Float && !matches!(recipe.columns, Columns::Only(_)) {
                    let scales = scales(&values, used, sequences, activation);
                    let rows = values.to_mut().par_chunks_mut(used).zip(&scales).with_min_len(16);
                    rows.for_each(|(row, &scale)| fake_quantize(row, scale));
                }
                Packed::new(&values, used, tile)
            }),
            Part::Integer(codes) => {
                let meeting = codes.meeting().filter(|_| tile.bytes);
                find(&mut self.codes, (recipe, meeting), || {
                    let (values, used) = values();
                    Quantized::new(&values, used, sequences, activation, tile.pair_tokens, meeting)
                })
            }
        }
    }

    /// The product of `part` with what was prepared for it at `place`.
    pub fn term<'p>(&'p self, part: Part<'p>, place: usize) -> Term<'p> {
        match part {
            Part::Float(weights) => Term::Float(weights, &self.floats[place].1),
            Part::Integer(codes) => Term::Integer(codes, &self.codes[place].1),
        }
    }
}

/// Index of the result of `recipe`, which is made where it was absent.
fn find<R: PartialEq, T>(all: &mut Vec<(R, T)>, recipe: R, make: impl FnOnce() -> T) -> usize {
    all.iter().position(|(r, _)| *r == recipe).unwrap_or_else(|| {
        all.push((recipe, make()));
        all.len() - 1
    })
}

/// The columns that are asked for, and how many they are.
fn select<'a>(rows: &'a [f32], cols: usize, columns: Columns<'_>) -> (Cow<'a, [f32]>, usize) {
    let used = match columns {
        Columns::All => return (Cow::Borrowed(rows), cols),
        Columns::Without(c) => cols - c.len(),
        Columns::Only(c) => c.len(),
    };
    let mut values = vec![0f32; rows.len() / cols * used];
    let all = values.par_chunks_mut(used).zip(rows.par_chunks(cols)).with_min_len(16);
    all.for_each(|(out, row)| gather(row, columns, out));
    (Cow::Owned(values), used)
}

fn gather(row: &[f32], columns: Columns<'_>, out: &mut [f32]) {
    match columns {
        Columns::All => out.copy_from_slice(row),
        Columns::Only(columns) => out.iter_mut().zip(columns).for_each(|(o, &c)| *o = row[c as usize]),
        Columns::Without(columns) => {
            let (mut from, mut rest) = (0, out);
            for end in columns.iter().map(|&c| c as usize).chain([row.len()]) {
                let (now, later) = rest.split_at_mut(end - from);
                now.copy_from_slice(&row[from..end]);
                (from, rest) = (end + 1, later);
            }
        }
    }
}

/// One scale a token. A row of zeros has scale 0.
pub fn scales(data: &[f32], stride: usize, sequences: &[usize], activation: Activation) -> Vec<f32> {
    let of = |values: &[f32]| absmax(values) / 127.0;
    let tokens = data.len() / stride;
    match activation {
        Activation::Int8Static(scale) => vec![scale; tokens],
        Activation::Int8Tensor => {
            let mut rest = data;
            let of_sequence = |&n: &usize| {
                let (rows, later) = rest.split_at(n * stride);
                rest = later;
                std::iter::repeat_n(of(rows), n)
            };
            sequences.iter().flat_map(of_sequence).collect()
        }
        _ => data.par_chunks(stride).with_min_len(16).map(of).collect(),
    }
}

/// `round(x / scale) * scale`, ties to even, codes clamped to [-127, 127], in place.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn fake_quantize(row: &mut [f32], scale: f32) {
    if scale == 0.0 {
        row.fill(0.0);
        return;
    }
    for x in row {
        *x = nearest((*x / scale).clamp(-127.0, 127.0)) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::weights::Weights;
    use schemes::RowOrder;

    const TILE: Tile = Tile { lanes: 16, tokens: 3, pair_tokens: 4, bytes: false };

    /// The rows of a packing.
    fn unpacked(x: &Packed) -> Vec<f32> {
        let mut rows = Vec::new();
        for t in 0..x.tokens {
            let first = t / TILE.tokens * TILE.tokens;
            let count = TILE.tokens.min(x.tokens - first);
            let group = x.group(first, 0, x.padded);
            let row = group.chunks(TILE.lanes).skip(t - first).step_by(count).flatten();
            rows.extend(row.take(x.cols));
        }
        rows
    }

    #[test]
    fn columns_are_split_and_packing_keeps_every_value() {
        let rows: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let of = |columns, activation| {
            let mut all = Prepared::new(&rows, 5, &[1; 4], TILE);
            let part = Part::Float(Weights::Halves(&[], 0, RowOrder::Natural));
            let at = all.insert(part, Recipe { columns, activation, rounding: None });
            assert_eq!(at, all.insert(part, Recipe { columns, activation, rounding: None }));
            unpacked(&all.floats[at].1)
        };
        assert_eq!(
            of(Columns::Without(&[1, 4]), Activation::Float),
            [0., 2., 3., 5., 7., 8., 10., 12., 13., 15., 17., 18.]
        );
        // Taken apart from the others, columns are never quantized.
        for activation in [Activation::Float, Activation::Int8Token] {
            assert_eq!(of(Columns::Only(&[1, 4]), activation), [1., 4., 6., 9., 11., 14., 16., 19.]);
        }
        let rounded = of(Columns::All, Activation::Int8Static(2.0));
        assert_eq!(rounded[..7], [0., 0., 2., 4., 4., 4., 6.]);
        for cols in [1, 15, 16, 33, 50] {
            let rows: Vec<f32> = (0..7 * cols).map(|i| i as f32).collect();
            let packed = Packed::new(&rows, cols, TILE);
            assert_eq!(unpacked(&packed), rows);
            assert_eq!(packed.group(6, 0, packed.padded)[cols..], vec![0f32; packed.padded - cols]);
        }
    }
}
