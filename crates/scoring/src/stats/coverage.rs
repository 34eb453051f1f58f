//! Coverage of the table's intervals on simulated scores.
//!
//! Scores of tokens are simulated with the marginal shapes and the dependence that were measured
//! between SmolLM2-135M and its int8-row form on prose: losses are skewed, changes have heavy tails,
//! divergences are lognormal (standard deviation 1.8 times the mean), and neighbours are correlated.
//! `heavy` ones have a standard deviation of 3.5 times the mean, and changes with tails to match.
//!
//! [`CLUSTERS`] blocks, prompts or questions, the first of them fewer than any table has. The
//! README's table is [`coverage_table`]'s output.

use super::{Bootstrap, Interval, clustered, wilson};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use statrs::distribution::{Binomial, ContinuousCDF, Discrete, Normal};
use statrs::function::gamma::gamma;

/// Numbers of clusters, each with the tolerance below and above 95%.
const CLUSTERS: [(usize, f64, f64); 3] = [(8, 0.035, 0.03), (16, 0.025, 0.025), (64, 0.02, 0.02)];

/// Correlation of the latent scores of two neighbours.
const CORRELATION: f64 = 0.3;

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

/// Scores of tokens. The number is the standard deviation of a logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Score {
    /// Mean loss, whose exponential is the perplexity.
    Loss,
    /// Loss over bytes of tokens, which are between 1 and 8.
    BitsPerByte,
    /// Mean change of the loss, whose exponential is the ratio of perplexities.
    Change(f64),
    /// Mean divergence.
    Kl(f64),
    /// Share of equal tokens.
    SameTop1(f64),
}

/// The scores that are simulated, by the name of their column.
const SCORES: [(&str, Score); 8] = [
    ("perplexity", Score::Loss),
    ("bits per byte", Score::BitsPerByte),
    ("change of perplexity", Score::Change(0.6)),
    ("change, heavy tails", Score::Change(1.0)),
    ("KL", Score::Kl(1.2)),
    ("KL, heavy tails", Score::Kl(1.6)),
    ("same top 1 of 97%", Score::SameTop1(0.97)),
    ("same top 1 of 70%", Score::SameTop1(0.7)),
];

impl Score {
    /// Score and weight of a token with a latent variate.
    fn draw(self, z: f64, rng: &mut ChaCha8Rng) -> (f64, f64) {
        let cdf = |z: f64| Normal::standard().cdf(z);
        let loss = || 3.0 * (-(1.0 - cdf(z)).max(1e-12).ln()).powf(1.3);
        match self {
            Score::Loss => (loss(), 1.0),
            Score::BitsPerByte => (loss(), (1.0 + 7.0 * rng.random::<f64>()).round()),
            Score::Change(spread) => (0.05 * normal(rng) * (spread * (normal(rng) + z)).exp(), 1.0),
            Score::Kl(spread) => (0.004 * (spread * z - spread * spread / 2.0).exp(), 1.0),
            Score::SameTop1(p) => (f64::from(u8::from(cdf(z) < p)), 1.0),
        }
    }

    fn mean(self) -> f64 {
        match self {
            Score::Loss => 3.0 * gamma(2.3),
            Score::BitsPerByte => 3.0 * gamma(2.3) / 4.5,
            Score::Change(_) => 0.0,
            Score::Kl(_) => 0.004,
            Score::SameTop1(p) => p,
        }
    }

    /// Returns whether the interval of one text, of `blocks` blocks of `length` tokens, holds the mean.
    fn holds(self, seed: u64, blocks: usize, length: usize) -> bool {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let tokens: Vec<(f64, f64)> =
            latent(&mut rng, blocks * length).into_iter().map(|z| self.draw(z, &mut rng)).collect();
        let sums = |f: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            tokens.chunks(length).map(|block| block.iter().map(f).sum()).collect()
        };
        let (sums, weights) = (sums(|t| t.0), sums(|t| t.1));
        let interval = match self {
            Score::SameTop1(_) => clustered(&sums, &weights).interval,
            _ => Bootstrap { seed: 5, resamples: 500 }.ratios(&[&sums], &weights)[0],
        };
        interval.is_some_and(|i| i.holds(self.mean()))
    }

    fn coverage(self, blocks: usize, length: usize, runs: u64) -> f64 {
        share(runs, |seed| self.holds(seed, blocks, length))
    }
}

/// The share of seeds for which it is true.
fn share(runs: u64, holds: impl Fn(u64) -> bool + Sync) -> f64 {
    (0..runs).into_par_iter().filter(|&seed| holds(seed)).count() as f64 / runs as f64
}

/// Agreement: 9 trials of each prompt, whose probability differs between prompts: it is beta
/// distributed around the mean, the closer the larger the concentration.
fn agreement_coverage(prompts: usize, (mean, concentration): (f64, f64), runs: u64) -> f64 {
    share(runs, |seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let hits: Vec<f64> = (0..prompts).map(|_| polya(&mut rng, mean, concentration, 9)).collect();
        clustered(&hits, &vec![9.0; prompts]).interval.is_some_and(|i| i.holds(mean))
    })
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

/// Agreements that are simulated: mean and concentration.
const AGREEMENTS: [(f64, f64); 4] = [(0.97, 10.0), (0.9, 10.0), (0.7, 3.0), (0.5, 5.0)];

/// The mean coverage of Wilson's interval of `n` independent trials, over true shares from 5% to
/// 95%; exact.
fn wilson_coverage(n: u64) -> f64 {
    let shares: Vec<f64> = (1..=181).map(|i| 0.05 + 0.9 * f64::from(i - 1) / 180.0).collect();
    let at = |p: f64| -> f64 {
        let binomial = Binomial::new(p, n).expect("a share");
        let held = (0..=n).filter(|&k| wilson(k as f64, n as f64).is_some_and(|i: Interval| i.holds(p)));
        held.map(|k| binomial.pmf(k)).sum()
    };
    shares.iter().map(|&p| at(p)).sum::<f64>() / shares.len() as f64
}

/// Blocks of a table's texts are at least this long where a verdict is given.
const LENGTH: usize = 31;

#[test]
fn intervals_of_tokens_cover() {
    for (name, score) in SCORES {
        for (blocks, below, above) in CLUSTERS {
            let share = score.coverage(blocks, LENGTH, 1000);
            // Heavy tails cost up to 3 points more; a standard deviation of 1,000 runs is 0.7.
            let below = if name.contains("heavy") { below + 0.03 } else { below };
            assert!((0.95 - below..=0.95 + above).contains(&share), "{name}, {blocks} blocks: {share}");
        }
    }
}

#[test]
fn the_interval_of_agreement_covers() {
    for agreement in AGREEMENTS {
        for (prompts, below, above) in CLUSTERS {
            let share = agreement_coverage(prompts, agreement, 4000);
            assert!((0.95 - below..=0.95 + above).contains(&share), "{agreement:?}, {prompts} prompts: {share}");
        }
    }
}

#[test]
fn the_intervals_of_questions_cover() {
    for n in [8, 16, 48, 64, 200] {
        let share = wilson_coverage(n);
        assert!((0.94..=0.965).contains(&share), "{n}: {share}");
    }
}

/// The README's table. `cargo test -p qeval --lib -- --ignored --nocapture coverage_table`
#[test]
#[ignore = "takes minutes"]
#[allow(clippy::print_stdout)]
fn coverage_table() {
    let row = |name: String, shares: Vec<f64>| {
        let shares: Vec<String> = shares.iter().map(|s| format!("{:.1}", 100.0 * s)).collect();
        println!("| {name} | {} |", shares.join(" | "));
    };
    for (name, score) in SCORES {
        let sizes = [(8, 32), (16, 32), (16, 128), (16, 512), (64, 32)];
        row(name.into(), sizes.map(|(blocks, length)| score.coverage(blocks, length, 4000)).to_vec());
    }
    for agreement in AGREEMENTS {
        let shares = CLUSTERS.map(|c| agreement_coverage(c.0, agreement, 20_000));
        row(format!("agreement {} ({})", agreement.0, agreement.1), shares.to_vec());
    }
    row("8, 16, 48, 64, 200 questions".into(), [8, 16, 48, 64, 200].map(wilson_coverage).to_vec());
}
