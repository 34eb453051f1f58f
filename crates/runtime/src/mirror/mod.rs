//! Mirrors: what each kernel of `cuda/` computes, operation by operation, on the CPU.
//!
//! A mirror is a plain loop with the tiling and the order of sums of its kernel, so that both give
//! the same bits. [`cases`] are launches over odd shapes with what the mirrors expect of them and what
//! the operation is in f64: the tests hold mirrors to f64, `scripts/emulate-cuda` holds the kernels,
//! compiled for the CPU, to the mirrors, and `qeval selftest` does so on a GPU.

mod attend;
mod case;
mod elementwise;
mod integer;
mod kv;
mod product;
mod quantize;
mod samples;
mod weights;

pub use case::{Arg, Case, Kind, Output};

use samples::Samples;

/// Threads of a warp.
const WARP: usize = 32;

/// Launches of all kernels, on numbers that `seed` chooses.
pub fn cases(seed: u64) -> Vec<Case> {
    let mut samples = Samples::new(seed);
    let mut all = product::cases(&mut samples);
    all.extend(elementwise::cases(&mut samples));
    all.extend(kv::cases(&mut samples));
    all.extend(attend::cases(&mut samples));
    all.extend(quantize::cases(&mut samples));
    all.extend(integer::cases(&mut samples));
    all
}

/// The sum over the lanes of a warp (or half of one), as a butterfly of exchanges has it.
fn warp_sum<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut step = N / 2;
    while step > 0 {
        for i in 0..step {
            lanes[i] += lanes[i + step];
        }
        step /= 2;
    }
    lanes[0]
}

/// The bits of the largest magnitude: NaN comes last.
fn magnitude(values: impl IntoIterator<Item = f32>) -> f32 {
    f32::from_bits(values.into_iter().fold(0, |m, v| m.max(v.to_bits() & 0x7FFF_FFFF)))
}

/// `round(x / scale)` within 127, ties to even; 0 under scale 0.
fn code_8(x: f32, scale: f32) -> i8 {
    if scale == 0.0 { 0 } else { rowmath::round::nearest_i8((x / scale).clamp(-127.0, 127.0)) }
}

#[cfg(test)]
mod tests;
