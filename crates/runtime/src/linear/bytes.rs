//! The integer product for few tokens where the processor multiplies bytes: straight from the
//! stored codes, 128 columns of some rows at a time.

use super::{
    byte_planes::{CHUNK, Chunk},
    codes::Stored,
    integer::Integer,
    rows::ROWS,
};
use crate::simd::{ByteSimd, Simd};

/// Blocks of 32 columns in a chunk.
const BLOCKS: usize = CHUNK / 32;

impl Integer<'_> {
    /// Sums of products of rows `row..row + ROWS` with all tokens, as [`Integer::rows`] gives them.
    #[inline(always)]
    pub(super) fn bytes_of_rows<S: Simd>(&self, b: S::Bytes, stored: Stored, row: usize, sums: &mut [f32]) {
        let tokens = self.x.rows();
        for token in (0..tokens).step_by(3) {
            match tokens - token {
                1 => self.bytes_with::<S, 1>(b, stored, row, token, sums),
                2 => self.bytes_with::<S, 2>(b, stored, row, token, sums),
                _ => self.bytes_with::<S, 3>(b, stored, row, token, sums),
            }
        }
    }

    /// Multiplies tokens `token..token + T`.
    #[inline(always)]
    fn bytes_with<S: Simd, const T: usize>(
        &self,
        b: S::Bytes,
        stored: Stored,
        row: usize,
        token: usize,
        sums: &mut [f32],
    ) {
        let mut x: [&[Chunk]; T] = [&[]; T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = self.x.planes(token + t).unwrap_or_default();
        }
        let dot = Dot::<S, T> { b, x, of: self, row };
        let sums = &mut sums[token * self.codes.segments() * S::LANES..];
        match stored {
            Stored::Bytes(0) => dot.rows(
                #[inline(always)]
                |c: &[u8; CHUNK]| [b.flip(b.load(part(c, 0))), b.flip(b.load(part(c, 64)))],
                sums,
            ),
            Stored::Bytes(_) => dot.rows(
                #[inline(always)]
                |c: &[u8; CHUNK]| [b.load(part(c, 0)), b.load(part(c, 64))],
                sums,
            ),
            Stored::Nibbles => dot.rows(
                #[inline(always)]
                |c: &[u8; CHUNK / 2]| b.nibbles(b.load(c)),
                sums,
            ),
            Stored::Q4_0 => dot.rows(
                #[inline(always)]
                |c: &[u8; BLOCKS * 18]| b.nibbles(b.load4([part(c, 2), part(c, 20), part(c, 38), part(c, 56)])),
                sums,
            ),
            Stored::Q8_0 => dot.rows(
                #[inline(always)]
                |c: &[u8; BLOCKS * 34]| {
                    let first = b.load4([part(c, 2), part(c, 36), part(c, 70), part(c, 104)]);
                    let second = b.load4([part(c, 18), part(c, 52), part(c, 86), part(c, 120)]);
                    [b.flip(first), b.flip(second)]
                },
                sums,
            ),
        }
    }
}

/// Some bytes of a chunk, from `at` on.
#[inline(always)]
fn part<const N: usize>(chunk: &[u8], at: usize) -> &[u8; N] {
    // Both are constants: nothing of this is left when it is compiled.
    chunk[at..].first_chunk().unwrap_or(&[0; N])
}

type R<S> = <<S as Simd>::Bytes as ByteSimd>::R;

/// Products with some tokens.
struct Dot<'a, S: Simd, const T: usize> {
    b: S::Bytes,
    x: [&'a [Chunk]; T],
    of: &'a Integer<'a>,
    /// The first row.
    row: usize,
}

impl<S: Simd, const T: usize> Dot<'_, S, T> {
    /// Rows whose chunks have `N` bytes; `vectors` takes the two vectors of one.
    #[inline(always)]
    fn rows<const N: usize>(&self, vectors: impl Fn(&[u8; N]) -> [R<S>; 2], sums: &mut [f32]) {
        let (codes, chunks) = (&self.of.codes, self.x[0].len());
        let mut rows: [&[u8]; ROWS] = [&[]; ROWS];
        // What comes after a row is multiplied with zeros. Only after the last there is nothing.
        let mut whole = chunks;
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &codes.data[codes.start(self.of.existing(self.row + i))..];
            whole = whole.min(row.len() / N);
        }
        let [a, b, c, d] = rows.map(|row| row.as_chunks::<N>().0);
        let (a, b, c, d) = (&a[..whole], &b[..whole], &c[..whole], &d[..whole]);
        for chunk in 0..whole {
            self.chunk([&a[chunk], &b[chunk], &c[chunk], &d[chunk]], chunk, &vectors, sums);
        }
        if whole < chunks {
            let mut last = [[0; N]; ROWS];
            for (last, row) in last.iter_mut().zip(rows) {
                let rest = &row[whole * N..row.len().min(chunks * N)];
                last[..rest.len()].copy_from_slice(rest);
            }
            let [a, b, c, d] = &last;
            self.chunk([a, b, c, d], whole, &vectors, sums);
        }
    }

    /// Products of one chunk.
    #[inline(always)]
    fn chunk<const N: usize>(
        &self,
        rows: [&[u8; N]; ROWS],
        chunk: usize,
        vectors: &impl Fn(&[u8; N]) -> [R<S>; 2],
        sums: &mut [f32],
    ) {
        let (b, [r0, r1, r2, r3]) = (self.b, rows);
        let codes = [vectors(r0), vectors(r1), vectors(r2), vectors(r3)];
        for t in 0..T {
            let x = &self.x[t][chunk];
            let (mut high, mut low) = ([b.zero(); ROWS], [b.ints(&x.start); ROWS]);
            for (half, (x_high, x_low)) in x.high.iter().zip(&x.low).enumerate() {
                let (x_high, x_low) = (b.signed(x_high), b.signed(x_low));
                for r in 0..ROWS {
                    high[r] = b.dot(codes[r][half], x_high, high[r]);
                    low[r] = b.dot(codes[r][half], x_low, low[r]);
                }
            }
            for r in 0..ROWS {
                low[r] = b.join(high[r], low[r]);
            }
            self.put(low, t, chunk, sums);
        }
    }

    /// Keeps the sums of segments, each of some of a chunk's blocks.
    #[inline(always)]
    fn put(&self, rows: [R<S>; ROWS], t: usize, chunk: usize, sums: &mut [f32]) {
        let (segments, of_chunk) = (self.of.codes.segments(), CHUNK / self.of.codes.segment());
        let (first, step) = (chunk * of_chunk, BLOCKS / of_chunk);
        let all = self.b.sum_quads(rows, step);
        for segment in first..segments.min(first + of_chunk) {
            let out = &mut sums[(t * segments + segment) * S::LANES..][..ROWS];
            out.copy_from_slice(&all[(segment - first) * step]);
        }
    }
}
