//! The verdict in one word.
//!
//! | word | when |
//! |---|---|
//! | `destroyed` | perplexity is more than [`DESTROYED_RATIO`] times the reference's, or mean KL is above [`DESTROYED_KL`] nats |
//! | `indistinguishable` | the paired interval of the change in log-perplexity holds 0 |
//! | `measurable` | it does not, and perplexity changed by less than [`WORSE_RATIO`] says |
//! | `worse` | it changed by more |
//! | `unscored` | there are no comparable scores, or the text is too short for an interval |
//!
//! The first that holds counts. "Indistinguishable" is a statement about these tokens: a longer
//! text has a narrower interval.

use crate::stats::Interval;
use serde::Serialize;
use std::fmt;

/// From this change of perplexity on, an artifact is worse: 5%.
pub const WORSE_RATIO: f64 = 1.05;

/// Beyond this multiple of the reference's perplexity, an artifact is destroyed.
pub const DESTROYED_RATIO: f64 = 10.0;

/// Above this mean divergence in nats, an artifact is destroyed.
pub const DESTROYED_KL: f64 = 2.0;

/// The thresholds in a sentence.
pub const RULE: &str = "Verdict: destroyed beyond 10 times the reference's perplexity or above 2 nats of mean KL; \
    else indistinguishable where the paired interval of the change holds 0; else measurable below a change of 5%, \
    worse from there on.";

/// The word for an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is the reference.
    Reference,
    /// The paired interval of the change holds 0.
    Indistinguishable,
    /// A change below 5%.
    Measurable,
    /// A change of 5% or more.
    Worse,
    /// Of no use.
    Destroyed,
    /// No comparable scores.
    Unscored,
}

impl Verdict {
    /// The verdict on a ratio of perplexities with its interval, and a mean divergence.
    pub fn of(ratio: f64, ci95: Option<Interval>, kl: f64) -> Self {
        if ratio.is_nan() || kl.is_nan() {
            return Verdict::Unscored;
        }
        if ratio > DESTROYED_RATIO || kl > DESTROYED_KL {
            return Verdict::Destroyed;
        }
        match ci95 {
            None => Verdict::Unscored,
            Some(interval) if interval.holds(1.0) => Verdict::Indistinguishable,
            Some(_) if ratio < WORSE_RATIO => Verdict::Measurable,
            Some(_) => Verdict::Worse,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reference => "reference",
            Verdict::Indistinguishable => "indistinguishable",
            Verdict::Measurable => "measurable",
            Verdict::Worse => "worse",
            Verdict::Destroyed => "destroyed",
            Verdict::Unscored => "unscored",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let of = |ratio: f64, low: f64, high: f64, kl| Verdict::of(ratio, Some(Interval(low, high)), kl);
        assert_eq!(of(1.001, 0.999, 1.003, 0.003), Verdict::Indistinguishable);
        assert_eq!(of(0.99, 0.98, 0.995, 0.003), Verdict::Measurable);
        assert_eq!(of(1.049, 1.03, 1.06, 0.01), Verdict::Measurable);
        assert_eq!(of(1.3, 1.2, 1.4, 0.27), Verdict::Worse);
        assert_eq!(of(8e4, 2e4, 3e5, 11.0), Verdict::Destroyed);
        assert_eq!(of(1.5, 0.9, 2.0, 2.5), Verdict::Destroyed);
        assert_eq!(Verdict::of(1.0, None, 0.0), Verdict::Unscored);
        assert_eq!(Verdict::of(f64::NAN, None, 0.0), Verdict::Unscored);
        assert_eq!(serde_json::to_string(&Verdict::Worse).expect("serializes"), "\"worse\"");
    }
}
