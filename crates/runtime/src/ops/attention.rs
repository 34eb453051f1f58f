//! Causal attention with grouped queries, blockwise, with an online softmax.
//!
//! Keys are kept transposed, so that scores and mixtures are both sums of broadcast products
//! along contiguous memory. Blocks of keys start at fixed positions: what comes after a
//! token, and what else is in the batch, never changes a bit of its output.

use super::{values, values_mut};
use crate::simd::{self, Kernel, Simd};
use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, bail};
use half::{f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;
use std::cell::RefCell;

/// Keys of one block.
const BLOCK: usize = 64;

/// Query rows (tokens times heads of a group) that share the blocks that a task decodes.
const ROWS: usize = 48;

/// Shape of the attention of one layer.
///
/// Queries, keys and values of a token lie side by side, `[tokens, (heads + 2 kv_heads) *
/// head_dim]`; stored keys and values as `[sequence, kv_head]` of keys `[head_dim,
/// capacity]` and values `[capacity, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// New tokens of each sequence.
    pub tokens: usize,
    /// Tokens stored before them.
    pub past: usize,
    /// Tokens that the store has room for.
    pub capacity: usize,
}

impl Shape {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of one sequence's keys of one head; values are as many.
    fn plane(&self) -> usize {
        self.capacity * self.head_dim
    }

    fn check(&self, qkv: usize, store: usize) -> Result<()> {
        let sequences = qkv / self.row() / self.tokens.max(1);
        if self.past + self.tokens > self.capacity
            || sequences * self.tokens * self.row() != qkv
            || sequences * self.kv_heads * 2 * self.plane() != store
        {
            bail!("attention: {qkv} values and a store of {store} don't fit {self:?}");
        }
        Ok(())
    }
}

/// How stored keys and values are represented.
trait Element: Copy + Send + Sync {
    fn narrow(src: &[f32], dst: &mut [Self]);
    fn widen<S: Simd>(s: S, src: &[Self], dst: &mut [f32]);
}

impl Element for f32 {
    #[inline(always)]
    fn narrow(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
    #[inline(always)]
    fn widen<S: Simd>(_: S, src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
}

impl Element for f16 {
    #[inline(always)]
    fn narrow(src: &[f32], dst: &mut [f16]) {
        dst.convert_from_f32_slice(src);
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, src: &[f16], dst: &mut [f32]) {
        s.widen_f16(src, dst);
    }
}

/// Writes new keys and values into the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreKeys(pub Shape);

impl StoreKeys {
    fn run<E: Element>(self, qkv: &[f32], store: &mut [E]) {
        let Shape { heads, kv_heads, head_dim: d, tokens, past, capacity } = self.0;
        let row = self.0.row();
        store.par_chunks_mut(2 * self.0.plane()).enumerate().for_each(|(i, planes)| {
            let (sequence, head) = (i / kv_heads, i % kv_heads);
            let (keys, values) = planes.split_at_mut(self.0.plane());
            let rows = &qkv[sequence * tokens * row..(sequence + 1) * tokens * row];
            let (k_at, v_at) = ((heads + head) * d, (heads + kv_heads + head) * d);
            for (some, first) in rows.chunks(16 * row).zip((past..).step_by(16)) {
                let n = some.len() / row;
                for i in 0..d {
                    let mut column = [0f32; 16];
                    column.iter_mut().zip(some.chunks_exact(row)).for_each(|(c, r)| *c = r[k_at + i]);
                    E::narrow(&column[..n], &mut keys[i * capacity + first..][..n]);
                }
            }
            for (r, out) in rows.chunks_exact(row).zip(values[past * d..].chunks_exact_mut(d)) {
                E::narrow(&r[v_at..v_at + d], out);
            }
        });
    }
}

impl InplaceOp2 for StoreKeys {
    fn name(&self) -> &'static str {
        "store-keys"
    }

    fn cpu_fwd(&self, store: &mut CpuStorage, ls: &Layout, qkv: &CpuStorage, lq: &Layout) -> Result<()> {
        let qkv = values(qkv, lq)?;
        self.0.check(qkv.len(), ls.shape().elem_count())?;
        match (store, ls.contiguous_offsets()) {
            (CpuStorage::F32(all), Some((start, end))) => self.run(qkv, &mut all[start..end]),
            (CpuStorage::F16(all), Some((start, end))) => self.run(qkv, &mut all[start..end]),
            _ => bail!("keys and values are stored in contiguous f32 or f16"),
        }
        Ok(())
    }
}

/// `out [tokens, heads * head_dim]` from queries and stored keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Attend(pub Shape);

impl Attend {
    fn run<E: Element>(self, qkv: &[f32], store: &[E], out: &mut [f32]) {
        let shape = self.0;
        let width = shape.heads * shape.head_dim;
        let part = shape.group() * shape.head_dim;
        let all = out.len() / width;
        let most = all.div_ceil(2 * rayon::current_num_threads());
        let at_once = (ROWS / shape.group()).min(most).max(1);
        let leaf = |sequence: usize, token: usize, head: usize, out: &mut [f32]| {
            let planes = &store[(sequence * shape.kv_heads + head) * 2 * shape.plane()..][..2 * shape.plane()];
            let query = &qkv[(sequence * shape.tokens + token) * shape.row()..];
            SCRATCH.with_borrow_mut(|scratch| simd::run(Queries { shape, planes, query, head, token, out, scratch }));
        };
        out.par_chunks_mut(shape.tokens * width).enumerate().for_each(|(sequence, out)| {
            out.par_chunks_mut(at_once * width).enumerate().for_each(|(i, out)| {
                if at_once == 1 {
                    out.par_chunks_mut(part).enumerate().for_each(|(head, out)| leaf(sequence, i, head, out));
                } else {
                    (0..shape.kv_heads).for_each(|head| leaf(sequence, i * at_once, head, out));
                }
            });
        });
    }
}

impl InplaceOp3 for Attend {
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
        self.0.check(qkv.len(), ls.shape().elem_count())?;
        if out.len() / (self.0.heads * self.0.head_dim) != qkv.len() / self.0.row() {
            bail!("attend: {:?} to {:?}", lq.shape(), lo.shape());
        }
        match store {
            CpuStorage::F32(_) => self.run(qkv, values::<f32>(store, ls)?, out),
            CpuStorage::F16(_) => self.run(qkv, values::<f16>(store, ls)?, out),
            _ => bail!("keys and values are stored in f32 or f16"),
        }
        Ok(())
    }
}

thread_local! {
    /// Working memory, kept from task to task.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Some consecutive queries of one group of heads.
struct Queries<'a, E> {
    shape: Shape,
    /// Keys, then values.
    planes: &'a [E],
    /// Rows of `qkv` from the first query on.
    query: &'a [f32],
    /// The key head.
    head: usize,
    /// The first query's place among the new tokens.
    token: usize,
    /// The outputs: whole tokens, or where there is one token, this group's part of it.
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

impl<E: Element> Kernel for Queries<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Queries { shape, planes, query, head, token, out, scratch } = self;
        let (d, group, width) = (shape.head_dim, shape.group(), shape.heads * shape.head_dim);
        let whole = out.len() >= width;
        let tokens = if whole { out.len() / width } else { 1 };
        let mut rows = Rows::new(scratch, tokens * group, group, d, shape.past + token);
        let scale = 1.0 / (d as f32).sqrt();
        for (q, i) in rows.q.chunks_exact_mut(d).zip(0..) {
            let at = i / group * shape.row() + (head * group + i % group) * d;
            q.iter_mut().zip(&query[at..]).for_each(|(q, x)| *q = x * scale);
        }
        let end = rows.first + tokens;
        for start in (0..end).step_by(BLOCK) {
            let n = BLOCK.min(end - start);
            rows.decode(s, planes, shape.capacity, start, n);
            let mut row = 0;
            while row < rows.count {
                let count = if rows.count - row >= S::TOKENS { S::TOKENS } else { 1 };
                // Rows ascend in position: a tile is skipped where the block is in its future.
                if rows.position(row + count - 1) >= start {
                    match count {
                        1 => rows.tile::<S, 1>(s, row, start),
                        3 => rows.tile::<S, 3>(s, row, start),
                        _ => rows.tile::<S, 6>(s, row, start),
                    }
                }
                row += count;
            }
        }
        for i in 0..rows.count {
            let at = if whole { i / group * width + (head * group + i % group) * d } else { i * d };
            let total = rows.totals[i];
            out[at..at + d].iter_mut().zip(&rows.sums[i * rows.wide..]).for_each(|(o, x)| *o = x / total);
        }
    }
}

impl<'a> Rows<'a> {
    fn new(scratch: &'a mut Vec<f32>, count: usize, group: usize, d: usize, first: usize) -> Self {
        let wide = d.next_multiple_of(16);
        let tile = 6 * BLOCK;
        scratch.clear();
        scratch.resize(count * (d + wide + 2) + (d + wide) * BLOCK + tile, 0.0);
        let (keys, rest) = scratch.split_at_mut(d * BLOCK);
        let (values, rest) = rest.split_at_mut(wide * BLOCK);
        let (scores, rest) = rest.split_at_mut(tile);
        let (q, rest) = rest.split_at_mut(count * d);
        let (sums, rest) = rest.split_at_mut(count * wide);
        let (tops, totals) = rest.split_at_mut(count);
        tops.fill(f32::NEG_INFINITY);
        Rows { count, first, group, d, wide, q, sums, tops, totals, keys, values, scores }
    }

    fn position(&self, row: usize) -> usize {
        self.first + row / self.group
    }

    /// Keys and values `start..start + n`, with zeros after them.
    #[inline(always)]
    fn decode<S: Simd, E: Element>(&mut self, s: S, planes: &[E], capacity: usize, start: usize, n: usize) {
        let (keys, values) = planes.split_at(self.d * capacity);
        for (i, out) in self.keys.chunks_exact_mut(BLOCK).enumerate() {
            E::widen(s, &keys[i * capacity + start..][..n], &mut out[..n]);
            out[n..].fill(0.0);
        }
        for (i, out) in self.values.chunks_exact_mut(self.wide).enumerate() {
            if i < n {
                E::widen(s, &values[(start + i) * self.d..][..self.d], &mut out[..self.d]);
            } else {
                out.fill(0.0);
            }
        }
    }

    /// Rows `row..row + T` against the decoded block, which starts at position `start`.
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(&mut self, s: S, row: usize, start: usize) {
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
        let p: [&[f32]; T] = std::array::from_fn(|t| &scores[t * BLOCK..(t + 1) * BLOCK]);
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

#[cfg(test)]
mod tests;
