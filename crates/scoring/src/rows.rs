//! Results of a comparison: the structures behind every table, and the JSON.
//!
//! A value that was not measured is `null`; so is one that is not a finite number. Intervals are
//! arrays of two. [`Comparison::version`] rises when a field is renamed, removed or changes its
//! meaning; fields may be added.

use crate::stats::Interval;
use crate::verdict::{Because, Evidence, Margin, Verdict};
use crate::windows::Protocol;
use crate::{agreement, battery, choices, size};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Version of the JSON.
pub const VERSION: u32 = 3;

/// Any number of artifacts against one reference.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Comparison {
    /// Version of this structure.
    pub version: u32,
    /// The reference.
    pub reference: String,
    /// Rule that cuts texts into windows.
    pub protocol: Protocol,
    /// The scored texts, in the order of each row's `corpora`.
    pub corpora: Vec<CorpusInfo>,
    /// The battery that was asked.
    pub battery: Option<String>,
    /// Multiple-choice items that were scored.
    pub choices: Option<usize>,
    /// True if token agreement was measured.
    pub agreement: bool,
    /// True if speed was measured.
    pub speed: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// The difference that is accepted.
    pub margin: Margin,
    /// Path of the smallest artifact that is shown to lie within the margin.
    pub smallest_within_margin: Option<String>,
    /// Limits that the user set for the choice of an artifact.
    pub limits: Limits,
    /// Path of the smallest artifact within these limits; none without limits.
    pub smallest_within_limits: Option<String>,
    /// Description of how intervals and verdicts are computed, in sentences.
    pub methods: Vec<String>,
    /// Notes on the models for a reader.
    pub notes: Vec<String>,
    /// The reference, then the artifacts in the order given.
    pub rows: Vec<Row>,
}

/// A scored text.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CorpusInfo {
    /// Name of the text.
    pub name: String,
    /// The rule of its windows in a sentence.
    pub rule: String,
    /// Tokens that were scored.
    pub tokens_scored: usize,
    /// Bytes of these tokens.
    pub bytes_scored: usize,
}

/// A value with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// The value.
    pub value: f64,
    /// 95% interval of the value.
    pub ci95: Option<Interval>,
}

/// Perplexity against the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    /// Perplexity over the reference's.
    pub ratio: f64,
    /// Paired 95% interval of the ratio.
    pub ci95: Option<Interval>,
}

/// KL(reference || artifact) in nats, over the entries of the vocabulary that both have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Kl {
    /// Mean over tokens.
    pub mean: f64,
    /// The mean's 95% interval.
    pub ci95: Option<Interval>,
    /// Median over tokens.
    pub median: f64,
    /// 99th percentile over tokens.
    pub p99: f64,
}

/// Scores on one text.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct TextScores {
    /// exp(mean loss); none where tokenizers differ.
    pub perplexity: Option<Measured>,
    /// Against the reference; none for itself.
    pub change: Option<Change>,
    /// Total loss in bits over the bytes of the scored tokens.
    pub bits_per_byte: Option<f64>,
    /// 95% interval of the bits per byte.
    pub bits_per_byte_ci95: Option<Interval>,
    /// Divergence from the reference; none for itself.
    pub kl: Option<Kl>,
    /// Share of positions with the same most likely token as the reference.
    pub same_top1: Option<f64>,
    /// 95% interval of that share.
    pub same_top1_ci95: Option<Interval>,
    /// The divergence of each token, for plots.
    #[serde(skip)]
    pub divergences: Vec<f64>,
}

impl TextScores {
    /// The evidence for a verdict, from `tokens` scored tokens; none without comparable scores.
    pub fn evidence(&self, tokens: usize) -> Option<Evidence> {
        let (change, kl) = (self.change?, self.kl?);
        Some(Evidence { ratio: change.ratio, ratio_ci95: change.ci95, kl: kl.mean, kl_ci95: kl.ci95, tokens })
    }
}

/// One model.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Row {
    /// Label in tables: the scheme, and the file where several rows have the same scheme.
    pub label: String,
    /// Scheme of the model; none where it couldn't be opened.
    pub scheme: Option<String>,
    /// Path of the model.
    pub artifact: String,
    /// True for the reference's row.
    pub is_reference: bool,
    /// Error that kept this model from being scored, or from being scored in full.
    pub error: Option<String>,
    /// The verdict, by the first text.
    pub verdict: Verdict,
    /// Reason for the verdict, where the verdict's word leaves it open.
    pub verdict_because: Option<Because>,
    /// For an inconclusive row, the approximate number of tokens that would settle it; none where no reasonable number
    /// would.
    pub tokens_to_settle: Option<u64>,
    /// Scores on the first text.
    #[serde(flatten)]
    pub scores: TextScores,
    /// Scores on every text.
    pub corpora: Vec<TextScores>,
    /// Token agreement with the reference; none for itself.
    pub agreement: Option<agreement::Score>,
    /// The battery.
    pub battery: Option<battery::Score>,
    /// Multiple choice.
    pub choices: Option<choices::Score>,
    /// The scheme's bits per quantized weight.
    pub bpw: Option<f64>,
    /// Bits on disk per weight of the whole model.
    pub file_bpw: Option<f64>,
    /// Bytes of the weight files.
    pub size_bytes: Option<u64>,
    /// Weights in all.
    pub parameters: Option<u64>,
    /// Bytes of weights in memory.
    pub resident_bytes: Option<u64>,
    /// Relative error of the weights; none for the reference.
    pub weight_error: Option<size::Errors>,
    /// The reason that the weights can't be compared with the reference's.
    pub weights_not_comparable: Option<String>,
    /// Tokens per second of one pass over a window, the median of several.
    pub prefill_tokens_per_s: Option<f64>,
    /// The slowest and the fastest of these passes.
    pub prefill_range: Option<Interval>,
    /// Tokens per second of greedy decoding, the median of several runs.
    pub decode_tokens_per_s: Option<f64>,
    /// The slowest and the fastest of these runs.
    pub decode_range: Option<Interval>,
    /// The reason that it can't be compared token by token.
    pub not_comparable: Option<String>,
    /// Texts of this comparison that the model was trained on here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trained_on: Vec<String>,
}

/// The smallest artifact, by the bytes of its weight files, that is shown to lie within the margin.
pub fn smallest_within(rows: &[Row]) -> Option<&Row> {
    rows.iter().filter(|row| row.verdict.is_within()).min_by_key(|row| row.size_bytes.unwrap_or(u64::MAX))
}

/// Limits for the choice of an artifact. One that is absent limits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, JsonSchema)]
pub struct Limits {
    /// The largest mean KL of the first text, in nats.
    pub max_kl: Option<f64>,
    /// The most bytes of weight files.
    pub max_size_bytes: Option<u64>,
}

impl Limits {
    /// Returns whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns whether an artifact is shown to lie within the limits. A missing value shows nothing.
    fn hold(&self, row: &Row) -> bool {
        let kl = self.max_kl.is_none_or(|most| row.scores.kl.is_some_and(|kl| kl.mean <= most));
        let size = self.max_size_bytes.is_none_or(|most| row.size_bytes.is_some_and(|size| size <= most));
        kl && size && !row.is_reference && row.error.is_none()
    }

    /// The smallest artifact within the limits; none where nothing is limited.
    pub fn smallest<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        let within = rows.iter().filter(|row| !self.is_empty() && self.hold(row));
        within.min_by_key(|row| row.size_bytes.unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kl = self.max_kl.map(|most| format!("a mean KL of at most {most} nats"));
        let size = self.max_size_bytes.map(|most| format!("at most {} of weights", report::format::bytes(most)));
        f.write_str(&kl.into_iter().chain(size).collect::<Vec<_>>().join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_artifact_within_limits() {
        let row = |label: &str, size, kl: f64| {
            let kl = Kl { mean: kl, ci95: None, median: 0.0, p99: 0.0 };
            let scores = TextScores { kl: Some(kl), ..TextScores::default() };
            Row { label: label.into(), size_bytes: Some(size), scores, ..Row::default() }
        };
        let rows = [row("a", 100, 0.01), row("b", 60, 0.04), row("c", 50, 0.3)];
        let smallest =
            |max_kl, max_size_bytes| Limits { max_kl, max_size_bytes }.smallest(&rows).map(|row| row.label.as_str());
        assert_eq!(smallest(Some(0.05), None), Some("b"));
        assert_eq!(smallest(Some(0.05), Some(55)), None);
        assert_eq!(smallest(None, Some(80)), Some("c"));
        assert_eq!(smallest(None, None), None);
    }
}
