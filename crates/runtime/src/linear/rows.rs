//! The integer product for few tokens: lanes along columns, some rows at a time, straight from
//! the stored codes where vectors can be taken from them.

use super::{
    codes::{BLOCK, Factors, Stored},
    integer::{Integer, WIDEST},
    product::{Scratch, aligned, fetch},
};
use crate::simd::Simd;

/// Rows whose sums over lanes are taken together; divides the lanes of all vectors.
pub(super) const ROWS: usize = 4;

impl Integer<'_> {
    /// Computes; the tokens are not interleaved.
    #[inline(always)]
    pub(super) fn by_row<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        let (task, segments) = (self.task, self.codes.segments());
        let stride = segments * S::LANES;
        let decoded = aligned(&mut scratch.codes, ROWS * self.x.padded);
        let floats = aligned(&mut scratch.floats, (self.x.rows() + 1) * stride);
        let (floats, sums) = floats.split_at_mut(stride);
        let mut factors = Factors { lanes: S::LANES, floats, halves: aligned(&mut scratch.halves, stride) };
        for first in (task.start..task.end).step_by(S::LANES) {
            let rows = S::LANES.min(task.end - first);
            for i in (0..rows).step_by(ROWS) {
                for i in i..rows.min(i + ROWS) {
                    fetch(s, self.codes.data, self.codes.start(first + i), self.codes.row_bytes, 0);
                    factors.take(&self.codes, first + i, i);
                }
                self.rows(s, first + i, decoded, &mut sums[i..]);
            }
            factors.finish(s, &self.codes);
            for (t, sums) in sums.chunks_exact(stride).enumerate() {
                let x_factors = self.x.group(t).1;
                let mut out = s.splat(0.0);
                for (segment, (sum, scale)) in s.chunks(sums).iter().zip(s.chunks(factors.floats)).enumerate() {
                    let factor = s.splat(x_factors[segment * self.codes.segment() / BLOCK]);
                    out = s.fma(s.mul(s.load(sum), s.load(scale)), factor, out);
                }
                let mut values = [0f32; WIDEST];
                s.store(out, &mut s.chunks_mut(&mut values)[0]);
                self.write(t, first, &values[..rows]);
            }
        }
    }

    /// Sums of products of rows `row..row + ROWS` with all tokens: of each token, of each segment,
    /// of each row, the segments [`Simd::LANES`] apart.
    #[inline(always)]
    fn rows<S: Simd>(&self, s: S, row: usize, decoded: &mut [i16], sums: &mut [f32]) {
        let tokens = self.x.rows();
        if let (Some(bytes), Some(_), Some(stored)) = (s.bytes(), self.x.planes(0), self.codes.stored()) {
            return self.bytes_of_rows::<S>(bytes, stored, row, sums);
        }
        for t in (0..tokens).step_by(2) {
            match tokens - t {
                1 => self.rows_with::<S, 1>(s, row, t, decoded, sums),
                _ => self.rows_with::<S, 2>(s, row, t, decoded, sums),
            }
        }
    }

    /// A row; past the last row it stands for those that there aren't.
    #[inline(always)]
    pub(super) fn existing(&self, row: usize) -> usize {
        row.min(self.task.end - 1)
    }

    /// [`Integer::rows`] with tokens `token..token + T`.
    #[inline(always)]
    fn rows_with<S: Simd, const T: usize>(
        &self,
        s: S,
        row: usize,
        token: usize,
        decoded: &mut [i16],
        sums: &mut [f32],
    ) {
        // Plain loops: what runs inside a closure of the standard library is not always inlined.
        let mut bytes: [&[u8]; ROWS] = [&[]; ROWS];
        for (i, bytes) in bytes.iter_mut().enumerate() {
            *bytes = self.codes.bytes(self.existing(row + i));
        }
        let segments = self.codes.segments();
        let sums = &mut sums[token * segments * S::LANES..];
        let mut x: [&[S::Pairs]; T] = [&[]; T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = s.pairs(self.x.group(token + t).0);
        }
        let dot = Dot { s, x, cols: self.codes.cols(), segments, segment: self.codes.segment() };
        match self.codes.stored() {
            Some(Stored::Bytes(xor)) => dot.rows(
                bytes,
                1,
                #[inline(always)]
                |b| s.byte_pairs(b, xor),
                sums,
            ),
            Some(Stored::Nibbles) => dot.rows(
                bytes,
                2,
                #[inline(always)]
                |b| s.nibble_pairs(b),
                sums,
            ),
            Some(Stored::Q8_0) => dot.blocks(bytes, sums),
            Some(Stored::Q4_0) | None => {
                let cols = self.codes.cols();
                for (i, out) in decoded.chunks_exact_mut(self.x.padded).enumerate() {
                    self.codes.decode(s, self.existing(row + i), 0, &mut out[..cols]);
                    out[cols..].fill(0);
                }
                let mut rows: [&[i16]; ROWS] = [&[]; ROWS];
                for (row, codes) in rows.iter_mut().zip(decoded.chunks_exact(self.x.padded)) {
                    *row = codes;
                }
                dot.rows(
                    rows,
                    1,
                    #[inline(always)]
                    |codes| s.load_pairs(&s.pairs(codes)[0]),
                    sums,
                );
            }
        }
    }
}

/// Products with some tokens.
struct Dot<'a, S: Simd, const T: usize> {
    s: S,
    x: [&'a [S::Pairs]; T],
    cols: usize,
    segments: usize,
    /// Columns of a segment.
    segment: usize,
}

impl<S: Simd, const T: usize> Dot<'_, S, T> {
    /// Rows of elements, each of `codes` codes; `widen` takes as many as make a vector.
    #[inline(always)]
    fn rows<B: Copy + Default>(
        &self,
        rows: [&[B]; ROWS],
        codes: usize,
        widen: impl Fn(&[B]) -> S::I,
        sums: &mut [f32],
    ) {
        let (length, vector) = (self.segment / codes, 2 * S::LANES / codes);
        let used = self.cols.div_ceil(codes);
        for segment in 0..self.segments {
            let part = segment * length..((segment + 1) * length).min(used);
            let [a, b, c, d] = rows;
            let (a, b, c, d) = (&a[part.clone()], &b[part.clone()], &c[part.clone()], &d[part]);
            let mut at = segment * self.segment / (2 * S::LANES);
            let mut all = [[self.s.zero_pairs(); ROWS]; T];
            let first = a.chunks_exact(vector).zip(b.chunks_exact(vector));
            for ((a, b), (c, d)) in first.zip(c.chunks_exact(vector).zip(d.chunks_exact(vector))) {
                self.add([widen(a), widen(b), widen(c), widen(d)], at, &mut all);
                at += 1;
            }
            let whole = a.len() / vector * vector;
            if whole < a.len() {
                // Activations are padded with zeros: what fills the last vectors counts nothing.
                let mut last = [[B::default(); 2 * WIDEST]; ROWS];
                for (last, row) in last.iter_mut().zip([a, b, c, d]) {
                    last[..row.len() - whole].copy_from_slice(&row[whole..]);
                }
                let [a, b, c, d] = &last;
                self.add([widen(a), widen(b), widen(c), widen(d)], at, &mut all);
            }
            self.put(all, segment, sums);
        }
    }

    /// Rows of ggml's Q8_0.
    #[inline(always)]
    fn blocks(&self, rows: [&[u8]; ROWS], sums: &mut [f32]) {
        let [a, b, c, d] = rows;
        let first = a.as_chunks::<34>().0.iter().zip(b.as_chunks::<34>().0);
        let second = c.as_chunks::<34>().0.iter().zip(d.as_chunks::<34>().0);
        for (segment, ((a, b), (c, d))) in first.zip(second).enumerate() {
            let mut all = [[self.s.zero_pairs(); ROWS]; T];
            for i in 0..WIDEST / S::LANES {
                let at = 2 + i * 2 * S::LANES;
                let mut codes = [self.s.zero_pairs(); ROWS];
                for (codes, block) in codes.iter_mut().zip([a, b, c, d]) {
                    *codes = self.s.byte_pairs(&block[at..at + 2 * S::LANES], 0);
                }
                self.add(codes, segment * (WIDEST / S::LANES) + i, &mut all);
            }
            self.put(all, segment, sums);
        }
    }

    /// Adds the products of a vector of codes of each row with vector `at` of each token.
    #[inline(always)]
    fn add(&self, codes: [S::I; ROWS], at: usize, all: &mut [[S::I; ROWS]; T]) {
        for (x, sums) in self.x.iter().zip(all) {
            let x = self.s.load_pairs(&x[at]);
            for (sum, codes) in sums.iter_mut().zip(codes) {
                *sum = self.s.dot_pairs(codes, x, *sum);
            }
        }
    }

    /// Sums over lanes.
    #[inline(always)]
    fn put(&self, all: [[S::I; ROWS]; T], segment: usize, sums: &mut [f32]) {
        for (t, all) in all.into_iter().enumerate() {
            let out = &mut sums[(t * self.segments + segment) * S::LANES..][..ROWS];
            for (out, sum) in out.iter_mut().zip(self.s.sum4_pairs(all)) {
                *out = sum as f32;
            }
        }
    }
}
