//! The paired block bootstrap.

use super::{Interval, quantile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Neighbouring tokens that are resampled together.
pub const BLOCK: usize = 32;

/// Resamples unless another number is asked for.
pub const RESAMPLES: usize = 4000;

/// Resamples blocks with replacement.
///
/// The interval is the *expanded* percentile interval (Hesterberg, 2015): for n blocks the
/// levels are moved outwards from 2.5% and 97.5% by `sqrt(n / (n - 1))` and Student's t, which
/// makes up for the narrowness of the plain one when blocks are few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// Seed of the ChaCha8 generator; every resample has a stream of its own.
    pub seed: u64,
    /// How many resamples.
    pub resamples: usize,
}

impl Bootstrap {
    /// [`RESAMPLES`] resamples.
    pub fn new(seed: u64) -> Self {
        Bootstrap { seed, resamples: RESAMPLES }
    }

    /// 95% intervals of `sum of column / sum of weights`, for several columns on the same
    /// resamples of blocks. None with fewer than two blocks.
    pub fn ratios(&self, columns: &[&[f64]], weights: &[f64]) -> Vec<Option<Interval>> {
        let n = weights.len();
        let Some(level) = tail(n) else { return vec![None; columns.len()] };
        let resample = |at: usize| -> Vec<f64> {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(at as u64);
            let mut times = vec![0u32; n];
            for _ in 0..n {
                times[rng.random_range(0..n)] += 1;
            }
            let dot = |x: &[f64]| times.iter().zip(x).map(|(&t, x)| f64::from(t) * x).sum::<f64>();
            let weight = dot(weights);
            columns.iter().map(|c| dot(c) / weight).collect()
        };
        let samples: Vec<Vec<f64>> = (0..self.resamples).into_par_iter().map(resample).collect();
        let interval = |column: usize| {
            let mut values: Vec<f64> = samples.iter().map(|s| s[column]).collect();
            Some(Interval(quantile(&mut values, level)?, quantile(&mut values, 1.0 - level)?))
        };
        (0..columns.len()).map(interval).collect()
    }
}

/// The share of resamples beyond each end of the interval.
fn tail(blocks: usize) -> Option<f64> {
    if blocks < 2 {
        return None;
    }
    let n = blocks as f64;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.025);
    Some(Normal::standard().cdf((n / (n - 1.0)).sqrt() * t))
}

/// Sums of `values` over blocks of `block` neighbours; a block never crosses the end of a window.
/// `windows` holds how many values each window has.
pub fn block_sums(values: &[f64], windows: &[usize], block: usize) -> Vec<f64> {
    let mut rest = values;
    let mut sums = Vec::new();
    for &length in windows {
        let (window, later) = rest.split_at(length.min(rest.len()));
        sums.extend(window.chunks(block.max(1)).map(|b| b.iter().sum::<f64>()));
        rest = later;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stay_within_windows() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(block_sums(&values, &[4, 6], 3), [3.0, 3.0, 15.0, 24.0]);
        assert_eq!(block_sums(&[1.0; 10], &[4, 6], 3), [3.0, 1.0, 3.0, 3.0]);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let x: Vec<f64> = (0..50).map(|i| f64::from(i % 7)).collect();
        let w = vec![1.0; 50];
        let a = Bootstrap::new(3).ratios(&[&x], &w);
        assert_eq!(a, Bootstrap::new(3).ratios(&[&x], &w));
        assert_ne!(a, Bootstrap::new(4).ratios(&[&x], &w));
        // A constant has no spread; paired columns see the same blocks.
        let twice: Vec<f64> = x.iter().map(|v| 2.0 * v).collect();
        let both = Bootstrap::new(3).ratios(&[&x, &twice, &w], &w);
        assert_eq!(both[1], both[0].map(|i| i.map(|v| 2.0 * v)));
        assert_eq!(both[2], Some(Interval(1.0, 1.0)));
        assert_eq!(Bootstrap::new(3).ratios(&[&[1.0]], &[1.0]), [None]);
    }

    #[test]
    fn few_blocks_move_the_levels_outwards() {
        assert!((tail(1_000_000).expect("enough") - 0.025).abs() < 1e-5);
        let few = tail(8).expect("enough");
        assert!(few < 0.008 && few > 0.003, "{few}");
    }

    /// A normal variate from twelve uniform ones.
    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
    }

    fn ar1(rng: &mut ChaCha8Rng, n: usize, rho: f64) -> Vec<f64> {
        let mut x = normal(rng) / (1.0 - rho * rho).sqrt();
        (0..n)
            .map(|_| {
                x = rho * x + normal(rng);
                x
            })
            .collect()
    }

    /// How often the interval holds the true mean, 0.
    fn coverage(block: usize) -> f64 {
        let mut rng = ChaCha8Rng::seed_from_u64(20);
        let bootstrap = Bootstrap { seed: 5, resamples: 500 };
        let (runs, windows) = (400, [512; 4]);
        let held = (0..runs).filter(|_| {
            let x: Vec<f64> = windows.iter().flat_map(|&n| ar1(&mut rng, n, 0.5)).collect();
            let weights = block_sums(&vec![1.0; x.len()], &windows, block);
            let interval = bootstrap.ratios(&[&block_sums(&x, &windows, block)], &weights)[0];
            interval.is_some_and(|i| i.holds(0.0))
        });
        held.count() as f64 / f64::from(runs)
    }

    #[test]
    fn blocks_cover_where_single_tokens_do_not() {
        let (blocks, tokens) = (coverage(BLOCK), coverage(1));
        assert!((0.91..=0.985).contains(&blocks), "{blocks}");
        assert!(tokens < 0.85, "{tokens}");
    }
}
