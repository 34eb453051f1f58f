//! `q3_k` and `q6_k`: `scale * code` in each of 16 sub-blocks, the scales chosen by a search and coded in turn
//! with one f16 scale for the block.

use super::lanes::{LANES, Lanes, extreme, extremes, nearest, nearest_int, side_by_side};
use super::{put_half, put_two_bits};
use crate::ggml::decode::half;

/// Sub-blocks of smaller weights are zeros.
const LEAST: f32 = 1e-15;

/// Codes of `x * inverse` and the sums of `w * x * code` and `w * code^2`, weighted by `w = x^2`.
#[inline(always)]
fn sums(x: &[Lanes; 16], inverse: &Lanes, levels: i32) -> (Lanes, Lanes) {
    let (mut sum_xl, mut sum_l2) = ([0f32; LANES], [0f32; LANES]);
    for x in x {
        for l in 0..LANES {
            let code = nearest(inverse[l] * x[l], -levels, levels - 1);
            let w = x[l] * x[l];
            sum_xl[l] += w * x[l] * code;
            sum_l2[l] += w * code * code;
        }
    }
    (sum_xl, sum_l2)
}

/// `1 / x` times `by`; 0 for the sub-blocks that are zeros.
#[inline(always)]
fn inverses(extremes: &Lanes, magnitudes: &Lanes, by: f32) -> Lanes {
    let mut out = [0f32; LANES];
    for l in 0..LANES {
        out[l] = if magnitudes[l] < LEAST { 0.0 } else { by / extremes[l] };
    }
    out
}

/// Scales of `q6_k`: the extreme weight gets code `-levels`, or so: 19 spreads around that are tried, and of
/// the least-squares scales the one wins that explains most. Also the spreads: codes are nearest to them times `x`.
#[inline(always)]
fn search(x: &[Lanes; 16], levels: i32) -> (Lanes, Lanes) {
    let (signed, magnitude) = extremes(x);
    let mut best_inverse = inverses(&signed, &magnitude, -(levels as f32));
    let (sum_xl, sum_l2) = sums(x, &best_inverse, levels);
    let (mut scale, mut best) = ([0f32; LANES], [0f32; LANES]);
    for l in 0..LANES {
        scale[l] = if sum_l2[l] != 0.0 { sum_xl[l] / sum_l2[l] } else { 0.0 };
        best[l] = scale[l] * sum_xl[l];
    }
    for step in (-9i8..=9).filter(|s| *s != 0) {
        let inverse = inverses(&signed, &magnitude, -(levels as f32 + 0.1 * f32::from(step)));
        let (sum_xl, sum_l2) = sums(x, &inverse, levels);
        for l in 0..LANES {
            let better = (sum_l2[l] > 0.0) & (sum_xl[l] * sum_xl[l] > best[l] * sum_l2[l]);
            let new = sum_xl[l] / sum_l2[l];
            scale[l] = if better { new } else { scale[l] };
            best[l] = if better { new * sum_xl[l] } else { best[l] };
            best_inverse[l] = if better { inverse[l] } else { best_inverse[l] };
        }
    }
    (scale, best_inverse)
}

/// Codes `nearest(x / scale) + levels`.
#[inline(always)]
fn recode(x: &[f32], scale: f32, levels: i32, out: &mut [u8]) {
    for (o, x) in out.iter_mut().zip(x) {
        *o = (nearest_int(x / scale).max(-levels).min(levels - 1) + levels) as u8;
    }
}

/// The codes of `q6_k`, whose scales follow in the block.
#[inline(always)]
fn codes_q6_k(src: &[f32; 256], block: &mut [u8; 210]) -> [u8; 256] {
    let (scales, inverses) = search(&side_by_side(src), 32);
    let mut codes = [0u8; 256];
    let max = extreme(&scales);
    if max.abs() < LEAST {
        block[192..].fill(0);
        return codes;
    }
    let inverse = -128.0 / max;
    put_half(block, 208, 1.0 / inverse);
    let d = half(block, 208);
    for (j, (x, codes)) in src.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        let scale = nearest_int(inverse * scales[j]).min(127) as i8;
        block[192 + j] = scale as u8;
        let scale = d * f32::from(scale);
        if scale != 0.0 {
            recode(x, scale, 32, codes);
        } else if inverses[j] != 0.0 {
            // A scale coded as 0 leaves the codes of the search.
            codes.iter_mut().zip(x).for_each(|(c, x)| *c = (nearest(inverses[j] * x, -32, 31) + 32.0) as u8);
        }
    }
    codes
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q6_k(src: &[f32], out: &mut [u8]) {
    for (src, block) in src.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<210>().0) {
        let codes = codes_q6_k(src, block);
        if block[192..].iter().all(|b| *b == 0) {
            block.fill(0);
            continue;
        }
        let (low, high) = block[..192].split_at_mut(128);
        let halves = codes.as_chunks::<128>().0.iter().zip(low.as_chunks_mut::<64>().0);
        for ((codes, low), high) in halves.zip(high.as_chunks_mut::<32>().0) {
            for l in 0..32 {
                low[l] = codes[l] & 15 | codes[l + 64] << 4;
                low[l + 32] = codes[l + 32] & 15 | codes[l + 96] << 4;
                high[l] = (0..4).fold(0, |bits, g| bits | (codes[32 * g + l] >> 4) << (2 * g));
            }
        }
    }
}

/// Scales and codes of `q3_k`: codes from the extreme weight, then up to five rounds in which each code in turn
/// moves to its best place given all others.
#[inline(always)]
fn refine(x: &[Lanes; 16], codes: &mut [Lanes; 16]) -> Lanes {
    let (signed, magnitude) = extremes(x);
    let inverse = inverses(&signed, &magnitude, -4.0);
    let (mut sum_xl, mut sum_l2) = sums(x, &inverse, 4);
    for (codes, x) in codes.iter_mut().zip(x) {
        for l in 0..LANES {
            codes[l] = nearest(inverse[l] * x[l], -4, 3);
        }
    }
    for _ in 0..5 {
        let mut changed = 0u32;
        for (codes, x) in codes.iter_mut().zip(x) {
            for l in 0..LANES {
                let (w, code) = (x[l] * x[l], codes[l]);
                let (rest_xl, rest_l2) = (sum_xl[l] - w * x[l] * code, sum_l2[l] - w * code * code);
                let new = nearest_int(x[l] * rest_l2 / rest_xl).clamp(-4, 3) as f32;
                let (new_xl, new_l2) = (rest_xl + w * x[l] * new, rest_l2 + w * new * new);
                let better = new_xl * new_xl * sum_l2[l] > sum_xl[l] * sum_xl[l] * new_l2;
                let change = (rest_xl > 0.0) & (new != code) & (new_l2 > 0.0) & better;
                codes[l] = if change { new } else { code };
                sum_xl[l] = if change { new_xl } else { sum_xl[l] };
                sum_l2[l] = if change { new_l2 } else { sum_l2[l] };
                changed |= u32::from(change);
            }
        }
        if changed == 0 {
            break;
        }
    }
    let mut scale = [0f32; LANES];
    for l in 0..LANES {
        scale[l] = if sum_l2[l] > 0.0 { sum_xl[l] / sum_l2[l] } else { 0.0 };
    }
    scale
}

/// Sixteen 6-bit scales in bytes 96 to 108 of a `q3_k` block, and their f16 scale after them.
#[inline(always)]
fn put_scales_q3_k(scales: &Lanes, block: &mut [u8; 110]) -> Lanes {
    let max = extreme(scales);
    block[96..].fill(0);
    if max == 0.0 {
        return [0.0; LANES];
    }
    let inverse = -32.0 / max;
    put_half(block, 108, 1.0 / inverse);
    let d = half(block, 108);
    let mut out = [0f32; LANES];
    for (j, (o, s)) in out.iter_mut().zip(scales).enumerate() {
        let scale = nearest_int(inverse * s).clamp(-32, 31);
        let code = (scale + 32) as u8;
        block[96 + j % 8] |= (code & 15) << (j / 8 * 4);
        block[104 + j % 4] |= code >> 4 << (j / 4 * 2);
        *o = d * scale as f32;
    }
    out
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q3_k(src: &[f32], out: &mut [u8]) {
    for (src, block) in src.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<110>().0) {
        let mut found = [[0f32; LANES]; 16];
        let x = side_by_side::<16>(src);
        let scales = put_scales_q3_k(&refine(&x, &mut found), block);
        let zeros = extremes(&x).1.map(|m| m < LEAST);
        let mut codes = [0u8; 256];
        for (j, (x, codes)) in src.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
            if scales[j] != 0.0 {
                recode(x, scales[j], 4, codes);
            } else if !zeros[j] {
                codes.iter_mut().zip(&found).for_each(|(c, f)| *c = (f[j] + 4.0) as u8);
            }
        }
        for (l, mask) in block[..32].iter_mut().enumerate() {
            *mask = (0..8).fold(0, |bits, g| bits | (codes[32 * g + l] >> 2) << g);
        }
        codes.iter_mut().for_each(|c| *c &= 3);
        put_two_bits(&codes, &mut block[32..96]);
    }
}
