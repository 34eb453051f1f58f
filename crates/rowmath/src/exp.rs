//! The exponential of one number, for loops that compilers turn into vector code.

use crate::round::SHIFT;

/// `e^x` by Cephes' polynomial: within 2e-7 relative from e^-87 to e^88, and no smaller or larger
/// than these. NaN stays NaN. Inlined, so that it is compiled for its caller's instructions.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // The low bits of `shifted` are n in two's complement: they go into y's exponent.
    f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23))
}
