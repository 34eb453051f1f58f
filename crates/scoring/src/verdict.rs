//! The verdict in one word: how far from its reference an artifact is shown to be.
//!
//! Two questions, each answered by intervals alone, never by a point estimate:
//!
//! - Is the difference *within the margin* that the user accepts? Shown by an equivalence test: the
//!   95% intervals of the table lie inside the margin (two one-sided tests, each at 2.5%). The
//!   margin of perplexity, 1% by default, stands for a mean KL of ln(1 + margin) nats a token.
//!   Losses of single tokens cancel in perplexity and can't cancel in KL, so both must be inside.
//! - Is there *any difference*? KL is 0 only between equal predictions. None is found where its
//!   whole interval lies below [`NOISE_KL`], which the order of sums alone can reach.
//!
//! | within the margin? | any difference? | verdict |
//! |---|---|---|
//! | yes: both intervals inside | none | `same` |
//! | yes: both intervals inside | yes | `equivalent` |
//! | no: one interval wholly outside | yes | `different` |
//! | not settled | either | `inconclusive` |
//!
//! `destroyed` is a `different` that is of no use. Without comparable scores an artifact is
//! `unscored`, or `failed` where it couldn't be run.
//!
//! Fewer tokens give wider intervals, and a wider interval never lies inside or outside of what a
//! narrower one within it did not. So less evidence only weakens a verdict, to `inconclusive` in the
//! end (a `same` by way of `equivalent`, a `destroyed` by way of `different`), and never improves it.
//! The exception is the error that the test allows: a sample may mislead once in forty. Fewer than
//! [`FEWEST_TOKENS`] tokens settle nothing, since a short text may hold none of the rare tokens that
//! make up most of a mean KL, and its interval is then too narrow.
//!
//! The share of equal first choices is shown and does not decide: it has no scale that perplexity
//! shares, and KL moves with it.

use crate::stats::Interval;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A mean divergence in nats below this is float noise: another order of summation gives 1e-8.
pub const NOISE_KL: f64 = 1e-6;

/// Beyond this multiple of the reference's perplexity, an artifact is destroyed.
pub const DESTROYED_RATIO: f64 = 10.0;

/// Above this mean divergence in nats, an artifact is destroyed.
pub const DESTROYED_KL: f64 = 2.0;

/// Fewest scored tokens that settle a verdict. One window of the default context has 511.
pub const FEWEST_TOKENS: usize = 500;

/// More tokens than this are no reasonable number to score.
const MOST_TOKENS: f64 = 1e8;

/// Square of (1.960 + 0.842) / 1.960: so many times the tokens that bring an interval's end to the
/// margin on average make four in five intervals stay clear of it.
const POWER: f64 = 2.043;

/// The difference that a user accepts, as a share of perplexity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(into = "Bounds")]
pub struct Margin(f64);

/// The margin as bounds of two measures.
#[derive(Serialize, JsonSchema)]
struct Bounds {
    /// Share of perplexity: 0.01 is 1%.
    perplexity: f64,
    /// Mean KL in nats.
    kl: f64,
}

impl From<Margin> for Bounds {
    fn from(margin: Margin) -> Self {
        Bounds { perplexity: margin.share(), kl: margin.nats() }
    }
}

impl Margin {
    /// The share of perplexity: 0.01 is 1%.
    pub fn share(self) -> f64 {
        self.0
    }

    /// Returns the margin in nats a token, ln(1 + share): the bound of mean KL, and of the mean loss either way.
    pub fn nats(self) -> f64 {
        self.0.ln_1p()
    }
}

impl Default for Margin {
    /// 1%.
    fn default() -> Self {
        Margin(0.01)
    }
}

impl FromStr for Margin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent: Option<f64> = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match percent {
            Some(p) if p > 0.0 && p <= 100.0 => Ok(Margin(p / 100.0)),
            _ => Err("give a percentage above 0% and up to 100%, such as 1%".into()),
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", (1e6 * self.0).round() / 1e4)
    }
}

/// The rule as sentences.
pub fn rule(margin: Margin) -> String {
    format!(
        "Verdict, by the 95% intervals of the first text alone, for a margin of {margin} of perplexity, which is {} nats \
         of mean KL: same = within the margin, and KL's interval ends below {NOISE_KL:e} (float noise); equivalent = \
         within the margin (the interval of the change lies between -{margin} and +{margin} as ratios, and that of KL \
         ends below its margin), and there is a difference; different = beyond the margin (one of the two intervals \
         lies wholly outside; in brackets: which); inconclusive = neither is shown, more tokens can tell; destroyed = \
         different, with an interval wholly above {DESTROYED_RATIO} times the reference's perplexity or {DESTROYED_KL} \
         nats. Fewer than {FEWEST_TOKENS} tokens settle nothing. Lying inside is an equivalence test (two one-sided tests at 2.5% each). Fewer tokens can only weaken a \
         verdict. Tokens that would settle it: for a chance of four in five, if the difference is as estimated.",
        significant(margin.nats()),
    )
}

/// The rule as a table: the two questions and the word.
pub fn rule_table(margin: Margin) -> [[String; 3]; 4] {
    let kl = significant(margin.nats());
    let row = |within: &str, any: &str, word: Verdict| [within.to_string(), any.to_string(), word.to_string()];
    [
        row(
            &format!("shown: the intervals of change and KL end within ±{margin} and {kl} nats"),
            &format!("none: KL's interval ends below {NOISE_KL:e}"),
            Verdict::Same,
        ),
        row("shown, as above", "yes", Verdict::Equivalent),
        row("shown not to be: an interval lies wholly outside", "yes", Verdict::Different),
        row(
            &format!("not settled by these tokens, or fewer than {FEWEST_TOKENS} of them"),
            "either",
            Verdict::Inconclusive,
        ),
    ]
}

/// The rule for the foot of a table.
pub fn legend(margin: Margin) -> String {
    format!(
        "Verdict: equivalent = shown to lie within {margin} of the reference's perplexity and {} nats of KL (same: no \
         difference above float noise); different = shown to lie beyond; inconclusive = neither, too few tokens.",
        significant(margin.nats())
    )
}

fn significant(nats: f64) -> String {
    report::format::significant(nats, 3)
}

/// The word for an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The row is the reference.
    Reference,
    /// Within the margin, and no difference above float noise.
    Same,
    /// Within the margin.
    Equivalent,
    /// Beyond the margin.
    Different,
    /// Neither is shown.
    Inconclusive,
    /// The artifact is of no use.
    Destroyed,
    /// No comparable scores.
    #[default]
    Unscored,
    /// The artifact couldn't be opened or run.
    Failed,
}

impl Verdict {
    /// Returns whether an artifact is shown to lie within the margin.
    pub fn is_within(self) -> bool {
        matches!(self, Verdict::Same | Verdict::Equivalent)
    }
}

/// Reason for a verdict, or the question that is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Perplexity is shown to be higher.
    PerplexityUp,
    /// Perplexity is shown to be lower.
    PerplexityDown,
    /// The interval of the change reaches across the margin.
    Perplexity,
    /// The divergence.
    Kl,
    /// Fewer than [`FEWEST_TOKENS`] tokens.
    ShortText,
}

/// Estimates and intervals that decide a verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Perplexity over the reference's. Decides nothing; says how many tokens might.
    pub ratio: f64,
    /// Paired interval of the ratio.
    pub ratio_ci95: Option<Interval>,
    /// Mean divergence in nats. Decides nothing.
    pub kl: f64,
    /// Interval of the mean KL.
    pub kl_ci95: Option<Interval>,
    /// Scored tokens.
    pub tokens: usize,
}

/// Position of an interval relative to a margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Above,
    Below,
    Across,
}

/// Returns the position of the interval relative to `[-margin, margin]`.
fn position(interval: Interval, margin: f64) -> Place {
    match interval {
        Interval(low, high) if low >= -margin && high <= margin => Place::Inside,
        Interval(low, _) if low > margin => Place::Above,
        Interval(_, high) if high < -margin => Place::Below,
        _ => Place::Across,
    }
}

impl Evidence {
    /// The verdict, and what decided or is not settled.
    pub fn verdict(&self, margin: Margin) -> (Verdict, Option<Because>) {
        if self.ratio.is_nan() || self.kl.is_nan() {
            return (Verdict::Unscored, None);
        }
        let (Some(ratio), Some(kl)) = (self.ratio_ci95, self.kl_ci95) else {
            return (Verdict::Inconclusive, Some(Because::ShortText));
        };
        if self.tokens < FEWEST_TOKENS {
            return (Verdict::Inconclusive, Some(Because::ShortText));
        }
        if ratio.0 > DESTROYED_RATIO {
            return (Verdict::Destroyed, Some(Because::PerplexityUp));
        }
        if kl.0 > DESTROYED_KL {
            return (Verdict::Destroyed, Some(Because::Kl));
        }
        match (position(ratio.map(f64::ln), margin.nats()), position(kl, margin.nats())) {
            (Place::Inside, Place::Inside) if kl.1 < NOISE_KL => (Verdict::Same, None),
            (Place::Inside, Place::Inside) => (Verdict::Equivalent, None),
            (Place::Above, _) => (Verdict::Different, Some(Because::PerplexityUp)),
            (Place::Below, _) => (Verdict::Different, Some(Because::PerplexityDown)),
            (_, Place::Above) => (Verdict::Different, Some(Because::Kl)),
            (Place::Inside, _) => (Verdict::Inconclusive, Some(Because::Kl)),
            _ => (Verdict::Inconclusive, Some(Because::Perplexity)),
        }
    }

    /// About how many tokens would settle an inconclusive verdict: intervals narrow with the square
    /// root of their number. None where the verdict is settled, or the difference lies so near the
    /// margin that no reasonable number would.
    pub fn tokens_to_settle(&self, margin: Margin) -> Option<u64> {
        if self.verdict(margin).0 != Verdict::Inconclusive {
            return None;
        }
        let (Some(ratio), Some(kl)) = (self.ratio_ci95, self.kl_ci95) else { return Some(FEWEST_TOKENS as u64) };
        let nats = margin.nats();
        let parts = [(self.ratio.ln(), ratio.map(f64::ln)), (self.kl, kl)];
        let is_outside = |estimate: f64| estimate.abs() > nats;
        let factor = match parts.iter().any(|p| is_outside(p.0)) {
            // One interval outside is enough.
            true => {
                let outside = parts.iter().filter(|p| is_outside(p.0));
                outside.map(|&(estimate, i)| factor(estimate, i, nats)).fold(f64::INFINITY, f64::min)
            }
            false => parts.iter().map(|&(estimate, i)| factor(estimate, i, nats)).fold(0.0, f64::max),
        };
        let needed = factor * self.tokens as f64;
        let least = (self.tokens + 1).max(FEWEST_TOKENS) as f64;
        (needed <= MOST_TOKENS).then(|| round_up(needed.max(least)))
    }
}

/// Returns the factor by which more tokens make an interval stay clear of the margin's ends.
fn factor(estimate: f64, Interval(low, high): Interval, margin: f64) -> f64 {
    let square = |width: f64, room: f64| if room > 0.0 { (width / room).powi(2) } else { f64::INFINITY };
    POWER
        * if estimate > margin {
            square(estimate - low, estimate - margin)
        } else if estimate < -margin {
            square(high - estimate, -margin - estimate)
        } else {
            square(high - estimate, margin - estimate).max(square(estimate - low, margin + estimate))
        }
}

/// Up to two significant digits.
fn round_up(tokens: f64) -> u64 {
    let unit = 10f64.powf((tokens.log10().floor() - 1.0).max(0.0));
    ((tokens / unit).ceil() * unit) as u64
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reference => "reference",
            Verdict::Same => "same",
            Verdict::Equivalent => "equivalent",
            Verdict::Different => "different",
            Verdict::Inconclusive => "inconclusive",
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
            Because::Perplexity => "perplexity",
            Because::Kl => "KL",
            Because::ShortText => "short text",
        })
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
