//! The matrix product: tiles of decoded weight rows against rows of activations.
//!
//! Both operands lie along k, so a vector holds consecutive k and each output is a sum over
//! lanes at the end: neither operand is transposed, and one token is computed exactly as
//! many are. The order of every sum depends on the number of columns alone; neither the
//! number of tokens, nor the batch, nor the threads change a bit of the result.

use super::{
    panel::{PAD, Packed},
    weights::Weights,
};
use crate::simd::{Isa, Kernel, Simd};
use rayon::prelude::*;
use std::{cell::RefCell, marker::PhantomData, ops::Range};

/// Columns whose products are summed before they are added to the output, about: few enough
/// that a strip of rows and a group of tokens share the first-level cache. Up to 1024 products
/// of two 8-bit codes stay below 2^24, so in f32 their sums are exact.
const MAX_BLOCK: usize = 640;

/// Rows that one register tile computes.
const TILE: usize = 4;

/// Rows that are decoded for one pass over few tokens; a multiple of [`TILE`].
const STRIP: usize = 16;

/// Rows that one task computes at most; a multiple of [`STRIP`].
const MAX_TASK: usize = 64;

/// Floats of activations that stay in the second-level cache while a task's rows pass.
const CACHED: usize = 96 * 1024;

/// Bytes of weights that are fetched from memory ahead of their decoding.
const AHEAD: usize = 4 * 1024;

/// Length of the blocks that `cols` columns are summed in; all but the last have it.
fn block_len(cols: usize) -> usize {
    cols.div_ceil(cols.div_ceil(MAX_BLOCK).max(1)).next_multiple_of(schemes::DECODE_ALIGN)
}

/// One product to add to the output.
#[derive(Debug, Clone, Copy)]
pub struct Term<'a> {
    /// The weights.
    pub weights: Weights<'a>,
    /// The activations, packed for the instruction set that runs.
    pub x: &'a Packed,
    /// One factor a token.
    pub token_scales: Option<&'a [f32]>,
}

/// The output columns of one matrix: the sum of its terms, and the bias.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// What is summed.
    pub terms: Vec<Term<'a>>,
    /// Added to each token.
    pub bias: Option<&'a [f32]>,
    /// Output features.
    pub rows: usize,
}

/// Writes the outputs of `jobs` side by side into `out [tokens, stride]`, or adds them to
/// what stands there.
pub fn multiply(isa: Isa, jobs: &[Job<'_>], tokens: usize, accumulate: bool, out: &mut [f32]) {
    let total: usize = jobs.iter().map(|j| j.rows).sum();
    assert_eq!(out.len(), tokens * total, "one output for each token and row");
    if out.is_empty() {
        return;
    }
    // Several tasks a thread even out their speeds; which rows share a task changes nothing else.
    let per_task = total.div_ceil(8 * rayon::current_num_threads()).next_multiple_of(STRIP).min(MAX_TASK);
    let out = SharedOut::new(out, total);
    let mut tasks = Vec::new();
    let mut first = 0;
    for job in jobs {
        let starts = (0..job.rows).step_by(per_task);
        tasks.extend(starts.map(|start| {
            let end = job.rows.min(start + per_task);
            Task { job, first_column: first, start, end, tokens, accumulate, out: &out }
        }));
        first += job.rows;
    }
    tasks.into_par_iter().for_each(|task| SCRATCH.with_borrow_mut(|scratch| isa.run(Run(task, scratch))));
}

thread_local! {
    /// Decoded rows, kept from task to task.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// An output that tasks write to at the same time, each to columns of its own.
struct SharedOut<'a> {
    start: *mut f32,
    tokens: usize,
    stride: usize,
    held: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a `&mut [f32]` whose parts are handed out disjointly (see `part`).
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    fn new(out: &'a mut [f32], stride: usize) -> Self {
        SharedOut { start: out.as_mut_ptr(), tokens: out.len() / stride, stride, held: PhantomData }
    }

    /// The outputs of one token at some columns.
    ///
    /// # Safety
    /// No two threads may ask for the same column, nor one thread for it twice at a time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, token: usize, columns: Range<usize>) -> &mut [f32] {
        debug_assert!(token < self.tokens && columns.start <= columns.end && columns.end <= self.stride);
        // SAFETY: inside the slice, as asserted; not aliased, as the caller promises.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(token * self.stride + columns.start),
                columns.end - columns.start,
            )
        }
    }
}

/// Some rows of one job, for all tokens.
#[derive(Clone, Copy)]
struct Task<'a> {
    job: &'a Job<'a>,
    /// The job's first output column.
    first_column: usize,
    /// First row.
    start: usize,
    /// Past the last row.
    end: usize,
    tokens: usize,
    accumulate: bool,
    out: &'a SharedOut<'a>,
}

struct Run<'a>(Task<'a>, &'a mut Vec<f32>);

/// What a sum is added to.
#[derive(Clone, Copy, PartialEq)]
enum Prior {
    Bias,
    BiasAndOutput,
    Output,
}

/// Some columns of one term of a task.
#[derive(Clone, Copy)]
struct Slab<'a> {
    task: Task<'a>,
    term: &'a Term<'a>,
    /// First column.
    column: usize,
    /// Columns, and the same padded.
    len: usize,
    padded: usize,
    prior: Prior,
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Run(task, scratch) = self;
        let mut prior = if task.accumulate { Prior::BiasAndOutput } else { Prior::Bias };
        for term in &task.job.terms {
            let block = block_len(term.x.cols);
            for column in (0..term.x.cols).step_by(block) {
                let len = block.min(term.x.cols - column);
                let slab = Slab { task, term, column, len, padded: len.next_multiple_of(PAD), prior };
                slab.run(s, scratch);
                prior = Prior::Output;
            }
        }
    }
}

impl Slab<'_> {
    #[inline(always)]
    fn run<S: Simd>(&self, s: S, scratch: &mut Vec<f32>) {
        let (task, tokens) = (&self.task, self.task.tokens);
        let cached = (CACHED / self.padded / S::TOKENS).max(1) * S::TOKENS;
        // With few tokens a strip is multiplied as soon as it is decoded, while it is in the
        // first-level cache; with many the task's rows are decoded once for all of them.
        let at_once = match tokens {
            _ if tokens <= S::TOKENS => TILE,
            _ if tokens <= cached => STRIP,
            _ => MAX_TASK,
        };
        let needed = at_once * self.padded + PAD;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        // Vectors that straddle cache lines cost twice.
        let offset = scratch.as_ptr().align_offset(64).min(PAD);
        let scratch = &mut scratch[offset..offset + at_once * self.padded];
        for row in (task.start..task.end).step_by(at_once) {
            let rows = at_once.min(task.end - row);
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
                let at = self.term.weights.order().stored(row + i) * row_bytes + AHEAD;
                fetch(s, bytes.get(at..at + row_bytes).unwrap_or_default());
                self.term.weights.decode(s, row + i, self.column, &mut out[..self.len]);
                out[self.len..].fill(0.0);
            } else {
                out.fill(0.0);
            }
        }
    }

    /// Multiplies one strip with tokens `token..end`.
    #[inline(always)]
    fn strip<S: Simd>(&self, s: S, row: usize, strip: &[f32], mut token: usize, end: usize) {
        let mut edges = [Edge::default(); STRIP / TILE];
        let tiles = strip.len() / (TILE * self.padded);
        for (i, edge) in edges[..tiles].iter_mut().enumerate() {
            *edge = Edge::of(self, row + i * TILE);
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
        let sums = dot::<S, T>(s, tile, self.term.x.group(token, self.column, self.padded));
        let first = self.task.first_column + edge.row;
        for t in 0..T {
            let factor = match self.term.token_scales {
                Some(f) => f[token + t],
                None => 1.0,
            };
            // SAFETY: each task has rows of its own, and the slice is dropped before the next one.
            let out = unsafe { self.task.out.part(token + t, first..first + edge.rows) };
            match <&mut [f32; TILE]>::try_from(&mut *out) {
                Ok(out) => edge.store(self.prior, factor, &sums[t], out),
                Err(_) => {
                    let mut whole = [0f32; TILE];
                    whole[..out.len()].copy_from_slice(out);
                    edge.store(self.prior, factor, &sums[t], &mut whole);
                    out.copy_from_slice(&whole[..out.len()]);
                }
            }
        }
    }
}

/// Asks for what will be decoded some time later. The processor does so by itself, but only to
/// the end of a page.
#[inline(always)]
fn fetch<S: Simd>(s: S, bytes: &[u8]) {
    for line in bytes.chunks(64) {
        s.prefetch(&line[0]);
    }
}

/// What a register tile needs besides its sums.
#[derive(Clone, Copy, Default)]
struct Edge {
    row: usize,
    rows: usize,
    scale: [f32; TILE],
    bias: [f32; TILE],
}

impl Edge {
    fn of(slab: &Slab<'_>, row: usize) -> Self {
        let rows = TILE.min(slab.task.end.saturating_sub(row));
        let (mut scale, mut bias) = ([1f32; TILE], [0f32; TILE]);
        if matches!(slab.term.weights, Weights::Codes(..)) {
            for (i, scale) in scale[..rows].iter_mut().enumerate() {
                *scale = slab.term.weights.row_scale(row + i).unwrap_or(1.0);
            }
        }
        if let Some(all) = slab.task.job.bias.filter(|_| rows > 0) {
            bias[..rows].copy_from_slice(&all[row..row + rows]);
        }
        Edge { row, rows, scale, bias }
    }

    #[inline(always)]
    fn store(&self, prior: Prior, factor: f32, sums: &[f32; TILE], out: &mut [f32; TILE]) {
        // One loop for each step: so each is one instruction.
        let mut v = [0f32; TILE];
        for i in 0..TILE {
            v[i] = sums[i] * (self.scale[i] * factor);
        }
        if prior != Prior::Output {
            v.iter_mut().zip(&self.bias).for_each(|(v, bias)| *v += bias);
        }
        if prior != Prior::Bias {
            v.iter_mut().zip(&*out).for_each(|(v, out)| *v += out);
        }
        *out = v;
    }
}

/// Products of four rows, one after the other in `tile`, with `T` tokens, packed.
#[inline(always)]
fn dot<S: Simd, const T: usize>(s: S, tile: &[f32], x: &[f32]) -> [[f32; TILE]; T] {
    // Plain loops: what runs inside a closure of the standard library is compiled without the
    // vector instructions.
    let len = tile.len() / TILE;
    let (a, rest) = tile.split_at(len);
    let (b, rest) = rest.split_at(len);
    let (c, d) = rest.split_at(len);
    let rows = s.chunks(a).iter().zip(s.chunks(b)).zip(s.chunks(c)).zip(s.chunks(d));
    let mut sums = [[s.splat(0.0); TILE]; T];
    for (x, (((a, b), c), d)) in s.chunks(x).as_chunks::<T>().0.iter().zip(rows) {
        let mut v = [s.splat(0.0); T];
        for t in 0..T {
            v[t] = s.load(&x[t]);
        }
        for (r, w) in [a, b, c, d].into_iter().enumerate() {
            let w = s.load(w);
            for t in 0..T {
                sums[t][r] = s.fma(w, v[t], sums[t][r]);
            }
        }
    }
    let mut out = [[0f32; TILE]; T];
    for t in 0..T {
        out[t] = s.sum4(sums[t]);
    }
    out
}

#[cfg(test)]
#[path = "product_tests.rs"]
mod tests;
