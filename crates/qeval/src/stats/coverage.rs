//! How often the intervals hold the true value, on simulated scores.
//!
//! Per-token scores are simulated with the marginal shapes and the dependence that were measured
//! between SmolLM2-135M and its int8-row form on prose: losses are skewed, changes have heavy
//! tails, divergences are lognormal (standard deviation 1.8 times the mean), and neighbours are
//! correlated.

use super::{Bootstrap, Interval, block_sums, clustered, wilson};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{Binomial, ContinuousCDF, Discrete, Normal};
use statrs::function::gamma::gamma;

/// Correlation of the latent scores of two neighbours.
const CORRELATION: f64 = 0.3;

/// Standard deviation of the logarithm of a divergence.
const SPREAD: f64 = 1.2;

/// A normal variate (Box and Muller).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// Correlated standard normal variates.
fn latent(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    let mut x = normal(rng);
    (0..n)
        .map(|_| {
            x = CORRELATION * x + (1.0 - CORRELATION * CORRELATION).sqrt() * normal(rng);
            x
        })
        .collect()
}

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Score {
    Loss,
    Change,
    Kl,
    SameTop1(f64),
}

impl Score {
    /// The scores of `n` tokens.
    fn sample(self, rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
        let normal_cdf = |z: f64| Normal::standard().cdf(z);
        let z = latent(rng, n);
        let one = |z: f64, rng: &mut ChaCha8Rng| match self {
            Score::Loss => 3.0 * (-(1.0 - normal_cdf(z)).max(1e-12).ln()).powf(1.3),
            Score::Change => 0.05 * normal(rng) * (0.6 * normal(rng) + 0.6 * z).exp(),
            Score::Kl => 0.004 * (SPREAD * z - SPREAD * SPREAD / 2.0).exp(),
            Score::SameTop1(p) => f64::from(u8::from(normal_cdf(z) < p)),
        };
        z.into_iter().map(|z| one(z, rng)).collect()
    }

    fn mean(self) -> f64 {
        match self {
            Score::Loss => 3.0 * gamma(2.3),
            Score::Change => 0.0,
            Score::Kl => 0.004,
            Score::SameTop1(p) => p,
        }
    }

    /// The interval that a table shows.
    fn interval(self, values: &[f64], bootstrap: &Bootstrap) -> Option<Interval> {
        let (sums, tokens) = (block_sums(values), block_sums(&vec![1.0; values.len()]));
        match self {
            Score::SameTop1(_) => clustered(&sums, &tokens).interval,
            _ => bootstrap.ratios(&[&sums], &tokens)[0],
        }
    }

    /// The share of `runs` texts of `n` tokens whose interval holds the mean.
    fn coverage(self, n: usize, runs: usize) -> f64 {
        let mut rng = ChaCha8Rng::seed_from_u64(20);
        let bootstrap = Bootstrap { seed: 5, resamples: 500 };
        let held = (0..runs).filter(|_| {
            let values = self.sample(&mut rng, n);
            self.interval(&values, &bootstrap).is_some_and(|i| i.holds(self.mean()))
        });
        held.count() as f64 / runs as f64
    }
}

/// The scores that are simulated, by the name of their column.
const SCORES: [(&str, Score); 5] = [
    ("perplexity", Score::Loss),
    ("change", Score::Change),
    ("KL", Score::Kl),
    ("same top 1, 97%", Score::SameTop1(0.97)),
    ("same top 1, 70%", Score::SameTop1(0.7)),
];

/// Agreement: 16 prompts with 9 trials each, whose probability differs between prompts.
fn agreement_coverage(mean: f64, concentration: f64, runs: usize) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    // A prompt's probability is beta distributed: the latent quantile of correlated uniforms.
    let held = (0..runs).filter(|_| {
        let hits: Vec<f64> = (0..16).map(|_| polya(&mut rng, mean, concentration, 9)).collect();
        clustered(&hits, &[9.0; 16]).interval.is_some_and(|i| i.holds(mean))
    });
    held.count() as f64 / runs as f64
}

/// Hits of a beta-binomial variate, drawn from Polya's urn.
fn polya(rng: &mut ChaCha8Rng, mean: f64, concentration: f64, trials: usize) -> f64 {
    let mut hits = 0.0;
    for trial in 0..trials {
        let p = (mean * concentration + hits) / (concentration + trial as f64);
        hits += f64::from(u8::from(rng.random::<f64>() < p));
    }
    hits
}

/// The mean coverage of Wilson's interval of `n` independent trials, over true shares from 5% to
/// 95%; exact.
fn wilson_coverage(n: u64) -> f64 {
    let shares: Vec<f64> = (1..=181).map(|i| 0.05 + 0.9 * f64::from(i - 1) / 180.0).collect();
    let at = |p: f64| -> f64 {
        let binomial = Binomial::new(p, n).expect("a share");
        let held = (0..=n).filter(|&k| wilson(k as f64, n as f64).is_some_and(|i| i.holds(p)));
        held.map(|k| binomial.pmf(k)).sum()
    };
    shares.iter().map(|&p| at(p)).sum::<f64>() / shares.len() as f64
}

#[test]
fn intervals_of_tokens_cover() {
    for (name, score) in SCORES {
        let share = score.coverage(2044, 1000);
        // One standard deviation of 1,000 runs is 0.7%.
        assert!((0.935..=0.975).contains(&share), "{name}: {share}");
    }
}

#[test]
fn intervals_of_short_texts_cover() {
    for (name, score) in SCORES.into_iter().filter(|s| s.1 != Score::SameTop1(0.97)) {
        let share = score.coverage(256, 1000);
        assert!((0.92..=0.98).contains(&share), "{name}: {share}");
    }
}

#[test]
fn the_interval_of_agreement_covers() {
    for (mean, concentration) in [(0.9, 10.0), (0.7, 3.0), (0.5, 5.0)] {
        let share = agreement_coverage(mean, concentration, 4000);
        assert!((0.94..=0.975).contains(&share), "{mean} {concentration}: {share}");
    }
}

#[test]
fn the_intervals_of_questions_cover() {
    for n in [16, 48, 200] {
        let share = wilson_coverage(n);
        assert!((0.94..=0.965).contains(&share), "{n}: {share}");
    }
}

/// The README's table. `cargo test -p qeval --lib -- --ignored --nocapture coverage_table`
#[test]
#[ignore = "takes minutes"]
fn coverage_table() {
    for (name, score) in SCORES {
        let shares = [256, 511, 2044, 8112].map(|n| format!("{:.1}", 100.0 * score.coverage(n, 4000)));
        println!("| {name} | {} |", shares.join(" | "));
        assert!(shares.iter().all(|s| s.parse::<f64>().is_ok_and(|s| (92.5..=98.5).contains(&s))), "{shares:?}");
    }
    for (mean, concentration) in [(0.97, 10.0), (0.9, 10.0), (0.7, 3.0), (0.5, 5.0)] {
        println!(
            "| agreement {mean} ({concentration}) | {:.1} |",
            100.0 * agreement_coverage(mean, concentration, 20_000)
        );
    }
    for n in [16, 48, 200] {
        println!("| {n} questions | {:.1} |", 100.0 * wilson_coverage(n));
    }
}
