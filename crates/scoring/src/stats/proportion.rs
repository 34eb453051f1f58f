//! Proportions: Wilson's interval, clusters, McNemar's test.

use super::Interval;
use super::bootstrap::student;
use statrs::distribution::{Binomial, DiscreteCDF};

/// The 97.5% point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's 95% score interval of `hits` out of `total` independent trials; none of nothing.
pub fn wilson(hits: f64, total: f64) -> Option<Interval> {
    score_interval(hits, total, Z)
}

/// Wilson's score interval with `z` standard errors; none of nothing.
fn score_interval(hits: f64, total: f64, z: f64) -> Option<Interval> {
    if total.is_nan() || total <= 0.0 {
        return None;
    }
    let p = hits / total;
    let shrink = 1.0 + z * z / total;
    let center = (p + z * z / (2.0 * total)) / shrink;
    let half = z / shrink * (p * (1.0 - p) / total + z * z / (4.0 * total * total)).sqrt();
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

/// A proportion whose trials come in clusters: tokens of one prompt, or of one stretch of text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clustered {
    /// Variance over that of independent trials; at least 1.
    pub design_effect: f64,
    /// Wilson's 95% interval with the trials divided by the design effect, and Student's t with
    /// clusters - 1 degrees of freedom in place of the normal distribution's point.
    pub interval: Option<Interval>,
}

/// The interval of a proportion with `hits` out of `trials` in each cluster.
pub fn clustered(hits: &[f64], trials: &[f64]) -> Clustered {
    let (k, n) = (hits.iter().sum::<f64>(), trials.iter().sum::<f64>());
    let (p, clusters) = (k / n, hits.len() as f64);
    // The variance of a ratio of sums over clusters, against that of n independent trials.
    let squares: f64 = hits.iter().zip(trials).map(|(h, t)| (h - p * t).powi(2)).sum();
    let between = clusters / (clusters - 1.0) * squares / (n * n);
    let independent = p * (1.0 - p) / n;
    let ratio = between / independent;
    let design_effect = if ratio.is_finite() { ratio.max(1.0) } else { 1.0 };
    let interval = student(hits.len()).and_then(|t| score_interval(k / design_effect, n / design_effect, t));
    Clustered { design_effect, interval }
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
        // Whole prompts agree or don't: 8 of 16.
        let all_or_none: Vec<f64> = (0..16).map(|i| if i % 2 == 0 { 9.0 } else { 0.0 }).collect();
        let out = clustered(&all_or_none, &[9.0; 16]);
        // 16/15 x 16 x 4.5^2 / 144^2 against 0.25 / 144: 9.6.
        assert!((out.design_effect - 9.6).abs() < 1e-9, "{out:?}");
        let width = |i: Option<Interval>| i.map_or(0.0, |i| i.1 - i.0);
        assert!(width(out.interval) > 2.5 * width(wilson(72.0, 144.0)));
        // Nothing varies: 15 degrees of freedom (t = 2.131) are left.
        let perfect = clustered(&[9.0; 16], &[9.0; 16]);
        assert_eq!(perfect.design_effect, 1.0);
        close(perfect.interval, 144.0 / (144.0 + 2.131_45f64.powi(2)), 1.0);
        assert_eq!(clustered(&[9.0], &[9.0]).interval, None);
    }
}
