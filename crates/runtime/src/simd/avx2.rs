//! AVX2 with FMA: eight lanes, sixteen registers.

use super::{Half, Kernel, Simd, plain::Plain};
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// None where the processor lacks any of it.
    pub fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

type Chunk = [f32; 8];

/// Eight signed bytes, multiplied with `scale`.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(bytes: __m128i, scale: __m256, out: &mut [f32]) {
    let values = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale);
    // SAFETY: the slice is cut to eight elements.
    unsafe { _mm256_storeu_ps(out[..8].as_mut_ptr(), values) }
}

/// Eight bytes as indices below 16.
#[inline]
#[target_feature(enable = "avx2")]
fn looked_up(bytes: __m128i, table: &[f32; 16], out: &mut [f32]) {
    // SAFETY: the table has sixteen elements.
    let (low, high) = unsafe { (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8))) };
    let index = _mm256_cvtepu8_epi32(bytes);
    // A permutation looks at three bits; the fourth, moved to the sign, chooses the half.
    let (low, high) = (_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index));
    let values = _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)));
    // SAFETY: the slice is cut to eight elements.
    unsafe { _mm256_storeu_ps(out[..8].as_mut_ptr(), values) }
}

/// Calls intrinsics that need nothing but the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: an `Avx2` exists only where `detect` found the instructions; every pointer
        // comes from a reference to as many elements as are read or written.
        unsafe { $e }
    };
}

impl Simd for Avx2 {
    const TOKENS: usize = 3;
    const LANES: usize = 8;
    type Chunk = Chunk;
    type V = __m256;
    type I = __m256i;
    type Pairs = [i16; 16];
    const PAIR_TOKENS: usize = 4;

    #[inline(always)]
    fn chunks(self, s: &[f32]) -> &[Chunk] {
        s.as_chunks().0
    }
    #[inline(always)]
    fn chunks_mut(self, s: &mut [f32]) -> &mut [Chunk] {
        s.as_chunks_mut().0
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        simd!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, c: &Chunk) -> __m256 {
        simd!(_mm256_loadu_ps(c.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m256, c: &mut Chunk) {
        simd!(_mm256_storeu_ps(c.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        simd!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        simd!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn pow2(self, n: __m256) -> __m256 {
        simd!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn zero_below(self, x: __m256, limit: __m256, v: __m256) -> __m256 {
        simd!(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), v))
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        self.sum4([v; 4])[0]
    }
    #[inline(always)]
    fn sum4(self, v: [__m256; 4]) -> [f32; 4] {
        simd!({
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
            let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let lanes = _mm256_add_ps(low, high);
            let quarter = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let mut out = [0f32; 4];
            _mm_storeu_ps(out.as_mut_ptr(), quarter);
            out
        })
    }
    #[inline(always)]
    fn prefetch(self, byte: &u8) {
        simd!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()))
    }
    type Bytes = Plain;
    #[inline(always)]
    fn bytes(self) -> Option<Plain> {
        None
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, k: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(s: Avx2, k: K) -> K::Output {
            k.run(s)
        }
        // SAFETY: an `Avx2` exists only where `detect` found the instructions.
        unsafe { inner(self, k) }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, k: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        fn inner<K: Kernel>(s: Avx2, k: K) -> K::Output {
            k.run(s)
        }
        // SAFETY: an `Avx2` exists only where `detect` found the instructions.
        unsafe { inner(self, k) }
    }
    #[inline(always)]
    fn widen_f16<H: Half>(self, src: &[H], dst: &mut [f32]) {
        let (halves, rest) = src[..dst.len()].as_chunks::<8>();
        let (out, rest_out) = dst.as_chunks_mut::<8>();
        for (h, o) in halves.iter().zip(out) {
            simd!(_mm256_storeu_ps(o.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(h.as_ptr().cast()))));
        }
        rest.iter().zip(rest_out).for_each(|(h, o)| *o = h.value());
    }
    #[inline(always)]
    fn widen_i8(self, src: &[u8], xor: u8, scale: f32, dst: &mut [f32]) {
        let (bytes, rest) = src[..dst.len()].as_chunks::<8>();
        let (out, rest_out) = dst.as_chunks_mut::<8>();
        for (b, o) in bytes.iter().zip(out) {
            simd!({
                let b = _mm_xor_si128(_mm_loadl_epi64(b.as_ptr().cast()), _mm_set1_epi8(xor as i8));
                widened(b, self.splat(scale), o);
            });
        }
        Plain.widen_i8(rest, xor, scale, rest_out);
    }
    #[inline(always)]
    fn widen_nibbles(self, src: &[u8], scale: f32, dst: &mut [f32]) {
        let (bytes, _) = src[..dst.len().div_ceil(2)].as_chunks::<8>();
        let (out, rest_out) = dst.as_chunks_mut::<16>();
        let done = bytes.len().min(out.len());
        for (b, o) in bytes.iter().zip(out.iter_mut()) {
            simd!({
                let b = _mm_loadl_epi64(b.as_ptr().cast());
                let mask = _mm_set1_epi8(15);
                let low = _mm_and_si128(b, mask);
                let high = _mm_and_si128(_mm_srli_epi16::<4>(b), mask);
                let codes = _mm_sub_epi8(_mm_unpacklo_epi8(low, high), _mm_set1_epi8(8));
                let (first, second) = o.split_at_mut(8);
                widened(codes, self.splat(scale), first);
                widened(_mm_unpackhi_epi64(codes, codes), self.splat(scale), second);
            });
        }
        Plain.widen_nibbles(&src[8 * done..], scale, rest_out);
    }
    #[inline(always)]
    fn look_up(self, src: &[u8], table: &[f32; 16], dst: &mut [f32]) {
        let (bytes, _) = src[..dst.len().div_ceil(2)].as_chunks::<8>();
        let (out, rest_out) = dst.as_chunks_mut::<16>();
        let done = bytes.len().min(out.len());
        for (b, o) in bytes.iter().zip(out.iter_mut()) {
            simd!({
                let b = _mm_loadl_epi64(b.as_ptr().cast());
                let mask = _mm_set1_epi8(15);
                let high = _mm_and_si128(_mm_srli_epi16::<4>(b), mask);
                let codes = _mm_unpacklo_epi8(high, _mm_and_si128(b, mask));
                let (first, second) = o.split_at_mut(8);
                looked_up(codes, table, first);
                looked_up(_mm_unpackhi_epi64(codes, codes), table, second);
            });
        }
        Plain.look_up(&src[8 * done..], table, rest_out);
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
    fn zero_pairs(self) -> __m256i {
        simd!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn load_pairs(self, c: &[i16; 16]) -> __m256i {
        simd!(_mm256_loadu_si256(c.as_ptr().cast()))
    }
    #[inline(always)]
    fn byte_pairs(self, src: &[u8], xor: u8) -> __m256i {
        let src = &src[..16];
        simd!({
            let b = _mm_loadu_si128(src.as_ptr().cast());
            _mm256_cvtepi8_epi16(_mm_xor_si128(b, _mm_set1_epi8(xor as i8)))
        })
    }
    #[inline(always)]
    fn nibble_pairs(self, src: &[u8]) -> __m256i {
        let src = &src[..8];
        simd!({
            let b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(src.as_ptr().cast()));
            let both = _mm256_or_si256(b, _mm256_slli_epi32::<12>(b));
            let pairs = _mm256_and_si256(both, _mm256_set1_epi32(0xF_000F));
            _mm256_sub_epi16(pairs, _mm256_set1_epi16(8))
        })
    }
    #[inline(always)]
    fn store_pairs(self, v: __m256i, c: &mut [i16; 16]) {
        simd!(_mm256_storeu_si256(c.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn splat_pair(self, [a, b]: [i16; 2]) -> __m256i {
        simd!(_mm256_set1_epi32(i32::from(a as u16) | i32::from(b) << 16))
    }
    #[inline(always)]
    fn dot_pairs(self, a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
        simd!(_mm256_add_epi32(_mm256_madd_epi16(a, b), sum))
    }
    #[inline(always)]
    fn float_pairs(self, v: __m256i) -> __m256 {
        simd!(_mm256_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn sum4_pairs(self, v: [__m256i; 4]) -> [i32; 4] {
        simd!({
            let ab = _mm256_hadd_epi32(v[0], v[1]);
            let cd = _mm256_hadd_epi32(v[2], v[3]);
            let lanes = _mm256_hadd_epi32(ab, cd);
            let sums = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
            let mut out = [0i32; 4];
            _mm_storeu_si128(out.as_mut_ptr().cast(), sums);
            out
        })
    }
    #[inline(always)]
    fn transpose_pairs(self, rows: &mut [__m256i; 16]) {
        simd!({
            let mut a = [_mm256_setzero_si256(); 8];
            for i in 0..4 {
                a[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                a[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            let mut b = a;
            for i in 0..2 {
                for j in 0..2 {
                    b[4 * i + 2 * j] = _mm256_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
                    b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
                }
            }
            for j in 0..4 {
                rows[j] = _mm256_permute2x128_si256::<0x20>(b[j], b[4 + j]);
                rows[4 + j] = _mm256_permute2x128_si256::<0x31>(b[j], b[4 + j]);
            }
        })
    }
}
