//! Intervals of means over neighbouring tokens.

use super::{Interval, quantile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Most blocks that the tokens of a text are cut into.
///
/// Few long blocks: the dependence between tokens reaches further than any fixed block would
/// (on prose, the variance of block means still grows from 32 tokens to 256), and Student's t
/// makes up for their small number.
pub const BLOCKS: usize = 16;

/// Fewest tokens in a block.
pub const SHORTEST_BLOCK: usize = 16;

/// Resamples unless another number is asked for.
pub const RESAMPLES: usize = 4000;

/// From so many blocks on, resamples tell the skewness of a mean.
const ENOUGH_BLOCKS: usize = 8;

/// Intervals from blocks: Student's t and the studentized bootstrap.
///
/// An interval reaches as far at each end as the further of the two. Student's t with blocks - 1
/// degrees of freedom allows for few blocks, and the bootstrap of the t statistic for skewed
/// values, such as divergences. The measured coverage of both together is in the README.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// Seed of the ChaCha8 generator; every resample has a stream of its own.
    pub seed: u64,
    /// Number of resamples.
    pub resamples: usize,
}

/// A ratio of sums, with its standard error.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    ratio: f64,
    error: f64,
}

/// `sum of x / sum of w` over the blocks that occur `times`, and its linearized standard error.
fn estimate(x: &[f64], w: &[f64], times: &[u32]) -> Estimate {
    let blocks = || times.iter().zip(x.iter().zip(w)).map(|(&t, (&x, &w))| (f64::from(t), x, w));
    let (sum_x, sum_w) = blocks().fold((0.0, 0.0), |(a, b), (t, x, w)| (a + t * x, b + t * w));
    let ratio = sum_x / sum_w;
    let squares: f64 = blocks().map(|(t, x, w)| t * (x - ratio * w).powi(2)).sum();
    let n = times.len() as f64;
    Estimate { ratio, error: (n / (n - 1.0) * squares).sqrt() / sum_w }
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
        let Some(t) = student(n) else { return vec![None; columns.len()] };
        let once = vec![1; n];
        let known: Vec<Estimate> = columns.iter().map(|x| estimate(x, weights, &once)).collect();
        let resample = |at: usize| -> Vec<f64> {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(at as u64);
            let mut times = vec![0u32; n];
            for _ in 0..n {
                times[rng.random_range(0..n)] += 1;
            }
            let statistic = |(x, known): (&&[f64], &Estimate)| {
                let here = estimate(x, weights, &times);
                let t = (here.ratio - known.ratio) / here.error;
                if t.is_finite() { t } else { 0.0 }
            };
            columns.iter().zip(&known).map(statistic).collect()
        };
        let resamples = if n < ENOUGH_BLOCKS { 0 } else { self.resamples };
        let samples: Vec<Vec<f64>> = (0..resamples).into_par_iter().map(resample).collect();
        let interval = |(column, known): (usize, &Estimate)| {
            let mut values: Vec<f64> = samples.iter().map(|s| s[column]).collect();
            let low = quantile(&mut values, 0.025).unwrap_or(-t).min(-t);
            let high = quantile(&mut values, 0.975).unwrap_or(t).max(t);
            Some(Interval(known.ratio - high * known.error, known.ratio - low * known.error))
        };
        known.iter().enumerate().map(interval).collect()
    }
}

/// The 97.5% point of Student's t with `clusters - 1` degrees of freedom; none of fewer than two.
pub(super) fn student(clusters: usize) -> Option<f64> {
    let freedom = clusters.checked_sub(1).filter(|&f| f > 0)?;
    Some(StudentsT::new(0.0, 1.0, freedom as f64).ok()?.inverse_cdf(0.975))
}

/// Sums of `values` over consecutive blocks of nearly equal length: [`BLOCKS`] of them, or as many
/// as have [`SHORTEST_BLOCK`] values.
pub fn block_sums(values: &[f64]) -> Vec<f64> {
    let n = values.len();
    let blocks = (n / SHORTEST_BLOCK).clamp(1, BLOCKS);
    (0..blocks).map(|b| values[b * n / blocks..(b + 1) * n / blocks].iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_nearly_the_same_length() {
        assert_eq!(block_sums(&[1.0; 33]), [16.0, 17.0]);
        assert_eq!(block_sums(&[1.0; 10]), [10.0]);
        assert_eq!(block_sums(&[]), [0.0]);
        let long = block_sums(&[1.0; 2044]);
        assert_eq!((long.len(), long.iter().sum::<f64>()), (BLOCKS, 2044.0));
        assert!(long.iter().all(|&b| b == 127.0 || b == 128.0));
        let values: Vec<f64> = (0..64).map(f64::from).collect();
        assert_eq!(block_sums(&values)[1], (16..32).map(f64::from).sum::<f64>());
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let x: Vec<f64> = (0..50).map(|i| f64::from(i % 7).exp()).collect();
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
    fn few_blocks_have_the_interval_of_students_t() {
        // 3 ± 3.182446 x sqrt(10 / 3 / 4).
        let interval = Bootstrap::new(1).ratios(&[&[1.0, 2.0, 4.0, 5.0]], &[1.0; 4])[0].expect("four blocks");
        assert!((interval.0 - 0.094_837).abs() < 1e-5 && (interval.1 - 5.905_163).abs() < 1e-5, "{interval:?}");
    }
}
