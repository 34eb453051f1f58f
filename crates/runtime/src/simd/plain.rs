//! Without instructions of any particular processor; the compiler may vectorize the arrays.

use super::{Half, Kernel, Simd};

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
    #[inline(always)]
    fn vectorize<K: Kernel>(self, k: K) -> K::Output {
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
    fn widen_halves_of_bytes(self, src: &[u8; 16], scale: f32, dst: &mut [f32; 32]) {
        for (i, b) in src.iter().enumerate() {
            dst[i] = f32::from((b & 15) as i8 - 8) * scale;
            dst[i + 16] = f32::from((b >> 4) as i8 - 8) * scale;
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
}
