//! The perplexity of one model, without a reference.

use super::Subject;
use super::contestant::beyond_training;
use super::notes::{self, SPECIAL};
use super::texts::{bits_per_byte, byte_intervals, mean};
use crate::rows::{CorpusInfo, Measured, VERSION};
use crate::stats::{Bootstrap, Interval, block_sums};
use crate::{Corpus, Protocol, Result, score};
use progress::Progress;
use schemars::JsonSchema;
use serde::Serialize;

/// The perplexity of one model on any number of texts.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Perplexities {
    /// Version of this structure.
    pub version: u32,
    /// The model.
    pub model: String,
    /// Rule that cuts texts into windows.
    pub protocol: Protocol,
    /// One entry for each text.
    pub corpora: Vec<CorpusPerplexity>,
    /// Description of how scores and intervals are computed, in sentences.
    pub methods: Vec<String>,
    /// Notes on the model for a reader.
    pub notes: Vec<String>,
}

/// The perplexity on one text.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CorpusPerplexity {
    /// The text and its rule.
    #[serde(flatten)]
    pub info: CorpusInfo,
    /// exp(mean loss).
    pub perplexity: Measured,
    /// Total loss in bits over the bytes of the scored tokens.
    pub bits_per_byte: f64,
    /// 95% interval of the bits per byte.
    pub bits_per_byte_ci95: Option<Interval>,
}

/// Scores one model on some texts.
///
/// # Errors
/// When a text or protocol makes no sense, or the model fails or computes NaN or Inf.
pub fn perplexity(
    subject: &Subject<'_>,
    corpora: &[Corpus],
    protocol: &Protocol,
    seed: u64,
    progress: &dyn Progress,
) -> Result<Perplexities> {
    let bootstrap = Bootstrap::new(seed);
    let cuts = corpora.iter().map(|c| subject.encoder.windows(c, protocol)).collect::<Result<Vec<_>>>()?;
    let mut out = Vec::with_capacity(corpora.len());
    for (corpus, cut) in corpora.iter().zip(&cuts) {
        let nll = score::losses((&subject.artifact, subject.model), &cut.windows.windows, progress)
            .map_err(|e| e.in_corpus(&corpus.name))?
            .nll;
        let tokens = block_sums(&vec![1.0; nll.len()]);
        let interval = bootstrap.ratios(&[&block_sums(&nll)], &tokens).into_iter().next().flatten();
        out.push(CorpusPerplexity {
            info: CorpusInfo {
                name: corpus.name.clone(),
                rule: cut.windows.rule.clone(),
                tokens_scored: cut.windows.scored(),
                bytes_scored: cut.bytes,
            },
            perplexity: Measured { value: mean(&nll).exp(), ci95: interval.map(|i| i.map(f64::exp)) },
            bits_per_byte: bits_per_byte(&nll, cut.bytes),
            bits_per_byte_ci95: byte_intervals(&bootstrap, cut, &[&nll]).into_iter().next().flatten(),
        });
    }
    let longest = cuts.iter().map(|c| c.windows.longest()).max().unwrap_or(0);
    let mut methods = vec![SPECIAL.to_string()];
    if out.iter().any(|c| c.perplexity.ci95.is_some()) {
        methods.push(format!("Interval (95%): {}.", notes::blocks(&bootstrap)));
    }
    Ok(Perplexities {
        version: VERSION,
        model: subject.artifact.clone(),
        protocol: *protocol,
        corpora: out,
        methods,
        notes: subject.warnings.iter().cloned().chain(beyond_training(subject, longest)).collect(),
    })
}
