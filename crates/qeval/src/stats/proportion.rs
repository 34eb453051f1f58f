//! Proportions: Wilson's interval, clusters, McNemar's test.

use super::{Bootstrap, Interval};
use statrs::distribution::{Binomial, DiscreteCDF};

/// The 97.5% point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's 95% score interval of `hits` out of `total`; none of nothing.
pub fn wilson(hits: f64, total: f64) -> Option<Interval> {
    if total.is_nan() || total <= 0.0 {
        return None;
    }
    let p = hits / total;
    let shrink = 1.0 + Z * Z / total;
    let center = (p + Z * Z / (2.0 * total)) / shrink;
    let half = Z / shrink * (p * (1.0 - p) / total + Z * Z / (4.0 * total * total)).sqrt();
    Some(Interval((center - half).max(0.0), (center + half).min(1.0)))
}

/// McNemar's exact test, two-sided: `b` pairs changed one way, `c` the other.
pub fn mcnemar(b: u64, c: u64) -> f64 {
    let n = b + c;
    match Binomial::new(0.5, n) {
        Ok(binomial) if n > 0 => (2.0 * binomial.cdf(b.min(c))).min(1.0),
        _ => 1.0,
    }
}

/// A proportion whose trials come in clusters (tokens of one prompt).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clustered {
    /// How many times the variance of independent trials; at least 1.
    pub design_effect: f64,
    /// Wilson's interval of independent trials.
    pub wilson: Option<Interval>,
    /// Wilson's interval with the trials divided by the design effect.
    pub adjusted: Option<Interval>,
    /// Bootstrap over clusters.
    pub bootstrap: Option<Interval>,
}

/// Intervals of a proportion whose trials come in clusters of `(hits, trials)`.
pub fn clustered(clusters: &[(u64, u64)], bootstrap: &Bootstrap) -> Clustered {
    let hits: Vec<f64> = clusters.iter().map(|c| c.0 as f64).collect();
    let trials: Vec<f64> = clusters.iter().map(|c| c.1 as f64).collect();
    let (k, n) = (hits.iter().sum::<f64>(), trials.iter().sum::<f64>());
    let (p, clusters) = (k / n, clusters.len() as f64);
    // The variance of a ratio of sums over clusters, against that of n independent trials.
    let squares: f64 = hits.iter().zip(&trials).map(|(h, t)| (h - p * t).powi(2)).sum();
    let between = clusters / (clusters - 1.0) * squares / (n * n);
    let independent = p * (1.0 - p) / n;
    let ratio = between / independent;
    let design_effect = if ratio.is_finite() { ratio.max(1.0) } else { 1.0 };
    Clustered {
        design_effect,
        wilson: wilson(k, n),
        adjusted: wilson(k / design_effect, n / design_effect),
        bootstrap: bootstrap.ratios(&[&hits], &trials).into_iter().next().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(interval: Option<Interval>, low: f64, high: f64) {
        let Interval(l, h) = interval.expect("an interval");
        assert!((l - low).abs() < 5e-5 && (h - high).abs() < 5e-5, "[{l}, {h}] is not [{low}, {high}]");
    }

    #[test]
    fn wilson_of_published_cases() {
        // Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29.
        close(wilson(81.0, 263.0), 0.2553, 0.3662);
        close(wilson(15.0, 148.0), 0.0624, 0.1605);
        close(wilson(0.0, 20.0), 0.0, 0.1611);
        close(wilson(1.0, 29.0), 0.0061, 0.1718);
        assert_eq!(wilson(0.0, 0.0), None);
    }

    #[test]
    fn mcnemar_of_known_cases() {
        assert_eq!(mcnemar(0, 0), 1.0);
        assert_eq!(mcnemar(3, 3), 1.0);
        // 2 x (1 + 5) / 2^5.
        assert!((mcnemar(1, 4) - 0.375).abs() < 1e-12);
        // 2 / 2^6.
        assert!((mcnemar(6, 0) - 0.03125).abs() < 1e-12);
        // R: binom.test(5, 21)$p.value
        assert!((mcnemar(5, 16) - 0.026_603_7).abs() < 1e-6);
    }

    #[test]
    fn clusters_widen_the_interval() {
        let bootstrap = Bootstrap::new(1);
        // Whole prompts agree or don't: 8 of 16.
        let all_or_none: Vec<(u64, u64)> = (0..16).map(|i| if i % 2 == 0 { (9, 9) } else { (0, 9) }).collect();
        let out = clustered(&all_or_none, &bootstrap);
        // 16/15 x 16 x 4.5^2 / 144^2 against 0.25 / 144: 9.6.
        assert!((out.design_effect - 9.6).abs() < 1e-9, "{out:?}");
        let width = |i: Option<Interval>| i.map_or(0.0, |i| i.1 - i.0);
        assert!(width(out.adjusted) > 2.5 * width(out.wilson));
        assert!(width(out.bootstrap) > 2.5 * width(out.wilson));
        // Nothing varies.
        let perfect = clustered(&[(9, 9); 16], &bootstrap);
        assert_eq!(perfect.design_effect, 1.0);
        assert_eq!(perfect.adjusted, wilson(144.0, 144.0));
    }
}
