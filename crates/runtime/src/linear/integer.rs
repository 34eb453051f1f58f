//! The product with integer codes: sums of products in 32-bit integers, which are exact, then
//! one factor for each segment of columns.
//!
//! Activations are 16-bit codes ([`Quantized`]), so a product of pairs of columns is one
//! instruction, at twice the rate of f32. A token whose values range too widely for 16 bits has a second row of codes,
//! its remainder, which passes like one more token and is added to the same outputs. Each output is a sum over segments, in order, in
//! f32; with exact sums inside segments, one token alone and one among many are equal bit for
//! bit, though they are computed in different ways.

use super::{
    codes::{BLOCK, Codes, Factors},
    product::{Prior, Scratch, Task, aligned, fetch},
    quantized::Quantized,
};
use crate::simd::{Kernel, Simd};

/// Columns that are decoded at a time, for their transposition in the first-level cache.
const CHUNK: usize = 256;

/// The widest vector, in lanes.
pub(super) const WIDEST: usize = 16;

/// One term of a task.
pub struct Integer<'a> {
    /// Rows and tokens to compute.
    pub task: &'a Task<'a>,
    /// The weights.
    pub codes: Codes<'a>,
    /// The activations.
    pub x: &'a Quantized,
    /// Values that the sums are added to.
    pub prior: Prior,
}

impl Integer<'_> {
    /// Computes.
    #[inline(always)]
    pub fn run<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        if self.x.interleaved() { self.by_panel(s, scratch) } else { self.by_row(s, scratch) }
    }

    /// Writes the sums of one row of activations: those of a token in place of what stands there, as the term's prior
    /// says; a remainder's are added to its token's, which come first.
    #[inline(always)]
    pub(super) fn write(&self, x_row: usize, row: usize, sums: &[f32]) {
        match self.x.token_of_remainder(x_row) {
            None => self.task.write(x_row, row, sums, self.prior),
            Some(token) => self.task.write(token, row, sums, Prior::Output),
        }
    }

    /// Many tokens: lanes along rows, against panels of transposed codes.
    #[inline(always)]
    fn by_panel<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        let (task, wide) = (self.task, 2 * S::LANES);
        let panels = (task.end - task.start).div_ceil(wide);
        let (panel, factors) = (self.x.padded * wide, self.codes.segments() * wide);
        let codes = aligned(&mut scratch.codes, panels * panel + S::LANES * CHUNK);
        let (codes, stage) = codes.split_at_mut(panels * panel);
        let scales = aligned(&mut scratch.floats, panels * factors);
        let halves = aligned(&mut scratch.halves, factors);
        for (i, (codes, floats)) in codes.chunks_exact_mut(panel).zip(scales.chunks_exact_mut(factors)).enumerate() {
            let factors = Factors { lanes: wide, floats, halves };
            self.transpose(s, task.start + i * wide, codes, factors, stage);
        }
        let mut token = 0;
        while token < self.x.rows() {
            let count = self.x.group_len(token);
            for (i, (codes, scales)) in codes.chunks_exact(panel).zip(scales.chunks_exact(factors)).enumerate() {
                let row = task.start + i * wide;
                match count {
                    4 => self.tile::<S, 4>(s, row, token, codes, scales),
                    8 if S::PAIR_TOKENS > 4 => self.tile::<S, 8>(s, row, token, codes, scales),
                    12 if S::PAIR_TOKENS > 4 => self.tile::<S, 12>(s, row, token, codes, scales),
                    _ => unreachable!("groups of 4, 8 or 12 tokens"),
                }
            }
            token += count;
        }
    }

    /// Rows `first..` as a panel: of each pair of columns, the codes of all rows; zeros where rows
    /// or columns end. `factors` likewise, of each segment; those of rows that there aren't may be
    /// anything.
    #[inline(always)]
    fn transpose<S: Simd>(&self, s: S, first: usize, panel: &mut [i16], mut factors: Factors<'_>, stage: &mut [i16]) {
        let (cols, wide) = (self.codes.cols(), 2 * S::LANES);
        for (i, row) in (first..self.task.end.min(first + wide)).enumerate() {
            fetch(s, self.codes.data, self.codes.start(row), self.codes.row_bytes, 0);
            factors.take(&self.codes, row, i);
        }
        factors.finish(s, &self.codes);
        for half in 0..2 {
            for start in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - start);
                for (i, out) in stage.chunks_exact_mut(CHUNK).enumerate() {
                    let row = first + half * S::LANES + i;
                    let len = if row < self.task.end { len } else { 0 };
                    self.codes.decode(s, row.min(self.task.end - 1), start, &mut out[..len]);
                    out[len..].fill(0);
                }
                let columns = len.div_ceil(wide);
                let rows = s.pairs(stage);
                for c in 0..columns {
                    let mut square = [s.zero_pairs(); WIDEST];
                    for i in 0..S::LANES {
                        square[i] = s.load_pairs(&rows[i * (CHUNK / wide) + c]);
                    }
                    s.transpose_pairs(&mut square);
                    let out = &mut panel[(start + c * wide) * wide..][..wide * wide];
                    for (row, out) in square.into_iter().zip(s.pairs_mut(out).chunks_exact_mut(2)) {
                        s.store_pairs(row, &mut out[half]);
                    }
                }
            }
        }
    }

    /// The rows of one panel with `T` tokens.
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(&self, s: S, row: usize, token: usize, panel: &[i16], scales: &[f32]) {
        let (x, factors) = self.x.group(token);
        let sums = s.outline(PanelSums::<T> { x, factors, panel, scales, segment: self.codes.segment() });
        let rows = (2 * S::LANES).min(self.task.end - row);
        for (t, sums) in sums.iter().enumerate().take(self.x.rows() - token) {
            self.write(token + t, row, &sums[..rows]);
        }
    }
}

/// Sums of a panel of two vectors of rows with `T` tokens, over all columns.
///
/// Bound by the multiplications: a pair of columns takes `2 T` of them (two instructions each without VNNI), `2 + T` loads
/// and few other instructions.
struct PanelSums<'a, const T: usize> {
    x: &'a [i16],
    factors: &'a [f32],
    panel: &'a [i16],
    scales: &'a [f32],
    /// Columns of a segment.
    segment: usize,
}

impl<const T: usize> Kernel for PanelSums<'_, T> {
    type Output = [[f32; 2 * WIDEST]; T];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (segment, wide) = (self.segment, 2 * S::LANES);
        // In memory; the registers are the integers'.
        let mut out = [[s.splat(0.0); 2]; T];
        let columns = self.x.as_chunks::<2>().0.as_chunks::<T>().0;
        let parts = s.pairs(self.panel).as_chunks::<2>().0.chunks(segment / 2).zip(columns.chunks(segment / 2));
        for (i, ((codes, x), scale)) in parts.zip(self.scales.chunks_exact(wide)).enumerate() {
            let sums = products::<S, T>(s, codes, x);
            let scale = s.chunks(scale);
            let (low, high) = (s.load(&scale[0]), s.load(&scale[1]));
            let factors = &self.factors[i * segment / BLOCK * T..][..T];
            for t in 0..T {
                let factor = s.splat(factors[t]);
                out[t][0] = s.fma(s.mul(s.float_pairs(sums[t][0]), low), factor, out[t][0]);
                out[t][1] = s.fma(s.mul(s.float_pairs(sums[t][1]), high), factor, out[t][1]);
            }
        }
        let mut values = [[0f32; 2 * WIDEST]; T];
        for t in 0..T {
            let chunks = s.chunks_mut(&mut values[t]);
            s.store(out[t][0], &mut chunks[0]);
            s.store(out[t][1], &mut chunks[1]);
        }
        values
    }
}

/// Sums over pairs of columns, of two vectors of rows with `T` tokens.
#[inline(always)]
fn products<S: Simd, const T: usize>(s: S, codes: &[[S::Pairs; 2]], x: &[[[i16; 2]; T]]) -> [[S::I; 2]; T] {
    let mut sums = [[s.zero_pairs(); 2]; T];
    let steps = codes.len().min(x.len());
    // Of one length, so that no step checks a bound.
    let (codes, x) = (&codes[..steps], &x[..steps]);
    for i in 0..steps {
        let (low, high) = (s.load_pairs(&codes[i][0]), s.load_pairs(&codes[i][1]));
        for t in 0..T {
            let x = s.splat_pair(x[i][t]);
            sums[t][0] = s.dot_pairs(low, x, sums[t][0]);
            sums[t][1] = s.dot_pairs(high, x, sums[t][1]);
        }
    }
    sums
}
