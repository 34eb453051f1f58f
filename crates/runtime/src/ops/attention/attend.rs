//! Out of stored keys and values.

use super::{Batch, Element, Shape, Span};
use crate::linear::product::aligned;
use crate::ops::{values, values_mut};
use crate::simd::{self, Kernel, Simd};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp3, Layout, Result, bail};
use half::f16;
use rayon::prelude::*;
use std::{cell::RefCell, ops::Range};

/// Keys of one block of the softmax.
const BLOCK: usize = 64;

/// Query rows (tokens times heads of a group) that share the blocks that a task decodes.
const ROWS: usize = 48;

/// `out [tokens, heads * head_dim]` from queries and stored keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Attend<'a>(pub Batch<'a>);

impl Attend<'_> {
    /// On slices.
    pub(super) fn run<E: Element>(self, qkv: &[f32], store: &[E], out: &mut [f32]) {
        let Batch { shape, spans, .. } = self.0;
        let part = shape.group() * shape.head_dim;
        let width = shape.kv_heads * part;
        let most = (out.len() / width).div_ceil(2 * rayon::current_num_threads());
        let at_once = (ROWS / shape.group()).min(most).max(1);
        // Few tokens are shared out by head.
        let heads = if at_once == 1 { 1 } else { shape.kv_heads };
        let (mut tasks, mut rest) = (Vec::new(), out);
        for span in spans {
            for first in span.rows.clone().step_by(at_once) {
                let rows = first..span.rows.end.min(first + at_once);
                let (now, later) = rest.split_at_mut(rows.len() * width);
                rest = later;
                let parts = now.chunks_mut(rows.len() * heads * part).zip((0..).step_by(heads));
                tasks.extend(parts.map(|(out, head)| (span, rows.clone(), head..head + heads, out)));
            }
        }
        tasks.into_par_iter().for_each(|(span, rows, heads, out)| {
            for head in heads.clone() {
                let queries = Queries { shape, store, qkv, span, rows: rows.clone(), heads: heads.clone(), head };
                SCRATCH.with_borrow_mut(|scratch| simd::run(Run { queries, out, scratch }));
            }
        });
    }
}

impl InplaceOp3 for Attend<'_> {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn cpu_fwd(
        &self,
        out: &mut CpuStorage,
        lo: &Layout,
        qkv: &CpuStorage,
        lq: &Layout,
        store: &CpuStorage,
        ls: &Layout,
    ) -> Result<()> {
        let (qkv, out) = (values(qkv, lq)?, values_mut(out, lo)?);
        if out.len() / (self.0.shape.heads * self.0.shape.head_dim) != qkv.len() / self.0.shape.row() {
            bail!("attend: {:?} to {:?}", lq.shape(), lo.shape());
        }
        match store {
            CpuStorage::F32(_) => self.checked(qkv, values::<f32>(store, ls)?, out),
            CpuStorage::F16(_) => self.checked(qkv, values::<f16>(store, ls)?, out),
            CpuStorage::U8(_) => self.checked(qkv, values::<u8>(store, ls)?, out),
            _ => bail!("keys and values are stored in f32, f16 or 8-bit codes"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        out: &mut CudaStorage,
        lo: &Layout,
        qkv: &CudaStorage,
        lq: &Layout,
        store: &CudaStorage,
        ls: &Layout,
    ) -> Result<()> {
        crate::cuda::attend(&self.0, (out, lo), (qkv, lq), (store, ls))
    }
}

impl Attend<'_> {
    fn checked<E: Element>(self, qkv: &[f32], store: &[E], out: &mut [f32]) -> Result<()> {
        self.0.check::<E>(qkv.len(), store.len())?;
        self.run(qkv, store, out);
        Ok(())
    }
}

thread_local! {
    /// Working memory, kept from task to task.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Some consecutive queries of one sequence and one group of heads.
struct Queries<'a, E> {
    shape: Shape,
    store: &'a [E],
    qkv: &'a [f32],
    span: &'a Span,
    /// Rows of `qkv`.
    rows: Range<usize>,
    /// The key heads of a row of the output.
    heads: Range<usize>,
    /// The key head.
    head: usize,
}

struct Run<'a, E> {
    queries: Queries<'a, E>,
    out: &'a mut [f32],
    scratch: &'a mut Vec<f32>,
}

/// Parts of the working memory. `rows` is [`Rows::count`].
struct Rows<'a> {
    count: usize,
    /// Position of each row's token.
    first: usize,
    group: usize,
    d: usize,
    /// `d` padded to whole vectors.
    wide: usize,
    /// Scaled queries `[rows, d]`.
    q: &'a mut [f32],
    /// Sums of values so far `[rows, wide]`.
    sums: &'a mut [f32],
    /// Largest score so far, and sum of exponentials, of each row.
    tops: &'a mut [f32],
    totals: &'a mut [f32],
    /// Decoded keys `[d, BLOCK]` and values `[BLOCK, wide]`.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Scores of one tile.
    scores: &'a mut [f32],
}

impl<E: Element> Kernel for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Run { queries, out, scratch } = self;
        let Queries { shape, span, head, .. } = queries;
        let (d, group, tokens) = (shape.head_dim, shape.group(), queries.rows.len());
        let first = span.past + queries.rows.start - span.rows.start;
        let mut rows = Rows::new(scratch, tokens * group, group, d, first);
        let scale = 1.0 / (d as f32).sqrt();
        for (q, i) in rows.q.chunks_exact_mut(d).zip(0..) {
            let at = (queries.rows.start + i / group) * shape.row() + (head * group + i % group) * d;
            q.iter_mut().zip(&queries.qkv[at..]).for_each(|(q, x)| *q = x * scale);
        }
        let end = first + tokens;
        for start in (0..end).step_by(BLOCK) {
            let n = BLOCK.min(end - start);
            rows.decode(s, &queries, start, n);
            let mut row = 0;
            while row < rows.count {
                let count = S::TOKENS.min(rows.count - row);
                // Rows ascend in position: a tile is skipped where the block is in its future.
                if rows.position(row + count - 1) >= start {
                    match count {
                        1 => rows.tile::<S, 1>(s, row, start, n),
                        2 => rows.tile::<S, 2>(s, row, start, n),
                        3 => rows.tile::<S, 3>(s, row, start, n),
                        4 if S::TOKENS > 3 => rows.tile::<S, 4>(s, row, start, n),
                        5 if S::TOKENS > 3 => rows.tile::<S, 5>(s, row, start, n),
                        6 if S::TOKENS > 3 => rows.tile::<S, 6>(s, row, start, n),
                        _ => unreachable!("no more than TOKENS rows"),
                    }
                }
                row += count;
            }
        }
        let width = queries.heads.len() * group * d;
        for i in 0..rows.count {
            let at = i / group * width + ((head - queries.heads.start) * group + i % group) * d;
            let total = rows.totals[i];
            out[at..at + d].iter_mut().zip(&rows.sums[i * rows.wide..]).for_each(|(o, x)| *o = x / total);
        }
    }
}

impl<'a> Rows<'a> {
    fn new(scratch: &'a mut Vec<f32>, count: usize, group: usize, d: usize, first: usize) -> Self {
        let wide = d.next_multiple_of(16);
        let tile = 6 * BLOCK;
        let (keys, rest) = aligned(scratch, count * (d + wide + 2) + (d + wide) * BLOCK + tile).split_at_mut(d * BLOCK);
        let (values, rest) = rest.split_at_mut(wide * BLOCK);
        let (scores, rest) = rest.split_at_mut(tile);
        let (q, rest) = rest.split_at_mut(count * d);
        let (sums, rest) = rest.split_at_mut(count * wide);
        let (tops, totals) = rest.split_at_mut(count);
        sums.fill(0.0);
        totals.fill(0.0);
        tops.fill(f32::NEG_INFINITY);
        Rows { count, first, group, d, wide, q, sums, tops, totals, keys, values, scores }
    }

    fn position(&self, row: usize) -> usize {
        self.first + row / self.group
    }

    /// Keys and values `start..start + n`; what follows is not theirs.
    #[inline(always)]
    fn decode<S: Simd, E: Element>(&mut self, s: S, queries: &Queries<'_, E>, start: usize, n: usize) {
        let block = queries.shape.block;
        let mut at = 0;
        while at < n {
            let (index, offset) = ((start + at) / block, (start + at) % block);
            let count = (block - offset).min(n - at);
            let plane = queries.shape.plane_of(queries.store, queries.span.blocks[index] as usize, queries.head);
            self.decode_piece(s, block, plane, offset, at, count);
            at += count;
        }
    }

    /// `count` keys and values from place `offset` of a plane on, to places from `at` on.
    #[inline(always)]
    fn decode_piece<S: Simd, E: Element>(
        &mut self,
        s: S,
        block: usize,
        plane: &[E],
        offset: usize,
        at: usize,
        count: usize,
    ) {
        let (d, planes) = (self.d, self.d * block);
        let (keys, values) = (&plane[..planes], &plane[planes..2 * planes]);
        let mut scales = [1f32; BLOCK];
        // Whole vectors, as far as there is room: scores beyond the last key are masked.
        let wide = count.next_multiple_of(16).min(block - offset).min(BLOCK - at);
        E::scales(s, &plane[2 * planes + offset * E::SCALE..], &mut scales[..wide]);
        for (i, out) in self.keys.chunks_exact_mut(BLOCK).enumerate() {
            let out = &mut out[at..at + wide];
            E::widen(s, &keys[i * block + offset..], out);
            if E::SCALE > 0 {
                for (x, scale) in out.iter_mut().zip(&scales) {
                    *x *= scale;
                }
            }
        }
        E::scales(s, &plane[2 * planes + (block + offset) * E::SCALE..], &mut scales[..count]);
        let rows = self.values[at * self.wide..].chunks_exact_mut(self.wide).take(count);
        for (i, out) in rows.enumerate() {
            E::widen(s, &values[(offset + i) * d..], &mut out[..d]);
            if E::SCALE > 0 {
                for x in &mut out[..d] {
                    *x *= scales[i];
                }
            }
        }
    }

    /// Rows `row..row + T` against the decoded block of `n` keys, which starts at position `start`.
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(&mut self, s: S, row: usize, start: usize, n: usize) {
        let q: [&[f32]; T] = std::array::from_fn(|t| &self.q[(row + t) * self.d..][..self.d]);
        let scores = &mut self.scores[..T * BLOCK];
        scores.fill(0.0);
        broadcast_products(s, q, self.keys, BLOCK, scores);
        for (t, scores) in scores.chunks_exact_mut(BLOCK).enumerate() {
            let i = row + t;
            let seen = (self.first + i / self.group + 1).saturating_sub(start).min(BLOCK);
            scores[seen..].fill(f32::NEG_INFINITY);
            let top = largest(s, scores).max(self.tops[i]);
            let mut shrink = [self.tops[i] - top; 16];
            let total = exponentials(s, scores, top);
            exponentials(s, &mut shrink, 0.0);
            self.tops[i] = top;
            self.totals[i] = self.totals[i] * shrink[0] + total;
            let factor = s.splat(shrink[0]);
            for c in s.chunks_mut(&mut self.sums[i * self.wide..(i + 1) * self.wide]) {
                let v = s.mul(s.load(c), factor);
                s.store(v, c);
            }
        }
        let scores = &self.scores[..T * BLOCK];
        let p: [&[f32]; T] = std::array::from_fn(|t| &scores[t * BLOCK..][..n]);
        broadcast_products(s, p, self.values, self.wide, &mut self.sums[row * self.wide..(row + T) * self.wide]);
    }
}

/// `out [T, width] += a [T, n] * b [n, width]`; `width` is a multiple of 16. Each sum runs
/// through `n` in order.
#[inline(always)]
fn broadcast_products<S: Simd, const T: usize>(s: S, a: [&[f32]; T], b: &[f32], width: usize, out: &mut [f32]) {
    let mut at = 0;
    while at < width {
        if width - at >= 4 * S::LANES {
            broadcast_panel::<S, T, 4>(s, a, b, width, at, out);
            at += 4 * S::LANES;
        } else {
            broadcast_panel::<S, T, 1>(s, a, b, width, at, out);
            at += S::LANES;
        }
    }
}

#[inline(always)]
fn broadcast_panel<S: Simd, const T: usize, const N: usize>(
    s: S,
    a: [&[f32]; T],
    b: &[f32],
    width: usize,
    at: usize,
    out: &mut [f32],
) {
    let n = a[0].len();
    let mut rows: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        rows[t] = &a[t][..n];
    }
    // Plain loops: what runs inside a closure of the standard library is compiled without the
    // vector instructions.
    let mut sums = [[s.splat(0.0); N]; T];
    for t in 0..T {
        let row = s.chunks(&out[t * width + at..][..N * S::LANES]);
        for c in 0..N {
            sums[t][c] = s.load(&row[c]);
        }
    }
    for (i, row) in b.chunks_exact(width).take(n).enumerate() {
        let row = s.chunks(&row[at..at + N * S::LANES]);
        let mut x = [s.splat(0.0); T];
        for t in 0..T {
            x[t] = s.splat(rows[t][i]);
        }
        for c in 0..N {
            let v = s.load(&row[c]);
            for t in 0..T {
                sums[t][c] = s.fma(x[t], v, sums[t][c]);
            }
        }
    }
    for t in 0..T {
        let row = s.chunks_mut(&mut out[t * width + at..][..N * S::LANES]);
        for c in 0..N {
            s.store(sums[t][c], &mut row[c]);
        }
    }
}

#[inline(always)]
fn largest<S: Simd>(s: S, scores: &[f32]) -> f32 {
    let mut top = s.splat(f32::NEG_INFINITY);
    for c in s.chunks(scores) {
        top = s.max(s.load(c), top);
    }
    let mut lanes = [f32::NEG_INFINITY; 16];
    s.store(top, &mut s.chunks_mut(&mut lanes)[0]);
    lanes.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x))
}

/// `e^(x - top)` in place; gives the sum.
#[inline(always)]
fn exponentials<S: Simd>(s: S, scores: &mut [f32], top: f32) -> f32 {
    let (mut sum, top) = (s.splat(0.0), s.splat(top));
    for c in s.chunks_mut(scores) {
        let e = simd::exp(s, s.sub(s.load(c), top));
        sum = s.add(sum, e);
        s.store(e, c);
    }
    s.sum(sum)
}
