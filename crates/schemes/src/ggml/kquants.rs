//! Types with blocks of 256.

use super::decode::{NON_LINEAR, each, half};

/// Weight `i` of a block: its 2-bit code among `bytes`, which hold 128 weights in 32 bytes.
#[inline(always)]
fn two_bits(bytes: &[u8], group: usize, l: usize) -> u8 {
    bytes[group / 4 * 32 + l] >> (group % 4 * 2) & 3
}

/// The 8 six-bit scales and minimums that `q4_k` and `q5_k` pack into 12 bytes.
#[inline(always)]
fn scales_and_mins(s: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0u8; 8], [0u8; 8]);
    for j in 0..4 {
        scales[j] = s[j] & 0x3F;
        mins[j] = s[j + 4] & 0x3F;
        scales[j + 4] = s[j + 8] & 0x0F | s[j] >> 2 & 0x30;
        mins[j + 4] = s[j + 8] >> 4 | s[j + 4] >> 2 & 0x30;
    }
    (scales, mins)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q2_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 84], o: &mut [f32; 256]| {
        let (scales, codes) = (&b[..16], &b[16..80]);
        let (d, min) = (half(b, 80), half(b, 82));
        for (g, o) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[g] & 15);
            let ml = min * f32::from(scales[g] >> 4);
            for (l, o) in o.iter_mut().enumerate() {
                *o = dl * f32::from(two_bits(codes, g / 2, g % 2 * 16 + l)) - ml;
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q3_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 110], o: &mut [f32; 256]| {
        let (mask, codes, scales) = (&b[..32], &b[32..96], &b[96..108]);
        let d = half(b, 108);
        for (g, o) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low = scales[g % 8] >> (g / 8 * 4) & 15;
            let high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
            let dl = d * (i32::from(low | high << 4) - 32) as f32;
            for (l, o) in o.iter_mut().enumerate() {
                let l = g % 2 * 16 + l;
                let missing = (mask[l] >> (g / 2) & 1 ^ 1) << 2;
                *o = dl * (i32::from(two_bits(codes, g / 2, l)) - i32::from(missing)) as f32;
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 144], o: &mut [f32; 256]| {
        let (d, min) = (half(b, 0), half(b, 2));
        let (scales, mins) = scales_and_mins(&b[4..16]);
        let codes = &b[16..144];
        for (g, o) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[g]);
            let ml = min * f32::from(mins[g]);
            let shift = g % 2 * 4;
            for (o, q) in o.iter_mut().zip(&codes[g / 2 * 32..g / 2 * 32 + 32]) {
                *o = dl * f32::from(q >> shift & 15) - ml;
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 176], o: &mut [f32; 256]| {
        let (d, min) = (half(b, 0), half(b, 2));
        let (scales, mins) = scales_and_mins(&b[4..16]);
        let (high, codes) = (&b[16..48], &b[48..176]);
        for (g, o) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let dl = d * f32::from(scales[g]);
            let ml = min * f32::from(mins[g]);
            let shift = g % 2 * 4;
            for ((o, q), h) in o.iter_mut().zip(&codes[g / 2 * 32..g / 2 * 32 + 32]).zip(high) {
                *o = dl * f32::from(q >> shift & 15 | (h >> g & 1) << 4) - ml;
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q6_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 210], o: &mut [f32; 256]| {
        let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
        let d = half(b, 208);
        // 128 weights take 64 bytes of `low`: first all low nibbles, then all high ones.
        for (g, o) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (low, high) = (&low[g / 4 * 64 + g % 2 * 32..][..32], &high[g / 4 * 32..][..32]);
            let (shift, high_shift) = (g / 2 % 2 * 4, g % 4 * 2);
            let mut codes = [0u8; 32];
            for (c, (q, h)) in codes.iter_mut().zip(low.iter().zip(high)) {
                *c = q >> shift & 15 | (h >> high_shift & 3) << 4;
            }
            let (first, second) = (d * f32::from(scales[2 * g] as i8), d * f32::from(scales[2 * g + 1] as i8));
            for (l, (o, q)) in o.iter_mut().zip(codes).enumerate() {
                *o = (if l < 16 { first } else { second }) * (i32::from(q) - 32) as f32;
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn iq4_xs(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 136], o: &mut [f32; 256]| {
        let d = half(b, 0);
        let high = u16::from_le_bytes([b[2], b[3]]);
        let (low, codes) = (&b[4..8], &b[8..136]);
        for (g, o) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = low[g / 2] >> (g % 2 * 4) & 15 | ((high >> (2 * g) & 3) << 4) as u8;
            let dl = d * (i32::from(scale) - 32) as f32;
            for (j, q) in codes[g * 16..g * 16 + 16].iter().enumerate() {
                o[j] = dl * NON_LINEAR[usize::from(q & 15)];
                o[j + 16] = dl * NON_LINEAR[usize::from(q >> 4)];
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q8_k(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 292], o: &mut [f32; 256]| {
        // f32 here; the sums after the codes serve dot products only.
        let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        for (o, q) in o.iter_mut().zip(&b[4..260]) {
            *o = d * f32::from(*q as i8);
        }
    });
}
