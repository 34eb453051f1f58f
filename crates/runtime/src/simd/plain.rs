//! Without instructions of any particular processor; the compiler may vectorize the arrays.

use super::{ByteSimd, Half, Kernel, Simd};

/// Arrays of eight.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

type V = [f32; 8];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Plain {
    const TOKENS: usize = 3;
    const LANES: usize = 8;
    type Chunk = V;
    type V = V;
    type I = [i32; 8];
    type Pairs = [i16; 16];
    const PAIR_TOKENS: usize = 4;

    #[inline(always)]
    fn chunks(self, s: &[f32]) -> &[V] {
        s.as_chunks().0
    }
    #[inline(always)]
    fn chunks_mut(self, s: &mut [f32]) -> &mut [V] {
        s.as_chunks_mut().0
    }
    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; 8]
    }
    #[inline(always)]
    fn load(self, c: &V) -> V {
        *c
    }
    #[inline(always)]
    fn store(self, v: V, c: &mut V) {
        *c = v;
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // Not mul_add: without the instruction that is a slow library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, n: V) -> V {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn zero_below(self, x: V, limit: V, v: V) -> V {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { v[i] })
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        let h: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
        (h[0] + h[2]) + (h[1] + h[3])
    }
    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }
    type Bytes = Self;
    #[inline(always)]
    fn bytes(self) -> Option<Self> {
        Some(self)
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, k: K) -> K::Output {
        k.run(self)
    }
    #[inline(never)]
    fn outline<K: Kernel>(self, k: K) -> K::Output {
        k.run(self)
    }
    #[inline(always)]
    fn widen_f16<H: Half>(self, src: &[H], dst: &mut [f32]) {
        dst.iter_mut().zip(src).for_each(|(d, h)| *d = h.value());
    }
    #[inline(always)]
    fn widen_i8(self, src: &[u8], xor: u8, scale: f32, dst: &mut [f32]) {
        dst.iter_mut().zip(src).for_each(|(d, &b)| *d = f32::from((b ^ xor) as i8) * scale);
    }
    #[inline(always)]
    fn widen_nibbles(self, src: &[u8], scale: f32, dst: &mut [f32]) {
        for (pair, &b) in dst.chunks_mut(2).zip(src) {
            pair[0] = f32::from((b & 15) as i8 - 8) * scale;
            if let Some(second) = pair.get_mut(1) {
                *second = f32::from((b >> 4) as i8 - 8) * scale;
            }
        }
    }
    #[inline(always)]
    fn look_up(self, src: &[u8], table: &[f32; 16], dst: &mut [f32]) {
        for (pair, &b) in dst.chunks_mut(2).zip(src) {
            pair[0] = table[usize::from(b >> 4)];
            if let Some(second) = pair.get_mut(1) {
                *second = table[usize::from(b & 15)];
            }
        }
    }

    #[inline(always)]
    fn pairs(self, s: &[i16]) -> &[[i16; 16]] {
        s.as_chunks().0
    }
    #[inline(always)]
    fn pairs_mut(self, s: &mut [i16]) -> &mut [[i16; 16]] {
        s.as_chunks_mut().0
    }
    #[inline(always)]
    fn zero_pairs(self) -> [i32; 8] {
        [0; 8]
    }
    #[inline(always)]
    fn load_pairs(self, c: &[i16; 16]) -> [i32; 8] {
        std::array::from_fn(|i| join([c[2 * i], c[2 * i + 1]]))
    }
    #[inline(always)]
    fn byte_pairs(self, src: &[u8], xor: u8) -> [i32; 8] {
        let code = |i: usize| i16::from((src[i] ^ xor) as i8);
        std::array::from_fn(|i| join([code(2 * i), code(2 * i + 1)]))
    }
    #[inline(always)]
    fn nibble_pairs(self, src: &[u8]) -> [i32; 8] {
        std::array::from_fn(|i| join([i16::from(src[i] & 15) - 8, i16::from(src[i] >> 4) - 8]))
    }
    #[inline(always)]
    fn store_pairs(self, v: [i32; 8], c: &mut [i16; 16]) {
        for (v, pair) in v.into_iter().zip(c.as_chunks_mut::<2>().0) {
            *pair = split(v);
        }
    }
    #[inline(always)]
    fn splat_pair(self, pair: [i16; 2]) -> [i32; 8] {
        [join(pair); 8]
    }
    #[inline(always)]
    fn dot_pairs(self, a: [i32; 8], b: [i32; 8], sum: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| {
            let ([a0, a1], [b0, b1]) = (split(a[i]), split(b[i]));
            let products = (i32::from(a0) * i32::from(b0)).wrapping_add(i32::from(a1) * i32::from(b1));
            sum[i].wrapping_add(products)
        })
    }
    #[inline(always)]
    fn float_pairs(self, v: [i32; 8]) -> V {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    fn sum4_pairs(self, v: [[i32; 8]; 4]) -> [i32; 4] {
        v.map(|v| v.into_iter().fold(0, i32::wrapping_add))
    }
    #[inline(always)]
    fn transpose_pairs(self, rows: &mut [[i32; 8]; 16]) {
        let before = *rows;
        for (i, row) in rows[..8].iter_mut().enumerate() {
            *row = std::array::from_fn(|j| before[j][i]);
        }
    }
}

impl ByteSimd for Plain {
    type R = [[u8; 4]; 16];

    #[inline(always)]
    fn load(self, src: &[u8; 64]) -> Self::R {
        std::array::from_fn(|i| src.as_chunks().0[i])
    }
    #[inline(always)]
    fn load4(self, src: [&[u8; 16]; 4]) -> Self::R {
        std::array::from_fn(|i| src[i / 4].as_chunks().0[i % 4])
    }
    #[inline(always)]
    fn signed(self, src: &[i8; 64]) -> Self::R {
        std::array::from_fn(|i| std::array::from_fn(|j| src[4 * i + j] as u8))
    }
    #[inline(always)]
    fn ints(self, src: &[i32; 16]) -> Self::R {
        src.map(i32::to_le_bytes)
    }
    #[inline(always)]
    fn zero(self) -> Self::R {
        [[0; 4]; 16]
    }
    #[inline(always)]
    fn flip(self, v: Self::R) -> Self::R {
        v.map(|v| v.map(|b| b ^ 0x80))
    }
    #[inline(always)]
    fn nibbles(self, v: Self::R) -> [Self::R; 2] {
        [v.map(|v| v.map(|b| b & 15)), v.map(|v| v.map(|b| b >> 4))]
    }
    #[inline(always)]
    fn dot(self, unsigned: Self::R, signed: Self::R, sum: Self::R) -> Self::R {
        std::array::from_fn(|i| {
            let products = (0..4).map(|j| i32::from(unsigned[i][j]) * i32::from(signed[i][j] as i8));
            products.fold(i32::from_le_bytes(sum[i]), i32::wrapping_add).to_le_bytes()
        })
    }
    #[inline(always)]
    fn join(self, high: Self::R, low: Self::R) -> Self::R {
        std::array::from_fn(|i| {
            let [high, low] = [high[i], low[i]].map(i32::from_le_bytes);
            (high << 8).wrapping_add(low).to_le_bytes()
        })
    }
    #[inline(always)]
    fn sum_quads(self, v: [Self::R; 4], whole: usize) -> [[f32; 4]; 4] {
        let sum = |v: &[[u8; 4]]| v.iter().fold(0, |sum, b| i32::wrapping_add(sum, i32::from_le_bytes(*b)));
        std::array::from_fn(|i| std::array::from_fn(|j| sum(&v[j][i / whole * whole * 4..][..whole * 4]) as f32))
    }
}

/// A pair in one lane, the first in the low bits.
#[inline(always)]
fn join([a, b]: [i16; 2]) -> i32 {
    i32::from(a as u16) | i32::from(b) << 16
}

#[inline(always)]
fn split(v: i32) -> [i16; 2] {
    [v as i16, (v >> 16) as i16]
}
