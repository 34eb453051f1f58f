//! `q2_k`, `q4_k` and `q5_k`: `scale * code - minimum` in each sub-block, both chosen by a search, and both
//! coded in turn with one f16 scale for the block.

use super::lanes::{LANES, Lanes, nearest, nearest_int, side_by_side};
use super::put_half;
use crate::ggml::decode::half;

/// Search for scale and minimum of a sub-block. For each of `steps + 1` numbers of levels around `levels`, starting at
/// `levels + first`, codes come from spreading the levels over the range, and scale and minimum from weighted least
/// squares given the codes. The least weighted error wins.
struct Search {
    levels: i32,
    first: f32,
    step: f32,
    steps: u8,
    /// Errors as magnitudes rather than squares.
    absolute: bool,
}

/// Result of a search.
struct Found {
    scale: Lanes,
    /// Minimum, which is subtracted; not negative.
    minimum: Lanes,
    /// The code of `x` is the integer nearest to `inverse * (x - low)`.
    inverse: Lanes,
    low: Lanes,
}

/// The inverse of less may overflow. What is so flat counts as constant, whose scale is 0, as is any such in f16.
const LEAST_RANGE: f32 = 1e-37;

/// `w`, `w * x` summed.
#[inline(always)]
fn sums<const SUB: usize>(x: &[Lanes; SUB], w: &[Lanes; SUB]) -> (Lanes, Lanes) {
    let (mut sum_w, mut sum_x) = ([0f32; LANES], [0f32; LANES]);
    for (x, w) in x.iter().zip(w) {
        for l in 0..LANES {
            sum_w[l] += w[l];
            sum_x[l] += w[l] * x[l];
        }
    }
    (sum_w, sum_x)
}

/// The least weight, or 0 where that is positive, and the greatest.
#[inline(always)]
fn range<const SUB: usize>(x: &[Lanes; SUB]) -> (Lanes, Lanes) {
    let (mut low, mut high) = (x[0], x[0]);
    for x in &x[1..] {
        for l in 0..LANES {
            low[l] = if x[l] < low[l] { x[l] } else { low[l] };
            high[l] = if x[l] > high[l] { x[l] } else { high[l] };
        }
    }
    low.iter_mut().for_each(|v| *v = if *v > 0.0 { 0.0 } else { *v });
    (low, high)
}

impl Search {
    /// The weighted error of `scale * code + shift`.
    #[inline(always)]
    fn error<const SUB: usize>(
        &self,
        x: &[Lanes; SUB],
        w: &[Lanes; SUB],
        codes: &[Lanes; SUB],
        scale: &Lanes,
        shift: &Lanes,
    ) -> Lanes {
        let mut sum = [0f32; LANES];
        for i in 0..SUB {
            for l in 0..LANES {
                let off = scale[l] * codes[i][l] + shift[l] - x[i][l];
                sum[l] += w[i][l] * if self.absolute { off.abs() } else { off * off };
            }
        }
        sum
    }

    /// Codes, and the sums of `w * code`, `w * code^2` and `w * code * x`.
    #[inline(always)]
    fn codes<const SUB: usize>(
        &self,
        x: &[Lanes; SUB],
        w: &[Lanes; SUB],
        (inverse, low): (&Lanes, &Lanes),
        codes: &mut [Lanes; SUB],
    ) -> [Lanes; 3] {
        let mut sums = [[0f32; LANES]; 3];
        for i in 0..SUB {
            for l in 0..LANES {
                let code = nearest(inverse[l] * (x[i][l] - low[l]), 0, self.levels);
                let weighted = w[i][l] * code;
                codes[i][l] = code;
                sums[0][l] += weighted;
                sums[1][l] += weighted * code;
                sums[2][l] += weighted * x[i][l];
            }
        }
        sums
    }

    #[inline(always)]
    fn run<const SUB: usize>(&self, x: &[Lanes; SUB], w: &[Lanes; SUB]) -> Found {
        let (sum_w, sum_x) = sums(x, w);
        let (mut shift, high) = range(x);
        let flat: [bool; LANES] = std::array::from_fn(|l| high[l] - shift[l] < LEAST_RANGE);
        let mut codes = [[0f32; LANES]; SUB];
        let mut inverse = inverses(self.levels as f32, &high, &shift, &flat);
        let mut scale = inverse.map(|i| if i == 0.0 { 0.0 } else { 1.0 / i });
        self.codes(x, w, (&inverse, &shift), &mut codes);
        let mut best = self.error(x, w, &codes, &scale, &shift);
        let (mut low, mut best_inverse) = (shift, inverse);
        for step in 0..=self.steps {
            // The range starts at the best shift so far.
            let levels = self.first + self.step * f32::from(step) + self.levels as f32;
            inverse = inverses(levels, &high, &shift, &flat);
            let fit = self.codes(x, w, (&inverse, &shift), &mut codes);
            let (determinant, new_scale, new_shift) = least_squares(&sum_w, &sum_x, &fit);
            let error = self.error(x, w, &codes, &new_scale, &new_shift);
            for l in 0..LANES {
                let better = (determinant[l] > 0.0) & (error[l] < best[l]);
                best[l] = if better { error[l] } else { best[l] };
                scale[l] = if better { new_scale[l] } else { scale[l] };
                low[l] = if better { shift[l] } else { low[l] };
                best_inverse[l] = if better { inverse[l] } else { best_inverse[l] };
                shift[l] = if better { new_shift[l] } else { shift[l] };
            }
        }
        Found { scale, minimum: shift.map(|s| -s), inverse: best_inverse, low }
    }
}

/// `levels` over the ranges; 0 for those that are nothing.
#[inline(always)]
fn inverses(levels: f32, high: &Lanes, low: &Lanes, flat: &[bool; LANES]) -> Lanes {
    let mut out = [0f32; LANES];
    for l in 0..LANES {
        out[l] = if flat[l] { 0.0 } else { levels / (high[l] - low[l]) };
    }
    out
}

/// Scale and shift of least weighted squared error, the shift at most 0; meaningless unless the first number, the
/// determinant, is positive.
#[inline(always)]
fn least_squares(sum_w: &Lanes, sum_x: &Lanes, [sum_l, sum_l2, sum_xl]: &[Lanes; 3]) -> (Lanes, Lanes, Lanes) {
    let (mut determinant, mut scale, mut shift) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
    for l in 0..LANES {
        determinant[l] = sum_w[l] * sum_l2[l] - sum_l[l] * sum_l[l];
        let free_scale = (sum_w[l] * sum_xl[l] - sum_x[l] * sum_l[l]) / determinant[l];
        let free_shift = (sum_l2[l] * sum_x[l] - sum_l[l] * sum_xl[l]) / determinant[l];
        let positive = free_shift > 0.0;
        scale[l] = if positive { sum_xl[l] / sum_l2[l] } else { free_scale };
        shift[l] = if positive { 0.0 } else { free_shift };
    }
    (determinant, scale, shift)
}

impl Found {
    /// The codes of one sub-block that the search itself chose: they stay where a scale is coded as 0.
    fn codes(&self, lane: usize, x: &[f32], levels: i32, out: &mut [u8]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = nearest(self.inverse[lane] * (x - self.low[lane]), 0, levels) as u8;
        }
    }
}

/// Codes of a sub-block with its final scale and minimum.
#[inline(always)]
fn recode(x: &[f32], scale: f32, minimum: f32, levels: i32, out: &mut [u8]) {
    for (o, x) in out.iter_mut().zip(x) {
        *o = nearest_int((x + minimum) / scale).max(0).min(levels) as u8;
    }
}

/// The greatest of them, at least 0.
#[inline(always)]
fn greatest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| if *v > m { *v } else { m })
}

/// Weights for the error of `q4_k` and `q5_k`: the root mean square of the sub-block plus the magnitude.
#[inline(always)]
fn importance(x: &[Lanes; 32]) -> [Lanes; 32] {
    let mut squares = [0f32; LANES];
    for x in x {
        for l in 0..LANES {
            squares[l] += x[l] * x[l];
        }
    }
    let mean = squares.map(|s| (s / 32.0).sqrt());
    let mut w = *x;
    for w in &mut w {
        for l in 0..LANES {
            w[l] = mean[l] + w[l].abs();
        }
    }
    w
}

/// Scales and minimums of eight sub-blocks in 6 bits: fills `head`, the first 16 bytes of a `q4_k` or `q5_k` block.
#[inline(always)]
fn put_scales(scales: &[f32], minimums: &[f32], head: &mut [u8]) -> ([f32; 8], [f32; 8]) {
    let (max_scale, max_minimum) = (greatest(scales), greatest(minimums));
    let inverse = |max: f32| if max > 0.0 { 63.0 / max } else { 0.0 };
    let (by_scale, by_minimum) = (inverse(max_scale), inverse(max_minimum));
    put_half(head, 0, max_scale / 63.0);
    put_half(head, 2, max_minimum / 63.0);
    let (d, dmin) = (half(head, 0), half(head, 2));
    let (mut out_scales, mut out_minimums) = ([0f32; 8], [0f32; 8]);
    let packed = &mut head[4..16];
    packed.fill(0);
    for j in 0..8 {
        let scale = (nearest_int(by_scale * scales[j]) as u8).min(63);
        let minimum = (nearest_int(by_minimum * minimums[j]) as u8).min(63);
        if j < 4 {
            packed[j] = scale;
            packed[j + 4] = minimum;
        } else {
            packed[j + 4] = scale & 15 | minimum << 4;
            packed[j - 4] |= scale >> 4 << 6;
            packed[j] |= minimum >> 4 << 6;
        }
        out_scales[j] = d * f32::from(scale);
        out_minimums[j] = dmin * f32::from(minimum);
    }
    (out_scales, out_minimums)
}

/// Codes of the blocks of `q4_k` and `q5_k`, two at a time; `put` stores a block's after its first 16 bytes.
#[inline(always)]
fn in_sub_blocks_of_32<const BYTES: usize>(
    src: &[f32],
    out: &mut [u8],
    search: &Search,
    put: impl Fn(&[u8; 256], &mut [u8]),
) {
    for (src, out) in src.chunks(2 * 256).zip(out.as_chunks_mut::<BYTES>().0.chunks_mut(2)) {
        let x = side_by_side::<32>(src);
        let found = search.run(&x, &importance(&x));
        for (b, (src, block)) in src.as_chunks::<256>().0.iter().zip(out).enumerate() {
            let lanes = 8 * b..8 * b + 8;
            let (head, rest) = block.split_at_mut(16);
            let (scales, minimums) = put_scales(&found.scale[lanes.clone()], &found.minimum[lanes], head);
            let mut codes = [0u8; 256];
            for (j, (x, codes)) in src.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0).enumerate() {
                if scales[j] == 0.0 {
                    found.codes(8 * b + j, x, search.levels, codes);
                } else {
                    recode(x, scales[j], minimums[j], search.levels, codes);
                }
            }
            put(&codes, rest);
        }
    }
}

/// Nibbles of 64 codes in 32 bytes: the first 32 low, the others high.
#[inline(always)]
fn put_nibbles(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (l, o) in out.iter_mut().enumerate() {
            *o = codes[l] & 15 | codes[l + 32] << 4;
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_k(src: &[f32], out: &mut [u8]) {
    let search = Search { levels: 15, first: -1.0, step: 0.1, steps: 20, absolute: false };
    in_sub_blocks_of_32::<144>(src, out, &search, put_nibbles);
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_k(src: &[f32], out: &mut [u8]) {
    let search = Search { levels: 31, first: -0.5, step: 0.1, steps: 15, absolute: false };
    in_sub_blocks_of_32::<176>(src, out, &search, |codes, out| {
        let (high, low) = out.split_at_mut(32);
        for (l, h) in high.iter_mut().enumerate() {
            *h = (0..8).fold(0, |bits, g| bits | (codes[32 * g + l] >> 4) << g);
        }
        put_nibbles(codes, low);
    });
}

/// Scales and minimums of sixteen sub-blocks in 4 bits: bytes 0 to 16 of a `q2_k` block, and its last four.
#[inline(always)]
fn put_short_scales(scales: &Lanes, minimums: &Lanes, block: &mut [u8; 84]) {
    let (max_scale, max_minimum) = (greatest(scales), greatest(minimums));
    let inverse = |max: f32| if max > 0.0 { 15.0 / max } else { 0.0 };
    let (by_scale, by_minimum) = (inverse(max_scale), inverse(max_minimum));
    for j in 0..16 {
        block[j] = nearest_int(by_scale * scales[j]) as u8 | (nearest_int(by_minimum * minimums[j]) << 4) as u8;
    }
    put_half(block, 80, max_scale / 15.0);
    put_half(block, 82, max_minimum / 15.0);
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q2_k(src: &[f32], out: &mut [u8]) {
    let search = Search { levels: 3, first: -0.5, step: 0.1, steps: 15, absolute: true };
    for (src, block) in src.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<84>().0) {
        let x = side_by_side::<16>(src);
        let found = search.run(&x, &x.map(|x| x.map(f32::abs)));
        put_short_scales(&found.scale, &found.minimum, block);
        let (d, dmin) = (half(block, 80), half(block, 82));
        let mut codes = [0u8; 256];
        for (j, (x, codes)) in src.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
            let scale = d * f32::from(block[j] & 15);
            if scale == 0.0 {
                found.codes(j, x, search.levels, codes);
            } else {
                recode(x, scale, dmin * f32::from(block[j] >> 4), search.levels, codes);
            }
        }
        super::put_two_bits(&codes, &mut block[16..80]);
    }
}
