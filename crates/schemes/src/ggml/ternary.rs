//! Types with one or two bits for each weight.

use super::decode::{each, half};

/// Powers of 3. A byte holds five digits to the base 3 as a fraction of 256: multiplying by a power of 3,
/// modulo 256, brings a digit to the front.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Digit `i` of `byte`, less 1.
#[inline(always)]
fn trit(byte: u8, i: usize) -> f32 {
    let digit = (u16::from(byte.wrapping_mul(POWERS[i])) * 3) >> 8;
    f32::from(digit as i16 - 1)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn tq1_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 54], o: &mut [f32; 256]| {
        let d = half(b, 52);
        // 32 bytes of 5 digits, 16 of 5, 4 of 4: in each part first all first digits.
        for (bytes, first) in [(&b[..32], 0), (&b[32..48], 160), (&b[48..52], 240)] {
            for (i, o) in o[first..].chunks_exact_mut(bytes.len()).take(5).enumerate() {
                for (o, byte) in o.iter_mut().zip(bytes) {
                    *o = d * trit(*byte, i);
                }
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn tq2_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 66], o: &mut [f32; 256]| {
        let d = half(b, 64);
        for (g, o) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (o, byte) in o.iter_mut().zip(&b[g / 4 * 32..]) {
                *o = d * f32::from((byte >> (g % 4 * 2) & 3) as i8 - 1);
            }
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q1_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 18], o: &mut [f32; 128]| {
        let d = half(b, 0);
        for (i, o) in o.iter_mut().enumerate() {
            *o = if b[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q2_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 18], o: &mut [f32; 64]| {
        let d = half(b, 0);
        for (i, o) in o.iter_mut().enumerate() {
            *o = d * f32::from((b[2 + i / 4] >> (i % 4 * 2) & 3) as i8 - 1);
        }
    });
}
