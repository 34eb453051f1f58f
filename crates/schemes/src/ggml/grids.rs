//! Types whose codes are numbers of entries in fixed tables ("grids"): iq1, iq2 and iq3.
//!
//! The tables are data of the format, as gguf-py lists them (grids/make_grids.py).

use super::decode::{each, half};
use std::sync::LazyLock;

/// Table entries of `N` weights.
type Grid<const N: usize> = LazyLock<Vec<[f32; N]>>;

macro_rules! grid {
    ($name:ident, $file:literal, $n:literal, $bits:literal, $levels:expr) => {
        static $name: Grid<$n> = LazyLock::new(|| unpack(include_bytes!(concat!("grids/", $file)), $bits, &$levels));
    };
}

grid!(IQ1, "iq1_s.bin", 8, 2, [-1., 0., 1.]);
grid!(IQ2_XXS, "iq2_xxs.bin", 8, 2, [8., 25., 43.]);
grid!(IQ2_XS, "iq2_xs.bin", 8, 2, [8., 25., 43.]);
grid!(IQ2_S, "iq2_s.bin", 8, 2, [8., 25., 43.]);
grid!(IQ3_XXS, "iq3_xxs.bin", 4, 4, [4., 12., 20., 28., 36., 44., 52., 62.]);
grid!(IQ3_S, "iq3_s.bin", 4, 4, [1., 3., 5., 7., 9., 11., 13., 15.]);

/// A table's entries from codes of `bits` bits, first in the low bits of each byte.
fn unpack<const N: usize>(packed: &[u8], bits: usize, levels: &[f32]) -> Vec<[f32; N]> {
    let codes = packed.iter().flat_map(|b| (0..8).step_by(bits).map(move |s| b >> s & ((1 << bits) - 1)));
    let weights: Vec<f32> = codes.map(|c| levels[usize::from(c)]).collect();
    weights.as_chunks::<N>().0.to_vec()
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Nibble `i` of `bytes`, low ones first.
#[inline(always)]
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

/// Signs of 8 weights from 7 bits: the eighth makes their number even.
#[inline(always)]
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() & 1) << 7) as u8
}

/// `scale * magnitude`, negative where the weight's bit in `signs` is set.
#[inline(always)]
fn signed<const N: usize>(out: &mut [f32], scale: f32, magnitudes: &[f32; N], signs: u8) {
    for (j, (o, m)) in out.iter_mut().zip(magnitudes).enumerate() {
        *o = f32::from_bits((scale * m).to_bits() ^ u32::from(signs >> j & 1) << 31);
    }
}

/// Like [`each`], in groups of 8 weights with their number in the block.
#[inline(always)]
fn eights<const BYTES: usize>(blocks: &[u8], out: &mut [f32], group: impl Fn(&[u8; BYTES], usize, &mut [f32; 8])) {
    each(blocks, out, |b: &[u8; BYTES], o: &mut [f32; 256]| {
        for (g, o) in o.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            group(b, g, o);
        }
    });
}

pub(super) fn iq2_xxs(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ2_XXS;
    eights(blocks, out, |b: &[u8; 66], g, o| {
        let at = 2 + g / 4 * 8;
        let packed = u32_at(b, at + 4);
        let scale = half(b, 0) * (0.5 + (packed >> 28) as f32) * 0.25;
        signed(o, scale, &grid[usize::from(b[at + g % 4])], even_signs(packed >> (g % 4 * 7)));
    });
}

pub(super) fn iq2_xs(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ2_XS;
    eights(blocks, out, |b: &[u8; 74], g, o| {
        let packed = u16_at(b, 2 + 2 * g);
        let scale = half(b, 0) * (0.5 + f32::from(nibble(&b[66..], g / 2))) * 0.25;
        signed(o, scale, &grid[usize::from(packed & 511)], even_signs(u32::from(packed >> 9)));
    });
}

pub(super) fn iq2_s(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ2_S;
    eights(blocks, out, |b: &[u8; 82], g, o| {
        let (low, signs, high, scales) = (&b[2..34], &b[34..66], &b[66..74], &b[74..82]);
        let entry = usize::from(low[g]) | usize::from(high[g / 4] >> (g % 4 * 2) & 3) << 8;
        let scale = half(b, 0) * (0.5 + f32::from(nibble(scales, g / 2))) * 0.25;
        signed(o, scale, &grid[entry], signs[g]);
    });
}

pub(super) fn iq3_xxs(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ3_XXS;
    eights(blocks, out, |b: &[u8; 98], g, o| {
        let packed = u32_at(b, 66 + g / 4 * 4);
        let scale = half(b, 0) * (0.5 + (packed >> 28) as f32) * 0.5;
        let signs = even_signs(packed >> (g % 4 * 7));
        for (k, o) in o.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            signed(o, scale, &grid[usize::from(b[2 + 2 * g + k])], signs >> (4 * k));
        }
    });
}

pub(super) fn iq3_s(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ3_S;
    eights(blocks, out, |b: &[u8; 110], g, o| {
        let (low, high, signs, scales) = (&b[2..66], &b[66..74], &b[74..106], &b[106..110]);
        let scale = half(b, 0) * f32::from(1 + 2 * nibble(scales, g / 4));
        for (k, o) in o.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let i = 2 * g + k;
            let entry = usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
            signed(o, scale, &grid[entry], signs[g] >> (4 * k));
        }
    });
}

/// `scale * (level + shift)`: the iq1 types move a whole group up or down by an eighth.
#[inline(always)]
fn shifted(out: &mut [f32; 8], scale: f32, levels: &[f32; 8], down: bool) {
    let shift = if down { -0.125 } else { 0.125 };
    for (o, l) in out.iter_mut().zip(levels) {
        *o = scale * (l + shift);
    }
}

pub(super) fn iq1_s(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ1;
    eights(blocks, out, |b: &[u8; 50], g, o| {
        let high = u16_at(b, 34 + g / 4 * 2);
        let entry = usize::from(b[2 + g]) | usize::from(high >> (g % 4 * 3) & 7) << 8;
        let scale = half(b, 0) * f32::from(2 * (high >> 12 & 7) + 1);
        shifted(o, scale, &grid[entry], high & 0x8000 != 0);
    });
}

pub(super) fn iq1_m(blocks: &[u8], out: &mut [f32]) {
    let grid = &**IQ1;
    eights(blocks, out, |b: &[u8; 56], g, o| {
        let scales: [u16; 4] = std::array::from_fn(|i| u16_at(b, 48 + 2 * i));
        // The top nibbles of the four words of scales are the f16 scale, lowest first.
        let d = scales.iter().enumerate().fold(0, |d, (i, s)| d | (s >> 12) << (4 * i));
        let high = nibble(&b[32..48], g);
        let entry = usize::from(b[g]) | usize::from(high & 7) << 8;
        let scale = half(&d.to_le_bytes(), 0) * f32::from(2 * (scales[g / 8] >> (g / 2 % 4 * 3) & 7) + 1);
        shifted(o, scale, &grid[entry], high & 8 != 0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_all_their_entries() {
        let sizes = [IQ1.len(), IQ2_XXS.len(), IQ2_XS.len(), IQ2_S.len(), IQ3_XXS.len(), IQ3_S.len()];
        assert_eq!(sizes, [2048, 256, 512, 1024, 256, 512]);
    }
}
