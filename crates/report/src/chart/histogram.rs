//! Values counted in bins.

use super::axis::{Axis, Scale};

/// Counts of values between edges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// The bins' edges, ascending; one more than there are counts.
    pub edges: Vec<f64>,
    /// Number of values in each bin.
    pub counts: Vec<u64>,
    /// Number of values that no bin could hold.
    pub left_out: u64,
}

impl Histogram {
    /// Counts these values in bins that are even on the scale.
    ///
    /// Values without a place (NaN, infinities, zero on a log scale) are left out.
    #[must_use]
    pub fn from_values(values: &[f64], bins: usize, scale: Scale) -> Self {
        let axis = Axis { scale, ..Axis::default() };
        let range = axis.range(values.iter().copied(), 0.0);
        Self::within(values, bins, scale, range)
    }

    /// Counts these values in bins between two ends, so that several histograms
    /// can share their bins. Values beyond the ends are left out, too.
    #[must_use]
    pub fn within(values: &[f64], bins: usize, scale: Scale, range: (f64, f64)) -> Self {
        let bins = bins.clamp(1, 1000);
        let (first, last) = (scale.even(range.0), scale.even(range.1));
        let step = (last - first) / bins as f64;
        if !(step.is_finite() && step > 0.0) {
            return Self { left_out: values.len() as u64, ..Self::default() };
        }
        let edges = (0..=bins).map(|index| scale.value(first + step * index as f64)).collect();
        let mut counts = vec![0; bins];
        let mut left_out = 0;
        for &value in values {
            let place = if scale.holds(value) { (scale.even(value) - first) / step } else { -1.0 };
            // Both ends may miss their bin by a rounding error.
            if place >= -1e-6 && place <= bins as f64 + 1e-6 {
                counts[(place.max(0.0) as usize).min(bins - 1)] += 1;
            } else {
                left_out += 1;
            }
        }
        Self { edges, counts, left_out }
    }

    /// Number of values in all bins.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bin with a place on the scale: both its ends, and the density there
    /// (share of all values for each even unit of the scale).
    pub(super) fn densities(&self, scale: Scale) -> Vec<(f64, f64, f64)> {
        let total = self.total().max(1) as f64;
        self.edges
            .windows(2)
            .zip(&self.counts)
            .filter(|(ends, _)| scale.holds(ends[0]) && scale.holds(ends[1]) && ends[0] < ends[1])
            .map(|(ends, &count)| {
                let width = scale.even(ends[1]) - scale.even(ends[0]);
                (ends[0], ends[1], count as f64 / total / width.max(f64::MIN_POSITIVE))
            })
            .filter(|(_, _, density)| density.is_finite())
            .collect()
    }

    /// Number of values in bins that have no place on the scale.
    pub(super) fn unplaced(&self, scale: Scale) -> u64 {
        let placed: u64 = self
            .edges
            .windows(2)
            .zip(&self.counts)
            .filter(|(ends, _)| scale.holds(ends[0]) && scale.holds(ends[1]) && ends[0] < ends[1])
            .map(|(_, &count)| count)
            .sum();
        self.left_out + (self.total() - placed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ends_are_counted() {
        let histogram = Histogram::from_values(&[0.0, 1.0, 2.0, 10.0], 5, Scale::Linear);
        assert_eq!(histogram.counts, [2, 1, 0, 0, 1]);
        assert_eq!(histogram.edges.len(), 6);
    }

    #[test]
    fn a_log_scale_leaves_zero_out() {
        let histogram = Histogram::from_values(&[0.0, -1.0, f64::NAN, 1e-6, 1e-3, 1.0], 6, Scale::Log);
        assert_eq!(histogram.left_out, 3);
        assert_eq!(histogram.counts, [1, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn densities_sum_to_one() {
        let histogram = Histogram::from_values(&[1.0, 2.0, 5.0, 9.0, 30.0], 7, Scale::Log);
        let sum: f64 = histogram
            .densities(Scale::Log)
            .iter()
            .map(|(low, high, density)| (high.log10() - low.log10()) * density)
            .sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn ragged_histograms_are_no_fault() {
        let histogram = Histogram { edges: vec![1.0], counts: vec![3], left_out: 1 };
        assert!(histogram.densities(Scale::Linear).is_empty());
        assert_eq!(histogram.unplaced(Scale::Linear), 4);
    }

    proptest! {
        #[test]
        fn no_value_is_lost(
            values in proptest::collection::vec(any::<f64>(), 0..50), bins in 0usize..40, log: bool,
        ) {
            let scale = if log { Scale::Log } else { Scale::Linear };
            let histogram = Histogram::from_values(&values, bins, scale);
            let held = values.iter().filter(|&&value| scale.holds(value)).count() as u64;
            prop_assert_eq!(histogram.total(), held);
            prop_assert_eq!(histogram.total() + histogram.left_out, values.len() as u64);
        }
    }
}
