//! `iq4_nl` and `iq4_xs`: codes are places in a fixed list of 16 levels.

use super::block32::put_nibbles;
use super::lanes::{LANES, Lanes, extreme, extremes, nearest_int, side_by_side};
use super::put_half;
use crate::ggml::decode::NON_LINEAR;

/// Blocks of smaller weights are zeros.
const LEAST: f32 = 1e-15;

/// The level nearest to `x`, the higher of two at the same distance.
#[inline(always)]
fn level(x: f32) -> f32 {
    let mut level = NON_LINEAR[0];
    for k in 1..16 {
        level = if x >= (NON_LINEAR[k - 1] + NON_LINEAR[k]) / 2.0 { NON_LINEAR[k] } else { level };
    }
    level
}

/// The place of [`level`] in the list.
#[inline(always)]
fn level_index(x: f32) -> u8 {
    let mut place = 0u8;
    for k in 1..16 {
        place += u8::from(x >= (NON_LINEAR[k - 1] + NON_LINEAR[k]) / 2.0);
    }
    place
}

/// The sums of `w * x * level` and `w * level^2`, weighted by `w = x^2`.
#[inline(always)]
fn sums(x: &[Lanes; 32], inverse: &Lanes) -> (Lanes, Lanes) {
    let (mut sum_xq, mut sum_q2) = ([0f32; LANES], [0f32; LANES]);
    for x in x {
        for l in 0..LANES {
            let q = level(inverse[l] * x[l]);
            let w = x[l] * x[l];
            sum_xq[l] += w * q * x[l];
            sum_q2[l] += w * q * q;
        }
    }
    (sum_xq, sum_q2)
}

/// Scales of 16 blocks: the extreme weight gets the lowest level, or so: 15 spreads around that and the one the
/// other way about are tried, and of the least-squares scales the one wins that explains most.
#[inline(always)]
fn search(x: &[Lanes; 32]) -> Lanes {
    let (signed, magnitude) = extremes(x);
    let zero = magnitude.map(|m| m < LEAST);
    let (mut scale, mut best) = ([0f32; LANES], [0f32; LANES]);
    let mut inverse = [0f32; LANES];
    for l in 0..LANES {
        inverse[l] = if zero[l] { 0.0 } else { 1.0 / (-signed[l] / NON_LINEAR[0]) };
    }
    let (sum_xq, sum_q2) = sums(x, &inverse);
    for l in 0..LANES {
        scale[l] = if zero[l] { 0.0 } else { sum_xq[l] / sum_q2[l] };
        best[l] = scale[l] * sum_xq[l];
    }
    for step in -7i8..=7 {
        for l in 0..LANES {
            inverse[l] = if zero[l] { 0.0 } else { (f32::from(step) + NON_LINEAR[0]) / signed[l] };
        }
        let (sum_xq, sum_q2) = sums(x, &inverse);
        for l in 0..LANES {
            let better = !zero[l] & (sum_q2[l] > 0.0) & (sum_xq[l] * sum_xq[l] > best[l] * sum_q2[l]);
            let new = sum_xq[l] / sum_q2[l];
            scale[l] = if better { new } else { scale[l] };
            best[l] = if better { new * sum_xq[l] } else { best[l] };
        }
    }
    scale
}

/// Codes of a block with its final scale.
#[inline(always)]
fn places(x: &[f32; 32], scale: f32) -> [u8; 32] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    x.map(|x| level_index(inverse * x))
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn iq4_nl(src: &[f32], out: &mut [u8]) {
    for (src, out) in src.chunks(LANES * 32).zip(out.as_chunks_mut::<18>().0.chunks_mut(LANES)) {
        let scales = search(&side_by_side(src));
        for ((x, block), scale) in src.as_chunks::<32>().0.iter().zip(out).zip(scales) {
            put_half(block, 0, scale);
            put_nibbles(&mut block[2..], &places(x, scale));
        }
    }
}

/// Eight 6-bit scales in a `iq4_xs` block, f16 scale first.
#[inline(always)]
fn put_scales(scales: &[f32], block: &mut [u8; 136]) -> [f32; 8] {
    let d = -extreme(scales) / 32.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_half(block, 0, d);
    block[2..8].fill(0);
    let mut high = 0u16;
    let mut out = [0f32; 8];
    for (j, (o, s)) in out.iter_mut().zip(scales).enumerate() {
        let scale = nearest_int(inverse * s).clamp(-32, 31);
        let code = (scale + 32) as u8;
        block[4 + j / 2] |= (code & 15) << (j % 2 * 4);
        high |= u16::from(code >> 4) << (2 * j);
        // From the scale before rounding to f16, as ggml does.
        *o = d * scale as f32;
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
    out
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn iq4_xs(src: &[f32], out: &mut [u8]) {
    for (src, out) in src.chunks(2 * 256).zip(out.as_chunks_mut::<136>().0.chunks_mut(2)) {
        let found = search(&side_by_side(src));
        for ((src, block), scales) in src.as_chunks::<256>().0.iter().zip(out).zip(found.as_chunks::<8>().0) {
            let scales = put_scales(scales, block);
            for (j, (x, scale)) in src.as_chunks::<32>().0.iter().zip(scales).enumerate() {
                put_nibbles(&mut block[8 + 16 * j..24 + 16 * j], &places(x, scale));
            }
        }
    }
}
