//! Sub-blocks side by side: lane `l` of every vector belongs to sub-block `l`.
//!
//! ggml adds up each sub-block's sums one weight after the other, and byte equality needs the same order of
//! additions. Vector code over the weights of one sub-block would change it; vector code over sub-blocks doesn't.

use rowmath::round::SHIFT;

/// Sub-blocks that are searched at once.
pub(super) const LANES: usize = 16;

/// One number for each of the sub-blocks.
pub(super) type Lanes = [f32; LANES];

/// The integer nearest to `x`, halves to even, clamped to `low..=high`; for |x| below 2^22.
#[inline(always)]
pub(super) fn nearest(x: f32, low: i32, high: i32) -> f32 {
    let zero = SHIFT.to_bits() as i32;
    let bits = ((x + SHIFT).to_bits() as i32).max(zero + low).min(zero + high);
    f32::from_bits(bits as u32) - SHIFT
}

/// Like [`nearest`], as an integer and without limits.
#[inline(always)]
pub(super) fn nearest_int(x: f32) -> i32 {
    // ggml masks the bits like this too, so that what is beyond 2^22 becomes the same wrong number.
    ((x + SHIFT).to_bits() & 0x007F_FFFF) as i32 - 0x0040_0000
}

/// Weight `i` of each of the consecutive sub-blocks, for each `i`; lanes beyond the end are 0.
#[inline(always)]
pub(super) fn side_by_side<const SUB: usize>(src: &[f32]) -> [Lanes; SUB] {
    let mut out = [[0f32; LANES]; SUB];
    for (l, sub) in src.as_chunks::<SUB>().0.iter().take(LANES).enumerate() {
        for (o, x) in out.iter_mut().zip(sub) {
            o[l] = *x;
        }
    }
    out
}

/// The weight of the largest magnitude of each sub-block, the first of equals, and that magnitude.
#[inline(always)]
pub(super) fn extremes<const SUB: usize>(x: &[Lanes; SUB]) -> (Lanes, Lanes) {
    let (mut signed, mut magnitude) = ([0f32; LANES], [0f32; LANES]);
    for x in x {
        for l in 0..LANES {
            let more = x[l].abs() > magnitude[l];
            signed[l] = if more { x[l] } else { signed[l] };
            magnitude[l] = if more { x[l].abs() } else { magnitude[l] };
        }
    }
    (signed, magnitude)
}

/// The one of the largest magnitude, the first of equals; 0 when there is none.
#[inline(always)]
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m })
}
