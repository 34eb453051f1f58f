//! Representation of stored keys and values.

use crate::simd::Simd;
use half::{f16, slice::HalfFloatSliceExt};
use rowmath::absmax;
use rowmath::round::nearest_i16 as round;

/// An element of the store.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Elements that one scale takes.
    const SCALE: usize;
    /// Encodes a key or a value, and its scale.
    fn encode(values: &[f32], codes: &mut [Self], scale: &mut [Self]);
    /// Widens codes, not multiplied with their scales; `src` is at least as long as `dst`.
    fn widen<S: Simd>(s: S, src: &[Self], dst: &mut [f32]);
    /// Widens scales.
    fn scales<S: Simd>(_: S, _: &[Self], _: &mut [f32]) {}
}

impl Element for f32 {
    const SCALE: usize = 0;
    #[inline(always)]
    fn encode(values: &[f32], codes: &mut [f32], _: &mut [f32]) {
        codes.copy_from_slice(values);
    }
    #[inline(always)]
    fn widen<S: Simd>(_: S, src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(&src[..dst.len()]);
    }
}

impl Element for f16 {
    const SCALE: usize = 0;
    #[inline(always)]
    fn encode(values: &[f32], codes: &mut [f16], _: &mut [f16]) {
        codes.convert_from_f32_slice(values);
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, src: &[f16], dst: &mut [f32]) {
        s.widen_f16(src, dst);
    }
}

/// Signed 8-bit codes, and f16 scales as two bytes.
impl Element for u8 {
    const SCALE: usize = 2;
    fn encode(values: &[f32], codes: &mut [u8], scale: &mut [u8]) {
        let rounded = f16::from_f32(absmax(values) / 127.0);
        scale.copy_from_slice(&rounded.to_le_bytes());
        encode_8(values, rounded.to_f32(), codes);
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, src: &[u8], dst: &mut [f32]) {
        s.widen_i8(src, 0, 1.0, dst);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, src: &[u8], dst: &mut [f32]) {
        s.widen_f16(src.as_chunks::<2>().0, dst);
    }
}

/// `round(x / scale)`, ties to even; zeros under scale 0.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn encode_8(values: &[f32], scale: f32, codes: &mut [u8]) {
    if scale == 0.0 {
        codes.fill(0);
        return;
    }
    for (x, code) in values.iter().zip(codes) {
        *code = round((*x / scale).clamp(-127.0, 127.0)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn eight_bits_are_within_half_a_step(x in prop::collection::vec(-1e3f32..1e3, 1..100), size in -20i32..10) {
            let x: Vec<f32> = x.iter().map(|v| v * (size as f32).exp2()).collect();
            let (mut codes, mut scale) = (vec![0u8; x.len()], [0u8; 2]);
            u8::encode(&x, &mut codes, &mut scale);
            let (scale, top) = (f16::from_le_bytes(scale).to_f32(), absmax(&x));
            // The scale is rounded to f16, which where it is rounded down cuts the largest.
            let cut = (top - 127.0 * scale).max(0.0);
            assert!(cut <= top / 2048.0 || scale < 6.2e-5, "{cut} of {top}");
            for (x, code) in x.iter().zip(&codes) {
                let found = f32::from(*code as i8) * scale;
                assert!((x - found).abs() <= 0.5001 * scale + cut + f32::MIN_POSITIVE, "{x}: {found}, scale {scale}");
            }
        }
    }

    #[test]
    fn zeros_and_what_is_not_finite_stay_so() {
        let (mut codes, mut scale) = ([1u8; 3], [1u8; 2]);
        u8::encode(&[0.0, -0.0, 0.0], &mut codes, &mut scale);
        assert_eq!((codes, scale), ([0; 3], [0; 2]));
        for bad in [f32::NAN, f32::INFINITY] {
            u8::encode(&[1.0, bad, 0.0], &mut codes, &mut scale);
            assert!(!f16::from_le_bytes(scale).is_finite());
        }
    }
}
