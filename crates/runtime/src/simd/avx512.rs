//! AVX-512: sixteen lanes, thirty-two registers.

use super::{ByteSimd, Half, Kernel, Simd, plain::Plain};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, DQ and VL with AVX2, FMA and F16C, and VNNI where `VNNI` is true.
#[derive(Debug, Clone, Copy)]
pub struct Avx512<const VNNI: bool>(());

impl<const VNNI: bool> Avx512<VNNI> {
    /// Returns the proof, or `None` where the processor lacks an instruction.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && (!VNNI || is_x86_feature_detected!("avx512vnni"))
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        has.then_some(Self(()))
    }
}

type Chunk = [f32; 16];

/// Sixteen signed bytes, multiplied with `scale`.
#[inline]
#[target_feature(enable = "avx512f")]
fn widened(bytes: __m128i, scale: __m512, out: &mut [f32]) {
    let values = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale);
    // SAFETY: the slice is cut to sixteen elements.
    unsafe { _mm512_storeu_ps(out[..16].as_mut_ptr(), values) }
}

/// Calls intrinsics that need nothing but the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: an `Avx512` exists only where `detect` found the instructions; every pointer
        // comes from a reference to as many elements as are read or written.
        unsafe { $e }
    };
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    const TOKENS: usize = 6;
    const LANES: usize = 16;
    type Chunk = Chunk;
    type V = __m512;
    type I = __m512i;
    type Pairs = [i16; 32];
    const PAIR_TOKENS: usize = 12;

    #[inline(always)]
    fn chunks(self, s: &[f32]) -> &[Chunk] {
        s.as_chunks().0
    }
    #[inline(always)]
    fn chunks_mut(self, s: &mut [f32]) -> &mut [Chunk] {
        s.as_chunks_mut().0
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        simd!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, c: &Chunk) -> __m512 {
        simd!(_mm512_loadu_ps(c.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, c: &mut Chunk) {
        simd!(_mm512_storeu_ps(c.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        simd!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        simd!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        simd!(_mm512_scalef_ps(_mm512_set1_ps(1.0), n))
    }
    #[inline(always)]
    fn zero_below(self, x: __m512, limit: __m512, v: __m512) -> __m512 {
        simd!({
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, limit);
            _mm512_maskz_mov_ps(!below, v)
        })
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        self.sum4([v; 4])[0]
    }
    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        simd!({
            // Transposes 4 x 4 within each 128-bit lane while adding, then adds the lanes.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let lanes = _mm512_add_ps(low, high);
            let half = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
            let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let mut out = [0f32; 4];
            _mm_storeu_ps(out.as_mut_ptr(), quarter);
            out
        })
    }
    #[inline(always)]
    fn prefetch(self, byte: &u8) {
        simd!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()))
    }
    type Bytes = Avx512<true>;
    #[inline(always)]
    fn bytes(self) -> Option<Avx512<true>> {
        VNNI.then_some(Avx512(()))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, k: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn with_vnni<S: Simd, K: Kernel>(s: S, k: K) -> K::Output {
            k.run(s)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn without_vnni<S: Simd, K: Kernel>(s: S, k: K) -> K::Output {
            k.run(s)
        }
        // SAFETY: an `Avx512` exists only where `detect` found the instructions.
        unsafe { if VNNI { with_vnni(self, k) } else { without_vnni(self, k) } }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, k: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        fn with_vnni<S: Simd, K: Kernel>(s: S, k: K) -> K::Output {
            k.run(s)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        #[inline(never)]
        fn without_vnni<S: Simd, K: Kernel>(s: S, k: K) -> K::Output {
            k.run(s)
        }
        // SAFETY: an `Avx512` exists only where `detect` found the instructions.
        unsafe { if VNNI { with_vnni(self, k) } else { without_vnni(self, k) } }
    }
    #[inline(always)]
    fn widen_f16<H: Half>(self, src: &[H], dst: &mut [f32]) {
        let n = dst.len();
        let (halves, rest) = src[..n].as_chunks::<16>();
        let (out, rest_out) = dst.as_chunks_mut::<16>();
        for (h, o) in halves.iter().zip(out) {
            simd!(_mm512_storeu_ps(o.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(h.as_ptr().cast()))));
        }
        rest.iter().zip(rest_out).for_each(|(h, o)| *o = h.value());
    }
    #[inline(always)]
    fn widen_i8(self, src: &[u8], xor: u8, scale: f32, dst: &mut [f32]) {
        let (bytes, rest) = src[..dst.len()].as_chunks::<16>();
        let (out, rest_out) = dst.as_chunks_mut::<16>();
        for (b, o) in bytes.iter().zip(out) {
            simd!({
                let b = _mm_xor_si128(_mm_loadu_si128(b.as_ptr().cast()), _mm_set1_epi8(xor as i8));
                widened(b, self.splat(scale), o);
            });
        }
        Plain.widen_i8(rest, xor, scale, rest_out);
    }
    #[inline(always)]
    fn widen_nibbles(self, src: &[u8], scale: f32, dst: &mut [f32]) {
        let (bytes, _) = src[..dst.len().div_ceil(2)].as_chunks::<8>();
        let (out, rest_out) = dst.as_chunks_mut::<16>();
        // An odd length rounds the bytes up: they may form one chunk more than the output does.
        let done = bytes.len().min(out.len());
        for (b, o) in bytes.iter().zip(out.iter_mut()) {
            simd!({
                let b = _mm_loadl_epi64(b.as_ptr().cast());
                let mask = _mm_set1_epi8(15);
                let low = _mm_and_si128(b, mask);
                let high = _mm_and_si128(_mm_srli_epi16::<4>(b), mask);
                let codes = _mm_sub_epi8(_mm_unpacklo_epi8(low, high), _mm_set1_epi8(8));
                widened(codes, self.splat(scale), o);
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
                let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), _mm512_loadu_ps(table.as_ptr()));
                _mm512_storeu_ps(o.as_mut_ptr(), values);
            });
        }
        Plain.look_up(&src[8 * done..], table, rest_out);
    }

    #[inline(always)]
    fn pairs(self, s: &[i16]) -> &[[i16; 32]] {
        s.as_chunks().0
    }
    #[inline(always)]
    fn pairs_mut(self, s: &mut [i16]) -> &mut [[i16; 32]] {
        s.as_chunks_mut().0
    }
    #[inline(always)]
    fn zero_pairs(self) -> __m512i {
        simd!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn load_pairs(self, c: &[i16; 32]) -> __m512i {
        simd!(_mm512_loadu_si512(c.as_ptr().cast()))
    }
    #[inline(always)]
    fn byte_pairs(self, src: &[u8], xor: u8) -> __m512i {
        let src = &src[..32];
        simd!({
            let b = _mm256_loadu_si256(src.as_ptr().cast());
            _mm512_cvtepi8_epi16(_mm256_xor_si256(b, _mm256_set1_epi8(xor as i8)))
        })
    }
    #[inline(always)]
    fn nibble_pairs(self, src: &[u8]) -> __m512i {
        let src = &src[..16];
        simd!({
            let b = _mm512_cvtepu8_epi32(_mm_loadu_si128(src.as_ptr().cast()));
            // Either the byte or the byte twelve bits higher, and of both the nibble.
            let pairs =
                _mm512_ternarylogic_epi32::<0b1010_1000>(b, _mm512_slli_epi32::<12>(b), _mm512_set1_epi32(0xF_000F));
            _mm512_sub_epi16(pairs, _mm512_set1_epi16(8))
        })
    }
    #[inline(always)]
    fn store_pairs(self, v: __m512i, c: &mut [i16; 32]) {
        simd!(_mm512_storeu_si512(c.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn splat_pair(self, [a, b]: [i16; 2]) -> __m512i {
        simd!(_mm512_set1_epi32(i32::from(a as u16) | i32::from(b) << 16))
    }
    #[inline(always)]
    fn dot_pairs(self, a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        if VNNI { simd!(_mm512_dpwssd_epi32(sum, a, b)) } else { simd!(_mm512_add_epi32(_mm512_madd_epi16(a, b), sum)) }
    }
    #[inline(always)]
    fn float_pairs(self, v: __m512i) -> __m512 {
        simd!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn sum4_pairs(self, v: [__m512i; 4]) -> [i32; 4] {
        simd!({
            let lanes = quads(v);
            let half = _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti32x8_epi32::<1>(lanes));
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let mut out = [0i32; 4];
            _mm_storeu_si128(out.as_mut_ptr().cast(), quarter);
            out
        })
    }
    #[inline(always)]
    fn transpose_pairs(self, rows: &mut [__m512i; 16]) {
        simd!({
            // Squares of 2, of 4, then of 128-bit lanes: 2 x 2 and 4 x 4 of them.
            let mut a = [_mm512_setzero_si512(); 16];
            for i in 0..8 {
                a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            let mut b = a;
            for i in 0..4 {
                for j in 0..2 {
                    b[4 * i + 2 * j] = _mm512_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
                    b[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
                }
            }
            for j in 0..4 {
                let (low, high) = (b[j], b[4 + j]);
                a[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
                a[4 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
                let (low, high) = (b[8 + j], b[12 + j]);
                a[8 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
                a[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
            }
            for j in 0..4 {
                rows[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(a[j], a[8 + j]);
                rows[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(a[j], a[8 + j]);
                rows[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(a[4 + j], a[12 + j]);
                rows[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(a[4 + j], a[12 + j]);
            }
        })
    }
}

impl ByteSimd for Avx512<true> {
    type R = __m512i;

    #[inline(always)]
    fn load(self, src: &[u8; 64]) -> __m512i {
        simd!(_mm512_loadu_si512(src.as_ptr().cast()))
    }
    #[inline(always)]
    fn load4(self, src: [&[u8; 16]; 4]) -> __m512i {
        simd!({
            let [a, b, c, d] = src.map(|src| _mm_loadu_si128(src.as_ptr().cast()));
            let (low, high) = (_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        })
    }
    #[inline(always)]
    fn signed(self, src: &[i8; 64]) -> __m512i {
        simd!(_mm512_loadu_si512(src.as_ptr().cast()))
    }
    #[inline(always)]
    fn ints(self, src: &[i32; 16]) -> __m512i {
        simd!(_mm512_loadu_si512(src.as_ptr().cast()))
    }
    #[inline(always)]
    fn zero(self) -> __m512i {
        simd!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn flip(self, v: __m512i) -> __m512i {
        simd!(_mm512_xor_si512(v, _mm512_set1_epi8(-128)))
    }
    #[inline(always)]
    fn nibbles(self, v: __m512i) -> [__m512i; 2] {
        let mask = simd!(_mm512_set1_epi8(15));
        simd!([_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask)])
    }
    #[inline(always)]
    fn dot(self, unsigned: __m512i, signed: __m512i, sum: __m512i) -> __m512i {
        simd!(_mm512_dpbusd_epi32(sum, unsigned, signed))
    }
    #[inline(always)]
    fn join(self, high: __m512i, low: __m512i) -> __m512i {
        simd!(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }
    #[inline(always)]
    fn sum_quads(self, v: [__m512i; 4], whole: usize) -> [[f32; 4]; 4] {
        let mut out = [[0.0; 4]; 4];
        simd!({
            let mut sums = quads(v);
            if whole > 1 {
                sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4::<0b10_11_00_01>(sums, sums));
            }
            if whole > 2 {
                sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4::<0b01_00_11_10>(sums, sums));
            }
            _mm512_storeu_ps(out.as_mut_ptr().cast(), _mm512_cvtepi32_ps(sums));
        });
        out
    }
}

/// Sums of four consecutive integers of each of four vectors: transposed within each 128-bit lane while they are added.
#[inline]
#[target_feature(enable = "avx512f")]
fn quads(v: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}
