//! Intervals and tests.
//!
//! Tokens of one text are not independent: neighbours share a context. Intervals of perplexity
//! and divergence therefore come from [`BLOCKS`] blocks of neighbouring tokens, the same blocks
//! for all models (so that differences are paired); those of proportions of tokens from blocks or
//! prompts.

mod bootstrap;
#[cfg(test)]
mod coverage;
mod proportion;

pub use bootstrap::{BLOCKS, Bootstrap, RESAMPLES, SHORTEST_BLOCK, block_sums};
pub use proportion::{Clustered, clustered, mcnemar, wilson};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A 95% interval, as `[low, high]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval(pub f64, pub f64);

impl Interval {
    /// Returns whether the value lies inside.
    pub fn holds(self, value: f64) -> bool {
        self.0 <= value && value <= self.1
    }

    /// Both ends mapped by a rising function.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Interval(f(self.0), f(self.1))
    }
}

/// The `q`-quantile by linear interpolation between order statistics (numpy's default); none of
/// no values. Sorts them.
pub fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let at = q.clamp(0.0, 1.0) * (values.len().checked_sub(1)? as f64);
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_as_numpy_does() {
        // numpy.quantile([1, 2, 3, 10], [0, .5, .99, 1])
        let mut values = [10.0, 1.0, 3.0, 2.0];
        let expected = [(0.0, 1.0), (0.5, 2.5), (0.99, 9.79), (1.0, 10.0)];
        for (q, value) in expected {
            assert!((quantile(&mut values, q).expect("some") - value).abs() < 1e-12);
        }
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn an_interval_is_an_array_in_json() {
        let json = serde_json::to_string(&Interval(0.5, 1.0)).expect("serializes");
        assert_eq!(json, "[0.5,1.0]");
    }
}
