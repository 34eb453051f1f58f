//! The verdict in one word.
//!
//! Perplexity alone can't say that a model is as good as another: losses at single tokens go up
//! and down and cancel, and the interval of a short text holds 0 whatever happened. Divergence
//! can't cancel. So "indistinguishable" needs both, and says that the difference is *shown to be
//! small*, not that none was found:
//!
//! | word | the first that holds |
//! |---|---|
//! | `destroyed` | perplexity is above [`DESTROYED_RATIO`] times the reference's, or mean KL above [`DESTROYED_KL`] nats |
//! | `indistinguishable` | a change below [`FLOOR_CHANGE`] with mean KL below [`FLOOR_KL`]: float noise, whatever the interval says |
//! | `worse` | the interval of the change lies above 0, and perplexity is higher by [`WORSE_RATIO`] or more, mean KL is [`DIFFERENT_KL`] nats or more, or same top 1 below [`DIFFERENT_TOP1`] |
//! | `different` | KL or same top 1 is so, but perplexity is not shown to be higher |
//! | `measurable` | the interval of the change excludes 0; or that of KL reaches above [`SMALL_KL`]; or same top 1 is below [`HIGH_TOP1`] |
//! | `inconclusive` | the interval of the change reaches beyond 5% either way, or there is none: the text is too short |
//! | `indistinguishable` | else: the interval holds 0 within 5% either way, KL is small and same top 1 high |
//!
//! Without comparable scores an artifact is `unscored`, or `failed` where it couldn't be run.
//!
//! Mean KL is what the artifact would lose, in nats a token, on text that the reference wrote: 0.05
//! is 5% of perplexity there, the line of `worse` (ln 1.05 = 0.049), and 0.01 a fifth of that. By
//! Pinsker's inequality 0.01 nats keep the probability of any set of tokens within 7 points. The
//! floor is far above what another order of summation does (KL of 1e-8), and about the last of the
//! four digits that a perplexity is shown with.
//!
//! "Indistinguishable" is a statement about these tokens: other text can tell.

use crate::stats::Interval;
use serde::Serialize;
use std::fmt;

/// From this change of perplexity on, an artifact is worse: 5%.
pub const WORSE_RATIO: f64 = 1.05;

/// Beyond this multiple of the reference's perplexity, an artifact is destroyed.
pub const DESTROYED_RATIO: f64 = 10.0;

/// Above this mean divergence in nats, an artifact is destroyed.
pub const DESTROYED_KL: f64 = 2.0;

/// From this mean divergence in nats on, an artifact is another model, whatever its perplexity.
pub const DIFFERENT_KL: f64 = 0.05;

/// Below this share of equal first choices, too.
pub const DIFFERENT_TOP1: f64 = 0.80;

/// The interval of the mean divergence of an indistinguishable artifact ends here at the latest.
pub const SMALL_KL: f64 = 0.01;

/// An indistinguishable artifact has at least this share of equal first choices.
pub const HIGH_TOP1: f64 = 0.90;

/// A change of perplexity below this, as a share, is float noise if the divergence is, too.
pub const FLOOR_CHANGE: f64 = 0.0005;

/// A mean divergence in nats below this is float noise if the change is, too.
pub const FLOOR_KL: f64 = 1e-4;

/// The thresholds in a sentence or two.
pub const RULE: &str = "Verdict, the first that holds: destroyed above 10 times the reference's perplexity or 2 nats \
    of mean KL; indistinguishable below a change of 0.05% with mean KL below 0.0001 (float noise); worse where the \
    interval of the change lies above 0 and perplexity rose by 5% or more, mean KL is 0.05 or more, or same top 1 is \
    below 80%; different where KL or same top 1 is so without that rise; measurable where the interval of the change excludes 0, that of KL \
    reaches above 0.01, or same top 1 is below 90% (in brackets: which of them); inconclusive where the interval of \
    the change reaches beyond 5% either way; else indistinguishable. By the first text.";

/// The same for the foot of a table.
pub const LEGEND: &str = "Verdict: indistinguishable = the interval of the change holds 0 and stays within 5%, KL at \
    most 0.01, same top 1 at least 90%; measurable beyond that; different from KL 0.05 or below 80% same top 1, \
    worse if perplexity is up, too, or from +5%; destroyed above x 10 or KL 2.";

/// The word for an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is the reference.
    Reference,
    /// The difference is shown to be small.
    Indistinguishable,
    /// A difference was found, and is not large.
    Measurable,
    /// The text is too short to tell.
    Inconclusive,
    /// It predicts other tokens, though its perplexity is not shown to be worse.
    Different,
    /// Perplexity is higher by 5% or more, or higher with other predictions.
    Worse,
    /// Of no use.
    Destroyed,
    /// No comparable scores.
    #[default]
    Unscored,
    /// It couldn't be opened or run.
    Failed,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Perplexity rose.
    PerplexityUp,
    /// Perplexity fell.
    PerplexityDown,
    /// The divergence.
    Kl,
    /// Other first choices.
    SameTop1,
    /// Too few tokens.
    ShortText,
}

/// What a verdict goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Perplexity over the reference's.
    pub ratio: f64,
    /// Its paired interval.
    pub ratio_ci95: Option<Interval>,
    /// Mean divergence in nats.
    pub kl: f64,
    /// Its interval.
    pub kl_ci95: Option<Interval>,
    /// Share of equal first choices.
    pub same_top1: f64,
}

impl Evidence {
    /// The verdict, and what decided where the word leaves that open.
    pub fn verdict(&self) -> (Verdict, Option<Because>) {
        let Evidence { ratio, kl, same_top1, .. } = *self;
        if ratio.is_nan() || kl.is_nan() || same_top1.is_nan() {
            return (Verdict::Unscored, None);
        }
        if ratio > DESTROYED_RATIO || kl > DESTROYED_KL {
            let because = if ratio > DESTROYED_RATIO { Because::PerplexityUp } else { Because::Kl };
            return (Verdict::Destroyed, Some(because));
        }
        if (ratio - 1.0).abs() < FLOOR_CHANGE && kl < FLOOR_KL && same_top1 >= HIGH_TOP1 {
            return (Verdict::Indistinguishable, None);
        }
        let change = self.change();
        let large = if kl >= DIFFERENT_KL {
            Some(Because::Kl)
        } else {
            (same_top1 < DIFFERENT_TOP1).then_some(Because::SameTop1)
        };
        match (change, large) {
            (Some(Because::PerplexityUp), _) if ratio >= WORSE_RATIO => (Verdict::Worse, change),
            (Some(Because::PerplexityUp), Some(_)) => (Verdict::Worse, large),
            (_, Some(_)) => (Verdict::Different, large),
            (_, None) => self.small(change),
        }
    }

    /// The direction of a change whose interval excludes 0.
    fn change(&self) -> Option<Because> {
        match self.ratio_ci95 {
            Some(Interval(low, _)) if low > 1.0 => Some(Because::PerplexityUp),
            Some(Interval(_, high)) if high < 1.0 => Some(Because::PerplexityDown),
            _ => None,
        }
    }

    /// The verdict on what is neither worse nor different.
    fn small(&self, change: Option<Because>) -> (Verdict, Option<Because>) {
        let Some(Interval(low, high)) = self.ratio_ci95 else {
            return (Verdict::Inconclusive, Some(Because::ShortText));
        };
        if change.is_some() {
            return (Verdict::Measurable, change);
        }
        if self.kl_ci95.map_or(self.kl, |i| i.1) > SMALL_KL {
            return (Verdict::Measurable, Some(Because::Kl));
        }
        if self.same_top1 < HIGH_TOP1 {
            return (Verdict::Measurable, Some(Because::SameTop1));
        }
        if low < 1.0 / WORSE_RATIO || high > WORSE_RATIO {
            return (Verdict::Inconclusive, Some(Because::ShortText));
        }
        (Verdict::Indistinguishable, None)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reference => "reference",
            Verdict::Indistinguishable => "indistinguishable",
            Verdict::Measurable => "measurable",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Different => "different",
            Verdict::Worse => "worse",
            Verdict::Destroyed => "destroyed",
            Verdict::Unscored => "unscored",
            Verdict::Failed => "failed",
        })
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Because::PerplexityUp => "perplexity up",
            Because::PerplexityDown => "perplexity down",
            Because::Kl => "KL",
            Because::SameTop1 => "same top 1",
            Because::ShortText => "short text",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interval of KL that ends 10% above the mean.
    fn evidence(ratio: f64, low: f64, high: f64, kl: f64, same_top1: f64) -> Evidence {
        let kl_ci95 = Some(Interval(0.9 * kl, 1.1 * kl));
        Evidence { ratio, ratio_ci95: Some(Interval(low, high)), kl, kl_ci95, same_top1 }
    }

    fn of(ratio: f64, low: f64, high: f64, kl: f64, same_top1: f64) -> (Verdict, Option<Because>) {
        evidence(ratio, low, high, kl, same_top1).verdict()
    }

    #[test]
    fn small_differences() {
        use Verdict::{Inconclusive, Indistinguishable, Measurable};
        assert_eq!(of(1.001, 0.999, 1.003, 0.003, 0.97), (Indistinguishable, None));
        assert_eq!(of(0.99, 0.98, 0.995, 0.003, 0.97), (Measurable, Some(Because::PerplexityDown)));
        assert_eq!(of(1.049, 1.03, 1.06, 0.01, 0.95), (Measurable, Some(Because::PerplexityUp)));
        assert_eq!(of(1.001, 0.98, 1.02, 0.03, 0.92), (Measurable, Some(Because::Kl)));
        // The mean is below 0.01, but the interval is not.
        assert_eq!(of(1.001, 0.98, 1.02, 0.0095, 0.95), (Measurable, Some(Because::Kl)));
        assert_eq!(of(1.001, 0.98, 1.02, 0.008, 0.89), (Measurable, Some(Because::SameTop1)));
        // A rise of 5% is neither shown nor excluded.
        assert_eq!(of(1.01, 0.9, 1.12, 0.005, 0.97), (Inconclusive, Some(Because::ShortText)));
        let alone = Evidence { ratio_ci95: None, kl_ci95: None, ..evidence(1.01, 0.0, 0.0, 0.005, 0.97) };
        assert_eq!(alone.verdict(), (Inconclusive, Some(Because::ShortText)));
    }

    #[test]
    fn float_noise_is_not_measurable() {
        assert_eq!(of(1.0 + 1e-8, 1.0 + 5e-9, 1.0 + 2e-8, 8e-9, 1.0).0, Verdict::Indistinguishable);
        assert_eq!(of(0.9996, 0.9995, 0.9997, 9e-5, 0.99).0, Verdict::Indistinguishable);
        assert_eq!(of(1.0004, 1.0003, 1.0005, 2e-4, 0.99).0, Verdict::Measurable);
        assert_eq!(of(1.0006, 1.0005, 1.0007, 9e-5, 0.99).0, Verdict::Measurable);
    }

    #[test]
    fn divergence_and_agreement_veto() {
        // Losses that cancel: nothing is left of the model, but its interval holds 0.
        assert_eq!(of(1.02, 0.97, 1.07, 1.94, 0.13), (Verdict::Different, Some(Because::Kl)));
        assert_eq!(of(0.7, 0.6, 0.8, 0.3, 0.7), (Verdict::Different, Some(Because::Kl)));
        assert_eq!(of(1.0, 0.99, 1.01, 0.02, 0.6), (Verdict::Different, Some(Because::SameTop1)));
        // A rise that is not shown does not make it worse.
        assert_eq!(of(1.2, 0.9, 1.6, 0.2, 0.8).0, Verdict::Different);
    }

    #[test]
    fn large_differences() {
        assert_eq!(of(1.3, 1.2, 1.4, 0.27, 0.7), (Verdict::Worse, Some(Because::PerplexityUp)));
        // Shown to be higher, and not only by numbers.
        assert_eq!(of(1.048, 1.038, 1.058, 0.074, 0.77), (Verdict::Worse, Some(Because::Kl)));
        assert_eq!(of(1.01, 1.002, 1.02, 0.03, 0.77), (Verdict::Worse, Some(Because::SameTop1)));
        assert_eq!(of(8e4, 2e4, 3e5, 11.0, 0.01).0, Verdict::Destroyed);
        assert_eq!(of(1.5, 0.9, 2.0, 2.5, 0.2), (Verdict::Destroyed, Some(Because::Kl)));
        assert_eq!(of(f64::NAN, 0.9, 2.0, 0.0, 1.0).0, Verdict::Unscored);
        assert_eq!(serde_json::to_string(&Verdict::Worse).expect("serializes"), "\"worse\"");
        assert_eq!(serde_json::to_string(&Because::SameTop1).expect("serializes"), "\"same_top1\"");
    }

    #[test]
    fn the_sentences_name_the_thresholds() {
        let percent = |share: f64| format!("{}%", (1000.0 * share).round() / 10.0);
        let nats = |value: f64| value.to_string();
        let both = [percent(WORSE_RATIO - 1.0), nats(SMALL_KL), percent(HIGH_TOP1), nats(DIFFERENT_KL)];
        let both = both.into_iter().chain([percent(DIFFERENT_TOP1), nats(DESTROYED_RATIO), nats(DESTROYED_KL)]);
        for number in both {
            assert!(RULE.contains(&number) && LEGEND.contains(&number), "{number}");
        }
        assert!(RULE.contains("0.05%") && RULE.contains(&nats(FLOOR_KL)));
    }
}
