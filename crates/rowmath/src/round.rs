//! Rounding to the nearest integer, ties to even.
//!
//! Adding 1.5 * 2^23 to a number below 2^22 rounds it: the sum's lowest bit is worth 1, and its low bits are the integer in
//! two's complement. Unlike `f32::round_ties_even`, which older processors call as a function, and unlike a cast to an
//! integer, which checks its range, an addition vectorizes on every target.

/// 1.5 * 2^23.
pub const SHIFT: f32 = 12_582_912.0;

/// The nearest integer, for |x| < 2^22.
#[inline(always)]
pub fn nearest(x: f32) -> f32 {
    (x + SHIFT) - SHIFT
}

/// The nearest integer, for x in [-128, 127].
#[inline(always)]
pub fn nearest_i8(x: f32) -> i8 {
    (x + SHIFT).to_bits() as i8
}

/// The nearest integer, for x in [0, 255].
#[inline(always)]
pub fn nearest_u8(x: f32) -> u8 {
    (x + SHIFT).to_bits() as u8
}

/// The nearest integer, for |x| < 2^15.
#[inline(always)]
pub fn nearest_i16(x: f32) -> i16 {
    (x + SHIFT).to_bits() as i16
}

/// The nearest integer, for |x| < 2^22.
#[inline(always)]
pub fn nearest_i32(x: f32) -> i32 {
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_even_and_all_forms_agree() {
        for (x, integer) in
            [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (126.6, 127), (-127.4, -127), (3.0, 3)]
        {
            assert_eq!((nearest(x), nearest_i8(x)), (integer as f32, integer as i8), "{x}");
            assert_eq!((nearest_i16(x), nearest_i32(x)), (integer as i16, integer), "{x}");
        }
        assert_eq!((nearest_u8(254.5), nearest_u8(200.2)), (254, 200));
        assert_eq!((nearest_i16(-32_639.4), nearest_i32(4_194_303.0)), (-32_639, 4_194_303));
    }
}
