//! The product in f32: tiles of decoded weight rows against rows of activations.
//!
//! Both operands lie along k, so a vector holds consecutive k and each output is a sum over
//! lanes at the end: neither operand is transposed, and one token is computed exactly as
//! many are.

use super::{
    panel::{PAD, Packed},
    product::{MAX_TASK, Prior, Scratch, Task, aligned, fetch},
    weights::Weights,
};
use crate::simd::{Kernel, Simd};
use std::{cell::Cell, ops::Range};

/// Columns whose products are summed before they are added to the output, about: few enough
/// that a strip of rows and a group of tokens share the first-level cache.
const MAX_BLOCK: usize = 640;

/// Rows that one register tile computes.
const TILE: usize = 4;

/// Rows that are decoded for one pass over few tokens; a multiple of [`TILE`].
const STRIP: usize = 8;

/// Floats of activations that stay in the second-level cache while a task's rows pass.
const CACHED: usize = 96 * 1024;

/// Length of the blocks that `cols` columns are summed in; all but the last have it.
fn block_len(cols: usize) -> usize {
    cols.div_ceil(cols.div_ceil(MAX_BLOCK).max(1)).next_multiple_of(schemes::DECODE_ALIGN)
}

/// One term of a task.
pub struct Float<'a> {
    /// Rows and tokens to compute.
    pub task: &'a Task<'a>,
    /// The weights.
    pub weights: Weights<'a>,
    /// The activations.
    pub x: &'a Packed,
    /// Values that the sums are added to.
    pub prior: Prior,
}

impl Float<'_> {
    /// Computes.
    #[inline(always)]
    pub fn run<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        let (task, cols) = (self.task, self.x.cols);
        let block = block_len(cols);
        // While all activations stay in the cache, weights are read once, in their order. Else a block of
        // columns of the activations stays there while all rows pass.
        let rows = match task.tokens {
            n if n <= S::TOKENS => TILE,
            n if n * cols <= CACHED => STRIP,
            _ => MAX_TASK,
        };
        for row in (task.start..task.end).step_by(rows) {
            for column in (0..cols).step_by(block) {
                let len = block.min(cols - column);
                let prior = if column == 0 { self.prior } else { Prior::Output };
                let end = task.end.min(row + rows);
                let (padded, in_strips) = (len.next_multiple_of(PAD), rows == STRIP);
                Slab { term: self, row, end, column, len, padded, prior, in_strips }.run(s, scratch);
            }
        }
    }
}

/// Some columns of a term.
#[derive(Clone, Copy)]
struct Slab<'a> {
    term: &'a Float<'a>,
    /// First row, and past the last.
    row: usize,
    end: usize,
    /// First column.
    column: usize,
    /// Columns, and the same padded.
    len: usize,
    padded: usize,
    prior: Prior,
    /// True if all tokens and columns pass each strip before the next one is decoded.
    in_strips: bool,
}

impl Slab<'_> {
    #[inline(always)]
    fn run<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        let tokens = self.term.task.tokens;
        let cached = (CACHED / self.padded / S::TOKENS).max(1) * S::TOKENS;
        // With few tokens a strip is multiplied as soon as it is decoded, while it is in the
        // first-level cache; with many the task's rows are decoded once for all of them.
        let at_once = match tokens {
            _ if tokens <= S::TOKENS => TILE,
            _ if tokens <= cached => STRIP,
            _ => MAX_TASK,
        };
        let scratch = aligned(&mut scratch.floats, at_once * self.padded);
        for row in (self.row..self.end).step_by(at_once) {
            let rows = at_once.min(self.end - row);
            self.decode(s, row, rows, scratch);
            for token in (0..tokens).step_by(cached) {
                let end = tokens.min(token + cached);
                let strips = scratch.chunks_exact(STRIP.min(at_once) * self.padded);
                for (i, strip) in strips.enumerate().take(rows.div_ceil(STRIP)) {
                    self.strip(s, row + i * STRIP, strip, token, end);
                }
            }
        }
    }

    /// Decodes rows into `scratch`, zeros after their ends and after the last row of a tile.
    #[inline(always)]
    fn decode<S: Simd>(&self, s: S, row: usize, rows: usize, scratch: &mut [f32]) {
        let tiles = rows.next_multiple_of(TILE);
        let (bytes, row_bytes) = self.term.weights.bytes().unwrap_or_default();
        for (i, out) in scratch.chunks_exact_mut(self.padded).take(tiles).enumerate() {
            if i < rows {
                if !self.in_strips {
                    let part = |columns: usize| row_bytes * columns / self.term.x.cols;
                    let at = self.term.weights.order().stored(row + i) * row_bytes + part(self.column);
                    fetch(s, bytes, at, part(self.len), (self.end - self.row) * row_bytes);
                }
                self.term.weights.decode(s, row + i, self.column, &mut out[..self.len]);
                out[self.len..].fill(0.0);
            } else {
                out.fill(0.0);
            }
        }
    }

    /// The bytes of weights to ask for while four rows are multiplied with some tokens: of the rows a
    /// strip further on, the share of these tokens and columns.
    #[inline(always)]
    fn ahead(&self, row: usize, tokens: Range<usize>) -> &[u8] {
        if !self.in_strips {
            return &[];
        }
        let (bytes, row_bytes) = self.term.weights.bytes().unwrap_or_default();
        let (all, cols) = (self.term.task.tokens, self.term.x.cols);
        let start = self.term.weights.order().stored(row + STRIP) * row_bytes;
        let at = |token| start + TILE * row_bytes * (self.column * all + token * self.len) / (all * cols);
        bytes.get(at(tokens.start)..at(tokens.end)).unwrap_or_default()
    }

    /// Multiplies one strip with tokens `token..end`.
    #[inline(always)]
    fn strip<S: Simd>(&self, s: S, row: usize, strip: &[f32], mut token: usize, end: usize) {
        let mut edges = [Edge::default(); STRIP / TILE];
        let tiles = strip.len() / (TILE * self.padded);
        for (i, edge) in edges[..tiles].iter_mut().enumerate() {
            *edge = Edge::at_row(self, row + i * TILE);
        }
        while token < end {
            let count = S::TOKENS.min(end - token);
            for (edge, tile) in edges.iter().zip(strip.chunks_exact(TILE * self.padded)) {
                if edge.rows == 0 {
                    continue;
                }
                match count {
                    1 => self.tile::<S, 1>(s, edge, tile, token),
                    2 => self.tile::<S, 2>(s, edge, tile, token),
                    3 => self.tile::<S, 3>(s, edge, tile, token),
                    4 if S::TOKENS > 3 => self.tile::<S, 4>(s, edge, tile, token),
                    5 if S::TOKENS > 3 => self.tile::<S, 5>(s, edge, tile, token),
                    _ if S::TOKENS > 3 => self.tile::<S, 6>(s, edge, tile, token),
                    _ => unreachable!("no more than TOKENS tokens"),
                }
            }
            token += count;
        }
    }

    /// Multiplies four rows with `T` tokens and stores the results.
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(&self, s: S, edge: &Edge, tile: &[f32], token: usize) {
        let ahead = self.ahead(edge.row, token..token + T);
        let sums = s.outline(Dot::<T> { tile, x: self.term.x.group(token, self.column, self.padded), ahead });
        for (t, sums) in sums.iter().enumerate() {
            let out = self.term.task.out(token + t, edge.row, edge.rows);
            match <&[Cell<f32>; TILE]>::try_from(out) {
                Ok(out) => edge.store(self.prior, sums, out),
                Err(_) => {
                    let whole = [const { Cell::new(0f32) }; TILE];
                    whole.iter().zip(out).for_each(|(whole, out)| whole.set(out.get()));
                    edge.store(self.prior, sums, &whole);
                    out.iter().zip(&whole).for_each(|(out, whole)| out.set(whole.get()));
                }
            }
        }
    }
}

/// Inputs of a register tile besides its sums.
#[derive(Clone, Copy, Default)]
struct Edge {
    row: usize,
    rows: usize,
    bias: [f32; TILE],
}

impl Edge {
    fn at_row(slab: &Slab<'_>, row: usize) -> Self {
        let task = &slab.term.task;
        let rows = TILE.min(task.end.saturating_sub(row));
        let mut bias = [0f32; TILE];
        if let Some(all) = task.job.bias.filter(|_| rows > 0) {
            bias[..rows].copy_from_slice(&all[row..row + rows]);
        }
        Edge { row, rows, bias }
    }

    #[inline(always)]
    fn store(&self, prior: Prior, sums: &[f32; TILE], out: &[Cell<f32>; TILE]) {
        // One loop for each step: so each is one instruction.
        let mut v = *sums;
        if prior != Prior::Output {
            v.iter_mut().zip(&self.bias).for_each(|(v, bias)| *v += bias);
        }
        if prior != Prior::Bias {
            v.iter_mut().zip(out).for_each(|(v, out)| *v += out.get());
        }
        out.iter().zip(v).for_each(|(out, v)| out.set(v));
    }
}

/// Products of four rows, one after the other in `tile`, with `T` tokens, packed. Asks for the bytes
/// `ahead`, a cache line in each of the first steps.
///
/// Bound by the multiply-adds: a step has `4 T` of them and `4 + T` loads, and few other instructions.
struct Dot<'a, const T: usize> {
    tile: &'a [f32],
    x: &'a [f32],
    ahead: &'a [u8],
}

impl<const T: usize> Kernel for Dot<'_, T> {
    type Output = [[f32; TILE]; T];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        // Plain loops: what runs inside a closure of the standard library is compiled without the
        // vector instructions.
        let len = self.tile.len() / TILE;
        let (a, rest) = self.tile.split_at(len);
        let (b, rest) = rest.split_at(len);
        let (c, d) = rest.split_at(len);
        let (x, rows) = (s.chunks(self.x).as_chunks::<T>().0, [s.chunks(a), s.chunks(b), s.chunks(c), s.chunks(d)]);
        let steps = rows.iter().fold(x.len(), |least, row| least.min(row.len()));
        // Of one length, so that no step checks a bound.
        let (x, [a, b, c, d]) = (&x[..steps], rows.map(|row| &row[..steps]));
        let mut sums = [[s.splat(0.0); TILE]; T];
        let asking = self.ahead.len().div_ceil(64).min(steps);
        for i in 0..asking {
            s.prefetch(&self.ahead[64 * i]);
            step(s, [&a[i], &b[i], &c[i], &d[i]], &x[i], &mut sums);
        }
        for i in asking..steps {
            step(s, [&a[i], &b[i], &c[i], &d[i]], &x[i], &mut sums);
        }
        let mut out = [[0f32; TILE]; T];
        for t in 0..T {
            out[t] = s.sum4(sums[t]);
        }
        out
    }
}

/// Adds the products of one vector of each row with one of each token.
#[inline(always)]
fn step<S: Simd, const T: usize>(s: S, rows: [&S::Chunk; TILE], x: &[S::Chunk; T], sums: &mut [[S::V; TILE]; T]) {
    let mut v = [s.splat(0.0); T];
    for t in 0..T {
        v[t] = s.load(&x[t]);
    }
    for r in 0..TILE {
        let w = s.load(rows[r]);
        for t in 0..T {
            sums[t][r] = s.fma(w, v[t], sums[t][r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_short_enough() {
        for cols in 1..6000 {
            let b = block_len(cols);
            assert!(b.is_multiple_of(schemes::DECODE_ALIGN) && b <= 1024, "{cols}: {b}");
        }
    }
}
