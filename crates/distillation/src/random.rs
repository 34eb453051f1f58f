//! Random numbers that depend on nothing but a seed.

use rand::{Rng, SeedableRng};
pub use rand_chacha::ChaCha8Rng;

/// The stream of the initial weights.
pub const WEIGHTS: u64 = 0;
/// The stream of the batches.
pub const BATCHES: u64 = 1;
/// The stream of planted outliers.
pub const OUTLIERS: u64 = 2;
/// The stream of what is held out.
pub const VALIDATION: u64 = 3;
/// The first of the streams of sampled labels, one for each prediction.
pub const DRAWS: u64 = 1 << 48;
/// The first of the streams of the dropout.
pub const DROPOUT: u64 = 1 << 32;

/// An independent generator for each `stream` of a `seed`.
pub fn stream(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

/// `n` normal values around 0.
pub fn normal(rng: &mut ChaCha8Rng, n: usize, std: f64) -> Vec<f32> {
    (0..n)
        .map(|_| {
            let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
            (std * radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()) as f32
        })
        .collect()
}

/// `n` values, zero with probability `rate` and `1 / (1 - rate)` otherwise.
pub fn keep_mask(rng: &mut ChaCha8Rng, n: usize, rate: f64) -> Vec<f32> {
    let bound = (rate * 2f64.powi(32)) as u32;
    let kept = (1.0 / (1.0 - rate)) as f32;
    (0..n).map(|_| if rng.random::<u32>() < bound { 0.0 } else { kept }).collect()
}
