//! Numbers to try kernels on.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A source of numbers.
pub(super) struct Samples(ChaCha8Rng);

impl Samples {
    pub(super) fn new(seed: u64) -> Self {
        Samples(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Numbers from -1 to 1.
    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.0.random_range(-1.0..1.0)).collect()
    }

    pub(super) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.0.random()).collect()
    }

    /// Some of `0..n`, ascending.
    pub(super) fn columns(&mut self, n: usize) -> Vec<u32> {
        (0..n as u32).filter(|_| self.0.random_bool(0.3)).collect()
    }

    /// `0..n` in another order.
    pub(super) fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.0.random_range(0..=i));
        }
        all
    }
}
