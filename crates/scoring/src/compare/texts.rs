//! Scores on one text.

use super::{Contestant, Request, score};
use crate::rows::{Change, Kl, Measured, TextScores};
use crate::score::{Divergences, Losses, Problem};
use crate::stats::{Bootstrap, Interval, block_sums, clustered, quantile};
use crate::text::Cut;
use crate::{Corpus, Error, Result};
use progress::Progress;

/// Scores every contestant on a text and adds the result to its row.
pub(super) fn score(
    first: &mut Contestant<'_>,
    others: &mut [Contestant<'_>],
    corpus: &Corpus,
    cut: &Cut,
    request: &Request,
    bootstrap: &Bootstrap,
    progress: &dyn Progress,
) -> Result<()> {
    let paired: Vec<usize> = (0..others.len()).filter(|&i| others[i].is_paired()).collect();
    let models: Vec<_> = paired.iter().map(|&i| others[i].subject.model).collect();
    let reference = (first.subject.artifact.as_str(), first.subject.model);
    let broken = |e: Error| e.in_corpus(&corpus.name).of_reference(reference.0);
    let scores = score::score(reference, &models, &cut.windows.windows, progress).map_err(broken)?;

    let table = Table::new(cut, &scores.reference, bootstrap);
    let mut finished = Vec::new();
    for (&at, result) in paired.iter().zip(&scores.artifacts) {
        match result {
            Ok(scores) => {
                if let Some(padding) = &scores.padding {
                    others[at].note_padding(padding, scores.nll.len());
                }
                finished.push((at, scores));
            }
            Err(problem) => {
                let problem = Problem { corpus: Some(corpus.name.clone()), ..problem.clone() };
                others[at].row.error = Some(problem.to_string());
            }
        }
    }
    let (known, results) = table.scores(&finished.iter().map(|f| f.1).collect::<Vec<_>>());
    first.row.corpora.push(known);
    let mut results: Vec<(usize, TextScores)> = finished.iter().map(|f| f.0).zip(results).collect();
    for (at, other) in others.iter_mut().enumerate() {
        let own = results.iter().position(|r| r.0 == at).map(|i| results.swap_remove(i).1);
        let scores = match own {
            Some(scores) => scores,
            None if other.row.not_comparable.is_some() => alone(other, corpus, cut, request, bootstrap, progress),
            None => TextScores::default(),
        };
        other.row.corpora.push(scores);
    }
    Ok(())
}

/// Bits per byte of a model with another tokenizer, on the same stretch of text.
fn alone(
    other: &mut Contestant<'_>,
    corpus: &Corpus,
    cut: &Cut,
    request: &Request,
    bootstrap: &Bootstrap,
    progress: &dyn Progress,
) -> TextScores {
    let text = corpus.text.get(..cut.used_bytes).unwrap_or(&corpus.text).to_string();
    let stretch = Corpus { name: corpus.name.clone(), text };
    let protocol = crate::Protocol { tokens: None, ..request.protocol };
    let bits = other.step(|subject| {
        let cut = subject.encoder.windows(&stretch, &protocol)?;
        let losses = score::losses((&subject.artifact, subject.model), &cut.windows.windows, progress)
            .map_err(|e| e.in_corpus(&corpus.name))?;
        let interval = byte_intervals(bootstrap, &cut, &[&losses.nll]).into_iter().next().flatten();
        Ok((bits_per_byte(&losses.nll, cut.bytes), interval))
    });
    TextScores { bits_per_byte: bits.map(|b| b.0), bits_per_byte_ci95: bits.and_then(|b| b.1), ..TextScores::default() }
}

/// Intervals of bits per byte of some models on the same tokens.
pub(crate) fn byte_intervals(bootstrap: &Bootstrap, cut: &Cut, nll: &[&[f64]]) -> Vec<Option<Interval>> {
    let sums: Vec<Vec<f64>> = nll.iter().map(|nll| block_sums(nll)).collect();
    let views: Vec<&[f64]> = sums.iter().map(Vec::as_slice).collect();
    let bytes: Vec<f64> = cut.token_bytes.iter().map(|&b| b as f64).collect();
    let intervals = bootstrap.ratios(&views, &block_sums(&bytes));
    intervals.into_iter().map(|i| i.map(|i| i.map(|nats| nats / std::f64::consts::LN_2))).collect()
}

/// Total loss in bits over bytes.
pub(crate) fn bits_per_byte(nll: &[f64], bytes: usize) -> f64 {
    nll.iter().sum::<f64>() / std::f64::consts::LN_2 / bytes as f64
}

/// Losses and divergences of one text, from which its scores are computed.
struct Table<'a> {
    cut: &'a Cut,
    reference: &'a Losses,
    bootstrap: &'a Bootstrap,
}

impl<'a> Table<'a> {
    fn new(cut: &'a Cut, reference: &'a Losses, bootstrap: &'a Bootstrap) -> Self {
        Table { cut, reference, bootstrap }
    }

    /// The reference's scores, and those of the artifacts, all on the same resamples.
    fn scores(&self, artifacts: &[&Divergences]) -> (TextScores, Vec<TextScores>) {
        let known = &self.reference.nll;
        let mut columns = vec![block_sums(known)];
        for a in artifacts {
            let change: Vec<f64> = a.nll.iter().zip(&a.reference).map(|(a, r)| a - r).collect();
            columns.extend([&a.nll, &change, &a.kl].map(|values| block_sums(values)));
        }
        let weights = block_sums(&vec![1.0; known.len()]);
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let intervals = self.bootstrap.ratios(&views, &weights);
        let losses: Vec<&[f64]> = std::iter::once(&known[..]).chain(artifacts.iter().map(|a| &a.nll[..])).collect();
        let mut by_bytes = byte_intervals(self.bootstrap, self.cut, &losses).into_iter();
        let mut with_bytes = |scores| TextScores { bits_per_byte_ci95: by_bytes.next().flatten(), ..scores };
        let reference = with_bytes(self.plain(known, intervals[0]));
        let scores = artifacts.iter().zip(intervals[1..].chunks_exact(3));
        (reference, scores.map(|(a, intervals)| with_bytes(self.against(a, intervals, &weights))).collect())
    }

    fn plain(&self, nll: &[f64], interval: Option<Interval>) -> TextScores {
        TextScores {
            perplexity: Some(Measured { value: mean(nll).exp(), ci95: interval.map(|i| i.map(f64::exp)) }),
            bits_per_byte: Some(bits_per_byte(nll, self.cut.bytes)),
            ..TextScores::default()
        }
    }

    fn against(&self, a: &Divergences, intervals: &[Option<Interval>], tokens: &[f64]) -> TextScores {
        let mut sorted = a.kl.clone();
        let mut at = |q| quantile(&mut sorted, q).unwrap_or(f64::NAN);
        TextScores {
            change: Some(Change {
                ratio: (mean(&a.nll) - mean(&a.reference)).exp(),
                ci95: intervals[1].map(|i| i.map(f64::exp)),
            }),
            kl: Some(Kl {
                mean: mean(&a.kl),
                ci95: intervals[2].map(|i| i.map(|nats| nats.max(0.0))),
                median: at(0.5),
                p99: at(0.99),
            }),
            same_top1: Some(mean(&a.same_top)),
            same_top1_ci95: clustered(&block_sums(&a.same_top), tokens).interval,
            divergences: a.kl.clone(),
            ..self.plain(&a.nll, intervals[0])
        }
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
