//! Types with blocks of 32 and 64.

/// Applies `block` to each block and the weights it stands for.
#[inline(always)]
pub(super) fn each<const BYTES: usize, const LEN: usize>(
    blocks: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = blocks.as_chunks::<BYTES>();
    let (out, _) = out.as_chunks_mut::<LEN>();
    for (b, o) in blocks.iter().zip(out) {
        block(b, o);
    }
}

/// The f16 at `at`, as f32. Without branches on the processor's features, so that it is
/// inlined into the vectorized loops.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    let h = u16::from_le_bytes([block[at], block[at + 1]]);
    let magnitude = u32::from(h & 0x7FFF) << 13;
    // 2^112 moves the exponent's bias from 15 to 127; subnormals come out right too.
    let value = if h & 0x7C00 == 0x7C00 {
        magnitude | 0x7F80_0000
    } else {
        (f32::from_bits(magnitude) * 2f32.powi(112)).to_bits()
    };
    f32::from_bits(value | u32::from(h & 0x8000) << 16)
}

/// The low nibbles, then the high ones: 32 codes of 16 bytes.
#[inline(always)]
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0u8; 32];
    let (low, high) = out.split_at_mut(16);
    low.iter_mut().zip(bytes).for_each(|(o, b)| *o = b & 15);
    high.iter_mut().zip(bytes).for_each(|(o, b)| *o = b >> 4);
    out
}

/// The fifth bits of 32 codes, at bit 4 of each.
#[inline(always)]
fn fifth_bits(bytes: &[u8]) -> [u8; 32] {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut out = [0u8; 32];
    for (j, o) in out.iter_mut().enumerate() {
        *o = ((bits >> j & 1) << 4) as u8;
    }
    out
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q8_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 34], o: &mut [f32; 32]| {
        let d = half(b, 0);
        for (o, &q) in o.iter_mut().zip(&b[2..]) {
            *o = f32::from(q as i8) * d;
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 18], o: &mut [f32; 32]| {
        let d = half(b, 0);
        for (o, q) in o.iter_mut().zip(nibbles(&b[2..])) {
            *o = (i32::from(q) - 8) as f32 * d;
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q4_1(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 20], o: &mut [f32; 32]| {
        let (d, m) = (half(b, 0), half(b, 2));
        for (o, q) in o.iter_mut().zip(nibbles(&b[4..])) {
            *o = d * f32::from(q) + m;
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_0(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 22], o: &mut [f32; 32]| {
        let d = half(b, 0);
        let high = fifth_bits(&b[2..6]);
        for (o, (q, h)) in o.iter_mut().zip(nibbles(&b[6..]).into_iter().zip(high)) {
            *o = (i32::from(q | h) - 16) as f32 * d;
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn q5_1(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 24], o: &mut [f32; 32]| {
        let (d, m) = (half(b, 0), half(b, 2));
        let high = fifth_bits(&b[4..8]);
        for (o, (q, h)) in o.iter_mut().zip(nibbles(&b[8..]).into_iter().zip(high)) {
            *o = d * f32::from(q | h) + m;
        }
    });
}

/// The 16 levels of `iq4_nl` and `iq4_xs`.
pub(super) const NON_LINEAR: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// The 16 values of 4-bit floats (e2m1), doubled.
const E2M1: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn iq4_nl(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 18], o: &mut [f32; 32]| {
        let d = half(b, 0);
        for (o, q) in o.iter_mut().zip(nibbles(&b[2..])) {
            *o = d * NON_LINEAR[usize::from(q & 15)];
        }
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn mxfp4(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 17], o: &mut [f32; 32]| {
        // Half of 2^(e - 127): the values are doubled.
        let e = u32::from(b[0]);
        let d = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 });
        for (o, q) in o.iter_mut().zip(nibbles(&b[1..])) {
            *o = d * E2M1[usize::from(q & 15)];
        }
    });
}

/// Half of an unsigned 8-bit float (e4m3): the values it scales are doubled. The code for NaN counts as 0.
#[inline(always)]
fn half_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    match (code, exponent) {
        (0x7F, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits(((exponent - 8 + 127) as u32) << 23),
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn nvfp4(blocks: &[u8], out: &mut [f32]) {
    each(blocks, out, |b: &[u8; 36], o: &mut [f32; 64]| {
        for (g, o) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let d = half_e4m3(b[g]);
            for (j, q) in b[4 + 8 * g..12 + 8 * g].iter().enumerate() {
                o[j] = d * E2M1[usize::from(q & 15)];
                o[j + 8] = d * E2M1[usize::from(q >> 4)];
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half() {
        for h in 0..=u16::MAX {
            let (got, want) = (half(&h.to_le_bytes(), 0), half::f16::from_bits(h).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{h:#x}");
        }
    }
}
