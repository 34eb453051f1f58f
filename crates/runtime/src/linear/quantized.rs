//! Activations as integer codes.

use super::{
    byte_planes::{CHUNK, Chunk, Meeting, planes},
    codes::BLOCK,
    panel::scales,
};
use rayon::prelude::*;
use rowmath::absmax;
use rowmath::round::nearest_i16;
use schemes::Activation;

/// Fewer tokens than this are not interleaved; groups have a multiple of it.
const FEW: usize = 4;

/// Most tokens without a panel where bytes are multiplied: from here on a panel's transposition costs less than a token
/// more.
const FEW_IN_BYTES: usize = 7;

/// Columns are padded with zeros to a multiple of this: the pairs of the widest vector.
const PAD: usize = 32;

/// The largest magnitude of codes for activations that are not to be quantized: both its bytes are
/// 127.
const MAX_CODE: f32 = 32639.0;

/// When a block has a remainder: where at least one in `share` of its values that aren't 0 is at most 1/`small` of the
/// largest. What 16 bits leave of such values is that much larger beside them than beside the largest. Values of a
/// normal distribution stay within these limits; of the inputs of SmolLM2-135M's layers one token in a hundred doesn't,
/// of those of its down projections one in eight.
const RANGES: [Range; 3] =
    [Range { small: 128.0, share: 2 }, Range { small: 512.0, share: 4 }, Range { small: 2048.0, share: 8 }];

/// A bound on the number of small values in a block.
struct Range {
    small: f32,
    share: u32,
}

/// Rows of activations as 16-bit codes, in the order in which a kernel reads them: of each group
/// of tokens that it takes at a time, the first pair of columns of each token, then the second
/// of each, and so on.
///
/// Activations that a scheme quantizes have the codes and the scale that it asks for. Others
/// have one scale for each [`BLOCK`] columns of a token, the block's largest magnitude over 32639. A value x is then off
/// by at most half a step, 1.5e-5 of the largest: more finely rounded than to F16 (2^-11 of x) where x is above 1/32 of
/// the largest.
///
/// Where many values of a block are smaller than that, as beside an outlier channel, what rounding left of the block
/// becomes codes of its own, in a further row: the token's remainder. Both rows together are off by at most 2.4e-10 of
/// the largest magnitude. Which blocks have one depends on their own values alone, so neither batch nor threads change
/// a result.
#[derive(Debug)]
pub struct Quantized {
    codes: Vec<i16>,
    /// Scales: of each group of rows, of each block, of each row.
    scales: Vec<f32>,
    /// Tokens; their remainders are the rows after them.
    tokens: usize,
    /// The token of each remainder.
    remainders: Vec<usize>,
    /// Most rows of a group; 1 where nothing is interleaved.
    most: usize,
    blocks: usize,
    /// Codes of few rows, as two planes of bytes.
    planes: Vec<Chunk>,
    /// Columns with their padding.
    pub padded: usize,
}

impl Quantized {
    /// Quantizes `rows`, each of `cols` values. Groups have up to `most` rows. Few rows are also
    /// taken apart for the `meeting`.
    pub fn new(
        rows: &[f32],
        cols: usize,
        sequences: &[usize],
        activation: Activation,
        most: usize,
        meeting: Option<Meeting>,
    ) -> Self {
        let (tokens, padded) = (rows.len() / cols, cols.next_multiple_of(PAD));
        let given = (activation != Activation::Float).then(|| scales(rows, cols, sequences, activation));
        let left = if given.is_none() { remainders(rows, cols) } else { Vec::new() };
        let all: Vec<&[f32]> = rows.chunks_exact(cols).chain(left.iter().map(|(_, row)| &row[..])).collect();
        let few = if meeting.is_some() { FEW_IN_BYTES } else { FEW };
        let most = if all.len() < few { 1 } else { most };
        let blocks = cols.div_ceil(BLOCK);
        let room = if most == 1 { all.len() } else { all.len().next_multiple_of(FEW) };
        let (mut codes, mut factors) = (vec![0i16; room * padded], vec![0f32; room * blocks]);
        let groups = codes.par_chunks_mut(most * padded).zip(factors.par_chunks_mut(most * blocks));
        groups.zip(all.par_chunks(most).enumerate()).with_min_len(2).for_each(|((codes, factors), (group, rows))| {
            let count = codes.len() / padded;
            let mut row_codes = vec![0i16; padded];
            for (t, row) in rows.iter().enumerate() {
                for (block, (x, out)) in row.chunks(BLOCK).zip(row_codes.chunks_mut(BLOCK)).enumerate() {
                    let scale = match &given {
                        Some(scales) => quantize_8(x, scales[group * most + t], out),
                        None => quantize_16(x, out),
                    };
                    factors[block * count + t] = scale;
                }
                for (pair, out) in
                    row_codes.as_chunks::<2>().0.iter().zip(codes.as_chunks_mut::<2>().0[t..].iter_mut().step_by(count))
                {
                    *out = *pair;
                }
            }
        });
        let mut apart = Vec::new();
        if let Some(meeting) = meeting.filter(|_| most == 1) {
            let chunks = cols.div_ceil(CHUNK);
            apart = vec![Chunk::ZERO; all.len() * chunks];
            for (codes, out) in codes.chunks_exact(padded).zip(apart.chunks_exact_mut(chunks)) {
                planes(codes, meeting, out);
            }
        }
        let remainders = left.into_iter().map(|(token, _)| token).collect();
        Quantized { codes, scales: factors, tokens, remainders, most, blocks, planes: apart, padded }
    }

    /// Rows: the tokens, then the remainders.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.tokens + self.remainders.len()
    }

    /// The token that row `row` is the remainder of; none where it is a token itself.
    #[inline(always)]
    pub fn token_of_remainder(&self, row: usize) -> Option<usize> {
        row.checked_sub(self.tokens).map(|i| self.remainders[i])
    }

    /// The activations of one row, where they are taken apart.
    #[inline(always)]
    pub fn planes(&self, row: usize) -> Option<&[Chunk]> {
        let chunks = self.planes.len() / self.rows();
        Some(&self.planes[row * chunks..][..chunks]).filter(|planes| !planes.is_empty())
    }

    /// Returns whether groups of rows are interleaved.
    pub fn interleaved(&self) -> bool {
        self.most > 1
    }

    /// Rows of the group that starts with `row`, counting those of zeros that fill the last.
    pub fn group_len(&self, row: usize) -> usize {
        if self.most == 1 { 1 } else { self.most.min((self.rows() - row).next_multiple_of(FEW)) }
    }

    /// Codes and scales of the group that starts with `row`.
    #[inline(always)]
    pub fn group(&self, row: usize) -> (&[i16], &[f32]) {
        let count = self.group_len(row);
        let codes = &self.codes[row * self.padded..][..count * self.padded];
        (codes, &self.scales[row * self.blocks..][..count * self.blocks])
    }
}

/// Remainders of the rows whose values range widely after rounding to 16-bit codes, with the index of each row: zeros
/// in blocks that have no remainder.
fn remainders(rows: &[f32], cols: usize) -> Vec<(usize, Vec<f32>)> {
    let rows = rows.par_chunks_exact(cols).with_min_len(8).enumerate();
    rows.filter_map(|(token, row)| {
        let mut left = Vec::new();
        for (block, x) in row.chunks(BLOCK).enumerate() {
            if ranges_widely(x) {
                left.resize(cols, 0.0);
                remainder(x, &mut left[block * BLOCK..][..x.len()]);
            }
        }
        (!left.is_empty()).then_some((token, left))
    })
    .collect()
}

/// Returns whether many values are small beside the largest. Values that aren't finite make the block's outputs so; it
/// has no remainder.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn ranges_widely(x: &[f32]) -> bool {
    let top = absmax(x);
    let limits = RANGES.map(|range| top / range.small);
    let mut counts = [0u32; RANGES.len()];
    let mut zeros = 0;
    for x in x {
        let x = x.abs();
        zeros += u32::from(x == 0.0);
        for (count, limit) in counts.iter_mut().zip(limits) {
            *count += u32::from(x <= limit);
        }
    }
    let others = x.len() as u32 - zeros;
    let many = |(range, count): (&Range, u32)| range.share * count.saturating_sub(zeros) >= others;
    top > 0.0 && top.is_finite() && RANGES.iter().zip(counts).any(many)
}

/// Remainder of each value after [`quantize_16`].
fn remainder(x: &[f32], out: &mut [f32]) {
    let mut codes = [0i16; BLOCK];
    let scale = f64::from(quantize_16(x, &mut codes[..x.len()]));
    for ((x, code), out) in x.iter().zip(codes).zip(out) {
        // Exact: a product of 16 and 24 bits, and a difference of numbers of like size.
        *out = (f64::from(*x) - f64::from(code) * scale) as f32;
    }
}

/// `nearest_i16(x / scale)` of 8 bits, ties to even; gives the scale.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn quantize_8(x: &[f32], scale: f32, out: &mut [i16]) -> f32 {
    if scale == 0.0 {
        out.fill(0);
        return 0.0;
    }
    for (x, o) in x.iter().zip(out) {
        *o = nearest_i16((*x / scale).clamp(-127.0, 127.0));
    }
    scale
}

/// Codes of 16 bits under the block's own scale, which it gives: NaN or infinite where a value
/// is, and so then are all outputs.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn quantize_16(x: &[f32], out: &mut [i16]) -> f32 {
    let top = absmax(x);
    let inverse = MAX_CODE / top;
    // So small that its inverse overflows: zeros.
    if inverse == f32::INFINITY {
        out.fill(0);
        return 0.0;
    }
    for (x, o) in x.iter().zip(out) {
        *o = nearest_i16(*x * inverse);
    }
    top / MAX_CODE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The values that the codes stand for, row by row.
    fn rows(q: &Quantized, cols: usize) -> Vec<f64> {
        let mut all = Vec::new();
        let mut row = 0;
        while row < q.rows() {
            let count = q.group_len(row);
            let (codes, scales) = q.group(row);
            for t in 0..count.min(q.rows() - row) {
                let pairs = codes.as_chunks::<2>().0.iter().skip(t).step_by(count).flatten();
                let value = |(c, code): (usize, &i16)| f64::from(*code) * f64::from(scales[c / BLOCK * count + t]);
                all.extend(pairs.take(cols).enumerate().map(value));
            }
            row += count;
        }
        all
    }

    /// Decoded values of tokens without remainders.
    fn values(q: &Quantized, cols: usize) -> Vec<f32> {
        rows(q, cols)[..q.tokens * cols].iter().map(|v| *v as f32).collect()
    }

    /// Normal noise, by the sum of twelve uniform numbers.
    fn normal(n: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum()).collect()
    }

    #[test]
    fn ordinary_blocks_have_no_remainder() {
        let (a, b) = (normal(BLOCK * 2000), normal(BLOCK * 4000));
        let products: Vec<f32> = a.iter().zip(&b[BLOCK * 2000..]).map(|(a, b)| a * b).collect();
        for (x, share) in [(a, 0.0), (products, 0.01)] {
            let wide = x.chunks(BLOCK).filter(|x| ranges_widely(x)).count();
            assert!(wide as f64 <= share * 2000.0, "{wide} of 2000");
        }
        let mut x = normal(BLOCK);
        x[7] = 1000.0;
        assert!(ranges_widely(&x));
        assert!(!ranges_widely(&[0.0; BLOCK]) && !ranges_widely(&[f32::NAN; BLOCK]));
        // Zeros are no small values: one value alone is exact.
        let mut alone = [0.0; BLOCK];
        alone[3] = 5.0;
        assert!(!ranges_widely(&alone));
    }

    /// The values that the codes of each row stand for, remainders added to their tokens.
    fn sums(q: &Quantized, cols: usize) -> Vec<f64> {
        let rows = rows(q, cols);
        let mut out: Vec<f64> = rows[..q.tokens * cols].to_vec();
        for (i, row) in rows[q.tokens * cols..].chunks(cols).enumerate() {
            let token = q.token_of_remainder(q.tokens + i).expect("is one");
            out[token * cols..][..cols].iter_mut().zip(row).for_each(|(sum, left)| *sum += left);
        }
        out
    }

    proptest! {
        #[test]
        fn two_rows_of_codes_are_exact_to_32_bits(tokens in 1usize..20, cols in 1usize..300, most in prop_oneof![Just(4usize), Just(12)], seed in any::<u32>(), power in 0f32..5.0) {
            let noise = |i: usize| ((i as u32 ^ seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 8.4e6 - 1.0;
            let large = |i: usize| if i % cols % 50 == 3 { 10f32.powf(power) } else { 1.0 };
            let x: Vec<f32> = (0..tokens * cols).map(|i| noise(i) * large(i)).collect();
            let q = Quantized::new(&x, cols, &[], Activation::Float, most, None);
            for (row, found) in x.chunks(cols).zip(sums(&q, cols).chunks(cols)) {
                for (x, found) in row.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                    let top = x.iter().fold(0f64, |m, v| m.max(f64::from(v.abs())));
                    let step = if ranges_widely(x) { top / f64::from(MAX_CODE).powi(2) } else { top / f64::from(MAX_CODE) };
                    for (x, found) in x.iter().zip(found) {
                        prop_assert!((f64::from(*x) - found).abs() <= 0.51 * step, "{} {}", x, found);
                    }
                }
            }
        }

        #[test]
        fn sixteen_bits_are_near(tokens in 1usize..30, cols in 1usize..300, most in prop_oneof![Just(4usize), Just(12)], seed in any::<u32>()) {
            let x: Vec<f32> = (0..tokens * cols).map(|i| ((i as u32 ^ seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6 - 8.0).collect();
            let q = Quantized::new(&x, cols, &[], Activation::Float, most, None);
            for (row, found) in x.chunks(cols).zip(values(&q, cols).chunks(cols)) {
                for (x, found) in row.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                    let step = x.iter().fold(0f32, |m, v| m.max(v.abs())) / MAX_CODE;
                    x.iter().zip(found).for_each(|(x, f)| assert!((x - f).abs() <= 0.51 * step, "{x} {f}"));
                }
            }
        }

        #[test]
        fn eight_bits_are_as_said(x in prop::collection::vec(-5f32..5.0, 42..=42), which in 0usize..3) {
            let activation = [Activation::Int8Token, Activation::Int8Tensor, Activation::Int8Static(0.02)][which];
            // Six tokens of seven columns, in sequences of three, two and one.
            let found = values(&Quantized::new(&x, 7, &[3, 2, 1], activation, 4, None), 7);
            for (t, row) in x.chunks(7).enumerate() {
                let of_sequence = [0..21, 0..21, 0..21, 21..35, 21..35, 35..42][t].clone();
                let over = if activation == Activation::Int8Token { row } else { &x[of_sequence] };
                let scale = match activation {
                    Activation::Int8Static(s) => s,
                    _ => over.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0,
                };
                let want: Vec<f32> = row.iter().map(|x| (x / scale).round_ties_even().clamp(-127.0, 127.0) * scale).collect();
                prop_assert_eq!(&found[t * 7..][..7], &want[..]);
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1f32; 300];
            x[200] = bad;
            let q = Quantized::new(&x, 300, &[], Activation::Float, 4, None);
            assert!(!q.group(0).1[1].is_finite() && q.group(0).1[0].is_finite());
        }
        let tiny = Quantized::new(&[1e-38, -1e-40], 2, &[], Activation::Float, 4, None);
        assert_eq!(values(&tiny, 2), [0.0, 0.0]);
    }
}
