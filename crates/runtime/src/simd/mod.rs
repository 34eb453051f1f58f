//! Vectors of f32 behind one trait, so that every kernel is written once.
//!
//! A kernel is a [`Kernel`]; [`run`] compiles it for AVX-512 with and without VNNI, for AVX2 with FMA and for plain
//! Rust, and picks at run time ([`Isa`]). The vector types can only be obtained where the processor
//! has the instructions, which is what makes their methods safe.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use crate::Error;
use half::f16;
use std::sync::OnceLock;

/// Environment variable that forces an instruction set by name, so that any machine can test and measure the sets below
/// its best.
pub const VARIABLE: &str = "QEVAL_ISA";

/// Lanes of a vector of one instruction set, and what can be done with them.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Tokens of the register tile of the matrix kernels: as many as registers allow
    /// beside four rows of weights.
    const TOKENS: usize;
    /// The lanes as an array.
    type Chunk: Copy + Send + Sync;
    /// The lanes in a register.
    type V: Copy;
    /// A register of 32-bit integers, as many as floats, or of pairs of 16-bit ones.
    type I: Copy;
    /// Pairs of 16-bit integers as memory has them, one for each lane.
    type Pairs: Copy + Send + Sync;
    /// Tokens of the register tile of the integer kernels, beside two vectors of rows.
    const PAIR_TOKENS: usize;

    /// `n` lanes.
    const LANES: usize;
    /// The whole chunks of a slice.
    fn chunks(self, s: &[f32]) -> &[Self::Chunk];
    /// The whole chunks of a mutable slice.
    fn chunks_mut(self, s: &mut [f32]) -> &mut [Self::Chunk];
    /// All lanes equal.
    fn splat(self, x: f32) -> Self::V;
    /// From memory.
    fn load(self, c: &Self::Chunk) -> Self::V;
    /// To memory.
    fn store(self, v: Self::V, c: &mut Self::Chunk);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the processor can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for integers `n` in -126..=127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Zero where `x < limit`, else `v`.
    fn zero_below(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    fn sum(self, v: Self::V) -> f32;
    /// Sums of the lanes of four vectors, in the order of [`Simd::sum`].
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Asks for the memory about a byte that will be read soon.
    #[inline(always)]
    fn prefetch(self, _: &u8) {}
    /// Products of bytes, where the processor has them at their full rate.
    type Bytes: ByteSimd;
    /// The same.
    fn bytes(self) -> Option<Self::Bytes>;
    /// Runs `k` with the instructions of this set enabled.
    fn vectorize<K: Kernel>(self, k: K) -> K::Output;
    /// [`Simd::vectorize`] in a function of its own: an inner loop then has all registers to itself, and no length of
    /// its surroundings is computed again in it.
    fn outline<K: Kernel>(self, k: K) -> K::Output;

    /// Widens halves; `src` is at least as long as `dst`.
    fn widen_f16<H: Half>(self, src: &[H], dst: &mut [f32]);
    /// Widens signed bytes, each flipped by `xor` first, and multiplies them with `scale`.
    fn widen_i8(self, src: &[u8], xor: u8, scale: f32, dst: &mut [f32]);
    /// Widens nibbles less 8, the low one of a byte first, and multiplies them with `scale`;
    /// `dst` may have odd length.
    fn widen_nibbles(self, src: &[u8], scale: f32, dst: &mut [f32]);
    /// Looks nibbles up, the high one of a byte first; `dst` may have odd length.
    fn look_up(self, src: &[u8], table: &[f32; 16], dst: &mut [f32]);

    /// The whole vectors of pairs of a slice.
    fn pairs(self, s: &[i16]) -> &[Self::Pairs];
    /// The whole vectors of pairs of a mutable slice.
    fn pairs_mut(self, s: &mut [i16]) -> &mut [Self::Pairs];
    /// Zeros.
    fn zero_pairs(self) -> Self::I;
    /// From memory.
    fn load_pairs(self, c: &Self::Pairs) -> Self::I;
    /// Signed bytes, each flipped by `xor` first, as pairs: `2 * LANES` of them.
    fn byte_pairs(self, src: &[u8], xor: u8) -> Self::I;
    /// Nibbles less 8 as pairs, the low one of a byte first: of `LANES` bytes.
    fn nibble_pairs(self, src: &[u8]) -> Self::I;
    /// To memory.
    fn store_pairs(self, v: Self::I, c: &mut Self::Pairs);
    /// Repeats a pair in all lanes.
    fn splat_pair(self, pair: [i16; 2]) -> Self::I;
    /// `a.0 * b.0 + a.1 * b.1 + sum` in each lane, wrapping around.
    fn dot_pairs(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// 32-bit integers to the nearest floats.
    fn float_pairs(self, v: Self::I) -> Self::V;
    /// Sums of the lanes of four vectors of 32-bit integers.
    fn sum4_pairs(self, v: [Self::I; 4]) -> [i32; 4];
    /// Transposes the square of the first [`Simd::LANES`] vectors: lane `j` of vector `i` becomes
    /// lane `i` of vector `j`.
    fn transpose_pairs(self, rows: &mut [Self::I; 16]);
}

/// Vectors of 64 bytes, and their products.
pub trait ByteSimd: Copy {
    /// 64 bytes, or 16 integers of 32 bits.
    type R: Copy;

    /// 64 bytes.
    fn load(self, src: &[u8; 64]) -> Self::R;
    /// Four times 16 bytes.
    fn load4(self, src: [&[u8; 16]; 4]) -> Self::R;
    /// Signed bytes.
    fn signed(self, src: &[i8; 64]) -> Self::R;
    /// Integers.
    fn ints(self, src: &[i32; 16]) -> Self::R;
    /// Zeros.
    fn zero(self) -> Self::R;
    /// The highest bit of each byte inverted.
    fn flip(self, v: Self::R) -> Self::R;
    /// The low and the high nibbles of each byte.
    fn nibbles(self, v: Self::R) -> [Self::R; 2];
    /// Adds to each integer the products of four unsigned bytes with four signed ones, wrapping around.
    fn dot(self, unsigned: Self::R, signed: Self::R, sum: Self::R) -> Self::R;
    /// `256 * high + low` of integers, wrapping around.
    fn join(self, high: Self::R, low: Self::R) -> Self::R;
    /// Sums of four consecutive integers, wrapping around, to the nearest floats: of each four of
    /// them, of each vector. `whole` fours (1, 2 or 4) are one sum, which stands for each of them.
    fn sum_quads(self, v: [Self::R; 4], whole: usize) -> [[f32; 4]; 4];
}

/// A half as memory has it: aligned, or as bytes of a file.
pub trait Half: Copy {
    /// Value of the element.
    fn value(self) -> f32;
}

impl Half for f16 {
    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Half for [u8; 2] {
    #[inline(always)]
    fn value(self) -> f32 {
        f16::from_le_bytes(self).to_f32()
    }
}

/// Something to compute with vectors.
pub trait Kernel {
    /// Type of the result.
    type Output;
    /// Computes. Implementations are `#[inline(always)]`, so that they are compiled anew for
    /// each instruction set.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Number of tokens that a matrix kernel takes at a time, and of columns of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// [`Simd::LANES`].
    pub lanes: usize,
    /// [`Simd::TOKENS`].
    pub tokens: usize,
    /// [`Simd::PAIR_TOKENS`].
    pub pair_tokens: usize,
    /// True if there is [`Simd::bytes`].
    pub bytes: bool,
}

/// The instruction sets that kernels are compiled for: the tiers of the runtime.
#[derive(Debug, Clone, Copy)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL, VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512<true>),
    /// AVX-512 F, BW, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<false>),
    /// AVX2, FMA, F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    /// Plain Rust, on every processor.
    Plain(plain::Plain),
}

impl Isa {
    /// Returns the sets that this processor has, best first.
    pub fn available() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx512::Avx512::detect().map(Isa::Avx512Vnni));
            all.extend(avx512::Avx512::detect().map(Isa::Avx512));
            all.extend(avx2::Avx2::detect().map(Isa::Avx2));
        }
        all.push(Isa::Plain(plain::Plain));
        all
    }

    /// The name that [`VARIABLE`] takes.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            Isa::Plain(_) => "plain",
        }
    }

    /// Returns the set that [`VARIABLE`] names, or the best that this processor has.
    ///
    /// # Errors
    /// [`Error::InstructionSet`] where the variable names a set that this processor or program doesn't have.
    pub fn chosen() -> Result<Isa, Error> {
        match std::env::var_os(VARIABLE) {
            Some(name) if !name.is_empty() => Isa::named(&name.to_string_lossy()),
            _ => Ok(Isa::available()[0]),
        }
    }

    /// Returns the set of a name.
    fn named(name: &str) -> Result<Isa, Error> {
        let available = Isa::available();
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
            Error::InstructionSet { name: name.into(), available: names.join(", ") }
        })
    }

    /// Returns the set that products run with, chosen once for the process. A program refuses a wrong choice when it
    /// starts (see [`crate::instruction_set`]); a library's caller that didn't ask gets the best set.
    pub fn active() -> Isa {
        static ACTIVE: OnceLock<Isa> = OnceLock::new();
        *ACTIVE.get_or_init(|| Isa::chosen().unwrap_or_else(|_| Isa::available()[0]))
    }

    /// The register tile of the matrix kernels.
    pub fn tile(self) -> Tile {
        fn of<S: Simd>(s: S) -> Tile {
            Tile { lanes: S::LANES, tokens: S::TOKENS, pair_tokens: S::PAIR_TOKENS, bytes: s.bytes().is_some() }
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(s) => of(s),
            Isa::Plain(s) => of(s),
        }
    }

    /// Runs `k` with this set.
    pub fn run<K: Kernel>(self, k: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(s) => s.vectorize(k),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(s) => s.vectorize(k),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(s) => s.vectorize(k),
            Isa::Plain(s) => s.vectorize(k),
        }
    }
}

/// Runs `k` with the active instruction set.
pub fn run<K: Kernel>(k: K) -> K::Output {
    Isa::active().run(k)
}

/// `e^x`, within 2e-7 relative; 0 below -87.3, and at most `e^88`. NaN stays NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let low = s.splat(-87.3);
    // The second operand of max and min wins when the first is NaN: NaN passes through.
    let clamped = s.min(s.splat(88.0), s.max(low, x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts (Cody and Waite), so that r is exact to the last bit.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // Minimax polynomial of e^r on [-ln2/2, ln2/2] (Cephes expf).
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    s.zero_below(x, low, s.mul(p, s.pow2(n)))
}

/// Applies `f` to chunks of `dst` and the same chunks of `src`; the rest goes through
/// a zero-padded chunk, so that every element sees the same arithmetic.
#[inline(always)]
pub fn zip_map<S: Simd>(s: S, dst: &mut [f32], src: &[f32], f: impl Fn(S::V, S::V) -> S::V) {
    let n = dst.len();
    let src = &src[..n];
    let whole = n / S::LANES * S::LANES;
    for (d, x) in s.chunks_mut(&mut dst[..whole]).iter_mut().zip(s.chunks(&src[..whole])) {
        let v = f(s.load(d), s.load(x));
        s.store(v, d);
    }
    if whole < n {
        let (mut d, mut x) = ([0f32; 16], [0f32; 16]);
        d[..n - whole].copy_from_slice(&dst[whole..]);
        x[..n - whole].copy_from_slice(&src[whole..]);
        let v = f(s.load(&s.chunks(&d)[0]), s.load(&s.chunks(&x)[0]));
        s.store(v, &mut s.chunks_mut(&mut d)[0]);
        dst[whole..].copy_from_slice(&d[..n - whole]);
    }
}

#[cfg(test)]
mod tests;
